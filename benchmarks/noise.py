"""Measure the speed of noise: arrays and scalars compared with peers; threads, sizes and n."""

import random
from collections.abc import Callable
from functools import partial
from time import thread_time
from typing import Any

import numpy as np
import randomgen
from diffprivlib.mechanisms import Laplace as DiffprivlibLaplace

import dpnoise
from benchmarks.timing import Timing, time_contenders
from dpnoise.integrations.numpy import SecureBitGenerator
from dpnoise.integrations.stdlib import SecureRandom
from reproduction import samplers

MILLION = 1_000_000
Contenders = dict[str, tuple[Callable[[], object], int]]
one_thread = dpnoise.Generator(threads=1)
numpy_rng = np.random.default_rng()


def repeat_call(call: Callable[[], object], times: int) -> tuple[Callable[[], object], int]:
    """Return a contender that makes the same call `times` times."""

    def repeat() -> None:
        for _ in range(times):
            call()

    return repeat, times


def arrays(rounds: int) -> dict[str, Timing]:
    """Time 10^6 variates per call, on one thread."""
    aes = np.random.Generator(randomgen.AESCounter())
    chacha = np.random.Generator(randomgen.ChaCha())
    draw: dict[str, Callable[..., Any]] = {
        "NumPy laplace": numpy_rng.laplace,
        "dpnoise laplace n=4": one_thread.laplace,
        "dpnoise laplace n=2": partial(one_thread.laplace, variates=2),
        "dpnoise laplace n=8": partial(one_thread.laplace, variates=8),
        "dpnoise laplace n=4 float32": partial(one_thread.laplace, variates=4, dtype="float32"),
        "randomgen AESCounter laplace": aes.laplace,
        "randomgen ChaCha laplace": chacha.laplace,
        "NumPy standard_normal": numpy_rng.standard_normal,
        "dpnoise normal n=4": one_thread.normal,
        "dpnoise normal n=2": partial(one_thread.normal, variates=2),
        "randomgen AESCounter normal": aes.standard_normal,
        "randomgen ChaCha normal": chacha.standard_normal,
        "NumPy random": numpy_rng.random,
        "dpnoise random": one_thread.random,
        "NumPy standard_exponential": numpy_rng.standard_exponential,
        "dpnoise exponential n=4": one_thread.exponential,
        "NumPy gamma(2.5)": partial(numpy_rng.gamma, 2.5),
        "dpnoise gamma(2.5)": partial(one_thread.gamma, 2.5),
        "NumPy chisquare(3)": partial(numpy_rng.chisquare, 3),
        "dpnoise chisquare(3)": partial(one_thread.chisquare, 3),
        "NumPy gumbel": numpy_rng.gumbel,
        "dpnoise gumbel n=4": one_thread.gumbel,
        "NumPy standard_cauchy": numpy_rng.standard_cauchy,
        "dpnoise cauchy n=4": one_thread.cauchy,
    }
    return time_contenders(
        {name: (partial(call, size=MILLION), MILLION) for name, call in draw.items()}, rounds
    )


def generators(rounds: int) -> dict[str, Timing]:
    """Time 10^6 numbers of NumPy's random on two bit generators, in turns, by processor time."""
    secure = np.random.Generator(SecureBitGenerator())
    seconds: dict[str, list[float]] = {"PCG64": [], "dpnoise SecureBitGenerator": []}
    for _ in range(rounds):
        for rng, times in zip((numpy_rng, secure), seconds.values(), strict=True):
            start = thread_time()
            rng.random(size=MILLION)
            times.append((thread_time() - start) / MILLION)
    return {name: Timing(tuple(times)) for name, times in seconds.items()}


def scalars(rounds: int) -> dict[str, Timing]:
    """Time one variate per call, also of the peers that offer nothing else."""
    system = random.SystemRandom()
    mechanism = DiffprivlibLaplace(epsilon=1.0, sensitivity=1.0)

    def diffprivlib_formula() -> float:
        """Draw like diffprivlib's sampler: Theorem 5.1, NumPy's functions, SystemRandom."""
        u1, u2, u3, u4 = (system.random() for _ in range(4))
        first = np.log(1 - u1) * np.cos(np.pi * u2)
        return float(first + np.log(1 - u3) * np.cos(np.pi * u4))

    calls: dict[str, Callable[[], object]] = {
        "NumPy laplace()": numpy_rng.laplace,
        "dpnoise laplace()": one_thread.laplace,
        "dpnoise normal()": one_thread.normal,
        "diffprivlib Laplace.randomise": partial(mechanism.randomise, 0.0),
        "diffprivlib's formula": diffprivlib_formula,
        "stdlib random.random()": random.random,
        "stdlib random.gauss()": partial(random.gauss, 0, 1),
        "stdlib SystemRandom.random()": system.random,
        "dpnoise SecureRandom.random()": SecureRandom().random,
        "paper: naive": samplers.naive,
        "paper: Theorem 5.1": samplers.theorem,
        "paper: math and random": samplers.math_and_random,
        "paper: NumPy": samplers.with_numpy,
    }
    return time_contenders({name: repeat_call(call, 2000) for name, call in calls.items()}, rounds)


def threads(rounds: int) -> dict[str, Timing]:
    """Time 10^7 variates on one thread and on two, into one array."""
    out = np.empty(10 * MILLION)
    generators = {f"{count} threads": dpnoise.Generator(threads=count) for count in (1, 2)}
    return time_contenders(
        {name: (partial(rng.laplace, out=out), out.size) for name, rng in generators.items()},
        max(5, rounds // 3),
    )


def sizes(rounds: int) -> dict[str, Timing]:
    """Time 10^4 to 10^8 variates per call, on one thread, into one array."""
    out = np.empty(100 * MILLION)
    contenders: Contenders = {}
    for power in range(4, 9):
        view = out[: 10**power]
        call = partial(one_thread.laplace, out=view)
        # Each contender draws at least 10^7, so that a round is long enough to measure.
        times = max(1, 10**7 // 10**power)
        repeat, _ = repeat_call(call, times)
        contenders[f"10^{power}"] = (repeat, times * 10**power)
    return time_contenders(contenders, max(3, rounds // 6))


def variates(rounds: int) -> dict[str, Timing]:
    """Time the Gaussian made of 2 to 32 uniforms."""
    return time_contenders(
        {
            f"n={n}": (partial(one_thread.normal, size=MILLION, variates=n), MILLION)
            for n in (2, 4, 8, 16, 32)
        },
        rounds,
    )


if __name__ == "__main__":  # One line of `make bench`, in a second.
    for _ in range(3):
        pcg64, secure = generators(41).values()
        print(f"SecureBitGenerator over PCG64: {secure.median_ratio_to(pcg64):.2f}")
