"""The program of each of the two processes in test_distributed.py."""

import os
import warnings
from pathlib import Path
from typing import Any

import torch
from opacus.distributed import DifferentiallyPrivateDistributedDataParallel
from torch.distributed import fsdp

from dpnoise.integrations.opacus import (
    SecurePrivacyEngine,
    SecurePrivacyEngineAdaptiveClipping,
)
from dpnoise.release.additive import GaussianMechanism

MODES: dict[str, dict[str, Any]] = {
    "flat": {},
    "per layer": {"clipping": "per_layer", "max_grad_norm": [0.5, 0.25, 1.0, 0.75]},
    "ghost": {"grad_sample_mode": "ghost"},
    "sharded": {"grad_sample_mode": "ghost_fsdp"},
    "uneven": {"grad_sample_mode": "ghost_fsdp"},
    "adaptive": {
        "grad_sample_mode": "ghost_fsdp",
        "engine": SecurePrivacyEngineAdaptiveClipping,
        "max_grad_norm": 100.0,
        "noise_multiplier": 1.0,
    },
}
SAMPLES = 24


def model_and_data() -> tuple[Any, Any, Any]:
    """Return a model and all samples, the same on both processes."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(6, 5), torch.nn.ReLU(), torch.nn.Linear(5, 3))
    x, y = torch.randn(SAMPLES, 6, dtype=torch.float64), torch.randint(0, 3, (SAMPLES,))
    return model.double(), x, y


def make_private(
    model: Any, x: Any, y: Any, engine: Any = SecurePrivacyEngine, **options: Any
) -> Any:
    """Return module, optimizer, criterion and loader."""
    criterion = torch.nn.CrossEntropyLoss(reduction="sum")
    arguments = {
        "noise_multiplier": 1.5,
        "max_grad_norm": 1.0,
        "loss_reduction": "sum",
        "criterion": criterion,
        **options,
    }
    parts = engine().make_private(
        module=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.5),
        data_loader=torch.utils.data.DataLoader(
            torch.utils.data.TensorDataset(x, y), batch_size=SAMPLES // 2
        ),
        **arguments,
    )
    return parts if len(parts) == 4 else (*parts[:2], criterion, parts[2])


def full_tensor(tensor: Any) -> Any:
    """Return the full tensor of one that may be sharded over the processes."""
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor


def gradient_of(name: str, rank: int, world: int) -> dict[str, Any]:
    """Take one step on this process's half of the samples, and return the results."""
    model, x, y = model_and_data()
    options = dict(MODES[name])
    if name == "uneven":
        model[1] = torch.nn.PReLU().double()  # One number, so one process has none of it.
    if world == 1 and options.get("grad_sample_mode") == "ghost_fsdp":
        options["grad_sample_mode"] = "ghost"
    if options.get("grad_sample_mode") == "ghost_fsdp":
        for layer in (model[0], model[2]):  # Opacus has no gradients of other sharded layers.
            fsdp.fully_shard(layer)
        fsdp.fully_shard(model)
    elif world > 1:
        model = DifferentiallyPrivateDistributedDataParallel(model)
    model, optimizer, criterion, loader = make_private(model, x, y, **options)
    chosen = [index for batch in loader.batch_sampler for index in batch]
    optimizer.zero_grad()
    criterion(model(x[rank::world]), y[rank::world]).backward()
    optimizer.step()
    gradients = [full_tensor(p.grad).reshape(-1) for p in model.parameters()]
    weights = [full_tensor(p).detach().reshape(-1) for p in model.parameters()]
    secrets = [p.grad_sample for p in optimizer.params]
    secrets += [p.summed_grad for p in optimizer.params]
    secrets += [
        part for state in getattr(optimizer, "grad_state", {}).values() for part in state.values()
    ]
    return {
        "gradient": torch.cat(gradients),
        "weights": torch.cat(weights),
        "chosen": chosen,
        "batches": len(loader),
        "bound": float(optimizer.max_grad_norm),
        "secrets": sum(secret is not None for secret in secrets),
    }


def run(rank: int, folder: str) -> None:
    """Run every mode, with noise and without."""
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    store = torch.distributed.FileStore(str(Path(folder) / "store"), 2)
    torch.distributed.init_process_group("gloo", store=store, rank=rank, world_size=2)
    results = {name: gradient_of(name, rank, 2) for name in MODES}
    release = GaussianMechanism.release
    GaussianMechanism.release = lambda _self, value, _rng=None: value  # type: ignore[method-assign, assignment]
    results |= {f"{name} without noise": gradient_of(name, rank, 2) for name in MODES}
    GaussianMechanism.release = release  # type: ignore[method-assign]
    torch.save(results, Path(folder) / f"{rank}.pt")
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()
    # Exit at once: threads of PyTorch may abort a process during a normal exit, with "terminate
    # called without an active exception".
    os._exit(0)
