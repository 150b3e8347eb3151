"""`dpnoise release --check`: what a request costs and how close its numbers are."""

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import replace
from typing import Final, NamedTuple

from dpnoise.cli import terminal
from dpnoise.core.errors import ArgumentError
from dpnoise.core.safe_text import escape_text, format_confidence
from dpnoise.statistics.digits import format_margin
from dpnoise.statistics.left_out import ESTIMATES, LeftOut, Noisy
from dpnoise.statistics.queries import Mean, Variance
from dpnoise.statistics.requests import Discovery, Question, Request
from dpnoise.statistics.results import NO_INFORMATION, Release
from dpnoise.statistics.selections import QuantileSelection
from dpnoise.statistics.shared_sums import AnyQuery

_COUNTS: Final = {"count", "distinct", "histogram", "persons"}  # Their margins are of the rows.

_SEVERAL_ROWS: Final = " If people have several rows, say which column identifies them: --person."


class Tolerance(NamedTuple):
    """The largest margin: a number, or a share of the range of possible numbers."""

    amount: float
    is_share: bool

    def __str__(self) -> str:
        return f"{100 * self.amount:g} %" if self.is_share else f"{self.amount:,g}"

    def allows(self, query: AnyQuery, rows: int, confidence: float) -> bool:
        """Return whether the margin for a number of rows is small enough."""
        most = self.amount * query.possible_range(rows) if self.is_share else self.amount
        return query.expected_margin(rows, confidence) <= most


def smallest_budget(request: Request, rows: int, tolerance: Tolerance) -> Request:
    """Return the request with the smallest budget that keeps every margin within a tolerance.

    Groups to discover are shown at this budget if each of their rows is another person.
    """
    if any(question.error is not None for question in request.publish):
        raise ArgumentError(
            "The request asks for errors, which set its budget: leave out --within."
        )

    def with_budget(budget: float) -> Request:
        is_rho = request.rho is not None
        return replace(request, rho=budget) if is_rho else replace(request, epsilon=budget)

    def is_enough(budget: float) -> bool:
        try:
            candidate = with_budget(budget)
        except ArgumentError:  # Noise of this scale is out of range.
            return False
        queries = (query for _, query in candidate.prepare())
        sizes = (each.shown_size(request.confidence) for each in candidate.discoveries())
        return all(size <= rows for size in sizes) and all(
            tolerance.allows(query, rows, request.confidence) for query in queries
        )

    # From 10^-6 to 999, with three digits each.
    budgets = [float(f"{digits}e{power}") for power in range(-8, 1) for digits in range(100, 1000)]
    index = bisect_left(budgets, 1, key=is_enough)
    if index == len(budgets):
        raise ArgumentError(
            f"No budget below {budgets[-1]:g} keeps every margin within {tolerance} for {rows:,} "
            "rows. Allow a larger margin."
        )
    return with_budget(budgets[index])


def _describe(
    request: Request, question: Question, query: AnyQuery, rows_in_group: int | None
) -> list[str]:
    """Return the column, the statistic, the groups, the cost and the margins of a query."""
    name = "rows" if question.column is None else question.column
    is_discovered = set(question.by) & set(request.discovered)
    groups = 1 if is_discovered else len(request.keys(question))
    number = "found" if is_discovered else f"{groups:,}"
    by = f"{number} of {' and '.join(question.by)}" if question.by else "all rows"
    filters = _filters(request)
    if question.filter_in_words is not None:
        number = f" {1 + filters.index(question.filter_in_words)}" if len(filters) > 1 else ""
        by += f", filter{number}"
    if rows_in_group is None:
        margins = query.describe_margins(request.confidence, groups)
    else:
        margins = _margin_text(query, rows_in_group, request.confidence)
    return [name, query.name, by, amount_text(query), margins]


def explain(request: Request, rows_in_group: int | None, tolerance: Tolerance | None) -> Request:
    """Print the statistics, costs and margins of a request, without reading a row.

    Return the request, with the smallest budget for the tolerance if there is one.
    """
    if rows_in_group is not None and tolerance is not None:
        request = smallest_budget(request, rows_in_group, tolerance)
    console = terminal.console(soft_wrap=True)
    spends = "epsilon" if all(query.rho is None for _, query in request.prepare()) else "spends"
    margins_title = "margins" if rows_in_group is None else f"margins for {rows_in_group:,} rows"
    titles = ["column", "statistic", "groups", spends, margins_title]
    rows = [_describe(request, *prepared, rows_in_group) for prepared in request.prepare()]
    terminal.print_table(console, terminal.format_table(titles, rows, console.width, folded=4))
    for text in _explain_columns(request):
        console.print(terminal.prose(text))
    if request.left_out_cost is not None:
        console.print(terminal.prose(_explain_estimates(request, rows_in_group)))
    if request.consistent:
        before = "Margins are those before the adjustment, which makes most of them smaller."
        sentences = [*request.adjusted_in_words, before]
        console.print(terminal.prose("\n" + escape_text(" ".join(sentences))))
    if rows_in_group is not None:
        console.print(terminal.prose(_explain_rows(request, rows_in_group, tolerance)))
    summary = (
        f"\n{request.cost_in_words} in all. {neighbours_text(request)} Missing values: "
        f"{request.missing}.\nProtected: {escape_text(request.privacy_unit)}."
        f"{'' if request.person else _SEVERAL_ROWS}\nMargins hold with probability "
        f"{format_confidence(request.confidence)}. No row is read."
    )
    console.print(terminal.prose(summary))
    return request


