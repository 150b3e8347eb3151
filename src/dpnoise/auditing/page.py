"""HTML pages of one report or of several, without scripts or network access.

They use only the plain data of `Report.to_dict`, so a report read from a file gives the same page.
Templates get the lengths in a picture as fractions of its width and height.
"""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from dpnoise.auditing.tradeoff import claim_curve
from dpnoise.auditing.wording import (
    bound_text,
    format_duration,
    format_percent,
    format_value,
    used_as_if,
)
from dpnoise.core import html
from dpnoise.core.safe_text import shorten

Data = dict[str, Any]
Drawing = dict[str, object]

_LINE: Final = 38  # Characters that fit in the 340 pixels of a phone.
_MAX_COLUMNS: Final = 60  # Columns of a histogram, so that each is wide enough to see on a phone.
_CHANCE_OUTPUTS: Final = 10  # Outputs in a column that may be there by chance.
_LARGEST_EPSILON: Final = 10.0  # Above this epsilon the factor exp(epsilon) is not shown.


# Attacks on the last bits of noise that was added in floats.
_FLOAT_ATTACKS: Final = {
    "mironov", "pair", "precision", "feasibility", "bits", "table", "ziggurat", "threefry",
}  # fmt: skip
_ADVICE_NEVER: Final = (
    "The mechanism gives outputs at one data set that it never gave at the other. Look for what it "
    "releases without noise: a group that appears only if somebody is in it, an exact value, an "
    "error, the number of outputs."
)
_ADVICE_OFTEN: Final = (
    "The mechanism gives these outputs too often at one of two neighbouring data sets. "
    "Check the sensitivity of each step, the scale of its noise, and that all steps together spend "
    "no more than the claim."
)


def render_audit_page(report: Data) -> str:
    """Return the page of one report, in the form of `Report.to_dict()`."""
    strongest, others = _sort_findings(report["findings"])
    at_delta = f"at delta {format_value(report['delta'])}"
    with_sensitivity = f"{at_delta} and sensitivity {format_value(report['sensitivity'])}"
    claimed, bound = report["claimed"], report["certified"]
    text = f"at least {bound_text(bound, claimed)}"
    rows = [
        ChartBar("Used as if", format_value(claimed), claimed, "claim"),
        ChartBar("Certified", text, bound, _kind(report), mark=claimed),
    ]
    return html.render_template(
        "dpnoise.auditing/page.html",
        title=f"Audit of {report['target']}: {_state(report)}",
        report=report,
        name=f"{report['target']} {report['version']}".rstrip(),
        condition=with_sensitivity if report["noise"] else at_delta,
        verdict=draw_bar_chart(f"Claimed and certified {report['kind']}", rows),
        strongest=_describe_with_pictures(report, strongest),
        others=[_describe(report, finding) for finding in others],
        curve=draw_tradeoff(report),
        advice=_advice(strongest),
        # A line break at a hyphen would look like a second hyphen: words of a command stay whole.
        command=re.split(r"(?<=\s)", report["command"]),
        limits=_limits([report]),
        **_WORDING,
    )


