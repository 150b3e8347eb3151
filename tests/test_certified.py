"""The certified error bounds: polynomials proved over their intervals, errors held to the judge."""

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

import alarms
import mpmath
import numpy as np
import pytest
from flint import arb, arb_poly, ctx, fmpz
from numpy.typing import NDArray

from dpnoise import reference
from dpnoise.kernels import certified, elementary, rounding
from dpnoise.release.deciding import ADDITIVE, FORMS

# The polynomials. ------------------------------------------------------------------------------

SERIES_TERMS = 60


def log_series(k: int) -> arb:
    """Coefficient of t^k in log((1+s)/(1-s))/s, t = s^2."""
    return arb(2) / (2 * k + 1)


def sinpi_series(k: int) -> arb:
    """Coefficient of t^k in sin(pi x)/x, t = x^2."""
    return (-1) ** k * arb.pi() ** (2 * k + 1) / arb(fmpz(2 * k + 1)).gamma() / (2 * k + 1)


# Name, coefficients, series, end of the interval of t, bound on the tail of the series, error.
POLYNOMIALS = {
    "log": (
        elementary.LOG_COEFFICIENTS,
        log_series,
        ((arb(2).sqrt() - 1) / (arb(2).sqrt() + 1)) ** 2,
        elementary.LOG_POLYNOMIAL_ERROR,
    ),
    "sinpi": (
        elementary.SINPI_COEFFICIENTS,
        sinpi_series,
        arb(1) / 4,
        elementary.SINPI_POLYNOMIAL_ERROR,
    ),
}


def enclose_relative_error(
    coefficients: Sequence[float | Fraction],
    series: Callable[[int], arb],
    end: arb,
    pieces: int = 400,
) -> arb:
    """Return an upper bound on |P/f - 1| over all of [0, end], in ball arithmetic.

    P - f is the polynomial of the differences of coefficients, up to a tail that is bounded. On
    each piece it is expanded around the middle, where its ball is as narrow as the piece allows.
    """
    with ctx.workprec(300):
        differences = [
            (reference.ball_of(coefficients[k]) if k < len(coefficients) else 0) - series(k)
            for k in range(SERIES_TERMS)
        ]
        difference = arb_poly(differences)
        function = arb_poly([series(k) for k in range(SERIES_TERMS)])
        # All further coefficients are below the last one, so the tail is below a geometric series.
        tail = abs(series(SERIES_TERMS)) * end**SERIES_TERMS / (1 - end)
        largest = arb(0)
        half = end / (2 * pieces)
        for piece in range(pieces):
            middle = (2 * piece + 1) * half
            around = difference(arb_poly([middle, 1])).coeffs()
            numerator = sum((abs(a) * half**k for k, a in enumerate(around)), arb(0)) + tail
            denominator = function(arb(middle.mid(), half)) - arb(0, tail)
            largest = largest.max((numerator / denominator).upper())
        return largest


@pytest.mark.parametrize("name", POLYNOMIALS)
def test_the_polynomial_error_is_proved_over_the_whole_interval(name: str) -> None:
    coefficients, series, end, bound = POLYNOMIALS[name]
    with ctx.workprec(300):
        error = enclose_relative_error(coefficients, series, arb(end.upper()))
        assert error <= bound
        assert error >= bound / 2, "the bound has grown slack"


@pytest.mark.parametrize("name", POLYNOMIALS)
def test_a_planted_error_in_any_coefficient_is_found(name: str) -> None:
    """Each coefficient in turn is moved so that the polynomial moves by twice the bound."""
    coefficients, series, end, bound = POLYNOMIALS[name]
    size = abs(sum(c * float(end) ** k for k, c in enumerate(coefficients)))
    for k in range(len(coefficients)):
        planted = [Fraction(c) for c in coefficients]
        planted[k] += Fraction(2 * bound * max(size, abs(coefficients[0])) / float(end) ** k)
        with ctx.workprec(300):
            assert not enclose_relative_error(planted, series, arb(end.upper())) <= bound


# Their evaluation. -----------------------------------------------------------------------------

U = 2.0**-53
# What x Q(x^2) is off by rounding, in u of itself: each multiply-add rounded once, or twice.
EVALUATION = {"log": {True: 2.03, False: 2.04}, "sinpi": {True: 3.16, False: 3.81}}
# How many times a relative error of x it takes on from x.
ARGUMENT = {"log": 1.021, "sinpi": 1.0}


def pieces_of(end: arb, count: int = 2000) -> list[arb]:
    return [arb((2 * piece + 1) * end / (2 * count), end / (2 * count)) for piece in range(count)]


