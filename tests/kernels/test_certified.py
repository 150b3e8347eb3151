"""The certified error bounds, compared with ball arithmetic."""

import ctypes
import json
import math
import os
import platform
import subprocess
import sys
from collections.abc import Callable, Sequence
from fractions import Fraction
from itertools import product
from typing import Any, NamedTuple

import mpmath
import numpy as np
import pytest
from flint import arb, ctx
from numpy.typing import NDArray
from proof import bit_tricks, facts, terms
from support import alarms
from support.choices import sample_cases

from dpnoise.core import reference
from dpnoise.kernels import certified, elementary, first_stage
from dpnoise.release.exact import ADDITIVE, FORMS

# The functions. --------------------------------------------------------------------------------
# `make proof` proves their bounds; these tests check the compiled functions.

# Name, coefficients, series, end of the interval of t.
POLYNOMIALS = {
    "log": (elementary.LOG_COEFFICIENTS, facts.log_series, facts.largest_ratio() ** 2),
    "sinpi": (elementary.SINPI_COEFFICIENTS, facts.sinpi_series, arb(1) / 4),
}


@pytest.mark.sample(1)
@pytest.mark.parametrize("name", POLYNOMIALS)
def test_a_planted_error_in_any_coefficient_is_found(name: str) -> None:
    """Each coefficient in turn is changed so that the polynomial changes by twice the bound."""
    coefficients, series, end = POLYNOMIALS[name]
    bound = float(facts.polynomial_error(name))
    size = abs(sum(c * float(end) ** k for k, c in enumerate(coefficients)))
    for k in sample_cases(range(len(coefficients)), 3):
        planted = [Fraction(c) for c in coefficients]
        planted[k] += Fraction(2 * bound * max(size, abs(coefficients[0])) / float(end) ** k)
        with ctx.workprec(300):
            error = facts.enclose_relative_error(planted, series, arb(end.upper()))
            assert not error <= bound


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("name", ["log", "sinpi"])
def test_no_point_is_further_off_than_is_proved(name: str, fused: bool) -> None:  # noqa: FBT001
    """Compiled, each multiply-add rounds once; interpreted, twice."""
    function: Any = {"log": elementary.log, "sinpi": elementary.sinpi}[name]
    evaluate = function if fused else function.py_func
    proved_bound = {"log": terms.LOG, "sinpi": terms.SINE}[name]
    rng = np.random.default_rng()
    points = 2.0 ** rng.uniform(-64, -1, 10_000)
    if name == "log":
        points = np.concatenate([points, rng.uniform(0.5, 2.0, 10_000), [0.75, 1.4142]])
    else:
        points = np.concatenate([points, rng.uniform(0.25, 0.5, 10_000), [0.5]])
    worst = arb(0)
    with ctx.workprec(120):
        for x in points.tolist():
            true = arb(x).sin_pi() if name == "sinpi" else arb(x).log()
            worst = worst.max(abs(arb(float(evaluate(x))) / true - 1).upper())
    units = float(worst * 2**53)
    print(f"\n{name}, {'fused' if fused else 'not fused'}: {units:.2f}u at worst")
    assert 0.9 < units <= proved_bound


@pytest.mark.sample(2)
@pytest.mark.parametrize("check", bit_tricks.ALL, ids=lambda check: check.__name__)
def test_bit_tricks_do_what_the_proof_assumes(check: Callable[[], None]) -> None:
    """Here on compiled functions; `make proof` runs them interpreted."""
    check()


# The errors. -----------------------------------------------------------------------------------

# Beyond this error no cell is decided, and the reference may have no finite ball.
NOTHING_CLAIMED = 1e100


class Number(NamedTuple):
    """One number of a form: its kernel, its formula and the number of uniforms."""

    kernel: Callable[..., tuple[float, float]]
    formula: reference.Formula
    variates: int


def cosine_of_pair(v: np.uint64, u: np.uint64, bits: int) -> tuple[float, float]:
    first, _, error = certified.gaussian_pair(v, u, bits)
    return first, error


