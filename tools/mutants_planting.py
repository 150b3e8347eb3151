"""Find mutants for `make mutants`: small errors in the syntax tree of a module."""

import ast
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

# Modules and mutants ------------------------------------------------------------------------------


@dataclass(frozen=True)
class Module:
    """A module to mutate."""

    path: str
    tests: tuple[str, ...]
    include: tuple[str, ...] = ()  # Functions and classes to mutate; all if empty.
    skip: tuple[str, ...] = ()  # Functions, classes and constants that privacy does not depend on.
    sql: bool = False  # Whether string literals of the module are SQL, to be mutated too.
    integers: bool = False  # Whether comparisons are of integers, so that limits also move by one.

    @property
    def file(self) -> str:
        """The file in the package."""
        return f"{self.path}.py"

    def covers(self, function: str) -> bool:
        """Return whether to mutate a function, a class or a constant."""
        names = {function, function.split(".", maxsplit=1)[0], f"*.{function.rsplit('.', 1)[-1]}"}
        return (not self.include or not names.isdisjoint(self.include)) and names.isdisjoint(
            self.skip
        )


@dataclass(frozen=True)
class Mutant:
    """One error, as a change of the text of one module."""

    module: Module
    function: str
    change: str
    line: int
    source: str = field(repr=False, compare=False)
    in_function: bool = True  # False in the body of a class or of the module.

    @property
    def key(self) -> tuple[str, str, str]:
        """The key in the list of equivalent mutants."""
        return self.module.path, self.function, self.change

    def __str__(self) -> str:
        return f"{self.module.path}:{self.line} {self.function}: {self.change}"


# Kinds of errors ----------------------------------------------------------------------------------

COMPARISONS: Final[dict[type[ast.cmpop], ast.cmpop]] = {
    ast.Gt: ast.GtE(),
    ast.GtE: ast.Gt(),
    ast.Lt: ast.LtE(),
    ast.LtE: ast.Lt(),
    ast.Eq: ast.NotEq(),
    ast.NotEq: ast.Eq(),
}
OPPOSITES: Final = {
    "max": "min",
    "min": "max",
    "any": "all",
    "all": "any",
    "math.ceil": "math.floor",
    "math.floor": "math.ceil",
    "np.maximum": "np.minimum",
    "np.minimum": "np.maximum",
    "np.floor": "np.ceil",
}
# Calls that are replaced by something simpler, in most cases by a rounding to nearest.
SIMPLER: Final = {
    "abs": "{0}",
    "float_up": "float({0})",
    "root_up": "math.sqrt({0})",
    "_up": "float({0}.enclosure.mid())",
    "quotient_down": "float(Fraction({0}) / Fraction({1}))",
    "_quotient_up": "float(Fraction({0}) / Fraction({1}))",
    "difference_down": "{0} - {1}",
    "math.nextafter": "{0}",
    "np.clip": "{0}",
    "deciding.nearest_float": "{0} * {1}",
}
DROPPED_METHODS: Final = ("sqrt", "nonnegative_part")
SQL_CHANGES: Final = (
    (r"<= ", "< "),
    (r"> 0", ">= 0"),
    (r"= 0", "= 1"),
    (r"= 1", "= 0"),
    (r"\bleast\(", "greatest("),
    (r"\bgreatest\(", "least("),
    (r"\bmax\(", "min("),
    (r"\bmin\(", "max("),
    (r" OR ", " AND "),
    (r"2 \* ", ""),
    (r" \+ present", ""),
    (r"hash\(hash\((.*)\)\)", r"hash(\1)"),
    (r"IS NOT DISTINCT FROM", "="),
    (r"\bPARTITION BY\b.*", "ORDER BY "),
    (r"\bsum\(", "max("),
    (r"count\(\*\)", "1"),
)


def replacements_of(node: ast.AST, parent: ast.AST, module: Module) -> Iterator[ast.expr]:
    """Yield the erroneous replacements of an expression."""
    match node:
        case ast.Compare():
            yield from _comparisons(node, integers=module.integers)
        case ast.BinOp():
            yield from _constants(node) or _sides(node)
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            if not isinstance(parent, ast.If | ast.IfExp):  # Conditions are replaced as a whole.
                yield operand
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            yield operand
        case ast.BoolOp():
            op = ast.Or() if isinstance(node.op, ast.And) else ast.And()
            yield ast.BoolOp(op, node.values)
        case ast.IfExp():
            yield from (node.body, node.orelse)
        case ast.Call():
            yield from _calls(node)
        case ast.Constant(value=str(text)) if module.sql:
            yield from (ast.Constant(mutated) for mutated in _sql(text))
        case ast.JoinedStr() if module.sql:
            yield from _sql_parts(node)
        case ast.Constant() if not isinstance(parent, ast.BinOp):  # There it is dropped.
            yield from _constants(node)
        case _:
            return


