"""Prove error bounds of `kernels.fixed`, the functions of the second stage.

Units are those of the result: 2^-128 for fractions, 2^-120 for magnitudes.
"""

import math
from fractions import Fraction
from typing import Any

from flint import arb, ctx

from dpnoise.kernels import fixed
from proof.enclosures import BITS, ball_hypothesis, bound_hypothesis, lower_end_of, upper_end_of
from proof.fixed_point import FixedPoint, Number, skip_statement, statement_in_units
from proof.statement import Case, Statement

# Bounds that the statements about the forms, and docs/exact-release-proof.md, use.
RECIPROCAL_ERROR, SINE_ERROR, ROOT_ERROR = 4, 64, 8
LOG_ERROR = 5  # In addition to 2e.
ZEROS = 67  # The error has no bound from this many leading zeros of V on.
FEW_ZEROS = 7  # From here on -log V is at least 4, and k of its root at most 2.
MOST_LOG = 93 * 2**119  # 46.5

_BOTH_SIDES = ("above", "below")
_C = fixed.whole(fixed.SQRT_HALF)
_HALF_C = fixed.whole(fixed._HALF_SQRT_HALF)

Values = dict[str, Any]


# 1/(2x). -----------------------------------------------------------------------------------------

_RECIPROCAL_LEAST, _RECIPROCAL_MOST = 2**126 + _HALF_C, 2**127 - 1 + _HALF_C
# Modulo 1 the 1 of the line vanishes, and 1 - xg is -xg: both wrap once.
WRAPS = ("minus(_RECIPROCAL_AT_0, times(_RECIPROCAL_SLOPE, x))", "minus((_0, _0), times(x, g))")


def half_reciprocal() -> Statement:
    """Return the statement about Newton's rule: 2xg = 1 - e becomes 1 - e^2, minus roundings."""
    cases: list[Case] = []
    off = [Fraction(1, 64)]

    def step(t: FixedPoint, g: Number) -> Number:
        """Prove the new e, and continue with any g that has it."""
        t.define("e", f"1 - x * {g.text} * 1b-255")
        if not cases:  # The line gives a parabola; Gappa finds its maximum by splitting x.
            line = (
                f"({fixed.whole(fixed._RECIPROCAL_AT_0) + 2**128}"
                f" - {fixed.whole(fixed._RECIPROCAL_SLOPE)} * x * 1b-128)"
            )
            hints = [f"e -> (1 - x * {line} * 1b-255) - x * 1b-255 * ({g.text} - {line})", "e $ x"]
        else:
            off.append(off[-1] ** 2 + Fraction(7, 2**129))
            exact = "(g * (1b128 - x * g * 1b-128) * 1b-128) * 1b1"
            hints = [
                f"e -> before * before - x * 1b-255 * ({g.text} - {exact})",
                "g -> (1 - before) * 1b255 / x { x <> 0 }",
            ]
        t.prove(bound_hypothesis("e", off[-1]))
        cases.append(t.case(f"step {len(cases)}", hints=hints))
        t.restart()
        t.free_variable("x", _RECIPROCAL_LEAST, _RECIPROCAL_MOST)
        t.define("before", "1 - x * g * 1b-255")
        t.assume("@FIX(g, 0)", bound_hypothesis("before", off[-1]))
        return Number("g", 128)

    wraps = dict.fromkeys(WRAPS, 1)
    t = FixedPoint(wraps=wraps, after={"half_reciprocal: g": step})
    t.used_keys.update(wraps)
    t.call(fixed.half_reciprocal, t.free_variable("x", _RECIPROCAL_LEAST, _RECIPROCAL_MOST))
    t.define("above", "g - 1b255 / x")
    t.define("below", "1b255 / x - g")
    hints = [
        "above -> -before * 1b255 / x { x <> 0 }",
        "below -> before * 1b255 / x { x <> 0 }",
        "g -> (1 - before) * 1b255 / x { x <> 0 }",
    ]
    t.prove(f"g in [0, {2**128 - 1}]")
    cases.append(t.case("result", _BOTH_SIDES, hints, most=RECIPROCAL_ERROR))
    claim = "1/(2x), from 5 steps of Newton's rule after a line"
    return statement_in_units("half_reciprocal", claim, RECIPROCAL_ERROR, cases)


_HALF_THE_ZEROS = "k = zeros_before(a) >> _1"


# The root. ---------------------------------------------------------------------------------------


