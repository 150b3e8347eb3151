"""The decision: that a cell which `first_stage.certain_point` decides is that of the real number.

It is proved on a grid of 1. On another grid, a power of two, everything is multiplied by it, and no
rounding changes: value/grid and scale/grid are exact, but for quotients below 2^-1022.

Those, and values that the processor takes for 0 where it flushes subnormals, make value/grid off by
less than 2^-1022/grid, which is scale/grid times less than FLUSHED, since scale >= 2^-960. The
contract of the forms leaves room for it: `moved` in the scripts. A y that is flushed is off by less
than 2^-1022, of which every case here has room: it ends with 2^-53 to spare.
"""

from fractions import Fraction

from dpnoise.kernels import first_stage
from proof.bit_tricks import only_the_certain_is_a_number
from proof.forms import CUT, FLUSHED, KEPT, left_of_contract
from proof.statement import Case, Statement, case, spare
from proof.terms import SIGNS, in_u, not_zero, u
from proof.translation import Comparison, Translation, UntranslatableError, Value, gappa

_INSIDE = "abs(value) < 2.0 ** 53 * grid"
_FAR = f"{2**71}"  # Above scale/grid times the largest noise.
_ENDS = {"tiny": "[-1b-1000, 1b-1000]", "> 0": f"[1b-1000, {_FAR}]", "< 0": f"[-{_FAR}, -1b-1000]"}


def _where_certain(translation: Translation, x: Value, certain: Comparison) -> Value:
    """Answer for `nan_unless`, which a check runs: x, if what is certain is what was compared."""
    if certain != translation.comparisons.get("certain"):
        raise UntranslatableError(
            "certain_point: it is a NaN elsewhere than where it is not certain."
        )
    return x


_LEMMAS = {"nan_unless": _where_certain}


def _decided(*, inside: bool) -> tuple[Translation, str]:
    """Translate `certain_point` on a grid of 1, where it decides."""
    translation = Translation(_LEMMAS, {_INSIDE: inside})
    result, certain = translation.call(
        first_stage.certain_point, "x", "z", "error", "scale", Fraction(1)
    )
    if certain != translation.comparisons["certain"]:
        raise UntranslatableError("certain_point: it returns another outcome than it decides by.")
    if translation.asked.get("nan_unless") != [result]:
        raise UntranslatableError("certain_point: it returns a number where nothing is decided.")
    translation.assume(*(f"@FLT({name}, 53)" for name in ("x", "z", "scale", "error")))
    translation.assume("@FIX(x, -1074)", "scale in [1b-970, 1b61]")
    return translation, str(result)


def _exact_rest(name: str) -> list[Case]:
    """Return the proof that what `rint` leaves is exact: all below 1/2, then multiples of u."""
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
    """Prove that the real number of grids, less its whole part, is within 1/2 of the cell."""
    translation, _ = _decided(inside=inside)
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
        ("left", left_of_contract(minus, CUT, KEPT, "error", f"({sign}z)", "z - Z")),
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
        f"h - ({y} - {cell}) in [0, 0]",  # The rest is exact: `_exact_rest`.
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


# What certain_point computes on a grid of 2^7, inside and outside: the grid enters by its
# reciprocal, exactly, and the result is the last rounding of (whole + cell) grids, or of x + cell.
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


def the_grid_enters_as_it_should() -> None:
    """Check what becomes of the grid."""
    for inside, expected in _ON_A_GRID.items():
        translation = Translation(_LEMMAS, {_INSIDE: inside})
        translation.call(first_stage.certain_point, "x", "z", "error", "scale", Fraction(128))
        made = dict(translation.definitions)
        for name, text in expected.items():
            found = made.get(f"certain_point_{name}")
            assert found == text, f"{name} is {found}"


def _conversion(*, inside: bool) -> Case:
    """Return the proof that of the sums which make the result a float only the last one rounds."""
    translation, result = _decided(inside=inside)
    made = dict(translation.definitions)[result]
    inner = made.removeprefix("rnd(certain_point_cell + ").removesuffix(")")
    hypotheses = ["x in [-1b1024, 1b1024]"]
    if inside:  # The whole part of a float below 2^53 is below 2^53.
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
        # Outside, F is A, whose sign is that of z.
        if inside or size != {"": "< 0", "-": "> 0"}[sign]
    ]
    cases += _exact_rest("y") + _exact_rest("x")
    return [*cases, _conversion(inside=True), _conversion(inside=False)]


def statements() -> list[Statement]:
    """Return the statement of this file."""
    return [
        Statement(
            "certain_point",
            "a decided cell is that of the real number, for every value, scale and grid",
            _decision,
            spare,
            "half a cell",
            [the_grid_enters_as_it_should, only_the_certain_is_a_number],
        )
    ]
