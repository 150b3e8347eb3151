"""Decimal numbers: reading amounts exactly, and writing published numbers as text.

A number is written with the decimals that its margin makes meaningful. Margins
and losses are rounded up.
"""

import math
import re
from decimal import ROUND_CEILING, ROUND_FLOOR, Context, Decimal, InvalidOperation, localcontext
from fractions import Fraction
from typing import Final

from dpnoise.core.errors import is_integer, is_real, reject

Number = float | str | Decimal

_DIGITS: Final = 20  # The most digits of an amount; costs are rounded up to 20 digits.
_MIN_EXPONENT: Final = -40  # The smallest power of ten of the last digit of an amount.
_MAX_COST_EXPONENT: Final = (
    1000  # The largest power of ten of a cost; larger than that of any float.
)
# Decimal() also reads underscores, spaces around the number and the digits of every script.
_DECIMAL_TEXT: Final = re.compile(r"[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?")
_PLAIN_AMOUNT: Final = (-5, 20)  # An amount between these powers of ten has no exponent.
_PLAIN_MARGIN: Final = (-6, 12)  # A margin between these powers of ten has no exponent.
_DECIMAL_DIGITS: Final = 800  # More digits than any float and its margin have.
_MOST_DIGITS: Final = 18  # Numbers with more digits are written with an exponent.
_DIGITS_WITHOUT_MARGIN: Final = 10  # Digits of a number with an unknown margin.
_LOSS_CONTEXT: Final = Context(prec=6, rounding=ROUND_CEILING)


