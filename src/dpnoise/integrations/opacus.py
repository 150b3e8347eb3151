"""Opacus: DP-SGD whose noise is released exactly, from secure bits, on current PyTorch.

    engine = SecurePrivacyEngine()
    model, optimizer, loader = engine.make_private(module=model, optimizer=optimizer, ...)

Clipping, modes and accountants are Opacus's. docs/dp-sgd.md says what is exact, and what is not.
"""

import math
from collections import defaultdict
from dataclasses import dataclass
from typing import Any, Final

from dpnoise.core.errors import ArgumentError, ArgumentTypeError, forgetful, import_extra, reject
from dpnoise.integrations import clipping, ghost, sampling
from dpnoise.release.additive import GaussianMechanism

torch = import_extra("torch", "torch")
opacus = import_extra("opacus", "opacus")
_grad_sample = import_extra("opacus.grad_sample", "opacus")
_accountants = import_extra("opacus.accountants", "opacus")
_optimizers = import_extra("opacus.optimizers", "opacus")
_processed = import_extra("opacus.optimizers.optimizer", "opacus")

_tensors = import_extra("torch.distributed.tensor", "torch")

__all__ = ["SecurePrivacyEngine", "SecurePrivacyEngineAdaptiveClipping"]


_WHOLE: Final = _tensors.Replicate()


def _mechanism(scale: float, sensitivity: float) -> GaussianMechanism:
    return GaussianMechanism.for_scale(scale, sensitivity=sensitivity)


def _part_of_the_gradients(multiplier: float, count_scale: float) -> float:
    """Return the multiplier that gradients get beside a count: Theorem 1 of Andrew et al. (2021).

    It is rounded up.
    """
    part = (float(multiplier) ** -2 - (2.0 * float(count_scale)) ** -2) ** -0.5
    return float(part * (1.0 + 2.0**-49))


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
    _samples = 0

    @property
    def processes(self) -> int:
        """How many sums are added."""
        return 1

    @property
    def sensitivity(self) -> float:
        """How far a sample can move the sum of gradients: the bound, and what rounding may add."""
        return clipping.check_bound(self.max_grad_norm) * (1.0 + clipping.EXCESS)

    def _count(self, samples: int, *, more: bool) -> None:
        """Count the samples of a batch, which may come in several parts."""
        self._samples = samples + (self._samples if more else 0)
        clipping.check_samples(self._samples, self.processes)

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
        self._count(len(gradients[0]), more=self.params[0].summed_grad is not None)

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
    sample_size: float
    unclipped_num: Any
    expected_batch_size: int
    accumulated_iterations: int

    def _note(self, factor: Any) -> None:
        self.sample_size += len(factor)
        self.unclipped_num += int((factor >= 1).sum().item())

    def _multiplier(self) -> float:
        return _part_of_the_gradients(self.noise_multiplier, self.unclipped_num_std)

    def add_noise(self) -> None:
        """Release the gradients, then the count, less half a sample for each that is there.

        A sample moves that by a half. What Opacus divides by is then the size of batch that is
        expected: the size of this one is a secret.
        """
        super().add_noise()
        centred = float(self.unclipped_num) - self.sample_size / 2
        noisy = _mechanism(float(self.unclipped_num_std), 0.5).release(centred)
        self.sample_size = self.expected_batch_size * self.accumulated_iterations
        self.unclipped_num = torch.tensor(self.sample_size / 2 + noisy)


@dataclass(frozen=True)
class _Adaptation:
    """How ghost clipping's bound follows a quantile of the norms."""

    target_unclipped_quantile: float
    min_clipbound: float
    max_clipbound: float
    clipbound_learning_rate: float

    def __call__(self, bound: float, fraction: float) -> float:
        """Return the next bound, when a fraction of the norms were within this one."""
        excess = fraction - self.target_unclipped_quantile
        wanted = bound * math.exp(-self.clipbound_learning_rate * excess)
        return min(max(wanted, self.min_clipbound), self.max_clipbound)


