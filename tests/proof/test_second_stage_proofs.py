"""The proof of the second stage: its translation, and planted errors that it finds."""

import importlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from proof import second_functions, second_stage
from proof.fixed_point import FixedPoint
from proof.translation import UntranslatableError

from dpnoise.kernels import fixed

rng = np.random.default_rng()
ROOT = Path(__file__).parents[2]
needs_gappa = pytest.mark.skipif(
    shutil.which("gappa") is None, reason="Gappa is not installed: apt-get install gappa"
)


# A program that proves one statement about a copy of the package, until a case fails.
PROVE = """
import sys
from proof import second_decision, second_forms, second_functions, second_values
part, name = sys.argv[1].split(".")
for case in getattr(globals()[part], name)().make_cases():
    if why := case.outcome().failure:
        sys.exit(f"{case.name}: {why}")
"""
# Messages of Gappa or of the translator when a proof fails.
FAILURE_MESSAGES = (
    "not satisfied",
    "no contradiction was found",
    "not trivially equal",
    "UntranslatableError",
)


def failure_message(package: Path, statement: str) -> str:
    """Return the reason why the source in a folder does not prove a statement, or an empty text."""
    path = f"{package}{os.pathsep}{ROOT / 'tools'}"
    environment = {**os.environ, "NUMBA_DISABLE_JIT": "1", "PYTHONPATH": path}
    process = subprocess.run(
        [sys.executable, "-c", PROVE, statement],
        stderr=subprocess.PIPE,
        text=True,
        check=False,
        env=environment,
    )
    assert bool(process.returncode) == bool(process.stderr)
    return process.stderr


