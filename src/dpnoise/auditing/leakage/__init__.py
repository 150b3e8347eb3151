"""Exact leakage of noise added in small float formats, compared with the exact release."""

from dpnoise.auditing.leakage.laws import (
    FLOAT16,
    FLOAT32,
    Format,
    Law,
    delta,
    ideal_law,
    release_law,
    sampler_law,
    stepwise_law,
)
from dpnoise.auditing.leakage.summary import ReleaseBounds, release_bounds

__all__ = [
    "FLOAT16",
    "FLOAT32",
    "Format",
    "Law",
    "ReleaseBounds",
    "delta",
    "ideal_law",
    "release_bounds",
    "release_law",
    "sampler_law",
    "stepwise_law",
]
