"""Translate the functions of the second stage to definitions for Gappa: integers, rounded down.

The source is translated, as in `proof.translation`, with other rules: every number is an integer,
and a unit is 1. A number of two words is known *modulo 2^128*, a word modulo 2^64. Sums,
differences, negations and shifts to the left are exact modulo these, and add no goal. A product, a
shift to the right, a comparison or a result needs the number itself. Then a goal says that the
number is at least 0 and below 2^128 (2^64), so that it has not wrapped. A statement names the few
numbers that wrap on purpose, and how often.

The operations of `kernels.fixed` (`plus`, ..., `negated_if`) are integer operations here.
tests/kernels/test_fixed.py tests that the compiled ones compute the same.

Branches do not occur: the statement chooses the outcome of each comparison and the number of
leading zeros. A goal says that the choice is right in this case.
"""

import ast
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cache
from typing import Any, NoReturn

import numpy as np

from proof.statement import Case, Outcome, Statement
from proof.translation import Translation, UntranslatableError, source_of

Value = Any  # A constant of NumPy's or Python's, a Number, a Bits, or a tuple of these.
_OPERATIONS: dict[type, Callable[[Any, Any], Any]] = {
    ast.Add: lambda a, b: a + b,
    ast.Sub: lambda a, b: a - b,
    ast.Mult: lambda a, b: a * b,
    ast.LShift: lambda a, b: a << b,
    ast.RShift: lambda a, b: a >> b,
    ast.BitAnd: lambda a, b: a & b,
    ast.BitOr: lambda a, b: a | b,
    ast.BitXor: lambda a, b: a ^ b,
}
_COMPARISONS: dict[type, Callable[[Any, Any], Any]] = {
    ast.Lt: lambda a, b: a < b,
    ast.LtE: lambda a, b: a <= b,
    ast.Gt: lambda a, b: a > b,
    ast.Eq: lambda a, b: a == b,
}
_CALLS: dict[str, Callable[..., Any]] = {
    "max": max,
    "min": min,
    "np.uint64": np.uint64,
    "np.int64": np.int64,
}
_ALL_ONES = 2**64 - 1
_OPTIONS = ["#@ -Eprecision=400"]  # In bits: more than twice those of a number.


@dataclass(frozen=True)
class Number:
    """An integer as an expression for Gappa: modulo 2^bits, or itself if it is `reduced`."""

    text: str
    bits: int
    reduced: bool = False


@dataclass(frozen=True)
class Bits:
    """A word with known first bits: those of `top`, before `width` bits of `rest`."""

    top: int
    rest: str
    width: int

    @property
    def number(self) -> Number:
        """The word as an integer."""
        known_bits = self.top << self.width
        return Number(
            f"({known_bits} + {self.rest})" if known_bits else self.rest, 64, reduced=True
        )


@dataclass(frozen=True)
class LargeShift:
    """A shift by at least `least` places. In the scripts `far` is 2^-shift, without `extra`."""

    least: int
    extra: int = 0  # Places in addition to those of `far`.


def scale_by_power(text: str, power: int) -> str:
    """Return an expression times a power of two."""
    return f"{text} * 1b{power}" if power else text


def shift_right(text: str, places: Any) -> str:
    """Return an expression shifted to the right, rounded down."""
    if isinstance(places, LargeShift):
        return f"floor({scale_by_power(text, -places.extra)} * far)"
    return f"floor({scale_by_power(text, -int(places))})" if places else text


def conjunction(properties: Sequence[str]) -> str:
    """Return the conjunction of properties."""
    return " /\\ ".join(properties)


