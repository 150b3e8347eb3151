"""Check section 3: the paper's 2^(p(n-1)) checks, and its analogy with subset sums."""

import time

import numpy as np

from dpnoise.auditing.attacks.searches import summands
from dpnoise.noise.generator import Generator
from reproduction import preimages
from reproduction.drawing import lines
from reproduction.piece import DIFFERS, SUPERSEDED, Effort, Judgement, Piece, Table
from reproduction.race import CONFIDENCE, Ratio

_RNG = Generator()


def excluded_share(precision: int) -> tuple[float, float]:
    """Return the share of float16 numbers in [1/2, 1) that Theorem 5.1 cannot give.

    The second number is the mean number of preimages. All uniforms are enumerated.
    """
    a = np.sort(summands(precision))
    preimage_counts = np.zeros(2**16, dtype=np.int64)
    for row in a:
        low, high = np.searchsorted(a, (0.49 - row, 1.01 - row))
        sums = (row + a[low:high]).astype(np.float16)
        inside = sums[(sums >= 0.5) & (sums < 1)].view(np.uint16)
        preimage_counts += np.bincount(inside, minlength=2**16)
    candidates = np.arange(0.5, 1.0, 2.0**-11).astype(np.float16).view(np.uint16)
    return float(np.mean(preimage_counts[candidates] == 0)), float(
        np.mean(preimage_counts[candidates])
    )


def wrong_candidate(precision: int) -> float:
    """Return a Laplace-distributed double that Theorem 5.1 cannot give."""
    table = np.sort(summands(precision))
    while True:
        z = float(_RNG.laplace())
        if not preimages.meet_in_the_middle(z, table).preimages:
            return z


def search_costs(effort: Effort) -> Table:
    """Return the checks that exclude a wrong candidate, one by one and meeting in the middle."""
    rows = []
    for p in effort.pick([3, 4, 5, 6, 7], [3, 4]):
        z, table = wrong_candidate(p), np.sort(summands(p))
        one_by_one = preimages.exhaustive(z, p).checks
        meeting = preimages.meet_in_the_middle(z, table).checks
        rows.append((p, 2 ** (3 * p), one_by_one, meeting, len(table)))
    columns = ("p", "the paper's 2^(3p)", "one by one", "meeting in the middle", "entries")
    return Table("Excluding one wrong candidate of Theorem 5.1 in float64", columns, rows)


def exclusions(effort: Effort) -> Table:
    """Return the share of float16 numbers that the theorem excludes, at growing p."""
    rows = [(p, *excluded_share(p)) for p in effort.pick([2, 3, 4, 5, 6], [2, 3, 5])]
    columns = ("p", "share excluded", "preimages of a float")
    return Table("All sums of Theorem 5.1, rounded to float16, in [1/2, 1)", columns, rows)


def preimages_found(draws: int) -> tuple[Ratio, float]:
    """Find a preimage of `draws` doubles at p = 53; return the checks and the seconds of one."""
    preimages.one_preimage(1.0)  # Compiles the search.
    start = time.perf_counter()
    checks = [preimages.one_preimage(z).checks for z in _RNG.laplace(size=draws).tolist()]
    return Ratio(tuple(checks)), (time.perf_counter() - start) / draws


def check_subset_sum(effort: Effort) -> Judgement:
    """Run both searches at small p, count the excluded floats, and invert at p = 53."""
    costs = search_costs(effort)
    effort.progress(0.4)
    shares = exclusions(effort)
    effort.progress(0.8)
    preimage_checks, seconds = preimages_found(effort.pick(2_000, 100))
    bits = np.array(costs.column("p"))
    is_cheaper = costs.column("meeting in the middle") == (2 ** (2 * bits)).tolist()
    share = shares.column("share excluded")
    curves = {
        name: (bits.tolist(), costs.column(name))
        for name in ("the paper's 2^(3p)", "one by one", "meeting in the middle")
    }
    return Judgement(
        SUPERSEDED if is_cheaper and share[0] > 0.5 and share[-1] == 0 else DIFFERS,
        "The subset-sum problem is hard for large sets; here there are n terms, and a meeting in "
        "the middle takes 2^(pn/2) steps where the paper counts 2^(p(n-1)). And as with subset "
        "sums of high density, where an output has many preimages nothing is excluded, at any "
        "cost. At p = 53 that is so from n = 2 on, and one preimage of a double is found after a "
        f"median of {preimage_checks.limits[0]:g} to {preimage_checks.limits[1]:g} checks "
        f"(at confidence {CONFIDENCE:g}; {1e6 * seconds:.0f} microseconds each).",
        [costs, shares],
        lines("subset-sum", curves, "p", "checks, n = 4", log="y"),
    )


PIECES = (
    Piece(
        key="subset-sum",
        title="Section 3: 2^(p(n-1)) checks, and the subset-sum analogy",
        place="Section 3",
        statement="Inverting n uniforms takes in the order of 2^(p(n-1)) checks; like the "
        "NP-complete subset-sum problem it is intractable for large n.",
        check=check_subset_sum,
        code=(
            preimages.exhaustive,
            preimages.meet_in_the_middle,
            preimages.one_preimage,
            excluded_share,
            search_costs,
            check_subset_sum,
        ),
    ),
)
