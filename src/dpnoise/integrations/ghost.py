"""Ghost clipping without its rounding: per-sample gradients of one layer at a time.

Opacus takes norms from products of activations, and lets a second backward pass make the sum of
clipped gradients, both in the model's format, where no rigorous bound on rounding is small. Here
the one backward pass keeps of every layer what went in and the gradient of what came out. From
these a layer's per-sample gradients are made twice, some samples at a time: once for the norms,
and, when all norms are known, for the clipped sums. Both are those of `clipping`.
"""

import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

from dpnoise.core.errors import ArgumentError, import_extra
from dpnoise.integrations import clipping

torch = import_extra("torch", "torch")
_grad_sample = import_extra("opacus.grad_sample", "opacus")
_functorch = import_extra("opacus.grad_sample.functorch", "opacus")
_losses = import_extra("opacus.utils.fast_gradient_clipping_utils", "opacus")

_SHARDED: Final = _grad_sample.GradSampleHooksFastGradientClippingFSDP
_AT_ONCE: Final = 2**26  # Numbers of per-sample gradients that are in memory together.

Part = Callable[[int, int], Mapping[str, Any]]  # From a run of samples to gradients by name.


@dataclass(frozen=True, eq=False)
class Layer:
    """A layer that can be trained, and for each time it was used how to make its gradients."""

    module: Any
    samples: int
    uses: list[Part]

    @cached_property
    def parameters(self) -> dict[str, Any]:
        """Its trainable parameters by name, as the optimizer has them after the backward pass."""
        return {name: p for name, p in self.module.named_parameters() if p.requires_grad}

    def runs(self) -> Iterator[tuple[int, int]]:
        """Yield runs of samples whose gradients are in memory together."""
        numbers = sum(p.numel() for p in self.parameters.values())
        each = max(1, _AT_ONCE // max(1, numbers))
        for first in range(0, self.samples, each):
            yield first, min(first + each, self.samples)

    def gradients(self, first: int, last: int) -> list[Any]:
        """Return the per-sample gradients of a run of samples, in the order of the parameters."""
        total: dict[str, Any] = {}
        for part in self.uses:
            for name, more in part(first, last).items():
                # Of sequences that are packed, the last steps have fewer samples.
                missing = last - first - len(more)
                whole = (
                    torch.cat([more, more.new_zeros((missing, *more.shape[1:]))])
                    if missing
                    else more
                )
                total[name] = total[name] + whole if name in total else whole
        return [total[name] for name in self.parameters]

    def zeros(self) -> list[Any]:
        """Return a sum of no gradients."""
        kind = {"dtype": torch.float64}
        return [torch.zeros(p.shape, device=p.device, **kind) for p in self.parameters.values()]


class KeepsLayers:
    """What comes before Opacus's hooks: they keep what gradients are made of, and make none."""

    GRAD_SAMPLERS: dict[Any, Any]
    force_functorch: bool
    hooks_enabled: bool
    kept: dict[Any, Layer]

    def add_hooks(self, **options: Any) -> None:
        """Add the hooks to all layers that can be trained."""
        self.kept = {}
        super().add_hooks(**options)  # type: ignore[misc]

    def take_layers(self) -> list[Layer]:
        """Return what the last backward pass kept, and forget it."""
        layers, self.kept = list(self.kept.values()), {}
        return layers

    def capture_backprops_hook(
        self,
        module: Any,
        _forward_input: Any,
        forward_output: Any,
        loss_reduction: str,  # noqa: ARG002 - the loss is summed, whatever is wanted later
        batch_first: bool,  # noqa: FBT001 - as Opacus calls it
    ) -> None:
        """Keep what the gradients of a layer are made of."""
        if not self.hooks_enabled:
            return
        activations, backprops = self.rearrange_grad_samples(  # type: ignore[attr-defined]
            module=module,
            backprops=forward_output[0].detach(),
            loss_reduction="sum",
            batch_first=batch_first,
        )
        samples = module.max_batch_len
        layer = self.kept.setdefault(module, Layer(module, samples, []))
        layer.uses.append(self._part(module, activations, backprops))
        self._count_down(module)
        if not module.activations and hasattr(module, "max_batch_len"):
            del module.max_batch_len

    def _part(self, module: Any, activations: list[Any], backprops: Any) -> Part:
        """Return a function that makes the gradients of some samples."""
        known = self.GRAD_SAMPLERS.get(self._get_module_type(module))  # type: ignore[attr-defined]
        sampler = known if known and not self.force_functorch else None
        # Others may be of any kind: offsets in another input, as EmbeddingBag's.
        in_rows = [len(each) for each in activations] == [len(backprops)]

        def part(first: int, last: int) -> Mapping[str, Any]:
            names = {p: name for name, p in module.named_parameters()}
            make = sampler or _functorch.ft_compute_per_sample_gradient
            if in_rows:
                inputs = [each[first:last] for each in activations]
                made = make(module, inputs, backprops[first:last])
            else:
                made = {p: g[first:last] for p, g in make(module, activations, backprops).items()}
            return {names[p]: g for p, g in made.items() if p.requires_grad}

        if sampler is None and isinstance(self, _SHARDED):
            # FSDP shows whole parameters, which functorch needs, only during the backward pass.
            made = part(0, len(backprops))
            return lambda first, last: {name: g[first:last] for name, g in made.items()}
        return part

    @staticmethod
    def _count_down(module: Any) -> None:
        """Tell Opacus's other hook that this use of the layer is done."""
        if hasattr(module, "_forward_counter"):
            module._forward_counter -= 1  # noqa: SLF001 - Opacus's own
        else:
            for p in module.parameters():
                if p.requires_grad:
                    p._forward_counter -= 1  # noqa: SLF001 - Opacus's own


def _keeping(opacus_class: Any) -> type:
    return type(f"Secure{opacus_class.__name__}", (KeepsLayers, opacus_class), {})


# By mode: what wraps a model, and what is attached to one.
KINDS: Final[dict[str, tuple[type, type]]] = {
    "ghost": (
        _keeping(_grad_sample.GradSampleModuleFastGradientClipping),
        _keeping(_grad_sample.GradSampleHooksFastGradientClipping),
    ),
    "ghost_fsdp": (
        _keeping(_grad_sample.GradSampleModuleFastGradientClippingFSDP),
        _keeping(_grad_sample.GradSampleHooksFastGradientClippingFSDP),
    ),
}


class Loss(_losses.DPTensorFastGradientClipping):  # type: ignore[misc, name-defined]
    """A loss of each sample, whose backward pass clips."""

    def backward(self) -> None:
        """Run one backward pass, and let the optimizer clip what it kept."""
        self.module.take_layers()
        # The sum, whatever is wanted later: a mean would make gradients depend on the batch's size.
        self.loss_per_sample.sum().backward()
        self.optimizer.clip_layers(self.module.take_layers())


def _of_our_kind(name: str) -> Callable[..., Loss]:
    inherited = getattr(_losses.DPTensorFastGradientClipping, name)

    def operation(self: Loss, *others: Any) -> Loss:
        made: Loss = inherited(self, *others)
        made.__class__ = Loss
        return made

    return operation


for _name in ("truediv", "mul", "rmul", "add", "radd", "sub", "rsub", "neg"):
    setattr(Loss, f"__{_name}__", _of_our_kind(f"__{_name}__"))


class Criterion(_losses.DPLossFastGradientClipping):  # type: ignore[misc, name-defined]
    """A criterion that returns such losses."""

    def __call__(self, *arguments: Any, **options: Any) -> Loss:
        """Return the loss of each sample."""
        made: Loss = super().__call__(*arguments, **options)
        made.__class__ = Loss
        return made


def tile_sums(layers: list[Layer]) -> list[Any]:
    """Return the sums of squares of the tiles of each layer's gradients."""
    with _repeatable():
        return [
            torch.cat([clipping.tile_sums(layer.gradients(*run)) for run in layer.runs()])
            if layer.samples
            else torch.zeros((0, 1), dtype=torch.float64)
            for layer in layers
        ]


def clipped_sums(
    layers: list[Layer], tiles: list[Any], factor: Any, bound: float
) -> dict[Any, Any]:
    """Return the exact sums of the clipped gradients of each parameter.

    Gradients are made anew. A clipped sum has its bound only if they are those that the norms are
    of, so that is compared.
    """
    sums: dict[Any, Any] = {}
    differing = torch.zeros((), dtype=torch.int64)
    with _repeatable():
        for layer, before in zip(layers, tiles, strict=True):
            totals = layer.zeros()
            for first, last in layer.runs():
                gradients = layer.gradients(first, last)
                again = clipping.tile_sums(gradients)
                differing = differing.to(again.device) + (again != before[first:last]).sum()
                parts = clipping.clipped_sums(gradients, factor[first:last], bound)
                for total, more in zip(totals, parts, strict=True):
                    total.add_(more)
            sums.update(zip(layer.parameters.values(), totals, strict=True))
    if int(differing):
        raise ArgumentError(
            "Expected the same gradients when they are made twice: "
            "call torch.use_deterministic_algorithms(True)."
        )
    return sums


@contextmanager
def _repeatable() -> Iterator[None]:
    """Let PyTorch take operations that make the same of the same, where it has them."""
    settings = torch.utils.deterministic
    before = torch.are_deterministic_algorithms_enabled()
    warned = torch.is_deterministic_algorithms_warn_only_enabled()
    filled = settings.fill_uninitialized_memory
    torch.use_deterministic_algorithms(mode=True, warn_only=warned or not before)
    settings.fill_uninitialized_memory = False
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*deterministic")
            yield
    finally:
        torch.use_deterministic_algorithms(before, warn_only=warned)
        settings.fill_uninitialized_memory = filled