def sine_of_pair(v: np.uint64, u: np.uint64, bits: int) -> tuple[float, float]:
    _, second, error = certified.gaussian_pair(v, u, bits)
    return second, error


NUMBERS = {
    name: Number(getattr(certified, name), form.formula, form.variates)
    for name, form in FORMS.items()
    if form.width == 1
} | {
    "gaussian_pairs[0]": Number(cosine_of_pair, FORMS["gaussian_pairs"].formulas[0], 2),
    "gaussian_pairs[1]": Number(sine_of_pair, FORMS["gaussian_pairs"].formulas[1], 2),
}
ADDITIVE_NUMBERS = [name for name in NUMBERS if name.split("[")[0] in ADDITIVE]


def test_every_number_of_every_form_is_held_to_its_bound() -> None:
    assert len(NUMBERS) == sum(form.width for form in FORMS.values())


def adversarial_words() -> list[int]:
    ends = [0, 1, 2, 2**63 - 1, 2**63, 2**63 + 1, 2**64 - 2, 2**64 - 1]
    near_one = [2**k for k in (10, 11, 12, 20, 40)]  # V near 1, cos near 1
    near_one.append(2**64 - 8194)  # V just above a power of two, where the bound is tightest
    near_zero = [2**64 - 2**k for k in (10, 11, 12, 20, 40)]  # V near 0
    angles = [2**62, 2**62 - 1, 3 * 2**62, 3 * 2**62 + 1, 2**63 - 2**11, 2**63 - 2**40]
    root_half = int(2**64 * (1 - math.sqrt(0.5)))
    return sorted({*ends, *near_one, *near_zero, *angles, root_half, root_half - 2048})


def largest_error(form: str, row: Sequence[int], bits: int, z: float) -> arb:
    """Return the largest |z - Z|, at a corner: Z is monotone in the unseen bits of each uniform."""
    further_bits = 128
    values = [int(word) >> (64 - bits) for word in row]
    low = [reference.Digits(value << further_bits, bits + further_bits) for value in values]
    high = [
        reference.Digits(((value + 1) << further_bits) - 1, bits + further_bits) for value in values
    ]
    largest = arb(0)
    with ctx.workprec(300):
        for corner in product(*zip(low, high, strict=True)):
            largest = largest.max(abs(arb(z) - NUMBERS[form].formula(corner)).upper())
    return largest


def worst_ratio(form: str, rows: NDArray[np.uint64]) -> float:
    """Return the largest |z - Z| / error over the rows, Z ranging over all unseen bits.

    One ball for all unseen bits is quick but slightly too wide; near the limit the corners count.
    """
    worst = 0.0
    with ctx.workprec(192):
        for row in rows:
            z, error = NUMBERS[form].kernel(*row, 64)
            assert error > 0
            if error > NOTHING_CLAIMED:
                continue
            ball = NUMBERS[form].formula([reference.Digits(int(word), 64) for word in row])
            ratio = float(abs(arb(z) - ball).upper() / arb(error))
            if ratio > 0.9:
                ratio = float(largest_error(form, row.tolist(), 64, z) / arb(error))
            worst = max(worst, ratio)
    return worst


def random_rows(count: int, n: int) -> NDArray[np.uint64]:
    return np.frombuffer(np.random.default_rng().bytes(8 * n * count), np.uint64).reshape(-1, n)


@pytest.mark.sample(1)
@pytest.mark.parametrize("form", NUMBERS)
def test_the_true_error_is_within_the_bound(form: str) -> None:
    """On random points and on adversarial ones; the margin is printed (pytest -s)."""
    n = NUMBERS[form].variates
    words = adversarial_words()
    adversarial = list(product(words, repeat=n)) if n < 4 else []
    if n == 4:
        few = [0, 1, 2**63, 2**64 - 1, 2**62, 2**64 - 2**11, 2**11]
        adversarial = list(product(few, repeat=4))
    random = random_rows(1_000_000 if alarms.LONG else 25_000, n)
    on_adversarial = worst_ratio(form, np.array(adversarial, dtype=np.uint64))
    on_random = worst_ratio(form, random)
    print(f"\n{form}: {on_random:.3f} of the bound at random, {on_adversarial:.3f} at the extremes")
    assert max(on_random, on_adversarial) <= 1


