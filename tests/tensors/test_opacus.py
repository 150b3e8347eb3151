"""Opacus's training with exactly released noise: every mode, and refused arguments."""

import ast
import importlib
import inspect
import itertools
import math
import pkgutil
import re
import textwrap
import tomllib
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import opacus
import pytest
import torch
from opacus.optimizers import optimizer as opacus_optimizer
from opacus.utils.batch_memory_manager import BatchMemoryManager
from scipy import stats
from support.alarms import check_probability

from dpnoise.core.errors import ArgumentError, ArgumentTypeError, MissingExtraError
from dpnoise.integrations import clipping, opacus_internals
from dpnoise.integrations import opacus as ours
from dpnoise.integrations.opacus import (
    SecurePrivacyEngine,
    SecurePrivacyEngineAdaptiveClipping,
)
from dpnoise.release.additive import GaussianMechanism

ROOT = Path(__file__).parents[2]
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
    "ghost, attached": {"grad_sample_mode": "ghost", "wrap_model": False},
    "ghost, adaptive": {
        "grad_sample_mode": "ghost",
        "engine": SecurePrivacyEngineAdaptiveClipping,
        "min_clipbound": 0.25,
        "max_clipbound": 8.0,
    },
}


def fail_if_called(*_: Any, **__: Any) -> Any:
    raise AssertionError("an insecure generator was used")


def model_and_data(device: str, kind: torch.dtype = torch.float64) -> tuple[Any, Any]:
    torch.manual_seed(0)  # Seeds the model and the data, not the noise.
    layers = (torch.nn.Linear(6, 5), torch.nn.ReLU(), torch.nn.Linear(5, 3))
    model = torch.nn.Sequential(*layers).to(device, kind)
    x, y = torch.randn(96, 6, dtype=kind), torch.randint(0, 3, (96,))
    data = torch.utils.data.TensorDataset(x.to(device), y.to(device))
    return model, torch.utils.data.DataLoader(data, batch_size=32, shuffle=True)


def make_private(
    model: Any,
    loader: Any,
    engine: Any = SecurePrivacyEngine,
    rate: float = 0.5,
    *,
    checks_batches: bool = False,
    **options: Any,
) -> tuple[Any, Any, Any, Any]:
    """Return the private model, optimizer, criterion and loader.

    Most tests choose their batches, so the optimizer does not check that the loader drew them.
    """
    arguments = {
        "noise_multiplier": 1.5,
        "max_grad_norm": 1.0,
        "loss_reduction": "sum",
        "criterion": torch.nn.CrossEntropyLoss(reduction="sum"),
        **options,
    }
    parts = (engine() if isinstance(engine, type) else engine).make_private(
        module=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=rate),
        data_loader=loader,
        **arguments,
    )
    if not checks_batches:
        parts[1].sampler = None
    prepared_model = parts[0] if options.get("wrap_model", True) else model
    return (
        (prepared_model, *parts[1:])
        if len(parts) == 4
        else (prepared_model, parts[1], arguments["criterion"], parts[2])
    )


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
    """In float64 and summed, the gradient is the release; all 53 numbers in one call."""
    model, loader = model_and_data(device)
    model, optimizer, criterion, loader = make_private(model, loader, **MODES[mode])
    for name in ("normal", "randn", "rand", "randperm"):
        monkeypatch.setattr(torch, name, fail_if_called)
    monkeypatch.setattr(opacus_optimizer, "_generate_noise", fail_if_called)
    calls: list[tuple[int, float]] = []
    release = GaussianMechanism.release

    def record_and_release(self: GaussianMechanism, value: Any, rng: Any = None) -> Any:
        calls.append((getattr(value, "size", lambda: (1,))()[0], self.grid))
        return release(self, value, rng)

    monkeypatch.setattr(GaussianMechanism, "release", record_and_release)
    for steps, (x, y) in enumerate(loader, start=1):
        step(model, optimizer, criterion, x, y)
        gradients = [call for call in calls if call[0] == 53]
        assert len(gradients) == steps
        grid = gradients[-1][1]
        if "adaptive" not in mode:
            scale = optimizer.noise_multiplier * float(optimizer.max_grad_norm)
            assert scale * 2**-20 <= grid <= scale * 2**-19
        assert torch.equal(grads(model), (grads(model) / grid).round() * grid)
        assert torch.isfinite(grads(model)).all()
    assert steps == 3


