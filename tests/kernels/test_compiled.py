"""The compiler keeps the fused operations of the source, adds none, and uses no fast-math.

The proof (`make proof`) is about the operations in the source. LLVM must not fuse a product and a
sum that the source does not fuse, nor split a fused operation.
"""

import ast
import json
import math
import os
import re
import subprocess
import sys
from collections import Counter
from functools import cache
from typing import Any

import numba
import numpy as np
import pytest
from numba import types
from proof.translation import source_of

from dpnoise.kernels import certified, first_stage, scalar, second_stage

pytestmark = pytest.mark.internals  # It reads LLVM's IR and assembly.

WORDS, FLOATS = types.Array(types.uint64, 1, "C"), types.Array(types.float64, 1, "C")
INTEGERS = types.Array(types.int64, 1, "C")
VALUES = {"floats": FLOATS, "integers": INTEGERS}
# The form of each kernel, and the number of results per iteration of its loop.
KERNELS = {
    "laplace_1": (certified.laplace_1, 1),
    "gaussian_2": (certified.gaussian_2, 1),
    "gaussian_pairs": (certified.gaussian_pair, 2),
}
FORMS = {f"{name} of {values}": form for name, form in KERNELS.items() for values in VALUES}
FUSED_IN_LLVM = re.compile(r"call [^@\n]*@llvm\.fma\.(\w+)\(")
# NEON and SVE; AVX2 and AVX-512; the function that other processors call.
FUSED = re.compile(r"\b(fn?m(?:add|sub)|fml[as]|vfn?m(?:add|sub)\d{3}[sp]d|fma)\b")
FAST_MATH = re.compile(r"= f(?:add|sub|mul|div|neg|cmp) (?:fast|contract|reassoc|arcp|afn)\b")


@cache
def compile_kernel(name: str) -> tuple[str, str]:
    """Return the optimised LLVM IR and the assembly of a kernel of the first stage."""
    kernel, values = name.split(" of ")
    numbers = (types.float64, types.float64)
    signature = (WORDS, types.int64, VALUES[values], *numbers, FLOATS)
    return compile_for(getattr(first_stage, kernel), signature)


def compile_for(cached: Any, signature: tuple[Any, ...]) -> tuple[str, str]:
    """Return the optimised LLVM IR and the assembly of any kernel."""
    kernel = numba.jit(**cached.targetoptions)(cached.py_func)  # Code from disk cannot be read.
    kernel.compile(signature)
    return kernel.inspect_llvm(signature), kernel.inspect_asm(signature)


def count_fused(function: Any) -> int:
    """Return the number of fused operations in the source of a function and of its callees.

    An operation with addend 0 is a product, and may be compiled as one.
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
                total += count_fused(names[name])
    return total


@pytest.mark.parametrize("name", FORMS)
def test_the_compiled_code_fuses_the_operations_of_the_source(name: str) -> None:
    check_fused(name, *compile_kernel(name))


def check_fused(name: str, llvm: str, assembly: str) -> None:
    """Check that each loop of both has the fused operations of the source."""
    counts = Counter(FUSED_IN_LLVM.findall(llvm))
    assert sum(counts.values()) == len(FUSED.findall(assembly)), "the back end changed a rounding"
    form, results = FORMS[name]
    expected = count_fused(form) + results * count_fused(first_stage.certain_point)
    if name.startswith("gaussian_pairs"):  # Its last loop, for an odd count, has one result.
        assert counts["f64"] > expected
    else:
        assert counts["f64"] == expected
    vectors = [number for kind, number in counts.items() if kind != "f64"]
    assert vectors
    assert all(number % expected == 0 for number in vectors)


# Numba's code before LLVM's optimisation, compiled for several processors.
PROCESSORS = {
    "skylake-avx512": "x86_64-unknown-linux-gnu",
    "haswell": "x86_64-unknown-linux-gnu",
    "neoverse-n1": "aarch64-unknown-linux-gnu",
}
CROSS_COMPILE = """
import json, sys
import llvmlite.binding as llvm
import numba
sys.path[:0] = ["tests", "tests/kernels", "tools"]
import test_compiled as t
llvm.initialize_all_targets()
llvm.initialize_all_asmprinters()
made = {}
for name in t.FORMS:
    source, _ = t.compile_kernel(name)
    for cpu, triple in t.PROCESSORS.items():
        module = llvm.parse_assembly(source)
        machine = llvm.Target.from_triple(triple).create_target_machine(cpu=cpu, opt=3)
        module.triple, module.data_layout = triple, str(machine.target_data)
        options = llvm.create_pipeline_tuning_options(speed_level=3)
        options.loop_vectorization = True
        builder = llvm.create_pass_builder(machine, options)
        builder.getModulePassManager().run(module, builder)
        made[f"{name} {cpu}"] = str(module), machine.emit_assembly(module)
