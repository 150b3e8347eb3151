"""Which cases a run of the tests leaves out."""

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any

import pytest
from support import choices


@dataclass(frozen=True)
class Case:
    """What `cases_left_out` reads of a test of pytest."""

    nodeid: str
    number: int | None = None

    def get_closest_marker(self, name: str) -> Any:
        """Return the mark of this case."""
        assert name == "sample"
        return None if self.number is None else pytest.mark.sample(self.number).mark


CASES = [
    *(Case(f"test_a.py::test_long[{case}]", 3) for case in range(20)),
    *(Case(f"test_a.py::test_other[{case}]", 5) for case in range(4)),
    *(Case(f"test_b.py::test_unmarked[{case}]") for case in range(9)),
]


def left_out(
    monkeypatch: pytest.MonkeyPatch, run: str | None, *, long: bool = False
) -> set[Hashable]:
    monkeypatch.delenv("PYTEST_XDIST_TESTRUNUID", raising=False)
    if run is not None:
        monkeypatch.setenv("PYTEST_XDIST_TESTRUNUID", run)
    monkeypatch.setattr(choices, "LONG", long)
    return {*choices.cases_left_out(CASES)}  # type: ignore[arg-type]


def test_a_run_has_as_many_random_cases_as_a_mark_says(monkeypatch: pytest.MonkeyPatch) -> None:
    """All processes of a run have the same ones; 20 runs have one choice of 1,140 by 10^-58."""
    runs = [left_out(monkeypatch, str(run)) for run in range(20)]
    assert [left_out(monkeypatch, str(run)) for run in range(20)] == runs
    assert all(len(cases) == 17 and cases < {*CASES[:20]} for cases in runs)
    assert len({frozenset(cases) for cases in runs}) > 1


def test_long_tests_and_runs_without_xdist_have_all_cases(monkeypatch: pytest.MonkeyPatch) -> None:
    assert left_out(monkeypatch, None) == left_out(monkeypatch, "1", long=True) == set()
