"""The pages of one report and of several, as HTML that needs nothing else: no script, no network.

They know only the plain data of `Report.to_dict`, so that a report read from a file shows the same.
What a picture shows is given to the templates as shares of its width and height.
"""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from dpnoise.auditing.wording import at_least, duration, number, percent, used_as_if
from dpnoise.core import html
from dpnoise.core.safe_text import shortened

Data = dict[str, Any]
Drawing = dict[str, object]

_LINE: Final = 38  # Characters, at least, in the 340 pixels of a phone.
_WIDEST: Final = 60  # Columns.
_FEW: Final = 10  # Outputs in a column that chance alone may bring.
_SAFE_TO_SHOW: Final = 10.0  # epsilon above which exp(epsilon) helps nobody


def render(report: Data) -> str:
    """Return the page of one report, given as `Report.to_dict()`."""
    strongest, others = _sort_findings(report["findings"])
    at_delta = f"at delta {number(report['delta'])}"
    with_sensitivity = f"{at_delta} and sensitivity {number(report['sensitivity'])}"
    claimed, bound = report["claimed"], report["certified"]
    kind = "broken" if report["broken"] else "calm"
    rows = [
        Bar("Used as if", number(claimed), claimed, "claim"),
        Bar("Certified", f"at least {at_least(bound, claimed)}", bound, kind, mark=claimed),
    ]
    return html.render(
        "dpnoise.auditing/page.html",
        title=f"Audit of {report['target']}: {_state(report)}",
        report=report,
        name=f"{report['target']} {report['version']}".rstrip(),
        condition=with_sensitivity if report["noise"] else at_delta,
        verdict=bar_chart(f"Claimed and certified {report['kind']}", rows),
        strongest=_draw(report, strongest),
        others=[_describe(report, finding) for finding in others],
        curve=certified_curve(report["curve"]),
        # A hyphen at the end of a line would look like a break: the words of a command stay whole.
        command=re.split(r"(?<=\s)", report["command"]),
        limits=_limits([report]),
        **_WORDING,
    )


def render_comparison(reports: Sequence[Data], not_audited: Mapping[str, str]) -> str:
    """Return one page that compares the reports of several targets, the worst first.

    `not_audited` says of other targets why they were not audited.
    """
    ordered = sorted(reports, key=lambda report: report["certified"] / report["claimed"])[::-1]
    bars = [
        Bar(
            report["target"],
            f"{at_least(report['certified'], report['claimed'])}, {_state(report)}",
            report["certified"],
            "broken" if report["broken"] else "calm",
            mark=report["claimed"],
        )
        for report in ordered
    ]
    # What an attack knows of a library's roundings may hold on some machines only.
    machines = {report["versions"].get("machine", "a machine not named") for report in ordered}
    return html.render(
        "dpnoise.auditing/comparison.html",
        title=f"Audit of {len(ordered)} targets",
        broken=sum(report["broken"] for report in ordered),
        chart=bar_chart("Certified epsilon of each target", bars),
        reports=[
            {**report, "state": _state(report), "best": best and _describe(report, best)}
            for report in ordered
            for best in [max(report["findings"], key=lambda f: f["certified"], default=None)]
        ],
        machines=", ".join(sorted(machines)),
        not_audited=not_audited,
        limits=_limits(ordered),
        **_WORDING,
    )


def _sort_findings(findings: list[Data]) -> tuple[list[Data], list[Data]]:
    """Return the strongest finding of each attack that broke the claim, and all the others."""
    ranked = sorted(findings, key=lambda finding: -finding["certified"])
    strongest: dict[str, Data] = {}
    for finding in (finding for finding in ranked if finding["broken"]):
        strongest.setdefault(finding["attack"], finding)
    return [*strongest.values()], [f for f in ranked if strongest.get(f["attack"]) is not f]


def _describe(report: Data, finding: Data) -> Data:
    """Write the values, the counts and the bound of a finding as the page shows them."""
    k = finding["releases"]
    bound = at_least(finding["certified"], report["claimed"])
    return {
        **finding,
        "value0": number(finding["value0"]),
        "value1": number(finding["value1"]),
        "counted0": _counted(finding["hits0"], finding["trials0"]),
        "counted1": _counted(finding["hits1"], finding["trials1"]),
        "bound": f"at least {bound}" + ("" if k == 1 else f" for each of {k} releases"),
        "state": _state(finding),
    }


def _draw(report: Data, findings: list[Data]) -> list[Data]:
    """Describe findings with their pictures.

    Attacks at the same two values saw the same outputs: one picture of them is enough.
    """
    drawn: set[frozenset[float | str]] = set()
    described = []
    for finding in findings:
        told = _describe(report, finding)
        bars = [
            Bar(f"At value {told[f'value{i}']}", told[f"counted{i}"], share, f"value{i}")
            for i in (0, 1)
            for share in [finding[f"hits{i}"] / finding[f"trials{i}"]]
        ]
        told["chart"] = bar_chart("How often the event happened", bars, full=1.0)
        values = frozenset({finding["value0"], finding["value1"]})
        told["bits"] = None if values in drawn else _outputs(report, told)
        if finding["evidence"]:
            drawn.add(values)
        described.append(told)
    return described


