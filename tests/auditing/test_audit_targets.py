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
from dpnoise import auditing
from dpnoise.auditing import additive_noise, any_mechanism, targets
from dpnoise.auditing.processes import check_restarts, release_program
from dpnoise.auditing.report import Report
from dpnoise.auditing.targets import Target, TargetError
from dpnoise.auditing.targets.target import kill_session
from dpnoise.core.errors import ArgumentError, ArgumentTypeError, DpnoiseError
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
    monkeypatch.setattr(additive_noise, "run_side_channel_checks", lambda *_: [])


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
    assert not check_restarts(release_program("imports_another:release")).found
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


@pytest.mark.long
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
        (lambda _, n: np.zeros(n + 1), "odd(0.0, 1) must return an array of n = 1 releases, got"),
        (lambda _, n: np.zeros((n, 2)), "n = 1 releases, got an array of shape (1, 2)."),
        (lambda *_: None, "odd(0.0, 1) must return an array of n = 1 releases, got NoneType."),
        (lambda _, n: [math.nan] * n, "odd(0.0, 1) gave a NaN or an infinity."),
        (lambda _, n: ["a"] * n, "odd(0.0, 1) must return floats of at most 64 bits, got <U1."),
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


@pytest.mark.sample(3)
@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("raise ValueError('no entropy')", "gave status 1: ValueError: no entropy"),
        ("print(input())", "given 0.0 41 times, wrote 1 lines, not 41."),
        (
            "import sys; [print('noise') for _ in sys.stdin]",
            "wrote a line that is not a number: 'noise'. For outputs that are not one number each,",
        ),
        ("import sys; [print('1 2') for _ in sys.stdin]", "a line that is not a number: '1 2'."),
        ("import sys; [print('nan') for _ in sys.stdin]", "(0.0, 1) gave a NaN or an infinity."),
        ("import sys; print(len(sys.stdin.read()))", "given 0.0 41 times, wrote 1 lines, not 41."),
        (
            "import random, sys; random.seed(7); [print(random.random()) for _ in sys.stdin]",
            "have it ask for one release a call: one_by_one=True.",
        ),
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
    with pytest.raises(
        TargetError, match=r"no-such-program, given 0\.0 1 times, did not start.*python noise\.py"
    ):
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
        kill_session(process)
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
        ("no_such_module:f", "installed, on PYTHONPATH or in the current folder."),
        ("random:guass", "Did you mean gauss?"),
        ("math:", "'math:' is not module:function. A function of your own is written math:func"),
        (":f", "':f' is not module:function. A function of your own is written module:f."),
        ("mine.py:f", "'mine.py:f' is not module:function. A function of your own is written mine"),
        ("./src/mine.py:f", "A function of your own is written src.mine:f."),
        ("mine.py", "A function of your own is written mine:function."),
        ("mine.noise.f", "A function of your own is written mine.noise:f."),
        ("python noise.py", "A command is given as a list of words: ['python', 'noise.py']."),
        ("math:pi", "math:pi is not a function (value, n) -> array."),
        ("random:Random", "random:Random is a class. Give a function (value, n) -> array"),
    ],
)
def test_what_is_not_found_is_named(path: str, message: str) -> None:
    with pytest.raises(DpnoiseError) as e:
        run_audit(path)
    assert message in str(e.value)


@pytest.mark.parametrize("options", [{}, {"neighbours": "rows", "attacks": None}])
def test_an_unknown_target_is_answered_with_the_nearest_five(options: dict[str, Any]) -> None:
    given = {"attacks": ["precision"]} | options
    given = {name: value for name, value in given.items() if value is not None}
    with pytest.raises(ArgumentError, match=r"no target 'mymech\.good'.* mymech:good\.$") as e:
        dpnoise.audit("mymech.good", 1.0, **given)
    shown = [name for name in [*targets.names(), *targets.MECHANISMS] if name in str(e.value)]
    assert str(e.value).count(",") == 4
    assert len(shown) < 10  # The nearest five, and names that are part of these.


def one_release(value: float) -> float:
    return value + rng.laplace()


class Mine:
    """A mechanism as people write it."""

    def release(self, value: float) -> float:
        """Return one release."""
        return value + rng.laplace()


@pytest.mark.parametrize(
    ("target", "message"),
    [
        (one_release, "Give one_by_one=True, or a function that calls it n times: lambda value"),
        (one_release, "lambda value, n: [one_release(value) for _ in range(n)]."),
        (lambda value: value, "lambda value, n: [function(value) for _ in range(n)]."),
        (lambda: 0.0, "must be a function (value, n) -> array, got "),
        (lambda value, n, scale: value + scale * n, "must be a function (value, n) -> array, got "),
        (Mine, "Mine is a class. Give a function (value, n) -> array that uses an object of it."),
        (Mine(), "got Mine. Give a function: lambda value, n: [mechanism.release(value) for _"),
        (
            dpnoise.LaplaceMechanism(epsilon=1.0, sensitivity=1.0),
            "got LaplaceMechanism. Give a function: lambda value, n: [mechanism.release(value)",
        ),
        (np.array([3.25, 4.5]), "a function (value, n) -> array, or a command, got ndarray."),
        (1.0, "target must be a name, a function (value, n) -> array, or a command, got float."),
        (None, "target must be a name, a function (value, n) -> array, or a command, got NoneType"),
    ],
)
def test_something_else_than_a_function_of_value_and_n_is_answered_with_one(
    target: Any, message: str
) -> None:
    with pytest.raises(ArgumentTypeError) as e:
        run_audit(target)
    assert message in str(e.value)


