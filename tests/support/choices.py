"""What `make test` tries of a list that `make test-long` goes through."""

import random
from collections.abc import Iterable
from typing import TypeVar

from support.alarms import LONG

T = TypeVar("T")


def some(things: Iterable[T], number: int) -> list[T]:
    """Return so many of the things, drawn at random and in their order; in the long tests all."""
    held = list(things)
    if LONG or number >= len(held):
        return held
    places = random.sample(range(len(held)), number)
    return [held[place] for place in sorted(places)]


def every(step: int, things: Iterable[T]) -> list[T]:
    """Return each n-th of the things, from a random one of the first; in the long tests all."""
    held = list(things)
    return held if LONG else held[random.randrange(step) :: step]  # noqa: S311 - any will do
