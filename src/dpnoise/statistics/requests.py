"""A request: what to publish, at which cost. It is public, and made before a row is read."""

import datetime as dt
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from math import prod
from pathlib import Path
from typing import Any, Final

from dpnoise.errors import (
    ArgumentError,
    DpnoiseError,
    check_choice,
    check_positive,
    reject,
    shown,
    unknown,
)
from dpnoise.release.calibration import quotient_down
from dpnoise.statistics.engines.description import Files, source_of
from dpnoise.statistics.functions import MISSING
from dpnoise.statistics.groups import check_groups, groups_in_file
from dpnoise.statistics.plan import Cells, Edges, Grouping, Plan
from dpnoise.statistics.queries import (
    Count,
    Deviation,
    Histogram,
    Mean,
    Quantiles,
    Query,
    Sum,
    Variance,
    check_confidence,
)

QUERIES: Final = (
    "count",
    "sum",
    "mean",
    "variance",
    "std",
    "median",
    "quantile:Q",
    "quantiles:Q,Q",
    "histogram",
)
_BOUNDED: Final[dict[str, type[Sum | Mean | Variance]]] = {
    "sum": Sum,
    "mean": Mean,
    "variance": Variance,
    "std": Deviation,
}
_MOST_CELLS: Final = 2**26  # Cells times groups: 512 MiB of counts.
_MOST_WAYS: Final = 2


@dataclass(frozen=True)
class Question:
    """Some statistics of one column, of all rows or by group.

    Parameters
    ----------
    statistics
        "count", "sum", "mean", "variance", "std", "median", "quantile:0.9", "quantiles:0.25,0.75"
        (released together, in order) or "histogram".
    column
        The column of numbers; a count without one is of rows.
    lower, upper
        Declared bounds of a value, for all but counts and histograms.
    grid
        A power of two; by default from the bounds.
    edges
        Declared edges of a histogram.
    by
        One or two columns whose groups the request declares.

    Examples
    --------
    >>> Question(["mean", "std"], "income", lower=0, upper=200_000).statistics
    ('mean', 'std')
    """

    statistics: Sequence[str]
    column: str | None = None
    lower: float | None = None
    upper: float | None = None
    grid: float | None = None
    edges: Sequence[float] | None = None
    by: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name in ("statistics", "by"):
            given = getattr(self, name)
            if isinstance(given, str) or not all(isinstance(part, str) for part in given):
                raise ArgumentError(f"Expected {name} to be a list of names, got {shown(given)}.")
            object.__setattr__(self, name, tuple(given))
        if self.edges is not None:
            object.__setattr__(self, "edges", tuple(self.edges))
        if not self.statistics:
            raise ArgumentError(f"Expected one query or more, of {', '.join(QUERIES)}.")
        if len(self.by) > _MOST_WAYS or len(set(self.by)) < len(self.by):
            raise ArgumentError(f"Expected one or two columns to group by, got {shown(self.by)}.")

    def query(self, statistic: str, epsilon: float, *, clamp: bool, intervals: bool) -> Query:
        """Return what asks for one of the statistics, or say what it needs."""
        name, _, argument = statistic.partition(":")
        if name not in {"quantile", "quantiles"}:
            check_choice("query", statistic, QUERIES)
        if name == "count":
            return Count(self.column, epsilon, clamp=clamp)
        if self.column is None:
            raise ArgumentError(f"A {name} needs a column: say which.")
        if name == "histogram":
            if self.edges is None:
                raise ArgumentError("A histogram needs its edges: edges=[0, 10000, 20000].")
            return Histogram(self.column, self.edges, epsilon, clamp=clamp)
        if self.lower is None or self.upper is None:
            raise ArgumentError(f"A {name} needs bounds on a value: lower and upper.")
        bounds = (self.lower, self.upper, epsilon, self.grid)
        try:
            if name in _BOUNDED:
                return _BOUNDED[name](self.column, *bounds)
            places = [0.5] if name == "median" else _places(name, argument)
            return Quantiles(self.column, places, *bounds, interval=intervals)
        except DpnoiseError:
            raise
        except (ArithmeticError, ValueError):
            raise ArgumentError(
                f"No {name} can be computed with lower={self.lower}, upper={self.upper} and "
                f"grid={self.grid}: numbers beyond the largest or the smallest float arise."
            ) from None


