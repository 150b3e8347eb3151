"""Every use of Opacus internals: private names, hooks, and steps of its engine.

Opacus may change these in any release. So this module refuses versions that were not tested, and no
other module uses a private name of Opacus.
"""

import copy
import math
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Final

import numpy as np

from dpnoise.core.errors import ArgumentError, MissingExtraError, import_extra
from dpnoise.integrations.clipping import GradientFunction, Layer
from dpnoise.noise.generator import Generator

if TYPE_CHECKING:
    import opacus
    import torch
    from opacus import grad_sample, optimizers
    from opacus.utils import fast_gradient_clipping_utils, uniform_sampler
    from torch.utils import data
else:
    torch = import_extra("torch", "torch")
    opacus = import_extra("opacus", "opacus")
    grad_sample, optimizers = opacus.grad_sample, opacus.optimizers
    fast_gradient_clipping_utils = opacus.utils.fast_gradient_clipping_utils
    uniform_sampler, data = opacus.utils.uniform_sampler, torch.utils.data

TESTED: Final = "1.6"  # The same version as in pyproject.toml.

_DIGITS: Final = 53


def check_version(version: str) -> None:
    """Raise unless this module was tested with a version of Opacus."""
    if not version.startswith(f"{TESTED}."):
        raise MissingExtraError(
            f"This uses private names of Opacus {TESTED}, and Opacus {version} is installed: "
            f'pip install "opacus=={TESTED}.*"'
        )


check_version(opacus.__version__)

# Opacus's check that a gradient is used only once, and its mark of used gradients.
check_unused: Final = optimizers.optimizer._check_processed_flag  # noqa: SLF001
mark_used: Final = optimizers.optimizer._mark_as_processed  # noqa: SLF001


def secure_class(opacus_class: type, *ours: type) -> type:
    """Return a subclass of an Opacus class in which our methods take precedence."""
    return type(f"Secure{opacus_class.__name__}", (*ours, opacus_class), {})


class LayerRecorder:
    """Replaces Opacus's hooks. It keeps the inputs of gradients and computes none."""

    GRAD_SAMPLERS: ClassVar[dict[type, Callable[..., Any]]]
    force_functorch: bool
    hooks_enabled: bool
    kept: dict[torch.nn.Module, Layer]

    def add_hooks(self, **options: Any) -> None:
        """Add the hooks to all trainable layers."""
        self.kept = {}
        super().add_hooks(**options)  # type: ignore[misc]

    def take_layers(self) -> list[Layer]:
        """Return the layers of the last backward pass, and forget them."""
        layers, self.kept = list(self.kept.values()), {}
        return layers

    def capture_backprops_hook(
        self,
        module: torch.nn.Module,
        _forward_input: object,
        forward_output: tuple[torch.Tensor, ...],
        loss_reduction: str,  # noqa: ARG002 - the loss is always summed
        batch_first: bool,  # noqa: FBT001 - the signature of Opacus
    ) -> None:
        """Keep the inputs from which the gradients of a layer are computed."""
        if not self.hooks_enabled:
            return
        activations, backprops = self.rearrange_grad_samples(  # type: ignore[attr-defined]
            module=module,
            backprops=forward_output[0].detach(),
            loss_reduction="sum",
            batch_first=batch_first,
        )
        layer = self.kept.setdefault(module, Layer(module, module.max_batch_len, []))
        layer.uses.append(self._gradient_function(module, activations, backprops))
        _count_down(module)
        if not module.activations and hasattr(module, "max_batch_len"):
            del module.max_batch_len

    def _gradient_function(
        self, module: torch.nn.Module, activations: list[torch.Tensor], backprops: torch.Tensor
    ) -> GradientFunction:
        """Return a function that computes the gradients of a run of samples."""
        registered = self.GRAD_SAMPLERS.get(self._get_module_type(module))  # type: ignore[attr-defined]
        sampler = registered if registered and not self.force_functorch else None
        # Other inputs may have any shape, such as the offsets of EmbeddingBag.
        has_rows = [len(each) for each in activations] == [len(backprops)]

        def compute_gradients(first: int, last: int) -> Mapping[str, torch.Tensor]:
            names = {p: name for name, p in module.named_parameters()}
            compute = sampler or grad_sample.functorch.ft_compute_per_sample_gradient
            if has_rows:
                inputs = [each[first:last] for each in activations]
                gradients = compute(module, inputs, backprops[first:last])
            else:
                every = compute(module, activations, backprops)
                gradients = {p: g[first:last] for p, g in every.items()}
            return {names[p]: g for p, g in gradients.items() if p.requires_grad}

        sharded = grad_sample.GradSampleHooksFastGradientClippingFSDP
        if sampler is None and isinstance(self, sharded):
            # functorch needs whole parameters, which FSDP has only during the backward pass.
            gradients = compute_gradients(0, len(backprops))
            return lambda first, last: {name: g[first:last] for name, g in gradients.items()}
        return compute_gradients


