"""Clipped gradients: no norm exceeds its bound, and sums have no rounding error."""

import math
from fractions import Fraction
from typing import Any

import flint
import pytest
import torch

from dpnoise.core.errors import ArgumentError
from dpnoise.integrations import clipping, triton_clipping

KINDS = [torch.float64, torch.float32, torch.bfloat16, torch.float16]


def factor_of(gradients: Any, bound: float) -> Any:
    return clipping.clipping_factors(clipping.squared_norms([gradients]), bound)


def clipped_sum(gradients: Any, factor: Any, bound: float) -> Any:
    return clipping.clipped_sums([gradients], factor, bound)[0]


def squared_norm(numbers: list[float]) -> Fraction:
    return sum((Fraction(x) ** 2 for x in numbers), Fraction(0))


@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize("bound", [1.0, 0.1, 3.7e-5, 2.0**-100, 2.0**90])
def test_no_clipped_gradient_is_longer_than_its_bound_and_the_excess(
    kind: torch.dtype, bound: float
) -> None:
    """Norms equal to the bound, where rounding decides, and much larger and smaller ones."""
    sizes = torch.tensor([1.0, 1.0, 1.0 + 2**-20, 3.0, 1e3, 0.2, 0.0], dtype=torch.float64)
    directions = torch.randn(7, 40, dtype=torch.float64)
    directions /= directions.norm(dim=1, keepdim=True)
    most = float(torch.finfo(kind).max) / 2
    gradients = (directions * sizes[:, None] * bound).clamp(-most, most).to(kind)
    before = gradients.clone()
    factor = factor_of(gradients, bound)
    limit = (Fraction(bound) * (1 + Fraction(clipping.EXCESS))) ** 2
    step = clipping.step_for(bound)
    for i in range(7):
        released = clipped_sum(gradients[i : i + 1], factor[i : i + 1], bound)
        assert squared_norm(released.tolist()) <= limit
        exact = [Fraction(x) * Fraction(float(factor[i])) for x in gradients[i].tolist()]
        for cut, exact_number in zip(released.tolist(), exact, strict=True):
            assert (Fraction(cut) / Fraction(step)).denominator == 1
            assert abs(Fraction(cut) - exact_number) < Fraction(step) * (1 + Fraction(1, 2**20))
    assert torch.equal(gradients, before)


def test_sums_do_not_depend_on_the_order_or_the_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    gradients = torch.randn(500, 3, 7) * torch.logspace(-3, 3, 500)[:, None, None]
    factor = factor_of(gradients, 0.3)
    total = clipped_sum(gradients, factor, 0.3)
    assert total.shape == (3, 7)
    order = torch.randperm(500)
    assert torch.equal(clipped_sum(gradients[order], factor[order], 0.3), total)
    monkeypatch.setattr(clipping, "_MAX_CONVERTED", 64)
    assert torch.equal(factor_of(gradients, 0.3), factor)
    assert torch.equal(clipped_sum(gradients, factor, 0.3), total)


def test_the_sum_is_exact() -> None:
    gradients = torch.randn(300, 11)
    factor = factor_of(gradients, 1.0)
    sums_of_samples = [
        clipped_sum(gradients[i : i + 1], factor[i : i + 1], 1.0) for i in range(300)
    ]
    expected = [
        sum(Fraction(x) for x in column)
        for column in zip(*map(torch.Tensor.tolist, sums_of_samples), strict=True)
    ]
    assert [Fraction(x) for x in clipped_sum(gradients, factor, 1.0).tolist()] == expected


def test_the_largest_batch_stays_below_2_to_the_53_steps() -> None:
    for bound in (1.0, 1.999, 0.7):
        steps = bound * (1 + clipping.EXCESS) / clipping.step_for(bound)
        assert clipping._MOST_SAMPLES * steps <= 2**53
    clipping.check_samples(2**22)
    with pytest.raises(ArgumentError, match="at most 4194304 samples"):
        clipping.check_samples(2**21 + 1, process_count=2)


