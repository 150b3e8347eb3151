"""Events as runnable Python: expressions that a report holds, and the functions that they call.

An expression is in `y`, one output as the mechanism returns it, or in `releases`, the array of all
releases of added noise in their order. `from dpnoise.auditing.predicates import *` has all that it
calls. These read the parts of an output: of a dict, each key and then its value, in the order of
the keys; of nested lists, those of each. Parts are numbered from 0; -1 is the number of parts. A
part is a number, or a label: a text, or the repr of anything else. A missing part and NaN are
alike. An exception is the text "raised ", its class and its message.

Views and attacks of your own cannot be written as text: `own` stands for them, with their names.

`evaluate_predicate` accepts calls of these functions, comparisons, arithmetic and literals, and
nothing else: a report from a file cannot run other code.
"""

import ast
import math
from bisect import bisect_right
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import lru_cache
from itertools import combinations
from types import CodeType
from typing import Any, Final

import numpy as np

from dpnoise.auditing.attacks import ATTACKS
from dpnoise.auditing.attacks.generic import exponents
from dpnoise.auditing.output_parts import (
    LARGEST,
    NEGATIVE_ZERO,
    OutputParts,
    form_of,
    has_large_integer,
    parts_of,
    printed_number,
)
from dpnoise.auditing.targets.target import Releases, Target
from dpnoise.core.arrays import Flags, Floats
from dpnoise.core.errors import ArgumentError, is_real

__all__ = [
    "add_up",
    "boosted_trees",
    "clipped_total",
    "discriminant",
    "excludes",
    "finer_than",
    "has_bits",
    "is_missing",
    "label",
    "largest",
    "least_plain",
    "lookup",
    "number",
    "order_of_parts",
    "own",
    "parity",
    "parts_above",
    "pattern",
    "place_of_largest",
    "place_of_smallest",
    "sign_and_bits",
    "smallest",
    "step_value",
    "with_codes",
    "with_form",
    "with_printed_number",
    "with_size",
    "within",
]

Parts = Sequence[Any]  # Parts of any type: the code checks their types.


class _WithForm(OutputParts):
    """Parts of one output and its form, which the length does not count."""

    length = 0


def to_parts(y: object) -> OutputParts:
    """Return the parts of an output that a mechanism returned; parts are returned unchanged.

    >>> to_parts({"city": "cork", "counts": (3, 4.5)})
    ['city', 'cork', 'counts', 3.0, 4.5]
    """
    if isinstance(y, OutputParts):
        return y
    split = has_large_integer(y)
    parts = [] if y is None else list(parts_of(y, part_label, split=split))
    marked = [
        NEGATIVE_ZERO if isinstance(x, float) and x == 0 and math.copysign(1, x) < 0 else x
        for x in parts
    ]
    return OutputParts(marked, part_label(form_of(y)))


def part_label(part: object) -> str | bytes:
    """Return the label of a part that is not a number."""
    if isinstance(part, str):
        return str(part)
    return bytes(part) if isinstance(part, bytes) else repr(part)


def number(y: Parts, j: int) -> float:
    """Return part j as a number; NaN if it is missing or a label.

    >>> number([3, "no"], 0), number([3, "no"], 1), number([3, "no"], -1)
    (3.0, nan, 2.0)
    """
    y = to_parts(y)
    if j < 0:
        return float(y.length if isinstance(y, _WithForm) else len(y))
    if j >= len(y):
        return math.nan
    part = y[j]
    if not (type(part) is float or is_real(part) or isinstance(part, bool | np.bool_)):
        return math.nan
    return min(max(float(part), -LARGEST), LARGEST)


def label(y: Parts, j: int) -> str | bytes | None:
    """Return part j if it is a label, else None.

    >>> label([3, "no", None], 0), label([3, "no", None], 1), label([3, "no", None], 2)
    (None, 'no', 'None')
    """
    y = to_parts(y)
    if not 0 <= j < len(y) or is_real(y[j]) or isinstance(y[j], bool | np.bool_):
        return None
    return part_label(y[j])


