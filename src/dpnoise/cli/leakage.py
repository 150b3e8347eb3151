"""`dpnoise leakage`: what noise added in floats leaks, exactly, in small formats."""

import argparse
from dataclasses import asdict
from typing import Any

from dpnoise.auditing.leakage import report
from dpnoise.cli.files import check_plot, check_targets, file_name, written
from dpnoise.cli.progress import progress_bar
from dpnoise.core import strict_json
from dpnoise.core.errors import check_positive
from dpnoise.core.safe_text import shown


def add(commands: Any) -> None:
    """Add the command to the parser."""
    command = commands.add_parser(
        "leakage",
        help="what noise added in floats leaks, exactly, in small formats",
        description="Enumerate all uniforms of the samplers in small formats and print delta at "
        "epsilon of the sum with 0 against the sum with 1, and beside it the exact release.",
    )
    command.add_argument("--epsilon", type=float, default=1.0, help="where to read delta (1)")
    command.add_argument("--json", action="store_true", help="print JSON")
    command.add_argument("--plot", type=file_name, help="draw delta against n and p: out.png")
    command.set_defaults(run=_leakage)


def _leakage(asked: argparse.Namespace) -> None:
    check_positive("epsilon", asked.epsilon)
    check_targets(asked.plot, replace=True)
    check_plot(asked.plot)
    with written(asked.plot, replace=True) as plot:
        with progress_bar("enumerating") as progress:
            leaks = report.table(asked.epsilon, progress)
            releases = report.release_table(asked.epsilon)
        if plot is not None:
            report.plot(leaks, releases, asked.epsilon, plot)
    if asked.json:
        tables = {
            "epsilon": asked.epsilon,
            "leaks": [asdict(row) for row in leaks],
            "releases": [asdict(row) for row in releases],
        }
        print(strict_json.dumps(tables))  # noqa: T201 - this is the command line
        return
    print(report.text(leaks, releases, asked.epsilon))  # noqa: T201 - likewise
    if asked.plot is not None:
        print(f"Written to {shown(asked.plot)}.")  # noqa: T201 - likewise
