"""The mechanisms for users: types of values, calibration, bounds, and clear errors."""

import math
import sys
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from typing import Any, cast

import dp_accounting
import mpmath
import numpy as np
import pandas as pd
import polars as pl
import pytest
from flint import arb
from scipy import stats
from support import alarms
from support.silence import FailingGenerator

import dpnoise
from dpnoise.integrations.numpy import SecureBitGenerator
from dpnoise.release import calibration
from dpnoise.testing import fixed_generator

laplace = dpnoise.LaplaceMechanism(epsilon=1.0, sensitivity=1.0)
gaussian = dpnoise.GaussianMechanism(epsilon=1.0, delta=1e-6, sensitivity=1.0)
KEY = bytes(range(32))


@pytest.mark.sample(1)
@pytest.mark.parametrize("mechanism", [laplace, gaussian])
def test_the_kind_that_goes_in_comes_out(mechanism: Any) -> None:
    def release_same_type(value: Any) -> Any:
        result = mechanism.release(value)
        assert type(result) is type(value)
        return result

    release_same_type(1.5)
    release_same_type(7)
    release_same_type(10**40)
    release_same_type(np.float32(1.5))
    release_same_type(np.float64(1.5))
    assert isinstance(mechanism.release(np.int32(5)), int)
    assert release_same_type([1.5, 2.5]) != [1.5, 2.5]
    assert all(isinstance(x, int) for x in release_same_type([1, 2, 2**70]))
    assert all(isinstance(x, float) for x in release_same_type((1.0, 2)))
    assert release_same_type([]) == []
    for dtype in ("float64", "float32", "float16", "int64"):
        array = release_same_type(np.ones((3, 2), dtype))
        assert array.shape == (3, 2)
        assert array.dtype == dtype
    for dtype in ("int8", "uint8", "uint32", "uint64"):
        assert mechanism.release(np.ones(3, dtype)).dtype == np.int64
    assert release_same_type(np.ones((4, 6))[::2, ::3]).shape == (2, 2)
    assert release_same_type(np.zeros((0, 3))).shape == (0, 3)
    with pytest.warns(UserWarning, match="published unchanged"):
        series = release_same_type(pd.Series([1.5, 2.5], index=["a", "b"], name="income"))
    assert series.name == "income"
    assert list(series.index) == ["a", "b"]
    assert release_same_type(pd.Series([1, 2])).dtype == np.int64
    column = release_same_type(pl.Series("income", [1.5, 2.5]))
    assert column.name == "income"
    assert release_same_type(pl.Series("count", [1, 2])).dtype == pl.Int64


def test_outputs_are_multiples_of_the_grid_and_never_minus_zero() -> None:
    mechanism = dpnoise.LaplaceMechanism(epsilon=1.0, sensitivity=1.0, grid=0.5)
    noise = mechanism.release(np.full(100_000, -0.1))
    assert np.all(noise * 2 == np.rint(noise * 2))
    assert np.any(noise == 0)
    assert not np.any(np.signbit(noise[noise == 0]))
    assert not any(
        math.copysign(1, x) < 0 for x in (mechanism.release(-0.0) for _ in range(100)) if x == 0
    )
    coarse = dpnoise.LaplaceMechanism(epsilon=1.0, sensitivity=16.0, grid=8.0)
    assert all(x % 8 == 0 for x in coarse.release(list(range(100))))
    assert np.all(coarse.release(np.arange(100)) % 8 == 0)


def test_float32_goes_through_float64() -> None:
    values = np.linspace(-5, 5, 1000).astype(np.float32)
    wide = laplace.release(values.astype(np.float64), rng=fixed_generator(KEY))
    narrow = laplace.release(values, rng=fixed_generator(KEY))
    np.testing.assert_array_equal(narrow, wide.astype(np.float32))


def test_results_saturate() -> None:
    huge = dpnoise.LaplaceMechanism(epsilon=1.0, sensitivity=2.0**959)
    biggest = sys.float_info.max
    released = huge.release(np.array([biggest, -biggest] * 50))
    assert np.all(np.isfinite(released))
    assert np.all(np.abs(released) > 0.9 * biggest)
    wide = dpnoise.LaplaceMechanism(epsilon=1.0, sensitivity=1e18)
    counts = wide.release(np.array([2**63 - 1, -(2**63)] * 50, dtype=np.int64))
    assert counts.max() == 2**63 - 1
    assert counts.min() == -(2**63)
    assert wide.release(np.full(20, 2**64 - 1, np.uint64)).max() == 2**63 - 1
    for dtype in ("float16", "float32"):
        most = np.finfo(dtype).max
        narrow = dpnoise.LaplaceMechanism(epsilon=1.0, sensitivity=float(most)).release(
            np.full(50, most)
        )
        assert narrow.max() == most
        assert np.all(np.isfinite(narrow))
    assert np.isfinite(
        dpnoise.LaplaceMechanism(epsilon=1.0, sensitivity=1e6).release(np.float16(60000))
    )


