"""Prove that `kernels.second_stage` splits a value into whole grids and a fraction.

Units are 2^-128 of a grid. test_second_stage.py tests the rest: the bits of a float, and the last
two float operations of `release_float`, which convert the exact grid point.
"""

from dataclasses import replace
from itertools import product

from dpnoise.kernels import second_stage
from proof.fixed_point import (
    Bits,
    FixedPoint,
    LargeShift,
    Number,
    Value,
    scale_by_power,
    skip_statement,
    statement_in_units,
)
from proof.statement import Case, Statement
from proof.translation import UntranslatableError

_FAR = 181  # Shifting the 53 bits of a float by this many places leaves 0.
_SIGNS = ("mask = ", "part = negated_if", "whole = (whole ^ mask)")
_EXPONENT = 1023


def split_float() -> Statement:
    """Return the statement about the split of a float, for each position of the binary point."""
    cases = [_digits_case(places) for places in [*range(1, _FAR), None]]
    cases += [_sign_case(sign, is_zero=is_zero) for sign, is_zero in product((0, 1), (False, True))]
    cases += [_whole_value_case(places) for places in (0, -1, -900)]
    claim = "a float in grids is whole and fraction, minus up to 1 unit; or it is a whole number"
    return statement_in_units("split_float", claim, 1, cases)


def _float(exponent: int, sign: int = 0) -> Bits:
    """Return the bits of a float with a known exponent."""
    return Bits(sign << 11 | exponent, "mantissa", 52)


def _digits_case(places: int | None) -> Case:
    """Return the case of a value of m 2^-places grids; None means a shift that leaves 0."""

    def integer(t: FixedPoint, values: dict[str, Value]) -> None:
        values["m"] = t.free_variable("m", 0, 2**53 - 1, bits=64)

    def shift_far(t: FixedPoint, values: dict[str, Value]) -> None:
        t.assume(f"far in [1b-2200, 1b-{_FAR}]")
        values["places"] = LargeShift(_FAR)

    near = places is not None and places < 64
    quotient = f"floor(m * 1b-{places})"
    t = FixedPoint(
        cuts={
            "m = ": integer,
            **({"places = ": shift_far} if places is None else {}),
            **dict.fromkeys(_SIGNS, skip_statement),
        },
        wraps={"up((_0, m), up_by)": quotient} if near else {},
    )
    grid = Bits(_EXPONENT - 52 + (places or 0), "of_grid", 52)
    _, whole, fraction = t.call(second_stage.split_float, _float(_EXPONENT), grid)
    whole_text = whole.text if isinstance(whole, Number) else str(int(whole))
    scale = "1b128 * far" if places is None else f"1b{128 - places}"
    t.define("lost", f"m * {scale} - ({whole_text} * 1b128 + {t.require_unwrapped(fraction)})")
    t.prove("lost >= 0", f"{whole_text} in [0, {2**53}]")
    if places is None or places > 128:
        hints = [f"lost -> m * {scale} - {dict(t.definitions)['split_float_part']}"]
    elif not near:
        hints = ["lost -> 0"]
    else:
        hints = [f"split_float_part -> (m * 1b-{places} - {quotient}) * 1b128"]
        hints.append(f"lost -> ({quotient} - {whole_text}) * 1b128")
    name = "far" if places is None else f"{places} places"
    return t.case(name, ["lost"], hints, most=1, every_gain=near)


def _sign_case(sign: int, *, is_zero: bool) -> Case:
    """Return the case of a sign, with a fraction of 0 or above 0."""

    def set_part(t: FixedPoint, values: dict[str, Value]) -> None:
        values["part"] = t.free_variable("part", *((0, 0) if is_zero else (1, 2**128 - 1)))

    def set_whole(t: FixedPoint, values: dict[str, Value]) -> None:
        values["whole"] = t.free_variable("whole", 0, 2**53, bits=64)

    t = FixedPoint(
        cuts={"part = down": set_part, "whole = m >>": set_whole},
        choices={"part[0] | part[1] == _0": is_zero},
        wraps={"negated_if(mask, part)": 1} if sign and not is_zero else {},
    )
    base, signed_whole, fraction = t.call(
        second_stage.split_float, _float(_EXPONENT, sign), _float(_EXPONENT)
    )
    _check(base == 0.0)
    operator = "+" if sign else "-"
    digits = f"({signed_whole.text} * 1b128 + {t.require_unwrapped(fraction)})"
    t.define("off", f"{digits} {operator} (whole * 1b128 + part)")
    t.prove("off in [0, 0]")
    return t.case(f"sign {sign}, part {'0' if is_zero else '> 0'}", hints=["off -> 0"])


def _whole_value_case(places: int) -> Case:
    """Return the case of a value that is a whole number of grids, which is not split."""
    t = FixedPoint(
        wraps={"up((_0, m), up_by)": "(4503599627370496 + mantissa)"},
        choices={"part[0] | part[1] == _0": True},
    )
    t.free_variable("mantissa", 0, 2**52 - 1)
    value = _float(_EXPONENT)
    base, whole, fraction = t.call(second_stage.split_float, value, _float(_EXPONENT - 52 + places))
    _check(base is value and int(whole) == 0 and tuple(map(int, fraction)) == (0, 0))
    return t.case(f"{places} places", hints=["split_float_part -> 0"])


def _check(condition: bool) -> None:  # noqa: FBT001 (it is the subject)
    """Raise an error if a result that the source computes from constants is wrong."""
    if not condition:
        raise UntranslatableError("The source splits differently.")