# The statement that fails, the file, the text to replace, and the planted error.
PLANTED_ERRORS = {
    "two terms of atanh dropped": (
        "second_functions.twice_atanh",
        ("fixed", "_ATANH_TERMS = 24", "_ATANH_TERMS = 22"),
    ),
    "a coefficient of atanh": (
        "second_functions.twice_atanh",
        ("fixed", "wide(2**128 // (2 * k + 3))", "wide(2**128 // (2 * k + 3) + (k == 3) * 2**30)"),
    ),
    "two terms of the sine dropped": (
        "second_functions.half_sine",
        ("fixed", "_SINE_TERMS = 19", "_SINE_TERMS = 17"),
    ),
    "a coefficient of the sine": (
        "second_functions.half_sine",
        ("fixed", "0x1921FB54442D18469898CC5170", "0x1921FB54442D18469898CC5171"),
    ),
    "sqrt(1/2)": (
        "second_functions.twice_atanh",
        ("fixed", "wide(math.isqrt(2**255))", "wide(math.isqrt(2**255) + 2**10)"),
    ),
    "log 2": (
        "second_functions.minus_log",
        ("fixed", "0x58B90BFBE8E7BCD5E4F1D9CC01F97C", "0x58B90BFBE8E7BCD5E4F1D9CC01F97A"),
    ),
    "the unit of minus_log": (
        "second_functions.minus_log",
        ("fixed", "minus(plus(logs, (_0, _1)), ", "minus(logs, "),
    ),
    "a step for the reciprocal": (
        "second_functions.half_reciprocal",
        ("fixed", "for _ in range(5):", "for _ in range(4):"),
    ),
    "a step for the root": (
        "second_functions.root",
        ("fixed", "for _ in range(6):", "for _ in range(5):"),
    ),
    "the line for the root": (
        "second_functions.root",
        ("fixed", "int(0.53319319 * 2**128)", "int(0.56319319 * 2**128)"),
    ),
    "the error of the logarithm": (
        "second_forms.minus_log_v",
        ("noise_128bit", "moved + zeros + zeros + _6", "moved + zeros + zeros + _3"),
    ),
    "the zeros in the error of the logarithm": (
        "second_forms.minus_log_v",
        ("noise_128bit", "moved + zeros + zeros + _6", "moved + zeros + _6"),
    ),
    "the unseen bits": (
        "second_forms.minus_log_v",
        ("noise_128bit", "- _7 + unseen) & _63", "- _7) & _63"),
    ),
    "the zeros without a bound": (
        "second_forms.minus_log_v",
        ("noise_128bit", "if zeros < _67 else", "if zeros < np.uint64(128) else"),
    ),
    "the error of the root": (
        "second_forms.root_of_minus_log_v",
        ("noise_128bit", ">> _3) + _9", ">> _3) + _3"),
    ),
    "the slope of the root": (
        "second_forms.root_of_minus_log_v",
        ("noise_128bit", "((error << (k & _63)) >> _3)", "((error << (k & _63)) >> _6)"),
    ),
    "the error of gaussian_2": (
        "second_forms.gaussian_2",
        (
            "noise_128bit",
            "return magnitude, u[0], error + (error >> _1) + _16",
            "return magnitude, u[0], error + (error >> _1) + _9",
        ),
    ),
    "sqrt(2) in the error of gaussian_2": (
        "second_forms.gaussian_2",
        (
            "noise_128bit",
            "return magnitude, u[0], error + (error >> _1) + _16",
            "return magnitude, u[0], error + (error >> _2) + _16",
        ),
    ),
    "the error of a pair": (
        "second_forms.gaussian_pair",
        ("noise_128bit", "error += (error >> _1) + _16", "error += (error >> _1) + _9"),
    ),
    "the sign of a pair": (
        "second_forms.gaussian_pair",
        ("noise_128bit", "(second, u[0] << _1, error)", "(second, u[0], error)"),
    ),
    "the angle of a pair": (
        "second_forms.gaussian_pair",
        (
            "noise_128bit",
            "half_sine(up((u[0] & LOW_62_BITS, u[1]), _2))",
            "half_sine(up((u[0] & LOW_62_BITS, u[1]), _1))",
        ),
    ),
    "the units of the decision": (
        "second_decision.ratio_times_noise",
        (
            "second_stage",
            "bound = plus(down(product(error, m), places), (_0, _4))",
            "bound = down(product(error, m), places)",
        ),
    ),
    "a carry of the decision": (
        "second_decision.nearest_cell",
        ("second_stage", "    whole += np.uint64(is_less(y, fraction))\n", ""),
    ),
    "the comparison of the decision": (
        "second_decision.nearest_cell",
        (
            "second_stage",
            "np.uint64(is_less(plus(y, bound), bound))",
            "np.uint64(is_less(plus(y, bound), y))",
        ),
    ),
    "the places of the ratio": (
        "second_decision.ratio_times_noise",
        ("second_stage", "| _LEAST_NORMAL) << _6", "| _LEAST_NORMAL) << _4"),
    ),
    "a place of the value": (
        "second_values.split_float",
        (
            "second_stage",
            "up_by, down_by = _128 - min(right, _128)",
            "up_by, down_by = _128 - min(right, _64)",
        ),
    ),
    "a fraction of an integer": (
        "second_values.split_integer",
        ("second_stage", "np.uint64(128 - shift)", "np.uint64(127 - shift)"),
    ),
}


@needs_gappa
@pytest.mark.parametrize("error", PLANTED_ERRORS)
def test_a_planted_error_is_found(error: str, tmp_path: Path) -> None:
    statement, (module, right, wrong) = PLANTED_ERRORS[error]
    shutil.copytree(ROOT / "src" / "dpnoise", tmp_path / "dpnoise")
    path = tmp_path / "dpnoise" / "kernels" / f"{module}.py"
    source = path.read_text()
    assert source.count(right) == 1
    path.write_text(source.replace(right, wrong))
    message = failure_message(tmp_path, statement)
    print(message)
    assert any(text in message for text in FAILURE_MESSAGES), message


@needs_gappa
def test_the_source_without_an_error_is_proved() -> None:
    """The source without an error is proved."""
    assert not failure_message(ROOT / "src", "second_forms.gaussian_2")


# The translation, compared with the functions. ----------------------------------------------------


def to_wide(number: int) -> fixed.Wide:
    return np.uint64(number >> 64), np.uint64(number & (2**64 - 1))


