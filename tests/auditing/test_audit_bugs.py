"""The bugs that people make, each found, and mechanisms that keep their claim."""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import cycle, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import integrate, stats
from support.alarms import FALSE_ALARM, LONG, check_probability, check_rate
from support.choices import sample_cases, sample_parameters

import dpnoise
from benchmarks import audit_bench, false_alarms
from benchmarks.audit_bugs import BUGS, Bug, audit_bug, geometric
from benchmarks.audit_mechanisms import (
    _GAMMA,
    BELOW,
    ROWS,
    UNANSWERED,
    Row,
    add_laplace,
    murmur3,
    rappor,
    sparse_vector,
    word_of,
)
from dpnoise.auditing import BrokenError
from dpnoise.auditing.targets import TargetError
from dpnoise.core.errors import ArgumentError
from dpnoise.testing import assert_private

CERTAIN = 1 - FALSE_ALARM
# Bugs that need more releases than a test should take.
REFUSED = "a fixed seed"
SMALL = {"the scale is too small by 1.2", "noise forgotten one time in a thousand"}


FOUND = [bug for bug in BUGS if bug.words not in {*SMALL, REFUSED}]


@pytest.mark.sample(2)
@pytest.mark.parametrize("bug", FOUND, ids=lambda bug: bug.words)
def test_every_bug_that_people_make_is_found(bug: Bug) -> None:
    is_plain = bug.true == math.inf and not bug.options  # Far above its claim.
    budget = 40_000 if is_plain and not LONG else 120_000
    report = audit_bug(bug, budget=budget, confidence=CERTAIN)
    assert report.broken
    assert report.epsilon_lower <= bug.true


# Bugs that a rare event reveals, and the least bound it certifies; usual events certify less.
RARE = {
    "one noise for two numbers": 9.0,
    "noise forgotten one time in a thousand": 2.0,
    "rounded before the noise, to tens": 7.0,
    "clamped by the data's largest value": 9.0,
}


@pytest.mark.long
def test_a_rare_event_is_chosen_where_it_certifies_most() -> None:
    """An audit without the rare event certifies half of this bound, or nothing.

    Of 100 audits of each bug none was below its bound, so fewer than 1 in 20 are (confidence 0.99).
    At least 2 of 8 must reach it: if 1 in 20 failed, 7 of 8 would fail with probability 10^-8.
    """
    for words in sample_cases(list(RARE), 2):
        (bug,) = (bug for bug in BUGS if bug.words == words)
        reached = 0
        for _ in range(8):
            reached += audit_bug(bug).epsilon_lower >= RARE[words]
            if reached == 2:
                break
        assert reached == 2, words


def test_the_benchmark_shows_how_far_each_audit_is(monkeypatch: pytest.MonkeyPatch) -> None:
    progress: list[float] = []

    @contextmanager
    def record_progress(title: str) -> Iterator[Any]:
        assert title == "Laplace"
        yield progress.append

    monkeypatch.setattr(audit_bench, "progress_bar", record_progress)
    assert audit_bench.measure_audit(replace(ROWS[0], budget=4_000))["mechanism"] == "Laplace"
    assert progress == sorted(progress)
    assert (progress[0], progress[-1]) == (0.0, 1.0)


def test_the_benchmark_shows_the_middle_of_three_audits_and_how_many_reach_the_bound() -> None:
    def audit(certified: float, seconds: float) -> dict[str, Any]:
        return {
            "mechanism": "SVT9",
            "claim": 0.1,
            "keeps": True,
            "releases": 3_000_000,
            "published": 0.05,
            "published_seconds": 20,
            "certified_0.999": certified / 2,
            "certified": certified,
            "wall_seconds": seconds,
        }

    wide = [audit(0.04, 1.5), audit(0.08, 2.5), audit(0.0625, 2.0)]
    late = [audit(0.03125, 2.1), audit(0.07, 2.0), audit(0.02, 2.3)]
    text = audit_bench.table([wide, late], "a machine")
    before = "| SVT9 | 0.1 | yes | 0.05 "
    assert f"{before}| **0.0625** | 0.0312 | 2 of 3 | 20 | 2.0 | 2 of 3 | 3.0 million |" in text
    assert f"{before}| 0.0312 | 0.0156 | 1 of 3 | 20 | 2.1 | 1 of 3 | 3.0 million |" in text
    assert "published: 1 of 2; in at most a tenth of its time: 1. " in text
    assert "Of the 6 audits, 3 reach the published bound, and 3 take at most a tenth" in text
    columns = [line.count("|") for line in text.splitlines() if line.startswith("|")]
    assert columns == [12] * 4


def test_the_benchmark_knows_no_other_mechanisms() -> None:
    with pytest.raises(SystemExit, match=r"no mechanism is called SVT7.*SVT1, SVT2"):
        audit_bench.main(["SVT6", "SVT7"])


def test_a_fixed_seed_is_refused() -> None:
    (seeded,) = (bug for bug in BUGS if bug.words == REFUSED)
    with pytest.raises(TargetError, match="depend on each other"):
        audit_bug(seeded, budget=120_000)


