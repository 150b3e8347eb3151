"""What is protected and how strongly, with epsilon as odds. Every figure is rounded against us."""

from dataclasses import dataclass
from decimal import ROUND_CEILING, ROUND_FLOOR, Context, Decimal
from typing import Final

from dpnoise.core.strict_json import Data
from dpnoise.statistics.composition import epsilon_of_zcdp
from dpnoise.statistics.digits import never_less

_BELIEFS: Final = (1, 10, 50, 90)  # Percent.
_WEAK: Final = 10.0  # An epsilon above which odds say that hardly anything is promised.
_USUAL_DELTA: Final = 1e-6  # Where a loss in rho is read.
_ROWS: Final = 3  # Of one person, in an example.
_EXACT: Final = Context(prec=60)
_LARGEST: Final = Decimal(1000)  # exp of more helps nobody, and of far more has no number.
_CERTAIN: Final = Decimal("99.9")  # Percent; the next step up would read 100.
_PLAINLY: Final = 5  # Powers of ten up to which a factor is written out.


@dataclass(frozen=True)
class Protection:
    """What a record says of its protection."""

    unit: str
    replaced: bool
    epsilon: float
    delta: float
    rho: float | None

    @classmethod
    def of(cls, record: Data) -> "Protection":
        """Read it from a record; one without `privacy` spent its request's epsilon.

        A loss in rho has no epsilon until a delta is chosen, which is done here.
        """
        request = record["request"]
        privacy = record.get("privacy") or {"epsilon": request["epsilon"]}
        epsilon, delta, rho = privacy["epsilon"], privacy.get("delta") or 0.0, None
        if epsilon is None:
            rho = privacy["rho"]
            epsilon = epsilon_of_zcdp(rho, _USUAL_DELTA)
            delta = _USUAL_DELTA + (privacy.get("rho_delta") or 0.0)
        replaced = request.get("neighbours") == "replace"
        return cls(record["privacy_unit"], replaced, epsilon, delta, rho)

    def view(self) -> Data:
        """Return what the page shows of it; `noun` is who or what is protected, in one word."""
        at_delta = f" and delta {never_less(self.delta)}" if self.delta else ""
        return {
            "unit": self.unit,
            "noun": "row" if self.unit.startswith("one row") else "person",
            "replaced": self.replaced,
            "weak": self.epsilon > _WEAK,
            "epsilon": never_less(self.epsilon),
            "rho": None if self.rho is None else never_less(self.rho),
            "loss": f"epsilon {never_less(self.epsilon)}{at_delta}",
            "delta": never_less(self.delta) if self.delta else None,
            "once_in": _once_in(self.delta),
            "usual_delta": f"{_USUAL_DELTA:g}",
            "factor": factor(self.epsilon),
            "rows": _ROWS,
            "factor_of_rows": factor(_ROWS * self.epsilon),
            "beliefs": [_range(belief, self.epsilon) for belief in _BELIEFS],
            "from_half": at_most(50, self.epsilon),
        }


def _once_in(delta: float) -> str | None:
    if not delta:
        return None
    return f"{1 / delta:,.0f}" if delta > 1e-15 else f"{1 / delta:.2g}"  # noqa: PLR2004 - readable


def _range(belief: int, epsilon: float) -> Data:
    """Return what a belief, in percent, can become: in words, and as parts of 1 to draw it."""
    up = _exp(epsilon)
    return {
        "percent": belief,
        "says": f"{at_least(belief, epsilon)} to {at_most(belief, epsilon)}",
        "low": float(_belief(belief, 1 / up) / 100),
        "high": float(_belief(belief, up) / 100),
    }


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
