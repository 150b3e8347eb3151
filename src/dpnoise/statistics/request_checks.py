"""Checks of the fields of a request. Every error says what to change."""

from collections.abc import Mapping, Sequence
from itertools import product
from os import PathLike
from typing import Final

from dpnoise.core.errors import (
    ArgumentError,
    check_choice,
    check_probability,
    did_you_mean,
    is_list,
    reject,
    reject_type,
)
from dpnoise.core.safe_text import shorten
from dpnoise.statistics.bounds import NEIGHBOURS
from dpnoise.statistics.engines import checking
from dpnoise.statistics.expressions import (
    NUMBER,
    TEXT,
    SourceColumn,
    ValueNode,
    check_kinds,
    group_column,
    kind_of,
    possible_values,
    source_columns,
)
from dpnoise.statistics.marginals import (
    Hierarchy,
    derived_groups,
    from_coarse_to_fine,
    hierarchy_axes,
)
from dpnoise.statistics.queries import check_confidence
from dpnoise.statistics.questions import (
    GROUPS,
    HISTOGRAM,
    PERSON_LIMITS,
    PERSONS,
    QUERIES,
    Question,
    check_groups,
    check_person_limits,
)
from dpnoise.statistics.request_fields import Groups, RequestFields, counts_rows

_LONGEST_LIST: Final = 200  # Characters of the columns that an error lists.


def check_fields(request: RequestFields) -> None:
    """Raise unless the fields agree. Texts in place of lists become lists, and groups are added."""
    object.__setattr__(request, "publish", _check_questions(request.publish))
    object.__setattr__(request, "derived", _check_derived(request.derived))
    groups = {**request.known_groups(), **check_groups(request.groups)}
    object.__setattr__(request, "groups", _with_hierarchy(groups, request.hierarchy))
    if not request.publish:
        raise ArgumentError(f"publish must name at least one query, of {', '.join(QUERIES)}.")
    check_confidence(request.confidence)
    check_choice("missing", request.missing, checking.MISSING)
    check_choice("neighbours", request.neighbours, NEIGHBOURS)
    check_choice("without_id", request.without_id, checking.WITHOUT_ID)
    _check_texts(request)
    for name in ("clamp", "intervals", "consistent", "undeclared"):
        if not isinstance(getattr(request, name), bool):
            reject(name, getattr(request, name), "be true or false")
    delimiter = request.delimiter
    is_character = isinstance(delimiter, str) and len(delimiter) == 1
    if not is_character or not delimiter.isascii() or delimiter in '"\r\n\0':
        reject("delimiter", delimiter, "be one ASCII character, no quote or newline")
    request.largest_margin  # noqa: B018 - raises for a rule of another form
    _check_groups(request)
    _check_undeclared(request)
    if isinstance(request.left_out, bool):
        reject("left_out", request.left_out, "be a share of the budget, such as 0.1")
    if request.left_out is not None:
        check_probability("left_out", request.left_out)
    _check_person(request)
    _check_text_columns(request)
    _check_expressions(request)
    _check_consistent(request)


def _check_questions(questions: object) -> tuple[Question, ...]:
    checked = tuple(questions) if is_list(questions) else ()
    if not is_list(questions) or not all(isinstance(question, Question) for question in checked):
        reject_type("publish", questions, 'be a list of questions, such as [Question(["count"])]')
    return tuple(part for question in checked for part in question.separate_persons())


def _check_groups(request: RequestFields) -> None:
    for column in request.grouped:
        if column not in request.groups:
            hint = did_you_mean(column, request.groups)
            advice = f". {hint}" if hint else ": {groups}."
            raise ArgumentError(
                f"The groups of {column!r} must be declared{advice}",
                groups={column: ["cork", "dublin"]},
            )
    for column in request.distinct_columns():
        if column in request.number_columns():
            raise ArgumentError(
                f"The different values of {column!r} cannot be counted where it is also a column "
                "of numbers. Ask for one of them in another request."
            )
    for column in request.discovered:
        if column in request.columns():
            raise ArgumentError(
                f"The groups of {column!r} cannot be discovered where its values are published "
                "too. Declare them, or publish another column."
            )
    for question in request.publish:
        declared = [name for name in question.by if name not in request.discovered]
        if GROUPS in question.statistic_names and declared:
            raise ArgumentError(
                f"The groups of {declared[0]!r} are declared. To publish which there are, "
                "discover them: {groups}.",
                groups={declared[0]: "discover"},
            )
    if request.discovered and any(question.error is not None for question in request.publish):
        raise ArgumentError(
            "A request for an error needs declared groups, because discovery costs a "
            "part of the budget. Give weights instead."
        )


