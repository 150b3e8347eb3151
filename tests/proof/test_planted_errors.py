"""The proof fails for errors that are planted in the kernels."""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[2]


class PlantedError(NamedTuple):
    """A file of the kernels, the text to replace, its replacement, and the statement that fails."""

    file: str
    right: str
    wrong: str
    statement: str


_ERROR = "    error = fma(power_of_two(1 - bits), reciprocal_bound(V), fma(ROUND, E, ROUND_V))\n"
_DEVICE = "../integrations/triton_release.py"
_LOG = "    E = 0.0 - log(V)\n    return E,"
PLANTED_ERRORS = {
    "a coefficient of log": PlantedError(
        "elementary.py", "0.39999999999298885,", "0.39999999989298885,", "log"
    ),
    "a coefficient of the sine": PlantedError(
        "elementary.py", "2.550164039877294,", "2.550164039877,", "sinpi"
    ),
    "a step of Horner's rule": PlantedError(
        "elementary.py", "fma(fma(L7, t, L6), t, L5)", "fma(L7, t, L5)", "log"
    ),
    "log 2 in single precision": PlantedError(
        "elementary.py", "LOG_2 = math.log(2.0)", "LOG_2 = 0.6931471824645996", "log"
    ),
    "a quotient that rounds twice": PlantedError(
        "elementary.py", "(f - 1.0) / (f + 1.0)", "(f - 1.0) * (1.0 / (f + 1.0))", "log"
    ),
    "a chord below the curve": PlantedError(
        "certified.py", "_RECIPROCAL = 2046 << 52", "_RECIPROCAL = 2045 << 52", "bit tricks"
    ),
    "ROUND halved": PlantedError(
        "certified.py", "ROUND = 2.0**-48", "ROUND = 2.0**-49", "half_pair"
    ),
    "a quarter of ROUND_V": PlantedError(
        "certified.py", "ROUND_V = 2.0**-51", "ROUND_V = 2.0**-53", "exponential"
    ),
    "the bits not seen left out": PlantedError(
        "certified.py", _ERROR, "    error = fma(ROUND, E, ROUND_V)\n", "laplace_1"
    ),
    "half of the bits not seen": PlantedError(
        "certified.py", _ERROR, _ERROR.replace("1 - bits", "-bits"), "laplace_1"
    ),
    "the unseen bits of an angle": PlantedError(
        "certified.py",
        "fma(ROUND + 8.0 * unit, R, unseen)",
        "fma(ROUND, R, unseen)",
        "gaussian_pair",
    ),
    "half the slope of a root": PlantedError(
        "certified.py", "fma(2.0 * ROUND_V, recip", "fma(ROUND_V, recip", "gaussian_pair"
    ),
    "too little for the root of 2": PlantedError(
        "certified.py", "1.5 * error", "1.40625 * error", "gaussian_2"
    ),
    "a quarter of Gumbel's part": PlantedError(
        "certified.py", "* reciprocal_bound(E)\n", "* (0.25 * reciprocal_bound(E))\n", "gumbel"
    ),
    "the last roundings left out": PlantedError(
        "first_stage.py",
        "_LAST_ROUNDINGS = 2.0**-51",
        "_LAST_ROUNDINGS = 2.0**-55",
        "certain_point",
    ),
    "a cell decided on its border": PlantedError(
        "first_stage.py", "_LAST_ROUNDINGS) < 0.5", "_LAST_ROUNDINGS) < 0.5000001", "certain_point"
    ),
    # Errors that earlier statements did not notice, because they did not cover the result.
    "another number returned": PlantedError(
        "certified.py", "return E, ROUND * E", "return 2.0 * E, ROUND * E", "exponential"
    ),
    "the other sign": PlantedError(
        "certified.py", "return -with_sign_of(word, E)", "return with_sign_of(word, E)", "laplace_1"
    ),
    "a word that wraps": PlantedError(
        "certified.py",
        "np.float64(ones_after(word, bits))",
        "np.float64(np.int64(ones_after(word, bits)))",
        "lower_end",
    ),
    "the wrong word": PlantedError(
        "certified.py", "root * cosine(u, bits)", "root * cosine(v, bits)", "half_pair"
    ),
    "one word for two": PlantedError(
        "certified.py", "half_pair(v, u, bits)\n", "half_pair(v, v, bits)\n", "gaussian_2"
    ),
    "one member twice": PlantedError(
        "certified.py", "R * sinpi(turned)),", "R * sinpi(left)),", "gaussian_pair"
    ),
    "the first sign for both": PlantedError(
        "certified.py",
        "as_unsigned(u) << np.uint64(1)",
        "as_unsigned(u) << np.uint64(0)",
        "gaussian_pair",
    ),
    "Gumbel's E a little off": PlantedError(
        "certified.py",
        "    E = 0.0 - log(V)\n    z =",
        "    E = (0.0 - log(V)) * 0.99999999999999\n    z =",
        "gumbel",
    ),
    "the fraction let through": PlantedError(
        "first_stage.py", "fma(whole, grid, value", "fma(quotient, grid, value", "certain_point"
    ),
    "the value where nothing is decided": PlantedError(
        "first_stage.py", "return nan_unless(result, certain)", "return result", "certain_point"
    ),
    "a NaN elsewhere": PlantedError(
        "first_stage.py",
        "nan_unless(result, certain)",
        "nan_unless(result, z < 0.5)",
        "certain_point",
    ),
    "a number where nothing is certain": PlantedError(
        "elementary.py",
        "(np.int64(certain) - np.int64(1))",
        "(-np.int64(certain))",
        "certain_point",
    ),
    "the grid for its reciprocal": PlantedError(
        "first_stage.py", "ratio = scale * (1.0 / grid)", "ratio = scale * grid", "certain_point"
    ),
    "a cell that is not a float": PlantedError(
        "second_stage.py", "_EXACT = np.int64(2**53)", "_EXACT = np.int64(2**54)", "release_float"
    ),
    "a step of the device's reciprocal left out": PlantedError(
        _DEVICE,
        "        r = tl.fma(r, tl.fma(-b, r, one), r)\n",
        "",
        "device division",
    ),
    "a remainder that rounds twice": PlantedError(
        _DEVICE, "tl.fma(tl.fma(-b, q, a), r, q)", "tl.fma(a - b * q, r, q)", "device division"
    ),
    "a guess in single precision": PlantedError(
        _DEVICE, "rcp.approx.ftz.f64 $0", "rcp.approx.ftz.f32 $0", "device division"
    ),
    "a branch": PlantedError(
        "certified.py",
        _LOG,
        "    E = 0.0\n    if V < 0.5:\n        E = 0.0 - log(V)\n    return E,",
        "exponential",
    ),
}


