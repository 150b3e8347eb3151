"""Check the generators under the samplers: predictable ones, and calls that share uniforms."""

import math
import random
from collections.abc import Callable
from typing import Any

import numpy as np

from dpnoise.auditing.attacks.twister import UNIFORM_BITS, NoStateError, recover_state
from dpnoise.auditing.processes import PHASE, check_stored_noise
from dpnoise.auditing.targets.target import make_target
from dpnoise.core.machine import describe_machine
from dpnoise.core.safe_text import format_percent_near_limit
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

_OBSERVED = 700  # Uniforms that the attacker observes; 624 of 53 bits determine the state.
_HALF_STATE = 312

# Assumption 2: prediction ------------------------------------------------------------------------


def predicted_share(draw: Callable[[], float], count: int) -> float:
    """Return the share of the next uniforms that a recovered Mersenne Twister predicts.

    It is 0 for a stream that no state explains.
    """
    observed = np.array([int(draw() * 2**UNIFORM_BITS) for _ in range(_OBSERVED)])
    try:
        state = recover_state(observed, np.full(_OBSERVED, 2**UNIFORM_BITS - 1))
    except NoStateError:
        return 0.0
    clone = np.random.RandomState()
    clone.set_state(("MT19937", state, 2 * _HALF_STATE, 0, 0.0))
    clone.random_sample(_OBSERVED - _HALF_STATE)
    return float(np.mean([draw() == clone.random_sample() for _ in range(count)]))


def check_twister(effort: Effort) -> Judgement:
    """Predict Python's and NumPy's older generators, but not the operating system's."""
    count = effort.pick(10_000, 200)
    generators: dict[str, Callable[[], float]] = {
        "random.random()": random.Random().random,
        "numpy.random.RandomState": np.random.RandomState().random_sample,
        "random.SystemRandom": random.SystemRandom().random,
    }
    rows = [(name, _OBSERVED, predicted_share(draw, count)) for name, draw in generators.items()]
    shares = [share for *_, share in rows]
    return Judgement(
        CONFIRMED if shares == [1.0, 1.0, 0.0] else DIFFERS,
        f"After {_OBSERVED} uniforms a Mersenne Twister's state was solved for, and the next "
        f"{count:,} were all predicted, to the last bit; no state explains the operating system's. "
        "The same from noise instead of uniforms is the attack `twister`. All listings of the "
        "paper draw from `random` or NumPy's older generator, which are Mersenne Twisters: as "
        "printed they do not meet this assumption.",
        [Table("Uniforms predicted", ("generator", "seen", "share predicted"), rows)],
    )


# Section 2.4: the phase of a pair ----------------------------------------------------------------


def keeps_a_gaussian() -> dict[str, bool]:
    """Return which generators store a second Gaussian after one was drawn."""
    python, legacy = random.Random(), np.random.RandomState()
    python.gauss(0, 1)
    legacy.normal()
    state: Any = legacy.get_state(legacy=False)
    return {
        "random.gauss": python.getstate()[-1] is not None,
        "numpy.random.RandomState.normal": bool(state["has_gauss"]),
    }


def check_phase(effort: Effort) -> Judgement:
    """Time single calls of random.gauss, and of a sampler that keeps nothing."""
    n, stores_second = effort.pick(20_000, 1_000), keeps_a_gaussian()
    observations = {
        name: check_stored_noise(make_target(name), n=n)
        for name in ("random.gauss", "random.normalvariate")
    }
    is_detected = [observation.found for observation in observations.values()] == [True, False]
    keys = ("odd_median_ns", "even_median_ns", "least", "control", "p_value")
    rows: list[tuple[Cell, ...]] = [
        (name, *(observation.measured[key] for key in keys))
        for name, observation in observations.items()
    ]
    columns = ("calls", "odd, ns", "even, ns", "distinguished", "control", "p-value")
    gauss, normalvariate = (observation.measured["least"] for observation in observations.values())
    return Judgement(
        DIFFERS if not all(stores_second.values()) else CONFIRMED if is_detected else INCONCLUSIVE,
        f"Timing distinguishes a call that computes a pair from one that returns the kept value in "
        f"{format_percent_near_limit(gauss, PHASE)} of the cases; for normalvariate, which keeps "
        f"nothing, in {format_percent_near_limit(normalvariate, PHASE)} (half is guessing). "
        f"{n:,} calls of each on {describe_machine()}, in the worst of three repeats. Confirmed if "
        "the audit's check `phased` finds the first and not the second: above 60 % in every "
        "repeat, and not so for a control between the calls. Otherwise inconclusive: a busy "
        "machine hides a difference.",
        [
            Table("Single calls, every other one against the rest", columns, rows),
            Table(
                "Generators that store the second of a pair",
                ("generator", "stores it"),
                [*stores_second.items()],
            ),
        ],
    )


