"""Exact leakage of noise added in small float formats, compared with the exact release."""

from dpnoise.auditing.leakage.laws import (
    FLOAT16,
    FLOAT32,
    Format,
    Law,
    delta,
    machine,
    own,
    perfect,
    released,
)
from dpnoise.auditing.leakage.report import ReleaseBounds, release_bounds

__all__ = [
    "FLOAT16",
    "FLOAT32",
    "Format",
    "Law",
    "ReleaseBounds",
    "delta",
    "machine",
    "own",
    "perfect",
    "release_bounds",
    "released",
]
