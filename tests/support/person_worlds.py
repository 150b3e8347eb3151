"""Neighbouring data sets with hostile persons, and checks of sensitivities on them."""

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

from dpnoise.statistics.engines import tally_all
from dpnoise.statistics.group_discovery import FROM_DISCOVERY
from dpnoise.statistics.left_out import TableCount
from dpnoise.statistics.marginals import marginal_answer
from dpnoise.statistics.plan import SumAnswer
from dpnoise.statistics.queries import Mean, Query, Sum, Variance
from dpnoise.statistics.questions import QUERIES
from dpnoise.statistics.requests import Question, Request
from dpnoise.statistics.selections import (
    PARTS,
    UNITS_PER_ROW,
    QuantileSelection,
    Ranks,
    SpreadRows,
    nearest_place,
    target_rank,
)
from dpnoise.statistics.shared_sums import payer_of

GROUPS = ("a", "b", "c", "d", "e")
STRANGERS = ("z", "", None)
VALUES = (0.0, -0.0, 0.5, 1.0, 2.5, -3.0, 3.0, 1e300, -1e300, math.inf, -math.inf, math.nan, None)
WHALE = 3_000  # Rows of one person.
LOWER, UPPER = -2.0, 3.0
# Every statistic, by its form in the list of statistics.
ASKED = {
    "count": "count",
    "persons": "persons",
    "sum": "sum",
    "mean": "mean",
    "variance": "variance",
    "std": "std",
    "median": "median",
    "quantile:Q": "quantile:0.9",
    "quantiles:Q,Q": "quantiles:0.25,0.75",
    "histogram": "histogram",
}
# The column of this statistic need not hold numbers, so it has a separate question.
DISTINCT = "distinct"
assert {*ASKED, DISTINCT} == set(QUERIES), "a statistic is not tested"

Row = tuple[Any, Any, Any]  # The person's id, the group, the value.


@dataclass(frozen=True)
class Ids:
    """Ids of a type: those of persons, and the values that mean no id."""

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
def requests(
    neighbours: str, max_groups: int | None, max_rows: int | None, total: int | None = None
) -> list[Request]:
    """Return requests of all statistics, with Laplace and with Gaussian noise.

    Nothing is grouped without max_groups. Without max_rows and a bound on all rows, each person has
    one value. With a bound on all rows, one question has other bounds.
    """
    by = () if max_groups is None else ("city",)
    pairs = []
    for per_person in ("sum", "mean") if max_rows is total is None else (None,):
        question = Question(
            tuple(ASKED.values()), "x", LOWER, UPPER, 0.25, (-2.0, 0.0, 3.0), by, per_person
        )  # fmt: skip
        sums = replace(question, statistics=("sum", "median"), edges=None)
        # The question shares the noisy sums of a variance, which contain these two.
        questions = [question, *(replace(sums, statistics=(x,)) for x in ("count", "mean"))]
        if not per_person:
            questions += [Question(("count",), by=by), Question((DISTINCT,), "code", by=by)]
        if total is not None:
            questions.append(replace(sums, max_total_rows=1))
            questions.append(replace(sums, statistics=("mean",), max_rows=2, max_total_rows=7))
        laplace = Request(
            1.0, questions, {"city": GROUPS} if by else {},
            missing="drop", person="who", max_groups=max_groups, max_rows=max_rows,
            neighbours=neighbours, without_id="own", max_total_rows=total,
            undeclared=bool(by) and not per_person, left_out=0.2,
            text_columns=() if per_person else ("code",),
        )  # fmt: skip
        pairs += [laplace, replace(laplace, mechanism="gaussian", delta=1e-6)]
    return pairs


@cache
def consistent_requests(
    neighbours: str, max_groups: int, max_rows: int | None, total: int | None = None
) -> list[Request]:
    """Return requests of counts and sums that add up, with Laplace and with Gaussian noise."""
    hierarchy = {"city": {"county": {"north": GROUPS[:2], "south": GROUPS[2:]}}}
    per_person = None if max_rows or total else "sum"
    question = Question(["count", "sum"], "x", LOWER, UPPER, 0.25, per_person=per_person)
    laplace = Request(
        1.0, [replace(question, by=by) for by in ((), ("county",), ("city",))], {"city": GROUPS},
        missing="drop", person="who", max_groups=max_groups, max_rows=max_rows,
        max_total_rows=total, neighbours=neighbours, without_id="own", consistent=True,
        hierarchy=hierarchy, undeclared=not per_person, left_out=0.2,
    )  # fmt: skip
    return [laplace, replace(laplace, mechanism="gaussian", delta=1e-6)]


def table(rows: Sequence[Row], ids: Ids) -> pa.Table:
    """Return rows as a table."""
    who, city, x = zip(*rows, strict=True) if rows else ((), (), ())
    return pa.table(
        {
            "who": pa.array(who, ids.kind),
            "city": pa.array(city, pa.string()),
            "x": pa.array(x, pa.float64()),
            "code": pa.array([None if value is None else str(value) for value in x], pa.string()),
        }
    )


def same_person(row: Row, other: Row, ids: Ids) -> bool:
    """Return whether two rows belong to one person; rows without an id belong to different ones."""
    if row[0] in ids.none or row[0] != row[0]:
        return row is other
    return bool(row[0] == other[0])


