"""Prove that the `error` of each form of `kernels.certified` covers the error of its noise.

The *contract* of a form is stronger than |z - Z| <= error, because later steps round too and read
the value:

    (1 - CUT u) error >= |z - Z| + KEPT u |z| + FLUSHED                     for all unseen bits

FLUSHED covers values that the processor flushes to 0 (see `decision`). G in the scripts is the left
side minus the right side, for either sign of z - Z. The hints collect its terms by common factors,
so that interval arithmetic shows each part to be at least 0 or small. Gappa checks that each hint
is an identity.

The range of -log V is cut into slices, within which it grows by a constant factor. In the first
slice it may be 0. Roots have no bound there, as at V = 0, and `nothing_is_decided` checks that no
cell is decided.
"""

import inspect
from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction
from typing import Any

import numpy as np

from dpnoise.kernels import certified
from proof import facts
from proof.statement import Case, Outcome, Statement, case, smallest_margin
from proof.terms import (
    BITS,
    LEMMAS,
    LOG,
    ONE_ROUNDING,
    SIGNS,
    UNIT,
    around_0,
    in_u,
    interval,
    not_zero,
    u,
)
from proof.translation import Translation, UntranslatableError, Value, gappa

CUT, KEPT = Fraction(8), Fraction(4)
PAIR_CUT, PAIR_KEPT = Fraction(16), Fraction(6)  # The same for `half_pair`.
FLUSHED = Fraction(1, 2**62)
# With an error of this size nothing is decided, on any grid.
NO_BOUND = 2.0**959

_ROUND, _ROUND_V = Fraction(certified.ROUND), Fraction(certified.ROUND_V)
# Factors by which -log V grows within a slice, from 1/10 on: narrow where the margin is small.
_WIDE, _NARROW = Fraction(5, 2), Fraction(3, 2)
_SMALL = Fraction(1, 256)
_ABOVE = {"+": "above", "-": "below"}


def _slices(factor: Fraction, least: Fraction) -> Iterator[tuple[Fraction, Fraction]]:
    """Yield intervals of -log V for the float V, up to V = 2^-64."""
    lower, upper = least, max(Fraction(102, 1024), facts.round_up(least * factor, 20))
    while lower < facts.LARGEST_LOG:
        yield lower, upper
        lower, upper = upper, facts.round_up(upper * factor, 20)


def _slice_name(ends: tuple[Fraction, Fraction]) -> str:
    return f"-log V from {float(ends[0]):.3g} to {float(ends[1]):.3g}"


class _Uniform:
    """V and its logarithm in a slice: definitions, hypotheses, and hints to rewrite them."""

    def __init__(
        self, translation: Translation, unit: Fraction, ends: tuple[Fraction, Fraction]
    ) -> None:
        self.float = translation.lemma_arguments["log"][0]
        self.log = f"log_{self.float}"
        definition = dict(translation.definitions)[self.float]
        word = next(integer for integer in reversed(translation.integers) if integer in definition)
        low, high = facts.exp_between(-ends[1], -ends[0], spread=in_u(2))
        real = f"ln_{self.float}"
        # theta is the effect of the unseen bits: log((a+1)/a) <= 1/a.
        self.definitions = [
            ("V", f"{word} * {gappa(unit)}"),
            ("w", f"{gappa(unit)} / V"),
            ("log_V", "ln_V + theta"),
        ]
        self.hypotheses = [
            f"V in [{gappa(max(unit, low))}, {gappa(high)}]",
            f"{real} in [{gappa(-ends[1])}, {gappa(-ends[0])}]",
            f"ln_V - {real} in {around_0(u(ONE_ROUNDING))}",
            "theta / w in [0, 1]",
        ]
        self.hints = [
            f"V / {self.float} -> 1 / (1 + ({self.float} - V) / V) {not_zero(['V', self.float])}",
            f"{self.log} - ln_V -> ({self.log} - {real}) - (ln_V - {real})",
        ]
        self.not_zero = [word, self.float]
        # unit * reciprocal_bound(V), in w.
        self.unseen = f"(bound_{self.float} * {self.float}) * (V / {self.float})"


