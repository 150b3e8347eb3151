"""Show that PyDP 1.1.5's Gaussian noise distinguishes 1 from 2. It needs only PyDP.

    pip install python-dp==1.1.5          # Linux on x86-64
    python pydp_gaussian.py

With epsilon = 1 and delta = 10^-6, any set of outputs may be at most e = 2.72 times as likely at 1
as at 2, plus delta. We count the outputs between -1 and 1 that are not a multiple of 2^-52. PyDP
computes the noise as a multiple of 2^-53 and rounds it to a double. Doubles below -1 are multiples
of 2^-52, and only noise below -1 leads from 2 into that interval.
"""

import sys
from collections.abc import Callable

STEP = 2.0**-52
RELEASES = 200_000


def count_outputs(release: Callable[[float], float], value: float, n: int) -> int:
    """Count the outputs between -1 and 1 that are not a multiple of the step."""
    outputs = (release(value) for _ in range(n))
    return sum(-1 < y < 1 and not (y / STEP).is_integer() for y in outputs)


def main() -> None:
    """Print the counts at both values."""
    try:
        from pydp.algorithms.numerical_mechanisms import (  # noqa: PLC0415 - it may be missing
            GaussianMechanism,
        )
    except ImportError as error:
        sys.exit(f"This needs PyDP: pip install python-dp==1.1.5 ({error})")
    release = GaussianMechanism(1.0, 1e-6, 1.0).add_noise
    at_1, at_2 = (count_outputs(release, value, RELEASES) for value in (1.0, 2.0))
    print(f"of {RELEASES:,} releases of 1: {at_1:,}; of {RELEASES:,} releases of 2: {at_2:,}")


if __name__ == "__main__":
    main()
