"""What stands under the samplers: generators that can be predicted, calls that share uniforms."""

import math
import random
from collections.abc import Callable
from typing import Any

import numpy as np

from dpnoise.auditing.attacks.twister import UNIFORM_BITS, NoStateError, recover_state
from dpnoise.auditing.processes import PHASE, phased
from dpnoise.auditing.targets.target import named
from dpnoise.core.machine import described
from dpnoise.core.safe_text import percent_beside
from reproduction.piece import (
    CONFIRMED,
    DIFFERS,
    INCONCLUSIVE,
    Cell,
    Effort,
    Judgement,
    Piece,
    Table,
)

_SEEN = 700  # Uniforms; 624 of 53 bits give the state.
_HALF = 312

# Assumption 2: prediction ------------------------------------------------------------------------


def predicted(draw: Callable[[], float], count: int) -> float:
    """Watch uniforms, solve for a Mersenne Twister, and predict the next; return the share right.

    A stream that no state explains is not predicted at all.
    """
    seen = np.array([int(draw() * 2**UNIFORM_BITS) for _ in range(_SEEN)])
    try:
        state = recover_state(seen, np.full(_SEEN, 2**UNIFORM_BITS - 1))
    except NoStateError:
        return 0.0
    clone = np.random.RandomState()
    clone.set_state(("MT19937", state, 2 * _HALF, 0, 0.0))
    clone.random_sample(_SEEN - _HALF)
    return float(np.mean([draw() == clone.random_sample() for _ in range(count)]))


def check_twister(effort: Effort) -> Judgement:
    """Predict Python's and NumPy's older generators, and fail to predict the system's."""
    count = effort.pick(10_000, 200)
    generators: dict[str, Callable[[], float]] = {
        "random.random()": random.Random().random,
        "numpy.random.RandomState": np.random.RandomState().random_sample,
        "random.SystemRandom": random.SystemRandom().random,
    }
    rows = [(name, _SEEN, predicted(draw, count)) for name, draw in generators.items()]
    shares = [share for *_, share in rows]
    return Judgement(
        CONFIRMED if shares == [1.0, 1.0, 0.0] else DIFFERS,
        f"After {_SEEN} uniforms a Mersenne Twister's state was solved for, and the next "
        f"{count:,} were all predicted, to the last bit; no state explains the operating system's. "
        "The same from noise instead of uniforms is the attack `twister`. All listings of the "
        "paper draw from `random` or NumPy's older generator, which are Mersenne Twisters: as "
        "printed they do not meet this assumption.",
        [Table("Uniforms predicted", ("generator", "seen", "share predicted"), rows)],
    )


# Section 2.4: the phase of a pair ----------------------------------------------------------------


def keeps_a_gaussian() -> dict[str, bool]:
    """Tell which generators hold a second Gaussian in store after one was drawn."""
    python, legacy = random.Random(), np.random.RandomState()
    python.gauss(0, 1)
    legacy.normal()
    state: Any = legacy.get_state(legacy=False)
    return {
        "random.gauss": python.getstate()[-1] is not None,
        "numpy.random.RandomState.normal": bool(state["has_gauss"]),
    }


def check_phase(effort: Effort) -> Judgement:
    """Time single calls of random.gauss, and of a sampler that keeps nothing beside it."""
    n, kept = effort.pick(20_000, 1_000), keeps_a_gaussian()
    seen = {name: phased(named(name), n=n) for name in ("random.gauss", "random.normalvariate")}
    told = [look.found for look in seen.values()] == [True, False]
    shown = ("odd_median_ns", "even_median_ns", "least", "control", "p_value")
    rows: list[tuple[Cell, ...]] = [
        (name, *(look.measured[key] for key in shown)) for name, look in seen.items()
    ]
    columns = ("calls", "odd, ns", "even, ns", "told apart", "control", "p-value")
    gauss, normalvariate = (look.measured["least"] for look in seen.values())
    return Judgement(
        DIFFERS if not all(kept.values()) else CONFIRMED if told else INCONCLUSIVE,
        f"Of one call that computes a pair and one that returns what was kept, the clock tells "
        f"which is which in {percent_beside(gauss, PHASE)} of the cases; for normalvariate, which "
        f"keeps nothing, in {percent_beside(normalvariate, PHASE)} (half is guessing). "
        f"{n:,} calls of each on {described()}, in the worst of three repeats; confirmed where the "
        "audit's look for it, `phased`, finds the first and not the second: above 60 % in every "
        "repeat, which a control between the calls is not. Otherwise inconclusive: a busy machine "
        "hides a difference.",
        [
            Table("Single calls, every other one against the rest", columns, rows),
            Table("Holds the second of a pair in store", ("generator", "it does"), [*kept.items()]),
        ],
    )


