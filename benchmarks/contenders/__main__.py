"""Read a question from the standard input, and print the releases of a contender."""

import json
import sys
import warnings
from importlib import import_module
from importlib.metadata import version
from typing import Any

import numpy as np

from benchmarks.contenders import Column, Stays, Visits


def answer(module: Any, question: dict[str, Any]) -> Any:
    """Return the releases of a column, visits or stays; the versions for an empty question."""
    if not question:
        return {name: version(name) for name in module.PACKAGES}
    if "stays" in question:
        return list(module.discover(Stays(**question["stays"]), question["rounds"]))
    if "visits" in question:
        return list(module.visits(Visits(**question["visits"]), question["rounds"]))
    column, rounds = Column(**question["column"]), question["rounds"]
    return {
        name: np.reshape(release(column, rounds[name]), (rounds[name], -1)).tolist()
        for name, release in module.STATISTICS.items()
    }


if __name__ == "__main__":
    warnings.simplefilter("ignore")  # Warnings of the peers are of no interest here.
    contender = import_module(f"benchmarks.contenders.{sys.argv[1]}")
    print(json.dumps(answer(contender, json.load(sys.stdin))))