@pytest.mark.parametrize("mode", ["flat", "per layer", "ghost"])
def test_without_noise_the_sum_equals_that_of_opacus(
    mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Opacus clips in the model's format, here float64; truncation changes a number by 32 steps."""
    monkeypatch.setattr(GaussianMechanism, "release", lambda _self, value, _rng=None: value)
    model, loader = model_and_data("cpu")
    x, y = (part[:32] for part in loader.dataset.tensors)
    expected_model, _ = model_and_data("cpu")
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Secure RNG")
        plain = opacus.PrivacyEngine()
    options = {**MODES[mode], "poisson_sampling": False}
    secure = make_private(model, loader, **options)
    step(*secure[:3], x, y)
    opacus_parts = make_private(
        expected_model, loader, plain, **{**options, "noise_multiplier": 0.0}
    )
    step(*opacus_parts[:3], x, y)
    assert (grads(secure[0]) - grads(opacus_parts[0])).abs().max() < 33 * 2.0**-29
    assert grads(secure[0]).abs().max() > 0.1


def test_the_noise_has_the_deviation_that_the_accountant_assumes() -> None:
    """The sum of squares of 53 normals around their means over 60 steps is a chi-squared."""
    model, loader = model_and_data("cpu")
    model, optimizer, criterion, _ = make_private(model, loader, rate=0.0)
    x, y = loader.dataset.tensors
    gradients = []
    for _ in range(60):
        step(model, optimizer, criterion, x[:8], y[:8])
        gradients.append(grads(model))
    squares = 59 * torch.stack(gradients).var(0).sum().item() / 1.5**2
    law = stats.chi2(53 * 59)
    check_probability(2 * min(law.cdf(squares), law.sf(squares)))


def hidden_tensors(p: Any) -> list[str]:
    """Return the names of the tensors that pickle saves with a parameter."""
    return [name for name, value in vars(p).items() if isinstance(value, torch.Tensor)]


@pytest.mark.parametrize("mode", MODES)
def test_no_secret_gradient_stays_on_the_parameters_after_a_step(mode: str) -> None:
    model, loader = model_and_data("cpu")
    private, optimizer, criterion, loader = make_private(model, loader, **MODES[mode])
    for x, y in loader:
        step(private, optimizer, criterion, x, y)
        assert [hidden_tensors(p) for p in model.parameters()] == [[]] * 4
        assert optimizer._samples == 0


@pytest.mark.parametrize("mode", ["flat", "ghost"])
def test_after_a_part_of_a_batch_only_its_sum_stays(mode: str) -> None:
    model, loader = model_and_data("cpu")
    private, optimizer, criterion, _ = make_private(model, loader, **MODES[mode])
    optimizer.signal_skip_step(do_skip=True)
    x, y = (part[:8] for part in loader.dataset.tensors)
    step(private, optimizer, criterion, x, y)
    assert [hidden_tensors(p) for p in model.parameters()] == [["summed_grad"]] * 4


def test_the_accountant_equals_that_of_opacus() -> None:
    model, loader = model_and_data("cpu")
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Secure RNG")
        plain = opacus.PrivacyEngine(accountant="rdp")
    engine = SecurePrivacyEngine(accountant="rdp")
    for each in (engine, plain):
        model, loader = model_and_data("cpu")
        model, optimizer, criterion, _ = make_private(model, loader, each)
        x, y = (part[:32] for part in loader.dataset.tensors)
        for _ in range(3):
            step(model, optimizer, criterion, x, y)
    assert engine.get_epsilon(1e-5) == plain.get_epsilon(1e-5)


@pytest.mark.filterwarnings("ignore:GDP accounting is experimental")
@pytest.mark.parametrize("accountant", ["prv", "rdp", "gdp"])
def test_before_the_first_step_epsilon_is_0(accountant: str) -> None:
    """Opacus's own engine raises an error about NaN or an index."""
    engine = SecurePrivacyEngine(accountant=accountant)
    assert engine.get_epsilon(1e-5) == 0
    model, loader = model_and_data("cpu")
    model, optimizer, criterion, loader = make_private(model, loader, engine)
    assert engine.get_epsilon(delta=1e-5) == 0
    step(model, optimizer, criterion, *next(iter(loader)))
    assert engine.get_epsilon(1e-5) > 0


@pytest.mark.filterwarnings("ignore:GDP accounting is experimental")
@pytest.mark.filterwarnings("ignore:PrivacyEngine detected new dataset object")
@pytest.mark.parametrize("accountant", ["prv", "rdp", "gdp"])
def test_no_epsilon_is_stated_for_batches_that_are_not_poisson_samples(
    accountant: str, tmp_path: Path
) -> None:
    """Not by the engine, not by its accountant, not from a checkpoint, and not after a new call."""
    engine = SecurePrivacyEngine(accountant=accountant)
    model, loader = model_and_data("cpu")
    options: dict[str, Any] = {"engine": engine, "poisson_sampling": False}
    model, optimizer, criterion, loader = make_private(model, loader, **options)
    for x, y in loader:
        step(model, optimizer, criterion, x, y)
    assert len(engine.accountant) == 3
    engine.save_checkpoint(path=tmp_path / "training.pt", module=model)
    resumed = SecurePrivacyEngine(accountant=accountant)
    with pytest.raises(ValueError, match="without Poisson sampling cannot be loaded"):
        resumed.load_checkpoint(path=tmp_path / "training.pt", module=model)
    make_private(*model_and_data("cpu"), engine=engine)
    for get_epsilon in (engine.get_epsilon, engine.accountant.get_epsilon):
        with pytest.raises(ArgumentError, match="poisson_sampling=True"):
            get_epsilon(1e-5)


def test_no_noise_is_chosen_for_batches_that_are_not_poisson_samples() -> None:
    engine = SecurePrivacyEngine()
    for poisson_sampling in (False, True):  # The first engine has other batches in its history.
        model, loader = model_and_data("cpu")
        with pytest.raises(ArgumentError, match="needs Poisson sampling"):
            engine.make_private_with_epsilon(
                module=model,
                optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
                data_loader=loader,
                target_epsilon=3.0,
                target_delta=1e-5,
                epochs=2,
                max_grad_norm=1.0,
                poisson_sampling=poisson_sampling,
            )
        make_private(*model_and_data("cpu"), engine=engine, poisson_sampling=False)


@pytest.mark.filterwarnings("ignore:divide by zero")  # In Opacus, where the sample rate is 1.
def test_a_batch_of_all_records_has_the_epsilon_of_gaussian_noise() -> None:
    """Four steps with a noise multiplier of 8: Gaussian noise with a scale of 4."""
    engine = SecurePrivacyEngine()
    model, loader = model_and_data("cpu")
    loader = torch.utils.data.DataLoader(loader.dataset, batch_size=96)
    options: dict[str, Any] = {"engine": engine, "poisson_sampling": False, "noise_multiplier": 8.0}
    model, optimizer, criterion, loader = make_private(model, loader, **options)
    for _ in range(4):
        for x, y in loader:
            step(model, optimizer, criterion, x, y)
    epsilon = engine.get_epsilon(1e-5)
    scale = GaussianMechanism(epsilon=epsilon, delta=1e-5, sensitivity=1.0).scale
    assert 3.9 < scale <= 4.0


def test_a_remainder_that_is_dropped_is_not_a_batch_of_all_records() -> None:
    engine = SecurePrivacyEngine()
    model, loader = model_and_data("cpu")
    loader = torch.utils.data.DataLoader(
        loader.dataset, batch_size=90, shuffle=True, drop_last=True
    )
    make_private(model, loader, engine=engine, poisson_sampling=False)
    with pytest.raises(ArgumentError, match="one batch of all records"):
        engine.get_epsilon(1e-5)


def test_secure_mode_is_always_on() -> None:
    assert SecurePrivacyEngine(secure_mode=True).secure_mode
    with pytest.raises(ArgumentError, match="secure_mode must be True"):
        SecurePrivacyEngine(secure_mode=False)


@pytest.mark.filterwarnings("ignore:Optimal order is the largest alpha")
def test_an_engine_that_has_spent_some_chooses_no_noise_for_an_epsilon() -> None:
    engine = SecurePrivacyEngine(accountant="rdp")
    model, optimizer, loader = make_private_with_epsilon(engine)
    step(model, optimizer, torch.nn.CrossEntropyLoss(), *next(iter(loader)))
    with pytest.raises(ArgumentError, match="before load_checkpoint"):
        make_private_with_epsilon(engine)


@pytest.mark.filterwarnings("ignore:Optimal order is the largest alpha")
def test_a_training_that_resumes_from_a_checkpoint_spends_the_same(tmp_path: Path) -> None:
    """The seed of `model_and_data` repeats the model, and neither the noise nor the batches."""
    spent, weights = [], []
    for is_resumed in (False, True, True):
        engine = SecurePrivacyEngine(accountant="rdp")
        model, optimizer, loader = make_private_with_epsilon(engine)
        saved: dict[str, Any] = {"path": tmp_path / "1.pt", "module": model, "optimizer": optimizer}
        if is_resumed:
            engine.load_checkpoint(**saved)
        for epoch in range(1 if is_resumed else 0, 2):
            for x, y in loader:
                step(model, optimizer, torch.nn.CrossEntropyLoss(), x, y)
            if epoch == 0:
                engine.save_checkpoint(**saved)
        spent.append(engine.get_epsilon(1e-5))
        weights.append(torch.cat([p.detach().reshape(-1) for p in model.parameters()]))
    assert spent == [spent[0]] * 3
    assert 2.9 < spent[0] <= 3.0
    assert not torch.equal(weights[1], weights[2])


@pytest.mark.filterwarnings("ignore:Optimal order is the largest alpha")
def test_a_checkpoint_of_other_noise_is_loaded_with_a_warning(tmp_path: Path) -> None:
    engine = SecurePrivacyEngine(accountant="rdp")
    model, optimizer, loader = make_private_with_epsilon(engine)
    step(model, optimizer, torch.nn.CrossEntropyLoss(), *next(iter(loader)))
    engine.save_checkpoint(path=tmp_path / "1.pt", module=model, optimizer=optimizer)
    resumed = SecurePrivacyEngine(accountant="rdp")
    model, optimizer, *_ = make_private(*model_and_data("cpu"), engine=resumed)
    with pytest.warns(UserWarning, match="noise_multiplier .* and the optimizer has"):
        resumed.load_checkpoint(path=tmp_path / "1.pt", module=model, optimizer=optimizer)
    assert resumed.get_epsilon(1e-5) == engine.get_epsilon(1e-5)


def make_private_with_epsilon(engine: SecurePrivacyEngine) -> tuple[Any, ...]:
    model, loader = model_and_data("cpu")
    parts: tuple[Any, ...] = engine.make_private_with_epsilon(
        module=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9),
        data_loader=loader,
        target_epsilon=3.0,
        target_delta=1e-5,
        epochs=2,
        max_grad_norm=1.0,
    )
    return parts


