"""Triton's code for a device has the proved operations, none fused or missing."""

import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.internals  # It counts PTX instructions.

# In a separate process, because other tests may use the interpreter. No device is needed.
CODE = """
import re, sys
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from dpnoise.integrations import triton_release, triton_stream

pairs = sys.argv[1] == "pairs"
signature = dict.fromkeys(["values", "out"], "*fp32")
signature |= {"parameters": "*i64", "floats": "*fp64", "counter": "*i64", "open_blocks": "*i64"}
signature |= {"capacity": "i32"}
constants = {"pairs": pairs, "clip": True, "ragged": False, "BLOCK": 32}
signature |= dict.fromkeys(constants, "constexpr")
source = ASTSource(triton_release.release, signature, constants)
options = {"num_warps": 1, **triton_stream.STRICT}
compiled = triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options)
text = compiled.asm["ptx"]
for operation in ("fma.rn", "sqrt.rn", "cvt.rni", "mul.rn", "add.rn", "sub.rn", "div"):
    print(operation, len(re.findall(re.escape(operation) + r"[.\\w]*f64", text)))
print("loose", len(re.findall(r"(mul|add|sub|fma|div|sqrt)\\.(approx|full|ftz)?\\.?f64", text)))
print("flushed", len(re.findall(r"(?<!rcp\\.approx)\\.ftz", text)))
"""

CLIPPING = """
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from dpnoise.integrations import triton_clipping, triton_stream

tables = {"tiles": "*i64", "like": "*fp32"}
norms = {**tables, "every": "i32", "out": "*fp64", "columns": "i32"}
sums = {**tables, "steps": "*fp64", "samples": "i32", "out": "*fp64"}
for kernel, signature, constants in (
    (triton_clipping.ordered_sums_kernel, norms, {"squares": True, "aligned": True}),
    (triton_clipping.clipped_sums_kernel, sums, {"aligned": True}),
):
    signature |= dict.fromkeys(constants, "constexpr")
    source = ASTSource(kernel, signature, constants)
    options = {"num_warps": 4, **triton_stream.STRICT}
    text = triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options).asm["ptx"]
    print(*(text.count(each) for each in ("fma", "ld.global.v4", "mul.rn.f64")))
"""


def run(code: str, *arguments: str) -> str:
    environment = {name: text for name, text in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [sys.executable, "-c", code, *arguments]
    process = subprocess.run(command, capture_output=True, text=True, env=environment)  # noqa: PLW1510 - the next line shows why
    assert process.returncode == 0, process.stderr
    return process.stdout


def test_clipping_fuses_nothing_and_reads_16_bytes_at_a_time() -> None:
    """A fused square and sum would differ from the processor's result."""
    for line in run(CLIPPING).splitlines():
        fused, wide_loads, products = map(int, line.split())
        assert fused == 0
        assert wide_loads > 0 < products


@pytest.mark.parametrize(("form", "logs", "roots", "sines"), [("pairs", 4, 4, 8), ("one", 8, 0, 0)])
def test_eight_releases_have_the_operations_of_the_formulas(
    form: str, logs: int, roots: int, sines: int
) -> None:
    counts = {name: int(count) for name, count in map(str.split, run(CODE, form).splitlines())}
    # A log has 7 steps, the sum with e log 2, and 7 for its division; a sine has 8 steps; the error
    # of a pair or number has 2, and 1 to convert it to grids; the decision has 3.
    fused = logs * (7 + 1 + 7) + sines * 8 + logs * (2 + 1) + 8 * 3
    assert counts["fma.rn"] == fused
    assert counts["sqrt.rn"] == roots
    assert counts["cvt.rni"] == 8 * 2
    assert counts["div"] == counts["loose"] == counts["flushed"] == 0
    assert counts["mul.rn"] > 0 < counts["add.rn"]
