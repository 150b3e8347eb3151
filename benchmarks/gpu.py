"""Compare the speed on one CUDA device with PyTorch's generators: python -m benchmarks.gpu.

docs/performance.md, docs/dp-sgd-design.md and docs/attacks.md show what it printed.
Times are medians, measured with device events. It needs PyTorch and Triton. Without Numba or
another library it skips the parts that also need the host (whole releases, complete searches).
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
GRID: Final = 2.0**-20  # In scales: the mechanisms' default.
# Additions, exclusive ors and rotations of 20 rounds, and the final additions.
OPERATIONS_OF_A_BLOCK: Final = 976
INTEGERS_A_CLOCK: Final = 64  # 32-bit integer operations of a multiprocessor per clock.


def kernels() -> tuple[Any, Any, Any]:
    """Return the Triton modules, even if `import dpnoise` fails."""
    try:
        importlib.import_module("dpnoise")
    except ImportError as error:
        print(f"Only kernels, because dpnoise cannot be imported: {error}")
        package = types.ModuleType("dpnoise")
        package.__path__ = [str(SOURCE)]
        sys.modules["dpnoise"] = package
    names = ("stream", "release", "noise")
    modules = [importlib.import_module(f"dpnoise.integrations.triton_{name}") for name in names]
    return modules[0], modules[1], modules[2]


def milliseconds(work: Callable[[], object], rounds: int) -> list[float]:
    """Return the times of `rounds` runs, by device events, after two warm-up runs."""
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
    """The table of results: names, medians and quartiles."""

    def __init__(self, rounds: int) -> None:
        self.rounds = rounds
        self.rows: list[dict[str, Any]] = []

    def time(self, name: str, count: int, work: Callable[[], object], **extra: Any) -> float:
        """Time work that makes `count` numbers, print the result, and return the rate."""
        try:
            times = milliseconds(work, self.rounds)
        except Exception as error:  # noqa: BLE001 - the other rows are still useful
            print(f"{name}: failed: {type(error).__name__}: {str(error)[:300]}", flush=True)
            self.rows.append({"name": name, "error": str(error)[:300]})
            return 0.0
        median = statistics.median(times)
        low, _, high = statistics.quantiles(times, n=4)
        rate = count / median / 1e6
        self.rows.append(
            {"name": name, "ms": median, "quarters": [low, high], "G/s": rate, **extra}
        )
        print(f"{name:64} {median:9.3f} ms  [{low:.3f}, {high:.3f}]  {rate:8.1f} G/s", flush=True)
        return rate


def parameters(stream: Any, count: int, **floats: float) -> torch.Tensor:
    """Return the parameters of a launch, with a fresh key."""
    words = np.zeros(stream.PARAMETERS, dtype=np.int64)
    words[:4] = np.frombuffer(os.urandom(32), dtype=np.int64)
    words[stream.COUNT.value] = count
    for name, value in floats.items():
        words.view(np.float64)[getattr(stream, name.upper()).value] = value
    return torch.from_numpy(words).cuda()


def release_launch(
    stream: Any,
    release: Any,
    values: torch.Tensor,
    out: torch.Tensor,
    *,
    pairs: bool,
    **launch_options: Any,
) -> Callable[[], object]:
    """Return one launch of the release kernel."""
    largest = float(torch.finfo(values.dtype).max)
    numbers = {
        "ratio": 1 / GRID,
        "grid": GRID,
        "inverse_grid": 1 / GRID,
        "rounding_limit": 2.0**53 * GRID,
    }
    words = parameters(stream, values.numel() // 8, **numbers, least=-largest, most=largest)
    counter = torch.zeros(1, dtype=torch.int64, device="cuda")
    open_indices = torch.zeros(4096, dtype=torch.int64, device="cuda")
    lanes = launch_options.pop("lanes", 32)
    options = {
        **({"maxnreg": 128} if pairs else {}),
        "pairs": pairs,
        "clip": values.dtype != torch.float64,
        "ragged": False,
        "BLOCK": lanes,
        "num_warps": max(1, lanes // 32),
        **stream.STRICT,
        **launch_options,
    }
    launch = release.release[(-(-values.numel() // (8 * lanes)),)]
    arguments = (
        values,
        out,
        words,
        words.view(torch.float64),
        counter,
        open_indices,
        open_indices.numel(),
    )
    return lambda: launch(*arguments, **options)


def noise_launch(stream: Any, noise: Any, out: torch.Tensor, piece: Any, lanes: int = 256) -> Any:
    """Return one launch of the noise kernel for n = 4."""
    per_lane = 2 if out.dtype == torch.float64 else 4
    words = parameters(stream, out.numel() // per_lane, scale=1.0)
    launch = noise.noise[(-(-out.numel() // (per_lane * lanes)),)]
    options = {"PIECE": piece.value, "PIECES": 2, "RAGGED": False, "BLOCK": lanes}
    options |= {"num_warps": max(1, lanes // 32), **stream.STRICT}
    return lambda: launch(out, words, words.view(torch.float64), **options)


def peers(bench: Bench, x: torch.Tensor, y: torch.Tensor) -> float:
    """Time PyTorch's generators, and return the rate of Opacus's sum of four."""
    count, z = x.numel(), torch.empty_like(x)
    bench.time("copy", count, lambda: y.copy_(x))
    bench.time("torch: normal_", count, y.normal_)
    bench.time("torch: normal, then add", count, lambda: torch.add(x, z.normal_(), out=y))

    def add_four() -> torch.Tensor:
        """Compute Opacus's secure formula, on the insecure generator."""
        total = torch.zeros(count, device="cuda")
        for _ in range(4):
            total += torch.normal(mean=0, std=1.0, size=(count,), device="cuda")
        return total / 2

    return bench.time("Opacus: sum of four torch.normal, halved", count, add_four)


