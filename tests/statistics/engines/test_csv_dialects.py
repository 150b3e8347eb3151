"""Every row of a CSV file in any dialect is read once, as Python's reader confirms."""

import csv
import gzip
import io
import itertools
import os
import random
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from support import alarms
from support.choices import sample_parameters
from support.pipes import standard_input

from dpnoise.core.errors import ArgumentError
from dpnoise.statistics.engines import Files, tally
from dpnoise.statistics.engines.csv_files import PipeWriter, check_complete
from dpnoise.statistics.plan import Grouping, Plan, Rows, Sums, Unit

PLAN = Plan((Rows(), Sums("x", 1.0, -1_000, 1_000)), missing="drop")
SECRET = "4711-secret"  # noqa: S105 - what no error may show
LINE_ENDS = ("\n", "\r\n", "\r")
VALUES = (1, 20, 300)
STRIDE = 71 if alarms.LONG else 6_857  # A prime, so that the sample combines all choices.


@dataclass(frozen=True)
class Dialect:
    """The dialect of a file. Text in quotes may hold a line break of any kind."""

    line_end: str
    name: str  # The name of the column next to x, if there are several.
    note: str  # The entry of every row in that column.
    in_quotes: bool
    ends_with_newline: bool
    has_mark: bool
    delimiter: str
    quote: str
    blank_lines: str
    columns: int
    encoding: str
    compressed: bool

    def entry(self, text: str) -> str:
        """Return an entry, in quotes if it needs them."""
        if not self.quote or not (self.in_quotes or set(text) & {"\r", "\n"}):
            return text
        return f"{self.quote}{text}{self.quote}"

    @property
    def text(self) -> str:
        """The content of the file."""
        rows = [["x"], *([str(value)] for value in VALUES)]
        if self.columns > 1:
            notes = [self.name, *[self.note] * len(VALUES)]
            rows = [[note, *row, "end"] for note, row in zip(notes, rows, strict=True)]
        lines = [self.delimiter.join(map(self.entry, row)) for row in rows]
        index = {"before": 0, "middle": 2, "after": len(lines)}.get(self.blank_lines)
        if index is not None:
            lines[index:index] = ["", ""]
        return self.line_end.join(lines) + self.line_end * self.ends_with_newline

    def write(self, folder: Path) -> Files:
        """Write the file."""
        encoding = self.encoding
        if self.has_mark and encoding.startswith("utf"):
            encoding = {"utf-8": "utf-8-sig"}.get(encoding, encoding)
        elif encoding == "utf-16":
            encoding = "utf-16-le"
        content = self.text.encode(encoding)
        path = folder / ("p.csv.gz" if self.compressed else "p.csv")
        path.write_bytes(gzip.compress(content) if self.compressed else content)
        return Files(path, delimiter=self.delimiter, quote=self.quote, encoding=self.encoding)


TEXTS_WITH_BREAKS = tuple(f"a{end}b" for end in LINE_ENDS)
CHOICES = (
    *(
        LINE_ENDS,
        ("note", *TEXTS_WITH_BREAKS),
        ("a", *TEXTS_WITH_BREAKS),
        (False, True),
        (True, False),
        (True, False),
    ),
    *((",", ";", "\t", "|"), ('"', "'", ""), ("none", "before", "middle", "after"), (1, 3)),
    *(("utf-8", "latin-1", "windows-1252", "utf-16"), (False, True)),
)
ALL: Iterator[Any] = itertools.product(*CHOICES)
START = random.randrange(STRIDE)  # noqa: S311 - not a secret
DIALECTS = [Dialect(*choices) for choices in itertools.islice(ALL, START, None, STRIDE)]


def read_by_python(dialect: Dialect) -> tuple[int, int] | None:
    """Return the number of rows and the sum of x; None if a row is not as long as the header.

    An empty line after the header is a missing value if there is one column, and otherwise no row.
    """
    quotes: dict[str, Any] = (
        {"quotechar": dialect.quote} if dialect.quote else {"quoting": csv.QUOTE_NONE}
    )
    lines = io.StringIO(dialect.text, newline="")
    reader = csv.reader(lines, delimiter=dialect.delimiter, strict=True, **quotes)
    lines_after = itertools.dropwhile(lambda row: not row, reader)
    header = next(lines_after)
    rows = [row for row in lines_after if row or len(header) == 1]
    if "x" not in header or any(len(row) != len(header) for row in rows if row):
        return None
    return len(rows), sum(int(row[header.index("x")]) for row in rows if row)


def rows_and_total(files: Files) -> tuple[int, int]:
    rows, values = tally(files, PLAN).answers
    return int(rows), int(values.total)  # type: ignore[arg-type, union-attr]


def error_message(files: Files, plan: Plan = PLAN) -> str:
    with pytest.raises(ArgumentError) as raised:
        tally(files, plan)
    assert SECRET not in str(raised.value)
    return str(raised.value)


