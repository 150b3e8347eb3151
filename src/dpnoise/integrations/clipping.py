"""Per-sample gradients, clipped in float64 and summed without a rounding error.

A clipped gradient is cut, towards zero, to multiples of a fine step. Cutting makes no norm larger,
and sums of these multiples are exact in float64, whatever their order, the device and the number of
processes. So all that can make a sample count for more than its bound is the rounding of its own
norm and factor, which `excess` bounds.
"""

import math
from collections.abc import Iterator, Sequence
from typing import Any, Final

from dpnoise.errors import ArgumentError, check_positive, import_extra, reject

torch = import_extra("torch", "torch")

_CUT: Final = 30  # A step is the bound times 2^-30, or up to twice that.
_MOST_SAMPLES: Final = 2**22  # Sums of so many, of at most the bound each, are below 2^53 steps.
_TOGETHER: Final = 2**24  # Numbers that are made float64 at a time.
_LEAST_BOUND: Final = 2.0**-100  # Far above what could vanish in a square.
_LITTLE: Final = 1e-6  # As Opacus has it below its quotient.


def check_bound(bound: Any) -> float:
    """Return a clipping bound as a float."""
    size = check_positive("max_grad_norm", float(bound))
    if not _LEAST_BOUND <= size <= 1 / _LEAST_BOUND:
        reject("max_grad_norm", size, "to be between 2^-100 and 2^100")
    return size


def excess(numbers: int) -> float:
    """Return e such that a clipped gradient of this many numbers has a norm of at most bound(1+e).

    With u = 2^-53 the sum of D squares, in any order, is at least its exact value times (1-u)^D,
    and each square of a float64 rounds once more. Each part's root is taken and squared, and parts,
    of which there are at most D, are summed again. The last root, the sum with 10^-6, the quotient
    and the product round once each. (1-u)^(-(2D+4)/2-2) (1+u)^2 < 1 + (2D+8)u while D < 2^40.
    """
    return (2 * numbers + 8) * 2.0**-53


def step_for(bound: float) -> float:
    """Return what clipped gradients are multiples of: a power of two, from the bound alone."""
    return math.ldexp(1.0, math.frexp(bound)[1] - _CUT)


def squared_norms(gradients: Any) -> Any:
    """Return the squares of the norms of per-sample gradients, in float64."""
    norms = torch.linalg.vector_norm(_flat(gradients), dim=1, dtype=torch.float64)
    return norms.square_()


def factors(squares: Sequence[Any], bound: float) -> Any:
    """Return what to multiply each sample's gradient with, from the squares of its parts."""
    device = squares[0].device
    norms = torch.stack([part.to(device) for part in squares]).sum(0).sqrt()
    bad = int((~torch.isfinite(norms)).sum().item())
    if bad:
        raise ArgumentError(f"Expected every gradient to be finite, got {bad} samples with others.")
    return (bound / (norms + _LITTLE)).clamp(max=1.0)


def clipped_sum(gradients: Any, factor: Any, bound: float) -> Any:
    """Return the sum of the clipped gradients, cut to multiples of the step, in float64: exact."""
    step = step_for(bound)
    steps = (factor / step).to(gradients.device)
    total = gradients.new_zeros(_size(gradients), dtype=torch.float64)
    first = 0
    for part in _in_parts(gradients):
        # float64, because the factors are.
        total += (part * steps[first : first + len(part), None]).trunc_().sum(0)
        first += len(part)
    return total.mul_(step).reshape(gradients.shape[1:])


def check_samples(samples: int, processes: int = 1) -> None:
    """Raise if a batch is so large that its sum could not be exact."""
    if samples * processes > _MOST_SAMPLES:
        raise ArgumentError(
            f"Expected at most {_MOST_SAMPLES} samples in a batch: use smaller ones."
        )


def _size(gradients: Any) -> int:
    return math.prod(gradients.shape[1:])


def _flat(gradients: Any) -> Any:
    return gradients.detach().reshape(len(gradients), _size(gradients))


def _in_parts(gradients: Any) -> Iterator[Any]:
    """Yield runs of samples, each gradient flat, whose float64 copies fit in memory."""
    flat = _flat(gradients)
    yield from flat.split(max(1, _TOGETHER // max(1, flat.shape[1]))) if len(flat) else ()
