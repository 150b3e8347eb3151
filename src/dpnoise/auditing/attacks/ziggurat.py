"""The ziggurat: outside its tail, every Gaussian is a whole number times one of a few constants.

A ziggurat covers the density with layers of equal area. Random bits give a layer i and a whole
number k, and z = fl(k * w_i) is the variate unless it is rejected. Only the tail, beyond the edge
of the lowest layer, has another formula. A release q of the value c is q = fl(c + fl(sigma * z)).
So a candidate c is excluded if no layer has a k that gives q. The decision is exact, because all
three roundings are monotone in k. The model rounds products and sums separately, as NumPy does on
x86-64; a build that fuses them needs another `_release_of`.

docs/attacks.md says how much this excludes, and test_ziggurat.py tests that.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Final

import numpy as np

from dpnoise.auditing.attacks import base
from dpnoise.auditing.attacks.base import SOURCE, Attack, Event, Progress, no_progress
from dpnoise.auditing.targets.target import Releases, Target
from dpnoise.core.arrays import Flags, Floats
from dpnoise.core.errors import check_choice
from dpnoise.kernels import compile_kernel


@dataclass(frozen=True)
class Layers:
    """The layers of a ziggurat with the variates fl(k * weights[i])."""

    weights: Floats  # One constant for each layer, the lowest first.
    edge: float  # Where the tail begins.
    digits: int  # The size of k is at most 2^digits.
    tied: bool = False  # Whether i is k modulo the number of layers.


@lru_cache(maxsize=1)
def numpy_layers() -> Layers:
    """Read the 256 constants of the installed NumPy.

    A word with k = 1 gives the constant of its layer, and the state of Philox holds its next words,
    which can be set. The constants cannot be computed: most of NumPy's differ in their last digits
    from the correctly rounded ones.
    """
    bits = np.random.Philox(0)
    rng = np.random.Generator(bits)
    state = bits.state
    weights = np.empty(256)
    for layer in range(256):
        # A word has eight bits of the layer, the sign, then k. The next word, 0, accepts every k.
        state["buffer"] = np.array([layer | 1 << 9, 0, 0, 0], dtype=np.uint64)
        state["buffer_pos"] = 0
        bits.state = state
        weights[layer] = rng.standard_normal()
    return Layers(weights, edge=float(weights[255]) * 2.0**52, digits=52)


def go_ends() -> Floats:
    """Return the right ends x_i of Go's 128 layers, those of Marsaglia and Tsang (2000).

    x_127 is the edge r, and every layer has the area v:
    x_i = f^-1(v / x_{i+1} + f(x_{i+1})) with f(x) = exp(-x^2 / 2), and x_0 = v / f(r).
    """
    r, v = 3.442619855899, 9.91256303526217e-3
    x = np.empty(128)
    x[127] = r
    for i in range(126, 0, -1):
        x[i] = math.sqrt(-2 * math.log(v / x[i + 1] + math.exp(-(x[i + 1] ** 2) / 2)))
    x[0] = v / math.exp(-r * r / 2)
    return x


@lru_cache(maxsize=2)
def go_layers(*, tied: bool) -> Layers:
    """Return Go's table, which is kept in float32; `tied` in math/rand, not in math/rand/v2."""
    x = go_ends()
    weights = (x / 2.0**31).astype(np.float32).astype(np.float64)
    return Layers(weights, edge=float(x[127]), digits=31, tied=tied)


_TABLES: Final[dict[str, Callable[[], Layers]]] = {
    "numpy": numpy_layers,
    "go": partial(go_layers, tied=True),
    "go/v2": partial(go_layers, tied=False),
}


def flag_feasible_layers(
    releases: Releases, value: float, scale: float, table: str = "numpy"
) -> Flags:
    """Return which releases can be the value plus a ziggurat's Gaussian times the scale.

    A release of this value is always feasible. The table is "numpy" for `numpy.random.Generator`,
    "go" for math/rand, or "go/v2" for math/rand/v2.

    >>> releases = np.random.default_rng().normal(3.0, 2.0, size=100)
    >>> bool(flag_feasible_layers(releases, value=3.0, scale=2.0).all())
    True
    """
    check_choice("table", table, _TABLES)
    layers = _TABLES[table]()
    stride = float(layers.weights.size) if layers.tied else 1.0
    model = (layers.weights, layers.edge, 2.0**layers.digits, stride)
    return base.possible_by_kernel(_feasible, scale, model)(releases, value)


@compile_kernel
def _release_of(k: float, w: float, c: float, sigma: float) -> float:
    """Return fl(c + fl(sigma * fl(k * w)))."""
    return c + sigma * (k * w)


@compile_kernel
def _layer_gives(
    q: float, w: float, c: float, sigma: float, most: float, stride: float, layer: float
) -> bool:
    """Return whether some k = layer modulo stride, of size at most `most`, gives q.

    Rounding is monotone, so the search may start anywhere; from this start it takes a few steps.
    """
    k = stride * np.round(((q - c) / sigma / w - layer) / stride) + layer
    if abs(k) > most + 2 * stride:
        return False
    while _release_of(k, w, c, sigma) < q:
        k += stride
    while _release_of(k, w, c, sigma) > q:
        k -= stride
    return _release_of(k, w, c, sigma) == q and abs(k) <= most


@compile_kernel
def _feasible(
    q: Floats, c: float, s: float, w: Floats, edge: float, most: float, stride: float, out: Flags
) -> None:
    """Try the layers, with the constants w, of each release until one gives it."""
    for element in range(q.size):
        # In the tail, with a small margin before it, everything counts as possible.
        possible = abs(q[element] - c) >= s * edge * (1 - 2.0**-40)
        for i in range(w.size):
            if possible:
                break
            possible = _layer_gives(q[element], w[i], c, s, most, stride, i % stride)
        out[element] = possible


@dataclass(frozen=True)
class Ziggurat(Attack):
    """Excludes a value by the layers of the noise's sampler.

    `table` is the sampler: "numpy", "go" or "go/v2"; by default the one that excludes most.
    """

    name = "ziggurat"
    access = SOURCE
    breaks = "Go's Gaussian noise; NumPy's hardly more than `feasibility` does"
    source = "Marsaglia and Tsang 2000; Mironov 2012 for the idea"
    default_target = "numpy.normal"
    noise = "gaussian"

    table: str | None = None

    def __post_init__(self) -> None:
        check_choice("table", self.table, (None, *_TABLES))

    def find(
        self, target: Target, value0: float, value1: float, n: int, progress: Progress = no_progress
    ) -> Event:
        """Return the event that value0 is possible and value1 is not, for the best table."""
        events, words = [], f"ziggurat leads from {value0:g} to y, none from {value1:g}"
        for table in _TABLES if self.table is None else (self.table,):
            possible = partial(flag_feasible_layers, scale=target.scale, table=table)
            source = base.exclusion_source(self, target, value0, value1, table=table)
            event = base.exclusion_event(
                f"a layer of {table}'s {words}", possible, value0, value1, source=source
            )
            events.append(event)
        return base.best_event(events, target, value0, value1, n)
