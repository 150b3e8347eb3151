"""Time exact release against other libraries, and against NumPy's insecure noise."""

from collections.abc import Callable
from functools import partial
from importlib import import_module

import numpy as np
import opendp.prelude as dp
from diffprivlib.mechanisms import Laplace as DiffprivlibLaplace

import dpnoise
from benchmarks.noise import MILLION, Contenders, numpy_rng, one_thread, repeat_call
from benchmarks.timing import Timing, time_contenders
from dpnoise.core.machine import why_unavailable

laplace = dpnoise.LaplaceMechanism(epsilon=1.0, sensitivity=1.0)
gaussian = dpnoise.GaussianMechanism.for_scale(1.0, sensitivity=1.0)
SLOW_PEER_SIZE = 2000
PEERS = ("PyDP Laplace", "diffprivlib Laplace", "OpenDP Laplace")


def _opendp(size: int | None) -> Callable[[object], object]:
    """Return OpenDP's Laplace mechanism, for a vector or for a scalar."""
    dp.enable_features("contrib", "floating-point")
    atom = dp.atom_domain(T=float, nan=False)
    if size is None:
        space = atom, dp.absolute_distance(T=float)
    else:
        space = dp.vector_domain(atom, size=size), dp.l1_distance(T=float)
    measurement: Callable[[object], object] = dp.m.make_laplace(*space, scale=1.0)
    return measurement


def _scalar_peers() -> dict[str, Callable[[float], object]]:
    """Return the peers' mechanisms that release one value per call, as far as installed."""
    peers: dict[str, Callable[[float], object]] = {}
    if not why_unavailable("python-dp"):
        pydp = import_module("pydp.algorithms.numerical_mechanisms")
        peers["PyDP Laplace"] = pydp.LaplaceMechanism(epsilon=1.0, sensitivity=1.0).add_noise
    peers["diffprivlib Laplace"] = DiffprivlibLaplace(epsilon=1.0, sensitivity=1.0).randomise
    return peers


def _release_each(release: Callable[[float], object], values: list[float]) -> None:
    for value in values:
        release(value)


def arrays(rounds: int) -> dict[str, Timing]:
    """Time releases of 10^6 values, on one thread; the slow peers release fewer.

    All release the same floats and the same integers, so that caches affect them equally.
    """
    values = numpy_rng.random(MILLION) * 1000
    integers = values.astype(np.int64)
    few_values = values[:SLOW_PEER_SIZE].tolist()
    contenders: Contenders = {
        "NumPy laplace (insecure noise)": (partial(numpy_rng.laplace, size=MILLION), MILLION),
        "NumPy standard_normal (insecure noise)": (
            partial(numpy_rng.standard_normal, MILLION),
            MILLION,
        ),
        **{
            name: (partial(mechanism.release, array, rng=one_thread), MILLION)
            for name, mechanism, array in (
                ("dpnoise Laplace", laplace, values),
                ("dpnoise Laplace, integers", laplace, integers),
                ("dpnoise Gaussian", gaussian, values),
                ("dpnoise Gaussian, integers", gaussian, integers),
            )
        },
        "OpenDP vector Laplace": (partial(_opendp(SLOW_PEER_SIZE), few_values), SLOW_PEER_SIZE),
        **{
            name: (partial(_release_each, release, few_values), SLOW_PEER_SIZE)
            for name, release in _scalar_peers().items()
        },
    }
    return time_contenders(contenders, rounds)


def scalars(rounds: int) -> dict[str, Timing]:
    """Time the release of one value per call."""
    calls: dict[str, Callable[[], object]] = {
        "dpnoise Laplace, a float": partial(laplace.release, 42.5),
        "dpnoise Laplace, an int": partial(laplace.release, 42),
        "dpnoise Gaussian, a float": partial(gaussian.release, 42.5),
        **{name: partial(release, 42.5) for name, release in _scalar_peers().items()},
        "OpenDP Laplace": partial(_opendp(None), 42.5),
    }
    return time_contenders({name: repeat_call(call, 300) for name, call in calls.items()}, rounds)


def threads(rounds: int) -> dict[str, Timing]:
    """Time releases of 10^7 values on one thread and on two."""
    values = numpy_rng.random(10 * MILLION)
    return time_contenders(
        {
            f"{count} threads": (
                partial(laplace.release, values, rng=dpnoise.Generator(threads=count)),
                values.size,
            )
            for count in (1, 2)
        },
        max(5, rounds // 3),
    )
