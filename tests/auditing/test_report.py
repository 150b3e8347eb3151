"""What a report says: how to repeat it, what was observed, and names that people know."""

import importlib.metadata
import json
import math
import random
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.alarms import FALSE_ALARM

import dpnoise
from dpnoise import cli
from dpnoise.auditing import additive_noise
from dpnoise.auditing.neighbours import neighbours_of
from dpnoise.auditing.options import AuditOptions
from dpnoise.auditing.output_rows import Encoder
from dpnoise.auditing.report import Report
from dpnoise.auditing.targets import target
from dpnoise.core.errors import ArgumentError

rng = np.random.default_rng()
CERTAIN = 1 - FALSE_ALARM


@pytest.fixture(autouse=True)
def _no_side_channel_checks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(additive_noise, "run_side_channel_checks", lambda *_: [])


def flip(bit: int, n: int) -> Any:
    return (rng.random(n) < 0.1) ^ bool(bit)


def audit_flip(mechanism: Any = flip, **options: Any) -> Report:
    quick: dict[str, Any] = {"neighbours": [(0, 1)], "budget": 4_000}
    return dpnoise.audit(mechanism, 1.0, **(quick | options))


# How to repeat it --------------------------------------------------------------------------------


def test_the_command_has_every_option() -> None:
    options = AuditOptions(
        epsilon=1.0, delta=1e-6, sensitivity=2.0, neighbours="rows", data=[[1, "a"], [2.5, None]],
        size=7, one_by_one=True, exceptions="output", time="output", boosting=False,
        public=[0, "y[1]"], budget=5_000, confidence=0.99, time_limit=3.0, seed=0,
    )  # fmt: skip
    text = options.command(flip, "flip").removeprefix("dpnoise.audit(flip, ")
    assert eval(f"dict({text}") == {  # noqa: S307 - the text under test
        "epsilon": 1.0, "delta": 1e-6, "sensitivity": 2.0, "neighbours": "rows",
        "data": [[1, "a"], [2.5, None]], "size": 7, "one_by_one": True,
        "exceptions": "output", "time": "output", "boosting": False, "public": [0, "y[1]"],
        "budget": 5_000, "confidence": 0.99, "time_limit": 3.0, "seed": 0,
    }  # fmt: skip


def test_the_command_has_pairs_of_arrays_and_names_what_has_no_text() -> None:
    pairs = AuditOptions(epsilon=1.0, neighbours=[(np.array([1.0]), [2])]).command(flip, "flip")
    assert "neighbours=[(np.array([1.0]), [2])]" in pairs
    objects = AuditOptions(epsilon=1.0, neighbours=[(object(), [2])]).command(flip, "flip")
    assert "neighbours=neighbours" in objects


@pytest.mark.parametrize(
    ("option", "shown"),
    [({"boosting": False}, "boosting=False"), ({"views": [len]}, "views=views")],
)
def test_what_no_shell_can_say_is_repeated_in_python(option: Any, shown: str) -> None:
    options = AuditOptions(epsilon=1.0, neighbours="vector", **option)
    again = options.command("module:f", "module:f")
    assert again.startswith("dpnoise.audit('module:f', ")
    assert shown in again


# What was observed -------------------------------------------------------------------------------


@pytest.mark.sample(1)
@pytest.mark.parametrize("neighbours", [[(0, 1)], None])
def test_equal_outputs_are_nothing_that_was_observed(neighbours: Any) -> None:
    report = dpnoise.audit(
        lambda _, n: np.full(n, 3.0), 1.0, neighbours=neighbours, budget=4_000, confidence=CERTAIN
    )
    assert not report.observed
    assert report.verdict.startswith("Nothing was observed")


def test_an_event_that_happens_at_one_data_set_only_was_observed() -> None:
    report = audit_flip(lambda bit, n: np.full(n, bit))
    assert report.observed
    assert report.broken


# Data and outputs --------------------------------------------------------------------------------


class Rows:
    """A data set that a mechanism may change."""

    def __init__(self, bit: int) -> None:
        self.bit = bit
        self.parts: list[Any] = []


@dataclass
class Table:
    """A data set as a dataclass, whose arrays its `==` cannot compare."""

    column: Any


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (np.zeros(3), np.zeros(3)),
        ([np.zeros(3), "a"], [np.zeros(3), "a"]),
        ({"a": np.zeros(3)}, {"a": np.zeros(3)}),
        (Table(np.zeros(3)), Table(np.zeros(3))),
        (Rows(1), Rows(1)),
    ],
    ids=["arrays", "lists of arrays", "dicts of arrays", "dataclasses", "own classes"],
)
def test_equal_neighbours_are_refused(first: Any, second: Any) -> None:
    with pytest.raises(ArgumentError, match="must differ"):
        audit_flip(neighbours=[(first, second)])


