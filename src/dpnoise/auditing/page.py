"""A report as one HTML page that needs nothing else: no script, no font, no network.

It knows only the plain data of `Report.to_dict`, so that a report read from a file shows the same.
"""

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from dpnoise.auditing import figures
from dpnoise.auditing.figures import Bar
from dpnoise.auditing.wording import at_least, duration, number, percent
from dpnoise.pages.layout import badge, definitions, document, section, table
from dpnoise.pages.markup import Markup, dotted, powers, tag

Data = dict[str, Any]

_LIMITS: Final = (
    (
        "It does not mean safe, or private. It means that these attacks, at these values, in this "
        "many releases, found nothing above the claim. Others may."
    ),
    (
        "A certified epsilon is a lower bound. The true one may be far larger, and only a proof "
        "about the program gives an upper bound."
    ),
    (
        "A few values, one scale and one version were looked at, on one machine. A leak at other "
        "values or settings stays unseen."
    ),
    (
        "The sensitivity was taken as stated. Whether the data were clipped to it, and what many "
        "releases spend together, was not looked at."
    ),
    (
        "Outputs that look right say nothing about whether the random numbers can be predicted, "
        "beyond what an attack on this page tried."
    ),
)
_ACCESS: Final = {
    "outputs": "nothing but outputs",
    "outputs and scale": "outputs, and the scale of the noise",
    "source": "outputs and the scale, and knows the source of common samplers",
}
_FEW: Final = 10  # Outputs in a column that chance alone may bring.
_SAFE_TO_SHOW: Final = 10.0  # epsilon above which exp(epsilon) helps nobody


def render(report: Data) -> str:
    """Return the page of one report, given as `Report.to_dict()`."""
    full, others = _sorted_out(report["findings"])
    return document(
        f"Audit of {report['target']}: {_state(report)}",
        _verdict(report),
        _broken(report, full),
        _advice(report),
        _others(report, others),
        _observations(report["observations"]),
        _measured(report),
        _reproduced(report),
        _limits(report["findings"]),
    )


def render_comparison(reports: Sequence[Data], not_audited: Mapping[str, str]) -> str:
    """Return one page that compares the reports of several targets, the worst first.

    `not_audited` says of other targets why they were not audited.
    """
    ordered = sorted(reports, key=lambda report: report["epsilon_lower"] / report["epsilon"])[::-1]
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
                "The upright line is what the target claims.",
                class_="lead",
            ),
            class_="broken" if broken else "calm",
        ),
        section("Certified against claimed epsilon", _compared(ordered)),
        section("Target by target", _comparison_table(ordered), _measured_on(ordered)),
        section("Not audited", definitions(not_audited.items())) if not_audited else Markup(""),
        _limits([finding for report in ordered for finding in report["findings"]]),
    )


# The parts of a page -----------------------------------------------------------------------------


def _verdict(report: Data) -> Markup:
    certified, claimed = report["epsilon_lower"], report["epsilon"]
    kind = "broken" if report["broken"] else "calm"
    rows = [
        Bar("Claimed", number(claimed), claimed, "claim"),
        Bar("Certified", f"at least {at_least(certified, claimed)}", certified, kind, mark=claimed),
    ]
    says = (
        "A mechanism that keeps its claim does not give outputs like these, at the confidence "
        "given below."
        if report["broken"]
        else "No event that these attacks found is more telling than the claim allows. "
    )
    link = tag("a", "What this does not mean.", href="#limits")
    return tag(
        "header",
        tag("p", f"dpnoise audit of {report['target']} {report['version']}".strip(), class_="over"),
        tag("h1", report["verdict"]),
        tag("p", says, *([] if report["broken"] else [link]), class_="lead"),
        tag(
            "figure",
            figures.bars("Claimed and certified epsilon", rows),
            tag("figcaption", f"Epsilon, at {_claim(report)}. The upright line is the claim."),
        ),
        class_=kind,
    )


def _broken(report: Data, findings: list[Data]) -> Markup:
    if not findings:
        return Markup("")
    drawn: set[frozenset[float]] = set()
    articles = []
    for finding in findings:
        # Attacks at the same two values saw the same outputs: one picture of them is enough.
        values = frozenset({finding["value0"], finding["value1"]})
        articles.append(_finding(report, finding, draw=values not in drawn))
        if finding["evidence"]:
            drawn.add(values)
    return section("What gave it away", *articles)


