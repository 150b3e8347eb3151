"""Opacus: DP-SGD whose noise is released exactly, from secure bits, on current PyTorch.

    engine = SecurePrivacyEngine()
    model, optimizer, loader = engine.make_private(module=model, optimizer=optimizer, ...)

Modes and accountants are those of Opacus. docs/dp-sgd.md says what is exact, and what is not.
"""

import math
import warnings
from collections.abc import Callable
from typing import Any, ClassVar

from dpnoise.core.errors import ArgumentError, ArgumentTypeError, reject, scrub_traceback
from dpnoise.integrations import clipping
from dpnoise.integrations.opacus_internals import (
    GHOST_HOOKS,
    DistributedPoissonSampler,
    EngineSteps,
    PoissonSampler,
    check_unused,
    mark_used,
    secure_class,
)
from dpnoise.release.additive import GaussianMechanism

# Imported last: the modules above raise an error that says what to install.
# isort: split
import torch
from opacus import accountants, optimizers
from torch import distributed
from torch.distributed import tensor as sharded_tensors

__all__ = ["SecurePrivacyEngine", "SecurePrivacyEngineAdaptiveClipping"]


def _multiplier_with_count(multiplier: float, count_scale: float) -> float:
    """Return the noise multiplier of gradients if a count is released too, rounded up.

    This is Theorem 1 of Andrew et al. (2021).
    """
    larger = (float(multiplier) ** -2 - (2.0 * float(count_scale)) ** -2) ** -0.5
    return float(larger * (1.0 + 2.0**-49))


def _release_count(centred: float, scale: float) -> float:
    """Add noise to a centred count: the count minus half the number of samples.

    One sample changes it by 1/2.
    """
    return float(GaussianMechanism.for_scale(float(scale), sensitivity=0.5).release(centred))


class _SecureNoise:
    """Mixin for all optimizers. It comes before the class of Opacus, and replaces its noise."""

    params: list[torch.nn.Parameter]
    noise_multiplier: float
    max_grad_norm: float
    process_count = 1  # The number of processes whose sums are added.
    # Draws the batches of the loader that `make_private` returns, if they are Poisson samples.
    sampler: PoissonSampler | DistributedPoissonSampler | None = None
    _samples = 0
    _steps = 0

    @property
    def sensitivity(self) -> float:
        """The most by which a sample changes the sum of gradients, including rounding."""
        return clipping.check_clipping_bound(self.max_grad_norm) * (1.0 + clipping.EXCESS)

    def _count_samples(self, samples: int, *, is_continued: bool) -> None:
        """Count the samples of a batch, which may come in several parts."""
        self._samples = samples + (self._samples if is_continued else 0)
        clipping.check_samples(self._samples, self.process_count)

    def _multiplier(self) -> float:
        return float(self.noise_multiplier)

    def _scale(self) -> float:
        """Return the standard deviation of the noise, rounded up."""
        return math.nextafter(self._multiplier() * self.sensitivity, math.inf)

    @scrub_traceback
    def _release(self, sums: list[torch.Tensor]) -> list[torch.Tensor]:
        """Release float64 tensors, with one call for each device, and keep their shapes."""
        mechanism = GaussianMechanism.for_scale(self._scale(), sensitivity=self.sensitivity)
        released: dict[int, torch.Tensor] = {}
        for indices in clipping.indices_by_device(sums):
            flat = torch.cat([sums[index].reshape(-1) for index in indices])
            pieces = mechanism.release(flat).split([sums[index].numel() for index in indices])
            released.update(zip(indices, pieces, strict=True))
        return [released[index].reshape(total.shape) for index, total in enumerate(sums)]

    def _store_gradients(self, released: list[torch.Tensor]) -> None:
        """Store released sums where Opacus expects them."""
        for p, noisy in zip(self.params, released, strict=True):
            p.grad = noisy.to(p.dtype).view_as(p)
            mark_used(p.summed_grad)

    def add_noise(self) -> None:
        """Release the sums of all parameters at once."""
        for p in self.params:
            check_unused(p.summed_grad)
        self._store_gradients(self._release([p.summed_grad.double() for p in self.params]))

    def _add(self, p: torch.nn.Parameter, total: torch.Tensor) -> None:
        p.summed_grad = total if p.summed_grad is None else p.summed_grad + total

    def pre_step(self, closure: Callable[[], float] | None = None) -> float | None:
        """Release the gradients if the batch is complete, and delete those that are not private.

        Opacus keeps them on the parameters until `zero_grad`, and pickle saves them with a model.
        """
        if self.sampler is not None and self.sampler.batches_drawn <= self._steps:
            raise ArgumentError(
                f"Step {self._steps + 1} has no batch of the data loader that make_private "
                f"returned (drawn so far: {self.sampler.batches_drawn}). Train on that loader: "
                "the epsilon counts its batches, one for each step."
            )
        is_complete: float | None = super().pre_step(closure)  # type: ignore[misc]
        for p in self.params:
            p.grad_sample = None
        if is_complete:
            self._steps += 1
            self._samples = 0
            self._delete_sums()
        return is_complete

    def _delete_sums(self) -> None:
        for p in self.params:
            p.summed_grad = None


