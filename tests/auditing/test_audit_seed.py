"""An audit is deterministic given its own seed, the releases that it sees and the pace of calls."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from support.alarms import LONG

import dpnoise
from dpnoise import cli
from dpnoise.auditing import additive_noise, calls
from dpnoise.auditing.report import Report
from dpnoise.core.errors import ArgumentError


def run_audit(
    seed: int | None, neighbours: Any, noise: int = 7, *, boosting: bool = False
) -> Report:
    """Audit a target whose noise is the same in every audit, and new in every call.

    With `boosting` it answers twice: trees are learned of several parts only.
    """
    rng = np.random.default_rng(noise)

    def target(value: int, n: int) -> Any:
        return value + rng.integers(-3, 4, (n, 2) if boosting else n)

    options: dict[str, Any] = {
        "neighbours": neighbours,
        "budget": 4_000 if boosting and not LONG else 20_000,
    }
    options |= {"seed": seed}
    options |= {"boosting": True} if boosting else {}
    if neighbours is None:
        options |= {"attacks": ["bits", "threshold"], "pairs": [(0, 1), (1, 2)]}
    return replace(dpnoise.audit(target, 1.0, **options), seconds=0.0)


@pytest.fixture(autouse=True)
def _no_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Skip the side-channel checks."""
    monkeypatch.setattr(additive_noise, "run_side_channel_checks", lambda *_: [])


@pytest.fixture(autouse=True)
def _no_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the same calls on a busy machine as on another."""
    monkeypatch.setattr(calls, "time", SimpleNamespace(perf_counter=lambda: 0.0))


@pytest.mark.sample(1)
@pytest.mark.parametrize("neighbours", [None, [(0, 1), (0, 2)]])
@pytest.mark.parametrize("seed", [0, 7])
def test_the_same_releases_and_seed_give_the_same_report(seed: int, neighbours: Any) -> None:
    assert run_audit(seed, neighbours) == run_audit(seed, neighbours)


def test_another_seed_divides_the_releases_otherwise() -> None:
    """Six audits with different seeds toss equal coins with probability 10^-10."""
    trials = {run_audit(seed, [(0, 1)]).findings[0].trials0 for seed in range(6)}
    assert len(trials) > 1


def test_the_trees_have_the_audit_s_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    ensemble = pytest.importorskip("sklearn.ensemble")
    learn, states = ensemble.HistGradientBoostingClassifier, []

    def note_settings(**settings: Any) -> Any:
        states.append(settings["random_state"])
        return learn(**settings)

    monkeypatch.setattr(ensemble, "HistGradientBoostingClassifier", note_settings)
    for seed in (7, 7, 2**80):
        run_audit(seed, [(0, 1)], boosting=True)
    assert states[0] == states[1] != states[2]


def test_the_seed_is_none_of_the_target_s() -> None:
    """The seed does not determine the noise of the target."""
    reports = [run_audit(7, [(0, 1)], noise) for noise in (1, 2)]
    assert reports[0].findings[0].hits0 != reports[1].findings[0].hits0


def test_a_seed_is_shown_in_what_runs_it_again(capsys: pytest.CaptureFixture[str]) -> None:
    assert "seed=0" in run_audit(0, [(0, 1)]).command
    asked = ["audit", "dpnoise.NoisyMax", "--epsilon", "1", "--budget", "1000", "--seed", "7"]
    assert cli.main(asked) in {0, 1}
    assert "--seed 7" in capsys.readouterr().out


def test_a_seed_that_is_none_is_refused() -> None:
    with pytest.raises(ArgumentError, match="seed must be at least 0, got -1"):
        run_audit(-1, [(0, 1)])
