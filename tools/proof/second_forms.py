"""Prove that the errors which `kernels.noise_128bit` returns, as integers, are large enough.

The results of `proof.second_functions` are hypotheses here: a lemma returns any number within its
bound. Units are 2^-120.
"""

from collections.abc import Iterable, Sequence
from itertools import count, product

import numpy as np
from flint import arb, ctx

from dpnoise.kernels import noise_128bit
from proof.enclosures import BITS, ball_hypothesis, upper_end_of
from proof.fixed_point import Bits, FixedPoint, Number, Value, scale_by_power, statement_in_units
from proof.second_functions import FEW_ZEROS, LOG_ERROR, MOST_LOG, ROOT_ERROR, SINE_ERROR, ZEROS
from proof.statement import Case, Statement
from proof.translation import UntranslatableError

NO_BOUND = int(noise_128bit.NO_BOUND)
_BOTH_SIDES = ("above", "below")
_MOST_ROOT = 7 * 2**120
LARGEST_ERROR = 2**61  # Of noise with a bound; twice this is below NO_BOUND.


def minus_log_v() -> Statement:
    """Return the statement about the error of -log V, a constant for each e."""
    unbounded = (_error_of_log(e, unseen) for e in range(ZEROS, 129) for unseen in (0, 1))
    cases = [_no_bound_case((t, error) for t, _, error in unbounded)]
    cases += [_minus_log_v(e, unseen) for e in range(ZEROS) for unseen in (0, 1)]
    claim = "the error of -log V, without the unseen bits and 2e; no bound from 67 zeros on"
    return statement_in_units("minus_log_v", claim, 6, cases)


def _error_of_log(e: int, unseen: int) -> tuple[FixedPoint, Number, int]:
    """Return -log V and its error, for a V with e leading zeros."""

    def logarithm(t: FixedPoint, _v: Number) -> tuple[Number, np.uint64]:
        return t.free_variable("log", 0, 2**128 - 1), np.uint64(e)

    t = FixedPoint(lemmas={"minus_log": logarithm})
    v = t.free_variable("v", 2**127 >> e, max((2**128 >> e) - 1, 0))
    minus_log, error = t.call(noise_128bit._minus_log_v, v, np.uint64(unseen))
    return t, minus_log, int(error)


def _minus_log_v(e: int, unseen: int) -> Case:
    """Return the case of e zeros, with 2^unseen unseen units of V."""
    t, computed, error = _error_of_log(e, unseen)
    t.assume(f"log - log_v in [-{2 * e + LOG_ERROR}, {2 * e + LOG_ERROR}]")
    # log(V + x) = log V + slope x / V, with a slope from 0 to 1, and x up to 2^unseen units.
    t.assume("slope in [0, 1]", f"x in [0, {2**unseen}]")
    t.define("moved", "slope * (x / v) * 1b120")
    t.define("true", "log_v - moved")
    t.define("above", f"({computed.text} - true) - {error - 6}")
    t.define("below", f"(true - {computed.text}) - {error - 6}")
    t.prove(f"{error} in [1, {LARGEST_ERROR}]")
    hints = [
        "log - true -> (log - log_v) + moved { v <> 0 }",
        "true - log -> 0 - (log - true) { v <> 0 }",
    ]
    return t.case(f"{e} zeros, {2**unseen} units unseen", _BOTH_SIDES, hints, most=6)


def _no_bound_case(errors: Iterable[tuple[FixedPoint, int]]) -> Case:
    """Return the case that all these errors are NO_BOUND, with which nothing is decided."""
    t = FixedPoint()
    t.assume(f"none in [{NO_BOUND}, {NO_BOUND}]")
    for translation, error in errors:
        t.selections |= translation.selections
        t.prove(f"{error} - none in [0, 0]")
    return t.case("no bound")


def root_of_minus_log_v() -> Statement:
    """Return the statement about the root: |sqrt a - sqrt b| is at most |a - b| / sqrt b."""
    # k = 0 would mean a logarithm of at least 64, which "minus_log" excludes.
    cases = [_root_of_minus_log_v(k) for k in range(1, _HALF_ZEROS)]
    unbounded = [_no_bound_on_root(k, bounded=True) for k in range(_HALF_ZEROS, 65)]
    unbounded += [_no_bound_on_root(k, bounded=False) for k in range(65)]
    cases.append(_no_bound_case(unbounded))
    claim = "the error of sqrt(-log V), without E 2^(k-3); no bound from k = 50 on"
    return statement_in_units("root_of_minus_log_v", claim, 9, cases)


