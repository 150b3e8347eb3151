"""Text from data and users made safe to print, and numbers printed next to a limit."""

import sys
from collections.abc import Sequence


def escape_text(text: object) -> str:
    r"""Return a text on one line with every unprintable character escaped.

    Control characters, line ends, marks that reverse the writing direction and undecodable bytes
    of file names could control a terminal or deceive a reader.

    >>> print(escape_text("Köln [kg]"))
    Köln [kg]
    >>> print(escape_text("a\x1b[2J\nb\u202ec"))
    a\x1b[2J\nb\u202ec
    """
    return "".join(
        character if character.isprintable() else character.encode("unicode_escape").decode()
        for character in str(text)
    )


def align_columns(rows: Sequence[Sequence[object]], numbers: int) -> str:
    r"""Return rows as lines of text in columns, of which the last `numbers` are right-aligned.

    >>> print(align_columns([["city", "count"], ["cork", "12"], ["dun\nlaoghaire", "7"]], 1))
    city            count
    cork               12
    dun\nlaoghaire      7
    """
    texts = [[escape_text(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*texts, strict=True)]
    first = len(widths) - numbers
    lines = (
        "  ".join(
            cell.rjust(width) if i >= first else cell.ljust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in texts
    )
    return "\n".join(line.rstrip() for line in lines)


def shorten(text: str, most: int) -> str:
    """Shorten a text to `most` characters, with an ellipsis at the end."""
    return text if len(text) <= most else text[: most - 1] + "…"


def format_near_limits(number: float, *limits: float, digits: int = 2) -> str:
    """Format a number with enough digits to show on which side of each limit it is.

    >>> format_near_limits(2.4999, 1.5, 2.5), format_near_limits(2.04, 1.5, 2.5)
    ('2.4999', '2.04')
    >>> format_near_limits(2.5, 2.5), format_near_limits(1.0096, 1.01)
    ('2.50', '1.0096')
    """

    def same_side(shown: float) -> bool:
        return all(
            (shown > limit, shown < limit) == (number > limit, number < limit) for limit in limits
        )

    while digits < sys.float_info.dig and not same_side(float(f"{number:.{digits}f}")):
        digits += 1
    return f"{number:.{digits}f}"


def format_confidence(confidence: float, whole: float = 1.0) -> str:
    """Format a probability, or a percentage of 100, and never as the whole if it is less.

    >>> format_confidence(0.95), format_confidence(1 - 0.05 / 3), format_confidence(1 - 1e-8)
    ('0.95', '0.983333', '0.99999999')
    >>> format_confidence(95.0, whole=100), format_confidence(100 * (1 - 1e-12), whole=100)
    ('95', '99.9999999999')
    """
    texts = (f"{confidence:.{digits}g}" for digits in range(6, 18))
    return next((text for text in texts if float(text) < whole), f"{whole:g}")


def format_percent_near_limit(share: float, limit: float) -> str:
    """Format a share as a percentage on the same side of a limit.

    >>> [format_percent_near_limit(share, 0.6) for share in (0.98114, 0.59996, 0.60004)]
    ['98.1%', '59.996%', '60.004%']
    """
    return format_near_limits(100 * share, 100 * limit, digits=1) + "%"