def _check_undeclared(request: RequestFields) -> None:
    """Raise unless rows that are left out can be counted, if the request asks for it."""
    if request.undeclared and not request.levels:
        raise ArgumentError(
            "Nothing uses undeclared: it counts the rows in no declared group of a column, and no "
            "question groups by declared groups. Declare some: {groups}.",
            groups={"city": ["cork", "dublin"]},
        )
    for name in ("undeclared", "left_out"):
        if getattr(request, name) and any(each.error is not None for each in request.publish):
            raise ArgumentError(
                f"{name} needs a part of a budget: give questions weights in place of errors."
            )


def _with_hierarchy(groups: Groups, hierarchy: Hierarchy) -> Groups:
    """Return the groups of each column, with those of the coarser columns of a hierarchy."""
    derived = derived_groups(hierarchy, groups)
    for column, keys in derived.items():
        if groups.get(column, keys) != keys:
            raise ArgumentError(
                f"The groups of {column!r} come from the hierarchy: leave them out of groups."
            )
    return {**groups, **derived}


def _check_consistent(request: RequestFields) -> None:
    """Raise unless the questions of a consistent request can be made to add up."""
    for question in request.publish:
        _check_levels(request, question)
    if not request.consistent:
        return
    if request.discovered or any(question.error is not None for question in request.publish):
        raise ArgumentError(
            "A consistent request needs declared groups, and a budget in place of errors: groups "
            "are not discovered, and margins change when numbers are adjusted."
        )
    if not request.families:
        raise ArgumentError(
            "Nothing adds up: a consistent request needs the counts, or the sums of a column with "
            "the same bounds, of several groupings."
        )
    for (statistic, *_), questions in request.families.items():
        marginals = [request.marginal(question, statistic) for question in questions]
        if len(hierarchy_axes(marginals)) > 1:
            raise ArgumentError(
                f"The {statistic}s that add up must use one hierarchy. Ask for others in another "
                "request."
            )
        is_clamped = request.clamp and (statistic == "count" or (questions[0].lower or 0.0) >= 0)
        if is_clamped and from_coarse_to_fine(marginals) is None:
            raise ArgumentError(
                f"The {statistic}s of groupings that overlap add up only if some may be negative: "
                "set clamp to false. Or let each grouping refine another: by city, and by city "
                "and sex."
            )


def _check_levels(request: RequestFields, question: Question) -> None:
    """Raise unless a question uses coarser columns as it may."""
    levels = [request.levels[name] for name in question.by if name in request.levels]
    is_additive = len(question.additive_statistics) == len(question.statistics)
    if any(level.depth for level in levels) and not (request.consistent and is_additive):
        raise ArgumentError(
            "Only the counts and sums of a consistent request can be grouped by a coarser column "
            f"of a hierarchy, got by={list(question.by)}."
        )
    if len({level.column for level in levels}) < len(levels):
        raise ArgumentError(f"by must name one level of a hierarchy, got {list(question.by)}.")


def _check_derived(derived: object) -> dict[str, str]:
    if not isinstance(derived, Mapping) or not all(isinstance(name, str) for name in derived):
        rule = 'map names to expressions, such as {"month": "month(admitted)"}'
        reject_type("derived", derived, rule)
    return dict(derived)


def _check_expressions(request: RequestFields) -> None:
    """Raise unless expressions and questions use every column in one way."""
    used = [column for value in request.derived_values.values() for column in source_columns(value)]
    for where in request.conditions.values():
        used += [] if where is None else source_columns(where)
    names = {column.name for column in used}
    for name, value in request.derived_values.items():
        _check_derived_column(request, name, value)
        if name in names:
            raise ArgumentError(
                f"Column {name!r} is derived. Derive columns from those of the data."
            )
    if request.person is not None:
        checking.check_persons(request.person, (), (), list(names))
    used += [SourceColumn(name, NUMBER) for name in request.number_columns() if name in names]
    for name in names.intersection(request.grouped):
        used.append(
            group_column(name, [""] if name in request.discovered else request.groups[name])
        )
    for name in names.intersection(request.distinct_columns()):
        used.append(SourceColumn(name, TEXT))
    check_kinds(used)


def _check_derived_column(request: RequestFields, name: str, value: ValueNode) -> None:
    if name in {*(request.person or ()), *request.discovered, *request.distinct_columns()}:
        raise ArgumentError(
            f"Column {name!r} is derived. It cannot identify a person, and its groups must be "
            "declared. Its different values are not counted."
        )
    if name in request.number_columns() and kind_of(value) != NUMBER:
        raise ArgumentError(f"Column {name!r} is derived text. Group by it, or count rows.")
    known = possible_values(value)
    if known is not None and name in request.grouped:
        for key in request.groups[name]:
            if key not in known:
                rule = f"have only values of {name!r}: {', '.join(map(str, known))}"
                reject("groups", key, rule)


