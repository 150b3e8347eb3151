"""Check plans: limits keep every integer exact and every answer small."""

import math
from collections.abc import Sequence
from typing import Final

from dpnoise.core.errors import (
    ArgumentError,
    check_choice,
    check_integer,
    check_power_of_two,
    reject,
)
from dpnoise.release.calibration import EXTREME
from dpnoise.statistics.expressions import check_kinds
from dpnoise.statistics.plan import Cells, Edges, PersonValue, Plan, Sums, Unit

MISSING: Final = ("error", "drop")
WITHOUT_ID: Final = ("error", "own")
OWN: Final = ("sum", "mean")
_FARTHEST: Final = 2**51  # In grid steps; twice this is still exact in a float.
_FARTHEST_SQUARED: Final = 2**26  # In grid steps; its square is 2^52.
_MOST_CELLS: Final = 2**16
_MOST_EDGES: Final = 2**12
_MOST_COUNTS: Final = 2**24  # In all groups together.


class TooManyCountsError(ArgumentError):
    """All groups together have more counts than are computed."""


def check_plan(plan: Plan) -> None:
    """Raise if a plan asks for more than engines answer exactly."""
    check_choice("missing", plan.missing, MISSING)
    if not plan.asks:
        raise ArgumentError("A plan must ask at least one question.")
    for ask in plan.value_asks:
        if isinstance(ask, Edges):
            _check_edges(ask)
        else:
            _check_bounds(ask)
    for each in (part for grouping in plan.by for part in grouping.groupings):
        if not each.keys:
            raise ArgumentError(f"There must be at least one group of column {each.column!r}.")
    columns = plan.grouped
    if len(set(columns)) < len(columns):
        raise ArgumentError("A column must not be grouped by twice.")
    check_kinds(plan.sources)
    if plan.unit is not None:
        if plan.distinct_asks and len(plan.asks) > 1:
            raise ArgumentError("Different values of persons must be the only question of a plan.")
        check_unit(plan.unit, columns, plan.value_columns)
        used = [column.name for column in plan.sources]
        check_persons(plan.unit.columns, columns, plan.value_columns, used)
    if not all([*columns, *plan.value_columns, *plan.columns]):
        raise ArgumentError("Every column must have a name, got ''. Name it in the data first.")
    _check_size(plan)


def number_of_cells(ask: Cells | Edges) -> int:
    """Return the number of cells that an ask counts."""
    return len(ask.edges) - 1 if isinstance(ask, Edges) else ask.most - ask.least + 1


def check_unit(unit: Unit, grouped: Sequence[str], value_columns: Sequence[str]) -> None:
    """Raise unless the columns and limits of a privacy unit are valid for a plan."""
    check_persons(unit.columns, grouped, value_columns)
    check_integer("max_groups", unit.max_groups, least=1)
    check_integer("max_rows", unit.max_rows, least=1)
    if unit.max_total_rows is not None:
        check_integer("max_total_rows", unit.max_total_rows, least=1)
    check_choice("without_id", unit.without_id, WITHOUT_ID)
    if unit.person_value is not None:
        check_choice("per_person", unit.person_value.kind, OWN)
        _check_bounds(unit.person_value)
        if any(name != unit.person_value.column for name in value_columns):
            raise ArgumentError(
                "All questions of a plan must be about the same value of each person."
            )


def check_persons(
    columns: Sequence[str],
    grouped: Sequence[str],
    value_columns: Sequence[str],
    used: Sequence[str] = (),
) -> None:
    """Raise unless these columns can identify a person: groups and values cannot.

    Neither can columns that are derived, or used in an expression: `used` has these.
    """
    if not columns or not all(columns) or len(set(columns)) < len(columns):
        raise ArgumentError(
            "person must name one or more columns that identify a person, each once."
        )
    uses = (("grouped by", grouped), ("published", value_columns), ("used in expressions", used))
    for use, others in uses:
        for name in columns:
            if name in others:
                raise ArgumentError(
                    f"Column {name!r} identifies a person, and cannot be {use} too. Take another."
                )


def _check_bounds(ask: Sums | Cells | PersonValue) -> None:
    check_power_of_two("grid", ask.grid)
    if not 1 / EXTREME <= ask.grid <= EXTREME:
        reject("grid", ask.grid, "be between 2^-960 and 2^960: measure in another unit")
    if ask.least > ask.most:
        reject("least", ask.least, f"be at most most={ask.most}")
    squares = isinstance(ask, Sums) and ask.squares
    farthest = _FARTHEST_SQUARED if squares else _FARTHEST
    if max(abs(ask.least), abs(ask.most)) > farthest:
        power = farthest.bit_length() - 1
        reject("grid", ask.grid, f"be at least the larger bound over 2^{power}: use a coarser one")
    if isinstance(ask, Cells) and number_of_cells(ask) > _MOST_CELLS:
        reject(
            "grid", ask.grid, f"leave at most {_MOST_CELLS:,} cells, not {number_of_cells(ask):,}"
        )


def _check_edges(ask: Edges) -> None:
    is_increasing = all(low < high for low, high in zip(ask.edges, ask.edges[1:], strict=False))
    if len(ask.edges) < 2 or not is_increasing:  # noqa: PLR2004 - a cell has two edges
        raise ArgumentError("edges must be two or more increasing numbers.")
    if number_of_cells(ask) > _MOST_EDGES:
        raise ArgumentError(
            f"There must be at most {_MOST_EDGES:,} cells between edges. Use fewer edges."
        )


def _check_size(plan: Plan) -> None:
    groups = math.prod(grouping.size for grouping in plan.by)
    with_cells = (ask for ask in plan.asks if isinstance(ask, Cells | Edges))
    counts = groups * max(1, sum(number_of_cells(ask) for ask in with_cells))
    if counts > _MOST_COUNTS:
        raise TooManyCountsError(
            f"{groups:,} groups with all their cells are {counts:,} counts, and at most "
            f"{_MOST_COUNTS:,} are computed. Declare fewer groups, or a coarser grid."
        )
