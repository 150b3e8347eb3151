"""Targets of audits in each accepted form, and the error messages of each."""

import ast
import math
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from support.alarms import LONG

import dpnoise
from dpnoise.auditing import additive_noise, targets
from dpnoise.auditing.processes import check_restarts, program_of
from dpnoise.auditing.report import Report
from dpnoise.auditing.targets import Target, TargetError
from dpnoise.auditing.targets.target import _kill_session
from dpnoise.core.errors import ArgumentError, DpnoiseError
from dpnoise.release.calibration import gaussian_scale

Floats = NDArray[np.float64]

rng = np.random.default_rng()

# A sixteenth of the claimed noise, so that few releases suffice to break it.
LAPLACE = """
from random import SystemRandom
def release(value, n):
    draw = SystemRandom().expovariate
    return [value + draw(16.0) - draw(16.0) for _ in range(n)]
"""
PROGRAM = f"""
import sys{LAPLACE}
for line in sys.stdin:
    print(release(float(line), 1)[0])
"""


@pytest.fixture(autouse=True)
def _no_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Skip the side-channel checks."""
    monkeypatch.setattr(additive_noise, "observations", lambda *_: [])


def textbook(value: float, n: int) -> Floats:
    return value + rng.laplace(size=n)


def run_audit(target: Any, **options: Any) -> Report:
    quick: dict[str, Any] = {"attacks": ["precision"], "budget": 24_000}
    return dpnoise.audit(target, 1.0, **(quick | options))


def program(text: str) -> list[str]:
    return [sys.executable, "-c", text]


# The forms of a target ---------------------------------------------------------------------------


def test_a_name_a_function_and_a_target_are_audited() -> None:
    for target, name in (
        ("numpy.laplace", "numpy.laplace"),
        (textbook, "textbook"),
        (Target("mine", "laplace", 1.0, textbook), "mine"),
    ):
        report = run_audit(target)
        assert (report.target, report.noise, report.scale) == (name, "laplace", 1.0)
        assert report.broken


def test_an_attribute_of_a_module_is_audited(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "found_on_path.py").write_text(LAPLACE)
    monkeypatch.syspath_prepend(tmp_path)
    report = run_audit("found_on_path:release")
    assert report.broken
    assert report.target == "found_on_path:release"


def test_a_module_of_the_current_folder_is_audited(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "found_here.py").write_text(f"{LAPLACE}\nclass Inner: f = release")
    monkeypatch.chdir(tmp_path)
    before = sys.path.copy()
    assert run_audit("found_here:Inner.f").broken
    assert sys.path == before


def test_a_module_of_the_current_folder_hides_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "colorsys.py").write_text("open('marker', 'w')")
    (tmp_path / "imports_another.py").write_text(f"import colorsys\n{LAPLACE}")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "colorsys", raising=False)
    target = targets.resolve("imports_another:release", 1.0, 0.0, 1.0)
    assert target(0.0, 3).shape == (3,)
    assert not check_restarts(program_of("imports_another:release")).found
    assert not (tmp_path / "marker").exists()
    with pytest.raises(TargetError, match=r"no attribute 'release' \(colorsys is .*colorsys\.py\)"):
        targets.resolve("colorsys:release", 1.0, 0.0, 1.0)


@pytest.mark.long
def test_nothing_of_the_current_folder_runs_in_an_audit_of_a_library(tmp_path: Path) -> None:
    """Neither in the command nor in the interpreters that check for a fixed seed."""
    names = ("argparse", "json", "numba", "numpy", "random", "scipy", "shlex", "subprocess")
    for name in names:
        (tmp_path / f"{name}.py").write_text("open('marker', 'w')")
    asked = ["numpy.laplace", "--epsilon", "1", "--budget", "1000", "--attack", "precision"]
    asked += ["--time-limit", "600"]
    done = subprocess.run(
        [sys.executable, "-P", "-m", "dpnoise.cli", "audit", *asked, "--json", "out"],
        capture_output=True,
        check=False,
        text=True,
        cwd=tmp_path,
    )
    assert "Two fresh interpreters printed" in (tmp_path / "out").read_text(), done.stderr
    assert {path.stem for path in tmp_path.iterdir()} == {*names, "out"}


def test_every_interpreter_that_the_package_starts_leaves_out_the_current_folder() -> None:
    paths = (Path(__file__).parents[2] / "src").rglob("*.py")
    texts = {path: text for path in paths if "sys.executable" in (text := path.read_text())}
    started = [
        (path.name, node.elts[1])
        for path, text in texts.items()
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.List | ast.Tuple)
        if any(ast.unparse(word) == "sys.executable" for word in node.elts)
    ]
    assert [name for name, _ in started] == ["processes.py"]
    mentions = "".join(texts.values()).count("sys.executable")
    assert mentions == len(started), "give the interpreter as the first word of a list"
    for name, option in started:
        assert ast.unparse(option) in {"'-P'", "'-I'"}, name


def test_a_command_is_audited() -> None:
    report = run_audit(program(PROGRAM), budget=12_000 if LONG else 4_000)
    assert report.broken
    assert report.target.startswith(sys.executable)
    assert report.command.startswith("dpnoise audit --command ")


def test_a_command_that_is_not_broken_is_not_called_so() -> None:
    report = run_audit(program("import sys; [print(0) for _ in sys.stdin]"), budget=1000)
    assert report.epsilon_lower == 0.0


def test_the_attacks_use_the_scale_that_is_given() -> None:
    for target in ("numpy.laplace", textbook, Target("mine", "laplace", 1.0, textbook)):
        assert run_audit(target, scale=3.5, budget=1000).scale == 3.5


@pytest.mark.parametrize(
    ("delta", "noise", "scale"),
    [(0.0, "laplace", 2.0), (1e-9, "gaussian", gaussian_scale(0.5, 1e-9, 1.0))],
)
def test_a_function_is_taken_to_add_the_noise_that_its_claims_ask_for(
    delta: float, noise: str, scale: float
) -> None:
    target = targets.resolve(textbook, 0.5, delta, 1.0)
    assert (target.noise, target.scale) == (noise, scale)


# Errors of targets -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (lambda _, n: np.zeros(n + 1), "odd(0.0, 1) gave an array of shape (2,), not (1,)."),
        (lambda _, n: np.zeros((n, 2)), "odd(0.0, 1) gave an array of shape (1, 2), not (1,)."),
        (lambda *_: None, "odd(0.0, 1) gave an array of shape (), not (1,)."),
        (lambda _, n: [math.nan] * n, "odd(0.0, 1) gave a NaN or an infinity."),
        (lambda _, n: ["zero"] * n, "odd(0.0, 1) gave <U4, not floats of at most 64 bits."),
        (lambda _, n: [1 / (n - 1)] * n, "odd(0.0, 1) raised ZeroDivisionError: "),
        (lambda: 0.0, "odd(0.0, 1) raised TypeError: "),
        (lambda *_: sys.exit(3), "odd(0.0, 1) raised SystemExit: 3"),
        (
            lambda _, n: dpnoise.Generator().laplace(scale=-1.0, size=n),
            "odd(0.0, 1) raised ArgumentError: scale must be greater than 0, got -1.0.",
        ),
        (lambda v, n: [math.nan if v else 0.0] * n, "odd(1.0, 136) gave a NaN or an infinity."),
    ],
)
def test_an_error_about_a_bad_answer_names_the_target_and_the_call(
    answer: Any, message: str
) -> None:
    with pytest.raises(TargetError) as e:
        run_audit(Target("odd", "laplace", 1.0, answer))
    assert message in str(e.value)


def test_a_target_that_hangs_is_left_after_the_time_limit() -> None:
    go_on = threading.Event()

    def hang(value: float, n: int) -> Floats:
        go_on.wait()
        return textbook(value, n)

    with pytest.raises(TargetError, match=r"hang\(0\.0, 1\) took more than 0\.2 s"):
        run_audit(hang, time_limit=0.2)
    go_on.set()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("raise ValueError('no entropy')", "gave status 1: ValueError: no entropy"),
        ("print(input())", "given 0.0 41 times, wrote 1 lines, not 41."),
        ("import sys; [print('noise') for _ in sys.stdin]", "could not convert string to float"),
        ("import sys; [print('1 2') for _ in sys.stdin]", "could not convert string to float"),
        ("import sys; [print('nan') for _ in sys.stdin]", "(0.0, 1) gave a NaN or an infinity."),
        ("import sys; print(len(sys.stdin.read()))", "given 0.0 41 times, wrote 1 lines, not 41."),
        (
            "import random, sys; random.seed(7); [print(random.random()) for _ in sys.stdin]",
            "(0.0, 41) gave the same releases twice: a fixed seed.",
        ),
    ],
)
def test_an_error_about_a_bad_command_names_the_call(text: str, message: str) -> None:
    with pytest.raises(TargetError) as e:
        run_audit(program(text), budget=41 * 16 * 11)
    assert message in str(e.value)
    assert str(e.value).startswith(sys.executable)
    assert "0.0" in str(e.value)


def test_a_command_that_does_not_exist_is_reported() -> None:
    with pytest.raises(TargetError, match=r"no-such-program, given 0\.0 1 times, did not start"):
        run_audit(["no-such-program"])


def test_a_command_that_hangs_is_ended() -> None:
    with pytest.raises(TargetError, match=r"given 0\.0 1 times, took more than 0\.2 s"):
        run_audit(program("import threading; threading.Event().wait()"), time_limit=0.2)


def test_a_command_is_ended_with_what_it_has_started() -> None:
    """Its output ends when the last process that could write to it has ended."""
    wait = "import threading; threading.Event().wait()"
    start = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {wait!r}])"
    with subprocess.Popen(
        program(f"{start}; print('started', flush=True); {wait}"),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "started\n"
        _kill_session(process)
        assert process.communicate(timeout=60) == ("", "")


@pytest.mark.parametrize("command", [[], [3], ["python", None]])
def test_what_is_no_command_is_refused(command: list[Any]) -> None:
    with pytest.raises(ArgumentError, match=r"be a command, got .*: a list of strings"):
        run_audit(command)


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("numpy.lapalce", "There is no target 'numpy.lapalce'. Did you mean numpy.laplace or"),
        ("no_such_module:f", "no_such_module:f was not imported: ModuleNotFoundError"),
        ("math:no_such_name", "math:no_such_name was not imported: AttributeError"),
        ("math:", "math: was not imported: AttributeError"),
        (":f", ":f was not imported: ValueError"),
        ("math:pi", "math:pi is not a function (value, n) -> array."),
    ],
)
def test_what_is_not_found_is_named(path: str, message: str) -> None:
    with pytest.raises(DpnoiseError) as e:
        run_audit(path)
    assert message in str(e.value)


@pytest.mark.parametrize("text", ["raise SystemExit('stop')", "1 / 0", "def"])
def test_a_module_that_fails_is_named(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "fails_at_import.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(
        TargetError, match=r"fails_at_import:f was not imported: (System|Zero|Syntax)"
    ):
        run_audit("fails_at_import:f")


def test_what_is_no_target_is_refused() -> None:
    with pytest.raises(ArgumentError, match="target must be a name, a function"):
        run_audit(3)
