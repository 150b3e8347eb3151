"""Make the data set that comes with the package: `python tools/make_people.py`.

It describes five thousand invented people. The generator is seeded, because everyone must get the
same data. Noise is never seeded.
"""

import csv
import random
from pathlib import Path

PEOPLE = 5000
CITIES = {"dublin": 0.52, "cork": 0.21, "limerick": 0.12, "galway": 0.10, "waterford": 0.05}
TARGET = Path(__file__).parent.parent / "src" / "dpnoise" / "cli" / "people.csv"


def main() -> None:
    """Write the file."""
    rng = random.Random(2021)
    with TARGET.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["city", "age", "income", "invented_person"])
        for _ in range(PEOPLE):
            city = rng.choices(list(CITIES), list(CITIES.values()))[0]
            age = min(95, 18 + int(rng.gammavariate(2.6, 11)))
            typical_income = (
                38_000 * (1.2 if city == "dublin" else 1.0) * (0.6 + 0.4 * min(age, 60) / 45)
            )
            income = round(typical_income * rng.lognormvariate(0, 0.5), 2)
            writer.writerow([city, age, income, "yes"])
    print(f"{PEOPLE} people written to {TARGET.name}")


if __name__ == "__main__":
    main()