class FixedPoint(Translation):
    """Definitions for Gappa of everything that some calls of kernels compute.

    Parameters
    ----------
    choices
        The outcome of each comparison, and each number of leading zeros, by its text.
    lemmas
        Functions that answer the calls of some kernels, by name. Each takes the translation and the
        arguments. Another statement proves what they return.
    cuts
        Functions that replace some statements of the source, by the start of the statement. Each
        takes the translation and the variables, and sets some of these. Another statement proves
        that the values are right.
    after
        Hooks that run after each assignment to some variables, by "function: variable". Each takes
        the translation and the value, and returns the value to continue with.
    wraps
        How often 2^128 is added to some sums, differences and negations, by their text. A string
        is an expression for how often it is subtracted, as from a shift.
    """

    def __init__(
        self,
        *,
        choices: Mapping[str, Any] | None = None,
        lemmas: Mapping[str, Callable[..., Value]] | None = None,
        cuts: Mapping[str, Callable[..., None]] | None = None,
        after: Mapping[str, Callable[..., Value]] | None = None,
        wraps: Mapping[str, int | str] | None = None,
    ) -> None:
        super().__init__(dict(lemmas or {}), choices)
        self.cuts, self.wraps, self.after = dict(cuts or {}), dict(wraps or {}), dict(after or {})
        self.goals: list[str] = []
        self.used_keys: set[str] = set()

    def restart(self) -> None:
        """Start another script; keep only the keys that were used and the outcomes chosen."""
        for state in (self.definitions, self.hypotheses, self.goals, self._names):
            state.clear()

    def free_variable(
        self, name: str, least: int | str, most: int | str, bits: int = 128
    ) -> Number:
        """Return a free variable for an integer in a range."""
        self.assume(f"@FIX({name}, 0)", f"{name} in [{least}, {most}]")
        return Number(name, bits, reduced=True)

    def prove(self, *properties: str) -> None:
        """Add goals, each once."""
        self.goals += [p for p in properties if p not in self.goals]

    def call(self, function: Any, *arguments: Value) -> Value:
        """Translate a call, and return its value."""
        tree, names = _source_of(function)
        if tree.name in self.lemmas:
            self.used_keys.add(tree.name)
            return self.lemmas[tree.name](self, *arguments)
        parameters = [parameter.arg for parameter in tree.args.args]
        return _Body(self, tree, names, dict(zip(parameters, arguments, strict=True))).result()

    def require_unwrapped(self, value: Value, bits: int = 128) -> str:
        """Return the text of a number, and add the goal that it lies within its bits."""
        if isinstance(value, Bits):
            value = value.number
        if isinstance(value, Number):
            if not value.reduced:
                self.prove(f"{value.text} in [0, {2**bits - 1}]")
            return value.text
        if isinstance(value, tuple):
            high, low = (self.require_unwrapped(word, 64) for word in value)
            return join_words(high, low)
        return str(int(value))

    def evaluate(self, text: str, values: Mapping[str, int]) -> Fraction:
        """Return the value of an expression for given free variables, computed in fractions."""
        return _Evaluation(dict(self.definitions), values).value_of(text)

    def case(
        self,
        name: str,
        asks: Sequence[str] = (),
        hints: Sequence[str] = (),
        *,
        most: float | None = None,
        every_gain: bool = False,
    ) -> Case:
        """Return a case that asks for intervals, and proves that their ends are at most `most`.

        With `every_gain` Gappa distinguishes 1 - 2^-64 from 1.
        """
        if most is not None:
            self.prove(*(f"{expression} <= {most}" for expression in asks))
        if unused := {*self.lemmas, *self.cuts, *self.wraps, *self.after} - self.used_keys:
            raise UntranslatableError(f"The source has no {', '.join(sorted(unused))}.")
        lines = [*_OPTIONS, *["#@ -Echange-threshold=0"] * every_gain, "@floor = int<dn>;"]
        lines += [f"{left} = {right};" for left, right in self.definitions]
        before = "\n".join([*lines, f"{{ {conjunction(self.hypotheses)}", ""])
        after = "".join(f"{hint};\n" for hint in hints)
        selections = frozenset(self.selections)
        return Case(name, before, conjunction(self.goals), after, tuple(asks), selections)


class _Evaluation(dict[str, Any]):
    """Values by name; definitions are computed on demand."""

    def __init__(self, definitions: Mapping[str, str], values: Mapping[str, int]) -> None:
        super().__init__({name: Fraction(value) for name, value in values.items()})
        self.update(floor=math.floor, power=lambda exponent: Fraction(2) ** exponent)
        self.definitions = definitions

    def value_of(self, text: str) -> Fraction:
        python = re.sub(r"\b1b(-?\d+)", r"power(\1)", text)
        return Fraction(eval(python, {"__builtins__": {}}, self))  # noqa: S307 - our own text

    def __missing__(self, name: str) -> Fraction:
        value = self[name] = self.value_of(self.definitions[name])
        return value