class _FlatClipping(_SecureNoise):
    """Clips per-sample gradients in float64, and sums them exactly."""

    grad_samples: list[torch.Tensor]

    def clip_and_accumulate(self) -> None:
        """Clip the gradients and add them to the sums."""
        gradients = self.grad_samples
        for p in self.params:
            check_unused(p.grad_sample)
        self._count_samples(len(gradients[0]), is_continued=self.params[0].summed_grad is not None)
        for p, total in zip(self.params, self._clip(gradients), strict=True):
            self._add(p, total)
            mark_used(p.grad_sample)

    def _clip(self, gradients: list[torch.Tensor]) -> list[torch.Tensor]:
        """Return the sums of gradients, clipped by the norm over all parameters."""
        return self._clip_to(self.max_grad_norm, gradients)

    def _clip_to(self, bound: float, gradients: list[torch.Tensor]) -> list[torch.Tensor]:
        factor = clipping.clipping_factors(clipping.squared_norms(gradients), bound)
        self._count_unclipped(factor)
        return clipping.clipped_sums(gradients, factor, bound)

    def _count_unclipped(self, factor: torch.Tensor) -> None:
        """Count the unclipped samples. Only adaptive clipping does this."""


class _PerLayerClipping(_FlatClipping):
    """Clips with a bound for each parameter."""

    max_grad_norms: list[float]

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        bounds = [clipping.check_clipping_bound(bound) for bound in self.max_grad_norms]
        # Rounded up. Opacus rounds it to float32, up or down.
        self.max_grad_norm = math.sqrt(math.fsum(b * b for b in bounds)) * (1.0 + 2.0**-50)

    def _clip(self, gradients: list[torch.Tensor]) -> list[torch.Tensor]:
        pairs = zip(self.max_grad_norms, gradients, strict=True)
        return [total for bound, tensor in pairs for total in self._clip_to(bound, [tensor])]


class _AdaptiveClipping(_FlatClipping):
    """Adaptive clipping. It also releases the count of unclipped gradients exactly."""

    unclipped_num_std: float
    sample_size: float
    unclipped_num: float | torch.Tensor
    expected_batch_size: int
    accumulated_iterations: int

    def _count_unclipped(self, factor: torch.Tensor) -> None:
        self.sample_size += len(factor)
        self.unclipped_num += int((factor >= 1).sum().item())

    def _multiplier(self) -> float:
        return _multiplier_with_count(self.noise_multiplier, self.unclipped_num_std)

    def add_noise(self) -> None:
        """Release the gradients, then the count.

        Opacus then divides by the expected batch size: the size of this batch is a secret.
        """
        super().add_noise()
        centred = float(self.unclipped_num) - self.sample_size / 2
        noisy = _release_count(centred, self.unclipped_num_std)
        self.sample_size = self.expected_batch_size * self.accumulated_iterations
        self.unclipped_num = torch.tensor(self.sample_size / 2 + noisy)


