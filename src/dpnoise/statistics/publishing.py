"""From data to a published table: what a request asks for, in one pass over the rows."""

import datetime as dt
import re
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from itertools import islice
from os import PathLike
from pathlib import Path
from types import ModuleType
from typing import Any, Final

from dpnoise.core.errors import ArgumentError, import_extra, scrub_traceback
from dpnoise.core.strict_json import Data
from dpnoise.noise.generator import Generator, check_generator
from dpnoise.statistics import engines, report
from dpnoise.statistics.ledger import Ledger, Payment, utc_time
from dpnoise.statistics.plan import Key
from dpnoise.statistics.queries import Query
from dpnoise.statistics.requests import Discovery, Groups, Question, Request, Way, written
from dpnoise.statistics.results import Release

Progress = Callable[[float], object]

Keys = tuple[Any, ...]  # Of groups: text, numbers, booleans or dates.
Frame = Any  # Of pyarrow, pandas or Polars, which need not be installed.
Row = dict[str, Any]  # Plain data, for JSON or a table.

_WHOLE_NUMBER: Final = re.compile(r"-?[0-9]{1,40}")


@dataclass(frozen=True)
class Published:
    """One release, and the column and the group that it is about; no keys are all rows."""

    column: str | None
    by: tuple[str, ...]
    group: Keys
    release: Release


@dataclass(frozen=True)
class Table:
    """What was published, as a table of numbers and as a record of what was done.

    Parameters
    ----------
    request
        What was asked for.
    published
        The releases, in the order of the request.
    date
        When, in UTC.
    found
        The groups that were discovered, by column.
    ledger
        The name and the head of the ledger that paid for it, if one did, and what it has left.

    Examples
    --------
    >>> from dpnoise.statistics import Question, Request
    >>> table = rehearsal(Request(1.0, [Question(["count"])]))  # `publish` returns one with data.
    >>> table.rows()[0]["statistic"], table.record()["privacy_unit"]
    ('count', 'one row')
    """

    request: Request
    published: tuple[Published, ...]
    date: str = field(default_factory=utc_time)
    found: Mapping[str, Keys] = field(default_factory=dict)
    ledger: Data | None = None

    def __iter__(self) -> Iterator[Published]:
        return iter(self.published)

    def titles(self) -> list[str]:
        """Return the names of the columns of `rows`."""
        return [*map(_title, self.request.grouped), *_TEXTS, *_NUMBERS]

    def rows(self) -> list[Row]:
        """Return one row for each number: its groups, what it is, the number and its margins."""
        return [row for one in self.published for row in _rows(one, self.request.grouped)]

    def to_arrow(self) -> Frame:
        """Return the numbers as an Arrow table."""
        pa = import_extra("pyarrow", "files")
        rows = self.rows()
        columns = {name: [row[name] for row in rows] for name in self.titles()}
        kinds = {name: pa.float64() for name in _NUMBERS} | dict.fromkeys(_TEXTS, pa.string())
        arrays = {
            name: pa.array(held, kinds[name]) if name in kinds else _group_array(pa, held)
            for name, held in columns.items()
        }
        return pa.table(arrays)

    def to_pandas(self) -> Frame:
        """Return the numbers as a pandas DataFrame."""
        return import_extra("pandas", "frames").DataFrame(self.rows(), columns=self.titles())

    def to_polars(self) -> Frame:
        """Return the numbers as a Polars DataFrame."""
        return import_extra("polars", "frames").from_arrow(self.to_arrow())

    def record(self) -> Row:
        """Return what was done, for JSON: nothing of the data but the released numbers."""
        return {
            "format": 3,
            "dpnoise": version("dpnoise"),
            "date": self.date,
            "privacy_unit": self.request.privacy_unit,
            "neighbours": f"differ by {self.request.neighbours_in_words}",
            "privacy": self.request.cost().floats(),
            "ledger": None if self.ledger is None else dict(self.ledger),
            "request": self.request.described(),
            "discovered": [
                {
                    "column": one.column,
                    "threshold": one.threshold,
                    "mechanism": one.noise.words,
                    "scale": one.noise.mechanism.scale,
                    "groups": [written(key) for key in self.found.get(one.column, ())],
                }
                for one in self.request.discoveries()
            ],
            "releases": [_described(one) for one in self.published],
        }

    def to_html(self, path: str | PathLike[str], title: str | None = None) -> None:
        """Write one HTML page that needs nothing else: the numbers, and what they mean.

        Without a title, the page is called by what was published.

        Examples
        --------
        >>> from tempfile import TemporaryDirectory
        >>> from dpnoise.statistics import Question, Request
        >>> table = rehearsal(Request(1.0, [Question(["count"])]))
        >>> with TemporaryDirectory() as folder:
        ...     table.to_html(Path(folder, "page.html"), title="How many there are")
        ...     "<h1>How many there are</h1>" in Path(folder, "page.html").read_text()
        True
        """
        Path(path).write_text(report.render(self.record(), title), encoding="utf-8")


