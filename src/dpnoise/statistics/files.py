"""Columns of CSV and Parquet files, read in a stream with the types that were declared.

Nothing is inferred: columns of values are numbers and the groups of a CSV file are text, because a
type that depends on the data would tell something about it.
"""

import csv
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from dpnoise.errors import ArgumentError, import_extra
from dpnoise.showing import shortened
from dpnoise.statistics.groups import Matcher
from dpnoise.statistics.tallying import Chunk

_ROWS: Final = 2**16
_BLOCK: Final = 2**24  # Bytes that are read at a time; no row of a CSV file may be longer.
_RAGGED: Final = re.compile(r"Expected (\d+) columns, got (\d+)")
_LONGEST_LIST: Final = 500  # Characters of the names of columns in an error.

_Batches = Iterator[tuple[Any, float]]
_Schema = dict[str, Any]


def read(
    path: Path,
    columns: Sequence[str],
    groups: Mapping[str, Sequence[Any]],
    *,
    missing: str,
    delimiter: str = ",",
    progress: Callable[[float], object] = lambda _: None,
) -> Iterator[Chunk]:
    """Yield the rows of a file: columns of numbers, and the places of groups among those declared.

    A missing value is NaN or, like text where a number should be, an error that gives the row and
    shows nothing of it. Rows are counted from 1, without the header. In a CSV file an entry is
    missing if it is empty or reads NA, N/A, NaN, null, or one of their usual variants.
    """
    row = 1
    words: list[str] = []
    with _complaints_about(path):
        wanted = list(dict.fromkeys([*columns, *groups]))
        if _is_parquet(path):
            schema, batches = _parquet(path, wanted, columns)
        else:
            words, schema, batches = _csv(path, wanted, delimiter)
        matchers = {name: Matcher(name, schema[name], keys) for name, keys in groups.items()}
        for batch, done in batches:
            # Before it is cut: pyarrow 16 mixes up rows where it replaces text in a slice.
            held = {name: _with_nulls(batch.column(name), words) for name in columns}
            for start in range(0, batch.num_rows, _ROWS):
                rows = batch.slice(start, _ROWS)
                yield Chunk(
                    rows.num_rows,
                    {
                        name: _numbers(held[name].slice(start, _ROWS), name, row + start, missing)
                        for name in columns
                    },
                    {name: found.places(rows.column(name)) for name, found in matchers.items()},
                )
            row += batch.num_rows
            progress(done)


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
            return listed(_header_and_first_row(path, delimiter)[0])
        parquet = import_extra("pyarrow.parquet", "files")
        with path.open("rb") as opened, parquet.ParquetFile(opened) as file:
            return listed(file.schema_arrow.names)


def listed(names: list[str]) -> str:
    """Return names as an error lists them."""
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


def _csv(path: Path, wanted: list[str], delimiter: str) -> tuple[list[str], _Schema, _Batches]:
    """Return the words for missing values, the types, and the rows with the part that is read."""
    arrow_csv = import_extra("pyarrow.csv", "files")
    string = import_extra("pyarrow", "files").string()
    header, first = _header_and_first_row(path, delimiter)
    _check_columns(path, header, wanted)
    types = dict.fromkeys(wanted, string)
    convert = arrow_csv.ConvertOptions(include_columns=wanted, column_types=types)
    # A block may end inside quotes: what is a row must not depend on where it lies.
    parse = arrow_csv.ParseOptions(delimiter=delimiter, newlines_in_values=True)
    options = {
        "read_options": arrow_csv.ReadOptions(block_size=_BLOCK),
        "parse_options": parse,
        "convert_options": convert,
    }

    def batches() -> _Batches:
        if first is None:
            return  # pyarrow takes a header alone for damaged if its line does not end.
        size = path.stat().st_size
        with path.open("rb") as file, arrow_csv.open_csv(file, **options) as opened:
            for batch in opened:
                yield batch, file.tell() / size

    return convert.null_values, types, batches()


