"""Every number format as input and output of a release: byte order, width, range, no warning."""

import os
from typing import Any

import numpy as np
import pandas as pd
import pytest

import dpnoise
from dpnoise.testing import fixed_generator

FLOATS = ["f2", "f4", "f8"]
INTEGERS = ["i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8"]
SCALES = [1e-30, 1e-3, 1.0, 1e6, 1e30, 1e200]


def make_mechanisms(scale: float, **bounds: Any) -> list[Any]:
    """Return one mechanism of each form that adds noise."""
    return [
        dpnoise.LaplaceMechanism(epsilon=1.0, sensitivity=scale, **bounds),
        dpnoise.GaussianMechanism.for_scale(scale, sensitivity=1.0, **bounds),
    ]


def extremes(kind: str) -> np.ndarray:
    """Return the ends of a format, its numbers next to 0, and a few others."""
    dtype = np.dtype(kind)
    if dtype.kind == "f":
        limits = np.finfo(dtype)
        tiny = [limits.tiny, limits.smallest_subnormal, -limits.smallest_subnormal]
        return np.array([limits.min, limits.max, 0, -1, 2.5, *tiny], dtype)
    ends = np.iinfo(dtype)
    return np.array([ends.min, ends.max, 0, 1, 100], dtype)


@pytest.mark.parametrize("mechanism", make_mechanisms(1.0), ids=repr)
@pytest.mark.parametrize("kind", FLOATS + INTEGERS)
def test_a_release_has_this_machine_s_byte_order_and_the_same_values(
    mechanism: Any, kind: str
) -> None:
    secret, values = os.urandom(32), extremes(kind)
    swapped = values.astype(values.dtype.newbyteorder("S"))
    expected = mechanism.release(values, fixed_generator(secret))
    assert expected.dtype == (np.dtype(kind) if kind in FLOATS else np.dtype(np.int64))
    for value in (swapped, swapped.reshape(-1, 1)[:, 0], np.repeat(swapped, 2)[::2]):
        released = mechanism.release(value, fixed_generator(secret))
        assert released.dtype == expected.dtype
        assert released.dtype.isnative
        assert released.tolist() == expected.tolist()


@pytest.mark.sample(4)
@pytest.mark.parametrize("kind", FLOATS + INTEGERS)
def test_lists_series_and_choices_read_either_byte_order(kind: str) -> None:
    values = np.array([1, 2, 100], kind)
    swapped = values.astype(values.dtype.newbyteorder("S"))
    laplace, secret = dpnoise.LaplaceMechanism(epsilon=1.0, sensitivity=1.0), os.urandom(32)
    for wrap in (lambda array: [array, array], pd.Series, lambda array: array.reshape(1, 3)):
        from_native = laplace.release(wrap(values), fixed_generator(secret))
        from_swapped = laplace.release(wrap(swapped), fixed_generator(secret))
        assert np.asarray(from_swapped).dtype == np.asarray(from_native).dtype
        assert np.asarray(from_swapped).tolist() == np.asarray(from_native).tolist()
    for selection in (
        dpnoise.NoisyMax(epsilon=50.0, sensitivity=1.0),
        dpnoise.ExponentialMechanism(epsilon=50.0, sensitivity=1.0),
    ):
        selected = {
            selection.select(scores, rng=fixed_generator(secret)) for scores in (values, swapped)
        }
        assert selected == {2}


@pytest.mark.parametrize("kind", FLOATS)
def test_a_numpy_float_keeps_its_type(kind: str) -> None:
    for mechanism in make_mechanisms(1.0):
        assert type(mechanism.release(np.dtype(kind).type(1.5))) is np.dtype(kind).type


@pytest.mark.parametrize("kind", INTEGERS)
def test_a_numpy_integer_becomes_a_python_int_without_a_limit(kind: str) -> None:
    """With noise of scale 2^80, a result is within int64 with a probability below 2^-16."""
    secret = bytes(range(32))
    for mechanism in make_mechanisms(2.0**80):
        for end in (np.iinfo(kind).min, np.iinfo(kind).max):
            released = mechanism.release(np.dtype(kind).type(end), fixed_generator(secret))
            assert type(released) is int
            assert released == mechanism.release(int(end), fixed_generator(secret))
            assert abs(released) > 2**63


BOUNDS: list[dict[str, Any]] = [{}, {"lower": -1e30}, {"upper": 3.5e38}, {"upper": 10**30}]


@pytest.mark.sample(83)
@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("kind", FLOATS + INTEGERS)
@pytest.mark.parametrize("bounds", BOUNDS, ids=str)
def test_releases_at_the_ends_of_a_format_saturate_without_a_warning(
    kind: str, scale: float, bounds: dict[str, Any]
) -> None:
    """Warnings are errors in these tests."""
    values = extremes(kind)
    for mechanism in make_mechanisms(scale, **bounds):
        for value in (values, values[0], values[1], values.tolist()):
            released = np.asarray(mechanism.release(value), dtype=object)
            assert np.isfinite(released.astype(np.float64)).all()


@pytest.mark.parametrize("kind", FLOATS)
def test_values_that_are_not_finite_are_refused_without_a_warning(kind: str) -> None:
    for mechanism in make_mechanisms(1.0):
        for bad in (np.inf, -np.inf, np.nan):
            for value in (np.array([1, bad], kind), np.array(bad, kind), np.dtype(kind).type(bad)):
                with pytest.raises(dpnoise.ArgumentError, match="finite"):
                    mechanism.release(value)


@pytest.mark.sample(6)
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("scale", [1e-320, 1.0, 1e300, 1.7e308, np.array([3e38, 1.0], np.float32)])
def test_noise_beyond_the_range_of_a_format_is_drawn_without_a_warning(
    dtype: str, scale: Any
) -> None:
    rng: Any = dpnoise.Generator()
    for draw in (rng.laplace, rng.normal, rng.exponential, rng.gumbel, rng.cauchy):
        noises = [draw(scale=scale, dtype=dtype), draw(scale=scale, size=2, dtype=dtype)]
        out = np.empty(4, dtype)
        draw(scale=scale, out=out[::2])
        assert not any(np.isnan(noise).any() for noise in (*noises, out[::2]))