def _advice(report: Data) -> Markup:
    """Say what to do about a broken target."""
    if not report["broken"]:
        return Markup("")
    return section(
        "What to do",
        tag(
            "p",
            "Do not publish with it. If the events above are about single bits or about what no "
            "noise could have led to, the noise was added in floating point: release through a "
            "mechanism that rounds once, as if in real numbers (dpnoise.LaplaceMechanism, "
            "dpnoise.GaussianMechanism). If one is a plain threshold, the noise is too small for "
            "its claim: check epsilon, sensitivity and scale.",
        ),
    )


def _finding(report: Data, finding: Data, *, draw: bool) -> Markup:
    value0, value1 = number(finding["value0"]), number(finding["value1"])
    rows = [
        Bar(f"At value {value}", _counted(hits, trials), hits / trials, kind)
        for value, hits, trials, kind in (
            (value0, finding["hits0"], finding["trials0"], "value0"),
            (value1, finding["hits1"], finding["trials1"], "value1"),
        )
    ]
    access = _ACCESS.get(finding["access"], finding["access"])
    k = finding["releases"]
    subject = "a release y" if k == 1 else f"{k} releases in a row"
    return tag(
        "article",
        tag("h3", finding["attack"], " ", _badge(finding)),
        tag("p", f"This attack was given {access}. Its event, of {subject}:"),
        tag("p", powers(finding["event"]), class_="event"),
        tag("figure", figures.bars("How often the event happened", rows, full=1.0)),
        tag("p", _meaning(report, finding, value0, value1)),
        _outputs(report, finding, value0, value1) if draw else "",
    )


def _meaning(report: Data, finding: Data, value0: str, value1: str) -> Markup:
    hits0, hits1, trials1 = finding["hits0"], finding["hits1"], finding["trials1"]
    bound = tag("strong", f"epsilon is {_certified(report, finding)}")
    seen = f"Seen {_times(hits0)} at {value0}, "
    if hits0 and not hits1:
        return Markup.joined(
            f"{seen}never at {value1}. Never in {trials1:,} trials is not impossible: what the "
            "two counts prove is that ",
            bound,
            ".",
        )
    return Markup.joined(
        f"{seen}{_times(hits1)} at {value1}. The two counts prove that ", bound, "."
    )


def _outputs(report: Data, finding: Data, value0: str, value1: str) -> Markup:
    """Show the outputs that gave the value away, where the attack kept them."""
    if not _telling(report, finding["evidence"]):
        return Markup("")
    caption = powers(
        "How often the last set bit of a release stands for 2^e: y is a multiple of 2^e and of no "
        "higher power of two. "
    )
    if figures.folded(finding["evidence"]):
        caption = Markup.joined(caption, "The outermost columns hold all that lies beyond. ")
    if report["epsilon"] <= _SAFE_TO_SHOW:
        longer = f"{math.exp(report['epsilon']):.3g}"
        aside = "chance and delta" if report["delta"] else "chance"
        caption = Markup.joined(
            caption,
            f"Under the claim no column would be more than {longer} times as long as the one "
            f"opposite, {aside} aside.",
        )
    picture = figures.last_bits(finding["evidence"], value0, value1)
    return tag("figure", picture, tag("figcaption", caption))


def _telling(report: Data, evidence: Data) -> bool:
    """Tell whether some column of the picture is longer than the claim and chance would have it."""
    allowed = math.exp(min(report["epsilon"], _SAFE_TO_SHOW))
    pairs = zip(evidence.get("at0", ()), evidence.get("at1", ()), strict=True)
    return any(max(pair) > 2 * allowed * (min(pair) + _FEW) for pair in pairs)


def _others(report: Data, findings: list[Data]) -> Markup:
    title = "What else was tried" if report["broken"] else "What was tried"
    if not findings:
        return section(title, tag("p", "No other attack was run."))
    head = ("Attack", "Values", "Event", "At the first", "At the second", "Certified epsilon")
    rows = [
        (
            finding["attack"],
            f"{number(finding['value0'])} and {number(finding['value1'])}",
            powers(finding["event"]),
            _counted(finding["hits0"], finding["trials0"]),
            _counted(finding["hits1"], finding["trials1"]),
            Markup.joined(_certified(report, finding), " ", _badge(finding)),
        )
        for finding in findings
    ]
    return section(title, table(head, rows))


def _certified(report: Data, finding: Data) -> str:
    k = finding["releases"]
    each = "" if k == 1 else f" for each of {k} releases"
    return f"at least {at_least(finding['epsilon_lower'], report['epsilon'])}{each}"


def _observations(observations: list[Data]) -> Markup:
    if not observations:
        return Markup("")
    note = "These are facts about the process. They are not part of the certified epsilon."
    entries: list[Markup] = []
    for seen in observations:
        # A look that failed is also "not found"; it is no good news.
        clean = "" if seen["name"] == "not seen" else badge("no problem found")
        mark = badge("problem found", "broken") if seen["found"] else clean
        entries += [tag("dt", seen["name"], " ", mark), tag("dd", seen["words"])]
    return section("The process around the numbers", tag("p", note), tag("dl", *entries))


