"""Filters and derived columns in the engine that holds the rows.

Every number is a float64, as in `arithmetic`, and sums, differences and products of two of them are
rounded once in every engine. A missing number is null, or NaN as a result of infinities. No
expression depends on the type that a reader gave to a column, except by an error.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import reduce
from operator import add, and_, eq, ge, gt, le, lt, mul, ne, or_, sub
from typing import Any, Final

import narwhals as nw

from dpnoise.core.errors import ArgumentError
from dpnoise.statistics.engines import arithmetic, keys
from dpnoise.statistics.engines.arithmetic import FLOATS, is_present
from dpnoise.statistics.engines.runners import Data
from dpnoise.statistics.expressions import (
    DATE,
    TEXT,
    AllOf,
    Arithmetic,
    Band,
    CodeMap,
    Comparison,
    Condition,
    Constant,
    DatePart,
    Membership,
    SourceColumn,
    ValueNode,
    kind_of,
    source_columns,
)
from dpnoise.statistics.plan import Grouping, Plan

_OPERATORS: Final[Mapping[str, Callable[[Any, Any], nw.Expr]]] = {
    "+": add,
    "-": sub,
    "*": mul,
    "==": eq,
    "!=": ne,
    "<": lt,
    "<=": le,
    ">": gt,
    ">=": ge,
}
_FLOAT: Final = nw.Float64()


def derive_columns(data: Data, plan: Plan) -> Data:
    """Return the data with the derived columns of a plan, whose types do not depend on a row."""
    used = {*plan.value_columns, *plan.grouped}
    derived, schema = dict(data.derived), dict(data.schema)
    for name, value in plan.derived:
        if name in used:
            is_text = kind_of(value) == TEXT
            derived[name] = _text(value, data) if is_text else _number(value, data) + 0.0
            schema[name] = nw.String() if is_text else _FLOAT
    return replace(data, derived=derived, schema=schema)


def filter_of(data: Data, where: Condition | None) -> nw.Expr | None:
    """Return the expression of a filter. Rows that cannot be parsed stay: they raise an error."""
    if where is None:
        return None
    names = dict.fromkeys(column.name for column in source_columns(where))
    flags = [nw.col(data.parse_errors[name]) == 1 for name in names if name in data.parse_errors]
    return reduce(or_, flags, _condition(where, data))


def _condition(node: Condition, data: Data) -> nw.Expr:
    """Return an expression that is true or false in every row, never null."""
    if isinstance(node, Comparison):
        left, right = _number(node.left, data), _number(node.right, data)
        sides = ((node.left, left), (node.right, right))
        present = [
            is_present(side, _FLOAT) for part, side in sides if not isinstance(part, Constant)
        ]
        return _where_true(reduce(and_, present), _OPERATORS[node.sign](left, right))
    if isinstance(node, Membership):
        has_value, (is_member,) = _membership(node.value, [node.members], data)
        return _where_true(has_value, ~is_member if node.negated else is_member)
    parts = [_condition(part, data) for part in node.parts]
    operator = and_ if isinstance(node, AllOf) else or_
    while len(parts) > 1:  # In pairs, so that engines do not recurse deeply.
        rest = [] if len(parts) % 2 == 0 else [parts.pop()]
        parts = [*map(operator, parts[::2], parts[1::2]), *rest]
    return parts[0]


def _where_true(condition: nw.Expr, result: nw.Expr) -> nw.Expr:
    return nw.when(condition).then(result).otherwise(nw.lit(False))  # noqa: FBT003 - a value


def _number(node: ValueNode, data: Data) -> nw.Expr:
    """Return a number as a float64; a missing one is null or NaN."""
    if isinstance(node, Constant):
        return nw.lit(node.number)
    if isinstance(node, Arithmetic):
        return _OPERATORS[node.sign](_number(node.left, data), _number(node.right, data))
    if isinstance(node, DatePart):
        return _date_part(_day(node.day, data), node.part)
    if isinstance(node, CodeMap):
        return _map_codes(node, data)
    assert isinstance(node, SourceColumn)  # noqa: S101 - for the type checker
    if node.kind == DATE:
        day = _day(node, data)
        year, month = _date_part(day, "year"), _date_part(day, "month")
        return year * 10_000.0 + month * 100.0 + _date_part(day, "day")
    value, is_number = data.number(node.name)
    return nw.when(is_number).then(value)


def _day(column: SourceColumn, data: Data) -> nw.Expr:
    """Return a column of dates; raise for text, and for times with a zone."""
    dtype = data.schema[column.name]
    has_zone = isinstance(dtype, nw.Datetime) and dtype.time_zone is not None
    if has_zone or dtype.base_type() not in {nw.Date, nw.Datetime}:
        kind = "times with a zone" if has_zone else arithmetic.type_name(dtype)
        raise ArgumentError(
            f"Column {column.name!r} holds {kind}, and the request uses it as a date. Convert it "
            "to dates, or to times without a zone, first."
        )
    return data.column(column.name).cast(nw.Date)


def _date_part(day: nw.Expr, part: str) -> nw.Expr:
    number: nw.Expr = getattr(day.dt, part)()
    return number.cast(nw.Float64)


def _text(node: ValueNode, data: Data) -> nw.Expr:
    """Return derived text; null where it is missing."""
    if isinstance(node, Band):
        number = _number(node.number, data)
        bands = zip(node.edges, node.labels, strict=True)
        labels = [nw.when(number >= edge).then(nw.lit(label)) for edge, label in bands]
        return nw.when(is_present(number, _FLOAT)).then(nw.coalesce(*reversed(labels)))
    assert isinstance(node, CodeMap)  # noqa: S101 - for the type checker
    return _map_codes(node, data)


def _membership(
    node: ValueNode, lists: Sequence[Sequence[Any]], data: Data
) -> tuple[nw.Expr, list[nw.Expr]]:
    """Return whether a row has a value, and for each list whether the value is a member of it.

    Members match the text of a column as groups do.
    """
    if kind_of(node) != TEXT:
        number = _number(node, data) + 0.0  # -0.0 becomes 0.0.
        return is_present(number, _FLOAT), [number.is_in(list(members)) for members in lists]
    if not isinstance(node, SourceColumn):
        text = _text(node, data)
        return ~text.is_null(), [text.is_in(list(members)) for members in lists]
    dtype = data.schema[node.name]
    text = keys.key_expression(data.column(node.name), dtype)
    has_text = is_present(text, _FLOAT if dtype in FLOATS else dtype)
    if keys.is_text(dtype):
        has_text = _where_true(has_text, text != "")
    groupings = [Grouping(node.name, tuple(dict.fromkeys(members))) for members in lists]
    matches = [list(keys.match_keys(each, dtype, data.parsed)) for each in groupings]
    return has_text, [text.is_in(values) for values in matches]


def _map_codes(node: CodeMap, data: Data) -> nw.Expr:
    """Return the result of each code."""
    codes_of: dict[Any, list[Any]] = {}
    for code, result in node.results:
        codes_of.setdefault(result, []).append(code)
    has_code, tests = _membership(node.codes, list(codes_of.values()), data)
    results = [
        nw.when(test).then(nw.lit(result)) for result, test in zip(codes_of, tests, strict=True)
    ]
    default = [] if node.default is None else [nw.lit(node.default)]
    return nw.when(has_code).then(nw.coalesce(*results, *default))
