"""Unusual inputs are released exactly, or refused before noise is drawn."""

import math
import struct
import warnings
from collections import UserList, namedtuple
from collections.abc import Callable, Iterator
from decimal import Decimal
from enum import IntEnum
from fractions import Fraction
from typing import Any, Self

import numpy as np
import pandas as pd
import polars as pl
import pytest
from support.alarms import LONG
from support.silence import FailingGenerator

import dpnoise
from dpnoise import statistics
from dpnoise.core import arrays, errors
from dpnoise.kernels import first_stage, second_stage
from dpnoise.testing import fixed_generator

KEY = bytes(range(32))
laplace = dpnoise.LaplaceMechanism(epsilon=1.0, sensitivity=1.0)
gaussian = dpnoise.GaussianMechanism(epsilon=1.0, delta=1e-6, sensitivity=1.0)
WIDE = dpnoise.LaplaceMechanism(epsilon=1.0, sensitivity=1e18)


def release(value: Any, mechanism: Any = laplace) -> Any:
    """Release with the same noise each time."""
    return mechanism.release(value, rng=fixed_generator(KEY))


# Integers: the result depends only on their type. -------------------------------------------------

SIZES = [5, 2**62 + 513, 2**63 - 1, 2**63, 2**64 - 1, 2**64, 10**40, -(2**63), -(2**63) - 1]


@pytest.mark.parametrize("value", SIZES)
@pytest.mark.parametrize("kind", [list, tuple])
def test_integers_of_a_list_have_no_size_limit(kind: Any, value: int) -> None:
    """The noise, of scale 10^18, is the same for all sizes, so only the values differ."""
    grid = int(max(1.0, WIDE.grid))
    for offset in (0, grid):
        difference = (
            release(kind([value + offset, 7]), WIDE)[0] - release(kind([value, 7]), WIDE)[0]
        )
        assert difference == offset


@pytest.mark.parametrize("make", [np.array, pd.Series], ids=["array", "Series"])
@pytest.mark.parametrize("value", SIZES)
def test_integers_of_an_array_or_a_series_are_int64_and_saturate(make: Any, value: int) -> None:
    """NumPy and pandas choose int64, uint64 or object by the value; the release does not."""
    released = release(make([value]), WIDE)
    assert released.dtype == np.int64
    expected = release([value], WIDE)[0]
    assert int(released[0]) == min(max(expected, -(2**63)), 2**63 - 1)


def test_polars_integers_saturate_likewise() -> None:
    for dtype in (pl.Int8, pl.UInt32, pl.Int64, pl.UInt64):
        released = release(pl.Series("n", [100], dtype=dtype), WIDE)
        assert released.dtype == pl.Int64
        assert released[0] == release([100], WIDE)[0]
    if hasattr(pl, "Int128"):  # Since Polars 1.18; NumPy has no such integers.
        with pytest.raises(TypeError, match="A Series must hold integers or floats, got Int128"):
            laplace.release(pl.Series("n", [2**100], dtype=pl.Int128), rng=FailingGenerator())


@pytest.mark.parametrize("dtype", ["i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8"])
def test_the_order_of_bytes_does_not_matter_to_integers(dtype: str) -> None:
    limits = np.iinfo(dtype)
    values = np.array([limits.min, 0, 1, limits.max], dtype=dtype)
    for order in "<>":
        np.testing.assert_array_equal(release(values.astype(order + dtype)), release(values))


@pytest.mark.parametrize("dtype", ["f2", "f4", "f8"])
def test_the_order_of_bytes_does_not_matter_to_floats(dtype: str) -> None:
    values = np.array([-1.5, 0.0, 1000.25], dtype=dtype)
    for order in "<>":
        np.testing.assert_array_equal(release(values.astype(order + dtype)), release(values))


class NamedInteger(IntEnum):
    """An integer with a name, which is an int."""

    RED = 3