def number_of(name: str, value: object, *, zero: bool = False) -> Fraction:
    """Return a number exactly as it is written: 0.1 is a tenth, even as a float.

    Parameters
    ----------
    name
        The name of the argument, for errors.
    value
        An int, a float, a Decimal, or text such as "0.3" or "1e-6".
    zero
        Whether the number may be 0.

    Raises
    ------
    ArgumentError
        If the value is not a finite decimal number, is negative, or has more than 20 digits.

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
            "be a finite decimal number such as 0.5 or 1e-6: the digits 0 to 9, and no spaces "
            "or underscores",
        )
    if not number.is_finite() or number < 0 or (number == 0 and not zero):
        reject(name, value, "be finite and " + ("at least 0" if zero else "greater than 0"))
    _, digits, exponent = number.as_tuple()
    if len(digits) > _DIGITS or int(exponent) < _MIN_EXPONENT or number.adjusted() >= _DIGITS:
        reject(name, value, "have at most 20 digits, and none below 1e-40 or from 1e20 on")
    return Fraction(number)


def _decimal_of(value: object) -> Decimal | None:
    """Return the decimal number as written, or None if the value is not a number."""
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
    """Return the decimal number of a text, or None if the text is not a number."""
    if not _DECIMAL_TEXT.fullmatch(text):
        return None
    try:
        return Decimal(text)
    except InvalidOperation:  # The exponent has too many digits.
        return None


def parse_ledger_amount(text: object) -> Fraction:
    """Parse an amount of a ledger.

    Raise if it is not text, is negative, or has an exponent beyond 1000.
    """
    if not isinstance(text, str):
        raise TypeError("The amount must be text.")
    number = _decimal_of_text(text)
    if number is None or number < 0 or abs(number.adjusted()) > _MAX_COST_EXPONENT:
        raise ValueError("The text must be an amount.")
    return Fraction(number)


def written_up(number: Fraction, digits: int = _DIGITS) -> str:
    """Write a number as a decimal, rounded up, as for an amount that is spent.

    Parameters
    ----------
    number
        The exact number.
    digits
        The number of significant digits.

    Examples
    --------
    >>> written_up(Fraction(1, 4)), written_up(Fraction(1, 3), 4), written_up(Fraction(1e-9), 4)
    ('0.25', '0.3334', '1.001e-9')
    """
    return _write_decimal(number, Context(prec=digits, rounding=ROUND_CEILING))


def written_down(number: Fraction, digits: int = _DIGITS) -> str:
    """Write a number as `written_up` does, but rounded down, as for an amount that remains.

    Examples
    --------
    >>> written_down(Fraction(2, 3), 4)
    '0.6666'
    """
    return _write_decimal(number, Context(prec=digits, rounding=ROUND_FLOOR))


def _write_decimal(number: Fraction, context: Context) -> str:
    quotient = context.divide(Decimal(number.numerator), Decimal(number.denominator))
    if not quotient:
        return "0"
    if not _PLAIN_AMOUNT[0] <= quotient.adjusted() < _PLAIN_AMOUNT[1]:
        return f"{quotient.normalize(context):e}".replace("e+", "e")
    plain = f"{quotient:f}"
    return plain.rstrip("0").rstrip(".") if "." in plain else plain


def format_loss(loss: float) -> str:
    """Write an epsilon, delta or rho with six digits, rounded up.

    >>> format_loss(0.1), format_loss(0.12345612), format_loss(1e-06), format_loss(3)
    ('0.1', '0.123457', '1e-06', '3')
    """
    return f"{float(_LOSS_CONTEXT.create_decimal(repr(float(loss)))):.6g}"


def format_number(value: float, margin: float | None, sign: str = "±") -> tuple[str, str]:
    """Write a number with the decimals that its margin makes meaningful, and the margin.

    The margin has two digits, rounded up. It includes the rounding of the number.

    >>> format_number(33299.87576, 3548.74), format_number(5000, 3), format_number(40840.0, None)
    (('33,300', '± 3,600'), ('5,000', '± 3'), ('40,840', 'no margin'))
    """
    decimals = _decimals(margin)
    is_exact = margin == 0 and isinstance(value, int)  # A count at a large epsilon.
    if margin is None or (decimals is None and not is_exact) or not math.isfinite(value):
        return f"{value:,.{_DIGITS_WITHOUT_MARGIN}g}", "no margin"
    if decimals is None or (isinstance(value, int) and isinstance(margin, int)):
        return f"{value:,}", f"{sign} {margin:,}"
    with localcontext(prec=_DECIMAL_DIGITS):
        exact = Decimal(value)
        if not -_MOST_DIGITS < decimals < _MOST_DIGITS:
            number = Decimal(f"{value:.{_DIGITS_WITHOUT_MARGIN}g}")
            rounded_margin = _round_up(Decimal(margin) + abs(number - exact), decimals)
            return f"{value:.{_DIGITS_WITHOUT_MARGIN}g}", f"{sign} {rounded_margin:.2g}"
        decimals = max(0, decimals)
        number = exact if isinstance(value, int) else round(exact, decimals)
        rounded_margin = _round_up(Decimal(margin) + abs(number - exact), decimals)
    number_decimals = 0 if isinstance(value, int) else decimals
    return f"{number:,.{number_decimals}f}", f"{sign} {rounded_margin:,.{decimals}f}"


def format_interval(value: float, low: float, high: float) -> tuple[str, str, str]:
    """Write a number and its interval, with decimals chosen by the width. Ends round outward.

    >>> format_interval(45212.0, 38104.25, 52000.5)
    ('45,212', '38,104', '52,001')
    """
    width = high - low
    ends = (_round_outward(low, width, ROUND_FLOOR), _round_outward(high, width, ROUND_CEILING))
    return format_number(value, width)[0], *ends


def format_margin(margin: float) -> str:
    """Write a margin with three digits, rounded up."""
    exact = Decimal(margin)
    with localcontext(prec=_DECIMAL_DIGITS):
        rounded = exact.quantize(Decimal(1).scaleb(exact.adjusted() - 2), ROUND_CEILING)
    is_plain = _PLAIN_MARGIN[0] < exact.adjusted() < _PLAIN_MARGIN[1]
    return f"{rounded:,f}" if is_plain else f"{rounded:.2e}"


def _decimals(margin: float | None) -> int | None:
    """Return the number of decimals that shows two digits of a margin.

    None if the margin is unknown, 0 or infinite.
    """
    if not margin or not math.isfinite(margin):
        return None
    return 1 - math.floor(math.log10(margin))


def _round_up(margin: Decimal, decimals: int) -> Decimal:
    """Round a margin up to `decimals` decimals or to two digits, whichever is coarser."""
    digits = min(decimals, 1 - margin.adjusted())
    return margin.quantize(Decimal(1).scaleb(-digits), ROUND_CEILING)


def _round_outward(end: float, width: float, rounding: str) -> str:
    if not math.isfinite(end):
        return f"{end:g}"
    decimals = _decimals(width)
    if decimals is None or not -_MOST_DIGITS < decimals < _MOST_DIGITS:
        short = Context(prec=_DIGITS_WITHOUT_MARGIN, rounding=rounding).create_decimal(Decimal(end))
        if short.adjusted() < _DIGITS_WITHOUT_MARGIN and short == short.to_integral_value():
            return f"{int(short):,}"
        return f"{short.normalize():,.{_DIGITS_WITHOUT_MARGIN}g}"
    decimals = max(0, decimals)
    with localcontext(prec=_DECIMAL_DIGITS):
        return f"{Decimal(end).quantize(Decimal(1).scaleb(-decimals), rounding):,.{decimals}f}"
