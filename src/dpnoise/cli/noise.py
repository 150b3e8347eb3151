"""Noise alone. `dpnoise sample` draws it, `cost` and `leakage` say what it costs and leaks."""

import argparse
import sys
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Final

import numpy as np

import dpnoise
from dpnoise.auditing.leakage import report
from dpnoise.cli.files import check_plot, check_targets, file_name, written
from dpnoise.cli.terminal import Command, Option, progress_bar
from dpnoise.core import strict_json
from dpnoise.core.errors import ArgumentError, check_integer, check_positive, import_extra
from dpnoise.core.safe_text import shown

_MOST: Final = 2**40  # Numbers in a file: more than fit into any memory.


def _sample(asked: argparse.Namespace) -> None:
    check_integer("size", asked.size, least=0, most=_MOST)
    write_csv = partial(np.savetxt, fmt="%.17g", header="noise", comments="")
    writers: dict[str, Callable[[Path, np.ndarray], object]] = {
        ".npy": np.save,
        ".csv": write_csv,
        ".parquet": _write_parquet,
    }
    if asked.output is not None and asked.output.suffix not in writers:
        raise ArgumentError(f"--output must end in {', '.join(writers)}, got {asked.output}.")
    check_targets(asked.output, replace=asked.force)
    with written(asked.output, replace=asked.force) as target:
        draw = getattr(dpnoise.Generator(), asked.distribution)
        noise = draw(
            asked.scale, asked.size, dtype=asked.dtype, variates=asked.variates, form=asked.form
        )
        if target is None:
            np.savetxt(sys.stdout, noise, fmt="%.17g")
        else:
            writers[asked.output.suffix](target, noise)


def _write_parquet(target: Path, noise: np.ndarray) -> None:
    pa = import_extra("pyarrow", "files")
    import_extra("pyarrow.parquet", "files").write_table(pa.table({"noise": noise}), target)


def _cost(asked: argparse.Namespace) -> None:
    print(dpnoise.inversion_cost(asked.precision, asked.variates, asked.form))  # noqa: T201


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


SAMPLE: Final = Command(
    "sample",
    "draw noise into a file",
    _sample,
    (
        Option("distribution", ("laplace", "normal", "exponential", "gumbel", "cauchy")),
        Option("--scale", 1.0, "the scale of the noise (1)"),
        Option("--size", 10, "how many (10)"),
        Option("--dtype", {"choices": ["float64", "float32", "float16"], "default": "float64"}),
        Option("--variates", int, "uniforms for each variate"),
        Option("--form", None, "the formula: see docs/samplers.md"),
        Option("--output", file_name, ".npy, .parquet or .csv; else it is printed"),
        Option("--force", bool, "replace a file that exists"),
    ),
)
COST: Final = Command(
    "cost",
    "what inverting one variate costs",
    _cost,
    (
        Option("--precision", 53, "bits of each uniform (53)"),
        Option("--variates", 4, "uniforms for each variate (4)"),
        Option("--form", None, "the formula: see docs/samplers.md"),
    ),
)
LEAKAGE: Final = Command(
    "leakage",
    "what noise added in floats leaks, exactly, in small formats",
    _leakage,
    (
        Option("--epsilon", 1.0, "where to read delta (1)"),
        Option("--json", bool, "print JSON"),
        Option("--plot", file_name, "draw delta against n and p: out.png"),
    ),
    description="Enumerate all uniforms of the samplers in small formats and print delta at "
    "epsilon of the sum with 0 against the sum with 1, and beside it the exact release.",
)
