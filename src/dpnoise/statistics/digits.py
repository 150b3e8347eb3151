"""Numbers as decimals: amounts as people write them, read exactly, and published numbers in words.

Numbers are written with the digits that are known. Margins and losses are never shown as too small.
"""

import math
import re
from decimal import ROUND_CEILING, ROUND_FLOOR, Context, Decimal, InvalidOperation, localcontext
from fractions import Fraction
from typing import Final

from dpnoise.core.errors import is_integer, is_real, reject

Number = float | str | Decimal

_DIGITS: Final = 20  # Of an amount that is given; what is spent is rounded up to so many.
_SMALLEST: Final = -40  # The power of ten of the last digit of an amount.
_FARTHEST: Final = 1000  # The power of ten that a cost can have: more than those of floats.
# Decimal() also reads underscores, spaces around the number and the digits of every script.
_DECIMAL_TEXT: Final = re.compile(r"[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?")
_PLAIN_AMOUNT: Final = (-5, 20)  # Powers of ten between which an amount has no exponent.
_PLAIN_MARGIN: Final = (-6, 12)  # Those between which a margin has none.
_DECIMAL_DIGITS: Final = 800  # More than any float and its margin have.
_MOST_DIGITS: Final = 18  # Numbers of more digits are shown with an exponent.
_WITHOUT_MARGIN: Final = 10  # Digits of a number whose error is not known.
_OF_A_LOSS: Final = Context(prec=6, rounding=ROUND_CEILING)


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
            "be a finite decimal number such as 0.5 or 1e-6: the digits 0 to 9, and no spaces "
            "or underscores",
        )
    if not number.is_finite() or number < 0 or (number == 0 and not zero):
        reject(name, value, "be finite and " + ("at least 0" if zero else "greater than 0"))
    _, digits, exponent = number.as_tuple()
    if len(digits) > _DIGITS or int(exponent) < _SMALLEST or number.adjusted() >= _DIGITS:
        reject(name, value, "have at most 20 digits, and none below 1e-40 or from 1e20 on")
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


def amount_in_ledger(text: object) -> Fraction:
    """Return an amount that a ledger holds as text, neither negative nor of endless digits."""
    if not isinstance(text, str):
        raise TypeError("The amount must be text.")
    number = _decimal_of_text(text)
    if number is None or number < 0 or abs(number.adjusted()) > _FARTHEST:
        raise ValueError("The text must be an amount.")
    return Fraction(number)


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
    if not _PLAIN_AMOUNT[0] <= quotient.adjusted() < _PLAIN_AMOUNT[1]:
        return f"{quotient.normalize(context):e}".replace("e+", "e")
    plain = f"{quotient:f}"
    return plain.rstrip("0").rstrip(".") if "." in plain else plain


def never_less(loss: float) -> str:
    """Show an epsilon, delta or rho with six digits, never as less than it is.

    Examples
    --------
    >>> never_less(0.1), never_less(0.12345612), never_less(1e-06), never_less(3)
    ('0.1', '0.123457', '1e-06', '3')
    """
    return f"{float(_OF_A_LOSS.create_decimal(repr(float(loss)))):.6g}"


def rounded(value: float, error: float | None, sign: str = "±") -> tuple[str, str]:
    """Show a number with the digits that its error leaves, and the error with two, rounded up.

    What the number loses by its own rounding is part of the margin that is shown.

    Examples
    --------
    >>> rounded(33299.87576, 3548.74), rounded(5000, 3), rounded(40840.0, None)
    (('33,300', '± 3,600'), ('5,000', '± 3'), ('40,840', 'no bound'))
    """
    decimals = _decimals(error)
    if decimals is None or error is None or not math.isfinite(value):
        return f"{value:,.{_WITHOUT_MARGIN}g}", "no bound"
    if isinstance(value, int) and isinstance(error, int):
        return f"{value:,}", f"{sign} {error:,}"
    with localcontext(prec=_DECIMAL_DIGITS):
        exactly = Decimal(value)
        if not -_MOST_DIGITS < decimals < _MOST_DIGITS:
            number = Decimal(f"{value:.{_WITHOUT_MARGIN}g}")
            margin = _up(Decimal(error) + abs(number - exactly), decimals)
            return f"{value:.{_WITHOUT_MARGIN}g}", f"{sign} {margin:.2g}"
        decimals = max(0, decimals)
        number = exactly if isinstance(value, int) else round(exactly, decimals)
        margin = _up(Decimal(error) + abs(number - exactly), decimals)
    places = 0 if isinstance(value, int) else decimals
    return f"{number:,.{places}f}", f"{sign} {margin:,.{decimals}f}"


def rounded_interval(value: float, low: float, high: float) -> tuple[str, str, str]:
    """Show a number and its interval with the digits that the width leaves, the ends outward.

    Examples
    --------
    >>> rounded_interval(45212.0, 38104.25, 52000.5)
    ('45,212', '38,104', '52,001')
    """
    width = high - low
    ends = (_outward(low, width, ROUND_FLOOR), _outward(high, width, ROUND_CEILING))
    return rounded(value, width)[0], *ends


def shown_up(margin: float) -> str:
    """Show a margin with three digits, rounded up."""
    exactly = Decimal(margin)
    with localcontext(prec=_DECIMAL_DIGITS):
        rounded = exactly.quantize(Decimal(1).scaleb(exactly.adjusted() - 2), ROUND_CEILING)
    is_plain = _PLAIN_MARGIN[0] < exactly.adjusted() < _PLAIN_MARGIN[1]
    return f"{rounded:,f}" if is_plain else f"{rounded:.2e}"


def _decimals(error: float | None) -> int | None:
    """Return how many decimals leave two digits of an error; None if there is none to speak of."""
    if not error or not math.isfinite(error):
        return None
    return 1 - math.floor(math.log10(error))


def _up(margin: Decimal, decimals: int) -> Decimal:
    """Round a margin up, to this many decimals or to two digits."""
    digits = min(decimals, 1 - margin.adjusted())
    return margin.quantize(Decimal(1).scaleb(-digits), ROUND_CEILING)


def _outward(end: float, width: float, rounding: str) -> str:
    if not math.isfinite(end):
        return f"{end:g}"
    decimals = _decimals(width)
    if decimals is None or not -_MOST_DIGITS < decimals < _MOST_DIGITS:
        short = Context(prec=_WITHOUT_MARGIN, rounding=rounding).create_decimal(Decimal(end))
        return f"{short.normalize():,.{_WITHOUT_MARGIN}g}"
    decimals = max(0, decimals)
    with localcontext(prec=_DECIMAL_DIGITS):
        return f"{Decimal(end).quantize(Decimal(1).scaleb(-decimals), rounding):,.{decimals}f}"
