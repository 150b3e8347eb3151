"""Columns of CSV and Parquet files, read in a stream with the types that were declared.

Nothing is inferred: the value column is numbers and the group column is text, because a type that
depends on the data would tell something about it.
"""

import csv
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dpnoise.errors import ArgumentError, import_extra
from dpnoise.showing import shortened

_ROWS: Final = 2**16
_BLOCK: Final = 2**24  # Bytes that are read at a time; no row of a CSV file may be longer.
_RAGGED: Final = re.compile(r"Expected (\d+) columns, got (\d+)")
_LONGEST_LIST: Final = 500  # Characters of the names of columns in an error.


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
    missing: str,
    delimiter: str = ",",
) -> Iterator[Chunk]:
    """Yield the rows of a file.

    Missing values are dropped or, like text where a number should be, an error that gives the row
    and shows nothing of it. Rows are counted from 1, without the header. In a CSV file an entry is
    missing if it is empty or reads NA, N/A, NaN, null, or one of their usual variants.
    """
    wanted = [column] if group_by is None else [column, group_by]
    row = 1
    with _complaints_about(path):
        batches = _parquet(path, wanted) if _is_parquet(path) else _csv(path, wanted, delimiter)
        for batch, progress in batches:
            yield _chunk(batch, wanted, row, progress, missing=missing)
            row += batch.num_rows


def check_there(path: Path) -> None:
    """Raise if there is no such file."""
    try:
        path.stat()
    except FileNotFoundError:
        raise ArgumentError(f"There is no file {path}.") from None


def columns(path: Path, delimiter: str = ",") -> str:
    """Return the names of a file's columns, as an error lists them."""
    with _complaints_about(path):
        if not _is_parquet(path):
            return _listed(_header_and_first_row(path, delimiter)[0])
        parquet = import_extra("pyarrow.parquet", "files")
        with path.open("rb") as opened, parquet.ParquetFile(opened) as file:
            return _listed(file.schema_arrow.names)


def _listed(names: list[str]) -> str:
    return shortened(", ".join(names), _LONGEST_LIST)


def _is_parquet(path: Path) -> bool:
    return path.suffix.lower() in {".parquet", ".pq"}


@contextmanager
def _complaints_about(path: Path) -> Iterator[None]:
    """Say what is wrong with a file, and show nothing of it."""
    pa = import_extra("pyarrow", "files")
    try:
        check_there(path)
        if not path.is_dir() and not path.is_file():
            raise ArgumentError(f"{path} is no regular file. Write its content to one first.")
        yield
    except pa.ArrowMemoryError:
        raise
    except pa.ArrowException as error:
        raise ArgumentError(f"{path} cannot be read: {_what_is_wrong(str(error))}.") from None
    except csv.Error:
        raise ArgumentError(
            f"The header of {path} cannot be read: it has a name of more than 131,072 characters."
        ) from None
    except UnicodeDecodeError:
        raise ArgumentError(
            f"{path} cannot be read: it is neither UTF-8 text nor Parquet."
        ) from None
    except IsADirectoryError:
        raise ArgumentError(f"{path} is a folder. Give a CSV or Parquet file.") from None


def _what_is_wrong(words: str) -> str:
    """Say what pyarrow found, but for the data that it quotes."""
    if ragged := _RAGGED.search(words):
        return f"a row has {ragged[2]} entries where the header has {ragged[1]}"
    if "straddling" in words:
        return "it has a row of more than 16 MiB, or a quote that is never closed"
    return "it is damaged, or not what its name says"


def _csv(path: Path, wanted: list[str], delimiter: str) -> Iterator[tuple[Any, float]]:
    arrow_csv = import_extra("pyarrow.csv", "files")
    string = import_extra("pyarrow", "files").string()
    header, first = _header_and_first_row(path, delimiter)
    _check_columns(path, header, wanted)
    if first is None:
        return  # pyarrow takes a header alone for damaged if its line does not end.
    size = path.stat().st_size
    with path.open("rb") as file:
        convert = arrow_csv.ConvertOptions(
            include_columns=list(dict.fromkeys(wanted)),
            column_types=dict.fromkeys(wanted, string),
        )
        # A block may end inside quotes: what is a row must not depend on where it lies.
        parse = arrow_csv.ParseOptions(delimiter=delimiter, newlines_in_values=True)
        options = {
            "read_options": arrow_csv.ReadOptions(block_size=_BLOCK),
            "parse_options": parse,
            "convert_options": convert,
        }
        with arrow_csv.open_csv(file, **options) as batches:
            for batch in batches:
                yield _with_nulls(batch, wanted[0], convert.null_values), file.tell() / size