def to_integer(pair: fixed.Wide) -> int:
    return int(pair[0]) << 64 | int(pair[1])


def test_the_translated_sine_is_the_function() -> None:
    t = FixedPoint()
    result = t.call(fixed.half_sine, t.free_variable("t", 0, 2**128 - 1))
    for number in numbers(200):
        assert t.evaluate(result.text, {"t": number}) == to_integer(
            fixed.half_sine(to_wide(number))
        )


def test_the_translated_reciprocal_is_the_function() -> None:
    t = FixedPoint(wraps=dict.fromkeys(second_functions.WRAPS, 1))
    result = t.call(fixed.half_reciprocal, t.free_variable("x", 0, 2**128 - 1))
    for number in numbers(100):
        x = 2**126 + (number >> 2) + to_integer(fixed._HALF_SQRT_HALF)
        if x < 2**127 + to_integer(fixed._HALF_SQRT_HALF):
            assert t.evaluate(result.text, {"x": x}) == to_integer(
                fixed.half_reciprocal(to_wide(x))
            )


def test_the_translated_logarithm_is_the_function() -> None:
    for number in numbers(200):
        v, zeros = max(number, 1), 128 - max(number, 1).bit_length()
        below = v << zeros < to_integer(fixed.SQRT_HALF)
        t = FixedPoint(
            choices={"zeros_before(v)": zeros, "is_less(f, SQRT_HALF)": below},
            wraps=dict.fromkeys(second_functions.WRAPS, 1),
        )
        result, e = t.call(fixed.minus_log, t.free_variable("v", 0, 2**128 - 1))
        computed, expected = t.evaluate(result.text, {"v": v}), fixed.minus_log(to_wide(v))
        assert computed == to_integer(expected[0])
        assert e == expected[1]


def test_the_translated_root_is_the_function() -> None:
    for number in numbers(200):
        a = max(number, 1)
        t = FixedPoint(choices={"zeros_before(a)": 128 - a.bit_length()})
        result, k = t.call(fixed.root, t.free_variable("a", 0, 2**128 - 1))
        computed, expected = t.evaluate(result.text, {"a": a}), fixed.root(to_wide(a))
        assert computed == to_integer(expected[0])
        assert k == expected[1]


def numbers(count: int) -> list[int]:
    """Return numbers of all sizes, and both ends."""
    sizes = rng.integers(0, 128, count)
    return [0, 1, 2**128 - 1, *(int.from_bytes(rng.bytes(16), "big") >> int(k) for k in sizes)]


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("return plus(a, b) if is_less(a, b) else a", "a selection nobody decided"),
        ("while a:\n        pass\n    return a", "a loop of unknown length"),
        ("return a / b", "an operation that has no rule"),
        ("return unknown(a)", "a function that nobody knows"),
    ],
)
def test_source_without_a_rule_is_refused(
    source: str, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "untranslatable.py").write_text(
        f"from dpnoise.kernels.fixed import is_less, plus\n\ndef kernel(a, b):\n    {source}\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    sys.modules.pop("untranslatable", None)
    kernel = importlib.import_module("untranslatable").kernel
    t = FixedPoint()
    with pytest.raises(UntranslatableError):
        t.call(kernel, t.free_variable("a", 0, 2**128 - 1), t.free_variable("b", 0, 2**128 - 1))
    assert reason


def test_a_lemma_that_the_source_does_not_call_is_refused() -> None:
    t = FixedPoint(lemmas={"half_reciprocal": lambda _t, x: x})
    t.call(fixed.half_sine, t.free_variable("t", 0, 2**128 - 1))
    with pytest.raises(UntranslatableError, match="half_reciprocal"):
        t.case("")


def test_every_selection_is_proved_both_ways() -> None:
    outcomes = {
        outcome
        for statement in second_stage.statements()
        for case in statement.make_cases()
        for outcome in case.selections
    }
    assert outcomes
    one_sided = {
        (f, text) for f, text, _ in outcomes if {(f, text, True), (f, text, False)} - outcomes
    }
    assert not one_sided
