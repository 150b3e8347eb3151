"""The feasibility attack: no noise at all, of any sampler, could have led from here to there.

Whatever draws z, most code then computes fl(c + fl(s z)). Given the release q, the candidate c and
the scale s, the floats w with fl(c + w) = q are a short run of neighbours, and of those only some
are fl(s z) for any float z. If none is, c is excluded, for every sampler there is. This is the
strongest generic attack at small epsilon: it needs no knowledge of the sampler, and n uniforms for
each variate do nothing against it.
"""

from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpnoise.auditing.attacks.base import SCALE, Attack, Event, Flags, Progress, excluded, silent
from dpnoise.auditing.targets.target import Target
from dpnoise.kernels import compiled

Real = np.floating[Any]


@compiled
def _is_product(w: Real, s: Real) -> bool:
    """Tell whether w = fl(s z) for some float z. It would be the quotient or next to it."""
    z = w / s
    further, nearer = np.nextafter(z, z + z), np.nextafter(z, z - z)
    return bool(s * z == w or s * further == w or s * nearer == w)


@compiled
def _feasible(q: Real, c: Real, s: Real) -> bool:
    """Tell whether fl(c + fl(s z)) = q for some float z.

    The floats w with fl(c + w) = q are neighbours, one of them at most a step from fl(q - c). Of
    three neighbours at least one is a product, so seven around fl(q - c) decide.
    """
    infinity = s / (s - s)  # In the format of s: float32 stays float32.
    w = q - c
    for _ in range(3):
        w = np.nextafter(w, -infinity)
    for _ in range(7):
        if c + w == q and _is_product(w, s):
            return True
        w = np.nextafter(w, infinity)
    return False


@compiled
def feasible(releases: NDArray[Real], value: Real, scale: Real, out: Flags) -> None:
    """Tell of each release whether any noise gives it from this value."""
    for i in range(releases.size):
        out[i] = _feasible(releases[i], value, scale)


def possible(releases: NDArray[Any], value: float, scale: float) -> Flags:
    """Tell of each release whether any noise of this scale gives it, in the releases' format."""
    format_ = np.float64 if releases.dtype == np.float64 else np.float32
    out = np.empty(len(releases), dtype=np.bool_)
    feasible(releases.astype(format_), format_(value), format_(scale), out)
    return out


@dataclass(frozen=True)
class Feasibility(Attack):
    """Excludes a value when no noise of the known scale could have led from it to the release."""

    name = "feasibility"
    access = SCALE
    breaks = "every sum of value and scaled noise in floats, whatever the sampler"
    source = "this library's docs; generalises Mironov 2012 and Haney and others 2022"
    default_target = "diffprivlib.Laplace"

    def find(
        self, target: Target, value0: float, value1: float, n: int, progress: Progress = silent
    ) -> Event:
        """Return the event that value0 is possible and value1 is not."""
        words = f"no float z has {value1:g} + {target.scale:g} z = y, rounded twice"
        return excluded(words, partial(possible, scale=target.scale), value0, value1)
