"""Run the attacks against the installed libraries: `make attacks`.

The results are written to docs/attacks.md, one table between marks for each section.
"""

import math
import platform
import random
import statistics
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from marks import measured_with, write_between_marks
from numpy.typing import NDArray

from dpnoise import Generator, inversion_cost
from dpnoise.auditing import targets
from dpnoise.auditing.attacks import ATTACKS, searches
from dpnoise.auditing.attacks.base import MISFIT
from dpnoise.auditing.attacks.searches import MeetInTheMiddle
from dpnoise.auditing.processes import SIDE_CHANNEL_CHECKS
from dpnoise.auditing.targets import adapters
from dpnoise.auditing.targets.target import installed_version
from dpnoise.auditing.wording import bound_text
from dpnoise.kernels import variates
from dpnoise.noise.inversion import PRECISIONS
from reproduction import preimages
from reproduction.reconstruction import reconstruct

Floats = NDArray[np.float64]

DOCS = Path(__file__).parent.parent / "docs"
PAGE = DOCS / "attacks.md"
BEYOND = DOCS / "beyond-the-paper.md"
SECONDS_IN_A_YEAR = 365.25 * 86_400

# Targets and epsilons for each attack: first the ones it breaks, then the ones it must not break.
RUNS: dict[str, list[tuple[str, tuple[float, ...]]]] = {
    "mironov": [
        ("numpy.laplace", (1.0, 0.1, 1e-4)),
        ("numpy.RandomState.laplace", (1.0,)),
        ("scipy.laplace", (1.0,)),
        ("random.laplace", (1.0,)),
        ("paper.laplace", (1.0,)),
        ("pydp.laplace", (1.0,)),
        ("dpnoise.release", (1.0,)),
    ],
    "pair": [
        ("random.gauss", (1.0, 0.1)),
        ("numpy.RandomState.normal", (1.0,)),
        ("scipy.norm", (1.0,)),
        ("torch.normal", (1.0, 0.1)),
        ("torch.normal.float64", (1.0,)),
        ("opacus", (1.0,)),
        ("pydp.gaussian", (1.0,)),
        ("dpnoise.release.gaussian", (1.0,)),
    ],
    "gaussian-search": [("paper.gaussian.12bits", (1.0, 0.1))],
    "middle": [("paper.theorem.8bits", (1.0, 0.1))],
    "precision": [
        ("numpy.laplace", (1.0, 0.1)),
        ("numpy.normal", (1.0,)),
        ("torch.laplace", (1.0,)),
        ("jax.normal", (1.0,)),
        ("diffprivlib.Laplace", (1.0, 0.1)),
        ("diffprivlib.GaussianAnalytic", (1.0,)),
        ("dpnoise.laplace", (1.0,)),
        ("pydp.gaussian", (1.0,)),
        ("diffprivlib.Snapping", (1.0,)),
        ("opendp.laplace", (1.0,)),
        ("pydp.laplace", (1.0,)),
        ("dpnoise.release", (1.0,)),
    ],
    "feasibility": [
        ("diffprivlib.Laplace", (1.0, 0.1)),
        ("diffprivlib.GaussianAnalytic", (1.0,)),
        ("dpnoise.laplace", (1.0, 0.3, 0.1, 0.01)),
        ("numpy.normal", (1.0, 0.1)),
        ("torch.normal", (1.0,)),
        ("pydp.laplace", (1.0,)),
        ("dpnoise.release", (1.0,)),
    ],
    "bits": [
        ("numpy.laplace", (1.0, 0.1)),
        ("jax.laplace", (1.0,)),
        ("diffprivlib.GaussianAnalytic", (1.0,)),
        ("opendp.laplace", (1.0,)),
        ("dpnoise.release", (1.0,)),
    ],
    "threshold": [
        ("half the noise", (1.0, 0.1)),
        ("numpy.laplace", (1.0,)),
        ("pydp.laplace", (1.0,)),
        ("dpnoise.release", (1.0,)),
    ],
    "table": [("jax.normal", (1.0, 0.1)), ("jax.laplace", (1.0,)), ("torch.laplace", (1.0,))],
    "key-search": [("jax_privacy", (1.0,)), ("jax.normal", (1.0,))],
    "twister": [
        ("numpy.RandomState.laplace", (1.0,)),
        ("scipy.laplace", (1.0,)),
        ("random.laplace", (1.0,)),
        ("numpy.laplace", (1.0,)),
        ("dpnoise.laplace", (1.0,)),
    ],
    "ziggurat": [("numpy.normal", (1.0, 0.1)), ("dpnoise.release.gaussian", (1.0,))],
    "sensitivity": [("numpy.sum", (1.0, 0.1))],
}
OBSERVED_TARGETS: dict[str, list[str]] = {
    "forked": [
        "numpy.laplace",
        "random.gauss",
        "pydp.laplace",
        "opendp.laplace",
        "diffprivlib.Laplace",
        "dpnoise.laplace",
        "dpnoise.release",
    ],
    "restarted": ["numpy.laplace", "dpnoise.release"],
    "timed": ["diffprivlib.GaussianDiscrete", "pydp.laplace", "dpnoise.release"],
    "phased": ["random.gauss", "numpy.RandomState.normal", "dpnoise.normal"],
}