@pytest.mark.parametrize("value", [5.0, 5, np.full(500, 5.0), np.full(500, 5), [5, 2**70], [5.0]])
def test_output_is_clamped(value: Any) -> None:
    mechanism = dpnoise.LaplaceMechanism(epsilon=0.1, sensitivity=1.0, lower=2.5, upper=7.5)
    for _ in range(20):
        released = np.asarray(mechanism.release(value), dtype=float)
        assert released.min() >= 2.5
        assert released.max() <= 7.5
        if not isinstance(value, float) and np.asarray(value).dtype.kind != "f":
            assert set(np.unique(released)) <= {3.0, 4.0, 5.0, 6.0, 7.0}


def test_error_and_variance_match_the_releases() -> None:
    """An error of 3 % in the variance is more than 13 standard deviations of its estimate."""
    for mechanism in (
        laplace,
        gaussian,
        dpnoise.LaplaceMechanism(epsilon=0.5, sensitivity=1.0, grid=1.0),
    ):
        error = mechanism.release(np.full(alarms.SAMPLES, 0.25)) - 0.25
        assert abs(error.var() / mechanism.variance - 1) < 0.03
        for confidence in (0.5, 0.95, 0.999):
            inside = int(np.count_nonzero(np.abs(error) <= mechanism.error(confidence)))
            p_value = stats.binomtest(inside, error.size, confidence, "less").pvalue
            alarms.check_probability(p_value)
    assert laplace.error(0.95) == pytest.approx(math.log(20) + laplace.grid / 2)


def test_the_default_grid_is_the_smallest_power_of_two_from_scale_2_to_minus_20_on() -> None:
    for scale in (1.0, 1.5, 2.0, 3.7e-9, 1e200, math.nextafter(1.0, 2.0), math.nextafter(1.0, 0.0)):
        grid = dpnoise.LaplaceMechanism(epsilon=1.0, sensitivity=scale).grid
        assert math.frexp(grid)[0] == 0.5
        assert grid / 2 < scale * 2.0**-20 <= grid


# Calibration. -----------------------------------------------------------------------------------


def test_the_laplace_scale_is_the_quotient_rounded_up() -> None:
    rng = np.random.default_rng()
    for epsilon, sensitivity in 10 ** rng.uniform(-8, 8, (500, 2)):
        scale = calibration.laplace_scale(epsilon, sensitivity)
        assert Fraction(scale) * Fraction(epsilon) >= Fraction(sensitivity)
        below = math.nextafter(scale, 0.0)
        assert Fraction(below) * Fraction(epsilon) < Fraction(sensitivity)


def test_a_quotient_rounded_down_is_the_largest_float_that_is_not_above_it() -> None:
    rng = np.random.default_rng()
    for numerator, denominator in 10 ** rng.uniform(-8, 8, (500, 2)):
        quotient = calibration.quotient_down(numerator, denominator)
        assert Fraction(quotient) * Fraction(denominator) <= Fraction(numerator)
        above = math.nextafter(quotient, math.inf)
        assert Fraction(above) * Fraction(denominator) > Fraction(numerator)
    assert calibration.quotient_down(2.0**960, 2.0**-960) == sys.float_info.max


def mpmath_delta(scale: float, epsilon: float, sensitivity: float) -> mpmath.mpf:
    """Return delta by Balle and Wang's formula, with another library."""
    s, e, d = mpmath.mpf(scale), mpmath.mpf(epsilon), mpmath.mpf(sensitivity)
    near, far = d / (2 * s), e * s / d
    return mpmath.ncdf(near - far) - mpmath.exp(e) * mpmath.ncdf(-near - far)


@pytest.mark.parametrize("epsilon", [1e-3, 0.1, 1.0, 10.0, 100.0])
@pytest.mark.parametrize("delta", [1e-12, 1e-6, 0.1])
@pytest.mark.parametrize("sensitivity", [1e-5, 1.0, 7.3])
def test_the_gaussian_scale_is_the_smallest_that_keeps_the_guarantee(
    epsilon: float, delta: float, sensitivity: float
) -> None:
    scale = calibration.gaussian_scale(epsilon, delta, sensitivity)
    below = math.nextafter(scale, 0.0)
    with mpmath.workprec(500):
        assert mpmath_delta(scale, epsilon, sensitivity) <= delta
        assert mpmath_delta(below, epsilon, sensitivity) > delta
    assert calibration.gaussian_delta_ball(scale, epsilon, sensitivity, bits=500) <= arb(delta)


