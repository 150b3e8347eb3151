"""`dpnoise sample`: draw noise into a file. `dpnoise cost`: what inverting it costs."""

import argparse
import sys
from pathlib import Path
from typing import Any, Final

import numpy as np

import dpnoise
from dpnoise.cli.files import check_targets, file_name, written
from dpnoise.core.errors import ArgumentError, check_integer, import_extra

_MOST: Final = 2**40  # Numbers in a file: more than fit into any memory.


def add_sample(commands: Any) -> None:
    """Add the command to the parser."""
    command = commands.add_parser("sample", help="draw noise into a file")
    command.add_argument(
        "distribution", choices=["laplace", "normal", "exponential", "gumbel", "cauchy"]
    )
    command.add_argument("--scale", type=float, default=1.0, help="the scale of the noise (1)")
    command.add_argument("--size", type=int, default=10, help="how many (10)")
    command.add_argument("--dtype", choices=["float64", "float32", "float16"], default="float64")
    command.add_argument("--variates", type=int, help="uniforms for each variate")
    command.add_argument("--form", help="the formula: see docs/samplers.md")
    command.add_argument(
        "--output", type=file_name, help=".npy, .parquet or .csv; else it is printed"
    )
    command.add_argument("--force", action="store_true", help="replace a file that exists")
    command.set_defaults(run=_sample)


def _sample(asked: argparse.Namespace) -> None:
    check_integer("size", asked.size, least=0, most=_MOST)
    writers = {".npy": _write_npy, ".csv": _write_csv, ".parquet": _write_parquet}
    if asked.output is not None and asked.output.suffix not in writers:
        raise ArgumentError(f"Expected --output {asked.output} to end in {', '.join(writers)}.")
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


def _write_npy(target: Path, noise: np.ndarray) -> None:
    with target.open("wb") as file:
        np.save(file, noise)


def _write_csv(target: Path, noise: np.ndarray) -> None:
    np.savetxt(target, noise, fmt="%.17g", header="noise", comments="")


def _write_parquet(target: Path, noise: np.ndarray) -> None:
    pa = import_extra("pyarrow", "files")
    import_extra("pyarrow.parquet", "files").write_table(pa.table({"noise": noise}), target)


def add_cost(commands: Any) -> None:
    """Add the command to the parser."""
    command = commands.add_parser("cost", help="what inverting one variate costs")
    command.add_argument("--precision", type=int, default=53, help="bits of each uniform (53)")
    command.add_argument("--variates", type=int, default=4, help="uniforms for each variate (4)")
    command.add_argument("--form", help="the formula: see docs/samplers.md")
    command.set_defaults(run=_cost)


def _cost(asked: argparse.Namespace) -> None:
    print(dpnoise.inversion_cost(asked.precision, asked.variates, asked.form))  # noqa: T201
