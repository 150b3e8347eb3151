"""Per-sample gradients, clipped in float64 and summed without a rounding error.

A clipped gradient is cut, towards zero, to multiples of a fine step. Cutting makes no norm larger,
and sums of these multiples are exact in float64, whatever their order, the device and the number of
processes. So all that can make a sample count for more than its bound is the rounding of its own
norm and factor, which `EXCESS` bounds.

The squares of a norm are added in one fixed order, in tiles. So a sample's norm is the same to the
last bit on the processor and on a device, whoever else is in the batch, and its error does not
grow with the model.
"""

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any, Final

from dpnoise.core.errors import ArgumentError, check_positive, import_extra, reject
from dpnoise.core.kernel_table import import_whole

torch = import_extra("torch", "torch")

_CUT: Final = 30  # A step is the bound times 2^-30, or up to twice that.
_MOST_SAMPLES: Final = 2**22  # Sums of so many, of at most the bound each, are below 2^53 steps.
_TOGETHER: Final = 2**24  # Numbers that are made float64 at a time.
_LEAST_BOUND: Final = 2.0**-100  # Far above what could vanish in a square.
_LITTLE: Final = 1e-6  # As Opacus has it below its quotient.

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
square is nothing beside the least bound.
"""


def check_bound(bound: Any) -> float:
    """Return a clipping bound as a float."""
    size = check_positive("max_grad_norm", float(bound))
    if not _LEAST_BOUND <= size <= 1 / _LEAST_BOUND:
        reject("max_grad_norm", size, "to be between 2^-100 and 2^100")
    return size


def step_for(bound: float) -> float:
    """Return what clipped gradients are multiples of: a power of two, from the bound alone."""
    return math.ldexp(1.0, math.frexp(bound)[1] - _CUT)


def squared_norms(gradients: Sequence[Any]) -> Any:
    """Return the squares of the norms of per-sample gradients, in float64.

    A sample's gradient is in its row of each of these tensors.
    """
    return folded(tile_sums(gradients))


def tile_sums(gradients: Sequence[Any]) -> Any:
    """Return the sums of squares of the tiles of per-sample gradients, a row for each sample."""
    flat = [_flat(each) for each in gradients]
    sums = []
    for device, places in _by_device(flat).items():
        some = [flat[place] for place in places]
        if device.type == "cuda":
            with torch.cuda.device(device):
                sums.append(_kernels().ordered_sums(some, squares=True))
        else:
            sums += [_sums_of_squares(each) for each in some]
    return torch.cat([each.to(flat[0].device) for each in sums], dim=1)


def folded(sums: Any) -> Any:
    """Return the total of each row of sums, added in tiles."""
    while sums.shape[1] > 1:
        if sums.is_cuda:
            with torch.cuda.device(sums.device):
                sums = _kernels().ordered_sums([sums.contiguous()], squares=False)
        else:
            sums = _ordered_sums(sums, squares=False)
    return sums.sum(1)


def factors(squares: Any, bound: float) -> Any:
    """Return what to multiply each sample's gradient with, from the squares of the norms."""
    norms = squares.sqrt()
    bad = int((~torch.isfinite(norms)).sum().item())
    if bad:
        raise ArgumentError(f"Expected every gradient to be finite, got {bad} samples with others.")
    return (bound / (norms + _LITTLE)).clamp(max=1.0)


def clipped_sums(gradients: Sequence[Any], factor: Any, bound: float) -> list[Any]:
    """Return the sums of the clipped gradients, cut to multiples of the step, in float64: exact."""
    flat, step = [_flat(each) for each in gradients], step_for(bound)
    sums: list[Any] = [None] * len(flat)
    for device, places in _by_device(flat).items():
        some, there = [flat[place] for place in places], factor.to(device)
        if device.type == "cuda":
            with torch.cuda.device(device):
                found = _kernels().clipped_sums(some, there, step)
        else:
            found = [_clipped_sum(each, there / step).mul_(step) for each in some]
        for place, total in zip(places, found, strict=True):
            sums[place] = total.reshape(gradients[place].shape[1:])
    return sums


def check_samples(samples: int, processes: int = 1) -> None:
    """Raise if a batch is so large that its sum could not be exact."""
    if samples * processes > _MOST_SAMPLES:
        raise ArgumentError(
            f"Expected at most {_MOST_SAMPLES} samples in a batch: use smaller ones."
        )


def _kernels() -> Any:
    import_extra("triton", "torch")
    return import_whole(_import_kernels)


def _import_kernels() -> Any:
    from dpnoise.integrations import device_clipping  # noqa: PLC0415 - it imports Triton

    return device_clipping


def _flat(gradients: Any) -> Any:
    """Return the gradients as rows, one after another in memory."""
    rows = gradients.detach().reshape(len(gradients), math.prod(gradients.shape[1:]))
    return rows.contiguous()


def _by_device(tensors: Sequence[Any]) -> dict[Any, list[int]]:
    """Return the places of the tensors that are on each device."""
    places = defaultdict(list)
    for place, each in enumerate(tensors):
        places[each.device].append(place)
    return places


def _sums_of_squares(flat: Any) -> Any:
    return torch.cat([_ordered_sums(part, squares=True) for part in _in_parts(flat)])


def _ordered_sums(rows: Any, *, squares: bool) -> Any:
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


def _clipped_sum(flat: Any, steps: Any) -> Any:
    """Return the sum of the rows times their `steps`, each cut to an integer."""
    total = flat.new_zeros(flat.shape[1], dtype=torch.float64)
    first = 0
    for part in _in_parts(flat):
        # float64, because the steps are.
        total += (part * steps[first : first + len(part), None]).trunc_().sum(0)
        first += len(part)
    return total


def _in_parts(flat: Any) -> Iterator[Any]:
    """Yield runs of rows whose float64 copies fit in memory."""
    yield from flat.split(max(1, _TOGETHER // max(1, flat.shape[1])))
