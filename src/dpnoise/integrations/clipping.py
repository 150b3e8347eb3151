"""Clip per-sample gradients in float64 and sum them without a rounding error.

A clipped gradient is truncated, towards zero, to multiples of a fine step. Truncation makes no norm
larger. Sums of these multiples are exact in float64, whatever their order, the device and the
number of processes. So a sample can exceed its bound only by the rounding of its norm and factor,
which `EXCESS` bounds.

The squares of a norm are added in one fixed order, in tiles. So the norm of a sample is the same to
the last bit on the processor and on a device, in every batch. Its error does not grow with the
model.

Ghost clipping computes the same norms and sums for one layer at a time. Opacus computes norms from
products of activations, and the sum of clipped gradients in a second backward pass. It computes
both in the model's format, for which no small bound on rounding errors is proved. Here a single
backward pass keeps each layer's input and the gradient of its output. From these we compute the
per-sample gradients of a layer twice, in spans of samples: once for the norms, and once for the
clipped sums.
"""

import math
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Final

from dpnoise.core.errors import ArgumentError, check_positive, reject
from dpnoise.integrations.torch import import_kernels

# Imported last: the modules above raise an error that says what to install.
# isort: split
import torch

_STEP_BITS: Final = 30  # A step is the bound times a factor between 2^-30 and 2^-29.
_MOST_SAMPLES: Final = 2**22  # The sum of this many clipped gradients is below 2^53 steps.
_MAX_CONVERTED: Final = 2**24  # Numbers to convert to float64 at a time.
_MAX_LAYER_NUMBERS: Final = 2**26  # Numbers of a layer's per-sample gradients in memory.
_MIN_BOUND: Final = 2.0**-100  # So large that underflow in its square is negligible.
_DIVISOR_OFFSET: Final = 1e-6  # Opacus adds the same number to the divisor.

# A tile is 16 rows of 1,024 numbers. Its rows are added one by one, then neighbours in pairs. The
# sums of all tiles are added in the same way, until one sum is left.
_ROWS: Final = 16
_LANES: Final = 1024

EXCESS: Final = 2.0**-47
"""A clipped gradient has a norm of at most its bound times 1 + EXCESS.

Let u = 2^-53, and let a sample have at most 2^41 numbers, so that there are three levels of tiles.
A square rounds once, and goes through 16 + 10 additions on each level: the sum is at least its
exact value times (1-u)^79. The root rounds once, the sum with 10^-6 is not below the root, the
quotient and the product round once each, and (1-u)^(-79/2-1) (1+u)^2 < 1 + 64u. The underflow of a
square is negligible compared with the smallest bound.
"""


def check_clipping_bound(bound: float) -> float:
    """Return a clipping bound as a float; raise if it is out of range."""
    size = check_positive("max_grad_norm", float(bound))
    if not _MIN_BOUND <= size <= 1 / _MIN_BOUND:
        reject("max_grad_norm", size, "be between 2^-100 and 2^100")
    return size


def check_samples(samples: int, process_count: int = 1) -> None:
    """Raise if a batch is too large for an exact sum."""
    if samples * process_count > _MOST_SAMPLES:
        raise ArgumentError(f"A batch must have at most {_MOST_SAMPLES} samples: use smaller ones.")


def step_for(bound: float) -> float:
    """Return the step for a bound, a power of two. Clipped gradients are multiples of it."""
    return math.ldexp(1.0, math.frexp(bound)[1] - _STEP_BITS)


def squared_norms(gradients: Sequence[torch.Tensor]) -> torch.Tensor:
    """Return the squared norms of per-sample gradients, in float64.

    Row i of all tensors together is the gradient of sample i.
    """
    return add_tiles(squared_tile_sums(gradients))


def squared_tile_sums(gradients: Sequence[torch.Tensor]) -> torch.Tensor:
    """Return the sum of squares of each tile, with a row for each sample."""
    flat = [_as_rows(tensor) for tensor in gradients]
    groups = indices_by_device(flat)
    sums = [
        _tile_sums_on_device([flat[index] for index in group], squares=True) for group in groups
    ]
    return torch.cat([part.to(flat[0].device) for part in sums], dim=1)


