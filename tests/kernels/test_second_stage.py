"""The second stage of exact release: its errors, its decisions, and the numbers it settles."""

import json
import math
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction
from itertools import product
from typing import Any

import mpmath
import numpy as np
import pytest
from flint import arb, ctx
from numpy.typing import NDArray
from support.registers import needs_known_registers, subnormals_flushed
from test_fixed import ALL, neighbours_of, number, random_number, to_wide

from dpnoise.core import kernel_table, reference
from dpnoise.core.entropy import Key
from dpnoise.kernels import compile_kernel, first_stage, noise_128bit, second_stage
from dpnoise.kernels.noise_128bit import Noise
from dpnoise.release import calibration, exact
from dpnoise.release.exact import ADDITIVE, AdditiveForm

UNIT = Fraction(1, ALL)
NOISE_UNIT = Fraction(1, 2**120)
SQRT_HALF = math.isqrt(2**255)
LARGEST = sys.float_info.max
rng = np.random.default_rng()


@pytest.fixture(autouse=True)
def _ignore_overflow() -> Iterator[None]:
    """Ignore warnings of interpreted arithmetic modulo 2^64; compiled code has none."""
    with np.errstate(all="ignore"):
        yield


# The noise. --------------------------------------------------------------------------------------

KERNELS: dict[str, Callable[..., Any]] = {
    "laplace_1": noise_128bit.laplace_1,
    "gaussian_2": noise_128bit.gaussian_2,
    "gaussian_pairs": noise_128bit.gaussian_pair,
}


def test_every_form_has_a_second_stage() -> None:
    assert KERNELS.keys() == ADDITIVE.keys()


def refined_noise(form: str, u: Sequence[int]) -> list[Noise]:
    """Return the noise of all numbers made from these uniforms of 128 digits."""
    noise = KERNELS[form](*(to_wide(digits) for digits in u))
    return list(noise) if form == "gaussian_pairs" else [noise]


def signed_units(noise: Noise) -> int:
    """Return the noise as a signed number of units."""
    magnitude, sign, _ = noise
    return -number(magnitude) if int(sign) >> 63 else number(magnitude)


def claims_nothing(noise: Noise) -> bool:
    return int(noise[2]) >= 2**62


def largest_distance(formula: reference.Formula, u: Sequence[int], units: int) -> arb:
    """Return a bound on |Z - units| from one ball for all unseen bits, slightly too wide."""
    Z = formula([reference.Digits(digits, 128) for digits in u])
    return abs(Z * arb(2) ** 120 - units).upper()


def exact_distance(formula: reference.Formula, u: Sequence[int], units: int) -> arb:
    """Return |Z - units| exactly: Z is monotone in the unseen bits of each uniform."""
    low = [reference.Digits(digits << 128, 256) for digits in u]
    high = [reference.Digits(((digits + 1) << 128) - 1, 256) for digits in u]
    largest = arb(0)
    for corner in product(*zip(low, high, strict=True)):
        largest = largest.max(abs(formula(corner) * arb(2) ** 120 - units).upper())
    return largest


def worst_ratio(form: str, rows: Sequence[Sequence[int]]) -> float:
    """Return the largest |z - Z| / error over all unseen bits of the rows; fail above 1."""
    worst = 0.0
    with ctx.workprec(500):
        for u in rows:
            for formula, noise in zip(ADDITIVE[form].formulas, refined_noise(form, u), strict=True):
                if claims_nothing(noise):
                    continue
                error = int(noise[2])
                distance = largest_distance(formula, u, signed_units(noise))
                if not distance <= error:
                    distance = exact_distance(formula, u, signed_units(noise))
                assert distance <= error, (form, u)
                worst = max(worst, float(distance / error))
    return worst


