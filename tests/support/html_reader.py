"""A reader of HTML pages for the tests, stricter than browsers."""

from html.parser import HTMLParser


class Reader(HTMLParser):
    """Reads a page as strictly as XML: every tag is closed, in order."""

    VOID = frozenset({"meta", "rect", "line", "path", "wbr"})
    INLINE = frozenset({"sup", "tspan", "strong"})

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == []
        self.text = " ".join("".join(self.texts).split())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Record a tag and its attributes."""
        assert len(dict(attrs)) == len(attrs), f"<{tag}> has an attribute twice"
        self.tags.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Record a tag without an end tag."""
        assert tag in self.VOID
        self.handle_starttag(tag, attrs)

    def handle_endtag(self, tag: str) -> None:
        """Close the tag that was opened last."""
        assert self.open.pop() == tag
        self.texts.append("" if tag in self.INLINE else " ")

    def handle_data(self, data: str) -> None:
        """Record the text that people read."""
        if self.open and self.open[-1] != "style":
            self.texts.append(data)

    def count(self, tag: str) -> int:
        """Return the number of elements with a tag."""
        return sum(name == tag for name, _ in self.tags)