print(json.dumps(made))
"""


@pytest.fixture(scope="module")
def cross_compiled() -> dict[str, list[str]]:
    child = subprocess.run(
        [sys.executable, "-c", CROSS_COMPILE],
        env={**os.environ, "NUMBA_OPT": "0", "DPNOISE_CACHE_DIR": ""},
        capture_output=True,
        text=True,
        check=True,
    )
    compiled_code: dict[str, list[str]] = json.loads(child.stdout)
    return compiled_code


@pytest.mark.parametrize("cpu", PROCESSORS)
@pytest.mark.parametrize("name", FORMS)
def test_other_processors_fuse_the_same(
    name: str, cpu: str, cross_compiled: dict[str, list[str]]
) -> None:
    llvm, assembly = cross_compiled[f"{name} {cpu}"]
    check_fused(name, llvm, assembly)
    assert not FAST_MATH.search(llvm)


@pytest.mark.parametrize("name", FORMS)
def test_no_operation_is_compiled_with_fast_math(name: str) -> None:
    llvm, _ = compile_kernel(name)
    assert re.search(r"= f(?:add|sub|mul) ", llvm)
    assert not FAST_MATH.search(llvm)


# Comparisons of floats decide whether a number is certain, and which one is open. -----------------

ROWS = types.Array(types.uint64, 2, "C")
SETTLING = {
    "settle_floats": (
        *(ROWS, INTEGERS, types.int64, FLOATS),
        *(types.float64, types.float64, FLOATS),
    ),
    "settle_cells": (
        *(ROWS, INTEGERS, types.int64, INTEGERS),
        *(types.int64, types.float64, FLOATS),
    ),
    "open_places": (FLOATS, types.int64, types.int64, INTEGERS, INTEGERS),
}
LOGIC = r"(?:and|or|xor|zext|sext|select|icmp|freeze|phi|extractelement|(?:tail )?call)\b"


def branches_on_floats(llvm: str) -> list[str]:
    """Return the branches of a kernel that depend on a comparison of floats."""
    dependent: set[str] = set()
    while True:
        before = len(dependent)
        for name, text in re.findall(r"^ *(%\S+) = (.*)$", llvm, re.MULTILINE):
            from_floats = re.match(LOGIC, text) and dependent & set(
                re.findall(r"%[^\s,)\]]+", text)
            )
            if text.startswith("fcmp") or from_floats:
                dependent.add(name)
        if len(dependent) == before:
            conditions = re.findall(r"^ *(?:br i1|switch \w+) (%[^\s,]+)", llvm, re.MULTILINE)
            return [name for name in conditions if name in dependent]


@pytest.mark.parametrize("name", FORMS)
def test_no_branch_depends_on_what_the_first_stage_left_open(name: str) -> None:
    llvm, _ = compile_kernel(name)
    assert "fcmp" in llvm
    assert branches_on_floats(llvm) == []


@pytest.mark.parametrize("name", SETTLING)
def test_no_branch_depends_on_what_the_second_stage_decides(name: str) -> None:
    assert branches_on_floats(compile_for(getattr(second_stage, name), SETTLING[name])[0]) == []


@pytest.mark.parametrize("cpu", PROCESSORS)
@pytest.mark.parametrize("name", FORMS)
def test_no_branch_depends_on_it_on_other_processors(
    name: str, cpu: str, cross_compiled: dict[str, list[str]]
) -> None:
    """It checks less than the two tests above: Numba first optimises the callees of a kernel.

    That step is missing here, so its branches are found only if tests run on such a processor.
    """
    assert branches_on_floats(cross_compiled[f"{name} {cpu}"][0]) == []


def test_a_branch_on_floats_is_found() -> None:
    def branch_on_float(values: Any) -> Any:
        total = 0.0
        for i in range(values.size):
            if values[i] < 0.5:
                total = total * 0.5 + math.sin(values[i])
        return total

    signature = (FLOATS,)
    kernel = numba.njit(branch_on_float)
    kernel.compile(signature)
    assert branches_on_floats(kernel.inspect_llvm(signature))


# The digits of a Python integer. ------------------------------------------------------------------

INTEGER_SIGNATURE = (
    types.Bytes(types.uint8, 1, "C"),
    scalar.PYTHON_INTEGER,
    types.int64,
    types.float64,
)


def dependent_on(argument: str, llvm: str) -> tuple[str, set[str]]:
    """Return the code of the first function, and all values in it that depend on an argument."""
    function = re.split(r"^}", llvm[llvm.index("\ndefine ") :], flags=re.MULTILINE)[0]
    dependent, before = {f"%arg.{argument}"}, 0
    while len(dependent) > before:
        before = len(dependent)
        for name, text in re.findall(r"^ *(%\S+) = (.*)$", function, re.MULTILINE):
            if dependent & set(re.findall(r"%[^\s,)\]]+", text)):
                dependent.add(name)
    return function, dependent


def branches_on(dependent: set[str], function: str) -> list[str]:
    conditions = re.findall(r"^ *(?:br i1|switch \w+) (%[^\s,]+)", function, re.MULTILINE)
    return [name for name in conditions if name in dependent]


@pytest.mark.parametrize("form", ["laplace_1", "gaussian_2"])
def test_no_branch_depends_on_the_size_or_the_sign_of_an_integer(form: str) -> None:
    llvm, _ = compile_for(getattr(second_stage, f"{form}_integer"), INTEGER_SIGNATURE)
    function, dependent = dependent_on("raised", llvm)
    assert set(re.findall(r"store i64 (%[^\s,]+)", function)) & dependent  # The result.
    assert branches_on(dependent, function) == []


def test_a_branch_on_an_integer_is_found() -> None:
    def branch_on_integer(raw: bytes, raised: Any, shift: int, ratio: float) -> Any:
        word, noise = scalar.raised_word(raised), second_stage.laplace_1_of(raw)
        while word:
            word >>= np.uint64(30)
            ratio += math.sin(ratio)
        return second_stage.release_integer(np.int64(5), shift, noise, ratio)

    kernel = numba.njit(branch_on_integer)
    kernel.compile(INTEGER_SIGNATURE)
    function, dependent = dependent_on("raised", kernel.inspect_llvm(INTEGER_SIGNATURE))
    assert branches_on(dependent, function)
