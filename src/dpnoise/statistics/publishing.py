"""From a file to published numbers: several queries, several groups, one pass over the rows."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from dpnoise.errors import (
    ArgumentError,
    DpnoiseError,
    check_choice,
    check_positive,
    forgetful,
    import_extra,
    reject,
)
from dpnoise.noise.generator import Generator
from dpnoise.release.calibration import quotient_down
from dpnoise.statistics import files
from dpnoise.statistics.queries import (
    MISSING,
    Histogram,
    Mean,
    Quantile,
    Query,
    Release,
    RowCount,
    Sum,
    check_confidence,
)

_GROUPS: Final = 'groups=["cork", "dublin"]'  # An example, for errors.
QUERIES = ("count", "sum", "mean", "median", "quantile:Q", "histogram")


@dataclass(frozen=True)
class Published:
    """One release, and the group that it is about; None is all rows."""

    group: str | None
    release: Release


@dataclass(frozen=True)
class Request:
    """What to publish of a column.

    Parameters
    ----------
    column
        The column of numbers.
    queries
        Names of `QUERIES`; a quantile with its q, as in "quantile:0.9". Epsilon is split evenly.
    epsilon
        The privacy loss of all queries together.
    lower, upper
        Declared bounds of a value, for all queries but counts and histograms.
    grid
        A power of two; by default from the bounds.
    edges
        Declared edges of a histogram.
    group_by, groups
        A column of text and the declared groups. Each row is in one group at most, so all groups
        together cost epsilon once. Rows of other groups are left out silently, because an error
        would tell that there are some; declared groups without rows are published too.
    missing
        What to do about rows without a value: "error", or "drop" to leave them out.
    delimiter
        What separates the entries of a CSV file.
    confidence
        That of the errors which are published too.
    """

    column: str
    queries: Sequence[str]
    epsilon: float
    lower: float | None = None
    upper: float | None = None
    grid: float | None = None
    edges: Sequence[float] | None = None
    group_by: str | None = None
    groups: Sequence[str] = ()
    missing: str = "error"
    delimiter: str = ","
    confidence: float = 0.95

    def __post_init__(self) -> None:
        check_positive("epsilon", self.epsilon)
        if not self.queries:
            raise ArgumentError(f"Expected one query or more, of {', '.join(QUERIES)}.")
        check_confidence(self.confidence)
        check_choice("missing", self.missing, MISSING)
        separates = len(self.delimiter) == 1 and self.delimiter.isascii()
        if not separates or self.delimiter in '"\r\n\0':
            reject("delimiter", self.delimiter, "to be one ASCII character, no quote or newline")
        if self.group_by is not None and (
            not self.groups or len(set(self.groups)) < len(self.groups)
        ):
            raise ArgumentError(f"Expected a declared list of groups, each once: {_GROUPS}.")
        if not all(self.groups) or any(map(_is_no_text, self.groups)):
            raise ArgumentError(
                f"Expected every declared group to have a name, in UTF-8: {_GROUPS}."
            )
        self.prepare()

    def prepare(self) -> list[Query]:
        """Return a fresh accumulator for each query, with its part of epsilon."""
        part = quotient_down(self.epsilon, len(self.queries))
        return [self._query(query, part) for query in self.queries]

    def _query(self, query: str, epsilon: float) -> Query:
        name, _, argument = query.partition(":")
        if name != "quantile":
            check_choice("query", query, QUERIES)
        if name == "count":
            return RowCount(epsilon)
        if name == "histogram":
            if self.edges is None:
                raise ArgumentError("A histogram needs its edges: edges=[0, 10000, 20000].")
            return Histogram(self.edges, epsilon)
        if self.lower is None or self.upper is None:
            raise ArgumentError(f"A {name} needs bounds on a value: lower and upper.")
        try:
            return self._bounded(name, argument, self.lower, self.upper, epsilon)
        except DpnoiseError:
            raise
        except (ArithmeticError, ValueError):
            raise ArgumentError(
                f"No {name} can be computed with lower={self.lower}, upper={self.upper} and "
                f"grid={self.grid}: numbers beyond the largest or the smallest float arise."
            ) from None

    def _bounded(
        self, name: str, argument: str, lower: float, upper: float, epsilon: float
    ) -> Query:
        if name == "sum":
            return Sum(lower, upper, epsilon, self.grid)
        if name == "mean":
            return Mean(lower, upper, epsilon, self.grid)
        q = 0.5 if name == "median" else _fraction(argument)
        return Quantile(q, lower, upper, epsilon, self.grid)


def _is_no_text(name: str) -> bool:
    """Tell whether a name holds bytes that are no UTF-8: no row of a file can hold them."""
    return name != name.encode("utf-8", "ignore").decode("utf-8")


def _fraction(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ArgumentError("A quantile needs its place, as in quantile:0.9.") from None


@forgetful
def publish(
    path: Path,
    request: Request,
    rng: Generator | None = None,
    progress: Callable[[float], object] = lambda _: None,
) -> list[Published]:
    """Read a CSV or Parquet file once, in constant memory, and release what is asked for.

    All errors come before any noise is drawn.
    """
    groups = _groups(request)
    queries = {group: request.prepare() for group in groups}
    for chunk in files.read(
        path,
        request.column,
        request.group_by,
        missing=request.missing,
        delimiter=request.delimiter,
    ):
        for group in groups:
            values = chunk.values if group is None else _rows_of(chunk, group)
            for query in queries[group]:
                query.add(values)
        progress(chunk.progress)
    return [
        Published(group, query.release(request.confidence, rng))
        for group in groups
        for query in queries[group]
    ]


def rehearsal(request: Request) -> list[Published]:
    """Return what `publish` would, with zeros for numbers: no file is read and no noise drawn."""
    cells = [0] * (len(request.edges or ()) - 1)
    return [
        Published(
            group,
            Release(
                query,
                cells if query == "histogram" else 0.0,
                request.epsilon,
                scale=None,
                error=1.0,
                confidence=request.confidence,
            ),
        )
        for group in _groups(request)
        for query in request.queries
    ]


def _groups(request: Request) -> list[str | None]:
    """Return the declared groups; None is all rows."""
    return list(request.groups) if request.group_by is not None else [None]


def _rows_of(chunk: files.Chunk, group: str) -> Any:
    compute = import_extra("pyarrow.compute", "files")
    inside = compute.fill_null(compute.equal(chunk.groups, group), fill_value=False)
    return np.ascontiguousarray(chunk.values[inside.to_numpy(zero_copy_only=False)])
