"""HTML from plain functions: text is escaped unless it was made here.

Names come from data, from users, from whoever is audited. A child of `tag` that is a plain string
is text, and cannot become an element or an attribute, whatever it contains.
"""

import re
from html import escape as html_escape
from typing import Final, Self

from dpnoise.core.safe_text import shown

_VOID: Final = frozenset({"meta", "rect", "line", "wbr"})


def escape(text: str) -> str:
    r"""Return text as HTML. Lines may end in it, but nothing in it is invisible.

    Examples
    --------
    >>> escape("<b>\u202e")
    '&lt;b&gt;\\u202e'
    """
    return html_escape("\n".join(map(shown, text.split("\n"))))


class Markup(str):
    """Text that is HTML already."""

    __slots__ = ()

    @classmethod
    def joined(cls, *parts: str) -> Self:
        """Join parts, escaping those that are plain text."""
        return cls("".join(part if isinstance(part, Markup) else escape(part) for part in parts))


def tag(name: str, /, *children: str, **attributes: str) -> Markup:
    """Make an element; `class_` stands for class, and other underscores for hyphens.

    Examples
    --------
    >>> tag("p", "1 < 2, ", tag("em", "always"), class_="lead")
    '<p class="lead">1 &lt; 2, <em>always</em></p>'
    """
    pairs = ((key.rstrip("_").replace("_", "-"), text) for key, text in attributes.items())
    written = "".join(f' {key}="{escape(text)}"' for key, text in pairs)
    if name in _VOID:
        return Markup(f"<{name}{written}/>")
    return Markup(f"<{name}{written}>{Markup.joined(*children)}</{name}>")


def powers(text: str) -> Markup:
    """Escape text, and raise its exponents: numbers, and e.

    Examples
    --------
    >>> powers("y < 2^-53")
    'y &lt; 2<sup>-53</sup>'
    """
    return Markup(re.sub(r"\^(-?[0-9]+|e\b)", r"<sup>\1</sup>", escape(text)))


def dotted(name: str) -> Markup:
    """Let a line end after the dots of a name.

    Examples
    --------
    >>> dotted("numpy.laplace")
    'numpy.<wbr/>laplace'
    """
    return Markup(escape(name).replace(".", ".<wbr/>"))
