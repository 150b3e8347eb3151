"""Neighbouring data sets, written as CSV text and read by every reader that infers types.

A stack holds many worlds, small data sets that share no person. Two stacks differ by one person in
each world, whose cells are hostile: they change the type that a reader infers for a whole column,
and so how everybody else's cells are read. The exact integers of each world may still move by no
more than the declared sensitivity.
"""

import csv
import io
import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from datetime import date, timedelta
from fractions import Fraction
from functools import cache
from itertools import product
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import duckdb
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
from pyarrow import csv as arrow_csv

from dpnoise.core.errors import ArgumentError
from dpnoise.statistics.engines import Files, holders, tally
from dpnoise.statistics.plan import Grouping, Plan, Tally, Unit
from dpnoise.statistics.queries import Query
from dpnoise.statistics.requests import Question, Request, Way
from dpnoise.statistics.selections import Quantiles
from support.alarms import LONG
from support.person_worlds import ASKED, check_scores, exact_integers

COLUMNS = ("world", "who", "city", "x")
PERSONS = 5  # In each world, before somebody comes.
MOST_ROWS = 6  # Of one person.
_SCORED_WORLDS = 40 if LONG else 4  # Of each stack.
LOWER, UPPER = -2.0, 3.0
Row = tuple[str, str, str, str]
Random = np.random.Generator
ReadRows = Callable[[Sequence[Row]], Any]  # Writes rows, and returns what a reader makes of them.


@dataclass(frozen=True)
class Kind:
    """How ids or cities are written, and how cities are declared: the n-th of them."""

    written: Callable[[int], str]
    declared: Callable[[int], Any] = str


def _day(number: int) -> date:
    return date(1999, 12, 30) + timedelta(days=number)


IDS = {
    "integers": Kind(str),
    "negative integers": Kind(lambda n: str(-n)),
    "large integers": Kind(lambda n: str(2**53 + n)),
    "padded integers": Kind(lambda n: f"{n:09d}"),
    "whole floats": Kind(lambda n: f"{n}.0"),
    "text": Kind(lambda n: f"Person {n}"),
    "dates": Kind(lambda n: _day(n).isoformat()),
}
CITIES = {
    "integers": Kind(str, lambda n: n),
    "whole floats": Kind(lambda n: f"{n}.0", lambda n: n),
    "text": Kind(lambda n: "aBcdefgh"[n], lambda n: "aBcdefgh"[n]),
    "truth values": Kind(lambda n: ["True", "False"][n % 2], lambda n: n % 2 == 0),
    "dates": Kind(lambda n: _day(n).isoformat(), _day),
}
VALUES = ("0", "1", "2", "3", "-1", "-5", "9007199254740993", "-9007199254740993", "4")

# The cells of a newcomer; {} is replaced by a number that no other world has.
HOSTILE: dict[str, dict[str, str]] = {
    "nothing": {},
    "an empty value": {"x": ""},
    "a fraction": {"x": "0.5"},
    "a negative zero": {"x": "-0.0"},
    "not a number": {"x": "nan"},
    "an infinity": {"x": "inf"},
    "a huge number": {"x": "1e300"},
    "a tiny number": {"x": "1e-320"},
    "an unsigned value": {"x": "18446744073709551615"},
    "a value of 70 bits": {"x": "1180591620717411303424"},
    "a decimal value": {"x": "0.10000000000000000000000000001"},
    "an empty id": {"who": ""},
    "a fractional id": {"who": "{}.5"},
    "an unsigned id": {"who": "1844674407370{}"},
    "an id of 70 bits": {"who": "11805916207174{}"},
    "a text id": {"who": "x{}"},
    "an id that normalises": {"who": "e\u0301{}"},
    "an id with a time": {"who": "2000-01-01 10:30:00.{}"},
    "an id with a zone": {"who": "2000-01-01T10:30:00.{}+02:00"},
    "an id in words": {"who": "true"},
    "an empty city": {"city": ""},
    "a fractional city": {"city": "0.5"},
    "a text city": {"city": "zzz"},
    "a city of 64 bits": {"city": "18446744073709551615"},
    "a city with a time": {"city": "2000-01-01 10:30:00"},
    "an empty city and value": {"city": "", "x": ""},
    "a text id and a fraction": {"who": "x{}", "x": "0.5"},
}


