"""What `dpnoise release` can be asked: its arguments, and the request that they make."""

import argparse
import re
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from dpnoise.cli.files import file_name
from dpnoise.core.errors import ArgumentError
from dpnoise.statistics.bounds import ADD_REMOVE, NEIGHBOURS
from dpnoise.statistics.budget_split import LAPLACE, MECHANISMS
from dpnoise.statistics.engines.checking import MISSING, OWN, WITHOUT_ID
from dpnoise.statistics.engines.description import ENCODINGS, FORMATS, PARTITION_TYPES, Files
from dpnoise.statistics.engines.files import check_there
from dpnoise.statistics.loading import groups_in_file, load_request
from dpnoise.statistics.questions import DISCOVER
from dpnoise.statistics.requests import Request, simple_request

_QUOTED: Final = re.compile(r'\s*"((?:[^"]|"")*)"\s*')


class _Once(argparse.Action):
    """An option that may be given once, because a second would silently replace the first."""

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: Any, values: Any, option: Any = None
    ) -> None:
        if getattr(namespace, self.dest) is not None:
            parser.error(f"{option} may be given once")
        setattr(namespace, self.dest, values)


def add_arguments(commands: Any) -> argparse.ArgumentParser:
    """Add the command and its arguments to the parser, and return it."""
    command: argparse.ArgumentParser = commands.add_parser(
        "release",
        help="publish private statistics of files: CSV, Parquet, JSON lines, SQLite",
        description="Publish private statistics of a column, or all that a request in TOML asks "
        "for. Neighbouring data sets differ by one row, or with --person by one person. Without "
        "FILE, a small data set that comes with dpnoise is used.",
    )
    command.add_argument(
        "files",
        nargs="*",
        type=_source,
        metavar="FILE",
        help="the data: files, a pattern in quotes, - for the standard input; or a request: *.toml",
    )
    command.add_argument(
        "--source",
        nargs="+",
        type=_source,
        metavar="FILE",
        help="the data of a request, if it does not name them",
    )
    _add_source_options(command)
    command.add_argument(
        "--check",
        action="store_true",
        help="say what would be published, with margins, and read no row",
    )
    command.add_argument("--column", help="the column of numbers")
    command.add_argument(
        "--query",
        action="append",
        metavar="QUERY",
        help="count, sum, mean, variance, std, median, quantile:0.9, quantiles:0.1,0.9 or "
        "histogram; repeat it for several, which split epsilon evenly (count)",
    )
    command.add_argument("--epsilon", type=float, help="for all queries together (1)")
    command.add_argument("--lower", type=float, help="declared lower bound of a value")
    command.add_argument("--upper", type=float, help="declared upper bound of a value")
    command.add_argument("--grid", type=float, help="a power of two; by default from the bounds")
    command.add_argument(
        "--edges",
        type=_numbers,
        help="edges of a histogram: --edges=0,20000,40000; a cell holds its lower edge, the last "
        "one both; values outside are left out",
    )
    command.add_argument(
        "--group-by",
        type=_groups,
        action=_Once,
        metavar="COLUMN=A,B",
        help="declared groups, as they are written in the data: city=cork,dublin; spaces around a "
        'name are dropped, names in quotes taken as they stand: city="Cork, County","dublin "; a '
        "column alone lets its groups be discovered, which needs --delta",
    )
    command.add_argument(
        "--groups-file",
        type=_groups_file,
        action=_Once,
        metavar="COLUMN=FILE",
        help="declared groups, one on each line of a file; beside --group-by, groups of both",
    )
    command.add_argument(
        "--missing",
        choices=MISSING,
        help="what to do about rows without a value: empty, NA, NaN, null (error)",
    )
    command.add_argument("--confidence", type=float, help="of the margins (0.95)")
    command.add_argument(
        "--no-clamp", action="store_true", help="publish counts below 0 as they are"
    )
    command.add_argument(
        "--no-intervals", action="store_true", help="spend no epsilon on intervals of quantiles"
    )
    _add_persons(command)
    command.add_argument(
        "--ledger", type=file_name, help="pay for it from a ledger: see dpnoise budget"
    )
    command.add_argument("--json", action="store_true", help="print JSON")
    command.add_argument(
        "--output", type=file_name, help="write the table (.csv, .parquet) or the record (JSON)"
    )
    command.add_argument("--record", type=file_name, help="write the record of what was done: JSON")
    command.add_argument("--plot", type=file_name, help="draw bars with error bars: out.png")
    command.add_argument(
        "--html", type=file_name, help="write a page for people: the numbers and what they mean"
    )
    command.add_argument("--title", help="what the page is called (what was published)")
    command.add_argument(
        "--force", action="store_true", help="replace an earlier release, which cannot be repeated"
    )
    return command


