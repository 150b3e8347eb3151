"""Opacus's training, with noise that is released exactly: every mode, and what it refuses."""

import math
import warnings
from collections.abc import Callable
from typing import Any

import opacus
import pytest
import torch
from opacus.optimizers import optimizer as opacus_optimizer

from dpnoise.errors import ArgumentError, ArgumentTypeError
from dpnoise.integrations import opacus as ours
from dpnoise.integrations.opacus import SecurePrivacyEngine
from dpnoise.release.additive import GaussianMechanism

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.cuda)]
ADAPTIVE = {
    "clipping": "adaptive",
    "target_unclipped_quantile": 0.5,
    "clipbound_learning_rate": 0.2,
    "max_clipbound": 8.0,
    "min_clipbound": 0.25,
    "unclipped_num_std": 3.0,
}
MODES: dict[str, dict[str, Any]] = {
    "flat": {},
    "functorch": {"grad_sample_mode": "functorch"},
    "expanded weights": {"grad_sample_mode": "ew"},
    "per layer": {"clipping": "per_layer", "max_grad_norm": [0.5, 0.25, 1.0, 0.75]},
    "adaptive": ADAPTIVE,
    "ghost": {"grad_sample_mode": "ghost"},
}


def forbidden(*_: Any, **__: Any) -> Any:
    raise AssertionError("an insecure generator was asked")


def model_and_data(device: str, kind: torch.dtype = torch.float64) -> tuple[Any, Any]:
    torch.manual_seed(0)  # Of the model and the data, which are no noise.
    layers = (torch.nn.Linear(6, 5), torch.nn.ReLU(), torch.nn.Linear(5, 3))
    model = torch.nn.Sequential(*layers).to(device, kind)
    x, y = torch.randn(96, 6, dtype=kind), torch.randint(0, 3, (96,))
    data = torch.utils.data.TensorDataset(x.to(device), y.to(device))
    return model, torch.utils.data.DataLoader(data, batch_size=32, shuffle=True)


def private(
    model: Any, loader: Any, engine: Any = None, rate: float = 0.5, **options: Any
) -> tuple[Any, Any, Any, Any]:
    """Return model, optimizer, criterion and loader."""
    arguments = {
        "noise_multiplier": 1.5,
        "max_grad_norm": 1.0,
        "loss_reduction": "sum",
        "criterion": torch.nn.CrossEntropyLoss(reduction="sum"),
        **options,
    }
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "With ghost clipping")
        made = (engine or SecurePrivacyEngine()).make_private(
            module=model,
            optimizer=torch.optim.SGD(model.parameters(), lr=rate),
            data_loader=loader,
            **arguments,
        )
    return made if len(made) == 4 else (*made[:2], arguments["criterion"], made[2])


def step(model: Any, optimizer: Any, criterion: Any, x: Any, y: Any) -> None:
    optimizer.zero_grad()
    criterion(model(x), y).backward()
    optimizer.step()


