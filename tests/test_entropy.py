"""Keys and their streams: published vectors, the layout, and that nothing repeats or leaks."""

import copy
import multiprocessing
import os
import pickle
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
from numpy.typing import NDArray

import dpnoise
from dpnoise import chunks
from dpnoise.entropy import Key, KeyStream
from dpnoise.errors import ArgumentError, SecretError

# RFC 8439: key, counter, nonce, key stream. The first is section 2.3.2, the others appendix A.1.
RFC_8439 = [
    (
        bytes(range(32)),
        1,
        "000000090000004a00000000",
        (
            "10f1e7e4d13b5915500fdd1fa32071c4c7d1f4c733c068030422aa9ac3d46c4e"
            "d2826446079faa0914c2d705d98b02a2b5129cd1de164eb9cbd083e8a2503c4e"
        ),
    ),
    (
        bytes(32),
        0,
        "000000000000000000000000",
        (
            "76b8e0ada0f13d90405d6ae55386bd28bdd219b8a08ded1aa836efcc8b770dc7"
            "da41597c5157488d7724e03fb8d84a376a43b8f41518a11cc387b669b2ee6586"
        ),
    ),
    (
        bytes(32),
        1,
        "000000000000000000000000",
        (
            "9f07e7be5551387a98ba977c732d080dcb0f29a048e3656912c6533e32ee7aed"
            "29b721769ce64e43d57133b074d839d531ed1f28510afb45ace10a1f4b794d6f"
        ),
    ),
    (
        bytes(31) + b"\x01",
        1,
        "000000000000000000000000",
        (
            "3aeb5224ecf849929b9d828db1ced4dd832025e8018b8160b82284f3c949aa5a"
            "8eca00bbb4a73bdad192b5c42f73f2fd4e273644c8b36125a64addeb006c13a0"
        ),
    ),
    (
        b"\x00\xff" + bytes(30),
        2,
        "000000000000000000000000",
        (
            "72d54dfbf12ec44b362692df94137f328fea8da73990265ec1bbbea1ae9af0ca"
            "13b25aa26cb4a648cb9b9d1be65b2c0924a66c54d545ec1b7374f4872e99f096"
        ),
    ),
    (
        bytes(32),
        0,
        "000000000000000000000002",
        (
            "c2c64d378cd536374ae204b9ef933fcd1a8b2288b3dfa49672ab765b54ee27c7"
            "8a970e0e955c14f3a88e741b97c286f75f8fc299e8148362fa198a39531bed6d"
        ),
    ),
]


def read(stream: KeyStream, count: int) -> NDArray[np.uint64]:
    words = np.empty(count, dtype=np.uint64)
    stream.fill(words)
    return words


@pytest.mark.parametrize(("key", "counter", "nonce", "expected"), RFC_8439)
def test_stream_gives_the_published_vectors(
    key: bytes, counter: int, nonce: str, expected: str
) -> None:
    stream = KeyStream(key, 8 * counter, int.from_bytes(bytes.fromhex(nonce), "little"))
    assert read(stream, 8).tobytes().hex() == expected


def test_stream_can_be_entered_at_any_word() -> None:
    key = Key.fresh()
    whole = read(key.stream(), 200)
    for start in (0, 1, 7, 8, 9, 100):
        np.testing.assert_array_equal(read(key.stream(start), 200 - start), whole[start:])


def test_stream_read_in_pieces_is_the_same_stream() -> None:
    key = Key.fresh()
    whole = read(key.stream(3), 70_000)
    stream = key.stream(3)
    pieces = [read(stream, count) for count in (1, 2, 5, 8, 64, 40_000, 29_920)]
    np.testing.assert_array_equal(np.concatenate(pieces), whole)


def test_the_nonce_changes_where_the_counter_would_wrap() -> None:
    """Blocks 2^32 - 2 to 2^32 + 1 against OpenSSL called for each of them."""
    secret = bytes(range(32))
    expected = b""
    for block in range(2**32 - 2, 2**32 + 2):
        nonce, counter = divmod(block, 2**32)
        initial = counter.to_bytes(4, "little") + nonce.to_bytes(12, "little")
        expected += Cipher(algorithms.ChaCha20(secret, initial), None).encryptor().update(bytes(64))
    for skipped in (0, 3, 15, 16, 17):
        words = read(Key(secret).stream(8 * (2**32 - 2) + skipped), 32 - skipped)
        assert words.tobytes() == expected[8 * skipped :]


