"""All statements about the second stage of exact release.

Each statement takes the results of those before it as hypotheses: a logarithm is any number within
its bound. So a changed kernel is proved again wherever it is used.
"""

from proof import second_decision, second_forms, second_functions, second_result, second_values
from proof.statement import Statement

_PARTS = (second_functions, second_forms, second_decision, second_values, second_result)

# Assumptions of the statements, and why Gappa does not prove them.
NOT_MACHINE_CHECKED = {
    "the operations of `kernels.fixed` are those of integers": (
        "they are LLVM's; tests/kernels/test_fixed.py compares them with Python's integers"
    ),
    "the mean value theorem, for atanh, log and sine, with slopes from ball arithmetic": (
        "it is calculus"
    ),
    "the tails of the series are below their next term, or a geometric series": "it is calculus",
    "-log V of 2^-e-1 <= V < 2^-e lies between e log 2 and (e + 1) log 2": "it is calculus",
    "a number with 2k or 2k + 1 zeros at its start is between 2^(126-2k) and 2^(128-2k)": (
        "it is the definition of zeros; for 0, `root` has k = 64, which claims nothing"
    ),
    "a float is its sign, m and exponent, and the grid a power of two": (
        "it is IEEE 754; tests/kernels/test_second_stage.py compares `split_float` with fractions"
    ),
    "the loops over slots, and which words a number gets": (
        "they compute nothing; test_exact.py compares every release with the reference"
    ),
}


def statements() -> list[Statement]:
    """Return every statement; each relies on those before it."""
    return [statement for part in _PARTS for statement in part.statements()]