def root() -> Statement:
    """Return the statement about Newton's rule: 1 + d = 4y sqrt(g) becomes 1 - 3/2 d^2 - d^3/2.

    r is the root of g; g is defined as its square, so that Gappa knows it.
    """
    cases: list[Case] = []
    off = [Fraction(1, 11)]

    def assume_any_g(t: FixedPoint) -> None:
        t.restart()
        t.define("g", "r * r * 1b128")
        t.assume("r in [1b-1, 1]", "@FIX(g, 0)", f"g in [{2**126}, {2**128 - 1}]")

    def start(_t: FixedPoint, values: Values) -> None:
        values["k"] = 0

    def step(t: FixedPoint, y: Number) -> Number:
        t.define("d", f"{y.text} * r * 1b-126 - 1")
        if not cases:
            line = (
                f"({fixed.whole(fixed._ROOT_AT_0)} - {fixed.whole(fixed._ROOT_SLOPE)} * g * 1b-128)"
            )
            hints = [f"d -> ({line} * r * 1b-126 - 1) + r * 1b-126 * ({y.text} - {line})", "d $ r"]
        else:
            off.append(off[-1] ** 2 * (3 + off[-1]) / 2 + Fraction(80, 2**128))
            exact = f"(y * ({3 * 2**124} - g * (y * y * 1b-128) * 1b-128) * 1b-128) * 1b3"
            hints = [
                f"d -> before * before * (-3 - before) * 1b-1 + r * 1b-126 * ({y.text} - {exact})",
                "y -> (1 + before) * 1b126 / r { r <> 0 }",
                "g * (y * y * 1b-128) * 1b-128 -> (1 + before) * (1 + before) * 1b124",
            ]
        t.prove(bound_hypothesis("d", off[-1]))
        cases.append(t.case(f"step {len(cases)}", hints=hints))
        assume_any_g(t)
        t.define("before", "y * r * 1b-126 - 1")
        t.assume("@FIX(y, 0)", bound_hypothesis("before", off[-1]))
        return Number("y", 128)

    t = FixedPoint(cuts={_HALF_THE_ZEROS: start}, after={"root: y": step})
    t.used_keys.add("root: y")
    assume_any_g(t)
    t.call(fixed.root, Number("g", 128, reduced=True))
    cases += [_root_of(k, off[-1]) for k in range(64)]
    claim = "the root of a magnitude, from 6 steps of Newton's rule after a line"
    return statement_in_units("root", claim, ROOT_ERROR, cases)


def _root_of(k: int, off: Fraction) -> Case:
    """Return the case of a magnitude with 2k or 2k + 1 leading zeros."""

    def half_the_zeros(_t: FixedPoint, values: Values) -> None:
        values["k"] = k

    def newton(t: FixedPoint, values: Values) -> None:
        t.define("before", "y * r * 1b-126 - 1")
        t.assume("@FIX(y, 0)", bound_hypothesis("before", off))
        values["y"] = Number("y", 128)

    t = FixedPoint(cuts={_HALF_THE_ZEROS: half_the_zeros, "for _ in ": newton})
    t.define("a", f"r * r * 1b{128 - 2 * k}")
    t.assume(
        "r in [1b-1, 1]", "@FIX(a, 0)", f"a in [{2 ** (126 - 2 * k)}, {2 ** (128 - 2 * k) - 1}]"
    )
    result, _ = t.call(fixed.root, Number("a", 128, reduced=True))
    true, product = f"r * 1b{124 - k}", f"{'root_g' if k else 'a'} * y * 1b-128"
    t.define("above", f"{result.text} - {true}")
    t.define("below", f"{true} - {result.text}")
    return t.case(
        f"k = {k}",
        _BOTH_SIDES,
        [
            "y -> (1 + before) * 1b126 / r { r <> 0 }",
            f"{product} - r * 1b126 -> r * before * 1b126",
            f"above -> ({result.text} - floor({product}) * 1b-{k + 2})"
            f" + (floor({product}) - r * 1b126) * 1b-{k + 2}",
            "below -> 0 - above",
        ],
        most=ROOT_ERROR,
    )


# The sine. ---------------------------------------------------------------------------------------


