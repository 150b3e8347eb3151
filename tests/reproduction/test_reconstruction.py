"""Algorithm 1 recovers whole columns, and says where it cannot."""

from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray

from dpnoise.core.errors import ArgumentError
from reproduction.inversions import laplace_releases
from reproduction.reconstruction import reconstruct

Floats = NDArray[np.float64]


def column(rows: int, candidates: Floats) -> tuple[Floats, Callable[[], Floats]]:
    """Return values of a column and a query that releases them with NumPy's noise of scale 1000."""
    rng = np.random.default_rng()
    values = rng.choice(candidates, rows)
    return values, lambda: values + rng.laplace(scale=1000.0, size=rows)


def test_a_column_of_10_000_values_is_recovered_exactly() -> None:
    """At the published rate a wrong candidate stays with probability 0.38 in each query.

    The last of 990,000 is gone after 34 queries, but for one run in 10^8.
    """
    candidates = np.arange(100.0)
    values, query = column(10_000, candidates)
    found = reconstruct(query, candidates.tolist(), 1000.0)
    assert (found.values == values).all()
    assert found.queries == found.needed.max() <= 34
    assert found.needed.min() >= 1
    print(f"{found.queries} queries, {found.needed.mean():.2f} for the mean row")


@pytest.mark.parametrize("size", [1, 2, 3, 1000])
def test_any_number_of_candidates_is_told_apart(size: int) -> None:
    """A wrong one stays in a query with probability 0.12 at least: no query settles 300 rows."""
    candidates = np.random.default_rng().normal(scale=100.0, size=size)
    values, query = column(300, candidates)
    found = reconstruct(query, candidates.tolist(), 1000.0)
    assert (found.values == values).all()
    assert (found.queries == 1) == (size == 1)


def test_rows_that_are_left_open_are_marked() -> None:
    values, query = column(2000, np.arange(50.0))
    found = reconstruct(query, range(50), 1000.0, most_queries=1)
    open_rows = np.isnan(found.values)
    assert open_rows.any()
    assert (found.needed[open_rows] == 0).all()
    assert (found.values[~open_rows] == values[~open_rows]).all()
    assert found.queries == 1


def test_the_paper_s_formula_is_reconstructed_at_few_bits() -> None:
    values = np.array([3.0, 1.0, 4.0, 1.0, 5.0])

    def query() -> Floats:
        return laplace_releases(values, 100.0, precision=16)

    found = reconstruct(query, range(10), 100.0, precision=16, formula="paper")
    assert found.values.tolist() == values.tolist()


def test_a_wrong_model_raises_and_bad_arguments_are_named() -> None:
    rng = np.random.default_rng()
    with pytest.raises(ArgumentError, match="A release fits no candidate"):
        reconstruct(lambda: rng.normal(scale=1000.0, size=1000), range(10), 1000.0)
    _, query = column(1000, np.array([0.5]))
    with pytest.raises(ArgumentError, match="A release fits no candidate"):
        reconstruct(query, range(10), 1000.0)
    with pytest.raises(ArgumentError, match="candidates must have at least one value"):
        reconstruct(query, [], 1000.0)
    with pytest.raises(ArgumentError, match="formula must be one of"):
        reconstruct(query, range(10), 1000.0, formula="go")
    with pytest.raises(ArgumentError, match="most_queries must be at least 1, got 0"):
        reconstruct(query, range(10), 1000.0, most_queries=0)