def split_integer() -> Statement:
    """Return the statement about the split of an integer, for each shift, and the sum."""
    cases = [
        _shift_case(shift, negative=negative) for shift in range(63) for negative in (False, True)
    ]
    cases += [_sum_case(certain=certain) for certain in (False, True)]
    claim = "an integer in grids is whole and fraction, exactly, and whole + cell is an int64"
    return statement_in_units("split_integer", claim, 0, cases)


def _shift_case(shift: int, *, negative: bool) -> Case:
    """Return the case of a grid of 2^shift, with a negative integer or not."""
    view = "np.int64(value).view(np.uint64)"
    grids = scale_by_power("value", -shift)
    quotient = f"floor({grids})"
    raised = f" + {2 ** (64 - shift)}" if negative else ""
    t = FixedPoint(
        choices={view: negative},
        wraps={f"up((_0, {view}), np.uint64(128 - shift))": f"({quotient}{raised})"},
    )
    value = t.free_variable("value", *((-(2**63), -1) if negative else (0, 2**63 - 1)), bits=64)
    whole, fraction = t.call(second_stage.split_integer, value, shift)
    part = t.require_unwrapped(fraction)
    t.define("off", f"value * 1b{128 - shift} - ({whole.text} * 1b128 + {part})")
    hints = [f"{part} -> ({grids} - {quotient}) * 1b128"]
    hints.append(f"off -> ({quotient} - {whole.text}) * 1b128")
    t.prove("off >= 0")
    name = f"shift {shift}, {'below 0' if negative else 'not below 0'}"
    return t.case(name, ["off"], hints, most=0, every_gain=True)


def _sum_case(*, certain: bool) -> Case:
    """Return the case of a cell that is certain, or of one that is not."""

    def split(t: FixedPoint, _value: Value, _shift: Value) -> tuple[Number, Number]:
        return t.free_variable("whole", -(2**62), 2**62, bits=64), t.free_variable(
            "fraction", 0, 2**128 - 1
        )

    def nearest(t: FixedPoint, *_arguments: Value) -> tuple[Number, bool]:
        return t.free_variable("cell", -(2**60), 2**60, bits=64), certain

    t = FixedPoint(lemmas={"split_integer": split, "nearest_cell": nearest})
    result = t.call(second_stage.release_integer, None, 0, None, None)
    if certain:
        t.prove(
            f"{result.text} in [{-(2**63) + 1}, {2**63 - 1}]",
            f"{result.text} - (whole + cell) in [0, 0]",
        )
        return t.case("certain")
    _check(result == second_stage.OPEN)
    t.assume("one in [1, 1]")
    return t.case("open")


def raised_integer() -> Statement:
    """Return the statement about an integer of up to 63 bits, for each shift.

    test_second_stage.py tests the rest: a word raised by 2^63 is that integer, and the sign shows
    that a sum overflows an int64.
    """
    cases = [
        _raised_case(shift, wrapped=wrapped) for shift in range(63) for wrapped in (False, True)
    ]
    cases += [_raised_case(0, is_none=True), _raised_case(0, is_open=True)]
    claim = "an integer is whole grids and at most 62 bits, exactly; an overflowing sum stays open"
    return statement_in_units("raised_integer", claim, 0, cases)


def _raised_case(
    shift: int, *, wrapped: bool = False, is_none: bool = False, is_open: bool = False
) -> Case:
    """Return the case of a grid of 2^shift, with a sum that fits an int64 or not.

    With `is_none` the word is 0, which stands for no integer of up to 63 bits. With `is_open` the
    cell is open.
    """
    least = -(2**63)

    def value(t: FixedPoint, values: dict[str, Value]) -> None:
        values["value"] = t.free_variable("value", least + 1, 2**63 - 1, bits=64)

    def beyond(t: FixedPoint, result: Number) -> Number:
        t.prove(f"{result.text} in [{least}, {2**62}]")
        return replace(result, reduced=True)

    def release(t: FixedPoint, inside: Number, *_arguments: Value) -> Number:
        t.define("inside", inside.text)
        t.prove(f"inside in [0, {2**62 - 1}]")
        return t.free_variable(
            "cell", *((least, least) if is_open else (least + 1, 2**63 - 1)), bits=64
        )

    def overflow(t: FixedPoint, values: dict[str, Value]) -> None:
        values["wrapped"] = wrapped
        t.define("off", f"value - ({values['whole'].text} * 1b{shift} + inside)")
        if not wrapped:
            t.assume(f"{values['whole'].text} + cell in [{least}, {2**63 - 1}]")

    t = FixedPoint(
        choices={"raised == _0": is_none, "cell == OPEN": is_open},
        cuts={"value = ": value, "wrapped = ": overflow},
        after={"release_raised: beyond": beyond},
        lemmas={"release_integer": release},
    )
    raised = t.free_variable("raised", *((0, 0) if is_none else (1, 2**64 - 1)), bits=64)
    result = t.call(second_stage.release_raised, raised, shift, None, 0)
    t.prove("off >= 0")
    if wrapped or is_none or is_open:
        _check(result == second_stage.OPEN)
    else:
        t.prove(f"{result.text} in [{least}, {2**63 - 1}]")
    grids = scale_by_power("release_raised_beyond", -shift)
    hints = [
        "value - floor(value * 1b-62) * 1b62 -> (value * 1b-62 - floor(value * 1b-62)) * 1b62",
        f"off -> {scale_by_power(f'({grids} - release_raised_whole)', shift)}",
    ]
    kind = "no integer" if is_none else "an open cell" if is_open else "no int64" * wrapped
    name = f"shift {shift}, {kind or 'an int64'}"
    return t.case(name, ["off"], hints, most=0, every_gain=True)


def statements() -> list[Statement]:
    """Return the statements."""
    return [split_float(), split_integer(), raised_integer()]
