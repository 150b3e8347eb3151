"""Prove the last step of the second stage: the exact grid point is rounded once, to a float.

`release_float` computes with floats. A check compares its statements with those of the scripts.
`split_float` returns base = 0, or base = value and whole = 0, and a valid cell is at most 2^53.
As in `decision`, the grid is 1.
"""

import ast

from dpnoise.kernels import second_stage
from proof.statement import Case, Statement, case
from proof.translation import Translation, source_of

_SOURCE = """\
base, whole, fraction = split_float(value, grid)
cell, certain = nearest_cell(fraction, noise, scale * (1.0 / grid))
certain = certain & (abs(cell) <= _EXACT)
result = base + np.float64(whole + cell) * grid + 0.0
return result if certain else np.nan"""
_LARGEST_CELL = 2**53


def the_source_matches() -> None:
    """Check the statements of `release_float`, and the largest valid cell."""
    tree, names = source_of(second_stage.release_float)
    source = "\n".join(ast.unparse(statement) for statement in tree.body[1:])
    assert source == _SOURCE, f"release_float is\n{source}"
    assert int(names["_EXACT"]) == _LARGEST_CELL, "the largest cell has changed"


def _within_range() -> Case:
    """Return the case of base = 0: only the conversion of whole + cell rounds.

    A product with 1 and a sum with 0 are written as roundings.
    """
    return case(
        "base is 0",
        Translation({}),
        "rnd(rnd(rnd(rnd(n)))) - rnd(n) in [0, 0]",
        hypotheses=["@FIX(n, 0)", f"n in [-{2 * _LARGEST_CELL}, {2 * _LARGEST_CELL}]"],
    )


def _beyond_range() -> Case:
    """Return the case of whole = 0: a cell is a float, and only its sum with the value rounds."""
    return case(
        "base is the value",
        Translation({}),
        "rnd(rnd(n)) - n in [0, 0] /\\ rnd(s) - s in [0, 0]",
        definitions=[("s", "rnd(base + rnd(rnd(n)))")],
        # 2^53 itself is a float, too.
        hypotheses=[
            "@FIX(n, 0)",
            f"n in [-{_LARGEST_CELL - 1}, {_LARGEST_CELL - 1}]",
            "base in [-1b1023, 1b1023]",
        ],
    )


def statements() -> list[Statement]:
    """Return the statement of this file."""
    return [
        Statement(
            "release_float",
            "converting an exact grid point to a float rounds once",
            lambda: [_within_range(), _beyond_range()],
            lambda _: "1 rounding",
            "1 rounding",
            [the_source_matches],
        )
    ]
