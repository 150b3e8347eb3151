"""The key stream of a device is ChaCha20, bit for bit as on the processor."""

import os
from typing import Any

import numpy as np
import pytest
import torch
import triton
import triton.language as tl

from dpnoise.core import entropy
from dpnoise.core.entropy import CHACHA20, WORD, Key
from dpnoise.integrations import device as kernels
from dpnoise.integrations.triton_stream import (
    chacha20,
    further_words_of,
    tile_of,
    word_of,
    words_of_block,
)


@triton.jit  # type: ignore[untyped-decorator]
def write_block(parameters, out, c0, n0, n1, n2, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def] # noqa: ANN001, ANN201
    """Write the block of a counter and nonce."""
    index = tl.arange(0, BLOCK)
    zero = index.to(tl.uint32) * 0
    x0, x1, x2, x3, x4, x5, x6, x7, x8, x9, x10, x11, x12, x13, x14, x15 = chacha20(
        parameters,
        zero + tl.load(c0).to(tl.uint32),
        zero + tl.load(n0).to(tl.uint32),
        zero + tl.load(n1).to(tl.uint32),
        zero + tl.load(n2).to(tl.uint32),
    )
    tl.store(out + index * 8, word_of(x0, x1).to(tl.int64, bitcast=True))
    tl.store(out + index * 8 + 1, word_of(x2, x3).to(tl.int64, bitcast=True))
    tl.store(out + index * 8 + 2, word_of(x4, x5).to(tl.int64, bitcast=True))
    tl.store(out + index * 8 + 3, word_of(x6, x7).to(tl.int64, bitcast=True))
    tl.store(out + index * 8 + 4, word_of(x8, x9).to(tl.int64, bitcast=True))
    tl.store(out + index * 8 + 5, word_of(x10, x11).to(tl.int64, bitcast=True))
    tl.store(out + index * 8 + 6, word_of(x12, x13).to(tl.int64, bitcast=True))
    tl.store(out + index * 8 + 7, word_of(x14, x15).to(tl.int64, bitcast=True))


@triton.jit  # type: ignore[untyped-decorator]
def words_at(blocks, count, out, parameters, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def] # noqa: ANN001, ANN201
    """Write the eight words of each of the listed blocks of the key stream."""
    slot = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    is_listed = slot < count
    number = tl.load(blocks + slot, mask=is_listed, other=0)
    w0, w1, w2, w3, w4, w5, w6, w7 = words_of_block(parameters, number)
    words = tile_of(w0, w1, w2, w3, w4, w5, w6, w7, BLOCK).to(tl.int64, bitcast=True)
    index = slot[:, None] * 8 + tl.arange(0, 8)[None, :]
    tl.store(out + index, words, mask=is_listed[:, None])


@triton.jit  # type: ignore[untyped-decorator]
def further_words_at(elements, count, out, parameters, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def] # noqa: ANN001, ANN201
    """Write the first two further words of each of the listed elements."""
    slot = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    is_listed = slot < count
    first, second = further_words_of(parameters, tl.load(elements + slot, mask=is_listed, other=0))
    tl.store(out + slot * 2, first.to(tl.int64, bitcast=True), mask=is_listed)
    tl.store(out + slot * 2 + 1, second.to(tl.int64, bitcast=True), mask=is_listed)


def stream_words(key: Key, blocks: list[int], device: torch.device) -> Any:
    block_numbers = torch.tensor(blocks, device=device)
    out = torch.full((len(blocks), 8), -1, dtype=torch.int64, device=device)
    parameters = kernels.parameters_for(key, device, (0, 0))
    kernels.launch(words_at, len(blocks), block_numbers, len(blocks), out, parameters)
    return out.cpu().numpy().view(np.uint64)


def on_the_processor(key: Key, block: int) -> Any:
    words = np.empty(8, dtype=WORD)
    key.stream(8 * block).fill(words)
    return words


