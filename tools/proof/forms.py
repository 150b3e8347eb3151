"""The forms: that the `error` each returns covers what its noise is off by. `kernels.certified`.

What is proved of a form, its *contract*, is more than |z - Z| <= error, because later steps round
too and read the value:

    (1 - CUT u) error >= |z - Z| + KEPT u |z| + FLUSHED                       for all bits not seen

FLUSHED is for values that the processor takes for 0 (see `decision`). G in the scripts is the left
side less the right one, for either sign of z - Z. It is collected by what multiplies it, so that
Gappa's intervals see that each part is at least 0 or small; Gappa checks that this is an identity.

-log V goes through slices, within which it grows by a factor. In the first one it may be 0, which
for roots is a case of its own: they have no bound there, and `unbounded` shows that nothing is
decided, as at V = 0.
"""

import inspect
from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction
from typing import Any

import numpy as np

from dpnoise.kernels import certified
from proof import facts
from proof.statement import Case, Outcome, Statement, case, spare
from proof.terms import (
    BITS,
    LEMMAS,
    LOG,
    ONE_ROUNDING,
    SIGNS,
    UNIT,
    in_u,
    interval,
    not_zero,
    u,
    within,
)
from proof.translation import Translation, UntranslatableError, Value, gappa

CUT, KEPT = Fraction(8), Fraction(4)
PAIR_CUT, PAIR_KEPT = Fraction(16), Fraction(6)  # For `half_pair`.
FLUSHED = Fraction(1, 2**62)
# An error of this much decides nothing, on any grid.
NO_BOUND = 2.0**959

_ROUND, _ROUND_V = Fraction(certified.ROUND), Fraction(certified.ROUND_V)
# -log V grows within a slice by this factor, from 1/10 on: less where there is less to spare.
_WIDE, _NARROW = Fraction(5, 2), Fraction(3, 2)
_SMALL = Fraction(1, 256)
_ABOVE = {"+": "above", "-": "below"}


def _slices(factor: Fraction, least: Fraction) -> Iterator[tuple[Fraction, Fraction]]:
    """Yield intervals of -log V, of the float V, up to V = 2^-64."""
    lower, upper = least, max(Fraction(102, 1024), facts.rounded_up(least * factor, 20))
    while lower < facts.LARGEST_LOG:
        yield lower, upper
        lower, upper = upper, facts.rounded_up(upper * factor, 20)


def _name(ends: tuple[Fraction, Fraction]) -> str:
    return f"-log V from {float(ends[0]):.3g} to {float(ends[1]):.3g}"


class _Uniform:
    """V and its logarithm in a slice: definitions, hypotheses, and hints that take them apart."""

    def __init__(
        self, translation: Translation, unit: Fraction, ends: tuple[Fraction, Fraction]
    ) -> None:
        self.float = translation.asked["log"][0]
        self.log = f"log_{self.float}"
        made = dict(translation.definitions)[self.float]
        word = next(integer for integer in reversed(translation.integers) if integer in made)
        low, high = facts.exp_between(-ends[1], -ends[0], spread=in_u(2))
        real = f"ln_{self.float}"
        # theta is what the bits not seen add: log((a+1)/a) <= 1/a.
        self.definitions = [
            ("V", f"{word} * {gappa(unit)}"),
            ("w", f"{gappa(unit)} / V"),
            ("log_V", "ln_V + theta"),
        ]
        self.hypotheses = [
            f"V in [{gappa(max(unit, low))}, {gappa(high)}]",
            f"{real} in [{gappa(-ends[1])}, {gappa(-ends[0])}]",
            f"ln_V - {real} in {within(u(ONE_ROUNDING))}",
            "theta / w in [0, 1]",
        ]
        self.hints = [
            f"V / {self.float} -> 1 / (1 + ({self.float} - V) / V) {not_zero(['V', self.float])}",
            f"{self.log} - ln_V -> ({self.log} - {real}) - (ln_V - {real})",
        ]
        self.not_zero = [word, self.float]
        # unit * reciprocal_bound(V), in w.
        self.seen = f"(bound_{self.float} * {self.float}) * (V / {self.float})"


def left_of_contract(s: str, cut: Fraction, kept: Fraction, error: str, size: str, off: str) -> str:
    """Return what the contract says is at least 0, for one sign of what z is off by."""
    return f"(1 - {u(cut)}) * {error} - {u(kept)} * {size} - {gappa(FLUSHED)} {SIGNS[s]} ({off})"


_GOAL = "G_above >= 0 /\\ G_below >= 0"
_LEFT = ("G_above", "G_below")