def horner(coefficients: Sequence[float], t: arb, *, fused: bool) -> tuple[arb, arb, arb]:
    """Return Q(t), t Q'(t), and a bound on what Horner's rule is off, in u, to first order.

    A step c + t q is off by t times what q is, by its own rounding, and by that of t q.
    """
    q, derivative, error = arb(coefficients[-1]), arb(0), arb(0)
    for c in reversed(coefficients[:-1]):
        derivative = derivative * t + q
        product = q * t
        q = arb(c) + product
        error = error * abs(t) + abs(q) + (0 if fused else abs(product))
    return q, derivative * t, error


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("name", POLYNOMIALS)
def test_the_rounding_of_the_evaluation_is_proved_over_the_whole_interval(
    name: str,
    fused: bool,  # noqa: FBT001
) -> None:
    """The square x^2 is off by u, Horner's rule by its steps, the product with x by u."""
    coefficients, _, end, _ = POLYNOMIALS[name]
    evaluation = argument = arb(0)
    with ctx.workprec(120):
        for t in pieces_of(arb(end.upper())):
            q, slope, error = horner(coefficients, t, fused=fused)
            evaluation = evaluation.max(((abs(slope) + error) / q + 1).upper())
            argument = argument.max(abs(1 + 2 * slope / q).upper())
        assert evaluation <= EVALUATION[name][fused]
        assert evaluation >= EVALUATION[name][fused] - 0.011, "the constant has grown slack"
        assert argument <= ARGUMENT[name] + 1e-5  # So much wider than the truth are the balls.
        assert argument >= ARGUMENT[name] - 1e-3, "the constant has grown slack"


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("name", POLYNOMIALS)
def test_no_point_is_further_off_than_was_proved(name: str, fused: bool) -> None:  # noqa: FBT001
    """Compiled, each multiply-add rounds once; interpreted, twice. Most points are near the end."""
    function: Any = {"log": elementary.log_ratio, "sinpi": elementary.sinpi}[name]
    evaluate = function if fused else function.py_func
    _, _, end, polynomial = POLYNOMIALS[name]
    most = float(end.sqrt()) * (1 - 1e-15)
    nearness = np.concatenate([10.0 ** np.random.default_rng().uniform(-12, 0, 20_000), [0, 1e-15]])
    worst = arb(0)
    with ctx.workprec(120):
        for x in (most * (1 - nearness)).tolist():
            true = arb(x).sin_pi() if name == "sinpi" else ((1 + arb(x)) / (1 - arb(x))).log()
            if x:
                worst = worst.max(abs(arb(evaluate(x)) / true - 1).upper())
        units = float(worst / U)
    print(f"\n{name}, {'fused' if fused else 'not fused'}: {units:.2f}u at worst")
    assert 0.9 < units <= EVALUATION[name][fused] + polynomial / U


def test_the_constants_add_up_to_those_of_the_bound() -> None:
    """Equations (1) and (2) and "In total" of docs/exact-release.md, in u, nothing fused."""
    log_2 = math.log(2.0)
    with ctx.workprec(120):
        of_log_2 = float(abs(arb(elementary.LOG_2) - arb(2).log()) / U)
    of_f = 2 * ARGUMENT["log"] + elementary.LOG_POLYNOMIAL_ERROR / U + EVALUATION["log"][False]
    of_e = (of_log_2 + log_2) / log_2
    assert 2.8 < 1 + (of_f + of_e) * log_2 / 2 <= 2.9
    assert 2.3 < of_e + 1 <= 2.32
    of_cosine = ARGUMENT["sinpi"] + elementary.SINPI_POLYNOMIAL_ERROR / U
    assert 5.1 < of_cosine + EVALUATION["sinpi"][False] <= 5.2
    assert certified.ROUND_V == 4 * U
    assert certified.ROUND == 32 * U
    of_laplace, of_gaussian = 2.4 + 6 + 1, 2.4 + 6 + 1 + 1
    assert max(of_laplace, of_gaussian) + 1 + 2 <= 0.42 * 32
    # gaussian_2 has no sum of two terms, but a factor that is rounded, and a product with it.
    assert math.sqrt(2) * (of_gaussian + 2 + 2) <= 1.5 * 0.45 * 32
    assert math.sqrt(2) * 3 <= 1.5 * 0.75 * 4


def test_reciprocal_bound_is_above_the_reciprocal() -> None:
    rng = np.random.default_rng()
    points = np.concatenate([2.0 ** rng.uniform(-1000, 1000, 10_000), 2.0 ** np.arange(-900, 900)])
    bounds = np.array([certified.reciprocal_bound(x) for x in points])
    with np.errstate(over="ignore"):
        assert np.all(bounds * points >= 1)
        assert np.all(bounds * points <= 1.1251)
    assert certified.reciprocal_bound(0.0) == 2.0**1023


