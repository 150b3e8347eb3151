"""Releases against a second implementation, which shares no code with the first."""

import ast
import hashlib
import os
from collections.abc import Sequence
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support import independent
from support.cipher_vectors import CIPHERS, RFC_8439, SP_800_38A
from support.independent import Key

import dpnoise
from dpnoise.core import entropy
from dpnoise.release import exact
from dpnoise.testing import fixed_generator

# The form of each mechanism: for arrays, and for single numbers.
for_arrays = pytest.mark.parametrize(
    ("kind", "form"), [("laplace", "laplace_1"), ("gaussian", "gaussian_pairs")]
)
for_one = pytest.mark.parametrize(
    ("kind", "form"), [("laplace", "laplace_1"), ("gaussian", "gaussian_2")]
)
for_ciphers = pytest.mark.parametrize("cipher", CIPHERS)
# Scale and grid: a fine grid that often needs the reference, the default, a coarse one, limits.
SCALES = [(1.0, 2.0**-42), (3.7, None), (0.3, 2.0), (2.0**-960, 2.0**-1010), (2.0**960, 2.0**920)]


def mechanism(kind: str, scale: float, grid: float | None = None, **options: Any) -> Any:
    if kind == "laplace":
        return dpnoise.LaplaceMechanism(epsilon=1.0, sensitivity=scale, grid=grid, **options)
    return dpnoise.GaussianMechanism.for_scale(scale, sensitivity=1.0, grid=grid, **options)


def values(kind: str, scale: float, count: int) -> Any:
    """Return values near 0, near the scale, of all sizes and at the ends of the format."""
    rng = np.random.default_rng()
    limits = np.finfo(kind)
    with np.errstate(over="ignore", under="ignore"):
        near = (rng.standard_normal(count) * scale).astype(kind)
        sizes = (rng.standard_normal(count) * 2.0 ** rng.integers(-1000, 900, count)).astype(kind)
    ends = np.array([0.0, -0.0, limits.max, limits.min, limits.smallest_subnormal], kind)
    mixed = np.choose(rng.integers(0, 3, count), [near, sizes, rng.choice(ends, count)])
    return np.where(np.isfinite(mixed), mixed, limits.max)


def assert_same(released: Any, expected: list[float]) -> None:
    """Compare to the last bit, and check that no zero is negative."""
    np.testing.assert_array_equal(np.asarray(released, dtype=np.float64), expected)
    assert not np.any(np.signbit(released) & (np.asarray(released) == 0.0))


@pytest.mark.sample(6)
@for_ciphers
@for_arrays
@pytest.mark.parametrize("dtype", independent.FORMATS)
def test_floats_equal_a_second_implementation(
    kind: str, form: str, dtype: str, cipher: str
) -> None:
    """With an odd number of values, in two dimensions."""
    for scale, grid in SCALES:
        mech = mechanism(kind, scale, grid)
        secret, x = os.urandom(32), values(dtype, scale, 15)
        released = mech.release(x.reshape(5, 3), rng=fixed_generator(secret, cipher=cipher))
        assert released.dtype == dtype
        expected = [
            independent.release_float(
                form, Key(secret, cipher), i, float(value), scale, mech.grid, dtype
            )
            for i, value in enumerate(x)
        ]
        assert_same(released.reshape(-1), expected)


