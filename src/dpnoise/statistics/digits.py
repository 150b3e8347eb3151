"""How published numbers are written: the digits that are known, and margins never too small."""

import math
from decimal import ROUND_CEILING, ROUND_FLOOR, Context, Decimal, localcontext
from typing import Final

_DECIMAL_DIGITS: Final = 800  # More than any float and its margin have.
_MOST_DIGITS: Final = 18  # Numbers of more digits are shown with an exponent.
_WITHOUT_MARGIN: Final = 10  # Digits of a number whose error is not known.
_OF_A_LOSS: Final = Context(prec=6, rounding=ROUND_CEILING)


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


def never_less(loss: float) -> str:
    """Show an epsilon, delta or rho with six digits, never as less than it is.

    Examples
    --------
    >>> never_less(0.1), never_less(0.12345612), never_less(1e-06), never_less(3)
    ('0.1', '0.123457', '1e-06', '3')
    """
    return f"{float(_OF_A_LOSS.create_decimal(repr(float(loss)))):.6g}"


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
