"""Publish the statistics of a request as a table.

This takes one pass over the rows, and more passes if groups are discovered.
"""

import datetime as dt
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from itertools import islice
from os import PathLike
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import numpy as np

from dpnoise.core import html
from dpnoise.core.errors import ArgumentError, ArgumentTypeError, import_extra, scrub_traceback
from dpnoise.core.safe_text import align_columns, escape_text, format_confidence
from dpnoise.core.strict_json import Data
from dpnoise.core.version import __version__
from dpnoise.noise.generator import Generator, check_generator
from dpnoise.statistics import engines, report
from dpnoise.statistics.engines.checking import TooManyCountsError
from dpnoise.statistics.group_discovery import FROM_DISCOVERY, Labels, group_order
from dpnoise.statistics.ledger import Ledger, LedgerCharge, utc_time
from dpnoise.statistics.left_out import HiddenCounts, LeftOut, Noisy, TableCount
from dpnoise.statistics.marginals import ADDS_UP, Adjustment, marginal_answer
from dpnoise.statistics.plan import Answer, Key
from dpnoise.statistics.report import INVENTED_PEOPLE, quote_blanks
from dpnoise.statistics.request_fields import Groups, key_for_json
from dpnoise.statistics.requests import Question, Request
from dpnoise.statistics.results import BELOW_MARGIN, MARK, SMALL_TABLE, Release
from dpnoise.statistics.shared_sums import AnyQuery, NoisySums

Progress = Callable[[float], object]

Keys = tuple[Any, ...]  # Keys of groups: text, numbers, booleans or dates.
DiscoveredKeys = dict[Labels, int | None]  # With their noisy numbers of persons, if there are some.
Frame = Any  # A table of pyarrow, pandas or Polars, which need not be installed.
Row = dict[str, Any]  # Plain data, for JSON or a table.

_MOST_SHOWN: Final = 100  # A printed table has at most this many numbers.


@dataclass(frozen=True)
class Published:
    """One release with its column and group.

    Parameters
    ----------
    column
        The column of numbers; None for a count of rows.
    by
        The columns that rows are grouped by.
    group
        The key of the group, one for each column of `by`; empty for all rows.
    release
        The published number and its margin.
    where
        The filter of the question, in words; None for all rows.
    remarks
        What the margin does not cover, and what the number leaves out, in words.
    """

    column: str | None
    by: Sequence[str]
    group: Keys
    release: Release
    where: str | None = None
    remarks: tuple[str, ...] = ()

    def __str__(self) -> str:
        """Return the column, the group, and the number with its margin."""
        groups = [f"{name} {key}" for name, key in zip(self.by, self.group, strict=True)]
        subject = (self.column or "rows") + ("" if self.where is None else f" where {self.where}")
        about = escape_text(", ".join([subject, *groups]))
        return (
            f"{about}, {self.release}" if not self.release.labels else f"{about}:\n{self.release}"
        )