def test_the_docs_have_every_bug() -> None:
    bugs, mechanisms = (
        (Path(__file__).parents[2] / "docs" / name).read_text()
        for name in ("audit-measurements.md", "dp-sniper.md")
    )
    for bug in BUGS:
        assert f"\n| {bug.words} |" in bugs, "run `make audit-bugs`"
    for row in ROWS:
        assert f"\n| {row.name} |" in mechanisms, "run `make audit-bench`"


@pytest.mark.parametrize(
    "row", sample_parameters([row for row in ROWS if row.keeps], 2), ids=lambda row: row.name
)
def test_a_mechanism_that_keeps_its_claim_is_not_called_broken(row: Row) -> None:
    report = dpnoise.audit(
        row.mechanism,
        row.claim,
        neighbours=row.neighbours[:2],
        budget=20_000 if LONG else 4_000,
        confidence=CERTAIN,
    )
    assert not report.broken


@pytest.mark.sample(6)
@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_a_mechanism_gives_an_output_for_each_that_is_asked_for(row: Row) -> None:
    for pair in row.neighbours:
        for data in pair:
            assert len(row.mechanism(data, 7)) == 7


def test_noise_of_the_mechanisms_is_laplace_and_each_is_new() -> None:
    noise = np.concatenate([add_laplace(0.0, 200_000, scale=1.0)[:, 0] for _ in range(2)])
    # On a grid of 2^-20 some 19,000 of 400,000 meet another: n^2/2 2^-20 times the integral of the
    # squared density, 1/4. Runs with one seed would all meet.
    assert len(np.unique(noise)) > 0.85 * len(noise)
    check_probability(float(stats.kstest(np.sort(noise), stats.laplace.cdf).pvalue))
    for other in (np.roll(noise, 1), np.roll(noise, 200_000)):
        p_value = stats.norm.sf(abs(np.sign(noise) @ np.sign(other)) / math.sqrt(len(noise)))
        check_probability(2 * float(p_value))


def test_bits_are_reported_as_often_as_they_should_be() -> None:
    """With f = 0.95 a set bit is reported as 1 with probability 0.525, another with 0.475."""
    bits = np.zeros(20, dtype=bool)
    bits[[murmur3(b"1", seed) % 20 for seed in range(4)]] = True
    reports = rappor(1, 100_000, f=0.95)
    for column, bit in zip(reports.T, bits, strict=True):
        likely = 0.525 if bit else 0.475
        check_probability(float(stats.binomtest(int(column.sum()), len(column), likely).pvalue))


ANSWERS = np.array([0.0, 1.5, 0.5, 2.0])
LIMITS = np.linspace(-59, 61, 12_001)  # The corners of the densities are among them.
SCALES: dict[str, Any] = {"threshold_scale": 1.0, "query_scale": 2.0}


def probability_of(pattern: tuple[int, ...], *, redraw: bool) -> float:
    """Return the probability of bits above a noisy threshold of 1, which a 1 may draw again."""
    ends = [i + 1 for i, bit in enumerate(pattern) if bit] if redraw else []
    probability = 1.0
    for start, stop in pairwise([0, *ends, len(pattern)]):
        density = stats.laplace.pdf(LIMITS, 1.0)
        for i in range(start, stop):
            below = stats.laplace.cdf(LIMITS, ANSWERS[i], 2.0)
            density *= 1 - below if pattern[i] else below
        probability *= float(integrate.simpson(density, LIMITS))
    return probability


@pytest.mark.parametrize("redraw", [False, True])
@pytest.mark.parametrize("cutoff", [1, 2, None])
def test_sparse_vectors_have_the_probabilities_of_their_papers(
    cutoff: int | None, *, redraw: bool
) -> None:
    n, options = 200_000, SCALES | {"redraw": redraw, "cutoff": cutoff}
    outputs = [sparse_vector(ANSWERS, n, **options)]
    numbers = sparse_vector(ANSWERS, n, **options, numbers=True)
    outputs.append(np.where(np.isnan(numbers), UNANSWERED, numbers != BELOW).astype(np.int8))
    for rows in outputs:
        patterns, counts = np.unique(rows, axis=0, return_counts=True)
        total = 0.0
        for pattern, count in zip(patterns.tolist(), counts.tolist(), strict=True):
            answered = tuple(bit for bit in pattern if bit != UNANSWERED)
            assert pattern == [*answered, *[UNANSWERED] * (len(ANSWERS) - len(answered))]
            assert len(answered) == len(ANSWERS) or (sum(answered), answered[-1]) == (cutoff, 1)
            probability = probability_of(answered, redraw=redraw)
            check_probability(float(stats.binomtest(count, n, probability).pvalue))
            total += probability
        assert total == pytest.approx(1.0)  # No pattern is missing.


def test_a_numerical_sparse_vector_answers_with_new_noise() -> None:
    """The noise of the comparison is more often above 0: the answer was above the threshold."""
    options = SCALES | {"numbers": True, "below": 0.0, "answer_scale": 3.0}
    numbers = sparse_vector(ANSWERS, 200_000, **options)
    for column, answer in zip(numbers.T, ANSWERS, strict=True):
        given = np.sort(column[(column != 0) & ~np.isnan(column)])
        check_probability(float(stats.kstest(given, stats.laplace(answer, 3.0).cdf).pvalue))


