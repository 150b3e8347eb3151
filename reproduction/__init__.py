"""Reproduce the paper: each statement is measured again and gets a verdict.

piece          the data types: pieces, judgements and results
samplers       the paper's samplers, implemented from their formulas
level_curves   Figure 1
timings        Figure 2 and the claims about time
laws           section 4, Theorem 5.1, appendix A, as statistical tests
floating       section 2.1: the range of doubles, and how they are rounded
symmetry       statements that can be checked by counting: floats, Remark 1, the turn by pi/4
inversions     the attacks of section 2 and the mitigations
generators     predictable generators, and calls that share uniforms
divisibility   section 4's definition, and distributions whose parts can be drawn
searching      sections 3, 5.3 and 6: the cost of a search
addition       the remaining leak of the addition; snapping; shifts
adoption       the fix in libraries that adopted it, and defences on a grid
errata         errors of the paper, each shown by a number
race           how contenders are timed, and the rule for verdicts on time
drawing, page  the drawings, and the page with all results
"""

import platform
import time
from collections.abc import Collection, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Final

import dpnoise
from dpnoise.auditing.attacks.base import Progress, no_progress
from dpnoise.core import strict_json
from dpnoise.core.errors import ArgumentError
from dpnoise.core.machine import describe_machine
from dpnoise.core.parallel import cores
from reproduction import (
    addition,
    adoption,
    divisibility,
    errata,
    floating,
    generators,
    inversions,
    laws,
    level_curves,
    searching,
    subset_sums,
    symmetry,
    timings,
)
from reproduction.page import page, summary
from reproduction.piece import Effort, Piece, Result

FORMAT: Final = 1
RESULTS: Final = "results.json"
PAGE: Final = "index.html"

# In the order of the page: the two figures, then the order of the paper, then corrections.
PIECES: Final[dict[str, Piece]] = {
    piece.key: piece
    for piece in (
        *level_curves.PIECES,
        *timings.PIECES,
        *floating.PIECES,
        *symmetry.PIECES,
        *inversions.PIECES,
        *generators.PIECES,
        *divisibility.PIECES,
        *laws.PIECES,
        *searching.PIECES,
        *subset_sums.PIECES,
        *addition.PIECES,
        *adoption.PIECES,
        *errata.PIECES,
    )
}


def choose(keys: Collection[str] | None) -> list[Piece]:
    """Return the pieces with these keys, or all, in the order of the page.

    Examples
    --------
    >>> [piece.title for piece in choose(["sizes"])]
    ['Section 5.3: n for the key sizes of AES']
    >>> choose(["3"])
    Traceback (most recent call last):
    dpnoise.core.errors.ArgumentError: There is no figure '3'. Known: 1, 2, twice, ...
    """
    for key in keys or ():
        if key not in PIECES:
            raise ArgumentError(f"There is no figure {key!r}. Known: {', '.join(PIECES)}.")
    return [piece for piece in PIECES.values() if not keys or piece.key in keys]


def measure(
    pieces: Sequence[Piece],
    *,
    quick: bool = False,
    progress: Progress = no_progress,
) -> list[Result]:
    """Run the checks of pieces, one after the other.

    Parameters
    ----------
    pieces
        Pieces from `choose`.
    quick
        Use small samples, to test that everything works; the results are then not precise.
    progress
        Called with the finished share of the pieces.
    """
    results = []
    for i, piece in enumerate(pieces):
        progress(i / len(pieces))
        start = time.perf_counter()
        judgement = piece.check(Effort(quick, progress).part(i, len(pieces)))
        results.append(Result(piece, judgement, time.perf_counter() - start))
    progress(1.0)
    return results


def write(results: Sequence[Result], folder: Path, *, quick: bool = False) -> None:
    """Write the page, the drawings and the numbers to a folder."""
    versions = {name: version(name) for name in ("dpnoise", "numpy", "scipy", "numba")}
    python = platform.python_version()
    machine = {"machine": describe_machine(), "python": python, "cores": cores(), **versions}
    versions_text = ", ".join(f"{name} {number}" for name, number in machine.items())
    about = f"{time.strftime('%Y-%m-%d')}: {versions_text}."
    if quick:
        about += " This was a quick run: the samples are small, and the figures are not precise."
    (folder / PAGE).write_text(page(results, about), encoding="utf-8")
    for result in results:
        if result.finding.figure:
            svg = result.finding.figure.replace("currentColor", "#000000")
            (folder / f"{result.piece.key}.svg").write_text(svg, encoding="utf-8")
    report = {
        "format": FORMAT,
        "dpnoise paper": dpnoise.__version__,
        "quick": quick,
        "machine": machine,
        "pieces": list(summary(results)),
    }
    (folder / RESULTS).write_text(strict_json.dumps(report) + "\n", encoding="utf-8")