@pytest.mark.sample(8)
@for_ciphers
@for_arrays
@pytest.mark.parametrize("count", [1, 2, 7, 120, 121])
def test_chunks_and_threads_equal_a_second_implementation(
    kind: str,
    form: str,
    count: int,
    cipher: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With chunks of a few numbers on three threads, and a new key or nonce every 5 blocks."""
    secret = os.urandom(32)
    key = Key(secret, cipher, group_size=5)
    monkeypatch.setattr(entropy, "blocks_in_a_group", 5)
    mech = mechanism(kind, 1.0, 2.0**-36)
    x = values("float64", 1.0, count)
    integer_values = np.random.default_rng().integers(-(10**6), 10**6, count)
    expected = [
        independent.release_float(form, key, i, float(value), 1.0, mech.grid)
        for i, value in enumerate(x)
    ]
    expected_integers = release_integers(form, key, 1.0, mech.grid, integer_values.tolist())
    for chunk_words, threads in ((8, 3), (13, 2), (2**16, 1)):
        monkeypatch.setattr(exact, "_CHUNK_WORDS", chunk_words)
        rng = partial(fixed_generator, secret, cipher=cipher, threads=threads)
        assert_same(mech.release(x, rng=rng()), expected)
        assert mech.release(integer_values, rng=rng()).tolist() == expected_integers


@for_ciphers
@for_one
def test_scalar_floats_equal_a_second_implementation(kind: str, form: str, cipher: str) -> None:
    """With `lower` and `upper`, and with a generator that makes a new key for each call."""
    secret = os.urandom(32)
    rng = fixed_generator(secret, cipher=cipher)
    for (scale, grid), limits in product(SCALES, [None, (-0.5, 0.75)]):
        bounds = {} if limits is None else {"lower": limits[0], "upper": limits[1]}
        mech = mechanism(kind, scale, grid, **bounds)
        for value in values("float64", scale, 4).tolist():
            released = mech.release(value, rng=rng)
            assert type(released) is float
            expected = independent.release_float(
                form, Key(secret, cipher), 0, value, scale, mech.grid, limits=limits
            )
            assert_same([released], [expected])
            secret = hashlib.blake2b(secret, digest_size=32).digest()


@for_one
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_narrow_scalars_equal_a_second_implementation(kind: str, form: str, dtype: str) -> None:
    secret = os.urandom(32)
    rng = fixed_generator(secret)
    for scale, grid in SCALES[:3]:
        mech = mechanism(kind, scale, grid, lower=-0.5, upper=0.75)
        for value in values(dtype, scale, 4):
            released = mech.release(value, rng=rng)
            assert type(released) is type(value)
            expected = independent.release_float(
                form, Key(secret), 0, float(value), scale, mech.grid, dtype, limits=(-0.5, 0.75)
            )
            assert_same([released], [expected])
            secret = hashlib.blake2b(secret, digest_size=32).digest()


INTEGER_SCALES = [(1.0, None), (0.3, 16.0), (1e19, 2.0**30), (2.0**-960, None), (2.0**70, 2.0**66)]


def release_integers(
    form: str, key: Key, scale: float, grid: float, values: Sequence[int]
) -> list[int]:
    """Return the releases of integers by the second implementation."""
    return [
        independent.release_integer(form, key, i, value, scale, grid)
        for i, value in enumerate(values)
    ]


@for_ciphers
@for_arrays
def test_integers_equal_a_second_implementation(kind: str, form: str, cipher: str) -> None:
    """In lists, without a limit, and in arrays of int64, uint64 and objects, which saturate."""
    rng = np.random.default_rng()
    for scale, grid in INTEGER_SCALES:
        mech = mechanism(kind, scale, grid)
        secret = os.urandom(32)
        ends = [0, -1, 7, 2**63 - 1, -(2**63)]
        x = [*ends, *rng.integers(-1000, 1000, 6).tolist(), *rng.integers(-(2**62), 2**62, 4)]
        x = [int(value) for value in x]
        big = [*x, 2**80 + 8, -(10**40)]
        positive = [abs(value) for value in x]
        fixed = partial(fixed_generator, secret, cipher=cipher)
        release_again = partial(release_integers, form, Key(secret, cipher), scale, mech.grid)
        assert mech.release(big, rng=fixed()) == release_again(big)
        for array in (
            np.array(x, dtype=np.int64),
            np.array(positive, dtype=np.uint64),
            np.array(big, dtype=object),
        ):
            saturated = [min(max(y, -(2**63)), 2**63 - 1) for y in release_again(array.tolist())]
            assert mech.release(array, rng=fixed()).tolist() == saturated


@for_ciphers
@for_one
def test_scalar_integers_equal_a_second_implementation(kind: str, form: str, cipher: str) -> None:
    for scale, grid in INTEGER_SCALES:
        mech = mechanism(kind, scale, grid)
        for value in (0, 5, -7, 2**62, -(2**62) - 1, 2**63 - 1, -(2**63), -(2**90) + 3):
            secret = os.urandom(32)
            released = mech.release(value, rng=fixed_generator(secret, cipher=cipher))
            assert released == independent.release_integer(
                form, Key(secret, cipher), 0, value, scale, mech.grid
            )


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    ("mechanism", "form"),
    [(dpnoise.NoisyMax, "exponential"), (dpnoise.ExponentialMechanism, "gumbel")],
)
def test_selections_equal_a_second_implementation(mechanism: Any, form: str) -> None:
    rng = np.random.default_rng()
    for size in (1.0, 1e-3, 2.0**70):
        for _ in range(10):
            secret = os.urandom(32)
            scores = (size + rng.standard_normal(12)).tolist()
            mech = mechanism(epsilon=0.7, sensitivity=1.0)
            selected = mech.select(scores, rng=fixed_generator(secret))
            assert selected == independent.select(form, Key(secret), scores, mech.scale)


@pytest.mark.parametrize(("key", "counter", "nonce", "expected"), RFC_8439)
def test_its_chacha20_gives_the_published_vectors(
    key: bytes, counter: int, nonce: str, expected: str
) -> None:
    number = int.from_bytes(bytes.fromhex(nonce), "little")
    assert independent.chacha20_block(key, counter, number).hex() == expected


def test_its_aes_gives_the_published_vectors() -> None:
    secret, counter, expected = SP_800_38A
    blocks = [independent.aes_block(bytes.fromhex(secret), int(counter, 16) + k) for k in range(4)]
    assert b"".join(blocks).hex() == expected


def test_it_imports_nothing_of_dpnoise() -> None:
    tree = ast.parse(Path(independent.__file__).read_text())
    imported = {
        name
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
        for name in [getattr(node, "module", None), *(alias.name for alias in node.names)]
    }
    assert "mpmath" in imported
    assert not any("dpnoise" in (name or "") or "flint" in (name or "") for name in imported)