def _explain_estimates(request: Request, rows_in_group: int | None) -> str:
    """Return what estimates the rows and values left out, and its margin where there are none."""
    text = f"\n{request.left_out_cost} {ESTIMATES}."
    if rows_in_group is None or request.discovered:
        return text
    queries, margins = request.hidden_counts(), []
    for coverage in request.coverage:
        rows = rows_in_group * (len(request.keys(coverage.members[0][0])) if coverage.by else 1)
        noisy = {
            question: Noisy(queries[question], [rows] if question.column is None else [rows, 0])
            for question in coverage.questions
        }
        margins += LeftOut.of(coverage, noisy, request.confidence).margins
    margin = format_margin(100 * max(margins))
    return f"{text} If nothing is left out, they are within {margin} %."


def _filters(request: Request) -> list[str]:
    """Return the filters of the questions, each once."""
    filters = (question.filter_in_words for question in request.questions)
    return list(dict.fromkeys(text for text in filters if text is not None))


def _explain_columns(request: Request) -> Iterator[str]:
    """Yield paragraphs on filters, derived columns, groups, and discovered groups."""
    filters = _filters(request)
    for i, text in enumerate(filters, 1):
        yield f"\nfilter{f' {i}' if len(filters) > 1 else ''}: rows where {escape_text(text)}"
    for name, text in request.derived.items():
        yield f"\n{escape_text(name)} = {escape_text(text)}"
    for column, keys in request.groups.items():
        if not isinstance(keys, str):
            names = (f'"{key}"' if "," in str(key) else str(key) for key in keys)
            yield f"\ngroups of {escape_text(column)}: {escape_text(', '.join(names))}"
    for discovery in request.discoveries():
        rule = discovery.describe_rule(request.confidence)
        yield f"\ngroups of {escape_text(discovery.subject)}: {rule}"
        if discovery.counts:
            yield escape_text(discovery.count_note)


def _margin_text(query: AnyQuery, rows: int, confidence: float) -> str:
    """Return the margin of one number, and how large it is within its range."""
    margin, whole = query.expected_margin(rows, confidence), query.possible_range(rows)
    if isinstance(query, Mean | Variance | QuantileSelection) and 2 * margin >= whole:
        return NO_INFORMATION  # Around the middle, the margin covers everything.
    if query.name == "groups":
        return query.describe_margins(confidence, 1)
    share = f"{100 * margin / whole:.3g} % of the {'rows' if query.name in _COUNTS else 'range'}"
    has_margin = not isinstance(query, QuantileSelection) or query.interval
    prefix = "" if has_margin else "no margin without intervals; expected "
    return f"{prefix}within {format_margin(margin)}, {share}"


def _explain_rows(request: Request, rows: int, tolerance: Tolerance | None) -> str:
    """Return what a preview for a number of rows assumes, and the budget that it found."""
    has = "each group has" if request.grouped else "the data has"
    assumption = f"\nThe margins assume that {has} {rows:,} rows, as --rows says."
    texts: list[str] = []
    if tolerance is not None:
        texts.append(
            f"{request.cost_in_words} is the least that keeps every margin within {tolerance}."
        )
    if tolerance is not None and request.discovered:
        texts.append("It shows groups of this size, if each of their rows is of another person.")
    if any(query.name not in {*_COUNTS, "groups"} for _, query in request.prepare()):
        texts.append(
            "The range has all numbers that the declared bounds allow. Margins are those of evenly "
            "spread values."
        )
    return "\n".join(filter(None, [assumption, " ".join(texts)]))


def amount_text(item: AnyQuery | Release | Discovery) -> str:
    """Return the loss of a statistic or of a discovery as text."""
    return f"{item.epsilon:.4g}" if item.epsilon is not None else f"rho {item.rho:.4g}"


def neighbours_text(request: Request) -> str:
    """Return how neighbouring data sets differ, as a sentence."""
    words = request.neighbours_in_words
    return f"{words[0].upper()}{words[1:]}."
