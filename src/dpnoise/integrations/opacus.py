"""Opacus: DP-SGD whose noise is released exactly, from secure bits, on current PyTorch.

    engine = SecurePrivacyEngine()
    model, optimizer, loader = engine.make_private(module=model, optimizer=optimizer, ...)

Clipping, modes and accountants are Opacus's. docs/dp-sgd.md says what is exact, and what is not.
"""

import math
import warnings
from collections import defaultdict
from typing import Any, Final

from dpnoise.errors import ArgumentError, ArgumentTypeError, forgetful, import_extra, reject
from dpnoise.integrations import clipping, sampling
from dpnoise.release.additive import GaussianMechanism

torch = import_extra("torch", "torch")
opacus = import_extra("opacus", "opacus")
_accountants = import_extra("opacus.accountants", "opacus")
_optimizers = import_extra("opacus.optimizers", "opacus")
_processed = import_extra("opacus.optimizers.optimizer", "opacus")

__all__ = ["SecurePrivacyEngine"]


def _mechanism(scale: float, sensitivity: float) -> GaussianMechanism:
    return GaussianMechanism.for_scale(scale, sensitivity=sensitivity)


@forgetful
def _release_together(sums: list[Any], scale: float, sensitivity: float) -> list[Any]:
    """Release tensors of float64 in one call for each device, and return them in their shapes."""
    mechanism = _mechanism(scale, sensitivity)
    by_device = defaultdict(list)
    for place, each in enumerate(sums):
        by_device[each.device].append(place)
    released: list[Any] = [None] * len(sums)
    for places in by_device.values():
        flat = torch.cat([sums[place].reshape(-1) for place in places])
        parts = mechanism.release(flat).split([sums[place].numel() for place in places])
        for place, part in zip(places, parts, strict=True):
            released[place] = part.reshape(sums[place].shape)
    return released


class _SecureNoise:
    """What the optimizers share. It comes before Opacus's own class, whose noise is never drawn."""

    params: list[Any]
    noise_multiplier: float
    max_grad_norm: Any
    clips_exactly = True

    @property
    def sensitivity(self) -> float:
        """How far a sample can move the sum of gradients: the bound, and what rounding may add."""
        bound = clipping.check_bound(self.max_grad_norm)
        return bound * (1.0 + clipping.EXCESS) if self.clips_exactly else bound

    def _multiplier(self) -> float:
        return float(getattr(self, "_adjusted_noise_multiplier", self.noise_multiplier))

    def _scale(self) -> float:
        """Return the standard deviation of the noise, rounded up."""
        return math.nextafter(self._multiplier() * self.sensitivity, math.inf)

    def _summed(self) -> list[Any]:
        for p in self.params:
            _processed._check_processed_flag(p.summed_grad)  # noqa: SLF001 - Opacus's own check
        return [p.summed_grad.double() for p in self.params]

    def _place(self, released: list[Any]) -> None:
        for p, noisy in zip(self.params, released, strict=True):
            p.grad = noisy.to(p.dtype).view_as(p)
            _processed._mark_as_processed(p.summed_grad)  # noqa: SLF001 - Opacus's own mark

    def add_noise(self) -> None:
        """Release the sums of all parameters at once, and put them where Opacus expects them."""
        self._place(_release_together(self._summed(), self._scale(), self.sensitivity))


class _ClipsInDouble(_SecureNoise):
    """Clips per-sample gradients in float64, and sums them exactly."""

    processes = 1
    grad_samples: list[Any]

    def clip_and_accumulate(self) -> None:
        """Clip by the norm of all parameters together, and add to the sums."""
        gradients = self.grad_samples
        self._check(gradients)
        bound = clipping.check_bound(self.max_grad_norm)
        factor = clipping.factors(clipping.squared_norms(gradients), bound)
        self._note(factor)
        sums = clipping.clipped_sums(gradients, factor, bound)
        for p, total in zip(self.params, sums, strict=True):
            self._add(p, total)

    def _check(self, gradients: list[Any]) -> None:
        for p in self.params:
            _processed._check_processed_flag(p.grad_sample)  # noqa: SLF001 - Opacus's own check
        self._samples = len(gradients[0]) + (
            self._samples if self.params[0].summed_grad is not None else 0
        )
        clipping.check_samples(self._samples, self.processes)

    _samples = 0

    def _note(self, factor: Any) -> None:
        """Take note of the factors; adaptive clipping counts them."""

    @staticmethod
    def _add(p: Any, total: Any) -> None:
        p.summed_grad = total if p.summed_grad is None else p.summed_grad + total
        _processed._mark_as_processed(p.grad_sample)  # noqa: SLF001 - Opacus's own mark


