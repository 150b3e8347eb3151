"""Render HTML pages from Jinja templates; every value is escaped, and every character visible.

Values come from data, users and audited code. Only templates hold markup: a value cannot become an
element or an attribute, whatever its content or type.
"""

import re
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from types import FunctionType
from typing import TYPE_CHECKING

from dpnoise.core.safe_text import escape_text, format_confidence

if TYPE_CHECKING:
    from jinja2 import Environment
    from markupsafe import Markup


def render_template(template: str, **values: object) -> str:
    """Return a rendered template. Values are texts, numbers, functions, lists and dicts.

    A template's name is its package and its file in that package's folder `templates`, for
    example "dpnoise.core/base.html".
    """
    return environment().get_template(template).render(_copy_as_plain_types(values))


@cache
def environment() -> "Environment":
    """Return the Jinja environment, created on first use because Jinja is slow to import."""
    from jinja2 import Environment, FunctionLoader, StrictUndefined  # noqa: PLC0415

    made = Environment(
        loader=FunctionLoader(_read),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_make_visible,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters.update(
        powers=raise_exponents,
        dotted=break_at_dots,
        percent=lambda part: f"{format_confidence(100 * part, whole=100)}%",
        grouped="{:,}".format,
        share="{:.2%}".format,  # A fraction of a picture's width.
    )
    return made


def _read(name: str) -> str:
    package, _, file = name.partition("/")
    return files(package).joinpath("templates", file).read_text(encoding="utf-8")


def _copy_as_plain_types(value: object) -> object:
    """Copy values as plain types, so that no Markup escapes the escaping."""
    if value is None or isinstance(value, int | float | FunctionType):
        return value
    if isinstance(value, Mapping):
        return {
            _copy_as_plain_types(key): _copy_as_plain_types(part) for key, part in value.items()
        }
    if isinstance(value, list | tuple):
        return [_copy_as_plain_types(part) for part in value]
    return str(value)


def _make_visible(value: object) -> object:
    """Make every character visible except line ends. Jinja escapes the text afterwards."""
    from markupsafe import Markup  # noqa: PLC0415

    if isinstance(value, Markup):  # From a template: `_plain` leaves no Markup in values.
        return value
    text = str(value)
    return text if text.isprintable() else "\n".join(map(escape_text, text.split("\n")))


def _escape_and_replace(pattern: str, markup: str, text: str) -> "Markup":
    """Escape text, then replace a pattern by markup."""
    from markupsafe import Markup, escape  # noqa: PLC0415

    return Markup(re.sub(pattern, markup, str(escape(_make_visible(text)))))  # noqa: S704 - escaped


def raise_exponents(text: str) -> "Markup":
    """Escape text, and show exponents (numbers and e) as superscripts.

    >>> print(raise_exponents("y < 2^-53"))
    y &lt; 2<sup>-53</sup>
    """
    return _escape_and_replace(r"\^(-?[0-9]+|e\b)", r"<sup>\1</sup>", text)


def break_at_dots(name: str) -> "Markup":
    """Escape a name, and allow line breaks after its dots.

    >>> print(break_at_dots("numpy.laplace"))
    numpy.<wbr/>laplace
    """
    return _escape_and_replace(r"\.", ".<wbr/>", name)