@pytest.mark.long
def test_rows_of_every_dialect_are_counted_as_another_reader_counts_them(tmp_path: Path) -> None:
    accepted = 0
    for dialect in DIALECTS:
        expected = read_by_python(dialect)
        files = dialect.write(tmp_path)
        if expected is None or (dialect.encoding == "utf-16" and not dialect.has_mark):
            assert error_message(files), dialect
        else:
            accepted += 1
            assert rows_and_total(files) == expected, dialect
    assert accepted > len(DIALECTS) / 2


@pytest.mark.parametrize(
    ("line_end", "in_name"), sample_parameters(itertools.product(LINE_ENDS, LINE_ENDS), 2)
)
def test_a_line_break_in_a_name_is_not_the_end_of_a_line(
    in_name: str, line_end: str, tmp_path: Path
) -> None:
    lines = [f'"a{in_name}b",x', "1,2", f'"3{line_end}",4', '"5\n",6', '"7\r",8', ""]
    path = tmp_path / "p.csv"
    path.write_bytes(line_end.join(lines).encode())
    assert rows_and_total(Files(path)) == (4, 2 + 4 + 6 + 8)
    grouped = Plan((Rows(),), (Grouping(f"a{in_name}b", ("1", "5\n", "7\r")),))
    assert tally(Files(path), grouped).answers[0].tolist() == [1, 1, 1]  # type: ignore[union-attr]


@pytest.mark.parametrize("name", ["p.csv", "p.csv.gz"])
def test_a_file_of_excel_on_windows_may_have_euro_signs(name: str, tmp_path: Path) -> None:
    """The byte of the euro sign in windows-1252 is no letter in latin-1."""
    text = 'x;Kosten in €\r\n1;"Büro, ""groß"""\r\n20;5 €\r\n300;“Süd”\r\n'
    content = text.encode("windows-1252")
    path = tmp_path / name
    path.write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
    files = Files(path, delimiter=";", encoding="windows-1252")
    assert rows_and_total(files) == (3, 321)
    keys = ('Büro, "groß"', "5 €", "“Süd”")
    grouped = Plan((Rows(),), (Grouping("Kosten in €", keys),))
    assert tally(files, grouped).answers[0].tolist() == [1, 1, 1]  # type: ignore[union-attr]
    assert 'such as encoding="windows-1252"' in error_message(Files(path, delimiter=";"))
    by_row = Plan((Rows(),), unit=Unit(("Kosten in €",)))
    assert tally(files, by_row).answers[0] == 3  # Its rows are read more than once.


def test_bytes_that_windows_1252_does_not_have_are_an_error(tmp_path: Path) -> None:
    path = tmp_path / "p.csv"
    path.write_bytes(b"x,y\n1,\x81\n")
    error = error_message(Files(path, encoding="windows-1252"))
    assert error.endswith("it is not windows-1252 text. Write it as UTF-8.")
    path.write_bytes(b"x,y\n" + b"1,a\n" * 100_000 + b"1,\x81\n")
    error = error_message(Files(path, encoding="windows-1252"))
    assert error.endswith("is not text in the declared encoding.")


@pytest.mark.sample(2)
@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be"])
@pytest.mark.parametrize("note", ["a", "\u0a0d\u0d0a\u2c2c", "\U0001f600"])
def test_both_orders_of_utf_16_are_read(note: str, encoding: str, tmp_path: Path) -> None:
    path = tmp_path / "p.csv"
    path.write_bytes(f"\ufeffx,y\n1,{note}\n2,b\n".encode(encoding))
    assert rows_and_total(Files(path, encoding="utf-16")) == (2, 3)
    path.write_bytes(f"\ufeffx,y\n1,{note}\n2,{SECRET}\n".encode(encoding)[:-1])
    assert "is not text in the declared encoding" in error_message(Files(path, encoding="utf-16"))


@pytest.mark.parametrize(
    ("content", "line"), [('"a\nb",x\n1,2\n3,4,5\n', 4), ('\n"a\r\nb",x\n1,2\n3,"4\n', 5)]
)
def test_lines_are_numbered_as_in_the_file_if_the_header_has_several(
    content: str, line: int, tmp_path: Path
) -> None:
    path = tmp_path / "p.csv"
    path.write_bytes(content.encode())
    assert f"line {line} has" in error_message(Files(path))


def test_a_header_that_duckdb_reads_differently_is_read_correctly(tmp_path: Path) -> None:
    """DuckDB parses a quote after a space as an opening quote, and would skip two lines."""
    path = tmp_path / "p.csv"
    path.write_text('x, "y\n1, 2\n3, z"\n')
    assert rows_and_total(Files(path)) == (2, 4)
    path.write_text('x, "y"\n1,a\n3,b\n')
    assert rows_and_total(Files(path)) == (2, 4)