def is_missing(y: Parts, j: int) -> bool:
    """Return whether part j is neither a number nor a label."""
    return label(y, j) is None and math.isnan(number(y, j))


def with_codes(y: Parts, codes: Mapping[Any, float], other: float) -> Parts:
    """Return the parts with a number in place of each label, `other` for those without a code."""
    y = to_parts(y)
    labels = (label(y, j) for j in range(len(y)))
    numbers = (number(y, j) if x is None else codes.get(x, other) for j, x in enumerate(labels))
    return OutputParts(numbers)


def with_form(y: Parts, j: int) -> Parts:
    """Return the parts with the form of the output as part j: its types, lengths and keys.

    >>> with_form(OutputParts([1.0], "('tuple', 'float')"), 2)
    [1.0, nan, "('tuple', 'float')"]
    """
    y = to_parts(y)
    missing = [math.nan] * (j - len(y))
    parts = _WithForm([*y[:j], *missing, y.form])
    parts.length = len(y)
    return parts


def with_printed_number(y: Parts) -> Parts:
    """Return the parts of an output that is a text, after the number that it is.

    >>> with_printed_number("3.5"), with_printed_number("no")
    ([3.5, '3.5'], [nan, 'no'])
    """
    y = to_parts(y)
    if y.views:  # It is there already.
        return y
    return OutputParts([printed_number(y[0]) if y else math.nan, *y], y.form, views=1)


def _entry(y: Parts, j: int) -> Any:
    """Return part j as an entry of a pattern: a number, a label, or None if it is missing."""
    x = number(y, j)
    return label(y, j) if math.isnan(x) else x


def within(x: float, ranges: Sequence[tuple[float, float]]) -> bool:
    """Return whether a number is in one of several ranges, each without its end.

    >>> within(2.0, [(0.0, 1.0), (2.0, 3.0)]), within(3.0, [(0.0, 1.0), (2.0, 3.0)])
    (True, False)
    """
    return any(low <= x < high for low, high in ranges)


def step_value(x: float, edges: Sequence[float], values: Sequence[float]) -> float:
    """Return the value of a step function: values[i] from edge i - 1 to edge i; the last for NaN.

    >>> step_value(-1.0, [0.0, 1.0], [5, 6, 7, 8]), step_value(0.5, [0.0, 1.0], [5, 6, 7, 8])
    (5, 6)
    >>> step_value(1.0, [0.0, 1.0], [5, 6, 7, 8]), step_value(math.nan, [0.0, 1.0], [5, 6, 7, 8])
    (7, 8)
    """
    return values[-1] if math.isnan(x) else values[bisect_right(edges, x)]


def lookup(key: object, table: Mapping[Any, float], default: float) -> float:
    """Return the number that a table has for a pattern or a label."""
    return table.get(key, default)


def add_up(*terms: float) -> float:
    """Add numbers from left to right; `sum` of newer versions of Python rounds differently."""
    total = 0.0
    for term in terms:
        total += term
    return total


def largest(y: Parts, columns: Sequence[int]) -> float:
    """Return the largest of some parts, or NaN if all are missing.

    >>> largest([3, 7, 5], [0, 1]), smallest([3, 7, 5], [0, 1])
    (7.0, 3.0)
    """
    return max((x for x in _numbers(y, columns) if not math.isnan(x)), default=math.nan)


def smallest(y: Parts, columns: Sequence[int]) -> float:
    """Return the smallest of some parts, or NaN if all are missing."""
    return min((x for x in _numbers(y, columns) if not math.isnan(x)), default=math.nan)


def place_of_largest(y: Parts, columns: Sequence[int]) -> float:
    """Return the place of the largest of some parts among them: the first if several are equal.

    >>> place_of_largest([3, 7, 7], [0, 1, 2]), place_of_smallest([3, 7, 7], [0, 1, 2])
    (1.0, 0.0)
    """
    numbers = [-math.inf if math.isnan(x) else x for x in _numbers(y, columns)]
    return float(numbers.index(max(numbers)))


