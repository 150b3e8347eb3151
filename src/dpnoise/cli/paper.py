"""`dpnoise paper`: measure the statements of the paper again, and write the page."""

import argparse
from pathlib import Path
from typing import Any

from dpnoise.cli import terminal
from dpnoise.cli.files import file_name, written_folder
from dpnoise.cli.progress import progress_bar
from dpnoise.errors import import_extra
from dpnoise.showing import shown


def add(commands: Any) -> None:
    """Add the command to the parser."""
    command = commands.add_parser(
        "paper",
        help="reproduce the paper's figures and statements",
        description="Measure each statement of Holohan and Braghin (2021) again, and write one "
        "page with what was found and a verdict, the drawings and the numbers into a folder.",
    )
    command.add_argument(
        "--figure",
        action="append",
        metavar="NAME",
        help="only this piece, 1 or 2 or another of --list; repeat it for several",
    )
    command.add_argument("--list", action="store_true", help="list the pieces")
    command.add_argument(
        "--output", type=file_name, metavar="FOLDER", help="where to write (paper)"
    )
    command.add_argument("--force", action="store_true", help="replace what an earlier run wrote")
    command.add_argument("--quick", action="store_true", help="small samples, to see that it works")
    command.set_defaults(run=_paper)


def _paper(asked: argparse.Namespace) -> None:
    # It brings Numba, SciPy and all attacks, so it is imported when it is needed.
    from dpnoise import paper
    from dpnoise.paper.page import counted

    pieces = paper.choose(asked.figure)
    if asked.list:
        for piece in pieces:
            line = f"{piece.key:<13} {piece.title}"
            print(terminal.prose(line, hanging=14))  # noqa: T201 - this is the command line
        return
    import_extra("matplotlib", "plots")
    folder = asked.output or Path("-".join(["paper", *(asked.figure or ())]))
    with written_folder(folder, force=asked.force, mark=paper.RESULTS) as beside:
        with progress_bar("reproducing") as show:
            results = paper.measure(pieces, quick=asked.quick, progress=show)
        paper.write(results, beside, quick=asked.quick)
    _show(results)
    print(f"\n{terminal.prose(counted(results))}")  # noqa: T201 - likewise
    print(f"Written to {shown(folder / paper.PAGE)}.")  # noqa: T201 - likewise


def _show(results: Any) -> None:
    for result in results:
        verdict = result.finding.verdict
        line = f"{verdict:<12} {result.piece.key:<13} {result.piece.title}"
        print(terminal.prose(line, hanging=27))  # noqa: T201
        if verdict == "not run":
            print(terminal.prose(f"{'':26} {shown(result.finding.why)}", hanging=27))  # noqa: T201