def test_lists_are_looked_into() -> None:
    assert release([np.uint64(2**63), -5]) == release([2**63, -5])
    assert release([np.array([2**63], np.uint64), np.array([-5])]) == release([[2**63], [-5]])
    assert release([np.array(5), 6]) == release([5, 6])
    assert release([np.int8(5), 6, NamedInteger.RED]) == release([5, 6, 3])
    assert release([[1, 2], (3, 4)]) == release([[1, 2], [3, 4]])
    assert release([np.float32(0.1), 2]) == release([float(np.float32(0.1)), 2.0])
    assert release([np.array([0.5], np.float16), [2]]) == release([[0.5], [2.0]])
    assert release([[], []]) == [[], []]


Pair = namedtuple("Pair", "first second")  # noqa: PYI024 - the old kind is the hostile one


class Row(tuple[Any, ...]):
    """A tuple with another constructor."""

    __slots__ = ()

    def __new__(cls, first: Any, second: Any) -> Self:
        """Take two numbers."""
        return super().__new__(cls, (first, second))


def test_a_named_tuple_keeps_its_names() -> None:
    released = release(Pair(1, 2))
    assert isinstance(released, Pair)
    assert tuple(released) == release((1, 2))
    assert release(Row(1, 2)) == release((1, 2))
    assert type(release(UserList([1, 2]).data)) is list


CYCLIC: list[Any] = [1]
CYCLIC.append(CYCLIC)
DEEP: Any = 1
for _ in range(5000):
    DEEP = [DEEP]

REFUSED = [
    DEEP,
    [0.5, np.int64(2**62 + 513)],
    [0.5, 2**62 + 513],
    [np.float32(0.5), 2**54 + 1],
    [[0.5], [np.uint64(2**64 - 1)]],
    [np.array([0.5]), np.array([2**62 + 513])],
    [np.array([1], np.uint64), np.array([-0.5]), np.array([2**63], np.uint64)],
    [np.longdouble(1.0)],
    [np.array([1.0], np.longdouble)],
    [np.ma.array([1, 2], mask=[False, True])],
    [1, np.ma.masked],
    [1, None],
    [True, 2],
    [np.True_],
    [[1, 2], [3]],
    [[1, 2], 3],
    CYCLIC,
    [1, "2"],
    [1, Decimal(2)],
    [1.0, Fraction(1, 2)],
    [pd.Series([1, 2])],
    [np.zeros((1,) * 60)],
    np.timedelta64(5, "s"),
    [np.timedelta64(5, "s")],
    np.array([np.timedelta64(5, "s")], dtype=object),
    np.array(["1"], dtype=np.dtypes.StringDType()),
    pl.Series([{"a": 2**62 + 513, "b": 0.5}]),
    pl.Series([{"a": 1, "b": 2}]),
    [np.array(["secret"])],
    [np.datetime64(5, "s")],
    True,
    np.True_,
    np.array([1, None], dtype=object),
    np.array([True, 5], dtype=object),
    np.ma.array([1.0, 2.0], mask=[False, True]),
    np.array([1], dtype="m8[s]"),
    np.array([(1, 2.0)], dtype="i4,f8"),
    np.array([1j]),
    pd.Series([1, None], dtype="Int64"),
    pd.Series([True]),
    pl.Series([1, None]),
    UserList([1, 2]),
    range(3),
    {1, 2},
    memoryview(b"ab"),
]


@pytest.mark.parametrize(
    "value",
    REFUSED,
    ids=lambda v: f"{type(v).__name__}: {errors.short_repr(v)}"[:60].split(" at ")[0],
)
def test_values_that_need_rounding_or_guessing_are_refused_before_noise_is_drawn(
    value: Any,
) -> None:
    with pytest.raises((ValueError, TypeError), match=r"must|not supported"):
        laplace.release(value, rng=FailingGenerator())


def test_candidates_are_taken_by_place_and_refused_where_they_have_none() -> None:
    mechanism = dpnoise.NoisyMax(epsilon=1.0, sensitivity=1e-9)
    scores = [0, 0, 1]
    labelled = pd.Series(["a", "b", "c"], index=[2, 0, 1])
    ordered: list[Any] = [labelled, iter("abc"), np.array(["a", "b", "c"]), ("a", "b", "c")]
    for candidates in ordered:
        assert mechanism.select(scores, candidates=candidates, rng=None) == "c"
    without_order: list[Any] = [{"a", "b", "c"}, {"a": 1, "b": 2, "c": 3}, 7]
    for unordered in without_order:
        with pytest.raises(TypeError, match="candidates must be a list, in the order"):
            mechanism.select(scores, candidates=unordered, rng=FailingGenerator())


