"""Expressions over one row: the filters and the derived columns of a request.

Their syntax is a part of Python's. `ast` parses the text, and nothing runs it. Every column has one
kind, which follows from its use and not from the data: a number, text, or a date.

A value is missing if a part of it is missing. A comparison with a missing value does not match, and
neither does its negation, as in SQL. So `not` is applied to the comparisons below it.
"""

import ast
import math
import re
import warnings
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields
from datetime import date
from itertools import pairwise
from typing import Any, Final, NoReturn, TypeVar

from dpnoise.core.errors import ArgumentError, Violation, is_real, reject, reject_type, short_repr

NUMBER: Final = "a number"
TEXT: Final = "text"
DATE: Final = "a date"
_GROUP: Final = "a group"

_LONGEST: Final = 100_000  # Characters of an expression; a map of a code list may be long.
_MOST_RESULTS: Final = 100  # Bands, and results of a map: DuckDB plans more of them slowly.
_DEEPEST: Final = 50  # Levels of an expression: engines and this module recurse.
_DATE_PARTS: Final[Mapping[str, tuple[int, ...] | None]] = {
    "month": tuple(range(1, 13)),
    "weekday": tuple(range(1, 8)),  # Monday is 1.
    "year": None,
}
_ALLOWED: Final = (
    "consist of columns, numbers, text in quotes, + - *, comparisons, and, or, not, in, and the "
    "functions band, column, date, map, month, weekday and year"
)
_DATE: Final = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
_SIGNS: Final[Mapping[type[ast.AST], str]] = {
    ast.Add: "+",
    ast.Sub: "-",
    ast.Mult: "*",
    ast.Eq: "==",
    ast.NotEq: "!=",
    ast.Lt: "<",
    ast.LtE: "<=",
    ast.Gt: ">",
    ast.GtE: ">=",
}
_OPPOSITE: Final = {"==": "!=", "!=": "==", "<": ">=", ">=": "<", ">": "<=", "<=": ">"}


@dataclass(frozen=True)
class SourceColumn:
    """A column of the data, used as a number, as text or as a date."""

    name: str
    kind: str


@dataclass(frozen=True)
class Constant:
    """A number. A date is the number of its digits: 2024-01-31 is 20240131."""

    number: float


@dataclass(frozen=True)
class Arithmetic:
    """The sum, difference or product of two numbers, in float64."""

    sign: str
    left: "ValueNode"
    right: "ValueNode"


@dataclass(frozen=True)
class DatePart:
    """The year, the month or the weekday of a date; Monday is 1."""

    part: str
    day: SourceColumn


@dataclass(frozen=True)
class CodeMap:
    """The result for each code of a column; the default for other codes, missing without one."""

    codes: SourceColumn
    results: tuple[tuple[Any, Any], ...]  # Pairs of text and floats.
    default: Any = None


@dataclass(frozen=True)
class Band:
    """The label of the band that a number is in. Bands begin at each edge; the last has no end."""

    number: "ValueNode"
    edges: tuple[float, ...]

    @property
    def labels(self) -> tuple[str, ...]:
        """The labels of all bands, such as "0 to 18" and "18 or more"."""
        texts = [f"{edge:,.12g}" for edge in self.edges]
        return (*(f"{low} to {high}" for low, high in pairwise(texts)), f"{texts[-1]} or more")


@dataclass(frozen=True)
class Comparison:
    """A comparison of two numbers, or of two dates."""

    sign: str
    left: "ValueNode"
    right: "ValueNode"


@dataclass(frozen=True)
class Membership:
    """Whether a value is in a list or, if negated, is another value."""

    value: "ValueNode"
    members: tuple[str, ...] | tuple[float, ...]
    negated: bool


@dataclass(frozen=True)
class AllOf:
    """Whether a row meets all conditions."""

    parts: tuple["Condition", ...]


@dataclass(frozen=True)
class AnyOf:
    """Whether a row meets at least one condition."""

    parts: tuple["Condition", ...]


ValueNode = SourceColumn | Constant | Arithmetic | DatePart | CodeMap | Band
Condition = Comparison | Membership | AllOf | AnyOf
_Node = TypeVar("_Node", bound=Condition | ValueNode)


def parse_condition(text: object, derived: Mapping[str, ValueNode] | None = None) -> Condition:
    """Return the condition of a filter. `derived` has the derived columns that it may use.

    >>> parse_condition("age >= 18").left
    SourceColumn(name='age', kind='a number')
    """
    parser = _ExpressionParser("where", text, derived or {})
    return parser.check_uses(parser.condition(parser.tree, negated=False))


