"""Write the scoreboard, the table and the picture of all audits: `make audits`."""

import sys
from datetime import date
from pathlib import Path
from typing import NamedTuple

import matplotlib as mpl
from ink import INK, SETTINGS
from marks import write_between_marks
from matplotlib.figure import Figure

from dpnoise.auditing import targets
from dpnoise.auditing.report import Report, read_list
from dpnoise.auditing.wording import bound_text

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "scoreboard.md"
HOME = ROOT / "docs" / "index.md"
PICTURE = ROOT / "docs" / "pictures" / "certified.svg"
GAP = 0.3  # From a bar or the dashed line to its text, in units of epsilon.
BROKEN, NOT_BROKEN = "#d1493f", "#3b8fc0"

# The targets that people use; the picture has one bar for each. The table has all targets.
COMMON = {
    "numpy.laplace": "NumPy laplace",
    "numpy.normal": "NumPy normal",
    "random.gauss": "random.gauss",
    "torch.normal": "PyTorch normal",
    "opacus": "Opacus",
    "jax.normal": "JAX normal",
    "diffprivlib.Laplace": "diffprivlib Laplace",
    "diffprivlib.GaussianAnalytic": "diffprivlib Gaussian",
    "opendp.laplace": "OpenDP Laplace",
    "pydp.laplace": "PyDP Laplace",
    "pydp.gaussian": "PyDP Gaussian",
    "dpnoise.release": "dpnoise release",
    "dpnoise.release.gaussian": "dpnoise release, Gaussian",
}
# What is known of broken targets: sums of Laplace noise in floats since Mironov, of any noise since
# Haney and others. What was found here has a row in docs/disclosures.md.
PUBLIC_SINCE = {"laplace": "2012", "gaussian": "2022"}
FOUND_HERE = {"pydp.gaussian": "[not yet](disclosures.md)"}
OURS = "dpnoise."
STANDARD_LIBRARY = "random."


def table(reports: list[Report]) -> str:
    """Return the table: one row for each audit, then the machine and the missing targets."""
    titles = "target, version, certified at least, of at most, verdict, by, public, repeat it"
    lines = [f"| {titles.replace(', ', ' | ')} |", "|" + "---|" * (titles.count(",") + 1)]
    for report in reports:
        certified = bound_text(report.certified, report.claimed)
        verdict = "**broken**" if report.broken else "not broken by these attacks"
        attack = report.findings[0].attack if report.broken else ""
        lines.append(
            f"| {report.target} | {version_of(report)} "
            f"| {certified} | {bound_text(report.ceiling)} | {verdict} | {attack} "
            f"| {publication(report)} | `{command(report)}` |"
        )
    return "\n".join([*lines, "", *measured_on(reports)])


def version_of(report: Report) -> str:
    """Return the version of what a target calls: that of Python for the standard library."""
    standard = report.target.startswith(STANDARD_LIBRARY)
    return f"Python {report.versions['python']}" if standard else report.version


def publication(report: Report) -> str:
    """Return since when it is public that a target is broken."""
    if not report.broken:
        return ""
    if report.target.startswith(OURS):
        return "ours"
    return FOUND_HERE.get(report.target, PUBLIC_SINCE[report.noise])


def command(report: Report) -> str:
    """Return the command that repeats an audit."""
    delta = f" --delta {report.delta:g}".replace("e-0", "e-") if report.delta else ""
    return f"dpnoise audit {report.target} --epsilon {report.claimed:g}{delta}"


def home_table(reports: list[Report]) -> str:
    """Return the table of the home page: the targets that people use."""
    by_name = {report.target: report for report in reports}
    titles = "library, certified ε at least, verdict, public, repeat it"
    lines = [f"| {titles.replace(', ', ' | ')} |", "|" + "---|" * (titles.count(",") + 1)]
    for name, label in COMMON.items():
        if report := by_name.get(name):
            verdict = "**broken**" if report.broken else "not broken by these attacks"
            certified = bound_text(report.certified, report.claimed)
            lines.append(
                f"| {label} {version_of(report)} | {certified} | {verdict} "
                f"| {publication(report)} | `{command(report)}` |"
            )
    return "\n".join([*lines, "", *measured_on(reports)])


def measured_on(reports: list[Report]) -> list[str]:
    """Return lines that name the machine and the targets without a build for it."""
    versions = reports[0].versions
    audited = {report.target for report in reports}
    missing = {
        name: why for name, why in targets.unavailable_targets().items() if name not in audited
    }
    notes = [
        f"Not audited: {', '.join(missing)}. Note: {why}" for why in sorted({*missing.values()})
    ]
    libraries = f"Python {versions['python']}, dpnoise {versions['dpnoise']}"
    today = f"{date.today():%-d %B %Y}"  # noqa: DTZ011 - the day of whoever runs it
    machine = versions["machine"]
    return [f"Measured on {machine}, {libraries}, by `make audits` on {today}.", *notes]


class Bar(NamedTuple):
    """A bar of the picture."""

    label: str
    certified: float
    claimed: float
    broken: bool


def bars_of(reports: list[Report]) -> list[Bar]:
    """Return a bar for each target in `COMMON`."""
    by_name = {report.target: report for report in reports}
    return [
        Bar(label, by_name[name].certified, by_name[name].claimed, by_name[name].broken)
        for name, label in COMMON.items()
        if name in by_name
    ]


def draw(bars: list[Bar], confidence: float, target: Path = PICTURE) -> None:
    """Draw claimed against certified epsilon, in colours readable on white and on black."""
    with mpl.rc_context(SETTINGS):
        figure = Figure(figsize=(5.6, 0.27 * len(bars) + 0.9), layout="constrained")
        axis = figure.add_subplot()
        colours = [BROKEN if bar.broken else NOT_BROKEN for bar in bars]
        axis.barh([bar.label for bar in bars], [bar.certified for bar in bars], color=colours)
        axis.axvline(bars[0].claimed, color=INK, linestyle="--", linewidth=1.2)
        claim = f"used as if epsilon were {bars[0].claimed:g}"
        axis.text(bars[0].claimed + GAP, -1, claim, va="center")
        for row, bar in enumerate(bars):
            verdict = "broken" if bar.broken else "not broken"
            right = max(bar.certified, bar.claimed) + GAP
            axis.text(
                right,
                row,
                f"{bound_text(bar.certified, bar.claimed)}, {verdict}",
                va="center",
            )
        axis.set_ylim(len(bars) - 0.4, -1.5)
        axis.set_xlim(0, 10.2)
        axis.tick_params(left=False)
        axis.spines[["top", "right"]].set_visible(False)
        axis.set_xlabel(f"certified lower bound on epsilon, confidence {confidence:g}")
        figure.savefig(target, format="svg", metadata={"Date": None})


def main() -> None:
    """Write the table and the picture."""
    reports = read_list(sys.argv[1])
    draw(bars_of(reports), reports[0].confidence)
    write_between_marks(PAGE, "audits", table(reports))
    write_between_marks(HOME, "audits", home_table(reports))
    print(f"Wrote {len(reports)} audits to {PAGE.name}, {HOME.name} and {PICTURE.name}.")


if __name__ == "__main__":
    main()
