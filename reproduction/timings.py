"""Figure 2 and the claims about time.

Times differ between machines and between runs. Each verdict is about one run, by a rule that it
states, at a confidence that it states. If the limits straddle the rule, it is inconclusive.
"""

from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise

import numpy as np

from dpnoise.noise.distributions import Gaussian
from dpnoise.noise.generator import Generator
from dpnoise.noise.inversion import inversion_cost
from reproduction import samplers
from reproduction.drawing import lines
from reproduction.piece import Effort, Judgement, Piece, Table
from reproduction.race import Contender, Ratio, columns, combine_verdicts, race

_RNG = Generator(threads=1)
_ARRAY_SIZE = 20_000


# Figure 2 ----------------------------------------------------------------------------------------


def check_figure_2(effort: Effort) -> Judgement:
    """Time one Laplace variate against n, as in the paper and as dpnoise draws it."""
    counts = effort.pick([1, 2, 4, 8, 16, 32, 64, 128], [1, 4])
    sweep: dict[str, Callable[[int], Contender]] = {
        "math and random": lambda n: Contender(partial(samplers.math_and_random, n)),
        "NumPy": lambda n: Contender(partial(samplers.with_numpy, n)),
        "dpnoise, one a call": lambda n: Contender(partial(_RNG.laplace, variates=8 * n)),
        "dpnoise, arrays": lambda n: Contender(
            partial(_RNG.laplace, size=_ARRAY_SIZE, variates=8 * n), _ARRAY_SIZE
        ),
    }
    fixed = {"naive": Contender(samplers.naive), "Theorem 5.1": Contender(samplers.theorem)}
    at_n = {(name, n): make(n) for name, make in sweep.items() for n in counts}
    times = race(fixed | {f"{name} {n}": c for (name, n), c in at_n.items()}, effort, 0.003)
    curves = {name: [times.microseconds(f"{name} {n}") for n in counts] for name in sweep}
    flat = {name: [times.microseconds(name)] * len(counts) for name in fixed}
    rows = [(n, *(curve[i] for curve in (flat | curves).values())) for i, n in enumerate(counts)]
    last = counts[-1]
    costly = times.ratio(f"math and random {last}", f"NumPy {last}")
    steps = [
        times.ratio(f"math and random {b}", f"math and random {a}") for a, b in pairwise(counts)
    ]
    slowest = min(steps, key=lambda step: step.median)
    return Judgement(
        combine_verdicts([costly.judge(low=3), *(step.judge(low=1) for step in steps)]),
        f"Python's loop takes {costly.describe(3)} times as long as NumPy at n = {last} (confirmed "
        f"above 3), and grows at every step of n, by {slowest.describe(1)} times or more "
        "(confirmed if "
        "every step is above 1). dpnoise's scalar calls draw from the operating system, its arrays "
        f"from AES-256; the others from a Mersenne Twister. {times.conditions()}",
        [
            Table(
                "Microseconds for one variate; n is the listings', and dpnoise takes 8n uniforms",
                ("n", *flat, *curves),
                rows,
            )
        ],
        lines(
            "figure-2",
            {name: (counts, curve) for name, curve in (flat | curves).items()},
            "n",
            "microseconds for one variate",
            log="xy",
        ),
    )


# The claims around it ----------------------------------------------------------------------------


def check_twice(effort: Effort) -> Judgement:
    """Time Theorem 5.1 against naive sampling."""
    contenders = {
        "naive": Contender(samplers.naive),
        "Theorem 5.1": Contender(samplers.theorem),
        "dpnoise, one a call": Contender(_RNG.laplace),
    }
    times = race(contenders, effort)
    ratio = times.ratio("Theorem 5.1", "naive")
    return Judgement(
        ratio.judge(1.5, 2.5),
        f"Four uniforms took {ratio.describe(1.5, 2.5)} times as long as one "
        "(confirmed between 1.5 "
        f"and 2.5). {times.conditions()}",
        [Table("One variate", columns("naive"), times.rows("naive"))],
    )