def add_tiles(*tensors: torch.Tensor) -> torch.Tensor:
    """Join the tensors by row, and add each row in tiles until one sum is left."""
    sums = torch.cat([tensor.to(tensors[0].device) for tensor in tensors], dim=1)
    while sums.shape[1] > 1:
        sums = _tile_sums_on_device([sums.contiguous()], squares=False)
    return sums.sum(1)


def clipping_factors(squares: torch.Tensor, bound: float) -> torch.Tensor:
    """Return the clipping factor of each sample from its squared norm."""
    bound, norms = check_clipping_bound(bound), squares.sqrt()
    not_finite = int((~torch.isfinite(norms)).sum().item())
    if not_finite:
        raise ArgumentError(
            f"Every gradient must be finite, got {not_finite} samples with NaN or infinity."
        )
    return (bound / (norms + _DIVISOR_OFFSET)).clamp(max=1.0)


def clipped_sums(
    gradients: Sequence[torch.Tensor], factor: torch.Tensor, bound: float
) -> list[torch.Tensor]:
    """Return the exact float64 sums of clipped gradients, truncated to multiples of the step."""
    flat, step = [_as_rows(tensor) for tensor in gradients], step_for(float(bound))
    sums: dict[int, torch.Tensor] = {}
    for group in indices_by_device(flat):
        parts = [flat[index] for index in group]
        local = factor.to(parts[0].device)
        if local.is_cuda:
            totals = import_kernels()[1].clipped_sums(parts, local, step)
        else:
            totals = [_clipped_sum(part, local / step).mul_(step) for part in parts]
        sums.update(zip(group, totals, strict=True))
    return [sums[index].reshape(tensor.shape[1:]) for index, tensor in enumerate(gradients)]


def indices_by_device(tensors: Iterable[torch.Tensor]) -> Iterable[list[int]]:
    """Return the indices of the tensors on each device, in one list per device."""
    indices = defaultdict(list)
    for index, tensor in enumerate(tensors):
        indices[tensor.device].append(index)
    return indices.values()


def _as_rows(gradients: torch.Tensor) -> torch.Tensor:
    """Return the gradients as contiguous rows, one for each sample."""
    rows = gradients.detach().reshape(len(gradients), math.prod(gradients.shape[1:]))
    return rows.contiguous()


def _tile_sums_on_device(parts: list[torch.Tensor], *, squares: bool) -> torch.Tensor:
    """Return the sums, or the sums of squares, of tiles. All rows are on one device."""
    if parts[0].is_cuda:
        _, kernels = import_kernels()
        sums: torch.Tensor = kernels.ordered_sums(parts, squares=squares)
        return sums
    by_part = [
        torch.cat([_tile_sums_of_rows(block, squares=squares) for block in _split_rows(part)])
        for part in parts
    ]
    return torch.cat(by_part, dim=1)


