"""Which samples make a batch, drawn from secure bits: Poisson sampling, and shuffling."""

import copy
import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from dpnoise.core.errors import ArgumentError, import_extra
from dpnoise.noise.generator import Generator

torch = import_extra("torch", "torch")
_opacus_sampling = import_extra("opacus.utils.uniform_sampler", "opacus")
_data = import_extra("torch.utils.data", "torch")

_DIGITS = 53


def _chosen(count: int, rate: float) -> Any:
    """Return the places of those that are in: each with a probability of at most `rate`.

    It is the largest multiple of 2^-53 that is not above the rate.
    """
    most = math.floor(math.ldexp(rate, _DIGITS)) * 2.0**-_DIGITS
    return torch.from_numpy(np.flatnonzero(Generator().random(count) < most))


class PoissonSampler(_opacus_sampling.UniformWithReplacementSampler):  # type: ignore[misc, name-defined]
    """Opacus's batches of Poisson sampling, from secure bits."""

    def __iter__(self) -> Iterator[list[int]]:
        """Yield the batches, of which some may be empty."""
        for _ in range(self.steps):
            yield _chosen(self.num_samples, self.sample_rate).tolist()


class DistributedPoissonSampler(
    _opacus_sampling.DistributedUniformWithReplacementSampler  # type: ignore[misc, name-defined]
):
    """The same for one of several processes: each takes its part of the data.

    Who takes which part is no secret. Where Opacus leaves out a batch that is empty on one process,
    so that the processes lose step, this one yields it.
    """

    def __iter__(self) -> Iterator[Any]:
        """Yield this process's part of each batch."""
        parts = torch.arange(self.total_size)
        if self.shuffle:
            dealer = torch.Generator().manual_seed(self.shuffle_seed + self.epoch)
            parts = torch.randperm(self.total_size, generator=dealer)
        own = parts[self.rank : self.total_size : self.num_replicas]
        for _ in range(self.num_batches):
            yield own[_chosen(len(own), self.sample_rate)].tolist()


class Shuffled(_data.Sampler):  # type: ignore[misc, name-defined]
    """All samples once, in an order of secure bits."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __len__(self) -> int:
        """Return how many there are."""
        return self.count

    def __iter__(self) -> Iterator[int]:
        """Yield the places: sorting 53 random bits each; two that are equal keep their order."""
        yield from np.argsort(Generator().random(self.count), kind="stable").tolist()


def with_poisson_sampling(loader: Any, *, distributed: bool) -> Any:
    """Return a DPDataLoader whose sampler draws from secure bits instead."""
    made = loader.batch_sampler
    rate = made.sample_rate
    if distributed:
        sampler = DistributedPoissonSampler(total_size=made.total_size, sample_rate=rate)
    else:
        sampler = PoissonSampler(num_samples=made.num_samples, sample_rate=rate, steps=made.steps)
    return _with_batches(loader, sampler)


def with_secure_shuffling(loader: Any) -> Any:
    """Return the loader, shuffled by secure bits if it was shuffled."""
    batches = loader.batch_sampler
    order: Any = getattr(batches, "sampler", None)
    if type(batches) is not _data.BatchSampler:
        raise ArgumentError("Expected a data_loader with a batch_size, and no batch_sampler.")
    if type(order) is _data.SequentialSampler:
        return loader
    if type(order) is not _data.RandomSampler or order.replacement:
        raise ArgumentError(
            "Expected a data_loader with shuffle=True or shuffle=False and no other sampler, "
            "because that draws from an insecure generator."
        )
    shuffled = _data.BatchSampler(
        Shuffled(len(loader.dataset)), batches.batch_size, batches.drop_last
    )
    return _with_batches(loader, shuffled)


def _with_batches(loader: Any, batches: Any) -> Any:
    """Return a copy of a loader with other batches, which PyTorch lets no loader take."""
    made = copy.copy(loader)
    made.__dict__["batch_sampler"] = batches
    return made