@pytest.mark.filterwarnings("ignore:Optimal order is the largest alpha")
def test_asking_by_epsilon_finds_the_multiplier() -> None:
    _, optimizer, _ = make_private_with_epsilon(SecurePrivacyEngine(accountant="rdp"))
    assert 0.5 < optimizer.noise_multiplier < 5
    assert optimizer.sensitivity == 1.0 + 2.0**-47


@pytest.mark.parametrize("mode", ["flat", "ghost"])
def test_a_step_without_a_batch_of_the_private_loader_is_refused(mode: str) -> None:
    model, old_loader = model_and_data("cpu")
    options = {**MODES[mode], "checks_batches": True}
    model, optimizer, criterion, loader = make_private(model, old_loader, **options)
    before = [p.detach().clone() for p in model.parameters()]
    with pytest.raises(ArgumentError, match=r"Step 1 has no batch of .* returned .drawn so far: 0"):
        step(model, optimizer, criterion, *next(iter(old_loader)))
    for p, old in zip(model.parameters(), before, strict=True):
        assert torch.equal(p, old)
    for x, y in loader:
        step(model, optimizer, criterion, x, y)
    with pytest.raises(ArgumentError, match=r"Step 4 has no batch of .* returned .drawn so far: 3"):
        step(model, optimizer, criterion, x, y)


