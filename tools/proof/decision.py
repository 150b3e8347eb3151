"""Prove that a cell decided by `first_stage.certain_point` is the cell of the real number.

The proof is for a grid of 1. Another grid is a power of two, which multiplies everything and
changes no rounding: value/grid and scale/grid are exact, except for quotients below 2^-1022.

Such quotients, and subnormal values that the processor flushes to 0, make value/grid off by less
than 2^-1022/grid. This is less than FLUSHED times scale/grid, because scale >= 2^-960. The contract
of the forms includes this error, which is `moved` in the scripts. A flushed y is off by less than
2^-1022, which every case here covers: it ends with 2^-53 to spare.
"""

from fractions import Fraction

from dpnoise.kernels import first_stage
from proof.bit_tricks import uncertain_results_are_nan
from proof.forms import CUT, FLUSHED, KEPT, contract_margin
from proof.statement import Case, Statement, case, smallest_margin
from proof.terms import SIGNS, in_u, not_zero, u
from proof.translation import Comparison, Translation, UntranslatableError, Value, gappa

_INSIDE = "abs(value) < 2.0 ** 53 * grid"
_FAR = f"{2**71}"  # Above scale/grid times the largest noise.
_ENDS = {"tiny": "[-1b-1000, 1b-1000]", "> 0": f"[1b-1000, {_FAR}]", "< 0": f"[-{_FAR}, -1b-1000]"}


def _answer_nan_unless(translation: Translation, x: Value, certain: Comparison) -> Value:
    """Answer a call of `nan_unless` with x; raise if its condition is not `certain`."""
    if certain != translation.comparisons.get("certain"):
        raise UntranslatableError(
            "certain_point: its result is a NaN under another condition than `not certain`."
        )
    return x


_LEMMAS = {"nan_unless": _answer_nan_unless}


def _translate_certain_point(*, inside: bool) -> tuple[Translation, str]:
    """Translate `certain_point` on a grid of 1, for the cells that it decides."""
    translation = Translation(_LEMMAS, {_INSIDE: inside})
    result, certain = translation.call(
        first_stage.certain_point, "x", "z", "error", "scale", Fraction(1)
    )
    if certain != translation.comparisons["certain"]:
        raise UntranslatableError(
            "certain_point: it returns another condition than the one it decides by."
        )
    if translation.lemma_arguments.get("nan_unless") != [result]:
        raise UntranslatableError("certain_point: it returns a number where nothing is decided.")
    translation.assume(*(f"@FLT({name}, 53)" for name in ("x", "z", "scale", "error")))
    translation.assume("@FIX(x, -1074)", "scale in [1b-970, 1b61]")
    return translation, str(result)


def _exact_remainder(name: str) -> list[Case]:
    """Prove that x - rint(x) is exact: x itself below 1/2, a multiple of u above."""
    cases = []
    for ends in ("[-0.5, 0.5]", "[0.5, 1b53]", "[-1b53, -0.5]", "[1b53, 1b80]", "[-1b80, -1b53]"):
        goal = f"rnd({name} - int<ne>({name})) - ({name} - int<ne>({name})) in [0, 0]"
        if ends == "[-0.5, 0.5]":
            goal = f"int<ne>({name}) in [0, 0]"
        elif "1b80" in ends:
            goal = f"int<ne>({name}) - {name} in [0, 0]"
        hypotheses = [f"@FLT({name}, 53)", f"@FIX({name}, -1074)", f"{name} in {ends}"]
        cases.append(case(f"{name} in {ends}", Translation({}), goal, hypotheses=hypotheses))
    return cases


