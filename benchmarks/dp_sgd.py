"""Measure the time of clipping and noise in a DP-SGD step of 100 million parameters."""

import importlib
import warnings
from collections.abc import Callable
from typing import Any, Final

import torch

LAYERS: Final = 31
WIDTH: Final = 1_792  # 31 layers of 1,792 by 1,792 and their biases: 99.6 million.
SAMPLES: Final = 8


def _private(engine: Any, width: int, layers: int, mode: str) -> tuple[Any, Any, Any]:
    """Return a private model, its optimizer and its criterion."""
    model = torch.nn.Sequential(*(torch.nn.Linear(width, width) for _ in range(layers))).cuda()
    data = torch.utils.data.TensorDataset(torch.randn(2 * SAMPLES, width))
    criterion = torch.nn.CrossEntropyLoss()
    private_parts = engine.make_private(
        module=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=1e-3),
        data_loader=torch.utils.data.DataLoader(data, batch_size=SAMPLES),
        criterion=criterion,
        noise_multiplier=1.0,
        max_grad_norm=1.0,
        poisson_sampling=False,
        grad_sample_mode=mode,
    )
    return private_parts[0], private_parts[1], private_parts[2] if mode == "ghost" else criterion


def _engines() -> list[tuple[str, Callable[[], Any], str]]:
    """Return the engines with their modes: Opacus, its secure formula, and ours."""
    plain = importlib.import_module("opacus").PrivacyEngine
    ours = importlib.import_module("dpnoise.integrations.opacus").SecurePrivacyEngine
    return [
        ("plain Opacus", plain, "hooks"),
        ("Opacus's secure formula", plain, "hooks"),
        ("SecurePrivacyEngine", ours, "hooks"),
        ("plain Opacus, ghost clipping", plain, "ghost"),
        ("SecurePrivacyEngine, ghost clipping", ours, "ghost"),
    ]


class Stopwatch:
    """Measures calls with device events."""

    def __init__(self) -> None:
        self.events: dict[str, list[tuple[Any, Any]]] = {}

    def wrap(self, name: str, work: Callable[[], Any]) -> Callable[[], Any]:
        """Return the work with a measurement under a name."""

        def measured_work() -> Any:
            start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            result = work()
            stop.record()
            self.events.setdefault(name, []).append((start, stop))
            return result

        return measured_work

    def milliseconds(self) -> dict[str, list[float]]:
        """Return the times of all calls except the first two, by name."""
        torch.cuda.synchronize()
        return {
            name: [start.elapsed_time(stop) for start, stop in events[2:]]
            for name, events in self.events.items()
        }


def step_times(
    rounds: int, width: int = WIDTH, layers: int = LAYERS
) -> dict[str, dict[str, list[float]]]:
    """Return milliseconds of gradients, clipping, noise and whole steps, and GiB, by engine.

    Ghost clipping computes gradients and clips in one step.
    """
    return {
        name: _times_of(name, engine, mode, rounds, width, layers)
        for name, engine, mode in _engines()
    }


def _times_of(
    name: str, engine: Callable[[], Any], mode: str, rounds: int, width: int, layers: int
) -> dict[str, list[float]]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Opacus warns that its generator is insecure.
        model, optimizer, criterion = _private(engine(), width, layers, mode)
    optimizer.secure_mode = optimizer.secure_mode or "formula" in name
    stopwatch, x = Stopwatch(), torch.randn(SAMPLES, width, device="cuda")
    y = torch.randint(0, width, (SAMPLES,), device="cuda")
    optimizer.add_noise = stopwatch.wrap("noise", optimizer.add_noise)
    if mode != "ghost":
        optimizer.clip_and_accumulate = stopwatch.wrap("clipping", optimizer.clip_and_accumulate)

    def gradients() -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # PyTorch warns of Opacus's hooks.
            criterion(model(x), y).backward()

    measured_gradients = stopwatch.wrap("gradients", gradients)

    def step() -> None:
        optimizer.zero_grad()
        measured_gradients()
        optimizer.step()

    measured_step = stopwatch.wrap("step", step)
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    for _ in range(rounds + 2):
        measured_step()
    gibibytes = (torch.cuda.max_memory_allocated() - before) / 2**30
    return {**stopwatch.milliseconds(), "memory": [gibibytes]}
