"""Invent the visits of the case study: `python examples/make_visits.py visits.csv`.

All patients are invented. A patient has a home clinic and sometimes visits another one; a few come
every week. So persons have several rows, and not all the same number. The generator is seeded, so
that every reader of docs/case-study.md gets the same file. Its column `invented_person` makes every
output of dpnoise say that the people are invented.
"""

import csv
import random
import sys
from pathlib import Path

PATIENTS = 4_000
CLINICS = {"ennis": 0.15, "cork": 0.35, "tralee": 0.2, "athlone": 0.1, "wexford": 0.2}
ELSEWHERE = 0.12  # The share of visits to a clinic other than the home clinic.
CHRONIC = 0.02  # The share of patients who come every week.


def main(target: Path) -> None:
    """Write the file."""
    rng = random.Random(1789)  # noqa: S311 - invented data, not noise
    visits = [visit for patient in range(PATIENTS) for visit in visits_of(patient, rng)]
    rng.shuffle(visits)
    with target.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["patient_id", "clinic", "week", "cost", "invented_person"])
        writer.writerows(visits)
    print(f"{len(visits)} invented visits of {PATIENTS} patients written to {target}")


def visits_of(patient: int, rng: random.Random) -> list[tuple[str, str, int, float, str]]:
    """Invent the visits of one patient in a year."""
    names, shares = list(CLINICS), list(CLINICS.values())
    home = rng.choices(names, shares)[0]
    count = 40 if rng.random() < CHRONIC else 1 + int(rng.expovariate(0.6))
    return [
        (
            f"P{patient:05}",
            rng.choices(names, shares)[0] if rng.random() < ELSEWHERE else home,
            rng.randint(1, 52),
            round(rng.lognormvariate(4.2 if home == "cork" else 4.0, 0.6), 2),
            "yes",
        )
        for _ in range(count)
    ]


if __name__ == "__main__":
    main(Path(sys.argv[1]))