def test_further_words_come_from_a_stream_of_their_own() -> None:
    key = Key(bytes(32))
    initial = bytes(4) + (2**95 + 5).to_bytes(12, "little")
    expected = Cipher(algorithms.ChaCha20(bytes(32), initial), None).encryptor().update(bytes(72))
    assert key.further_words(element=5, count=9).tobytes() == expected
    assert key.further_words(element=6, count=9).tobytes() != expected


class ShiftedKey(Key):
    """A key whose streams start shortly before the counter's border."""

    __slots__ = ()

    def stream(self, word: int = 0) -> KeyStream:
        """Return the stream from a hundred blocks before the border on."""
        return super().stream(word + 8 * (2**32 - 100))


@pytest.mark.parametrize("kind", [Key, ShiftedKey])
@pytest.mark.parametrize("variates", [1, 3, 4, 5000])
def test_words_do_not_depend_on_chunks_or_threads(kind: type[Key], variates: int) -> None:
    key = kind(os.urandom(32))
    count = 2000 if variates < 1000 else 3
    expected = read(key.stream(), count * variates)
    for chunk_words in (1, 40, 4096, 2**16):
        for threads in (None, 1, 2, 3, 7):
            got = np.zeros(count * variates, dtype=np.uint64)

            def prepare(_: int, got: NDArray[np.uint64] = got) -> chunks.Worker:
                def chunk(words: NDArray[np.uint64], start: int, stop: int) -> None:
                    got[start * variates : stop * variates] = words

                return chunk

            chunks.expand(key, variates, count, prepare, threads, chunk_words=chunk_words)
            np.testing.assert_array_equal(got, expected)


def test_a_key_shows_nothing() -> None:
    secret = b"correct horse battery staple 123"
    for thing in (Key(secret), Key(secret).stream()):
        assert "horse" not in repr(thing)
        assert "horse" not in str(thing)
        assert secret.hex() not in repr(thing)


@pytest.mark.parametrize("duplicate", [pickle.dumps, copy.copy, copy.deepcopy])
def test_a_key_refuses_to_be_copied(duplicate: object) -> None:
    assert callable(duplicate)
    for thing in (Key.fresh(), Key.fresh().stream()):
        with pytest.raises(SecretError):
            duplicate(thing)


def test_a_key_of_another_length_is_refused_without_showing_it() -> None:
    with pytest.raises(ArgumentError, match=r"32 bytes, got 5") as caught:
        Key(b"short")
    assert "short" not in str(caught.value)


# Nothing repeats. Among 10^4 correct draws a double repeats with probability below 10^-8.


def draw(rng: dpnoise.Generator, _: int = 0) -> list[float]:
    """Draw scalars and an array; module level, so that a spawned process finds it."""
    scalars: list[float] = [rng.laplace() for _ in range(100)]
    return scalars + list(rng.laplace(size=1000))


def repeats(draws: list[list[float]]) -> int:
    values = [value for one in draws for value in one]
    return len(values) - len(set(values))


def test_no_repeats_after_fork() -> None:
    rng = dpnoise.Generator()
    draw(rng)
    draws = []
    for _ in range(4):
        reader, writer = os.pipe()
        if os.fork() == 0:
            with os.fdopen(writer, "wb") as pipe:
                pickle.dump(draw(rng), pipe)
            os._exit(0)
        os.close(writer)
        with os.fdopen(reader, "rb") as pipe:
            draws.append(pickle.load(pipe))
        os.wait()
    assert repeats([*draws, draw(rng)]) == 0


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_no_repeats_in_processes(method: str) -> None:
    rng = dpnoise.Generator()
    with multiprocessing.get_context(method).Pool(2) as pool:
        draws = pool.map(partial(draw, rng), range(6))
    assert repeats([*draws, draw(rng)]) == 0


def test_no_repeats_in_threads() -> None:
    rng = dpnoise.Generator(threads=2)
    with ThreadPoolExecutor(4) as pool:
        draws = list(pool.map(partial(draw, rng), range(8)))
    assert repeats(draws) == 0


def test_no_repeats_in_copies_and_children() -> None:
    rng = dpnoise.Generator(threads=3, security_bits=256)
    copies = [pickle.loads(pickle.dumps(rng)), copy.deepcopy(rng), *rng.spawn(3)]
    assert copies == [rng] * 5
    assert repeats([draw(one) for one in [rng, *copies]]) == 0
