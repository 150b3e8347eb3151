"""Invented tables, for tests of the page."""

from collections.abc import Sequence
from typing import Any, Final

from dpnoise.statistics import Question, Release, Request
from dpnoise.statistics.publishing import Published, Table

DATE: Final = "2026-11-15T09:30:00+00:00"
CITIES: Final = ("dublin", "cork", "limerick", "galway", "waterford")
SCRIPT: Final = "<script>alert(1)</script>"
HOSTILE: Final = f"{SCRIPT}\"'><img src=x onerror=alert(2)>&amp;</style>]]>{{}}%s\u202e\x1b[2J"

NamedRelease = tuple[Question, tuple[Any, ...], Release]


def release(query: str, value: Any, error: float | None = 3, **options: Any) -> Release:
    """Return a release with invented numbers."""
    defaults: dict[str, Any] = {
        "scale": 1.0,
        "mechanism": "discrete Laplace noise, exact",
        "grid": 1.0,
    }
    return Release(query, value, 0.25, error=error, confidence=0.95, **{**defaults, **options})


def table(
    published: Sequence[NamedRelease], groups: dict[str, Sequence[Any]] | None = None
) -> Table:
    """Return the table of these releases, in the order of `publish`."""
    questions = dict.fromkeys(question for question, _, _ in published)
    released = tuple(
        Published(question.column, question.by, group, release_of_group)
        for question, group, release_of_group in published
    )
    return Table(Request(1.0, list(questions), groups or {}), released, DATE)


def plain_table() -> Table:
    """Return a table of every kind: groups, pairs of groups, cells, quantiles, a single number."""
    income = Question(["mean", "median"], "income", lower=0, upper=200_000, by=("city",))
    ages = Question(["histogram"], "age", edges=(0, 18, 65, 120))
    quartiles = Question(["quantiles:0.25,0.75"], "income", lower=0, upper=200_000)
    pairs, rows = Question(["count"], by=("city", "sex")), Question(["count"])
    releases: list[NamedRelease] = []
    for i, city in enumerate(CITIES):
        value, error = 51_648.25 - 3_000 * i, 1_600.4 * (i + 1)
        mean = release("mean", value, error, joint_error=1.5 * error, scale=None)
        ends = (20_000.5 - 4_000 * i, 70_000.25 + 30_000 * i)
        median = release("median", 45_608.0, None, interval=ends, scale=None)
        releases += [(income, (city,), mean), (income, (city,), median)]
    cells = ("0 to 18", "18 to 65", "65 to 120")
    releases.append(
        (ages, (), release("histogram", [0, 3_911, 1_102], labels=cells, joint_error=5))
    )
    intervals = [(20_492.0, 31_000.0), (48_000.0, 77_516.0)]
    labels = ("quantile 0.25", "quantile 0.75")
    options = {"interval": intervals, "labels": labels, "scale": None}
    releases.append((quartiles, (), release("quantiles", [28_216.0, 58_436.0], None, **options)))
    for i, pair in enumerate((city, sex) for city in CITIES for sex in "fm"):
        releases.append((pairs, pair, release("count", 1_300 - 120 * i, 21, joint_error=37)))
    releases.append((rows, (), release("count", 5_001)))
    return table(releases, {"city": CITIES, "sex": ("f", "m")})


def many_groups_table() -> Table:
    """Return a table of 150 groups."""
    towns = [f"town {i:03}" for i in range(150)]
    by = Question(["count"], by=("town",))
    return table(
        [(by, (town,), release("count", (i * 37) % 400)) for i, town in enumerate(towns)],
        {"town": towns},
    )


def extreme_table() -> Table:
    """Return a table of numbers beyond floats, negative and tiny ones, and infinite margins."""
    values = [-1234567.891, 10**40, 0, 9.87654321e15, 1e308, -1e308, 0.5, 5e-324]
    errors = [0.001, 1, None, 1e9, 1e308, None, float("inf"), 5e-324]
    groups = [f"group {i}" for i in range(len(values))]
    by = Question(["sum"], "x", lower=0, upper=1, by=("g",))
    releases = [
        (by, (group,), release("sum", value, error))
        for group, value, error in zip(groups, values, errors, strict=True)
    ]
    return table(releases, {"g": groups})


def hostile_table() -> Table:
    """Return a table with names that try to inject HTML, and with very long names."""
    by, column = f"by {HOSTILE}", f"column {HOSTILE}"
    groups = [HOSTILE, "n" * 300, "two\nlines", " ", "ℵ Köln 東京", "a b " * 60]
    means = Question(["mean"], column, lower=0, upper=1, by=(by,))
    counts = Question(["count"], "w" * 200, by=(by, "value"))
    releases: list[NamedRelease] = [
        (means, (group,), release("mean", 0.5, 0.25)) for group in groups
    ]
    releases += [
        (counts, (group, other), release("count", 7, mechanism=HOSTILE))
        for group in groups
        for other in (HOSTILE, "x")
    ]
    return table(releases, {by: groups, "value": (HOSTILE, "x")})


def single_numbers_table() -> Table:
    """Return a table of single numbers: of all rows, of one group, of one cell."""
    means = Question(["mean"], "x", lower=0, upper=1, by=("city",))
    cell = Question(["histogram"], "x", edges=(0, 1))
    return table(
        [
            (Question(["count"]), (), release("count", 42)),
            (means, ("cork",), release("mean", 0.5, 0.125, joint_error=0.25)),
            (cell, (), release("histogram", [17], labels=("0 to 1",))),
        ],
        {"city": ["cork"]},
    )


EVERY_KIND: Final = {
    "plain": plain_table(),
    "many": many_groups_table(),
    "extreme": extreme_table(),
    "hostile": hostile_table(),
    "alone": single_numbers_table(),
}


def person_record(**changes: Any) -> dict[str, Any]:
    """Return the record of a release that protects persons, with a ledger and a delta."""
    fields = {
        "format": 4,
        "privacy_unit": "one person (patient_id), at most 2 groups and 3 rows in each",
        "neighbours": "differ by one person, added or removed",
        "privacy": {"epsilon": 1.5, "delta": 1e-6, "rho": None},
        "ledger": {"head": "ab" * 32, "name": "visits 2026", "left": "epsilon 2.5, delta 1e-06"},
        "discovered": [{"columns": ["city"], "threshold": 1_029, "groups": [[c] for c in CITIES]}],
    }
    return {**plain_table().record(), **fields, **changes}