@pytest.mark.parametrize("mode", ["flat", "ghost"])
@pytest.mark.parametrize("workers", [0, 1])
def test_parts_of_a_batch_memory_manager_are_one_step_for_each_batch(
    mode: str, workers: int
) -> None:
    engine = SecurePrivacyEngine()
    model, loader = model_and_data("cpu", torch.float32)
    loader = torch.utils.data.DataLoader(loader.dataset, batch_size=32, num_workers=workers)
    options = {**MODES[mode], "engine": engine, "checks_batches": True}
    model, optimizer, criterion, loader = make_private(model, loader, **options)
    part_sizes = []
    for _ in range(2):
        with BatchMemoryManager(
            data_loader=loader, max_physical_batch_size=5, optimizer=optimizer
        ) as parts:
            for x, y in parts:
                part_sizes.append(len(x))
                step(model, optimizer, criterion, x, y)
    assert max(part_sizes) == 5
    assert engine.accountant.history == [(1.5, 1 / 3, 6)]
    assert loader.batch_sampler.batches_drawn == 6


@pytest.mark.parametrize("mode", ["flat", "ghost"])
def test_large_batches_in_parts_have_the_sum_of_the_whole(
    mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As with BatchMemoryManager: parts are clipped and kept, and one step releases their sum."""
    monkeypatch.setattr(GaussianMechanism, "release", lambda _self, value, _rng=None: value)
    results = []
    for parts in ([32], [7, 12, 13]):
        model, loader = model_and_data("cpu")
        model, optimizer, criterion, _ = make_private(model, loader, **MODES[mode])
        x, y = (part[:32] for part in loader.dataset.tensors)
        for i, (inputs, labels) in enumerate(zip(x.split(parts), y.split(parts), strict=True)):
            optimizer.signal_skip_step(do_skip=i < len(parts) - 1)
            step(model, optimizer, criterion, inputs, labels)
        results.append(grads(model))
    assert torch.equal(*results)


@pytest.mark.parametrize("mode", ["flat", "ghost", "ghost, adaptive"])
def test_an_empty_batch_is_noise(mode: str) -> None:
    model, loader = model_and_data("cpu")
    model, optimizer, criterion, _ = make_private(model, loader, **MODES[mode])
    x, y = (part[:0] for part in loader.dataset.tensors)
    step(model, optimizer, criterion, x, y)
    assert (grads(model) != 0).any()


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("mode", ["flat", "per layer", "adaptive", "ghost", "ghost, adaptive"])
@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_gradient_that_is_not_finite_is_refused(mode: str, bad: float, device: str) -> None:
    model, loader = model_and_data(device)
    model, optimizer, criterion, _ = make_private(model, loader, **MODES[mode])
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
        ({"noise_multiplier": 0.0}, ArgumentError, "noise_multiplier must be greater than 0"),
        ({"noise_multiplier": math.nan}, ArgumentError, "noise_multiplier must be greater than 0"),
        ({"max_grad_norm": 0.0}, ArgumentError, "max_grad_norm must be greater than 0"),
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
        make_private(model, loader, **options)


def texts_compared_with(function: Any, argument: str) -> set[str]:
    """Return the texts with which a function of Opacus compares an argument."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    return {
        text.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Compare) and ast.unparse(node.left) == argument
        for other in node.comparators
        for text in ast.walk(other)
        if isinstance(text, ast.Constant) and isinstance(text.value, str)
    }


