"""Write the README's table and picture of all audits: `make audits`."""

import sys
from pathlib import Path

import matplotlib as mpl
from marks import write_between_marks
from matplotlib import pyplot as plt

from dpnoise import targets
from dpnoise.auditing.report import Report, read_list
from dpnoise.auditing.wording import at_least

ROOT = Path(__file__).parent.parent
PICTURE = ROOT / "docs" / "pictures" / "certified.png"

# What people use: one line of the picture each. The table has all targets.
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


def table(reports: list[Report]) -> str:
    """Return one row for each audit."""
    lines = [
        "| target | version | claims | certified at least | verdict | by |",
        "|---|---|---|---|---|---|",
    ]
    for report in reports:
        certified = at_least(report.certified, report.claimed)
        verdict = "**broken**" if report.broken else "not broken by these attacks"
        by = report.findings[0].attack if report.broken else ""
        lines.append(
            f"| {report.target} | {report.version} | {report.claimed:g} | {certified} "
            f"| {verdict} | {by} |"
        )
    return "\n".join([*lines, "", *measured_on(reports)])


def measured_on(reports: list[Report]) -> list[str]:
    """Return lines that name the machine, and the targets that have no build for it."""
    versions = reports[0].versions
    audited = {report.target for report in reports}
    missing = {name: why for name, why in targets.left_out().items() if name not in audited}
    notes = [
        f"Not audited: {', '.join(missing)}. Note: {why}" for why in sorted({*missing.values()})
    ]
    return [f"Measured on {versions['machine']}, Python {versions['python']}.", *notes]


def draw(reports: list[Report]) -> None:
    """Draw claimed against certified epsilon."""
    mpl.use("Agg")
    by_name = {report.target: report for report in reports}
    shown = [(label, by_name[name]) for name, label in COMMON.items() if name in by_name]
    figure, axis = plt.subplots(figsize=(7.5, 0.32 * len(shown) + 1.0), layout="constrained")
    colours = ["#b5342b" if report.broken else "#3b7ea1" for _, report in shown]
    values = [report.certified for _, report in shown]
    axis.barh([label for label, _ in shown], values, color=colours)
    axis.axvline(shown[0][1].claimed, color="#1a1a1a", linestyle="--", linewidth=1)
    axis.text(shown[0][1].claimed + 0.05, -0.95, "claimed", fontsize=8, va="center")
    for row, (_, report) in enumerate(shown):
        word = "broken" if report.broken else "not broken"
        certified = at_least(report.certified, report.claimed)
        right = max(report.certified, report.claimed) + 0.08
        axis.text(right, row, f"{certified}, {word}", va="center", fontsize=8)
    axis.invert_yaxis()
    axis.set_xlim(0, 9)
    axis.spines[["top", "right"]].set_visible(False)
    axis.set_xlabel(f"certified lower bound on epsilon, confidence {shown[0][1].confidence:g}")
    figure.savefig(PICTURE, dpi=150)


def main() -> None:
    """Write both."""
    reports = read_list(sys.argv[1])
    draw(reports)
    write_between_marks(ROOT / "README.md", "audits", table(reports))
    print(f"Wrote {len(reports)} audits to README.md and {PICTURE.name}.")


if __name__ == "__main__":
    main()
