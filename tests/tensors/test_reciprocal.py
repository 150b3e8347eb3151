"""The device's first guess of a reciprocal, on which the proof of the division builds."""

import pytest
import torch
import triton
import triton.language as tl

from dpnoise.integrations import device as kernels


@triton.jit  # type: ignore[untyped-decorator]
def guesses(numbers, count, out, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def] # noqa: ANN001, ANN201
    """Write the results of rcp.approx for float64."""
    index = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    b = tl.load(numbers + index, mask=index < count, other=1.0)
    r = tl.inline_asm_elementwise(
        "rcp.approx.ftz.f64 $0, $1;", "=d,d", [b], dtype=tl.float64, is_pure=True, pack=1
    )
    tl.store(out + index, r, mask=index < count)


@pytest.mark.cuda
def test_it_is_within_2_to_the_minus_17_for_every_number_from_1_to_4() -> None:
    """It reads only the upper 32 bits: all of them are tried, with lower bits all 0 and all 1."""
    upper = torch.arange(0x3FF00000, 0x40100000, dtype=torch.int64, device="cuda") << 32
    guessed = []
    for bits in (upper, upper | 0xFFFFFFFF):
        b = bits.view(torch.float64)
        r = torch.empty_like(b)
        kernels.launch(guesses, b.numel(), b, b.numel(), r)
        guessed.append(r)
        # The rounding of the product is 2^-53.
        assert float((1.0 - b * r).abs().max()) < 2.0**-17 - 2.0**-50
    assert torch.equal(*guessed)
