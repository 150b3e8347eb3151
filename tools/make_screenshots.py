"""Take the screenshots of the docs: `python tools/make_screenshots.py [reports.json]`.

`dpnoise audit --all --json reports.json` writes the reports; without them, a few audits are run.
The screenshots show the page of a release, the first report, and a comparison of all reports.
"""

import sys
import tempfile
from pathlib import Path

from chromium import Chromium

from dpnoise.auditing import audit
from dpnoise.auditing.report import read_list, write_comparison
from dpnoise.statistics import Question, Request, publish

PICTURES = Path(__file__).parent.parent / "docs" / "pictures"
PEOPLE = Path(__file__).parent.parent / "src" / "dpnoise" / "cli" / "people.csv"
CITIES = ("dublin", "cork", "limerick", "galway", "waterford")
TARGETS = ("numpy.laplace", "paper.laplace", "dpnoise.laplace", "dpnoise.release")
DESKTOP, PHONE = 1000, 380


def main(paths: list[str]) -> None:
    """Take each page on a desktop in light mode and on a phone in dark mode."""
    with tempfile.TemporaryDirectory() as folder, Chromium() as browser:
        _take(
            browser,
            _write_release_page(Path(folder, "published.html")),
            "published-page",
            height=1100,
        )
    reports_of_files = [report for path in paths for report in read_list(path)]
    reports = reports_of_files or [audit(target, epsilon=1.0) for target in TARGETS]
    with tempfile.TemporaryDirectory() as folder, Chromium() as browser:
        report, comparison = Path(folder, "report.html"), Path(folder, "comparison.html")
        reports[0].to_html(report)
        write_comparison(reports, comparison)
        _take(browser, report, "audit-report", height=1100)
        _take(browser, comparison, "audit-comparison", height=1100)


def _write_release_page(page: Path) -> Path:
    """Write the page of a release of the data set in the package, and return its path."""
    income = Question(["mean", "median"], "income", lower=0, upper=200_000, by=("city",))
    ages = Question(["histogram"], "age", edges=(0, 30, 40, 50, 65, 120))
    request = Request(1.0, [income, ages], groups={"city": CITIES})
    publish(PEOPLE, request).to_html(page, "Incomes in five cities")
    return page


def _take(browser: Chromium, page: Path, name: str, height: int) -> None:
    for width, scheme, suffix in ((DESKTOP, "light", "desk"), (PHONE, "dark", "phone")):
        browser.open(page, width, scheme=scheme)
        target = PICTURES / f"{name}-{suffix}.png"
        browser.screenshot(target, height=height)
        print(f"docs/pictures/{target.name}: {width} pixels wide, {scheme}")


if __name__ == "__main__":
    main(sys.argv[1:])