@dataclass(frozen=True)
class Table:
    """Published statistics, as a table of numbers and as a record of the release.

    Parameters
    ----------
    request
        The request.
    published
        The releases, in the order of the request.
    date
        The date of the release, in UTC.
    found
        The discovered groups, by the columns that were discovered together.
    ledger
        The name, the head and the remaining budget of the ledger that paid; None without a ledger.
    source
        The names of the files without their folders, the table, or the kind of frame.
    left_out
        Estimates of what the numbers leave out, if the request asks for them.
    invented
        Whether the data is a sample of invented people, which has a column `invented_person`.

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
    found: Mapping[tuple[str, ...], Keys] = field(default_factory=dict)
    ledger: Data | None = None
    source: str | None = None
    left_out: tuple[LeftOut, ...] = ()
    invented: bool = False

    def __iter__(self) -> Iterator[Published]:
        return iter(self.published)

    def __str__(self) -> str:
        """Return the numbers with their margins as text, and their cost."""
        rows, numbers, notes = self._shown()
        return "\n".join([align_columns(rows, numbers), "", *notes])

    def _repr_html_(self) -> str:
        rows, numbers, notes = self._shown()
        return html.render_template(SMALL_TABLE, rows=rows, numbers=numbers, notes=notes)

    def _shown(self) -> tuple[list[list[str]], int, list[str]]:
        """Return titles and rows of text, how many of their columns are numbers, and notes."""
        rows, request = self.rows(), self.request
        labels = [*map(_title, request.grouped), *_TEXTS]
        labels = [name for name in labels if any(row[name] is not None for row in rows)]
        numbers = [number for published in self for number in published.release.numbers()]
        titles = ["published", "within"]
        if any(number.joint is not None for number in numbers):
            titles.append("all within")
        shown = [
            [
                *("" if row[name] is None else quote_blanks(row[name]) for name in labels),
                *number.format(mark=MARK)[: len(titles)],
            ]
            for row, number in list(zip(rows, numbers, strict=True))[:_MOST_SHOWN]
        ]
        probability = format_confidence(request.confidence)
        rule = f"hold with probability {probability}, and do not cover {request.uncounted}"
        cost = f"{request.cost_in_words} in all, with {request.neighbours_in_words}"
        notes = [*request.adjusted_in_words, f"{cost}. Margins {rule}.", *self.left_out_in_words]
        notes = [f"{INVENTED_PEOPLE.capitalize()}.", *notes] if self.invented else notes
        notes += [discovery.count_note for discovery in request.discoveries() if discovery.counts]
        if any(number.is_below_margin for number in numbers):
            notes.append(f"{MARK.strip()} {BELOW_MARGIN}: the exact number may be 0.")
        if len(rows) > len(shown):
            notes.insert(0, f"{len(rows) - len(shown):,} more numbers: see rows() or to_pandas().")
        if not rows:
            notes.insert(0, "No group could be published.")
        escaped = [[escape_text(cell) for cell in row] for row in [[*labels, *titles], *shown]]
        return escaped, len(titles), notes

    @property
    def left_out_in_words(self) -> list[str]:
        """What the numbers leave out: a sentence for each table."""
        return [each.describe(is_only=len(self.left_out) == 1) for each in self.left_out]

    def titles(self) -> list[str]:
        """Return the names of the columns of `rows`."""
        return [*map(_title, self.request.grouped), *_TEXTS, *_NUMBERS, _NOTE]

    def rows(self) -> list[Row]:
        """Return one row for each number: its groups, its statistic, its value and its margins."""
        grouped, note = self.request.grouped, INVENTED_PEOPLE if self.invented else None
        return [row for published in self.published for row in _rows(published, grouped, note)]

    def to_arrow(self) -> Frame:
        """Return the numbers as an Arrow table."""
        pa = import_extra("pyarrow", "files")
        rows = self.rows()
        columns = {name: [row[name] for row in rows] for name in self.titles()}
        texts = dict.fromkeys((*_TEXTS, _NOTE), pa.string())
        kinds = {name: pa.float64() for name in _NUMBERS} | texts
        arrays = {
            name: pa.array(entries, kinds[name]) if name in kinds else _group_array(pa, entries)
            for name, entries in columns.items()
        }
        return pa.table(arrays)

    def to_pandas(self) -> Frame:
        """Return the numbers as a pandas DataFrame."""
        return import_extra("pandas", "frames").DataFrame(self.rows(), columns=self.titles())

    def to_polars(self) -> Frame:
        """Return the numbers as a Polars DataFrame."""
        return import_extra("polars", "frames").from_arrow(self.to_arrow())

    def record(self) -> Row:
        """Return a record of the release for JSON, without data except released numbers."""
        return {
            "format": 4,
            "dpnoise": __version__,
            "date": self.date,
            "source": self.source,
            "invented": self.invented,
            "released_by": self.request.released_by,
            "privacy_unit": self.request.privacy_unit,
            "neighbours": f"differ by {self.request.neighbours_in_words}",
            "margins": f"do not cover {self.request.uncounted}",
            "left_out": [each.to_dict() for each in self.left_out],
            "left_out_in_words": self.left_out_in_words,
            "left_out_cost": self.request.left_out_cost,
            "privacy": self.request.cost().floats(),
            "adjusted": self.request.adjusted_in_words,
            "ledger": None if self.ledger is None else dict(self.ledger),
            "request": self.request.to_dict(),
            "discovered": [
                {
                    "columns": list(discovery.columns),
                    "threshold": discovery.threshold,
                    "rule": discovery.describe_rule(self.request.confidence),
                    "mechanism": discovery.noise.words,
                    "scale": discovery.scale,
                    "epsilon": discovery.epsilon,
                    "rho": discovery.rho,
                    "paid_for": list(discovery.paid_for),
                    "note": discovery.count_note,
                    "groups": [
                        _group_data(group) for group in self.found.get(discovery.columns, ())
                    ],
                }
                for discovery in self.request.discoveries()
            ],
            "releases": [_release_data(published) for published in self.published],
        }

    def to_html(self, path: str | PathLike[str], title: str | None = None) -> None:
        """Write a self-contained HTML page with the numbers and their meaning.

        Parameters
        ----------
        path
            The file to write. An existing file is replaced, as by other Python methods that write a
            file: this table still has its numbers. `dpnoise release` refuses to replace a file.
        title
            The title of the page; by default it names the statistics.

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
        Path(path).write_text(report.render_record(self.record(), title), encoding="utf-8")


