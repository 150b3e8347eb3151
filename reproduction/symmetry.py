"""Check statements by counting: floats, Remarks 1 and 2, the turn by pi/4."""

import math
import random
import struct
import sys
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from dpnoise.kernels.elementary import cospi
from dpnoise.noise.generator import Generator
from reproduction.piece import CONFIRMED, DIFFERS, Cell, Effort, Judgement, Piece, Table

Floats = NDArray[np.float64]


def doubles_for_each_in_unit_interval() -> float:
    """Return the number of finite doubles divided by the number of those in [0, 1)."""
    finite = 2 * 2047 * 2**52  # All exponents except the last, which encodes infinities and NaN.
    below_one = struct.unpack("<Q", struct.pack("<d", 1.0))[0]  # Bit patterns grow with the number.
    return float(finite / below_one)


def _bits() -> list[int]:
    return [int(np.finfo(kind).bits) for kind in (np.float64, np.float32, np.float16)]


def _digits() -> list[int]:
    return [int(np.finfo(kind).nmant) + 1 for kind in (np.float64, np.float32, np.float16)]


def check_floats(effort: Effort) -> Judgement:
    """Count the floats and uniforms of this machine."""
    draws = [random.random() for _ in range(effort.pick(100_000, 1_000))]
    multiples = all((U * 2**53).is_integer() for U in draws)
    # Half of all multiples of 2^-53 are odd; without odd ones the grid would be coarser.
    odd = sum(int(U * 2**53) % 2 for U in draws) / len(draws)
    tenth = Fraction(0.1) - Fraction(1, 10)
    rows: list[tuple[Cell, ...]] = [
        ("float64: machine epsilon, bits of the fraction", sys.float_info.epsilon, 52),
        ("float32: machine epsilon, bits of the fraction", float(np.finfo(np.float32).eps), 23),
        ("random(): share that are odd multiples of 2^-53, and multiples at all", odd, multiples),
        ("0.1 as a double, minus 1/10", float(tenth), "not representable"),
        ("floats of 64 bits for each uniform of 53", 2.0 ** (64 - 53), "so most are never reached"),
        (
            "finite doubles for each one in [0, 1)",
            doubles_for_each_in_unit_interval(),
            "all counted",
        ),
        ("bits of double, single and half precision", "64, 32, 16", _bits() == [64, 32, 16]),
        ("of these, p: the fraction and a leading 1", "53, 24, 11", _digits() == [53, 24, 11]),
    ]
    formats = _bits() == [64, 32, 16] and _digits() == [53, 24, 11]
    holds = (
        formats and rows[0][1] == 2.0**-52 and rows[1][1] == 2.0**-23 and multiples and tenth != 0
    )
    return Judgement(
        CONFIRMED if holds and abs(odd - 0.5) < 0.2 else DIFFERS,
        "Counted on this machine. There are four times as many doubles on the line as in the unit "
        "interval, where the paper says many more; 2^11 bit patterns for each multiple of 2^-53. "
        "Of all patterns 2^53 are infinite or NaN.",
        [Table("Floats and uniforms", ("what", "number", "and"), rows)],
    )


# Remark 1 ----------------------------------------------------------------------------------------


def plain_angles(precision: int) -> list[Fraction]:
    """Return the angles pi U of all U of this many bits, in units of pi."""
    return [Fraction(k, 2**precision) for k in range(2**precision)]


def count_unmatched(angles: list[Fraction]) -> int:
    """Count the angles a, in [0, 1], for which no angle has the cosine -cos(pi a).

    On [0, 1] the cosine falls strictly, and -cos(pi a) = cos(pi (1 - a)).
    """
    present = set(angles)
    return sum(1 - angle not in present for angle in angles)


def signed_angles(precision: int) -> list[Fraction]:
    """Return the angles of Remark 1: the first bit is the sign, the rest the magnitude."""
    half = 2 ** (precision - 1)
    magnitudes = [Fraction(k % half, 2**precision) for k in range(2**precision)]
    return [a if k < half else 1 - a for k, a in enumerate(magnitudes)]


def _kernel_mean(precision: int) -> float:
    words = np.arange(2**precision, dtype=np.uint64) << np.uint64(64 - precision)
    cosines = [float(cospi(word, precision)) for word in words]
    return math.fsum(cosines) / len(cosines)


def check_remark_1(effort: Effort) -> Judgement:
    """Count the cosines without a counterpart of the opposite sign, at every small p."""
    rows = []
    for p in effort.pick(range(2, 15, 2), range(2, 9, 2)):
        plain, signed = plain_angles(p), signed_angles(p)
        mean = math.fsum(math.cos(math.pi * float(a)) for a in plain) / 2**p
        zeros = (plain.count(Fraction(1, 2)), signed.count(Fraction(1, 2)))
        rows.append(
            (p, count_unmatched(plain), count_unmatched(signed), *zeros, mean, _kernel_mean(p))
        )
    columns = (
        "p",
        "unmatched, cos(pi U)",
        "unmatched, Remark 1",
        "zeros, cos(pi U)",
        "zeros, Remark 1",
        "mean, cos(pi U)",
        "mean, dpnoise's",
    )
    table = Table("All U of p bits", columns, rows)
    is_skewed = all(
        row[1] == 1 and row[3] == 1 and abs(row[5] - 2.0 ** -row[0]) < 1e-12 for row in rows
    )
    is_symmetric = all(row[2] == 0 and row[4] == 0 and row[6] == 0.0 for row in rows)
    return Judgement(
        CONFIRMED if is_skewed and is_symmetric else DIFFERS,
        "Counted exactly, in fractions: one cosine, that of U = 0, has no counterpart, and the "
        "mean is 2^-p. With the first bit as the sign every cosine has one, zero is never taken, "
        "and the mean of the kernel's cosines is exactly 0. (The remark's formula and its listing "
        "have opposite signs: see 'errata'.)",
        [table],
    )