_HALF_ZEROS = 50  # The error has no bound from this many pairs of leading zeros on.


def _root_and_zeros(k: int, *, bounded: bool) -> FixedPoint:
    """Return a translation with an arbitrary logarithm, and a root with k."""

    def logarithm(t: FixedPoint, _v: Number, _unseen: np.uint64) -> tuple[Number, Number]:
        # A logarithm with k > 2 is below 4, so V has fewer than 7 zeros, by "minus_log".
        few = max(_error_of_log(e, 0)[2] for e in range(FEW_ZEROS))
        ends = (1, LARGEST_ERROR if k <= 2 else few) if bounded else (NO_BOUND, NO_BOUND)
        return t.free_variable("log", 0, 2**128 - 1), t.free_variable("error", *ends, bits=64)

    def root(t: FixedPoint, _a: Number) -> tuple[Number, np.uint64]:
        return t.free_variable("root", 0, 2**128 - 1), np.uint64(k)

    return FixedPoint(
        choices={"error < NO_BOUND": bounded}, lemmas={"_minus_log_v": logarithm, "root": root}
    )


def _root_of_minus_log_v(k: int) -> Case:
    """Return the case of a logarithm with 2k or 2k + 1 leading zeros."""
    t = _root_and_zeros(k, bounded=True)
    _, error = t.call(noise_128bit._root_of_minus_log_v, t.free_variable("v", 0, 2**128 - 1))
    # In units: of_made is the root of the computed logarithm, of_true the root of the real one.
    # By "minus_log" neither logarithm is above 46.5, so neither root is above 6.82.
    t.assume(f"root - of_made in [-{ROOT_ERROR}, {ROOT_ERROR}]")
    t.assume(f"of_made in [1b{123 - k}, {682 * 2**120 // 100}]", f"of_true in [0, {2**123}]")
    t.prove(f"root in [0, {_MOST_ROOT}]")
    t.define("off", "of_made * of_made * 1b-120 - of_true * of_true * 1b-120")
    t.assume("off / error in [-1, 1]")
    remaining = 9 - t.evaluate(error.text, {"error": 0})
    t.define("above", f"(root - of_true) - ({error.text} - 9)")
    t.define("below", f"(of_true - root) - ({error.text} - 9)")
    t.prove(f"{error.text} in [0, {LARGEST_ERROR}]")
    moved = f"{f'(error * 1b{k})' if k else 'error'} * 1b-3"
    slope = f"1b{123 - k} / (of_made + of_true)"
    nonzero = "{ error <> 0, of_made + of_true <> 0 }"
    return t.case(
        f"k = {k}",
        _BOTH_SIDES,
        [
            "root -> of_made + (root - of_made)",
            f"above -> (root - of_made) + ({moved}) * (off / error * ({slope}) - 1)"
            f" - (floor({moved}) - {moved}) + ({remaining}) {nonzero}",
            f"below -> (of_made - root) - ({moved}) * (off / error * ({slope}) + 1)"
            f" - (floor({moved}) - {moved}) + ({remaining}) {nonzero}",
        ],
        most=9,
    )


def _no_bound_on_root(k: int, *, bounded: bool) -> tuple[FixedPoint, int]:
    t = _root_and_zeros(k, bounded=bounded)
    _, error = t.call(noise_128bit._root_of_minus_log_v, t.free_variable("v", 0, 2**128 - 1))
    return t, int(error)