def test_the_standard_input_may_be_utf_16_or_have_lines_of_an_old_mac() -> None:
    text = '"a\nb",x\r\n1,2\r\n"3\r",4\r\n'
    with standard_input(text.encode("utf-16")):
        assert rows_and_total(Files("-", encoding="utf-16")) == (2, 6)
    with standard_input(text.replace("\r\n", "\r").encode()):
        assert rows_and_total(Files("-")) == (2, 6)


def test_a_row_that_begins_like_our_comments_is_an_error() -> None:
    with standard_input(b"x,y\n1,a\n\x01" + SECRET.encode() + b",b\n"):
        assert "holds the control character 1" in error_message(Files("-"))


def test_any_error_that_ends_a_stream_early_is_a_fault() -> None:
    def rows() -> Iterator[bytes]:
        yield b"1,2\n"
        raise RuntimeError

    with ExitStack() as stack:
        writer = PipeWriter(b"", rows(), b"", stack)
        with Path(writer.path).open("rb") as reader:
            assert reader.read() == b"1,2\n"
        assert writer.fault == "could not be read to its end"


def write_zstd(path: Path, rows: int) -> bytes:
    """Write x = 0, 1, 2, ... 9, 0, ... as CSV or JSON lines compressed by zstd."""
    kind = "json" if path.name.endswith(".jsonl.zst") else "csv"
    query = f"SELECT i % 10 AS x, hash(i) AS y FROM range({rows}) AS rows(i)"  # noqa: S608 - ours
    with duckdb.connect() as connection:
        connection.execute(f"COPY ({query}) TO '{path}' (FORMAT {kind}, COMPRESSION zstd)")
    return path.read_bytes()


@pytest.mark.sample(1)
@pytest.mark.parametrize("name", ["p.csv.zst", "p.jsonl.zst"])
def test_a_file_compressed_by_zstd_is_read_whole_or_not_at_all(name: str, tmp_path: Path) -> None:
    """DuckDB would read the remaining rows of a truncated file."""
    path = tmp_path / name
    content = write_zstd(path, 100_000)
    assert rows_and_total(Files(path)) == (100_000, 450_000)
    for size in (3, len(content) // 2, len(content) - 1):
        path.write_bytes(content[:size])
        assert "is not complete" in error_message(Files(path))
    path.write_bytes(content + b"more")
    assert "is not complete" in error_message(Files(path))


def test_a_file_compressed_by_zstd_may_have_line_breaks_in_quotes(tmp_path: Path) -> None:
    path = tmp_path / "p.csv.zst"
    with pa.CompressedOutputStream(str(path), "zstd") as opened:
        opened.write(b'"a\nb",x\n' + b'"c\nd",2\n' * 1_000)
    assert rows_and_total(Files(path)) == (1_000, 2_000)


@pytest.mark.parametrize(
    ("line_end", "last", "route"),
    sample_parameters(itertools.product(LINE_ENDS, ("", "\n", "\n\n"), ("file", "pipe")), 3),
)
def test_in_a_file_of_one_column_empty_lines_are_missing_values(
    line_end: str, last: str, route: str, tmp_path: Path
) -> None:
    """Pandas and Polars would leave them out; a row that was left out could not be an error."""
    text = f"x\n1\n\n20\n\n\n300{last}"
    path = tmp_path / "one.csv"
    path.write_bytes(text.replace("\n", line_end).encode())
    missing = 3 + (last == "\n\n")
    with ExitStack() as stack:
        source = Files(path)
        if route == "pipe":
            stack.enter_context(standard_input(path.read_bytes()))
            source = Files("-")
        rows, sums = tally(source, PLAN).answers
    assert (int(rows), int(sums.count), int(sums.total)) == (3 + missing, 3, 321)  # type: ignore[arg-type, union-attr]
    with pytest.raises(ArgumentError, match="has no value"):
        tally(Files(path), Plan((Rows(), Sums("x", 1.0, -1_000, 1_000))))


def test_every_frame_of_zstd_is_read_to_its_end(tmp_path: Path) -> None:
    """Frames of RFC 8878: large, small, several, and frames that readers skip."""
    path = tmp_path / "p.zst"
    large = pa.compress(os.urandom(300_000) + bytes(10**6), "zstd", asbytes=True)
    small = pa.compress(b"x\n1\n", "zstd", asbytes=True)
    skipped = b"\x5f\x2a\x4d\x18" + b"\x03\x00\x00\x00" + b"abc"
    for frames in (large, small, small + large, skipped + small, small + skipped + large):
        path.write_bytes(frames)
        check_complete(str(path))
        for content in (frames[:-1], frames[: len(frames) // 2], frames + b"\0"):
            path.write_bytes(content)
            with pytest.raises(ArgumentError, match="not complete"):
                check_complete(str(path))
