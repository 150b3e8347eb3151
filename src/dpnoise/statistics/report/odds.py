"""What epsilon means for one person, as odds. Every figure is rounded against us."""

from decimal import ROUND_CEILING, ROUND_FLOOR, Context, Decimal
from typing import Final

_EXACT: Final = Context(prec=60)
_LARGEST: Final = Decimal(1000)  # exp of more helps nobody, and of far more has no number.
_CERTAIN: Final = Decimal("99.9")  # Percent; the next step up would read 100.


def factor(epsilon: float) -> str:
    """Return the most that odds are multiplied by, exp(epsilon), with three digits, rounded up.

    Examples
    --------
    >>> factor(1.0), factor(0.1), factor(5.0), factor(50.0)
    ('2.72', '1.11', '149', '5.19e+21')
    """
    up = Context(prec=3, rounding=ROUND_CEILING).plus(_exp(epsilon))
    return f"{up:.3g}" if up.adjusted() > _PLAINLY else f"{up.normalize(_EXACT):f}"


def at_most(percent: int, epsilon: float) -> str:
    """Return what a belief, in percent, can rise to.

    Examples
    --------
    >>> at_most(50, 1.0), at_most(10, 0.1), at_most(50, 20.0)
    ('73.2%', '11%', 'over 99.9%')
    """
    return _shown(_belief(percent, _exp(epsilon)), ROUND_CEILING)


def at_least(percent: int, epsilon: float) -> str:
    """Return what a belief, in percent, can fall to.

    Examples
    --------
    >>> at_least(50, 1.0), at_least(10, 0.1), at_least(50, 20.0)
    ('26.8%', '9.1%', '0%')
    """
    return _shown(_belief(percent, 1 / _exp(epsilon)), ROUND_FLOOR)


def shares(percent: int, epsilon: float) -> tuple[float, float]:
    """Return both ends as parts of 1, to draw them."""
    up = _exp(epsilon)
    return float(_belief(percent, 1 / up) / 100), float(_belief(percent, up) / 100)


_PLAINLY: Final = 5  # Powers of ten up to which a factor is written out.


def _exp(epsilon: float) -> Decimal:
    return _EXACT.exp(min(Decimal(epsilon), _LARGEST))


def _belief(percent: int, times: Decimal) -> Decimal:
    """Return the percentage whose odds are `times` those of another."""
    odds = times * percent / (100 - percent)
    return 100 * odds / (1 + odds)


def _shown(percent: Decimal, rounding: str) -> str:
    if percent > _CERTAIN:
        return "over 99.9%"
    rounded = percent.quantize(Decimal("0.1"), rounding)
    return f"{rounded.normalize(_EXACT):f}%"