def _header_and_first_row(path: Path, delimiter: str) -> tuple[list[str], list[str] | None]:
    with path.open(newline="", encoding="utf-8-sig") as text:
        # Blank lines before the header are passed over, as pyarrow does.
        lines = filter(None, csv.reader(text, delimiter=delimiter))
        header, first = next(lines, None), next(lines, None)
    if header is None:
        raise ArgumentError(f"{path} is empty: it has no header.")
    return header, first


def _parquet(path: Path, wanted: list[str], columns: Sequence[str]) -> tuple[_Schema, _Batches]:
    """Return the types, and the rows with the part that is read."""
    parquet = import_extra("pyarrow.parquet", "files")
    # Opened by Python, because pyarrow takes only names that are UTF-8.
    with path.open("rb") as opened, parquet.ParquetFile(opened) as file:
        schema = file.schema_arrow
    _check_columns(path, schema.names, wanted)
    _check_numbers(schema, columns)

    def batches() -> _Batches:
        with path.open("rb") as opened, parquet.ParquetFile(opened) as file:
            rows, done = max(1, file.metadata.num_rows), 0
            for batch in file.iter_batches(batch_size=_ROWS, columns=wanted):
                done += batch.num_rows
                yield batch, done / rows

    return {name: schema.field(name).type for name in wanted}, batches()


def _check_columns(path: Path, there: list[str], wanted: list[str]) -> None:
    for name in wanted:
        if name not in there:
            hint = (
                ' Is it separated by ";"? Say delimiter=";".' if ";" in "".join(there[:1]) else ""
            )
            raise ArgumentError(f"{path} has no column {name!r}. It has: {listed(there)}.{hint}")
        if there.count(name) > 1:
            raise ArgumentError(f"{path} has more than one column {name!r}. Rename all but one.")


def _check_numbers(schema: Any, columns: Sequence[str]) -> None:
    """Raise unless these columns can hold numbers."""
    pa = import_extra("pyarrow", "files")
    for name in columns:
        held = schema.field(name).type
        try:
            pa.array([], held).cast(pa.float64())
        except pa.ArrowException:
            raise ArgumentError(f"Column {name!r} holds {held}. Expected numbers.") from None


def _numbers(column: Any, name: str, first_row: int, missing: str) -> NDArray[np.float64]:
    """Return a column of numbers, in which what is empty is NaN."""
    pa = import_extra("pyarrow", "files")
    try:
        numbers = column.cast(pa.float64())
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        whole = pa.types.is_integer(column.type)
        what = "an integer that no float holds" if whole else "text that is no number"
        raise ArgumentError(
            f"Row {first_row + _first_bad(column)} of column {name!r} (the header not counted) "
            f'holds {what}. Correct it, or empty it and say missing="drop".'
        ) from None
    values: NDArray[np.float64] = numbers.to_numpy(zero_copy_only=False)
    values = values.astype(np.float64, copy=False)
    is_missing = np.isnan(values)
    if missing == "error" and is_missing.any():
        raise ArgumentError(
            f"Row {first_row + int(np.argmax(is_missing))} of column {name!r} (the header not "
            'counted) has no value. To leave out such rows, say missing="drop".'
        )
    return values


def _with_nulls(column: Any, words: list[str]) -> Any:
    """Take words such as NA for missing values. A group may be called so: NA is Namibia."""
    if not words:
        return column
    pa = import_extra("pyarrow", "files")
    compute = import_extra("pyarrow.compute", "files")
    missing = compute.is_in(column, value_set=pa.array(words))
    return compute.if_else(missing, pa.scalar(None, pa.string()), column)


def _first_bad(column: Any) -> int:
    """Return the place of the first entry that is neither missing nor a number of a float."""
    pa = import_extra("pyarrow", "files")
    for place, entry in enumerate(column):
        try:
            entry.cast(pa.float64())
        except pa.ArrowException:
            return place
    return 0