class _ClipsLayers(_ClipsInDouble):
    """The same with a bound for each parameter."""

    max_grad_norms: list[Any]

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        bounds = [clipping.check_bound(bound) for bound in self.max_grad_norms]
        # Opacus rounds it to float32, to either side.
        self.max_grad_norm = math.sqrt(math.fsum(b * b for b in bounds)) * (1.0 + 2.0**-50)

    def clip_and_accumulate(self) -> None:
        """Clip each parameter's gradient by its own norm, and add to the sums."""
        gradients = self.grad_samples
        self._check(gradients)
        for p, g, given in zip(self.params, gradients, self.max_grad_norms, strict=True):
            bound = clipping.check_bound(given)
            factor = clipping.factors(clipping.squared_norms([g]), bound)
            self._add(p, clipping.clipped_sums([g], factor, bound)[0])


class _Adapts(_ClipsInDouble):
    """Adaptive clipping: the count of gradients that were not clipped is released exactly too."""

    unclipped_num_std: float
    sample_size: int
    unclipped_num: Any

    def _note(self, factor: Any) -> None:
        self.sample_size += len(factor)
        self.unclipped_num += int((factor >= 1).sum().item())

    def _multiplier(self) -> float:
        """Return the part that the gradients get: Theorem 1 of Andrew et al. (2021)."""
        return float((self.noise_multiplier**-2 - (2 * self.unclipped_num_std) ** -2) ** -0.5)

    def add_noise(self) -> None:
        """Release the gradients, then the count, whose noise is that of a number moving by 1."""
        super().add_noise()
        count = _mechanism(float(self.unclipped_num_std), 1.0).release(float(self.unclipped_num))
        self.unclipped_num = torch.tensor(count)


class _Ghost(_SecureNoise):
    """Fast gradient clipping: the backward pass makes the sums, in the model's format."""

    clips_exactly = False

    def accumulate(self) -> None:
        """Add to the sums, in float64."""
        for p in self.params:
            if p.grad is None:
                raise ArgumentError("Expected gradients: call backward on the criterion's loss.")
            more = p.grad.detach().double()
            p.summed_grad = more if p.summed_grad is None else p.summed_grad + more


class _Together:
    """Several processes: sums are added, exactly, before the first one releases them for all.

    Opacus adds noise on the first process and other sums to it, in floats, afterwards; that is the
    addition whose rounding tells of them.
    """

    rank: int
    world_size: int
    params: list[Any]
    loss_reduction: str

    @property
    def processes(self) -> int:
        """How many sums are added."""
        return self.world_size

    def add_noise(self) -> None:
        """Add the sums of all processes, and take what the first one releases."""
        distributed = torch.distributed
        for p in self.params:
            _processed._check_processed_flag(p.summed_grad)  # noqa: SLF001 - Opacus's own check
            p.summed_grad = p.summed_grad.double().contiguous()
            distributed.all_reduce(p.summed_grad, op=distributed.ReduceOp.SUM)
        if self.rank == 0:
            super().add_noise()  # type: ignore[misc]
        else:
            self._place([torch.zeros_like(p.summed_grad) for p in self.params])  # type: ignore[attr-defined]
        for p in self.params:
            distributed.broadcast(p.grad, src=0)

    def reduce_gradients(self) -> None:
        """Divide by the number of processes: the sums have been added already."""
        if self.loss_reduction == "mean":
            for p in self.params:
                p.grad /= self.world_size


class _Sharded(_Ghost):
    """FSDP: each process has its part of every parameter, and releases that."""

    world_size: int
    loss_reduction: str
    grad_state: dict[Any, dict[str, Any]]

    def accumulate(self) -> None:
        """Add to the sums, in float64."""
        for p in self.params:
            more, state = p.grad.detach().to(torch.float64), self.grad_state[p]
            before = state["summed_grad"]
            state["summed_grad"] = more if before is None else before + more

    def add_noise(self) -> None:
        """Release the parts that are here; of a mean the processes have made a mean already."""
        sums = [self.grad_state[p]["summed_grad"] for p in self.params]
        parts = self.world_size if self.loss_reduction == "mean" else 1
        scale = math.nextafter(self._scale() / parts, math.inf)
        released = _release_together(
            [each.to_local() for each in sums], scale, self.sensitivity / parts
        )
        for p, total, noisy in zip(self.params, sums, released, strict=True):
            local = noisy.to(p.dtype)
            p.grad = type(total).from_local(
                local,
                total.device_mesh,
                total.placements,
                run_check=False,
                shape=total.shape,
                stride=total.stride(),
            )


def _secured(opacus_class: Any, *ours: type) -> type:
    return type(f"Secure{opacus_class.__name__}", (*ours, opacus_class), {})