def _group_array(pa: ModuleType, keys: list[Key | None]) -> Frame:
    """Return an Arrow array of keys, as text if Arrow has no common type for them."""
    is_mixed = {dt.date, dt.datetime} <= {type(key) for key in keys}  # Arrow would cut off times.
    with suppress(pa.ArrowException, OverflowError):
        if not is_mixed:
            return pa.array(keys)
    return pa.array([None if key is None else str(key) for key in keys], pa.string())


_NUMBERS = ("value", "margin", "joint_margin", "low", "high", "confidence", "epsilon", "rho")
_TEXTS = ("column", "where", "statistic")
_NOTE = "note"  # Marks numbers without information, and margins that rows were left out of.


def _title(group_column: str) -> str:
    """Return the title of a column of groups, distinct from all other titles of a table."""
    return (
        f"{group_column} (group)" if group_column in {*_TEXTS, *_NUMBERS, _NOTE} else group_column
    )


def _rows(published: Published, by: Sequence[str], note: str | None) -> Iterator[Row]:
    release, remarks = published.release, [*published.remarks]
    if release.adjusted:
        remarks.insert(0, ADDS_UP)
    if release.threshold is not None:
        remarks.append(f"shown because it is {release.threshold:,} or more")
        remarks.append("its margin holds if the exact number is")
    keys = dict(zip(published.by, published.group, strict=True))
    for number in release.numbers():
        label = number.path[0] if number.path else release.query
        statistic = f"{release.query}, {label}" if release.query == "histogram" else label
        numbers = (
            *(number.value, number.error, number.joint, *(number.interval or (None, None))),
            *(release.confidence, release.epsilon, release.rho),
        )
        if number.value is None:
            numbers = (*[None] * len(numbers[:5]), *numbers[5:])
        yield {
            **{_title(name): keys.get(name) for name in by},
            **dict(zip(_TEXTS, (published.column, published.where, statistic), strict=True)),
            **dict(zip(_NUMBERS, numbers, strict=True)),
            _NOTE: "; ".join(filter(None, [note, number.note, *remarks])) or None,
        }


def _group_data(group: Keys) -> Any:
    """Return the key of a group for JSON: a list if it groups by several columns."""
    keys = [key_for_json(key) for key in group]
    return None if not keys else keys[0] if len(keys) == 1 else keys


def _release_data(published: Published) -> Row:
    group = _group_data(published.group)
    about = {"column": published.column, "by": list(published.by), "group": group}
    return {**about, "where": published.where, **asdict(published.release)}


@scrub_traceback
def publish(  # Most of its lines are documentation.
    source: object,
    request: Request,
    rng: Generator | None = None,
    progress: Progress = lambda _: None,
    *,
    ledger: Ledger | str | PathLike[str] | None = None,
) -> Table:
    r"""Publish the statistics of a request, from a file or a frame.

    The engine that holds the data computes exact integers; this process adds the noise. All errors
    are raised before any noise is drawn.

    Parameters
    ----------
    source
        The name of a file, or a pattern such as "2024-*.csv". The format is CSV, Parquet or JSON
        lines; CSV and JSON lines may be compressed. Use `engines.Files` for other dialects, several
        files and databases. Or a pandas, Polars (eager or lazy), Arrow, DuckDB, PySpark or Dask
        frame.
    request
        The statistics to publish, and their budget.
    rng
        The `Generator` that draws the noise; by default a new one.
    progress
        A function that is called with numbers from 0 to 1 while files are read.
    ledger
        The ledger that pays for the release, or its file; by default that of the request. It is
        charged after the data is read and before any noise is drawn.

    Raises
    ------
    ArgumentError
        If the data does not fit the request: a column is missing, or a value is missing or is not a
        number.
    BudgetError
        If the ledger cannot pay for the request.
    MissingExtraError
        If a package that reads the source is not installed.

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

    From a frame:

    >>> import polars
    >>> table = publish(polars.DataFrame({"x": [1, 2, 3]}), request)
    >>> [row["statistic"] for row in table.rows()]
    ['count', 'mean']
    """
    rng = check_generator(rng)
    _check_request(source, request)
    charge = LedgerCharge(ledger, request)
    source = _open_source(source, request)
    discovered: dict[tuple[str, ...], DiscoveredKeys] = {}
    if request.discovered:
        *first, progress = _passes(progress, len(request.discovered_together) + 2)
        discovered = _discover(source, request, charge, rng, first)
    found = {columns: tuple(keys) for columns, keys in discovered.items()}
    groups = {**request.groups, **found}
    plans = request.plans(groups)
    plan_list = list(plans.values())  # Empty if no group was discovered.
    answers = engines.tally_all(source, plan_list, progress=progress) if plan_list else []
    tallies = dict(zip(plans, answers, strict=True))
    adjustments = request.adjustments()
    invented = engines.is_invented(source)

    charge.pay()

    noisy_sums = NoisySums(rng)

    def answer_of(question: Question, query: AnyQuery) -> Any:
        """Return the exact answer; None if no group was discovered."""
        key = request.table_key(question, query)
        return tallies[key].answers[plans[key].asks.index(query.ask)] if key in plans else None

    def release(question: Question, query: AnyQuery) -> list[Release]:
        if isinstance(query, FROM_DISCOVERY):
            answer = _discovered_answer(request, question, groups, discovered)
        elif (answer := answer_of(question, query)) is None:
            return []
        else:
            answer = _exact_answer(request, question, query, answer)
        return noisy_sums.release(query, answer, request.confidence)

    def draw(question: HiddenCounts, query: TableCount) -> list[int]:
        return query.draw(rng, answer_of(question, query))

    left_out = _estimate_left_out(request, groups, draw)
    published = _publish_all(request, groups, release, left_out, adjustments)
    if (largest := request.largest_margin) is not None:
        published = tuple(replace(one, release=one.release.suppress(largest)) for one in published)
    table = Table(
        request,
        published,
        found=found,
        ledger=charge.summary,
        source=_source_name(source),
        left_out=left_out,
        invented=invented,
    )
    charge.note_record(table.record())
    return table


