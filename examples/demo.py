"""Demonstrate dpnoise: publish, attack, race and audit (`make demo`)."""

import csv
import math
import time
from collections import Counter
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

import dpnoise

console = Console()
SIZE = 1_000_000
DRAWS = 200_000
BAR = 40
PAGES = Path("demo-pages")


def publish() -> None:
    """Release the number of people in each city of the data set."""
    text = files("dpnoise.cli").joinpath("people.csv").read_text()
    counts = Counter(row["city"] for row in csv.DictReader(text.splitlines()))
    mechanism = dpnoise.LaplaceMechanism(epsilon=0.5, sensitivity=1.0)
    console.print(
        f"The number of {counts.total():,} people who live in each city. Each person's presence\n"
        f"is protected by epsilon = {mechanism.epsilon}:\n"
    )
    table = Table("city", "secret", "published", "", box=None)
    most = max(counts.values())
    for city, count in counts.most_common():
        published = mechanism.release(count)
        bar = "█" * round(BAR * published / most)
        table.add_row(city, f"[dim]{count}", f"[bold]{published}", f"[cyan]{bar}")
    console.print(table)
    margin = math.floor(mechanism.error(0.95) + 0.5)  # Rounding to an integer adds at most 0.5.
    console.print(
        f"\nEach is within {margin} of the secret with probability 0.95. The guarantee holds\n"
        "for the code that runs: each output is distributed as if computed in real\n"
        "arithmetic and rounded once.\n"
    )


def off_the_lattice(outputs: np.ndarray) -> float:
    """Return how often an output is small and has bits that a sum with 1 cannot have."""
    scaled = outputs * 2.0**53
    return float(np.mean((np.abs(outputs) < 0.25) & (scaled != np.rint(scaled))))  # noqa: PLR2004


def attack() -> None:
    """Run the precision attack (Haney and others 2022) on NumPy's noise and on a release."""
    mechanism = dpnoise.LaplaceMechanism(epsilon=1.0, sensitivity=1.0)
    insecure = np.random.default_rng()
    rows: list[tuple[str, Callable[[float], np.ndarray]]] = [
        ("value + NumPy's laplace", lambda x: x + insecure.laplace(size=DRAWS)),
        ("dpnoise release", lambda x: mechanism.release(np.full(DRAWS, x))),
    ]
    console.print(
        "Is the value 0 or 1? Small outputs with bits below 2^-53 come only from 0.\n"
        "At epsilon = 1 no event may be more than 2.7 times as likely at 0 as at 1:\n"
    )
    table = Table("", "seen at 0", "seen at 1", "", box=None)
    for name, publish_value in rows:
        at_zero, at_one = (off_the_lattice(publish_value(x)) for x in (0.0, 1.0))
        verdict = "[red]identifies the value" if at_zero and not at_one else "never seen"
        table.add_row(name, f"{at_zero:.1%}", f"{at_one:.1%}", verdict)
    console.print(table)
    console.print()


def audits() -> None:
    """Audit NumPy's noise and a release, and write the reports."""
    PAGES.mkdir(exist_ok=True)
    console.print(
        "All attacks, and a lower bound on the true epsilon that is wrong with\n"
        "probability at most 0.001. Both claim epsilon = 1:\n"
    )
    for target in ("numpy.laplace", "dpnoise.release"):
        with console.status(f"auditing {target}"):
            report = dpnoise.audit(target, epsilon=1.0, budget=240_000)
        page = PAGES / f"{target}.html"
        report.to_html(page)
        style = "red" if report.broken else "green"
        console.print(f"{target:16} [{style}]{report.verdict}", highlight=False)
        console.print(f"{'':16} report: {page}\n", highlight=False)


def seconds(call: Callable[[], object]) -> float:
    """Return the best of seven durations of a call."""
    durations = []
    for _ in range(7):
        start = time.perf_counter()
        call()
        durations.append(time.perf_counter() - start)
    return min(durations)


def race() -> None:
    """Time a million releases against a million insecure draws."""
    laplace = dpnoise.LaplaceMechanism(epsilon=1.0, sensitivity=1.0)
    gaussian = dpnoise.GaussianMechanism.for_scale(1.0, sensitivity=1.0)
    values = np.zeros(SIZE)
    insecure = np.random.default_rng()
    one_thread = dpnoise.Generator(threads=1)
    for name, call in [
        ("Laplace: dpnoise, exact release", lambda: laplace.release(values, rng=one_thread)),
        ("         NumPy, insecure noise", lambda: insecure.laplace(size=SIZE)),
        ("Gaussian: dpnoise, exact release", lambda: gaussian.release(values, rng=one_thread)),
        ("          NumPy, insecure noise", lambda: insecure.standard_normal(size=SIZE)),
        ("Laplace: dpnoise on all cores", lambda: laplace.release(values)),
    ]:
        console.print(f"{name:36} {seconds(call) / SIZE * 1e9:5.1f} ns a value", highlight=False)
    console.print(
        "\nMeasured on this machine, on one thread except for the last line. A release\n"
        "executes the same instructions for every value and noise. Measurements of\n"
        "timing attacks: docs/timing.md#what-a-clock-certifies\n"
    )


def main() -> None:
    """Run all parts."""
    for title, show in [
        ("publish", publish),
        ("why not simply add noise", attack),
        ("how long it takes", race),
        ("audit", audits),
    ]:
        console.rule(f"[bold]{title}", align="left")
        show()
    console.rule("[bold]next", align="left")
    console.print(
        "docs/publishing.md     publish a table of your own file\n"
        "docs/exact-release.md  why the guarantee holds, and what timing reveals\n"
        "docs/auditing.md       audit your own: dpnoise audit module:function --epsilon 1\n"
        "docs/attacks.md        every attack, and what it breaks\n"
        "docs/paper.md          the paper, checked: make paper\n"
        "make test              the tests\n"
        "make bench             the speeds, measured here"
    )


if __name__ == "__main__":
    main()