class _GhostClipping(_SecureNoise):
    """Ghost clipping. The backward pass of the criterion calls `clip_layers`."""

    original_optimizer: torch.optim.Optimizer
    expected_batch_size: float
    # Computes the next clipping bound from this one and the fraction of unclipped samples.
    next_bound: Callable[[float, float], float] | None = None
    _adapted_multiplier: float | None = None
    _clipped: tuple[int, dict[torch.nn.Parameter, torch.Tensor]] | None = None

    def clip_layers(self, layers: list[clipping.Layer]) -> None:
        """Clip by the norm over all parameters, and keep the sums for the next step."""
        self._clipped = None
        self.original_optimizer.zero_grad()
        ordered = self._order_layers(layers)
        tiles = clipping.layer_tile_sums(ordered)
        squares = clipping.add_tiles(*tiles)
        factor = clipping.clipping_factors(squares, self.max_grad_norm)
        if self.next_bound is not None:
            self._adapt(self.next_bound, factor)
            factor = clipping.clipping_factors(squares, self.max_grad_norm)
        sums = clipping.clipped_layer_sums(ordered, tiles, factor, self.max_grad_norm)
        self._clipped = len(factor), sums

    def _order_layers(self, layers: list[clipping.Layer]) -> list[clipping.Layer]:
        """Return the layers in the order of the parameters; raise unless each is in one layer."""
        index_of = {p: i for i, p in enumerate(self.params)}
        indices = [
            [index_of[p] for p in layer.parameters.values() if p in index_of] for layer in layers
        ]
        uses = sorted(index for of_layer in indices for index in of_layer)
        if uses != list(range(len(index_of))):
            raise ArgumentError(
                "Every parameter of the optimizer must be in one layer of the backward pass, "
                f"got {len(uses)} uses of {len(index_of)}: ghost clipping takes no shared ones."
            )
        pairs = zip(indices, layers, strict=True)
        by_first = {of_layer[0]: layer for of_layer, layer in pairs if of_layer}
        return [by_first[index] for index in sorted(by_first)]

    def _adapt(self, next_bound: Callable[[float, float], float], factor: torch.Tensor) -> None:
        """Choose the next bound from a released count of unclipped samples.

        The fraction is of the expected batch size, because the actual size is a secret.
        """
        if self._has_partial_batch():
            raise ArgumentError("Adaptive clipping needs whole batches, got one in parts.")
        size = self.expected_batch_size * self.process_count
        scale = size / 20.0  # As in Opacus.
        centred = int((factor >= 1).sum().item()) - len(factor) / 2
        fraction = 0.5 + self._release_shared_count(centred, scale) / size
        self.max_grad_norm = next_bound(self.max_grad_norm, fraction)
        self._adapted_multiplier = _multiplier_with_count(self.noise_multiplier, scale)

    def _multiplier(self) -> float:
        return self._adapted_multiplier or super()._multiplier()

    def _release_shared_count(self, centred: float, scale: float) -> float:
        """Release the centred count, summed over all processes."""
        return _release_count(centred, scale)

    def _has_partial_batch(self) -> bool:
        """Return whether a part of the current batch is summed already."""
        return any(p.summed_grad is not None for p in self.params)

    def accumulate(self) -> None:
        """Add the clipped gradients to the sums."""
        if self._clipped is None:
            raise ArgumentError("There are no gradients: call backward on the criterion's loss.")
        (samples, sums), self._clipped = self._clipped, None
        self._count_samples(samples, is_continued=self._has_partial_batch())
        for p in self.params:
            self._add(p, sums[p])


class _Distributed(_SecureNoise):
    """Mixin for distributed training: process 0 releases the numbers that all processes share."""

    rank: int
    world_size: int
    loss_reduction: str

    @property
    def process_count(self) -> int:  # type: ignore[override]
        """The number of processes whose sums are added."""
        return self.world_size

    def _release_shared_count(self, centred: float, scale: float) -> float:
        number = torch.tensor(centred, dtype=torch.float64, device=self.params[0].device)
        distributed.all_reduce(number, op=distributed.ReduceOp.SUM)
        if self.rank == 0:
            number.fill_(_release_count(float(number), scale))
        distributed.broadcast(number, src=0)
        return float(number)