# The errors. -----------------------------------------------------------------------------------

# Beyond this error no cell is ever decided, and the judge may have no finite ball.
NOTHING_CLAIMED = 1e100


class Number(NamedTuple):
    """One number of a form: its kernel, its formula and how many uniforms both take."""

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
ADDED = [name for name in NUMBERS if name.split("[")[0] in ADDITIVE]


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


def at_the_corners(form: str, row: Sequence[int], bits: int, z: float) -> arb:
    """Return the largest |z - Z|: Z is monotone in what is not seen of each uniform."""
    more = 128
    values = [int(word) >> (64 - bits) for word in row]
    low = [reference.Digits(value << more, bits + more) for value in values]
    high = [reference.Digits(((value + 1) << more) - 1, bits + more) for value in values]
    largest = arb(0)
    with ctx.workprec(300):
        for corner in product(*zip(low, high, strict=True)):
            largest = largest.max(abs(arb(z) - NUMBERS[form].formula(corner)).upper())
    return largest


def worst_ratio(form: str, rows: NDArray[np.uint64]) -> float:
    """Return the largest |z - Z| / error over the rows, Z ranging over all unseen bits.

    One ball around all of them is quick but a little too wide; where it matters, the corners tell.
    """
    worst = 0.0
    with ctx.workprec(192):
        for row in rows:
            z, error = NUMBERS[form].kernel(*row, 64)
            if error > NOTHING_CLAIMED:
                continue
            ball = NUMBERS[form].formula([reference.Digits(int(word), 64) for word in row])
            ratio = float(abs(arb(z) - ball).upper() / arb(error))
            if ratio > 0.9:
                ratio = float(at_the_corners(form, row.tolist(), 64, z) / arb(error))
            worst = max(worst, ratio)
    return worst


def random_rows(count: int, n: int) -> NDArray[np.uint64]:
    return np.frombuffer(np.random.default_rng().bytes(8 * n * count), np.uint64).reshape(-1, n)


@pytest.mark.parametrize("form", NUMBERS)
def test_the_true_error_is_within_the_bound(form: str) -> None:
    """On 10^5 random points and on adversarial ones; the margin is printed (pytest -s)."""
    n = NUMBERS[form].variates
    words = adversarial_words()
    adversarial = list(product(words, repeat=n)) if n < 4 else []
    if n == 4:
        few = [0, 1, 2**63, 2**64 - 1, 2**62, 2**64 - 2**11, 2**11]
        adversarial = list(product(few, repeat=4))
    random = random_rows(1_000_000 if alarms.LONG else 100_000, n)
    on_adversarial = worst_ratio(form, np.array(adversarial, dtype=np.uint64))
    on_random = worst_ratio(form, random)
    print(f"\n{form}: {on_random:.3f} of the bound at random, {on_adversarial:.3f} at the extremes")
    assert max(on_random, on_adversarial) <= 1


@pytest.mark.parametrize("form", NUMBERS)
@pytest.mark.parametrize("bits", [6, 8, 10, 20])
def test_the_bound_holds_for_short_words(form: str, bits: int) -> None:
    n = NUMBERS[form].variates
    top = np.uint64(2**64 - 2 ** (64 - bits))
    ends = np.array(list(product([0, 2**63 - 1, 2**64 - 1], repeat=n)), np.uint64)
    for row in np.concatenate([random_rows(2000 >> n, n), ends]) & top:
        z, error = NUMBERS[form].kernel(*row, bits)
        if error <= NOTHING_CLAIMED:
            assert at_the_corners(form, row.tolist(), bits, z) <= arb(error)


def test_an_unbounded_error_is_said_to_be_so() -> None:
    """Where the unseen bits can move Z without limit, the error is beyond every grid."""
    most = 2**64 - 1
    for form, row in [
        ("exponential", [most]),
        ("laplace_1", [most]),
        ("laplace_4", [most, 0, 1, 0]),
        ("gumbel", [0]),
        ("gumbel", [most]),
        ("gaussian_2", [0, 5]),
        ("gaussian_4", [5, 5, most, 5]),
        ("gaussian_pairs[0]", [0, 5]),
        ("gaussian_pairs[1]", [most, 5]),
    ]:
        _, error = NUMBERS[form].kernel(*np.array(row, dtype=np.uint64), 64)
        assert error > 2.0**900