class _Form:
    """The words of a form, and the lemmas for the functions that it calls.

    Parameters
    ----------
    name
        The name of the case.
    known
        The number of sign bits at the start of an angle (or of Laplace's only uniform).
    unbounded
        Indices of the logarithms (or roots) that have no bound.
    """

    def __init__(self, name: str, known: int, *, unbounded: Sequence[int] = ()) -> None:
        self.t = FixedPoint(
            lemmas={
                "_minus_log_v": self.logarithm,
                "_root_of_minus_log_v": self.root,
                "half_sine": self.half_sine,
            },
        )
        self.t.used_keys.update(self.t.lemmas)
        self.name, self.known, self.unbounded = name, known, unbounded
        self.v: list[str] = []
        self.angles: list[str] = []
        self.radii, self.sines = count(), count()
        self.hints: list[str] = []

    def word(self, name: str, top: int, known: int) -> tuple[Bits, Number]:
        """Return the words of a uniform with known first bits."""
        self.t.free_variable(f"{name}_high", 0, 2 ** (64 - known) - 1)
        self.t.free_variable(f"{name}_low", 0, 2**64 - 1)
        self.t.assume(f"{name}_unseen in [0, 1]")
        return Bits(top, f"{name}_high", 64 - known), Number(f"{name}_low", 64, reduced=True)

    def of_v(self, name: str, top: int = 0, known: int = 0) -> tuple[Bits, Number]:
        """Return the uniform that becomes V."""
        self.v.append(f"1b128 - {_digits(name, known)}")
        return self.word(name, top, known)

    def of_angle(self, name: str, top: int, *, sine: bool = False) -> tuple[Bits, Number]:
        """Return the uniform that becomes a cosine, and with `sine` a sine too."""
        self.angles.append(f"1b128 - {_digits(name, self.known)}")
        self.angles += [_digits(name, self.known)] * sine
        return self.word(name, top, self.known)

    def prove_unseen(self, name: str, real: str, seen_digits: str, unseen: int) -> None:
        """Add the goal that a real number exceeds its seen digits by at most 2^unseen."""
        self.t.define(name, real)
        self.t.prove(f"{name} - {seen_digits} in [0, {2**unseen}]")
        unseen_variable = real.partition("_high")[0].rpartition("(")[2] + "_unseen"
        self.hints.append(
            f"{name} - {seen_digits} -> "
            + (
                f"{2**unseen} - {2**unseen} * {unseen_variable}"
                if "-" in real
                else f"{2**unseen} * {unseen_variable}"
            )
        )

    def radius(self, complement: Value, unseen: int, most: int) -> tuple[Number, Number]:
        """Return a logarithm or a root, and its error."""
        k = next(self.radii)
        self.prove_unseen(f"v{k}", self.v[k], self.t.require_unwrapped(complement), unseen)
        ends = (NO_BOUND, NO_BOUND) if k in self.unbounded else (1, LARGEST_ERROR)
        self.t.assume(f"(radius{k} - true{k}) / error{k} in [-1, 1]")
        return self.t.free_variable(f"radius{k}", 0, most), self.t.free_variable(
            f"error{k}", *ends, bits=64
        )

    def logarithm(self, _t: FixedPoint, complement: Value, unseen: int) -> tuple[Number, Number]:
        return self.radius(complement, int(unseen), MOST_LOG)

    def root(self, _t: FixedPoint, complement: Value) -> tuple[Number, Number]:
        return self.radius(complement, 0, _MOST_ROOT)

    def half_sine(self, t: FixedPoint, a: Value) -> Number:
        """Return half of a sine, within its error of that of the real angle."""
        k, seen_digits = next(self.sines), t.require_unwrapped(a)
        self.prove_unseen(f"angle{k}", self.angles[k], seen_digits, self.known)
        with ctx.workprec(BITS):
            t.assume(f"slope{k} in [0, {upper_end_of(arb.pi() / 4)}]")
        t.assume(f"sine{k} - of_seen{k} in [-{SINE_ERROR}, {SINE_ERROR}]")
        t.define(f"real{k}", f"of_seen{k} + slope{k} * (angle{k} - {seen_digits})")
        t.assume(f"real{k} in [0, 1b127]")
        self.hints.append(
            f"sine{k} - real{k} -> (sine{k} - of_seen{k}) - slope{k} * (angle{k} - {seen_digits})"
        )
        return t.free_variable(f"sine{k}", 0, 2**128 - 1)

    def case(self, computed: str, true: str, error: str, used: int, sides: Sequence[str]) -> Case:
        """Return the case that the noise is within its error, which contains the constant `used`.

        `sides` are hints for the excess above and below the error, without that constant.
        """
        self.t.define("above", f"({computed} - {true}) - ({error} - {used})")
        self.t.define("below", f"({true} - {computed}) - ({error} - {used})")
        nonzero = ", ".join(f"error{k} <> 0" for k in range(len(self.v)))
        constant = self.t.evaluate(error, {f"error{k}": 0 for k in range(len(self.v))})
        for side, text in zip(_BOTH_SIDES, sides, strict=True):
            self.hints.append(f"{side} -> {text} + ({used - constant}) {{ {nonzero} }}")
        return self.t.case(self.name, _BOTH_SIDES, self.hints, most=used)

    def no_bound(self, error: Value) -> Case:
        """Return the case that the error stays NO_BOUND or larger, so that nothing is decided."""
        self.t.goals.clear()
        self.t.prove(f"{self.t.require_unwrapped(error, 64)} >= {NO_BOUND}")
        return self.t.case(f"{self.name}, no bound")


