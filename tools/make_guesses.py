"""Write the releases of the page "Can you tell 0 from 1?": `make pictures`.

Each secret is 0 or 1, chosen by a fair coin. It is published twice at epsilon 1: as the sum of the
secret and NumPy's Laplace noise in floats, and by an exact release. For each release the file has
the guess of an attacker. Of sums, the attacker excludes a secret that no uniform of the sampler
leads from (Mironov 2012). Otherwise, and of exact releases, the nearer secret is the likelier one.
"""

import json
import secrets
from pathlib import Path
from typing import Final

import numpy as np
from marks import measured_with, write_between_marks

import dpnoise
from dpnoise.auditing.attacks.mironov import NUMPY, has_uniform

DATA: Final = Path(__file__).parent.parent / "docs" / "assets" / "guesses.js"
PAGE: Final = DATA.parents[1] / "guess.md"
RELEASES: Final = 400
PRECISION: Final = 53  # Bits of NumPy's uniforms.


def nearer_secret(release: float) -> int:
    """Return the likelier secret: Laplace noise is symmetric, and smaller noise is likelier."""
    return int(release > 0.5)  # noqa: PLR2004 - the middle of 0 and 1


def guess_sum(release: float) -> tuple[int, bool]:
    """Return the attacker's guess for a sum in floats, and whether the other secret is excluded."""
    possible = [has_uniform(release, secret, 1.0, PRECISION, NUMPY) for secret in (0.0, 1.0)]
    certain = sum(possible) == 1
    return (possible.index(True) if certain else nearer_secret(release)), certain


def published_sums() -> list[list[object]]:
    """Return secrets with their sums in floats and the attacker's guesses."""
    rng = np.random.default_rng()
    rows: list[list[object]] = []
    for _ in range(RELEASES):
        secret = secrets.randbelow(2)
        release = float(secret + rng.laplace())
        rows.append([secret, release.hex(), *guess_sum(release)])
    return rows


def exact_releases() -> list[list[object]]:
    """Return secrets with exact releases and the attacker's guesses, none of which is certain."""
    mechanism = dpnoise.LaplaceMechanism(epsilon=1.0, sensitivity=1.0)
    rows: list[list[object]] = []
    for _ in range(RELEASES):
        secret = secrets.randbelow(2)
        release = mechanism.release(float(secret))
        rows.append([secret, release.hex(), nearer_secret(release), False])
    return rows


def main() -> None:
    """Write the file."""
    games = {"sums": published_sums(), "releases": exact_releases()}
    lines = "".join(f"  {name}: {json.dumps(rows)},\n" for name, rows in games.items())
    about = "// Written by `make pictures`. Each row: secret, release, attacker's guess, certain."
    DATA.write_text(f"{about}\nconst GUESSES = {{\n{lines}}};\n")
    machine = (
        f"`make pictures` made the releases, {RELEASES} of each kind, on {measured_with('numpy')}."
    )
    write_between_marks(PAGE, "machine", machine)
    print(f"Wrote {DATA.name} and the machine into {PAGE.name}.")


if __name__ == "__main__":
    main()