# Opacus has hooks for this mode, but no function that chooses an optimizer for it.
REFUSED = {"ghost_tp"}


def modes_of_opacus() -> set[str]:
    utils = opacus.grad_sample.utils
    functions = (utils.get_gsm_class, utils.get_hooks_class, opacus.optimizers.get_optimizer_class)
    return set().union(*(texts_compared_with(each, "grad_sample_mode") for each in functions))


def test_a_version_of_opacus_that_was_not_tested_is_refused() -> None:
    opacus_internals.check_version(opacus.__version__)
    for version in ("1.5.4", "1.60.0", "2.0.0"):
        with pytest.raises(MissingExtraError, match=f"1.6, and Opacus {version}.*pip install"):
            opacus_internals.check_version(version)
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    requirement = next(each for each in extras["optional-dependencies"]["opacus"] if ">=" in each)
    major, minor = map(int, opacus_internals.TESTED.split("."))
    assert requirement.startswith(f"opacus>={major}.{minor},<{major}.{minor + 1};")


def private_names(*files: Path) -> set[str]:
    """Return the private names that files define, read or set."""
    trees = [ast.parse(file.read_text()) for file in files]
    nodes = [node for tree in trees for node in ast.walk(tree)]
    names = {getattr(node, "name", getattr(node, "attr", None)) for node in nodes}
    return {name for name in names if isinstance(name, str) and re.match("_[a-z]", name)}