def attack_rows(name: str) -> Iterator[str]:
    """Run one attack on its targets, and yield its table."""
    yield "| target | version | epsilon | event seen at 0 | at 1 | certified epsilon | seconds |"
    yield "|---|---|---|---|---|---|---|"
    available, notes = split_by_availability([target_name for target_name, _ in RUNS[name]])
    for target_name, epsilons in RUNS[name]:
        for epsilon in epsilons if target_name in available else ():
            attack = ATTACKS[name]()
            claims = {"epsilon": epsilon, "delta": 1e-6, "sensitivity": 1.0}
            is_listed = target_name in targets.names()
            target = (
                targets.make_target(target_name, **claims) if is_listed else attack.target(**claims)
            )
            started = time.perf_counter()
            outcome = attack(target)
            seconds = time.perf_counter() - started
            certified = outcome.epsilon_lower(1e-6 if target.noise == "gaussian" else 0.0)
            result = bound_text(certified, epsilon)
            if certified > epsilon:
                result = f"**{result}**"
            elif not outcome.independent:
                result = "**state recovered**" if outcome.at0.hits else "not recovered"
            rates = f"{outcome.at0.rate:.2%} | {outcome.at1.rate:.2%}"
            if outcome.event.startswith(MISFIT):
                rates, result = "not counted | not counted", "model does not fit"
            version = version_of(target_name, target)
            yield (
                f"| {target_name} | {version} | {epsilon:g} | {rates} | {result} | {seconds:.1f} |"
            )
    yield from notes


def version_of(name: str, target: targets.Target) -> str:
    """Return the version of the package that a target calls, or that it is our own code."""
    package = name.partition(".")[0]
    if package in sys.stdlib_module_names:
        return f"Python {platform.python_version()}"
    return target.version or installed_version(package) or "our code"


def split_by_availability(names: list[str]) -> tuple[list[str], list[str]]:
    """Return the targets that have a build for this machine, and notes about the others."""
    missing = {name: why for name, why in targets.unavailable_targets().items() if name in names}
    notes = (
        [f"Not run: {', '.join(missing)}. Note: {next(iter(missing.values()))}"] if missing else []
    )
    return [name for name in names if name not in missing], ["", *notes] if notes else []


def look_rows(name: str) -> Iterator[str]:
    """Yield the table of one side channel, observed in several processes."""
    yield "| target | version | found | seen |"
    yield "|---|---|---|---|"
    available, notes = split_by_availability(OBSERVED_TARGETS[name])
    for target_name in available:
        target = targets.make_target(target_name)
        observation = SIDE_CHANNEL_CHECKS[name].check(target)
        verdict = "**yes**" if observation.found else "no"
        version = version_of(target_name, target)
        yield f"| {target_name} | {version} | {verdict} | {observation.words} |"
    yield from notes


def reconstruction_rows() -> Iterator[str]:
    """Reconstruct a column of 10,000 values, each one of 100 candidates."""
    yield "| values | candidates | epsilon | recovered | queries for all | on average |"
    yield "|---|---|---|---|---|---|"
    rng = np.random.default_rng()
    column = rng.integers(0, 100, 10_000).astype(np.float64)
    for epsilon in (1.0, 0.01, 1e-4):
        scale = 1 / epsilon
        query = partial(_release_column, rng, column, scale)
        reconstruction = reconstruct(query, range(100), scale)
        recovered = int((reconstruction.values == column).sum())
        yield (
            f"| 10,000 | 100 | {epsilon:g} | {recovered:,} | {reconstruction.queries} "
            f"| {reconstruction.needed.mean():.1f} |"
        )


