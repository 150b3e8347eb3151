"""Which row is wrong: asked only after an answer has told that one is."""

from dpnoise.core.errors import import_extra
from dpnoise.statistics.engines.arithmetic import present
from dpnoise.statistics.engines.frames import as_key, matches_of, only
from dpnoise.statistics.engines.sources import Source
from dpnoise.statistics.engines.tables import MistakeError, asked_columns, mistake

nw = import_extra("narwhals", "engines")


def located(error: MistakeError, source: Source) -> MistakeError:
    """Return the error with the first row that it is about, if rows can be read again."""
    for path in source.paths if source.in_order else ():
        row = _first_row(error, source, path)
        if row is not None:
            of_file = f" of {path}" if len(source.paths) > 1 else ""
            header = " (the header not counted)" if source.has_header else ""
            place = f"Row {row}{of_file} of column {error.column!r}{header}"
            return mistake(error.plan, error.column, is_missing=error.is_missing, place=place)
    return error


def _first_row(error: MistakeError, source: Source, path: str) -> int | None:
    """Return the number of the first row of a file that is in a declared group and wrong."""
    by = {f"key{place}": grouping for place, grouping in enumerate(error.plan.by)}
    groups = {grouping.column: grouping.keys for grouping in error.plan.by}
    held = source.columns(asked_columns(error.plan), groups, numbered=path)
    frame = nw.from_native(held.relation)
    schema = frame.collect_schema()
    keys = {key: as_key(one.column, schema[one.column]) for key, one in by.items()}
    declared = {
        key: list(matches_of(one, schema[one.column], held.file)) for key, one in by.items()
    }
    if error.is_missing:
        wrong = ~present(nw.col(error.column), schema[error.column])
    else:
        wrong = nw.col(held.file.parse_errors[error.column]) == 1
    rows = frame.select(row=nw.col(held.row), wrong=wrong, **keys)
    found = only(rows, declared).filter(nw.col("wrong")).select(nw.col("row").min()).collect()
    first = found["row"].to_list()[0]
    return None if first is None else int(first)
