"""The device's first guess of a reciprocal, on which the proof of the division builds."""

import pytest
import torch
import triton
import triton.language as tl

from dpnoise.integrations import device as kernels


@triton.jit  # type: ignore[untyped-decorator]
def guesses(numbers, count, out, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def] # noqa: ANN001, ANN201
    """Write what rcp.approx makes of float64."""
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    b = tl.load(numbers + at, mask=at < count, other=1.0)
    r = tl.inline_asm_elementwise(
        "rcp.approx.ftz.f64 $0, $1;", "=d,d", [b], dtype=tl.float64, is_pure=True, pack=1
    )
    tl.store(out + at, r, mask=at < count)


@pytest.mark.cuda
def test_it_is_within_2_to_the_minus_17_for_every_number_from_1_to_4() -> None:
    """It reads the upper 32 bits alone: all of these, with the lower ones all 0 and all 1."""
    upper = torch.arange(0x3FF00000, 0x40100000, dtype=torch.int64, device="cuda") << 32
    found = []
    for bits in (upper, upper | 0xFFFFFFFF):
        b = bits.view(torch.float64)
        r = torch.empty_like(b)
        kernels.launch(guesses, b.numel(), b, b.numel(), r)
        found.append(r)
        # The product's own rounding is 2^-53.
        assert float((1.0 - b * r).abs().max()) < 2.0**-17 - 2.0**-50
    assert torch.equal(*found)
