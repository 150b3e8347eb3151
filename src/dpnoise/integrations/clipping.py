"""Per-sample gradients, clipped in float64 and summed without a rounding error.

A clipped gradient is cut, towards zero, to multiples of a fine step. Cutting makes no norm larger,
and sums of these multiples are exact in float64, whatever their order, the device and the number of
processes. So only the rounding of its own norm and factor, which `EXCESS` bounds, can make a sample
count for more than its bound.

The squares of a norm are added in one fixed order, in tiles. So a sample's norm is the same to the
last bit on the processor and on a device, whatever else is in the batch, and its error does not
grow with the model.

Ghost clipping takes the same norms and sums, of one layer at a time. Opacus takes norms from
products of activations, and lets a second backward pass make the sum of clipped gradients, both in
the model's format, where no rigorous bound on rounding is small. Here the one backward pass keeps
each layer's input and the gradient of its output. From these a layer's per-sample gradients are
computed twice, some samples at a time: once for the norms, and once for the clipped sums.
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

# Imported last: those above say what to install where it is missing.
# isort: split
import torch

_CUT: Final = 30  # A step is the bound times 2^-30, or up to twice that.
_MOST_SAMPLES: Final = 2**22  # Sums of this many, of at most the bound each, are below 2^53 steps.
_TOGETHER: Final = 2**24  # Numbers that are converted to float64 at a time.
_AT_ONCE: Final = 2**26  # Numbers of a layer's per-sample gradients that are in memory together.
_LEAST_BOUND: Final = 2.0**-100  # Far above what could vanish in a square.
_LITTLE: Final = 1e-6  # Opacus adds the same to the divisor.

# A tile is 16 rows of 1,024 numbers. Its rows are added one by one, then neighbours in pairs; then
# the same is done with the sums of the tiles of all tensors, until there is one.
_ROWS: Final = 16
_LANES: Final = 1024

EXCESS: Final = 2.0**-47
"""A clipped gradient has a norm of at most its bound times 1 + EXCESS.

Let u = 2^-53, and let a sample have at most 2^41 numbers, so that there are three levels of tiles.
A square rounds once, and goes through 16 + 10 additions on each level: the sum is at least its
exact value times (1-u)^79. The root rounds once, the sum with 10^-6 is not below the root, the
quotient and the product round once each, and (1-u)^(-79/2-1) (1+u)^2 < 1 + 64u. What vanishes in a
square is negligible next to the least bound.
"""


def check_bound(bound: float) -> float:
    """Return a clipping bound as a float."""
    size = check_positive("max_grad_norm", float(bound))
    if not _LEAST_BOUND <= size <= 1 / _LEAST_BOUND:
        reject("max_grad_norm", size, "be between 2^-100 and 2^100")
    return size


def check_samples(samples: int, processes: int = 1) -> None:
    """Raise if a batch is so large that its sum could not be exact."""
    if samples * processes > _MOST_SAMPLES:
        raise ArgumentError(f"A batch must have at most {_MOST_SAMPLES} samples: use smaller ones.")


def step_for(bound: float) -> float:
    """Return what clipped gradients are multiples of: a power of two, from the bound alone."""
    return math.ldexp(1.0, math.frexp(bound)[1] - _CUT)


def squared_norms(gradients: Sequence[torch.Tensor]) -> torch.Tensor:
    """Return the squares of the norms of per-sample gradients, in float64.

    A sample's gradient is in its row of each of these tensors.
    """
    return fold_tiles(tile_sums(gradients))


def tile_sums(gradients: Sequence[torch.Tensor]) -> torch.Tensor:
    """Return the sums of squares of the tiles of per-sample gradients, a row for each sample."""
    flat = [_flat(each) for each in gradients]
    groups = places_by_device(flat)
    sums = [_ordered_sums([flat[place] for place in group], squares=True) for group in groups]
    return torch.cat([each.to(flat[0].device) for each in sums], dim=1)


def fold_tiles(*parts: torch.Tensor) -> torch.Tensor:
    """Return the total of each row of all parts, added in tiles."""
    sums = torch.cat([part.to(parts[0].device) for part in parts], dim=1)
    while sums.shape[1] > 1:
        sums = _ordered_sums([sums.contiguous()], squares=False)
    return sums.sum(1)


def factors(squares: torch.Tensor, bound: float) -> torch.Tensor:
    """Return what to multiply each sample's gradient with, from the squares of the norms."""
    bound, norms = check_bound(bound), squares.sqrt()
    bad = int((~torch.isfinite(norms)).sum().item())
    if bad:
        raise ArgumentError(
            f"Every gradient must be finite, got {bad} samples with NaN or infinity."
        )
    return (bound / (norms + _LITTLE)).clamp(max=1.0)


def clipped_sums(
    gradients: Sequence[torch.Tensor], factor: torch.Tensor, bound: float
) -> list[torch.Tensor]:
    """Return the sums of the clipped gradients, cut to multiples of the step, in float64: exact."""
    flat, step = [_flat(each) for each in gradients], step_for(float(bound))
    sums: dict[int, torch.Tensor] = {}
    for group in places_by_device(flat):
        parts = [flat[place] for place in group]
        local = factor.to(parts[0].device)
        if local.is_cuda:
            totals = import_kernels()[1].clipped_sums(parts, local, step)
        else:
            totals = [_clipped_sum(part, local / step).mul_(step) for part in parts]
        sums.update(zip(group, totals, strict=True))
    return [sums[place].reshape(each.shape[1:]) for place, each in enumerate(gradients)]


def places_by_device(tensors: Iterable[torch.Tensor]) -> Iterable[list[int]]:
    """Return the places of the tensors, in a list for each device."""
    places = defaultdict(list)
    for place, each in enumerate(tensors):
        places[each.device].append(place)
    return places.values()