def test_the_excess_covers_the_roundings() -> None:
    """The product of the derivation, in ball arithmetic, and the number of additions in it."""
    additions = clipping._ROWS + (clipping._LANES - 1).bit_length()
    tile = clipping._ROWS * clipping._LANES
    assert 2**41 // tile + 2**20 <= tile**2  # A million tensors with 2^41 numbers in total.
    with flint.ctx.workprec(300):
        u = flint.arb(2) ** -53
        roundings = flint.arb(1 + 3 * additions)
        rounded = (1 - u) ** -(roundings / 2 + 1) * (1 + u) ** 2
        assert rounded < 1 + flint.arb(clipping.EXCESS)


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_norms_are_within_the_roundings_that_the_excess_counts(kind: torch.dtype) -> None:
    """With several tiles and numbers of very different sizes, against fractions."""
    gradients = [
        (torch.randn(2, n, dtype=torch.float64) * torch.logspace(-2, 3, n)).to(kind)
        for n in (3, 1_025, 40_000)
    ]
    norms = clipping.squared_norms(gradients)
    for i in range(2):
        exact = squared_norm([x for each in gradients for x in each[i].tolist()])
        assert abs(Fraction(float(norms[i])) / exact - 1) < Fraction(79, 2**53)


def test_a_norm_does_not_depend_on_the_rest_of_the_batch() -> None:
    gradients = [torch.randn(9, n) for n in (70_000, 1_300, 7, 1)]
    together = clipping.squared_norms(gradients)
    for i in range(9):
        assert clipping.squared_norms([each[i : i + 1] for each in gradients]) == together[i]


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_the_kernels_have_the_norms_and_sums_of_the_processor_to_the_last_bit(
    kind: torch.dtype, device: torch.device
) -> None:
    """Aligned and unaligned tensors, of several tiles and of one number, in one launch."""
    shapes = [(17_000,), (3, 5), (1,), (1_024,), (8, 129), (0,)]
    gradients = [(torch.randn(2, *shape) * 3).to(kind) for shape in shapes]
    gradients[4] = gradients[4].mT.contiguous().mT  # Its rows are not contiguous.
    rows = [clipping._as_rows(each).to(device) for each in gradients]
    tiles = clipping.squared_tile_sums(gradients)
    device_tiles = triton_clipping.ordered_sums(rows, squares=True)
    assert torch.equal(device_tiles.cpu(), tiles)
    total = clipping.add_tiles(tiles)
    assert torch.equal(
        triton_clipping.ordered_sums([device_tiles], squares=False)[:, 0].cpu(), total
    )
    factor = clipping.clipping_factors(total, 0.7)
    sums = triton_clipping.clipped_sums(rows, factor.to(device), clipping.step_for(0.7))
    expected = clipping.clipped_sums(gradients, factor, 0.7)
    for device_sum, cpu_sum in zip(sums, expected, strict=True):
        assert torch.equal(device_sum.cpu(), cpu_sum.reshape(-1))
    assert [each.shape for each in expected] == shapes


@pytest.mark.cuda
def test_the_kernels_add_tiles_of_tiles() -> None:
    """With three levels: more tensors than fit into a tile of sums."""
    gradients = list(torch.randn(2**14 + 3, 1, 1))
    rows = [each.cuda() for each in gradients]
    assert torch.equal(clipping.squared_norms(rows).cpu(), clipping.squared_norms(gradients))


def test_a_gradient_that_is_not_finite_is_refused() -> None:
    gradients = torch.randn(5, 4)
    gradients[1, 2], gradients[3, 0] = math.nan, math.inf
    with pytest.raises(ArgumentError, match="finite, got 2 samples"):
        factor_of(gradients, 1.0)


def test_no_samples_and_no_numbers_make_zeros() -> None:
    empty = torch.empty(0, 4)
    assert torch.equal(clipped_sum(empty, factor_of(empty, 1.0), 1.0), torch.zeros(4).double())
    assert clipping.squared_norms([torch.empty(3, 0)]).tolist() == [0.0] * 3
