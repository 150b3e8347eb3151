"""Sensitivities, bounds and limits as formulas: each against a slow definition, or by hand.

These tests read no data and import no engine, so that `make mutants` can run them for every error
that it plants. tests/statistics/engines/test_sensitivity_limits.py has those that read data.
"""

import math
import re
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from itertools import product
from typing import Any

import mpmath
import numpy as np
import pytest
from flint import arb, ctx
from support.alarms import LONG
from support.person_worlds import ranks_of

from dpnoise.core import arrays, kernel_table, reference
from dpnoise.core.errors import (
    ArgumentError,
    ArgumentTypeError,
    RoundingModeError,
    check_delta,
)
from dpnoise.release import calibration, discrete, exact, selection
from dpnoise.release.additive import GaussianMechanism, LaplaceMechanism
from dpnoise.release.discrete import DiscreteLaplaceMechanism
from dpnoise.release.selection import NoisyMax
from dpnoise.statistics import (
    budget_split,
    composition,
    discovery_threshold,
    queries,
    selections,
)
from dpnoise.statistics.bounds import ONE_ROW, Bounds, ContributionBounds, RowChange, root_up
from dpnoise.statistics.budget_split import Budget, Item, price_items
from dpnoise.statistics.composition import GAUSSIAN, PURE, Cost, DeltaCurve, Loss, compose, float_up
from dpnoise.statistics.engines.checking import check_plan
from dpnoise.statistics.plan import Cells, Edges, Grouping, PersonValue, Plan, Rows, Sums, Unit
from dpnoise.statistics.results import WholeNoise, as_loss
from dpnoise.testing import fixed_generator

ODD = 2**53 + 1  # No float is equal to it: the nearest is 2^53, the next above 2^53 + 2.


def is_smallest_root(root: float, squared: int) -> bool:
    """Return whether a float is the smallest with a square of at least `squared`."""
    return Fraction(root) ** 2 >= squared > Fraction(math.nextafter(root, 0.0)) ** 2


# All groups of one person together ----------------------------------------------------------------


def contributions(groups: int, rows: int, total: int, all_groups: int) -> list[tuple[int, ...]]:
    """Return how many rows of one person may count in each group, in all ways."""
    return [
        counts
        for counts in product(range(rows + 1), repeat=all_groups)
        if sum(counts) <= total and sum(map(bool, counts)) <= groups
    ]


NUMBERS_OF_GROUPS = [(1, 1), (1, 3), (2, 2), (2, 3), (3, 3), (3, 4)]
WAYS = [(*groups, rows) for groups, rows in product(NUMBERS_OF_GROUPS, (1, 2, 3))]


@pytest.mark.parametrize(
    ("groups", "all_groups", "rows"), WAYS if LONG else [way for way in WAYS if way != (3, 4, 3)]
)
@pytest.mark.parametrize("lowest", [0, -1, -2, -3])
def test_the_sensitivity_is_the_largest_over_all_ways_to_have_rows(
    groups: int, all_groups: int, rows: int, lowest: int
) -> None:
    """A row has a value from `lowest` to 3, or adds 3 to one of several sums.

    The r rows of one person and the s rows of another change a sum by at most 3 r - lowest s. They
    change two sums by (3 r, 3 s).
    """

    def changes(change: RowChange, one: int, other: int) -> tuple[int, int]:
        if not change.is_number:
            return 3 * (one + other), 9 * (one**2 + other**2)
        number = max(3 * one - lowest * other, 3 * other - lowest * one)
        return number, number**2

    for total in range(1, groups * rows + 2):
        ways = contributions(groups, rows, total, all_groups)
        limit = total if total <= groups * rows else None
        added = ContributionBounds(groups, rows, all_groups=all_groups, total=limit)
        replaced = replace(added, replace=True)
        for change in (RowChange.of_number(3, 3 - lowest), RowChange.of_sums(3)):
            alone = [[changes(change, each, 0) for each in way] for way in ways]
            pairs = [
                [changes(change, *both) for both in zip(*way, strict=True)]
                for way in product(ways, repeat=2)
            ]
            for bounds, worlds in ((added, alone), (replaced, pairs)):
                assert bounds.l1(change) == max(sum(l1 for l1, _ in world) for world in worlds)
                squared = max(sum(l2 for _, l2 in world) for world in worlds)
                assert is_smallest_root(bounds.l2(change), squared)


def test_the_rest_of_one_person_may_be_in_a_full_group_of_the_other() -> None:
    """Both persons have 5 + 4 rows with values from -1 to 3, in three groups.

    The worst is (5, 0), (4, 5) and (0, 4): 15^2 + 19^2 + 12^2. It is 688 if both have 5 rows in the
    same group, 706 if both have 4, and 722 if each has 5 where the other has 4.
    """
    bounds = ContributionBounds(2, 5, replace=True, all_groups=3, total=9)
    change = RowChange.of_number(3, 4)
    assert bounds.l2(change) == root_up(15**2 + 19**2 + 12**2)
    assert change.l2_squared(5, 5) + 2 * change.l2_squared(4, 0) == 688
    assert 2 * change.l2_squared(5, 0) + change.l2_squared(4, 4) == 706
    assert 2 * change.l2_squared(5, 4) == 722


def test_the_changes_of_numbers_and_of_sums_are_those_of_their_norms() -> None:
    """Of 3 rows against 2, a number changes by 3 + 2 * 5 in L1 and in L2, sums by 15 in L1."""
    assert RowChange.of_number(3, 5) == (3, 5, True)
    assert RowChange.of_sums(3) == (3, 6, False)
    for rows in ((3, 2), (2, 3)):
        assert RowChange.of_number(3, 5).l1(*rows) == 13
        assert RowChange.of_number(3, 5).l2_squared(*rows) == 169
        assert RowChange.of_sums(3).l1(*rows) == 15
        assert RowChange.of_sums(3).l2_squared(*rows) == 9 * (4 + 9)


@pytest.mark.parametrize("persons", [1, 2])
@pytest.mark.parametrize("groups", [1, 2, 3, 4])
@pytest.mark.parametrize("rows", [1, 2, 3])
def test_the_losses_of_selections_cover_every_way_to_have_rows(
    persons: int, groups: int, rows: int
) -> None:
    """Each group costs its rows. Groups are put into as few losses of `rows` rows as possible."""
    for total in range(1, groups * rows + 1):
        bounds = ContributionBounds(groups, rows, persons == 2, 2 * groups, total)
        capacity = Fraction(1) / Fraction(bounds.row_epsilon(1.0))
        assert math.floor(capacity) == persons * min(rows, total)
        ways = contributions(groups, rows, total, groups)
        totals = {
            tuple(sorted(map(sum, zip(*way, strict=True)))) for way in product(ways, repeat=persons)
        }
        if persons == 2:  # Two persons without a common group.
            totals |= {tuple(sorted((*one, *other))) for one, other in product(ways, repeat=2)}
        needed = max(fewest_bins(way, math.floor(capacity)) for way in totals)
        assert needed <= bounds.selections <= groups
        pure = replace(bounds, is_pure=True)
        assert pure.selections == 1
        epsilon_of_row = Fraction(pure.row_epsilon(1.0))
        assert epsilon_of_row * persons * total <= 1 < epsilon_of_row * (persons * total + 1)
    assert ContributionBounds(groups, rows, persons == 2, 9, is_pure=True).selections == groups


def fewest_bins(sizes: tuple[int, ...], capacity: int) -> int:
    """Return the smallest number of bins of a capacity that hold these sizes."""
    ways: set[tuple[int, ...]] = {()}
    for size in sorted(sizes, reverse=True):
        if size:
            after = {tuple(sorted((*bins, size))) for bins in ways}
            for bins in ways:
                for index, filled in enumerate(bins):
                    if filled + size <= capacity:
                        after.add(tuple(sorted((*bins[:index], filled + size, *bins[index + 1 :]))))
            ways = after
    return min(map(len, ways))


@pytest.mark.parametrize(
    ("neighbours", "rows", "total", "losses"),
    [
        ("add-remove", 3, 3, 1),
        ("add-remove", 3, 6, 3),  # Three groups of 2 rows do not fit into two losses of 3.
        ("add-remove", 1, 5, 5),
        ("add-remove", 2, 7, 4),
        ("add-remove", 9, 4, 1),
        ("replace", 2, 2, 1),
        ("replace", 3, 6, 3),
        ("replace", 1, 5, 6),
    ],
)
def test_a_bound_on_all_rows_needs_fewer_losses_than_groups(
    neighbours: str, rows: int, total: int, losses: int
) -> None:
    replaced = neighbours == "replace"
    assert ContributionBounds(20, rows, replaced, 99, total).selections == losses
    assert ContributionBounds(2, rows, replaced, 99, total).selections == min(losses, 2)
    assert ContributionBounds(20, rows, replaced, 99).selections == 20


def test_sensitivities_that_are_no_floats_are_rounded_up() -> None:
    assert ContributionBounds().l1(RowChange.of_number(ODD, ODD)) == 2**53 + 2
    replaced = ContributionBounds(replace=True)
    assert replaced.l1(RowChange.of_number(ODD, ODD)) == 2**53 + 2
    for contribution in (ContributionBounds(), replaced):
        for change in (ODD, 10**20 + 1):
            assert is_smallest_root(contribution.l2(RowChange.of_number(change, change)), change**2)
            assert is_smallest_root(
                ContributionBounds(groups=3).l2(RowChange.of_number(change, change)),
                3 * change**2,
            )


def test_one_row_is_a_person_in_one_group_with_one_row() -> None:
    assert ContributionBounds(groups=1, rows=1, replace=False, all_groups=1) == ONE_ROW


@pytest.mark.parametrize("rows", [1, 3, 7])
@pytest.mark.parametrize("epsilon", [0.1, 1.0, 7.7])
def test_a_row_has_its_part_of_epsilon_in_a_selection_rounded_down(
    rows: int, epsilon: float
) -> None:
    """One of m rows has epsilon/m, or epsilon/(2 m) if another person can replace the first."""
    for replaced, parts in ((False, rows), (True, 2 * rows)):
        part = ContributionBounds(rows=rows, replace=replaced).row_epsilon(epsilon)
        above = math.nextafter(part, math.inf)
        assert Fraction(part) * parts <= Fraction(epsilon) < Fraction(above) * parts