def _estimate_left_out(
    request: Request, groups: Groups, draw: Callable[[HiddenCounts, TableCount], list[int]]
) -> tuple[LeftOut, ...]:
    """Return the estimates of what numbers leave out, from noisy counts that `draw` returns."""
    hidden = request.hidden_counts(groups).items()
    noisy = {question: Noisy(query, draw(question, query)) for question, query in hidden}
    return tuple(LeftOut.of(each, noisy, request.confidence) for each in request.coverage)


def _discovered_answer(
    request: Request,
    question: Question,
    groups: Groups,
    discovered: Mapping[tuple[str, ...], DiscoveredKeys],
) -> Any:
    """Return the noisy numbers of persons of a question's groups, from their discovery."""
    columns = request.discovered_columns(question.by)
    order = [question.by.index(name) for name in columns]
    keys: Any = request.keys(question, groups)
    return np.array([discovered[columns][tuple(key[i] for i in order)] for key in keys])


def _exact_answer(request: Request, question: Question, query: AnyQuery, answer: Answer) -> Answer:
    """Return the answer to a question: sums of the answer for a whole table if it must add up."""
    if not request.is_adjusted(question, query.name):
        return answer
    return marginal_answer(request.marginal(question, query.name), answer)


def _check_request(source: object, request: object) -> None:
    if isinstance(source, Request):
        raise ArgumentTypeError("publish takes the data first: publish(data, request).")
    if not isinstance(request, Request):
        advice = "" if not hasattr(request, "request") else ": give its `request`"
        raise ArgumentTypeError(
            'request must be a Request, such as Request(1.0, [Question(["count"])]), got '
            f"{type(request).__name__}{advice}."
        )


def _open_source(source: object, request: Request) -> object:
    """Wrap a path in `Files`, and return any other source unchanged.

    Raise if groups must be discovered in the standard input, which can be read only once.
    """
    if isinstance(source, Path | str):
        source = engines.Files(source, delimiter=request.delimiter)
    if request.discovered and isinstance(source, engines.Files) and source.is_standard_input:
        raise ArgumentError(
            "Groups are discovered by reading the data twice, which the standard input cannot be. "
            "Write it to a file, or declare the groups."
        )
    return source


def _source_name(source: object) -> str:
    """Return the name of some files, or the kind of frame, such as "pandas DataFrame"."""
    if isinstance(source, engines.Files):
        return source.source_name
    kind = type(source)
    return f"{kind.__module__.partition('.')[0].lstrip('_')} {kind.__name__}"


