"""Measure the statements of the paper again, and write the page: `python -m reproduction`."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import reproduction
from dpnoise.cli import terminal
from dpnoise.cli.output_files import file_name
from dpnoise.cli.terminal import progress_bar
from dpnoise.core.errors import ArgumentError, DpnoiseError, import_extra
from dpnoise.core.safe_text import escape_text
from reproduction.page import verdict_counts
from reproduction.piece import Result


def main(arguments: list[str] | None = None) -> int:
    """Run the program and return its exit status."""
    options = _parser().parse_args(arguments)
    try:
        with terminal.escape_unencodable():
            _run(options)
    except (DpnoiseError, OSError) as error:
        terminal.complain(str(error))
        return 2
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m reproduction",
        description="Measure each statement of Holohan and Braghin (2021) again, and write one "
        "page with results and verdicts, the drawings and the numbers to a folder.",
    )
    parser.add_argument(
        "--figure",
        action="append",
        metavar="NAME",
        help="only this piece: 1, 2 or another name of --list; may be repeated",
    )
    parser.add_argument("--list", action="store_true", help="list the pieces")
    parser.add_argument(
        "--output", type=file_name, metavar="FOLDER", help="folder to write to (default: paper)"
    )
    parser.add_argument(
        "--force", action="store_true", help="replace the files that an earlier run wrote"
    )
    parser.add_argument("--quick", action="store_true", help="small samples, to test that it works")
    return parser


def _run(options: argparse.Namespace) -> None:
    pieces = reproduction.choose(options.figure)
    if options.list:
        for piece in pieces:
            line = f"{piece.key:<13} {piece.title}"
            print(terminal.prose(line, hanging=14))
        return
    import_extra("matplotlib", "plots")
    folder = options.output or Path("-".join(["paper", *(options.figure or ())]))
    _check_folder(folder, force=options.force)
    with progress_bar("reproducing") as show:
        results = reproduction.measure(pieces, quick=options.quick, progress=show)
    folder.mkdir(exist_ok=True)
    reproduction.write(results, folder, quick=options.quick)
    _show(results)
    print(f"\n{terminal.prose(verdict_counts(results))}")
    print(f"Written to {escape_text(folder / reproduction.PAGE)}.")


def _check_folder(folder: Path, *, force: bool) -> None:
    """Raise an error if the folder cannot be written to, before measuring for minutes."""
    if not folder.parent.is_dir():
        raise ArgumentError(f"There is no folder {folder.parent} to write {folder.name} to.")
    if folder.exists() and not (folder.is_dir() and force):
        raise ArgumentError(f"{folder} exists. Name another folder, or use --force to write to it.")


def _show(results: Sequence[Result]) -> None:
    for result in results:
        verdict = result.finding.verdict
        line = f"{verdict:<12} {result.piece.key:<13} {result.piece.title}"
        print(terminal.prose(line, hanging=27))
        if verdict == "not run":
            print(terminal.prose(f"{'':26} {escape_text(result.finding.why)}", hanging=27))


if __name__ == "__main__":
    sys.exit(main())