def place_of_smallest(y: Parts, columns: Sequence[int]) -> float:
    """Return the place of the smallest of some parts among them."""
    numbers = [math.inf if math.isnan(x) else x for x in _numbers(y, columns)]
    return float(numbers.index(min(numbers)))


def _numbers(y: Parts, columns: Sequence[int]) -> list[float]:
    y = to_parts(y)
    return [number(y, j) for j in columns]


def parts_above(y: Parts, columns: Sequence[int], limits: Sequence[float]) -> float:
    """Return how many of some parts are above their limits."""
    pairs = zip(_numbers(y, columns), limits, strict=True)
    return float(sum(x > limit for x, limit in pairs))


def clipped_total(
    y: Parts,
    columns: Sequence[int],
    centres: Sequence[float],
    scales: Sequence[float],
    limit: float = math.inf,
    special: Collection[float] = (),
) -> float:
    """Return the sum of (part - centre) * scale, each clipped; special numbers do not count.

    >>> clipped_total([3, 7, 0], [0, 1, 2], [1, 1, 1], [1, 1, 1], 4.0, [0.0])
    6.0
    """
    total = 0.0
    for x, centre, scale in zip(_numbers(y, columns), centres, scales, strict=True):
        if not (math.isnan(x) or x in special):
            total += min(max((x - centre) * scale, -limit), limit)
    return total


def discriminant(
    y: Parts,
    columns: Sequence[int],
    centres: Sequence[float],
    scales: Sequence[float],
    limit: float,
    weights: Sequence[float],
    distance_weights: Sequence[float] = (),
) -> float:
    """Return a weighted sum of (part - centre) * scale, each clipped; missing parts do not count.

    `distance_weights` are the weights of the absolute values.

    >>> discriminant([3, 7], [0, 1], [1, 9], [1, 1], 10.0, [1, 2], [5, 3])
    14.0
    """
    total = 0.0
    second = distance_weights or [0.0] * len(columns)
    lists = _numbers(y, columns), centres, scales, weights, second
    for x, centre, scale, weight, of_distance in zip(*lists, strict=True):
        if not math.isnan(x):
            deviation = min(max((x - centre) * scale, -limit), limit)
            total = (total + deviation * weight) + abs(deviation) * of_distance
    return total


def boosted_trees(
    y: Parts, z: Parts, base: float, trees: Sequence[float | tuple[Any, ...]]
) -> float:
    """Return the sum of `base` and the leaf of each tree that an output reaches.

    A tree is a leaf, or (part, cut, whether a missing part goes below, below, above). A part at the
    cut goes below. The number of parts is that of y, the parts are those of z.

    >>> tree = (0, 2.5, False, 10.0, (-1, 1.0, True, 20.0, 30.0))
    >>> boosted_trees([2], [2], 1.0, [tree]), boosted_trees([3, 4], [3, 4], 1.0, [tree])
    (11.0, 31.0)
    """
    y, z, total = to_parts(y), to_parts(z), base
    for tree in trees:
        node: Any = tree
        while isinstance(node, tuple):
            j, cut, missing_is_below, below, above = node
            x = number(z if j >= 0 else y, j)
            node = below if x <= cut or (missing_is_below and math.isnan(x)) else above
        total += node
    return total


def parity(y: Parts, columns: Sequence[int], high: Sequence[float]) -> float:
    """Return 1 if an odd number of some parts have their high number, else 0.

    >>> parity([1, 0, 1], [0, 2], [1, 1]), parity([1, 0, 1], [0, 1], [1, 1])
    (0.0, 1.0)
    """
    pairs = zip(_numbers(y, columns), high, strict=True)
    return float(sum(x == most for x, most in pairs) % 2)


def least_plain(y: Parts, columns: Sequence[int], special: Collection[float]) -> float:
    """Return the smallest of some parts that is not special, or infinity."""
    numbers = _numbers(y, columns)
    return min((x for x in numbers if not (math.isnan(x) or x in special)), default=math.inf)


