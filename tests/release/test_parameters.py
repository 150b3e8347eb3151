"""Parameters of unusual types are taken exactly, or refused before noise is drawn."""

import math
import os
import subprocess
import sys
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from support.silence import FailingGenerator

import dpnoise
from dpnoise import statistics
from dpnoise.core import arrays
from dpnoise.statistics import queries
from dpnoise.statistics.plan import SumAnswer
from dpnoise.testing import fixed_generator

KEY = bytes(range(32))
laplace = dpnoise.LaplaceMechanism(epsilon=1.0, sensitivity=1.0)


SCALARS = [np.int8, np.uint8, np.int32, np.int64, np.uint64, np.float16, np.float32, np.float64]


@pytest.mark.parametrize("kind", SCALARS)
def test_parameters_mean_the_same_in_every_type_of_numpy(kind: Any) -> None:
    """The arithmetic of a type may wrap around or round: 100 squared is 16 in int8."""
    low, high, epsilon = kind(0), kind(100), kind(1)
    rng = fixed_generator
    column = [5.0, 250.0, 7.5]
    calls: list[Callable[[Any, Any, Any], object]] = [
        lambda a, b, c: statistics.sum(column, lower=a, upper=b, epsilon=c, rng=rng(KEY)),
        lambda a, b, c: statistics.sum(column, lower=a, upper=b, epsilon=c, grid=c, rng=rng(KEY)),
        lambda a, b, c: statistics.mean(column, lower=a, upper=b, epsilon=c, rng=rng(KEY)),
        lambda a, b, c: statistics.median(column, lower=a, upper=b, epsilon=c, rng=rng(KEY)),
        lambda a, b, _: statistics.exact_sum(column, a, b),
        lambda _, b, c: dpnoise.LaplaceMechanism(epsilon=c, sensitivity=b).variance,
        lambda _, b, c: repr(dpnoise.LaplaceMechanism(epsilon=c, sensitivity=b)),
        lambda _, b, c: (
            dpnoise.LaplaceMechanism(epsilon=c, sensitivity=b).dp_event().noise_multiplier
        ),
        lambda _, b, c: dpnoise.GaussianMechanism.for_rho(c, sensitivity=b).scale,
        lambda _, b, c: dpnoise.NoisyMax(epsilon=c, sensitivity=b).scale,
        lambda _, b, __: dpnoise.Laplace(b).variance,
        lambda _, b, __: rng(KEY).chisquare(b),
        lambda _, b, __: dpnoise.Laplace(b).share(3),
    ]
    for call in calls:
        assert call(low, high, epsilon) == call(0.0, 100.0, 1.0)


def test_a_median_spends_its_epsilon_and_no_more() -> None:
    epsilons: list[Any] = [np.float16(3 * 2.0**-10), np.float32(0.3), 0.3]
    for epsilon in epsilons:
        parts = statistics.median([0.5], lower=0, upper=1, epsilon=epsilon).parts.values()
        assert sum(map(Fraction, parts)) <= Fraction(float(epsilon))
    tiny: Any = np.float16(3 * 2.0**-24)
    assert not np.isnan(dpnoise.Generator().chisquare(tiny, size=3)).any()


