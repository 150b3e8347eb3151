"""PyDP 1.1.5's Gaussian noise tells 1 from 2: a reproduction that needs PyDP alone.

    pip install python-dp==1.1.5          # Linux on x86-64
    python pydp_gaussian.py

A mechanism of epsilon = 1 and delta = 10^-6 may give any set of outputs at 1 at most e = 2.72 times
as often as at 2, plus delta. The set looked at: outputs between -1 and 1 that are no multiple of
2^-52. The noise is made as a multiple of 2^-53 and then rounded to a double, which beyond -1 has
multiples of 2^-52 alone. Only noise beyond -1 leads from 2 into that interval.
"""

import sys
from collections.abc import Callable

STEP = 2.0**-52
RELEASES = 200_000


def seen(release: Callable[[float], float], value: float, n: int) -> int:
    """Count the outputs between -1 and 1 that are no multiple of the step."""
    outputs = (release(value) for _ in range(n))
    return sum(-1 < y < 1 and not (y / STEP).is_integer() for y in outputs)


def main() -> None:
    """Count both, and print them."""
    try:
        from pydp.algorithms.numerical_mechanisms import (  # noqa: PLC0415 - it may be missing
            GaussianMechanism,
        )
    except ImportError as error:
        sys.exit(f"This needs PyDP: pip install python-dp==1.1.5 ({error})")
    release = GaussianMechanism(1.0, 1e-6, 1.0).add_noise
    at_1, at_2 = (seen(release, value, RELEASES) for value in (1.0, 2.0))
    print(f"of {RELEASES:,} releases of 1: {at_1:,}; of {RELEASES:,} releases of 2: {at_2:,}")


if __name__ == "__main__":
    main()