def _places(name: str, text: str) -> list[float]:
    try:
        places = [float(part) for part in text.split(",")]
    except ValueError:
        raise ArgumentError("A quantile needs its place, as in quantile:0.9.") from None
    if name == "quantile" and len(places) > 1:
        raise ArgumentError(f"To publish several quantiles together, say quantiles:{text}.")
    return places


@dataclass(frozen=True)
class Request:
    """What to publish of a data set, in one pass over its rows, for one epsilon.

    Parameters
    ----------
    epsilon
        The privacy loss of everything together. Statistics split it evenly; the groups of one
        statistic share its part, because a row is in one group at most.
    publish
        The questions.
    groups
        The declared groups of each column that questions group by. Rows of other groups are left
        out silently, because an error would tell that there are some; declared groups without
        rows are published too.
    missing
        What to do about rows without a value: "error", or "drop" to leave them out.
    confidence
        That of the margins and intervals which are published too.
    clamp
        Whether counts below 0 are published as 0.
    intervals
        Whether quantiles spend half of their epsilon on intervals.
    delimiter
        What separates the entries of a CSV file.

    Examples
    --------
    >>> income = Question(["mean", "median"], "income", lower=0, upper=200_000, by=["city"])
    >>> request = Request(1.0, [income], groups={"city": ["cork", "dublin"]})
    >>> [query.epsilon for _, query in request.prepare()]
    [0.5, 0.5]
    """

    epsilon: float
    publish: Sequence[Question]
    groups: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    missing: str = "error"
    confidence: float = 0.95
    clamp: bool = True
    intervals: bool = True
    delimiter: str = ","

    def __post_init__(self) -> None:
        check_positive("epsilon", self.epsilon)
        object.__setattr__(self, "publish", tuple(self.publish))
        object.__setattr__(self, "groups", check_groups(self.groups))
        if not self.publish:
            raise ArgumentError(f"Expected one query or more, of {', '.join(QUERIES)}.")
        check_confidence(self.confidence)
        check_choice("missing", self.missing, MISSING)
        for name in ("clamp", "intervals"):
            if not isinstance(getattr(self, name), bool):
                reject(name, getattr(self, name), "to be true or false")
        delimiter = self.delimiter
        if len(delimiter) != 1 or not delimiter.isascii() or delimiter in '"\r\n\0':
            reject("delimiter", delimiter, "to be one ASCII character, no quote or newline")
        for question in self.publish:
            for column in question.by:
                if column not in self.groups:
                    raise ArgumentError(
                        f"Expected the groups of {column!r} to be declared: "
                        f'groups={{"{column}": ["cork", "dublin"]}}.'
                    )
        self._check_cells()

    def prepare(self) -> list[tuple[Question, Query]]:
        """Return a query for each statistic, with its part of epsilon."""
        statistics = [(one, name) for one in self.publish for name in one.statistics]
        part = quotient_down(self.epsilon, len(statistics))
        options = {"clamp": self.clamp, "intervals": self.intervals}
        return [(one, one.query(name, part, **options)) for one, name in statistics]

    def plans(self) -> dict[tuple[str, ...], Plan]:
        """Return one plan for each way of grouping; a thing that several ask for is asked once."""
        asks: dict[tuple[str, ...], dict[Any, None]] = {}
        for question, query in self.prepare():
            asks.setdefault(question.by, {})[query.ask] = None
        return {
            by: Plan(
                tuple(asked),
                tuple(Grouping(name, tuple(self.groups[name])) for name in by),
                self.missing,
            )
            for by, asked in asks.items()
        }

    def keys(self, question: Question) -> list[tuple[Any, ...]]:
        """Return the groups of a question, in order: those of all rows are one, of no keys."""
        keys: list[tuple[Any, ...]] = [()]
        for column in question.by:
            keys = [(*before, key) for before in keys for key in self.groups[column]]
        return keys

    def columns(self) -> list[str]:
        """Return the columns of numbers, each once."""
        return list(dict.fromkeys(one.column for one in self.publish if one.column is not None))

    def described(self) -> dict[str, Any]:
        """Return it as plain data, for JSON."""
        described = asdict(self)
        described["groups"] = {
            column: [written(key) for key in keys] for column, keys in self.groups.items()
        }
        return described

    def _check_cells(self) -> None:
        cells = 0
        for question, query in self.prepare():
            ask = query.ask
            here = ask.most - ask.least + 1 if isinstance(ask, Cells) else 1
            here = len(ask.edges) - 1 if isinstance(ask, Edges) else here
            cells += here * prod(len(self.groups[column]) for column in question.by)
        if cells > _MOST_CELLS:
            raise ArgumentError(
                f"Expected at most 2^26 cells in all groups, got {cells:,}. Ask for fewer groups, "
                "or give quantiles a coarser grid."
            )