zeros = np.zeros(1, dtype=np.int64)
untyped: Any = statistics  # Any, because some calls here are wrong.
dp: Any = dpnoise
BAD_OPTIONS: list[Callable[[Any], object]] = [
    lambda r: untyped.quantile([0.5], "0.5", lower=0, upper=1, epsilon=1.0, rng=r),
    lambda r: untyped.quantile([0.5], math.nan, lower=0, upper=1, epsilon=1.0, rng=r),
    lambda r: untyped.count([0.5], epsilon=1.0, confidence=np.array([0.5]), rng=r),
    lambda r: untyped.count([0.5], epsilon=1.0, confidence="0.95", rng=r),
    lambda r: untyped.count([1], epsilon=1.0, confidence=1 - Fraction(1, 10**400), rng=r),
    lambda r: untyped.count([0.5], epsilon=1.0, missing=np.array(["drop"]), rng=r),
    lambda r: untyped.histogram([0.5], edges=5, epsilon=1.0, rng=r),
    lambda r: untyped.count(pd.DataFrame({"a": [1.0]}), epsilon=1.0, rng=r),
    lambda r: untyped.count([[1.0], [2.0, 3.0]], epsilon=1.0, rng=r),
    lambda r: untyped.count(np.array([np.longdouble(1)]), epsilon=1.0, rng=r),
    lambda r: queries.Count("x", 1.0).release(zeros, 2.0, r),
    lambda r: queries.Sum("x", 0, 1, 1.0).release(SumAnswer(zeros, zeros), 2.0, r),
    lambda r: queries.Histogram("x", [0, 1], 1.0).release(zeros, 2.0, r),
    lambda _: dp.LaplaceMechanism(epsilon=1.0, sensitivity=1.0).error("a"),
    lambda _: dp.NoisyMax(epsilon=1.0, sensitivity=1.0, monotonic="no"),
    lambda _: dp.GaussianMechanism.for_scale("3", sensitivity=1.0),
    lambda _: dp.Generator(threads=np.timedelta64(2, "s")),
]


@pytest.mark.parametrize("call", BAD_OPTIONS)
def test_bad_options_are_refused_before_noise_is_drawn(call: Callable[[Any], object]) -> None:
    with pytest.raises(
        (dpnoise.ArgumentError, dpnoise.ArgumentTypeError), match=r"must|not supported"
    ):
        call(FailingGenerator())


def test_a_fraction_may_say_which_quantile() -> None:
    median = untyped.quantile([0.5], Fraction(1, 2), lower=0, upper=1, epsilon=1.0)
    assert median.query == "median"


@pytest.mark.parametrize("row", [2**63, 2**64, 2**1100, -(2**64), 0.5, True, None, np.ma.masked])
def test_no_row_of_a_list_decides_whether_the_column_is_taken(row: Any) -> None:
    column = [-1, 0.5, row]
    count = statistics.count(column, epsilon=1e6, missing="drop").value
    assert count == 3 - (row is None or row is np.ma.masked)


def test_booleans_with_nulls_are_columns_too() -> None:
    for column in (pd.Series([True, None, False], dtype="boolean"), pa.array([True, None, False])):
        assert statistics.count(column, epsilon=1e6, missing="drop").value == 2
        total = statistics.sum(column, lower=0, upper=1, epsilon=1e6, missing="drop")
        assert total.value == pytest.approx(1.0, abs=1e-3)


class FalseSize(np.ndarray[Any, Any]):
    """A subclass that claims to be empty."""

    @property
    def size(self) -> int:
        """Return a wrong size."""
        return 0


def test_a_false_size_of_an_array_is_ignored() -> None:
    out = np.zeros(5).view(FalseSize)
    dpnoise.Generator().laplace(out=out)
    assert np.count_nonzero(np.asarray(out)) == 5


def test_without_the_compiler_no_warning_and_no_other_type() -> None:
    """For every value, because its path must not show."""
    code = """
import warnings
import numpy as np
import dpnoise
np.seterr(all="raise")
mechanism = dpnoise.LaplaceMechanism(epsilon=1.0, sensitivity=1.0)
for value in (3.3, 1e308, 5e-324):
    assert type(mechanism.release(value)) is float
    mechanism.release(np.array([value]))
rng = dpnoise.Generator()
for scale in (1.0, 1e-310, 1e308):
    assert type(rng.laplace(scale=scale)) is float
    rng.laplace(scale=scale, size=3)
    rng.gamma(1.7, scale=scale, size=3)
print("done")
"""
    process = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "NUMBA_DISABLE_JIT": "1"},
    )
    assert process.stdout == "done\n", process.stderr


def test_the_rounding_mode_is_looked_at_before_noise_is_drawn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(arrays, "_UNIT", 2.0**-52)  # Simulates another rounding mode.
    for value in (1.0, 1, np.ones(3), np.ones(3, int), [1, 2]):
        with pytest.raises(dpnoise.RoundingModeError):
            laplace.release(value, rng=FailingGenerator())
    with pytest.raises(dpnoise.RoundingModeError):
        statistics.sum([1.0], lower=0, upper=1, epsilon=1.0, rng=FailingGenerator())