def _add_source_options(command: argparse.ArgumentParser) -> None:
    """Add how the data is written down, of which nothing is guessed."""
    command.add_argument(
        "--format", choices=FORMATS, help="of the data (what its name ends in, else csv)"
    )
    command.add_argument("--table", help="the table of a database: people, public.people")
    command.add_argument(
        "--delimiter", type=_delimiter, help="what separates a CSV file's entries (,)"
    )
    command.add_argument(
        "--quote", help="what entries with delimiters stand in; '' for nothing (\")"
    )
    command.add_argument("--encoding", choices=ENCODINGS, help="of a CSV file (utf-8)")
    command.add_argument("--decimal", choices=(".", ","), help="the decimal sign of text (.)")
    command.add_argument(
        "--hive",
        action="append",
        type=_hive_column,
        metavar="COLUMN=TYPE",
        help="read a column from the names of folders, as of year=2024: year=integer; types are "
        "text, integer and date; repeat it for several columns",
    )


def _add_persons(command: argparse.ArgumentParser) -> None:
    """Add what says whose rows are protected together, and how strongly."""
    command.add_argument(
        "--person",
        action="append",
        metavar="COLUMN",
        help="says whose a row is, where people have several; repeat it if several columns do",
    )
    command.add_argument("--max-groups", type=int, help="in how many groups one person counts")
    command.add_argument("--max-rows", type=int, help="how many rows of one person count in each")
    command.add_argument(
        "--per-person",
        choices=OWN,
        help="take a person's own sum or mean in a group for their one value",
    )
    command.add_argument(
        "--without-id",
        choices=WITHOUT_ID,
        help="what a row without an id is: an error, or a person of its own (error)",
    )
    command.add_argument(
        "--neighbours",
        choices=NEIGHBOURS,
        help="whether it is hidden that somebody is there at all, or who it is (add-remove)",
    )
    command.add_argument(
        "--delta", type=float, help="beside epsilon: of Gaussian noise, and to discover groups (0)"
    )
    command.add_argument("--rho", type=float, help="the budget in zCDP, in place of --epsilon")
    command.add_argument(
        "--mechanism",
        choices=MECHANISMS,
        help="the noise; best is whichever has the smaller margins (laplace)",
    )


_OF_SOURCES: Final = ("format", "table", "delimiter", "quote", "encoding", "decimal", "hive")
# What a request in a file says, and the command line may not say again.
_IN_REQUESTS: Final = (
    *("column", "query", "epsilon", "lower", "upper", "grid", "edges", "group_by", "groups_file"),
    *("missing", "confidence", "no_clamp", "no_intervals", *_OF_SOURCES),
    *("person", "max_groups", "max_rows", "per_person", "without_id", "neighbours"),
    *("delta", "rho", "mechanism"),
)


def _request_file(asked: argparse.Namespace) -> Path | None:
    """Return the file that says what to publish, if there is one."""
    found = [name for name in asked.files if name.lower().endswith(".toml")]
    if found and len(asked.files) > 1:
        raise ArgumentError("Give one request, and its data by --source.")
    return Path(found[0]) if found else None


def asked_for(asked: argparse.Namespace) -> tuple[Request, Files | None]:
    """Return the request and the data that it is about; None is the data set that is shipped."""
    path = _request_file(asked)
    if path is None:
        if asked.source is not None:
            raise ArgumentError("--source goes with a request: dpnoise release request.toml.")
        source = _data(asked)
        if source is not None:
            check_there(source)
        return _request(asked), source
    for name in _IN_REQUESTS:
        if getattr(asked, name) not in (None, False):
            option = "--" + name.replace("_", "-")
            raise ArgumentError(f"{path} says what to publish: write {option} there.")
    signed = load_request(path)
    if asked.ledger is not None and signed.ledger is not None:
        raise ArgumentError(f"{path} names its ledger: leave out --ledger.")
    asked.ledger = asked.ledger or signed.ledger
    source = signed.files
    if asked.source is not None:
        described = source or Files((), delimiter=signed.request.delimiter)
        source = replace(described, paths=tuple(asked.source))
    if source is None and not asked.check:
        raise ArgumentError(f'Say which data {path} is about: --source FILE, or source = "".')
    return signed.request, source