class _Ghost(_SecureNoise):
    """Ghost clipping: the criterion's backward pass hands over what it kept of the layers."""

    original_optimizer: Any
    expected_batch_size: float
    adaptation: _Adaptation | None = None
    _clipped: tuple[int, dict[Any, Any]] | None = None

    def clip_layers(self, layers: list[ghost.Layer]) -> None:
        """Clip by the norm of all parameters together, and keep the sums for the next step."""
        self._clipped = None
        self.original_optimizer.zero_grad()
        mine = self._mine(layers)
        tiles = ghost.tile_sums(mine)
        squares = clipping.folded(torch.cat([each.to(tiles[0].device) for each in tiles], dim=1))
        bound = clipping.check_bound(self.max_grad_norm)
        factor = clipping.factors(squares, bound)
        if self.adaptation is not None:
            self._adapt(self.adaptation, factor, bound)
            bound = clipping.check_bound(self.max_grad_norm)
            factor = clipping.factors(squares, bound)
        self._clipped = len(factor), ghost.clipped_sums(mine, tiles, factor, bound)

    def _mine(self, layers: list[ghost.Layer]) -> list[ghost.Layer]:
        """Return the layers in the order of the parameters, each of which must be in one."""
        place = {p: i for i, p in enumerate(self.params)}
        places = [[place[p] for p in each.parameters.values() if p in place] for each in layers]
        found = sorted(i for some in places for i in some)
        if found != list(range(len(place))):
            raise ArgumentError(
                "Expected every parameter of the optimizer in one layer of the backward pass, "
                f"got {len(found)} uses of {len(place)}: ghost clipping takes no shared ones."
            )
        mine = [(some[0], each) for some, each in zip(places, layers, strict=True) if some]
        return [each for _, each in sorted(mine, key=lambda one: one[0])]

    def _adapt(self, adaptation: _Adaptation, factor: Any, bound: float) -> None:
        """Choose another bound, from a released count of those that were not clipped.

        As in `_Adapts`, less a half for each sample, of which there are as many as expected.
        """
        if self._is_started():
            raise ArgumentError("Expected whole batches with adaptive clipping, got one in parts.")
        size = self.expected_batch_size * self.processes
        scale = size / 20.0  # As Opacus has it.
        centred = int((factor >= 1).sum().item()) - len(factor) / 2
        fraction = 0.5 + self._released(centred, scale) / size
        self.max_grad_norm = adaptation(bound, fraction)
        self._adjusted_noise_multiplier = _part_of_the_gradients(self.noise_multiplier, scale)

    def _released(self, centred: float, scale: float) -> float:
        return float(_mechanism(scale, 0.5).release(centred))

    def _is_started(self) -> bool:
        return any(p.summed_grad is not None for p in self.params)

    def accumulate(self) -> None:
        """Add what was clipped to the sums."""
        if self._clipped is None:
            raise ArgumentError("Expected gradients: call backward on the criterion's loss.")
        (samples, sums), self._clipped = self._clipped, None
        self._count(samples, more=self._is_started())
        for p in self.params:
            self._add(p, sums[p])

    def _add(self, p: Any, total: Any) -> None:
        p.summed_grad = total if p.summed_grad is None else p.summed_grad + total


class _OneOfSeveral:
    """One of several processes, which agree on what is released once."""

    rank: int
    world_size: int
    params: list[Any]
    loss_reduction: str

    @property
    def processes(self) -> int:
        """How many sums are added."""
        return self.world_size

    def _released(self, centred: float, scale: float) -> float:
        distributed = torch.distributed
        number = torch.tensor(centred, dtype=torch.float64, device=self.params[0].device)
        distributed.all_reduce(number, op=distributed.ReduceOp.SUM)
        if self.rank == 0:
            number.fill_(super()._released(float(number), scale))  # type: ignore[misc]
        distributed.broadcast(number, src=0)
        return float(number)


class _Together(_OneOfSeveral):
    """Several processes: sums are added, exactly, before the first one releases them for all.

    Opacus adds noise on the first process and other sums to it, in floats, afterwards; that is the
    addition whose rounding tells of them.
    """

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