def _group_array(pa: ModuleType, keys: list[Key | None]) -> Frame:
    """Return an Arrow array of the keys of groups: as text if Arrow has no type for all of them."""
    is_mixed = {dt.date, dt.datetime} <= {type(key) for key in keys}  # Arrow would cut off times.
    with suppress(pa.ArrowException, OverflowError):
        if not is_mixed:
            return pa.array(keys)
    return pa.array([None if key is None else str(key) for key in keys], pa.string())


_NUMBERS = ("value", "margin", "joint_margin", "low", "high", "confidence", "epsilon", "rho")
_TEXTS = ("column", "statistic")


def _title(group_column: str) -> str:
    """Return what a table calls a column of groups: not as it calls one of its own."""
    return f"{group_column} (group)" if group_column in {*_TEXTS, *_NUMBERS} else group_column


def _rows(one: Published, by: Sequence[str]) -> Iterator[Row]:
    release = one.release
    keys = dict(zip(one.by, one.group, strict=True))
    for number in release.numbers():
        label = number.path[0] if number.path else release.query
        statistic = f"{release.query}, {label}" if release.query == "histogram" else label
        numbers = (
            *(number.value, number.error, number.joint, *(number.interval or (None, None))),
            *(release.confidence, release.epsilon, release.rho),
        )
        yield {
            **{_title(name): keys.get(name) for name in by},
            **dict(zip(_TEXTS, (one.column, statistic), strict=True)),
            **dict(zip(_NUMBERS, numbers, strict=True)),
        }


def _described(one: Published) -> Row:
    keys = [written(key) for key in one.group]
    group = None if not keys else keys[0] if len(keys) == 1 else keys
    return {"column": one.column, "by": list(one.by), "group": group, **asdict(one.release)}


@scrub_traceback
def publish(  # Most of its lines are documentation.
    source: object,
    request: Request,
    rng: Generator | None = None,
    progress: Progress = lambda _: None,
    *,
    ledger: Ledger | str | PathLike[str] | None = None,
) -> Table:
    r"""Release what is asked for, of a file or of a frame, computed by the engine that holds it.

    All errors come before any noise is drawn.

    Parameters
    ----------
    source
        The name of a file, or a pattern: CSV, Parquet or JSON lines, the first and the last also
        compressed; `engines.Files` for other dialects, several files and databases; or a pandas,
        Polars (eager or lazy), Arrow, DuckDB, PySpark or Dask frame.
    request
        What to publish.
    rng
        Where noise comes from; by default a new Generator.
    progress
        Called with numbers from 0 to 1 while files are read.
    ledger
        The ledger that pays for it, or its file: after all was read, before any noise is drawn.

    Examples
    --------
    >>> from dpnoise.statistics import Question, Request
    >>> request = Request(1.0, [Question(["count", "mean"], "x", lower=0, upper=10)])
    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     path = Path(folder, "data.csv")
    ...     _ = path.write_text("x\n1\n2\n3\n")
    ...     table = publish(path, request)
    >>> [row["statistic"] for row in table.rows()]
    ['count', 'mean']

    Of a frame:

    >>> import polars
    >>> table = publish(polars.DataFrame({"x": [1, 2, 3]}), request)
    >>> [row["statistic"] for row in table.rows()]
    ['count', 'mean']
    """
    rng = check_generator(rng)
    payment = Payment(ledger, request)
    source = _opened(source, request)
    found: dict[str, Keys] = {}
    if request.discovered:
        *first, progress = _passes(progress, len(request.discovered) + 2)
        found = _discovered(source, request, payment, rng, first)
    groups = {**request.groups, **found}
    plans = request.plans(groups)
    asked = list(plans.values())  # None, if no group was found.
    answers = engines.tally_all(source, asked, progress=progress) if asked else []
    tallies = dict(zip(plans, answers, strict=True))

    payment.make()

    def released(question: Question, query: Query) -> list[Release]:
        way = Way(question.by, question.own)
        if way not in plans:
            return []  # No group was found.
        answer: Any = tallies[way].answers[plans[way].asks.index(query.ask)]
        return query.release(answer, request.confidence, rng)

    published = _published(request, groups, released)
    table = Table(request, published, found=found, ledger=payment.told)
    payment.keep(table.record())
    return table