@pytest.mark.parametrize("form", ADDED)
def test_where_a_uniform_has_no_bound_nothing_is_decided(form: str) -> None:
    """All ones in the first word of V, the other words anything, at all ratios of scale to grid.

    Mechanisms with floats have scale/grid >= 2^-60, with integers >= 2^-960.
    """
    n = NUMBERS[form].variates
    places = [0] if n < 4 else [0, 2]
    for row in [*random_rows(50, n), np.full(n, 2**64 - 1), np.full(n, 2**63), np.zeros(n)]:
        for place in places:
            words = np.array(row, dtype=np.uint64)
            words[place] = 2**64 - 1
            z, error = NUMBERS[form].kernel(*words, 64)
            for power in [-960, -955, -900, -60, 0, 50]:
                assert math.isnan(rounding.certain_point(0.0, z, error, 2.0**power, 1.0))


# The flag that an operation with a tiny and inexact result raises (fenv.h).
UNDERFLOW = {"x86_64": 0x10, "AMD64": 0x10, "aarch64": 0x08, "arm64": 0x08}


@pytest.mark.skipif(platform.machine() not in UNDERFLOW, reason="the flag's number is not known")
def test_nothing_underflows_but_the_value_s_quotient_and_ratio_times_z() -> None:
    libm = ctypes.CDLL(None)
    flag = UNDERFLOW[platform.machine()]

    def raised(call: Callable[..., object], *arguments: object) -> bool:
        call(*arguments)
        libm.feclearexcept(flag)
        call(*arguments)
        return bool(libm.fetestexcept(flag))

    few = [0, 1, 2**11, 2**62, 2**63 - 1, 2**63 - 2, 2**63, 2**64 - 2**11, 2**64 - 2, 2**64 - 1]
    for form, (kernel, _, n) in NUMBERS.items():
        words = list(product(few[:: 1 if n < 4 else 3], repeat=n))
        for row in np.array(words, dtype=np.uint64):
            assert not raised(kernel, *row, 64), (form, row)
            z, error = kernel(*row, 64)
            assert not raised(rounding.certain_point, 1.5, z, error, 2.0**-60, 1.0)
    assert raised(rounding.certain_point, 0.0, 2.0**-70 / 3, 2.0**-50, 2.0**-960, 1.0)
    assert rounding.certain_point(0.0, 2.0**-70 / 3, 2.0**-50, 2.0**-960, 1.0) == 0.0
    assert raised(rounding.certain_point, 1e-300 / 3, 0.5, 2.0**-50, 2.0**60, 2.0**100)


MEASURE_INTERPRETED = """
import json, sys
sys.path.insert(0, "tests")
import test_certified as t
print(json.dumps({form: t.worst_ratio(form, t.random_rows(1500, t.NUMBERS[form].variates))
                  for form in t.NUMBERS}))
"""


def test_the_bound_holds_without_fused_multiply_add() -> None:
    """Interpreted, every multiply-add rounds twice."""
    done = subprocess.run(
        [sys.executable, "-c", MEASURE_INTERPRETED],
        capture_output=True,
        check=True,
        text=True,
        env={**os.environ, "NUMBA_DISABLE_JIT": "1"},
    )
    for form, worst in json.loads(done.stdout).items():
        assert 0.01 < worst <= 1, form


# The judge itself. -----------------------------------------------------------------------------


def mpmath_formula(form: str, u: Sequence[mpmath.mpf]) -> mpmath.mpf:
    """Evaluate the definition with another library."""

    def log_v(x: mpmath.mpf) -> mpmath.mpf:
        return mpmath.log(1 - x)

    def cosine(x: mpmath.mpf) -> mpmath.mpf:
        half = mpmath.mpf(1) / 2
        return mpmath.cos(mpmath.pi * x) if x < half else -mpmath.cos(mpmath.pi * (x - half))

    if form == "laplace_1":
        sign = 1 if u[0] < 0.5 else -1
        return sign * log_v(mpmath.frac(2 * u[0]))
    if form == "laplace_4":
        return log_v(u[0]) * cosine(u[1]) + log_v(u[2]) * cosine(u[3])
    if form == "gaussian_2":
        return mpmath.sqrt(-2 * log_v(u[0])) * cosine(u[1])
    if form == "gaussian_4":
        first = mpmath.sqrt(-log_v(u[0])) * cosine(u[1])
        return first + mpmath.sqrt(-log_v(u[2])) * cosine(u[3])
    if form.startswith("gaussian_pairs"):
        turn = mpmath.pi * mpmath.frac(4 * u[1]) / 2
        first, second = (-1) ** int(2 * u[1]), (-1) ** int(4 * u[1])
        member = first * mpmath.cos(turn) if form.endswith("[0]") else second * mpmath.sin(turn)
        return mpmath.sqrt(-2 * log_v(u[0])) * member
    return -log_v(u[0]) if form == "exponential" else -mpmath.log(-log_v(u[0]))


@pytest.mark.parametrize("form", NUMBERS)
def test_the_judge_agrees_with_mpmath(form: str) -> None:
    """For 192 digits of each uniform, the ball holds the value and is narrow."""
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
