"""The paper, statement by statement: measured again, with a verdict.

piece          what a statement, a check and a judgement are
samplers       the paper's own samplers, written from their formulas
level_curves   Figure 1
timings        Figure 2 and the claims about time
laws           section 4, Theorem 5.1, appendix A, as statistical tests
floating       section 2.1: the range of doubles, and how they are rounded
symmetry       what can be counted out: floats, Remark 1, the turn by pi/4
inversions     the attacks of section 2 and the advice against them
generators     what can be predicted, and which calls share uniforms
divisibility   section 4's definition, and parts that can be drawn
searching      sections 3, 5.3 and 6: what a search costs
addition       what remains; snapping; shifts
adoption       the fix in libraries that adopted it, and the defence that the paper set aside
errata         each shown by a number
race           how we time, and what a verdict by the clock takes
drawing, page  lines, and the page that shows all of it
"""

import platform
import time
from collections.abc import Collection, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Final

import dpnoise
from dpnoise.auditing.attacks.base import Progress, silent
from dpnoise.core import strict_json
from dpnoise.core.errors import ArgumentError
from dpnoise.core.machine import described
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

# In the order of the page: the two figures first, then as the paper goes, then what corrects it.
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
    """Return the pieces of these keys in the page's order; all of them if there are none.

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
    progress: Progress = silent,
) -> list[Result]:
    """Run the checks one after the other.

    Parameters
    ----------
    pieces
        From `choose`.
    quick
        Measure little, to see that all of it works: the figures then say little too.
    progress
        Called with the part of the pieces that is done.
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
    """Write the page, the drawings and the numbers into an empty folder."""
    versions = {name: version(name) for name in ("numpy", "scipy", "numba")}
    python = platform.python_version()
    machine = {"machine": described(), "python": python, "cores": cores(), **versions}
    made = ", ".join(f"{name} {number}" for name, number in machine.items())
    about = f"dpnoise {dpnoise.__version__}, {time.strftime('%Y-%m-%d')}: {made}."
    if quick:
        about += " A quick run: the samples are small, and the figures say little."
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
