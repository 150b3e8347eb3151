"""Choose the cases of a list that `make test` runs; `make test-long` runs all."""

import os
import random
from collections import defaultdict
from collections.abc import Iterable
from typing import TypeVar

import pytest

from support.alarms import LONG

T = TypeVar("T")


def sample_cases(cases: Iterable[T], number: int) -> list[T]:
    """Return `number` random cases, in their order; in the long tests all."""
    all_cases = list(cases)
    if LONG or number >= len(all_cases):
        return all_cases
    indices = random.sample(range(len(all_cases)), number)
    return [all_cases[index] for index in sorted(indices)]


def every_nth_case(step: int, cases: Iterable[T]) -> list[T]:
    """Return every n-th case, from a random one of the first n; in the long tests all."""
    all_cases = list(cases)
    return all_cases if LONG else all_cases[random.randrange(step) :: step]  # noqa: S311 - any start


def sample_parameters(cases: Iterable[T], number: int) -> list[T]:
    """Return `number` random parameters of a test, in their order; in the long tests all.

    All processes of a run choose the same ones, because pytest-xdist refuses processes that collect
    different tests. Without pytest-xdist, every run chooses the same ones.
    """
    all_cases = list(cases)
    if LONG or number >= len(all_cases):
        return all_cases
    run = random.Random(os.environ.get("PYTEST_XDIST_TESTRUNUID", ""))  # noqa: S311 - no secret
    indices = run.sample(range(len(all_cases)), number)
    return [all_cases[index] for index in sorted(indices)]


def cases_left_out(items: Iterable[pytest.Item]) -> set[pytest.Item]:
    """Return the cases that a run with pytest-xdist leaves out of tests marked `sample(number)`.

    All processes of a run leave out the same ones. Without pytest-xdist, as in a run of one file,
    and in the long tests, all cases run.
    """
    run = os.environ.get("PYTEST_XDIST_TESTRUNUID")
    if LONG or run is None:
        return set()
    cases = defaultdict(list)
    for item in items:
        if mark := item.get_closest_marker("sample"):
            cases[item.nodeid.partition("[")[0], *mark.args].append(item)
    left_out: set[pytest.Item] = set()
    for (test, number), all_cases in cases.items():
        choice = random.Random(f"{run} {test}")  # noqa: S311 - no secret
        left_out.update(choice.sample(all_cases, max(0, len(all_cases) - number)))
    return left_out