def adversarial_digits() -> list[int]:
    """Return U with V at its ends, near 1, and near powers of two and their roots; all angles."""
    ends = [
        0,
        1,
        2,
        ALL - 1,
        ALL - 2,
        *neighbours_of(2**127),
        *neighbours_of(2**126),
        *neighbours_of(3 * 2**126),
    ]
    near_one = [2**k for k in (3, 20, 27, 28, 29, 36, 37, 64, 65, 100)]
    small = [
        2**128 - 2**64 - 1,
        2**128 - 1 - (random_number() >> 64),
    ]  # The first word of V is 1, then 0.
    borders = [
        ALL - 1 - x
        for e in (0, 1, 7, 8, 20, 63, 64, 65, 66, 67)
        for x in (*neighbours_of(SQRT_HALF >> e), *neighbours_of(2**127 >> e))
    ]
    return sorted({*ends, *near_one, *small, *borders})


def adversarial_rows(n: int) -> list[tuple[int, ...]]:
    words = adversarial_digits()
    if n == 1:
        return [(digits,) for digits in words]
    angles = [0, 1, ALL - 1, 2**126, 2**126 - 1, 2**127 - 1, 2**127, 3 * 2**126 - 1, ALL // 3]
    if n == 2:
        return list(product(words, angles))
    few = [0, 1, 2**64, ALL - 1, ALL - 2**64, ALL - 2**63, ALL - 1 - SQRT_HALF, 2**127]
    return list(product(few, angles[::3], few, angles[::4]))


def random_rows(count: int, n: int) -> list[tuple[int, ...]]:
    def uniform() -> int:
        return int.from_bytes(rng.bytes(16), "big")

    return [tuple(uniform() for _ in range(n)) for _ in range(count)] + [
        tuple(random_number() for _ in range(n)) for _ in range(count)
    ]


@pytest.mark.sample(1)
@pytest.mark.parametrize("form", ADDITIVE)
def test_the_noise_is_within_its_error(form: str) -> None:
    """On 3000 random points, half of them of random size, and on adversarial ones."""
    n = ADDITIVE[form].variates
    at_random = worst_ratio(form, random_rows(1500, n))
    at_worst = worst_ratio(form, adversarial_rows(n))
    print(f"\n{form}: {at_random:.3f} of the bound at random, {at_worst:.3f} at the extremes")
    assert max(at_random, at_worst) > 0.1, "the bound is too large"


@pytest.mark.parametrize("form", ADDITIVE)
def test_nothing_is_claimed_only_where_v_is_at_an_end(form: str) -> None:
    """V < 2^-66, or for Gaussians V within 2^-90 of 1, has a probability below 2^-64."""
    n = ADDITIVE[form].variates
    for u in (*random_rows(300, n), *adversarial_rows(n)):
        of_v = [2 * u[0] % ALL] if form == "laplace_1" else u[::2]
        outside = any(ALL - digits <= 2**62 for digits in of_v)
        if form.startswith("gaussian"):
            outside |= any(digits <= 2**38 for digits in of_v)
        for noise in refined_noise(form, u):
            assert outside or not claims_nothing(noise)


@pytest.mark.parametrize("form", ADDITIVE)
def test_at_the_very_ends_nothing_is_claimed(form: str) -> None:
    """At V = 0, Z has no bound; at V = 1 the root of a Gaussian has no finite slope."""
    n = ADDITIVE[form].variates
    ends = [ALL - 1, *([0] if form.startswith("gaussian") else [])]
    for end, index in product(ends, [0] if n < 4 else [0, 2]):
        for _ in range(20):
            u = [random_number() for _ in range(n)]
            u[index] = end
            assert all(claims_nothing(noise) for noise in refined_noise(form, u))


@pytest.mark.parametrize("form", ADDITIVE)
def test_the_error_is_small_almost_always(form: str) -> None:
    """Below 2^-100 if every V is between 2^-10 and 1 - 2^-10."""
    n = ADDITIVE[form].variates
    for _ in range(300):
        u = [int(x) << 64 for x in rng.integers(2**54, 2**63 - 2**54, n)]
        for noise in refined_noise(form, u):
            assert int(noise[2]) < 2**20


# The decision. -----------------------------------------------------------------------------------


def cells_of(fraction: int, noise: Noise, ratio: float, extra_units: int) -> set[int]:
    """Return the cells of both ends, with `extra_units` of 2^-128 added to the error."""
    y = fraction * UNIT + Fraction(ratio) * signed_units(noise) * NOISE_UNIT + Fraction(1, 2)
    error = Fraction(ratio) * int(noise[2]) * NOISE_UNIT + extra_units * UNIT
    return {math.floor(y - error), math.floor(y + error)}


def check_nearest_cell(fraction: int, noise: Noise, ratio: float) -> bool:
    """Compare one decision with fractions, and return whether it was certain."""
    cell, certain = second_stage.nearest_cell(to_wide(fraction), noise, ratio)
    if certain:
        assert not claims_nothing(noise)
        assert cells_of(fraction, noise, ratio, 0) == {int(cell)}
    else:
        assert claims_nothing(noise) or len(cells_of(fraction, noise, ratio, 8)) == 2
    return bool(certain)


RATIOS = [
    *(2.0**e for e in (-960, -959, -200, -137, -136, -135, -73, -72, -71, -65, -64, -63, -60, -20)),
    *(2.0**e for e in (-8, -7, -1, 0, 1, 5, 6, 20, 49, 50)),
    *(math.nextafter(2.0**e, 0.0) for e in (-900, -136, -64, -1, 0, 20, 50)),
    *(2.0**e / 3 for e in (-950, -136, -64, 0, 20, 51)),
]
FRACTIONS = [0, 1, 2, 2**64 - 1, 2**64, 2**127 - 1, 2**127, 2**127 + 1, ALL // 3, ALL - 1]


def random_noise(error: int) -> Noise:
    sign = np.uint64(random_number() >> 64)
    return to_wide(random_number() >> int(rng.integers(0, 100))), sign, np.uint64(error)


def check_decisions(count: int) -> list[bool]:
    """Compare random decisions, and some within a few units of a border, with fractions."""
    certain = []
    for ratio in RATIOS:
        for _ in range(count):
            noise = random_noise(int(rng.choice([0, 1, 7, 300, 2**40, 2**61, 2**62, 2**63])))
            certain.append(check_nearest_cell(random_number(), noise, ratio))
            certain += [check_nearest_cell(f, noise, ratio) for f in FRACTIONS]
            near_border = random_noise(int(rng.choice([0, 1, 3, 8, 100])))
            z = Fraction(ratio) * signed_units(near_border) * NOISE_UNIT
            reach = Fraction(ratio) * int(near_border[2]) * NOISE_UNIT
            for shift in (-reach, 0, reach):
                border = math.floor(((Fraction(1, 2) - z - shift) % 1) * ALL)
                certain += [
                    check_nearest_cell((border + k) % ALL, near_border, ratio) for k in range(-6, 7)
                ]
    return certain


def test_a_certain_cell_is_the_only_one() -> None:
    """A cell is uncertain only if a border is within the error."""
    assert set(check_decisions(6)) == {True, False}


def exact_float(cell: int, grid: float) -> float:
    """Return the float nearest to cell * grid, saturated."""
    point = cell * Fraction(grid)
    most = Fraction(LARGEST)
    return float(min(max(point, -most), most))


def value_of(value: float) -> Fraction:
    return reference.exact_fraction(value)


def bits_of(value: float) -> int:
    return int(np.float64(value).view(np.int64))


VALUES = [
    *(0.0, -0.0, 5e-324, -5e-324, 2.2e-308, -2.3e-308, 1.0, -1.0, 0.5, -0.5, 1.5, -2.5, 0.1, -0.1),
    *(2.0**52 - 0.5, -(2.0**52) + 0.5, 2.0**53 - 1, 2.0**53, -(2.0**53), 2.0**60, 1e300, LARGEST),
    *(-LARGEST, math.nextafter(0.5, 0), math.nextafter(-0.5, 0), 2.0**-75, -(2.0**-128), 2.0**-129),
    *(2.0**-200 / 3, -(2.0**-200) / 3, 2.0**-1022, -(2.0**-1030)),
]
GRIDS = [2.0**e for e in (-1010, -1000, -960, -300, -53, -20, -1, 0, 1, 3, 30, 300, 907, 959, 960)]


def check_split(value: float, grid: float) -> tuple[int, int, int]:
    """Compare one split with fractions, and return its parts as integers."""
    base, whole, fraction = second_stage.split_float(value, grid)
    quotient = value_of(value) / Fraction(grid)
    if base != 0.0:
        assert bits_of(base) == bits_of(value)
        assert quotient.denominator == 1
        assert (int(whole), number(fraction)) == (0, 0)
    else:
        remainder = quotient - int(whole) - number(fraction) * UNIT
        assert abs(int(whole)) <= 2**53
        # Digits beyond 128 are truncated, towards 0.
        assert 0 <= (remainder if quotient > 0 else -remainder) < UNIT
        assert remainder == 0 or quotient * ALL != int(quotient * ALL)
    return bits_of(base), int(whole), number(fraction)


def all_splits() -> list[tuple[float, float]]:
    random = [
        (float(rng.standard_normal() * 2.0 ** rng.integers(-1040, 1000)), grid)
        for grid in GRIDS * 20
    ]
    near = [
        (float(sign * (k + half) * grid * (1 + ulps * 2.0**-52)), grid)
        for grid in GRIDS[:-3]
        for k in (0, 1, 2**20, 2**51)
        for half in (0.0, 0.5)
        for sign in (-1, 1)
        for ulps in (-1, 0, 1)
    ]
    return [*product(VALUES, GRIDS), *random, *near]


def test_a_float_is_split_exactly() -> None:
    for value, grid in all_splits():
        check_split(value, grid)


@needs_known_registers
def test_a_float_is_split_exactly_where_subnormals_are_flushed() -> None:
    cases = all_splits()
    usual = [check_split(value, grid) for value, grid in cases]
    arrays = np.array(cases)
    with subnormals_flushed():
        assert arrays[0, 1] * 2.0**-30 == 0.0
        flushed = [second_stage.split_float(value, grid) for value, grid in arrays]
    assert [(bits_of(b), int(w), number(f)) for b, w, f in flushed] == usual


def nearby_noise(ratio: float, fraction: Fraction) -> Noise:
    """Return noise that, times ratio, is within a few units of a border, or random noise."""
    noise = random_noise(int(rng.choice([0, 5, 100])))
    if ratio < 2.0**-60 or rng.integers(2):
        return noise
    cells = int(rng.integers(-1000, 1000))
    target = (cells + Fraction(1, 2) - fraction) / Fraction(ratio) / NOISE_UNIT
    units = math.floor(target) + int(rng.integers(-9, 10))
    if abs(units) >= ALL:
        return noise
    return to_wide(abs(units)), np.uint64(2**63 if units < 0 else 0), noise[2]


def check_release_float(value: float, scale: float, grid: float) -> bool:
    quotient = value_of(value) / Fraction(grid)
    ratio = scale / grid
    noise = nearby_noise(ratio, quotient % 1)
    released = float(second_stage.release_float(value, noise, scale, grid))
    fraction = math.floor((quotient % 1) * ALL)
    cells = {math.floor(quotient) + cell for cell in cells_of(fraction, noise, ratio, 8)}
    if math.isnan(released):
        is_beyond = max(abs(cell - math.floor(quotient)) for cell in cells) >= 2**53
        assert len(cells) == 2 or is_beyond
        return False
    y = quotient + Fraction(ratio) * signed_units(noise) * NOISE_UNIT + Fraction(1, 2)
    error = Fraction(ratio) * int(noise[2]) * NOISE_UNIT
    assert math.floor(y - error) == math.floor(y + error)
    assert bits_of(released) == bits_of(exact_float(math.floor(y), grid))
    return True


def check_floats(count: int) -> list[bool]:
    certain = []
    for grid in GRIDS:
        for ratio in (2.0**-60, 2.0**-20, 0.3, 1.7, 2.0**20, 2.0**50):
            scale = grid * ratio
            if scale > calibration.EXTREME:
                continue  # Mechanisms refuse larger scales.
            random_values = (rng.standard_normal(count) * scale).tolist()
            certain += [
                check_release_float(value, scale, grid) for value in (*VALUES, *random_values)
            ]
    return certain


def test_a_released_float_is_the_nearest_to_its_grid_point() -> None:
    assert set(check_floats(20)) == {True, False}


INT64 = (-(2**63), 2**63 - 1)
INTEGERS = [
    *(0, 1, -1, 2, -2, 5, 2**31, -(2**31), 2**53 + 1, 2**62 - 1, 2**62, -(2**62), -(2**62) - 1),
    *(INT64[1], INT64[1] - 1, INT64[0], INT64[0] + 1, 2**63 - 2**40, -(2**63) + 2**40),
]

AT_MOST_62_BITS = [value for value in INTEGERS if abs(value) <= 2**62]


def check_release_integer(value: int, shift: int, ratio: float) -> bool:
    noise = nearby_noise(ratio, Fraction(value, 2**shift) % 1)
    released = int(second_stage.release_integer(np.int64(value), shift, noise, ratio))
    fraction, whole = (value % 2**shift) * ALL >> shift, value >> shift
    if released == INT64[0]:
        assert len(cells_of(fraction, noise, ratio, 8)) == 2
        return False
    assert {whole + cell for cell in cells_of(fraction, noise, ratio, 0)} == {released}
    return True


def check_integers(count: int) -> list[bool]:
    certain = []
    for shift in range(63):
        for ratio in (2.0**-960, 0.3, 2.0**50):
            chosen_values = [*AT_MOST_62_BITS, *rng.integers(-(2**62), 2**62, count).tolist()]
            certain += [check_release_integer(value, shift, ratio) for value in chosen_values]
    return certain


def test_a_released_integer_is_its_cell_or_open() -> None:
    """With the largest values and the largest noise, on all grids from 1 to 2^62."""
    assert set(check_integers(3)) == {True, False}


MEASURE_INTERPRETED = """
import json, sys
import numpy as np
sys.path[:0] = ["tests", "tests/kernels"]
import test_second_stage as t
with np.errstate(all="ignore"):
    t.RATIOS, t.GRIDS = t.RATIOS[::7], t.GRIDS[::7]
    t.check_decisions(1)
    t.check_floats(0)
    ratios = (2.0**-960, 0.3, 2.0**50)
    for value, shift, ratio in t.product(t.AT_MOST_62_BITS, (0, 1, 31, 62), ratios):
        t.check_release_integer(value, shift, ratio)
    for value, grid in t.product(t.VALUES, t.GRIDS):
        t.check_split(value, grid)
    print(json.dumps({form: t.worst_ratio(form, t.random_rows(4, t.ADDITIVE[form].variates))
                      for form in t.ADDITIVE}))
"""


@pytest.mark.long
def test_all_of_it_holds_without_the_compiler() -> None:
    process = subprocess.run(
        [sys.executable, "-W", "error", "-c", MEASURE_INTERPRETED],
        capture_output=True,
        check=True,
        text=True,
        env={**os.environ, "NUMBA_DISABLE_JIT": "1"},
    )
    worst = json.loads(process.stdout)
    assert worst.keys() == ADDITIVE.keys()
    assert all(ratio > 0 for ratio in worst.values())


# Integers in arrays. -----------------------------------------------------------------------------


def saturate(point: int) -> int:
    return min(max(point, INT64[0]), INT64[1])


@compile_kernel
def compiled_above_grids(value: Any, grid: float) -> float:
    return first_stage.above_grids(value, grid)


@pytest.mark.parametrize("shift", range(63))
def test_cells_are_added_to_whole_grids_and_saturate(shift: int) -> None:
    """`above_grids`, `add_whole_grids` and `to_integers` against Python's integers."""
    cells = [0, 1, -1, 1000, -1000, 2**53, -(2**53), 2**52 + 1, int(rng.integers(-(2**53), 2**53))]
    cases = list(product([*INTEGERS, *(v >> shift for v in INTEGERS)], cells))
    values = np.array([value for value, _ in cases], dtype=np.int64)
    for above_grids in first_stage.above_grids, compiled_above_grids:
        above = [above_grids(value, 2.0**shift) for value in values]
        assert above == [float(value % 2**shift) for value, _ in cases]
        assert above_grids(-2.5, 2.0**shift) == -2.5
    out = np.array([float(cell << shift) for _, cell in cases]).view(np.int64)
    second_stage.add_whole_grids(values, shift, out)
    totals = [saturate((value >> shift) + cell) for value, cell in cases]
    assert out.tolist() == totals
    second_stage.to_integers(shift, out)
    assert out.tolist() == [saturate(total << shift) for total in totals]


# The slots. --------------------------------------------------------------------------------------

PATTERNS = ["", "o", ".", "oo", "..", "o.", ".o", "ooo", "...", "..o", "o..", ".oo.o", "o....oo"]
PATTERNS += ["".join(".o"[k * k % 11 % 3 == 1] for k in range(size)) for size in (8, 17, 64, 101)]
PATTERNS += ["." * 40 + "o" + "." * 60, "o" * 48, "." * 32 + "o" * 16, "." * 15 + "oo" + "." * 15]


def with_open(pattern: str) -> NDArray[np.float64]:
    return np.array([math.nan if mark == "o" else 1.5 for mark in pattern], dtype=np.float64)


@pytest.mark.parametrize("least", [0, 1, 3, 1000])
@pytest.mark.parametrize("width", [1, 2])
@pytest.mark.parametrize("pattern", PATTERNS)
def test_open_places_are_found_in_order(pattern: str, width: int, least: int) -> None:
    """A pair is open if one member is; a last single number counts as a pair."""
    parts = [pattern[i : i + width] for i in range(0, len(pattern), width)]
    open_pairs = [i for i, part in enumerate(parts) if "o" in part]
    slots = np.full(len(parts) + 2, -7, dtype=np.int64)
    blocks = np.full(len(parts) + 1, -7, dtype=np.int64)
    assert second_stage.open_places(with_open(pattern), width, least, blocks, slots) == len(
        open_pairs
    )
    assert slots[: len(open_pairs)].tolist() == open_pairs
    assert slots[-1] == -7
    assert all(slot == -7 or 0 <= slot < len(parts) for slot in slots[len(open_pairs) :].tolist())


def certain_rows(count: int) -> NDArray[np.uint64]:
    """Return rows of noise: magnitudes of 1, 2, 3, ..., with a small error."""
    return np.array([[(k + 1) << 56, 0, 0, 9] for k in range(count)], dtype=np.uint64)


@pytest.mark.parametrize("width", [1, 2])
@pytest.mark.parametrize("pattern", [p for p in PATTERNS if p])
def test_only_open_numbers_are_settled(pattern: str, width: int) -> None:
    """All pairs have a slot, in random order, some twice. Decided numbers do not change.

    The second member of an odd last pair does not exist, so its noise is not used.
    """
    pairs = -(-len(pattern) // width)
    slots = np.concatenate([rng.permutation(pairs), np.zeros(2, dtype=np.int64), [pairs - 1]])
    noise = certain_rows(width * len(slots))
    values = np.arange(1.0, 1.0 + len(pattern)) * 1000
    expected_floats, expected_cells = with_open(pattern).tolist(), with_open(pattern).tolist()
    for row in reversed(range(len(noise))):
        i = int(slots[row // width]) * width + row % width
        if i < len(pattern) and pattern[i] == "o":
            expected_floats[i] = values[i] + (row + 1)
            expected_cells[i] = row + 1.0
    floats, cells = with_open(pattern), with_open(pattern)
    second_stage.settle_floats(noise, slots, width, values, 1.0, 2.0**-20, floats)
    second_stage.settle_cells(noise, slots, width, values.astype(np.int64), 0, 1.0, cells)
    assert floats.tolist() == expected_floats
    assert cells.tolist() == expected_cells


@pytest.mark.parametrize("width", [1, 2])
def test_uncertain_numbers_stay_open(width: int) -> None:
    """Also the last of an odd number, although the noise of its pair's second member is certain."""
    noise = certain_rows(6)
    noise[:5, 3] = noise_128bit.NO_BOUND
    slots = np.arange(6 // width) % 5
    values = np.arange(1, 6)
    floats, cells = np.full(5, math.nan), np.full(5, math.nan)
    second_stage.settle_floats(noise, slots, width, values.astype(np.float64), 1.0, 1.0, floats)
    second_stage.settle_cells(noise, slots, width, values, 0, 1.0, cells)
    settled = [] if width == 2 else [7.0]  # The second slot of the first number has noise of 6.
    assert floats[np.isfinite(floats)].tolist() == settled
    assert cells[np.isfinite(cells)].tolist() == [x - 1 for x in settled]


# All three stages against the reference.----------------------------------------------------------


def reference_cell(
    form: AdditiveForm, key: Key, i: int, value: Any, scale: float, grid: float
) -> int:
    """Return one cell from the key, computed only by the reference."""
    n, element = form.variates, i // form.width
    words = np.empty(n, dtype=np.uint64)
    key.stream(element * n).fill(words)
    rows = exact.rows_from_key(key, element, words)
    return reference.released_whole(form.formulas[i % form.width], rows, value, scale, grid)


# The number of slots: one, which is too few here; the usual number; one for each place.
SLOTS: dict[str, Callable[..., int]] = {
    "too few": lambda *_: 1,
    "usual": exact.slots_for,
    "all": lambda places, *_: places,
}


@pytest.fixture(params=SLOTS)
def _slots(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Use this number of slots, and short chunks."""
    monkeypatch.setattr(exact, "slots_for", SLOTS[request.param])
    monkeypatch.setattr(exact, "_CHUNK_WORDS", 96)


# Ratios of scale to grid at which the first stage leaves a tenth of the numbers open, and all.
FINE = [1.3 * 2.0**43, 2.0**50]


@pytest.mark.sample(6)
@pytest.mark.usefixtures("_slots")
@pytest.mark.parametrize("ratio", FINE)
@pytest.mark.parametrize("form", ADDITIVE.values(), ids=ADDITIVE)
def test_floats_equal_the_reference_for_any_number_of_slots(
    form: AdditiveForm, ratio: float
) -> None:
    """With odd sizes, in chunks, on two threads."""
    grid = 2.0**-45
    for count in (1, 2, 5, 99):
        key = Key(os.urandom(32))
        values = rng.standard_normal(count) * 2.0 ** rng.integers(-60, 40, count)
        released = exact.release_floats(form, values, ratio * grid, grid, key, 2)
        for i, value in enumerate(values.tolist()):
            point = exact_float(reference_cell(form, key, i, value, ratio * grid, grid), grid)
            assert bits_of(released[i]) == bits_of(point)


@pytest.mark.sample(6)
@pytest.mark.usefixtures("_slots")
@pytest.mark.parametrize("ratio", FINE)
@pytest.mark.parametrize("form", ADDITIVE.values(), ids=ADDITIVE)
def test_integers_equal_the_reference_for_any_number_of_slots(
    form: AdditiveForm, ratio: float
) -> None:
    """Also at the ends of int64, which noise exceeds."""
    for shift, count in ((0, 1), (0, 2), (0, 99), (7, 99), (62, 9)):
        scale = ratio * 2.0**shift
        key = Key(os.urandom(32))
        values = rng.integers(-(2**62), 2**62, count)
        values[: len(INTEGERS)] = INTEGERS[:count]
        released = exact.release_integers(form, values, shift, scale, key, 2).tolist()
        for i, value in enumerate(values.tolist()):
            cell = reference_cell(form, key, i, value, scale, 2.0**shift)
            assert released[i] == saturate(cell << shift)


@pytest.mark.parametrize("form", ADDITIVE.values(), ids=ADDITIVE)
def test_the_reference_decides_numbers_that_both_stages_leave_open(
    form: AdditiveForm, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Here the first stage decides nothing (see below), and the second one is disabled."""
    for name in ("settle_floats", "settle_cells"):
        monkeypatch.setattr(kernel_table.second_stage, name, lambda *arguments: arguments[-1].size)
    key, ratio = Key(os.urandom(32)), FINE[1]
    values = np.array(INTEGERS, dtype=np.int64)
    integers = exact.release_integers(form, values, 7, ratio * 2.0**7, key, 1).tolist()
    floats = exact.release_floats(form, values.astype(np.float64), ratio, 1.0, key, 1)
    for i, value in enumerate(INTEGERS):
        cell = reference_cell(form, key, i, value, ratio * 2.0**7, 2.0**7)
        assert integers[i] == saturate(cell << 7)
        assert floats[i] == exact_float(reference_cell(form, key, i, float(value), ratio, 1.0), 1.0)


@pytest.mark.parametrize("form", ADDITIVE.values(), ids=ADDITIVE)
def test_on_the_finest_grid_the_first_stage_leaves_all_open(form: AdditiveForm) -> None:
    """The two tests above rely on this: one slot is too few there, for all words."""
    words = np.frombuffer(rng.bytes(8 * form.variates * 99), dtype=np.uint64)
    out = np.empty(99)
    form.first_stage()(words, 64, np.zeros(99), 1.0, 1.0 / FINE[1], out)
    assert np.all(np.isnan(out))


@pytest.mark.parametrize("width", [1, 2])
@pytest.mark.parametrize("ratio", [2.0**-20, 0.01, 1.0, 2.0**20, 2.0**24])
def test_slots_are_too_few_with_a_probability_below_two_to_the_minus_64(
    ratio: float, width: int
) -> None:
    """The exact tail of the binomial distribution, for a call of `count` chunks."""
    p = mpmath.mpf(width * exact.open_after_first_stage(ratio))
    for places, count in product([1, 10, 1000, 2**13, 2**16], [1, 8, 10**6, 10**9]):
        slots = exact.slots_for(places, count, ratio, width)
        assert 1 <= slots <= places
        if slots < places:
            with mpmath.workprec(200):
                overflow = slots + 1
                term = mpmath.binomial(places, overflow) * p**overflow
                # Each further term is smaller by a factor of at least places p/(slots + 1).
                tail = term / (1 - places * p / overflow)
                assert count * tail < mpmath.ldexp(1, -64)


def test_an_overflowing_sum_shows_in_its_sign_and_a_raised_word_is_its_integer() -> None:
    """The proof of `release_raised` assumes this; cells are those that noise can give."""
    ends = [0, 1, 2**30, 2**61, 2**62 - 1, 2**62, 2**63 - 1]
    numbers = [sign * end for end in ends for sign in (1, -1)] + [-(2**63)]
    for a, b in product(numbers, repeat=2):
        whole, cell = np.int64(a), np.int64(b)
        with np.errstate(over="ignore"):
            total = whole + cell
        assert (((whole ^ total) & (cell ^ total)) < 0) == (not -(2**63) <= a + b < 2**63)
    for value in numbers:
        word = np.uint64(value + 2**63) ^ np.uint64(2**63)
        assert int(word.view(np.int64)) == value
