"""Invented reports, for tests of the page. They come from no audit."""

from dataclasses import replace
from typing import Final

from dpnoise.auditing.processes import Observation
from dpnoise.auditing.report import Finding, Report

# The last set bits of 20,000 releases at 0 go finer than 2^-54; those at 1 do not.
_EXPONENTS: Final = range(-64, -40)
_BITS: Final = {
    "exponents": list(_EXPONENTS),
    "at0": [6600 >> abs(e + 54) for e in _EXPONENTS],
    "at1": [10_000 >> (e + 54) if e >= -54 else 0 for e in _EXPONENTS],
}


def finding(**changes: object) -> Finding:
    """Return a finding that breaks the claim, with some fields changed."""
    template = Finding(
        attack="precision",
        access="outputs",
        event="|y| < 2^-2 and y is not a multiple of 2^-54",
        predicate="finer_than(releases, -2, -54)",
        value0=0.0,
        value1=1.0,
        releases=1,
        hits0=3723,
        trials0=20_000,
        hits1=0,
        trials1=20_000,
        low=0.18,
        high=0.0005,
        certified=5.8249,
        epsilon_lower=5.8249,
        confidence=0.999,
        broken=True,
        evidence=_BITS,
    )
    return replace(template, **changes)  # type: ignore[arg-type]


def broken_report() -> Report:
    """Return a report with three findings that break the claim, one from pairs of releases."""
    pairs = finding(
        attack="box-muller-pair",
        access="outputs and scale",
        event="no pair of uniforms leads from 1 to y and y' (the polar method)",
        releases=2,
        hits0=9481,
        trials0=10_000,
        hits1=12,
        trials1=10_000,
        certified=3.0161,
        evidence={},
    )
    return Report(
        target="example.laplace",
        version="0.0 (made up)",
        noise="laplace",
        scale=1.0,
        kind="epsilon",
        claimed=1.0,
        delta=0.0,
        sensitivity=1.0,
        confidence=0.999,
        findings=[
            finding(),
            pairs,
            finding(value0=1000.0, value1=1001.0, hits0=212, hits1=9, certified=2.021),
            finding(
                attack="patterns",
                event="y has one of 41 patterns of sign, exponent, last bit",
                hits0=5104,
                hits1=2377,
                certified=0.6312,
                broken=False,
            ),
            finding(
                attack="twister",
                access="source",
                event="no Mersenne Twister state explains the releases",
                hits0=0,
                certified=0.0,
                broken=False,
                evidence={},
            ),
        ],
        observations=[
            Observation("forked", found=True, words="Three forked children drew the same noise."),
            Observation("restarted", found=False, words="Three new processes drew other noise."),
            Observation("not seen", found=False, words="The clock was too coarse."),
        ],
        skipped={"threefry": "jax is not installed"},
        pairs=[(0.0, 1.0), (1000.0, 1001.0)],
        method="Exact binomial limits (Clopper and Pearson), the error split over all findings.",
        points=[],
        ceiling=7.4,
        releases=240_000,
        seconds=83.4,
        command="dpnoise audit example.laplace --epsilon 1 --size 20000",
        versions={"python": "3.11.7", "dpnoise": "0.0", "numpy": "2.4.6"},
    )


def unbroken_report() -> Report:
    """Return a report with one finding, which certifies less than the claim."""
    weaker = finding(hits0=5104, hits1=2377, certified=0.6312, broken=False)
    return replace(broken_report(), target="example.release", findings=[weaker], observations=[])


def several_reports() -> list[Report]:
    """Return reports of several targets, for a comparison."""
    return [
        replace(broken_report(), target="example.RandomState.laplace"),
        unbroken_report(),
        replace(
            broken_report(), target="example.normal", version="", findings=[finding(certified=4.2)]
        ),
        replace(unbroken_report(), target="example.nothing", findings=[]),
    ]