def _flat(gradients: torch.Tensor) -> torch.Tensor:
    """Return the gradients as rows, one after another in memory."""
    rows = gradients.detach().reshape(len(gradients), math.prod(gradients.shape[1:]))
    return rows.contiguous()


def _ordered_sums(parts: list[torch.Tensor], *, squares: bool) -> torch.Tensor:
    """Return the sums, or the sums of squares, of the tiles of rows that are on one device."""
    if parts[0].is_cuda:
        _, kernels = import_kernels()
        sums: torch.Tensor = kernels.ordered_sums(parts, squares=squares)
        return sums
    each = [
        torch.cat([_sum_tiles(run, squares=squares) for run in _split_rows(part)]) for part in parts
    ]
    return torch.cat(each, dim=1)


def _sum_tiles(rows: torch.Tensor, *, squares: bool) -> torch.Tensor:
    """Return the sums, or the sums of squares, of the tiles of each row."""
    samples, numbers = rows.shape
    # Adding a zero changes nothing, so that a short row needs no more of them than pairs do.
    lanes = min(_LANES, 1 << max(0, numbers - 1).bit_length())
    padded = rows.new_zeros((samples, -(-numbers // lanes) * lanes), dtype=torch.float64)
    padded[:, :numbers] = rows
    padded = (padded.square_() if squares else padded).view(samples, -(-numbers // lanes), lanes)
    sums = padded[:, ::_ROWS]
    for row in range(1, min(_ROWS, padded.shape[1])):
        more = padded[:, row::_ROWS]
        sums[:, : more.shape[1]] += more  # In place: the rows have a copy here.
    while sums.shape[2] > 1:
        sums = sums[..., ::2] + sums[..., 1::2]
    return sums[..., 0]


def _clipped_sum(flat: torch.Tensor, steps: torch.Tensor) -> torch.Tensor:
    """Return the sum of the rows times their `steps`, each cut to an integer."""
    total = flat.new_zeros(flat.shape[1], dtype=torch.float64)
    first = 0
    for part in _split_rows(flat):
        # float64, because the steps are.
        total += (part * steps[first : first + len(part), None]).trunc_().sum(0)
        first += len(part)
    return total


def _split_rows(flat: torch.Tensor) -> Iterable[torch.Tensor]:
    """Return runs of rows whose float64 copies fit in memory."""
    runs: Iterable[torch.Tensor] = flat.split(max(1, _TOGETHER // max(1, flat.shape[1])))
    return runs


# From the first and the last sample of a run to their gradients by name.
Part = Callable[[int, int], Mapping[str, "torch.Tensor"]]


@dataclass(frozen=True, eq=False)
class Layer:
    """A trainable layer, and for each time it was used how to compute its gradients."""

    module: torch.nn.Module
    samples: int
    uses: list[Part]

    @cached_property
    def parameters(self) -> dict[str, torch.nn.Parameter]:
        """Its trainable parameters by name, as the optimizer has them after the backward pass."""
        return {name: p for name, p in self.module.named_parameters() if p.requires_grad}

    def runs(self) -> Iterator[tuple[int, int]]:
        """Yield runs of samples whose gradients are in memory together."""
        numbers = sum(p.numel() for p in self.parameters.values())
        each = max(1, _AT_ONCE // max(1, numbers))
        for first in range(0, self.samples, each):
            yield first, min(first + each, self.samples)

    def gradients(self, first: int, last: int) -> list[torch.Tensor]:
        """Return the per-sample gradients of a run of samples, in the order of the parameters."""
        total: dict[str, torch.Tensor] = {}
        for part in self.uses:
            for name, some in part(first, last).items():
                # The last steps of packed sequences have fewer samples.
                missing = last - first - len(some)
                zeros = some.new_zeros((missing, *some.shape[1:]))
                whole = torch.cat([some, zeros]) if missing else some
                total[name] = total[name] + whole if name in total else whole
        return [total[name] for name in self.parameters]


def layer_tile_sums(layers: list[Layer]) -> list[torch.Tensor]:
    """Return the sums of squares of the tiles of each layer's gradients."""
    with _deterministic():
        return [
            torch.cat([tile_sums(layer.gradients(*run)) for run in layer.runs()])
            if layer.samples
            else torch.zeros((0, 1), dtype=torch.float64)
            for layer in layers
        ]


def clipped_layer_sums(
    layers: list[Layer], tiles: list[torch.Tensor], factor: torch.Tensor, bound: float
) -> dict[torch.nn.Parameter, torch.Tensor]:
    """Return the exact sums of the clipped gradients of each parameter.

    Gradients are computed again. A clipped sum has its bound only if they are those of the norms,
    so that is compared.
    """
    sums: dict[torch.nn.Parameter, torch.Tensor] = {}
    differing = torch.zeros((), dtype=torch.int64)
    with _deterministic():
        for layer, before in zip(layers, tiles, strict=True):
            for p in layer.parameters.values():
                sums[p] = torch.zeros(p.shape, dtype=torch.float64, device=p.device)
            for first, last in layer.runs():
                gradients = layer.gradients(first, last)
                again = tile_sums(gradients)
                differing = differing.to(again.device) + (again != before[first:last]).sum()
                parts = clipped_sums(gradients, factor[first:last], bound)
                for p, part in zip(layer.parameters.values(), parts, strict=True):
                    sums[p].add_(part)
    if int(differing):
        raise ArgumentError(
            "Gradients must be the same when they are computed twice: "
            "call torch.use_deterministic_algorithms(True)."
        )
    return sums


@contextmanager
def _deterministic() -> Iterator[None]:
    """Let PyTorch use deterministic algorithms where it has them."""
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