def prove(kernels: Path, statement: str) -> "subprocess.CompletedProcess[str]":
    """Return the process that proves a statement about a copy of the package.

    It writes no bytecode, because Python would reuse that of another error of equal length that was
    planted in the same second.
    """
    path = os.pathsep.join([str(kernels), str(ROOT / "tools")])
    return subprocess.run(
        [sys.executable, "-B", "-m", "proof", statement],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("planted")
    shutil.copytree(ROOT / "src" / "dpnoise", folder / "dpnoise")
    return folder


@pytest.mark.parametrize("error", PLANTED_ERRORS)
def test_a_planted_error_is_found(copy: Path, error: str) -> None:
    file, right, wrong, statement = PLANTED_ERRORS[error]
    path = copy / "dpnoise" / "kernels" / file
    source = path.read_text()
    assert source.count(right) >= 1, "the kernel has changed: update the planted error"
    path.write_text(source.replace(right, wrong))
    try:
        process = prove(copy, statement)
    finally:
        path.write_text(source)
    assert process.returncode == 1, process.stdout + process.stderr
    assert f"FAILED  {statement}" in process.stdout


def test_the_copy_without_an_error_is_proved(copy: Path) -> None:
    """Shows that the tests above fail because of the errors."""
    process = prove(copy, "laplace_1")
    assert process.returncode == 0, process.stdout + process.stderr
