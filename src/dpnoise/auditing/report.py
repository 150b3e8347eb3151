"""The report of an audit: frozen data, JSON, HTML, and an exception for continuous integration."""

import json
import math
import platform
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from os import PathLike
from pathlib import Path
from typing import Any, Final, Self

import numpy as np

from dpnoise.auditing import page, wording
from dpnoise.auditing.attacks.base import EventCount
from dpnoise.auditing.exported_data import import_data
from dpnoise.auditing.output_rows import list_parts
from dpnoise.auditing.predicates import evaluate_predicate, reads_releases
from dpnoise.auditing.processes import Observation
from dpnoise.auditing.targets.target import installed_version
from dpnoise.auditing.tradeoff import CURVE_DELTAS, TradeoffCurve, TradeoffPoint, curve_words
from dpnoise.auditing.tuning import TUNING
from dpnoise.auditing.wording import (
    bound_text,
    format_value,
    predicate_text,
    used_as_if,
)
from dpnoise.core import machine, strict_json
from dpnoise.core.errors import ArgumentError, DpnoiseError
from dpnoise.core.safe_text import escape_text, format_confidence

FilePath = str | PathLike[str]

FORMAT: Final = 3


class BrokenError(DpnoiseError, AssertionError):
    """An audit certified more than the target claims."""


@dataclass(frozen=True)
class Finding:
    """One attack's event, counted in fresh releases of two values.

    Parameters
    ----------
    attack, access, event
        The attack's name, what it knows, and the event in plain words, of a release y.
    predicate
        The event as a Python expression, with functions of `dpnoise.auditing.predicates`. Views
        and attacks of your own have only their names there.
    value0, value1
        The two values, which differ by the sensitivity at most, or descriptions of two data sets.
    releases
        The number of releases in one trial. The certified epsilon is for each release.
    hits0, trials0, hits1, trials1
        The counts of the event at value0 and at value1.
    low, high
        The limits that these counts prove: the event's probability is at least `low` at value0 and
        at most `high` at value1.
    certified, broken
        The lower bound on the claimed parameter, and whether it exceeds the claim.
    epsilon_lower
        The certified lower bound on epsilon at the report's delta.
    confidence
        The probability that all findings of the report hold together.
    evidence
        Data for a picture: "exponents" of the last set bit, and their counts "at0" and "at1".
    limits
        The kind of the limits: "exact" for independent releases; "widened" if the counts of calls
        varied a little more; "any dependence" within a call if they varied much more.
    dispersion
        The factor on the variance that the first two allow for; 1 for exact limits.
    if_dependent
        The lower bound on the claimed parameter whatever the dependence of releases within a call.
        It is not above `certified`, and 0 if the calls were too few.
    change
        The row by which the second data set differs from the first, in words; empty if it is more.
    data
        Both data sets as plain data; None if they are large or of other types. See `neighbours`.
    functions
        Views and the attack of your own that the predicate names, for `Report.replay`. They are not
        in files and pickles.
    """

    attack: str
    access: str
    event: str
    predicate: str
    value0: float | str
    value1: float | str
    releases: int
    hits0: int
    trials0: int
    hits1: int
    trials1: int
    low: float
    high: float
    certified: float
    epsilon_lower: float
    confidence: float
    broken: bool
    evidence: dict[str, list[int]] = field(repr=False)
    limits: str = "exact"
    dispersion: float = 1.0
    if_dependent: float = 0.0
    change: str = ""
    data: list[Any] | None = field(default=None, repr=False)
    functions: tuple[Callable[..., Any], ...] = field(default=(), repr=False, compare=False)

    @property
    def neighbours(self) -> tuple[Any, Any] | None:
        """The two data sets, also of a report from a file; None if it does not have them.

        Examples
        --------
        >>> import dpnoise
        >>> def count(rows, n):
        ...     return [len(rows)] * n
        >>> report = dpnoise.audit(count, 1.0, neighbours=[([5, 7], [5])], budget=4_000)
        >>> sorted(report.findings[0].neighbours)
        [[5], [5, 7]]
        """
        if self.data is None:
            return None
        first, second = map(import_data, self.data)
        return first, second

    def __getstate__(self) -> dict[str, Any]:
        """Return the finding without functions, which may not be picklable."""
        return self.__dict__ | {"functions": ()}

    def __str__(self) -> str:
        """Return the attack, the certified bound, and the event with its counts."""
        return self.words("certified at least", self.certified)

    def words(self, claim: str, claimed: float) -> str:
        """Return the finding in words, with enough digits to compare it with what is claimed."""
        return escape_text(
            f"{self.attack}: {claim} {bound_text(self.certified, claimed)}: {self.event}. "
            f"Seen {self.hits0:,} times in {self.trials0:,} at {format_value(self.value0)}, "
            f"{self.hits1:,} in {self.trials1:,} at {format_value(self.value1)}."
            + (f" They differ by {self.change}." if self.change else "")
        )