def half_sine() -> Statement:
    """Return the statement about Horner's rule, compared with the series of real coefficients."""
    t = FixedPoint()
    t.free_variable("t", 0, 2**128 - 1)
    result = t.call(fixed.half_sine, Number("t", 128, reduced=True))
    steps = [name for name, _ in t.definitions if name.startswith("half_sine_q")]
    terms = len(steps) + 1
    with ctx.workprec(BITS):
        for k in range(terms):
            coefficient = (arb.pi() / 2) ** (2 * k + 1) / math.factorial(2 * k + 1) * arb(2) ** 127
            t.assume(ball_hypothesis(f"c{k}", coefficient))
        next_term = (arb.pi() / 2) ** (2 * terms + 1) / math.factorial(2 * terms + 1)
        tail = upper_end_of(next_term * arb(2) ** 127)
    real = f"c{terms - 1}"
    hints = []
    for step, k in zip(steps, range(terms - 2, -1, -1), strict=True):
        real = t.define(f"q{k}", f"c{k} - t * t * 1b-128 * {real} * 1b-128")
        hints.append(f"{step} ~ {real}")
    t.define("series", f"t * {real} * 1b-128")
    t.assume(f"true - series in [-{tail}, {tail}]")
    t.define("above", f"{result.text} - true")
    t.define("below", f"true - {result.text}")
    hints.append("below -> 0 - above")
    case = t.case("all angles", _BOTH_SIDES, hints, most=SINE_ERROR)
    return statement_in_units("half_sine", "half of sin(pi t/2)", SINE_ERROR, [case])


_ATANH_OFF, _MOST_ATANH_OFF = "[-1.05, 0.05]", 1.05


# The logarithm. ----------------------------------------------------------------------------------


def twice_atanh() -> Statement:
    """Return the statement about the part of the logarithm that does not depend on the zeros."""
    cases = [_twice_atanh(below=below) for below in (False, True)]
    claim = "2 atanh s of `minus_log`, at most 1.05 too small and 0.05 too large"
    return statement_in_units("twice_atanh", claim, _MOST_ATANH_OFF, cases)


def _twice_atanh(*, below: bool) -> Case:
    """Return the case f < c, or f >= c."""

    def reciprocal(t: FixedPoint, x: Number) -> Number:
        t.define("x", t.require_unwrapped(x))
        t.prove(f"x in [{_RECIPROCAL_LEAST}, {_RECIPROCAL_MOST}]")
        t.assume(f"reciprocal - 1b255 / x in [-{RECIPROCAL_ERROR}, {RECIPROCAL_ERROR}]")
        t.assume("@FIX(reciprocal, 0)")
        return Number("reciprocal", 128)

    t = FixedPoint(
        choices={"zeros_before(v)": 0, "is_less(f, SQRT_HALF)": below},
        lemmas={"half_reciprocal": reciprocal},
    )
    t.call(
        fixed.minus_log, t.free_variable("f", *((2**127, _C - 1) if below else (_C, 2**128 - 1)))
    )
    steps = [name for name, _ in t.definitions if name.startswith("minus_log_rest")]
    terms = len(steps) + 1
    with ctx.workprec(BITS):
        c = (arb(1) / 2).sqrt()
        largest = (1 - c) / (1 + c) + arb(2) ** -100  # Of the computed and of the real s.
        t.assume(ball_hypothesis("c", c * arb(2) ** 128))
        t.assume(*(ball_hypothesis(f"c{k}", arb(2) ** 128 / (2 * k + 3)) for k in range(terms)))
        t.assume(f"slope in [1, {upper_end_of(1 / (1 - largest**2))}]")
        after = largest ** (2 * terms + 3) / (2 * terms + 3) / (1 - largest**2)
        t.assume(f"atanh_made - series in [0, {upper_end_of(after * arb(2) ** 128)}]")
        most = math.ceil(largest.upper() * arb(2) ** 128)
    t.prove(f"minus_log_s in [0, {most}]", f"s in [-1, {most}]")
    t.define("size", "c - f" if below else "f - c")
    t.define("s", "size * (1b256 / (f + c)) * 1b-128")
    real, hints = f"c{terms - 1}", []
    for step, k in zip(steps, range(terms - 2, -1, -1), strict=True):
        real = t.define(f"r{k}", f"c{k} + minus_log_s * minus_log_s * 1b-128 * {real} * 1b-128")
        hints.append(f"{step} ~ {real}")
    square = "minus_log_s * minus_log_s * 1b-128"
    t.define("series", f"minus_log_s + minus_log_s * ({square} * {real} * 1b-128) * 1b-128")
    # The mean value theorem, between the computed and the real s.
    t.define("atanh", "atanh_made + slope * (s - minus_log_s)")
    t.define("above", "minus_log_twice_atanh - atanh * 1b-7")
    t.define("below", "atanh * 1b-7 - minus_log_twice_atanh")
    unshifted = (
        dict(t.definitions)["minus_log_twice_atanh"].removeprefix("floor(").removesuffix(" * 1b-7)")
    )
    hints += [
        f"s -> {'c * 1b129 / (f + c) - 1b128' if below else '1b128 - c * 1b129 / (f + c)'}"
        " { f + c <> 0 }",
        f"x - (f + c) * 1b-1 -> (floor(f * 1b-1) - f * 1b-1) + ({_HALF_C} - c * 1b-1)",
        "1b255 / x - 1b256 / (f + c) -> 0 - 1b256 * (x - (f + c) * 1b-1) / (x * (f + c))"
        " { x <> 0, f + c <> 0 }",
        f"above -> (minus_log_twice_atanh - {unshifted} * 1b-7) + (({unshifted} - series)"
        " - (atanh_made - series) + slope * (minus_log_s - s)) * 1b-7 { f + c <> 0 }",
        "below -> 0 - above { f + c <> 0 }",
    ]
    if below:  # Gappa does not simplify a double negation.
        hints += [f"minus_log_size -> {_C} - f", f"minus_log_size - size -> {_C} - c"]
    t.prove(f"above in {_ATANH_OFF}", f"minus_log_twice_atanh in [0, {2**120}]")
    return t.case("f < c" if below else "f >= c", _BOTH_SIDES, hints, most=_MOST_ATANH_OFF)