def contract_margin(s: str, cut: Fraction, kept: Fraction, error: str, size: str, off: str) -> str:
    """Return the left side of the contract minus the right one, for one sign of z - Z."""
    return f"(1 - {u(cut)}) * {error} - {u(kept)} * {size} - {gappa(FLUSHED)} {SIGNS[s]} ({off})"


_GOAL = "G_above >= 0 /\\ G_below >= 0"
_MARGINS = ("G_above", "G_below")


def _log_case(kernel: Any, ends: tuple[Fraction, Fraction], unit: Fraction) -> Case:
    """Return the case of Z = log V in a slice; y is z with the sign of log V."""
    translation = Translation(LEMMAS)
    z, error = translation.call(kernel, "v", BITS)
    V = _Uniform(translation, unit, ends)
    # z is E = -log V, or -E, which has the sign of log V.
    E = z if kernel is certified.exponential else _negative_of(translation, z)
    y = f"(-{z})" if kernel is certified.exponential else z
    rounds = f"{gappa(_ROUND)} * {E} + {gappa(_ROUND_V)}"
    off = f"({y} - {V.log}) + ({V.log} - ln_V)"
    definitions = [*V.definitions, ("Z", "log_V * 1"), ("X", translation.without_roundings(error))]
    hints = [*V.hints, f"{y} - {V.log} -> -({E} - (0 - {V.log}))"]
    for s, minus in SIGNS.items():
        left = contract_margin(s, CUT, KEPT, error, f"(-{y})", f"{y} - Z")
        definitions.append((f"G_{_ABOVE[s]}", left))
        hints.append(
            f"G_{_ABOVE[s]} -> (1 - {u(CUT)}) * ({error} - X) + (1 - {u(CUT)}) * ({rounds})"
            f" + {u(KEPT)} * {y} - {gappa(FLUSHED)} {minus} ({off})"
            f" + w * ((1 - {u(CUT)}) * ({V.unseen}) {s} 1 * (theta / w)) {not_zero(V.not_zero)}"
        )
    return case(
        _slice_name(ends),
        translation,
        _GOAL,
        asks=_MARGINS,
        definitions=definitions,
        hypotheses=V.hypotheses,
        hints=hints,
    )


def _negative_of(translation: Translation, z: str) -> str:
    """Return the number y with z = -y."""
    definition = dict(translation.definitions).get(z, z)
    if not definition.startswith("(-"):
        raise UntranslatableError(f"{z} does not have the sign of log V.")
    return definition[2:-1]


