"""Prove that a cell which `kernels.second_stage` calls certain is the right one.

Units are 2^-128 of a grid.
"""

from itertools import product

import numpy as np

from dpnoise.kernels import second_stage
from proof.fixed_point import (
    Bits,
    FixedPoint,
    LargeShift,
    Number,
    Value,
    skip_statement,
    statement_in_units,
)
from proof.second_forms import NO_BOUND
from proof.statement import Case, Statement
from proof.translation import UntranslatableError

_BOTH_SIDES = ("above", "below")
_PLACES = 188  # Shifting a product of 128 by 59 bits by this many places leaves 0.
# The ratio is m 2^(exponent - 1075). Six of its places convert units of 2^-120 to units of 2^-128
# times 2^(1073 - exponent).
_M = f"(({2**52} + mantissa) * 1b6)"
_PART = "plus(part, down((_0, lower[1]), places))"


def ratio_times_noise() -> Statement:
    """Return the statement about the product, for each position of the binary point."""
    cases = [_ratio_times_noise(places) for places in [*range(_PLACES), None]]
    claim = "ratio times noise as whole and part, whose bound has 3 units for what follows"
    return statement_in_units("ratio_times_noise", claim, 1, cases)


def _ratio_times_noise(places: int | None) -> Case:
    """Return the case of a ratio m 2^-places; None means a shift that leaves 0."""

    def shift_far(t: FixedPoint, values: dict[str, Value]) -> None:
        t.assume(f"far in [1b-1100, 1b-{_PLACES}]")
        values["places"] = LargeShift(_PLACES)

    lines_after = (
        "mask = ",
        "part = negated_if",
        "whole = (whole ^ mask)",
        "y = ",
        "whole += ",
        "outside",
    )
    cuts = dict.fromkeys(lines_after, skip_statement) | (
        {"places = ": shift_far} if places is None else {}
    )
    cuts["outside"] = lambda _t, values: values.update(outside=np.uint64(0))
    parts: list[str] = []

    def record_part(_t: FixedPoint, value: Number) -> Number:
        parts.append(value.text)
        return value

    t = FixedPoint(
        cuts=cuts,
        wraps={_PART: "nearest_cell_whole"},
        choices={_CERTAIN: True},
        after={"nearest_cell: part": record_part},
    )
    exponent = 1073 - (places or 0)
    words = t.free_variable("high", 0, 2**64 - 1), t.free_variable("low", 0, 2**64 - 1)
    error = t.free_variable("error", 0, NO_BOUND - 1, bits=64)
    t.free_variable("mantissa", 0, 2**52 - 1)
    ratio = Bits(exponent, "mantissa", 52)
    t.call(
        second_stage.nearest_cell,
        t.free_variable("fraction", 0, 2**128 - 1),
        (words, None, error),
        ratio,
    )
    scale = "far" if places is None else f"1b-{places}"
    t.define("true", f"(high * 1b64 + low) * {_M} * {scale}")
    t.define("made", f"nearest_cell_whole * 1b128 + {parts[1]}")
    t.define("lost", "true - made")
    t.prove("lost >= 0")
    t.prove(f"{parts[1]} in [0, {2**128 - 1}]", "nearest_cell_whole in [0, 1b59]")
    name = "far" if places is None else f"{places} places"
    hints = _hints_for(t, places, parts[1])
    return t.case(name, ["lost"], hints, most=1, every_gain=True)


