"""Audit DP-SGD with 1,000 canaries in one run: python examples/audit_training.py.

A linear model is trained on the CPU with Opacus and with dpnoise's engine, and then with a planted
bug: the gradient of the batch is clipped instead of each sample's. It needs the extra `opacus`.
"""

import math
import warnings
from collections.abc import Callable
from typing import Any

import opacus
import torch
from opacus.optimizers import DPOptimizer
from torch.utils.data import DataLoader, TensorDataset

import dpnoise
from dpnoise.auditing import TrainingReport, audit_training
from dpnoise.integrations.opacus import SecurePrivacyEngine

CANARIES, FEATURES, RECORDS, STEPS = 1_000, 20, 200, 4
CLAIMED, DELTA = (1.0, 4.0, 8.0), 1e-5


class BatchClippingOptimizer(DPOptimizer):  # type: ignore[misc]
    """The planted bug: clips the mean gradient of the batch."""

    def clip_and_accumulate(self) -> None:
        """Clip the mean gradient, and store it times the size of the batch."""
        size = len(self.grad_samples[0])
        sums = [gradients.sum(0) for gradients in self.grad_samples]
        norm = math.sqrt(sum(float(total.square().sum()) for total in sums)) / size
        for p, total in zip(self.params, sums, strict=True):
            p.summed_grad = total * min(1.0, self.max_grad_norm / norm)


class BatchClippingEngine(opacus.PrivacyEngine):  # type: ignore[misc]
    """Opacus's engine with the planted bug."""

    def _prepare_optimizer(self, *args: Any, **options: Any) -> Any:
        prepared = super()._prepare_optimizer(*args, **options)
        prepared.__class__ = BatchClippingOptimizer
        return prepared


ENGINES: dict[str, Callable[[], Any]] = {
    "Opacus": opacus.PrivacyEngine,
    "dpnoise": SecurePrivacyEngine,
    "clipped by batch": BatchClippingEngine,
}


def make_training(engine: Callable[[], Any], noise_multiplier: float) -> Callable[[list[int]], Any]:
    """Return a function that trains on invented records and on canaries, given by number.

    Canary i has only feature i, and a label far away: its clipped gradient is a unit vector.
    """
    points = torch.randn(RECORDS, FEATURES)
    labels = points.sum(1) + 0.1 * torch.randn(RECORDS)

    def train(included: list[int]) -> Any:
        x = torch.zeros(len(included) + RECORDS, CANARIES + FEATURES)
        x[range(len(included)), included] = 1.0
        x[len(included) :, CANARIES:] = points
        y = torch.cat([torch.full((len(included),), 50.0), labels])
        model: Any = torch.nn.Linear(CANARIES + FEATURES, 1, bias=False)
        torch.nn.init.zeros_(model.weight)
        model, optimizer, loader = engine().make_private(
            module=model,
            optimizer=torch.optim.SGD(model.parameters(), lr=0.01),
            data_loader=DataLoader(TensorDataset(x, y), batch_size=len(x)),
            noise_multiplier=noise_multiplier,
            max_grad_norm=1.0,
            poisson_sampling=False,
            loss_reduction="sum",
        )
        for _ in range(STEPS):
            for rows, targets in loader:
                optimizer.zero_grad()
                (0.5 * (model(rows)[:, 0] - targets).square()).sum().backward()
                optimizer.step()
        (weights,) = model.parameters()
        return weights.detach()

    return train


def score(weights: Any, canaries: range) -> Any:
    """Return how far training moved the weight of each canary's feature."""
    return weights[0, : len(canaries)]


def noise_scale(epsilon: float) -> float:
    """Return the scale of Gaussian noise for an epsilon and all steps together."""
    return dpnoise.GaussianMechanism(epsilon=epsilon, delta=DELTA, sensitivity=1.0).scale


def audit_engine(engine: Callable[[], Any], epsilon: float) -> tuple[TrainingReport, float]:
    """Audit an engine with noise for an epsilon. Return the report, and the mu of the noise."""
    scale = noise_scale(epsilon)
    train = make_training(engine, noise_multiplier=math.sqrt(STEPS) * scale)
    return audit_training(train, range(CANARIES), score, mu=1 / scale, delta=DELTA), 1 / scale


def rounded_down(bound: float) -> str:
    """Format a bound with two decimals; rounded up, it would claim more than was certified."""
    return f"{math.floor(100 * bound) / 100:.2f}"


def main() -> None:
    """Audit three engines at three claims."""
    warnings.simplefilter("ignore")  # Opacus warns that its own generator is insecure.
    for name, engine in ENGINES.items():
        for epsilon in CLAIMED:
            report, mu = audit_engine(engine, epsilon)
            bounds = [
                rounded_down(bound) for bound in (report.epsilon_lower or 0.0, report.certified)
            ]
            print(
                f"{name:16}  epsilon {epsilon:g}, mu {mu:.2f}: at least epsilon "
                f"{bounds[0]}, mu {bounds[1]}, "
                f"{'broken' if report.broken else 'not broken'}"
            )


if __name__ == "__main__":
    main()