def test_one_module_uses_private_names_of_opacus() -> None:
    """No other module defines a private name of Opacus, which would override it."""
    files = Path(opacus.__path__[0]).rglob("*.py")
    opacus_names = private_names(*(file for file in files if "tests" not in file.parts))
    folder = Path(opacus_internals.__file__).parent
    others = set(folder.glob("*.py")) - {folder / "opacus_internals.py"}
    assert private_names(*others) & opacus_names == set()
    used = private_names(folder / "opacus_internals.py") & opacus_names
    assert used >= {"_check_processed_flag", "_forward_counter", "_prepare_model"}


def test_every_combination_that_opacus_has_an_optimizer_for_has_a_secure_one() -> None:
    choose = opacus.optimizers.get_optimizer_class
    clippings = texts_compared_with(choose, "clipping")
    assert clippings == {"flat", "per_layer", "adaptive"}
    optimizers = set()
    modes = modes_of_opacus()
    assert modes == {"hooks", "functorch", "ew", "no_op", "ghost", "ghost_fsdp", "ghost_tp"}
    for mode, name, distributed in itertools.product(modes - REFUSED, clippings, (False, True)):
        try:
            optimizers.add(choose(clipping=name, distributed=distributed, grad_sample_mode=mode))
        except ValueError:
            continue
    assert optimizers == set(SecurePrivacyEngine._secure_optimizers)
    ghosts = {mode for mode in modes if "ghost" in mode}
    assert ghosts - REFUSED == set(opacus_internals.GHOST_HOOKS)


def subclasses(kind: Any) -> set[Any]:
    return {kind}.union(*(subclasses(each) for each in kind.__subclasses__()))


def test_every_engine_and_optimizer_of_opacus_has_a_secure_one() -> None:
    for each in pkgutil.walk_packages(opacus.__path__, "opacus."):
        if "tests" not in each.name and "lightning" not in each.name:
            importlib.import_module(each.name)
    engines, optimizers = (
        {each for each in subclasses(kind) if each.__module__.startswith("opacus.")}
        for kind in (opacus.PrivacyEngine, opacus.optimizers.DPOptimizer)
    )
    assert {f"Secure{each.__name__}" for each in engines} == set(ours.__all__)
    # Never used: get_optimizer_class returns the simple one.
    unused = {opacus.optimizers.ddp_perlayeroptimizer.DistributedPerLayerOptimizer}
    assert optimizers - unused == set(SecurePrivacyEngine._secure_optimizers)


@pytest.mark.parametrize("mode", sorted(REFUSED))
def test_modes_without_an_optimizer_are_refused(mode: str) -> None:
    model, loader = model_and_data("cpu")
    with pytest.raises(ArgumentError, match="no optimizer for it"):
        make_private(model, loader, grad_sample_mode=mode, wrap_model=False)


def test_gradients_that_the_user_makes_are_clipped_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """In Opacus's mode no_op the caller sets grad_sample."""
    monkeypatch.setattr(GaussianMechanism, "release", lambda _self, value, _rng=None: value)
    model, loader = model_and_data("cpu")
    model, optimizer, _, _ = make_private(model, loader, grad_sample_mode="no_op")
    for p in model.parameters():
        p.grad_sample = torch.full((8, *p.shape), 100.0, dtype=torch.float64)
    optimizer.step()
    assert 0 < optimizer.params[0].grad.max() < 8.0


