"""What an audit found: plain frozen data, JSON, and the exception that CI asks for."""

import json
import math
import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from os import PathLike
from pathlib import Path
from typing import Any, Final, Self

import numpy as np

from dpnoise.auditing import page
from dpnoise.auditing.processes import Observation
from dpnoise.auditing.wording import at_least, curve_words, duration, number, used_as_if
from dpnoise.core import machine, strict_json
from dpnoise.core.errors import ArgumentError, DpnoiseError

FORMAT: Final = 2
_CURVE: Final = 41  # Points of a certified curve.
_FURTHEST: Final = 50.0  # The largest epsilon on it.


class BrokenError(DpnoiseError, AssertionError):
    """An audit certified more than the target claims."""


@dataclass(frozen=True)
class Finding:
    """One attack's event, counted in fresh releases of two values.

    Parameters
    ----------
    attack, access
        The attack's name, and what it was given: outputs, outputs and scale, or source.
    event
        The event in plain words, of a release y.
    value0, value1
        The two values, which differ by the sensitivity at most; of neighbouring data sets, words.
    releases
        How many releases one decision takes. The certified epsilon is for each of them.
    hits0, trials0, hits1, trials1
        How often the event happened at value0 and at value1.
    low, high
        The limits that these counts prove: the event's probability is at least `low` at value0 and
        at most `high` at value1.
    certified
        The lower bound on the parameter that is claimed: epsilon, mu or rho.
    epsilon_lower
        The certified lower bound on epsilon at the report's delta.
    confidence
        With which all findings of the report hold together.
    broken
        Whether it is more than the target claims.
    evidence
        What to draw: "exponents" of the last set bit, and their counts "at0" and "at1".
    """

    attack: str
    access: str
    event: str
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