def _digits(name: str, known: int) -> str:
    """Return the digits of a uniform after the known ones, as a number in units."""
    return scale_by_power(f"({name}_high * 1b64 + {name}_low + {name}_unseen)", known)


def laplace_1() -> Statement:
    """Return the statement about Laplace noise, whose sign is the first bit."""
    cases = []
    for sign, unbounded in product((0, 1), ((), (0,))):
        form = _Form(f"first bit {sign}", 1, unbounded=unbounded)
        magnitude, word, error = form.t.call(noise_128bit.laplace_1, form.of_v("u", sign, 1))
        _check_sign(word, 1 - sign)
        if unbounded:
            cases.append(form.no_bound(error))
            continue
        part = "(radius0 - true0) / error0"
        sides = [f"error0 * ({part} - 1)", f"error0 * (0 - {part} - 1)"]
        cases.append(form.case(magnitude.text, "true0", error.text, 0, sides))
    return statement_in_units(
        "second laplace_1", "the error of Laplace noise from 1 uniform: as of -log V", 0, cases
    )


def _check_sign(word: Bits, bit: int) -> None:
    """Raise an error if the first bit of a sign is wrong."""
    if word.top >> 63 - word.width != bit:
        raise UntranslatableError("The sign is not the expected bit.")


def gaussian_2() -> Statement:
    """Return the statement about one radius and one cosine."""
    cases = []
    for sign, unbounded in product((0, 1), ((), (0,))):
        form = _Form(f"first bit {sign}", 1, unbounded=unbounded)
        noise = form.t.call(noise_128bit.gaussian_2, form.of_v("v"), form.of_angle("u", sign))
        _check_sign(noise[1], sign)
        cases.append(_gaussian(form, noise, 0))
    claim = "the error of Gaussian noise from 2 uniforms, without 3/2 of that of the root"
    return statement_in_units("second gaussian_2", claim, 16, cases)


def gaussian_pair() -> Statement:
    """Return the statement about one radius, a cosine and a sine."""
    cases = []
    for signs, member, unbounded in product(range(4), (0, 1), ((), (0,))):
        form = _Form(f"first bits {signs:02b}, member {member}", 2, unbounded=unbounded)
        u = form.of_angle("u", signs, sine=True)
        noise = form.t.call(noise_128bit.gaussian_pair, form.of_v("v"), u)[member]
        _check_sign(noise[1], signs & 1 if member else signs >> 1)
        cases.append(_gaussian(form, noise, member))
    claim = "the error of both members of a Gaussian pair, without 3/2 of that of the root"
    return statement_in_units("second gaussian_pair", claim, 16, cases)


def _gaussian(form: _Form, noise: Value, member: int) -> Case:
    """Return the case that sqrt(2) R times a cosine or a sine is within its error."""
    t, (magnitude_value, _, error) = form.t, noise
    if form.unbounded:
        return form.no_bound(error)
    magnitude, off = t.require_unwrapped(magnitude_value), t.require_unwrapped(error, 64)
    with ctx.workprec(BITS):
        t.assume(ball_hypothesis("c", (arb(1) / 2).sqrt() * arb(2) ** 128))
    t.define("exact", f"((radius0 * c * 1b-128) * real{member} * 1b-128) * 1b2")
    t.define("factor", f"c * 1b-128 * real{member} * 1b-126")  # sqrt(2) times the cosine.
    part = "(radius0 - true0) / error0"
    cut = "(floor(error0 * 1b-1) - error0 * 1b-1)"
    sides = [
        f"({magnitude} - exact) + error0 * (factor * ({part}) - 1.5) - {cut}",
        f"(exact - {magnitude}) - error0 * (factor * ({part}) + 1.5) - {cut}",
    ]
    return form.case(magnitude, "(factor * true0)", off, 16, sides)


def statements() -> list[Statement]:
    """Return the statements; each relies on those before it."""
    return [
        minus_log_v(),
        root_of_minus_log_v(),
        laplace_1(),
        gaussian_2(),
        gaussian_pair(),
    ]
