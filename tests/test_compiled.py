"""The compiler does what the source says: no fused operation more, none less, no fast-math.

The proof (`make proof`) is about the operations that the source names. LLVM may not join a product
and a sum into one rounding of its own accord, nor take a named one apart.
"""

import ast
import re
from collections import Counter
from typing import Any

import numba
import pytest
from numba import types
from proof.translation import source_of

from dpnoise.kernels import certified, rounding

WORDS, FLOATS = types.Array(types.uint64, 1, "C"), types.Array(types.float64, 1, "C")
SIGNATURE = (WORDS, types.int64, FLOATS, types.float64, types.float64, FLOATS)
# Kernels, and the form and the number of results in each round of their loop.
FORMS = {
    "laplace_1": (certified.laplace_1, 1),
    "laplace_4": (certified.laplace_4, 1),
    "gaussian_2": (certified.gaussian_2, 1),
    "gaussian_pairs": (certified.gaussian_pair, 2),
    "gaussian_4": (certified.gaussian_4, 1),
}
FUSED_IN_LLVM = re.compile(r"call [^@\n]*@llvm\.fma\.(\w+)\(")
# NEON and SVE; AVX2 and AVX-512; a processor without any calls a function of this name.
FUSED = re.compile(r"\b(fn?m(?:add|sub)|fml[as]|vfn?m(?:add|sub)\d{3}[sp]d|fma)\b")
FAST_MATH = re.compile(r"= f(?:add|sub|mul|div|neg|cmp) (?:fast|contract|reassoc|arcp|afn)\b")


def compiled(name: str) -> tuple[str, str]:
    """Return LLVM's code for a kernel, optimised, and the assembly made of it."""
    cached: Any = getattr(rounding, name)
    kernel = numba.jit(**cached.targetoptions)(cached.py_func)  # Code from disk cannot be read.
    kernel.compile(SIGNATURE)
    return kernel.inspect_llvm(SIGNATURE), kernel.inspect_asm(SIGNATURE)


def named_in(function: Any) -> int:
    """Return how many fused operations a function names, in itself and in what it calls.

    One whose addend is 0 is a product, and may be compiled so.
    """
    tree, names = source_of(function)
    total = 0
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Name(id="fma"), args=[_, _, ast.Constant(value=0.0)]):
                pass
            case ast.Call(func=ast.Name(id="fma")):
                total += 1
            case ast.Call(func=ast.Name(id=name)) if hasattr(names.get(name), "py_func"):
                total += named_in(names[name])
    return total


@pytest.mark.parametrize("name", FORMS)
def test_the_compiled_code_fuses_what_the_source_names(name: str) -> None:
    llvm, assembly = compiled(name)
    counted = Counter(FUSED_IN_LLVM.findall(llvm))
    assert sum(counted.values()) == len(FUSED.findall(assembly)), "the back end changed a rounding"
    form, results = FORMS[name]
    expected = named_in(form) + results * named_in(rounding.certain_point)
    if name == "gaussian_pairs":  # Its last loop, for an odd number, has one result.
        assert counted["f64"] > expected
    else:
        assert counted["f64"] == expected
    vectors = [number for kind, number in counted.items() if kind != "f64"]
    assert vectors
    assert all(number % expected == 0 for number in vectors)


@pytest.mark.parametrize("name", FORMS)
def test_no_operation_is_compiled_with_fast_math(name: str) -> None:
    llvm, _ = compiled(name)
    assert re.search(r"= f(?:add|sub|mul) ", llvm)
    assert not FAST_MATH.search(llvm)