def test_equal_frames_are_refused() -> None:
    pandas = pytest.importorskip("pandas")
    frames = [pandas.DataFrame({"a": [1, 2]}) for _ in range(2)]
    with pytest.raises(ArgumentError, match="must differ"):
        audit_flip(neighbours=[tuple(frames)])


@pytest.mark.parametrize("make", [lambda _: lambda n: n, Rows, lambda bit: Table([bit])])
def test_different_neighbours_of_any_class_are_accepted(make: Any) -> None:
    assert len(neighbours_of([(make(0), make(1))], 1, 1.0, None)) == 1


def test_one_by_one_calls_a_function_of_the_data_alone() -> None:
    def once(bit: int) -> bool:
        return bool(rng.random() < 0.1) ^ bool(bit)

    report = audit_flip(once, one_by_one=True)
    assert report.broken
    assert report.epsilon_lower < math.log(9)


def test_one_by_one_calls_noise_of_the_value_alone() -> None:
    report = dpnoise.audit(
        lambda value: value + rng.integers(-1, 2), 1.0, one_by_one=True, budget=2_000,
        attacks=["threshold"], pairs=[(0, 1)],
    )  # fmt: skip
    assert report.broken


def test_data_of_a_class_of_ones_own_is_copied_for_each_call() -> None:
    def spoil(rows: Rows, n: int) -> Any:
        released = flip(rows.bit, n)
        rows.bit = 0
        return released

    assert audit_flip(spoil, neighbours=[(Rows(0), Rows(1))]).broken


@pytest.mark.sample(2)
@pytest.mark.parametrize("one_by_one", [False, True])
@pytest.mark.parametrize("make", [np.random.default_rng, np.random.RandomState, random.Random])
def test_the_noise_of_a_generator_in_the_data_is_not_repeated(make: Any, one_by_one: bool) -> None:  # noqa: FBT001 - a parameter of the test
    """Copies of the generator would give each call the same noise, at each data set another."""

    def draw(rows: Rows, n: int) -> Any:
        return [rows.parts[0].choice([0, 1, 2, 3]) for _ in range(n)]

    def rows() -> Rows:
        made = Rows(0)
        made.parts = [make()]
        return made

    report = audit_flip(
        draw, neighbours=[(rows(), rows())], one_by_one=one_by_one, confidence=CERTAIN
    )
    assert report.epsilon_lower == 0


def test_data_that_cannot_be_copied_are_named_in_the_method() -> None:
    class Locked(Rows):
        def __init__(self, bit: int) -> None:
            super().__init__(bit)
            self.lock = threading.Lock()

    report = audit_flip(lambda rows, n: flip(rows.bit, n), neighbours=[(Locked(0), Locked(1))])
    assert report.broken
    assert "Data of the class Locked cannot be copied (TypeError: cannot pickle" in report.method


def test_events_have_the_names_of_a_frames_columns() -> None:
    pandas = pytest.importorskip("pandas")

    def as_frame(bit: int, n: int) -> Any:
        return pandas.DataFrame({"noise": rng.random(n), "answer": flip(bit, n)})

    assert Encoder("mechanism", [as_frame(0, 5)]).names[1:] == ["y['noise']", "y['answer']"]


def test_an_audit_from_a_source_tree_names_the_version(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_name: str) -> str:
        raise importlib.metadata.PackageNotFoundError

    monkeypatch.setattr(target, "version", fail)
    assert audit_flip().versions["dpnoise"] == "a source tree"


# The command line --------------------------------------------------------------------------------

MODULE = """
import numpy as np
rng = np.random.default_rng()
def count(rows, n):
    return len(rows) + rng.integers(-1, 2, n)
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "counted_module.py").write_text(MODULE)
    (tmp_path / "pairs.json").write_text("[[[1, 2], [1]]]")
    (tmp_path / "rows.csv").write_text("city,age\ncork,31\ndublin,44\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    "files", [["--neighbours", "pairs.json"], ["--neighbours", "rows", "--data", "rows.csv"]]
)
def test_the_command_reads_pairs_and_data_from_files_and_repeats_them(
    files: list[str], folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = ["audit", "counted_module:count", "--epsilon", "1.0", *files, "--budget", "20000"]
    assert cli.main([*asked, "--json", "report.json"]) == 1
    report = json.loads((folder / "report.json").read_text())
    assert set(asked) - {"1.0"} <= set(report["command"].split())
    assert "--json" not in report["command"]
    assert "as Python: number(y, 0)" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("files", "message"),
    [
        (["--neighbours", "missing.json"], "--neighbours must be one of vector, rows, added"),
        (["--neighbours", "rows.csv"], "--neighbours rows.csv was not read"),
        (["--neighbours", "rows", "--data", "none.csv"], "--data none.csv was not read"),
    ],
)
def test_files_that_cannot_be_read_are_named(
    files: list[str], message: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert folder.is_dir()
    assert cli.main(["audit", "counted_module:count", "--epsilon", "1", *files]) == 2
    assert message in capsys.readouterr().err
