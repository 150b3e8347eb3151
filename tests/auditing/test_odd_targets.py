"""Targets that misbehave: the error names the problem, and the findings so far are kept."""

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.alarms import FALSE_ALARM, LONG

import dpnoise
from dpnoise import cli
from dpnoise.auditing import additive_noise, calls
from dpnoise.auditing.calls import Pace, call_in_time, time_calls
from dpnoise.auditing.report import Finding
from dpnoise.auditing.targets import TargetError

CERTAIN = 1 - FALSE_ALARM
BUDGET = 20_000
rng = np.random.default_rng()


@pytest.fixture(autouse=True)
def _no_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Skip the side-channel checks."""
    monkeypatch.setattr(additive_noise, "run_side_channel_checks", lambda *_: [])


def add_noise(value: float, n: int) -> Any:
    """Far too little noise for a claim of 1, on whole numbers."""
    return value + rng.integers(-1, 2, n).astype(np.float64)


def fail(_value: float, _n: int) -> Any:
    raise OSError("no entropy")


hung = threading.Event()


@pytest.fixture
def wait_until_hung(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait until the target hangs, independent of the clock of a busy machine."""

    def wait(ended: threading.Event, _seconds: float) -> bool:
        while not ended.wait(0.01) and not hung.is_set():
            pass
        return ended.is_set()

    hung.clear()
    monkeypatch.setattr(calls, "_wait", wait)


def hangs(value: float, n: int) -> Any:
    hung.set()
    threading.Event().wait()
    return add_noise(value, n)


def exits(_value: float, _n: int) -> Any:
    sys.exit(3)


def is_not_a_number(_value: float, n: int) -> Any:
    return np.full(n, np.nan)


def changes_its_shape(_value: float, n: int) -> Any:
    return np.zeros((n, 2))


ODD: dict[str, tuple[Callable[[float, int], Any], str]] = {
    "fail": (fail, "raised OSError: no entropy"),
    "hangs": (hangs, "took more than 60 s"),
    "calls sys.exit": (exits, "raised SystemExit: 3"),
    "returns NaN": (is_not_a_number, "gave a NaN or an infinity"),
    "changes its output's shape": (changes_its_shape, "releases, got an array of shape"),
}


@pytest.mark.sample(2)
@pytest.mark.usefixtures("wait_until_hung")
@pytest.mark.parametrize("odd", ODD)
def test_a_target_that_turns_odd_is_named_and_keeps_what_was_certified(odd: str) -> None:
    """It fails at the first negative value: two pairs come before."""
    becomes, message = ODD[odd]
    so_far: list[list[Finding]] = []

    def target(value: float, n: int) -> Any:
        return (becomes if value < 0 else add_noise)(value, n)

    with pytest.raises(TargetError) as e:
        dpnoise.audit(
            target, 1.0, pairs=[(0, 1), (1, 2), (-1, 0)], attacks=["bits", "threshold"],
            budget=BUDGET, watch=so_far.append,
        )  # fmt: skip
    assert message in str(e.value)
    assert "(-1.0, " in str(e.value)
    assert len(so_far) == 2
    assert any(finding.broken for finding in so_far[-1])


@pytest.mark.usefixtures("wait_until_hung")
@pytest.mark.parametrize("odd", [odd for odd in ODD if odd != "returns NaN"])
def test_a_mechanism_of_any_kind_that_turns_odd_is_named(odd: str) -> None:
    becomes, message = ODD[odd]
    if odd == "changes its output's shape":
        message = "changed its outputs' shape: 2 parts, not 1"

    def mechanism(value: int, n: int) -> Any:
        return (add_noise if n <= 64 else becomes)(value, n)

    with pytest.raises(TargetError) as e:
        dpnoise.audit(mechanism, 1.0, neighbours=[(0, 1)], budget=BUDGET, exceptions="error")
    assert message in str(e.value)


def test_a_mechanism_may_return_nan_which_is_an_output_like_others() -> None:
    def mechanism(value: int, n: int) -> Any:
        return np.where(rng.random(n) < (0.9 if value else 0.1), np.nan, 0.0)

    assert dpnoise.audit(mechanism, 1.0, neighbours=[(0, 1)], budget=BUDGET).broken


