"""What each of two processes does for test_distributed.py."""

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


def parts() -> tuple[Any, Any, Any]:
    """Return a model and all samples, the same on both processes."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(6, 5), torch.nn.ReLU(), torch.nn.Linear(5, 3))
    x, y = torch.randn(SAMPLES, 6, dtype=torch.float64), torch.randint(0, 3, (SAMPLES,))
    return model.double(), x, y


def private(model: Any, x: Any, y: Any, engine: Any = SecurePrivacyEngine, **options: Any) -> Any:
    """Return module, optimizer, criterion and loader."""
    criterion = torch.nn.CrossEntropyLoss(reduction="sum")
    arguments = {
        "noise_multiplier": 1.5,
        "max_grad_norm": 1.0,
        "loss_reduction": "sum",
        "criterion": criterion,
        **options,
    }
    made = engine().make_private(
        module=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.5),
        data_loader=torch.utils.data.DataLoader(
            torch.utils.data.TensorDataset(x, y), batch_size=SAMPLES // 2
        ),
        **arguments,
    )
    return made if len(made) == 4 else (*made[:2], criterion, made[2])


def whole(tensor: Any) -> Any:
    """Return a tensor that may be spread over the processes."""
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor


def gradient_of(name: str, rank: int, world: int) -> dict[str, Any]:
    """Take one step on this process's half of the samples, and return what came of it."""
    model, x, y = parts()
    options = dict(MODES[name])
    if name == "uneven":
        model[1] = torch.nn.PReLU().double()  # One number, of which one process has nothing.
    if world == 1 and options.get("grad_sample_mode") == "ghost_fsdp":
        options["grad_sample_mode"] = "ghost"
    if options.get("grad_sample_mode") == "ghost_fsdp":
        for layer in (model[0], model[2]):  # Opacus has no gradients of others that are sharded.
            fsdp.fully_shard(layer)
        fsdp.fully_shard(model)
    elif world > 1:
        model = DifferentiallyPrivateDistributedDataParallel(model)
    model, optimizer, criterion, loader = private(model, x, y, **options)
    chosen = [index for batch in loader.batch_sampler for index in batch]
    optimizer.zero_grad()
    criterion(model(x[rank::world]), y[rank::world]).backward()
    optimizer.step()
    gradients = [whole(p.grad).reshape(-1) for p in model.parameters()]
    weights = [whole(p).detach().reshape(-1) for p in model.parameters()]
    return {
        "gradient": torch.cat(gradients),
        "weights": torch.cat(weights),
        "chosen": chosen,
        "batches": len(loader),
        "bound": float(optimizer.max_grad_norm),
    }


def run(rank: int, folder: str) -> None:
    """Run every mode, with noise and without."""
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    store = torch.distributed.FileStore(str(Path(folder) / "store"), 2)
    torch.distributed.init_process_group("gloo", store=store, rank=rank, world_size=2)
    found = {name: gradient_of(name, rank, 2) for name in MODES}
    release = GaussianMechanism.release
    GaussianMechanism.release = lambda _self, value, _rng=None: value  # type: ignore[method-assign, assignment]
    found |= {f"{name} alone": gradient_of(name, rank, 2) for name in MODES}
    GaussianMechanism.release = release  # type: ignore[method-assign]
    torch.save(found, Path(folder) / f"{rank}.pt")
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()
    # At once: threads that PyTorch keeps may abort a process that takes itself down first, with
    # "terminate called without an active exception".
    os._exit(0)