def _root_case(
    kernel: Any,
    ends: tuple[Fraction, Fraction],
    cut: Fraction,
    kept: Fraction,
    *,
    twice: bool,
    member: int,
) -> Case:
    """Return the case of Z = sqrt(-log V) times a cosine, or with `twice` sqrt(-2 log V).

    Both sides are multiplied by r, the root of the float E; q is the root of the real number l.
    With kappa from 0 to 1, q = r + kappa (l - E)/r, because (q - r)(q + r) = l - E.
    """
    translation = Translation(LEMMAS)
    *values, error = translation.call(kernel, "v", "u", BITS)
    V = _Uniform(translation, UNIT, ends)
    R, VR = translation.lemma_arguments["reciprocal_bound"]
    z, angle = values[member], translation.lemma_arguments["sinpi"][member]
    c, low, C = f"c_{angle}", f"low_{angle}", f"C_{angle}"
    times, factor = ("2 * ", 2) if twice else ("", 1)
    E = f"(-2 * {V.log} + 0)" if twice else f"(0 - {V.log})"
    turned = 4 * factor * UNIT
    definitions = [
        *V.definitions,
        ("E", f"rnd{E}"),
        ("r", "sqrt(E)"),
        ("l", f"-{times}log_V"),
        ("q", "r + kappa * (l - E) / r"),
        ("Z", f"q * {C}"),
        ("X", translation.without_roundings(error, "_unseen")),
    ]
    hypotheses = [
        *V.hypotheses,
        "kappa in [0, 1]",
        f"{C} - {low} in [0, {gappa(turned)}]",
        f"E in [{gappa(factor * ends[0] / 2)}, {gappa(2 * factor * ends[1])}]",
    ]
    unseen = f"(bound_{VR} * {VR}) * ((V / {V.float}) * (({V.float} * {R} / {VR}) * (r / {R})))"
    hints = [
        f"E + {times}ln_V -> (E - {E}) - {times}({V.log} - ln_V)",
        f"r / {R} -> 1 / (1 + ({R} - r) / r) {not_zero(['r', R])}",
        f"{V.float} * {R} / {VR} -> 1 / (1 + ({VR} - {V.float} * {R}) / ({V.float} * {R}))"
        f" {not_zero([f'{V.float} * {R}', VR])}",
        *V.hints,
    ]
    for s, minus in SIGNS.items():
        left = contract_margin(s, cut, kept, error, z, f"{z} - Z")
        definitions.append((f"G_{_ABOVE[s]}", f"r * ({left})"))
        hints.append(
            f"G_{_ABOVE[s]} -> (1 - {u(cut)}) * (r * ({error} - X))"
            f" + (1 - {u(cut)}) * ({gappa(_ROUND + turned)} * (r * {R})"
            f" + {gappa(factor * _ROUND_V)} * ((bound_{R} * {R}) * (r / {R})))"
            f" - {u(kept)} * (r * {z}) - {gappa(FLUSHED)} * r"
            f" {minus} (r * ({z} - {R} * {c}) + (r * ({R} - r)) * {c}"
            f" + (r * r) * (({c} - {low}) - ({C} - {low})))"
            f" {minus} (kappa * {C}) * (E + {times}ln_V)"
            f" + {times}(w * ((1 - {u(cut)}) * ({unseen}) {minus} (kappa * {C}) * (theta / w)))"
            f" {not_zero(['r', R, VR, *V.not_zero])}"
        )
    return case(
        _slice_name(ends),
        translation,
        _GOAL,
        asks=[f"{left} / (r * {R})" for left in _MARGINS],
        definitions=definitions,
        hypotheses=hypotheses,
        hints=hints,
    )


# sqrt(2) times half_pair. ------------------------------------------------------------------------


def _answer_half_pair(translation: Translation, word: str, *_: Value) -> Value:
    """Answer a call of `half_pair` with the numbers that its contract allows."""
    z, error = f"z_{word}", f"error_{word}"
    for s in SIGNS:
        left = contract_margin(s, PAIR_CUT, PAIR_KEPT, error, f"size_{word}", f"{z} - Z_{word}")
        name = translation.define(f"left_{_ABOVE[s]}_{word}", left)
        translation.assume(f"{name} in [0, 1b1010]")
    translation.assume(f"@FLT({z}, 53)", f"@FIX({z}, -1074)", f"size_{word} in [0, 1024]")
    translation.assume(f"@FLT({error}, 53)", f"{error} in [1b-60, 1b1000]")
    return z, error


_HALVES = {"half_pair": _answer_half_pair}


def _times_root_2_case(sign: str) -> Case:
    """Return the case of z = sqrt(2) z_v, for z_v > 0 or z_v = 0; z has the sign of z_v."""
    translation = Translation(_HALVES)
    z, error = translation.call(certified.gaussian_2, "v", "u", BITS)
    root = gappa(Fraction(certified.SQRT_2))
    hypotheses = [
        "z_v in [1b-500, 1024]" if sign == "+" else "z_v in [0, 0]",
        "size_v - z_v in [0, 0]",
        f"{root} - root_2 in {interval(facts.root_2_error())}",
    ]
    definitions = []
    hints = [
        f"{error} / error_v -> 3b-1 * (1 + ({error} - 3b-1 * error_v) / (3b-1 * error_v))"
        f" {not_zero(['error_v'])}",
        f"root_2 -> {root} - ({root} - root_2)",
        f"{z} / z_v -> {root} + ({z} - {root} * z_v) / z_v {not_zero(['z_v'])}",
        f"({z} - {root} * z_v) / z_v -> {root} * (({z} - {root} * z_v) / ({root} * z_v))"
        f" {not_zero(['z_v'])}",
    ]
    for s, minus in SIGNS.items():
        rounds = (
            f"z_v * (root_2 * {u(PAIR_KEPT)} - {u(KEPT)} * ({z} / z_v)"
            f" {minus} (({z} - {root} * z_v) / z_v + ({root} - root_2)))"
            if sign == "+"
            else f"root_2 * {u(PAIR_KEPT)} * z_v - {u(KEPT)} * {z} {minus} ({z} - root_2 * z_v)"
        )
        left = contract_margin(s, CUT, KEPT, error, z, f"{z} - root_2 * Z_v")
        definitions.append((f"G_{_ABOVE[s]}", left))
        hints.append(
            f"G_{_ABOVE[s]} -> root_2 * left_{_ABOVE[s]}_v + (root_2 - 1) * {gappa(FLUSHED)}"
            f" + error_v * ((1 - {u(CUT)}) * ({error} / error_v) - root_2 * (1 - {u(PAIR_CUT)}))"
            f" + (root_2 * {u(PAIR_KEPT)}) * (size_v - z_v) + {rounds}"
            f" {not_zero(['error_v'] + ['z_v'] * (sign == '+'))}"
        )
    return case(
        f"z {sign}",
        translation,
        _GOAL,
        asks=_MARGINS,
        definitions=definitions,
        hypotheses=hypotheses,
        hints=hints,
    )


