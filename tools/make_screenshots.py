"""Take the docs' pictures of audit pages: `python tools/make_screenshots.py [reports.json]`.

The reports are those that `dpnoise audit --all --json reports.json` wrote; without them, a few
audits are run. The first is shown by itself, and all of them compared.
"""

import sys
import tempfile
from pathlib import Path

from chromium import Chromium

from dpnoise.auditing import audit
from dpnoise.auditing.report import read_list, write_comparison

PICTURES = Path(__file__).parent.parent / "docs" / "pictures"
TARGETS = ("numpy.laplace", "paper.laplace", "dpnoise.laplace", "dpnoise.release")
DESK, PHONE = 1000, 380


def main(paths: list[str]) -> None:
    """Render the pages, and take each on a desk in light and on a phone in dark."""
    given = [report for path in paths for report in read_list(path)]
    reports = given or [audit(target, epsilon=1.0) for target in TARGETS]
    with tempfile.TemporaryDirectory() as folder, Chromium() as browser:
        report, comparison = Path(folder, "report.html"), Path(folder, "comparison.html")
        reports[0].to_html(report)
        write_comparison(reports, comparison)
        _take(browser, report, "audit-report", height=1400)
        _take(browser, comparison, "audit-comparison", height=1100)


def _take(browser: Chromium, page: Path, name: str, height: int) -> None:
    for width, scheme, suffix in ((DESK, "light", "desk"), (PHONE, "dark", "phone")):
        browser.open(page, width, scheme=scheme)
        target = PICTURES / f"{name}-{suffix}.png"
        browser.screenshot(target, height=height)
        print(f"docs/pictures/{target.name}: {width} pixels wide, {scheme}")


if __name__ == "__main__":
    main(sys.argv[1:])