def _release_column(rng: np.random.Generator, column: Floats, scale: float) -> Floats:
    return column + rng.laplace(scale=scale, size=len(column))


def search_rows() -> Iterator[str]:
    """Count the checks of the search for a single variate, over U1 and over U2."""
    yield "| p | variates | checks over U1 / 2^p | paper | over U2 / 2^p | here | recovered |"
    yield "|---|---|---|---|---|---|---|"
    rng = np.random.default_rng()
    for precision in (8, 12, 16, 20, 24):
        count = max(20, min(2_000, 2**26 >> precision))
        checks_over_U1, checks_over_U2, recovered = [], [], 0
        for _ in range(count):
            U1, U2 = rng.integers(1, 2**precision, 2) / 2.0**precision
            n1 = searches.gaussian_of_uniforms(U1, U2)
            over_U1 = preimages.gaussian_preimages(n1, precision, "U1")
            over_U2 = preimages.gaussian_preimages(n1, precision, "U2")
            checks_over_U1.append(over_U1.checks / 2**precision)
            checks_over_U2.append(over_U2.checks / 2**precision)
            recovered += (U1, U2) in over_U1.preimages
        error = statistics.stdev(checks_over_U1) / count**0.5
        yield (
            f"| {precision} | {count:,} | {statistics.mean(checks_over_U1):.3f} ± {error:.3f} "
            f"| 2^(-1/2) = 0.707 | {statistics.mean(checks_over_U2):.4f} | 2^(-2) = 0.25 "
            f"| {recovered / count:.1%} |"
        )


def cost_rows() -> Iterator[str]:
    """Measure the cost of excluding candidates of Theorem 5.1, and extrapolate to larger p."""
    yield "| p | search | steps to exclude | formula | seconds | at p = 24 | at p = 53 |"
    yield "|---|---|---|---|---|---|---|"
    z = 0.7  # At these precisions it is not a sum of two summands.
    preimages.exhaustive(z, 4)
    preimages.meet_in_the_middle(z, np.sort(searches.summands(4)))
    for precision, name in ((8, "one by one"), (8, "in the middle"), (11, "in the middle")):
        cost = inversion_cost(precision, 4, dtype="float64")
        formula = cost.exhaustive if name == "one by one" else cost.meet_in_the_middle
        ordered = np.sort(searches.summands(precision))
        started = time.perf_counter()
        if name == "one by one":
            result = preimages.exhaustive(z, precision)
        else:
            result = preimages.meet_in_the_middle(z, ordered)
        seconds = time.perf_counter() - started
        assert not result.preimages, "z has a preimage: choose another"  # noqa: S101
        yield (
            f"| {precision} | {name} | {result.checks:,} | 2^{formula:g} | {seconds:.3f} "
            + "".join(f"| {format_years(result.checks / seconds, name, p)} " for p in (24, 53))
            + "|"
        )


def format_years(rate: float, name: str, precision: int) -> str:
    """Extrapolate the duration of a search from its steps per second."""
    cost = inversion_cost(precision, 4, dtype="float64")
    bits = cost.exhaustive if name == "one by one" else cost.meet_in_the_middle
    return f"{2.0**bits / rate / SECONDS_IN_A_YEAR:.1e} years"


def mitigations() -> Iterator[tuple[str, str, adapters.ReleaseFunction, int]]:
    """Yield each mitigation: its description, the attack, the target and the number of releases."""
    gauss = random.Random().gauss
    scale = adapters.Privacy().scale("gaussian")

    def discard_second(value: float, n: int) -> Floats:
        return np.array([value + scale * (gauss(), gauss())[0] for _ in range(n)])

    def add_both(value: float, n: int) -> Floats:
        root = math.sqrt(2)
        return np.array([value + scale * ((gauss() + gauss()) / root) for _ in range(n)])

    def add_normal(value: float, n: int, dtype: str) -> Any:
        return value + Generator().normal(scale=scale, size=n, dtype=dtype)

    def add_short_laplace(value: float, n: int, precision: int) -> Any:
        return value + Generator().laplace(scale=1.0, size=n, precision=precision, variates=4)

    after_one_draw = targets.make_target("random.gauss")
    after_one_draw(0.0, 1)
    yield "random.gauss, as it is", "pair", targets.make_target("random.gauss").release, 20_000
    yield "the first cached value discarded", "pair", after_one_draw.release, 20_000
    yield "one of each pair discarded", "pair", discard_second, 20_000
    yield "(N1 + N2)/sqrt 2", "pair", add_both, 20_000
    for dtype in ("float64", "float32", "float16"):
        description = f"dpnoise normal, {dtype}, p = {PRECISIONS[dtype]}"
        yield description, "pair", partial(add_normal, dtype=dtype), 20_000
    for bits, size in ((6, 1_000), (11, 100)):
        description = f"dpnoise laplace, n = 4, p = {bits} in float64"
        yield description, f"middle {bits}", partial(add_short_laplace, precision=bits), size


