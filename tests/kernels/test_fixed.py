"""128-bit fixed point: operations against Python's integers, errors against ball arithmetic."""

import json
import math
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from fractions import Fraction
from typing import Any, cast

import numba
import numpy as np
import pytest
from flint import arb, ctx

from dpnoise.kernels import fixed
from dpnoise.kernels.fixed import Wide

ALL = 2**128
rng = np.random.default_rng()


@pytest.fixture(autouse=True)
def _ignore_overflow() -> Iterator[None]:
    """Ignore warnings of interpreted arithmetic modulo 2^64; compiled code has none."""
    with np.errstate(all="ignore"):
        yield


def to_wide(number: int) -> Wide:
    return np.uint64(number >> 64), np.uint64(number & (2**64 - 1))


def number(pair: Wide) -> int:
    high, low = (int(word) for word in pair)
    assert 0 <= high < 2**64
    assert 0 <= low < 2**64
    return high << 64 | low


def random_number() -> int:
    """Return a number of random size, or one with a long run of ones."""
    digits = int.from_bytes(rng.bytes(16), "big") >> int(rng.integers(0, 128))
    return ALL - 1 - digits if rng.integers(2) else digits


ENDS = [
    *(0, 1, 2, 3, 2**63 - 1, 2**63, 2**64 - 1, 2**64, 2**64 + 1, 2**65 - 1, 2**126, 2**127 - 1),
    *(2**127, 2**127 + 1, ALL - 2**64 - 1, ALL - 2**64, ALL - 2**64 + 1, ALL - 2, ALL - 1),
]


PLACES = [*range(131), 191, 192, 1000, 2**64 - 1]


def numbers(count: int) -> list[int]:
    return [*ENDS, *(random_number() for _ in range(count))]


def pairs(count: int) -> list[tuple[int, int]]:
    return [
        *((a, b) for a in ENDS for b in ENDS),
        *((random_number(), random_number()) for _ in range(count)),
    ]


# Operations. -------------------------------------------------------------------------------------


def make_callable(name: str) -> Callable[..., Any]:
    """Return an operation that Python can call; those of LLVM can only be called in kernels."""
    operation: Callable[..., Any] = getattr(fixed, name)
    if not hasattr(operation, "definition"):
        return operation
    if name == "zeros_before":
        return cast("Callable[..., Any]", numba.njit(lambda a: operation(a)))  # noqa: PLW0108
    return cast("Callable[..., Any]", numba.njit(lambda a, b: operation(a, b)))  # noqa: PLW0108


