"""HTML pages from Jinja templates, in which every value is text: escaped and visible.

Names come from data, from users, from the target of an audit. Only templates hold markup. A value
cannot become an element or an attribute, whatever it contains and whatever its type is.
"""

import re
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from types import FunctionType
from typing import TYPE_CHECKING

from dpnoise.core.safe_text import shown

if TYPE_CHECKING:
    from jinja2 import Environment
    from markupsafe import Markup


def render(template: str, **values: object) -> str:
    """Return the page that a template makes of values: texts, numbers, functions, lists and dicts.

    A template is named by its package and by its file in the folder `templates` of that package,
    as in "dpnoise.core/base.html".
    """
    return environment().get_template(template).render(_plain(values))


@cache
def environment() -> "Environment":
    """Return Jinja's environment; it is made by the first page, because Jinja is slow to import."""
    from jinja2 import Environment, FunctionLoader, StrictUndefined  # noqa: PLC0415

    made = Environment(
        loader=FunctionLoader(_read),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_visible,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters.update(
        powers=raise_exponents,
        dotted=break_at_dots,
        grouped="{:,}".format,
        share="{:.2%}".format,  # Of the width of a picture.
    )
    return made


def _read(name: str) -> str:
    package, _, file = name.partition("/")
    return files(package).joinpath("templates", file).read_text(encoding="utf-8")


def _plain(value: object) -> object:
    """Copy values without the types that Jinja would trust, such as a name that is a Markup."""
    if value is None or isinstance(value, int | float | FunctionType):
        return value
    if isinstance(value, Mapping):
        return {_plain(key): _plain(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(part) for part in value]
    return str(value)


def _visible(value: object) -> object:
    """Make every character visible but the ends of lines. Jinja escapes the text afterwards."""
    from markupsafe import Markup  # noqa: PLC0415

    if isinstance(value, Markup):  # Made by a template: values have no such type.
        return value
    text = str(value)
    return text if text.isprintable() else "\n".join(map(shown, text.split("\n")))


def _replaced(pattern: str, markup: str, text: str) -> "Markup":
    """Escape text, and put markup in place of a pattern."""
    from markupsafe import Markup, escape  # noqa: PLC0415

    return Markup(re.sub(pattern, markup, str(escape(_visible(text)))))  # noqa: S704 - escaped


def raise_exponents(text: str) -> "Markup":
    """Escape text, and raise its exponents: numbers, and e.

    Examples
    --------
    >>> print(raise_exponents("y < 2^-53"))
    y &lt; 2<sup>-53</sup>
    """
    return _replaced(r"\^(-?[0-9]+|e\b)", r"<sup>\1</sup>", text)


def break_at_dots(name: str) -> "Markup":
    """Escape a name, and let a line end after its dots.

    Examples
    --------
    >>> print(break_at_dots("numpy.laplace"))
    numpy.<wbr/>laplace
    """
    return _replaced(r"\.", ".<wbr/>", name)
