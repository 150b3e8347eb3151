"""Worlds that differ by one person, hostile ones: what the exact integers may not do in them."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cache
from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import strategies as st
from numpy.typing import NDArray

from dpnoise.statistics.engines import tally
from dpnoise.statistics.plan import Sum as SumAnswer
from dpnoise.statistics.queries import Mean, Query, Sum, Variance
from dpnoise.statistics.questions import QUERIES
from dpnoise.statistics.requests import Question, Request
from dpnoise.statistics.selections import Quantiles, Ranks, nearest_place, target_rank

GROUPS = ("a", "b", "c", "d", "e")
STRANGERS = ("z", "", None)
VALUES = (0.0, -0.0, 0.5, 1.0, 2.5, -3.0, 3.0, 1e300, -1e300, math.inf, -math.inf, math.nan, None)
WHALE = 3_000  # Rows of one person.
LOWER, UPPER = -2.0, 3.0
# Every statistic that there is, as it is asked for here.
ASKED = {
    "count": "count",
    "sum": "sum",
    "mean": "mean",
    "variance": "variance",
    "std": "std",
    "median": "median",
    "quantile:Q": "quantile:0.9",
    "quantiles:Q,Q": "quantiles:0.25,0.75",
    "histogram": "histogram",
}
assert ASKED.keys() == set(QUERIES), "a statistic is not tested"

Row = tuple[Any, Any, Any]  # Whose it is, its group, its value.


@dataclass(frozen=True)
class Ids:
    """Ids of a type: of persons, and what stands for none."""

    kind: pa.DataType
    persons: tuple[Any, ...]
    none: tuple[Any, ...]


IDS = {
    "text": Ids(pa.string(), ("p", "P", "p ", "\x00", "NaN", "0"), (None, "")),
    "integers": Ids(pa.int64(), (0, -1, 2**63 - 1, -(2**63), 7), (None,)),
    "floats": Ids(pa.float64(), (0.0, -1.0, 2.0**53 - 1, 7.0), (None, math.nan)),
    "booleans": Ids(pa.bool_(), (True, False), (None,)),
}


@cache
def requests(neighbours: str, max_groups: int | None, max_rows: int | None) -> list[Request]:
    """Return requests of all statistics, with Laplace and with Gaussian noise.

    Without max_groups there are no groups, without max_rows a person has one value of their own.
    """
    by = () if max_groups is None else ("city",)
    pairs = []
    for per_person in ("sum", "mean") if max_rows is None else (None,):
        question = Question(
            tuple(ASKED.values()), "x", LOWER, UPPER, 0.25, (-2.0, 0.0, 3.0), by, per_person
        )  # fmt: skip
        rows = Question(("count",), by=by)
        laplace = Request(
            1.0, (question,) if per_person else (question, rows), {"city": GROUPS} if by else {},
            missing="drop", person="who", max_groups=max_groups, max_rows=max_rows,
            neighbours=neighbours, without_id="own",
        )  # fmt: skip
        pairs += [laplace, replace(laplace, mechanism="gaussian", delta=1e-6)]
    return pairs


def table(rows: Sequence[Row], ids: Ids) -> pa.Table:
    """Return rows as a table."""
    who, city, x = zip(*rows, strict=True) if rows else ((), (), ())
    return pa.table(
        {
            "who": pa.array(who, ids.kind),
            "city": pa.array(city, pa.string()),
            "x": pa.array(x, pa.float64()),
        }
    )


def same_person(row: Row, other: Row, ids: Ids) -> bool:
    """Tell whether two rows are of one person: a row without an id is of nobody else."""
    if row[0] in ids.none or row[0] != row[0]:
        return row is other
    return bool(row[0] == other[0])


@st.composite
def worlds(draw: st.DrawFn, ids: Ids) -> tuple[list[Row], list[Row], list[Row]]:
    """Return rows, the same without one person, and with other rows of somebody in their place."""
    some = st.tuples(
        st.sampled_from([*ids.persons, *ids.none]),
        st.sampled_from([*GROUPS, *STRANGERS]),
        st.sampled_from(VALUES),
    )
    rows = draw(st.lists(some, min_size=1, max_size=40))
    if draw(st.booleans()):
        values = draw(st.lists(st.sampled_from(VALUES), min_size=1, max_size=3))
        places = [*GROUPS, *STRANGERS]
        rows += [
            (ids.persons[0], places[i % len(places)], values[i % len(values)]) for i in range(WHALE)
        ]
    gone = draw(st.sampled_from(rows))
    rest = [row for row in rows if not same_person(gone, row, ids)]
    came = draw(st.lists(some, max_size=30))
    if gone[0] in ids.none or gone[0] != gone[0]:
        came = [(gone[0], *came[0][1:])] if came else []
    else:
        came = [(gone[0], *row[1:]) for row in came]
    return rows, rest[::-1], came + rest[::-1]


def exact_integers(query: Any, answer: Any) -> NDArray[Any]:
    """Return what noise is added to, by group."""
    if isinstance(query, Mean | Variance):
        assert isinstance(answer, SumAnswer)
        sums = (answer.count, answer.total, answer.squares)
        flat = [None if one is None else one.reshape(-1) for one in sums]
        parts = np.stack(query.parts_of(*flat), axis=-1)
    else:
        parts = answer.total if isinstance(query, Sum) else answer
    return np.asarray(parts, dtype=object).reshape(-1)


def check_moved(query: Query, one: Any, other: Any) -> None:
    """Compare two exact answers with what the query says that a person can move."""
    if isinstance(query, Quantiles):
        check_scores(query, one, other)
        return
    moved = exact_integers(query, one) - exact_integers(query, other)
    sensitivity = Fraction(query.mechanism.sensitivity)
    if query.rho is None:
        assert sum(abs(step) for step in moved) <= sensitivity, query.name
    else:
        assert sum(step * step for step in moved) <= sensitivity**2, query.name


def check_scores(query: Quantiles, one: Any, other: Any) -> None:
    """Compare how far scores move with the noise on them, group by group."""
    losses = []
    cells = query.bounds.cells
    for mine, theirs in zip(one.reshape(-1, cells), other.reshape(-1, cells), strict=True):
        moved = max(
            _score_moves(mine, theirs, place) / Fraction(max(place, 1 - place))
            for place in map(nearest_place, query.places)
        )
        # With epsilon for a row, scores may move by max(q, 1 - q): as many rows as that cost.
        losses.append(moved * Fraction(query.epsilon_of_row))
    amount = Fraction(query.losses[0].amount)
    assert max(losses) <= amount, query.name
    assert sum(losses) <= amount * len(query.losses), query.name


def _score_moves(mine: NDArray[np.int64], theirs: NDArray[np.int64], place: float) -> Fraction:
    ranks = [Ranks.of(counts) for counts in (mine, theirs)]
    targets = [target_rank(place, one.rows) for one in ranks]
    floats = [one.scores(target) for one, target in zip(ranks, targets, strict=True)]
    worst = int(np.argmax(np.abs(floats[0] - floats[1])))
    exactly = [one.exact_score(worst, target) for one, target in zip(ranks, targets, strict=True)]
    return abs(exactly[0] - exactly[1])


def check_neighbours(pair: Sequence[Request], frame: Any, neighbour: Any) -> None:
    """Check every statistic of requests that ask the same, against the declared sensitivity."""
    prepared = [(request.plans(), request.prepare()) for request in pair]
    for way, plan in prepared[0][0].items():
        one, other = tally(frame, plan), tally(neighbour, plan)
        for plans, queries in prepared:
            assert plans[way] == plan
            for question, query in queries:
                if (question.by, question.own) == way:
                    place = plan.asks.index(query.ask)
                    check_moved(query, one.answers[place], other.answers[place])
