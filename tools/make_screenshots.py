"""Take the screenshots of the docs: `python tools/make_screenshots.py [reports.json]`.

`dpnoise audit --all --json reports.json` writes the reports; without them, a few audits are run.
The screenshots show the page of a release, the first report, and a comparison of all reports.
"""

import sys
import tempfile
from dataclasses import replace
from pathlib import Path

from chromium import Chromium

from dpnoise.auditing import audit
from dpnoise.auditing.report import read_list, write_comparison
from dpnoise.statistics import Question, Request, publish

PICTURES = Path(__file__).parent.parent / "docs" / "pictures"
PEOPLE = Path(__file__).parent.parent / "src" / "dpnoise" / "cli" / "people.csv"
CITIES = ("dublin", "cork", "limerick", "galway", "waterford")
CITIES_IN_README = ("cork", "dublin", "galway")
TARGETS = ("numpy.laplace", "paper.laplace", "dpnoise.laplace", "dpnoise.release")
DESKTOP, PHONE = 1000, 380
# The README shows two parts of pages side by side, at about half this size.
PART_WIDTH, PART_HEIGHT = 720, 370


def main(paths: list[str]) -> None:
    """Take each page on a desktop in light mode and on a phone in dark mode, and two parts."""
    income = Question(["mean"], "income", lower=0, upper=200_000, by=("city",))
    incomes = replace(income, statistics=["mean", "median"])
    ages = Question(["histogram"], "age", edges=(0, 30, 40, 50, 65, 120))
    with tempfile.TemporaryDirectory() as folder, Chromium() as browser:
        published, short = Path(folder, "published.html"), Path(folder, "short.html")
        _write_release(published, CITIES, incomes, ages)
        _write_release(short, CITIES_IN_README, income)
        _take(browser, published, "published-page", height=1100)
        _take_part(browser, short, "published-numbers", end=".numbers")
    reports_of_files = [report for path in paths for report in read_list(path)]
    reports = reports_of_files or [audit(target, epsilon=1.0) for target in TARGETS]
    with tempfile.TemporaryDirectory() as folder, Chromium() as browser:
        report, comparison = Path(folder, "report.html"), Path(folder, "comparison.html")
        reports[0].to_html(report)
        write_comparison(reports, comparison)
        _take(browser, report, "audit-report", height=1100)
        _take_part(browser, report, "audit-verdict")
        _take(browser, comparison, "audit-comparison", height=1100)


def _write_release(page: Path, cities: tuple[str, ...], *questions: Question) -> None:
    """Write the page of a release of the data set in the package."""
    title = f"Incomes in {'five' if cities == CITIES else 'three'} cities"
    publish(PEOPLE, Request(1.0, questions, groups={"city": cities})).to_html(page, title)


def _take(browser: Chromium, page: Path, name: str, height: int) -> None:
    for width, scheme, suffix in ((DESKTOP, "light", "desk"), (PHONE, "dark", "phone")):
        browser.open(page, width, scheme=scheme)
        target = PICTURES / f"{name}-{suffix}.png"
        browser.screenshot(target, height=height)
        print(f"docs/pictures/{target.name}: {width} pixels wide, {scheme}")


def _take_part(browser: Chromium, page: Path, name: str, end: str | None = None) -> None:
    """Take the part of a page that ends with its first element `end`, or begins at the top."""
    browser.open(page, PART_WIDTH)
    bottom = f"document.querySelector('{end}').getBoundingClientRect().bottom + 12"
    top = 0 if end is None else browser.evaluate(bottom) - PART_HEIGHT
    browser.screenshot(PICTURES / f"{name}.png", top=top, height=PART_HEIGHT)
    print(f"docs/pictures/{name}.png: {PART_WIDTH} pixels wide, light")


if __name__ == "__main__":
    main(sys.argv[1:])