def grads(model: Any) -> Any:
    return torch.cat([p.grad.reshape(-1) for p in model.parameters()])


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("mode", MODES)
def test_every_mode_releases_on_the_grid_of_its_bound_and_asks_no_other_generator(
    mode: str, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In float64 and summed, the gradient is what was released; 53 numbers, all at once."""
    model, loader = model_and_data(device)
    model, optimizer, criterion, loader = private(model, loader, **MODES[mode])
    for name in ("normal", "randn", "rand", "randperm"):
        monkeypatch.setattr(torch, name, forbidden)
    monkeypatch.setattr(opacus_optimizer, "_generate_noise", forbidden)
    calls: list[tuple[int, float]] = []
    release = GaussianMechanism.release

    def counted(self: GaussianMechanism, value: Any, rng: Any = None) -> Any:
        calls.append((getattr(value, "size", lambda: (1,))()[0], self.grid))
        return release(self, value, rng)

    monkeypatch.setattr(GaussianMechanism, "release", counted)
    for steps, (x, y) in enumerate(loader, start=1):
        step(model, optimizer, criterion, x, y)
        gradients = [each for each in calls if each[0] == 53]
        assert len(gradients) == steps
        grid = gradients[-1][1]
        if mode != "adaptive":
            scale = optimizer.noise_multiplier * float(optimizer.max_grad_norm)
            assert scale * 2**-20 <= grid <= scale * 2**-19
        assert torch.equal(grads(model), (grads(model) / grid).round() * grid)
        assert torch.isfinite(grads(model)).all()
    assert steps == 3


@pytest.mark.parametrize("mode", ["flat", "per layer", "ghost"])
def test_without_noise_the_sum_is_opacus_s(mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Opacus clips in the model's format, here float64; cutting moves a number by 32 steps."""
    monkeypatch.setattr(GaussianMechanism, "release", lambda _self, value, _rng=None: value)
    model, loader = model_and_data("cpu")
    x, y = (part[:32] for part in loader.dataset.tensors)
    expected_model, _ = model_and_data("cpu")
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Secure RNG")
        plain = opacus.PrivacyEngine()
    options = {**MODES[mode], "poisson_sampling": False}
    mine = private(model, loader, **options)
    step(*mine[:3], x, y)
    theirs = private(expected_model, loader, plain, **{**options, "noise_multiplier": 0.0})
    step(*theirs[:3], x, y)
    assert (grads(mine[0]) - grads(theirs[0])).abs().max() < 33 * 2.0**-29
    assert grads(mine[0]).abs().max() > 0.1


def test_the_noise_has_the_deviation_that_the_accountant_is_told() -> None:
    """A sum of 53 * 60 squares of normals is off by a tenth with a probability below 10^-4."""
    model, loader = model_and_data("cpu")
    model, optimizer, criterion, _ = private(model, loader, rate=0.0)
    x, y = loader.dataset.tensors
    seen = []
    for _ in range(60):
        step(model, optimizer, criterion, x[:8], y[:8])
        seen.append(grads(model))
    spread = torch.stack(seen).var(0).mean().item()
    assert abs(spread / 1.5**2 - 1) < 0.1


def test_the_accountant_is_opacus_s() -> None:
    model, loader = model_and_data("cpu")
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Secure RNG")
        plain = opacus.PrivacyEngine(accountant="rdp")
    engine = SecurePrivacyEngine(accountant="rdp")
    for each in (engine, plain):
        model, loader = model_and_data("cpu")
        model, optimizer, criterion, _ = private(model, loader, each)
        x, y = (part[:32] for part in loader.dataset.tensors)
        for _ in range(3):
            step(model, optimizer, criterion, x, y)
    assert engine.get_epsilon(1e-5) == plain.get_epsilon(1e-5)


@pytest.mark.filterwarnings("ignore:Optimal order is the largest alpha")
def test_asking_by_epsilon_finds_the_multiplier() -> None:
    model, loader = model_and_data("cpu")
    engine = SecurePrivacyEngine(accountant="rdp")
    _, optimizer, _ = engine.make_private_with_epsilon(
        module=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        data_loader=loader,
        target_epsilon=3.0,
        target_delta=1e-5,
        epochs=2,
        max_grad_norm=1.0,
    )
    assert 0.5 < optimizer.noise_multiplier < 5
    assert optimizer.sensitivity == 1.0 + 2.0**-47


def test_large_batches_in_parts_have_the_sum_of_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """BatchMemoryManager's way: parts are clipped and kept, and one step releases their sum."""
    monkeypatch.setattr(GaussianMechanism, "release", lambda _self, value, _rng=None: value)
    results = []
    for parts in ([32], [7, 12, 13]):
        model, loader = model_and_data("cpu")
        model, optimizer, criterion, _ = private(model, loader)
        x, y = (part[:32] for part in loader.dataset.tensors)
        for i, (some, labels) in enumerate(zip(x.split(parts), y.split(parts), strict=True)):
            optimizer.signal_skip_step(do_skip=i < len(parts) - 1)
            step(model, optimizer, criterion, some, labels)
        results.append(grads(model))
    assert torch.equal(*results)


def test_an_empty_batch_is_noise() -> None:
    model, loader = model_and_data("cpu")
    model, optimizer, criterion, _ = private(model, loader)
    x, y = (part[:0] for part in loader.dataset.tensors)
    step(model, optimizer, criterion, x, y)
    assert (grads(model) != 0).any()


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("mode", ["flat", "per layer", "adaptive", "ghost"])
@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_gradient_that_is_not_finite_is_refused(mode: str, bad: float, device: str) -> None:
    model, loader = model_and_data(device)
    model, optimizer, criterion, _ = private(model, loader, **MODES[mode])
    x, y = (part[:8].clone() for part in loader.dataset.tensors)
    x[3, 2] = bad
    before = [p.detach().clone() for p in model.parameters()]
    with pytest.raises(ArgumentError, match="finite"):
        step(model, optimizer, criterion, x, y)
    for p, old in zip(model.parameters(), before, strict=True):
        assert torch.equal(p, old)


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"noise_generator": torch.Generator()}, ArgumentTypeError, "no seed"),
        ({"noise_multiplier": 0.0}, ArgumentError, "noise_multiplier=0.0 > 0"),
        ({"noise_multiplier": math.nan}, ArgumentError, "noise_multiplier=nan > 0"),
        ({"max_grad_norm": 0.0}, ArgumentError, "max_grad_norm=0.0 > 0"),
        ({"max_grad_norm": 1e40}, ArgumentError, "2\\^100"),
        ({"clipping": "no such"}, ValueError, "no such"),
    ],
    ids=lambda part: "-".join(part) if isinstance(part, dict) else "",
)
def test_bad_arguments_are_refused(
    options: dict[str, Any], error: type[Exception], words: str
) -> None:
    model, loader = model_and_data("cpu")
    with pytest.raises(error, match=words):
        private(model, loader, **options)


def test_every_optimizer_of_opacus_has_a_secure_one() -> None:
    found: set[Any] = set()

    def below(kind: Any) -> None:
        for each in kind.__subclasses__():
            if each.__module__.startswith("opacus."):
                found.add(each)
            below(each)

    below(opacus.optimizers.DPOptimizer)
    # Nothing makes it: get_optimizer_class returns the simple one.
    unused = {opacus.optimizers.ddp_perlayeroptimizer.DistributedPerLayerOptimizer}
    assert found - unused == set(ours._SECURED) - {opacus.optimizers.DPOptimizer}


def test_ghost_clipping_warns_that_its_sum_is_rounded() -> None:
    model, loader = model_and_data("cpu")
    made: Callable[..., Any] = SecurePrivacyEngine().make_private
    with pytest.warns(UserWarning, match="no bound"):
        made(
            module=model,
            optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
            data_loader=loader,
            noise_multiplier=1.0,
            max_grad_norm=1.0,
            grad_sample_mode="ghost",
        )
