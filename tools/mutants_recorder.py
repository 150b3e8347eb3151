"""A pytest plugin for `make mutants`: select the tests to run, and record their results.

The program passes a JSON file by the environment variable MUTANTS_JOB:

- `package`: the folder that dpnoise must be imported from;
- `tests`: node ids to run, in this order; null runs everything that is collected;
- `record`: whether to record which functions of the package each test calls;
- `result`: the JSON file to write.
"""

import json
import os
import sys
import threading
from collections import defaultdict
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, Final

import pytest

import dpnoise

_JOB: Final[dict[str, Any]] = json.loads(Path(os.environ["MUTANTS_JOB"]).read_text())
_PACKAGE: Final[str] = _JOB["package"]

if not str(dpnoise.__file__).startswith(_PACKAGE):
    pytest.exit(f"dpnoise is imported from {dpnoise.__file__}, not from {_PACKAGE}.", returncode=4)


class Recorder:
    """The functions of the package that ran, by the test or the test file that ran them."""

    def __init__(self) -> None:
        self.calls: dict[str, set[CodeType]] = defaultdict(set)
        self.seconds: dict[str, float] = defaultdict(float)
        self.failed: list[str] = []
        self._ours: dict[CodeType, bool] = {}
        self._running: set[CodeType] = set()

    def start(self, owner: str) -> None:
        """Attribute the calls from now on to a test, or to a file that is being imported."""
        self._running = self.calls[owner]
        sys.setprofile(self._on_event)
        threading.setprofile(self._on_event)

    @staticmethod
    def stop() -> None:
        """Stop recording."""
        sys.setprofile(None)
        threading.setprofile(None)

    def _on_event(self, frame: FrameType, event: str, _: object) -> None:
        if event != "call":
            return
        code = frame.f_code
        ours = self._ours.get(code)
        if ours is None:
            ours = self._ours[code] = code.co_filename.startswith(_PACKAGE)
        if ours:
            self._running.add(code)

    def functions(self) -> dict[str, list[str]]:
        """Return "file:function" for each call; nested functions count as the outer one."""
        return {
            owner: sorted(
                f"{code.co_filename[len(_PACKAGE) + 1 :]}:{code.co_qualname.split('.<locals>')[0]}"
                for code in codes
            )
            for owner, codes in self.calls.items()
        }


_recorder: Final = Recorder()


def pytest_collectstart(collector: pytest.Collector) -> None:
    """Record the functions that a test file calls while it is imported."""
    if _JOB["record"] and isinstance(collector, pytest.Module):
        _recorder.start(collector.nodeid)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Keep only the tests of the job, in its order."""
    _recorder.stop()
    if _JOB["tests"] is not None:
        order = {name: position for position, name in enumerate(_JOB["tests"])}
        items[:] = sorted(
            (item for item in items if item.nodeid in order), key=lambda item: order[item.nodeid]
        )


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Any:
    """Record the functions that a test and its fixtures call."""
    if _JOB["record"]:
        _recorder.start(item.nodeid)
    try:
        return (yield)
    finally:
        _recorder.stop()


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Record the duration of a test and whether it failed."""
    _recorder.seconds[report.nodeid] += report.duration
    if report.failed:
        _recorder.failed.append(report.nodeid)


def pytest_collectreport(report: pytest.CollectReport) -> None:
    """Record a test file that cannot be imported."""
    if report.failed:
        _recorder.failed.append(report.nodeid)


def pytest_sessionfinish() -> None:
    """Write the result."""
    result = {
        "failed": _recorder.failed,
        "seconds": _recorder.seconds,
        "functions": _recorder.functions(),
    }
    Path(_JOB["result"]).write_text(json.dumps(result))