def test_splitmix64_gives_its_published_values() -> None:
    """Of the reference implementation, from the seed 1234567."""
    seeds = np.uint64(1234567) + np.arange(1, 4, dtype=np.uint64) * _GAMMA
    words = [word_of(seed) for seed in seeds]
    assert words == [6457827717110365317, 3203168211198807973, 9817491932198370423]


def test_murmur3_gives_its_published_values() -> None:
    """Of the reference implementation, as unsigned numbers of 32 bits."""
    assert murmur3(b"", 1) % 2**32 == 0x514E28B7
    assert murmur3(b"\xff\xff\xff\xff", 0) % 2**32 == 0x76293B50
    assert murmur3(b"!Ce\x87", 0) % 2**32 == 0xF55B516B
    assert murmur3(b"!", 0) % 2**32 == 0x72661CF4


@pytest.mark.long
def test_false_alarms_are_no_more_frequent_than_the_confidence_says() -> None:
    """At confidence 0.7, at most 3 audits of 10 are wrong: counted in 100, exact binomial."""
    kinds = cycle(false_alarms.KINDS.values())
    check_rate(
        lambda: false_alarms.audit_kind(next(kinds), 0.7, 4_000) == "false alarm",
        5 * len(false_alarms.KINDS),
        0.3,
    )


def test_the_table_of_false_alarms_counts_each_kind() -> None:
    said = [("false alarm", 2.0), ("refused", 1.0), ("not broken", 4.0), ("not broken", 1.0)]
    results = [("bits", *answer) for answer in said] + [("a mu", "not broken", 0.4)]
    text = false_alarms.table(results, ["bits", "a mu", "a text"], 0.9)
    assert "| bits | 4 | 1 | 1 | 0.4 of 4 | 8 |" in text
    assert "| a mu | 1 | 0 | 0 | 0.1 of 1 | 0 |" in text
    assert "| a text | 0 | 0 | 0 | 0 of 0 | 0 |" in text
    assert "5 audits at confidence 0.9" in text


def test_false_alarms_are_too_many_where_the_stated_error_does_not_explain_them() -> None:
    """Of 1,000 audits at an error of 0.001, nine or ten: p-values of 1.1e-6 and 1.1e-7."""

    def results(alarms: int) -> list[tuple[str, str, float]]:
        return [("bits", "false alarm" if i < alarms else "refused", 0.1) for i in range(1_000)]

    assert not false_alarms.has_too_many(results(9), 0.999)
    assert false_alarms.has_too_many(results(10), 0.999)
    assert not false_alarms.has_too_many([], 0.999)


def test_false_alarms_are_counted_until_the_time_is_over(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """In processes, which take a second to start: no audit ends within a millisecond."""
    assert false_alarms.main(["--seconds", "0.001", "--cores", "1", "--kind", "bits"]) == 0
    shown = capsys.readouterr().out
    assert "The time is over." in shown
    assert "| bits | 0 | 0 | 0 | 0 of 0 | 0 |" in shown


# An assertion for tests --------------------------------------------------------------------------


def add_noise(value: int, n: int) -> Any:
    return value + geometric(1.0, n)


def test_a_mechanism_that_keeps_its_claim_passes() -> None:
    options: dict[str, Any] = {"neighbours": [(3, 4)], "budget": 20_000, "confidence": CERTAIN}
    assert assert_private(add_noise, 1.0, **options).epsilon_lower <= 1.0


def test_a_mechanism_that_does_not_fails_as_an_assertion() -> None:
    with pytest.raises(AssertionError, match="epsilon is at least") as e:
        assert_private(add_noise, 0.5, neighbours=[(3, 4)], budget=40_000)
    assert isinstance(e.value, BrokenError)


def test_a_test_that_could_never_fail_is_an_error() -> None:
    with pytest.raises(ArgumentError, match="Give a larger budget"):
        assert_private(add_noise, 30.0, neighbours=[(3, 4)], budget=2_000)


def test_outputs_that_do_not_depend_on_the_data_pass() -> None:
    """Nothing can be learned of them, but they were seen to vary."""
    options: dict[str, Any] = {"neighbours": [(0, 1)], "budget": 4_000, "confidence": CERTAIN}
    report = assert_private(lambda _, n: np.random.default_rng().random(n) < 0.5, 1.0, **options)
    assert report.observed


@pytest.mark.sample(1)
@pytest.mark.parametrize("neighbours", [[(3, 4)], None])
def test_outputs_that_are_all_equal_are_an_error(neighbours: Any) -> None:
    options: dict[str, Any] = {"neighbours": neighbours, "budget": 4_000, "confidence": CERTAIN}
    with pytest.raises(ArgumentError, match="Nothing was observed"):
        assert_private(lambda _, n: np.zeros(n), 1.0, **options)


def test_an_infinite_epsilon_of_the_table_is_one_that_no_claim_covers() -> None:
    assert {bug.true for bug in BUGS} >= {math.inf, 2.0, 1.2}
