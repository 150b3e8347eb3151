"""Train with DP-SGD, with plain Opacus and with exact release: python examples/dp_sgd.py [--audit].

Training a small model on the CPU takes a few seconds. With --audit the noise of both is attacked
too, which takes a minute or two. It needs the extra `opacus`.
"""

import argparse
import math
import statistics
import time
import warnings
from collections.abc import Callable
from typing import Any

import opacus
import torch
from torch.utils.data import DataLoader, TensorDataset

import dpnoise
from dpnoise.integrations.opacus import SecurePrivacyEngine

CLASSES, FEATURES, SAMPLES, EPOCHS, RUNS = 4, 20, 1_600, 4, 3
EPSILON, DELTA = 3.0, 1e-5
ENGINES: dict[str, Callable[..., Any]] = {
    "plain Opacus": opacus.PrivacyEngine,
    "dpnoise": SecurePrivacyEngine,
}


def clusters() -> tuple[TensorDataset, TensorDataset]:
    """Return invented training and test data: points around one centre per class."""
    centres = 1.2 * torch.randn(CLASSES, FEATURES)
    labels = torch.randint(0, CLASSES, (2 * SAMPLES,))
    points = centres[labels] + 1.5 * torch.randn(2 * SAMPLES, FEATURES)
    return (
        TensorDataset(points[:SAMPLES], labels[:SAMPLES]),
        TensorDataset(points[SAMPLES:], labels[SAMPLES:]),
    )


def accuracy(make_engine: Callable[..., Any], train: TensorDataset, test: TensorDataset) -> float:
    """Train a model with an epsilon of 3, and return its accuracy on the test data."""
    model: Any = torch.nn.Sequential(
        torch.nn.Linear(FEATURES, 16), torch.nn.ReLU(), torch.nn.Linear(16, CLASSES)
    )
    engine = make_engine(accountant="rdp")
    model, optimizer, loader = engine.make_private_with_epsilon(
        module=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=1.0),
        data_loader=DataLoader(train, batch_size=100),
        target_epsilon=EPSILON,
        target_delta=DELTA,
        epochs=EPOCHS,
        max_grad_norm=1.0,
    )
    for _ in range(EPOCHS):
        for points, labels in loader:
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(points), labels).backward()
            optimizer.step()
    points, labels = test.tensors
    return float((model(points).argmax(1) == labels).double().mean())


def noisy_sums(make_engine: Callable[..., Any]) -> Callable[[float, int], Any]:
    """Return a function that adds the optimizer's noise to a sum of gradients."""
    scale = dpnoise.GaussianMechanism(epsilon=1.0, delta=DELTA, sensitivity=1.0).scale

    def add_noise(value: float, n: int) -> Any:
        module = torch.nn.Linear(n, 1, bias=False)
        _, optimizer, _ = make_engine().make_private(
            module=module,
            optimizer=torch.optim.SGD(module.parameters(), lr=1.0),
            data_loader=DataLoader(TensorDataset(torch.zeros(2, n)), batch_size=1),
            noise_multiplier=scale,
            max_grad_norm=1.0,
        )
        (weights,) = optimizer.params
        weights.summed_grad = torch.full((1, n), value)
        optimizer.add_noise()
        return weights.grad.reshape(-1).double().numpy()

    return add_noise


def main() -> None:
    """Train with both engines, and with --audit attack both."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--audit", action="store_true", help="attack the noise of both")
    options = parser.parse_args()
    warnings.simplefilter("ignore")  # Opacus warns that its own generator is insecure.
    data = [clusters() for _ in range(RUNS)]
    for name, engine in ENGINES.items():
        start = time.perf_counter()
        accuracies = [accuracy(engine, *datasets) for datasets in data]
        seconds = time.perf_counter() - start
        print(
            f"{name:14} epsilon {EPSILON:g}, delta {DELTA:g}: "
            f"accuracy {statistics.mean(accuracies):.1%} "
            f"({', '.join(f'{x:.1%}' for x in accuracies)}), {seconds / RUNS:.1f} s per training"
        )
    for name, engine in ENGINES.items() if options.audit else ():
        report = dpnoise.audit(noisy_sums(engine), epsilon=1.0, delta=DELTA, budget=240_000)
        strongest = max(report.findings, key=lambda finding: finding.epsilon_lower)
        certified = math.floor(1_000 * strongest.epsilon_lower) / 1_000
        print(
            f"{name:14} one step used as if epsilon were 1, delta {DELTA:g}: "
            f"at least {certified} "
            f"({'broken' if strongest.broken else 'not broken'}, by {strongest.attack})"
        )


if __name__ == "__main__":
    main()
