"""What noise added in floats leaks, exactly, in small formats; and the exact release beside it."""

from dpnoise.auditing.leakage.curves import ReleaseBounds, delta, release_bounds, released
from dpnoise.auditing.leakage.laws import FLOAT16, FLOAT32, Format, Law, machine, own, perfect

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
