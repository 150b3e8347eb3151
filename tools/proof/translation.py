"""Translate kernels to definitions for Gappa, every operation with its rounding.

The source that Numba compiles is read with `ast`: assignments, sums, products, quotients, roots,
fused multiply-adds, conversions, and calls of other kernels, which are translated too. Anything
else is an error, so no proof can stand for code that it does not describe.

Three things stop the translation on purpose:

- A *lemma* answers a call instead of the function's source. Bit tricks have lemmas that are checked
  by running them (`proof.bit_tricks`); other statements prove the other lemmas.
- A *selection* `a if condition else b` is translated for one outcome, which the statement chooses.
  `proof.__main__` reports selections with an outcome that was never translated.
- An undefined name is a free variable. Gappa knows only its hypotheses.
"""

import ast
import inspect
import re
import textwrap
from collections.abc import Callable, Mapping
from fractions import Fraction
from itertools import count
from types import ModuleType
from typing import Any, NamedTuple, NoReturn

Value = Any  # A Fraction (a constant), a string (a Gappa expression), or a tuple of these.
Lemma = Callable[..., Value]
_OPERATORS = {ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/"}
_EXACT = {
    "+": Fraction.__add__,
    "-": Fraction.__sub__,
    "*": Fraction.__mul__,
    "/": Fraction.__truediv__,
}


class Comparison(NamedTuple):
    """The condition left < right of a selection."""

    left: str
    right: Value


class UntranslatableError(Exception):
    """The source contains something without a translation rule."""


def source_of(function: Any) -> tuple[ast.FunctionDef, dict[str, Any]]:
    """Return the syntax tree of a kernel and its global names."""
    python = getattr(function, "py_func", function)
    tree = ast.parse(textwrap.dedent(inspect.getsource(python))).body[0]
    if not isinstance(tree, ast.FunctionDef):
        raise UntranslatableError(f"{python.__name__} is not a function.")
    return tree, python.__globals__


def binary_text(number: Fraction) -> str:
    """Return a binary number in Gappa's notation, exactly."""
    odd, power = number.numerator, number.denominator.bit_length() - 1
    if number.denominator != 1 << power:
        raise UntranslatableError(f"{number} is not a binary number.")
    return f"{odd}b-{power}" if power else str(odd)


def gappa(value: Value) -> str:
    """Return a value as a Gappa expression."""
    return binary_text(value) if isinstance(value, Fraction) else str(value)


class Translation:
    """Definitions for Gappa of everything that some calls of kernels compute.

    Parameters
    ----------
    lemmas
        Functions that answer the calls of some kernels, by name. Each takes the translation and the
        arguments.
    choices
        The outcome of each selection, by the text of its condition.
    fused
        Whether `fma` rounds once, as compiled, or twice, as without the compiler.
    """

    def __init__(
        self,
        lemmas: Mapping[str, Lemma],
        choices: Mapping[str, bool] | None = None,
        *,
        fused: bool = True,
    ) -> None:
        self.lemmas = lemmas
        self.choices = dict(choices or {})
        self.fused = fused
        self.definitions: list[tuple[str, str]] = []
        self.hypotheses: list[str] = []
        self.selections: set[tuple[str, str, bool]] = set()
        self.lemma_arguments: dict[str, list[str]] = {}
        self.calls: list[str] = []
        self.functions: set[str] = set()
        self.integers: list[str] = []
        self.comparisons: dict[str, Comparison] = {}
        self._names: set[str] = set()

    def assume(self, *hypotheses: str) -> None:
        """Add hypotheses, each once."""
        self.hypotheses += [h for h in hypotheses if h not in self.hypotheses]

    def integer(self, name: str, most: int | None = None) -> str:
        """Return a variable for an integer from 0 to `most`."""
        self.integers.append(name)
        self.assume(f"@FIX({name}, 0)", *([] if most is None else [f"{name} in [0, {most}]"]))
        return name

    def define(self, preferred_name: str, expression: str) -> str:
        """Define an expression, and return its name: `preferred_name`, or the next free one."""
        name = next(
            name
            for k in count(1)
            if (name := preferred_name + ("" if k == 1 else f"_{k}")) not in self._names
        )
        self._names.add(name)
        self.definitions.append((name, expression))
        return name

    def without_roundings(self, name: str, inner: str = "") -> str:
        """Return a definition without roundings, also in inner definitions ending in `inner`."""
        text = dict(self.definitions)[name].replace("rnd(", "(")
        for defined, _ in self.definitions:
            if inner and defined.endswith(inner) and defined != name:
                text = re.sub(
                    rf"\b{defined}\b", f"({self.without_roundings(defined, inner)})", text
                )
        return text

    def call(self, function: Any, *arguments: Value) -> Value:
        """Translate a call, and return its value."""
        tree, names = source_of(function)
        lemma = self.lemmas.get(tree.name)
        if lemma is not None:
            self.lemma_arguments.setdefault(tree.name, []).append(gappa(arguments[0]))
            self.calls.append(f"{tree.name}({', '.join(map(gappa, arguments))})")
            return lemma(self, *arguments)
        return self.translate(tree, names, *arguments)

    def translate(self, tree: ast.FunctionDef, names: dict[str, Any], *arguments: Value) -> Value:
        """Translate the syntax tree of a function, and return its value."""
        self.functions.add(tree.name)
        parameters = [parameter.arg for parameter in tree.args.args]
        if len(parameters) != len(arguments):
            raise UntranslatableError(f"{tree.name} takes {len(parameters)} arguments.")
        return _Body(self, tree, names, dict(zip(parameters, arguments, strict=True))).result()


class _Body:
    """The body of a function, and the values of its variables."""

    def __init__(
        self,
        translation: Translation,
        tree: ast.FunctionDef,
        names: dict[str, Any],
        values: dict[str, Value],
    ) -> None:
        self.translation, self.tree = translation, tree
        self.names, self.values = names, values

    def result(self) -> Value:
        """Return the value that the function returns."""
        for statement in self.tree.body:
            match statement:
                case ast.Expr(value=ast.Constant(value=str())):
                    continue  # The docstring.
                case ast.Assign(targets=[ast.Name(id=name)], value=expression):
                    self.values[name] = self.define_variable(name, self.value_of(expression))
                    if isinstance(self.values[name], Comparison):
                        self.translation.comparisons[name] = self.values[name]
                case ast.Assign(targets=[ast.Tuple(elts=targets)], value=expression):
                    parts = self.value_of(expression)
                    for target, part in zip(targets, parts, strict=True):
                        if not isinstance(target, ast.Name):
                            self.refuse(statement)
                        self.values[target.id] = self.define_variable(target.id, part)
                case ast.Return(value=expression) if expression is not None:
                    returned = self.value_of(expression)
                    if isinstance(returned, tuple):
                        return tuple(self.define_variable("result", part) for part in returned)
                    return self.define_variable("result", returned)
                case _:
                    self.refuse(statement)
        self.refuse(self.tree)

    def refuse(self, node: ast.AST) -> NoReturn:
        """Raise an error for a node without a rule."""
        raise UntranslatableError(f"{self.tree.name}: no rule for {ast.unparse(node)[:200]!r}.")

    def define_variable(self, variable: str, value: Value) -> Value:
        """Define an expression under the name of the function's variable, and return it."""
        if isinstance(value, str) and not value.isidentifier():
            return self.translation.define(f"{self.tree.name}_{variable}", value)
        return value

    def rounded_operation(self, left: Value, operator: str, right: Value) -> Value:
        """Return the rounded result of an operation; constants and x - x are computed exactly."""
        if {left, right} & set(self.translation.integers):
            raise UntranslatableError(f"{self.tree.name}: sums of words can wrap.")
        if operator == "-" and left == right:
            return Fraction(0)
        if right == {"+": 0, "-": 0, "*": 1, "/": 1}[operator]:
            return f"rnd({gappa(left)})" if isinstance(left, str) else left
        if isinstance(left, Fraction) and isinstance(right, Fraction):
            result = _EXACT[operator](left, right)
            if Fraction(float(result)) != result:
                return f"rnd({gappa(left)} {operator} {gappa(right)})"
            return result
        return f"rnd({gappa(left)} {operator} {gappa(right)})"

    def value_of(self, node: ast.expr) -> Value:
        """Return the value of an expression."""
        match node:
            case ast.Constant(value=int() | float() as number) if not isinstance(number, bool):
                return Fraction(number)
            case ast.Name(id=name):
                return self.variable(name, node)
            case ast.Tuple(elts=elements):
                return tuple(self.value_of(element) for element in elements)
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                value = self.value_of(operand)
                return -value if isinstance(value, Fraction) else f"(-{value})"
            case ast.BinOp(left=left, op=operator, right=right) if type(operator) in _OPERATORS:
                return self.rounded_operation(
                    self.value_of(left), _OPERATORS[type(operator)], self.value_of(right)
                )
            case ast.BinOp(left=left, op=ast.BitAnd(), right=right):
                return self.low_bits(self.value_of(left), self.value_of(right), node)
            case ast.BinOp(left=left, op=ast.RShift(), right=right):
                return self.top_bits(self.value_of(left), self.value_of(right), node)
            case ast.BinOp(left=left, op=ast.LShift(), right=right):
                word, places = self.value_of(left), self.value_of(right)
                return f"{word}_moved_{places}"  # A word; a lemma may read its sign.
            case ast.Compare(left=left, ops=[ast.Lt()], comparators=[right]):
                return Comparison(
                    str(self.define_variable("compared", self.value_of(left))), self.value_of(right)
                )
            case ast.IfExp(test=test, body=body, orelse=orelse):
                condition = ast.unparse(test)
                if condition not in self.translation.choices:
                    self.refuse(node)
                outcome = self.translation.choices[condition]
                self.translation.selections.add((self.tree.name, condition, outcome))
                return self.value_of(body if outcome else orelse)
            case ast.Attribute(value=ast.Name(id="np"), attr="nan" | "inf" as name):
                return name  # NaN and infinity claim nothing.
            case ast.Call(func=evaluate_call, args=arguments, keywords=[]):
                return self.evaluate_call(
                    evaluate_call, [self.value_of(argument) for argument in arguments]
                )
        self.refuse(node)

    def variable(self, name: str, node: ast.expr) -> Value:
        """Return a variable of the function, or a constant of its module."""
        if name in self.values:
            return self.values[name]
        constant = self.names.get(name)
        if constant is None or callable(constant) or isinstance(constant, ModuleType):
            self.refuse(node)
        return Fraction(constant.item() if hasattr(constant, "item") else constant)

    def low_bits(self, word: Value, mask: Value, node: ast.expr) -> Value:
        """Return a variable for the low bits of a word."""
        if not isinstance(mask, Fraction) or int(mask) & int(mask) + 1:
            self.refuse(node)
        low = f"{word}_low_{int(mask).bit_length()}"
        return self.translation.integer(low, int(mask))

    def top_bits(self, word: Value, places: Value, node: ast.expr) -> Value:
        """Return a variable for the bits of a word that a shift to the right leaves."""
        if not isinstance(word, str) or not isinstance(places, Fraction):
            self.refuse(node)
        width = int(word.rpartition("_low_")[2]) if "_low_" in word else 64
        top = f"{word}_from_{int(places)}"
        return self.translation.integer(top, 2 ** (width - int(places)) - 1)

    def evaluate_call(self, function: ast.expr, arguments: list[Value]) -> Value:
        """Return the value of a call."""
        name = ast.unparse(function)
        match name, arguments:
            case "fma", [Fraction(numerator=0), _, c] | [_, Fraction(numerator=0), c]:
                return c  # The product is exactly 0, so the sum is exact.
            case "fma", [a, Fraction(numerator=1, denominator=1), c]:
                return self.rounded_operation(a, "+", c)
            case "fma", [a, b, c] if self.translation.fused:
                return f"rnd({gappa(a)} * {gappa(b)} + {gappa(c)})"
            case "fma", [a, b, c]:
                return self.rounded_operation(self.rounded_operation(a, "*", b), "+", c)
            case "math.sqrt", [a]:
                return f"rnd(sqrt({gappa(a)}))"
            case "abs", [a]:
                return f"|{gappa(a)}|"
            case "np.rint", [Fraction(denominator=1) as a]:
                return a
            case "np.rint", [a]:
                return f"int<ne>({gappa(a)})"
            case "np.float64", [Fraction() as a] if Fraction(float(a)) == a:
                return a
            case "np.float64", [str() as a]:
                return f"rnd({a})"
            case "np.int64", [str() as a] if _is_below_2_to_63(a):
                return a
            case "np.uint64", [Fraction() as a]:
                return a
            case "power_of_two", [Fraction() as exponent]:
                return Fraction(2) ** int(exponent)
        if not isinstance(function, ast.Name) or function.id not in self.names:
            self.refuse(function)
        define_variable = [
            self.define_variable("argument", value) if isinstance(value, str) else value
            for value in arguments
        ]
        return self.translation.call(self.names[function.id], *define_variable)


def _is_below_2_to_63(word: str) -> bool:
    """Return whether a word was masked or shifted, so that it fits a signed integer."""
    return "_low_" in word or "_from_" in word