# Gumbel. -----------------------------------------------------------------------------------------

_PART = "part < 1.0"


def _gumbel_case(ends: tuple[Fraction, Fraction]) -> Case:
    """Return the case of Z = -log l with l = -log V in a slice.

    If E has a relative error of d, Z has an error of at most d/(1-d). For small E the computed
    part is well above d, and the odds d/(1-d) are compared by their quotient, otherwise by their
    difference.
    """
    translation = Translation(LEMMAS, {_PART: True})
    z, error = translation.call(certified.gumbel, "v", BITS)
    V = _Uniform(translation, UNIT, ends)
    E = translation.lemma_arguments["log"][1]
    part, unseen = (f"gumbel_{name}" for name in ("part", "unseen"))
    # A bound on the error of E + log V: Gappa counts a rounding of 0 - log V, which is exact.
    off = in_u(LOG + 1) * ends[1] + in_u(ONE_ROUNDING + Fraction(1, 128))
    a = gappa(facts.round_up(off))
    near = Fraction(1, 2**40)
    around = (
        facts.round_up(ends[0] * (1 - near), 60),
        facts.round_up(ends[1] * (1 + near), 60),
    )
    definitions = [
        *V.definitions,
        ("d", f"({a} + w) / {E}"),
        ("odds", "d / (1 - d)"),
        ("odds_of_part", f"{part} / (1 - {part})"),
        ("Z", f"-(ln_{E} + mu * odds)"),
        ("X", translation.without_roundings(error)),
        ("Y", translation.without_roundings(part)),
    ]
    hypotheses = [
        *V.hypotheses,
        f"{E} in {interval(around)}",
        f"ln_{E} in {interval(facts.log_between(*around))}",
        "mu in [-1, 1]",
        f"{part} in [0, {gappa(1 - in_u(1))}]",
    ]
    divisors = [E, "w", *V.not_zero, "1 - d", f"1 - {part}"]
    chord = f"(bound_{E} * {E})"
    hints = [
        *V.hints,
        f"{z} + ln_{E} -> ({z} - (0 - log_{E})) - (log_{E} - ln_{E})",
        f"{E} + ln_V -> ({E} - (0 - {V.log})) - ({V.log} - ln_V)",
    ]
    small = ends[1] <= _SMALL
    if small:
        hints += [
            f"odds / {unseen} -> (d / {part}) * (1 / (1 - d))"
            f" * ((1 - {part}) / (1 + ({unseen} - odds_of_part) / odds_of_part))"
            f" {not_zero([part, unseen, *divisors])}",
            f"d -> (d / {part}) * {part} {not_zero([part])}",
            f"d / {part} -> ({a} + w) / ({part} * {E}) {not_zero([E, part, *V.not_zero])}",
            f"{part} * {E} -> (Y * {E}) * (1 + ({part} - Y) / Y) {not_zero(['Y'])}",
            f"Y * {E} -> ({gappa(_ROUND_V)} + w * ({V.unseen})) * {chord} {not_zero(divisors)}",
        ]
    else:
        hints += [
            f"odds_of_part - odds -> ({part} - d) / ((1 - {part}) * (1 - d)) {not_zero(divisors)}",
            f"{part} - d -> ({part} - Y) + (({gappa(_ROUND_V)} * {chord} - {a})"
            f" + w * (({V.unseen}) * {chord} - 1)) / {E} {not_zero(divisors)}",
        ]
    whole = f"{gappa(_ROUND)} * (1 + |{z}|)"
    for s, minus in SIGNS.items():
        left = contract_margin(s, CUT, KEPT, error, f"|{z}|", f"{z} - Z")
        definitions.append((f"G_{_ABOVE[s]}", left))
        rest = f"- {u(KEPT)} * |{z}| - {gappa(FLUSHED)} {minus} ({z} + ln_{E})"
        if small:
            rounded = f"(1 - {u(CUT)}) * (1 + ({error} - X) / X)"
            collected = (
                f"{rounded} * ({whole}) {rest}"
                f" + {unseen} * ({rounded} {minus} mu * (odds / {unseen}))"
            )
        else:
            collected = (
                f"(1 - {u(CUT)}) * ({error} - X) + (1 - {u(CUT)}) * ({whole}) {rest}"
                f" + (1 - {u(CUT)}) * ({unseen} - odds_of_part)"
                f" + ((odds_of_part - odds) - {u(CUT)} * odds_of_part) + odds * (1 {minus} mu)"
            )
        conditions = not_zero(["X", unseen, *divisors] if small else divisors)
        hints.append(f"G_{_ABOVE[s]} -> {collected} {conditions}")
    return case(
        _slice_name(ends),
        translation,
        f"{_GOAL} /\\ d in [0, 0.5] /\\ {E} + ln_V in [-{a}, {a}]",
        asks=_MARGINS,
        definitions=definitions,
        hypotheses=hypotheses,
        hints=hints,
    )