@st.composite
def worlds(draw: st.DrawFn, ids: Ids) -> tuple[list[Row], list[Row], list[Row]]:
    """Return rows, the rows without one person, and these with other rows of that person."""
    any_row = st.tuples(
        st.sampled_from([*ids.persons, *ids.none]),
        st.sampled_from([*GROUPS, *STRANGERS]),
        st.sampled_from(VALUES),
    )
    rows = draw(st.lists(any_row, min_size=1, max_size=40))
    if draw(st.booleans()):
        values = draw(st.lists(st.sampled_from(VALUES), min_size=1, max_size=3))
        groups = [*GROUPS, *STRANGERS]
        rows += [
            (ids.persons[0], groups[i % len(groups)], values[i % len(values)]) for i in range(WHALE)
        ]
    removed = draw(st.sampled_from(rows))
    others = [row for row in rows if not same_person(removed, row, ids)]
    replacements = draw(st.lists(any_row, max_size=30))
    if removed[0] in ids.none or removed[0] != removed[0]:
        replacements = [(removed[0], *replacements[0][1:])] if replacements else []
    else:
        replacements = [(removed[0], *row[1:]) for row in replacements]
    return rows, others[::-1], replacements + others[::-1]


def exact_integers(query: Any, answer: Any) -> NDArray[Any]:
    """Return the integers to which noise is added, by group."""
    if isinstance(query, TableCount):
        parts = query.totals(answer)
    elif isinstance(query, Mean | Variance):
        assert isinstance(answer, SumAnswer)
        sums = (answer.count, answer.total, answer.squares)
        flat = [None if part is None else part.reshape(-1) for part in sums]
        parts = np.stack(query.sums_of(*flat), axis=-1)
    else:
        parts = answer.total if isinstance(query, Sum) else answer
    return np.asarray(parts, dtype=object).reshape(-1)


def check_sensitivity(query: Query, answer: Any, neighbour: Any) -> None:
    """Fail if two exact answers differ by more than the sensitivity of the query."""
    if isinstance(query, QuantileSelection):
        check_scores(query, answer, neighbour)
        return
    difference = exact_integers(query, answer) - exact_integers(query, neighbour)
    sensitivity = Fraction(query.mechanism.sensitivity)
    if query.rho is None:
        assert sum(abs(step) for step in difference) <= sensitivity, query.name
    else:
        assert sum(step * step for step in difference) <= sensitivity**2, query.name


def check_scores(query: QuantileSelection, answer: Any, neighbour: Any) -> None:
    """Fail if scores differ by more than their noise allows, group by group."""
    losses = []
    cells = query.bounds.cells
    for counts, neighbour_counts in zip(
        answer.reshape(-1, cells), neighbour.reshape(-1, cells), strict=True
    ):
        difference = max(
            _score_difference(counts, neighbour_counts, level, query.epsilon_of_row)
            / Fraction(max(level, 1 - level))
            for level in map(nearest_place, query.places)
        )
        # With epsilon for one row, scores may differ by max(q, 1 - q).
        losses.append(difference * Fraction(query.epsilon_of_row))
    amount = Fraction(query.losses[0].amount)
    assert max(losses) <= amount, query.name
    assert sum(losses) <= amount * len(query.losses), query.name


def ranks_of(counts: NDArray[np.int64]) -> Ranks:
    """Return the ranks of all cells."""
    up_to = np.cumsum(counts, dtype=np.int64)
    return Ranks(up_to - counts, up_to, up_to[-1])


def _score_difference(
    counts: NDArray[np.int64], neighbour_counts: NDArray[np.int64], level: float, epsilon: float
) -> Fraction:
    """Return the largest change of a score that selects a quantile, in rows."""
    ranks = [
        SpreadRows(cells).ranks(-1, cells.size * PARTS, level, epsilon)
        for cells in (counts, neighbour_counts)
    ]
    targets = [target_rank(level, ranks_of_world.rows) for ranks_of_world in ranks]
    floats = [
        ranks_of_world.scores(target) for ranks_of_world, target in zip(ranks, targets, strict=True)
    ]
    worst = int(np.argmax(np.abs(floats[0] - floats[1])))
    exact_scores = [
        ranks_of_world.exact_score(worst, target)
        for ranks_of_world, target in zip(ranks, targets, strict=True)
    ]
    return abs(exact_scores[0] - exact_scores[1]) / UNITS_PER_ROW


def check_neighbours(requests_of_both: Sequence[Request], frame: Any, neighbour: Any) -> None:
    """Fail if a statistic of equal requests differs by more than its declared sensitivity."""
    plans = requests_of_both[0].plans()
    tallies = [
        dict(zip(plans, tally_all(source, list(plans.values())), strict=True))
        for source in (frame, neighbour)
    ]
    for request in requests_of_both:
        assert request.plans() == plans
        for question, query in (*request.prepare(), *request.hidden_counts().items()):
            if isinstance(query, FROM_DISCOVERY):
                continue
            grouping_key = request.table_key(question, query)
            index = plans[grouping_key].asks.index(query.ask)
            pair = [of_frame[grouping_key].answers[index] for of_frame in tallies]
            if request.is_adjusted(question, query.name):
                marginal = request.marginal(question, query.name)
                pair = [marginal_answer(marginal, exact) for exact in pair]
            check_sensitivity(payer_of(query), *pair)