def minus_log() -> Statement:
    """Return the statement about the rest of the logarithm, for all zeros and both sides of c."""
    cases = [_minus_log(e, below=below) for e in range(ZEROS) for below in (False, True)]
    claim = "-log V, never negative, without 2e for the e leading zeros of V"
    return statement_in_units("minus_log", claim, LOG_ERROR, cases)


def _minus_log(e: int, *, below: bool) -> Case:
    """Return the case of e zeros, with f < c or f >= c."""

    def set_twice_atanh(t: FixedPoint, values: Values) -> None:
        values["twice_atanh"] = t.free_variable("twice_atanh", 0, 2**120)
        t.assume(f"twice_atanh - twice_atanh_true in {_ATANH_OFF}")

    lines = ("s = ", "t = ", "rest = ", "for k in ")
    t = FixedPoint(
        choices={"zeros_before(v)": e, "is_less(f, SQRT_HALF)": below},
        cuts={"twice_atanh = ": set_twice_atanh, **dict.fromkeys(lines, skip_statement)},
    )
    # v 2^e and the truncated c are integers, so f < c is a comparison of integers.
    border = -(-_C >> e)
    v = t.free_variable("v", *((2**127 >> e, border - 1) if below else (border, (2**128 >> e) - 1)))
    result, _ = t.call(fixed.minus_log, v)
    with ctx.workprec(BITS):
        log_2 = arb(2).log() * arb(2) ** 120
        t.assume(ball_hypothesis("half_log_2", log_2 / 2))
        # 2^-e-1 <= V < 2^-e.
        t.assume(f"true in [{lower_end_of(log_2 * e)}, {upper_end_of(log_2 * (e + 1))}]")
    t.define("true", f"{2 * e + 1} * half_log_2 {'+' if below else '-'} twice_atanh_true")
    least = 2**122 if e >= FEW_ZEROS else 1
    constant = fixed.whole(fixed._HALF_LOG_2)
    sign = "+" if below else "-"
    difference = (
        f"{2 * e + 1} * ({constant} - half_log_2) + 1 {sign} (twice_atanh - twice_atanh_true)"
    )
    t.define("above", f"({result.text} - true) - {2 * e}")
    t.define("below", f"(true - {result.text}) - {2 * e}")
    t.prove(f"{result.text} - true >= -0.05", f"{result.text} in [{least}, {MOST_LOG}]")
    hints = [f"{result.text} - true -> {difference}", f"{result.text} -> true + ({difference})"]
    name = f"{e} zeros, f {'<' if below else '>='} c"
    return t.case(name, _BOTH_SIDES, hints, most=LOG_ERROR)


def statements() -> list[Statement]:
    """Return the statements; each relies on those before it."""
    return [half_reciprocal(), twice_atanh(), minus_log(), half_sine(), root()]
