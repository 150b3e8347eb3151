"""What noise added in floats leaks, exactly, in small formats; and the exact release beside it."""

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