def pattern(
    y: Parts, columns: Sequence[int], plain: Collection[int], special: Collection[float]
) -> tuple[Any, ...]:
    """Return the pattern of some parts, with None for missing ones.

    Of `plain` columns only special numbers are entries; `...` stands for all others.

    >>> pattern([3.5, 0.0, "no"], [0, 1, 2, 3], [0, 1], [0.0])
    (Ellipsis, 0.0, 'no', None)
    """
    y = to_parts(y)
    entries = ((j, _entry(y, j)) for j in columns)
    return tuple(
        ... if j in plain and x is not None and x not in special else x for j, x in entries
    )


def with_size(
    entries: tuple[Any, ...], x: float, cuts: Sequence[float]
) -> tuple[tuple[Any, ...], int]:
    """Return a pattern with the number of cuts that are at most x."""
    return entries, bisect_right(cuts, x)


def order_of_parts(y: Parts, columns: Sequence[int]) -> tuple[int, ...]:
    """Return for each two of some parts whether the first is larger.

    >>> order_of_parts([3, 7, 5], [0, 1, 2])
    (0, 0, 1)
    """
    return tuple(int(a > b) for a, b in combinations(_numbers(y, columns), 2))


def sign_and_bits(x: float) -> tuple[int, int, int]:
    """Return whether a number is negative, and the exponents of its first and last set bit.

    >>> sign_and_bits(-0.75), sign_and_bits(12.0)
    ((1, -1, -2), (0, 3, 2))
    """
    first, last = exponents(np.array([x]))
    return int(x < 0), int(first[0]), int(last[0])


def finer_than(releases: Releases, size: int, step: int) -> Flags:
    """Return which releases are smaller than 2^size and no multiples of 2^step.

    >>> finer_than(np.array([0.75, 0.5, 1.5, 0.0]), 0, -1).tolist()
    [True, False, False, False]
    """
    first, last = exponents(releases)
    return np.asarray((first < size) & (last < step) & (releases != 0))


def has_bits(releases: Releases, patterns: Collection[tuple[int, int, int]]) -> Flags:
    """Return which releases have one of some patterns, each as `sign_and_bits` gives it."""
    first, last = exponents(releases)
    known = [*zip((releases < 0).tolist(), first.tolist(), last.tolist(), strict=True)]
    return np.fromiter((entry in patterns for entry in known), np.bool_, len(known))