class _DataParallel(_Distributed):
    """Data parallel training: sums are added exactly, then the first process releases the total.

    Opacus adds noise on the first process, and afterwards adds the other sums in floating point.
    The rounding of that addition would reveal them.
    """

    def add_noise(self) -> None:
        """Add the sums of all processes. Process 0 adds noise and sends the result to all."""
        for p in self.params:
            check_unused(p.summed_grad)
            p.summed_grad = p.summed_grad.double().contiguous()
            distributed.all_reduce(p.summed_grad, op=distributed.ReduceOp.SUM)
        if self.rank == 0:
            super().add_noise()
        else:
            self._store_gradients([torch.zeros_like(p.summed_grad) for p in self.params])
        for p in self.params:
            distributed.broadcast(p.grad, src=0)

    def reduce_gradients(self) -> None:
        """Divide by the number of processes. The sums have been added already."""
        if self.loss_reduction == "mean":
            for p in self.params:
                p.grad /= self.world_size


class _FullySharded(_Distributed, _GhostClipping):
    """FSDP: each process holds a part of every parameter, and releases the total of that part."""

    grad_state: dict[torch.nn.Parameter, dict[str, torch.Tensor]]

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        for p in self.params:
            placements = getattr(p, "placements", [sharded_tensors.Replicate()])
            if not all(placement.is_shard() for placement in placements):
                raise ArgumentError(
                    "Every parameter must be spread over all processes: where several have "
                    "the same part, each would add separate noise."
                )

    def _has_partial_batch(self) -> bool:
        return any(state["summed_grad"] is not None for state in self.grad_state.values())

    def _add(self, p: torch.nn.Parameter, total: torch.Tensor) -> None:
        """Add the sums of all processes exactly, and keep the part of this process."""
        mesh, state = p.device_mesh, self.grad_state[p]
        addends = [sharded_tensors.Partial()] * mesh.ndim
        whole = sharded_tensors.DTensor.from_local(total, mesh, addends, run_check=False)
        part, before = whole.redistribute(mesh, p.placements), state["summed_grad"]
        state["summed_grad"] = part if before is None else before + part

    def _delete_sums(self) -> None:
        for state in self.grad_state.values():
            state["summed_grad"] = None

    def add_noise(self) -> None:
        """Release the part of each sum that this process holds.

        With a mean loss, divide by the number of processes, because each averages its own samples.
        """
        sums = [self.grad_state[p]["summed_grad"] for p in self.params]
        released = self._release([total.to_local() for total in sums])
        divisor = self.world_size if self.loss_reduction == "mean" else 1
        for p, total, noisy in zip(self.params, sums, released, strict=True):
            p.grad = type(total).from_local(
                (noisy / divisor).to(p.dtype),
                total.device_mesh,
                total.placements,
                run_check=False,
                shape=total.shape,
                stride=total.stride(),
            )


class _UnsampledAccountant(accountants.IAccountant):  # type: ignore[misc]
    """Replaces the accountant if batches are not Poisson samples. It refuses to state an epsilon.

    Opacus's accountants assume Poisson samples. With other batches their epsilon can be too small.
    A checkpoint has the name of its mechanism, so that no other accountant loads it.
    """

    def __init__(self) -> None:
        self.history: list[tuple[float, float, int]] = []

    def step(self, *, noise_multiplier: float, sample_rate: float) -> None:
        """Count a step."""
        self.history.append((noise_multiplier, sample_rate, 1))

    def get_epsilon(self, delta: float, *_: Any, **__: Any) -> float:  # noqa: ARG002 - as in Opacus
        """Raise an error that says what to do."""
        raise ArgumentError(
            "No epsilon can be stated: Opacus's accountants assume Poisson sampling, and "
            "make_private was called with poisson_sampling=False. Call it with "
            "poisson_sampling=True, or with one batch of all records."
        )

    def __len__(self) -> int:
        """Return the number of steps."""
        return len(self.history)

    @classmethod
    def mechanism(cls) -> str:
        """Return the name in checkpoints."""
        return "without Poisson sampling"