def _case(s: str, minus: str, *, inside: bool, sign: str, size: str) -> Case:
    """Prove that the real number, in grids less its whole part, is within 1/2 of the cell."""
    translation, _ = _translate_certain_point(inside=inside)
    compared, limit = translation.comparisons["certain"]
    y, cell, ratio = (f"certain_point_{name}" for name in ("y", "cell", "ratio"))
    definitions = [
        ("fraction", "rnd(certain_point_quotient - certain_point_whole)" if inside else "0"),
        ("A", f"{ratio} * z"),
        ("W", f"{ratio} * error"),
        ("F", "A + fraction"),
        ("b", "W + 1b-51"),
        ("B", f"rnd({ratio} * error + 1b-51)"),
        ("h", f"rnd({y} - {cell})"),
        ("left", contract_margin(minus, CUT, KEPT, "error", f"({sign}z)", "z - Z")),
        ("moved", f"{ratio} * flushed"),
        ("T", f"fraction + moved + {ratio} * Z - {cell}"),
        ("G", f"1b-1 {minus} T"),
    ]
    hypotheses = [
        "left in [0, 1b1010]",  # The contract.
        "error in [1b-60, 1b1000]",
        f"z in {'[-1024, 0]' if sign else '[0, 1024]'}",
        f"{compared} in [0, {gappa(limit - in_u(Fraction(1, 2)))}]",  # The float below it.
        "W in [0, 1]",  # Else B is above 1/2.
        f"F in {_ENDS[size]}",
        f"{y} in [-{_FAR}, {_FAR}]",
        f"h - ({y} - {cell}) in [0, 0]",  # The remainder is exact: `_exact_remainder`.
        "fraction in [-0.5, 0.5]",
        f"|h| {minus} h in [0, 2]",  # |h| is at least h, and at least -h.
        f"flushed in [-{gappa(FLUSHED)}, {gappa(FLUSHED)}]",
    ]
    kept = f"{'-' if sign else ''}{u(KEPT)}"
    off = f"({y} - F) / F"
    rounds = (
        f"A * {kept} {s} ({y} - F)"
        if size == "tiny"
        else f"A * ({kept} {s} {off}) {s} fraction * ({off})"
    )
    collected = (
        f"(1b-1 - (|h| + B)) + (|h| {minus} h) {minus} (({y} - {cell}) - h)"
        f" + {ratio} * left + {ratio} * ({gappa(FLUSHED)} {minus} flushed)"
        f" + W * ({u(CUT)} + (B - b) / b) + {rounds} + 1b-51 * (1 + (B - b) / b)"
    )
    hints = [
        f"G -> {collected} {not_zero(['b'] + ['F'] * (size != 'tiny'))}",
        f"1b-1 - (|h| + B) -> (1b-1 - {compared}) + ({compared} - (|h| + B))",
    ]
    name = f"{'inside' if inside else 'outside'}, z {'<=' if sign else '>='} 0, F {size}, {s}"
    return case(
        name,
        translation,
        "G >= 1b-53",
        asks=["G"],
        definitions=definitions,
        hypotheses=hypotheses,
        hints=hints,
    )


# The definitions of certain_point on a grid of 2^7, inside and outside. Its reciprocal is exact;
# the result is the last rounding of (whole + cell) grids, or of x + cell.
_ON_A_GRID = {
    True: {
        "quotient": "rnd(x * 1b-7)",
        "whole": "int<ne>(certain_point_quotient)",
        "ratio": "rnd(scale * 1b-7)",
        "cell": "int<ne>(certain_point_y)",
        "result": "rnd(certain_point_cell * 128 + rnd(certain_point_whole * 128 + 0))",
    },
    False: {
        "ratio": "rnd(scale * 1b-7)",
        "cell": "int<ne>(certain_point_y)",
        "result": "rnd(certain_point_cell * 128 + rnd(x))",
    },
}


def the_grid_is_divided_out() -> None:
    """Check the definitions in which the grid occurs."""
    for inside, expected in _ON_A_GRID.items():
        translation = Translation(_LEMMAS, {_INSIDE: inside})
        translation.call(first_stage.certain_point, "x", "z", "error", "scale", Fraction(128))
        definitions = dict(translation.definitions)
        for name, text in expected.items():
            definition = definitions.get(f"certain_point_{name}")
            assert definition == text, f"{name} is {definition}"


def _conversion(*, inside: bool) -> Case:
    """Prove that the conversion of the result to a float rounds only in its last sum."""
    translation, result = _translate_certain_point(inside=inside)
    definition = dict(translation.definitions)[result]
    inner = definition.removeprefix("rnd(certain_point_cell + ").removesuffix(")")
    hypotheses = ["x in [-1b1024, 1b1024]"]
    if inside:  # A float below 2^53 has a whole part below 2^53.
        hypotheses = [f"certain_point_whole in [-{2**53 - 1}, {2**53 - 1}]"]
    goal = f"{inner} - {inner.removeprefix('rnd')} in [0, 0]"
    name = f"one rounding, {'inside' if inside else 'outside'}"
    return case(name, translation, goal, hypotheses=hypotheses)


def _decision() -> list[Case]:
    cases = [
        _case(s, minus, inside=inside, sign=sign, size=size)
        for s, minus in SIGNS.items()
        for inside in (True, False)
        for sign in ("", "-")
        for size in _ENDS
        # Outside, F is A, which has the sign of z.
        if inside or size != {"": "< 0", "-": "> 0"}[sign]
    ]
    cases += _exact_remainder("y") + _exact_remainder("x")
    return [*cases, _conversion(inside=True), _conversion(inside=False)]


def statements() -> list[Statement]:
    """Return the statement of this file."""
    return [
        Statement(
            "certain_point",
            "a decided cell is the cell of the real number, for every value, scale and grid",
            _decision,
            smallest_margin,
            "half a cell",
            [the_grid_is_divided_out, uncertain_results_are_nan],
        )
    ]
