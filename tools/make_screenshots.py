"""Take the screenshots of the docs: `python tools/make_screenshots.py [reports.json]`.

`dpnoise audit --all --json reports.json` writes the reports; without them, one audit is run. The
screenshots show the page of the request in docs/publishing.md, that of the README's command, and
the first report.
"""

import sys
import tempfile
from pathlib import Path

from chromium import Chromium

from dpnoise import cli
from dpnoise.auditing import audit
from dpnoise.auditing.report import read_list

DOCS = Path(__file__).parent.parent / "docs"
PICTURES = DOCS / "pictures"
# The release of the README.
MEANS = """
--column income --query mean --lower 0 --upper 200000 --epsilon 1
--group-by city=cork,dublin,galway
"""
DESKTOP, PHONE = 1000, 380
# The README shows two parts of pages side by side, at about half this size.
PART_WIDTH, PART_HEIGHT = 720, 370


def main(paths: list[str]) -> None:
    """Take pages on a desktop in light mode and on a phone in dark mode, and parts of pages."""
    reports = [report for path in paths for report in read_list(path)]
    with tempfile.TemporaryDirectory() as folder, Chromium() as browser:
        page, request = Path(folder, "page.html"), Path(folder, "request.toml")
        write_page = ["--sample", "--html", str(page), "--force"]
        tutorial = (DOCS / "publishing.md").read_text()
        request.write_text(tutorial.split("\n```toml\n")[1].split("\n```\n")[0])
        cli.main(["release", str(request), *write_page])
        screens = {"desk": (DESKTOP, "light"), "phone": (PHONE, "dark")}
        _take(browser, page, "published-page", screens)
        cli.main(["release", *MEANS.split(), *write_page])
        _take_part(browser, page, "published-numbers", end=".numbers")
        report = reports[0] if reports else audit("numpy.laplace", epsilon=1.0)
        report.to_html(page)
        _take(browser, page, "audit-report", {"desk": (DESKTOP, "light")})
        _take_part(browser, page, "audit-verdict")


def _take(browser: Chromium, page: Path, name: str, screens: dict[str, tuple[int, str]]) -> None:
    for suffix, (width, scheme) in screens.items():
        browser.open(page, width, scheme=scheme)
        browser.screenshot(PICTURES / f"{name}-{suffix}.png", height=1100)
        print(f"docs/pictures/{name}-{suffix}.png: {width} pixels wide, {scheme}")


def _take_part(browser: Chromium, page: Path, name: str, end: str | None = None) -> None:
    """Take the part of a page that ends with its first element `end`, or begins at the top."""
    browser.open(page, PART_WIDTH)
    bottom = f"document.querySelector('{end}').getBoundingClientRect().bottom + 12"
    top = 0 if end is None else browser.evaluate(bottom) - PART_HEIGHT
    browser.screenshot(PICTURES / f"{name}.png", top=top, height=PART_HEIGHT)
    print(f"docs/pictures/{name}.png: {PART_WIDTH} pixels wide, light")


if __name__ == "__main__":
    main(sys.argv[1:])