def parse_value(name: str, text: object) -> ValueNode:
    """Return the value of a derived column, a number or text.

    >>> parse_value("band", "band(age, 0, 18)").labels
    ('0 to 18', '18 or more')
    """
    parser = _ExpressionParser(f"derived[{name!r}]", text, {})
    if isinstance(parser.tree, ast.Name | ast.Constant) or parser.function(parser.tree) == "column":
        parser.reject(parser.tree, "compute something: use a column by its own name")
    is_text = parser.is_text(parser.tree)
    value = parser.text(parser.tree) if is_text else parser.number(parser.tree)
    return parser.check_uses(value)


def kind_of(value: ValueNode) -> str:
    """Return the kind of a value: a number or text."""
    if isinstance(value, Band):
        return TEXT
    if isinstance(value, CodeMap):
        return TEXT if isinstance(value.results[0][1], str) else NUMBER
    return value.kind if isinstance(value, SourceColumn) else NUMBER


def possible_values(value: ValueNode) -> tuple[Any, ...] | None:
    """Return all values of a derived column in order; None if they are not known."""
    if isinstance(value, Band):
        return value.labels
    if isinstance(value, DatePart):
        return _DATE_PARTS[value.part]
    if isinstance(value, CodeMap):
        results = [result for _, result in value.results]
        return tuple(dict.fromkeys([*results, *([] if value.default is None else [value.default])]))
    return None


def source_columns(node: Condition | ValueNode) -> Iterator[SourceColumn]:
    """Yield the columns of the data that an expression uses, as often as it does."""
    if isinstance(node, SourceColumn):
        yield node
    elif isinstance(node, AllOf | AnyOf):
        for part in node.parts:
            yield from source_columns(part)
    else:
        for field in fields(node):
            if isinstance(child := getattr(node, field.name), ValueNode):
                yield from source_columns(child)


def equated_columns(node: Condition) -> Iterator[str]:
    """Yield each name that a column is compared with by == or !=: often text without quotes."""
    if isinstance(node, AllOf | AnyOf):
        for part in node.parts:
            yield from equated_columns(part)
    elif isinstance(node, Comparison) and node.sign in {"==", "!="}:
        left, right = node.left, node.right
        are_columns = isinstance(left, SourceColumn) and left.kind == NUMBER
        if are_columns and isinstance(right, SourceColumn) and right.kind == NUMBER:
            yield right.name


def check_kinds(columns: Iterable[SourceColumn]) -> None:
    """Raise if a column is used in two ways: files are read with one type for each column."""
    kinds: dict[str, str] = {}
    for column in columns:
        kind = kinds.setdefault(column.name, column.kind)
        if kind != column.kind:
            raise ArgumentError(
                f"Column {column.name!r} is used as {kind} and as {column.kind}. Use it in one "
                "way, or give the data a second column."
            )


def group_column(name: str, keys: Iterable[object]) -> SourceColumn:
    """Return a column of groups with the kind of its keys."""
    kinds = {TEXT if isinstance(key, str) else NUMBER if is_real(key) else _GROUP for key in keys}
    return SourceColumn(name, kinds.pop() if len(kinds) == 1 else _GROUP)