# Shapes and memory. -------------------------------------------------------------------------------


class OddSubclass(np.ndarray[Any, Any]):
    """A subclass with another meaning of an index."""

    def __getitem__(self, index: Any) -> Any:
        return np.zeros(1)

    def reshape(self, *_: Any, **__: Any) -> Any:
        """Return the array with its shape."""
        return self


def matrix(values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return a copy as a matrix, which always has two dimensions."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PendingDeprecationWarning)
        return np.matrix(values, copy=True)


def unusual_arrays(values: np.ndarray[Any, Any]) -> dict[str, np.ndarray[Any, Any]]:
    """Return the same 6 numbers, in 2 rows, in arrays of unusual kinds."""
    unaligned = np.zeros(values.nbytes + 1, np.int8)[1:].view(values.dtype).reshape(values.shape)
    unaligned[...] = values
    wide = np.zeros((4, 9), values.dtype)
    wide[::2, ::3] = values
    return {
        "matrix": matrix(values),
        "subclass": values.copy().view(OddSubclass),
        "not aligned": unaligned,
        "strided": wide[::2, ::3],
        "backwards": values[::-1, ::-1].copy()[::-1, ::-1],
        "Fortran": np.asfortranarray(values),
        "read-only": np.frombuffer(values.tobytes(), values.dtype).reshape(values.shape),
    }


@pytest.mark.parametrize("dtype", ["f2", "f4", "f8", "i1", "u8", "i8", "O"])
def test_arrays_of_every_kind_release_their_numbers(dtype: str) -> None:
    values = np.array([[1, 2, 3], [4, 5, 6]], dtype=dtype)
    kinds = unusual_arrays(values) if dtype != "O" else {"matrix": matrix(values)}
    for mechanism in (laplace, gaussian):
        expected = release(values, mechanism)
        for name, array in kinds.items():
            released = release(array, mechanism)
            assert type(released) is np.ndarray, name
            np.testing.assert_array_equal(released, expected, err_msg=name)


@pytest.mark.parametrize("dtype", [np.float64, np.int64])
@pytest.mark.parametrize("mechanism", [laplace, gaussian])
def test_a_read_only_array_compiles_nothing_again(mechanism: Any, dtype: type) -> None:
    """Arrays of pandas are read-only, which is another type for Numba."""
    kernels = [
        kernel
        for module in (first_stage, second_stage)
        for kernel in vars(module).values()
        if hasattr(kernel, "overloads")
    ]
    values: Any = np.arange(5).astype(dtype)
    expected = release(values, mechanism)
    overload_counts = [len(kernel.overloads) for kernel in kernels]
    values.flags.writeable = False
    np.testing.assert_array_equal(release(values, mechanism), expected)
    assert sum(overload_counts) > 0
    assert overload_counts == [len(kernel.overloads) for kernel in kernels]


@pytest.mark.parametrize("dtype", ["f2", "f4", "f8", "i8", "u8", "O"])
def test_an_array_without_dimensions_stays_one(dtype: str) -> None:
    released = release(np.array(5, dtype=dtype))
    assert released.shape == ()
    assert isinstance(released, np.ndarray)


@pytest.mark.parametrize("dtype", ["f2", "f4", "f8"])
def test_out_of_every_kind_is_filled_inside_its_memory_only(dtype: str) -> None:
    expected = fixed_generator(KEY).laplace(size=(2, 3), dtype=dtype)
    for name, out in unusual_arrays(np.zeros((2, 3), dtype)).items():
        if name == "read-only":
            continue
        around = out.base if isinstance(out.base, np.ndarray) else out
        assert fixed_generator(KEY).laplace(out=out) is out
        np.testing.assert_array_equal(np.asarray(out), expected, err_msg=name)
        assert np.count_nonzero(np.asarray(around).view(dtype) if around.dtype == dtype else 1) <= 6
    big = matrix(np.zeros((1000, 1)))
    dpnoise.Generator(threads=2).laplace(out=big)
    assert np.count_nonzero(big) == 1000


def test_an_out_that_overlaps_itself_or_has_a_mask_is_refused() -> None:
    base = np.zeros(10)
    overlapping = [
        np.lib.stride_tricks.as_strided(base, shape=(5, 5), strides=(8, 8)),
        np.lib.stride_tricks.as_strided(base, shape=(5,), strides=(0,)),
        np.lib.stride_tricks.as_strided(base, shape=(5,), strides=(4,)),
        np.lib.stride_tricks.as_strided(base[9:], shape=(3, 4), strides=(-16, -8)),
    ]
    for out in overlapping:
        with pytest.raises(ValueError, match="not have two elements that share memory"):
            FailingGenerator().laplace(out=out)
    with pytest.raises(TypeError, match="out must not be a masked array"):
        FailingGenerator().laplace(out=np.ma.zeros(3))
    for fine in (
        base[::-1],
        base[:0],
        np.zeros((3, 0)),
        np.zeros((1, 5))[::1],
        base.reshape(5, 2).T,
    ):
        dpnoise.Generator().laplace(out=fine)


def test_scale_and_out_may_share_memory() -> None:
    scales = np.linspace(1.0, 1e6, 30_000)
    expected = fixed_generator(KEY).laplace(scale=scales)
    for rows in (scales.copy(), np.stack([scales, scales], axis=1)):
        column = rows if rows.ndim == 1 else rows[:, 0]
        np.testing.assert_array_equal(
            fixed_generator(KEY).laplace(scale=column, out=column), expected
        )
    frame = np.concatenate([[1.0], scales])
    fixed_generator(KEY).laplace(scale=frame[1:], out=frame[:-1])
    np.testing.assert_array_equal(frame[:-1], expected)


BAD_SCALES = [
    "2.0",
    ["2.0"],
    np.array(["2.0"]),
    np.datetime64(5, "s"),
    np.array([5], "m8[s]"),
    np.ma.array([1.0, 2.0], mask=[False, True]),
    np.ma.masked,
    True,
    np.array([True]),
    [True],
    1j,
    np.array([1j]),
    [2**62 + 513, 0.5],
    np.array([2**62 + 513]),
    np.array([1.0], np.longdouble),
    [Fraction(1, 3)],
    10**400,
    10**5000,
    [10**400],
    None,
    [[1.0], [1.0, 2.0]],
    np.timedelta64(5, "s"),
    [np.timedelta64(5, "s")],
]


@pytest.mark.parametrize("scale", BAD_SCALES, ids=lambda v: f"{type(v).__name__}"[:40])
def test_a_scale_that_is_not_a_number_is_refused(scale: Any) -> None:
    for method in ("laplace", "normal", "exponential", "gumbel", "cauchy"):
        with pytest.raises((ValueError, TypeError), match=r"must|not supported"):
            getattr(FailingGenerator(), method)(scale=scale)
        with pytest.raises((ValueError, TypeError), match=r"must|not supported"):
            getattr(FailingGenerator(), method)(scale=scale, out=np.zeros(2))


def test_a_scale_of_any_order_of_bytes_and_any_layout_is_taken() -> None:
    scales = np.array([[1, 2, 3], [4, 5, 6]], dtype="f8")
    expected = fixed_generator(KEY).laplace(scale=scales)
    for name, array in unusual_arrays(scales).items():
        np.testing.assert_array_equal(
            fixed_generator(KEY).laplace(scale=array), expected, err_msg=name
        )
    for dtype in (">f8", ">i4", "u1", "f2", "O"):
        np.testing.assert_array_equal(
            fixed_generator(KEY).laplace(scale=scales.astype("i8").astype(dtype)), expected
        )


# Clamping. ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["f2", "f4", "f8"])
@pytest.mark.parametrize("bounds", [(0.1, 0.3), (-0.3, -0.1), (0.1, 0.7), (1e-30, 1 / 3), (0, 1)])
def test_no_release_leaves_the_bounds_in_any_format(dtype: str, bounds: tuple[Any, Any]) -> None:
    """The bounds are not numbers of the narrow formats; their nearest ones are outside."""
    lower, upper = bounds
    for mechanism in (
        dpnoise.LaplaceMechanism(epsilon=0.1, sensitivity=1.0, lower=lower, upper=upper),
        dpnoise.GaussianMechanism.for_scale(9.0, sensitivity=1.0, lower=lower, upper=upper),
    ):
        released = mechanism.release(np.full(200, 0.2, dtype)).tolist()
        assert min(map(Fraction, released)) >= Fraction(lower)
        assert max(map(Fraction, released)) <= Fraction(upper)
        assert len(set(released)) > 1
        single = mechanism.release(np.dtype(dtype).type(0.2))
        assert Fraction(lower) <= Fraction(float(single)) <= Fraction(upper)


def test_a_bound_is_rounded_inward_for_floats_and_exact_for_integers() -> None:
    mechanism = dpnoise.LaplaceMechanism(
        epsilon=1e-3, sensitivity=1.0, upper=2**60 + 1, lower=-(2**60) - 1
    )
    assert max(mechanism.release([2**70] * 5)) == 2**60 + 1
    assert mechanism.release(np.full(5, 2**62)).max() == 2**60 + 1
    assert mechanism.release(1e300) == 2.0**60
    assert mechanism.release(-1e300) == -(2.0**60)
    beyond_float32 = dpnoise.LaplaceMechanism(
        epsilon=1.0, sensitivity=1.0, lower=1e300, upper=2e300
    )
    with pytest.raises(ValueError, match="leave a float32 up to upper"):
        beyond_float32.release(np.float32(1.0), rng=FailingGenerator())


@pytest.mark.parametrize("zero", [0, 0.0, -0.0])
@pytest.mark.parametrize("dtype", ["f2", "f4", "f8"])
def test_no_release_is_minus_zero(zero: float, dtype: str) -> None:
    """By clamping at 0, and by rounding a small negative number to a narrow format."""
    clamped = dpnoise.LaplaceMechanism(epsilon=1.0, sensitivity=1.0, lower=zero).release(
        np.full(100, -9.0, dtype)
    )
    assert np.any(clamped == 0.0)
    assert not np.any(np.signbit(clamped))
    assert (
        math.copysign(
            1.0, dpnoise.LaplaceMechanism(epsilon=1, sensitivity=1, lower=zero).release(-99.0)
        )
        == 1.0
    )
    assert (
        math.copysign(
            1.0, dpnoise.LaplaceMechanism(epsilon=1, sensitivity=1, upper=zero).release(99.0)
        )
        == 1.0
    )
    tiny = dpnoise.LaplaceMechanism(epsilon=1.0, sensitivity=2.0**-200).release(
        np.full(100, 0.0, dtype)
    )
    assert not np.any(np.signbit(tiny[tiny == 0.0]))


BAD_BOUNDS = [10**400, -(10**400), 10**5000, Decimal(1), Fraction(1, 2), "1", True, 1j, math.inf]


@pytest.mark.parametrize("bound", BAD_BOUNDS, ids=lambda v: f"{type(v).__name__}")
@pytest.mark.parametrize("name", ["lower", "upper"])
def test_a_bound_that_is_not_a_number_is_refused_immediately(name: str, bound: Any) -> None:
    makers: list[Callable[..., object]] = [
        lambda **b: dpnoise.LaplaceMechanism(epsilon=1.0, sensitivity=1.0, **b),
        lambda **b: dpnoise.GaussianMechanism.for_scale(1.0, sensitivity=1.0, **b),
        lambda **b: statistics.sum(
            [1.0], epsilon=1.0, rng=FailingGenerator(), **{"lower": 0, "upper": 9, **b}
        ),
        lambda **b: statistics.median(
            [1.0], epsilon=1, rng=FailingGenerator(), **{"lower": 0, "upper": 9, **b}
        ),
    ]
    for make in makers:
        with pytest.raises((ValueError, TypeError), match=f"{name} must "):
            make(**{name: bound})


# Floating-point settings. -------------------------------------------------------------------------

SIGNALLING: dict[str, Any] = {
    "f2": np.array([0x7C01, 0x3C00], np.uint16).view(np.float16),
    "f4": np.array([0x7F800001, 0x3F800000], np.uint32).view(np.float32),
    "f8": np.array([0x7FF0000000000001, 0x3FF0000000000000], np.uint64).view(np.float64),
}


@pytest.mark.parametrize("dtype", SIGNALLING)
def test_a_signalling_nan_is_an_argument_error(dtype: str) -> None:
    """ARM reports its conversion, which becomes a warning of NumPy, and here an error."""
    bad = SIGNALLING[dtype]
    values: list[Any] = [bad, bad[0], bad[:1].reshape(()), [bad[0], 1.0], list(bad), [bad]]
    with warnings.catch_warnings(), np.errstate(all="raise"):
        warnings.simplefilter("error")
        for value in values:
            with pytest.raises(dpnoise.ArgumentError, match="finite"):
                laplace.release(value, rng=FailingGenerator())
        with pytest.raises(dpnoise.ArgumentError, match="finite"):
            dpnoise.NoisyMax(epsilon=1.0, sensitivity=1.0).select(bad, rng=FailingGenerator())
        with pytest.raises(dpnoise.ArgumentError, match="finite"):
            FailingGenerator().laplace(scale=bad)
        with pytest.raises(dpnoise.ArgumentError, match="Every row must have a number"):
            statistics.count(bad, epsilon=1.0, rng=FailingGenerator())


def test_the_user_s_settings_for_errors_do_not_stop_a_draw() -> None:
    """An error in the middle of a draw would discard noise that was drawn."""
    with warnings.catch_warnings(), np.errstate(all="raise"):
        warnings.simplefilter("error")
        for threads in (1, 2):
            rng = dpnoise.Generator(threads=threads)
            wide = rng.laplace(scale=1e300, size=200_000, dtype="float16")
            assert np.all(np.isinf(wide[wide != 0.0]))  # Noise of 0, one in 2^40, stays 0.
            assert np.count_nonzero(wide) > 199_000
            rng.laplace(scale=np.full(200_000, 1e308))
            rng.normal(scale=1e-320, size=10)
        assert np.isinf(rng.laplace(scale=1e300, dtype="float32"))
        for dtype in ("f2", "f4", "f8"):
            dpnoise.LaplaceMechanism(epsilon=1.0, sensitivity=2.0**-160).release(
                np.zeros(100, dtype)
            )
            dpnoise.LaplaceMechanism(epsilon=1.0, sensitivity=2.0**200).release(
                np.zeros(100, dtype)
            )


def test_every_number_of_float16_and_many_of_float32_are_read_and_written_exactly() -> None:
    """Compared with Python's struct, which has both formats."""
    all_float16 = np.arange(2**16, dtype=np.uint16).view(np.float16)
    random_bits = np.random.default_rng().integers(0, 2**32, 10**5, dtype=np.uint32)
    ends = np.array([0, 1, 0x7FFFFF, 0x800000, 0x7F7FFFFF, 0x7F800000], np.uint32)
    floats = np.concatenate([random_bits, ends, ends | np.uint32(2**31)]).view(np.float32)
    for array in (all_float16, floats):
        letter = {2: "e", 4: "f"}[array.itemsize]
        expected = np.array(struct.unpack(f"<{array.size}{letter}", array.tobytes()))
        np.testing.assert_array_equal(arrays.to_float64(array), expected)
        finite = expected[np.isfinite(expected)]
        written = arrays.round_to_dtype(finite, array.dtype)
        np.testing.assert_array_equal(written, array[np.isfinite(expected)])
        midpoints = finite[:-1] / 2 + finite[1:] / 2
        with np.errstate(all="ignore"):
            np.testing.assert_array_equal(
                arrays.round_to_dtype(midpoints, array.dtype), midpoints.astype(array.dtype)
            )


def test_no_distribution_gives_nan_for_any_parameters() -> None:
    extremes = [5e-324, 1e-310, 2.3e-308, 1e-160, 1e-20, 1.0, 1e20, 1e160, 1.7e308]
    rng = dpnoise.Generator()
    for extreme in extremes:
        draws = [rng.gamma(extreme, size=300), rng.chisquare(extreme, size=300)]
        draws += [
            getattr(rng, method)(scale=extreme, size=300)
            for method in ("laplace", "normal", "exponential", "gumbel", "cauchy")
        ]
        draws.append(rng.laplace(scale=extreme, size=300, form="gammas", variates=6))
        draws.append(rng.sample(dpnoise.Laplace(extreme).share(10**6), size=300))
        for draw in draws:
            assert not np.any(np.isnan(draw)), extreme


# Statistics. --------------------------------------------------------------------------------------

MASKED = np.ma.array([1.0, 5.0, 9.0], mask=[False, True, False])


@pytest.mark.parametrize(
    "column",
    [
        MASKED,
        MASKED.astype(np.int64),
        MASKED.astype(np.float32),
        iter([MASKED[:2], MASKED[2:]]),
        [1.0, np.ma.masked, 9.0],
        pd.Series([1, None, 9], dtype="Int64"),
        pd.Series([1.0, None, 9.0], dtype="Float64"),
        pd.Series([1.0, math.nan, 9.0]),
        pl.Series([1, None, 9]),
    ],
    ids=lambda column: type(column).__name__,
)
def test_masked_and_null_values_are_missing(column: Any) -> None:
    column = list(column) if isinstance(column, Iterator) else [column]
    with pytest.raises(dpnoise.ArgumentError, match="Every row must have a number"):
        statistics.count(iter(column), epsilon=1.0, rng=FailingGenerator())
    assert statistics.count(iter(column), epsilon=1e6, missing="drop").value == 2
    total = statistics.sum(iter(column), lower=0, upper=10, epsilon=1e6, missing="drop")
    assert total.value == pytest.approx(10.0, abs=1e-3)
    assert statistics.exact_sum(iter(column), lower=0, upper=10) == 10


def test_one_row_moves_an_exact_sum_by_its_sensitivity_at_all_sizes_of_bounds() -> None:
    rows = [math.inf, -math.inf, math.nan, 0.0, 5e-324, -5e-324, 2.0**-1000, 1e308, -1.0, 1.0]
    accepted, refused, step = 0, 0, 13 if LONG else 39
    for power in range(-1074, 1024, step):
        for lower, upper in ((0.0, 1.0), (-1.0, 1.0), (-1.0, 0.0), (0.25, 0.75)):
            low, high = math.ldexp(lower, power), math.ldexp(upper, power)
            if low >= high:
                continue
            try:
                before = statistics.exact_sum([], low, high)
            except dpnoise.ArgumentError as error:
                assert "2^960" in str(error)  # noqa: PT017 - some are accepted
                refused += 1
                continue
            accepted += 1
            for row in rows:
                difference = abs(statistics.exact_sum([row], low, high) - before)
                assert difference <= max(abs(Fraction(low)), abs(Fraction(high))), (low, high, row)
    assert accepted > 6_500 // step
    assert refused > 260 // step


def test_edges_are_taken_exactly_or_refused() -> None:
    refused: list[Any] = [["1", "2"], [0, 2**62 + 513, 1e19], MASKED, [True, 2], [1j, 2j]]
    for edges in refused:
        with pytest.raises((ValueError, TypeError), match=r"must|not supported"):
            statistics.histogram([1.0], edges=edges, epsilon=1.0, rng=FailingGenerator())
    accepted: Any = np.array([0, 2], ">i4")
    histogram = statistics.histogram([1.0, 2.0], edges=accepted, epsilon=1e6)
    assert histogram.value == [2]


def test_an_error_about_a_series_does_not_show_its_categories() -> None:
    """The type of an Enum contains them, and they may be secret."""
    series = pl.Series(["secret"], dtype=pl.Enum(["secret", "other"]))
    with pytest.raises(TypeError, match=r"got Enum\.$"):
        dpnoise.LaplaceMechanism(epsilon=1.0, sensitivity=1.0).release(series)