def _header_and_first_row(path: Path, delimiter: str) -> tuple[list[str], list[str] | None]:
    with path.open(newline="", encoding="utf-8-sig") as text:
        # Blank lines before the header are passed over, as pyarrow does.
        lines = filter(None, csv.reader(text, delimiter=delimiter))
        header, first = next(lines, None), next(lines, None)
    if header is None:
        raise ArgumentError(f"{path} is empty: it has no header.")
    return header, first


def _with_nulls(batch: Any, name: str, words: list[str]) -> Any:
    """Take words such as NA for missing values, in the column of numbers alone.

    A group may be called so: NA is Namibia.
    """
    pa = import_extra("pyarrow", "files")
    compute = import_extra("pyarrow.compute", "files")
    column = batch.column(name)
    missing = compute.is_in(column, value_set=pa.array(words))
    arrays = dict(zip(batch.schema.names, batch.columns, strict=True))
    arrays[name] = compute.if_else(missing, pa.scalar(None, pa.string()), column)
    return pa.RecordBatch.from_pydict(arrays)


def _parquet(path: Path, wanted: list[str]) -> Iterator[tuple[Any, float]]:
    parquet = import_extra("pyarrow.parquet", "files")
    # Opened by Python, because pyarrow takes only names that are UTF-8.
    with path.open("rb") as opened, parquet.ParquetFile(opened) as file:
        _check_columns(path, file.schema_arrow.names, wanted)
        _check_types(file.schema_arrow, wanted)
        rows, done = max(1, file.metadata.num_rows), 0
        for batch in file.iter_batches(batch_size=_ROWS, columns=list(dict.fromkeys(wanted))):
            done += batch.num_rows
            yield batch, done / rows


def _check_columns(path: Path, there: list[str], wanted: list[str]) -> None:
    for name in wanted:
        if name not in there:
            hint = (
                ' Is it separated by ";"? Say delimiter=";".' if ";" in "".join(there[:1]) else ""
            )
            raise ArgumentError(f"{path} has no column {name!r}. It has: {_listed(there)}.{hint}")
        if there.count(name) > 1:
            raise ArgumentError(f"{path} has more than one column {name!r}. Rename all but one.")


def _check_types(schema: Any, wanted: list[str]) -> None:
    """Raise unless the first column can hold numbers, and the second one text."""
    pa = import_extra("pyarrow", "files")
    for name, kind, meaning in zip(
        wanted, (pa.float64(), pa.string()), ("numbers", "text"), strict=False
    ):
        held = schema.field(name).type
        try:
            pa.array([], held).cast(kind)
        except pa.ArrowException:
            raise ArgumentError(f"Column {name!r} holds {held}. Expected {meaning}.") from None


def _chunk(
    batch: Any, wanted: list[str], first_row: int, progress: float, *, missing: str
) -> Chunk:
    pa = import_extra("pyarrow", "files")
    name, *others = wanted
    column = batch.column(name)
    try:
        numbers = column.cast(pa.float64())
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        whole = pa.types.is_integer(column.type)
        what = "an integer that no float holds" if whole else "text that is no number"
        raise ArgumentError(
            f"Row {first_row + _first_bad(column)} of column {name!r} (the header not counted) "
            f'holds {what}. Correct it, or empty it and say missing="drop".'
        ) from None
    values = numbers.to_numpy(zero_copy_only=False).astype(np.float64, copy=False)
    is_missing = np.isnan(values)
    if is_missing.any() and missing == "error":
        raise ArgumentError(
            f"Row {first_row + int(np.argmax(is_missing))} of column {name!r} (the header not "
            'counted) has no value. To leave out such rows, say missing="drop".'
        )
    groups = _texts(batch.column(others[0]), others[0]) if others else None
    if is_missing.any():
        values = values[~is_missing]
        groups = None if groups is None else groups.filter(pa.array(~is_missing))
    return Chunk(values, groups, progress)


def _texts(column: Any, name: str) -> Any:
    pa = import_extra("pyarrow", "files")
    try:
        return column.cast(pa.string())
    except pa.ArrowInvalid:
        raise ArgumentError(f"Column {name!r} holds bytes that are no UTF-8 text.") from None


def _first_bad(column: Any) -> int:
    """Return the place of the first entry that is neither missing nor a number of a float."""
    pa = import_extra("pyarrow", "files")
    for place, entry in enumerate(column):
        try:
            entry.cast(pa.float64())
        except pa.ArrowException:
            return place
    return 0
