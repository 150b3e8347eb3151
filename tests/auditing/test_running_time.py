"""Tests of the running time as an output: `time="output"`."""

import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dpnoise
from dpnoise import cli
from dpnoise.auditing.report import Report
from dpnoise.core.errors import ArgumentError

rng = np.random.default_rng()


def audit(mechanism: Any, **options: Any) -> Report:
    """With this confidence, time that does not depend on the data fails no run of the tests."""
    options = {"neighbours": [(2, 3)], "budget": 8_000, "confidence": 1 - 1e-6, **options}
    return dpnoise.audit(mechanism, 1.0, time="output", **options)


def loop(turns: int) -> None:
    for _ in range(turns):
        pass


def noise(n: int) -> Any:
    return np.round(rng.laplace(scale=2.0, size=n), 3)


@pytest.mark.long
def test_a_loop_that_is_longer_for_one_data_set_is_found_next_to_the_verdict() -> None:
    """Outputs do not depend on the data at all, so that the claim stands."""

    def slow(count: int, n: int) -> Any:
        loop(10_000 * (1 + 3 * (count == 3)))
        return noise(n)

    report = audit(slow)
    (seen,) = report.observations
    assert (seen.name, seen.found, report.broken) == ("running time", True, False)
    assert seen.measured["epsilon_lower"] > 2
    assert "this machine and its load" in str(report)
    assert Report.from_dict(report.to_dict()).observations == [seen]


def test_the_pair_whose_times_differ_the_most_is_counted() -> None:
    def slow(count: int, n: int) -> Any:
        loop(20_000 * (count == 7))
        return noise(n)

    (seen,) = audit(slow, neighbours=[(2, 3), (6, 7), (8, 9)]).observations
    assert seen.measured["epsilon_lower"] > 2


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    "pair", [(2, 3), ([1] * 20, [1] * 21), (np.zeros(9), np.ones(9))], ids=["int", "list", "array"]
)
def test_time_that_does_not_depend_on_the_data_is_not_accused(pair: Any) -> None:
    def constant(_data: Any, n: int) -> Any:
        loop(300)
        return noise(n)

    (seen,) = audit(constant, neighbours=[pair]).observations
    assert (seen.found, seen.measured["epsilon_lower"]) == (False, 0)
    assert "was not seen to depend" in seen.words


def test_a_machine_that_is_slow_now_and_then_is_not_a_dependence() -> None:
    """Every second run of 200 calls waits: coins divide the slow calls, too."""
    calls = 0

    def disturbed(_data: Any, n: int) -> Any:
        nonlocal calls
        calls += 1
        if calls // 200 % 2:
            time.sleep(0.0002)
        return noise(n)

    assert not audit(disturbed).observations[0].found


def test_a_call_that_fails_while_it_is_timed_does_not_cost_the_report() -> None:
    """With exceptions as outputs, it counts with the time that it took."""
    drawn, last = 0, 9_000

    def fail_at_last(_data: Any, n: int) -> Any:
        nonlocal drawn
        drawn += n
        if drawn > last:
            raise ValueError("no memory")
        return noise(n)

    (seen,) = audit(fail_at_last).observations
    assert (seen.name, seen.found) == ("not seen", False)
    assert "raised ValueError: no memory" in seen.words
    drawn, last = 0, 1_200
    (seen,) = audit(fail_at_last, budget=1_000, exceptions="output").observations
    assert seen.name == "running time"


def test_time_is_an_option_of_mechanisms() -> None:
    with pytest.raises(ArgumentError, match="time must be 'output'"):
        dpnoise.audit(lambda x, n: [x] * n, 1.0, neighbours=[(0, 1)], time="yes")
    with pytest.raises(ArgumentError, match="time is for mechanisms of any kind"):
        dpnoise.audit("numpy.laplace", 1.0, time="output")


@pytest.mark.long
def test_the_command_shows_the_time_next_to_the_verdict(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "timed_module.py").write_text(
        "import numpy as np\n"
        "def count(rows, n):\n"
        "    sum(range(20_000 * len(rows)))\n"
        "    return np.round(np.random.default_rng().laplace(scale=2.0, size=n), 3)\n"
    )
    (tmp_path / "pairs.json").write_text("[[[1, 2], [1]]]")
    monkeypatch.chdir(tmp_path)
    options = ["--neighbours", "pairs.json", "--budget", "4000", "--time", "output"]
    assert cli.main(["audit", "timed_module:count", "--epsilon", "1", *options]) == 0
    out = capsys.readouterr().out
    assert "! The running time by itself has an epsilon of at least" in out
    assert "--time output" in out
