"""Audits of DP-SGD in one run: Opacus, our engine, and both with clipping by batch."""

import math
import runpy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import opacus
import pytest
import torch
from opacus.accountants.analysis import rdp

from dpnoise.auditing import audit_training
from dpnoise.integrations import opacus as ours
from dpnoise.integrations.opacus import SecurePrivacyEngine

pytestmark = pytest.mark.filterwarnings("ignore")  # Opacus warns that its generator is insecure.
EXAMPLE = runpy.run_path(str(Path(__file__).parents[2] / "examples/audit_training.py"))
ENGINES = [opacus.PrivacyEngine, SecurePrivacyEngine]


def clip_by_batch(optimizer: Any, gradients: list[Any]) -> list[Any]:
    """Return sums that are clipped by the norm of their mean."""
    sums = [tensor.double().sum(0) for tensor in gradients]
    norm = math.sqrt(sum(float(total.square().sum()) for total in sums)) / len(gradients[0])
    return [total * min(1.0, optimizer.max_grad_norm / norm) for total in sums]


@pytest.mark.parametrize("engine", ENGINES)
def test_correct_training_keeps_its_claim_and_leaks_what_can_be_seen(engine: Any) -> None:
    """Noise for epsilon 8, mu 1.67: 461 of 500 guesses are correct, give or take 6.

    Only 500 of 500 would break the claim, and only 410 or fewer certify less than 0.51.
    """
    report, mu = EXAMPLE["audit_engine"](engine, 8.0)
    assert mu == pytest.approx(1.666, abs=0.001)
    assert not report.broken
    assert report.certified > 0.5


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("epsilon", [1.0, 8.0])
def test_clipping_by_batch_is_found(
    engine: Any, epsilon: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ours._FlatClipping, "_clip", clip_by_batch)
    audited = EXAMPLE["BatchClippingEngine"] if engine is opacus.PrivacyEngine else engine
    report, _ = EXAMPLE["audit_engine"](audited, epsilon)
    assert report.broken
    assert report.guesses[0].correct == 500


def guarantees(noise_multiplier: float) -> list[tuple[float, float]]:
    """Return the pairs of Opacus's accountant for two steps that sample half of the records."""
    orders = [1 + order / 4 for order in range(1, 60)]
    divergences = rdp.compute_rdp(q=0.5, noise_multiplier=noise_multiplier, steps=2, orders=orders)
    deltas = [10.0**-power for power in range(1, 9)]
    return [
        (rdp.get_privacy_spent(orders=orders, rdp=divergences, delta=delta)[0], delta)
        for delta in deltas
    ]


def test_the_curve_of_an_accountant_is_a_claim() -> None:
    """Noisy sums of sampled canaries, twice; and of all, with a third of the noise."""

    def make_training(sample_rate: float, noise_multiplier: float) -> Callable[[Any], Any]:
        def train(included: Any) -> Any:
            sampled = [included[torch.rand(len(included)) < sample_rate] for _ in range(2)]
            return torch.cat(sampled).sum(0) + math.sqrt(2) * noise_multiplier * torch.randn(1000)

        return train

    claim = guarantees(1.0)
    for sample_rate, noise_multiplier, broken in ((0.5, 1.0, False), (1.0, 0.3, True)):
        train = make_training(sample_rate, noise_multiplier)
        report = audit_training(train, torch.eye(1000), lambda sums, _: sums, guarantees=claim)
        assert report.broken == broken