def _is_accounted(options: dict[str, Any]) -> bool:
    """Return whether batches are as accountants assume: Poisson samples, or all records."""
    loader = options["data_loader"]
    return bool(
        options.get("poisson_sampling", True) or (loader.batch_size or 0) >= len(loader.dataset)
    )


class SecurePrivacyEngine(EngineSteps):
    """Opacus's PrivacyEngine with exact release of noisy gradients and sampling from secure bits.

    It has the arguments and results of `opacus.PrivacyEngine`. The noisy sum of gradients lies on a
    grid that depends only on the clipping bound and the noise multiplier. It has no seed, and
    refuses a `noise_generator` and a `noise_multiplier` of 0.

    After each step the gradients of the samples and their sum are deleted from the parameters. A
    step raises an error if the loader that `make_private` returned has drawn no batch for it, and
    `make_private_with_epsilon` does if the engine has counted steps already.

    Accountants assume Poisson sampling. With `poisson_sampling=False`, and batches of less than all
    records, `get_epsilon` and `make_private_with_epsilon` raise an error.

    In every mode, norms are computed in float64 and clipped gradients are summed without rounding.
    The noise is larger by a factor of 1 + 2^-47, which covers the rounding of norms. Ghost clipping
    (`grad_sample_mode` "ghost" or "ghost_fsdp") computes per-sample gradients for one layer at a
    time.

    Parameters
    ----------
    accountant
        "prv", "rdp" or "gdp", as in Opacus.
    secure_mode
        Only True: noise and batches are always from secure bits.

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

    _secure_optimizers: ClassVar = {
        opacus_class: secure_class(opacus_class, *ours)
        for opacus_class, ours in {
            optimizers.DPOptimizer: (_FlatClipping,),
            optimizers.DPPerLayerOptimizer: (_PerLayerClipping,),
            optimizers.AdaClipDPOptimizer: (_AdaptiveClipping,),
            optimizers.DPOptimizerFastGradientClipping: (_GhostClipping,),
            optimizers.DistributedDPOptimizer: (_DataParallel, _FlatClipping),
            optimizers.SimpleDistributedPerLayerOptimizer: (_DataParallel, _PerLayerClipping),
            optimizers.DistributedDPOptimizerFastGradientClipping: (_DataParallel, _GhostClipping),
            optimizers.FSDPOptimizerFastGradientClipping: (_FullySharded,),
        }.items()
    }

    def __init__(self, *, accountant: str = "prv", secure_mode: bool = True) -> None:
        if secure_mode is not True:
            reject("secure_mode", secure_mode, "be True: noise is always from secure bits")
        # Opacus's constructor would require torchcsprng, or warn of its insecure generator.
        self.accountant = accountants.create_accountant(mechanism=accountant)
        self.secure_mode = True
        self.secure_rng = None
        self.dataset = None

    def make_private(self, **options: Any) -> tuple[Any, ...]:
        """Return module, optimizer, (criterion,) and data loader, as Opacus does."""
        if options.get("noise_generator") is not None:
            raise ArgumentTypeError("noise_generator is not supported: the noise has no seed.")
        multiplier = options.get("noise_multiplier")
        if multiplier is not None and not 0 < multiplier < math.inf:
            reject("noise_multiplier", multiplier, "be greater than 0 and finite")
        norm = options.get("max_grad_norm")
        for bound in norm if isinstance(norm, list) else [] if norm is None else [norm]:
            clipping.check_clipping_bound(bound)
        if options.get("grad_sample_mode") == "ghost_tp":
            raise ArgumentError(
                "grad_sample_mode must not be ghost_tp: Opacus has no optimizer for it."
            )
        if not _is_accounted(options):
            self.accountant = _UnsampledAccountant()
        prepared: tuple[Any, ...] = super().make_private(**options)
        if options.get("poisson_sampling", True):
            prepared[1].sampler = prepared[-1].batch_sampler
        return prepared

    def make_private_with_epsilon(self, **options: Any) -> tuple[Any, ...]:
        """Return what `make_private` does, with the noise multiplier for `target_epsilon`."""
        is_unsampled = isinstance(self.accountant, _UnsampledAccountant)
        if is_unsampled or not _is_accounted(options):
            raise ArgumentError(
                "make_private_with_epsilon needs Poisson sampling: poisson_sampling must be True, "
                "or one batch must have all records."
            )
        if len(self.accountant):
            raise ArgumentError(
                "make_private_with_epsilon needs an engine that has spent nothing, and this one "
                f"has counted steps (number: {len(self.accountant)}). To resume a training, call "
                "it before load_checkpoint. To train more, call make_private with a "
                "noise_multiplier. For other data, make a new engine."
            )
        prepared: tuple[Any, ...] = super().make_private_with_epsilon(**options)
        return prepared

    def load_checkpoint(self, *, optimizer: Any = None, **options: Any) -> dict[str, Any]:
        """Restore what `save_checkpoint` saved; warn if later steps have other noise."""
        loaded: dict[str, Any] = super().load_checkpoint(optimizer=optimizer, **options)
        before = self.accountant.history[-1][0] if self.accountant.history else None
        now = getattr(optimizer, "noise_multiplier", before)
        if before is not None and now != before:
            warnings.warn(
                f"The checkpoint was trained with noise_multiplier {before:.6g}, and the optimizer "
                f"has {now:.6g}. get_epsilon counts each step with its own noise, so a "
                "target_epsilon no longer holds. To continue as before, give make_private_with_"
                "epsilon the arguments of the first run.",
                stacklevel=2,
            )
        return loaded

    def get_epsilon(self, delta: float, *arguments: Any, **options: Any) -> float:
        """Return the epsilon that was spent so far: 0 before the first step."""
        if not isinstance(self.accountant, _UnsampledAccountant) and not len(self.accountant):
            return 0.0
        return float(super().get_epsilon(delta, *arguments, **options))


class SecurePrivacyEngineAdaptiveClipping(SecurePrivacyEngine):
    """Opacus's PrivacyEngineAdaptiveClipping, made secure: ghost clipping with an adaptive bound.

    `make_private` also takes `target_unclipped_quantile`, `min_clipbound`, `max_clipbound` and
    `clipbound_learning_rate`, and accepts only ghost clipping. The bound follows a count, which is
    released exactly and divided by the expected batch size, which is public.
    """

    def make_private(self, **options: Any) -> tuple[Any, ...]:
        """Return module, optimizer, criterion and data loader, as Opacus does."""
        if options.get("grad_sample_mode", "hooks") not in GHOST_HOOKS:
            raise ArgumentError(
                'grad_sample_mode must be "ghost". For other modes use SecurePrivacyEngine with '
                'clipping="adaptive".'
            )
        return super().make_private(**options)

    def _set_up_adaptation(
        self,
        optimizer: optimizers.DPOptimizer,
        target_unclipped_quantile: float = 0.5,
        min_clipbound: float = 1,
        max_clipbound: float = 1e8,
        clipbound_learning_rate: float = 0.2,
        **_: float,
    ) -> None:
        smallest, largest = map(clipping.check_clipping_bound, (min_clipbound, max_clipbound))
        if smallest > largest:
            reject("min_clipbound", min_clipbound, f"be at most max_clipbound={max_clipbound}")
        size = optimizer.expected_batch_size * optimizer.process_count
        # The count is released with scale size / 20, and twice that must exceed the multiplier.
        if size <= 10 * optimizer.noise_multiplier:
            raise ArgumentError(
                "Batches must have more than 10 * noise_multiplier samples with adaptive "
                f"clipping, got {size:g}."
            )

        def next_bound(bound: float, fraction: float) -> float:
            excess = fraction - float(target_unclipped_quantile)
            adapted = float(bound) * math.exp(-float(clipbound_learning_rate) * excess)
            return min(max(adapted, smallest), largest)

        optimizer.next_bound = next_bound