# RFC 8439, section 2.3.2 and appendix A.1: key, counter, nonce, the block.
VECTORS = [
    (
        bytes(range(32)).hex(),
        1,
        "000000090000004a00000000",
        (
            "10f1e7e4d13b5915500fdd1fa32071c4c7d1f4c733c068030422aa9ac3d46c4e"
            "d2826446079faa0914c2d705d98b02a2b5129cd1de164eb9cbd083e8a2503c4e"
        ),
    ),
    (
        "00" * 32,
        0,
        "00" * 12,
        (
            "76b8e0ada0f13d90405d6ae55386bd28bdd219b8a08ded1aa836efcc8b770dc7"
            "da41597c5157488d7724e03fb8d84a376a43b8f41518a11cc387b669b2ee6586"
        ),
    ),
    (
        "00" * 32,
        1,
        "00" * 12,
        (
            "9f07e7be5551387a98ba977c732d080dcb0f29a048e3656912c6533e32ee7aed"
            "29b721769ce64e43d57133b074d839d531ed1f28510afb45ace10a1f4b794d6f"
        ),
    ),
    (
        "00" * 31 + "01",
        1,
        "00" * 12,
        (
            "3aeb5224ecf849929b9d828db1ced4dd832025e8018b8160b82284f3c949aa5a"
            "8eca00bbb4a73bdad192b5c42f73f2fd4e273644c8b36125a64addeb006c13a0"
        ),
    ),
    (
        "00ff" + "00" * 30,
        2,
        "00" * 12,
        (
            "72d54dfbf12ec44b362692df94137f328fea8da73990265ec1bbbea1ae9af0ca"
            "13b25aa26cb4a648cb9b9d1be65b2c0924a66c54d545ec1b7374f4872e99f096"
        ),
    ),
    (
        "00" * 32,
        0,
        "00" * 11 + "02",
        (
            "c2c64d378cd536374ae204b9ef933fcd1a8b2288b3dfa49672ab765b54ee27c7"
            "8a970e0e955c14f3a88e741b97c286f75f8fc299e8148362fa198a39531bed6d"
        ),
    ),
]


@pytest.mark.parametrize(("key", "counter", "nonce", "block"), VECTORS)
def test_the_cipher_makes_the_blocks_of_rfc_8439(
    key: str, counter: int, nonce: str, block: str, device: torch.device
) -> None:
    parameters = kernels.parameters_for(Key(bytes.fromhex(key), CHACHA20), device, (0, 0))
    words = [counter, *np.frombuffer(bytes.fromhex(nonce), dtype="<u4").tolist()]
    start = [torch.tensor([word], device=device) for word in words]
    out = torch.empty(8, dtype=torch.int64, device=device)
    write_block[(1,)](parameters, out, *start, BLOCK=1)
    assert out.cpu().numpy().tobytes() == bytes.fromhex(block)


def test_random_keys_and_blocks_agree_with_the_processor(device: torch.device) -> None:
    for _ in range(3):
        key = Key(os.urandom(32), CHACHA20)
        random_words = np.frombuffer(os.urandom(8 * 40), dtype=np.uint64) >> np.uint64(8)
        blocks = [int(block) for block in random_words] + list(range(20))
        words = stream_words(key, blocks, device)
        for row, block in zip(words, blocks, strict=True):
            assert np.array_equal(row, on_the_processor(key, block))


def test_the_stream_goes_on_under_the_next_nonce_where_the_counter_ends(
    device: torch.device,
) -> None:
    key = Key(os.urandom(32), CHACHA20)
    border = entropy.blocks_in_a_group
    assert border == 2**32
    blocks = [0, 1, border - 1, border, border + 1, 7 * border - 1, 7 * border]
    words = stream_words(key, blocks, device)
    for row, block in zip(words, blocks, strict=True):
        assert np.array_equal(row, on_the_processor(key, block))
    assert len(np.unique(words)) == words.size


def test_further_words_agree_with_the_processor(device: torch.device) -> None:
    key = Key(os.urandom(32), CHACHA20)
    elements = [0, 1, 5, 2**32 - 1, 2**32, 2**40 + 3]
    device_elements = torch.tensor(elements, device=device)
    out = torch.empty((len(elements), 2), dtype=torch.int64, device=device)
    parameters = kernels.parameters_for(key, device, (0, 0))
    kernels.launch(further_words_at, len(elements), device_elements, len(elements), out, parameters)
    for row, element in zip(out.cpu().numpy().view(np.uint64), elements, strict=True):
        assert np.array_equal(row, key.further_words(element, 2))


@pytest.mark.cuda
def test_a_long_run_of_the_stream_agrees_with_the_processor(device: torch.device) -> None:
    key = Key(os.urandom(32), CHACHA20)
    first = 2**32 - 2**17
    words = stream_words(key, list(range(first, first + 2**18)), device).reshape(-1)
    expected = np.empty(words.size, dtype=WORD)
    key.stream(8 * first).fill(expected)
    assert np.array_equal(words, expected)
