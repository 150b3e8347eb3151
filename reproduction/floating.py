"""Check section 2.1: the range and layout of doubles, and how this machine rounds."""

import math
import random
import struct
from collections.abc import Callable
from fractions import Fraction
from typing import Final

from reproduction.piece import CONFIRMED, DIFFERS, Cell, Effort, Judgement, Piece, Table

_STEP: Final = Fraction(1, 2**52)  # The distance between doubles in [1, 2).

# The five modes of IEEE 754-2019, for multiples of a step. Python's round() takes ties to even.
MODES: Final[dict[str, Callable[[Fraction], int]]] = {
    "to nearest, ties to even": round,
    "to nearest, ties away from zero": lambda x: (
        int(math.copysign(1, x)) * math.floor(abs(x) + Fraction(1, 2))
    ),
    "up, towards +infinity": math.ceil,
    "down, towards -infinity": math.floor,
    "towards zero": math.trunc,
}


def layout(x: float) -> tuple[int, int, int]:
    """Return the sign, exponent and fraction of a double: its 1, 11 and 52 bits."""
    (bits,) = struct.unpack("<Q", struct.pack("<d", x))
    return bits >> 63, bits >> 52 & 0x7FF, bits & (2**52 - 1)


def value(sign: int, exponent: int, fraction: int) -> Fraction:
    """Return the value by section 2.1: (-1)^sign (1.fraction) 2^(exponent - 1023)."""
    significand = 1 + Fraction(fraction, 2**52)
    power = Fraction(2**exponent, 2**1023)
    return -significand * power if sign else significand * power


def rounded_sums(count: int) -> dict[str, float]:
    """Add doubles that need rounding; return the share of sums that each mode explains.

    1 <= |a| < 2 and b is 0 to 3 quarters of a step. A quarter of the sums are ties, and half lie
    between two doubles.
    """
    hits_by_mode = dict.fromkeys(MODES, 0)
    for _ in range(count):
        a = random.choice((-1.0, 1.0)) * (1 + random.randrange(1, 2**51) * 2.0**-51 / 2)
        b = random.randrange(4) * 2.0**-54
        exact = (Fraction(a) + Fraction(b)) / _STEP
        for name, mode in MODES.items():
            hits_by_mode[name] += Fraction(a + b) / _STEP == mode(exact)
    return {name: hits / count for name, hits in hits_by_mode.items()}


def _nearest(x: Fraction) -> float:
    """Return the double nearest to a fraction: Python divides integers with one rounding."""
    return x.numerator / x.denominator


def _is_nearest_root(y: float, x: float) -> bool:
    """Return whether y is the double nearest to the square root of x, using only squares."""
    below, above = ((Fraction(y) + Fraction(math.nextafter(y, end))) / 2 for end in (0.0, math.inf))
    return below**2 <= Fraction(x) <= above**2


def correctly_rounded(count: int) -> dict[str, float]:
    """Return the share of correctly rounded results for each of the standard's operations."""
    hits_by_operation = dict.fromkeys(("a + b", "a - b", "a * b", "a / b", "sqrt(a)"), 0)
    for _ in range(count):
        a, b = (random.uniform(0.5, 2) * 2.0 ** random.randrange(-40, 40) for _ in range(2))
        A, B = Fraction(a), Fraction(b)
        hits_by_operation["a + b"] += a + b == _nearest(A + B)
        hits_by_operation["a - b"] += a - b == _nearest(A - B)
        hits_by_operation["a * b"] += a * b == _nearest(A * B)
        hits_by_operation["a / b"] += a / b == _nearest(A / B)
        hits_by_operation["sqrt(a)"] += _is_nearest_root(math.sqrt(a), a)
    return {name: hits / count for name, hits in hits_by_operation.items()}


def binary_digits(x: Fraction, count: int) -> str:
    """Return the first digits of a fraction after the binary point."""
    return format(math.floor(x * 2**count), f"0{count}b")


def _ranges() -> list[tuple[Cell, ...]]:
    largest, normal, least = math.nextafter(math.inf, 0), 2.0**-1022, math.nextafter(0.0, 1)
    return [
        ("largest double", largest, layout(largest) == (0, 2046, 2**52 - 1)),
        ("smallest with a leading 1", normal, layout(normal) == (0, 1, 0)),
        ("smallest of all, subnormal", least, layout(least) == (0, 0, 1)),
        ("the paper's formula at the smallest", float(value(*layout(least))), "not the number"),
        ("1/10 in binary", "0." + binary_digits(Fraction(1, 10), 13) + "...", "0011 repeats"),
    ]


def check_rounding(effort: Effort) -> Judgement:
    """Check the range and layout of doubles, and how the machine rounds."""
    count = effort.pick(20_000, 400)
    modes, operations = rounded_sums(count), correctly_rounded(count)
    ranges = _ranges()
    pattern = all(value(*layout(x)) == Fraction(x) for x in (1.0, -2.5, 0.1, 2.0**-1022, 1e308))
    repeats = "".join(binary_digits(Fraction(1, 10), 53)[1:]) == "0011" * 13
    holds = pattern and repeats and all(row[2] for row in ranges)
    exact = min(operations.values()) == modes["to nearest, ties to even"] == 1
    return Judgement(
        CONFIRMED if holds and exact else DIFFERS,
        f"In {count:,} trials of each, this machine's +, -, *, / and square root gave the exact "
        "result rounded to nearest, ties to even. The range holds for doubles with a leading 1; "
        "subnormal ones, for which the printed formula is not meant, reach down to 4.9e-324. One "
        "of the five rounding modes has an incomplete name: see 'errata'.",
        [
            Table("Range and layout", ("what", "number", "and"), ranges),
            Table(
                "Sums between two doubles: the share that a mode explains",
                ("rounding mode", "share"),
                list(modes.items()),
            ),
            Table("Rounded once, to nearest", ("operation", "share"), list(operations.items())),
        ],
    )


PIECES = (
    Piece(
        key="rounding",
        title="Section 2.1: the range of doubles, and how they are rounded",
        place="Section 2.1, footnote 1",
        statement="A double has 1 bit of sign, 11 of exponent and 52 of fraction and lies between "
        "10^-308 and 10^308; five operations are rounded as a standard prescribes, which knows "
        "five ways to round; 1/10 repeats for ever in binary.",
        check=check_rounding,
        code=(layout, value, rounded_sums, correctly_rounded, check_rounding),
    ),
)
