"""Audits of other libraries: noise added in floats is broken, noise on a grid is not."""

import pytest
from support.alarms import FALSE_ALARM, LONG
from support.verdicts import peer

import dpnoise
from dpnoise.auditing import additive_noise, targets

FULL_AUDITS = 20 if LONG else 2
# Attacks that are quick on every format; all attacks together certify at least as much.
QUICK = ["feasibility", "precision", "bits"]


@pytest.fixture(autouse=True)
def _no_observations(monkeypatch: pytest.MonkeyPatch) -> None:
    """Skip forks, restarts and clocks, which certify nothing."""
    monkeypatch.setattr(additive_noise, "run_side_channel_checks", lambda *_: [])


@pytest.mark.parametrize("epsilon", [1.0, 0.1])
@pytest.mark.parametrize(
    "name",
    [
        "torch.normal",
        "torch.laplace",
        "opacus",
        "jax.normal",
        "jax_privacy",
        "jax.laplace",
        "diffprivlib.Laplace",
        "diffprivlib.GaussianAnalytic",
    ],
)
def test_noise_added_in_floats_is_broken(name: str, epsilon: float) -> None:
    peer(name)
    delta = 1e-6 if name in targets.names("gaussian") else 0.0
    report = dpnoise.audit(name, epsilon, delta, attacks=QUICK, budget=96_000)
    assert report.broken
    assert report.epsilon_lower > epsilon


def test_the_formula_of_opacus_s_secure_mode_is_broken_too() -> None:
    peer("opacus.secure_mode")
    report = dpnoise.audit("opacus.secure_mode", 1.0, 1e-6, attacks=QUICK, budget=240_000)
    assert report.broken


@pytest.mark.parametrize("name", ["pydp.laplace", "opendp.laplace", "dpnoise.release"])
def test_full_audits_of_noise_on_a_grid_find_nothing(name: str) -> None:
    """A correct library is called broken in at most one of 10^8 of these audits."""
    peer(name)
    for _ in range(FULL_AUDITS):
        assert not dpnoise.audit(name, epsilon=1.0, confidence=1 - FALSE_ALARM).broken
