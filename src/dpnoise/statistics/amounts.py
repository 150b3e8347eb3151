"""Amounts of a budget: decimal numbers as people write them, added exactly."""

import re
from dataclasses import dataclass
from decimal import ROUND_CEILING, ROUND_FLOOR, Context, Decimal, InvalidOperation
from fractions import Fraction
from typing import Any, Final, Self

from dpnoise.core.errors import is_integer, is_real, reject

Number = float | str | Decimal

_DIGITS: Final = 20  # Of a number that is given; what is spent is rounded up to so many.
_SMALLEST: Final = -40  # The power of ten of the last digit.
_FARTHEST: Final = 1000  # The power of ten that a cost can have: more than those of floats.
# Decimal() also reads underscores, spaces around the number and the digits of every script.
_DECIMAL_TEXT: Final = re.compile(r"[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?")
_PLAINLY: Final = (-5, 20)  # Powers of ten between which a number is written without an exponent.


@dataclass(frozen=True)
class Amount:
    """So much epsilon or rho, and so much delta, exactly."""

    main: Fraction
    delta: Fraction = Fraction(0)

    def __post_init__(self) -> None:
        for name in ("main", "delta"):
            value = getattr(self, name)
            if not isinstance(value, Fraction) or value < 0:
                reject(name, value, "to be a Fraction >= 0")

    def __add__(self, other: "Amount") -> "Amount":
        return Amount(self.main + other.main, self.delta + other.delta)

    def __sub__(self, other: "Amount") -> "Amount":
        return Amount(self.main - other.main, self.delta - other.delta)

    def is_within(self, other: "Amount") -> bool:
        """Tell whether neither number is above the other's."""
        return self.main <= other.main and self.delta <= other.delta

    @classmethod
    def told(cls, line: Any) -> Self:
        """Return what a line of a ledger says."""
        return cls(_told(line["main"]), _told(line["delta"]))

    def line(self) -> dict[str, str]:
        """Return it as a line of a ledger says it, rounded up."""
        return {"main": written_up(self.main), "delta": written_up(self.delta)}


def written_up(number: Fraction, digits: int = _DIGITS) -> str:
    """Write a number as a decimal of so many digits, rounded up: what is spent.

    Examples
    --------
    >>> written_up(Fraction(1, 4)), written_up(Fraction(1, 3), 4), written_up(Fraction(1e-9), 4)
    ('0.25', '0.3334', '1.001e-9')
    """
    return _written(number, Context(prec=digits, rounding=ROUND_CEILING))


def written_down(number: Fraction, digits: int = _DIGITS) -> str:
    """Write a number as a decimal of so many digits, rounded down: what is left.

    Examples
    --------
    >>> written_down(Fraction(2, 3), 4)
    '0.6666'
    """
    return _written(number, Context(prec=digits, rounding=ROUND_FLOOR))


def _written(number: Fraction, context: Context) -> str:
    quotient = context.divide(Decimal(number.numerator), Decimal(number.denominator))
    if not quotient:
        return "0"
    if not _PLAINLY[0] <= quotient.adjusted() < _PLAINLY[1]:
        return f"{quotient.normalize(context):e}".replace("e+", "e")
    plain = f"{quotient:f}"
    return plain.rstrip("0").rstrip(".") if "." in plain else plain


def number_of(name: str, value: object, *, zero: bool = False) -> Fraction:
    """Return a number as it is written: 0.1 is a tenth, also if it is a float.

    Examples
    --------
    >>> number_of("epsilon", 0.1), number_of("epsilon", "1e-3")
    (Fraction(1, 10), Fraction(1, 1000))
    """
    number = _decimal_of(value)
    if number is None:
        reject(
            name,
            value,
            "to be a finite decimal number such as 0.5 or 1e-6: the digits 0 to 9, and no spaces "
            "or underscores",
        )
    if not number.is_finite() or number < 0 or (number == 0 and not zero):
        reject(name, value, "to be finite and " + (">= 0" if zero else "> 0"))
    if _is_long(number):
        reject(name, value, "to have at most 20 digits, and none below 1e-40 or from 1e20 on")
    return Fraction(number)


def _decimal_of(value: object) -> Decimal | None:
    """Return the decimal number that a value is written as, or None if it is not a number."""
    if isinstance(value, Decimal):
        return value
    if isinstance(value, str):
        return _decimal_of_text(value)
    if is_integer(value):
        return Decimal(int(value))
    try:
        return Decimal(repr(float(value))) if is_real(value) else None
    except OverflowError:
        return None


def _decimal_of_text(text: str) -> Decimal | None:
    """Return the decimal number that a text is, or None if it is anything else."""
    if not _DECIMAL_TEXT.fullmatch(text):
        return None
    try:
        return Decimal(text)
    except InvalidOperation:  # The exponent has too many digits.
        return None


def _told(text: object) -> Fraction:
    """Return a number that a ledger says: text, neither negative nor of endless digits."""
    if not isinstance(text, str):
        raise TypeError("Expected text.")
    number = _decimal_of_text(text)
    if number is None or number < 0 or abs(number.adjusted()) > _FARTHEST:
        raise ValueError("Expected an amount.")
    return Fraction(number)


def _is_long(number: Decimal) -> bool:
    _, digits, exponent = number.as_tuple()
    return len(digits) > _DIGITS or int(exponent) < _SMALLEST or number.adjusted() >= _DIGITS