def _gumbel_slices() -> Iterator[tuple[Fraction, Fraction]]:
    yield from ((Fraction(1, 2**54), Fraction(1, 2**32)), (Fraction(1, 2**32), Fraction(1, 2**16)))
    yield Fraction(1, 2**16), _SMALL
    lower = _SMALL
    while lower < facts.LARGEST_LOG:
        upper = facts.round_up(lower * _NARROW, 20)
        yield lower, upper
        lower = upper


# The statements. ---------------------------------------------------------------------------------


_ROOTS = (
    certified.half_pair,
    certified.gaussian_2,
    certified.gaussian_pair,
    certified.gumbel,
)


def _check_without_bound(kernel: Any, uniforms: int) -> Callable[[], None]:
    def nothing_is_decided() -> None:
        """Check that the error is too large to decide at V = 0, and for roots at V = 1."""
        first = [2**64 - 1]  # V = 0.
        if kernel in _ROOTS:
            first += [0, 1, 2**9]  # V = 1 as a float.
        if kernel is certified.laplace_1:
            first.append(2**63 - 1)
        for word in first:
            for others in (0, 1, 2**63, 2**64 - 1):
                words = [np.uint64(word)] + [np.uint64(others)] * (uniforms - 1)
                with np.errstate(all="ignore"):
                    *values, error = kernel(*words, 64)
                assert error >= NO_BOUND, f"{kernel} decides something at {word}"
                assert error <= 2.0**1000 or kernel is certified.gumbel, f"{kernel} at {word}"
                assert all(np.isfinite(values)), f"{kernel} is not finite at {word}"

    return nothing_is_decided


# The calls by which each form reads its words, and the angles of its sines. A lemma cannot detect
# a call with the wrong word.
_EXPECTED_READS = {
    "exponential": ["ones_after(v, 64)"],
    "laplace_1": ["ones_after(v, 64)", "with_sign_of(v, laplace_1_E)"],
    "half_pair": ["ones_after(v, 64)", "ones_after(u, 64)", "with_sign_of(u, c_cosine_argument)"],
    "gaussian_pair": [
        "ones_after(v, 64)",
        "ones_after(u, 64)",
        "as_unsigned(u)",
        "as_unsigned(u)",
        "with_sign_of(u, gaussian_pair_argument_2)",
        "with_sign_of(u_moved_1, gaussian_pair_argument_3)",
    ],
    "gaussian_2": ["half_pair(v, u, 64)"],
    "gumbel": ["ones_after(v, 64)"],
}
_EXPECTED_ANGLES = {
    "half_pair": ["rnd(rnd(ones_u_low_63) * 1b-64)"],
    # The cosine's, 1/2 (1 - T), and the sine's, T/2.
    "gaussian_pair": ["rnd(rnd(ones_u_low_62) * 1b-63)", "rnd(rnd(u_low_62) * 1b-63)"],
}
_READING_FUNCTIONS = ("ones_after", "as_unsigned", "with_sign_of", "half_pair")


