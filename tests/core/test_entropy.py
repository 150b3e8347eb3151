"""Keys and their streams: published vectors, the layout, and that nothing repeats or leaks."""

import copy
import multiprocessing
import os
import pickle
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import count, pairwise, product

import numpy as np
import pytest
from cryptography.hazmat.backends.openssl import backend
from cryptography.hazmat.primitives.ciphers import Cipher, CipherContext, algorithms, modes
from numpy.typing import NDArray
from support.choices import sample_cases
from support.cipher_vectors import CIPHERS, RFC_8439, SP_800_38A
from support.draws import draw

import dpnoise
from dpnoise.core import entropy, parallel
from dpnoise.core.entropy import AES, CHACHA20, SYSTEM, Key, KeyStream
from dpnoise.core.errors import ArgumentError, CipherError, SecretError
from dpnoise.testing import fixed_generator

WIDE = "AES-256-CTR by GCM"


@pytest.fixture(params=[AES, WIDE, CHACHA20])
def cipher(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return a cipher: AES twice, first only by counter mode, then by GCM wherever possible."""
    uses_gcm: bool = request.param == WIDE
    monkeypatch.setattr(entropy, "gcm_is_wider", lambda: uses_gcm)
    monkeypatch.setattr(entropy, "_LONG_READ", 1)
    return AES if uses_gcm else str(request.param)


def read_words(stream: KeyStream, count: int) -> NDArray[np.uint64]:
    words = np.empty(count, dtype=np.uint64)
    stream.fill(words)
    return words


# A second implementation of the layout: a separate call for each block. --------------------------


def aes_block(secret: bytes, counter: int) -> bytes:
    cipher = Cipher(algorithms.AES(secret), modes.ECB()).encryptor()  # noqa: S305 - one block
    return cipher.update(counter.to_bytes(16, "big"))


def chacha20_block(secret: bytes, counter: int, nonce: int) -> bytes:
    initial = counter.to_bytes(4, "little") + nonce.to_bytes(12, "little")
    return Cipher(algorithms.ChaCha20(secret, initial), None).encryptor().update(bytes(64))


def main_block(secret: bytes, cipher: str, block: int, group_size: int = 2**32) -> bytes:
    group, block_in_group = divmod(block, group_size)
    if cipher == CHACHA20:
        return chacha20_block(secret, block_in_group, group)
    if group:
        first = 2**128 - 2 * group
        secret = aes_block(secret, first) + aes_block(secret, first + 1)
    return aes_block(secret, block)


def further_block(secret: bytes, cipher: str, element: int, block: int) -> bytes:
    if cipher == CHACHA20:
        return chacha20_block(secret, block, 2**95 + element)
    return aes_block(secret, 2**127 + element * 2**64 + block)


def words_in_a_block(cipher: str) -> int:
    return {AES: 2, CHACHA20: 8}[cipher]


def further_words(
    secret: bytes, cipher: str, element: int, first: int, count: int
) -> NDArray[np.uint64]:
    """Return words of the further stream of an element, from `first` on."""
    per_block = words_in_a_block(cipher)
    blocks = range((first + count) // per_block + 1)
    raw = b"".join(further_block(secret, cipher, element, block) for block in blocks)
    return np.frombuffer(raw, dtype="<u8")[first : first + count]


# Published vectors. ------------------------------------------------------------------------------


@pytest.mark.parametrize(("key", "counter", "nonce", "expected"), RFC_8439)
def test_chacha20_gives_the_published_vectors(
    key: bytes, counter: int, nonce: str, expected: str
) -> None:
    block = counter + (int.from_bytes(bytes.fromhex(nonce), "little") << 32)
    assert read_words(Key(key, CHACHA20).stream(8 * block), 8).tobytes().hex() == expected


def test_aes_gives_the_published_vectors(monkeypatch: pytest.MonkeyPatch) -> None:
    """In the main stream, without a second key, and in the further words of an element."""
    secret, counter, expected = SP_800_38A
    key, block = Key(bytes.fromhex(secret)), int(counter, 16)
    element, row = divmod(block - 2**127, 2**64)
    further = [key.further_words(element, 2, row + k) for k in range(4)]
    assert np.concatenate(further).tobytes().hex() == expected
    monkeypatch.setattr(entropy, "blocks_in_a_group", 2**128)
    assert read_words(key.stream(2 * block), 8).tobytes().hex() == expected


class FaultyCipher:
    """A cipher with a wrong last bit in the updates of which `is_wrong(length)` is true."""

    def __init__(self, cipher: CipherContext, is_wrong: Callable[[int], bool]) -> None:
        self.cipher, self.is_wrong = cipher, is_wrong

    def update(self, zeros: bytes) -> bytes:
        """Return the key stream, as the encryption of zeros."""
        stream = self.cipher.update(zeros)
        return stream[:-1] + bytes([stream[-1] ^ self.is_wrong(len(zeros))])


@pytest.mark.parametrize("number", [1, 4, 12, 20, 33, None])
@pytest.mark.parametrize("cipher", CIPHERS)
def test_a_library_whose_stream_is_wrong_draws_nothing(
    cipher: str, number: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wrong for this number of blocks, or for all that are 4 modulo 16, like a real bug."""
    size = 8 * words_in_a_block(cipher)
    name = {AES: "_aes", CHACHA20: "_chacha20"}[cipher]
    open_cipher = getattr(entropy, name)

    def is_wrong(length: int) -> bool:
        return length == number * size if number else length // size % 16 == 4

    entropy.check_cipher.cache_clear()
    with monkeypatch.context() as patched:
        patched.setattr(
            entropy, name, lambda *arguments: FaultyCipher(open_cipher(*arguments), is_wrong)
        )
        for _ in range(2):
            with pytest.raises(CipherError, match=f"wrong {cipher} stream on this machine"):
                SYSTEM.key(cipher)
    SYSTEM.key(cipher)


@pytest.mark.parametrize("number", [1, 4, 12, 20, 33, 0.5, 4.5, 16.5, None])
def test_a_library_whose_gcm_is_not_counter_mode_draws_nothing(
    number: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wrong for this number of blocks, or only for a long run."""
    open_gcm, words = entropy._gcm, np.zeros(2**14, dtype=np.uint64)

    def is_wrong(length: int) -> bool:
        return length == 16 * number if number else length > 16 * 33

    monkeypatch.setattr(backend, "openssl_version_number", lambda: 0x40000000)
    entropy.gcm_is_wider.cache_clear()
    monkeypatch.setattr(entropy, "has_instructions", lambda *_: True)
    with monkeypatch.context() as patched:
        patched.setattr(
            entropy, "_gcm", lambda *arguments: FaultyCipher(open_gcm(*arguments), is_wrong)
        )
        for _ in range(2):
            with pytest.raises(CipherError, match=f"wrong {AES} stream on this machine"):
                Key.fresh().stream().fill(words)
        assert not words.any()
    try:
        assert entropy.gcm_is_wider()
    finally:
        entropy.gcm_is_wider.cache_clear()


def test_gcm_is_taken_from_an_openssl_that_has_it_wide_and_counter_mode_narrow(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """These are 3.1 to 4.0; the number below 3 is the one that BoringSSL reports."""
    versions = [0x1010107F, 0x300000F0, 0x30100000, 0x40000030, 0x400000F0, 0x40100000]
    wider = []
    monkeypatch.setattr(entropy, "has_instructions", lambda *_: True)
    for version in versions:
        monkeypatch.setattr(backend, "openssl_version_number", lambda version=version: version)
        entropy.gcm_is_wider.cache_clear()
        wider.append(entropy.gcm_is_wider())
    entropy.gcm_is_wider.cache_clear()
    assert wider == [False, False, True, True, True, False]


def test_gcm_makes_long_reads_from_the_start_of_a_group(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only there: under the key of the group, with its number as the nonce."""
    key = Key(os.urandom(32))
    aes_calls = record_aes_calls(key, monkeypatch)
    gcm_calls: list[tuple[bytes, int]] = []
    gcm = entropy._gcm

    def record(secret: bytes, nonce: int) -> object:
        gcm_calls.append((secret, nonce))
        return gcm(secret, nonce)

    monkeypatch.setattr(entropy, "_gcm", record)
    for wide in (False, True):
        monkeypatch.setattr(entropy, "gcm_is_wider", lambda wide=wide: wide)
        for word, number in ((0, 7_000), (6, 10**4), (2 * 10**6, 10**4)):
            read_words(key.stream(word), number)
        assert not gcm_calls
    for word in (0, 1, 4):
        aes_calls.clear()
        read_words(key.stream(word), 10**4)
        assert gcm_calls.pop() == (key._secret, 0)
        assert aes_calls == [(key._secret, word // 2)][: word < 4]
    read_words(key.stream(2 * 2**32 - 2), 10**4)
    assert gcm_calls == [(key._secret_of(1), 1)]


def test_the_check_of_chacha20_has_a_published_block() -> None:
    assert entropy._PUBLISHED[CHACHA20][1] == RFC_8439[0][3]


# The layout. -------------------------------------------------------------------------------------


def test_stream_can_be_entered_at_any_word(cipher: str) -> None:
    key = Key(os.urandom(32), cipher)
    whole = read_words(key.stream(), 200)
    for start in (0, 1, 7, 8, 9, 100):
        np.testing.assert_array_equal(read_words(key.stream(start), 200 - start), whole[start:])


def test_stream_read_in_pieces_is_the_same_stream(cipher: str) -> None:
    key = Key(os.urandom(32), cipher)
    whole = read_words(key.stream(3), 70_000)
    stream = key.stream(3)
    pieces = [read_words(stream, count) for count in (1, 2, 5, 8, 64, 40_000, 29_920)]
    np.testing.assert_array_equal(np.concatenate(pieces), whole)


@pytest.mark.parametrize("group_size", [1, 2, 3, 10, 1000])
def test_every_block_is_where_the_layout_has_it(
    cipher: str, group_size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In many short groups: 120 blocks, entered at several words."""
    secret = os.urandom(32)
    expected = np.frombuffer(
        b"".join(main_block(secret, cipher, block, group_size) for block in range(120)), dtype="<u8"
    )
    monkeypatch.setattr(entropy, "blocks_in_a_group", group_size)
    for start in (0, 1, 2, 15, 16, 17, 79, 80, 81, 160):
        words = read_words(Key(secret, cipher).stream(start), len(expected) - start)
        np.testing.assert_array_equal(words, expected[start:])
    stream = Key(secret, cipher).stream()
    pieces = [read_words(stream, count) for count in (1, 2, 18, 19, 40, 41, len(expected) - 121)]
    np.testing.assert_array_equal(np.concatenate(pieces), expected)


@pytest.mark.parametrize("group", [1, 2, 3])
def test_another_key_or_nonce_follows_after_two_to_the_32_blocks(cipher: str, group: int) -> None:
    secret, per_block = os.urandom(32), words_in_a_block(cipher)
    first = group * 2**32 - 2
    expected = b"".join(main_block(secret, cipher, block) for block in range(first, first + 8))
    for skipped in range(8 * per_block):
        words = read_words(
            Key(secret, cipher).stream(per_block * first + skipped), 8 * per_block - skipped
        )
        assert words.tobytes() == expected[8 * skipped :]


def test_the_keys_of_groups_differ() -> None:
    """From the first key and from each other; the counter does not start again under them."""
    key = Key(os.urandom(32))
    secrets = [key._secret_of(group) for group in (0, 1, 2, 3, 2**31, 2**62)]
    assert len(set(secrets)) == 6
    assert all(len(secret) == 32 for secret in secrets)
    assert secrets[0] == key._secret


@pytest.mark.parametrize("cipher", CIPHERS)
@pytest.mark.parametrize("variates", [1, 2, 3, 4, 5, 16, 17])
def test_further_words_come_from_a_stream_of_their_own(cipher: str, variates: int) -> None:
    secret = os.urandom(32)
    key = Key(secret, cipher)
    for element in (0, 1, 5, 2**32, 2**62, 2**63 - 1):
        for row in (0, 1, 2, 7):
            words = key.further_words(element, variates, row)
            expected = further_words(secret, cipher, element, row * variates, variates)
            np.testing.assert_array_equal(words, expected)


@pytest.mark.parametrize("cipher", CIPHERS)
@pytest.mark.parametrize("variates", [1, 2, 3, 4, 5, 16])
def test_second_words_are_the_first_further_ones(cipher: str, variates: int) -> None:
    """All at once, in any order, twice, and a single element."""
    secret = os.urandom(32)
    reader = Key(secret, cipher).second_words(variates)
    for elements in ([0], [2**63 - 1], [7, 3, 3, 2**40, 0, 2**62 + 1, *range(100, 130)]):
        words = reader(np.array(elements, dtype=np.int64))
        assert words.shape == (len(elements), variates)
        expected = [further_words(secret, cipher, i, 0, variates) for i in elements]
        np.testing.assert_array_equal(words, expected)


def record_aes_calls(key: Key, monkeypatch: pytest.MonkeyPatch) -> list[tuple[bytes, int]]:
    """Return a list that records the key and counter of each AES cipher from now on."""
    calls: list[tuple[bytes, int]] = []
    aes = entropy._aes

    def record(secret: bytes, counter: int) -> object:
        calls.append((secret, counter))
        return aes(secret, counter)

    assert key.cipher == AES
    monkeypatch.setattr(entropy, "_aes", record)
    return calls


def test_no_two_streams_of_aes_meet(monkeypatch: pytest.MonkeyPatch) -> None:
    """The intervals of counters under the first key: main stream, elements, keys of groups.

    A call of N <= 2^63 elements of at most 2^20 uniforms has fewer than 2^50 groups. The stream of
    an element has 2^64 counters. The first 2^63 of the last element are before the keys of groups.
    """
    key = Key(os.urandom(32))
    calls = record_aes_calls(key, monkeypatch)
    read_words(key.stream(2 * (2**32 - 1)), 1)
    elements = [0, 1, 2, 2**62, 2**63 - 2, 2**63 - 1]
    for element in elements:
        key.further_words(element, 1)
    read_words(key.stream(2 * 2**50 * 2**32), 1)
    first, *further, keys, other = calls
    assert [secret for secret, _ in (first, *further, keys)] == [key._secret] * 8
    assert other[0] != key._secret
    starts = [counter for _, counter in further]
    assert [b - a for a, b in pairwise(starts)] == [
        (b - a) * 2**64 for a, b in pairwise(elements)
    ], "each element has 2^64 separate counters"
    intervals = [
        (0, first[1] + 1),
        *((start, start + (2**63 if start == starts[-1] else 2**64)) for start in starts),
        (keys[1], 2**128),
    ]
    assert all(end <= start for (_, end), (start, _) in pairwise(intervals))
    assert intervals[0] == (0, 2**32)


def test_no_two_streams_of_chacha20_meet(monkeypatch: pytest.MonkeyPatch) -> None:
    """Main blocks below 2^127 have nonces below 2^95; elements have nonces from 2^95 on."""
    nonces: list[int] = []
    chacha20 = entropy._chacha20

    def record(secret: bytes, counter: int, nonce: int) -> object:
        nonces.append(nonce)
        return chacha20(secret, counter, nonce)

    monkeypatch.setattr(entropy, "_chacha20", record)
    key = Key(os.urandom(32), CHACHA20)
    read_words(key.stream(0), 1)
    read_words(key.stream(8 * (2**127 - 1)), 1)
    for element in (0, 1, 2**63 - 1):
        key.further_words(element, 4, row=2**33 - 2)  # In the last block of the nonce.
    assert nonces == [0, 2**95 - 1, 2**95, 2**95 + 1, 2**95 + 2**63 - 1]


class ShiftedKey(Key):
    """A key with streams that start shortly before the end of the first group."""

    __slots__ = ()

    def stream(self, word: int = 0) -> KeyStream:
        """Return the stream from a hundred blocks before the end of the group on."""
        return super().stream(word + words_in_a_block(self.cipher) * (2**32 - 100))


@pytest.mark.sample(15)
@pytest.mark.parametrize(
    ("kind", "group_size"),
    [(Key, 2**32), (ShiftedKey, 2**32), (Key, 37)],
    ids=["start", "border", "short groups"],
)
@pytest.mark.parametrize("variates", [1, 3, 4, 5000])
def test_words_do_not_depend_on_chunks_or_threads(
    cipher: str,
    kind: type[Key],
    group_size: int,
    variates: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(entropy, "blocks_in_a_group", group_size)
    key = kind(os.urandom(32), cipher)
    count = 2000 if variates < 1000 else 3
    expected = read_words(key.stream(), count * variates)
    ways = product((1, 40, 4096, 2**16), (None, 1, 2, 3, 7))
    for chunk_words, threads in sample_cases(ways, 8):
        got = np.zeros(count * variates, dtype=np.uint64)

        def prepare(_: int, got: NDArray[np.uint64] = got) -> parallel.Worker:
            def chunk(words: NDArray[np.uint64], start: int, stop: int) -> None:
                got[start * variates : stop * variates] = words

            return chunk

        parallel.run_over_key_stream(
            key, variates, count, prepare, threads, chunk_words=chunk_words
        )
        np.testing.assert_array_equal(got, expected)


@pytest.mark.usefixtures("cipher")
def test_a_read_that_fails_ends_every_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if two threads read one stream in turn: neither waits for the other forever."""
    fill, reads = KeyStream.fill, count()

    def fail_at_tenth(stream: KeyStream, words: NDArray[np.uint64]) -> None:
        if next(reads) == 10:
            raise ArithmeticError
        fill(stream, words)

    monkeypatch.setattr(KeyStream, "fill", fail_at_tenth)
    with pytest.raises(ArithmeticError):
        parallel.run_over_key_stream(
            Key.fresh(), 1, 2**20, lambda _: lambda *_: None, 3, chunk_words=2**13
        )


# Scalar draws. -----------------------------------------------------------------------------------


@pytest.mark.parametrize("cipher", CIPHERS)
@pytest.mark.parametrize("variates", [1, 2, 4])
def test_a_fixed_scalar_draw_is_element_0_of_its_key(cipher: str, variates: int) -> None:
    """The first words come from the key stream, all others from the stream of element 0."""
    secret = os.urandom(32)
    source = fixed_generator(secret, cipher=cipher).source
    first = b"".join(main_block(secret, cipher, block) for block in range(variates))
    second = further_words(secret, cipher, 0, 0, variates).tobytes()
    assert source.scalar_words(variates) == first[: 8 * variates] + second
    for row in (1, 2):
        expected = further_words(secret, cipher, 0, row * variates, variates)
        assert source.further_words(variates, row) == expected.tolist()


def test_scalar_draws_of_the_system_are_fresh() -> None:
    """Two draws of 128 bits repeat with probability 2^-128."""
    assert [len(SYSTEM.scalar_words(variates)) for variates in (1, 2, 4)] == [16, 32, 64]
    assert SYSTEM.scalar_words(1) != SYSTEM.scalar_words(1)
    assert SYSTEM.further_words(2, 1) != SYSTEM.further_words(2, 1)


@pytest.mark.parametrize("cipher", CIPHERS)
def test_a_fixed_generator_says_its_cipher(cipher: str) -> None:
    rng = fixed_generator(bytes(32), cipher=cipher)
    for thing in (rng, rng.source):
        assert cipher in repr(thing)
        assert "protect" in repr(thing)


def test_the_two_ciphers_give_different_noise() -> None:
    aes, chacha20 = (fixed_generator(bytes(32), cipher=cipher) for cipher in CIPHERS)
    mechanism = dpnoise.LaplaceMechanism(epsilon=1.0, sensitivity=1.0)
    assert mechanism.release(0.0, rng=aes) != mechanism.release(0.0, rng=chacha20)
    assert aes.laplace() != chacha20.laplace()
    assert not np.any(aes.laplace(size=50) == chacha20.laplace(size=50))


def test_the_cipher_of_processors_is_aes() -> None:
    assert Key.fresh().cipher == AES
    assert SYSTEM.key().cipher == AES
    assert AES in repr(fixed_generator(bytes(32)))


# What a key reveals. -----------------------------------------------------------------------------


@pytest.mark.parametrize("cipher", CIPHERS)
def test_a_key_shows_nothing(cipher: str) -> None:
    secret = b"correct horse battery staple 123"
    key = Key(secret, cipher)
    source = fixed_generator(secret, cipher=cipher).source
    for thing in (key, key.stream(), source, fixed_generator(secret, cipher=cipher)):
        assert "horse" not in repr(thing)
        assert "horse" not in str(thing)
        assert secret.hex() not in repr(thing)


@pytest.mark.parametrize("cipher", CIPHERS)
@pytest.mark.parametrize("duplicate", [pickle.dumps, copy.copy, copy.deepcopy])
def test_a_key_refuses_to_be_copied(duplicate: object, cipher: str) -> None:
    assert callable(duplicate)
    key, rng = Key(os.urandom(32), cipher), fixed_generator(os.urandom(32), cipher=cipher)
    for thing in (key, key.stream(), rng, rng.source):
        with pytest.raises(SecretError):
            duplicate(thing)


@pytest.mark.parametrize("cipher", CIPHERS)
def test_a_key_of_another_length_is_refused_without_showing_it(cipher: str) -> None:
    with pytest.raises(ArgumentError, match=r"32 bytes, got 5") as caught:
        Key(b"short", cipher)
    assert "short" not in str(caught.value)


@pytest.mark.parametrize("cipher", ["AES", "chacha20", "AES-128-CTR", "", None])
def test_an_unknown_cipher_is_refused(cipher: str) -> None:
    secret = b"correct horse battery staple 123"
    for make in (Key, lambda key, cipher: fixed_generator(key, cipher=cipher)):
        with pytest.raises(ArgumentError, match="cipher") as caught:
            make(secret, cipher)
        assert "horse" not in str(caught.value)


# Nothing repeats. Among 10^4 correct draws a double repeats with probability below 10^-8.


def count_repeats(draws: list[list[float]]) -> int:
    values = [value for draw_of_process in draws for value in draw_of_process]
    return len(values) - len(set(values))


def test_no_repeats_after_fork() -> None:
    rng = dpnoise.Generator()
    draw(rng)
    draws = []
    for _ in range(4):
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            with os.fdopen(writer, "wb") as pipe:
                pickle.dump(draw(rng), pipe)
            os._exit(0)
        os.close(writer)
        with os.fdopen(reader, "rb") as pipe:
            draws.append(pickle.load(pipe))
        os.waitpid(child, 0)
    assert count_repeats([*draws, draw(rng)]) == 0


@pytest.mark.sample(1)
@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_no_repeats_in_processes(method: str) -> None:
    rng = dpnoise.Generator()
    with multiprocessing.get_context(method).Pool(2) as pool:
        draws = pool.map(partial(draw, rng), range(6))
    assert count_repeats([*draws, draw(rng)]) == 0


def test_no_repeats_in_threads() -> None:
    rng = dpnoise.Generator(threads=2)
    with ThreadPoolExecutor(4) as pool:
        draws = list(pool.map(partial(draw, rng), range(8)))
    assert count_repeats(draws) == 0


def test_no_repeats_in_copies_and_children() -> None:
    rng = dpnoise.Generator(threads=3, security_bits=256)
    copies = [pickle.loads(pickle.dumps(rng)), copy.deepcopy(rng), *rng.spawn(3)]
    assert copies == [rng] * 5
    assert count_repeats([draw(copied) for copied in [rng, *copies]]) == 0