# Remark 2 ----------------------------------------------------------------------------------------


def distinct_cosines(precision: int, turns: int) -> int:
    """Count the values of cos(turns * pi * U) over all U of this many bits, in integers.

    With k = U 2^p, the angle in units of pi/2^p is turns * k modulo 2^(p+1), and the cosine is the
    same at an angle and at its negative, and at no others.
    """
    circle = 2 ** (precision + 1)
    angles = {turns * k % circle for k in range(2**precision)}
    return len({min(angle, circle - angle) for angle in angles})


def check_redundancy(effort: Effort) -> Judgement:
    """Count the cosines that Box-Muller and Theorem 5.1 can take."""
    rows = [
        (p, distinct_cosines(p, turns=4), distinct_cosines(p, turns=1))
        for p in range(4, effort.pick(17, 9), 2)
    ]
    is_redundant = all(
        box_muller == 2 ** (p - 2) + 1 and theorem == 2**p for p, box_muller, theorem in rows
    )
    return Judgement(
        CONFIRMED if is_redundant else DIFFERS,
        "N1^2 - N2^2 has the factor cos(4 pi U2), which takes 2^(p-2) + 1 values where Theorem "
        "5.1's cos(pi U2) takes 2^p: two bits are redundant. Counted exactly, in integers.",
        [
            Table(
                "Values of the cosine, all U2 of p bits", ("p", "cos(4 pi U2)", "cos(pi U2)"), rows
            )
        ],
    )


# Section 5.1: both members of a pair, or one -----------------------------------------------------


def both_members(U1: Floats, U2: Floats) -> Floats:
    """Return (N1 + N2) / sqrt 2 of equation (3)."""
    radius = np.sqrt(-2.0 * np.log(1.0 - U1))
    angle = 2.0 * np.pi * U2
    total: Floats = (radius * np.cos(angle) + radius * np.sin(angle)) / math.sqrt(2.0)
    return total


def turned_member(U1: Floats, U2: Floats) -> Floats:
    """Return N1 for the same U1 and U2 minus an eighth of a turn."""
    N1: Floats = np.sqrt(-2.0 * np.log(1.0 - U1)) * np.cos(2.0 * np.pi * ((U2 - 0.125) % 1.0))
    return N1


def check_turn(effort: Effort) -> Judgement:
    """Compare (N1 + N2)/sqrt 2 with one member, turned by pi/4, at every small p and at 53."""
    rows: list[tuple[int, int, float, float]] = []
    for p in (4, 8, 53):
        if p == 53:
            U1, U2 = Generator().random(size=(2, effort.pick(1_000_000, 10_000)))
        else:
            grid = np.arange(2**p) / 2**p
            U1, U2 = (axis.ravel() for axis in np.meshgrid(grid, grid))
        sums, turns = both_members(U1, U2), turned_member(U1, U2)
        rows.append(
            (p, len(U1), float(np.max(np.abs(sums - turns))), float(np.mean(sums == turns)))
        )
    columns = ("p", "pairs (U1, U2)", "largest difference", "equal to the last bit")
    table = Table("Both members of a pair against one, turned", columns, rows)
    holds = max(table.column("largest difference")) < 1e-14
    return Judgement(
        CONFIRMED if holds else DIFFERS,
        "The difference is only rounding (below 10^-14), at all uniforms of 4 and 8 bits and at "
        "random ones of 53. An eighth of a turn moves multiples of 2^-p to multiples from p = 3 "
        "on, so that in real arithmetic the two have one and the same law at every p.",
        [table],
    )


PIECES = (
    Piece(
        key="floats",
        title="Floating-point numbers and uniforms",
        place="Sections 2.1 to 2.3, Definition 3.1",
        statement="Machine epsilon is 2^-52 in double and 2^-23 in single precision, 1/10 is not a "
        "binary fraction, Python's uniforms are the multiples of 2^-53, and there are far more "
        "floats than uniforms.",
        check=check_floats,
        code=(check_floats,),
    ),
    Piece(
        key="remark-1",
        title="Remark 1: the asymmetry of cos(pi U)",
        place="Remark 1",
        statement="As U = 1 is never drawn, cos(pi U) reaches 1 and never -1. Taking the first bit "
        "of U as the sign removes the asymmetry, and the value 0.",
        check=check_remark_1,
        code=(plain_angles, signed_angles, count_unmatched, cospi, check_remark_1),
    ),
    Piece(
        key="redundancy",
        title="Remark 2: two redundant bits",
        place="Remark 2, equations (12) and (13)",
        statement="In the forms with Box-Muller pairs the first two bits of U2 and U4 change "
        "nothing; Theorem 5.1 uses them all.",
        check=check_redundancy,
        code=(distinct_cosines, check_redundancy),
    ),
    Piece(
        key="turn",
        title="(N1 + N2)/sqrt 2 is one member, turned by pi/4",
        place="Section 5.1",
        statement="Discarding one member of a pair, and adding both and dividing by sqrt 2, are "
        "mathematically the same, out of phase by pi/4.",
        check=check_turn,
        code=(both_members, turned_member, check_turn),
    ),
)