def _log_case(kernel: Any, ends: tuple[Fraction, Fraction], unit: Fraction) -> Case:
    """Z = log V; y is z with the sign of log V."""
    translation = Translation(LEMMAS)
    z, error = translation.call(kernel, "v", BITS)
    V = _Uniform(translation, unit, ends)
    # z is E = -log V, or -E, which has the sign of log V.
    E = z if kernel is certified.exponential else _negated(translation, z)
    y = f"(-{z})" if kernel is certified.exponential else z
    rounds = f"{gappa(_ROUND)} * {E} + {gappa(_ROUND_V)}"
    off = f"({y} - {V.log}) + ({V.log} - ln_V)"
    definitions = [*V.definitions, ("Z", "log_V * 1"), ("X", translation.unrounded(error))]
    hints = [*V.hints, f"{y} - {V.log} -> -({E} - (0 - {V.log}))"]
    for s, minus in SIGNS.items():
        left = left_of_contract(s, CUT, KEPT, error, f"(-{y})", f"{y} - Z")
        definitions.append((f"G_{_ABOVE[s]}", left))
        hints.append(
            f"G_{_ABOVE[s]} -> (1 - {u(CUT)}) * ({error} - X) + (1 - {u(CUT)}) * ({rounds})"
            f" + {u(KEPT)} * {y} - {gappa(FLUSHED)} {minus} ({off})"
            f" + w * ((1 - {u(CUT)}) * ({V.seen}) {s} 1 * (theta / w)) {not_zero(V.not_zero)}"
        )
    return case(
        _name(ends),
        translation,
        _GOAL,
        asks=_LEFT,
        definitions=definitions,
        hypotheses=V.hypotheses,
        hints=hints,
    )


def _negated(translation: Translation, z: str) -> str:
    """Return the number of which z is the negative."""
    made = dict(translation.definitions).get(z, z)
    if not made.startswith("(-"):
        raise UntranslatableError(f"{z} does not have the sign of log V.")
    return made[2:-1]


def _root_case(
    kernel: Any,
    ends: tuple[Fraction, Fraction],
    cut: Fraction,
    kept: Fraction,
    *,
    twice: bool,
    member: int,
) -> Case:
    """Z = sqrt(-log V) times a cosine, or of twice it; both sides are multiplied by r.

    r is the root of the float E, and q that of the real number l. With kappa from 0 to 1,
    q = r + kappa (l - E)/r, because (q - r)(q + r) = l - E.
    """
    translation = Translation(LEMMAS)
    *values, error = translation.call(kernel, "v", "u", BITS)
    V = _Uniform(translation, UNIT, ends)
    R, VR = translation.asked["reciprocal_bound"]
    z, angle = values[member], translation.asked["sinpi"][member]
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
        ("X", translation.unrounded(error, "_unseen")),
    ]
    hypotheses = [
        *V.hypotheses,
        "kappa in [0, 1]",
        f"{C} - {low} in [0, {gappa(turned)}]",
        f"E in [{gappa(factor * ends[0] / 2)}, {gappa(2 * factor * ends[1])}]",
    ]
    seen = f"(bound_{VR} * {VR}) * ((V / {V.float}) * (({V.float} * {R} / {VR}) * (r / {R})))"
    hints = [
        f"E + {times}ln_V -> (E - {E}) - {times}({V.log} - ln_V)",
        f"r / {R} -> 1 / (1 + ({R} - r) / r) {not_zero(['r', R])}",
        f"{V.float} * {R} / {VR} -> 1 / (1 + ({VR} - {V.float} * {R}) / ({V.float} * {R}))"
        f" {not_zero([f'{V.float} * {R}', VR])}",
        *V.hints,
    ]
    for s, minus in SIGNS.items():
        left = left_of_contract(s, cut, kept, error, z, f"{z} - Z")
        definitions.append((f"G_{_ABOVE[s]}", f"r * ({left})"))
        hints.append(
            f"G_{_ABOVE[s]} -> (1 - {u(cut)}) * (r * ({error} - X))"
            f" + (1 - {u(cut)}) * ({gappa(_ROUND + turned)} * (r * {R})"
            f" + {gappa(factor * _ROUND_V)} * ((bound_{R} * {R}) * (r / {R})))"
            f" - {u(kept)} * (r * {z}) - {gappa(FLUSHED)} * r"
            f" {minus} (r * ({z} - {R} * {c}) + (r * ({R} - r)) * {c}"
            f" + (r * r) * (({c} - {low}) - ({C} - {low})))"
            f" {minus} (kappa * {C}) * (E + {times}ln_V)"
            f" + {times}(w * ((1 - {u(cut)}) * ({seen}) {minus} (kappa * {C}) * (theta / w)))"
            f" {not_zero(['r', R, VR, *V.not_zero])}"
        )
    return case(
        _name(ends),
        translation,
        _GOAL,
        asks=[f"{left} / (r * {R})" for left in _LEFT],
        definitions=definitions,
        hypotheses=hypotheses,
        hints=hints,
    )