_SECURED: Final[dict[Any, type]] = {
    opacus_class: _secured(opacus_class, *ours)
    for opacus_class, ours in {
        _optimizers.DPOptimizer: (_ClipsInDouble,),
        _optimizers.DPPerLayerOptimizer: (_ClipsLayers,),
        _optimizers.AdaClipDPOptimizer: (_Adapts,),
        _optimizers.DPOptimizerFastGradientClipping: (_Ghost,),
        _optimizers.DistributedDPOptimizer: (_Together, _ClipsInDouble),
        _optimizers.SimpleDistributedPerLayerOptimizer: (_Together, _ClipsLayers),
        _optimizers.DistributedDPOptimizerFastGradientClipping: (_Together, _Ghost),
        _optimizers.FSDPOptimizerFastGradientClipping: (_Sharded,),
    }.items()
}


class SecurePrivacyEngine(opacus.PrivacyEngine):  # type: ignore[misc, name-defined]
    """Opacus's PrivacyEngine, with noise that is released exactly and sampling from secure bits.

    It takes what `opacus.PrivacyEngine` takes, and returns what that returns. The noisy sum of
    gradients lies on a grid that follows from the clipping bound and the noise multiplier alone.
    There is no seed: a `noise_generator` is refused, as is a `noise_multiplier` of 0.

    With per-sample gradients (`grad_sample_mode` "hooks", "functorch" or "ew") norms are taken in
    float64 and clipped gradients are summed without rounding; the noise is larger by what rounding
    may add to a norm, 2^-53 for each parameter. With ghost clipping the backward pass makes the
    sum, in the model's format, and its rounding has no such bound: a warning says so.

    Parameters
    ----------
    accountant
        "prv", "rdp" or "gdp", as Opacus has them.

    Examples
    --------
    >>> import torch
    >>> model = torch.nn.Linear(3, 1)
    >>> data = torch.utils.data.TensorDataset(torch.randn(64, 3), torch.randn(64, 1))
    >>> model, optimizer, loader = SecurePrivacyEngine().make_private(
    ...     module=model,
    ...     optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
    ...     data_loader=torch.utils.data.DataLoader(data, batch_size=16),
    ...     noise_multiplier=1.0,
    ...     max_grad_norm=1.0,
    ... )
    >>> for x, y in loader:
    ...     optimizer.zero_grad()
    ...     torch.nn.functional.mse_loss(model(x), y).backward()
    ...     optimizer.step()
    """

    def __init__(self, *, accountant: str = "prv") -> None:
        # Not Opacus's: it would ask for torchcsprng, or warn that its generator is insecure.
        self.accountant = _accountants.create_accountant(mechanism=accountant)
        self.secure_mode = True
        self.secure_rng = None
        self.dataset = None

    def make_private(self, **options: Any) -> Any:
        """Return module, optimizer, (criterion,) and data loader, as Opacus does."""
        if options.get("noise_generator") is not None:
            raise ArgumentTypeError("Expected no noise_generator: noise has no seed here.")
        multiplier = options.get("noise_multiplier")
        if multiplier is not None and not 0 < multiplier < math.inf:
            reject("noise_multiplier", multiplier, "> 0 and finite")
        given = options.get("max_grad_norm")
        for bound in given if isinstance(given, list) else [] if given is None else [given]:
            clipping.check_bound(bound)
        if "ghost" in options.get("grad_sample_mode", "hooks"):
            warnings.warn(
                "With ghost clipping the sum of gradients is rounded in the model's format, and no "
                "bound on that is added to the sensitivity. Per-sample gradients have one.",
                stacklevel=2,
            )
        return super().make_private(**options)

    def _prepare_optimizer(
        self,
        *,
        distributed: bool = False,
        clipping: str = "flat",
        grad_sample_mode: str = "hooks",
        **options: Any,
    ) -> Any:
        chosen = _optimizers.get_optimizer_class(
            clipping=clipping, distributed=distributed, grad_sample_mode=grad_sample_mode
        )
        if chosen not in _SECURED:
            raise ArgumentError(f"Expected an optimizer of Opacus 1.6, got {chosen.__name__}.")
        options.pop("noise_generator", None)
        inner = options.pop("optimizer")
        if isinstance(inner, _optimizers.DPOptimizer):
            inner = inner.original_optimizer
        return _SECURED[chosen](optimizer=inner, generator=None, secure_mode=True, **options)

    def _prepare_data_loader(
        self, data_loader: Any, *, poisson_sampling: bool, distributed: bool, **options: Any
    ) -> Any:
        if not poisson_sampling:
            self.dataset = self.dataset or data_loader.dataset
            return sampling.with_secure_shuffling(data_loader)
        made = super()._prepare_data_loader(
            data_loader, poisson_sampling=True, distributed=distributed, **options
        )
        return sampling.with_poisson_sampling(made, distributed=distributed)
