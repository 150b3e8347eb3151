"""Give code that takes a generator bits that nobody can predict: Python's, NumPy's, SciPy's."""

import numpy as np
import scipy.stats

import dpnoise
from dpnoise.integrations.numpy import SecureBitGenerator
from dpnoise.integrations.stdlib import SecureRandom

ROWS = 1000
SAMPLE = 5


def main() -> None:
    """Draw samples, then publish a count: only the release keeps a privacy guarantee."""
    standard = SecureRandom()
    print("random.Random:        ", sorted(standard.sample(range(ROWS), SAMPLE)))

    rng = np.random.Generator(SecureBitGenerator())
    print("numpy.random.Generator:", np.sort(rng.choice(ROWS, SAMPLE, replace=False)))

    drawn = scipy.stats.norm(loc=5).rvs(size=SAMPLE, random_state=rng)
    print("scipy.stats:          ", drawn.round(2))

    mechanism = dpnoise.LaplaceMechanism(epsilon=1.0, sensitivity=1.0)
    print("published count:      ", mechanism.release(ROWS))


if __name__ == "__main__":
    main()