@dataclass(frozen=True)
class Report:
    """What can be proved against a target, and what was tried.

    Parameters
    ----------
    target, version, noise, scale
        What was audited. A mechanism of any kind has no noise and no scale.
    kind, claimed, delta, sensitivity
        What it claims: "epsilon", "mu" or "rho", and how much of it.
    confidence
        The probability that no certified epsilon of this report is too large.
    findings
        The best of each attack, over the pairs and both directions; the largest epsilon first.
    observations
        Forks, restarts, time.
    skipped
        Attacks that could not be run, with the reason.
    pairs
        The pairs of values that were tried, or of data sets, in words.
    method
        How the bound was computed, in words.
    ceiling
        The most that this many releases could have certified.
    releases
        How many releases the events were chosen on and counted in.
    seconds
        How long it took.
    command
        What runs it again.
    versions
        Of Python, dpnoise, NumPy and the audited package, and the machine that it ran on.
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
    ceiling: float
    releases: int
    seconds: float
    command: str
    versions: dict[str, str]

    @property
    def epsilon(self) -> float | None:
        """The epsilon that is claimed, or None if the claim is another."""
        return self.claimed if self.kind == "epsilon" else None

    @property
    def epsilon_lower(self) -> float:
        """The largest certified lower bound on epsilon, at the report's delta."""
        return max((finding.epsilon_lower for finding in self.findings), default=0.0)

    @property
    def certified(self) -> float:
        """The largest certified lower bound on what is claimed."""
        return max((finding.certified for finding in self.findings), default=0.0)

    @property
    def broken(self) -> bool:
        """Whether more than what is claimed is certified."""
        return any(finding.broken for finding in self.findings)

    @property
    def refutable(self) -> bool:
        """Whether this many releases could have certified more than what is claimed."""
        return self.ceiling > self.claimed

    @property
    def curve(self) -> list[tuple[float, float]]:
        """The certified privacy curve: pairs of an epsilon and the delta that it has at least.

        All findings hold together, so at each epsilon the largest of their deltas does.
        """
        single = [finding for finding in self.findings if finding.releases == 1]
        top = min(_FURTHEST, max((finding.epsilon_lower for finding in single), default=0.0))
        steps = [top * i / (_CURVE - 1) for i in range(_CURVE)] if top else [0.0]
        return [(e, max((_delta(f, e) for f in single), default=0.0)) for e in steps]

    @property
    def verdict(self) -> str:
        """The finding of the audit in one sentence."""
        if self.broken:
            bound = at_least(self.certified, self.claimed)
            return f"Broken: {self.kind} is at least {bound}, not {self.claimed:g}."
        if not self.findings:
            return "No attack was run: nothing is known."
        if not self.refutable:
            return (
                f"Cannot be refuted with this many releases: they certify {self.kind} up to "
                f"{at_least(self.ceiling)} at most."
            )
        return "Not broken by these attacks. This does not mean safe."

    def __str__(self) -> str:
        """Say the verdict, what gave it away and how it was measured, in a few lines."""
        used = used_as_if(self.kind, self.claimed, self.delta)
        lines = [f"{f'{self.target} {self.version}'.rstrip()}, {used}", self.verdict]
        lines += [
            f"  {found.attack}: {self.kind} >= {at_least(found.certified, self.claimed)}: "
            f"{found.event}. Seen {found.hits0:,} times in {found.trials0:,} at "
            f"{number(found.value0)}, {found.hits1:,} in {found.trials1:,} at "
            f"{number(found.value1)}."
            for found in self.findings
        ]
        lines += [f"certified curve: {words}" for words in [curve_words(self.curve)] if words]
        lines.append(
            f"confidence {self.confidence:g}, {self.releases:,} releases, of which nothing above "
            f"{self.kind} {at_least(self.ceiling)} can be certified; {duration(self.seconds)}"
        )
        lines.append(f"again: {self.command}")
        return "\n".join(lines)

    def raise_if_broken(self) -> None:
        """Raise BrokenError if more than what is claimed is certified."""
        if self.broken:
            worst = self.findings[0]
            raise BrokenError(f"{self.target}: {self.verdict} {worst.attack}: {worst.event}.")

    def to_dict(self) -> dict[str, Any]:
        """Return the report as plain data, with the version of its format."""
        names = "verdict", "epsilon", "epsilon_lower", "certified", "broken", "refutable", "curve"
        summary = {name: getattr(self, name) for name in names}
        return {"format": FORMAT, **summary, **asdict(self)}

    def to_json(self, path: str | PathLike[str]) -> None:
        """Write the report as JSON."""
        Path(path).write_text(strict_json.dumps(self.to_dict()) + "\n", encoding="utf-8")

    @classmethod
    def from_dict(cls, data: object) -> Self:
        """Return the report that `to_dict` took apart."""
        if not isinstance(data, dict) or data.get("format") != FORMAT:
            raise ArgumentError(f"The report must have format {FORMAT}.")
        fields = {name: data[name] for name in cls.__dataclass_fields__}
        # In JSON an infinite epsilon is a text.
        bounds = "epsilon_lower", "certified"
        fields["findings"] = [
            Finding(**finding | {name: float(finding[name]) for name in bounds})
            for finding in data["findings"]
        ]
        fields["observations"] = [Observation(**seen) for seen in data["observations"]]
        fields["pairs"] = [(value0, value1) for value0, value1 in data["pairs"]]
        return cls(**fields)

    @classmethod
    def from_json(cls, path: str | PathLike[str]) -> Self:
        """Read a report that `to_json` wrote."""
        return cls.from_dict(json.loads(Path(path).read_text(encoding="utf-8")))

    def to_html(self, path: str | PathLike[str]) -> None:
        """Write the report as one HTML page that needs nothing else."""
        Path(path).write_text(page.render(self.to_dict()), encoding="utf-8")


def _delta(finding: Finding, epsilon: float) -> float:
    """Return P0 - exp(epsilon) P1 at least: by the limits of both, or of P0 and of their ratio."""
    by_limits = finding.low - math.exp(epsilon) * finding.high
    return max(by_limits, -finding.low * math.expm1(epsilon - finding.epsilon_lower))


def write_comparison(
    reports: Sequence[Report],
    path: str | PathLike[str],
    not_audited: Mapping[str, str] | None = None,
) -> None:
    """Write one HTML page that compares several reports, and says why others were not audited."""
    text = page.render_comparison([report.to_dict() for report in reports], not_audited or {})
    Path(path).write_text(text, encoding="utf-8")


def write_list(reports: Sequence[Report], path: str | PathLike[str]) -> None:
    """Write several reports as one JSON list."""
    text = strict_json.dumps([report.to_dict() for report in reports])
    Path(path).write_text(text + "\n", encoding="utf-8")


def read_list(path: str | PathLike[str]) -> list[Report]:
    """Read what `write_list` wrote."""
    return [Report.from_dict(data) for data in json.loads(Path(path).read_text(encoding="utf-8"))]


def versions(package: str | None = None, of_package: str = "") -> dict[str, str]:
    """Return the versions of Python, dpnoise, NumPy and the audited package, and the machine."""
    return {
        "python": platform.python_version(),
        "dpnoise": version("dpnoise"),
        "numpy": np.__version__,
        "machine": machine.described(),
        **({package: of_package} if package and of_package else {}),
    }
