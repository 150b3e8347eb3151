"""Text from data and users, made safe to show to people, and numbers beside their limits."""

import sys


def shown(text: object) -> str:
    r"""Return a text in which every character is visible, on one line.

    What could steer a terminal or deceive a reader is shown as its escape: control characters, ends
    of lines, marks that turn the direction of writing, bytes of a file's name that are no text.

    Examples
    --------
    >>> print(shown("Köln [kg]"))
    Köln [kg]
    >>> print(shown("a\x1b[2J\nb\u202ec"))
    a\x1b[2J\nb\u202ec
    """
    return "".join(
        character if character.isprintable() else character.encode("unicode_escape").decode()
        for character in str(text)
    )


def shortened(text: str, most: int) -> str:
    """Cut a text that has no room, and show that it was cut."""
    return text if len(text) <= most else text[: most - 1] + "…"


def beside(number: float, *limits: float, digits: int = 2) -> str:
    """Show a number with as many digits as tell on which side of each limit it is.

    Examples
    --------
    >>> beside(2.4999, 1.5, 2.5), beside(2.04, 1.5, 2.5), beside(2.5, 2.5), beside(1.0096, 1.01)
    ('2.4999', '2.04', '2.50', '1.0096')
    """

    def same_side(shown: float) -> bool:
        return all(
            (shown > limit, shown < limit) == (number > limit, number < limit) for limit in limits
        )

    while digits < sys.float_info.dig and not same_side(float(f"{number:.{digits}f}")):
        digits += 1
    return f"{number:.{digits}f}"


def percent_beside(share: float, limit: float) -> str:
    """Show a share as a percentage that is on the same side of a limit.

    Examples
    --------
    >>> percent_beside(0.98114, 0.6), percent_beside(0.59996, 0.6), percent_beside(0.60004, 0.6)
    ('98.1%', '59.996%', '60.004%')
    """
    return beside(100 * share, 100 * limit, digits=1) + "%"