# sqrt(2) times a half. ---------------------------------------------------------------------------


def _half(translation: Translation, word: str, *_: Value) -> Value:
    """Answer a call of `half_pair` by what its contract leaves of it."""
    z, error = f"z_{word}", f"error_{word}"
    for s in SIGNS:
        left = left_of_contract(s, PAIR_CUT, PAIR_KEPT, error, f"size_{word}", f"{z} - Z_{word}")
        name = translation.define(f"left_{_ABOVE[s]}_{word}", left)
        translation.assume(f"{name} in [0, 1b1010]")
    translation.assume(f"@FLT({z}, 53)", f"@FIX({z}, -1074)", f"size_{word} in [0, 1024]")
    translation.assume(f"@FLT({error}, 53)", f"{error} in [1b-60, 1b1000]")
    return z, error


_HALVES = {"half_pair": _half}


def _times_root_2_case(sign: str) -> Case:
    """Return z = sqrt(2) z_v, above 0 or 0: the sign of z_v is that of z."""
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
        left = left_of_contract(s, CUT, KEPT, error, z, f"{z} - root_2 * Z_v")
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
        asks=_LEFT,
        definitions=definitions,
        hypotheses=hypotheses,
        hints=hints,
    )


# Gumbel. -----------------------------------------------------------------------------------------

_PART = "part < 1.0"


def _gumbel_case(ends: tuple[Fraction, Fraction]) -> Case:
    """Z = -log l with l = -log V: where l is off E by a part d of E, Z is by d/(1-d) at most.

    For small E the computed part is well above d, and its odds d/(1-d) are compared by their
    quotient; else by their difference.
    """
    translation = Translation(LEMMAS, {_PART: True})
    z, error = translation.call(certified.gumbel, "v", BITS)
    V = _Uniform(translation, UNIT, ends)
    E = translation.asked["log"][1]
    part, unseen = (f"gumbel_{name}" for name in ("part", "unseen"))
    # What E + log V is off by: Gappa counts a rounding of 0 - log V, which there is none of.
    off = in_u(LOG + 1) * ends[1] + in_u(ONE_ROUNDING + Fraction(1, 128))
    a = gappa(facts.rounded_up(off))
    near = Fraction(1, 2**40)
    around = (
        facts.rounded_up(ends[0] * (1 - near), 60),
        facts.rounded_up(ends[1] * (1 + near), 60),
    )
    definitions = [
        *V.definitions,
        ("d", f"({a} + w) / {E}"),
        ("odds", "d / (1 - d)"),
        ("odds_of_part", f"{part} / (1 - {part})"),
        ("Z", f"-(ln_{E} + mu * odds)"),
        ("X", translation.unrounded(error)),
        ("Y", translation.unrounded(part)),
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
            f"Y * {E} -> ({gappa(_ROUND_V)} + w * ({V.seen})) * {chord} {not_zero(divisors)}",
        ]
    else:
        hints += [
            f"odds_of_part - odds -> ({part} - d) / ((1 - {part}) * (1 - d)) {not_zero(divisors)}",
            f"{part} - d -> ({part} - Y) + (({gappa(_ROUND_V)} * {chord} - {a})"
            f" + w * (({V.seen}) * {chord} - 1)) / {E} {not_zero(divisors)}",
        ]
    whole = f"{gappa(_ROUND)} * (1 + |{z}|)"
    for s, minus in SIGNS.items():
        left = left_of_contract(s, CUT, KEPT, error, f"|{z}|", f"{z} - Z")
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
        _name(ends),
        translation,
        f"{_GOAL} /\\ d in [0, 0.5] /\\ {E} + ln_V in [-{a}, {a}]",
        asks=_LEFT,
        definitions=definitions,
        hypotheses=hypotheses,
        hints=hints,
    )


def _gumbel_slices() -> Iterator[tuple[Fraction, Fraction]]:
    yield from ((Fraction(1, 2**54), Fraction(1, 2**32)), (Fraction(1, 2**32), Fraction(1, 2**16)))
    yield Fraction(1, 2**16), _SMALL
    lower = _SMALL
    while lower < facts.LARGEST_LOG:
        upper = facts.rounded_up(lower * _NARROW, 20)
        yield lower, upper
        lower = upper


