"""Outputs that are texts, times and instances of dataclasses: audits see what people see."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta

import numpy as np
import pytest
from support.alarms import FALSE_ALARM

import dpnoise
from dpnoise.auditing import BrokenError, predicates
from dpnoise.auditing.report import Report
from dpnoise.testing import assert_private

rng = np.random.default_rng()


@dataclass
class Measured:
    """An output."""

    city: str
    value: float


def audit(mechanism: Callable[[int, int], object], budget: int) -> Report:
    certain = 1 - FALSE_ALARM
    return dpnoise.audit(mechanism, 1.0, neighbours=[(0, 1)], budget=budget, confidence=certain)


def print_bit(bit: int, n: int, shown: float = 0.95) -> list[tuple[str, int]]:
    """Return texts that never repeat, next to a bit that is shown with this probability."""
    flips = rng.random(n) > shown
    return [(f"{rng.random():.15f}", int(flip) ^ bit) for flip in flips.tolist()]


def test_texts_that_never_repeat_hide_nothing_next_to_them() -> None:
    """The codes of such texts once showed which data set was drawn first, and nothing else."""
    assert audit(print_bit, 10_000).epsilon_lower > 2

    def in_records(bit: int, n: int) -> list[dict[str, object]]:
        return [{"id": text, "answer": answer} for text, answer in print_bit(bit, n)]

    report = audit(in_records, 10_000)
    assert report.epsilon_lower > 2
    assert "y['answer']" in report.findings[0].event
    with pytest.raises(BrokenError):
        assert_private(print_bit, 1.0, neighbours=[(0, 1)], budget=10_000)


def test_error_texts_that_differ_hide_nothing_next_to_them() -> None:
    """A third of the texts never repeats, and the others are one text."""

    def fail(bit: int, n: int) -> list[tuple[object, int]]:
        outputs = print_bit(bit, n)
        return [(text if x < 0.3 else "no", answer)
                for (text, answer), x in zip(outputs, rng.random(n), strict=True)]  # fmt: skip

    assert audit(fail, 10_000).epsilon_lower > 2


@pytest.mark.parametrize("digits", [3, 6])
def test_printed_numbers_are_read_as_numbers(digits: int) -> None:
    def printed(bit: int, n: int) -> list[str]:
        return [f"{x:.{digits}f}" for x in (bit + rng.laplace(scale=0.2, size=n)).tolist()]

    report = audit(printed, 20_000)
    assert report.epsilon_lower > 3
    outputs = printed(1, 200)
    again = Report.from_dict(report.to_dict())
    assert again.replay(outputs) == report.replay(outputs)
    for finding, count in zip(report.findings, report.replay(outputs), strict=True):
        event = compile(finding.predicate, "<event>", "eval")  # It may list thousands of texts.
        hits = [eval(event, vars(predicates) | {"y": text}) for text in outputs]  # noqa: S307 - our own text
        assert count is not None
        assert sum(hits) == count.hits


@pytest.mark.parametrize(
    "release",
    [
        lambda x: datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=x),
        lambda x: timedelta(seconds=x),
        lambda x: date(2026, 1, 1) + timedelta(days=round(10 * x)),
        lambda x: Measured("cork", x),
    ],
    ids=["time", "duration", "date", "dataclass"],
)
def test_times_and_dataclasses_are_outputs(release: Callable[[float], object]) -> None:
    def mechanism(bit: int, n: int) -> list[object]:
        return [release(x) for x in (bit + rng.laplace(scale=0.2, size=n)).tolist()]

    assert audit(mechanism, 20_000).epsilon_lower > 3


def test_missing_and_extreme_times_are_outputs() -> None:
    pandas = pytest.importorskip("pandas")
    extremes = datetime.min.replace(tzinfo=UTC), timedelta.max, timedelta.min
    known = pandas.Timestamp("2026-01-01"), date.max, *extremes

    def release(bit: int, n: int) -> list[object]:
        places = rng.integers(5, size=n).tolist()
        missing = rng.random(n) < (0.01 if bit else 0.6)
        return [pandas.NaT if missing[k] else known[i] for k, i in enumerate(places)]

    assert audit(release, 4_000).broken