def _count_down(module: torch.nn.Module) -> None:
    """Decrement the counter by which Opacus's other hook knows that a use is done."""
    trainable = [p for p in module.parameters() if p.requires_grad]
    for owner in [module] if hasattr(module, "_forward_counter") else trainable:
        owner._forward_counter -= 1  # noqa: SLF001


# By mode: the class that wraps a model, and the class that attaches hooks to it.
GHOST_HOOKS: Final[dict[str, tuple[type, type]]] = {
    "ghost": (
        secure_class(grad_sample.GradSampleModuleFastGradientClipping, LayerRecorder),
        secure_class(grad_sample.GradSampleHooksFastGradientClipping, LayerRecorder),
    ),
    "ghost_fsdp": (
        secure_class(grad_sample.GradSampleModuleFastGradientClippingFSDP, LayerRecorder),
        secure_class(grad_sample.GradSampleHooksFastGradientClippingFSDP, LayerRecorder),
    ),
}


class ClippedLoss(fast_gradient_clipping_utils.DPTensorFastGradientClipping):  # type: ignore[misc]
    """The loss of each sample. Its backward pass clips gradients."""

    def backward(self) -> None:
        """Run one backward pass, and let the optimizer clip the gradients."""
        self.module.take_layers()
        # Always the sum: with a mean, gradients would depend on the batch size, which is secret.
        self.loss_per_sample.sum().backward()
        self.optimizer.clip_layers(self.module.take_layers())


def _return_our_loss(inherited: Callable[..., ClippedLoss]) -> Callable[..., ClippedLoss]:
    """Return a method of Opacus with a result of our class."""

    def operation(self: ClippedLoss, *others: Any, **options: Any) -> ClippedLoss:
        loss = inherited(self, *others, **options)
        loss.__class__ = ClippedLoss
        return loss

    return operation


for _name in ("truediv", "mul", "rmul", "add", "radd", "sub", "rsub", "neg"):
    setattr(ClippedLoss, f"__{_name}__", _return_our_loss(getattr(ClippedLoss, f"__{_name}__")))


class Criterion(fast_gradient_clipping_utils.DPLossFastGradientClipping):  # type: ignore[misc]
    """A criterion that returns a `Loss`."""

    __call__ = _return_our_loss(fast_gradient_clipping_utils.DPLossFastGradientClipping.__call__)


def choose_samples(count: int, rate: float) -> torch.Tensor:
    """Return the indices of a Poisson sample.

    Each sample is chosen with the largest multiple of 2^-53 that does not exceed `rate`.
    """
    probability = math.floor(math.ldexp(rate, _DIGITS)) * 2.0**-_DIGITS
    return torch.from_numpy(np.flatnonzero(Generator().random(size=count) < probability))


class PoissonSampler(uniform_sampler.UniformWithReplacementSampler):  # type: ignore[misc]
    """Batches of Opacus's Poisson sampling, drawn from secure bits."""

    batches_drawn = 0

    def __iter__(self) -> Iterator[list[int]]:
        """Yield the batches. Some may be empty."""
        for _ in range(self.steps):
            self.batches_drawn += 1
            yield choose_samples(self.num_samples, self.sample_rate).tolist()


class DistributedPoissonSampler(
    uniform_sampler.DistributedUniformWithReplacementSampler  # type: ignore[misc]
):
    """Poisson sampling for one of several processes, each of which has a part of the data.

    The split of the data is public. Opacus leaves out a batch that is empty on one process, so that
    the processes get out of step. This sampler yields empty batches.
    """

    batches_drawn = 0

    def __iter__(self) -> Iterator[list[int]]:
        """Yield this process's part of each batch."""
        parts = torch.arange(self.total_size)
        if self.shuffle:
            generator = torch.Generator().manual_seed(self.shuffle_seed + self.epoch)
            parts = torch.randperm(self.total_size, generator=generator)
        local = parts[self.rank : self.total_size : self.num_replicas]
        for _ in range(self.num_batches):
            self.batches_drawn += 1
            yield local[choose_samples(len(local), self.sample_rate)].tolist()