def _outputs(report: Data, finding: Data) -> Data | None:
    """Return the outputs that gave the value away, where the attack kept them.

    Some column must be longer than the claim and chance would have it.
    """
    evidence = finding["evidence"]
    allowed = math.exp(min(report["claimed"], _SAFE_TO_SHOW))
    pairs = zip(evidence.get("at0", ()), evidence.get("at1", ()), strict=True)
    if not any(max(pair) > 2 * allowed * (min(pair) + _FEW) for pair in pairs):
        return None
    readable = report["kind"] == "epsilon" and report["claimed"] <= _SAFE_TO_SHOW
    bits = last_bits(evidence, finding["value0"], finding["value1"])
    return {**bits, "allowed": f"{allowed:.3g}" if readable else None}


def _limits(reports: Sequence[Data]) -> Data | None:
    """Return the trials at each value, and the most that these reports could have certified."""
    findings = [finding for report in reports for finding in report["findings"]]
    trials = max((finding["trials1"] for finding in findings), default=0)
    if trials <= 1:
        return None
    highest = max(reports, key=lambda report: report["ceiling"])
    return {"trials": trials, "kind": highest["kind"], "ceiling": at_least(highest["ceiling"])}


def _state(judged: Data) -> str:
    """Say what a finding or a report is; a report without findings says nothing."""
    if not judged.get("findings", True):
        return "not tried"
    if not judged["broken"] and not judged.get("refutable", True):
        return "cannot be refuted"
    return "broken" if judged["broken"] else "not broken"


def _counted(hits: int, trials: int) -> str:
    return f"{hits:,} of {trials:,} ({percent(hits, trials)})"


def _times(hits: int) -> str:
    return {0: "never", 1: "once", 2: "twice"}.get(hits, f"{hits:,} times")


# What the templates write numbers with.
_WORDING: Final = {
    "at_least": at_least, "duration": duration, "number": number, "times": _times,
    "used_as_if": used_as_if,
}  # fmt: skip


# The pictures: colours are the style sheet's, and each is also said in words.


@dataclass(frozen=True)
class Bar:
    """One bar: what it is, what it says, its length, the style sheet's name for its colour."""

    label: str
    says: str
    length: float
    kind: str
    mark: float | None = None


def bar_chart(title: str, rows: Sequence[Bar], *, full: float | None = None) -> Drawing:
    """Return horizontal bars; `full` is the length that fills the page, by default the longest."""
    lengths = [x for row in rows for x in (row.length, row.mark or 0.0) if math.isfinite(x)]
    most = (max(lengths, default=0.0) if full is None else full) or 1.0
    drawn = [
        {
            "label": shortened(row.label, _LINE),
            "says": row.says,
            "kind": row.kind,
            "width": min(1.0, row.length / most) if row.length > 0 else None,
            "mark": row.mark / most if row.mark is not None and row.mark <= most else None,
        }
        for row in rows
    ]
    return {
        "title": title,
        "words": "; ".join(f"{row.label}: {row.says}" for row in rows) + ".",
        "bars": drawn,
        "two_lines": any(len(row.label) + len(row.says) > _LINE for row in rows),
    }


def certified_curve(points: Sequence[Sequence[float]]) -> Drawing | None:
    """Return the least delta at each epsilon, if some events certify a curve."""
    seen = [(epsilon, delta) for epsilon, delta in points if delta > 0]
    if len(seen) < 2:  # noqa: PLR2004 - a curve
        return None
    most, last = seen[0][1], seen[-1][0]
    return {
        "delta": at_least(most),
        "epsilon": at_least(last),
        "columns": [delta / most for _, delta in seen],
    }


def last_bits(evidence: dict[str, list[int]], value0: str, value1: str) -> Drawing:
    """Return how often the last set bit of a release stands for 2^e, at either value."""
    columns, folded = _columns(evidence)
    totals = [sum(column[i] for column in columns) or 1 for i in (1, 2)]
    shares = [(at0 / totals[0], at1 / totals[1]) for _, at0, at1 in columns]
    most = max(max(pair) for pair in shares) or 1.0
    often0, often1 = (max(columns, key=lambda column: column[i])[0] for i in (1, 2))
    return {
        "words": f"Upward at {value0}: most often 2^{often0}. Downward at {value1}: most often "
        f"2^{often1}.",
        "labels": [shortened(value, _LINE - len("At value ")) for value in (value0, value1)],
        "exponents": [column[0] for column in columns],
        "shares": [(up / most, down / most) for up, down in shares],
        "folded": folded,
    }


def _columns(evidence: dict[str, list[int]]) -> tuple[list[tuple[int, int, int]], bool]:
    """Return each exponent with its two counts, without gaps, in the window that holds the most.

    The outermost columns hold what lies beyond the window; whether something does comes second.
    """
    counted = list(zip(evidence["exponents"], evidence["at0"], evidence["at1"], strict=True))
    seen = [row for row in counted if row[1] or row[2]] or counted
    exponents = [row[0] for row in seen]
    first, last = min(exponents), max(exponents)
    folded = last - first >= _WIDEST
    if folded:
        inside = {e: sum(a + b for x, a, b in seen if e <= x < e + _WIDEST) for e in exponents}
        first = min(max(inside, key=lambda e: inside[e]), last - _WIDEST + 1)
        last = first + _WIDEST - 1
    rows = dict.fromkeys(range(first, last + 1), (0, 0))
    for exponent, at0, at1 in seen:
        column = min(max(exponent, first), last)
        rows[column] = (rows[column][0] + at0, rows[column][1] + at1)
    return [(exponent, at0, at1) for exponent, (at0, at1) in rows.items()], folded
