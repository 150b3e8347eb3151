"""Take the docs' pictures of pages: `python tools/make_screenshots.py [reports.json]`.

The reports are those that `dpnoise audit --all --json reports.json` wrote; without them, a few
audits are run. The first is shown by itself, and all of them compared. Before them comes the page
of a release.
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
DESK, PHONE = 1000, 380


def main(paths: list[str]) -> None:
    """Render the pages, and take each on a desk in light and on a phone in dark."""
    with tempfile.TemporaryDirectory() as folder, Chromium() as browser:
        _take(browser, _published(Path(folder, "published.html")), "published-page", height=900)
    given = [report for path in paths for report in read_list(path)]
    reports = given or [audit(target, epsilon=1.0) for target in TARGETS]
    with tempfile.TemporaryDirectory() as folder, Chromium() as browser:
        report, comparison = Path(folder, "report.html"), Path(folder, "comparison.html")
        reports[0].to_html(report)
        write_comparison(reports, comparison)
        _take(browser, report, "audit-report", height=1400)
        _take(browser, comparison, "audit-comparison", height=1100)


def _published(page: Path) -> Path:
    """Write the page of a release about the people that come with dpnoise."""
    income = Question(["mean", "median"], "income", lower=0, upper=200_000, by=("city",))
    ages = Question(["histogram"], "age", edges=(0, 30, 40, 50, 65, 120))
    request = Request(1.0, [income, ages], groups={"city": CITIES})
    publish(PEOPLE, request).to_html(page, "Incomes in five cities")
    return page


def _take(browser: Chromium, page: Path, name: str, height: int) -> None:
    for width, scheme, suffix in ((DESK, "light", "desk"), (PHONE, "dark", "phone")):
        browser.open(page, width, scheme=scheme)
        target = PICTURES / f"{name}-{suffix}.png"
        browser.screenshot(target, height=height)
        print(f"docs/pictures/{target.name}: {width} pixels wide, {scheme}")


if __name__ == "__main__":
    main(sys.argv[1:])
