"""Prove the error bound of the division on devices, `divide_in_range` of triton_release.

The function is read from its file, so Triton need not be installed. Triton's operations have three
rules: the device's first guess of a reciprocal is a free variable with a hypothesis; a tensor
filled with a number is that number; a fused multiply-add is a fused multiply-add.
"""

import ast
from fractions import Fraction
from pathlib import Path
from typing import Final

import dpnoise
from proof.functions import QUOTIENT
from proof.statement import Case, Statement, case, largest_size
from proof.terms import around_0, interval, u
from proof.translation import Translation, UntranslatableError

_FILE: Final = Path(dpnoise.__file__).parent / "integrations" / "triton_release.py"
_NAME: Final = "divide_in_range"
_INSTRUCTION: Final = "rcp.approx.ftz.f64 $0, $1;"
_GUESS: Final = "1b-17"  # tests/tensors/test_reciprocal.py tries every number.
# The relative error of a quotient, in u.
_OFF: Final = 1 + Fraction(1, 2**50)
_B: Final = (Fraction(27, 16), Fraction(5, 2))


class _WithoutTriton(ast.NodeTransformer):
    """Replaces Triton's operations by those that the translation knows."""

    def visit_Call(self, node: ast.Call) -> ast.expr:
        self.generic_visit(node)
        match ast.unparse(node.func), node.args:
            case "tl.fma", arguments:
                return ast.Call(ast.Name("fma"), arguments, [])
            case "tl.full", [_, ast.Constant() as number, _]:
                return number
            case "tl.inline_asm_elementwise", [
                ast.Constant(value=text),
                _,
                ast.List(elts=[ast.Name("b")]),
            ] if text == _INSTRUCTION:
                return ast.Name("guess")
        return node


def _function() -> ast.FunctionDef:
    """Return the definition that devices run, which calls the instruction for a guess."""
    definitions = [
        _WithoutTriton().visit(node)
        for node in ast.walk(ast.parse(_FILE.read_text()))
        if isinstance(node, ast.FunctionDef)
        and node.name == _NAME
        and _INSTRUCTION in ast.unparse(node)
    ]
    if len(definitions) != 1:
        raise UntranslatableError(
            f"{_FILE.name}: {len(definitions)} functions {_NAME} with a guess."
        )
    function: ast.FunctionDef = definitions[0]
    function.args.args.append(ast.arg("guess"))
    return function


def _quotient() -> Case:
    """Prove the error bound of a / b.

    It is enough to take 1 <= a <= 2: multiplying a by a power of two multiplies every result by it,
    and nothing underflows (docs/gpu.md).
    """
    translation = Translation({})
    s = translation.translate(_function(), {}, "a", "b", "guess")
    e, r1, r2, q = (f"{_NAME}_{name}" for name in ("e", "r", "r_2", "q"))
    definitions = [
        ("d", "(-b) * guess + 1"),
        ("p", f"rnd({e} * {e} + {e})"),
        ("g", f"(-b) * {r1} + 1"),
        ("f", f"rnd((-b) * {r1} + 1)"),
        ("n", f"(-b) * {q} + a"),
        ("m", f"rnd((-b) * {q} + a)"),
        ("t", f"m * {r2} + {q}"),
    ]
    hints = [
        "b * guess -> 1 - d",
        "guess -> (1 - d) / b { b <> 0 }",
        f"{r1} * b - 1 -> b * ({r1} - (guess * p + guess)) + (b * guess) * (p - (d + d * d))"
        " - d * d * d",
        f"p - (d + d * d) -> (p - ({e} * {e} + {e})) + ({e} - d) * ({e} + d + 1)",
        f"g -> -({r1} * b - 1)",
        f"{r1} -> (1 + ({r1} * b - 1)) / b {{ b <> 0 }}",
        f"{r2} * b - 1 -> b * ({r2} - ({r1} * f + {r1})) + ({r1} * b) * (f - g) - g * g",
        f"{r2} -> (1 + ({r2} * b - 1)) / b {{ b <> 0 }}",
        f"n / a -> -({r2} * b - 1) - ({r2} * b) * (({q} - a * {r2}) / (a * {r2}))"
        f" {{ a <> 0, {r2} <> 0 }}",
        f"(t * b - a) / a -> ({r2} * b) * ((m - n) / a) + ({r2} * b - 1) * (n / a) {{ a <> 0 }}",
        f"({s} * b - a) / a -> ({s} - t) / t * (1 + (t * b - a) / a) + (t * b - a) / a"
        " { a <> 0, t <> 0 }",
    ]
    off = f"({s} * b - a) / a"
    return case(
        "a / b",
        translation,
        f"{off} in {around_0(u(_OFF))}",
        asks=[off],
        definitions=definitions,
        hypotheses=[f"b in {interval(_B)}", "a in [1, 2]", f"|d| <= {_GUESS}"],
        hints=hints,
    )


def _quotient_in_log() -> Case:
    """Prove the bound that the proof of the logarithm assumes, for a = f - 1, which is exact."""
    off, moved = "(1 + off) * ((f + 1) / b) - 1", "((b - (f + 1)) / (f + 1))"
    return case(
        "(f-1) / (f+1)",
        Translation({}),
        f"{off} in {around_0(u(QUOTIENT))}",
        definitions=[("b", "rnd(f + 1)")],
        hypotheses=[f"off in {around_0(u(_OFF))}", "f in [0.7, 1.5]"],
        hints=[f"{off} -> (off - {moved}) / (1 + {moved}) {{ b <> 0, f + 1 <> 0 }}"],
    )


def statements() -> list[Statement]:
    """Return the statement of this file."""
    return [
        Statement(
            "device division",
            "the device's a / b in log, from a first guess with relative error below 2^-17",
            lambda: [_quotient(), _quotient_in_log()],
            largest_size,
            f"{float(QUOTIENT):.3f}u relative, with the rounding of f + 1",
        )
    ]
