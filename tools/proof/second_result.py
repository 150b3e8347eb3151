"""The second stage's last step: the exact grid point becomes the nearest float, rounded once.

`release_float` is floats again. Its statements are read, so that they are those of the scripts:
`split_float` gives base = 0, or base = value and whole = 0, and a cell that counts is at most 2^53.
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
_EXACT = 2**53


def the_source_is_what_is_proved() -> None:
    """Check the statements of `release_float`, and what a cell may be at most."""
    tree, names = source_of(second_stage.release_float)
    found = "\n".join(ast.unparse(statement) for statement in tree.body[1:])
    assert found == _SOURCE, f"release_float is\n{found}"
    assert int(names["_EXACT"]) == _EXACT, "the largest cell has changed"


def _within() -> Case:
    """Return the case of base = 0: whole + cell is converted, which rounds, and nothing else does.

    A product with 1 and a sum with 0 are written as what they are, a rounding.
    """
    return case(
        "base is 0",
        Translation({}),
        "rnd(rnd(rnd(rnd(n)))) - rnd(n) in [0, 0]",
        hypotheses=["@FIX(n, 0)", f"n in [-{2 * _EXACT}, {2 * _EXACT}]"],
    )


def _beyond() -> Case:
    """Return the case of whole = 0: a cell is a float, and only its sum with the value rounds."""
    return case(
        "base is the value",
        Translation({}),
        "rnd(rnd(n)) - n in [0, 0] /\\ rnd(s) - s in [0, 0]",
        definitions=[("s", "rnd(base + rnd(rnd(n)))")],
        # 2^53 itself is a float, too.
        hypotheses=[
            "@FIX(n, 0)",
            f"n in [-{_EXACT - 1}, {_EXACT - 1}]",
            "base in [-1b1023, 1b1023]",
        ],
    )


def statements() -> list[Statement]:
    """Return the statement of this file."""
    return [
        Statement(
            "release_float",
            "of what makes an exact grid point a float, one operation rounds",
            lambda: [_within(), _beyond()],
            lambda _: "1 rounding",
            "1 rounding",
            [the_source_is_what_is_proved],
        )
    ]