def test_the_gaussian_scale_for_rho() -> None:
    for rho in (1e-6, 0.1, 0.5, 3.0):
        scale = Fraction(calibration.gaussian_scale_for_rho(rho, 1.7))
        below = Fraction(math.nextafter(float(scale), 0.0))
        assert scale**2 * 2 * Fraction(rho) >= Fraction(1.7) ** 2 > below**2 * 2 * Fraction(rho)
    mechanism = dpnoise.GaussianMechanism.for_rho(0.5, sensitivity=3.0)
    assert mechanism.scale == 3.0


def test_events_compose_with_dp_accounting() -> None:
    accountant = dp_accounting.pld.PLDAccountant()
    accountant.compose(laplace.dp_event(), 2)
    assert accountant.get_epsilon(1e-12) == pytest.approx(2.0, rel=1e-3)
    accountant = dp_accounting.pld.PLDAccountant()
    accountant.compose(gaussian.dp_event())
    assert accountant.get_epsilon(1e-6) == pytest.approx(1.0, rel=1e-3)
    awkward = dpnoise.LaplaceMechanism(epsilon=0.3, sensitivity=0.7)
    multiplier = awkward.dp_event().noise_multiplier
    assert Fraction(multiplier) * Fraction(0.7) <= Fraction(awkward.scale)


# Bad input. -------------------------------------------------------------------------------------

BAD: list[tuple[Callable[[], object], type[Exception], str]] = [
    (
        lambda: dpnoise.LaplaceMechanism(epsilon=0.0, sensitivity=1.0),
        ValueError,
        r"epsilon must be greater than 0, got 0\.0",
    ),
    (
        lambda: dpnoise.LaplaceMechanism(epsilon=-1, sensitivity=1.0),
        ValueError,
        r"epsilon must be greater than 0, got -1\.0",
    ),
    (
        lambda: dpnoise.LaplaceMechanism(epsilon=math.nan, sensitivity=1.0),
        ValueError,
        "epsilon must be fin",
    ),
    (
        lambda: dpnoise.LaplaceMechanism(epsilon=1.0, sensitivity=math.inf),
        ValueError,
        "sensitivity must be",
    ),
    (
        lambda: dpnoise.LaplaceMechanism(epsilon=cast("Any", "1"), sensitivity=1.0),
        TypeError,
        "epsilon must be a number",
    ),
    (
        lambda: dpnoise.LaplaceMechanism(epsilon=1, sensitivity=2**53 + 1),
        ValueError,
        "be exactly a float",
    ),
    (
        lambda: dpnoise.LaplaceMechanism(epsilon=1, sensitivity=Fraction(1, 3)),  # type: ignore[arg-type]
        ValueError,
        "be exactly a float",
    ),
    (
        lambda: dpnoise.LaplaceMechanism(epsilon=1, sensitivity=10**400),
        ValueError,
        "sensitivity must be",
    ),
    (
        lambda: dpnoise.NoisyMax(epsilon=1.0, sensitivity=8e307),
        ValueError,
        r"between 2\^-960 and 2\^960",
    ),
    (
        lambda: dpnoise.NoisyMax(epsilon=1.0, sensitivity=5e-324),
        ValueError,
        r"between 2\^-960 and 2\^960",
    ),
    (
        lambda: dpnoise.LaplaceMechanism(epsilon=1e-300, sensitivity=1e300),
        ValueError,
        "No finite scale reaches",
    ),
    (
        lambda: dpnoise.LaplaceMechanism(epsilon=1, sensitivity=1, grid=0.3),
        ValueError,
        r"grid must be a power of tw",
    ),
    (
        lambda: dpnoise.LaplaceMechanism(epsilon=1, sensitivity=1, grid=-2.0),
        ValueError,
        r"grid must be greater than 0, got -2\.0",
    ),
    (
        lambda: dpnoise.LaplaceMechanism(epsilon=1, sensitivity=1, grid=2.0**61),
        ValueError,
        r"between 2\^-50 and 2\^60",
    ),
    (
        lambda: dpnoise.LaplaceMechanism(epsilon=1, sensitivity=1, lower=5, upper=2),
        ValueError,
        "lower must be below upper=2, got 5",
    ),
    (
        lambda: dpnoise.LaplaceMechanism(epsilon=1, sensitivity=1, lower=math.nan),
        ValueError,
        "lower must be finite",
    ),
    (
        lambda: dpnoise.GaussianMechanism(epsilon=1.0, delta=0.0, sensitivity=1.0),
        ValueError,
        r"delta must be greater than 0, got 0\.0",
    ),
    (
        lambda: dpnoise.GaussianMechanism(epsilon=1.0, delta=1.0, sensitivity=1.0),
        ValueError,
        r"delta must be between 0 and 1",
    ),
    (lambda: laplace.error(1.5), ValueError, r"confidence must be between 0 and 1"),
    (
        lambda: dpnoise.NoisyMax(epsilon=1.0, sensitivity=-1.0),
        ValueError,
        r"sensitivity must be greater than 0, got -1\.0",
    ),
    (
        lambda: dpnoise.NoisyMax(epsilon=1.0, sensitivity=1.0).select([]),
        ValueError,
        "one or more numbers",
    ),
    (
        lambda: dpnoise.NoisyMax(epsilon=1.0, sensitivity=1.0).select([[1.0]]),
        ValueError,
        "one or more numbers",
    ),
    (
        lambda: dpnoise.NoisyMax(epsilon=1.0, sensitivity=1.0).select(["a"]),
        TypeError,
        "must be integers, or floats .* got a str",
    ),
    (
        lambda: dpnoise.NoisyMax(epsilon=1.0, sensitivity=1.0).select([1.0, math.nan]),
        ValueError,
        "1 NaN or infinite",
    ),
    (
        lambda: dpnoise.NoisyMax(epsilon=1.0, sensitivity=1.0).select([1.0, 2.0], candidates=["a"]),
        ValueError,
        "one candidate for each of the 2 scores, got 1",
    ),
]