@dataclass(frozen=True)
class Report:
    """The result of an audit: the certified bounds, and the attacks that were tried.

    Parameters
    ----------
    target, version, noise, scale
        The audited target. A mechanism of any kind has no noise and no scale.
    kind, claimed, delta, sensitivity
        The claim of the target: "epsilon", "mu" or "rho", and its value.
    confidence
        The probability that no certified epsilon of this report is too large.
    findings
        The best of each attack, over the pairs and both directions; the largest epsilon first.
    observations
        The results of the side-channel checks: forks, restarts, time.
    skipped
        Attacks that could not be run, with the reason.
    pairs, method
        The pairs of values or data sets, and how the bound was computed, in words.
    points
        Points of the trade-off curve, besides those of the findings (see `curve`).
    releases, ceiling
        The number of releases, and the largest bound that they could have certified.
    seconds, command
        The time that the audit took, and the command that runs it again.
    versions
        The versions of Python, dpnoise, NumPy and the audited package, and the machine.
    """

    target: str
    version: str
    noise: str
    scale: float
    kind: str
    claimed: float
    delta: float
    sensitivity: float
    confidence: float
    findings: list[Finding]
    observations: list[Observation]
    skipped: dict[str, str]
    pairs: list[tuple[float | str, float | str]]
    method: str
    points: list[TradeoffPoint]
    ceiling: float
    releases: int
    seconds: float
    command: str
    versions: dict[str, str]

    @property
    def epsilon(self) -> float | None:
        """The claimed epsilon, or None if the claim is mu or rho."""
        return self.claimed if self.kind == "epsilon" else None

    @property
    def epsilon_lower(self) -> float:
        """The largest certified lower bound on epsilon, at the report's delta."""
        return max((finding.epsilon_lower for finding in self.findings), default=0.0)

    @property
    def certified(self) -> float:
        """The largest certified lower bound on the claimed parameter."""
        return max((finding.certified for finding in self.findings), default=0.0)

    @property
    def broken(self) -> bool:
        """Whether a certified bound exceeds the claim."""
        return any(finding.broken for finding in self.findings)

    @property
    def refutable(self) -> bool:
        """Whether this many releases could have certified more than the claim."""
        return self.ceiling > self.claimed

    @property
    def observed(self) -> bool:
        """Whether some event happened in some, but not in all releases."""
        return any(0 < f.hits0 + f.hits1 < f.trials0 + f.trials1 for f in self.findings)

    def curve(self) -> TradeoffCurve:
        """Return the certified trade-off curve: an upper bound on the trade-off function of f-DP.

        Its bounds on epsilon at every delta, on mu and on rho hold together with those of all
        findings, with the confidence of the report.

        Examples
        --------
        >>> import dpnoise, numpy as np
        >>> def flip(bit, n):
        ...     return (np.random.default_rng().random(n) < 0.1) ^ bool(bit)
        >>> curve = dpnoise.audit(flip, 1.0, neighbours=[(0, 1)], budget=40_000).curve()
        >>> bool(1.5 < curve.epsilon() < math.log(9)), bool(curve.delta(1.0) > 0.5)
        (True, True)
        """
        of_findings = [
            # The ratio of both probabilities may have a sharper limit than each of them.
            TradeoffPoint(f.value0, f.value1, f.low, min(f.high, f.low * ratio))
            for f in self.findings
            if f.releases == 1 and f.low > 0
            for ratio in [math.exp(-f.epsilon_lower) * (1 + TUNING.rounding_margin)]
        ]
        return TradeoffCurve((*of_findings, *self.points))

    def replay(self, outputs: Any) -> list[EventCount | None]:
        """Count each finding's event again, in outputs of your own, by its predicate.

        `outputs` are releases of one value or of one data set, as the target returns them. A
        finding without a predicate has no count. Events of your own views and attacks can be
        counted in the process of the audit only.

        Examples
        --------
        >>> import dpnoise
        >>> report = dpnoise.audit("numpy.laplace", 1.0, attacks=["threshold"], budget=24_000)
        >>> [count.trials for count in report.replay([0.25, 1.5, -3.0])]
        [3]
        """
        parts: dict[tuple[Callable[..., Any], ...], Sequence[Sequence[object]]] = {}
        counts: list[EventCount | None] = []
        for finding in self.findings:
            flags = None
            if finding.predicate and reads_releases(finding.predicate):
                releases = np.asarray(outputs)
                flags = evaluate_predicate(finding.predicate, releases, finding.functions)
            elif finding.predicate:
                views = finding.functions
                parts[views] = parts.get(views) or list_parts(outputs, views)
                flags = evaluate_predicate(finding.predicate, parts[views])
            counts.append(None if flags is None else EventCount(int(flags.sum()), len(flags)))
        return counts

    @property
    def verdict(self) -> str:
        """The finding of the audit in one sentence."""
        if self.broken:
            bound = bound_text(self.certified, self.claimed)
            return f"Broken: {self.kind} is at least {bound}, not {self.claimed:g}."
        if not self.findings:
            return "No attack was run: nothing is known."
        if not self.observed:
            return "Nothing was observed: no event told two releases apart. Nothing is known."
        if not self.refutable:
            return (
                f"Cannot be refuted with this many releases: they certify {self.kind} up to "
                f"{bound_text(self.ceiling)} at most."
            )
        return "Not broken by these attacks. This does not mean safe."

    @property
    def unseen(self) -> str:
        """What so few releases may have missed, in one sentence; empty if the claim is broken."""
        if self.broken or not self.findings:
            return ""
        bound = f"{self.kind} {bound_text(self.ceiling)}"
        trials = max(finding.trials1 for finding in self.findings)
        return (
            f"These releases could certify {bound} at most: a leak that is smaller than they show, "
            f"or rarer than one in {trials:,}, may stay unseen."
        )

    def __str__(self) -> str:
        """Return the verdict, the findings and the method, in a few lines."""
        used = used_as_if(self.kind, self.claimed, self.delta)
        findings = [finding.words(f"{self.kind} >=", self.claimed) for finding in self.findings]
        lines = [f"{f'{self.target} {self.version}'.rstrip()}, {used}", self.verdict]
        lines += [self.unseen] * bool(self.unseen)
        for finding, words in zip(self.findings, findings, strict=True):
            lines += [f"  {words}", *(f"    {x}" for x in [predicate_text(finding.predicate)] if x)]
        if not self.noise:
            lines += [f"{seen.name}: {seen.words}" for seen in self.observations]
        lines += [f"certified curve: {words}" for words in [curve_words(self.curve())] if words]
        certifiable = f"nothing above {self.kind} {bound_text(self.ceiling)} can be certified"
        counted = f"confidence {format_confidence(self.confidence)}, {self.releases:,} releases"
        duration = wording.format_duration(self.seconds)
        lines += [f"{counted}, of which {certifiable}; {duration}", f"again: {self.command}"]
        return "\n".join(map(escape_text, lines))

    def raise_if_broken(self) -> None:
        """Raise BrokenError if a certified bound exceeds the claim."""
        if self.broken:
            worst = self.findings[0]
            raise BrokenError(f"{self.target}: {self.verdict} {worst.attack}: {worst.event}.")

    def to_dict(self) -> dict[str, Any]:
        """Return the report as plain data, with the version of its format."""
        names = (
            "verdict", "epsilon", "epsilon_lower", "certified", "broken", "refutable", "observed",
        )  # fmt: skip
        summary = {name: getattr(self, name) for name in names}
        curve = self.curve()
        summary["curve"] = {
            "corners": curve.corners,
            "epsilon": [(delta, curve.epsilon(delta)) for delta in CURVE_DELTAS],
            "mu": curve.mu,
            "rho": curve.rho,
        }
        in_file = replace(self, findings=[replace(f, functions=()) for f in self.findings])
        fields = asdict(in_file)
        for finding in fields["findings"]:
            del finding["functions"]
        return {"format": FORMAT, **summary, **fields}

    def to_json(self, path: FilePath) -> None:
        """Write the report as JSON."""
        Path(path).write_text(strict_json.dumps(self.to_dict()) + "\n", encoding="utf-8")

    @classmethod
    def from_dict(cls, data: object) -> Self:
        """Return the report that `to_dict` converted."""
        if not isinstance(data, dict) or data.get("format") != FORMAT:
            raise ArgumentError(f"The report must have format {FORMAT}.")
        try:
            return cls._from_fields(data)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            damaged = f"The report is damaged: {type(error).__name__}: {error}"
            raise ArgumentError(damaged) from error

    @classmethod
    def _from_fields(cls, data: dict[str, Any]) -> Self:
        fields = {name: data[name] for name in cls.__dataclass_fields__}
        # JSON has no infinity: an infinite epsilon is a text.
        bounds = "epsilon_lower", "certified", "dispersion", "if_dependent"
        fields["findings"] = [
            Finding(**finding | {name: float(finding[name]) for name in bounds if name in finding})
            for finding in data["findings"]
        ]
        fields["observations"] = [Observation(**seen) for seen in data["observations"]]
        fields["points"] = [TradeoffPoint(**point) for point in data["points"]]
        fields["pairs"] = [(value0, value1) for value0, value1 in data["pairs"]]
        return cls(**fields)

    @classmethod
    def from_json(cls, path: FilePath) -> Self:
        """Read a report that `to_json` wrote."""
        return cls.from_dict(json.loads(Path(path).read_text(encoding="utf-8")))

    def to_html(self, path: FilePath) -> None:
        """Write the report as one self-contained HTML page. An existing file is replaced."""
        Path(path).write_text(page.render_audit_page(self.to_dict()), encoding="utf-8")


def write_comparison(
    reports: Sequence[Report], path: FilePath, not_audited: Mapping[str, str] | None = None
) -> None:
    """Write an HTML page that compares several reports, with reasons for missing ones."""
    text = page.render_comparison([report.to_dict() for report in reports], not_audited or {})
    Path(path).write_text(text, encoding="utf-8")


def write_list(reports: Sequence[Report], path: FilePath) -> None:
    """Write several reports as one JSON list."""
    text = strict_json.dumps([report.to_dict() for report in reports])
    Path(path).write_text(text + "\n", encoding="utf-8")


def read_list(path: FilePath) -> list[Report]:
    """Read the reports that `write_list` wrote."""
    return [Report.from_dict(data) for data in json.loads(Path(path).read_text(encoding="utf-8"))]


def collect_versions(package: str | None = None, package_version: str = "") -> dict[str, str]:
    """Return the versions of Python, dpnoise, NumPy and the audited package, and the machine."""
    return {
        "python": platform.python_version(),
        "dpnoise": installed_version("dpnoise") or "a source tree",
        "numpy": np.__version__,
        "machine": machine.describe_machine(),
        **({package: package_version} if package and package_version else {}),
    }