def render_comparison(reports: Sequence[Data], not_audited: Mapping[str, str]) -> str:
    """Return one page that compares the reports of several targets, the worst first.

    `not_audited` maps each target without an audit to the reason.
    """
    ordered = sorted(reports, key=lambda report: report["certified"] / report["claimed"])[::-1]
    bars = []
    for report in ordered:
        bound, claimed = report["certified"], report["claimed"]
        text, kind = f"{bound_text(bound, claimed)}, {_state(report)}", _kind(report)
        bars.append(ChartBar(report["target"], text, bound, kind, mark=claimed))
    # Attacks rely on a library's roundings, which may depend on the machine.
    machines = {report["versions"].get("machine", "a machine not named") for report in ordered}
    return html.render_template(
        "dpnoise.auditing/comparison.html",
        title=f"Audit of {len(ordered)} targets",
        broken=sum(report["broken"] for report in ordered),
        chart=draw_bar_chart("Certified epsilon of each target", bars),
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


def _advice(strongest: Sequence[Data]) -> list[str]:
    """Return what to do about the findings that broke the claim."""
    attacks = {finding["attack"] for finding in strongest}
    words = " ".join(finding["event"] for finding in strongest)
    advice = []
    if attacks & _FLOAT_ATTACKS or re.search(r"\bbits?\b|fraction", words):
        advice.append(
            "The event is about single bits, or about what no noise could have led to: the noise "
            "was added in floating point. Release through a mechanism that rounds once, as if in "
            "real numbers (dpnoise.LaplaceMechanism, dpnoise.GaussianMechanism)."
        )
    if "threshold" in attacks:
        advice.append(
            "The event is a plain threshold: the noise is too small for its claim. Check epsilon, "
            "sensitivity and scale."
        )
    if attacks - _FLOAT_ATTACKS - {"threshold"} and not advice:
        is_never = any(finding["hits0"] and not finding["hits1"] for finding in strongest)
        advice.append(_ADVICE_NEVER if is_never else _ADVICE_OFTEN)
    if any(finding["predicate"] for finding in strongest):
        advice.append("Each event is given as Python below it, to be counted in your own outputs.")
    return advice


def _sort_findings(findings: list[Data]) -> tuple[list[Data], list[Data]]:
    """Return the strongest finding of each attack that broke the claim, and all the others."""
    ranked = sorted(findings, key=lambda finding: -finding["certified"])
    strongest: dict[str, Data] = {}
    for finding in (finding for finding in ranked if finding["broken"]):
        strongest.setdefault(finding["attack"], finding)
    return [*strongest.values()], [f for f in ranked if strongest.get(f["attack"]) is not f]


def _describe(report: Data, finding: Data) -> Data:
    """Format the values, the counts and the bound of a finding for the page."""
    k, bound = finding["releases"], bound_text(finding["certified"], report["claimed"])
    per_release = "" if k == 1 else f" for each of {k} releases"
    texts = {"bound": f"at least {bound}{per_release}", "state": _state(finding)}
    of_releases = finding["predicate"].partition("(")[2].startswith("releases")
    of_releases |= finding["predicate"].startswith("releases")
    texts["argument"] = "releases" if of_releases else "y"
    for i in (0, 1):
        hits, trials = finding[f"hits{i}"], finding[f"trials{i}"]
        texts[f"value{i}"] = format_value(finding[f"value{i}"])
        texts[f"counted{i}"] = f"{hits:,} of {trials:,} ({format_percent(hits, trials)})"
    return finding | texts


def _describe_with_pictures(report: Data, findings: list[Data]) -> list[Data]:
    """Describe findings with their pictures.

    Findings at the same two values share their outputs, so only the first gets their picture.
    """
    drawn: set[frozenset[float | str]] = set()
    descriptions = []
    for finding in findings:
        description = _describe(report, finding)
        bars = []
        for i in (0, 1):
            label, share = description[f"value{i}"], finding[f"hits{i}"] / finding[f"trials{i}"]
            counted = description[f"counted{i}"]
            at = "At value" if report["noise"] else "At"
            bars.append(ChartBar(f"{at} {label}", counted, share, f"value{i}"))
        description["chart"] = draw_bar_chart("How often the event happened", bars, full=1.0)
        values = frozenset({finding["value0"], finding["value1"]})
        description["bits"] = None if values in drawn else _draw_outputs(report, description)
        if finding["evidence"]:
            drawn.add(values)
        descriptions.append(description)
    return descriptions


def _draw_outputs(report: Data, finding: Data) -> Data | None:
    """Draw the histogram of last bits, or return None.

    It is drawn only if a column is longer than the claim and chance allow.
    """
    evidence = finding["evidence"]
    allowed = math.exp(min(report["claimed"], _LARGEST_EPSILON))
    pairs = zip(evidence.get("at0", ()), evidence.get("at1", ()), strict=True)
    if not any(max(pair) > 2 * allowed * (min(pair) + _CHANCE_OUTPUTS) for pair in pairs):
        return None
    readable = report["kind"] == "epsilon" and report["claimed"] <= _LARGEST_EPSILON
    bits = draw_last_bits(evidence, finding["value0"], finding["value1"])
    return {**bits, "allowed": f"{allowed:.3g}" if readable else None}


def _limits(reports: Sequence[Data]) -> Data | None:
    """Return the trials at each value, and the largest bound that these reports could certify."""
    findings = [finding for report in reports for finding in report["findings"]]
    trials = max((finding["trials1"] for finding in findings), default=0)
    if trials <= 1:
        return None
    highest = max(reports, key=lambda report: report["ceiling"])
    return {
        "trials": trials,
        "kind": highest["kind"],
        "ceiling": bound_text(highest["ceiling"]),
    }


def _state(result: Data) -> str:
    """Return the verdict of a finding or a report; a report without findings has none."""
    if not result.get("findings", True):
        return "not tried"
    if not result.get("observed", True):
        return "nothing observed"
    if not result["broken"] and not result.get("refutable", True):
        return "cannot be refuted"
    return "broken" if result["broken"] else "not broken"


def _kind(report: Data) -> str:
    return "broken" if report["broken"] else "calm"


def _format_times(hits: int) -> str:
    return {0: "never", 1: "once", 2: "twice"}.get(hits, f"{hits:,} times")


# Functions that the templates format numbers with.
_WORDING: Final = {
    "at_least": bound_text, "duration": format_duration, "number": format_value,
    "times": _format_times, "used_as_if": used_as_if,
}  # fmt: skip


# Pictures. The style sheet sets their colours, and each picture also has a text.


@dataclass(frozen=True)
class ChartBar:
    """One bar of a chart; `kind` is the class of its colour in the style sheet."""

    label: str
    value_text: str
    length: float
    kind: str
    mark: float | None = None


def draw_bar_chart(title: str, rows: Sequence[ChartBar], *, full: float | None = None) -> Drawing:
    """Draw horizontal bars; `full` is the length that fills the page, by default the longest."""
    lengths = [x for row in rows for x in (row.length, row.mark or 0.0) if math.isfinite(x)]
    longest = (max(lengths, default=0.0) if full is None else full) or 1.0
    drawn = [
        {
            "label": shorten(row.label, _LINE),
            "value_text": row.value_text,
            "kind": row.kind,
            "width": min(1.0, row.length / longest) if row.length > 0 else None,
            "mark": row.mark / longest if row.mark is not None and row.mark <= longest else None,
        }
        for row in rows
    ]
    return {
        "title": title,
        "words": "; ".join(f"{row.label}: {row.value_text}" for row in rows) + ".",
        "bars": drawn,
        "two_lines": any(len(row.label) + len(row.value_text) > _LINE for row in rows),
    }


def draw_tradeoff(report: Data) -> Drawing | None:
    """Draw the certified trade-off curve next to the claim, or return None if it says nothing."""
    curve = report["curve"]
    if not curve["mu"]:
        return None
    claim = claim_curve(report["kind"], report["claimed"], report["delta"])
    epsilons = [f"{bound_text(epsilon)} at delta {delta:g}" for delta, epsilon in curve["epsilon"]]
    return {
        "words": f"Epsilon is at least {', '.join(epsilons)}.",
        "certified": _path(curve["corners"]),
        "claim": _path(claim),
        "rows": [
            *(
                (f"Epsilon at delta {d:g}", f"at least {bound_text(e)}")
                for d, e in curve["epsilon"]
            ),
            ("Mu", f"at least {bound_text(curve['mu'])}"),
            ("Rho", f"at least {bound_text(curve['rho'])}"),
        ],
    }


def _path(points: Sequence[Sequence[float]]) -> str:
    """Return a line through points of the unit square, whose second number points up."""
    return " ".join(f"{'ML'[i > 0]}{x:.5f} {1 - y:.5f}" for i, (x, y) in enumerate(points))


def draw_last_bits(evidence: dict[str, list[int]], value0: str, value1: str) -> Drawing:
    """Draw a histogram of the exponent of the last set bit, at either value."""
    columns, has_outside = _columns(evidence)
    totals = [sum(column[i] for column in columns) or 1 for i in (1, 2)]
    shares = [(at0 / totals[0], at1 / totals[1]) for _, at0, at1 in columns]
    most = max(max(pair) for pair in shares) or 1.0
    often0, often1 = (max(columns, key=lambda column: column[i])[0] for i in (1, 2))
    return {
        "words": f"Upward at {value0}: most often 2^{often0}. Downward at {value1}: most often "
        f"2^{often1}.",
        "labels": [shorten(value, _LINE - len("At value ")) for value in (value0, value1)],
        "exponents": [column[0] for column in columns],
        "shares": [(up / most, down / most) for up, down in shares],
        "has_outside": has_outside,
    }


def _columns(evidence: dict[str, list[int]]) -> tuple[list[tuple[int, int, int]], bool]:
    """Return (exponent, count at value 0, count at value 1) for every exponent of a window.

    The window has at most `_MAX_COLUMNS` exponents: those with the most outputs. Its two end
    columns also count the outputs outside. The second result says whether any lie outside.
    """
    every_row = list(zip(evidence["exponents"], evidence["at0"], evidence["at1"], strict=True))
    seen = [row for row in every_row if row[1] or row[2]] or every_row
    exponents = [row[0] for row in seen]
    first, last = min(exponents), max(exponents)
    has_outside = last - first >= _MAX_COLUMNS
    if has_outside:
        inside = {e: sum(a + b for x, a, b in seen if e <= x < e + _MAX_COLUMNS) for e in exponents}
        first = min(max(inside, key=lambda e: inside[e]), last - _MAX_COLUMNS + 1)
        last = first + _MAX_COLUMNS - 1
    rows = dict.fromkeys(range(first, last + 1), (0, 0))
    for exponent, at0, at1 in seen:
        column = min(max(exponent, first), last)
        rows[column] = (rows[column][0] + at0, rows[column][1] + at1)
    return [(exponent, at0, at1) for exponent, (at0, at1) in rows.items()], has_outside
