"""What `dpnoise release` can be asked: its arguments, and the request that they make."""

import argparse
import re
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from dpnoise.cli.files import file_name
from dpnoise.cli.terminal import Option
from dpnoise.core.errors import ArgumentError
from dpnoise.statistics.bounds import NEIGHBOURS
from dpnoise.statistics.budget_split import MECHANISMS
from dpnoise.statistics.engines import Files, description
from dpnoise.statistics.engines.checking import MISSING, OWN, WITHOUT_ID
from dpnoise.statistics.engines.files import check_there, described_columns
from dpnoise.statistics.loading import groups_in_file, load_request
from dpnoise.statistics.questions import DISCOVER
from dpnoise.statistics.requests import Question, Request

_QUOTED: Final = re.compile(r'\s*"((?:[^"]|"")*)"\s*')


class _Once(argparse.Action):
    """An option that may be given once, because a second would silently replace the first."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: object,
        option: str | None = None,
    ) -> None:
        if getattr(namespace, self.dest) is not None:
            parser.error(f"{option} may be given once")
        setattr(namespace, self.dest, values)


# How arguments are read --------------------------------------------------------------------------


def _source(text: str) -> str:
    """Take a name as it stands: that of a database is no path."""
    file_name(text)
    return text


def _delimiter(text: str) -> str:
    r"""Take \t for the tab that is hard to type."""
    return "\t" if text == r"\t" else text


def _hive_column(text: str) -> tuple[str, str]:
    column, kind = _name(text, "=")
    if not column or kind not in description.PARTITION_TYPES:
        raise argparse.ArgumentTypeError(
            "give a column and its type, one of "
            f"{', '.join(description.PARTITION_TYPES)}: year=integer"
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


# What can be asked -------------------------------------------------------------------------------

# Where the data is.
_FILES: Final = (
    Option(
        "files",
        {"nargs": "*", "type": _source, "metavar": "FILE"},
        "the data: files, a pattern in quotes, - for the standard input; or a request: *.toml",
    ),
    Option(
        "--source",
        {"nargs": "+", "type": _source, "metavar": "FILE"},
        "the data of a request, if it does not name them",
    ),
)
# How the data is written down, of which nothing is guessed.
_FORMAT: Final = (
    Option("--format", description.FORMATS, "of the data (what its name ends in, else csv)"),
    Option("--table", None, "the table of a database: people, public.people"),
    Option("--delimiter", _delimiter, "what separates a CSV file's entries (,)"),
    Option("--quote", None, "what entries with delimiters stand in; '' for nothing (\")"),
    Option("--encoding", description.ENCODINGS, "of a CSV file (utf-8)"),
    Option("--decimal", (".", ","), "the decimal sign of text (.)"),
    Option(
        "--hive",
        {"action": "append", "type": _hive_column, "metavar": "COLUMN=TYPE"},
        "read a column from the names of folders, as of year=2024: year=integer; types are text, "
        "integer and date; repeat it for several columns",
    ),
)
_CHECK: Final = Option(
    "--check", bool, "say what would be published, with margins, and read no row"
)
# What is published.
_QUESTION: Final = (
    Option("--column", None, "the column of numbers"),
    Option(
        "--query",
        {"action": "append", "metavar": "QUERY"},
        "count, sum, mean, variance, std, median, quantile:0.9, quantiles:0.1,0.9 or histogram; "
        "repeat it for several, which split epsilon evenly (count)",
    ),
    Option("--epsilon", float, "for all queries together (1)"),
    Option("--lower", float, "declared lower bound of a value"),
    Option("--upper", float, "declared upper bound of a value"),
    Option("--grid", float, "a power of two; by default from the bounds"),
    Option(
        "--edges",
        _numbers,
        "edges of a histogram: --edges=0,20000,40000; a cell holds its lower edge, the last one "
        "both; values outside are left out",
    ),
    Option(
        "--group-by",
        {"type": _groups, "action": _Once, "metavar": "COLUMN=A,B"},
        "declared groups, as they are written in the data: city=cork,dublin; spaces around a name "
        'are dropped, names in quotes taken as they stand: city="Cork, County","dublin "; a column '
        "alone lets its groups be discovered, which needs --delta",
    ),
    Option(
        "--groups-file",
        {"type": _groups_file, "action": _Once, "metavar": "COLUMN=FILE"},
        "declared groups, one on each line of a file; beside --group-by, groups of both",
    ),
    Option(
        "--missing", MISSING, "what to do about rows without a value: empty, NA, NaN, null (error)"
    ),
    Option("--confidence", float, "of the margins (0.95)"),
    Option("--no-clamp", bool, "publish counts below 0 as they are"),
    Option("--no-intervals", bool, "spend no epsilon on intervals of quantiles"),
)
# Whose rows are protected together, and how strongly.
_PROTECTION: Final = (
    Option(
        "--person",
        {"action": "append", "metavar": "COLUMN"},
        "says whose a row is, where people have several; repeat it if several columns do",
    ),
    Option("--max-groups", int, "in how many groups one person counts"),
    Option("--max-rows", int, "how many rows of one person count in each"),
    Option("--per-person", OWN, "take a person's own sum or mean in a group for their one value"),
    Option(
        "--without-id",
        WITHOUT_ID,
        "what a row without an id is: an error, or a person of its own (error)",
    ),
    Option(
        "--neighbours",
        NEIGHBOURS,
        "whether it is hidden that somebody is there at all, or who it is (add-remove)",
    ),
    Option("--delta", float, "beside epsilon: of Gaussian noise, and to discover groups (0)"),
    Option("--rho", float, "the budget in zCDP, in place of --epsilon"),
    Option(
        "--mechanism", MECHANISMS, "the noise; best is whichever has the smaller margins (laplace)"
    ),
)
_RESULTS: Final = (
    Option("--ledger", file_name, "pay for it from a ledger: see dpnoise budget"),
    Option("--json", bool, "print JSON"),
    Option("--output", file_name, "write the table (.csv, .parquet) or the record (JSON)"),
    Option("--record", file_name, "write the record of what was done: JSON"),
    Option("--plot", file_name, "draw bars with error bars: out.png"),
    Option("--html", file_name, "write a page for people: the numbers and what they mean"),
    Option("--title", None, "what the page is called (what was published)"),
    Option("--force", bool, "replace an earlier release, which cannot be repeated"),
)


OPTIONS: Final = (*_FILES, *_FORMAT, _CHECK, *_QUESTION, *_PROTECTION, *_RESULTS)


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
        request = _request(asked)
        if source is not None and asked.column is None and not asked.check:
            raise ArgumentError(
                f"Say which column of {description.listed(source.names)} to use: --column NAME. "
                f"{described_columns(source)}"
            )
        return request, source
    for option in (*_QUESTION, *_FORMAT, *_PROTECTION):
        if getattr(asked, option.dest) not in (None, False):
            raise ArgumentError(f"{path} says what to publish: write {option.name} there.")
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


def _data(asked: argparse.Namespace) -> Files | None:
    """Return the files that the command line describes."""
    given = _given(asked, [option.dest for option in _FORMAT])
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
    column = asked.column if asked.files or asked.column is not None else "income"
    about = _given(asked, ("lower", "upper", "grid", "edges", "per_person"))
    question = Question(asked.query or ["count"], column, by=tuple(groups), **about)
    protection = (option.dest for option in _PROTECTION if option.dest != "per_person")
    return Request(
        1.0 if asked.epsilon is None and asked.rho is None else asked.epsilon,
        (question,),
        groups,
        clamp=not asked.no_clamp,
        intervals=not asked.no_intervals,
        **_given(asked, ("missing", "delimiter", "confidence", *protection)),
    )


def _given(asked: argparse.Namespace, names: Iterable[str]) -> dict[str, Any]:
    """Return the options that were typed, by name: the others have their defaults."""
    values = ((name, getattr(asked, name)) for name in names)
    return {name: value for name, value in values if value is not None}