def test_what_a_target_prints_is_no_part_of_its_releases(
    capfd: pytest.CaptureFixture[str],
) -> None:
    def prints(value: float, n: int) -> Any:
        print("hello")
        os.write(1, b"from C\n")
        return add_noise(value, n)

    options: dict[str, Any] = {"budget": BUDGET}
    assert dpnoise.audit(prints, 1.0, pairs=[(0, 1)], attacks=["bits"], **options).broken
    assert dpnoise.audit(prints, 1.0, neighbours=[(0, 1)], **options).broken
    assert "hello" in capfd.readouterr().out


def test_a_program_that_prints_something_else_is_reported() -> None:
    """Its releases are what it prints: a line too many is a release too many."""
    text = "import sys; print('0.0'); [print(line, end='') for line in sys.stdin]"
    with pytest.raises(TargetError, match="wrote 2 lines, not 1"):
        dpnoise.audit([sys.executable, "-c", text], 1.0, attacks=["bits"], budget=1_000)


@pytest.mark.long
def test_children_of_a_target_do_not_audit(tmp_path: Path) -> None:
    """A target that forks and returns twice does not start a second audit.

    The test runs it as added noise, and as a mechanism of any kind.
    """
    code = f"""
import os
import numpy as np
import dpnoise
from dpnoise.auditing import additive_noise
additive_noise.run_side_channel_checks = lambda *_: []
rng = np.random.default_rng()
def adding(value, n):
    os.fork()
    return value + rng.integers(-9, 9, n)
def forking(value, n):
    os.fork()
    return value + rng.integers(-1, 2, n)
dpnoise.audit(adding, 1.0, attacks=["threshold"], pairs=[(0, 1)], budget=1000)
open({str(tmp_path / "done")!r}, "a").write("done\\n")
report = dpnoise.audit(forking, 1.0, neighbours=[(0, 1)], budget={4000 if LONG else 1000})
open({str(tmp_path / "done")!r}, "a").write(f"{{report.broken}}\\n")
"""
    run = subprocess.run([sys.executable, "-W", "ignore", "-c", code], check=False, timeout=600)
    assert run.returncode == 0
    assert (tmp_path / "done").read_text() == "done\nTrue\n"


ONCE = """
read line
case "$line" in *'"n": 1}'*) ;; *) echo "once a process" >&2; exit 1 ;; esac
case "$line" in *'"data": 1,'*) answer=true ;; *) answer=false ;; esac
echo "[$answer]"
"""


@pytest.mark.skipif(not LONG, reason="it starts a thousand processes")
def test_a_program_that_gives_one_output_a_process_is_audited() -> None:
    """It reveals its data, and refuses to give two outputs."""
    program = ["sh", "-c", ONCE]
    report = dpnoise.audit(program, 1.0, neighbours=[(0, 1)], one_by_one=True, budget=1_000)
    assert report.broken


def test_a_program_that_refuses_to_give_two_outputs_is_reported() -> None:
    program = ["sh", "-c", ONCE]
    with pytest.raises(TargetError, match="asked for 64 outputs, gave status 1: once a process"):
        dpnoise.audit(program, 1.0, neighbours=[(0, 1)], budget=1_000)


# Slow ones ---------------------------------------------------------------------------------------


class Clock:
    """A clock that a target advances, so that no test waits."""

    def __init__(self) -> None:
        self.now = 0.0

    def perf_counter(self) -> float:
        """Return the seconds that a target has taken so far."""
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """Replace the clock of the audit."""
    ticking = Clock()
    monkeypatch.setattr(calls, "time", ticking)
    monkeypatch.setattr(calls, "seconds_queued", lambda: 0.0)
    return ticking


def test_a_target_that_is_slow_for_each_release_is_asked_for_fewer_at_once(clock: Clock) -> None:
    """A tenth of a second each: with a limit of 60 s, a call aims at 15 s, or 150 releases."""
    asked: list[int] = []

    def slow(value: float, n: int) -> Any:
        asked.append(n)
        clock.now += 0.1 * n
        return add_noise(value, n)

    report = dpnoise.audit(slow, 1.0, pairs=[(0, 1)], attacks=["threshold"], budget=2_000)
    assert report.broken
    assert max(asked) <= 150
    assert sum(asked) <= 2_000