def check_products(effort: Effort) -> Judgement:
    """Time the two Gaussian forms, in Python and in arrays."""
    arrays = {
        f"dpnoise, {form}": Contender(
            partial(_RNG.laplace, size=_ARRAY_SIZE, form=form, variates=4), _ARRAY_SIZE
        )
        for form in ("squares", "products")
    }
    python = {
        "squares": Contender(samplers.squares),
        "products": Contender(samplers.products_in_turn),
    }
    times = race(python | arrays, effort)
    ratio = times.ratio("squares", "products")
    ours = times.ratio("dpnoise, squares", "dpnoise, products")
    return Judgement(
        ratio.judge(low=1),
        f"Squares took {ratio.describe(1)} times as long as products in Python "
        "(confirmed above 1), "
        f"{ours.describe(1)} times in compiled arrays: nearly all of the work is in the Gaussians. "
        f"{times.conditions()}",
        [Table("One variate", columns("products"), times.rows("products"))],
    )


def check_arrays(effort: Effort) -> Judgement:
    """Time NumPy's arrays against naive sampling, for each variate."""
    contenders = {"naive, one a call": Contender(samplers.naive)}
    for n in (1, 2, 4):
        contenders[f"NumPy arrays, n = {n}"] = Contender(
            partial(samplers.numpy_arrays, _ARRAY_SIZE, n), _ARRAY_SIZE
        )
    contenders["dpnoise arrays, Theorem 5.1"] = Contender(
        partial(_RNG.laplace, size=_ARRAY_SIZE), _ARRAY_SIZE
    )
    times = race(contenders, effort)
    ratio = times.ratio("NumPy arrays, n = 1", "naive, one a call")
    at_4 = times.ratio("NumPy arrays, n = 4", "naive, one a call")
    return Judgement(
        ratio.judge(high=1),
        f"A variate in a NumPy array took {ratio.describe(1)} times as long as naive sampling "
        "at n = 1 (confirmed below 1). Each variate takes 8n Gaussians, so the advantage is lost "
        f"as n grows: at n = 4 it took {at_4.describe(1)} times as long. {times.conditions()}",
        [
            Table(
                f"One variate of {_ARRAY_SIZE:,}",
                columns("naive"),
                times.rows("naive, one a call"),
            )
        ],
    )


def check_halved(effort: Effort) -> Judgement:
    """Time Theorem 5.1 against the products of Box-Muller pairs."""
    contenders = {
        "products of Box-Muller pairs": Contender(samplers.products),
        "Theorem 5.1": Contender(samplers.theorem),
    }
    times = race(contenders, effort)
    ratio = times.ratio("products of Box-Muller pairs", "Theorem 5.1")
    return Judgement(
        ratio.judge(1.5, 2.5),
        f"Theorem 5.1 was {ratio.describe(1.5, 2.5)} times as fast (confirmed between 1.5 and 2.5; "
        f"above it, the claim is too modest). {times.conditions()}",
        [Table("One variate", columns("Theorem 5.1"), times.rows("Theorem 5.1"))],
    )


def check_polar(effort: Effort) -> Judgement:
    """Time Box-Muller and its polar variant, both in plain Python, for one Gaussian."""
    contenders = {
        "Box-Muller, a pair": Contender(samplers.box_muller_pair, 2),
        "polar method, a pair": Contender(samplers.polar_pair, 2),
        "random.gauss": Contender(samplers.gauss),
        "random.normalvariate": Contender(samplers.normalvariate),
    }
    times = race(contenders, effort)
    ratio = times.ratio("polar method, a pair", "Box-Muller, a pair")
    return Judgement(
        ratio.judge(low=1),
        f"Without sine and cosine, but with a loop that rejects, a Gaussian took "
        f"{ratio.describe(1)} "
        "times as long in Python (confirmed above 1). The loop also makes the time depend on the "
        f"noise, unlike that of Box-Muller. {times.conditions()}",
        [Table("One Gaussian", columns("Box-Muller"), times.rows("Box-Muller, a pair"))],
    )


def _explained_share(counts: Sequence[int], times: Sequence[float]) -> float:
    """Return the share of the variance of times that a line in n explains."""
    slope, offset = np.polyfit(counts, times, 1)
    residuals = np.array(times) - slope * np.array(counts) - offset
    return float(1 - np.var(residuals) / np.var(times))