class _Sharded(_OneOfSeveral, _Ghost):
    """FSDP: each process has its part of every parameter, and releases the sum of all for it."""

    grad_state: dict[Any, dict[str, Any]]

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        for p in self.params:
            if not all(each.is_shard() for each in getattr(p, "placements", [_WHOLE])):
                raise ArgumentError(
                    "Expected every parameter to be spread over all processes: where several have "
                    "the same part, each would add noise of its own."
                )

    def _is_started(self) -> bool:
        return any(state["summed_grad"] is not None for state in self.grad_state.values())

    def _add(self, p: Any, total: Any) -> None:
        """Add the sums of all processes, exactly, and keep the part that is here."""
        mesh, state = p.device_mesh, self.grad_state[p]
        addends = [_tensors.Partial()] * mesh.ndim
        whole = _tensors.DTensor.from_local(total, mesh, addends, run_check=False)
        part, before = whole.redistribute(mesh, p.placements), state["summed_grad"]
        state["summed_grad"] = part if before is None else before + part

    def add_noise(self) -> None:
        """Release the parts that are here; a mean is over the processes, too."""
        sums = [self.grad_state[p]["summed_grad"] for p in self.params]
        parts = [each.to_local() for each in sums]
        released = _release_together(parts, self._scale(), self.sensitivity)
        divisor = self.world_size if self.loss_reduction == "mean" else 1
        for p, total, noisy in zip(self.params, sums, released, strict=True):
            local = (noisy / divisor).to(p.dtype)
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

    In every mode norms are taken in float64 and clipped gradients are summed without rounding; the
    noise is larger by what rounding may add to a norm, a part of 2^-47. With ghost clipping
    (`grad_sample_mode` "ghost" or "ghost_fsdp") per-sample gradients are made of one layer at a
    time.

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
        if options.get("grad_sample_mode") == "ghost_tp":
            raise ArgumentError(
                "Expected a grad_sample_mode other than ghost_tp: Opacus has no optimizer for it."
            )
        return super().make_private(**options)

    def _prepare_model(self, module: Any, **options: Any) -> Any:
        mode = options.pop("grad_sample_mode", "hooks")
        if mode not in ghost.KINDS:
            return super()._prepare_model(module, grad_sample_mode=mode, **options)
        kind = ghost.KINDS[mode][0 if options.pop("wrap_model", True) else 1]
        if isinstance(module, _grad_sample.AbstractGradSampleModule):
            as_before = getattr(module, "batch_first", True) == options.get("batch_first", True)
            if type(module) is kind and as_before:
                return module
            raise ArgumentError("Expected a module that nobody else has prepared.")
        self.validate(module=module, optimizer=None, data_loader=None)
        return kind(module, **options)

    def _prepare_criterion(
        self, *, module: Any, optimizer: Any, criterion: Any, loss_reduction: str, **_: Any
    ) -> Any:
        return ghost.Criterion(module, optimizer, criterion, loss_reduction)

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


class SecurePrivacyEngineAdaptiveClipping(SecurePrivacyEngine):
    """The same for Opacus's PrivacyEngineAdaptiveClipping: ghost clipping with a bound that adapts.

    `make_private` takes `target_unclipped_quantile`, `min_clipbound`, `max_clipbound` and
    `clipbound_learning_rate` as well, and only ghost clipping. The count that the bound follows is
    released exactly, and divided by the size of batch that is expected, which is public.
    """

    def make_private(self, **options: Any) -> Any:
        """Return module, optimizer, criterion and data loader, as Opacus does."""
        if options.get("grad_sample_mode", "hooks") not in ghost.KINDS:
            raise ArgumentError(
                'Expected grad_sample_mode="ghost": other modes have clipping="adaptive".'
            )
        return super().make_private(**options)

    def _prepare_criterion(
        self,
        *,
        optimizer: Any,
        target_unclipped_quantile: float = 0.5,
        min_clipbound: float = 1,
        max_clipbound: float = 1e8,
        clipbound_learning_rate: float = 0.2,
        **options: Any,
    ) -> Any:
        least = clipping.check_bound(min_clipbound)
        if least > clipping.check_bound(max_clipbound):
            reject("min_clipbound", min_clipbound, f"to be at most max_clipbound={max_clipbound}")
        size = optimizer.expected_batch_size * optimizer.processes
        if size <= 10 * optimizer.noise_multiplier:
            raise ArgumentError(
                "Expected batches of more than 10 * noise_multiplier samples with adaptive "
                f"clipping, got {size:g}."
            )
        optimizer.adaptation = _Adaptation(
            float(target_unclipped_quantile),
            least,
            float(max_clipbound),
            float(clipbound_learning_rate),
        )
        return super()._prepare_criterion(optimizer=optimizer, **options)