def _check_reads(name: str) -> Callable[[], None]:
    def the_right_words_are_read() -> None:
        """Check which words, angles and signs a form reads, in order."""
        kernel = getattr(certified, name)
        halves = _HALVES if name == "gaussian_2" else {}
        translation = Translation({**LEMMAS, **halves}, {_PART: True})
        words = ("v", "u")[: len(inspect.signature(kernel).parameters) - 1]
        *values, _ = translation.call(kernel, *words, BITS)
        reads = [call for call in translation.calls if call.partition("(")[0] in _READING_FUNCTIONS]
        assert reads == _EXPECTED_READS[name], f"{name} reads {reads}"
        angles = [
            dict(translation.definitions)[x] for x in translation.lemma_arguments.get("sinpi", [])
        ]
        assert angles == _EXPECTED_ANGLES.get(name, []), f"{name} turns by {angles}"
        assert len(set(values)) == len(values), f"{name} returns one number twice"

    return the_right_words_are_read


_CONTRACT = "error, cut by {}u, covers abs(z - Z) + {}u abs(z); Z = {}"


def _form_statement(
    name: str,
    noise: str,
    make_cases: Callable[[], Sequence[Case]],
    summarize: Callable[[Sequence[Outcome]], str],
) -> Statement:
    kernel = getattr(certified, name)
    is_half = name in _HALVES
    claim = _CONTRACT.format(*((PAIR_CUT, PAIR_KEPT) if is_half else (CUT, KEPT)), noise)
    uniforms = len(inspect.signature(kernel).parameters) - 1
    checks = [_check_without_bound(kernel, uniforms), _check_reads(name)]
    return Statement(name, claim, make_cases, summarize, "`error`", checks)


def _summarize_halves(_: Sequence[Outcome]) -> str:
    return "follows"


def _margin_of_root(outcomes: Sequence[Outcome]) -> str:
    return smallest_margin(outcomes).replace(" ", " R ", 1)


def _exponential() -> list[Case]:
    return [_log_case(certified.exponential, ends, UNIT) for ends in _slices(_WIDE, Fraction(0))]


def _laplace_1() -> list[Case]:
    """Return the cases, for 63 bits."""
    return [_log_case(certified.laplace_1, ends, 2 * UNIT) for ends in _slices(_WIDE, Fraction(0))]


def _half_pair() -> list[Case]:
    slices = _slices(_NARROW, in_u(Fraction(1, 2)))
    return [
        _root_case(certified.half_pair, ends, PAIR_CUT, PAIR_KEPT, twice=False, member=0)
        for ends in slices
    ]


def _gaussian_pair() -> list[Case]:
    slices = _slices(_NARROW, in_u(Fraction(1, 2)))
    return [
        _root_case(certified.gaussian_pair, ends, CUT, KEPT, twice=True, member=member)
        for ends in slices
        for member in (0, 1)
    ]


def statements() -> list[Statement]:
    """Return the statements of this file."""
    return [
        _form_statement("exponential", "-log V", _exponential, smallest_margin),
        _form_statement("laplace_1", "log V", _laplace_1, smallest_margin),
        _form_statement("half_pair", "sqrt(-log V) cos(pi U) = R cos", _half_pair, _margin_of_root),
        _form_statement(
            "gaussian_2",
            "sqrt(2) times half_pair",
            lambda: [_times_root_2_case(sign) for sign in ("+", "0")],
            _summarize_halves,
        ),
        _form_statement(
            "gaussian_pair", "sqrt(-2 log V) cos and sin", _gaussian_pair, _margin_of_root
        ),
        _form_statement(
            "gumbel",
            "-log(-log V)",
            lambda: list(map(_gumbel_case, _gumbel_slices())),
            smallest_margin,
        ),
    ]