def check_linear(effort: Effort) -> Judgement:
    """Fit a line to the time of a Gaussian against n, and list the paper's exponents."""
    counts = effort.pick([2, 4, 8, 16, 32, 64, 128, 256], [2, 4, 8])
    size = effort.pick(_ARRAY_SIZE, 2_000)
    contenders = {
        str(n): Contender(partial(_RNG.normal, size=size, variates=n), size) for n in counts
    }
    times = race(contenders, effort)
    nanoseconds = [1e3 * times.microseconds(str(n)) for n in counts]
    slope = float(np.polyfit(counts, nanoseconds, 1)[0])
    power = float(np.polyfit(np.log(counts), np.log(nanoseconds), 1)[0])
    rounds = zip(*(times.seconds[str(n)] for n in counts), strict=True)
    fit = Ratio(tuple(_explained_share(counts, seconds) for seconds in rounds))
    steps = [times.ratio(str(b), str(a)).judge(low=1) for a, b in pairwise(counts)]
    rows = [
        (n, t, t / n, inversion_cost(53, n, distribution=Gaussian()).paper)
        for n, t in zip(counts, nanoseconds, strict=True)
    ]
    return Judgement(
        combine_verdicts([fit.judge(low=0.98), *steps]),
        f"A line of {slope:.2f} ns for each uniform explains {fit.describe(0.98)} of the "
        "differences "
        "(confirmed from 0.98 on, and if every step of n takes longer; as a power of n the time "
        f"grows with exponent {power:.2f}). The paper's figure for the attack is 2^(p(n-1)); "
        f"'subset-sum' shows why it is superseded. {times.conditions()}",
        [
            Table(
                "One Gaussian of n uniforms, in arrays",
                ("n", "nanoseconds", "nanoseconds / n", "the paper's exponent, p = 53"),
                rows,
            )
        ],
        lines("linear", {"dpnoise, arrays": (counts, nanoseconds)}, "n", "nanoseconds", log="xy"),
    )


PIECES = (
    Piece(
        key="2",
        title="Figure 2: time for one Laplace variate against n",
        place="Section 5.3, Figure 2, appendix B",
        statement="Sampling with math and random is costly for large n, because of Python's loops; "
        "NumPy stays fast.",
        check=check_figure_2,
        code=(
            samplers.naive,
            samplers.theorem,
            samplers.math_and_random,
            samplers.with_numpy,
            check_figure_2,
        ),
    ),
    Piece(
        key="twice",
        title="Theorem 5.1 takes twice the naive time",
        place="Section 5.3",
        statement="With four times as many uniforms, Theorem 5.1 takes only twice as long as naive "
        "sampling from one.",
        check=check_twice,
        code=(samplers.naive, samplers.theorem, check_twice),
    ),
    Piece(
        key="products",
        title="Products are faster than squares",
        place="Section 5.2, equations (9) and (10)",
        statement="Of the two forms in four Gaussians, the products are the faster one: squares "
        "need two more multiplications.",
        check=check_products,
        code=(samplers.squares, samplers.products_in_turn, check_products),
    ),
    Piece(
        key="arrays",
        title="NumPy arrays beat naive sampling, at n = 1",
        place="Section 5.3",
        statement="NumPy draws many variates at once, in less time for each than naive sampling.",
        check=check_arrays,
        code=(samplers.numpy_arrays, check_arrays),
    ),
    Piece(
        key="halved",
        title="Remark 2: half the time",
        place="Remark 2",
        statement="Theorem 5.1 takes half the time of sampling with Box-Muller pairs.",
        check=check_halved,
        code=(samplers.products, samplers.theorem, check_halved),
    ),
    Piece(
        key="linear",
        title="Time is linear in n, the figure for the attack exponential",
        place="Sections 3 and 5.1",
        statement="The time to draw grows linearly with the number n of uniforms, the attack's "
        "2^(p(n-1)) checks exponentially.",
        check=check_linear,
        code=(samplers.gaussian_sum, check_linear),
    ),
    Piece(
        key="polar",
        title="Section 5: Box-Muller and its polar variant in Python",
        place="Section 5, introduction",
        statement="Variants of Box-Muller that avoid its costly functions are for low-level "
        "languages: in high-level ones the added complexity can slow them down.",
        check=check_polar,
        code=(samplers.box_muller_pair, samplers.polar_pair, check_polar),
    ),
)
