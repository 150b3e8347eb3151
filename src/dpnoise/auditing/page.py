"""A report as one HTML page that needs nothing else: no script, no font, no network.

It knows only the plain data of `Report.to_dict`, so that a report read from a file shows the same.
"""

import math
import re
from collections.abc import Sequence
from typing import Any, Final

from dpnoise.auditing import figures
from dpnoise.auditing.curve import certified_curve
from dpnoise.auditing.figures import Bar
from dpnoise.auditing.wording import at_least, duration, number, percent, used_as_if
from dpnoise.core.markup import Markup, powers, tag
from dpnoise.core.page_layout import badge, definitions, document, section, table

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
        f"Audit of {report['target']}: {state(report)}",
        _verdict(report),
        _broken(report, full),
        _advice(report),
        _others(report, others),
        certified_curve(report["curve"]),
        _observations(report["observations"]),
        _measured(report),
        _reproduced(report),
        limits([report]),
    )


# The parts of a page -----------------------------------------------------------------------------


def _verdict(report: Data) -> Markup:
    bound, claimed = report["certified"], report["claimed"]
    kind = "broken" if report["broken"] else "calm"
    rows = [
        Bar("Used as if", number(claimed), claimed, "claim"),
        Bar("Certified", f"at least {at_least(bound, claimed)}", bound, kind, mark=claimed),
    ]
    says = (
        "A mechanism that keeps its claim does not give outputs like these, at the confidence "
        "given below."
        if report["broken"]
        else "No event that these attacks found is more telling than the claim allows. "
    )
    if not report["refutable"]:
        says = "No event at all could have refuted this claim in so few releases. "
    link = tag("a", "What this does not mean.", href="#limits")
    return tag(
        "header",
        tag("p", _audited(report), class_="over"),
        tag("h1", report["verdict"]),
        tag("p", says, *([] if report["broken"] else [link]), class_="lead"),
        tag(
            "figure",
            figures.bars(f"Claimed and certified {report['kind']}", rows),
            tag(
                "figcaption",
                f"{report['kind'].capitalize()}, {_claim(report)}. The upright line is the claim. "
                f"So many releases can certify {at_least(report['ceiling'])} at most.",
            ),
        ),
        class_=kind,
    )


def _audited(report: Data) -> str:
    name = f"{report['target']} {report['version']}".rstrip()
    return (
        f"dpnoise audit of {name}, {used_as_if(report['kind'], report['claimed'], report['delta'])}"
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
        tag("h3", finding["attack"], " ", badge_of(finding)),
        tag("p", f"This attack was given {access}. Its event, of {subject}:"),
        tag("p", powers(finding["event"]), class_="event"),
        tag("figure", figures.bars("How often the event happened", rows, full=1.0)),
        tag("p", _meaning(report, finding, value0, value1)),
        _outputs(report, finding, value0, value1) if draw else "",
    )


def _meaning(report: Data, finding: Data, value0: str, value1: str) -> Markup:
    hits0, hits1, trials1 = finding["hits0"], finding["hits1"], finding["trials1"]
    bound = tag("strong", f"{report['kind']} is {certified(report, finding)}")
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
    if report["kind"] == "epsilon" and report["claimed"] <= _SAFE_TO_SHOW:
        longer = f"{math.exp(report['claimed']):.3g}"
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
    allowed = math.exp(min(report["claimed"], _SAFE_TO_SHOW))
    pairs = zip(evidence.get("at0", ()), evidence.get("at1", ()), strict=True)
    return any(max(pair) > 2 * allowed * (min(pair) + _FEW) for pair in pairs)


def _others(report: Data, findings: list[Data]) -> Markup:
    title = "What else was tried" if report["broken"] else "What was tried"
    if not findings:
        return section(title, tag("p", "No other attack was run."))
    head = (
        "Attack",
        "Values",
        "Event",
        "At the first",
        "At the second",
        f"Certified {report['kind']}",
    )
    rows = [
        (
            finding["attack"],
            f"{number(finding['value0'])} and {number(finding['value1'])}",
            powers(finding["event"]),
            _counted(finding["hits0"], finding["trials0"]),
            _counted(finding["hits1"], finding["trials1"]),
            Markup.joined(certified(report, finding), " ", badge_of(finding)),
        )
        for finding in findings
    ]
    return section(title, table(head, rows))


def certified(report: Data, finding: Data) -> str:
    """Say what a finding certifies, rounded down."""
    k = finding["releases"]
    each = "" if k == 1 else f" for each of {k} releases"
    return f"at least {at_least(finding['certified'], report['claimed'])}{each}"


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
    noise = f"taken to be {report['noise']}, scale {number(report['scale'])}"
    rows = [
        ("Target", f"{report['target']} {report['version']}".rstrip()),
        *([("Noise", noise)] if report["noise"] else []),
        ("Claim", f"{report['kind']} {number(report['claimed'])}, {_claim(report)}"),
        ("Pairs of values" if report["noise"] else "Neighbouring data sets", pairs),
        ("Method", report["method"]),
        ("Confidence", f"{100 * report['confidence']:.10g}%, of all findings together"),
        ("Releases", f"{report['releases']:,} in all, in {duration(report['seconds'])}"),
        (
            "Ceiling",
            f"{report['kind']} {at_least(report['ceiling'])}: no event certifies more here",
        ),
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


def limits(reports: Sequence[Data]) -> Markup:
    """Say what was not looked at."""
    findings = [finding for report in reports for finding in report["findings"]]
    trials = max((finding["trials1"] for finding in findings), default=0)
    points = list(_LIMITS)
    if trials > 1:
        highest = max(reports, key=lambda report: report["ceiling"])
        points.append(
            f"With at most {trials:,} trials at each value, a leak much rarer than one in "
            f"{trials:,} is not seen, and no {highest['kind']} above "
            f"{at_least(highest['ceiling'])} could have been certified."
        )
    items = [tag("li", point) for point in points]
    return section("What “not broken” does not mean", tag("ul", *items), id="limits")


# In words ------------------------------------------------------------------------------------


def _sorted_out(findings: list[Data]) -> tuple[list[Data], list[Data]]:
    """Return the strongest finding of each attack that broke the claim, and all the others."""
    full: dict[str, Data] = {}
    others = []
    for finding in sorted(findings, key=lambda finding: -finding["certified"]):
        if finding["broken"] and finding["attack"] not in full:
            full[finding["attack"]] = finding
        else:
            others.append(finding)
    return list(full.values()), others


def badge_of(judged: Data) -> Markup:
    """Mark a finding or a report as what it is."""
    return badge(state(judged), "broken" if judged["broken"] else "")


def state(judged: Data) -> str:
    """Say what a finding or a report is; a report without findings says nothing."""
    if not judged.get("findings", True):
        return "not tried"
    if not judged["broken"] and not judged.get("refutable", True):
        return "cannot be refuted"
    return "broken" if judged["broken"] else "not broken"


def _claim(report: Data) -> str:
    at = f"at delta {number(report['delta'])}"
    return f"{at} and sensitivity {number(report['sensitivity'])}" if report["noise"] else at


def _counted(hits: int, trials: int) -> str:
    return f"{hits:,} of {trials:,} ({percent(hits, trials)})"


def _unbroken(command: str) -> list[Markup]:
    """Keep the words of a command whole where a line ends: a hyphen would look like a break."""
    return [tag("span", word) for word in re.split(r"(?<=\s)", command)]


def _times(hits: int) -> str:
    return {0: "never", 1: "once", 2: "twice"}.get(hits, f"{hits:,} times")