class ShuffledSampler(data.RandomSampler):  # type: ignore[misc]
    """All samples once, in an order drawn from secure bits."""

    def __iter__(self) -> Iterator[int]:
        """Yield the indices, sorted by 53 random bits each. Equal ones keep their order."""
        yield from np.argsort(Generator().random(size=len(self)), kind="stable").tolist()


def use_poisson_sampling(loader: data.DataLoader, *, distributed: bool) -> data.DataLoader:
    """Return a copy of a DPDataLoader with a sampler that draws from secure bits."""
    sampler = copy.copy(loader.batch_sampler)
    sampler.__class__ = DistributedPoissonSampler if distributed else PoissonSampler
    return _replace_batches(loader, sampler)


def use_secure_shuffling(loader: data.DataLoader) -> data.DataLoader:
    """Return the loader, shuffled by secure bits if it was shuffled."""
    batches = loader.batch_sampler
    if type(batches) is not data.BatchSampler:
        raise ArgumentError("data_loader must have a batch_size and no batch_sampler.")
    order = batches.sampler
    if type(order) is data.SequentialSampler:
        return loader
    if type(order) is not data.RandomSampler or order.replacement:
        raise ArgumentError(
            "data_loader must have shuffle=True or shuffle=False and no other sampler, "
            "because that draws from an insecure generator."
        )
    shuffled = ShuffledSampler(loader.dataset)
    return _replace_batches(
        loader, data.BatchSampler(shuffled, batches.batch_size, batches.drop_last)
    )


def _replace_batches(loader: data.DataLoader, batches: data.Sampler) -> data.DataLoader:
    """Return a copy of a loader with other batches. PyTorch has no public way to do this."""
    copied = copy.copy(loader)
    copied.__dict__["batch_sampler"] = batches
    return copied


class EngineSteps(opacus.PrivacyEngine):  # type: ignore[misc]
    """The steps of `make_private`, with secure samplers, criteria and optimizers."""

    dataset: data.Dataset | None
    _secure_optimizers: ClassVar[Mapping[type, type]]

    def _set_up_adaptation(self, optimizer: optimizers.DPOptimizer, **options: float) -> None:
        """Set up adaptive ghost clipping from the additional options of `make_private`."""

    def _prepare_model(self, module: torch.nn.Module, **options: Any) -> torch.nn.Module:
        mode = options.pop("grad_sample_mode", "hooks")
        if mode not in GHOST_HOOKS:
            return super()._prepare_model(module, grad_sample_mode=mode, **options)
        kind = GHOST_HOOKS[mode][0 if options.pop("wrap_model", True) else 1]
        if isinstance(module, grad_sample.AbstractGradSampleModule):
            is_same = getattr(module, "batch_first", True) == options.get("batch_first", True)
            if type(module) is kind and is_same:
                return module
            raise ArgumentError("The module must not be prepared by other code.")
        self.validate(module=module, optimizer=None, data_loader=None)
        return kind(module, **options)

    def _prepare_criterion(
        self,
        *,
        module: torch.nn.Module,
        optimizer: optimizers.DPOptimizer,
        criterion: torch.nn.Module,
        loss_reduction: str,
        **options: float,
    ) -> Criterion:
        self._set_up_adaptation(optimizer, **options)
        return Criterion(module, optimizer, criterion, loss_reduction)

    def _prepare_optimizer(
        self,
        *,
        optimizer: torch.optim.Optimizer,
        distributed: bool = False,
        clipping: str = "flat",
        grad_sample_mode: str = "hooks",
        **options: Any,
    ) -> optimizers.DPOptimizer:
        kind = optimizers.get_optimizer_class(
            clipping=clipping, distributed=distributed, grad_sample_mode=grad_sample_mode
        )
        if kind not in self._secure_optimizers:
            raise ArgumentError(
                f"The optimizer must be one of Opacus {TESTED}, got {kind.__name__}."
            )
        options.pop("noise_generator", None)
        if isinstance(optimizer, optimizers.DPOptimizer):
            optimizer = optimizer.original_optimizer
        secure = self._secure_optimizers[kind]
        return secure(optimizer=optimizer, generator=None, secure_mode=True, **options)

    def _prepare_data_loader(
        self,
        data_loader: data.DataLoader,
        *,
        poisson_sampling: bool,
        distributed: bool,
        **options: Any,
    ) -> data.DataLoader:
        if not poisson_sampling:
            self.dataset = self.dataset or data_loader.dataset
            return use_secure_shuffling(data_loader)
        prepared = super()._prepare_data_loader(
            data_loader, poisson_sampling=True, distributed=distributed, **options
        )
        return use_poisson_sampling(prepared, distributed=distributed)
