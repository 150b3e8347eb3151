"""A proof that cannot fail proves nothing: errors planted in the kernels are found."""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[2]


class Planted(NamedTuple):
    """A file of the kernels, what is replaced in it and by what, and the statement that fails."""

    file: str
    right: str
    wrong: str
    statement: str


_ERROR = "    error = fma(power_of_two(1 - bits), reciprocal_bound(V), fma(ROUND, E, ROUND_V))\n"
_DEVICE = "../integrations/triton_release.py"
_LOG = "    E = 0.0 - log(V)\n    return E,"
PLANTED = {
    "a coefficient of log": Planted(
        "elementary.py", "0.39999999999298885,", "0.39999999989298885,", "log"
    ),
    "a coefficient of the sine": Planted(
        "elementary.py", "2.550164039877294,", "2.550164039877,", "sinpi"
    ),
    "a step of Horner's rule": Planted(
        "elementary.py", "fma(fma(L7, t, L6), t, L5)", "fma(L7, t, L5)", "log"
    ),
    "log 2 in single precision": Planted(
        "elementary.py", "LOG_2 = math.log(2.0)", "LOG_2 = 0.6931471824645996", "log"
    ),
    "a quotient that rounds twice": Planted(
        "elementary.py", "(f - 1.0) / (f + 1.0)", "(f - 1.0) * (1.0 / (f + 1.0))", "log"
    ),
    "a chord below the curve": Planted(
        "certified.py", "_RECIPROCAL = 2046 << 52", "_RECIPROCAL = 2045 << 52", "bit tricks"
    ),
    "ROUND halved": Planted("certified.py", "ROUND = 2.0**-48", "ROUND = 2.0**-49", "half_pair"),
    "a quarter of ROUND_V": Planted(
        "certified.py", "ROUND_V = 2.0**-51", "ROUND_V = 2.0**-53", "exponential"
    ),
    "the bits not seen left out": Planted(
        "certified.py", _ERROR, "    error = fma(ROUND, E, ROUND_V)\n", "laplace_1"
    ),
    "half of the bits not seen": Planted(
        "certified.py", _ERROR, _ERROR.replace("1 - bits", "-bits"), "laplace_1"
    ),
    "the unseen bits of an angle": Planted(
        "certified.py",
        "fma(ROUND + 8.0 * unit, R, unseen)",
        "fma(ROUND, R, unseen)",
        "gaussian_pair",
    ),
    "half the slope of a root": Planted(
        "certified.py", "fma(2.0 * ROUND_V, recip", "fma(ROUND_V, recip", "gaussian_pair"
    ),
    "too little for the root of 2": Planted(
        "certified.py", "1.5 * error", "1.40625 * error", "gaussian_2"
    ),
    "a quarter of Gumbel's part": Planted(
        "certified.py", "* reciprocal_bound(E)\n", "* (0.25 * reciprocal_bound(E))\n", "gumbel"
    ),
    "the last roundings left out": Planted(
        "first_stage.py",
        "_LAST_ROUNDINGS = 2.0**-51",
        "_LAST_ROUNDINGS = 2.0**-55",
        "certain_point",
    ),
    "a cell decided on its border": Planted(
        "first_stage.py", "_LAST_ROUNDINGS) < 0.5", "_LAST_ROUNDINGS) < 0.5000001", "certain_point"
    ),
    # What a sceptic found proved that was wrong, before the statements said what is returned.
    "another number returned": Planted(
        "certified.py", "return E, ROUND * E", "return 2.0 * E, ROUND * E", "exponential"
    ),
    "the other sign": Planted(
        "certified.py", "return -with_sign_of(word, E)", "return with_sign_of(word, E)", "laplace_1"
    ),
    "a word that wraps": Planted(
        "certified.py",
        "np.float64(ones_after(word, bits))",
        "np.float64(np.int64(ones_after(word, bits)))",
        "lower_end",
    ),
    "the wrong word": Planted(
        "certified.py", "root * cosine(u, bits)", "root * cosine(v, bits)", "half_pair"
    ),
    "one word for two": Planted(
        "certified.py", "half_pair(v, u, bits)\n", "half_pair(v, v, bits)\n", "gaussian_2"
    ),
    "one member twice": Planted(
        "certified.py", "R * sinpi(turned)),", "R * sinpi(left)),", "gaussian_pair"
    ),
    "the first sign for both": Planted(
        "certified.py",
        "unsigned(u) << np.uint64(1)",
        "unsigned(u) << np.uint64(0)",
        "gaussian_pair",
    ),
    "Gumbel's E a little off": Planted(
        "certified.py",
        "    E = 0.0 - log(V)\n    z =",
        "    E = (0.0 - log(V)) * 0.99999999999999\n    z =",
        "gumbel",
    ),
    "the fraction let through": Planted(
        "first_stage.py", "fma(whole, grid, value", "fma(quotient, grid, value", "certain_point"
    ),
    "the value where nothing is decided": Planted(
        "first_stage.py", "return nan_unless(result, certain)", "return result", "certain_point"
    ),
    "a NaN elsewhere": Planted(
        "first_stage.py",
        "nan_unless(result, certain)",
        "nan_unless(result, z < 0.5)",
        "certain_point",
    ),
    "a number where nothing is certain": Planted(
        "elementary.py",
        "(np.int64(certain) - np.int64(1))",
        "(-np.int64(certain))",
        "certain_point",
    ),
    "the grid for its reciprocal": Planted(
        "first_stage.py", "ratio = scale * (1.0 / grid)", "ratio = scale * grid", "certain_point"
    ),
    "a cell that is no float": Planted(
        "second_stage.py", "_EXACT = np.int64(2**53)", "_EXACT = np.int64(2**54)", "release_float"
    ),
    "a step of the device's reciprocal left out": Planted(
        _DEVICE,
        "        r = tl.fma(r, tl.fma(-b, r, one), r)\n",
        "",
        "device division",
    ),
    "a remainder that rounds twice": Planted(
        _DEVICE, "tl.fma(tl.fma(-b, q, a), r, q)", "tl.fma(a - b * q, r, q)", "device division"
    ),
    "a guess in single precision": Planted(
        _DEVICE, "rcp.approx.ftz.f64 $0", "rcp.approx.ftz.f32 $0", "device division"
    ),
    "a branch": Planted(
        "certified.py",
        _LOG,
        "    E = 0.0\n    if V < 0.5:\n        E = 0.0 - log(V)\n    return E,",
        "exponential",
    ),
}


def prove(kernels: Path, statement: str) -> "subprocess.CompletedProcess[str]":
    """Run the proof of a statement about a copy of the package.

    It keeps no bytecode: that of an error of the same length, planted in the same second, would
    pass for that of the next.
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


@pytest.mark.parametrize("error", PLANTED)
def test_a_planted_error_is_found(copy: Path, error: str) -> None:
    file, right, wrong, statement = PLANTED[error]
    path = copy / "dpnoise" / "kernels" / file
    source = path.read_text()
    assert source.count(right) >= 1, "the kernel has changed: plant the error anew"
    path.write_text(source.replace(right, wrong))
    try:
        finished = prove(copy, statement)
    finally:
        path.write_text(source)
    assert finished.returncode == 1, finished.stdout + finished.stderr
    assert f"FAILED  {statement}" in finished.stdout


def test_the_copy_without_an_error_is_proved(copy: Path) -> None:
    """Otherwise the copying, not the error, would be what fails above."""
    finished = prove(copy, "laplace_1")
    assert finished.returncode == 0, finished.stdout + finished.stderr