def _check_text_columns(request: RequestFields) -> None:
    columns = request.text_columns
    if not _are_names(columns):
        reject("text_columns", columns, "be a list of names")
    object.__setattr__(request, "text_columns", tuple(columns))
    for name in columns:
        if name not in {*(request.person or ()), *request.discovered, *request.distinct_columns()}:
            raise ArgumentError(
                f"Nothing uses text_columns={name!r}: it must be a column of person, or one "
                "whose groups are discovered or whose different values are counted."
            )


def _check_texts(request: RequestFields) -> None:
    """Raise unless names, and what is only shown to readers, are text."""
    for name in ("part", "released_by"):
        if not isinstance(getattr(request, name), str | None):
            reject_type(name, getattr(request, name), "be text")
    if not isinstance(request.ledger, str | PathLike | None):
        reject_type("ledger", request.ledger, "be the name of a file")
    filters = {question.where for question in request.questions} - {None}
    named = {*request.columns(), *request.grouped}
    labels, known = request.labels, {"rows", PERSONS, *filters, *named}
    if not isinstance(labels, Mapping) or not _are_names([*labels, *labels.values()]):
        reject_type("labels", labels, 'map columns to texts, such as {"rows": "stays"}')
    for name in labels:
        if name not in known:
            names = ", ".join(sorted(named))
            asked = f" They ask for {shorten(names, _LONGEST_LIST)}." if names else ""
            raise ArgumentError(
                f"labels names {name!r}, which is no column and no filter of a question.{asked} "
                "Correct the label or the question."
            )
    if not _are_names(request.notes):
        reject_type("notes", request.notes, "be a list of texts")
    object.__setattr__(request, "notes", tuple(request.notes))


def _are_names(names: object) -> bool:
    return is_list(names) and all(isinstance(name, str) for name in names)


def _check_person(request: RequestFields) -> None:
    if request.person is None:
        if any(PERSONS in question.statistic_names for question in request.publish):
            raise ArgumentError(
                "The number of persons needs the column that identifies them: {person}. If each "
                "row is another person, publish the count.",
                person="patient_id",
            )
        for limited, name in product((request, *request.publish), PERSON_LIMITS):
            if getattr(limited, name) is not None:
                raise ArgumentError(f"{name} needs person: {{person}}.", person="patient_id")
        if request.without_id != "error" or any(
            question.per_person for question in request.publish
        ):
            raise ArgumentError(
                "person is missing: the column that identifies a person, such as {person}.",
                person="patient_id",
            )
        return
    columns = (request.person,) if isinstance(request.person, str) else request.person
    if not _are_names(columns):
        reject("person", columns, "be a name or a list of names")
    object.__setattr__(request, "person", tuple(columns))
    checking.check_persons(tuple(columns), request.grouped, request.columns())
    check_person_limits(request)
    for name in PERSON_LIMITS[1:]:
        if getattr(request, name) is not None and not any(map(counts_rows, request.questions)):
            raise ArgumentError(
                f"Nothing uses {name}: all questions take a person's own sum or mean, which is of "
                "all their rows, or publish only groups."
            )
    for question in request.questions:
        _check_limits(question, request)
        _check_max_groups(question, [question], request)
    _check_max_groups(request, request.publish, request)


def _check_limits(question: Question, request: RequestFields) -> None:
    """Raise unless what one person contributes to a question is bounded."""
    max_groups, max_rows, total = request.limits_of(question)
    if counts_rows(question) and max_rows is None and total is None:
        is_histogram = HISTOGRAM in question.statistic_names
        example = "{max_rows} for a histogram of persons" if is_histogram else "{max_rows}"
        raise ArgumentError(
            f"max_rows is missing: how many rows of one person count in a group, such as {example}."
            " Or bound their rows in all groups together: {max_total_rows}.",
            max_rows=1 if is_histogram else 3,
            max_total_rows=6,
        )
    if question.by and max_groups is None and total is None:
        raise ArgumentError(
            "max_groups is missing: in how many groups one person counts, such as {max_groups}. Or "
            "replace max_rows by a bound on their rows in all groups together, which often needs "
            "less noise: {max_total_rows}.",
            max_groups=2,
            max_total_rows=6,
        )


def _check_max_groups(
    limited: RequestFields | Question, questions: Sequence[Question], request: RequestFields
) -> None:
    """Raise if these questions have no groups, or fewer than `max_groups`."""
    if limited.max_groups is not None and not any(question.by for question in questions):
        raise ArgumentError("Nothing uses max_groups: no statistic has groups. Leave it out.")
    numbers = [
        request.number_of_groups(request.table_columns(question, statistic), request.groups)
        for question in questions
        for statistic in question.statistic_names
    ]
    if limited.max_groups is None or None in numbers:
        return
    most = max(number for number in numbers if number is not None)
    if limited.max_groups > most:
        reject("max_groups", limited.max_groups, f"be at most {most}, the number of groups")