def _opened(source: object, request: Request) -> object:
    """Return what an engine reads, for the name of a file."""
    if isinstance(source, Path | str):
        source = engines.Files(source, delimiter=request.delimiter)
    if request.discovered and isinstance(source, engines.Files) and source.is_standard_input:
        raise ArgumentError(
            "Groups are discovered by reading the data twice, which the standard input cannot be. "
            "Write it to a file, or declare the groups."
        )
    return source


def _discovered(
    source: object, request: Request, payment: Payment, rng: Generator, passes: Sequence[Progress]
) -> dict[str, Keys]:
    """Find the groups that are not declared: those whose noisy number of persons is large enough.

    What is wrong with the rest of the request is found before all is paid for and noise is drawn.
    """
    *counting, checking = passes
    counted = []
    for one, progress in zip(request.discoveries(), counting, strict=True):
        text = request.text_columns
        held = engines.holders(source, one.column, one.unit, text=text, progress=progress)
        counted.append((one, held))
    engines.tally_all(source, request.checks(), progress=checking)
    payment.make()
    ranked = {one.column: _passing(one, held, rng) for one, held in counted}
    return _fitting(request, ranked)


def _passes(progress: Progress, number: int) -> list[Progress]:
    """Return what to tell of how far each of several passes over the data is."""

    def of(place: int) -> Progress:
        return lambda part: progress((place + part) / number)

    return [of(place) for place in range(number)]


def _passing(one: Discovery, held: engines.Holders, rng: Generator) -> list[str]:
    """Return the groups at or above the threshold, those with the largest noisy numbers first."""
    if not held.keys:
        return []
    noisy = one.noise.release(held.persons, rng).tolist()
    ranked = sorted(
        (-number, _label_order(key), key)
        for number, key in zip(noisy, held.keys, strict=True)
        if number >= one.threshold
    )
    return [key for *_, key in ranked]


def _fitting(request: Request, ranked: Mapping[str, list[str]]) -> dict[str, Keys]:
    """Return the groups of each column in order, without the smallest if all are too many.

    All is paid for by now, so that an error would waste it. The choice is one of noisy numbers.
    """

    def first(number: int) -> dict[str, Keys]:
        return {
            column: (*sorted(keys[:number], key=_label_order),) for column, keys in ranked.items()
        }

    def is_too_many(number: int) -> bool:
        try:
            request.check_plans({**request.groups, **first(number)})
        except ArgumentError:
            return True
        return False

    numbers = range(1, max(map(len, ranked.values())) + 1)
    return first(bisect_left(numbers, 1, key=is_too_many))


def _label_order(label: str) -> tuple[bool, int, str]:
    """Order labels by what they are, not by the rows: whole numbers first, then text."""
    is_number = bool(_WHOLE_NUMBER.fullmatch(label))
    return not is_number, int(label) if is_number else 0, label


def rehearsal(request: Request) -> Table:
    """Return what `publish` would, with zeros for numbers: no file is read and no noise drawn."""

    def zeros(question: Question, query: Query) -> list[Release]:
        labels = getattr(query, "labels", ())
        if len(labels) == 1 and query.name != "histogram":
            labels = ()
        value = [0] * len(labels) if labels else 0.0
        known: Any = {"confidence": request.confidence, "labels": labels, "rho": query.rho}
        zero = Release(query.name, value, query.epsilon, scale=None, error=1.0, **known)
        return [zero] * len(request.keys(question, groups))

    groups = {
        column: ("",) if isinstance(keys, str) else keys for column, keys in request.groups.items()
    }
    return Table(request, _published(request, groups, zeros))


def _published(
    request: Request, groups: Groups, released: Callable[[Question, Query], list[Release]]
) -> tuple[Published, ...]:
    """Put the releases of all questions together: all statistics of a group, then the next."""
    published: list[Published] = []
    prepared = iter(request.prepare(groups))
    for question in request.publish:
        asked = islice(prepared, len(question.statistics))
        releases = [released(question, query) for _, query in asked]
        published += [
            Published(question.column, question.by, group, by_group[i])
            for i, group in enumerate(request.keys(question, groups))
            for by_group in releases
        ]
    return tuple(published)
