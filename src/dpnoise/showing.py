"""Text from data and users, made safe to show to people."""


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