def statement_in_units(name: str, claim: str, used: float, cases: Sequence[Case]) -> Statement:
    """Return a statement with errors in units, whose summary is the largest error."""

    def show_largest(outcomes: Sequence[Outcome]) -> str:
        ends = [outcome.most for outcome in outcomes if outcome.most is not None]
        return f"{max(ends):.2f} units" if ends else ""

    return Statement(name, claim, lambda: cases, show_largest, f"{used:g} units")


def skip_statement(_t: FixedPoint, _values: dict[str, Value]) -> None:
    """Skip a statement of the source that another case covers."""


_source_of = cache(source_of)


def join_words(high: str, low: str) -> str:
    """Return the number of 128 bits that two words make."""
    if high.isdigit() and low.isdigit():
        return str((int(high) << 64) + int(low))
    return low if high == "0" else f"({high} * 1b64 + {low})"


def _is_constant(value: Value) -> bool:
    return not isinstance(value, Number | Bits | LargeShift | tuple)


class _Body:
    """The body of a function, and the values of its variables."""

    def __init__(
        self,
        translation: FixedPoint,
        tree: ast.FunctionDef,
        names: dict[str, Any],
        values: dict[str, Value],
    ) -> None:
        self.translation, self.tree = translation, tree
        self.names, self.values = names, values

    def refuse(self, node: ast.AST) -> NoReturn:
        """Raise an error for a node without a rule."""
        raise UntranslatableError(f"{self.tree.name}: no rule for {ast.unparse(node)[:200]!r}.")

    def result(self) -> Value:
        """Return the value that the function returns."""
        *body, last = self.tree.body
        self.run(body)
        if not isinstance(last, ast.Return) or last.value is None:
            self.refuse(last)
        return self.define_variable("result", self.value_of(last.value))

    def run(self, body: list[ast.stmt]) -> None:
        """Translate some statements."""
        for statement in body:
            if self.replace_cut(ast.unparse(statement)):
                continue
            match statement:
                case ast.Expr(value=ast.Constant(value=str())):
                    continue  # The docstring.
                case ast.Assign(targets=[target], value=expression):
                    self.assign(target, self.value_of(expression))
                case ast.AugAssign(target=ast.Name() as target, op=operator, value=expression):
                    operation = ast.BinOp(ast.Name(target.id), operator, expression)
                    self.assign(target, self.value_of(operation))
                case ast.For(target=ast.Name() as target, iter=ast.Call() as call, orelse=[]):
                    if ast.unparse(call.func) != "range":
                        self.refuse(statement)
                    for k in range(*(int(self.value_of(argument)) for argument in call.args)):
                        self.values[target.id] = k
                        self.run(statement.body)
                case _:
                    self.refuse(statement)

    def replace_cut(self, source: str) -> bool:
        """Return whether a statement is replaced, after running its replacement."""
        for start, replacement in self.translation.cuts.items():
            if source.startswith(start):
                self.translation.used_keys.add(start)
                replacement(self.translation, self.values)
                return True
        return False

    def assign(self, target: ast.expr, value: Value) -> None:
        """Assign to a variable, or to several."""
        match target:
            case ast.Name(id=name):
                self.values[name] = self.apply_hook(name, self.define_variable(name, value))
            case ast.Tuple(elts=targets):
                for element, part in zip(targets, value, strict=True):
                    self.assign(element, part)
            case _:
                self.refuse(target)

    def apply_hook(self, variable: str, value: Value) -> Value:
        """Return the new value of a variable, after the hook of the statement, if any."""
        key = f"{self.tree.name}: {variable}"
        if key not in self.translation.after:
            return value
        self.translation.used_keys.add(key)
        return self.translation.after[key](self.translation, value)

    def define_variable(self, variable: str, value: Value) -> Value:
        """Define an expression under the name of the function's variable, and return it."""
        if isinstance(value, tuple):
            return tuple(self.define_variable(variable, part) for part in value)
        if not isinstance(value, Number) or value.text.isidentifier():
            return value
        name = f"{self.tree.name.strip('_')}_{variable}"
        return replace(value, text=self.translation.define(name, value.text))

    def chosen_outcome(self, node: ast.expr) -> Any:
        """Return the outcome that the statement chooses."""
        text = ast.unparse(node)
        if text not in self.translation.choices:
            self.refuse(node)
        outcome = self.translation.choices[text]
        if isinstance(outcome, bool):
            self.translation.selections.add((self.tree.name, text, outcome))
        return outcome

    def value_of(self, node: ast.expr) -> Value:
        """Return the value of an expression."""
        match node:
            case ast.Constant(value=int() | float() as number):
                return number
            case ast.Name(id=name):
                return self.variable(name, node)
            case ast.Tuple(elts=elements):
                return tuple(self.value_of(element) for element in elements)
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                value = self.value_of(operand)
                return -value if _is_constant(value) else self.refuse(node)
            case ast.UnaryOp(op=ast.Invert(), operand=operand):
                return self.invert(self.value_of(operand))
            case ast.Subscript(value=whole, slice=index):
                return self.part(self.value_of(whole), int(self.value_of(index)), node)
            case ast.BinOp(left=left, op=operator, right=right):
                return self.operation(self.value_of(left), operator, self.value_of(right), node)
            case ast.Compare(left=left, ops=[operator], comparators=[right]):
                return self.compare(left, operator, right, node)
            case ast.IfExp(test=test, body=body, orelse=orelse):
                outcome = bool(self.value_of(test))
                self.translation.selections.add((self.tree.name, ast.unparse(test), outcome))
                return self.value_of(body if outcome else orelse)
            case ast.Call(func=evaluate_call, args=arguments, keywords=[]):
                return self.evaluate_call(evaluate_call, arguments, node)
        self.refuse(node)

    def variable(self, name: str, node: ast.expr) -> Value:
        """Return a variable of the function, or a constant of its module."""
        if name in self.values:
            return self.values[name]
        if name not in self.names or callable(self.names[name]):
            self.refuse(node)
        return self.names[name]

    def invert(self, value: Value) -> Value:
        """Return ~value."""
        match value:
            case Bits(top=top, rest=rest, width=width):
                ones = (1 << 64 - width) - 1
                return Bits(top ^ ones, f"({2**width - 1} - {rest})", width)
            case Number(text=text, bits=64):
                return Number(f"({_ALL_ONES} - {text})", 64)
        return ~value

    def part(self, whole: Value, index: int, node: ast.expr) -> Value:
        """Return one element of a tuple, or one of the two words of a number."""
        if isinstance(whole, tuple):
            return whole[index]
        if not isinstance(whole, Number) or index not in {0, 1}:
            self.refuse(node)
        text = self.translation.require_unwrapped(whole)
        high = f"floor({text} * 1b-64)"
        return Number(high if index == 0 else f"({text} - {high} * 1b64)", 64, reduced=True)

    def operation(self, left: Value, operator: ast.operator, right: Value, node: ast.expr) -> Value:
        """Return the value of an operation on words."""
        if _is_constant(left) and _is_constant(right):
            with np.errstate(over="ignore"):
                return _OPERATIONS[type(operator)](left, right)
        if isinstance(left, LargeShift) and isinstance(operator, ast.Add | ast.Sub):
            added = int(right) * (1 if isinstance(operator, ast.Add) else -1)
            return LargeShift(left.least, left.extra + added)
        if isinstance(left, LargeShift) and isinstance(operator, ast.BitAnd):
            return self.translation.free_variable("low_places", 0, int(right), bits=64)
        if isinstance(right, Number) and isinstance(operator, ast.RShift):
            return self.translation.free_variable("moved_away", 0, _ALL_ONES, bits=64)
        if isinstance(left, Bits) and _is_constant(right):
            match operator, int(right):
                case ast.RShift(), places if places >= left.width:
                    return np.uint64(left.top >> places - left.width)
                case ast.BitAnd(), mask if (
                    mask & mask + 1 == 0
                    and mask >> left.width << left.width == mask & ~(2**left.width - 1)
                    and mask >= 2**left.width - 1
                ):
                    return Bits(left.top & mask >> left.width, left.rest, left.width)
                case ast.LShift(), 1:
                    top = left.top & (1 << 63 - left.width) - 1
                    return Bits(top, f"({left.rest} * 2)", left.width + 1)
                case ast.BitOr(), mask if mask >> left.width << left.width == mask:
                    return Bits(left.top | mask >> left.width, left.rest, left.width)
        if _is_constant(left) and isinstance(operator, ast.BitOr):
            if int(left) == 0:
                return right
            return self.translation.free_variable(
                "either", int(left), _ALL_ONES, bits=64
            )  # No bit is lost.
        a, b = (self.modular_text(value) for value in (left, right))
        match operator:
            case ast.Add():
                return Number(f"({a} + {b})", 64)
            case ast.Sub():
                return Number(f"({a} - {b})", 64)
            case ast.Mult():
                return Number(f"({a} * {b})", 64)
            case ast.LShift() if _is_constant(right) and int(right) < 64:
                return Number(f"({scale_by_power(a, int(right))})", 64)
            case ast.RShift() if _is_constant(right) and int(right) < 64:
                text = self.translation.require_unwrapped(left, 64)
                return Number(f"floor({scale_by_power(text, -int(right))})", 64, reduced=True)
            case ast.BitXor() if _is_constant(right) and int(right) in {0, _ALL_ONES}:
                return Number(f"(-1 - {a})", 64) if int(right) else left
            case ast.BitAnd() if _is_constant(right) and int(right) in {0, _ALL_ONES}:
                return left if int(right) else np.uint64(0)
        self.refuse(node)

    def modular_text(self, value: Value) -> str:
        """Return an expression of a number modulo 2^bits."""
        match value:
            case Number(text=text):
                return text
            case Bits():
                return value.number.text
            case (high, low):
                return join_words(
                    self.modular_text(high), self.translation.require_unwrapped(low, 64)
                )
        return str(int(value))

    def compare(self, left: ast.expr, operator: ast.cmpop, right: ast.expr, node: ast.expr) -> bool:
        """Return the outcome of a comparison: computed from constants, or chosen and proved."""
        match left, operator, self.value_of(right):
            case ast.BinOp(
                left=ast.Subscript(value=a), op=ast.BitOr(), right=ast.Subscript(value=b)
            ), ast.Eq(), zero if (
                ast.unparse(a) == ast.unparse(b)
                and isinstance(self.value_of(a), Number)
                and int(zero) == 0
            ):
                left_text, right_text, outcome = (
                    self.translation.require_unwrapped(self.value_of(a)),
                    "0",
                    self.chosen_outcome(node),
                )
            case _, _, second:
                first = self.value_of(left)
                if isinstance(first, LargeShift) and int(second) < first.least + first.extra:
                    return isinstance(operator, ast.Gt)
                if _is_constant(first) and _is_constant(second):
                    return bool(_COMPARISONS[type(operator)](first, second))
                left_text, right_text = (
                    self.translation.require_unwrapped(value, 64) for value in (first, second)
                )
                outcome = self.chosen_outcome(node)
        match operator, outcome:
            case ast.Lt(), bool():
                self.prove_less(left_text, right_text, outcome)
            case ast.Eq(), True:
                self.translation.prove(f"{left_text} - {right_text} in [0, 0]")
            case ast.Eq(), False:  # Wherever this is used, unequal means larger.
                self.translation.prove(
                    f"{left_text} >= 1" if right_text == "0" else f"{left_text} - {right_text} >= 1"
                )
            case _:
                self.refuse(node)
        return bool(outcome)

    def prove_less(self, a: str, b: str, outcome: bool) -> None:  # noqa: FBT001 (it is the subject)
        """Add the goal that the outcome of a < b is right."""
        self.translation.prove(f"{a} - {b} <= -1" if outcome else f"{a} - {b} >= 0")

    def evaluate_call(self, function: ast.expr, nodes: list[ast.expr], node: ast.expr) -> Value:
        """Return the value of a call."""
        name = ast.unparse(function)
        if isinstance(function, ast.Attribute) and function.attr == "view":
            return self.view_as(self.value_of(function.value), ast.unparse(nodes[0]), node)
        arguments = [self.value_of(argument) for argument in nodes]
        if name in self.translation.lemmas:
            return self.translation.call(self.names[name], *arguments)
        rule = getattr(self, f"rule_{name}", None)
        if rule is not None and name in self.names:
            return rule(node, *arguments)
        if isinstance(arguments[0], LargeShift) and name in _CALLS:
            return arguments[1] if name == "min" else arguments[0]
        if name in _CALLS and all(map(_is_constant, arguments)):
            return _CALLS[name](*arguments)
        match name, arguments:
            case "np.uint64" | "np.int64" | "np.float64", [Number() | Bits() as value]:
                return value
        if name in self.names:
            return self.translation.call(
                self.names[name], *(self.define_variable("argument", value) for value in arguments)
            )
        self.refuse(node)

    def view_as(self, value: Value, kind: str, node: ast.expr) -> Value:
        """Return a word as a signed or unsigned integer, and add the goal that it is one."""
        if isinstance(value, np.generic) and kind == "np.int64":
            return value.view(np.int64)
        match value, kind:
            case Bits(), "np.uint64":
                return value
            case Number(text=text, bits=64), "np.uint64":
                negative = bool(self.chosen_outcome(node))
                self.prove_less(text, "0", negative)
                return Number(f"({text} + {2**64})" if negative else text, 64, reduced=True)
            case Number(text=text, bits=64), "np.int64":
                self.translation.prove(f"{text} in [{-(2**63)}, {2**63 - 1}]")
                return replace(value, reduced=True)
        self.refuse(node)

    # The operations of `kernels.fixed`.

    def modulo(self, node: ast.expr, a: str, operator: str, b: str) -> Number:
        """Return a sum or a difference, with the multiple of 2^128 that the statement adds."""
        key = ast.unparse(node)
        self.translation.used_keys |= {key} & self.translation.wraps.keys()
        added = self.translation.wraps.get(key, 0)
        if isinstance(added, str):
            return Number(f"(({a} {operator} {b}) - {added} * 1b128)", 128)
        if a.isdigit():
            a = str(int(a) + (added << 128))
        elif added:
            a = f"({a} {'+' if added > 0 else '-'} {abs(added) << 128})"
        return Number(f"({a} {operator} {b})", 128)

    def rule_plus(self, node: ast.expr, a: Value, b: Value) -> Number:
        return self.modulo(node, self.modular_text(a), "+", self.modular_text(b))

    def rule_minus(self, node: ast.expr, a: Value, b: Value) -> Number:
        return self.modulo(node, self.modular_text(a), "-", self.modular_text(b))

    def rule_times(self, _node: ast.expr, a: Value, b: Value) -> Number:
        first, second = self.translation.require_unwrapped(a), self.translation.require_unwrapped(b)
        return Number(f"floor({first} * {second} * 1b-128)", 128, reduced=True)

    def rule_product(self, _node: ast.expr, a: Value, b: Value) -> Number:
        first, second = (
            self.translation.require_unwrapped(a, 64),
            self.translation.require_unwrapped(b, 64),
        )
        return Number(f"({first} * {second})", 128, reduced=True)

    def rule_up(self, node: ast.expr, a: Value, places: Value) -> Value:
        key = ast.unparse(node)
        if key in self.translation.wraps:
            self.translation.used_keys.add(key)
            shifted = scale_by_power(self.modular_text(a), int(places))
            return Number(f"({shifted} - {self.translation.wraps[key]} * 1b128)", 128)
        return (
            Number(f"({scale_by_power(self.modular_text(a), int(places))})", 128) if places else a
        )

    def rule_down(self, _node: ast.expr, a: Value, places: Value) -> Number:
        return Number(shift_right(self.translation.require_unwrapped(a), places), 128, reduced=True)

    def rule_is_less(self, node: ast.expr, a: Value, b: Value) -> bool:
        outcome = bool(self.chosen_outcome(node))
        self.prove_less(
            self.translation.require_unwrapped(a), self.translation.require_unwrapped(b), outcome
        )
        return outcome

    def rule_zeros_before(self, node: ast.expr, a: Value) -> np.uint64:
        zeros, text = int(self.chosen_outcome(node)), self.translation.require_unwrapped(a)
        self.translation.prove(f"{text} in [{2**127 >> zeros}, {(2**128 >> zeros) - 1}]")
        return np.uint64(zeros)

    def rule_mask_where(self, _node: ast.expr, condition: bool) -> np.uint64:  # noqa: FBT001 (as in the kernel)
        return np.uint64(_ALL_ONES if condition else 0)

    def rule_mask_of(self, node: ast.expr, sign: Value) -> np.uint64:
        if isinstance(sign, Bits):
            negative = bool(sign.top >> 63 - sign.width)
        else:
            negative = bool(self.chosen_outcome(node))
            self.prove_less(self.translation.require_unwrapped(sign, 64), str(2**63), not negative)
        return np.uint64(_ALL_ONES if negative else 0)

    def rule_negated_if(self, node: ast.expr, mask: Value, a: Value) -> Value:
        return self.modulo(node, "0", "-", self.modular_text(a)) if int(mask) else a