def releases(
    bench: Bench, x: torch.Tensor, y: torch.Tensor, peer_rate: float, *, sweep: bool
) -> None:
    """Time the release kernel, with `sweep` in launches of several shapes."""
    stream, release, _ = kernels()
    shapes: list[dict[str, Any]] = [
        {"lanes": lanes, "maxnreg": registers}
        for lanes in (32, 64, 128)
        for registers in (144, 128, 96)
    ]
    for pairs, name in ((True, "Gaussian pairs"), (False, "Laplace")):
        for dtype in (torch.float32, torch.bfloat16, torch.float16, torch.float64):
            size = x.numel() // 2 if dtype == torch.float64 else x.numel()
            values, out = x[:size].to(dtype), y[:size].to(dtype)
            work = release_launch(stream, release, values, out, pairs=pairs)
            rate = bench.time(f"exact release, {name}, {dtype}", size, work)
            if dtype == torch.float32 and peer_rate:
                print(f"    {rate / peer_rate:.2f} times the sum of four")
        for shape in shapes if sweep else []:
            work = release_launch(stream, release, x, y, pairs=pairs, **shape)
            bench.time(f"  {name}, float32, {shape}", x.numel(), work)


def noises(bench: Bench, y: torch.Tensor, peer_rate: float, *, sweep: bool) -> None:
    """Time the noise kernel, n = 4."""
    stream, _, noise = kernels()
    for piece, name in ((noise.GAUSSIAN, "normal"), (noise.LAPLACE, "laplace")):
        work = noise_launch(stream, noise, y, piece)
        rate = bench.time(f"noise n=4, {name}, float32", y.numel(), work)
        if peer_rate:
            print(f"    {rate / peer_rate:.2f} times the sum of four")
        half = y[: y.numel() // 2].double()
        work = noise_launch(stream, noise, half, piece)
        bench.time(f"noise n=4, {name}, float64", half.numel(), work)
    for lanes in (32, 64, 128) if sweep else ():
        work = noise_launch(stream, noise, y, noise.GAUSSIAN, lanes)
        bench.time(f"  noise n=4, normal, float32, lanes {lanes}", y.numel(), work)


def cipher(bench: Bench, y: torch.Tensor) -> None:
    """Time the key stream, and compare it with the integer throughput."""
    stream, _, noise = kernels()
    words = parameters(stream, y.numel() // 16)
    uniform = noise.uniforms[(-(-y.numel() // (16 * 32)),)]
    options = {"DIGITS": 24, "RAGGED": False, "BLOCK": 32, "num_warps": 1, **stream.STRICT}
    rate = bench.time(
        "uniforms, float32: 16 of a block", y.numel(), lambda: uniform(y, words, **options)
    )
    command = ["nvidia-smi", "--query-gpu=clocks.max.sm", "--format=csv,noheader,nounits"]
    clock = float(
        subprocess.run(command, capture_output=True, check=True, text=True).stdout.split()[0]
    )
    multiprocessors = torch.cuda.get_device_properties(0).multi_processor_count
    peak_rate = multiprocessors * INTEGERS_A_CLOCK * clock * 1e6 / OPERATIONS_OF_A_BLOCK / 1e9
    print(f"ChaCha20: {rate / 16:.2f} G blocks/s; at {clock:.0f} MHz one integer pipe of")
    print(
        f"{INTEGERS_A_CLOCK} lanes makes {peak_rate:.2f} G blocks/s: "
        f"{8 * peak_rate:.0f} G releases/s"
    )
    bench.rows.append({"name": "ChaCha20", "G blocks/s": rate / 16, "one pipe": peak_rate})


def whole_releases(bench: Bench, x: torch.Tensor) -> None:
    """Time whole calls, including the stages on the host."""
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
    searches = importlib.import_module("dpnoise.auditing.attacks.searches")
    gaussian = searches.gaussian_of_uniforms
    search = importlib.import_module("reproduction.device_search")
    checks = 2**36
    release = gaussian(0.3, 0.1)
    work = partial(search.checks, release, 53, "cuda", 2**49, 2**49 + checks, exact=True)
    print("matches, up to rounding, of 2^36 checks at p = 53:", work()[0])
    rate = bench.time("search, p = 53, checks over U2", checks, work)
    if rate:
        hours = 2**51 / rate / 1e9 / 3600
        paper = 2**52.5 / rate / 1e9 / 3600
        print(f"    2^51 checks over U2: {hours:.1f} hours; the paper's 2^52.5: {paper:.1f} hours")
    for p in (24, 32):
        pair = (int(0.3 * 2**p) * 2.0**-p, int(0.1 * 2**p) * 2.0**-p)
        start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        result = search.gaussian_preimages(gaussian(*pair), p, "cuda")
        stop.record()
        stop.synchronize()
        seconds = start.elapsed_time(stop) / 1e3
        print(
            f"search, p = {p}: {result.checks:,} checks, {len(result.preimages)} preimages, "
            "the true "
            f"pair {'among them' if pair in result.preimages else 'MISSING'}, {seconds:.2f} s"
        )
        row = {"name": f"search p={p}", "preimages": result.preimages, "pair": pair, "s": seconds}
        bench.rows.append(row)


def main() -> None:
    """Run the chosen parts, print a table and write it as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=2**28)
    parser.add_argument("--rounds", type=int, default=21)
    parser.add_argument("--sweep", action="store_true", help="launches of other shapes too")
    parser.add_argument("--kernels", action="store_true", help="only the kernels")
    parser.add_argument("--training", action="store_true", help="only whole calls and DP-SGD")
    parser.add_argument("--searches", action="store_true", help="only searches for uniforms")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    if not torch.cuda.is_available():
        parser.exit(1, "There is no CUDA device.\n")
    print(torch.cuda.get_device_name(), "PyTorch", torch.__version__)
    bench = Bench(options.rounds)
    x, y = torch.randn(options.count, device="cuda"), torch.empty(options.count, device="cuda")
    peer_rate = 0.0 if options.searches else peers(bench, x, y)
    parts: list[Callable[[], None]] = [
        lambda: releases(bench, x, y, peer_rate, sweep=options.sweep),
        lambda: noises(bench, y, peer_rate, sweep=options.sweep),
        lambda: cipher(bench, y),
        lambda: whole_releases(bench, x),
        lambda: training(bench),
        lambda: searches(bench),
    ]
    if options.kernels:
        parts = parts[:3]
    elif options.training:
        parts = parts[3:5]
    elif options.searches:
        parts = parts[5:]
    for part in parts:
        try:
            part()
        except Exception as error:  # noqa: BLE001 - the other parts are still useful
            print(f"Left out: {type(error).__name__}: {str(error)[:300]}", flush=True)
    if options.json:
        options.json.write_text(json.dumps(bench.rows, indent=1))


if __name__ == "__main__":
    main()
