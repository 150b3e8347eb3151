"""See dpnoise work: `make demo`."""

import time

import numpy as np
from rich.console import Console
from rich.table import Table

import dpnoise

console = Console()
SIZE = 1_000_000
BAR = 46


def picture(noise: np.ndarray, distribution: dpnoise.Laplace) -> None:
    """Draw a histogram of the noise beside the density that it should have."""
    borders = np.arange(-5.5, 6.5) * distribution.scale / 2
    counts, _ = np.histogram(noise, borders)
    expected = np.diff(distribution.cdf(borders)) * len(noise)
    table = Table("noise", f"{len(noise):,} draws", "counted", "expected", box=None)
    for middle, count, ideal in zip(
        (borders[1:] + borders[:-1]) / 2, counts, expected, strict=True
    ):
        bar = "█" * round(BAR * count / expected.max())
        table.add_row(f"{middle:+.1f}", f"[cyan]{bar}", f"{count:,}", f"{ideal:,.0f}")
    console.print(table)


def seconds(draw: object, size: int) -> float:
    """Return the best of seven times of a draw."""
    assert callable(draw)  # noqa: S101 - for the type checker
    taken = []
    for _ in range(7):
        start = time.perf_counter()
        draw(size=size)
        taken.append(time.perf_counter() - start)
    return min(taken)


def main() -> None:
    """Draw, look, time and cost."""
    console.rule("[bold]dpnoise: noise from a cryptographic generator, four uniforms for each")
    laplace = dpnoise.Laplace(scale=2.0)
    console.print(
        f"\nrng = dpnoise.Generator()\nrng.laplace(scale={laplace.scale}, size={SIZE:,})\n"
    )
    rng = dpnoise.Generator()
    picture(rng.laplace(scale=laplace.scale, size=SIZE), laplace)

    console.rule("[bold]how long it took")
    ours, theirs = seconds(rng.laplace, SIZE), seconds(np.random.default_rng().laplace, SIZE)
    console.print(
        f"dpnoise, secure:        {ours / SIZE * 1e9:5.1f} ns a value, on all cores\n"
        f"NumPy, not secure:      {theirs / SIZE * 1e9:5.1f} ns a value, on the one it can use\n"
    )
    console.rule("[bold]what it costs to invert one value")
    console.print(str(dpnoise.inversion_cost()), highlight=False, soft_wrap=True)
    console.rule("[bold]next")
    console.print(
        "README.md            five lines of code\n"
        "docs/limitations.md  what noise in floats cannot give\n"
        "make test            every claim, tested\n"
        "make bench           every figure, measured here"
    )


if __name__ == "__main__":
    main()
