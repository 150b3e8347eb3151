"""Speed on one CUDA device, side by side with PyTorch's generators: python -m benchmarks.gpu.

Device events, medians. It needs PyTorch and Triton; what needs the host's stages as well (whole
releases, searches to the end) is left out with a notice where Numba or another library is missing.
"""

import argparse
import importlib
import json
import os
import statistics
import subprocess
import sys
import types
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch

SOURCE: Final = Path(__file__).parent.parent / "src" / "dpnoise"
GRID: Final = 2.0**-20  # In scales, as the mechanisms choose it.
OPERATIONS_OF_A_BLOCK: Final = (
    976  # Additions, exclusive ors and rotations of 20 rounds, and the last.
)
INTEGERS_A_CLOCK: Final = 64  # Results of 32-bit integer operations that a multiprocessor makes.


def kernels() -> tuple[Any, Any, Any]:
    """Return the Triton modules, also where what `import dpnoise` needs is missing."""
    try:
        importlib.import_module("dpnoise")
    except ImportError as error:
        print(f"Kernels alone, because dpnoise cannot be imported: {error}")
        alone = types.ModuleType("dpnoise")
        alone.__path__ = [str(SOURCE)]
        sys.modules["dpnoise"] = alone
    names = ("stream", "release", "noise")
    found = [importlib.import_module(f"dpnoise.integrations.triton_{name}") for name in names]
    return found[0], found[1], found[2]


def milliseconds(work: Callable[[], object], rounds: int) -> list[float]:
    """Return the times of a number of runs, by device events, after two for warming up."""
    for _ in range(2):
        work()
    times = []
    for _ in range(rounds):
        start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        work()
        stop.record()
        stop.synchronize()
        times.append(start.elapsed_time(stop))
    return times


class Bench:
    """The table: what was run, its median and how far its quarters are apart."""

    def __init__(self, rounds: int) -> None:
        self.rounds = rounds
        self.rows: list[dict[str, Any]] = []

    def time(self, name: str, count: int, work: Callable[[], object], **more: Any) -> float:
        """Time something that makes this many numbers, and print it."""
        try:
            times = milliseconds(work, self.rounds)
        except Exception as error:  # noqa: BLE001 - the other rows are worth having
            print(f"{name}: failed: {type(error).__name__}: {str(error)[:300]}", flush=True)
            self.rows.append({"name": name, "error": str(error)[:300]})
            return 0.0
        median = statistics.median(times)
        low, _, high = statistics.quantiles(times, n=4)
        rate = count / median / 1e6
        self.rows.append({"name": name, "ms": median, "quarters": [low, high], "G/s": rate, **more})
        print(f"{name:64} {median:9.3f} ms  [{low:.3f}, {high:.3f}]  {rate:8.1f} G/s", flush=True)
        return rate


def parameters(stream: Any, count: int, **floats: float) -> torch.Tensor:
    """Return a launch's words with a fresh key."""
    words = np.zeros(stream.PARAMETERS, dtype=np.int64)
    words[:4] = np.frombuffer(os.urandom(32), dtype=np.int64)
    words[stream.COUNT.value] = count
    for name, value in floats.items():
        words.view(np.float64)[getattr(stream, name.upper()).value] = value
    return torch.from_numpy(words).cuda()


