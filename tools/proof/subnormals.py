"""Prove that no form computes a subnormal number, so that flushing them to 0 changes nothing.

Each definition of a form is 0 or between 2^-300 and 2^1000 in absolute value, for all words. A sine
may be exactly 0, and then the noise is 0 too.
"""

from fractions import Fraction

from dpnoise.kernels import certified, elementary
from proof import facts
from proof.statement import Case, Statement, case
from proof.terms import BITS, LEMMAS, UNIT, in_u
from proof.translation import Translation, gappa

_FORMS = (
    (certified.exponential, 1, UNIT),
    (certified.laplace_1, 1, 2 * UNIT),
    (certified.half_pair, 2, UNIT),
    (certified.gaussian_2, 2, UNIT),
    (certified.gaussian_pair, 2, UNIT),
    (certified.gumbel, 1, UNIT),
)


def _case(form: object, uniforms: int, unit: Fraction) -> Case:
    translation = Translation(LEMMAS, {"part < 1.0": True})
    *_, error = translation.call(form, *("v", "u")[:uniforms], BITS)
    least, most = gappa(in_u(Fraction(1, 4))), gappa(facts.LARGEST_LOG)
    hypotheses = [f"|ln_{x}| in [{least}, {most}]" for x in translation.lemma_arguments["log"]]
    hypotheses += [
        f"{integer} in [1, {1 / unit - 1}]"
        for integer in translation.integers
        if any(integer in text for _, text in translation.definitions)
    ]
    hypotheses.append(f"ln_{translation.lemma_arguments['log'][0]} <= 0")
    if form is certified.gumbel:
        hypotheses.append(
            f"gumbel_part in [0, {gappa(1 - in_u(1))}]"
        )  # Otherwise the error is infinite.
    for x in translation.lemma_arguments.get("sinpi", []):
        hypotheses += [f"low_{x} in [1b-64, 1]"]
    names = [name for name, _ in translation.definitions]
    goal = " /\\ ".join(f"|{name}| in [1b-300, 1b1000]" for name in names)
    goal += f" /\\ {error} >= 1b-60"
    return case(names[-1], translation, goal, hypotheses=hypotheses)


def _sine() -> Case:
    translation = Translation({})
    translation.call(elementary.sinpi, "x")
    goal = " /\\ ".join(f"|{name}| in [1b-300, 1b1000]" for name, _ in translation.definitions)
    hypotheses = ["x in [1b-64, 0.5]", "@FLT(x, 53)"]
    return case("sinpi", translation, goal, hypotheses=hypotheses)


def _log(*, below: bool) -> Case:
    translation = Translation({"binade": lambda *_: ("e", "f")})
    translation.call(elementary.log, "x")
    names = [name for name, _ in translation.definitions if name != "log_result"]
    goal = " /\\ ".join(f"|{name}| in [1b-300, 1b1000]" for name in names)
    ends = f"[0.707, {gappa(1 - in_u(1))}]" if below else f"[{gappa(1 + in_u(2))}, 1.415]"
    hypotheses = [f"f in {ends}", "@FLT(f, 53)", "e in [-64, 6]", "@FIX(e, 0)"]
    return case(f"log, f {'<' if below else '>'} 1", translation, goal, hypotheses=hypotheses)


def _cases() -> list[Case]:
    return [*(_case(*form) for form in _FORMS), _sine(), _log(below=True), _log(below=False)]


def statements() -> list[Statement]:
    """Return the statement of this file."""
    return [
        Statement(
            "subnormals",
            "every intermediate result of a form is 0 or normal",
            _cases,
            lambda _: "at least 2^-300",
            "2^-1022",
        )
    ]