def test_a_target_in_the_place_of_epsilon_is_named() -> None:
    with pytest.raises(ArgumentTypeError, match=r"target must be .*, got float\.$"):
        dpnoise.audit(1.0, textbook)  # type: ignore[arg-type]


def test_a_count_that_refuses_fractions_is_answered_with_the_option_for_whole_values() -> None:
    def count(value: float, n: int) -> Any:
        if value % 1:
            raise ValueError(value)
        return value + rng.integers(-3, 4, n)

    with pytest.raises(TargetError, match=r"ValueError: 0\.5.*give pairs=\"whole\""):
        run_audit(count)
    run_audit(count, pairs="whole")


@pytest.mark.parametrize(
    ("target", "message"),
    [
        (lambda value, n: [sum(value)] * n, r"\(0\.0, 1\) raised TypeError: .*if neighbours are"),
        (lambda value, n: [value.mean()] * n, r"raised AttributeError: .*if neighbours are given"),
        (dpnoise.LaplaceMechanism(epsilon=1.0, sensitivity=1.0).release, "with a number and n"),
    ],
)
def test_a_target_that_takes_other_arguments_is_told_what_it_gets(
    target: Any, message: str
) -> None:
    with pytest.raises(TargetError, match=message):
        run_audit(target)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"neighbors": [(0, 1)]}, "There is no option 'neighbors'. Did you mean neighbours?"),
        ({"whole": True}, "There is no option 'whole'. Give pairs=\"whole\"."),
        ({"eps": 1.0}, "There is no option 'eps'. Did you mean epsilon"),
        ({"n": 5}, "There is no option 'n'. The nearest of 24: epsilon"),
        (
            {"data": [1, 2]},
            "data is for mechanisms of any kind: give neighbours of rows, such as 'rows'.",
        ),
        ({"size": 3}, "size is for mechanisms of any kind: give neighbours."),
        ({"pairs": (0, 1)}, "pairs must be a list of pairs of numbers: [(0.5, 1.5)]."),
        ({"pairs": [(0, 2)]}, "pairs must differ by the sensitivity, 1, at most, got (0, 2)."),
        ({"confidence": 95}, "confidence must be between 0 and 1, got 95.0: write 0.95 for 95 %."),
        ({"budget": 1e5}, "budget must be an integer, got 100000.0."),
        ({"neighbours": "vector"}, "attacks is for added noise: leave out neighbours."),
    ],
)
def test_a_wrong_option_is_answered_with_the_right_one(
    options: dict[str, Any], message: str
) -> None:
    with pytest.raises(DpnoiseError) as e:
        run_audit(textbook, **options)
    assert message in str(e.value)


@pytest.mark.parametrize(
    ("epsilon", "message"),
    [
        (None, "Give one claim: epsilon=1.0 (with its delta), mu=1.0 or rho=0.5."),
        ("1", "epsilon must be a number, got '1'."),
        (0, "epsilon must be greater than 0, got 0.0."),
        (-1.0, "epsilon must be greater than 0, got -1.0."),
        (math.inf, "epsilon must be finite, got inf."),
    ],
)
def test_a_wrong_epsilon_is_named(epsilon: Any, message: str) -> None:
    for audit in (dpnoise.audit, auditing.audit_noise, auditing.audit_mechanism):
        with pytest.raises(DpnoiseError) as e:
            audit(textbook, epsilon)
        assert str(e.value) == message


def test_noise_with_neighbours_and_a_mechanism_without_are_told_apart() -> None:
    with pytest.raises(ArgumentError, match=r"numpy\.laplace adds noise .*: leave out neighbours"):
        dpnoise.audit("numpy.laplace", 1.0, neighbours="vector")
    with pytest.raises(ArgumentError, match=r"opendp\.noisy_max is not noise .* mechanisms take"):
        auditing.audit_noise("opendp.noisy_max", 1.0)


def test_audit_chooses_by_the_neighbours_and_by_the_name(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []

    def record_noise(target: object, *_: float) -> None:
        calls.append(f"noise {target}")

    def record_mechanism(target: object, *_: float, neighbours: object) -> None:
        calls.append(f"mechanism {target} {neighbours}")

    monkeypatch.setattr(additive_noise, "audit_noise", record_noise)
    monkeypatch.setattr(any_mechanism, "audit_mechanism", record_mechanism)
    dpnoise.audit("numpy.laplace", 1.0)
    dpnoise.audit("opendp.noisy_max", 1.0)
    dpnoise.audit("mine:f", 1.0, neighbours="rows")
    assert calls == [
        "noise numpy.laplace",
        "mechanism opendp.noisy_max None",
        "mechanism mine:f rows",
    ]


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
    with pytest.raises(ArgumentTypeError, match="target must be a name, a function"):
        run_audit(3)
