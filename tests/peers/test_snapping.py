"""The granularity of diffprivlib's snapping mechanism: section 2.5 of the paper."""

import warnings

from reproduction import addition
from reproduction.piece import DIFFERS, Effort

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # Warnings of its imports are of no interest.
    import diffprivlib.mechanisms


def test_snapping_at_2_to_the_minus_5_gives_multiples_of_64() -> None:
    """Mironov's mechanism rounds the scale, just above 32, up to a power of two."""
    mechanism = diffprivlib.mechanisms.Snapping(
        epsilon=2.0**-5, sensitivity=1.0, lower=-1024.0, upper=1024.0
    )
    assert 32 < 1 / mechanism.effective_epsilon() < 32.001
    finding = addition.check_snapping(Effort(quick=True))
    assert finding.verdict == DIFFERS
    assert finding.tables[0].column("multiples of") == [64.0, 32.0, 16.0]