def _comparisons(node: ast.Compare, *, integers: bool) -> Iterator[ast.expr]:
    operands = [node.left, *node.comparators]
    for number, op in enumerate(node.ops):
        if type(op) not in COMPARISONS:
            continue
        ops = [*node.ops]
        ops[number] = COMPARISONS[type(op)]
        yield ast.Compare(node.left, ops, node.comparators)
        if integers and not isinstance(op, ast.Eq | ast.NotEq):
            index = number + isinstance(op, ast.Gt | ast.LtE)
            shifted = [*operands]
            shifted[index] = ast.BinOp(operands[index], ast.Add(), ast.Constant(1))
            yield ast.Compare(shifted[0], node.ops, shifted[1:])


def _constants(node: ast.expr) -> list[ast.expr]:
    """Return a different value for a literal, or for arithmetic of literals such as 2**51."""
    value = _literal(node)
    match value:
        case bool():
            return [ast.Constant(not value)]
        case int():
            return [ast.Constant(value + 1)]
        case float():
            return [ast.Constant(2 * value or 1.0)]
        case _:
            return []


def _literal(node: ast.expr) -> object:
    """Return the value of a literal or of arithmetic of literals, else None."""
    if isinstance(node, ast.Constant):
        return node.value
    if not isinstance(node, ast.BinOp | ast.UnaryOp):
        return None
    parts = [part for part in ast.walk(node) if isinstance(part, ast.expr)]
    if not all(isinstance(part, ast.BinOp | ast.UnaryOp | ast.Constant) for part in parts):
        return None
    value: object = eval(ast.unparse(node), {})  # noqa: S307 - literals of our source
    return value


def _sides(node: ast.BinOp) -> list[ast.expr]:
    """Return one or both operands of an operation; for a floor division, the ceiling."""
    left, right = node.left, node.right
    match node.op:
        case ast.Add() | ast.Mult():
            variable = [side for side in (left, right) if _literal(side) is None]
            return variable[:1] if ast.unparse(left) == ast.unparse(right) else variable
        case ast.FloorDiv():
            negated = ast.BinOp(ast.UnaryOp(ast.USub(), left), ast.FloorDiv(), right)
            return [ast.UnaryOp(ast.USub(), negated)]
        case ast.BitOr():
            return []  # A union of types.
        case _:
            return [left]


def _calls(node: ast.Call) -> Iterator[ast.expr]:
    name, arguments = ast.unparse(node.func), node.args
    if name in OPPOSITES:
        yield ast.Call(_expression(OPPOSITES[name]), arguments, node.keywords)
    if name in SIMPLER and arguments:
        texts = [f"({ast.unparse(argument)})" for argument in arguments]
        text = SIMPLER[name].format(*texts)
        yield _expression(text.replace("Fraction(", "__import__('fractions').Fraction("))
    if isinstance(node.func, ast.Attribute) and node.func.attr in DROPPED_METHODS and not arguments:
        yield node.func.value
    if name.split(".")[-1].startswith("check_"):
        yield arguments[1] if len(arguments) > 1 else (arguments or [ast.Constant(None)])[0]


def _expression(text: str) -> ast.expr:
    return ast.parse(text, mode="eval").body


def _sql(text: str) -> Iterator[str]:
    for pattern, replacement in SQL_CHANGES:
        changed = re.sub(pattern, replacement, text, count=1)
        if changed != text:
            yield changed


def _sql_parts(node: ast.JoinedStr) -> Iterator[ast.expr]:
    for index, part in enumerate(node.values):
        if isinstance(part, ast.Constant):
            for mutated in _sql(str(part.value)):
                values = [*node.values]
                values[index] = ast.Constant(mutated)
                yield ast.JoinedStr(values)


# Places to plant errors --------------------------------------------------------------------------

_SKIPPED_NODES: Final = (ast.Raise, ast.Assert, ast.Import, ast.ImportFrom, ast.Slice)
_TEXT_CALLS: Final = ("reject", "ArgumentError", "ArgumentTypeError", "TypeVar", "import_extra")
_SKIPPED_FIELDS: Final = ("annotation", "returns", "decorator_list", "bases", "keywords", "slice")
MODULE_LEVEL: Final = "module"


