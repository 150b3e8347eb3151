"""Exact release: every result equals the reference to the last bit, and has the ideal law."""

import io
import math
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import redirect_stdout
from fractions import Fraction
from itertools import product
from typing import Any

import numba
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from support import alarms
from support.registers import MODES, needs_known_registers, rounding_mode, subnormals_flushed

import dpnoise
from dpnoise.core import reference
from dpnoise.core.entropy import Key
from dpnoise.core.errors import RoundingModeError
from dpnoise.kernels import first_stage
from dpnoise.release import exact
from dpnoise.release.exact import ADDITIVE, FORMS
from dpnoise.testing import fixed_generator


class WithoutPairs(dpnoise.GaussianMechanism):
    """Releases the numbers of an array with the form for one number."""

    _form = exact.GAUSSIAN_2


def mechanism(form: str, scale: float, **options: Any) -> Any:
    """Return the mechanism that releases arrays with this form and scale."""
    if form == "laplace_1":
        return dpnoise.LaplaceMechanism(epsilon=1.0, sensitivity=scale, **options)
    kind = WithoutPairs if form == "gaussian_2" else dpnoise.GaussianMechanism
    return kind.for_scale(scale, sensitivity=1.0, **options)


def reference_cells(
    form: str, secret: bytes, values: list[Any], scale: float, grid: float
) -> list[int]:
    """Return all cells of a bulk call from the key, computed only by the reference."""
    n, width = FORMS[form].variates, FORMS[form].width
    key = Key(secret)
    words = np.empty((-(-len(values) // width), n), dtype=np.uint64)
    key.stream().fill(words.reshape(-1))
    points = []
    for element, value in enumerate(values):
        element_of_stream, member = divmod(element, width)
        rows = exact.rows_from_key(key, element_of_stream, words[element_of_stream])
        formula = FORMS[form].formulas[member]
        points.append(reference.released_whole(formula, rows, value, scale, grid))
    return points


def random_values(rng: np.random.Generator, count: int, scale: float) -> NDArray[np.float64]:
    """Return zeros, subnormals, halves of grids, values near the scale, and up to 1e300."""
    sizes = 10.0 ** rng.uniform(-320, 300, count)
    near = scale * rng.standard_normal(count) * 10.0 ** rng.uniform(-8, 8, count)
    special = rng.choice([0.0, -0.0, 5e-324, -5e-324, 1e300, -1e300, 0.5, 1.0, scale / 2], count)
    values = np.choose(
        rng.integers(0, 3, count), [sizes * rng.choice([-1, 1], count), near, special]
    )
    return np.asarray(values, dtype=np.float64)


@pytest.mark.parametrize("form", ADDITIVE)
def test_every_float_release_equals_the_reference_to_the_last_bit(form: str) -> None:
    """Random and extreme scales, grids from scale * 2^-40 to scale * 8, values of both signs."""
    rng = np.random.default_rng()
    batch = 125
    for _ in range(2000 if alarms.LONG else 60):
        scale = float(
            2.0 ** rng.uniform(-900, 900) if rng.random() < 0.3 else 10 ** rng.uniform(-6, 6)
        )
        grid = 2.0 ** (math.floor(math.log2(scale)) + int(rng.integers(-40, 4)))
        secret = os.urandom(32)
        values = random_values(rng, batch, scale)
        released = mechanism(form, scale, grid=grid).release(values, rng=fixed_generator(secret))
        cells = reference_cells(form, secret, values.tolist(), scale, grid)
        for result, cell in zip(released.tolist(), cells, strict=True):
            expected = exact.nearest_float(cell, grid)
            assert result == expected
            assert math.copysign(1, result) == math.copysign(1, expected + 0.0)


@pytest.mark.parametrize("form", ADDITIVE)
def test_every_integer_release_equals_the_reference(form: str) -> None:
    """Python integers of any size, and int64 arrays to their ends, on grids below and above 1."""
    rng = np.random.default_rng()
    for _ in range(600 if alarms.LONG else 20):
        scale = float(10 ** rng.uniform(-3, 30))
        options: dict[str, Any] = {}
        if rng.random() < 0.5:
            options["grid"] = 2.0 ** (math.floor(math.log2(scale)) + int(rng.integers(-30, 4)))
        mech = mechanism(form, scale, **options)
        grid = max(1.0, mech.grid)
        secret = os.urandom(32)
        big = [
            int(rng.integers(-(2**62), 2**62)) * 10 ** int(rng.integers(0, 40)) for _ in range(20)
        ]
        big += [0, 1, -1, 2**64, -(2**64), 2**63 - 1, 10**300]
        released = mech.release(big, rng=fixed_generator(secret))
        expected = [cell * int(grid) for cell in reference_cells(form, secret, big, scale, grid)]
        assert released == expected
        assert all(isinstance(x, int) for x in released)
        ends = [0, 1, -1, 2**63 - 1, -(2**63), 2**62, -(2**62) - 1, 12345678901]
        sizes = rng.integers(0, 64, 67)
        small = np.append(ends, rng.integers(-(2**63), 2**63 - 1, sizes.size) >> sizes)
        result = mech.release(small, rng=fixed_generator(secret))
        assert result.dtype == np.int64
        unlimited = [
            cell * int(grid) for cell in reference_cells(form, secret, small.tolist(), scale, grid)
        ]
        assert result.tolist() == [min(max(x, -(2**63)), 2**63 - 1) for x in unlimited]


@pytest.mark.parametrize("scale", [1.0, 1e3, 1e9, 1e17, 1e18, 1e19, 1e22])
def test_integer_arrays_saturate_and_never_wrap(scale: float) -> None:
    """Also where the noise itself exceeds 2^63, which happens often in 2,000 values."""
    for form in ("laplace_1", "gaussian_pairs"):
        secret = os.urandom(32)
        values = np.random.default_rng().integers(-(2**40), 2**40, 2000)
        mech = mechanism(form, scale)
        released = mech.release(values, rng=fixed_generator(secret))
        unlimited = mech.release(values.tolist(), rng=fixed_generator(secret))
        expected = [min(max(x, -(2**63)), 2**63 - 1) for x in unlimited]
        assert released.tolist() == expected
        if scale >= 1e19:
            assert {2**63 - 1, -(2**63)} <= set(expected)


def test_a_scalar_release_equals_that_of_an_array_of_one() -> None:
    """Except for pairs: a single number has no second member."""
    for form in ADDITIVE.keys() - {"gaussian_pairs"}:
        for power in (-40, -20, 3):
            mech = mechanism(form, 1.0, grid=2.0**power)
            for value in (0.1, -7.25, 1e300):
                secret = os.urandom(32)
                scalar = mech.release(value, rng=fixed_generator(secret))
                array = mech.release(np.array([value]), rng=fixed_generator(secret))
                assert scalar == array[0]
            secret = os.urandom(32)
            assert (
                mech.release(3, rng=fixed_generator(secret))
                == mech.release([3], rng=fixed_generator(secret))[0]
            )


@pytest.mark.parametrize(
    "value",
    [0, 1, -7, 255, 256, 257, 2**30, 2**62, -(2**62), 2**62 + 1, 2**63 - 1, -(2**63), 2**63],
)
def test_integers_of_numpy_are_released_as_python_s(value: int) -> None:
    secret = os.urandom(32)
    expected = dpnoise.LaplaceMechanism(epsilon=1.0, sensitivity=1.0).release(
        value, rng=fixed_generator(secret)
    )
    for kind in (np.int8, np.uint8, np.int16, np.uint32, np.int64, np.uint64):
        if np.iinfo(kind).min <= value <= np.iinfo(kind).max:
            numpy_value = kind(value)
            result = dpnoise.LaplaceMechanism(epsilon=1.0, sensitivity=1.0).release(
                numpy_value, rng=fixed_generator(secret)
            )
            assert (result, type(result)) == (expected, int)


@pytest.mark.parametrize("form", ADDITIVE)
def test_release_does_not_depend_on_chunks_or_threads(
    form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret = os.urandom(32)
    values = random_values(np.random.default_rng(), 3000, 1.0)
    mech = mechanism(form, 1.0, grid=2.0**-36)
    results = []
    for chunk_words in (5, 999, 2**16):
        for threads in (1, 2, 3):
            monkeypatch.setattr(exact, "_CHUNK_WORDS", chunk_words)
            results.append(mech.release(values, rng=fixed_generator(secret, threads=threads)))
    for result in results[1:]:
        np.testing.assert_array_equal(result, results[0])


WITHOUT_COMPILER = """
import numpy as np
import dpnoise
from dpnoise.testing import fixed_generator
rng = fixed_generator(bytes(range(32)))
values = np.linspace(-3, 3, 200)
for grid in (2.0**-36, 2.0**-20, 1.0):
    for mechanism in (
        dpnoise.LaplaceMechanism(epsilon=1.0, sensitivity=1.0, grid=grid),
        dpnoise.GaussianMechanism.for_scale(1.0, sensitivity=1.0, grid=grid),
    ):
        print(mechanism.release(values, rng=rng).tobytes().hex(), mechanism.release(5, rng=rng))
        print(mechanism.release(2.5, rng=rng), mechanism.release(np.arange(9), rng=rng))
print(dpnoise.NoisyMax(epsilon=1.0, sensitivity=1.0).select([1.0, 2.0, 3.0], rng=rng))
"""


def test_release_does_not_depend_on_the_compiler() -> None:
    assert not numba.config.DISABLE_JIT
    with redirect_stdout(io.StringIO()) as compiled:
        exec(WITHOUT_COMPILER, {})  # noqa: S102 - the program above
    interpreted = subprocess.run(
        [sys.executable, "-W", "error", "-c", WITHOUT_COMPILER],
        capture_output=True,
        check=True,
        text=True,
        env={**os.environ, "NUMBA_DISABLE_JIT": "1"},
    ).stdout
    assert interpreted == compiled.getvalue() != ""


@settings(max_examples=2000 if alarms.LONG else 300, deadline=None)
@given(
    st.floats(-1e6, 1e6),
    st.integers(-(2**20), 2**20),
    st.integers(-8, 8),
    st.sampled_from([0.0, 2.0**-52, 2.0**-40, 2.0**-10]),
    st.sampled_from([2.0**-6, 0.3, 1.0, 1000.1]),
    st.sampled_from([2.0**-20, 1.0, 8.0]),
)
def test_the_decision_holds_for_all_noise_within_the_error(
    value: float, cells: int, ulps: int, error: float, scale: float, grid: float
) -> None:
    """Noise is placed near a border; both ends of its interval must lie in the decided cell."""
    border = (Fraction(grid) * (2 * cells + 1) / 2 - Fraction(value)) / Fraction(scale)
    z = float(border)
    for _ in range(abs(ulps)):
        z = math.nextafter(z, math.inf if ulps > 0 else -math.inf)
    z += math.copysign(error * 1.0001, ulps)
    # The two roundings of scale * z are relative to z; ROUND of the forms covers them.
    claimed = error + 2.0**-52 * abs(z)
    result, certain = first_stage.certain_point(value, z, claimed, scale, grid)
    assert math.isnan(result) != certain
    if certain:
        for end in (-error, error):
            quotient = (
                Fraction(value) + Fraction(scale) * (Fraction(z) + Fraction(end))
            ) / Fraction(grid)
            assert math.floor(quotient + Fraction(1, 2)) * Fraction(grid) == Fraction(result)


# Checks of the law, which cannot be circular. ---------------------------------------------------


def all_words(bits: int, n: int) -> Iterator[NDArray[np.uint64]]:
    """Yield all rows of n words of `bits` bits, in chunks."""
    axis = np.arange(2**bits, dtype=np.uint64) << np.uint64(64 - bits)
    inner = min(n, 18 // bits)
    grid = np.stack([a.ravel() for a in np.meshgrid(*[axis] * inner, indexing="ij")], axis=1)
    for outer in product(axis.tolist(), repeat=n - inner):
        rows = np.empty((len(grid), n), dtype=np.uint64)
        rows[:, : n - inner] = outer
        rows[:, n - inner :] = grid
        yield rows.ravel()


@pytest.mark.parametrize(
    ("form", "bits", "grid"),
    [
        ("laplace_1", 6, 0.5),
        ("laplace_1", 10, 0.125),
        ("gaussian_2", 6, 1.0),
        ("gaussian_2", 8, 0.5),
        ("gaussian_2", 10, 0.25),
        ("gaussian_pairs", 6, 1.0),
        ("gaussian_pairs", 8, 0.5),
        ("gaussian_pairs", 10, 0.25),
    ],
)
@pytest.mark.parametrize("value", [0.0, 0.3])
def test_all_short_words_give_the_ideal_law(
    form: str, bits: int, grid: float, value: float
) -> None:
    """Run the real kernel on all words of 6 to 10 bits.

    A decided cell holds for all further bits, so for each cell: decided mass <= true
    probability <= decided plus undecided mass.
    """
    kernel = getattr(first_stage, form)
    n, width = FORMS[form].variates, FORMS[form].width
    cells = np.arange(-40, 41)
    decided = np.zeros((width, len(cells)), dtype=np.int64)
    undecided, total = np.zeros(width, dtype=np.int64), 0
    for words in all_words(bits, n):
        words.flags.writeable = False
        out = np.empty(words.size // n * width)
        kernel(words, bits, np.full(out.size, value), 1.0, grid, out)
        total += words.size // n
        for member in range(width):
            member_out = out[member::width]
            undecided[member] += np.isnan(member_out).sum()
            indices = (member_out[~np.isnan(member_out)] / grid).astype(np.int64) + 40
            decided[member] += np.bincount(indices, minlength=len(cells))
    assert total == 2 ** (bits * n)
    assert np.all(decided.sum(axis=1) + undecided == total)
    assert np.all(undecided < 0.8 * total), "too few cells are decided for a meaningful check"
    cdf = FORMS[form].distribution.cdf
    truth = cdf((cells + 0.5) * grid - value) - cdf((cells - 0.5) * grid - value)
    assert np.all(decided / total <= truth + 1e-15)
    assert np.all(truth <= (decided + undecided[:, None]) / total + 1e-15)


@pytest.mark.parametrize("form", ADDITIVE)
@pytest.mark.parametrize("power", [2, -3, -20])
def test_millions_of_releases_have_the_exact_probabilities(form: str, power: int) -> None:
    """On coarse grids cell by cell, on fine ones in groups of cells (chi-squared)."""
    grid = 2.0**power
    value = 0.3
    released = mechanism(form, 1.0, grid=grid).release(
        np.full(10_000_000 if alarms.LONG else 1_000_000, value)
    )
    points = np.rint(released / grid)
    assert np.all(points * grid == released)
    ideal = FORMS[form].distribution
    edges = np.unique(np.rint((ideal.ppf(np.linspace(1e-4, 1 - 1e-4, 400)) + value) / grid))
    # No point is beyond 2^31, and sorted integers are counted quickly.
    up_to = np.searchsorted(np.sort(points.astype(np.int32)), edges, side="right")
    counts = np.diff(up_to, prepend=0, append=points.size)
    cumulative = ideal.cdf((edges + 0.5) * grid - value)
    probabilities = np.diff(np.concatenate([[0.0], cumulative, [1.0]]))
    alarms.check_counts(counts, probabilities)


# The floating-point environment. ----------------------------------------------------------------


@needs_known_registers
@pytest.mark.parametrize("mode", MODES, ids=["down", "up", "to zero"])
def test_another_rounding_mode_is_refused(mode: int) -> None:
    mech = dpnoise.LaplaceMechanism(epsilon=1.0, sensitivity=1.0)
    errors = []
    with rounding_mode(mode):
        for value in (1.0, 1, np.ones(5), np.ones(5, np.float32), [1, 2]):
            try:
                mech.release(value)
            except RoundingModeError as error:
                errors.append(error)
        try:
            dpnoise.NoisyMax(epsilon=1.0, sensitivity=1.0).select([1.0])
        except RoundingModeError as error:
            errors.append(error)
    assert len(errors) == 6
    assert isinstance(mech.release(1.0), float)


@needs_known_registers
def test_release_is_the_same_when_subnormals_are_flushed() -> None:
    secret = os.urandom(32)
    values = np.array([0.0, 5e-324, -5e-324, 1e-310, 2e-308, 2.3e-308, 0.7] * 20)
    for scale, grid in product([1.0, 2.0**-900, 2.0**-960], [2.0**-50, 2.0**-40, 2.0**-20]):
        for form in ADDITIVE:
            mech = mechanism(form, scale, grid=scale * grid)
            usual = mech.release(values, rng=fixed_generator(secret))
            with subnormals_flushed():
                assert values[3] * values[6] == 0.0
                flushed = mech.release(values, rng=fixed_generator(secret))
            np.testing.assert_array_equal(flushed, usual)


@needs_known_registers
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_narrow_subnormals_are_read_and_written_when_they_are_flushed(dtype: Any) -> None:
    """Values on both sides of the smallest normal number, with noise of that size and far below.

    They are arrays, scalars, lists and scores. The releases are subnormal too.
    """
    secret = os.urandom(32)
    info = np.finfo(dtype)
    least, spacing = float(info.smallest_normal), float(info.smallest_subnormal)
    edge = [least - spacing, least, least + spacing, spacing, -spacing, 0.0, 1.0]
    values = np.array(edge * 20).astype(dtype)
    wide = values.astype(np.float64)
    for scale in (least, spacing, spacing * 2.0**-12):
        for form in ADDITIVE:
            mech = mechanism(form, scale, grid=scale * 2.0**-10)
            wide_release = mech.release(wide, rng=fixed_generator(secret))
            expected = (wide_release.astype(dtype) + dtype(0)).tobytes()  # The sum has no -0.0.
            first = (mech.release(wide[0], rng=fixed_generator(secret)).astype(dtype)).tobytes()
            with subnormals_flushed():
                released = mech.release(values, rng=fixed_generator(secret))
                single = mech.release(values[0], rng=fixed_generator(secret))
                in_a_list = mech.release(list(values), rng=fixed_generator(secret))
            assert released.tobytes() == expected
            assert single.tobytes() == first
            assert in_a_list == wide_release.tolist()
    with subnormals_flushed():
        selected = dpnoise.NoisyMax(epsilon=1.0, sensitivity=spacing * 1e-9).select(values[:2])
    assert selected == 1, "the larger score, by a margin of 10^9 scales"


def test_a_settled_cell_is_the_nearest_float() -> None:
    assert exact.nearest_float(3, 0.5) == 1.5
    assert exact.nearest_float(2**53 + 1, 1.0) == float(2**53)
    assert exact.nearest_float(2**60, 2.0**1000) == sys.float_info.max
    assert exact.nearest_float(-(2**60), 2.0**1000) == -sys.float_info.max
    assert exact.nearest_float(0, 2.0**-900) == 0.0


def test_the_reference_says_when_the_words_end() -> None:
    with pytest.raises(ValueError, match="words ended"):
        reference.released_whole(reference.exponential, [[2**64 - 1]], Fraction(0), 1.0, 1.0)
