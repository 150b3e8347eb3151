"""Prove the error bounds of `kernels.elementary`: words, log and sin(pi x)."""

from fractions import Fraction

from dpnoise.kernels import certified, elementary
from proof import bit_tricks, facts
from proof.statement import Case, Statement, case, largest_size
from proof.terms import (
    BITS,
    LEMMAS,
    LOG,
    ONE_ROUNDING,
    SINE,
    around_0,
    in_u,
    interval,
    polynomial,
    u,
)
from proof.translation import Translation, Value, binary_text, gappa

# Exponents e, one by one where |log x| may be small compared with e log 2. Forms have no others.
_EXPONENTS = ((0, 0), (-1, -1), (1, 1), (-2, -2), (2, 2), (-4, -3), (3, 6), (-64, -5))
QUOTIENT = 2 + Fraction(1, 1024)  # The relative error of (f-1)/(f+1), in u.
# The uniforms of the samplers, without rounding; k is the shifted word.
_UNIFORMS = (
    (elementary.uniform, "{k} * {unit}", 1),
    (elementary.complement, "{k} * -{unit} + 1", 1),
    (elementary.half_turn, "{k} * {unit}", 2),
    (elementary.half_turn_left, "{k} * -{unit} + 1b-1", 2),
)
_LARGEST_PRECISION = 53


def _conversion() -> list[Case]:
    """Prove the conversion of a word to a float."""
    translation = Translation(LEMMAS)
    float_v = translation.call(certified.lower_end, "v", BITS)
    return [
        case(
            "",
            translation,
            f"{float_v} -/ V in {around_0(u(1))}",
            asks=[f"{float_v} -/ V"],
            definitions=[("V", "ones_v * 1b-64")],
            hypotheses=["ones_v in [1, 18446744073709551615]"],
        )
    ]


def _exact_uniforms() -> list[Case]:
    """Prove that the uniforms of the samplers are exact."""
    cases = []
    for kernel, expected, least in _UNIFORMS:
        for precision in range(least, _LARGEST_PRECISION + 1):
            translation = Translation(LEMMAS)
            result = translation.call(kernel, "v", Fraction(precision))
            unit = binary_text(Fraction(1, 2**precision))
            # The top bits of the word, or of all its bits but the first.
            k = f"v{'' if least == 1 else '_low_63'}_from_{64 - precision}"
            exact = expected.format(k=k, unit=unit)
            name = f"{exact}, {precision} bits"
            cases.append(case(name, translation, f"{result} - ({exact}) in [0, 0]"))
    return cases


def _log_2() -> list[str]:
    lower, upper = facts.log_2_error()
    return [
        f"log_2 - {gappa(Fraction(elementary.LOG_2))} in {interval((lower, upper))}",
        "log_2 in [0.693147, 0.693148]",
    ]


def _log_case(first: int, last: int, *, below: bool, fused: bool) -> Case:
    e: Value = Fraction(first) if first == last else "e"
    translation = Translation({"binade": lambda *_: (e, "f")}, fused=fused)
    result = translation.call(elementary.log, "x")
    s = translation.definitions[0][0]
    ends = (bit_tricks.LEAST_F, 1 - in_u(1)) if below else (1 + in_u(2), 2 * bit_tricks.LEAST_F)
    moved = facts.round_up(facts.atanh_condition() * in_u(QUOTIENT))
    definitions = [
        ("S", "(f - 1) / (f + 1)"),
        ("T", f"{s} * {s}"),
        ("P", f"{s} * {polynomial(elementary.LOG_COEFFICIENTS, 'T')}"),
        ("log_x", f"{gappa(e)} * log_2 + log_f" if e else "log_f"),
    ]
    hypotheses = [
        f"f in {interval(ends)}",
        "@FLT(f, 53)",
        f"P -/ log_s in {around_0(facts.polynomial_error('log'))}",
        f"log_s -/ log_f in {around_0(moved)}",
        "log_f in [-0.34658, 0]" if below else "log_f in [0, 0.34658]",
        *_log_2(),
    ]
    if e == "e":
        hypotheses += [f"e in [{first}, {last}]", "@FIX(e, 0)"]
    # `moved` follows from the error of s, which is a part of the goal.
    goal = f"{s} -/ S in {around_0(u(QUOTIENT))} /\\ {result} -/ log_x in {around_0(u(LOG))}"
    asks = [f"{result} -/ log_x"]
    name = f"e {first} to {last}, f {'<' if below else '>'} 1, {'fused' if fused else 'unfused'}"
    return case(name, translation, goal, asks=asks, definitions=definitions, hypotheses=hypotheses)


def _log_of_power(e: int) -> Case:
    """Return the case of f = 1, where log((1+s)/(1-s)) is exactly 0."""
    translation = Translation({"binade": lambda *_: (Fraction(e), Fraction(1))})
    result = gappa(translation.call(elementary.log, "x"))
    goal = f"{result} -/ ({e} * log_2) in {around_0(u(LOG))}" if e else f"{result} in [0, 0]"
    return case(f"e {e}, f 1", translation, goal, hypotheses=_log_2())


def _logarithm() -> list[Case]:
    """Return the cases of the logarithm."""
    cases = [
        _log_case(*exponents, below=below, fused=fused)
        for exponents in _EXPONENTS
        for below in (True, False)
        for fused in (True, False)
    ]
    return cases + [_log_of_power(e) for e in range(_EXPONENTS[-1][0], _EXPONENTS[-2][1] + 1)]


def _sine_case(*, fused: bool) -> Case:
    translation = Translation({}, fused=fused)
    result = translation.call(elementary.sinpi, "x")
    definitions = [
        ("T", "x * x"),
        ("P", f"x * {polynomial(elementary.SINPI_COEFFICIENTS, 'T')}"),
    ]
    hypotheses = [
        "x in [1b-64, 0.5]",
        "@FLT(x, 53)",
        f"P -/ sine_x in {around_0(facts.polynomial_error('sinpi'))}",
        # x is a fraction of 62 or 63 bits, rounded by u; the sine changes by no more than u.
        f"sine_x -/ sine in {around_0(u(ONE_ROUNDING))}",
    ]
    goal, asks = f"{result} -/ sine in {around_0(u(SINE))}", [f"{result} -/ sine"]
    name = "fused" if fused else "unfused"
    return case(name, translation, goal, asks=asks, definitions=definitions, hypotheses=hypotheses)


def statements() -> list[Statement]:
    """Return the statements of this file."""
    return [
        Statement(
            "bit tricks",
            "binade, reciprocal_bound, power_of_two, complements and signs, as the proofs use them",
            summarize=lambda _: "by running them",
            checks=bit_tricks.ALL,
        ),
        Statement("lower_end", "V becomes a float", _conversion, largest_size, "1u relative"),
        Statement(
            "uniforms",
            "uniform and complement of 1 to 53 bits, half_turn and half_turn_left of 2 to 53",
            _exact_uniforms,
            lambda _: "0",
            "0",
        ),
        Statement("log", "log x, 2^-64 <= x <= 64", _logarithm, largest_size, f"{LOG}u relative"),
        Statement(
            "sinpi",
            "sin(pi x), 0 <= x <= 1/2, including the rounding of x to a float",
            lambda: [_sine_case(fused=True), _sine_case(fused=False)],
            largest_size,
            f"{SINE}u relative",
        ),
    ]
