"""Write tables into a page, between two marks."""

from pathlib import Path


def write_between_marks(page: Path, mark: str, text: str) -> None:
    """Replace the text between the begin and end marks of a name."""
    begin, end = f"<!-- {mark}: begin -->", f"<!-- {mark}: end -->"
    before, rest = page.read_text().split(begin)
    _, after = rest.split(end)
    page.write_text(f"{before}{begin}\n{text}\n{end}{after}")
