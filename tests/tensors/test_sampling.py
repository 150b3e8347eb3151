"""Samples of a batch are drawn with the rate of the accountant, from secure bits."""

import math
from typing import Any

import pytest
import torch
from scipy import stats
from support.alarms import check_probability
from torch.utils.data import DataLoader, TensorDataset, WeightedRandomSampler

from dpnoise.core.errors import ArgumentError
from dpnoise.integrations import opacus_internals as sampling
from dpnoise.noise.generator import Generator


def loader(**options: Any) -> Any:
    return DataLoader(TensorDataset(torch.arange(100)), batch_size=10, **options)


def test_each_sample_is_in_a_batch_with_the_rate_and_independently() -> None:
    """200,000 draws; the variance of 200 sizes is a chi-squared with 199 degrees of freedom."""
    rate = 0.1
    sampler = sampling.PoissonSampler(num_samples=1_000, sample_rate=rate, steps=200)
    batches = list(sampler)
    assert len(batches) == len(sampler) == 200
    check_probability(stats.binomtest(sum(map(len, batches)), 200_000, rate).pvalue)
    assert all(sorted(set(batch)) == batch for batch in batches)
    sizes = torch.tensor([float(len(batch)) for batch in batches])
    squares, law = 199 * sizes.var().item() / 90, stats.chi2(199)
    check_probability(2 * min(law.cdf(squares), law.sf(squares)))


def test_the_rate_is_rounded_down(monkeypatch: pytest.MonkeyPatch) -> None:
    """At 1/3 the first uniform outside is the largest multiple of 2^-53 below it."""
    least_out = math.floor(2**53 / 3) * 2.0**-53
    uniforms = torch.tensor([least_out - 2.0**-53, least_out], dtype=torch.float64).numpy()
    monkeypatch.setattr(Generator, "random", lambda _self, *, size: uniforms[:size])
    assert sampling.choose_samples(2, 1 / 3).tolist() == [0]
    assert sampling.choose_samples(2, 1.0).tolist() == [0, 1]


def test_shuffling_is_a_permutation_that_changes() -> None:
    shuffled = sampling.use_secure_shuffling(loader(shuffle=True))
    orders = [torch.cat([batch for (batch,) in shuffled]).tolist() for _ in range(2)]
    assert sorted(orders[0]) == sorted(orders[1]) == list(range(100))
    assert orders[0] != orders[1] != list(range(100))
    assert len(shuffled) == 10


def test_a_loader_that_does_not_shuffle_is_left_as_it_is() -> None:
    plain = loader()
    assert sampling.use_secure_shuffling(plain) is plain


@pytest.mark.parametrize(
    "options", [{"sampler": WeightedRandomSampler([1.0] * 100, 50)}], ids=["weighted"]
)
def test_other_samplers_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ArgumentError, match="insecure generator"):
        sampling.use_secure_shuffling(loader(**options))
    with pytest.raises(ArgumentError, match="batch_size"):
        sampling.use_secure_shuffling(DataLoader(TensorDataset(torch.arange(9)), batch_size=None))
