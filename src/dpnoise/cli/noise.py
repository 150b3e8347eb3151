"""`dpnoise sample` draws raw noise; `cost` and `leakage` show what it costs and leaks."""

import argparse
import sys
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Final

import numpy as np

import dpnoise
from dpnoise.auditing.leakage import summary
from dpnoise.cli.output_files import check_plot, check_targets, file_name, replace_when_complete
from dpnoise.cli.terminal import Command, Option, progress_bar
from dpnoise.core import strict_json
from dpnoise.core.errors import ArgumentError, check_integer, check_positive, import_extra
from dpnoise.core.safe_text import escape_text
from dpnoise.noise.inversion import PRECISIONS

_MOST: Final = 2**40  # The most numbers in a file; more than fit into any memory.
_FORMATS: Final = {"choices": list(PRECISIONS)}


def _sample(arguments: argparse.Namespace) -> None:
    check_integer("size", arguments.size, least=0, most=_MOST)
    write_csv = partial(np.savetxt, fmt="%.17g", header="noise", comments="")
    writers: dict[str, Callable[[Path, np.ndarray], object]] = {
        ".npy": np.save,
        ".csv": write_csv,
        ".parquet": _write_parquet,
    }
    if arguments.output is not None and arguments.output.suffix not in writers:
        raise ArgumentError(f"--output must end in {', '.join(writers)}, got {arguments.output}.")
    check_targets(arguments.output, replace=arguments.force)
    with replace_when_complete(arguments.output, replace=arguments.force) as target:
        draw = getattr(dpnoise.Generator(), arguments.distribution)
        noise = draw(
            scale=arguments.scale,
            size=arguments.size,
            dtype=arguments.dtype,
            variates=arguments.variates,
            form=arguments.form,
        )
        if target is None:
            np.savetxt(sys.stdout, noise, fmt="%.17g")
        else:
            writers[arguments.output.suffix](target, noise)


def _write_parquet(target: Path, noise: np.ndarray) -> None:
    pa = import_extra("pyarrow", "files")
    import_extra("pyarrow.parquet", "files").write_table(pa.table({"noise": noise}), target)


def _cost(arguments: argparse.Namespace) -> None:
    cost = dpnoise.inversion_cost(
        arguments.precision, arguments.variates, arguments.form, dtype=arguments.dtype
    )
    print(cost)  # noqa: T201 - this is the command line


def _leakage(arguments: argparse.Namespace) -> None:
    check_positive("epsilon", arguments.epsilon)
    check_targets(arguments.plot, replace=True)
    check_plot(arguments.plot)
    with replace_when_complete(arguments.plot, replace=True) as plot:
        with progress_bar("enumerating") as progress:
            leaks = summary.leakage_table(arguments.epsilon, progress)
            releases = summary.release_table(arguments.epsilon)
        if plot is not None:
            summary.plot_leakage(leaks, releases, arguments.epsilon, plot)
    if arguments.json:
        tables = {
            "epsilon": arguments.epsilon,
            "leaks": [asdict(row) for row in leaks],
            "releases": [asdict(row) for row in releases],
        }
        print(strict_json.dumps(tables))  # noqa: T201 - this is the command line
        return
    print(summary.format_tables(leaks, releases, arguments.epsilon))  # noqa: T201 - likewise
    if arguments.plot is not None:
        print(f"Written to {escape_text(arguments.plot)}.")  # noqa: T201 - likewise


SAMPLE: Final = Command(
    "sample",
    _sample,
    (
        Option("distribution", ("laplace", "normal", "exponential", "gumbel", "cauchy")),
        Option("--scale", 1.0, "the scale of the noise (1)"),
        Option("--size", 10, "the number of values (10)"),
        Option("--dtype", _FORMATS | {"default": "float64"}),
        Option("--variates", int, "uniforms for each variate"),
        Option("--form", None, "the formula: see docs/samplers.md"),
        Option("--output", file_name, ".npy, .parquet or .csv; else it is printed"),
        Option("--force", bool, "replace a file that exists"),
    ),
)
COST: Final = Command(
    "cost",
    _cost,
    (
        Option("--precision", 53, "bits of each uniform (53)"),
        Option("--variates", 4, "uniforms for each variate (4)"),
        Option("--form", None, "the formula: see docs/samplers.md"),
        Option("--dtype", _FORMATS, "the format of the variate (the smallest that fits)"),
    ),
)
LEAKAGE: Final = Command(
    "leakage",
    _leakage,
    (
        Option("--epsilon", 1.0, "the epsilon at which delta is computed (1)"),
        Option("--json", bool, "print JSON"),
        Option("--plot", file_name, "draw delta against n and p: out.png"),
    ),
    description="Enumerate all uniforms of the samplers in small formats and print delta at "
    "epsilon of the sum with 0 against the sum with 1, and the same for the exact release.",
)