@pytest.mark.sample(1)
@pytest.mark.parametrize("neighbours", [None, [(0, 1)]])
def test_without_a_budget_a_slow_target_is_asked_for_what_comes_in_two_minutes(
    clock: Clock, neighbours: Any
) -> None:
    """A hundredth of a second each, so 12,000 of them; those that time it come on top."""
    asked: list[int] = []

    def slow(value: float, n: int) -> Any:
        asked.append(n)
        clock.now += 0.01 * n
        return add_noise(value, n)

    report = dpnoise.audit(slow, 1.0, neighbours=neighbours)
    assert report.broken
    assert 6_000 < sum(asked) <= 12_000 + 3 * 64 + 8
    assert "budget=" not in report.command


@pytest.mark.sample(1)
@pytest.mark.parametrize("first_compiled", [1, 2])
def test_a_target_that_compiles_in_its_first_calls_gets_the_whole_budget(
    clock: Clock, first_compiled: int
) -> None:
    """It compiles for two seconds, in its first call or in the first of several releases."""
    asked: list[int] = []

    def compiled(value: float, n: int) -> Any:
        clock.now += 2.0 * (n >= first_compiled > max(asked, default=0)) + 1e-6 * n
        asked.append(n)
        return add_noise(value, n)

    dpnoise.audit(compiled, 1.0, pairs=[(0, 1)], attacks=["threshold"])
    assert sum(asked) > 400_000  # Of 480,000; at one pair, some are left over.


def test_a_mechanism_that_takes_a_second_an_output_is_not_taken_for_one_that_hangs(
    clock: Clock,
) -> None:
    """The first calls aim at 15 of 60 seconds, too."""
    asked: list[int] = []

    def slow(value: int, n: int) -> Any:
        asked.append(n)
        clock.now += 1.0 * n
        return add_noise(value, n)

    assert dpnoise.audit(slow, 1.0, neighbours=[(0, 1)], budget=1_000).broken
    assert asked[0] == 1
    assert max(asked) == 15


def test_a_target_that_takes_a_second_a_call_is_asked_for_all_at_once(clock: Clock) -> None:
    """The time per call does not cause more calls than the eight of the last count."""
    asked: list[int] = []

    def slow(value: float, n: int) -> Any:
        asked.append(n)
        clock.now += 1.0
        return add_noise(value, n)

    assert dpnoise.audit(slow, 1.0, pairs=[(0, 1)], attacks=["threshold"], budget=200_000).broken
    assert sum(asked[-16:]) == 2 * 50_000
    assert max(asked[-16:]) - min(asked[-16:]) <= 16  # Calls have multiples of 16 releases.
    assert len(asked) < 60


def test_a_pace_is_that_of_a_release_beyond_what_a_call_takes() -> None:
    pace = Pace(40.0)
    assert list(pace.call_sizes(1_000)) == [1_000]
    pace.note(10, 2.0)
    assert list(pace.call_sizes(120)) == [50, 50, 20]
    pace.note(110, 3.0)
    assert pace.seconds_per_release() == pytest.approx(0.01)
    assert list(pace.call_sizes(2_500)) == [1_000, 1_000, 500]
    assert list(pace.call_sizes(2_500, most=2_000)) == [1_000, 1_000, 500]
    assert list(pace.call_sizes(7, most=3)) == [3, 3, 1]


@pytest.fixture
def crowded_core() -> Iterator[None]:
    """Run the test on one core, which three other programs keep busy."""
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(cores)})
    busy = [sys.executable, "-c", "print(flush=True)\nwhile True: pass"]
    others = [subprocess.Popen(busy, stdout=subprocess.PIPE) for _ in range(3)]
    for other in others:
        assert other.stdout is not None
        other.stdout.readline()
    yield
    os.sched_setaffinity(0, cores)
    for other in others:
        other.kill()
        other.communicate()