def _tile_sums_of_rows(rows: torch.Tensor, *, squares: bool) -> torch.Tensor:
    """Return the sums, or the sums of squares, of the tiles of each row."""
    samples, numbers = rows.shape
    # Adding zeros changes nothing, so a short row is padded only to a power of two.
    lanes = min(_LANES, 1 << max(0, numbers - 1).bit_length())
    padded = rows.new_zeros((samples, -(-numbers // lanes) * lanes), dtype=torch.float64)
    padded[:, :numbers] = rows
    padded = (padded.square_() if squares else padded).view(samples, -(-numbers // lanes), lanes)
    sums = padded[:, ::_ROWS]
    for row in range(1, min(_ROWS, padded.shape[1])):
        addends = padded[:, row::_ROWS]
        sums[:, : addends.shape[1]] += addends  # In place, because `padded` is a copy.
    while sums.shape[2] > 1:
        sums = sums[..., ::2] + sums[..., 1::2]
    return sums[..., 0]


def _clipped_sum(flat: torch.Tensor, factors_per_step: torch.Tensor) -> torch.Tensor:
    """Multiply each row by its factor over the step, truncate, and return the sum of the rows."""
    total = flat.new_zeros(flat.shape[1], dtype=torch.float64)
    first = 0
    for part in _split_rows(flat):
        # The product is float64, because `factors_per_step` is.
        total += (part * factors_per_step[first : first + len(part), None]).trunc_().sum(0)
        first += len(part)
    return total


def _split_rows(flat: torch.Tensor) -> Iterable[torch.Tensor]:
    """Return blocks of rows that are small enough to convert to float64."""
    blocks: Iterable[torch.Tensor] = flat.split(max(1, _MAX_CONVERTED // max(1, flat.shape[1])))
    return blocks


# Maps the ends of a span of samples to the gradients of each parameter, by name.
GradientFunction = Callable[[int, int], Mapping[str, "torch.Tensor"]]


@dataclass(frozen=True, eq=False)
class Layer:
    """A trainable layer. `uses` has a gradient function for each call in the forward pass."""

    module: torch.nn.Module
    samples: int
    uses: list[GradientFunction]

    @cached_property
    def parameters(self) -> dict[str, torch.nn.Parameter]:
        """The trainable parameters by name; after the backward pass, those of the optimizer."""
        return {name: p for name, p in self.module.named_parameters() if p.requires_grad}

    def sample_spans(self) -> Iterator[tuple[int, int]]:
        """Yield spans of samples with gradients that fit in memory together."""
        numbers = sum(p.numel() for p in self.parameters.values())
        size = max(1, _MAX_LAYER_NUMBERS // max(1, numbers))
        for first in range(0, self.samples, size):
            yield first, min(first + size, self.samples)

    def gradients(self, first: int, last: int) -> list[torch.Tensor]:
        """Return the per-sample gradients of a span of samples, in the order of the parameters."""
        total: dict[str, torch.Tensor] = {}
        for compute_gradients in self.uses:
            for name, gradients in compute_gradients(first, last).items():
                # The last steps of packed sequences have fewer samples.
                missing = last - first - len(gradients)
                zeros = gradients.new_zeros((missing, *gradients.shape[1:]))
                padded = torch.cat([gradients, zeros]) if missing else gradients
                total[name] = total[name] + padded if name in total else padded
        return [total[name] for name in self.parameters]


def layer_tile_sums(layers: list[Layer]) -> list[torch.Tensor]:
    """Return the sum of squares of each tile of the gradients, for each layer."""
    with _use_deterministic_algorithms():
        return [
            torch.cat([squared_tile_sums(layer.gradients(*span)) for span in layer.sample_spans()])
            if layer.samples
            else torch.zeros((0, 1), dtype=torch.float64)
            for layer in layers
        ]


def clipped_layer_sums(
    layers: list[Layer], expected_tile_sums: list[torch.Tensor], factor: torch.Tensor, bound: float
) -> dict[torch.nn.Parameter, torch.Tensor]:
    """Return the exact sums of the clipped gradients of each parameter.

    Gradients are computed a second time. The bound holds only if they equal the first ones, so
    their sums of squares are compared with `expected_tile_sums`.
    """
    sums: dict[torch.nn.Parameter, torch.Tensor] = {}
    differences = torch.zeros((), dtype=torch.int64)
    with _use_deterministic_algorithms():
        for layer, before in zip(layers, expected_tile_sums, strict=True):
            for p in layer.parameters.values():
                sums[p] = torch.zeros(p.shape, dtype=torch.float64, device=p.device)
            for first, last in layer.sample_spans():
                gradients = layer.gradients(first, last)
                repeated = squared_tile_sums(gradients)
                is_different = repeated != before[first:last]
                differences = differences.to(repeated.device) + is_different.sum()
                parts = clipped_sums(gradients, factor[first:last], bound)
                for p, part in zip(layer.parameters.values(), parts, strict=True):
                    sums[p].add_(part)
    if int(differences):
        raise ArgumentError(
            "Gradients must be the same when they are computed twice: "
            "call torch.use_deterministic_algorithms(True)."
        )
    return sums


@contextmanager
def _use_deterministic_algorithms() -> Iterator[None]:
    """Make PyTorch use deterministic algorithms where it has them."""
    settings = torch.utils.deterministic
    was_enabled = torch.are_deterministic_algorithms_enabled()
    only_warned = torch.is_deterministic_algorithms_warn_only_enabled()
    filled_memory = settings.fill_uninitialized_memory
    torch.use_deterministic_algorithms(mode=True, warn_only=only_warned or not was_enabled)
    settings.fill_uninitialized_memory = False
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*deterministic")
            yield
    finally:
        torch.use_deterministic_algorithms(was_enabled, warn_only=only_warned)
        settings.fill_uninitialized_memory = filled_memory