@dataclass(frozen=True)
class Stack:
    """Worlds of ordinary people: for each world the rows of each of its persons."""

    ids: str
    cities: str
    worlds: list[list[list[Row]]]

    @property
    def rows(self) -> list[Row]:
        """All rows."""
        return [row for persons in self.worlds for rows in persons for row in rows]

    def neighbour(self, hostile: str, rng: Random, *, replaced: bool) -> list[Row]:
        """Return rows with one more person in each world, or with one in another's place."""
        left = self.worlds if not replaced else [persons[1:] for persons in self.worlds]
        rows = [row for persons in left for rows in persons for row in rows]
        for world in range(len(self.worlds)):
            rows += _hostile_rows(world, HOSTILE[hostile], self.ids, self.cities, rng)
        rng.shuffle(rows)  # Other people's rows come between a person's own.
        return rows


def make_stack(worlds: int, ids: str, cities: str, rng: Random) -> Stack:
    """Return a stack of worlds of ordinary people."""
    written = IDS[ids].written
    return Stack(
        ids,
        cities,
        [
            [
                list(_ordinary_rows(world, written(world * (PERSONS + 1) + n), cities, rng))
                for n in range(1, PERSONS + 1)
            ]
            for world in range(worlds)
        ],
    )


def _ordinary_rows(world: int, who: str, cities: str, rng: Random) -> Iterator[Row]:
    for _ in range(rng.integers(1, MOST_ROWS + 1)):
        city = CITIES[cities].written(int(rng.integers(6)))
        yield str(world), who, city, VALUES[rng.integers(len(VALUES))]


def _hostile_rows(
    world: int, cells: Mapping[str, str], ids: str, cities: str, rng: Random
) -> Iterator[Row]:
    first = world * (PERSONS + 1)
    who = cells.get("who", IDS[ids].written(first)).format(f"{first:06d}")
    # Without an id, each row is a person: a neighbour has one such row more.
    for _ in range(rng.integers(1, 2 * MOST_ROWS) if who else 1):
        city = cells.get("city", CITIES[cities].written(int(rng.integers(6))))
        x = cells.get("x", VALUES[rng.integers(len(VALUES))])
        if rng.integers(4) == 0:  # Not every cell of the newcomer is hostile.
            city = CITIES[cities].written(int(rng.integers(6)))
        yield str(world), who, city, x