class _ExpressionParser:
    """Turns a text into nodes. Each method expects one kind of expression."""

    def __init__(self, name: str, text: object, derived: Mapping[str, ValueNode]) -> None:
        if not isinstance(text, str):
            reject_type(name, text, "be an expression in quotes")
        self._name, self._source, self._derived = name, text.strip(), derived
        if not 0 < len(self._source) <= _LONGEST:
            reject(name, text, f"have 1 to {_LONGEST:,} characters")
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("error")  # Unknown escapes such as \d become errors.
                self.tree = ast.parse(self._source, mode="eval").body
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            offset = getattr(error, "offset", None)
            where = f" at character {offset}" if offset else ""
            raise ArgumentError(
                Violation(name, _ALLOWED, short_repr(text) + where, _advice(self._source))
            ) from None
        self._lines = self._source.encode().split(b"\n")
        self._check_depth()

    def _check_depth(self) -> None:
        nodes = [(self.tree, 1)]
        while nodes:
            node, depth = nodes.pop()
            if depth > _DEEPEST:
                reject(self._name, self._source, f"have at most {_DEEPEST} levels")
            children = (
                child for child in ast.iter_child_nodes(node) if isinstance(child, ast.expr)
            )
            nodes += [(child, depth + 1) for child in children]

    def reject(self, node: ast.expr, rule: str = _ALLOWED) -> NoReturn:
        """Raise the error about a part of the expression."""
        rule, _, advice = rule.partition(": ")
        shown = short_repr(self._segment(node))  # Offsets count bytes of a line.
        before = self._lines[node.lineno - 1][: node.col_offset].decode()
        line = f" of line {node.lineno}" if "\n" in self._source else ""
        place = f"{shown} at character {len(before) + 1}{line}"
        raise ArgumentError(Violation(self._name, rule, place, advice))

    def _segment(self, node: ast.expr) -> str:
        # `ast.get_source_segment` would split the source again for every node.
        lines = self._lines[node.lineno - 1 : node.end_lineno]
        lines[-1] = lines[-1][: node.end_col_offset]
        lines[0] = lines[0][node.col_offset :]
        return b"\n".join(lines).decode()

    def check_uses(self, node: _Node) -> _Node:
        """Return the whole expression; raise if it uses a column as two kinds, or uses none."""
        check_kinds(source_columns(node))
        return self._about_columns(self.tree, node)

    def _about_columns(self, source: ast.expr, node: _Node) -> _Node:
        """Return a node; raise if it uses no column."""
        if not any(True for _ in source_columns(node)):
            self.reject(source, "use a column")
        return node

    def function(self, node: ast.expr) -> str | None:
        """Return the name of the function that a node calls; None for other nodes."""
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            return self._segment(node.func)
        return None

    def is_text(self, node: ast.expr) -> bool:
        """Return whether a node is text; a column is not known to be."""
        if isinstance(node, ast.Constant):
            return isinstance(node.value, str)
        if self.function(node) in {"band", "map"}:
            return self.function(node) == "band" or kind_of(self._map(node)) == TEXT
        derived = self._derived.get(self._column_name(node) or "")
        return derived is not None and kind_of(derived) == TEXT

    def condition(self, node: ast.expr, *, negated: bool) -> Condition:
        """Return a condition or its negation."""
        if isinstance(node, ast.BoolOp):
            parts = tuple(self.condition(part, negated=negated) for part in node.values)
            return (AllOf if isinstance(node.op, ast.And) != negated else AnyOf)(parts)
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            return self.condition(node.operand, negated=not negated)
        if not isinstance(node, ast.Compare):
            self.reject(node, "be a condition such as age >= 18")
        pairs = zip(node.ops, pairwise([node.left, *node.comparators]), strict=True)
        compared = tuple(self._comparison(node, op, *pair, negated=negated) for op, pair in pairs)
        if len(compared) == 1:
            return compared[0]
        return AnyOf(compared) if negated else AllOf(compared)

    def _comparison(
        self, node: ast.Compare, op: ast.cmpop, left: ast.expr, right: ast.expr, *, negated: bool
    ) -> Condition:
        if isinstance(op, ast.In | ast.NotIn):
            return self._membership(left, right, negated=negated != isinstance(op, ast.NotIn))
        if type(op) not in _SIGNS:
            self.reject(node)
        sign = _OPPOSITE[_SIGNS[type(op)]] if negated else _SIGNS[type(op)]
        if self.is_text(left) or self.is_text(right):
            constant, other = (left, right) if isinstance(left, ast.Constant) else (right, left)
            is_one_constant = isinstance(constant, ast.Constant) > isinstance(other, ast.Constant)
            if sign not in {"==", "!="} or not is_one_constant:
                rule = (
                    "compare text by == or != with text in quotes, and dates as date('2024-01-31')"
                )
                self.reject(node, rule)
            members = (self._text_constant(constant),)
            return self._about_columns(node, Membership(self.text(other), members, sign == "!="))
        is_date = any(self.function(side) == "date" for side in (left, right))
        numbers = [self.day(side) if is_date else self.number(side) for side in (left, right)]
        return self._about_columns(node, Comparison(sign, *numbers))

    def _membership(self, left: ast.expr, right: ast.expr, *, negated: bool) -> Condition:
        members = right.elts if isinstance(right, ast.Tuple | ast.List | ast.Set) else []
        if not members:
            self.reject(right, "have a list after in: city in ('cork', 'dublin')")
        if self.is_text(left) or isinstance(getattr(members[0], "value", None), str):
            texts = tuple(map(self._text_constant, members))
            return Membership(self._about_columns(left, self.text(left)), texts, negated)
        number = self._about_columns(left, self.number(left))
        return Membership(number, tuple(map(self._constant, members)), negated)

    def number(self, node: ast.expr) -> ValueNode:
        """Return a number."""
        if isinstance(node, ast.Constant):
            return Constant(self._constant(node))
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            operand = self.number(node.operand)
            if isinstance(operand, Constant):
                return Constant(self._constant(node))
            return Arithmetic("-", Constant(0.0), operand)
        if isinstance(node, ast.BinOp) and type(node.op) in _SIGNS:
            numbers = self.number(node.left), self.number(node.right)
            return Arithmetic(_SIGNS[type(node.op)], *numbers)
        if (function := self.function(node) or "") in _DATE_PARTS:
            (argument,) = self._arguments(node, 1)
            day = self.day(argument)
            if not isinstance(day, SourceColumn):
                self.reject(argument, "name a column of dates")
            return DatePart(function, day)
        return self._map_or_column(node, NUMBER)

    def text(self, node: ast.expr) -> ValueNode:
        """Return text that is not a constant."""
        if self.function(node) == "band":
            number, *edges = self._arguments(node, 3, _MOST_RESULTS + 1)
            numbers = tuple(map(self._constant, edges))
            band = Band(self.number(number), numbers)
            is_ascending = all(low < high for low, high in pairwise(numbers))
            if not is_ascending or len(set(band.labels)) < len(numbers):
                self.reject(node, "give bands ascending edges: band(age, 0, 18, 65)")
            return band
        return self._map_or_column(node, TEXT)

    def day(self, node: ast.expr) -> ValueNode:
        """Return a date: a column, or the digits of a constant."""
        if self.function(node) != "date":
            return self._map_or_column(node, DATE)
        (argument,) = self._arguments(node, 1)
        if not isinstance(argument, ast.Constant):
            return self._map_or_column(argument, DATE)
        text = self._text_constant(argument)
        if not _DATE.fullmatch(text):  # Python accepts other forms, too.
            self.reject(argument, "write a date as date('2024-01-31')")
        try:
            day = date.fromisoformat(text)
        except ValueError:
            self.reject(argument, "have a date that exists")
        return Constant(float(day.year * 10_000 + day.month * 100 + day.day))

    def _map(self, node: ast.expr) -> CodeMap:
        column, table, *default = self._arguments(node, 2, 3)
        rule = "map codes of one kind to results of one kind: map(sex, {'f': 'female'})"
        if not isinstance(table, ast.Dict) or not table.keys:
            self.reject(table, rule)
        codes = [self._code(key, rule) for key in table.keys]
        results = [self._code(result, rule) for result in [*table.values, *default]]
        for entries in (codes, results):
            if len(set(map(type, entries))) > 1:
                self.reject(table, rule)
        if len(set(codes)) < len(codes) or len(set(results)) > _MOST_RESULTS:
            self.reject(table, f"map each code once, to at most {_MOST_RESULTS} results")
        source = self._map_or_column(column, TEXT if isinstance(codes[0], str) else NUMBER)
        if not isinstance(source, SourceColumn):
            self.reject(column, "map a column of the data")
        pairs = tuple(zip(codes, results[: len(codes)], strict=True))
        return CodeMap(source, pairs, results[-1] if default else None)

    def _code(self, node: ast.expr | None, rule: str) -> str | float:
        if node is None:  # Python's {**other}.
            self.reject(self.tree, rule)
        is_text = isinstance(node, ast.Constant) and isinstance(node.value, str)
        return self._text_constant(node) if is_text else self._constant(node)

    def _map_or_column(self, node: ast.expr, kind: str) -> ValueNode:
        """Return a map, a column of the data, or the expression of a derived one."""
        name = self._column_name(node)
        if self.function(node) == "map":
            value: ValueNode = self._map(node)
        elif name is None:
            self.reject(node)
        else:
            value = self._derived.get(name, SourceColumn(name, kind))
        if kind_of(value) != kind:
            self.reject(node, f"have {kind} here")
        return value

    def _column_name(self, node: ast.expr) -> str | None:
        """Return the name that a node has, as it is written: Python would normalise it."""
        if isinstance(node, ast.Name):
            return self._segment(node)
        if self.function(node) == "column":
            (argument,) = self._arguments(node, 1)
            return self._text_constant(argument)
        return None

    def _arguments(self, node: ast.expr, least: int, most: float | None = None) -> list[ast.expr]:
        most = least if most is None else most
        if not isinstance(node, ast.Call) or node.keywords or not least <= len(node.args) <= most:
            self.reject(node)
        return node.args

    def _constant(self, node: ast.expr) -> float:
        """Return a number that is written as one."""
        sign = 1
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            sign, node = -1, node.operand
        if not isinstance(node, ast.Constant) or not is_real(node.value):
            self.reject(node)
        try:
            number = sign * float(node.value) + 0.0  # -0.0 becomes 0.0.
        except OverflowError:
            number = math.inf
        if not math.isfinite(number):
            self.reject(node, "have finite numbers")
        return number

    def _text_constant(self, node: ast.expr) -> str:
        text = getattr(node, "value", None)
        if not isinstance(node, ast.Constant) or not isinstance(text, str):
            self.reject(node, "have text in quotes here")
        if not text or text != text.encode("utf-8", "ignore").decode("utf-8"):
            self.reject(node, "have text that is not empty, in UTF-8: empty text is missing")
        return text


def _advice(source: str) -> str:
    """Return what to write instead of a usual mistake; empty if there is none."""
    if re.search(r"=[<>]", source):
        return "write <= or >="
    if re.search(r"(?<![<>=!])=(?!=)", source):
        return "write == to compare"
    if re.search(r"&&|\|\||<>|\bAND\b|\bOR\b|\bNOT\b|\bIN\b", source):
        return "write and, or, not, in and !="
    return "write a name with spaces as column('name with spaces')"
