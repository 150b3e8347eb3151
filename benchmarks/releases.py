"""The speed of exact release against the peers', and against NumPy's insecure noise."""

from collections.abc import Callable
from functools import partial
from importlib import import_module

import numpy as np
import opendp.prelude as dp
from diffprivlib.mechanisms import Laplace as DiffprivlibLaplace

import dpnoise
from benchmarks.noise import MILLION, Contenders, numpy_rng, often, one_thread
from benchmarks.timing import Timing, timed
from dpnoise.core.machine import left_out

laplace = dpnoise.LaplaceMechanism(epsilon=1.0, sensitivity=1.0)
gaussian = dpnoise.GaussianMechanism.for_scale(1.0, sensitivity=1.0)
FEW = 2000
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


def _one_by_one() -> dict[str, Callable[[float], object]]:
    """Return the mechanisms that release one value a call, of the peers that this machine has."""
    peers: dict[str, Callable[[float], object]] = {}
    if not left_out("python-dp"):
        pydp = import_module("pydp.algorithms.numerical_mechanisms")
        peers["PyDP Laplace"] = pydp.LaplaceMechanism(1.0, 1.0).add_noise
    peers["diffprivlib Laplace"] = DiffprivlibLaplace(epsilon=1.0, sensitivity=1.0).randomise
    return peers


def _each(release: Callable[[float], object], values: list[float]) -> None:
    for value in values:
        release(value)


def arrays(rounds: int) -> dict[str, Timing]:
    """Time releases of 10^6 values, on one thread; the slow peers release fewer.

    All have the same floats and the same integers, which the caches keep, or do not, alike.
    """
    values = numpy_rng.random(MILLION) * 1000
    whole = values.astype(np.int64)
    few = values[:FEW].tolist()
    contenders: Contenders = {
        "NumPy laplace (insecure noise)": (partial(numpy_rng.laplace, size=MILLION), MILLION),
        "NumPy standard_normal (insecure noise)": (
            partial(numpy_rng.standard_normal, MILLION),
            MILLION,
        ),
        **{
            name: (partial(mechanism.release, given, rng=one_thread), MILLION)
            for name, mechanism, given in (
                ("dpnoise Laplace", laplace, values),
                ("dpnoise Laplace, integers", laplace, whole),
                ("dpnoise Gaussian", gaussian, values),
                ("dpnoise Gaussian, integers", gaussian, whole),
            )
        },
        "OpenDP vector Laplace": (partial(_opendp(FEW), few), FEW),
        **{name: (partial(_each, release, few), FEW) for name, release in _one_by_one().items()},
    }
    return timed(contenders, rounds)


def scalars(rounds: int) -> dict[str, Timing]:
    """Time the release of one value a call."""
    calls: dict[str, Callable[[], object]] = {
        "dpnoise Laplace, a float": partial(laplace.release, 42.5),
        "dpnoise Laplace, an int": partial(laplace.release, 42),
        "dpnoise Gaussian, a float": partial(gaussian.release, 42.5),
        **{name: partial(release, 42.5) for name, release in _one_by_one().items()},
        "OpenDP Laplace": partial(_opendp(None), 42.5),
    }
    return timed({name: often(call, 300) for name, call in calls.items()}, rounds)


def threads(rounds: int) -> dict[str, Timing]:
    """Time releases of 10^7 values on one thread and on two."""
    values = numpy_rng.random(10 * MILLION)
    return timed(
        {
            f"{count} threads": (
                partial(laplace.release, values, rng=dpnoise.Generator(threads=count)),
                values.size,
            )
            for count in (1, 2)
        },
        max(5, rounds // 3),
    )