def compute(seconds: float) -> None:
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux knows how long a thread queued")
@pytest.mark.usefixtures("crowded_core")
def test_other_programs_do_not_make_a_budget_smaller() -> None:
    """Of four programs on a core each has a quarter of it. A thread makes calls in an audit."""
    start = time.perf_counter()
    pace = time_calls(lambda n: call_in_time(lambda: compute(0.004 * n), "", 60.0))
    assert time.perf_counter() - start > 2 * 64 * 0.004
    assert 0.003 < pace.seconds_per_release() < 0.006
    assert pace.affordable_budget(10_000_000) == pytest.approx(30_000, rel=0.4)


def test_what_a_target_waits_for_makes_its_budget_smaller() -> None:
    pace = time_calls(lambda n: time.sleep(0.002 * n))
    assert pace.seconds_per_release() >= 0.0019
    assert (pace.affordable_budget(10_000_000) or 0) <= 63_000


def test_one_release_that_takes_longer_than_a_call_may_is_reported() -> None:
    def slow(value: float, n: int) -> Any:
        time.sleep(0.5)
        return add_noise(value, n)

    with pytest.raises(TargetError, match=r"slow\(0, 1\) took more than 0\.1 s"):
        dpnoise.audit(slow, 1.0, neighbours=[(0, 1)], one_by_one=True, time_limit=0.1)


def test_calls_share_a_thread_until_one_takes_too_long() -> None:
    released = threading.Event()
    with pytest.raises(TargetError, match=r"too long took more than 0\.01 s"):
        call_in_time(released.wait, "too long", 0.01)
    # The next call does not wait for the one that hangs.
    threads = [call_in_time(threading.current_thread, "short", 60.0) for _ in range(2)]
    assert threads[0] is threads[1]
    released.set()


def test_the_thread_of_calls_ends_with_the_thread_that_asked_for_them() -> None:
    threads: list[threading.Thread] = []

    def ask() -> None:
        threads.append(call_in_time(threading.current_thread, "short", 60.0))

    asking = threading.Thread(target=ask)
    asking.start()
    asking.join()
    threads[0].join(60.0)
    assert not threads[0].is_alive()


# The command -------------------------------------------------------------------------------------


# The command without side-channel checks, which start processes.
WITHOUT_SIDE_CHANNEL_CHECKS = """
import sys
from dpnoise.auditing import additive_noise
from dpnoise.cli import main
additive_noise.run_side_channel_checks = lambda *_: []
sys.exit(main())
"""


@pytest.mark.long
def test_the_status_of_a_pipe_that_is_closed_is_not_that_of_a_broken_target() -> None:
    """As in `dpnoise audit ... | head -n 0`: 141, the shell's status for a signal."""
    ours, theirs = os.pipe()
    os.close(ours)
    asked = ["audit", "numpy.laplace", "--epsilon", "1", "--attack", "bits", "--budget", "1000"]
    with os.fdopen(theirs, "w") as closed:
        run = subprocess.run(
            [sys.executable, "-c", WITHOUT_SIDE_CHANNEL_CHECKS, *asked],
            stdout=closed, stderr=subprocess.PIPE, check=False, text=True, timeout=300,
        )  # fmt: skip
    assert (run.returncode, run.stderr) == (141, "")


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("raise OSError('no entropy')", "raised OSError: no entropy"),
        ("import os; os._exit(7)", "odd_module:release ended its process with status 7."),
        ("import os; os.kill(os.getpid(), 9)", "release ended its process with status -9."),
        ("import time; time.sleep(60)", "took more than 0.5 s"),
    ],
)
def test_a_mechanism_that_fails_or_ends_its_process_gives_status_2(
    code: str,
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """It runs in a child process, whose end the command notices."""
    (tmp_path / "odd_module.py").write_text(f"def release(data, n):\n    {code}\n")
    monkeypatch.chdir(tmp_path)
    asked = ["audit", "odd_module:release", "--epsilon", "1", "--neighbours", "vector"]
    assert cli.main([*asked, "--time-limit", "0.5"]) == 2
    assert message in capsys.readouterr().err