def excludes(
    releases: Releases, attack: str, scale: float, value0: float, value1: float, **options: Any
) -> Flags:
    """Return which releases, or groups of them, are possible at value0 and impossible at value1.

    This is what an attack that knows how the noise is made decides, with these options.
    """

    def like(_value: float, n: int) -> Floats:
        return np.zeros(n, dtype=releases.dtype)

    target = Target("replayed releases", "", scale, like)
    event = ATTACKS[attack](**options).find(target, value0, value1, len(releases))
    return event.holds(releases[: len(releases) // event.releases * event.releases])


def own(x: Parts | Releases, *names: str) -> Any:
    """Return an output after the values of your own views, or what your own attack says.

    Only the process of the audit has these functions, so that other outputs raise an error.
    """
    if names and isinstance(x, OutputParts) and x.views == len(names):
        return x
    raise ArgumentError(
        f"The event calls your own {', '.join(names)}, which is not in the report: count it with "
        "report.replay in the process of the audit."
    )


_FUNCTIONS: Final[dict[str, Callable[..., Any]]] = {name: globals()[name] for name in __all__}
_VARIABLES: Final = {"y", "z", "releases"}  # z is y with codes in place of labels.
_ALLOWED: Final = (
    ast.Expression, ast.BoolOp, ast.UnaryOp, ast.BinOp, ast.Compare, ast.Call, ast.keyword,
    ast.Name, ast.Constant, ast.Tuple, ast.List, ast.Set, ast.Dict, ast.NamedExpr, ast.expr_context,
    ast.boolop, ast.cmpop, ast.Not, ast.USub, ast.Invert, ast.Add, ast.Sub, ast.Mod, ast.BitAnd,
    ast.BitOr,
)  # fmt: skip


def _check_number(x: Any) -> Any:
    """Return a number or releases, or raise: + and % could make a text that fills the memory."""
    if is_real(x) or isinstance(x, bool | np.bool_ | np.ndarray):
        return x
    raise ArgumentError(f"A predicate adds or divides numbers only, got a {type(x).__name__}.")


class _Checked(ast.NodeTransformer):
    """Replaces each list, set, dict and tuple of literals by a name, so that it is built once.

    Left operands of + and % are checked.
    """

    def __init__(self) -> None:
        self.constants: dict[str, object] = {}

    def visit(self, node: ast.AST) -> Any:
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add | ast.Mod):
            self.generic_visit(node)
            checked = ast.Call(ast.Name(_check_number.__name__, ast.Load()), [node.left], [])
            return ast.BinOp(checked, node.op, node.right)
        if not isinstance(node, ast.List | ast.Set | ast.Dict | ast.Tuple):
            return self.generic_visit(node)
        name = f"_{len(self.constants)}"
        self.constants[name] = ast.literal_eval(node)
        return ast.Name(name, ast.Load())


@lru_cache(maxsize=64)
def _compile(text: str) -> tuple[CodeType, dict[str, object]]:
    """Return a checked expression as code, with the names that it uses."""
    tree = ast.parse(text, mode="eval")
    for node in ast.walk(tree):
        is_known = not isinstance(node, ast.Name) or node.id in _VARIABLES | _FUNCTIONS.keys()
        is_plain_call = not isinstance(node, ast.Call) or isinstance(node.func, ast.Name)
        if not (isinstance(node, _ALLOWED) and is_known and is_plain_call):
            raise ArgumentError(f"A predicate cannot have {ast.unparse(node)[:60]!r}.")
    transformer = _Checked()
    checked = ast.Expression(transformer.visit(tree.body))
    ast.fix_missing_locations(checked)
    called = {**_FUNCTIONS, _check_number.__name__: _check_number}
    names = {"__builtins__": {}, **called, **transformer.constants}
    return compile(checked, "<predicate>", "eval"), names


def pattern_of(source: str, y: Parts, z: Parts) -> Any:
    """Return the pattern that the source of a view reads; z is y with codes for labels."""
    code, names = _compile(source.format(y="y", z="z"))
    return eval(code, names | {"y": y, "z": z})  # noqa: S307 - checked above


def reads_releases(text: str) -> bool:
    """Return whether a predicate is about all releases at once, not about one output."""
    return "releases" in _compile(text)[0].co_names


def evaluate_predicate(
    text: str,
    outputs: Sequence[Parts] | Releases,
    functions: Sequence[Callable[..., Any]] = (),
) -> Flags:
    """Return for each output, or for each group of releases, whether an event happened.

    An event of an attack of your own is the first of the `functions`, which get the releases.

    >>> evaluate_predicate("number(y, 1) >= 5.0", [["no", 7], ["no", 3], ["no"]])
    array([ True, False, False])
    >>> evaluate_predicate("releases > 1.5", np.array([1.0, 2.0]))
    array([False,  True])
    >>> evaluate_predicate("open('/etc/passwd')", [])
    Traceback (most recent call last):
        ...
    dpnoise.core.errors.ArgumentError: A predicate cannot have 'open'.
    """
    code, names = _compile(text)
    if reads_releases(text):
        if functions:
            names = names | {"own": lambda releases, _: functions[0](releases)}
        return np.asarray(eval(code, names | {"releases": np.asarray(outputs)}), np.bool_)  # noqa: S307 - checked above
    happened = [bool(eval(code, names | {"y": y})) for y in map(to_parts, outputs)]  # noqa: S307 - checked above
    return np.array(happened, dtype=np.bool_)