def _measured(report: Data) -> Markup:
    pairs = ", ".join(f"{number(a)} and {number(b)}" for a, b in report["pairs"]) or "none"
    rows = [
        ("Target", f"{report['target']} {report['version']}"),
        ("Noise", f"taken to be {report['noise']}, scale {number(report['scale'])}"),
        ("Claim", f"epsilon {number(report['epsilon'])}, {_claim(report)}"),
        ("Pairs of values", pairs),
        ("Method", report["method"]),
        ("Confidence", f"{100 * report['confidence']:.10g}%, of all findings together"),
        ("Releases", f"{report['releases']:,} in all, in {duration(report['seconds'])}"),
        *((f"Not run: {attack}", why) for attack, why in report["skipped"].items()),
    ]
    return section("How it was measured", definitions(rows))


def _reproduced(report: Data) -> Markup:
    note = (
        "Noise is drawn anew each time, so the counts of another run differ by chance, and the "
        "certified epsilon a little with them."
    )
    return section(
        "How to reproduce it",
        tag("pre", tag("code", *_unbroken(report["command"]))),
        definitions(report["versions"].items()),
        tag("p", note),
    )


def _limits(findings: list[Data]) -> Markup:
    trials = max((finding["trials1"] for finding in findings), default=0)
    points = list(_LIMITS)
    if trials > 1:
        points.append(
            f"With at most {trials:,} trials at each value, a leak much rarer than one in "
            f"{trials:,} is not seen, and no epsilon above {math.log(trials):.1f} could have been "
            "certified."
        )
    items = [tag("li", point) for point in points]
    return section("What “not broken” does not mean", tag("ul", *items), id="limits")


# The comparison ----------------------------------------------------------------------------------


def _compared(reports: list[Data]) -> Markup:
    rows = [
        Bar(
            report["target"],
            f"{at_least(report['epsilon_lower'], report['epsilon'])}, {_state(report)}",
            report["epsilon_lower"],
            "broken" if report["broken"] else "calm",
            mark=report["epsilon"],
        )
        for report in reports
    ]
    return tag("figure", figures.bars("Certified epsilon of each target", rows))


def _comparison_table(reports: list[Data]) -> Markup:
    head = ("Target", "Version", "Claimed", "Certified", "Verdict", "Strongest attack", "Its event")
    rows = []
    for report in reports:
        best = max(report["findings"], key=lambda finding: finding["epsilon_lower"], default=None)
        rows.append(
            (
                dotted(report["target"]),
                report["version"] or "none given",
                number(report["epsilon"]),
                _certified(report, best) if best else "no attack was run",
                _badge(report),
                best["attack"] if best else "none",
                powers(best["event"]) if best else "none",
            )
        )
    return table(head, rows)


def _measured_on(reports: list[Data]) -> Markup:
    """Name the machines: what an attack knows of a library's roundings may hold on some alone."""
    machines = {report["versions"].get("machine", "a machine not named") for report in reports}
    return tag("p", f"Measured on {', '.join(sorted(machines))}.")


# In words ------------------------------------------------------------------------------------


def _sorted_out(findings: list[Data]) -> tuple[list[Data], list[Data]]:
    """Return the strongest finding of each attack that broke the claim, and all the others."""
    full: dict[str, Data] = {}
    others = []
    for finding in sorted(findings, key=lambda finding: -finding["epsilon_lower"]):
        if finding["broken"] and finding["attack"] not in full:
            full[finding["attack"]] = finding
        else:
            others.append(finding)
    return list(full.values()), others


def _badge(judged: Data) -> Markup:
    return badge(_state(judged), "broken" if judged["broken"] else "")


def _state(judged: Data) -> str:
    """Say what a finding or a report is; a report without findings says nothing."""
    if not judged.get("findings", True):
        return "not tried"
    return "broken" if judged["broken"] else "not broken"


def _claim(report: Data) -> str:
    return f"delta {number(report['delta'])} and sensitivity {number(report['sensitivity'])}"


def _counted(hits: int, trials: int) -> str:
    return f"{hits:,} of {trials:,} ({percent(hits, trials)})"


def _unbroken(command: str) -> list[Markup]:
    """Keep the words of a command whole where a line ends: a hyphen would look like a break."""
    return [tag("span", word) for word in re.split(r"(?<=\s)", command)]


def _times(hits: int) -> str:
    return {0: "never", 1: "once", 2: "twice"}.get(hits, f"{hits:,} times")
