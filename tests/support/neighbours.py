"""Neighbouring data sets as CSV text, read by every reader that infers types.

A stack holds many worlds: small data sets without common persons. Two stacks differ by one person
in each world. The cells of this person are hostile: they change the type that a reader infers for a
whole column, and so how all other cells are read. The exact integers of each world may still change
by no more than the declared sensitivity.
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
from dpnoise.statistics.engines import Files, count_persons_by_group, tally_all
from dpnoise.statistics.group_discovery import FROM_DISCOVERY
from dpnoise.statistics.left_out import TableCount
from dpnoise.statistics.marginals import Marginal
from dpnoise.statistics.plan import Grouping, Plan, SumAnswer, Tally, Unit
from dpnoise.statistics.queries import Query
from dpnoise.statistics.requests import Question, Request
from dpnoise.statistics.selections import QuantileSelection
from dpnoise.statistics.shared_sums import payer_of
from support.alarms import LONG
from support.choices import sample_cases
from support.person_worlds import ASKED, DISTINCT, check_scores, exact_integers

COLUMNS = ("world", "who", "city", "x")
PERSONS = 5  # Persons in each world, without the hostile one.
MOST_ROWS = 6  # The most rows of an ordinary person.
PLANS = 2  # Plans of a request that `make test` compares, at random; `make test-long` compares all.
_SCORED_WORLDS = 40 if LONG else 4  # Worlds of each stack in which scores are compared.
LOWER, UPPER = -2.0, 3.0
Row = tuple[str, str, str, str]
Random = np.random.Generator
ReadRows = Callable[[Sequence[Row]], Any]  # Writes rows, and returns the result of a reader.


@dataclass(frozen=True)
class Kind:
    """How the n-th id or city is written, and how a city is declared."""

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

# The cells of the hostile person; {} is replaced by a number that no other world has.
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

    def with_values(self, values: Sequence[str], rng: Random) -> "Stack":
        """Return the same rows with other values of x."""
        worlds = [
            [[(*row[:3], str(rng.choice(values))) for row in rows] for rows in persons]
            for persons in self.worlds
        ]
        return replace(self, worlds=worlds)

    def neighbour(self, hostile: str, rng: Random, *, replaced: bool) -> list[Row]:
        """Return rows with one more person in each world, or with one person replaced."""
        kept_worlds = self.worlds if not replaced else [persons[1:] for persons in self.worlds]
        rows = [row for persons in kept_worlds for rows in persons for row in rows]
        for world in range(len(self.worlds)):
            rows += _hostile_rows(world, HOSTILE[hostile], self.ids, self.cities, rng)
        rng.shuffle(rows)  # Mixes the rows of all persons.
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
    # A row without an id is a person, so a neighbour has only one such row more.
    for _ in range(rng.integers(1, 2 * MOST_ROWS) if who else 1):
        city = cells.get("city", CITIES[cities].written(int(rng.integers(6))))
        x = cells.get("x", VALUES[rng.integers(len(VALUES))])
        if rng.integers(4) == 0:  # Not every cell of the person is hostile.
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
    """A reader cannot represent or write these cells."""


def read_with(reader: str, folder: Path, rows: Sequence[Row]) -> Any:
    """Write rows to a file, and return the result of a reader."""
    path = Path(mkdtemp(dir=folder), "visits.csv")
    path.write_text(csv_text(rows), encoding="utf-8")
    try:
        return READERS[reader](path)
    except (OverflowError, pa.ArrowException, pl.exceptions.PolarsError) as error:
        raise UnreadableError from error


def _pandas(path: Path) -> pd.DataFrame:
    return pd.read_csv(path, low_memory=False)


def _parquet(path: Path) -> Files:
    """Return a Parquet file with the types that pandas inferred."""
    parquet_path = path.with_suffix(".parquet")
    _pandas(path).to_parquet(parquet_path)
    return Files(parquet_path)


def _sqlite(path: Path) -> Files:
    database_path = path.with_suffix(".db")
    frame = _pandas(path)
    if any(frame[name].dtype == object for name in COLUMNS):
        frame = frame.astype({name: str for name in COLUMNS if frame[name].dtype == object})
    with closing(sqlite3.connect(database_path)) as database, database:
        frame.to_sql("visits", database, index=False)
    return Files(database_path, table="visits")


def _duckdb_file(path: Path) -> Files:
    """Return a table of a DuckDB file with the types that DuckDB inferred."""
    database_path = path.with_suffix(".duckdb")
    database_path.unlink(missing_ok=True)
    with duckdb.connect(str(database_path)) as connection:
        connection.read_csv(str(path), sample_size=-1).create("visits")
    return Files(database_path, table="visits")


def _json(path: Path) -> Files:
    """Return JSON lines with numbers and text as pandas inferred them."""
    json_path = path.with_suffix(".jsonl")
    _pandas(path).to_json(json_path, orient="records", lines=True, double_precision=15)
    return Files(json_path)


def _categories(path: Path) -> pd.DataFrame:
    return _pandas(path).astype({"who": "category", "city": "category"})


def _dictionaries(path: Path) -> pa.Table:
    table = arrow_csv.read_csv(path)
    names = ("who", "city")
    encoded = {name: table[name].dictionary_encode() for name in names}
    return pa.table({**{name: table[name] for name in ("world", "x")}, **encoded})


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
    "DuckDB file": _duckdb_file,
}


# Requests -----------------------------------------------------------------------------------------


def declared_keys(kind: str, *, as_text: bool = False) -> tuple[Any, ...]:
    """Return declared cities, as parsed values or as text."""
    make = CITIES[kind].written if as_text else CITIES[kind].declared
    return tuple(dict.fromkeys(make(n) for n in range(4)))


class PreparedRequest:
    """The plans and the queries of a request; preparing them takes long."""

    def __init__(self, request: Request, plans: Mapping[Any, Plan] | None = None) -> None:
        """`plans` are those of another request, which ask for more."""
        self.plans = request.plans() if plans is None else plans
        self.queries = [*request.prepare(), *request.hidden_counts().items()]
        self.table_key = request.table_key
        self.marginals = {
            (question, query.name): request.marginal(question, query.name)
            for question, query in self.queries
            if request.is_adjusted(question, query.name)
        }


@cache
def requests(
    keys: tuple[Any, ...],
    neighbours: str,
    max_groups: int | None,
    max_rows: int | None,
    total: int | None = None,
    text_columns: tuple[str, ...] = (),
) -> list[PreparedRequest]:
    """Return requests of all statistics, with Laplace and with Gaussian noise.

    Nothing is grouped without max_groups. Without max_rows and a bound on all rows, each person has
    one sum or mean. With a bound on all rows, one question has other bounds. Different cities are
    counted where nothing is grouped by them.
    """
    by = () if max_groups is None else ("city",)
    prepared: list[PreparedRequest] = []
    for per_person in ("sum", "mean") if max_rows is total is None else (None,):
        question = Question(
            tuple(ASKED.values()), "x", LOWER, UPPER, 0.25, (-2.0, 0.0, 3.0), by, per_person
        )  # fmt: skip
        # The question shares the noisy sums of a variance, which contain these two.
        separate = [replace(question, statistics=(name,), edges=None) for name in ("count", "mean")]
        if total is not None:
            separate.append(replace(question, max_rows=2, max_total_rows=2))
        counts_cities = not by and not per_person
        if counts_cities:
            separate.append(Question((DISTINCT,), "city"))
        laplace = Request(
            1.0, (question, *separate), {"city": keys} if by else {}, missing="drop", person="who",
            max_groups=max_groups, max_rows=max_rows, neighbours=neighbours, without_id="own",
            text_columns=[x for x in text_columns if x != "city" or counts_cities],
            max_total_rows=total,
            undeclared=bool(by) and not per_person, left_out=0.2,
        )  # fmt: skip
        pair = (laplace, replace(laplace, mechanism="gaussian", delta=1e-6))
        prepared += [PreparedRequest(request) for request in pair]
        if by and not per_person:
            prepared.append(PreparedRequest(_hierarchical(laplace, keys), prepared[-2].plans))
    return prepared


def _hierarchical(request: Request, keys: tuple[Any, ...]) -> Request:
    """Return a request of counts and sums that add up, by city, by county and of all rows."""
    question = Question(("count", "sum"), "x", LOWER, UPPER, 0.25)
    questions = [replace(question, by=by) for by in ((), ("county",), ("city",))]
    hierarchy = {"city": {"county": {"first": keys[:1], "others": keys[1:]}}}
    changes: dict[str, Any] = {"publish": questions, "hierarchy": hierarchy, "consistent": True}
    return replace(request, **changes, undeclared=False, left_out=None)


def _sums_of_worlds(marginal: Marginal, answer: Any) -> Any:
    """Return the sums of a table for each world, from the answers for its cells."""
    if isinstance(answer, SumAnswer):
        totals = _sums_of_worlds(marginal, answer.total)
        return SumAnswer(_sums_of_worlds(marginal, answer.count), totals)
    return np.stack([marginal.add_up(of_world) for of_world in answer])


# Conditions on cities of each kind, as parsed values and as text.
CITY_CONDITIONS = {
    "integers": ("city >= 2", "city != '2'"),
    "whole floats": ("city - 1 >= 1", "city != '2.0'"),
    "text": ("city in ('a', 'c', 'd')", "not city == 'B'"),
    "truth values": ("city == 1", "city == 'True'"),
    "dates": ("month(city) == 1", "city != '1999-12-31'"),
}
DERIVED = {"size": "band(x * 2, -4, 0, 3)", "double": "x + x - 0.5"}


@cache
def requests_with_expressions(
    city_condition: str,
    neighbours: str,
    max_groups: int | None,
    max_rows: int | None,
    total: int | None = None,
    text_columns: tuple[str, ...] = (),
) -> list[PreparedRequest]:
    """Return requests about rows that match, with derived values and derived groups.

    `requests` has what numbers leave out, and these only in `make test-long`.
    """
    by = () if max_groups is None else ("size",)
    wheres = (city_condition, f"not ({city_condition} and x != 1) or size == '3 or more'")
    prepared_requests = []
    for per_person in ("sum", "mean") if max_rows is total is None else (None,):
        questions = [
            Question(
                ("mean", "median", "histogram"), "double", LOWER, UPPER, 0.25, (-2.0, 0.0, 3.0), by,
                per_person, where=where,
            )
            for where in wheres
        ]  # fmt: skip
        request = Request(
            1.0, questions, missing="drop", person="who", max_groups=max_groups,
            max_rows=max_rows, max_total_rows=total, neighbours=neighbours, without_id="own",
            text_columns=[x for x in text_columns if x != "city"], derived=DERIVED,
            undeclared=LONG and bool(by) and not per_person, left_out=0.2 if LONG else None,
        )  # fmt: skip
        prepared_requests.append(PreparedRequest(request))
        if not per_person:  # A filter of the first request may read the city as a number.
            cities = Question((DISTINCT,), "city", by=by, where="x != 1")
            request = replace(request, publish=[cities], text_columns=text_columns, left_out=None)
            prepared_requests.append(PreparedRequest(request))
    return prepared_requests


def check_worlds(query: Query, answer: Any, neighbour: Any) -> float:
    """Fail if the answers of a world differ by more than the sensitivity; return the largest share.

    Scores are compared in a few of the worlds that differ, because fractions are slow.
    """
    if isinstance(query, QuantileSelection):
        differing = np.flatnonzero((answer != neighbour).reshape(len(answer), -1).any(axis=1))
        for world in differing[:_SCORED_WORLDS].tolist():
            check_scores(query, answer[world], neighbour[world])
        return 0.0
    worlds = len(getattr(answer, "count", answer))
    integers = [
        np.concatenate([exact_integers(query, world) for world in of_stack])
        if isinstance(query, TableCount)
        else exact_integers(query, of_stack)
        for of_stack in (answer, neighbour)
    ]
    steps = (integers[0] - integers[1]).reshape(worlds, -1)
    if query.rho is None:
        difference, limit = np.abs(steps).sum(axis=1), Fraction(query.mechanism.sensitivity)
    else:
        difference, limit = (steps * steps).sum(axis=1), Fraction(query.mechanism.sensitivity) ** 2
    worst = int(np.argmax(difference))
    assert difference[worst] <= limit, (
        f"{query.name} moves by {difference[worst]} of {limit} in {worst}"
    )
    return float(difference[worst] / limit)


Answers = dict[Any, Tally]


def keys_of(prepared_requests: Sequence[PreparedRequest]) -> list[Any]:
    """Return the keys of all plans of equal requests."""
    return list(dict.fromkeys(key for request in prepared_requests for key in request.plans))


def answers_of(
    prepared_requests: Sequence[PreparedRequest],
    source: Any,
    worlds: int,
    grouping_keys: Sequence[Any] | None = None,
) -> Answers:
    """Return the answers to all plans, or some; the first axis of each is the world."""
    by_world = Grouping("world", tuple(range(worlds)))
    all_plans = {key: plan for request in prepared_requests for key, plan in request.plans.items()}
    plans = {
        key: replace(all_plans[key], by=(by_world, *all_plans[key].by))
        for key in (all_plans if grouping_keys is None else grouping_keys)
    }
    return dict(zip(plans, tally_all(source, list(plans.values())), strict=True))


def check_neighbours(
    prepared_requests: Sequence[PreparedRequest], answers: Answers, neighbour_answers: Answers
) -> float:
    """Fail if a statistic of a world exceeds its sensitivity; return the largest share."""
    largest = 0.0
    for request in prepared_requests:
        for question, query in request.queries:
            assert not isinstance(query, FROM_DISCOVERY)  # All groups are declared.
            grouping_key = request.table_key(question, query)
            if grouping_key not in answers:
                continue
            index = request.plans[grouping_key].asks.index(query.ask)
            pair = (
                of_world[grouping_key].answers[index] for of_world in (answers, neighbour_answers)
            )
            if (marginal := request.marginals.get((question, query.name))) is not None:
                pair = (_sums_of_worlds(marginal, answer) for answer in pair)
            # Statistics that share noisy sums have the noise of one query.
            largest = max(largest, check_worlds(payer_of(query), *pair))
    return largest


def count_persons(
    source: Any, max_groups: int, columns: Sequence[str] = ("city",)
) -> dict[tuple[str, ...], int]:
    """Return the number of persons in each group of columns, as counted by discovery."""
    counts = count_persons_by_group(source, columns, Unit(("who",), max_groups, without_id="own"))
    return dict(zip(counts.keys, counts.persons.tolist(), strict=True))


def distance(counts: Mapping[Any, int], neighbour_counts: Mapping[Any, int]) -> int:
    """Return the L1 distance between two counts of persons."""
    return sum(
        abs(counts.get(key, 0) - neighbour_counts.get(key, 0))
        for key in {*counts, *neighbour_counts}
    )


# Many pairs ---------------------------------------------------------------------------------------

# max_groups, max_rows and max_total_rows.
Bounds = tuple[int | None, ...]
BOUNDS: list[Bounds] = [
    *((1, 1), (2, 3), (None, 1), (2, None), (None, 4)),
    *((2, 3, 4), (3, None, 3), (None, None, 3)),
]


@dataclass(frozen=True)
class Base:
    """Worlds of ordinary people, the requests about them, and the answers."""

    stack: Stack
    prepared: list[PreparedRequest]
    replaced: bool
    answers: Answers


def make_base(
    read_rows: ReadRows,
    worlds: int,
    cities: Sequence[str],
    rng: Random,
    *,
    all_bounds: Sequence[Bounds] = BOUNDS,
    with_expressions: bool = False,
) -> Base:
    """Return worlds with random kinds of ids, cities and bounds."""
    stack = make_stack(worlds, str(rng.choice(list(IDS))), str(rng.choice(cities)), rng)
    replaced = bool(rng.integers(2))
    groups = len(declared_keys(stack.cities))
    possible = [bounds for bounds in all_bounds if (bounds[0] or 1) <= groups]
    bounds = possible[rng.integers(len(possible))]
    source = read_rows(stack.rows)
    # Not every reader parses dates, truth values, or numbers with leading zeros.
    declared_texts = ((), ("who",), ("city",), ("who", "city"))
    for as_text, text_columns in product((False, True), declared_texts):
        neighbours = "replace" if replaced else "add-remove"
        if with_expressions:
            condition = CITY_CONDITIONS[stack.cities][as_text]
            prepared_requests = requests_with_expressions(
                condition, neighbours, *bounds, text_columns=text_columns
            )
        else:
            keys = declared_keys(stack.cities, as_text=as_text)
            prepared_requests = requests(keys, neighbours, *bounds, text_columns=text_columns)
        with suppress(ArgumentError):
            some = sample_cases(keys_of(prepared_requests), PLANS)
            answers = answers_of(prepared_requests, source, worlds, some)
            return Base(stack, prepared_requests, replaced, answers)
    raise AssertionError(f"nothing is read of {stack.ids} and {stack.cities}")


def check_hostile_persons(
    read_rows: ReadRows,
    worlds: int,
    *,
    hostile: Sequence[str] = tuple(HOSTILE),
    cities: Sequence[str] = tuple(CITIES),
    all_bounds: Sequence[Bounds] = BOUNDS,
    bases: int = 3,
    compared: int | None = None,
    with_expressions: bool = False,
) -> int:
    """Compare worlds with hostile neighbours; return how many kinds of these were refused.

    All kinds are tried in random order, or until `compared` of them were not refused.
    """
    rng = np.random.default_rng()
    options: Any = {"all_bounds": all_bounds, "with_expressions": with_expressions}
    all_bases = [make_base(read_rows, worlds, cities, rng, **options) for _ in range(bases)]
    refused = 0
    for index, name in enumerate(rng.permutation(hostile).tolist()):
        if index - refused == compared:
            break
        base = all_bases[index % bases]
        rows = base.stack.neighbour(name, rng, replaced=base.replaced)
        try:
            answers = answers_of(base.prepared, read_rows(rows), worlds, list(base.answers))
        except (ArgumentError, UnreadableError):
            refused += 1
        else:
            check_neighbours(base.prepared, base.answers, answers)
    return refused
