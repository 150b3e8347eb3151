"""Invent the visits of the case study: `python examples/make_visits.py visits.csv`.

Nobody in this file exists. A patient has a home clinic, now and then goes to another one, and a few
come every week: several rows a person, and not the same number for everybody. The generator is
seeded, so that the file is the same for all who read docs/case-study.md.
"""

import csv
import random
import sys
from pathlib import Path

PATIENTS = 4_000
CLINICS = {"ennis": 0.15, "cork": 0.35, "tralee": 0.2, "athlone": 0.1, "wexford": 0.2}
ELSEWHERE = 0.12  # The share of visits to another clinic than one's own.
CHRONIC = 0.02  # The share of patients who come every week.


def main(target: Path) -> None:
    """Write the file."""
    chance = random.Random(1789)  # noqa: S311 - made-up data, no noise
    visits = [visit for patient in range(PATIENTS) for visit in visits_of(patient, chance)]
    chance.shuffle(visits)
    with target.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["patient_id", "clinic", "week", "cost"])
        writer.writerows(visits)
    print(f"{len(visits)} invented visits of {PATIENTS} patients written to {target}")


def visits_of(patient: int, chance: random.Random) -> list[tuple[str, str, int, float]]:
    """Invent the visits of one patient in a year."""
    names, shares = list(CLINICS), list(CLINICS.values())
    home = chance.choices(names, shares)[0]
    often = 40 if chance.random() < CHRONIC else 1 + int(chance.expovariate(0.6))
    return [
        (
            f"P{patient:05}",
            chance.choices(names, shares)[0] if chance.random() < ELSEWHERE else home,
            chance.randint(1, 52),
            round(chance.lognormvariate(4.2 if home == "cork" else 4.0, 0.6), 2),
        )
        for _ in range(often)
    ]


if __name__ == "__main__":
    main(Path(sys.argv[1]))