@pytest.mark.parametrize(("call", "error", "message"), BAD, ids=[row[2] for row in BAD])
def test_bad_arguments_are_named(
    call: Callable[[], object], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        call()


@pytest.mark.parametrize(
    "value",
    [
        math.nan,
        -math.inf,
        np.array([1.0, math.nan, math.inf]),
        [1.0, math.inf],
        "secret",
        None,
        {1: 2},
        np.array(["secret"]),
        np.array([True]),
        [1 + 2j],
        Fraction(1, 3),
        Decimal("0.5"),
        [Fraction(1, 2)],
        [Decimal("0.99"), Decimal("1.75")],
        [0.999, 2**64],
        [2**54 + 3, 0.5],
        ["12 secret street", 1],
        np.array([0.999], dtype=object),
        np.array(["secret", 1], dtype=object),
        np.array([1.0], dtype=np.longdouble),
        np.longdouble(1.0),
        np.ma.array([5, 7, 9], mask=[False, True, False]),
        np.ma.array([5.0, 7.0], mask=[False, True]),
        pd.Series([Decimal("0.99")]),
        pl.Series([Decimal("0.99"), Decimal("1.75")]),
        pl.Series(["secret"]),
    ],
    ids=str,
)
def test_bad_values_raise_before_noise_is_drawn_and_are_not_shown(value: Any) -> None:
    for mechanism in (laplace, gaussian):
        with pytest.raises((ValueError, TypeError), match=r"must|not supported") as caught:
            mechanism.release(value, rng=FailingGenerator())
        assert "secret" not in str(caught.value)


def test_another_generator_is_refused() -> None:
    """The error is true of a generator with secure bits, too."""
    secure: Any = np.random.Generator(SecureBitGenerator())
    insecure: Any = np.random.default_rng()
    calls: list[Callable[[], object]] = [
        lambda: laplace.release(1.0, rng=secure),
        lambda: laplace.release(1.0, rng=insecure),
        lambda: laplace.release(np.ones(3), rng=insecure),
        lambda: dpnoise.NoisyMax(epsilon=1.0, sensitivity=1.0).select([1.0, 2.0], rng=insecure),
    ]
    for call in calls:
        with pytest.raises(TypeError, match=r"got numpy\.random\.Generator\. Only a dpnoise\.Gen"):
            call()


def test_bounds_without_an_integer_between_them_are_refused_for_integers() -> None:
    narrow = dpnoise.LaplaceMechanism(epsilon=1.0, sensitivity=1.0, lower=0.2, upper=0.8)
    assert 0.2 <= narrow.release(0.5) <= 0.8
    with pytest.raises(ValueError, match="leave an integer below upper"):
        narrow.release(1)


def test_a_missing_extra_names_the_line_that_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "dp_accounting", None)
    with pytest.raises(ImportError, match=r'dp-accounting, or .* pip install "\.\[accounting\]"'):
        laplace.dp_event()