def releaser(
    stream: Any, release: Any, values: torch.Tensor, out: torch.Tensor, *, pairs: bool, **how: Any
) -> Callable[[], object]:
    """Return one launch of the release kernel, and nothing else."""
    largest = float(torch.finfo(values.dtype).max)
    numbers = {"ratio": 1 / GRID, "grid": GRID, "inverse_grid": 1 / GRID, "whole": 2.0**53 * GRID}
    words = parameters(stream, values.numel() // 8, **numbers, least=-largest, most=largest)
    counter = torch.zeros(1, dtype=torch.int64, device="cuda")
    places = torch.zeros(4096, dtype=torch.int64, device="cuda")
    lanes = how.pop("lanes", 32)
    options = {
        **({"maxnreg": 128} if pairs else {}),
        "pairs": pairs,
        "clip": values.dtype != torch.float64,
        "ragged": False,
        "BLOCK": lanes,
        "num_warps": max(1, lanes // 32),
        **stream.STRICT,
        **how,
    }
    launch = release.release[(-(-values.numel() // (8 * lanes)),)]
    arguments = (values, out, words, words.view(torch.float64), counter, places, places.numel())
    return lambda: launch(*arguments, **options)


def noiser(stream: Any, noise: Any, out: torch.Tensor, piece: Any, lanes: int = 256) -> Any:
    """Return one launch of the noise kernel for n = 4."""
    each = 2 if out.dtype == torch.float64 else 4
    words = parameters(stream, out.numel() // each, scale=1.0)
    launch = noise.noise[(-(-out.numel() // (each * lanes)),)]
    options = {"PIECE": piece.value, "PIECES": 2, "RAGGED": False, "BLOCK": lanes}
    options |= {"num_warps": max(1, lanes // 32), **stream.STRICT}
    return lambda: launch(out, words, words.view(torch.float64), **options)


def peers(bench: Bench, x: torch.Tensor, y: torch.Tensor) -> float:
    """Time PyTorch's generators, and return the rate of Opacus's sum of four."""
    count, z = x.numel(), torch.empty_like(x)
    bench.time("copy", count, lambda: y.copy_(x))
    bench.time("torch: normal_", count, y.normal_)
    bench.time("torch: normal, then add", count, lambda: torch.add(x, z.normal_(), out=y))

    def sum_of_four() -> torch.Tensor:
        """Opacus's secure formula, on the insecure generator, as it computes it."""
        total = torch.zeros(count, device="cuda")
        for _ in range(4):
            total += torch.normal(mean=0, std=1.0, size=(count,), device="cuda")
        return total / 2

    return bench.time("Opacus: sum of four torch.normal, halved", count, sum_of_four)


def releases(bench: Bench, x: torch.Tensor, y: torch.Tensor, four: float, *, sweep: bool) -> None:
    """Time the release kernel, in launches of several shapes if asked for."""
    stream, release, _ = kernels()
    shapes: list[dict[str, Any]] = [
        {"lanes": lanes, "maxnreg": most} for lanes in (32, 64, 128) for most in (144, 128, 96)
    ]
    for pairs, name in ((True, "Gaussian pairs"), (False, "Laplace")):
        for kind in (torch.float32, torch.bfloat16, torch.float16, torch.float64):
            size = x.numel() // 2 if kind == torch.float64 else x.numel()
            values, out = x[:size].to(kind), y[:size].to(kind)
            work = releaser(stream, release, values, out, pairs=pairs)
            rate = bench.time(f"exact release, {name}, {kind}", size, work)
            if kind == torch.float32 and four:
                print(f"    {rate / four:.2f} times the sum of four")
        for how in shapes if sweep else []:
            work = releaser(stream, release, x, y, pairs=pairs, **how)
            bench.time(f"  {name}, float32, {how}", x.numel(), work)


def noises(bench: Bench, y: torch.Tensor, four: float, *, sweep: bool) -> None:
    """Time the noise kernel, n = 4."""
    stream, _, noise = kernels()
    for piece, name in ((noise.GAUSSIAN, "normal"), (noise.LAPLACE, "laplace")):
        work = noiser(stream, noise, y, piece)
        rate = bench.time(f"noise n=4, {name}, float32", y.numel(), work)
        if four:
            print(f"    {rate / four:.2f} times the sum of four")
        half = y[: y.numel() // 2].double()
        work = noiser(stream, noise, half, piece)
        bench.time(f"noise n=4, {name}, float64", half.numel(), work)
    for lanes in (32, 64, 128) if sweep else ():
        work = noiser(stream, noise, y, noise.GAUSSIAN, lanes)
        bench.time(f"  noise n=4, normal, float32, lanes {lanes}", y.numel(), work)


def cipher(bench: Bench, y: torch.Tensor) -> None:
    """Time the key stream with next to nothing made of it, beside the integer throughput."""
    stream, _, noise = kernels()
    words = parameters(stream, y.numel() // 16)
    uniform = noise.uniforms[(-(-y.numel() // (16 * 32)),)]
    options = {"DIGITS": 24, "RAGGED": False, "BLOCK": 32, "num_warps": 1, **stream.STRICT}
    rate = bench.time(
        "uniforms, float32: 16 of a block", y.numel(), lambda: uniform(y, words, **options)
    )
    asked = ["nvidia-smi", "--query-gpu=clocks.max.sm", "--format=csv,noheader,nounits"]
    clock = float(
        subprocess.run(asked, capture_output=True, check=True, text=True).stdout.split()[0]
    )
    many = torch.cuda.get_device_properties(0).multi_processor_count
    most = many * INTEGERS_A_CLOCK * clock * 1e6 / OPERATIONS_OF_A_BLOCK / 1e9
    print(f"ChaCha20: {rate / 16:.2f} G blocks/s; at {clock:.0f} MHz one integer pipe of")
    print(f"{INTEGERS_A_CLOCK} lanes makes {most:.2f} G blocks/s: {8 * most:.0f} G releases/s")
    bench.rows.append({"name": "ChaCha20", "G blocks/s": rate / 16, "one pipe": most})


def whole_releases(bench: Bench, x: torch.Tensor) -> None:
    """Time whole calls, the host's stages included."""
    dpnoise = importlib.import_module("dpnoise")
    for mechanism in (
        dpnoise.GaussianMechanism.for_scale(1.0, sensitivity=1.0),
        dpnoise.LaplaceMechanism(epsilon=1.0, sensitivity=1.0),
    ):
        name = type(mechanism).__name__
        for size in (x.numel(), 10**8, 10**6):
            part = x[:size]
            release = partial(mechanism.release, part)
            bench.time(f"{name}.release, {size:,} float32", size, release)


def training(bench: Bench) -> None:
    """Time the parts of a DP-SGD step of 100 million parameters."""
    for name, parts in (
        importlib.import_module("benchmarks.dp_sgd").step_times(bench.rounds).items()
    ):
        medians = {part: statistics.median(times) for part, times in parts.items()}
        text = ", ".join(
            f"{part} {value:.2f} {'GiB' if part == 'memory' else 'ms'}"
            for part, value in medians.items()
        )
        print(f"DP-SGD, 99.6 M parameters, 8 samples, {name}: {text}", flush=True)
        bench.rows.append({"name": f"DP-SGD, {name}", **medians})


def searches(bench: Bench) -> None:
    """Measure checks a second at p = 53, and search to the end at p = 24 and 32."""
    gaussian = importlib.import_module("dpnoise.auditing.attacks.searches").gaussian
    search = importlib.import_module("reproduction.device_search")
    each = 2**36
    release = gaussian(0.3, 0.1)
    work = partial(search.checks, release, 53, "cuda", 2**49, 2**49 + each, exact=True)
    print("matches, up to rounding, of 2^36 checks at p = 53:", work()[0])
    rate = bench.time("search, p = 53, checks over U2", each, work)
    if rate:
        hours = 2**51 / rate / 1e9 / 3600
        paper = 2**52.5 / rate / 1e9 / 3600
        print(f"    2^51 checks over U2: {hours:.1f} hours; the paper's 2^52.5: {paper:.1f} hours")
    for p in (24, 32):
        pair = (int(0.3 * 2**p) * 2.0**-p, int(0.1 * 2**p) * 2.0**-p)
        start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        found = search.gaussian_preimages(gaussian(*pair), p, "cuda")
        stop.record()
        stop.synchronize()
        seconds = start.elapsed_time(stop) / 1e3
        print(
            f"search, p = {p}: {found.checks:,} checks, {len(found.preimages)} preimages, the true "
            f"pair {'among them' if pair in found.preimages else 'MISSING'}, {seconds:.2f} s"
        )
        row = {"name": f"search p={p}", "preimages": found.preimages, "pair": pair, "s": seconds}
        bench.rows.append(row)


def main() -> None:
    """Run what was asked for, print a table and write the same as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=2**28)
    parser.add_argument("--rounds", type=int, default=21)
    parser.add_argument("--sweep", action="store_true", help="launches of other shapes too")
    parser.add_argument("--kernels", action="store_true", help="the kernels alone")
    parser.add_argument("--training", action="store_true", help="whole calls and DP-SGD alone")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    if not torch.cuda.is_available():
        parser.exit(1, "There is no CUDA device.\n")
    print(torch.cuda.get_device_name(), "PyTorch", torch.__version__)
    bench = Bench(options.rounds)
    x, y = torch.randn(options.count, device="cuda"), torch.empty(options.count, device="cuda")
    four = peers(bench, x, y)
    parts: list[Callable[[], None]] = [
        lambda: releases(bench, x, y, four, sweep=options.sweep),
        lambda: noises(bench, y, four, sweep=options.sweep),
        lambda: cipher(bench, y),
        lambda: whole_releases(bench, x),
        lambda: training(bench),
        lambda: searches(bench),
    ]
    for part in parts[:3] if options.kernels else parts[3:5] if options.training else parts:
        try:
            part()
        except Exception as error:  # noqa: BLE001 - the other parts are worth having
            print(f"Left out: {type(error).__name__}: {str(error)[:300]}", flush=True)
    if options.json:
        options.json.write_text(json.dumps(bench.rows, indent=1))


if __name__ == "__main__":
    main()