def written(key: Any) -> Any:
    """Return a key as JSON has it: dates become text."""
    return key.isoformat() if isinstance(key, dt.date) else key


def simple_request(
    column: str | None,
    statistics: Sequence[str],
    epsilon: float,
    *,
    lower: float | None = None,
    upper: float | None = None,
    grid: float | None = None,
    edges: Sequence[float] | None = None,
    groups: Mapping[str, Sequence[Any]] | None = None,
    **options: Any,
) -> Request:
    """Return the request for some statistics of one column, by the groups that are given."""
    cells = None if edges is None else tuple(edges)
    by = tuple(groups or ())
    question = Question(tuple(statistics), column, lower, upper, grid, cells, by)
    declared = {name: tuple(keys) for name, keys in (groups or {}).items()}
    return Request(epsilon, (question,), declared, **options)


@dataclass(frozen=True)
class Signed:
    """A request from a file, and the data that it is about, if the file says so."""

    request: Request
    source: Files | Path | None

    @property
    def files(self) -> Files | None:
        """The data, with all that is said about it."""
        if isinstance(self.source, Path):
            return Files(self.source, delimiter=self.request.delimiter)
        return self.source


def load_request(path: Path) -> Signed:
    r"""Read a request from a TOML file.

    It has the fields of `Request`, a table `[[publish]]` for each question, and may have `source`,
    the file of data beside it, or a table `[source]` with `path` or `paths` and what else
    `engines.Files` takes. The groups of a column may be in a file: `{file = "cities.txt"}`.

    Examples
    --------
    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     path = Path(folder, "request.toml")
    ...     _ = path.write_text('epsilon = 1.0\n[[publish]]\nstatistics = ["count"]')
    ...     signed = load_request(path)
    >>> signed.request.epsilon, signed.source
    (1.0, None)
    """
    try:
        told = tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except FileNotFoundError:
        raise ArgumentError(f"There is no file {path}.") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        words = str(error) if isinstance(error, tomllib.TOMLDecodeError) else "it is no UTF-8 text"
        raise ArgumentError(f"{path} is no TOML: {words}.") from None
    try:
        source = source_of(told.pop("source", None), path.parent)
        if isinstance(source, Files) and "delimiter" in told:
            raise ArgumentError("Write the delimiter where the rest of the source is: [source].")
        questions = told.pop("publish", [])
        if not isinstance(questions, list) or not all(isinstance(one, dict) for one in questions):
            raise ArgumentError("Expected questions as tables: [[publish]].")
        told["publish"] = tuple(_made(Question, one) for one in questions)
        told["groups"] = _groups(told.get("groups", {}), path.parent)
        request = _made(Request, told)
    except DpnoiseError as error:
        raise ArgumentError(f"{path}: {error}") from None
    return Signed(request, source)


def _made(kind: Any, told: dict[str, Any]) -> Any:
    """Make a dataclass of a table of TOML, or say which of its names is wrong or missing."""
    known = [one.name for one in fields(kind)]
    for name in told:
        if name not in known:
            raise unknown("setting", name, known)
    needed = "epsilon" if kind is Request else "statistics"
    if needed not in told:
        raise ArgumentError(f"Expected {needed} in every {kind.__name__.lower()}.")
    return kind(**told)


def _groups(told: Any, folder: Path) -> dict[str, Any]:
    if not isinstance(told, dict):
        raise ArgumentError('Expected a table of groups: [groups], city = ["cork", "dublin"].')
    return {
        column: groups_in_file(folder / keys["file"])
        if isinstance(keys, dict) and isinstance(keys.get("file"), str)
        else keys
        for column, keys in told.items()
    }
