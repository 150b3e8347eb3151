"""The reference implementation of expressions: evaluated row by row, in plain Python.

It has three truth values, as SQL has: None is a value, or a truth value, that is missing.
"""

import ast
import math
import operator
from collections.abc import Mapping
from datetime import date, datetime
from functools import cache
from typing import Any

OPERATORS = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}
Row = Mapping[str, Any]


def matches(text: str, row: Row) -> bool:
    """Return whether a row is kept by a filter."""
    return evaluate(text, row) is True


def evaluate(text: str, row: Row) -> Any:
    """Return the value of an expression in a row."""
    return _evaluate(_parse(text), row)


@cache
def _parse(text: str) -> ast.expr:
    return ast.parse(text, mode="eval").body


def _plain(value: Any) -> Any:
    """Return a number as a float and a time as its date; None for NaN and empty text."""
    if isinstance(value, datetime):
        return value.date()
    if value is None or isinstance(value, date | str):
        return value or None
    return None if math.isnan(value) else float(value)


def _evaluate(node: ast.expr, row: Row) -> Any:
    value: Any = None
    match node:
        case ast.Constant(constant):
            value = _plain(constant)
        case ast.Name(name):
            value = _plain(row[name])
        case ast.UnaryOp(op, operand):
            operand_value = _evaluate(operand, row)
            negated = not operand_value if isinstance(op, ast.Not) else -(operand_value or 0.0)
            value = None if operand_value is None else negated
        case ast.BoolOp(op, parts):
            value = _joined([_evaluate(part, row) for part in parts], any_of=isinstance(op, ast.Or))
        case ast.BinOp(left, op, right):
            pair = _evaluate(left, row), _evaluate(right, row)
            value = None if None in pair else _plain(OPERATORS[type(op)](*pair))
        case ast.Compare(left, ops, others):
            pairs = zip(ops, [left, *others], others, strict=False)
            value = _joined([_compared(*pair, row) for pair in pairs], any_of=False)
        case ast.Call(ast.Name(function), arguments):
            value = _called(function, arguments, row)
    return value


def _joined(truths: list[bool | None], *, any_of: bool) -> bool | None:
    if any_of in truths:
        return any_of
    return None if None in truths else not any_of


def _compared(op: ast.cmpop, left: ast.expr, right: ast.expr, row: Row) -> bool | None:
    value = _evaluate(left, row)
    if isinstance(op, ast.In | ast.NotIn):
        members = [_evaluate(member, row) for member in right.elts]  # type: ignore[attr-defined]
        return None if value is None else (value in members) == isinstance(op, ast.In)
    other = _evaluate(right, row)
    return None if value is None or other is None else bool(OPERATORS[type(op)](value, other))


def _called(function: str, arguments: list[ast.expr], row: Row) -> Any:
    first, *others = arguments
    if function == "column":
        return _plain(row[ast.literal_eval(first)])
    value = _evaluate(first, row)
    if value is None:
        return None
    if function == "date":
        return date.fromisoformat(value) if isinstance(value, str) else value
    if function == "band":
        return _band(value, [_evaluate(edge, row) for edge in others])
    if function == "map":
        table, *default = map(ast.literal_eval, others)
        plain = {_plain(code): result for code, result in table.items()}
        return _plain(plain.get(value, *default))
    part = {"year": value.year, "month": value.month, "weekday": value.isoweekday()}[function]
    return float(part)


def _band(value: float, edges: list[float]) -> str | None:
    inside = [index for index, edge in enumerate(edges) if value >= edge]
    if not inside:
        return None
    low, *high = [f"{edge:,.12g}" for edge in edges[inside[-1] :]]
    return f"{low} to {high[0]}" if high else f"{low} or more"