class VariedModel(torch.nn.Module):  # type: ignore[misc]
    """Layers that Opacus supports, one for functorch, and one that is used several times."""

    def __init__(self) -> None:
        super().__init__()
        self.words = torch.nn.Embedding(11, 6)
        self.recurrent = opacus.layers.DPLSTM(6, 5, batch_first=True)
        self.norm = torch.nn.LayerNorm(5)
        self.odd = torch.nn.PReLU(5)
        self.last = torch.nn.Linear(5, 3)

    def forward(self, x: Any) -> Any:
        """Return the scores of three classes."""
        steps, _ = self.recurrent(self.words(x))
        return self.last(self.odd(self.norm(steps[:, -1])))


def make_varied(bound: float = 0.3, device: str = "cpu", **options: Any) -> Any:
    torch.manual_seed(1)
    model = VariedModel().to(device, torch.float64)
    x, y = torch.randint(0, 11, (24, 4)).to(device), torch.randint(0, 3, (24,)).to(device)
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), batch_size=12)
    return make_private(model, loader, max_grad_norm=bound, **options), x, y


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("samples_at_once", [2**26, 400])
def test_ghost_clipping_has_the_sum_of_flat_clipping(
    samples_at_once: int, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Equal to the last bit with all samples at once; in runs a matrix product may round otherwise.

    On a device, flat clipping adds the contributions to an embedding in any order.
    """
    monkeypatch.setattr(GaussianMechanism, "release", lambda _self, value, _rng=None: value)
    monkeypatch.setattr(clipping, "_MAX_LAYER_NUMBERS", samples_at_once)
    results = []
    for mode in ("hooks", "ghost"):
        (model, optimizer, criterion, _), x, y = make_varied(device=device, grad_sample_mode=mode)
        step(model, optimizer, criterion, x, y)
        results.append(grads(model))
    flat, layered = results
    assert flat.abs().max() > 0.1
    exact = samples_at_once > 400 and device == "cpu"
    assert (flat - layered).abs().max() <= (0 if exact else 24 * 2.0**-29)


def test_a_loss_stays_secure_in_arithmetic(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without clipping, 1.5 times the loss has 1.5 times the gradient."""
    monkeypatch.setattr(GaussianMechanism, "release", lambda _self, value, _rng=None: value)
    results = []
    changes: list[Callable[[Any], Any]] = [
        lambda loss: loss,
        lambda loss: -(1 - (loss / 2 + 3) * 2) + 0.5 * loss,
    ]
    for change in changes:
        (model, optimizer, criterion, _), x, y = make_varied(grad_sample_mode="ghost", bound=1e3)
        changed_loss = change(criterion(model(x), y))
        assert type(changed_loss) is opacus_internals.ClippedLoss
        changed_loss.backward()
        optimizer.step()
        results.append(grads(model))
    assert (1.5 * results[0] - results[1]).abs().max() < 60 * 2.0**-20
    methods = inspect.getmembers(opacus_internals.ClippedLoss.__mro__[1], inspect.isfunction)
    operators = {name for name, _ in methods if name.startswith("__")}
    assert operators - {"__init__", "__repr__", "__str__"} <= set(
        vars(opacus_internals.ClippedLoss)
    )


def test_a_layer_whose_gradients_differ_when_made_twice_is_refused() -> None:
    (model, optimizer, criterion, _), x, y = make_varied(grad_sample_mode="ghost")
    samplers = type(model).GRAD_SAMPLERS
    sampler = samplers[torch.nn.LayerNorm]
    calls = itertools.count()

    def drifting_sampler(*arguments: Any) -> Any:
        shift = 2.0**-40 * next(calls)
        return {p: g + shift for p, g in sampler(*arguments).items()}

    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(samplers, torch.nn.LayerNorm, drifting_sampler)
        optimizer.zero_grad()
        loss = criterion(model(x), y)
        with pytest.raises(ArgumentError, match="computed twice"):
            loss.backward()
        with pytest.raises(ArgumentError, match="There are no gradients"):
            optimizer.step()


def test_a_module_that_was_prepared_for_ghost_clipping_is_taken_again_and_no_other() -> None:
    model, loader = model_and_data("cpu")
    prepared, *_ = make_private(model, loader, grad_sample_mode="ghost")
    prepared_again, optimizer, criterion, _ = make_private(
        prepared, loader, grad_sample_mode="ghost"
    )
    assert prepared_again is prepared
    step(prepared_again, optimizer, criterion, *(part[:8] for part in loader.dataset.tensors))
    other, *_ = make_private(model_and_data("cpu")[0], loader)
    with pytest.raises(ArgumentError, match="prepared by other code"):
        make_private(other, loader, grad_sample_mode="ghost")


def test_shared_parameters_are_refused() -> None:
    class Tied(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = torch.nn.LayerNorm(6), torch.nn.LayerNorm(6)
            self.second.weight = self.first.weight

        def forward(self, x: Any) -> Any:
            return self.second(self.first(x))

    _, loader = model_and_data("cpu")
    model, optimizer, criterion, _ = make_private(Tied().double(), loader, grad_sample_mode="ghost")
    x, _ = loader.dataset.tensors
    with pytest.raises(ArgumentError, match="shared ones"):
        step(model, optimizer, criterion, x, torch.zeros(96, dtype=torch.int64))


def test_the_bound_of_ghost_clipping_follows_the_quantile() -> None:
    """All gradients exceed the bound: the share is 0 up to noise of 1/20, and the bound rises."""
    model, loader = model_and_data("cpu")
    options = {**MODES["ghost, adaptive"], "max_grad_norm": 0.3, "clipbound_learning_rate": 1.0}
    model, optimizer, criterion, _ = make_private(model, loader, rate=0.0, **options)
    x, y = loader.dataset.tensors
    scale = 32 / 20
    for _ in range(3):
        before = optimizer.max_grad_norm
        step(model, optimizer, criterion, 50 * x[:32], y[:32])
        # Noise of 12 deviations, 0.6, is rarer than 10^-30.
        assert 0 < optimizer.max_grad_norm / before < math.exp(1.1)
    assert optimizer._adapted_multiplier >= (1.5**-2 - (2 * scale) ** -2) ** -0.5
    assert optimizer._scale() > optimizer._adapted_multiplier * optimizer.max_grad_norm


@pytest.mark.parametrize("engine", [SecurePrivacyEngine, SecurePrivacyEngineAdaptiveClipping])
def test_counts_are_divided_by_the_size_that_is_expected(
    engine: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without noise, with 8 samples of 32 expected: a half, plus 8 halves over 32."""
    released = []

    def record_release(self: GaussianMechanism, value: Any, _rng: Any = None) -> Any:
        if isinstance(value, float):
            released.append((value, self.sensitivity))
        return value

    monkeypatch.setattr(GaussianMechanism, "release", record_release)
    model, loader = model_and_data("cpu")
    options = ADAPTIVE if engine is SecurePrivacyEngine else MODES["ghost, adaptive"]
    options = {**options, "engine": engine, "min_clipbound": 1e-3, "max_grad_norm": 4.0}
    model, optimizer, criterion, _ = make_private(model, loader, **options)
    x, y = loader.dataset.tensors
    step(model, optimizer, criterion, x[:8], y[:8])
    assert released == [(4.0, 0.5)]
    assert float(optimizer.max_grad_norm) == pytest.approx(4.0 * math.exp(-0.2 * (0.625 - 0.5)))


def test_adaptive_ghost_clipping_takes_no_parts_no_small_batches_and_no_other_mode() -> None:
    model, loader = model_and_data("cpu")
    options = MODES["ghost, adaptive"]
    model, optimizer, criterion, _ = make_private(model, loader, **options)
    x, y = (part[:32] for part in loader.dataset.tensors)
    optimizer.signal_skip_step(do_skip=True)
    step(model, optimizer, criterion, x, y)
    with pytest.raises(ArgumentError, match="whole batches"):
        step(model, optimizer, criterion, x, y)
    for wrong, words in (
        ({"noise_multiplier": 3.3}, "10 \\* noise_multiplier"),
        ({"grad_sample_mode": "hooks"}, 'grad_sample_mode must be "ghost"'),
        ({"min_clipbound": 9.0}, "max_clipbound"),
    ):
        other, loader = model_and_data("cpu")
        with pytest.raises(ArgumentError, match=words):
            make_private(other, loader, **{**options, **wrong})
