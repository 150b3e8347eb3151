"""Publish from a Spark cluster: spark-submit examples/spark.py [PEOPLE.parquet].

The cluster adds up integers, and only the sums reach the driver, which draws the noise. Workers
need neither dpnoise nor Python. Without a file, it uses the invented people of `make demo`.
"""

import sys
from importlib.resources import files
from typing import Any

import dpnoise
from dpnoise.statistics.engines import tally
from dpnoise.statistics.plan import Grouping, Plan, Rows, SumAnswer, Sums

CITIES = Grouping("city", ("dublin", "cork", "limerick", "galway", "waterford"))
INCOME = Sums("income", grid=2.0**-8, least=0, most=200_000 * 2**8)
SCHEMA = "city STRING, age INT, income DOUBLE"  # The columns of the invented people.
EPSILON = 1.0  # In total: half for the counts, half for the sums. Each person has one row.


def release(people: Any) -> list[tuple[str, int, float]]:
    """Return the number of people in each city and the sum of their incomes, with noise."""
    rows, incomes = tally(people, Plan((Rows(), INCOME), (CITIES,), missing="drop")).answers
    assert isinstance(incomes, SumAnswer)  # noqa: S101 - for the type checker
    assert not isinstance(rows, SumAnswer)  # noqa: S101 - likewise
    counting = dpnoise.LaplaceMechanism(epsilon=EPSILON / 2, sensitivity=1.0)
    adding = dpnoise.LaplaceMechanism(epsilon=EPSILON / 2, sensitivity=float(INCOME.most))
    counts = counting.release(rows).tolist()
    totals = adding.release(incomes.total.tolist())
    return [
        (city, count, total * INCOME.grid)
        for city, count, total in zip(CITIES.keys, counts, totals, strict=True)
    ]


def main() -> None:
    """Read a Parquet file, or the invented people, and print the released numbers."""
    from pyspark.sql import SparkSession  # noqa: PLC0415 - the cluster provides it

    spark = SparkSession.builder.appName("dpnoise").getOrCreate()
    if len(sys.argv) > 1:
        people = spark.read.parquet(sys.argv[1])
    else:
        path = str(files("dpnoise.cli").joinpath("people.csv"))
        people = spark.read.csv(path, header=True, schema=SCHEMA)
    for city, count, total in release(people):
        print(f"{city:10} {count:8,} people {total:16,.2f} in all")
    spark.stop()


if __name__ == "__main__":
    main()
