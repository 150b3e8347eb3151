"""Releases against a second implementation, which shares no code with the first."""

import ast
import hashlib
import os
from pathlib import Path
from typing import Any

import independent
import numpy as np
import pytest
from test_entropy import RFC_8439

import dpnoise
from dpnoise.testing import fixed_generator

FORMS = ["laplace_1", "laplace_4", "gaussian_2", "gaussian_4"]
# Scale and grid: much left to the slow path, the default grid, a coarse one, and the limits.
SCALES = [(1.0, 2.0**-42), (3.7, None), (0.3, 2.0), (2.0**-960, 2.0**-1010), (2.0**960, 2.0**920)]


def mechanism(form: str, scale: float, grid: float | None = None, **options: Any) -> Any:
    given: dict[str, Any] = {"variates": int(form[-1]), "grid": grid, **options}
    if form.startswith("laplace"):
        return dpnoise.LaplaceMechanism(1.0, scale, **given)
    return dpnoise.GaussianMechanism.for_scale(scale, sensitivity=1.0, **given)


def values(kind: str, scale: float, count: int) -> Any:
    """Return values near 0, near the scale, of all sizes and at the ends of the format."""
    rng = np.random.default_rng()
    limits = np.finfo(kind)
    with np.errstate(over="ignore", under="ignore"):
        near = (rng.standard_normal(count) * scale).astype(kind)
        sizes = (rng.standard_normal(count) * 2.0 ** rng.integers(-1000, 900, count)).astype(kind)
    ends = np.array([0.0, -0.0, limits.max, limits.min, limits.smallest_subnormal], kind)
    chosen = np.choose(rng.integers(0, 3, count), [near, sizes, rng.choice(ends, count)])
    return np.where(np.isfinite(chosen), chosen, limits.max)


def assert_same(released: Any, expected: list[float]) -> None:
    """Compare to the last bit; no zero has a sign."""
    np.testing.assert_array_equal(np.asarray(released, dtype=np.float64), expected)
    assert not np.any(np.signbit(released) & (np.asarray(released) == 0.0))


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kind", independent.FORMATS)
def test_floats_are_those_of_a_second_implementation(form: str, kind: str) -> None:
    for scale, grid in SCALES:
        mech = mechanism(form, scale, grid)
        secret, x = os.urandom(32), values(kind, scale, 25)
        released = mech.release(x.reshape(5, 5), rng=fixed_generator(secret))
        assert released.dtype == kind
        expected = [
            independent.release_float(form, secret, i, float(value), scale, mech.grid, kind)
            for i, value in enumerate(x)
        ]
        assert_same(released.reshape(-1), expected)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kind", independent.FORMATS)
def test_scalar_floats_are_those_of_a_second_implementation(form: str, kind: str) -> None:
    """With `lower` and `upper`, and of a generator that makes a new key for each call."""
    secret = os.urandom(32)
    rng = fixed_generator(secret)
    for scale, grid in SCALES[:3]:
        mech = mechanism(form, scale, grid, lower=-0.5, upper=0.75)
        for value in values(kind, scale, 4):
            given = float(value) if kind == "float64" else value
            released = mech.release(given, rng=rng)
            assert type(released) is type(given)
            expected = independent.release_float(
                form, secret, 0, float(value), scale, mech.grid, kind, limits=(-0.5, 0.75)
            )
            assert_same([released], [expected])
            secret = hashlib.blake2b(secret, digest_size=32).digest()


@pytest.mark.parametrize("form", FORMS)
def test_integers_are_those_of_a_second_implementation(form: str) -> None:
    """In lists, without a limit; in arrays of int64 and of objects, which saturate; one by one."""
    rng = np.random.default_rng()
    for scale, grid in [(1.0, None), (0.3, 16.0), (1e19, 2.0**30), (2.0**-960, None)]:
        mech = mechanism(form, scale, grid)
        secret = os.urandom(32)
        ends = [0, -1, 7, 2**63 - 1, -(2**63)]
        x = [*ends, *rng.integers(-1000, 1000, 25).tolist(), *rng.integers(-(2**62), 2**62, 10)]
        x = [int(value) for value in x]
        big = [*x, 2**80 + 8, -(10**40)]
        expected = [
            independent.release_integer(form, secret, i, value, scale, mech.grid)
            for i, value in enumerate(big)
        ]
        assert mech.release(big, rng=fixed_generator(secret)) == expected
        saturated = [min(max(y, -(2**63)), 2**63 - 1) for y in expected]
        for array in (np.array(x, dtype=np.int64), np.array(big, dtype=object)):
            released = mech.release(array, rng=fixed_generator(secret)).tolist()
            assert released == saturated[: len(array)]
        for value in (5, -(2**90)):
            one = mech.release(value, rng=fixed_generator(secret))
            assert one == independent.release_integer(form, secret, 0, value, scale, mech.grid)


@pytest.mark.parametrize(
    ("mechanism", "form"),
    [(dpnoise.NoisyMax, "exponential"), (dpnoise.ExponentialMechanism, "gumbel")],
)
def test_selections_are_those_of_a_second_implementation(mechanism: Any, form: str) -> None:
    rng = np.random.default_rng()
    for size in (1.0, 1e-3, 2.0**70):
        for _ in range(10):
            secret = os.urandom(32)
            scores = (size + rng.standard_normal(12)).tolist()
            mech = mechanism(0.7, 1.0)
            chosen = mech.select(scores, rng=fixed_generator(secret))
            assert chosen == independent.select(form, secret, scores, mech.scale)


@pytest.mark.parametrize(("key", "counter", "nonce", "expected"), RFC_8439)
def test_its_cipher_gives_the_published_vectors(
    key: bytes, counter: int, nonce: str, expected: str
) -> None:
    number = int.from_bytes(bytes.fromhex(nonce), "little")
    assert independent.block(key, counter, number).hex() == expected


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