# Section 5.1: the footnote on normalvariate ------------------------------------------------------


class Recorded(random.Random):
    """Remembers the uniforms that it gave since it was last asked."""

    def __init__(self, uniforms: list[float] | None = None) -> None:
        super().__init__()
        self.given: list[float] = []
        self.replay = list(uniforms) if uniforms is not None else None

    def random(self) -> float:
        """Give the next uniform, of the replay if there is one."""
        self.given.append(super().random() if self.replay is None else self.replay.pop(0))
        return self.given[-1]


def kinderman_monahan(draw: Callable[[], float]) -> float:
    """Draw a Gaussian as a ratio of two uniforms, drawn again until it is accepted."""
    while True:
        U1, U2 = draw(), 1.0 - draw()
        z = 4 * math.exp(-0.5) / math.sqrt(2.0) * (U1 - 0.5) / U2
        if z * z / 4.0 <= -math.log(U2):
            return z


def calls_of_their_own(method: str, count: int) -> float:
    """Return the share of calls that follow from the uniforms that they drew themselves."""
    rng, own = Recorded(), 0
    for _ in range(count):
        drawn = getattr(rng, method)(0.0, 1.0)
        uniforms, rng.given = rng.given, []
        own += bool(uniforms) and getattr(Recorded(uniforms), method)(0.0, 1.0) == drawn
    return own / count


def check_normalvariate(effort: Effort) -> Judgement:
    """Replay the uniforms of single calls, and compare with the method that the footnote names."""
    count = effort.pick(20_000, 1_000)
    own = {name: calls_of_their_own(name, count) for name in ("normalvariate", "gauss")}
    rng, same = Recorded(), 0
    for _ in range(count):
        drawn = rng.normalvariate(0.0, 1.0)
        uniforms, rng.given = iter(rng.given), []
        same += kinderman_monahan(uniforms.__next__) == drawn
    holds = own == {"normalvariate": 1.0, "gauss": 0.5} and same == count
    return Judgement(
        CONFIRMED if holds else DIFFERS,
        f"Each of {count:,} calls of normalvariate is a function of the uniforms that it drew "
        "itself, to the last bit that of Kinderman and Monahan's ratio; of gauss's every other "
        "call drew none. So n calls do where Box-Muller takes 2n. Its rejections make the number "
        "of uniforms, and the time, depend on the noise.",
        [Table("Calls that share no uniforms", ("method", "share of calls"), [*own.items()])],
    )


PIECES = (
    Piece(
        key="twister",
        title="Assumption 2: a Mersenne Twister can be predicted",
        place="Section 3, Assumption 2",
        statement="Uniforms must come from a cryptographic generator: some standard ones, such as "
        "the Mersenne Twister, can be predicted.",
        check=check_twister,
        code=(recover_state, predicted, check_twister),
    ),
    Piece(
        key="phase",
        title="Section 2.4: the clock tells which of a pair is drawn",
        place="Section 2.4",
        statement="A common implementation keeps the second Gaussian of a pair for the next call; "
        "the first takes longer, so that timing shows the phase.",
        check=check_phase,
        code=(phased, keeps_a_gaussian, check_phase),
    ),
    Piece(
        key="normalvariate",
        title="Section 5.1, footnote: normalvariate shares no uniforms",
        place="Section 5.1, footnote 3",
        statement="Samplers that share no uniforms between calls need n calls, not 2n: Python's "
        "normalvariate is one, by Kinderman and Monahan's method.",
        check=check_normalvariate,
        code=(kinderman_monahan, calls_of_their_own, check_normalvariate),
    ),
)