def csv_text(rows: Sequence[Row]) -> str:
    """Return rows as CSV, with a header."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    writer.writerows(rows)
    return text.getvalue()


# Readers ------------------------------------------------------------------------------------------


class UnreadableError(Exception):
    """A reader cannot hold these cells, or not write them."""


def read(reader: str, folder: Path, rows: Sequence[Row]) -> Any:
    """Write rows to a file, and return what a reader makes of it."""
    path = Path(mkdtemp(dir=folder), "visits.csv")
    path.write_text(csv_text(rows), encoding="utf-8")
    try:
        return READERS[reader](path)
    except (OverflowError, pa.ArrowException, pl.exceptions.PolarsError) as error:
        raise UnreadableError from error


def _pandas(path: Path) -> pd.DataFrame:
    return pd.read_csv(path, low_memory=False)


def _parquet(path: Path) -> Files:
    """Return what pandas inferred, written to Parquet."""
    written = path.with_suffix(".parquet")
    _pandas(path).to_parquet(written)
    return Files(written)


def _sqlite(path: Path) -> Files:
    written = path.with_suffix(".db")
    frame = _pandas(path)
    if any(frame[name].dtype == object for name in COLUMNS):
        frame = frame.astype({name: str for name in COLUMNS if frame[name].dtype == object})
    with closing(sqlite3.connect(written)) as database, database:
        frame.to_sql("visits", database, index=False)
    return Files(written, table="visits")


def _json(path: Path) -> Files:
    """Return JSON lines with numbers and text as pandas inferred them."""
    written = path.with_suffix(".jsonl")
    _pandas(path).to_json(written, orient="records", lines=True, double_precision=15)
    return Files(written)


def _categories(path: Path) -> pd.DataFrame:
    return _pandas(path).astype({"who": "category", "city": "category"})


def _dictionaries(path: Path) -> pa.Table:
    table = arrow_csv.read_csv(path)
    names = ("who", "city")
    made = {name: table[name].dictionary_encode() for name in names}
    return pa.table({**{name: table[name] for name in ("world", "x")}, **made})


def _threads(path: Path) -> duckdb.DuckDBPyRelation:
    connection = duckdb.connect()
    connection.execute("SET threads = 4")
    return connection.read_csv(str(path), sample_size=-1)


READERS: dict[str, Callable[[Path], Any]] = {
    "pandas": _pandas,
    "pandas, nullable": lambda path: pd.read_csv(path, dtype_backend="numpy_nullable"),
    "pandas, Arrow": lambda path: pd.read_csv(path, dtype_backend="pyarrow"),
    "pandas, categories": _categories,
    "Polars": lambda path: pl.read_csv(path, infer_schema_length=None, try_parse_dates=True),
    "Polars, lazy": lambda path: pl.scan_csv(path, infer_schema_length=None),
    "DuckDB": _threads,
    "Arrow": arrow_csv.read_csv,
    "Arrow, dictionaries": _dictionaries,
    "CSV file": Files,
    "JSON file": _json,
    "Parquet file": _parquet,
    "SQLite file": _sqlite,
}


# What is asked ------------------------------------------------------------------------------------


def declared_keys(kind: str, *, as_text: bool = False) -> tuple[Any, ...]:
    """Return declared cities, as readers that parse them hold them, or as text."""
    make = CITIES[kind].written if as_text else CITIES[kind].declared
    return tuple(dict.fromkeys(make(n) for n in range(4)))


class Prepared:
    """The plans and the queries of a request, which take long to make."""

    def __init__(self, request: Request) -> None:
        self.plans = request.plans()
        self.queries = request.prepare()


@cache
def requests(
    keys: tuple[Any, ...],
    neighbours: str,
    max_groups: int | None,
    max_rows: int | None,
    text_columns: tuple[str, ...] = (),
) -> list[Prepared]:
    """Return requests of all statistics, with Laplace and with Gaussian noise.

    Without max_groups nothing is grouped; without max_rows each person counts by one sum or mean.
    """
    by = () if max_groups is None else ("city",)
    made = []
    for per_person in ("sum", "mean") if max_rows is None else (None,):
        question = Question(
            tuple(ASKED.values()), "x", LOWER, UPPER, 0.25, (-2.0, 0.0, 3.0), by, per_person
        )  # fmt: skip
        laplace = Request(
            1.0, (question,), {"city": keys} if by else {}, missing="drop", person="who",
            max_groups=max_groups, max_rows=max_rows, neighbours=neighbours, without_id="own",
            text_columns=text_columns,
        )  # fmt: skip
        made += [laplace, replace(laplace, mechanism="gaussian", delta=1e-6)]
    return [Prepared(request) for request in made]


def answer_by_world(source: Any, plan: Plan, worlds: int) -> Tally:
    """Answer a plan for every world of a stack at once: the first axis of each answer."""
    stacked = replace(plan, by=(Grouping("world", tuple(range(worlds))), *plan.by))
    return tally(source, stacked)


def check_worlds(query: Query, one: Any, other: Any) -> float:
    """Compare the answers of all worlds with the declared sensitivity; return the largest part.

    Scores are compared in some of the worlds that differ: in fractions this takes long.
    """
    if isinstance(query, Quantiles):
        differ = np.flatnonzero((one != other).reshape(len(one), -1).any(axis=1))
        for place in differ[:_SCORED_WORLDS].tolist():
            check_scores(query, one[place], other[place])
        return 0.0
    worlds = len(getattr(one, "count", one))
    steps = (exact_integers(query, one) - exact_integers(query, other)).reshape(worlds, -1)
    if query.rho is None:
        moved, limit = np.abs(steps).sum(axis=1), Fraction(query.mechanism.sensitivity)
    else:
        moved, limit = (steps * steps).sum(axis=1), Fraction(query.mechanism.sensitivity) ** 2
    worst = int(np.argmax(moved))
    assert moved[worst] <= limit, f"{query.name} moves by {moved[worst]} of {limit} in {worst}"
    return float(moved[worst] / limit)


Answers = dict[Any, Tally]


def answers_of(made: Sequence[Prepared], source: Any, worlds: int) -> Answers:
    """Answer all plans of requests that ask the same."""
    plans = {way: plan for request in made for way, plan in request.plans.items()}
    return {way: answer_by_world(source, plan, worlds) for way, plan in plans.items()}


def check_neighbours(made: Sequence[Prepared], one: Answers, other: Answers) -> float:
    """Check every statistic in every world; return the largest part of a sensitivity."""
    largest = 0.0
    for request in made:
        for question, query in request.queries:
            way = Way(question.by, question.own)
            place = request.plans[way].asks.index(query.ask)
            both = (answers[way].answers[place] for answers in (one, other))
            largest = max(largest, check_worlds(query, *both))
    return largest


def count_persons(source: Any, max_groups: int) -> dict[str, int]:
    """Return how many persons each city has, as discovery counts them."""
    held = holders(source, "city", Unit(("who",), max_groups, without_id="own"))
    return dict(zip(held.keys, held.persons.tolist(), strict=True))


def distance(one: Mapping[str, int], other: Mapping[str, int]) -> int:
    """Return by how much two discoveries differ, over all labels."""
    return sum(abs(one.get(key, 0) - other.get(key, 0)) for key in {*one, *other})


# Many pairs ---------------------------------------------------------------------------------------

BOUNDS = [(1, 1), (2, 3), (None, 1), (2, None), (None, 4)]


@dataclass(frozen=True)
class Base:
    """Worlds of ordinary people, what is asked of them, and the answers."""

    stack: Stack
    asked: list[Prepared]
    replaced: bool
    answers: Answers


def make_base(read_rows: ReadRows, worlds: int, cities: Sequence[str], rng: Random) -> Base:
    """Return worlds of kinds of ids, cities and bounds that are drawn."""
    stack = make_stack(worlds, str(rng.choice(list(IDS))), str(rng.choice(cities)), rng)
    replaced = bool(rng.integers(2))
    bounds = BOUNDS[rng.integers(len(BOUNDS))]
    source = read_rows(stack.rows)
    # Not every reader parses dates and truth values, and numbers that begin with zeros.
    for as_text, text_columns in product((False, True), ((), ("who",))):
        keys = declared_keys(stack.cities, as_text=as_text)
        neighbours = "replace" if replaced else "add-remove"
        asked = requests(keys, neighbours, *bounds, text_columns=text_columns)
        with suppress(ArgumentError):
            return Base(stack, asked, replaced, answers_of(asked, source, worlds))
    raise AssertionError(f"nothing is read of {stack.ids} and {stack.cities}")


def check_hostile_persons(
    read_rows: ReadRows,
    worlds: int,
    *,
    hostile: Sequence[str] = tuple(HOSTILE),
    cities: Sequence[str] = tuple(CITIES),
    bases: int = 3,
    compared: int | None = None,
) -> int:
    """Compare worlds with neighbours of hostile kinds; return how many kinds were refused.

    Kinds come in any order, and all of them, or until so many were compared and not refused.
    """
    rng = np.random.default_rng()
    made = [make_base(read_rows, worlds, cities, rng) for _ in range(bases)]
    refused = 0
    for place, name in enumerate(rng.permutation(hostile).tolist()):
        if place - refused == compared:
            break
        base = made[place % bases]
        rows = base.stack.neighbour(name, rng, replaced=base.replaced)
        try:
            answers = answers_of(base.asked, read_rows(rows), worlds)
        except (ArgumentError, UnreadableError):
            refused += 1
        else:
            check_neighbours(base.asked, base.answers, answers)
    return refused