def names_a_column(asked: argparse.Namespace) -> bool:
    """Tell whether it is said what is published of the data: by a request, or by a column."""
    return asked.column is not None or _request_file(asked) is not None


def _data(asked: argparse.Namespace) -> Files | None:
    """Return the files that the command line describes."""
    told = {name: getattr(asked, name) for name in _OF_SOURCES}
    given = {name: value for name, value in told.items() if value is not None}
    if asked.hive is not None:
        given["hive"] = dict(asked.hive)
        if len(given["hive"]) < len(asked.hive):
            raise ArgumentError("--hive must be given once for each column.")
    if asked.files:
        return Files(tuple(asked.files), **given)
    for name in given:
        raise ArgumentError(f"--{name} is about data of yours: give its file.")
    return None


def _request(asked: argparse.Namespace) -> Request:
    groups = dict(filter(None, (asked.group_by, asked.groups_file)))
    if asked.groups_file is not None:
        column, path = asked.groups_file
        groups[column] = groups_in_file(path)
    return simple_request(
        asked.column if asked.files or asked.column is not None else "income",
        asked.query or ["count"],
        1.0 if asked.epsilon is None and asked.rho is None else asked.epsilon,
        lower=asked.lower,
        upper=asked.upper,
        grid=asked.grid,
        edges=asked.edges,
        groups=groups,
        missing=asked.missing or "error",
        delimiter="," if asked.delimiter is None else asked.delimiter,
        confidence=0.95 if asked.confidence is None else asked.confidence,
        clamp=not asked.no_clamp,
        intervals=not asked.no_intervals,
        per_person=asked.per_person,
        person=asked.person,
        max_groups=asked.max_groups,
        max_rows=asked.max_rows,
        without_id=asked.without_id or "error",
        neighbours=asked.neighbours or ADD_REMOVE,
        delta=asked.delta or 0.0,
        rho=asked.rho,
        mechanism=asked.mechanism or LAPLACE,
    )


def _source(text: str) -> str:
    """Take a name as it stands: that of a database is no path."""
    file_name(text)
    return text


def _delimiter(text: str) -> str:
    r"""Take \t for the tab that is hard to type."""
    return "\t" if text == r"\t" else text


def _hive_column(text: str) -> tuple[str, str]:
    column, kind = _name(text, "=")
    if not column or kind not in PARTITION_TYPES:
        raise argparse.ArgumentTypeError(
            f"give a column and its type, one of {', '.join(PARTITION_TYPES)}: year=integer"
        )
    return column, kind


def _numbers(text: str) -> list[float]:
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise argparse.ArgumentTypeError("give numbers: 0,20000,40000") from None


def _groups(text: str) -> tuple[str, list[str] | str]:
    column, rest = _name(text, "=")
    if rest is None:
        return column, DISCOVER
    groups = []
    while rest is not None:
        group, rest = _name(rest, ",")
        groups.append(group)
    return column, groups


def _groups_file(text: str) -> tuple[str, Path]:
    column, rest = _name(text, "=")
    if not rest:
        raise argparse.ArgumentTypeError("give a column and a file: city=cities.txt")
    return column, file_name(rest)


def _name(text: str, separator: str) -> tuple[str, str | None]:
    """Return the first name of a text, and what its separator, if any, is followed by.

    A name in quotes is what they hold, where "" is a quote; others lose the spaces around them.
    """
    quoted = _QUOTED.match(text)
    if quoted is None and not text.lstrip().startswith('"'):
        name, found, rest = text.partition(separator)
        return name.strip(), rest if found else None
    rest = "" if quoted is None else text[quoted.end() :]
    if quoted is None or rest[:1] not in {"", separator}:
        raise argparse.ArgumentTypeError('a name in quotes ends with them: city="Cork, County"')
    return quoted[1].replace('""', '"'), rest[1:] if rest else None
