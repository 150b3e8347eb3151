"""Choose the cases of a list that `make test` runs; `make test-long` runs all."""

import os
import random
from collections.abc import Iterable
from typing import TypeVar

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
