"""Columns of CSV and Parquet files, read in a stream with the types that were declared.

Nothing is inferred: the value column is numbers and the group column is text, because a type that
depends on the data would tell something about it.
"""

from collections.abc import Iterator
from csv import reader
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dpnoise.errors import ArgumentError, import_extra

_ROWS = 2**16


class Chunk(NamedTuple):
    """Some rows: their numbers, their groups if asked for, and how far the file has been read."""

    values: NDArray[np.float64]
    groups: Any
    progress: float


def read(
    path: Path,
    column: str,
    group_by: str | None,
    *,
    drop_missing: bool,
    delimiter: str = ",",
) -> Iterator[Chunk]:
    """Yield the rows of a file.

    Missing values are dropped or, like text where a number should be, an error that gives the row
    and shows nothing of it. Rows are counted from 1, without the header. In a CSV file an entry is
    missing if it is empty or reads NA, N/A, NaN, null, or one of their usual variants.
    """
    wanted = [column] if group_by is None else [column, group_by]
    pa = import_extra("pyarrow", "cli")
    is_parquet = path.suffix.lower() in {".parquet", ".pq"}
    batches = _parquet(path, wanted) if is_parquet else _csv(path, wanted, delimiter)
    row = 1
    try:
        for batch, progress in batches:
            yield _chunk(batch, row, progress, drop_missing=drop_missing)
            row += batch.num_rows
    except pa.ArrowInvalid:
        raise ArgumentError(
            f"{path} cannot be read: it is damaged, or not what its name says."
        ) from None
    except UnicodeDecodeError:
        raise ArgumentError(
            f"{path} cannot be read: it is neither UTF-8 text nor Parquet."
        ) from None
    except IsADirectoryError:
        raise ArgumentError(f"{path} is a folder. Give a CSV or Parquet file.") from None
    except FileNotFoundError:
        raise ArgumentError(f"There is no file {path}.") from None


def _csv(path: Path, wanted: list[str], delimiter: str) -> Iterator[tuple[Any, float]]:
    csv = import_extra("pyarrow.csv", "cli")
    string = import_extra("pyarrow", "cli").string()
    size = max(1, path.stat().st_size)
    if path.stat().st_size == 0:
        raise ArgumentError(f"{path} is empty: it has no header.")
    with path.open(newline="", encoding="utf-8-sig") as text:
        _check_columns(path, next(reader(text, delimiter=delimiter)), wanted)
    with path.open("rb") as file:
        convert = csv.ConvertOptions(
            include_columns=wanted,
            column_types=dict.fromkeys(wanted, string),
            strings_can_be_null=True,
        )
        parse = csv.ParseOptions(delimiter=delimiter)
        with csv.open_csv(file, parse_options=parse, convert_options=convert) as batches:
            for batch in batches:
                yield batch, file.tell() / size


def _parquet(path: Path, wanted: list[str]) -> Iterator[tuple[Any, float]]:
    parquet = import_extra("pyarrow.parquet", "cli")
    with parquet.ParquetFile(path) as file:
        _check_columns(path, file.schema_arrow.names, wanted)
        rows, done = max(1, file.metadata.num_rows), 0
        for batch in file.iter_batches(batch_size=_ROWS, columns=wanted):
            done += batch.num_rows
            yield batch, done / rows


def _check_columns(path: Path, there: list[str], wanted: list[str]) -> None:
    for name in wanted:
        if name not in there:
            hint = " Is it separated by ';'? Say --delimiter ';'." if ";" in there[0] else ""
            raise ArgumentError(f"{path} has no column {name!r}. It has: {', '.join(there)}.{hint}")


def _chunk(batch: Any, first_row: int, progress: float, *, drop_missing: bool) -> Chunk:
    pa = import_extra("pyarrow", "cli")
    compute = import_extra("pyarrow.compute", "cli")
    column = batch.column(0)
    try:
        numbers = column.cast(pa.float64())
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        name, row = batch.schema.names[0], first_row + _first_bad(column)
        raise ArgumentError(
            f"Row {row} of column {name!r} (the header not counted) holds text that is no number. "
            "Correct it, or empty it and say --missing drop."
        ) from None
    values = numbers.to_numpy(zero_copy_only=False).astype(np.float64, copy=False)
    missing = np.isnan(values)
    if missing.any() and not drop_missing:
        name, row = batch.schema.names[0], first_row + int(np.argmax(missing))
        raise ArgumentError(
            f"Row {row} of column {name!r} (the header not counted) has no value. "
            "To leave out such rows, say --missing drop."
        )
    groups = batch.column(1) if batch.num_columns > 1 else None
    if missing.any():
        keep = pa.array(~missing)
        values = values[~missing]
        groups = None if groups is None else groups.filter(keep)
    if groups is not None:
        groups = compute.cast(groups, pa.string())
    return Chunk(values, groups, progress)


def _first_bad(column: Any) -> int:
    """Return the place of the first entry that is neither missing nor a number."""
    for place, entry in enumerate(column):
        text = entry.as_py()
        try:
            float(text if text is not None else 0)
        except (TypeError, ValueError):
            return place
    return 0