def mitigation_rows() -> Iterator[str]:
    """Measure the remaining advantage of each attack, next to the one of `feasibility`."""
    yield "| noise | attack | advantage at confidence 0.999 | advantage of `feasibility` |"
    yield "|---|---|---|---|"
    for description, name, release, size in mitigations():
        attack_name, _, bits = name.partition(" ")
        noise = "laplace" if bits else "gaussian"
        target = targets.wrap(release, noise=noise)
        attack = (
            MeetInTheMiddle(table=summands_of_dpnoise(int(bits)))
            if bits
            else ATTACKS[attack_name]()
        )
        outcomes = attack(target, n=size), ATTACKS["feasibility"]()(target)
        intervals = ("{:.1%} to {:.1%}".format(*outcome.advantage) for outcome in outcomes)
        yield f"| {description} | `{attack_name}` | " + " | ".join(intervals) + " |"


def summands_of_dpnoise(precision: int) -> Floats:
    """Return all values of a summand of Theorem 5.1, computed by dpnoise's kernel.

    With V2 = 1 the second summand is zero.
    """
    size = 2**precision
    words = np.zeros((size * size, 4), dtype=np.uint64)
    words[:, 0] = np.repeat(np.arange(size, dtype=np.uint64), size)
    words[:, 1] = np.tile(np.arange(size, dtype=np.uint64), size)
    words <<= np.uint64(64 - precision)
    out = np.empty(size * size)
    variates.laplace_theorem(words.ravel(), 4, precision, 1.0, out, out)
    return out


def preimage_rows() -> Iterator[str]:
    """Find a preimage of arbitrary doubles under Theorem 5.1 at p = 53."""
    checks = [preimages.one_preimage(z).checks for z in np.random.default_rng().laplace(size=5_000)]
    yield "| p | doubles | found | checks, median | mean |"
    yield "|---|---|---|---|---|"
    median = statistics.median(checks)
    yield f"| 53 | 5,000 | {len(checks):,} | {median:g} | {np.mean(checks):.1f} |"


def beyond_rows(lines_by_section: dict[str, list[str]]) -> Iterator[str]:
    """Yield the rows of `precision` and `feasibility` for Theorem 5.1 and the release."""
    for name in ("precision", "feasibility"):
        header, rule, *rows = lines_by_section[name]
        if name == "precision":
            yield "| attack " + header
            yield "|---" + rule
        for row in rows:
            if row.startswith(("| diffprivlib.Laplace", "| dpnoise")):
                yield f"| {name} {row}"


def main() -> None:
    """Measure every section, print its rows, and write them to the docs."""
    sections = {
        **{name: attack_rows(name) for name in RUNS},
        **{name: look_rows(name) for name in OBSERVED_TARGETS},
        "reconstruction": reconstruction_rows(),
        "checks": search_rows(),
        "cost": cost_rows(),
        "mitigations": mitigation_rows(),
        "one-preimage": preimage_rows(),
    }
    lines_by_section: dict[str, list[str]] = {}
    for name, rows in sections.items():
        print(f"\n{name}")
        lines = []
        for row in rows:
            print(row, flush=True)
            lines.append(row)
        write_between_marks(PAGE, name, "\n".join(lines))
        lines_by_section[name] = lines
    for page in (PAGE, BEYOND):
        write_between_marks(page, "machine", f"The tables were measured on {measured_with()}.")
    write_between_marks(BEYOND, "beyond", "\n".join(beyond_rows(lines_by_section)))


if __name__ == "__main__":
    main()
