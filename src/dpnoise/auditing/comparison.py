"""Several reports on one page, the worst first."""

from collections.abc import Mapping, Sequence

from dpnoise.auditing import figures
from dpnoise.auditing.figures import Bar
from dpnoise.auditing.page import Data, badge_of, certified, limits, state
from dpnoise.auditing.wording import at_least, number
from dpnoise.core.markup import Markup, dotted, powers, tag
from dpnoise.core.page_layout import definitions, document, section, table


def render_comparison(reports: Sequence[Data], not_audited: Mapping[str, str]) -> str:
    """Return one page that compares the reports of several targets, the worst first.

    `not_audited` says of other targets why they were not audited.
    """
    ordered = sorted(reports, key=lambda report: report["certified"] / report["claimed"])[::-1]
    broken = sum(report["broken"] for report in ordered)
    verdict = f"{broken} of {len(ordered)} targets broken."
    return document(
        f"Audit of {len(ordered)} targets",
        tag(
            "header",
            tag("p", "dpnoise audit", class_="over"),
            tag("h1", verdict),
            tag(
                "p",
                "Each bar is the epsilon that an audit certified: the target cannot have less. "
                "The upright line is the epsilon that it was used as if it had.",
                class_="lead",
            ),
            class_="broken" if broken else "calm",
        ),
        section("Certified epsilon, and the one it was used with", _compared(ordered)),
        section("Target by target", _comparison_table(ordered), _measured_on(ordered)),
        section("Not audited", definitions(not_audited.items())) if not_audited else Markup(""),
        limits(ordered),
    )


def _compared(reports: list[Data]) -> Markup:
    rows = [
        Bar(
            report["target"],
            f"{at_least(report['certified'], report['claimed'])}, {state(report)}",
            report["certified"],
            "broken" if report["broken"] else "calm",
            mark=report["claimed"],
        )
        for report in reports
    ]
    return tag("figure", figures.bars("Certified epsilon of each target", rows))


def _comparison_table(reports: list[Data]) -> Markup:
    head = (
        *("Target", "Version", "Used as if", "Certified", "Of at most"),
        *("Verdict", "Strongest attack", "Its event"),
    )
    rows = []
    for report in reports:
        best = max(report["findings"], key=lambda finding: finding["certified"], default=None)
        rows.append(
            (
                dotted(report["target"]),
                report["version"] or "none given",
                number(report["claimed"]),
                certified(report, best) if best else "no attack was run",
                at_least(report["ceiling"]),
                badge_of(report),
                best["attack"] if best else "none",
                powers(best["event"]) if best else "none",
            )
        )
    return table(head, rows)


def _measured_on(reports: list[Data]) -> Markup:
    """Name the machines: what an attack knows of a library's roundings may hold on some alone."""
    machines = {report["versions"].get("machine", "a machine not named") for report in reports}
    return tag("p", f"Measured on {', '.join(sorted(machines))}.")