def check_exact(count: int) -> None:
    """Compare every operation with Python's integers."""
    plus, minus, times, less, product, zeros_before, negated_if, up, down = map(
        make_callable,
        [
            "plus",
            "minus",
            "times",
            "is_less",
            "product",
            "zeros_before",
            "negated_if",
            "up",
            "down",
        ],
    )
    for a, b in pairs(count):
        A, B = to_wide(a), to_wide(b)
        assert number(plus(A, B)) == (a + b) % ALL
        assert number(minus(A, B)) == (a - b) % ALL
        assert number(times(A, B)) == a * b >> 128
        assert bool(less(A, B)) == (a < b)
        assert number(product(A[1], B[0])) == int(A[1]) * int(B[0])
    for a in numbers(count // 50):
        A = to_wide(a)
        assert int(zeros_before(A)) == 128 - a.bit_length()
        assert number(negated_if(np.uint64(2**64 - 1), A)) == -a % ALL
        assert number(negated_if(np.uint64(0), A)) == a
        assert int(fixed.mask_of(A[0])) == (2**64 - 1 if a >> 127 else 0)
        for places in PLACES:
            shifted = a << places if places < 128 else 0
            assert number(up(A, np.uint64(places))) == shifted % ALL
            assert number(down(A, np.uint64(places))) == a >> min(places, 128)
    for condition in (True, False, np.True_, np.False_):
        assert int(fixed.mask_where(condition)) == (2**64 - 1 if condition else 0)


def test_the_operations_are_those_of_integers() -> None:
    check_exact(2000)


compiler = pytest.mark.skipif(numba.config.DISABLE_JIT, reason="the compiler is off")

# The constants. ----------------------------------------------------------------------------------


def in_units(ball: arb, bits: int = 128) -> arb:
    return ball * arb(2) ** bits


def floor_of(ball: arb) -> int:
    """Return the floor of a ball that lies between two integers."""
    whole = ball.floor().unique_fmpz()
    assert whole is not None
    return int(whole)


def test_the_constants_are_right_to_the_last_unit() -> None:
    with ctx.workprec(600):
        half = arb(1) / 2
        assert number(fixed.SQRT_HALF) == floor_of(in_units(half.sqrt()))
        assert number(fixed._HALF_SQRT_HALF) == floor_of(in_units(half.sqrt() / 2))
        assert number(fixed._HALF_LOG_2) == floor_of(in_units(arb(2).log() / 2, 120)) + 1
        assert fixed._HALF_PI.denominator <= 2**192
        assert int(fixed._HALF_PI * 2**192) == floor_of(in_units(arb.pi() / 2, 192))
        assert number(fixed._THREE_SIXTEENTHS) == Fraction(3, 16) * ALL
        for k in range(fixed._ATANH_TERMS):
            assert number(fixed._ATANH[k]) == floor_of(in_units(arb(1) / (2 * k + 3)))
        for k in range(fixed._SINE_TERMS):
            term = (arb.pi() / 2) ** (2 * k + 1) / math.factorial(2 * k + 1) / 2
            assert number(fixed._SINE[k]) == floor_of(in_units(term))


def test_the_tails_of_the_series_are_below_a_unit() -> None:
    """Each is below a geometric series that starts with the first term left out."""
    with ctx.workprec(300):
        c = (arb(1) / 2).sqrt()
        # For f in [1/2, 1), |f - c|/(f + c) is largest at an end:
        s = ((c - arb(1) / 2) / (c + arb(1) / 2)).max((1 - c) / (1 + c))
        t = s * s
        assert t <= 0.0295
        n = fixed._ATANH_TERMS
        tail = s * t * t**n / (2 * n + 3) / (1 - t)
        assert in_units(tail) < 1
        assert in_units(tail / t**2) > 1, "two terms fewer would be enough"
        n = fixed._SINE_TERMS
        half_pi = arb.pi() / 2
        assert in_units(half_pi ** (2 * n + 1) / math.factorial(2 * n + 1) / 2) < 1
        assert in_units(half_pi ** (2 * n - 3) / math.factorial(2 * n - 3) / 2) > 1


# Newton's rule. ----------------------------------------------------------------------------------


def pieces(low: arb, high: arb, count: int) -> Iterator[arb]:
    half = (high - low) / (2 * count)
    for piece in range(count):
        yield arb((low + (2 * piece + 1) * half).mid(), half.upper() + arb(2) ** -60)


def as_ball(pair: Wide) -> arb:
    return arb((number(pair), -128))


def test_the_line_for_the_reciprocal_is_within_a_64th() -> None:
    with ctx.workprec(200):
        c = (arb(1) / 2).sqrt() / 2
        worst = arb(0)
        for x in pieces(arb(1) / 4 + c, arb(1) / 2 + c, 4000):
            line = 1 + as_ball(fixed._RECIPROCAL_AT_0) - as_ball(fixed._RECIPROCAL_SLOPE) * x
            worst = worst.max(abs(2 * x * line - 1).upper())
        assert worst <= arb(1) / 64
        assert worst >= arb(1) / 68, "the bound could be smaller"


def test_the_line_for_the_root_is_within_an_eleventh() -> None:
    with ctx.workprec(200):
        worst = arb(0)
        for g in pieces(arb(1) / 4, arb(1), 4000):
            line = as_ball(fixed._ROOT_AT_0) - as_ball(fixed._ROOT_SLOPE) * g
            worst = worst.max(abs(4 * g.sqrt() * line - 1).upper())
        assert worst <= arb(1) / 11
        assert worst >= arb(1) / 12, "the bound could be smaller"


def test_five_steps_lead_to_the_reciprocal() -> None:
    """2xg = 1 - d becomes 1 - d^2 in g <- 2g(1 - xg), apart from truncation.

    A unit of xg and a unit of the product are truncated, which adds 2(g + 1) units to the error of
    g. The line at the start has an error of two units more than was proved.
    """
    unit = arb(2) ** -128
    with ctx.workprec(300):
        x = arb("0.72855", "0.12505")  # All f/2 + c/2 with f in [1/2, 1).
        assert x.contains((1 + arb(2).sqrt()) / 4)
        assert x.contains((2 + arb(2).sqrt()) / 4)
        d, ideal = arb(1) / 64 + 4 * unit, arb(1) / 64
        for _ in range(5):
            cut = 2 * ((1 + d) / (2 * x) + 1) * unit
            off = d**2 / (2 * x) + cut
            before, ideal = ideal, ideal**2
            d = (2 * x * off).upper()
        assert off.upper() < 4 * unit
        assert before / 2 > 4 * unit, "four steps would be enough"


def test_six_steps_lead_to_the_root() -> None:
    """4y sqrt(g) = 1 - d becomes 1 - 3/2 d^2 + d^3/2 in y <- 8y(3/16 - g y^2), plus truncation.

    A unit of y^2, of g y^2 and of the product are truncated. This adds 8(2y + 1) units to the error
    of y, and 4 sqrt(g) times that to d, where y = (1 - d)/(4 sqrt(g)).
    """
    unit = arb(2) ** -128
    with ctx.workprec(300):
        d = ideal = arb(1) / 11
        d += 8 * unit  # The line is truncated, too.
        for _ in range(6):
            before, ideal = ideal, 3 * ideal**2 / 2 + ideal**3 / 2
            d = 3 * d**2 / 2 + d**3 / 2 + 8 * (2 * (1 + d) + 4) * unit
        # The root is g y = sqrt(g)/4 (1 - d), truncated, divided by 4 or more, truncated again.
        assert (d / 4 + unit) / 4 + unit < 8 * unit
        assert before / 16 > 8 * unit, "five steps would be enough"


# The functions. ----------------------------------------------------------------------------------


def error_in_units(computed: Wide, true: arb, bits: int) -> float:
    """Return the error of a number in units, rounded up."""
    return float(abs(arb(number(computed)) - in_units(true, bits)).upper())


def neighbours_of(centre: int, least: int = 0, most: int = ALL - 1) -> list[int]:
    return [x for k in range(-3, 4) if least <= (x := centre + k) <= most]


EXPONENTS = list(range(128))
SQRT_HALF = math.isqrt(2**255)
C_HALF = math.isqrt(2**253)


def reciprocals(count: int) -> list[int]:
    low, high = 2**126 + C_HALF, 2**127 + C_HALF
    random = [low + random_number() * (high - low) // ALL for _ in range(count)]
    ends = [
        *neighbours_of(low, least=low),
        *neighbours_of(high, most=high),
        *neighbours_of((low + high) // 2),
    ]
    return ends + random


def fractions(count: int) -> list[int]:
    """Return V above 0: of all sizes, near 1, and near powers of two and their roots."""
    borders = [
        x for e in EXPONENTS for x in (*neighbours_of(SQRT_HALF >> e), *neighbours_of(2**127 >> e))
    ]
    near_one = [ALL - 2**k for k in EXPONENTS] + [ALL - 1 - 2**k for k in EXPONENTS]
    return [x for x in (*borders, *near_one, *numbers(count)) if 0 < x < ALL]


def angles(count: int) -> list[int]:
    uniform = [int.from_bytes(rng.bytes(16), "big") for _ in range(count)]
    quarters = [x for k in range(1, 8) for x in neighbours_of(k * ALL // 8)]
    return [0, *numbers(count // 4), *uniform, *quarters]


def magnitudes(count: int) -> list[int]:
    powers = [x for k in EXPONENTS for x in neighbours_of(2**k)]
    return [*powers, *numbers(count)]


def worst_reciprocal(count: int) -> float:
    return max(
        error_in_units(fixed.half_reciprocal(to_wide(x)), arb(ALL) / (2 * arb(x)), 128)
        for x in reciprocals(count)
    )


def worst_logarithm(count: int) -> float:
    """Return the largest error of -log V, relative to its bound 2e + 5."""
    worst = 0.0
    for v in fractions(count):
        computed, e = fixed.minus_log(to_wide(v))
        assert int(e) == 128 - v.bit_length()
        assert number(computed) < 2**127, "negative"
        error = error_in_units(computed, -(arb((v, -128)).log()), 120)
        worst = max(worst, error / (2 * int(e) + 5))
    return worst


def worst_sine(count: int) -> float:
    return max(
        error_in_units(fixed.half_sine(to_wide(t)), arb((t, -129)).sin_pi() / 2, 128)
        for t in angles(count)
    )


def worst_root(count: int) -> float:
    worst = 0.0
    for a in magnitudes(count):
        computed, k = fixed.root(to_wide(a))
        worst = max(worst, error_in_units(computed, arb((a, -120)).sqrt(), 120))
        if a:  # root >= 2^(3-k), in real numbers: a 2^-120 >= 2^(6-2k)
            assert a << 2 * int(k) >= 2**126
        else:
            assert int(k) == 64
    return worst


# By name: the claimed bound in units, and the function that measures the largest error.
BOUNDS: dict[str, tuple[float, Callable[[int], float]]] = {
    "half_reciprocal": (4, worst_reciprocal),
    "minus_log": (1, worst_logarithm),  # In units of 2e + 5.
    "half_sine": (64, worst_sine),
    "root": (8, worst_root),
}


@pytest.mark.sample(1)
@pytest.mark.parametrize("name", BOUNDS)
def test_no_point_is_further_off_than_is_claimed(name: str) -> None:
    """On 10^4 random points and on adversarial ones; pytest -s prints the largest error."""
    claimed, worst = BOUNDS[name]
    with ctx.workprec(300):
        largest = worst(10_000)
    print(f"\n{name}: {largest:.2f} of {claimed}")
    assert 0 < largest < claimed


def test_the_functions_are_right_at_the_ends() -> None:
    """The sine and the root of 0 are 0, the last sine is 1/2, the last logarithm 2^-128."""
    assert number(fixed.half_sine(to_wide(0))) == 0
    top = number(fixed.half_sine(to_wide(ALL - 1)))
    assert 2**127 - 64 <= top <= 2**127
    assert number(fixed.root(to_wide(0))[0]) == 0
    assert 0 <= number(fixed.minus_log(to_wide(ALL - 1))[0]) <= 6


MEASURE_INTERPRETED = """
import json, sys
import numpy as np
sys.path[:0] = ["tests", "tests/kernels"]
import test_fixed as t
with np.errstate(all="ignore"), t.ctx.workprec(300):
    t.ENDS, t.PLACES, t.EXPONENTS = t.ENDS[::2], t.PLACES[::7], t.EXPONENTS[::9]
    t.check_exact(100)
    print(json.dumps({name: worst(30) for name, (_, worst) in t.BOUNDS.items()}))
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
    for name, largest in json.loads(process.stdout).items():
        assert 0 < largest < BOUNDS[name][0], name


def body_of(kernel: Any) -> str:
    """Return the LLVM IR of a kernel, compiled again, because cached code has none."""
    wide_type = numba.types.UniTuple(numba.uint64, 2)
    recompiled = numba.njit(error_model="numpy", no_cfunc_wrapper=True)(kernel.py_func)
    recompiled.compile((wide_type,))
    code: str = recompiled.inspect_llvm((wide_type,))
    start = code.index("define ")
    return code[start : code.index("\n}", start)]


@pytest.mark.sample(2)
@compiler
@pytest.mark.parametrize("name", ["minus_log", "half_sine", "root"])
def test_nothing_is_divided_nothing_is_a_float_nothing_is_called(name: str) -> None:
    """On some processors the time of these instructions depends on their operands."""
    body = body_of(getattr(fixed, name))
    assert " mul " in body
    assert not re.findall(r" [usf](?:div|rem) ", body)
    assert not re.findall(r"\b(?:double|float)\b", body)
    assert all("@llvm." in line for line in body.splitlines() if re.search(r"\bcall\b", line))