@pytest.mark.parametrize("bits", [1, 2, 53, 54, 105, 106, 107, 108, 109, 110, 111, 112, 200, 1001])
def test_roots_of_every_size_are_rounded_up_to_the_next_float(bits: int) -> None:
    for squared in {2**bits - 1, 2**bits, 2**bits + 1, (2 ** (bits // 2) + 1) ** 2, 3**bits}:
        assert is_smallest_root(root_up(squared), squared)


# Means and variances ------------------------------------------------------------------------------


def definition(query: queries.Mean | queries.Variance, values: list[int]) -> list[int]:
    """Return the sums of a mean or a variance, value by value, with no rounding."""
    least, most = query.bounds.least, query.bounds.most
    pairs = [(value - least, most - value) for value in values]
    if isinstance(query, queries.Variance):
        return [sum(b * b for _, b in pairs), sum(2 * a * b for a, b in pairs),
                sum(a * a for a, _ in pairs)]  # fmt: skip
    return [sum(a for a, _ in pairs), sum(b for _, b in pairs)]


@pytest.mark.parametrize("make", [queries.Mean, queries.Variance])
@pytest.mark.parametrize(("lower", "upper"), [(-3, 8), (2, 9), (-9, -2), (0, 5)])
def test_the_sums_of_means_and_variances_are_those_of_their_definition(
    make: Any, lower: int, upper: int
) -> None:
    query = make("x", lower, upper, 1.0, grid=1.0)
    for values in ([lower], [upper, upper], list(range(lower, upper + 1)), [lower, upper, upper]):
        total, squares = sum(values), sum(value * value for value in values)
        assert list(query.sums_of(len(values), total, squares)) == definition(query, values)
        as_arrays = [np.array([number], dtype=np.int64) for number in (len(values), total, squares)]
        assert [part.tolist() for part in query.sums_of(*as_arrays)] == [
            [part] for part in definition(query, values)
        ]


@pytest.mark.parametrize("rows", [1, 4])
def test_a_person_moves_means_by_rows_times_the_width_and_variances_by_its_square(
    rows: int,
) -> None:
    """The bounds are 2 and 9 on the grid 1/2: the width is 14 grids, and its square 196."""
    contribution = ContributionBounds(rows=rows)
    mean = queries.Mean("x", 2, 9, 1.0, grid=0.5, contribution=contribution)
    variance = queries.Variance("x", 2, 9, 1.0, grid=0.5, contribution=contribution)
    assert mean.mechanism.sensitivity == rows * 14
    assert variance.mechanism.sensitivity == rows * 196
    assert (mean.ask.squares, variance.ask.squares) == (False, True)


def test_sums_of_squares_beyond_64_bits_stay_whole() -> None:
    query = queries.Variance("x", 0, 2**26, 1.0, grid=1.0)  # Its square has 53 bits: 21 are cut.
    rows = 2**40
    counts, totals, squares = (
        np.array([number], dtype=object) for number in (rows, rows * 2**26, rows * 2**52)
    )
    below, both, above = query.sums_of(counts, totals, squares)
    assert (below.tolist(), both.tolist(), above.tolist()) == ([0], [0], [rows * 2**52 >> 21])


@pytest.mark.parametrize("make", [queries.Mean, queries.Sum])
def test_noise_on_means_and_sums_has_a_scale_of_at_most_2_to_the_960(make: Any) -> None:
    """With bounds 0 and 2^900 the scale is 2^900 / epsilon."""
    make("x", 0.0, 2.0**900, 2.0**-60)
    with pytest.raises(ArgumentError, match="scale"):
        make("x", 0.0, 2.0**900, math.nextafter(2.0**-60, 0.0))
    with pytest.raises(ArgumentError, match="scale"):
        make("x", -(2.0**900), 1.0, 2.0**-62)


def test_noise_on_a_variance_has_a_scale_of_at_most_2_to_the_960() -> None:
    queries.Variance("x", -(2.0**400), 1.0, 2.0**-120)
    with pytest.raises(ArgumentError, match="scale"):
        queries.Variance("x", -(2.0**400), 1.0, 2.0**-140)


# The sums of a variance, rounded down -------------------------------------------------------------
#
# With w the width of the bounds in grids, a row at the distances a and b = w - a from them adds
# (b^2, 2ab, a^2) to three sums, in all w^2. Each sum is then divided by 2^s and rounded down. If
# one person adds v0, v1, v2 to the sums, a rounded sum moves by v/2^s, rounded down or up. With m
# rows of a person M = v0 + v1 + v2 = m w^2, and the three change together by at most
#
#     ceil(v0/2^s) + ceil(v1/2^s) + ceil(v2/2^s) < M/2^s + 3,    so by at most floor(M/2^s) + 3.
#
# The width 2^20 + 3 has w^2 = 2^40 + 6 * 2^20 + 9, of 41 bits, so s = 41 - 32 = 9, and modulo 2^9
# w = 3 and w^2 = 9. A row at a = 1 adds, modulo 512, (2^2, 2 * 1 * 2, 1) = (4, 4, 1), which are in
# all 9 = w^2: nothing of M is lost, and the bound is reached if each of the three sums carries.

WIDTH = 2**20 + 3
UNIT = 2**9


def variance_of(rows: int) -> queries.Variance:
    """Return the variance of whole numbers from 0 to WIDTH, with this many rows for a person."""
    return queries.Variance(
        "x", 0, WIDTH, 1.0, grid=1.0, contribution=ContributionBounds(rows=rows)
    )


def rounded_sums(query: queries.Variance, values: list[int]) -> list[int]:
    squares = sum(value * value for value in values)
    return [int(part) for part in query.sums_of(len(values), sum(values), squares)]


def exact_sums(values: list[int]) -> list[int]:
    return [
        sum((WIDTH - a) ** 2 for a in values),
        sum(2 * a * (WIDTH - a) for a in values),
        sum(a * a for a in values),
    ]


@pytest.mark.parametrize("rows", [1, 2, 7])
def test_one_person_moves_the_rounded_sums_of_a_variance_by_three_more_than_the_quotient(
    rows: int,
) -> None:
    """The other persons' sums are just below a multiple of 2^9, so that all three carry.

    The person has m rows at 1. The others have n rows at 1 and k rows at the upper bound, which add
    (4n, 4n, n + 9k) modulo 512. With n = 128 - m the first two are 512 - 4m. As 9 * 57 = 1 modulo
    512, k = 57 * (512 - m - n) makes the third 512 - m.
    """
    other_rows = 128 - rows
    upper = 57 * (UNIT - rows - other_rows) % UNIT
    values = [1] * other_rows + [WIDTH] * upper
    assert [total % UNIT for total in exact_sums(values)] == [
        UNIT - 4 * rows, UNIT - 4 * rows, UNIT - rows,
    ]  # fmt: skip

    query = variance_of(rows)
    without, with_person = (rounded_sums(query, values + [1] * m) for m in (0, rows))
    assert without == [total // UNIT for total in exact_sums(values)]
    moved = sum(new - old for old, new in zip(without, with_person, strict=True))
    quotient = rows * WIDTH**2 // UNIT
    assert moved == quotient + 3
    assert moved <= query.mechanism.sensitivity == rows * (WIDTH**2 // UNIT + 4)


def test_no_row_moves_the_rounded_sums_of_a_variance_by_more() -> None:
    """The bound holds for every value, with the worst sums of the other rows."""
    a = np.arange(WIDTH + 1)
    b = WIDTH - a
    up = sum(-(-part // UNIT) for part in (b * b, 2 * a * b, a * a))
    assert int(np.max(up)) == WIDTH**2 // UNIT + 3 <= variance_of(1).mechanism.sensitivity


def test_the_sums_of_a_variance_are_not_rounded_below_32_bits() -> None:
    """The width 65,535 has a square of 32 bits, 65,536 one of 33: only that is rounded."""
    for width, sensitivity in ((65_535, 65_535**2), (65_536, 2**31 + 4)):
        query = queries.Variance("x", 0, width, 1.0, grid=1.0)
        assert query.mechanism.sensitivity == sensitivity
        shift = 0 if width == 65_535 else 1
        parts = [int(part) for part in query.sums_of(1, 1, 1)]
        assert parts == [(width - 1) ** 2 >> shift, 2 * (width - 1) >> shift, 1 >> shift]


# Bounds in whole grids ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("lower", "upper", "least", "most", "largest", "span", "width"),
    [
        (-1.2, 2.9, -2, 5, 5, 7, 7),
        (1.3, 2.0, 3, 4, 4, 4, 1),
        (-7.1, -1.1, -14, -3, 14, 14, 11),
        (-0.2, 0.3, 0, 0, 1, 1, 1),  # Everything is 0: no sum moves, and noise still needs a scale.
        (0.9, 1.1, 2, 2, 2, 2, 1),
    ],
)
def test_bounds_move_inward_to_the_grid_and_sums_move_by_what_remains(
    lower: float, upper: float, least: int, most: int, largest: int, span: int, width: int
) -> None:
    """On the grid 1/2: -1.2 is -2.4 grids and moves to -2."""
    bounds = Bounds.of_sum(lower, upper, 0.5)
    assert (bounds.least, bounds.most) == (least, most)
    assert (bounds.largest, bounds.span, bounds.width) == (largest, span, width)
    assert bounds.cells == most - least + 1
    sums = {n * value for n in (0, 1) for value in range(least, most + 1)}
    assert max(*(abs(total) for total in sums), 1) == largest
    assert max(max(sums) - min(sums), 1) == span


@pytest.mark.parametrize(("lower", "upper"), [(0.0, 1024.0), (-1024.0, 0.0), (-1024.0, 1.0)])
def test_default_grids_are_the_larger_bound_over_2_to_the_32_and_26(
    lower: float, upper: float
) -> None:
    assert Bounds.of_sum(lower, upper).grid == 2.0**10 / 2**32
    assert Bounds.of_squares(lower, upper).grid == 2.0**10 / 2**26
    assert Bounds.of_sum(1.5 * lower, 1.5 * upper).grid == 2.0**11 / 2**32  # A power of two.


@pytest.mark.parametrize(
    ("make", "bits"), [(Bounds.of_sum, 40), (Bounds.of_squares, 26), (Bounds.of_cells, 51)]
)
def test_no_bound_is_farther_from_zero_than_integers_stay_exact(make: Any, bits: int) -> None:
    """The limits are 2^40 grids for sums, 2^26 for squares and 2^51 for cells."""
    for sign in (1, -1):
        near = sign * (2.0**bits - 10)
        make(*sorted([near, sign * 2.0**bits]), 1.0)
        with pytest.raises(ArgumentError, match=rf"larger bound over 2\^{bits}, 1, got"):
            make(*sorted([near, sign * (2.0**bits + 1)]), 1.0)


def test_a_grid_is_a_power_of_two_between_2_to_the_minus_960_and_2_to_the_960() -> None:
    for make, power in product((Bounds.of_sum, Bounds.of_squares, Bounds.of_cells), (960, -960)):
        grid = 2.0**power
        assert make(0.0, 2 * grid, grid).grid == grid
        outside = grid * 2 if power > 0 else grid / 2
        with pytest.raises(ArgumentError, match="grid"):
            make(0.0, 2 * outside, outside)
    with pytest.raises(ArgumentError, match="power of two"):
        Bounds.of_sum(0.0, 10.0, 0.3)
    with pytest.raises(ArgumentError, match="grid"):
        Bounds.of_sum(0.0, 2.0**-1010)  # Its default grid underflows.


def test_bounds_have_an_order_and_a_multiple_of_the_grid_between_them() -> None:
    assert Bounds.of_sum(0.9, 1.1, 1.0).cells == 1
    with pytest.raises(ArgumentError, match="multiple between"):
        Bounds.of_sum(0.1, 0.9, 1.0)
    for lower, upper in ((1, 1), (2, 1), (None, 1), (0, None), (0, math.inf), (math.nan, 1)):
        with pytest.raises((ArgumentError, ArgumentTypeError), match=r"lower|upper"):
            Bounds.of_sum(lower, upper, 1.0)  # type: ignore[arg-type]


def test_bounds_are_at_most_as_far_apart_as_the_largest_float() -> None:
    """The largest float is about 1.8e308: bounds of -1e308 and 1e308 have no width."""
    for make in (Bounds.of_sum, Bounds.of_squares, Bounds.of_cells):
        with pytest.raises(ArgumentError, match="less than 1e308 above lower"):
            make(-1e308, 1e308)


def test_a_quantile_has_at_most_65536_candidates_and_by_default_more_than_half() -> None:
    assert Bounds.of_cells(0, 65_535, 1.0).cells == 65_536
    with pytest.raises(ArgumentError, match="65,536 candidates, not 65,537"):
        Bounds.of_cells(0, 65_536, 1.0)
    for lower, upper in ((0.0, 65_535.0), (-65_535.0, 0.0), (10.0, 65_545.0)):
        assert Bounds.of_cells(lower, upper).grid == 1.0
        assert Bounds.of_cells(lower, upper + 1).grid == 2.0
    # Close together far from 0 the grid is that of floats: the larger bound over 2^51 - 1, or more.
    assert Bounds.of_cells(2.0**51 - 2, 2.0**51 - 1).grid == 1.0
    assert Bounds.of_cells(-(2.0**51) + 1, -(2.0**51) + 2).grid == 1.0
    assert Bounds.of_cells(2.0**51 - 2, 2.0**51).grid == 2.0


def test_between_whole_bounds_that_are_far_apart_quantiles_are_whole_numbers() -> None:
    for lower, upper in ((0, 120), (18.0, 68.0), (-100, -50)):
        assert Bounds.of_cells(lower, upper).grid == 1.0
    fine = Bounds.of_cells(0, 49).grid
    assert fine < 0.001
    for lower, upper in ((0.5, 120), (0, 120.5), (18, 67)):
        assert Bounds.of_cells(lower, upper).grid <= 4 * fine
    assert Bounds.of_cells(0, 120, 0.25).grid == 0.25


# Quantiles ----------------------------------------------------------------------------------------


class SelectionRecorder:
    """Records the epsilon of every selection, and selects the first candidate."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.epsilons: list[Fraction] = []
        self.targets: list[Fraction] = []
        self.rows: list[int] = []
        monkeypatch.setattr(selections, "_select_cell", self._select)

    def _select(
        self, cells: selections.Ranks, q: float, epsilon: float, rng: None, row: int
    ) -> int:
        assert rng is None
        self.targets.append(Fraction(q) * int(cells.rows))
        self.epsilons.append(Fraction(epsilon))
        self.rows.append(row)
        return 0


EPSILONS = [0.1, 0.7, 1.0, 1.1, 1.9, 2.5]  # A third, a fifth or 7/8 of some rounds up.


@pytest.mark.parametrize(
    ("inward", "q", "ends"),
    [(0, 0.5, (4, 9)), (2, 0.5, (5, 8)), (4, 0.25, (5, 6)), (2**61, 0.5, (6, 6)),
     (2**61, 0.0, (4, 4)), (2**61, 1.0, (9, 9)), (2**61, 0.75, (7, 7))],
)  # fmt: skip
def test_the_ends_of_a_cell_approach_its_rank_at_q_and_do_not_cross(
    inward: int, q: float, ends: tuple[int, int]
) -> None:
    """A cell of 5 rows has the ranks 4 to 9. Fractions of a rank are rounded down."""
    below, up_to = np.array([0, 4, 9]), np.array([4, 9, 11])
    moved = selections.Ranks(below, up_to, np.int64(11), inward, q)
    assert (moved.below[1], moved.up_to[1]) == ends
    assert (moved.below[0], moved.up_to[2]) == (-(2**61), 2**61)


def test_a_cut_has_below_it_its_part_of_the_rows_of_its_cell() -> None:
    """A row is 8192 units; the 4096 cuts of a cell have 1, 3, ..., 8191 units of each row below."""
    spread_rows = selections.SpreadRows(np.array([3, 0, 5]))
    for cut, units in (
        (-1, 0), (0, 3 * 1), (1, 3 * 3), (2, 3 * 5), (4095, 3 * 8191),
        (4096, 3 * 8192), (8191, 3 * 8192),
        (8192, 3 * 8192 + 5 * 1), (8193, 3 * 8192 + 5 * 3),
        (12_287, 3 * 8192 + 5 * 8191), (12_288, 8 * 8192),
    ):  # fmt: skip
        assert spread_rows.below(np.array([cut])).tolist() == [units]


@pytest.mark.parametrize("epsilon", EPSILONS)
def test_a_cut_spends_at_most_its_epsilon_on_its_two_selections(
    monkeypatch: pytest.MonkeyPatch, epsilon: float
) -> None:
    """An eighth selects the position within the cell, and the rest selects the cell."""
    recorder = SelectionRecorder(monkeypatch)
    selections.SpreadRows(np.array([3, 0, 5])).select_cut(
        -1, 3 * selections.PARTS, 0.5, epsilon, None
    )
    cell, part = recorder.epsilons
    assert part == Fraction(epsilon) / 8
    above = Fraction(math.nextafter(float(cell), math.inf))
    assert cell + part <= Fraction(epsilon) < above + part


@pytest.mark.parametrize("epsilon", EPSILONS)
def test_quantiles_of_one_row_spend_at_most_epsilon_on_all_levels(
    monkeypatch: pytest.MonkeyPatch, epsilon: float
) -> None:
    """One place has 1 level, 2 or 3 places have 2 levels, 4 to 7 places have 3 levels.

    A place that is the only one in its half takes one selection. Others take a cut, with two.
    """
    for number, levels, selected in ((1, 1, 1), (2, 2, 3), (3, 2, 4), (4, 3, 6), (7, 3, 10)):
        recorder = SelectionRecorder(monkeypatch)
        places = [(i + 1) / (number + 1) for i in range(number)]
        cells = selections.select_places(np.array([3, 0, 5]), places, epsilon, None)
        assert cells == [0] * number
        assert len(recorder.epsilons) == selected
        assert recorder.targets[0] == Fraction(places[number // 2]) * 8 * 2 * selections.PARTS
        part = max(recorder.epsilons)
        above = Fraction(math.nextafter(float(part), math.inf))
        assert part * levels <= Fraction(epsilon) < above * levels
        assert set(recorder.rows) == {2 * selections.PARTS}
    assert [selections.levels(number) for number in (1, 2, 3, 4, 7, 8)] == [1, 2, 2, 3, 3, 4]


def select_without_noise(
    cells: selections.Ranks, target: selections.TargetRank, scale: float, rng: None
) -> int:
    """Return the first cell with the best score."""
    assert scale > 0
    assert rng is None
    return int(np.argmax(cells.scores(target)))


@pytest.mark.parametrize(
    ("first", "last", "q", "cut"),
    [
        (-1, 12_288, 0.0, 4096),  # The first and the last of the cell.
        (-1, 12_288, 1.0, 8191),
        (4196, 7096, 0.0, 4196),  # The first and the last that are allowed.
        (4196, 7096, 1.0, 7096),
        (4196, 7096, 0.5, 5646),  # In the middle, because rows are spread evenly.
        (4196, 7096, 0.25, 4921),
        (-1, 12_288, 0.375, 4096 + 1536),  # Of 12 rows 4.5: 3, and 1.5 of 4, or 3/8 of the cell.
    ],
)
def test_a_cut_through_a_cell_has_its_part_of_what_lies_between_two_others_below_it(
    monkeypatch: pytest.MonkeyPatch, first: int, last: int, q: float, cut: int
) -> None:
    """The cell is the second of three, of 4096 cuts each, from 4096 to 8191."""
    monkeypatch.setattr(selections.Ranks, "select", select_without_noise)
    monkeypatch.setattr(selections.SpreadRows, "cell", lambda *_: 1)
    spread_rows = selections.SpreadRows(np.array([3, 4, 5]))
    assert abs(spread_rows.select_cut(first, last, q, 1.0, None) - cut) <= (q == 0.375)


def test_several_quantiles_without_noise_are_those_of_the_rows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of three equal parts of the rows the middles are 1/6, 1/2 and 5/6."""
    monkeypatch.setattr(selections.Ranks, "select", select_without_noise)
    counts, places = np.array([10**6, 0, 0, 10**6, 0, 0, 10**6]), [1 / 6, 1 / 2, 5 / 6]
    assert selections.select_places(counts, places, 1.0, None) == [0, 3, 6]
    assert selections.select_places(counts, places[:2], 1.0, None) == [0, 3]
    assert selections.select_places(counts, places[2:], 1.0, None) == [6]


def test_an_interval_without_noise_is_the_narrowest_with_enough_ranks_to_spare(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With 100 cells there are 15 widths; at scale 2 they need 2 log(14 / 0.2) = 8.5: 9 + 1.

    Cell 50 - w has 50 - w rows below it, so a width of 10 has 10 ranks to spare on the left, and 11
    on the right. The widths are 0, 1, 2, 3, 4, 6, 8, 11, ...
    """
    scales = []

    def best(scores: Any, _: object, scale: float, __: object) -> int:
        scales.append(scale)
        return int(np.argmax(scores))

    monkeypatch.setattr(selections, "noisy_argmax", best)
    ones = np.ones(100, np.int64)
    assert selections.interval_widths(100).tolist() == [
        *(0, 1, 2, 3, 4, 6, 8, 11, 16, 23, 32, 45, 64, 91, 99),
    ]
    assert selections.select_interval(ones, 50, 0.5, 0.5, 0.9, None) == (39, 61)
    assert selections.select_interval(ones, 97, 0.5, 0.5, 0.9, None) == (33, 99)
    assert selections.select_interval(20 * ones, 50, 0.5, 0.5, 0.9, None) == (49, 51)
    assert selections.select_interval(30 * ones, 50, 0.5, 0.5, 0.9, None) == (49, 51)
    assert scales == [2.0] * 4


def test_the_ranks_to_spare_make_a_miss_improbable() -> None:
    """P(a miss) is at most (m - 1)/2 exp(-h/s), for every number of widths and scale."""
    for number, scale, confidence in product((1, 2, 3, 33), (0.01, 1.0, 2.0, 50.0), (0.5, 0.95)):
        needed = selections.spare_ranks(number, scale, confidence)
        assert (number - 1) / 2 * math.exp(-needed / scale) <= 1 - confidence
        fewer = (number - 1) / 2 * math.exp(-(needed - 2) / scale)
        assert needed <= 2 or fewer > 1 - confidence


def test_the_scale_of_a_selected_rank_is_twice_the_larger_side_over_epsilon() -> None:
    """One more row moves q n by q and a rank by 0 or 1, so a score by max(q, 1 - q)."""
    for q, side in ((0.5, 0.5), (0.25, 0.75), (0.75, 0.75), (1.0, 1.0)):
        assert selections.place_scale(q, 0.5) == 2 * side / 0.5
        assert selections.place_scale(q, 0.5, 3) == 3 * 2 * side / 0.5


def test_the_target_of_a_selection_is_its_part_of_the_rows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of 4 rows 3/8 are 1.5. A row that counts 2 has the scale 2 * 2 * 5/8 over epsilon."""
    selected: list[tuple[selections.TargetRank, float]] = []

    def select(_: selections.Ranks, target: selections.TargetRank, scale: float, rng: None) -> int:
        assert rng is None
        selected.append((target, scale))
        return 0

    monkeypatch.setattr(selections.Ranks, "select", select)
    cells = ranks_of(np.array([1, 1, 1, 1]))
    selections._select_cell(cells, 0.375, 0.5, None, 2)
    targets = [(int(target.whole), float(target.part)) for target, _ in selected]
    assert targets == [(1, 0.5)]
    assert [scale for _, scale in selected] == [5.0]


@pytest.mark.parametrize("epsilon", EPSILONS)
@pytest.mark.parametrize("number", [1, 3, 5])
def test_quantiles_and_their_intervals_spend_at_most_epsilon_together(
    monkeypatch: pytest.MonkeyPatch, epsilon: float, number: int
) -> None:
    """Quantiles get half, and all intervals the other half; without intervals they get all."""
    spent: list[Fraction] = []

    def select_places(_: object, places: list[float], epsilon: float, __: object) -> list[int]:
        spent.append(Fraction(epsilon))
        return [0] * len(places)

    def select_interval(
        _: object, cell: int, __: float, epsilon: float, *___: object
    ) -> tuple[int, int]:
        assert cell == 0
        spent.append(Fraction(epsilon))
        return 0, 0

    monkeypatch.setattr(selections, "select_places", select_places)
    monkeypatch.setattr(selections, "select_interval", select_interval)
    at = [(i + 1) / (number + 1) for i in range(number)]
    counts = np.array([[3, 0, 5]])
    contribution = ContributionBounds(groups=2)
    with_interval = selections.QuantileSelection(
        "x", at, 0, 2, epsilon, 1.0, interval=True, contribution=contribution
    )
    (release,) = with_interval.release(counts, 0.95, None)
    assert release.epsilon == 2 * epsilon  # A person is in 2 groups.
    assert release.parts == {with_interval.name: epsilon, "interval": epsilon}
    half, *each = spent
    assert half == Fraction(epsilon) / 2
    assert len(each) == number
    assert sum(each) <= half < sum(Fraction(math.nextafter(float(e), math.inf)) for e in each)
    assert with_interval.losses == (Loss(PURE, epsilon),) * 2
    spent.clear()
    plain = selections.QuantileSelection("x", at, 0, 2, epsilon, 1.0, interval=False)
    plain.release(counts, 0.95, None)
    assert spent == [Fraction(epsilon)]


def test_quantiles_are_refused_if_noise_for_their_intervals_would_be_too_large() -> None:
    """A median at epsilon e has e/2 for its interval: the scale is 2 (1/2)/(e/2) = 2/e."""
    selections.QuantileSelection("x", [0.5], 0, 2, 2.0**-959, 1.0, interval=True)
    too_small = math.nextafter(2.0**-959, 0.0)
    with pytest.raises(ArgumentError, match="scale"):
        selections.QuantileSelection("x", [0.5], 0, 2, too_small, 1.0, interval=True)


def test_places_of_quantiles_lie_between_0_and_1_each_once() -> None:
    selections.QuantileSelection("x", [0.0, 0.5, 1.0], 0, 2, 1.0, 1.0)
    for places in ([], [-0.1], [1.1], [0.5, 0.5], [0.5, 0.5 + 2.0**-40]):
        with pytest.raises(ArgumentError, match=r"place|q must"):
            selections.QuantileSelection("x", places, 0, 2, 1.0, 1.0)


# Noise for a loss ---------------------------------------------------------------------------------


@pytest.mark.parametrize("replace", [False, True])
def test_counts_histograms_and_sums_have_the_sensitivities_of_the_proofs(
    replace: bool,  # noqa: FBT001
) -> None:
    """A person has 3 rows in each of 4 of 100 groups. Bounds are -2 and 5: the span is 7.

    Replaced, counts change most if no group is shared: 8 groups by 3. So do parts of histograms
    and, in L1, sums: 8 groups by 15. In L2 a sum of squares of 8 groups is 8 * 15^2 = 1800, and
    that of 4 shared ones 4 * 21^2 = 1764.
    """
    contribution = ContributionBounds(groups=4, rows=3, replace=replace, all_groups=100)
    groups = 8 if replace else 4
    rho = Loss(GAUSSIAN, 0.5)
    for loss in (Loss(PURE, 1.0), rho):
        count = queries.Count(None, loss, contribution=contribution)
        histogram = queries.Histogram("x", [0, 1, 2], loss, contribution=contribution)
        total = queries.Sum("x", -2, 5, loss, grid=1.0, contribution=contribution)
        for query, rows in ((count, 3), (histogram, 3), (total, 15)):
            sensitivity = query.mechanism.sensitivity
            if loss is rho:
                assert is_smallest_root(sensitivity, groups * rows**2)
            else:
                assert sensitivity == groups * rows
    narrow = ContributionBounds(
        groups=4, rows=3, replace=True, all_groups=4
    )  # All groups are shared.
    assert (
        queries.Sum("x", -2, 5, 1.0, grid=1.0, contribution=narrow).mechanism.sensitivity == 4 * 21
    )
    assert queries.Count(None, 1.0, contribution=narrow).mechanism.sensitivity == 4 * 3
    assert queries.Histogram("x", [0, 1], 1.0, contribution=narrow).mechanism.sensitivity == 4 * 6


def test_a_loss_gets_its_kind_of_noise_with_the_scale_of_its_kind() -> None:
    """Sensitivity 3: Laplace noise at epsilon 1/2 has scale 6, Gaussian at rho 1/2 scale 3."""
    change = RowChange.of_number(3, 3)
    pure, gaussian = Loss(PURE, 0.5), Loss(GAUSSIAN, 0.5)
    laplace = WholeNoise.of(pure, ONE_ROW, change).mechanism
    discrete = WholeNoise.of(pure, ONE_ROW, change, counts=True, lower=0).mechanism
    normal = WholeNoise.of(gaussian, ONE_ROW, change, counts=True, lower=-1).mechanism
    assert isinstance(laplace, LaplaceMechanism)
    assert isinstance(discrete, DiscreteLaplaceMechanism)
    assert isinstance(normal, GaussianMechanism)
    assert (laplace.scale, discrete.scale, normal.scale) == (6.0, 6.0, 3.0)
    assert (laplace.lower, discrete.lower, normal.lower) == (None, 0, -1)


def test_counts_have_discrete_noise_and_are_clamped_to_0_unless_asked_otherwise() -> None:
    """Discrete Laplace noise on integers is smaller than rounded Laplace noise."""
    for make in (
        lambda **clamp: queries.Count(None, 1.0, **clamp),
        lambda **clamp: queries.Histogram("x", [0, 1], 1.0, **clamp),
    ):
        for query, lower in ((make(), 0), (make(clamp=True), 0), (make(clamp=False), None)):
            assert isinstance(query.mechanism, DiscreteLaplaceMechanism)
            assert query.mechanism.lower == lower


def test_a_count_asks_for_rows_and_one_of_a_column_for_values_of_any_size() -> None:
    assert queries.Count(None, 1.0).ask == Rows()
    assert queries.Count("x", 1.0).ask == Edges("x", (-math.inf, math.inf))
    assert queries.Histogram("x", [0, 1, 3], 1.0).ask == Edges("x", (0.0, 1.0, 3.0))


@pytest.mark.parametrize("edges", [[], [1], [1, 1], [2, 1], [0, 2, 1], [[0, 1], [2, 3]], 1.0])
def test_a_histogram_has_two_or_more_edges_that_rise(edges: Any) -> None:
    with pytest.raises((ArgumentError, ArgumentTypeError), match="two or more increasing"):
        queries.Histogram("x", edges, 1.0)


def test_integers_beyond_64_bits_reach_the_mechanism_as_they_are() -> None:
    """A list has no limit; an array of int64 would wrap or be refused."""
    released_values: list[Any] = []

    class Mechanism:
        def release(self, values: Any, rng: None) -> Any:
            assert rng is None
            released_values.append(values)
            return values

    noise = WholeNoise(Mechanism(), "")  # type: ignore[arg-type]
    large = noise.release(np.array([[2**70], [-(2**70)]], dtype=object), None)
    assert released_values.pop() == [2**70, -(2**70)]
    assert (large.dtype.kind, large.tolist()) == ("O", [[2**70], [-(2**70)]])
    small = noise.release(np.array([[5], [7]], np.int32), None)
    assert released_values.pop() is small
    assert (small.dtype.name, small.tolist()) == ("int64", [[5], [7]])


def test_what_a_query_costs_is_the_sum_of_its_losses_rounded_up() -> None:
    query = queries.Count(None, 1.0)
    query.losses = (Loss(PURE, 1.0), Loss(PURE, 2.0**-60))
    assert (query.epsilon, query.rho) == (1 + 2.0**-52, None)
    query.losses = (Loss(GAUSSIAN, 0.5),)
    assert (query.epsilon, query.rho) == (None, 0.5)
    query.losses = (Loss(PURE, 1.0), Loss(GAUSSIAN, 0.5))
    assert query.epsilon is None
    assert as_loss(0.25) == Loss(PURE, 0.25)
    assert as_loss(Loss(GAUSSIAN, 0.25)) == Loss(GAUSSIAN, 0.25)
    with pytest.raises(ArgumentError, match="epsilon"):
        as_loss(0.0)


# Scales -------------------------------------------------------------------------------------------


def test_scales_lie_between_2_to_the_minus_960_and_2_to_the_960() -> None:
    for extreme, outside in ((2.0**960, math.inf), (2.0**-960, 0.0)):
        assert calibration.check_scale(extreme) == extreme
        with pytest.raises(ArgumentError, match="scale"):
            calibration.check_scale(math.nextafter(extreme, outside))
        assert calibration.selection_scale(1.0, extreme, monotonic=True) == extreme
        with pytest.raises(ArgumentError, match="scale"):
            calibration.selection_scale(1.0, math.nextafter(extreme, outside), monotonic=True)


@pytest.mark.parametrize("epsilon", [0.1, 0.3, 7.0])
def test_scales_of_selections_and_of_rho_are_the_smallest_that_suffice(epsilon: float) -> None:
    """A selection needs 2 D/epsilon, if monotonic D/epsilon, and Gaussian noise D/sqrt(2 rho)."""
    sensitivity = Fraction(0.7)
    for monotonic, factor in ((False, 2), (True, 1)):
        scale = calibration.selection_scale(epsilon, 0.7, monotonic=monotonic)
        scale_below = Fraction(math.nextafter(scale, 0.0))
        needed = factor * sensitivity / Fraction(epsilon)
        assert scale_below < needed <= Fraction(scale)
    scale = calibration.gaussian_scale_for_rho(epsilon, 0.7)
    below, at = (
        2 * Fraction(epsilon) * Fraction(x) ** 2 for x in (math.nextafter(scale, 0), scale)
    )
    assert below < sensitivity**2 <= at


def test_numbers_are_rounded_to_the_side_that_is_safe() -> None:
    third = Fraction(1, 3)
    for number in (third, Fraction(ODD), 1 + Fraction(1, 2**53), 1 + Fraction(3, 2**54)):
        up, down = float_up(number), calibration.quotient_down(number, 1)
        assert Fraction(math.nextafter(up, 0.0)) < number <= Fraction(up)
        assert Fraction(down) <= number < Fraction(math.nextafter(down, math.inf))
        up = calibration.laplace_scale(float(1 / number), 1.0)
        assert Fraction(math.nextafter(up, 0.0)) < 1 / Fraction(float(1 / number)) <= Fraction(up)
    assert (float_up(Fraction(3, 4)), calibration.quotient_down(3, 4)) == (0.75, 0.75)
    assert float_up(Fraction(2) ** 1024) == math.inf


def test_a_difference_is_rounded_down() -> None:
    for total, part in ((1.0, 2.0**-60), (1.0, 0.1), (0.3, 0.1), (1.0, 0.25), (3.0, 2.0**-53)):
        difference = calibration.difference_down(total, part)
        exact_difference = Fraction(total) - Fraction(part)
        assert (
            Fraction(difference)
            <= exact_difference
            < Fraction(math.nextafter(difference, math.inf))
        )


def test_the_search_finds_the_smallest_float_that_suffices() -> None:
    for smallest in (5e-324, 1e-323, 2.0**-1022, 0.1, 1.0, 2.0**1023, 1.7976931348623157e308):
        assert calibration.smallest_float(smallest.__le__) == smallest
    assert calibration.smallest_float(lambda x: x >= 0.5, 0.5) == 0.5
    with pytest.raises(ArgumentError, match="finite scale"):
        calibration.smallest_float(lambda x: x > 0.5, 0.5)


@pytest.mark.parametrize("bad", [0.0, -1.0, math.inf, math.nan])
def test_no_scale_follows_from_numbers_that_are_not_positive_and_finite(bad: float) -> None:
    calls: list[Callable[[], float]] = [
        lambda: calibration.laplace_scale(bad, 1.0),
        lambda: calibration.laplace_scale(1.0, bad),
        lambda: calibration.selection_scale(bad, 1.0, monotonic=True),
        lambda: calibration.selection_scale(1.0, bad, monotonic=True),
        lambda: calibration.gaussian_scale_for_rho(bad, 1.0),
        lambda: calibration.gaussian_scale_for_rho(1.0, bad),
        lambda: calibration.gaussian_scale(bad, 1e-6, 1.0),
        lambda: calibration.gaussian_scale(1.0, bad, 1.0),
        lambda: calibration.gaussian_scale(1.0, 1e-6, bad),
    ]
    for call in calls:
        with pytest.raises(ArgumentError, match=r"epsilon|delta|rho|sensitivity"):
            call()


def test_a_delta_of_one_or_more_and_a_scale_beyond_floats_are_refused() -> None:
    for delta in (1.0, 1.5):
        with pytest.raises(ArgumentError, match="delta"):
            calibration.gaussian_scale(1.0, delta, 1.0)
    with pytest.raises(ArgumentError, match="finite scale"):
        calibration.laplace_scale(2.0**-1000, 2.0**1000)


def test_only_what_is_certain_is_at_most_a_limit() -> None:
    """A ball around the limit that stays wide at any precision decides nothing."""
    limit = arb(1)
    assert calibration.certainly_at_most(lambda _: arb(1), limit)
    assert calibration.certainly_at_most(lambda bits: arb(0.5, 2.0 ** (127 - bits)), limit)
    assert not calibration.certainly_at_most(lambda bits: arb(1.5, 2.0 ** (127 - bits)), limit)
    assert not calibration.certainly_at_most(lambda _: arb(1, 0.1), limit)
    assert not calibration.certainly_at_most(lambda _: arb(0.95, 0.1), limit)


# Mechanisms ---------------------------------------------------------------------------------------


def test_discrete_noise_has_a_scale_from_2_to_the_minus_960_to_2_to_the_55() -> None:
    assert DiscreteLaplaceMechanism(epsilon=0.5, sensitivity=1.0).scale == 2.0
    for epsilon, outside in ((2.0**960, math.inf), (2.0**-55, 0.0)):
        assert DiscreteLaplaceMechanism(epsilon=epsilon, sensitivity=1.0).scale == 1 / epsilon
        with pytest.raises(ArgumentError, match="scale"):
            DiscreteLaplaceMechanism(epsilon=epsilon * (2.0 if outside else 0.5), sensitivity=1.0)


def test_no_noise_is_drawn_in_another_rounding_mode(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrays, "_UNIT", 2.0**-52)  # Simulates a coarser rounding.
    with pytest.raises(RoundingModeError):
        DiscreteLaplaceMechanism(epsilon=1.0, sensitivity=1.0).release(np.array([1]))
    with pytest.raises(RoundingModeError):
        NoisyMax(epsilon=1.0, sensitivity=1.0).select([1.0])


@pytest.mark.parametrize("scale", [1.0, 4.0, 2.0**-30])
def test_a_grid_is_from_2_to_the_minus_50_to_2_to_the_60_scales(scale: float) -> None:
    for power, beyond in ((-50, -51), (60, 61)):
        grid = scale * 2.0**power
        assert GaussianMechanism.for_scale(scale, sensitivity=1.0, grid=grid).grid == grid
        with pytest.raises(ArgumentError, match="times the scale"):
            GaussianMechanism.for_scale(scale, sensitivity=1.0, grid=scale * 2.0**beyond)


def test_a_grid_is_at_most_2_to_the_960_even_if_the_scale_is_near_to_it() -> None:
    scale = 2.0**950
    assert GaussianMechanism.for_scale(scale, sensitivity=1.0, grid=2.0**960).grid == 2.0**960
    with pytest.raises(ArgumentError, match="grid"):
        GaussianMechanism.for_scale(scale, sensitivity=1.0, grid=2.0**961)


def test_default_grids_are_the_smallest_powers_of_two_from_2_to_the_minus_20_scales_on() -> None:
    for scale, power in ((1.0, -20), (math.nextafter(1.0, 2.0), -19), (1.5, -19), (2.0, -19)):
        assert GaussianMechanism.for_scale(scale, sensitivity=1.0).grid == 2.0**power


def test_additive_noise_has_a_scale_a_grid_and_bounds_that_are_possible() -> None:
    for options, words in (
        ({"grid": 0.3}, "power of two"),
        ({"lower": 1.0, "upper": 1.0}, "upper"),
        ({"lower": 2.0, "upper": 1.0}, "upper"),
        ({"lower": math.nan}, "lower"),
        ({"upper": math.inf}, "upper"),
    ):
        with pytest.raises(ArgumentError, match=words):
            LaplaceMechanism(epsilon=1.0, sensitivity=1.0, **options)
    bounded = LaplaceMechanism(epsilon=1.0, sensitivity=1.0, lower=1.0, upper=2.0)
    assert (bounded.lower, bounded.upper) == (1.0, 2.0)
    for scale in (2.0**961, 2.0**-961):
        with pytest.raises(ArgumentError, match="scale"):
            GaussianMechanism.for_scale(scale, sensitivity=1.0)


def test_the_noise_of_a_selection_is_halved_only_for_scores_that_are_said_to_be_monotonic() -> None:
    """It is 2 D/epsilon, and with monotonic scores D/epsilon."""
    assert NoisyMax(epsilon=0.5, sensitivity=3.0).scale == 12.0
    assert NoisyMax(epsilon=0.5, sensitivity=3.0, monotonic=True).scale == 6.0
    words: Any = "no"
    with pytest.raises(ArgumentTypeError, match="monotonic"):
        NoisyMax(epsilon=0.5, sensitivity=3.0, monotonic=words)


def test_a_mechanism_refuses_arguments_that_are_not_positive_or_not_its_own() -> None:
    for bad in (0.0, -1.0, math.inf, math.nan):
        with pytest.raises(ArgumentError, match="sensitivity"):
            GaussianMechanism.for_scale(1.0, sensitivity=bad)
    assert NoisyMax(epsilon=0.5, sensitivity=3.0).replace(epsilon=1.0).scale == 6.0
    with pytest.raises(ArgumentTypeError, match="got delta"):
        NoisyMax(epsilon=0.5, sensitivity=3.0).replace(epsilon=1.0, delta=1e-6)


@pytest.mark.parametrize(
    ("noise", "error", "half"),
    [
        (3.0, 0.0, None),  # The product is below 1 by 2^-54, and as a float it is 1.
        (3 * 2.0**20, 0.0, None),
        (math.nextafter(3.0, 4.0), 0.0, None),
        (4.0, 0.0, 1),
        (2.0, 0.0, 0),
        (2.9, 0.2, None),
        (3.1, 0.2, None),
        (2.9, 0.06, 0),
        (3.1, 0.06, 1),
    ],
)
def test_a_half_that_rounding_or_an_error_could_change_is_left_to_the_reference(
    monkeypatch: pytest.MonkeyPatch, noise: float, error: float, half: int | None
) -> None:
    """The scale is the float below 1/3, so that 3 scales are less than 1."""

    def kernel(_: object, __: int, noises: Any, errors: Any) -> None:
        noises[:], errors[:] = noise, error

    monkeypatch.setattr(kernel_table.first_stage, "exponential", kernel)
    monkeypatch.setattr(reference, "released_whole", lambda *_: 77)
    mechanism = DiscreteLaplaceMechanism(epsilon=1.0, sensitivity=1.0)
    object.__setattr__(mechanism, "scale", 1 / 3)
    halves = mechanism._halves(2, fixed_generator(bytes(32)))
    assert halves.tolist() == [77 if half is None else half] * 2


@pytest.mark.parametrize(
    ("scores", "noise", "errors", "scale", "leaders"),
    [
        ([0.0], [0.0], [0.0], 1.0, [0]),
        ([0, 0], [1.0, 1.5], [0.1, 0.1], 2.0, [1]),  # From 1.8 to 2.2, and from 2.8 to 3.2.
        ([0, 0], [1.0, 1.5], [0.3, 0.3], 2.0, [0, 1]),  # From 1.4 to 2.6, and from 2.4 to 3.6.
        ([0.8, 0], [1.0, 1.5], [0.1, 0.1], 2.0, [0, 1]),  # From 2.6 to 3.0: the scores count.
        ([2.0, 0], [1.0, 1.5], [0.1, 0.1], 2.0, [0]),
        ([1.0, 0], [1.0, 1.5], [0.01, 0.01], 4.0, [1]),  # 5 and 6: the scale counts.
        ([-9.0, 0], [1.0, 1.5], [1e300, 0.1], 2.0, [0, 1]),  # An error without a bound.
        # Sums of floats are rounded, here by up to 1 and by up to 2^9.
        ([2.0**53, 2.0**53], [0.25, 0.5], [0, 0], 1.0, [0, 1]),
        ([-(2.0**53), -(2.0**53)], [0.25, 1.5], [0, 0], 1.0, [0, 1]),
        ([0, 0], [4.0, 4 + 12 * 2.0**-50], [0, 0], 2.0**60, [0, 1]),
        ([0, 0], [-4 - 12 * 2.0**-50, -4.0], [0, 0], 2.0**60, [0, 1]),
    ],
)
def test_only_candidates_that_cannot_lead_by_any_error_or_rounding_are_left_out(
    monkeypatch: pytest.MonkeyPatch,
    scores: list[float],
    noise: list[float],
    errors: list[float],
    scale: float,
    leaders: list[int],
) -> None:
    """A noisy score is uncertain by scale * error, and by its own roundings."""

    def kernel(_: object, __: int, noises_out: Any, errors_out: Any) -> None:
        noises_out[:], errors_out[:] = noise, errors

    monkeypatch.setattr(kernel_table.first_stage, "exponential", kernel)
    words = np.zeros(len(scores), np.uint64)
    score_array = np.array(scores, dtype=np.float64)
    assert selection._possible_leaders(exact.EXPONENTIAL, words, score_array, scale) == leaders


def exact_ball(number: Fraction) -> arb:
    """Return a ball of radius 0 around a fraction of at most 500 bits."""
    with ctx.workprec(500):
        return arb(number.numerator) / arb(number.denominator)


@pytest.mark.parametrize(
    ("scores", "scale", "digits", "leader"),
    [
        # 0.3 + 2 * 1 = 2.3, 2 * 1.2 = 2.4 and 2 * -5 = -10, which is out at once.
        (
            [0.3, 0.0, 0.0],
            2.0,
            [[arb(1, 1), arb(1, 0.01)], [arb(1.2, 1), arb(1.2, 0.01)], [arb(-5, 1)]],
            1,
        ),
        ([1.0, 0.0], 2.0, [[arb(1, 0.01)], [arb(1.2, 0.01)]], 0),
        # The first is out as soon as one of the others is sure to be above it.
        (
            [0.0, 0.0, 0.0],
            1.0,
            [
                [arb(1, 0.01)],
                [arb(1.2, 0.01), arb(1.2, 0.01)],
                [arb(1.1, 0.5), arb(1.1, 0.01)],
            ],
            1,
        ),
        # The noise is below the scores by 1960 bits, and its difference by 400 bits more.
        (
            [2.0**1000, 2.0**1000],
            2.0**-960,
            [[exact_ball(Fraction(1))], [exact_ball(1 + Fraction(1, 2**400))]],
            1,
        ),
    ],
)
def test_possible_leaders_are_compared_with_more_digits_until_one_is_left(
    monkeypatch: pytest.MonkeyPatch,
    scores: list[float],
    scale: float,
    digits: list[list[arb]],
    leader: int,
) -> None:
    """Unneeded digits do not exist, so that reading them fails."""
    monkeypatch.setattr(exact, "rows_from_key", lambda _, i, __: i)
    monkeypatch.setattr(reference, "enclosures", lambda _, i: iter(digits[i]))
    words, key = np.zeros(len(scores), np.uint64), fixed_generator(bytes(32)).source.key()
    form, every = exact.EXPONENTIAL, list(range(len(scores)))
    assert selection._refine(form, key, words, every, scores.__getitem__, scale) == [leader]


@pytest.mark.parametrize("noise", [-(2**62), -5, -1, 0, 1, 5, 2**62])
def test_sums_of_values_and_noise_are_exact_or_held_at_the_ends_of_int64(noise: int) -> None:
    least, most = -(2**63), 2**63 - 1
    values = [least, least + 1, least + 5, least + 2**62, -1, 0, 1, most - 2**62, most - 5, most]
    sums = discrete._add_saturating(np.array(values), np.full(len(values), noise))
    assert sums.tolist() == [min(max(value + noise, least), most) for value in values]


# Composition --------------------------------------------------------------------------------------


def test_costs_are_shown_rounded_up() -> None:
    third = Fraction(1, 3)
    for rounded in Cost(third, third, third, third).floats().values():
        assert rounded is not None
        assert Fraction(math.nextafter(rounded, 0.0)) < third < Fraction(rounded)
    assert Cost(None, third, third, third).floats()["epsilon"] is None


def test_losses_that_no_float_adds_up_to_cost_the_next_float() -> None:
    """1 + 2^-60 lies between 1 and 1 + 2^-52. At a delta of 1e-300 nothing less suffices."""
    losses = [Loss(PURE, 1.0), Loss(PURE, 2.0**-60)]
    assert compose(losses).epsilon == 1 + Fraction(1, 2**60)
    assert compose(losses, 1e-300).epsilon == 1 + Fraction(1, 2**52)


def test_a_delta_that_is_large_enough_costs_no_epsilon() -> None:
    """Randomised response at epsilon e has delta (1 - exp(-e))/(1 + exp(-e)) < e/2 at epsilon 0."""
    assert compose([Loss(PURE, 1e-3)], 1e-3).epsilon == 0
    assert compose([Loss(GAUSSIAN, 1e-9)], 0.5).epsilon == 0
    # At epsilon 1 it is tanh(1/2) = 0.462, where zCDP gives an epsilon above 0.
    assert composition.epsilon_of_zcdp(0.5, 0.47) > 0
    assert compose([Loss(PURE, 1.0)], 0.47).epsilon == 0


def test_the_delta_of_all_is_the_sum_and_below_one() -> None:
    cost = compose([Loss(PURE, 0.5)], 0.5, aside=0.25)
    fourth = Fraction(1, 4)
    assert (cost.delta, cost.rho_delta, cost.rho) == (3 * fourth, fourth, fourth / 2)
    for delta, set_aside in ((0.5, 0.5), (0.0, 1.0), (0.75, 0.5)):
        with pytest.raises(ArgumentError, match="delta"):
            compose([Loss(PURE, 0.5)], delta, aside=set_aside)
    for delta, set_aside in ((-0.1, 0.0), (0.0, -0.1), (math.nan, 0.0)):
        with pytest.raises(ArgumentError, match=r"delta|aside"):
            compose([Loss(PURE, 0.5)], delta, aside=set_aside)
    with pytest.raises(ArgumentError, match="at least one loss"):
        compose([])


def test_a_loss_has_a_known_kind_and_a_positive_amount() -> None:
    with pytest.raises(ArgumentError, match="kind"):
        Loss("renyi", 1.0)
    for amount in (0.0, -1.0, math.inf, math.nan):
        with pytest.raises(ArgumentError, match="amount"):
            Loss(PURE, amount)


def test_up_to_128_sums_of_losses_are_composed_exactly() -> None:
    """Of k equal epsilons there are k + 1 sums, and k that are powers of two have 2^k."""
    assert len(DeltaCurve([Loss(PURE, 0.01)] * 127).ways_by_sum or {}) == 128
    assert len(DeltaCurve([Loss(PURE, 2.0**power) for power in range(7)]).ways_by_sum or {}) == 128
    assert DeltaCurve([Loss(PURE, 0.01)] * 128).ways_by_sum is None
    assert DeltaCurve([Loss(PURE, 2.0**power) for power in range(8)]).ways_by_sum is None


def test_losses_of_too_many_sums_suffice_from_their_cost_on() -> None:
    curve = DeltaCurve([Loss(PURE, 0.01)] * 200)
    epsilon = curve.epsilon_at(1e-6)
    assert curve.is_private_at(epsilon, 1e-6)
    assert not curve.is_private_at(math.nextafter(epsilon, 0.0), 1e-6)


@pytest.mark.parametrize("epsilon", [0.1, 0.5, 2.0])
def test_one_pure_loss_costs_what_randomised_response_does(epsilon: float) -> None:
    """It says the truth with p = exp(e)/(1 + exp(e)), and delta at x is p - exp(x) (1 - p)."""
    for delta in (1e-3, 1e-9):
        cost = compose([Loss(PURE, epsilon)], delta).epsilon
        assert cost is not None
        expected = math.log(math.exp(epsilon) - delta * (1 + math.exp(epsilon)))
        assert math.isclose(float(cost), expected, rel_tol=1e-12)


def test_losses_of_too_many_sums_cost_the_smallest_of_three_simple_bounds() -> None:
    """200 equal epsilons: by zCDP, by their sum, and with Gaussian noise by the sum of both."""
    many = [Loss(PURE, 2.0**-7)] * 200  # In all rho is 200 * 2^-15, which is below the sum, 1.56.
    assert DeltaCurve(many).epsilon_at(1e-6) == composition.epsilon_of_zcdp(200 * 2.0**-15, 1e-6)
    few = [Loss(PURE, 2.0**-14)] * 200
    assert DeltaCurve(few).epsilon_at(1e-300) == 200 * 2.0**-14  # At this delta zCDP gives 0.03.
    gaussian = Fraction(composition.epsilon_of_gaussian(0.5, 1e-6))
    for amount in (2.0**-14, 2.0**-60):  # The second is lost if the sum is rounded to nearest.
        both = DeltaCurve([Loss(GAUSSIAN, 0.5), *[Loss(PURE, amount)] * 200]).epsilon_at(1e-6)
        total = gaussian + 200 * Fraction(amount)
        assert Fraction(math.nextafter(both, 0.0)) < total <= Fraction(both)


def test_gaussian_noise_has_no_epsilon_without_a_delta() -> None:
    assert compose([Loss(GAUSSIAN, 0.5)]).epsilon is None
    assert compose([Loss(GAUSSIAN, 0.5), Loss(PURE, 1.0)]).epsilon is None


def smallest_zcdp_epsilon(rho: float, delta: float) -> mpmath.mpf:
    """Return the formula of Canonne, Kamath and Steinke at its best alpha, by golden section."""
    loss, surprise = mpmath.mpf(rho), -mpmath.log(mpmath.mpf(delta))

    def epsilon(power: mpmath.mpf) -> mpmath.mpf:
        less = mpmath.exp(power)
        curved = (1 + less) * mpmath.log(less / (1 + less)) - mpmath.log(less)
        return (1 + less) * loss + (surprise + curved) / less

    low, high, ratio = mpmath.mpf(-30), mpmath.mpf(30), (mpmath.sqrt(5) - 1) / 2
    for _ in range(120):
        left, right = high - ratio * (high - low), low + ratio * (high - low)
        low, high = (low, right) if epsilon(left) < epsilon(right) else (left, high)
    return epsilon(low)


def test_the_conversion_from_zcdp_is_never_below_the_best_of_its_formula() -> None:
    """If they were rounded to nearest, about half of 40 numbers would be too small."""
    with mpmath.workdps(60):
        for rho in range(1, 41):
            best = smallest_zcdp_epsilon(rho / 64, 1e-6)
            assert best <= composition.epsilon_of_zcdp(rho / 64, 1e-6) < best * (1 + 1e-12)


def test_a_loss_that_is_hardly_one_costs_hardly_any_epsilon() -> None:
    assert 0 <= composition.epsilon_of_zcdp(1e-6, 0.1) < 0.01


def test_a_delta_that_is_no_float_is_refused() -> None:
    """A rounded number could be larger than the requested one."""
    third: Any = Fraction(1, 3)
    with pytest.raises(ArgumentError, match="exactly a float"):
        check_delta(third)
    with pytest.raises(ArgumentError, match="exactly a float"):
        calibration.gaussian_scale(1.0, third, 1.0)
    with pytest.raises(ArgumentError, match="exactly a float"):
        discovery_threshold.threshold(
            DiscreteLaplaceMechanism(epsilon=1.0, sensitivity=1.0), 1, third
        )


def test_the_end_of_a_ball_is_rounded_up() -> None:
    assert Fraction(composition._upper_float(composition.to_ball(Fraction(1)) / 3)) > Fraction(1, 3)
    assert composition._upper_float(composition.to_ball(Fraction(3, 4))) >= 0.75


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 3.0])
def test_rho_of_a_gaussian_is_rounded_down(epsilon: float) -> None:
    """Of noise with scale s on sensitivity 1 it is 1/(2 s^2)."""
    scale = Fraction(calibration.gaussian_scale(epsilon, 1e-6, 1.0))
    rho = composition.gaussian_rho(epsilon, 1e-6)
    above = Fraction(math.nextafter(rho, math.inf))
    assert Fraction(rho) * 2 * scale**2 <= 1 < above * 2 * scale**2


@pytest.mark.parametrize("delta", [0.0, 1.0, 1.5, -0.1, math.nan])
def test_conversions_need_a_delta_between_0_and_1(delta: float) -> None:
    for convert in (
        composition.epsilon_of_gaussian, composition.epsilon_of_zcdp, composition.gaussian_rho,
    ):  # fmt: skip
        with pytest.raises(ArgumentError, match="delta"):
            convert(0.5, delta)
    for rho in (0.0, -1.0):
        with pytest.raises(ArgumentError, match=r"rho|amount"):
            composition.epsilon_of_zcdp(rho, 1e-6)


# Thresholds ---------------------------------------------------------------------------------------


def test_a_threshold_is_above_the_bound_that_every_release_is_clamped_to() -> None:
    """Without a bound it is 15. Every release is at least `lower`, so 15 is too low for 15."""
    for lower, expected in ((None, 15), (-3, 15), (14, 15), (15, 16), (16, 17), (1000, 1001)):
        mechanism = DiscreteLaplaceMechanism(epsilon=1.0, sensitivity=1.0, lower=lower)
        assert discovery_threshold.threshold(mechanism, 1, 1e-6) == expected


def test_a_threshold_above_a_bound_is_the_next_multiple_of_the_grid() -> None:
    """Noise of scale 3 * 10^7 has a grid of 32, and needs less than 2 * 10^8."""
    for excess, expected in ((0, 32), (4, 32), (31, 32), (32, 64)):
        lower = 320_000_000 + excess
        mechanism = GaussianMechanism.for_scale(3e7, sensitivity=1.0, lower=lower)
        assert mechanism.grid == 32.0
        assert discovery_threshold.threshold(mechanism, 1, 1e-6) == 320_000_000 + expected


def test_a_threshold_of_more_than_2_to_the_53_persons_is_refused() -> None:
    """At the scale 2^50 it is about 2^50 log(1/(2 delta)): 3.9 * 2^50, or 13.1 * 2^50."""
    mechanism = DiscreteLaplaceMechanism(epsilon=2.0**-50, sensitivity=1.0)
    assert 3 * 2**50 < discovery_threshold.threshold(mechanism, 1, 0.01) < 2**52
    with pytest.raises(ArgumentError, match=r"more than 2\^53 persons"):
        discovery_threshold.threshold(mechanism, 1, 1e-6)


# Dividing a budget --------------------------------------------------------------------------------


@pytest.mark.parametrize("total", [0.1, 1.0, 0.7])
def test_parts_of_a_budget_are_rounded_down(total: float) -> None:
    decimal_total = Fraction(repr(total))
    for weights in ([1, 2], [1, 1, 1], [3, 7, 5]):
        for part, weight in zip(budget_split.split(total, weights), weights, strict=True):
            above = Fraction(math.nextafter(part, math.inf))
            assert Fraction(part) * sum(weights) <= decimal_total * weight < above * sum(weights)


def test_a_budget_is_divided_by_positive_weights_one_for_each_kind() -> None:
    for total, weights in (
        (1.0, []),
        (1.0, [0.0]),
        (0.0, [1]),
        (-1.0, [1]),
        (1.0, [1e300, 1e-300]),
    ):
        with pytest.raises(ArgumentError, match=r"weight|total"):
            budget_split.split(total, weights)
    refused: list[tuple[list[str], dict[str, Any]]] = [
        (["renyi"], {"epsilon": 1.0}),
        ([PURE], {"epsilon": 1.0, "weights": [1, 1]}),
        ([PURE], {}),
        ([PURE], {"epsilon": 1.0, "rho": 1.0}),
        ([PURE], {"epsilon": 0.0}),
        ([GAUSSIAN], {"epsilon": 1.0}),
        ([GAUSSIAN], {"epsilon": 1.0, "delta": 1.0}),
    ]
    for kinds, budget in refused:
        with pytest.raises(ArgumentError, match=r"kind|weight|budget|epsilon|delta"):
            budget_split.share(kinds, **budget)
    with pytest.raises(ArgumentError, match="use Laplace noise or a budget in rho"):
        budget_split.share([PURE, GAUSSIAN], epsilon=1.0)
    assert [loss.amount for loss in budget_split.share([PURE, PURE], epsilon=1.0)] == [0.5, 0.5]


@pytest.mark.parametrize("rho", [0.5, 0.1, 2.0])
def test_a_part_of_rho_gives_the_largest_epsilon_that_it_covers(rho: float) -> None:
    """A pure loss of epsilon has rho epsilon^2/2."""
    pure, gaussian = budget_split.share([PURE, GAUSSIAN], [1, 1], rho=2 * rho)
    part = Fraction(repr(2 * rho)) / 2
    above = Fraction(math.nextafter(pure.amount, math.inf))
    assert Fraction(pure.amount) ** 2 / 2 <= part
    assert above**2 / 2 > Fraction(gaussian.amount)
    assert Fraction(gaussian.amount) <= part


@pytest.mark.parametrize("epsilon", [0.5, 1.0, 2.0])
@pytest.mark.parametrize("weights", [[3, 1], [5, 3], [1, 7], [5, 11], [1, 2, 5]])
def test_gaussians_share_one_curve_in_proportion_and_rounded_down(
    epsilon: float, weights: list[float]
) -> None:
    """Weights 3 and 1: three quarters and a quarter of the rho that epsilon and delta allow."""
    rho = Fraction(composition.gaussian_rho(epsilon, 1e-6))
    losses = budget_split.share([GAUSSIAN] * len(weights), weights, epsilon=epsilon, delta=1e-6)
    for loss, weight in zip(losses, weights, strict=True):
        above = Fraction(math.nextafter(loss.amount, math.inf))
        part = rho * Fraction(weight) / Fraction(sum(weights))
        assert Fraction(loss.amount) <= part < above


@pytest.mark.parametrize("epsilon", [0.1, 0.3, 0.7, 1.1])
def test_a_mixed_budget_is_compared_with_the_epsilon_that_is_written(
    monkeypatch: pytest.MonkeyPatch, epsilon: float
) -> None:
    """One tenth is less than the float 0.1, and so is the sum of two parts of it."""
    compared: list[float] = []

    class RecordingCurve(DeltaCurve):
        def is_private_at(self, epsilon: float, delta: float) -> bool:
            compared.append(epsilon)
            return super().is_private_at(epsilon, delta)

    monkeypatch.setattr(budget_split, "DeltaCurve", RecordingCurve)
    for weights in ([1, 2], [2, 5], [3, 4], [1, 6]):
        compared.clear()
        losses = budget_split.share([GAUSSIAN, PURE], weights, epsilon=epsilon, delta=1e-6)
        assert len(set(compared)) == 1
        parts = sum(map(Fraction, budget_split.split(epsilon, weights)))
        assert Fraction(compared[0]) <= parts <= Fraction(repr(epsilon))
        cost = compose(losses, 1e-6).epsilon
        assert cost is not None
        assert 0.999 * epsilon < cost <= Fraction(repr(epsilon))


@pytest.mark.parametrize("largest", [1.25, 2.0, 3.5, 4.0, 23.0])
def test_the_parts_of_a_mixed_budget_grow_as_far_as_they_fit(
    monkeypatch: pytest.MonkeyPatch, largest: float
) -> None:
    """Here a curve fits up to a known factor. The search ends within 2^-40 of the last doubling."""
    calls: list[Any] = []

    class KnownCurve:
        def __init__(self, losses: Any) -> None:
            self.pure = losses[1].amount

        def is_private_at(self, *arguments: float) -> bool:
            calls.append(arguments)
            assert len(calls) < 100, "The search does not end."
            return bool(self.pure <= largest * 0.5)

    monkeypatch.setattr(budget_split, "DeltaCurve", KnownCurve)
    gaussian, pure = budget_split.share([GAUSSIAN, PURE], epsilon=1.0, delta=1e-6)
    assert largest * (1 - 2.0**-39) <= pure.amount / 0.5 <= largest
    rho = composition.gaussian_rho(0.5, 1e-6)
    assert math.isclose(gaussian.amount, rho * largest**2, rel_tol=1e-9)


# The cost of an error -----------------------------------------------------------------------------


def test_laplace_noise_within_5_with_95_percent_costs_log_20_over_5() -> None:
    """Noise of scale 1/epsilon is farther than 5 with probability exp(-5 epsilon) = 1/20.

    Rounding to the grid, at most 2^-19 of the scale, adds half a grid to the error.
    """
    for amount, expected in (
        (budget_split.amount_for_error("laplace", 5.0), math.log(20) / 5),
        (budget_split.amount_for_error("laplace", 5.0, 0.9, 2.0), 2 * math.log(10) / 5),
    ):
        assert expected <= amount <= expected * (1 + 2.0**-20)


@pytest.mark.parametrize("error", [0.0, -1.0, math.inf, math.nan])
def test_an_error_that_is_wanted_is_positive_and_finite(error: float) -> None:
    with pytest.raises(ArgumentError, match="error"):
        budget_split.smallest_amount(lambda epsilon: 3 / epsilon, error)


# The cost of a request ----------------------------------------------------------------------------


def make_count(loss: Loss) -> WholeNoise:
    """Return the noise of a count of rows."""
    return WholeNoise.of(loss, ONE_ROW, RowChange.of_number(1, 1), counts=True)


COUNT = Item(make_count, None)


def test_a_request_without_delta_adds_laplace_noise_and_divides_epsilon_evenly() -> None:
    budget = Budget(1.0)
    assert (budget.delta, budget.confidence, budget.discovers) == (0.0, 0.95, False)
    prices = price_items([COUNT, Item(make_count, None, 1.0)], budget)
    assert prices.losses == (Loss(PURE, 0.5), Loss(PURE, 0.5))
    assert prices.cost.epsilon == 1
    assert prices.aside == 0.0


@pytest.mark.parametrize("mechanism", ["gaussian", "best"])
def test_gaussian_noise_without_delta_or_rho_is_refused_also_for_errors(mechanism: str) -> None:
    """It has no epsilon: a limit on epsilon would never be exceeded."""
    for by_error in (False, True):
        with pytest.raises(ArgumentError, match="needs a delta greater than 0 or a budget in rho"):
            Budget(1.0, mechanism=mechanism).check(by_error=by_error)
        Budget(1.0, 1e-6, mechanism=mechanism).check(by_error=by_error)
        Budget(None, rho=0.5, mechanism=mechanism).check(by_error=by_error)


def test_with_a_budget_in_rho_all_of_delta_is_set_aside_for_discovery() -> None:
    """Gaussian noise has no delta in rho."""
    prices = price_items([COUNT], Budget(None, 1e-6, 0.5, mechanism="gaussian", discovers=True))
    assert prices.losses == (Loss(GAUSSIAN, 0.5),)
    assert prices.aside == 1e-6
    assert prices.cost.rho_delta == Fraction(1e-6)


@pytest.mark.parametrize("groups", [3, 7, 1001])
@pytest.mark.parametrize("epsilon", [0.5, 1.0, 1.25, 1.75])
def test_a_selection_has_its_epsilon_divided_among_all_groups_and_rounded_down(
    groups: int, epsilon: float
) -> None:
    """Pure losses are added up, so there may be more groups than other losses can be composed."""
    prices = price_items([Item(make_count, groups)], Budget(epsilon))
    (loss,) = prices.losses
    above = Fraction(math.nextafter(loss.amount, math.inf))
    assert Fraction(loss.amount) * groups <= Fraction(epsilon) < above * groups
    assert prices.cost.epsilon == Fraction(loss.amount) * groups


def test_the_weight_of_a_selection_is_divided_among_its_groups() -> None:
    """Of rho = 1/2 a count has a half. Each of 4 groups has a sixteenth, which is epsilon^2/2."""
    budget = Budget(None, rho=0.5, mechanism="gaussian")
    count, selected = price_items([COUNT, Item(make_count, 4)], budget).losses
    assert count == Loss(GAUSSIAN, 0.25)
    assert selected.kind == PURE
    assert math.isclose(selected.amount, math.sqrt(1 / 8))
    assert Fraction(selected.amount) ** 2 / 2 <= Fraction(1, 16)


def test_the_error_of_a_selection_is_paid_for_in_epsilon_beside_gaussian_noise() -> None:
    """Its loss is pure, even if other statistics have Gaussian noise."""
    items = [Item(make_count, None, error=5.0), Item(make_count, 2, error=5.0)]
    count, selected = price_items(items, Budget(None, 1e-6, mechanism="gaussian")).losses
    assert (count.kind, selected.kind) == (GAUSSIAN, PURE)
    assert make_count(selected).error(0.95) == 5


def test_a_limit_on_the_losses_that_are_composed_is_reached_but_not_exceeded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(budget_split, "_MOST_PIECES", 5)
    budget = Budget(None, rho=0.5, mechanism="gaussian")
    price_items([COUNT, Item(make_count, 4)], budget)
    with pytest.raises(ArgumentError, match="too many losses to compose"):
        price_items([COUNT, Item(make_count, 5)], budget)


def test_errors_may_cost_all_of_epsilon_and_no_more() -> None:
    """Each costs 1/2 for its error of 2."""

    class Noise:
        def __init__(self, loss: Loss) -> None:
            self.amount = loss.amount

        def error(self, confidence: float) -> float:
            assert confidence == 0.95
            return 1 / self.amount

    items = [Item(Noise, None, error=2.0)] * 2
    assert price_items(items, Budget(1.0)).losses == (Loss(PURE, 0.5),) * 2
    with pytest.raises(ArgumentError, match="cost epsilon 1, more than the"):
        price_items(items, Budget(math.nextafter(1.0, 0.0)))


# Limits of plans ----------------------------------------------------------------------------------

FAR = 2**51  # The farthest bound in grids: twice as much is still exact in a float.


def is_refused(*asks: Any, words: str, **options: Any) -> bool:
    """Return whether a plan is rejected with these words; raise if it is rejected with others."""
    message = ""
    try:
        check_plan(Plan(asks, **options))
    except ArgumentError as error:
        message = str(error)
    assert not message or re.search(words, message), message
    return bool(message)


def numbered_groups(column: str, number: int) -> Grouping:
    return Grouping(column, tuple(range(number)))


@pytest.mark.parametrize("sign", [1, -1])
def test_bounds_of_a_plan_are_at_most_2_to_the_51_grids_and_of_squares_2_to_the_26(
    sign: int,
) -> None:
    for farthest, power, squares in ((FAR, 51, False), (2**26, 26, True)):
        words = rf"larger bound over 2\^{power}, got"
        for beyond in (0, 1):
            bounds = sorted([sign * (farthest + beyond), sign])
            ask = Sums("x", 1.0, bounds[0], bounds[1], squares)
            assert is_refused(ask, words=words) == bool(beyond)
    for beyond in (0, 1):
        bounds = sorted([sign * (FAR + beyond), sign * FAR])
        cells = Cells("x", 1.0, bounds[0], bounds[1])
        assert is_refused(cells, words=r"2\^51, got") == bool(beyond)
        unit = Unit(("who",), person_value=PersonValue("x", "sum", 1.0, bounds[0], bounds[1]))
        assert is_refused(Sums("x", 1.0, 0, 1), words=r"2\^51, got", unit=unit) == bool(beyond)


def test_the_least_is_not_above_the_most() -> None:
    for least, refused in ((4, False), (5, False), (6, True), (7, True)):
        assert is_refused(Sums("x", 1.0, least, 5), words="least") == refused


def test_grids_of_a_plan_are_powers_of_two_up_to_2_to_the_960() -> None:
    for grid, refused in ((960, False), (961, True), (-960, False), (-961, True)):
        assert is_refused(Sums("x", 2.0**grid, 0, 1), words=r"between 2\^-960") == refused
    assert is_refused(Sums("x", 0.3, 0, 1), words="power of two")


def test_a_plan_has_at_most_65536_cells_4096_between_edges_and_2_to_the_24_in_all() -> None:
    for excess in (0, 1):
        cells = Cells("x", 1.0, 0, 2**16 - 1 + excess)
        assert is_refused(cells, words=f"65,536 cells, not {2**16 + 1:,}") == bool(excess)
        edges = Edges("x", tuple(map(float, range(2**12 + 1 + excess))))
        assert is_refused(edges, words="at most 4,096 cells") == bool(excess)
        all_cells = Cells("x", 1.0, 0, 2**16 - 1)
        by = (numbered_groups("a", 2**8 + excess),)
        assert is_refused(Rows(), all_cells, by=by, words="at most 16,777,216") == bool(excess)
        edged = Edges("x", tuple(map(float, range(2**12 + 1))))
        by = (numbered_groups("a", 2**12 + excess),)
        assert is_refused(edged, by=by, words="at most 16,777,216") == bool(excess)
        by = (numbered_groups("a", 2**11 + excess),)
        assert is_refused(edged, edged, by=by, words="at most 16,777,216") == bool(excess)
        both = (numbered_groups("a", 2**12 + excess), numbered_groups("b", 2**12))
        assert is_refused(Rows(), by=both, words="at most 16,777,216") == bool(excess)
    one_more = tuple(numbered_groups(str(prime), prime) for prime in (97, 257, 673))
    assert is_refused(Rows(), by=one_more, words="are 16,777,217 counts")


def test_edges_of_a_plan_rise() -> None:
    for edges, refused in (
        ((0.0, 1.0), False), ((0.0, 0.5), False), ((0.0, 1.0, 2.0), False), ((), True),
        ((0.0,), True), ((1.0, 1.0), True), ((2.0, 1.0), True), ((0.0, 2.0, 1.0), True),
    ):  # fmt: skip
        assert is_refused(Edges("x", edges), words="two or more increasing") == refused


def test_a_plan_asks_something_by_columns_with_names_each_once() -> None:
    grouping = numbered_groups("a", 2)
    assert not is_refused(Rows(), by=(grouping,), words="")
    assert is_refused(words="at least one question")
    assert is_refused(Rows(), by=(grouping, grouping), words="grouped by twice")
    assert is_refused(Rows(), by=(Grouping("a", ()),), words="at least one group")
    assert is_refused(Rows(), by=(Grouping("", (1,)),), words="must have a name")
    assert is_refused(Sums("", 1.0, 0, 1), words="must have a name")
    assert is_refused(Rows(), missing="zero", words="missing")
    assert not is_refused(Rows(), missing="drop", words="")


def test_a_unit_bounds_what_a_person_adds_and_is_told_from_groups_and_values() -> None:
    person_value = PersonValue("x", "sum", 1.0, 0, 1)
    unit = Unit(("who",), person_value=person_value)
    ask, by = Sums("x", 1.0, 0, 1), (numbered_groups("a", 2),)
    assert not is_refused(ask, by=by, unit=unit, words="")
    for changes, words in (
        ({"max_groups": 0}, "max_groups"),
        ({"max_rows": 0}, "max_rows"),
        ({"without_id": "drop"}, "without_id"),
        ({"columns": ()}, "one or more columns"),
        ({"columns": ("",)}, "one or more columns"),
        ({"columns": ("who", "")}, "one or more columns"),
        ({"columns": ("who", "who")}, "one or more columns"),
        ({"columns": ("a",)}, "grouped by"),
        ({"columns": ("who", "x")}, "published"),
        ({"person_value": replace(person_value, kind="median")}, "per_person"),
        ({"person_value": replace(person_value, least=2)}, "least"),
        ({"person_value": replace(person_value, column="y")}, "about the same value"),
    ):
        assert is_refused(ask, by=by, unit=replace(unit, **changes), words=words)
    assert is_refused(ask, Sums("y", 1.0, 0, 1), by=by, unit=unit, words="about the same value")