def _hints_for(t: FixedPoint, places: int | None, part: str) -> list[str]:
    """Return hints for digits that are split and joined again, which Gappa cannot simplify."""
    quotient = "nearest_cell_lower * 1b-64"
    low = f"(nearest_cell_lower - floor({quotient}) * 1b64)"
    scale = "far" if places is None else f"1b-{places}"
    reach = f"((error * {_M}) * {scale})" if places != 0 else f"(error * {_M})"
    t.prove(f"nearest_cell_bound - {reach} in [3, 4]")
    hints = [f"{low} -> ({quotient} - floor({quotient})) * 1b64"]
    if places == 0:
        hints.append(f"nearest_cell_bound - {reach} -> 4")
    else:
        hints.append(f"nearest_cell_bound - {reach} -> (floor{reach} - {reach}) + 4")
    low_part = f"{low} * {scale}" if places else low
    cut = f"(floor({low_part}) - {low_part})" if places else "0"
    if places is None:
        return hints
    high_part = f"nearest_cell_upper * 1b-{places + 64}"
    carried = f"floor(floor({high_part}) * 1b-64) * 1b192"
    if places <= 64:
        low_digits = f"floor({low_part})" if places else low_part
        hints.append(
            f"{part} -> ({high_part} - floor({high_part})) * 1b128 + {low_digits} + {carried}"
        )
        hints.append(f"lost -> 0 - {cut}")
    else:
        shifted = f"nearest_cell_upper * 1b-{places - 64}"
        hints.append(f"lost -> 0 - (floor({shifted}) - {shifted}) - {cut}")
    return hints


_CERTAIN = "outside | error >> _62 == _0"


def nearest_cell() -> Statement:
    """Return the statement about signs, carries and the comparison with the bound."""
    # A part of 0 has no carry.
    parts = ((True, False), (False, False), (False, True))
    cases = [
        _certain_case(sign, is_zero=is_zero, carry=carry, half=half)
        for sign, (is_zero, carry), half in product((0, 1), parts, (False, True))
    ]
    cases += [_uncertain_case(reason) for reason in ("below", "above", "no bound")]
    claim = "a certain cell contains every number within the error; the units needed for this"
    return statement_in_units("nearest_cell", claim, 4, cases)


_BEFORE = ("bits = ", "exponent = ", "m = ", "places = ", "lower = ", "upper = ", "whole = down")


def _certain_case(sign: int, *, is_zero: bool, carry: bool, half: bool) -> Case:
    """Return a case in which the cell is certain."""

    def set_free_variables(t: FixedPoint, values: dict[str, Value]) -> None:
        """Set free variables for the results that "ratio_times_noise" bounds."""
        values["whole"] = t.free_variable("whole", 0, "1b59", bits=64)
        values["part"] = t.free_variable("part", *((0, 0) if is_zero else (1, 2**128 - 1)))
        values["bound"] = t.free_variable("bound", 3, 2**122)

    wraps = {"negated_if(mask, part)": 1} if sign and not is_zero else {}
    wraps |= {"plus(part, fraction)": -1} if carry else {}
    wraps |= {"plus(y, (_SIGN, _0))": -1} if half else {}
    t = FixedPoint(
        cuts={
            "bound = ": set_free_variables,
            **dict.fromkeys((*_BEFORE, "part = up", "part = plus"), skip_statement),
        },
        wraps=wraps,
        choices={
            "part[0] | part[1] == _0": is_zero,
            "is_less(y, fraction)": carry,
            "y[0] < _SIGN": half,
            "is_less(y, bound)": False,
            "is_less(plus(y, bound), bound)": False,
            _CERTAIN: True,
        },
    )
    fraction = t.free_variable("fraction", 0, 2**128 - 1)
    error = t.free_variable("error", 0, NO_BOUND - 1, bits=64)
    noise = (None, Bits(sign, "rest", 63), error)
    cell, certain = t.call(second_stage.nearest_cell, fraction, noise, None)
    _check(certain)
    t.prove(f"{cell.text} in [{-(2**60)}, {2**60}]")
    # The case: whether the first and the second sum carry; and the bound holds.
    if not is_zero:
        t.assume(f"nearest_cell_y in [0, {2**129 if carry else 2**128 - 1}]")
    t.assume(f"nearest_cell_y_2 in [0, {2**129 if half else 2**128 - 1}]")
    t.assume(f"nearest_cell_y_2 - bound in [0, {2**128}]")
    t.assume(f"nearest_cell_y_2 + bound in [0, {2**128 - 1}]")
    # The result of "ratio_times_noise", and the digits cut off from the value.
    t.assume("reach in [0, 1b121]", "bound - reach in [3, 4]", "part_of_reach in [-1, 1]")
    t.assume("cut in [0, 1]", "cut_of_fraction in [-1, 1]")
    noise_product = "(whole * 1b128 + part + cut)"
    operator, cut = ("-", "(0 - cut)") if sign else ("+", "cut")
    t.define(
        "y",
        f"fraction + cut_of_fraction {operator} {noise_product} + part_of_reach * reach + 1b127",
    )
    t.define("within", f"y - {cell.text} * 1b128")
    t.define("above", "4 - within")
    t.define("below", f"4 - ({2**128 - 1} - within)")
    moved = f"(cut_of_fraction + {cut})"
    part = "nearest_cell_part" if sign else "part"
    hints = [
        f"above -> 4 - ((nearest_cell_y_2 - bound) + (bound - reach) + reach * (1 + part_of_reach)"
        f" + {moved})",
        f"below -> 4 - (({2**128 - 1} - (nearest_cell_y_2 + bound)) + (bound - reach)"
        f" + reach * (1 - part_of_reach) - {moved})",
        f"nearest_cell_y - fraction -> {part} - {2**128 if carry else 0}",
    ]
    name = f"sign {sign}, part {'0' if is_zero else '> 0'}, carries {carry}, {half}"
    return t.case(name, _BOTH_SIDES, hints, most=4)