def _discover(
    source: object,
    request: Request,
    charge: LedgerCharge,
    rng: Generator,
    passes: Sequence[Progress],
) -> dict[tuple[str, ...], DiscoveredKeys]:
    """Return the groups that are shown, with their noisy numbers of persons, by columns.

    Every error in the data is raised before the ledger is charged and noise is drawn.
    """
    *counting, checking = passes
    counts = []
    for discovery, progress in zip(request.discoveries(), counting, strict=True):
        text = request.text_columns
        person_counts = engines.count_persons_by_group(
            source, discovery.columns, discovery.unit, text=text, progress=progress
        )
        counts.append((discovery, person_counts))
    engines.tally_all(source, request.checks(), progress=checking)
    charge.pay()
    ranked = {
        discovery.columns: discovery.discover(person_counts.keys, person_counts.persons, rng)
        for discovery, person_counts in counts
    }
    return _limit_groups(request, ranked)


def _passes(progress: Progress, number: int) -> list[Progress]:
    """Return a progress function for each of several passes over the data."""

    def for_pass(index: int) -> Progress:
        return lambda part: progress((index + part) / number)

    return [for_pass(index) for index in range(number)]


def _limit_groups(
    request: Request, ranked: Mapping[tuple[str, ...], DiscoveredKeys]
) -> dict[tuple[str, ...], DiscoveredKeys]:
    """Return the groups of each discovery in order: the first, as many as the plans allow.

    The limit is the same for every discovery. The ledger is already charged, so an error would
    waste budget. Which groups are left out depends only on noisy numbers, or on their names.
    """

    def keep_first(number: int) -> dict[tuple[str, ...], DiscoveredKeys]:
        return {
            columns: {key: keys[key] for key in sorted(list(keys)[:number], key=group_order)}
            for columns, keys in ranked.items()
        }

    def is_too_many(number: int) -> bool:
        kept = {columns: tuple(keys) for columns, keys in keep_first(number).items()}
        try:
            request.check_plans({**request.groups, **kept})
        except TooManyCountsError:
            return True
        return False

    numbers = range(1, max(map(len, ranked.values())) + 1)
    # bisect_left returns how many of the numbers 1, 2, ... are not too many; True equals 1.
    return keep_first(bisect_left(numbers, 1, key=is_too_many))


def rehearsal(request: Request) -> Table:
    """Return the table of `publish` with zeros for numbers and 1 for margins, without data."""

    def zeros(question: Question, query: AnyQuery) -> list[Release]:
        labels = getattr(query, "labels", ())
        if len(labels) == 1 and query.name != "histogram":
            labels = ()
        value = [0] * len(labels) if labels else None if query.name == "groups" else 0.0
        known: Any = {"confidence": request.confidence, "labels": labels, "rho": query.rho}
        error = None if value is None else 1.0
        zero = Release(query.name, value, query.epsilon, scale=None, error=error, **known)
        return [zero] * len(request.keys(question, groups))

    groups = request.with_placeholders()
    left_out = _estimate_left_out(request, groups, lambda _, query: query.totals().tolist())
    return Table(request, _publish_all(request, groups, zeros, left_out), left_out=left_out)


def _publish_all(
    request: Request,
    groups: Groups,
    release: Callable[[Question, AnyQuery], list[Release]],
    left_out: Sequence[LeftOut],
    adjustments: Sequence[tuple[list[int], Adjustment]] = (),
) -> tuple[Published, ...]:
    """Make the releases of all questions, adjust them to add up, and arrange them by group.

    All statistics of a group come first, then those of the next group. `release` makes the
    releases of one statistic, for all groups.
    """
    published: list[Published] = []
    noisy = [release(question, query) for question, query in request.prepare(groups)]
    for indices, adjustment in adjustments:
        adjusted = adjustment.adjust_releases([noisy[index] for index in indices])
        for index, releases in zip(indices, adjusted, strict=True):
            noisy[index] = releases
    remaining = iter(noisy)
    for question in request.questions:
        releases_of_question = list(islice(remaining, len(question.statistics)))
        remarks = [_remarks(request, left_out, question, x) for x in question.statistic_names]
        where = question.filter_in_words
        published += [
            Published(question.column, question.by, group, by_group[i], where, remark)
            for i, group in enumerate(request.keys(question, groups))
            for by_group, remark in zip(releases_of_question, remarks, strict=True)
        ]
    return tuple(published)


def _remarks(
    request: Request, left_out: Sequence[LeftOut], question: Question, statistic: str
) -> tuple[str, ...]:
    """Return what the margin of a statistic does not cover, and what its numbers leave out."""
    rows = request.uncounted_rows(question, statistic)
    clamping = "clamped values and " if question.clamps(statistic) else ""
    margin = [f"the margin does not cover {clamping}{rows}"] if rows else []
    shares = [
        each.remark(question, statistic)
        for each in left_out
        if (question, statistic) in each.members
    ]
    return (*margin, *filter(None, shares))
