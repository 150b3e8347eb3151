"""Noise on a device equals that of the processor's kernels for the same words."""

import os
from typing import Any

import numpy as np
import pytest
import torch
from support import naive

from dpnoise.core.entropy import CHACHA20, WORD, Key
from dpnoise.integrations import device as kernels
from dpnoise.integrations.tensor_formats import DIGITS
from dpnoise.kernels import variates


def words_of(key: Key, count: int, kind: torch.dtype) -> Any:
    """Return the words of the stream for the kernels: 64 bits, or 32 in the upper half."""
    words = np.empty(-(-count // 8 + 1) * 8 + 16, dtype=WORD)
    key.stream().fill(words)
    if kind == torch.float64:
        return words[:count]
    return words.view("<u4")[:count].astype(np.uint64) << np.uint64(32)


def on_the_processor(name: str, n: int, words: Any, precision: int, scale: float) -> Any:
    out, scratch = np.empty(words.size // n), np.empty(words.size)
    if name == "exponential":
        variates.gamma_from_halves(words, n, precision, 2, scale, scratch, out)
    else:
        kernel = {
            ("normal", n): variates.gaussian,
            ("laplace", 2): variates.laplace_exponentials,
            ("laplace", 4): variates.laplace_theorem,
        }[name, n]
        kernel(words, n, precision, scale, scratch, out)
    return out


def pieces_of(name: str, u: Any) -> Any:
    """Return the summands, one row per number."""
    if name == "normal":
        return 2 / np.sqrt(u.shape[1]) * naive.half_pairs(u)
    if name == "exponential":
        return naive.half_pairs(u) ** 2
    if u.shape[1] == 2:
        return np.log(1 - u)
    return np.log(1 - u[:, ::2]) * naive.cos_pi(u[:, 1::2])


ALL = [(name, n) for name, forms in kernels.PIECES.items() for n in forms]


@pytest.mark.parametrize(("name", "n"), ALL)
def test_doubles_equal_those_of_the_processor_bit_for_bit(
    name: str, n: int, device: torch.device, count: int
) -> None:
    key = Key(os.urandom(32), CHACHA20)
    out = torch.full((count,), torch.nan, dtype=torch.float64, device=device)
    kernels.fill(name, n, 1.5, out, key)
    expected = on_the_processor(name, n, words_of(key, count * n, out.dtype), 53, 1.5)
    assert np.array_equal(out.cpu().numpy(), expected)


@pytest.mark.parametrize("kind", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize(("name", "n"), ALL)
def test_narrower_formats_equal_the_processor_with_32_bit_words_up_to_rounding(
    name: str, n: int, kind: torch.dtype, device: torch.device, count: int
) -> None:
    """Pieces are summed in float32, each correct to a few units in the last place.

    They may cancel, so the error of a sum is compared with their sizes.
    """
    key = Key(os.urandom(32), CHACHA20)
    out = torch.full((count,), torch.nan, dtype=kind, device=device)
    kernels.fill(name, n, 1.5, out, key)
    words = words_of(key, count * n, kind)
    expected = on_the_processor(name, n, words, 24, 1.5)
    uniforms = (words >> np.uint64(40)).reshape(-1, n) * 2.0**-24
    sizes = 1.5 * np.abs(pieces_of(name, uniforms)).sum(axis=1)
    unit = torch.finfo(kind).eps
    off = np.abs(out.cpu().double().numpy() - expected)
    assert (off <= 2.0**-19 * (1 + sizes) + unit * np.abs(expected)).all()


@pytest.mark.parametrize("kind", list(DIGITS), ids=str)
def test_uniforms_are_the_top_bits_of_the_words(
    kind: torch.dtype, device: torch.device, count: int
) -> None:
    key = Key(os.urandom(32), CHACHA20)
    out = torch.full((count,), torch.nan, dtype=kind, device=device)
    kernels.fill_uniforms(out, key)
    p = DIGITS[kind]
    expected = (words_of(key, count, kind) >> np.uint64(64 - p)).astype(np.float64) * 2.0**-p
    assert np.array_equal(out.cpu().double().numpy(), expected)
    assert float(out.max()) < 1