def _uncertain_case(reason: str) -> Case:
    """Return a case in which the cell is not certain: the bound leaves it, or there is none."""

    def set_free_variables(t: FixedPoint, values: dict[str, Value]) -> None:
        values["whole"] = t.free_variable("whole", 0, "1b59", bits=64)
        values["bound"] = t.free_variable("bound", 3, 2**122)
        values["y"] = t.free_variable("y", 0, 2**128 - 1)

    lines = (*_BEFORE, "part = ", "bound = ", "mask = ", "y = plus(part", "whole ")
    t = FixedPoint(
        cuts={**dict.fromkeys(lines, skip_statement), "y = plus(y": set_free_variables},
        wraps={"plus(y, bound)": -1} if reason == "above" else {},
        choices={
            "is_less(y, bound)": reason == "below",
            "is_less(plus(y, bound), bound)": reason == "above",
            _CERTAIN: False,
        },
    )
    ends = (NO_BOUND, 2**64 - 1) if reason == "no bound" else (0, 2**64 - 1)
    error = t.free_variable("error", *ends, bits=64)
    fraction = t.free_variable("fraction", 0, 2**128 - 1)
    _, certain = t.call(second_stage.nearest_cell, fraction, (None, None, error), None)
    _check(not certain)
    t.assume(f"y - bound in {f'[{-(2**128)}, -1]' if reason == 'below' else f'[0, {2**128}]'}")
    carried = f"[{2**128}, {2**129}]" if reason == "above" else f"[0, {2**128 - 1}]"
    t.assume(f"y + bound in {carried}")
    if reason == "above":
        hints = [f"(y - {2**128}) + bound -> (y + bound) - {2**128}"]
        hints.append(f"((y - {2**128}) + bound) - bound -> y - {2**128}")
    else:
        hints = ["(y + bound) - bound -> y"]
    return t.case(f"not certain: {reason}", hints=hints)


def _check(condition: bool) -> None:  # noqa: FBT001 (it is the subject)
    """Raise an error if a result that the source computes from constants is wrong."""
    if not condition:
        raise UntranslatableError("The source decides differently.")


def statements() -> list[Statement]:
    """Return the statements; each relies on those before it."""
    return [ratio_times_noise(), nearest_cell()]