class Finder:
    """Finds the mutants of one module."""

    def __init__(self, module: Module, source: str) -> None:
        self.module, self.source = module, source
        self.lines = source.encode().splitlines(keepends=True)
        self.mutants: list[Mutant] = []
        self._counts: Counter[tuple[str, str]] = Counter()
        self._functions: set[str] = set()

    def find(self) -> list[Mutant]:
        """Return all mutants, in the order of the source."""
        for statement in ast.parse(self.source).body:
            self._enter(statement, (), None, None)
        return self.mutants

    def _enter(
        self, node: ast.AST, names: tuple[str, ...], parent: ast.AST | None, site: ast.AST | None
    ) -> None:
        """Visit a node; `site` is the expression that the change is described by."""
        if isinstance(node, _SKIPPED_NODES) or _is_text(node):
            return
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            if ".".join([*names, node.name]) in self.module.skip:
                return
            names = self._qualify(node, names, parent)
        elif self._is_skipped_constant(node, names, parent):
            return
        if isinstance(node, ast.expr):
            self._plant(node, names, parent, site)
            if isinstance(node, ast.JoinedStr) or _constants(node):
                return  # Positions inside an f-string are unknown; a literal is mutated as a whole.
            if not isinstance(node, ast.Name | ast.Attribute):
                site = node
        elif isinstance(node, ast.stmt):
            site = None
        for child in _children(node):
            self._enter(child, names, node, site)

    def _qualify(
        self, node: ast.FunctionDef | ast.ClassDef, names: tuple[str, ...], parent: ast.AST | None
    ) -> tuple[str, ...]:
        """Return the qualified name of a definition; a nested one belongs to the outer function."""
        if not isinstance(parent, ast.FunctionDef):
            names = (*names, node.name)
        if isinstance(node, ast.FunctionDef):
            self._functions.add(".".join(names))
        return names

    def _is_skipped_constant(
        self, node: ast.AST, names: tuple[str, ...], parent: ast.AST | None
    ) -> bool:
        """Return whether a node sets a constant of a class or module that must not be mutated."""
        if not isinstance(node, ast.Assign | ast.AnnAssign) or isinstance(parent, ast.FunctionDef):
            return False
        target = node.target if isinstance(node, ast.AnnAssign) else node.targets[0]
        return not self.module.covers(".".join([*names, ast.unparse(target)]))

    def _plant(
        self,
        node: ast.expr,
        names: tuple[str, ...],
        parent: ast.AST | None,
        site: ast.AST | None,
    ) -> None:
        function = ".".join(names) or MODULE_LEVEL
        if names and not self.module.covers(function):
            return
        replacements = list(replacements_of(node, parent or node, self.module))
        if isinstance(parent, ast.If) and node is parent.test and not parent.orelse:
            replacements.append(ast.Constant(value=False))
        described = site if isinstance(node, ast.Constant) and site is not None else node
        for replacement in replacements:
            self._add(function, node, replacement, described, parent)

    def _add(
        self,
        function: str,
        node: ast.expr,
        replacement: ast.expr,
        described: ast.AST,
        parent: ast.AST | None,
    ) -> None:
        before = _text(described, parent)
        after = _text(described, parent, node, replacement)
        if before == after:
            return
        change = f"{before} -> {after}"
        self._counts[function, change] += 1
        if (number := self._counts[function, change]) > 1:
            change += f" (#{number})"
        source = self._replace_text(node, f"({ast.unparse(replacement)})")
        in_function = function in self._functions
        self.mutants.append(Mutant(self.module, function, change, node.lineno, source, in_function))

    def _replace_text(self, node: ast.expr, text: str) -> str:
        """Return the source with the text of a node replaced. Positions count bytes."""
        assert node.end_lineno is not None  # noqa: S101 - for the type checker
        first, last = node.lineno - 1, node.end_lineno - 1
        before = b"".join(self.lines[:first]) + self.lines[first][: node.col_offset]
        after = self.lines[last][node.end_col_offset :] + b"".join(self.lines[last + 1 :])
        return (before + text.encode() + after).decode()


def _children(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes in which errors can be planted: no annotation, no decorator, no index."""
    for name, value in ast.iter_fields(node):
        if name not in _SKIPPED_FIELDS or (name == "keywords" and isinstance(node, ast.Call)):
            for child in value if isinstance(value, list) else [value]:
                if isinstance(child, ast.AST):
                    yield child


def _is_text(node: ast.AST) -> bool:
    """Return whether a node is a docstring, an error message, or the `strict` of a zip."""
    if isinstance(node, ast.keyword) and node.arg == "strict":
        return True
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
        return True
    return isinstance(node, ast.Call) and ast.unparse(node.func) in _TEXT_CALLS


def _text(
    described: ast.AST,
    parent: ast.AST | None,
    node: ast.expr | None = None,
    replacement: ast.expr | None = None,
) -> str:
    """Return the text of an expression, with one node in it replaced."""

    class Swap(ast.NodeTransformer):
        def visit(self, visited: ast.AST) -> Any:
            return replacement if visited is node else self.generic_visit(visited)

    root = described
    if isinstance(described, ast.Constant) and isinstance(parent, ast.stmt | ast.keyword):
        root = parent if not isinstance(parent, ast.If | ast.While) else described
    if node is None:
        return " ".join(ast.unparse(root).split())
    swapped = Swap().visit(_shallow_copy(root, node))
    return " ".join(ast.unparse(ast.fix_missing_locations(swapped)).split())


def _shallow_copy(root: ast.AST, shared_node: ast.AST) -> ast.AST:
    """Return a copy of a tree in which `shared_node` is the original node."""
    if root is shared_node:
        return root
    fields: dict[str, Any] = {}
    for name, value in ast.iter_fields(root):
        if isinstance(value, list):
            fields[name] = [
                _shallow_copy(child, shared_node) if isinstance(child, ast.AST) else child
                for child in value
            ]
        else:
            fields[name] = (
                _shallow_copy(value, shared_node) if isinstance(value, ast.AST) else value
            )
    return type(root)(**fields)