@pytest.mark.sample(8)
@pytest.mark.parametrize("form", NUMBERS)
@pytest.mark.parametrize("bits", [6, 8, 10, 20])
def test_the_bound_holds_for_short_words(form: str, bits: int) -> None:
    n = NUMBERS[form].variates
    top = np.uint64(2**64 - 2 ** (64 - bits))
    ends = np.array(list(product([0, 2**63 - 1, 2**64 - 1], repeat=n)), np.uint64)
    for row in np.concatenate([random_rows(2000 >> n, n), ends]) & top:
        z, error = NUMBERS[form].kernel(*row, bits)
        if error <= NOTHING_CLAIMED:
            assert largest_error(form, row.tolist(), bits, z) <= arb(error)


def test_an_unbounded_error_is_said_to_be_so() -> None:
    """If the unseen bits can change Z without limit, the error is beyond every grid."""
    last_word = 2**64 - 1
    for form, row in [
        ("exponential", [last_word]),
        ("laplace_1", [last_word]),
        ("gumbel", [0]),
        ("gumbel", [last_word]),
        ("gaussian_2", [0, 5]),
        ("gaussian_pairs[0]", [0, 5]),
        ("gaussian_pairs[1]", [last_word, 5]),
    ]:
        _, error = NUMBERS[form].kernel(*np.array(row, dtype=np.uint64), 64)
        assert error > 2.0**900


@pytest.mark.parametrize("form", ADDITIVE_NUMBERS)
def test_where_a_uniform_has_no_bound_nothing_is_decided(form: str) -> None:
    """With all ones in the first word of V, any other words, and all ratios of scale to grid.

    Mechanisms with floats have scale/grid >= 2^-60, with integers >= 2^-960.
    """
    n = NUMBERS[form].variates
    indices = [0] if n < 4 else [0, 2]
    for row in [*random_rows(50, n), np.full(n, 2**64 - 1), np.full(n, 2**63), np.zeros(n)]:
        for index in indices:
            words = np.array(row, dtype=np.uint64)
            words[index] = 2**64 - 1
            z, error = NUMBERS[form].kernel(*words, 64)
            for power in [-960, -955, -900, -60, 0, 50]:
                assert not first_stage.certain_point(0.0, z, error, 2.0**power, 1.0)[1]


# The flag that an operation with a tiny and inexact result raises (fenv.h).
UNDERFLOW = {"x86_64": 0x10, "AMD64": 0x10, "aarch64": 0x08, "arm64": 0x08}


@pytest.mark.skipif(platform.machine() not in UNDERFLOW, reason="the flag's number is not known")
def test_nothing_underflows_but_the_value_s_quotient_and_ratio_times_z() -> None:
    libm = ctypes.CDLL(None)
    flag = UNDERFLOW[platform.machine()]

    def underflows(call: Callable[..., object], *arguments: object) -> bool:
        call(*arguments)
        libm.feclearexcept(flag)
        call(*arguments)
        return bool(libm.fetestexcept(flag))

    words_near_ends = [
        0,
        1,
        2**11,
        2**62,
        2**63 - 1,
        2**63 - 2,
        2**63,
        2**64 - 2**11,
        2**64 - 2,
        2**64 - 1,
    ]
    for form, (kernel, _, n) in NUMBERS.items():
        words = list(product(words_near_ends[:: 1 if n < 4 else 3], repeat=n))
        for row in np.array(words, dtype=np.uint64):
            assert not underflows(kernel, *row, 64), (form, row)
            z, error = kernel(*row, 64)
            assert not underflows(first_stage.certain_point, 1.5, z, error, 2.0**-60, 1.0)
    assert underflows(first_stage.certain_point, 0.0, 2.0**-70 / 3, 2.0**-50, 2.0**-960, 1.0)
    assert first_stage.certain_point(0.0, 2.0**-70 / 3, 2.0**-50, 2.0**-960, 1.0) == (0.0, True)
    assert underflows(first_stage.certain_point, 1e-300 / 3, 0.5, 2.0**-50, 2.0**60, 2.0**100)