# Section 5.1: the footnote on normalvariate ------------------------------------------------------


class RecordingRandom(random.Random):
    """Records the uniforms that it returns; `recorded` can be reset."""

    def __init__(self, uniforms: list[float] | None = None) -> None:
        super().__init__()
        self.recorded: list[float] = []
        self.replay = list(uniforms) if uniforms is not None else None

    def random(self) -> float:
        """Return the next uniform, from the replay if there is one."""
        self.recorded.append(super().random() if self.replay is None else self.replay.pop(0))
        return self.recorded[-1]


def kinderman_monahan(draw: Callable[[], float]) -> float:
    """Draw a Gaussian as a ratio of two uniforms, with rejection."""
    while True:
        U1, U2 = draw(), 1.0 - draw()
        z = 4 * math.exp(-0.5) / math.sqrt(2.0) * (U1 - 0.5) / U2
        if z * z / 4.0 <= -math.log(U2):
            return z


def independent_calls(method: str, count: int) -> float:
    """Return the share of calls that depend only on the uniforms which they drew."""
    rng, independent = RecordingRandom(), 0
    for _ in range(count):
        variate = getattr(rng, method)(0.0, 1.0)
        uniforms, rng.recorded = rng.recorded, []
        independent += (
            bool(uniforms) and getattr(RecordingRandom(uniforms), method)(0.0, 1.0) == variate
        )
    return independent / count


def check_normalvariate(effort: Effort) -> Judgement:
    """Replay the uniforms of single calls, and compare with the method that the footnote names."""
    count = effort.pick(20_000, 1_000)
    shares = {name: independent_calls(name, count) for name in ("normalvariate", "gauss")}
    rng, equal = RecordingRandom(), 0
    for _ in range(count):
        variate = rng.normalvariate(0.0, 1.0)
        uniforms, rng.recorded = iter(rng.recorded), []
        equal += kinderman_monahan(uniforms.__next__) == variate
    holds = shares == {"normalvariate": 1.0, "gauss": 0.5} and equal == count
    return Judgement(
        CONFIRMED if holds else DIFFERS,
        f"Each of {count:,} calls of normalvariate is a function of the uniforms that it drew, "
        "and equals Kinderman and Monahan's ratio to the last bit; every other call of gauss drew "
        "none. So n calls are enough where Box-Muller needs 2n. Its rejections make the number of "
        "uniforms, and the time, depend on the noise.",
        [Table("Calls that share no uniforms", ("method", "share of calls"), [*shares.items()])],
    )


PIECES = (
    Piece(
        key="twister",
        title="Assumption 2: a Mersenne Twister can be predicted",
        place="Section 3, Assumption 2",
        statement="Uniforms must come from a cryptographic generator: some standard ones, such as "
        "the Mersenne Twister, can be predicted.",
        check=check_twister,
        code=(recover_state, predicted_share, check_twister),
    ),
    Piece(
        key="phase",
        title="Section 2.4: timing reveals which of a pair is drawn",
        place="Section 2.4",
        statement="A common implementation keeps the second Gaussian of a pair for the next call; "
        "the first takes longer, so that timing shows the phase.",
        check=check_phase,
        code=(check_stored_noise, keeps_a_gaussian, check_phase),
    ),
    Piece(
        key="normalvariate",
        title="Section 5.1, footnote: normalvariate shares no uniforms",
        place="Section 5.1, footnote 3",
        statement="Samplers that share no uniforms between calls need n calls, not 2n: Python's "
        "normalvariate is one, by Kinderman and Monahan's method.",
        check=check_normalvariate,
        code=(kinderman_monahan, independent_calls, check_normalvariate),
    ),
)
