"""The plainest attack: one value's releases are larger. It finds noise that is simply too small."""

from dataclasses import dataclass
from typing import Final

import numpy as np

from dpnoise.auditing.attacks.base import OUTPUTS, Attack, Event, Flags, Progress, promise, silent
from dpnoise.auditing.attacks.claims import Judge
from dpnoise.auditing.targets.adapters import Privacy
from dpnoise.auditing.targets.target import Releases, Target

_CUTS: Final = 255  # Thresholds that are tried, at equal steps of probability.


@dataclass(frozen=True)
class Threshold(Attack):
    """Finds the threshold that one value's releases pass more often than the other's."""

    name = "threshold"
    access = OUTPUTS
    breaks = "noise that is too small, or has too light a tail, for its claim"
    source = "the definition of differential privacy"
    default_target = "half the noise"

    judge: Judge | None = None  # How an audit will count what it finds.

    def target(self, **claims: float) -> Target:
        """Return Laplace noise of half the scale that is claimed."""
        scale = Privacy(**claims).scale("laplace")
        rng = np.random.default_rng()
        return Target(
            self.default_target,
            "laplace",
            scale,
            lambda value, n: value + rng.laplace(scale=scale / 2, size=n),
        )

    def find(
        self, target: Target, value0: float, value1: float, n: int, progress: Progress = silent
    ) -> Event:
        """Return the event beyond the threshold, on the side, that promises most."""
        y0, y1 = (np.sort(target(value, n)) for value in (value0, value1))
        cuts = np.quantile(np.concatenate([y0, y1]), np.arange(1, _CUTS + 1) / (_CUTS + 1))
        below0, below1 = (np.searchsorted(y, cuts) for y in (y0, y1))
        above0, above1 = (n - np.searchsorted(y, cuts, side="right") for y in (y0, y1))
        promises = np.stack(
            [promise(below0, below1, n, self.judge), promise(above0, above1, n, self.judge)]
        )
        side, best = np.unravel_index(promises.argmax(), promises.shape)
        t = cuts[best]

        def holds(y: Releases) -> Flags:
            return np.asarray(y > t if side else y < t)

        return Event(f"y {'>' if side else '<'} {t:.6g}", holds)