MEASURE_INTERPRETED = """
import json, sys
sys.path[:0] = ["tests", "tests/kernels", "tools"]
import test_certified as t
rows = 1500 if t.alarms.LONG else 400
print(json.dumps({form: t.worst_ratio(form, t.random_rows(rows, t.NUMBERS[form].variates))
                  for form in t.NUMBERS}))
"""


@pytest.mark.long
def test_the_bound_holds_without_fused_multiply_add() -> None:
    """Interpreted, every multiply-add rounds twice."""
    process = subprocess.run(
        [sys.executable, "-c", MEASURE_INTERPRETED],
        capture_output=True,
        check=True,
        text=True,
        env={**os.environ, "NUMBA_DISABLE_JIT": "1"},
    )
    for form, worst in json.loads(process.stdout).items():
        assert 0.01 < worst <= 1, form


# The reference. --------------------------------------------------------------------------------


def mpmath_formula(form: str, u: Sequence[mpmath.mpf]) -> mpmath.mpf:
    """Return the number by its definition, with another library."""

    def log_v(x: mpmath.mpf) -> mpmath.mpf:
        return mpmath.log(1 - x)

    def cosine(x: mpmath.mpf) -> mpmath.mpf:
        half = mpmath.mpf(1) / 2
        return mpmath.cos(mpmath.pi * x) if x < half else -mpmath.cos(mpmath.pi * (x - half))

    if form == "laplace_1":
        sign = 1 if u[0] < 0.5 else -1
        return sign * log_v(mpmath.frac(2 * u[0]))
    if form == "gaussian_2":
        return mpmath.sqrt(-2 * log_v(u[0])) * cosine(u[1])
    if form.startswith("gaussian_pairs"):
        turn = mpmath.pi * mpmath.frac(4 * u[1]) / 2
        first, second = (-1) ** int(2 * u[1]), (-1) ** int(4 * u[1])
        member = first * mpmath.cos(turn) if form.endswith("[0]") else second * mpmath.sin(turn)
        return mpmath.sqrt(-2 * log_v(u[0])) * member
    return -log_v(u[0]) if form == "exponential" else -mpmath.log(-log_v(u[0]))


@pytest.mark.sample(2)
@pytest.mark.parametrize("form", NUMBERS)
def test_the_reference_agrees_with_mpmath(form: str) -> None:
    """For 192 digits of each uniform, the ball contains the value and is narrow."""
    formula, n = NUMBERS[form].formula, NUMBERS[form].variates
    for _ in range(300):
        rows = random_rows(3, n).tolist()
        *_, ball = reference.enclosures(formula, rows)
        with mpmath.workprec(400):
            uniforms = [
                sum(mpmath.ldexp(mpmath.mpf(row[j]), -64 * (r + 1)) for r, row in enumerate(rows))
                + mpmath.ldexp(mpmath.mpf(1), -193)
                for j in range(n)
            ]
            value = mpmath_formula(form, uniforms)
            mantissa, exponent = int(value.man) * (-1 if value < 0 else 1), int(value.exp)
        with ctx.workprec(500):
            assert ball.contains(arb((mantissa, exponent)))
            assert ball.rad() < arb(2) ** -120


def test_a_decision_on_one_grid_is_that_on_another() -> None:
    """The proof is for a grid of 1; a factor of 2^k on all inputs is one on the result."""
    rng = np.random.default_rng()
    decided = 0
    for k in range(-950, 951, 5):
        value = float(rng.normal() * 2.0 ** rng.integers(-60, 60))
        z, error = float(rng.laplace()), float(2.0 ** rng.uniform(-51, -5))
        scale, factor = float(2.0 ** rng.uniform(-40, 40)), 2.0**k
        point, certain = first_stage.certain_point(value, z, error, scale, 1.0)
        scaled, as_certain = first_stage.certain_point(
            value * factor, z, error, scale * factor, factor
        )
        assert certain == as_certain
        assert (scaled == point * factor) or (not certain and math.isnan(scaled))
        decided += bool(certain)
    assert decided > 100