# The statements. ---------------------------------------------------------------------------------


_ROOTS = (
    certified.half_pair,
    certified.gaussian_2,
    certified.gaussian_pair,
    certified.gumbel,
)


def _unbounded(kernel: Any, uniforms: int) -> Callable[[], None]:
    def nothing_is_decided() -> None:
        """At V = 0, and for roots at V = 1, the error is as good as infinite."""
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


# What each form reads of its words, and the angles of its sines: one lemma cannot see that a call
# was about another word.
_READS = {
    "exponential": ["ones_after(v, 64)"],
    "laplace_1": ["ones_after(v, 64)", "with_sign_of(v, laplace_1_E)"],
    "half_pair": ["ones_after(v, 64)", "ones_after(u, 64)", "with_sign_of(u, c_cosine_argument)"],
    "gaussian_pair": [
        "ones_after(v, 64)",
        "ones_after(u, 64)",
        "unsigned(u)",
        "unsigned(u)",
        "with_sign_of(u, gaussian_pair_argument_2)",
        "with_sign_of(u_moved_1, gaussian_pair_argument_3)",
    ],
    "gaussian_2": ["half_pair(v, u, 64)"],
    "gumbel": ["ones_after(v, 64)"],
}
_ANGLES = {
    "half_pair": ["rnd(rnd(ones_u_low_63) * 1b-64)"],
    # The cosine's, 1/2 (1 - T), and the sine's, T/2.
    "gaussian_pair": ["rnd(rnd(ones_u_low_62) * 1b-63)", "rnd(rnd(u_low_62) * 1b-63)"],
}
_OF_WORDS = ("ones_after", "unsigned", "with_sign_of", "half_pair")


def _reading(name: str) -> Callable[[], None]:
    def the_right_words_are_read() -> None:
        """Check which words, angles and signs a form takes, in their order."""
        kernel = getattr(certified, name)
        halves = _HALVES if name == "gaussian_2" else {}
        translation = Translation({**LEMMAS, **halves}, {_PART: True})
        words = ("v", "u")[: len(inspect.signature(kernel).parameters) - 1]
        *values, _ = translation.call(kernel, *words, BITS)
        read = [call for call in translation.calls if call.partition("(")[0] in _OF_WORDS]
        assert read == _READS[name], f"{name} reads {read}"
        angles = [dict(translation.definitions)[x] for x in translation.asked.get("sinpi", [])]
        assert angles == _ANGLES.get(name, []), f"{name} turns by {angles}"
        assert len(set(values)) == len(values), f"{name} returns one number twice"

    return the_right_words_are_read


_CONTRACT = "error, cut by {}u, covers abs(z - Z) + {}u abs(z); Z = {}"


def _statement(
    name: str,
    noise: str,
    make_cases: Callable[[], Sequence[Case]],
    left: Callable[[Sequence[Outcome]], str],
) -> Statement:
    kernel = getattr(certified, name)
    half = name in _HALVES
    says = _CONTRACT.format(*((PAIR_CUT, PAIR_KEPT) if half else (CUT, KEPT)), noise)
    uniforms = len(inspect.signature(kernel).parameters) - 1
    checks = [_unbounded(kernel, uniforms), _reading(name)]
    return Statement(name, says, make_cases, left, "`error`", checks)


def _from_halves(_: Sequence[Outcome]) -> str:
    return "follows"


def _of_root(outcomes: Sequence[Outcome]) -> str:
    return spare(outcomes).replace(" ", " R ", 1)


def _exponential() -> list[Case]:
    return [_log_case(certified.exponential, ends, UNIT) for ends in _slices(_WIDE, Fraction(0))]


def _laplace_1() -> list[Case]:
    """Return the proof with 63 bits."""
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
        _statement("exponential", "-log V", _exponential, spare),
        _statement("laplace_1", "log V", _laplace_1, spare),
        _statement("half_pair", "sqrt(-log V) cos(pi U) = R cos", _half_pair, _of_root),
        _statement(
            "gaussian_2",
            "sqrt(2) times half_pair",
            lambda: [_times_root_2_case(sign) for sign in ("+", "0")],
            _from_halves,
        ),
        _statement("gaussian_pair", "sqrt(-2 log V) cos and sin", _gaussian_pair, _of_root),
        _statement(
            "gumbel", "-log(-log V)", lambda: list(map(_gumbel_case, _gumbel_slices())), spare
        ),
    ]
