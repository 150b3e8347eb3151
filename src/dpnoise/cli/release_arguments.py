"""The arguments of `dpnoise release`, and the request that they describe."""

import argparse
import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from dpnoise.cli.output_files import file_name
from dpnoise.cli.preview import Tolerance
from dpnoise.cli.terminal import Option
from dpnoise.core.errors import ArgumentError, check_integer
from dpnoise.statistics import report
from dpnoise.statistics.bounds import NEIGHBOURS
from dpnoise.statistics.budget_split import MECHANISMS
from dpnoise.statistics.engines import Files, description
from dpnoise.statistics.engines.checking import MISSING, OWN, WITHOUT_ID
from dpnoise.statistics.engines.files import check_there, described_columns
from dpnoise.statistics.loading import groups_in_file, load_request
from dpnoise.statistics.questions import DISCOVER
from dpnoise.statistics.requests import Question, Request

_QUOTED: Final = re.compile(r'\s*"((?:[^"]|"")*)"\s*')


def _source(text: str) -> str:
    """Return a name unchanged, because the name of a database is not a path."""
    file_name(text)
    return text


def _delimiter(text: str) -> str:
    r"""Return a tab for \t, which is easier to type."""
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


def _tolerance(text: str) -> Tolerance:
    number, sign, rest = text.strip().partition("%")
    try:
        amount = float(number) / (100 if sign else 1)
    except ValueError:
        amount = math.nan
    if rest or not 0 < amount < math.inf:
        raise argparse.ArgumentTypeError("give a margin above 0: 5%, or 100")
    return Tolerance(amount, is_share=bool(sign))


def _groups(text: str) -> tuple[str, list[str] | str]:
    column, rest = _name(text, "=")
    if rest is None:
        return column, DISCOVER
    groups = []
    while rest is not None:
        group, rest = _name(rest, ",")
        groups.append(group)
    return column, groups


def _derived_column(text: str) -> tuple[str, str]:
    column, rest = _name(text, "=")
    if not column or not rest:
        raise argparse.ArgumentTypeError("give a name and an expression: month=month(admitted)")
    return column, rest


def _groups_file(text: str) -> tuple[str, Path]:
    column, rest = _name(text, "=")
    if not rest:
        raise argparse.ArgumentTypeError("give a column and a file: city=cities.txt")
    return column, file_name(rest)


def _name(text: str, separator: str) -> tuple[str, str | None]:
    """Return the first name in a text, and the text after the separator; None without one.

    A name in quotes is taken from between them, with "" for a quote. Other names are stripped.
    """
    quoted = _QUOTED.match(text)
    if quoted is None and not text.lstrip().startswith('"'):
        name, separator_part, rest = text.partition(separator)
        return name.strip(), rest if separator_part else None
    rest = "" if quoted is None else text[quoted.end() :]
    if quoted is None or rest[:1] not in {"", separator}:
        raise argparse.ArgumentTypeError('a name in quotes ends with them: city="Cork, County"')
    return quoted[1].replace('""', '"'), rest[1:] if rest else None


# The data.
_FILES: Final = (
    Option(
        "files",
        {"nargs": "*", "type": _source, "metavar": "FILE"},
        "the data: files, a pattern in quotes, - for the standard input; or a request: *.toml",
    ),
    Option("--sample", bool, "use 5,000 invented people that come with dpnoise as the data"),
    Option(
        "--source",
        {"nargs": "+", "type": _source, "metavar": "FILE"},
        "the data of a request that does not name it",
    ),
)
# The format of the data, of which nothing is guessed.
_FORMAT: Final = (
    Option("--format", description.FORMATS, "the format of the data (by its suffix, else csv)"),
    Option("--table", None, "the table of a database: people, public.people"),
    Option("--delimiter", _delimiter, "the character between the fields of a CSV file (,)"),
    Option("--quote", None, "the character around fields with delimiters; '' for none (\")"),
    Option("--encoding", description.ENCODINGS, "the encoding of a CSV file (utf-8)"),
    Option("--decimal", (".", ","), "the decimal sign of text (.)"),
    Option(
        "--hive",
        {"action": "append", "type": _hive_column, "metavar": "COLUMN=TYPE"},
        "read a column from the names of folders, as of year=2024: year=integer; types are text, "
        "integer and date; repeat it for several columns",
    ),
)
_CHECK: Final = (
    Option("--check", bool, "print what would be published, with margins, and read no row"),
    Option("--rows", int, "with --check: the margins for this number of rows in each group"),
    Option(
        "--within",
        {"type": _tolerance, "metavar": "MARGIN"},
        "with --check and --rows: the least epsilon for this margin: 5%% of the range, or a number",
    ),
)
# The statistics.
_QUESTION: Final = (
    Option("--column", None, "the column of numbers; for distinct also of text"),
    Option(
        "--query",
        {"action": "append", "metavar": "QUERY"},
        "count, persons, sum, mean, variance, std, median, quantile:0.9, quantiles:0.1,0.9 or "
        "histogram; repeat it for several, which split epsilon evenly; distinct for the number of "
        "different values; groups for those that are discovered, without numbers (count)",
    ),
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
        {"type": _groups, "action": "append", "metavar": "COLUMN=A,B"},
        "declared groups, as they are written in the data: city=cork,dublin; spaces around a name "
        'are dropped, names in quotes taken as they stand: city="Cork, County","dublin "; a column '
        "alone lets its groups be discovered, which needs --delta; repeat it for several columns, "
        "whose combinations are discovered together",
    ),
    Option(
        "--groups-file",
        {"type": _groups_file, "action": "append", "metavar": "COLUMN=FILE"},
        "declared groups, one on each line of a file; with --group-by, groups by both columns",
    ),
    Option(
        "--totals",
        bool,
        "publish totals too, and make counts and sums add up: of all groups, and of the first "
        "column, of the first two and so on",
    ),
    Option("--undeclared", bool, "publish the number of rows in no declared group, too"),
    Option(
        "--left-out",
        {"nargs": "?", "type": float, "const": 0.1, "metavar": "SHARE"},
        "estimate the share of rows that no number counts, and of clamped values, with this share "
        "of the budget (0.1 if no number follows)",
    ),
    Option("--where", None, "count only rows that match: \"age >= 18 and sex == 'f'\""),
    Option(
        "--derive",
        {"action": "append", "type": _derived_column, "metavar": "NAME=EXPRESSION"},
        "compute a column from each row, to publish or to group by: 'band=band(age, 0, 18, 65)', "
        "'month=month(admitted)', 'cost=drug_cost + stay_cost'; repeat it for several columns",
    ),
    Option("--missing", MISSING, "how to treat rows without a value: empty, NA, NaN, null (error)"),
    Option("--confidence", float, "the confidence of the margins (0.95)"),
    Option("--suppress", str, 'rule for leaving out numbers: --suppress "margin > 0.3"'),
    Option("--no-clamp", bool, "publish counts and sums below 0 as they are"),
    Option("--intervals", bool, "spend half of the epsilon of quantiles on intervals"),
)
# The budget and what it protects.
_PRIVACY: Final = (
    Option("--epsilon", float, "the epsilon of all queries together (1)"),
    Option("--delta", float, "the delta of Gaussian noise, and to discover groups (0)"),
    Option("--rho", float, "the budget in zCDP, in place of --epsilon"),
    Option(
        "--mechanism",
        MECHANISMS,
        "the noise; best takes the one with smaller margins (best with --delta, else laplace)",
    ),
    Option(
        "--neighbours",
        NEIGHBOURS,
        "hide whether a person is in the data, or only their values (add-remove)",
    ),
    Option("--part", None, "the part of the data, if the ledger of --ledger has parts"),
)
_LEDGER: Final = Option(
    "--ledger", file_name, "pay for it from a ledger, which keeps the total: see dpnoise budget"
)
# The privacy unit.
_PEOPLE: Final = (
    Option(
        "--person",
        {"action": "append", "metavar": "COLUMN"},
        "the column that identifies a person, if people have several rows; repeat it for several "
        "columns",
    ),
    Option("--max-groups", int, "the most groups in which one person counts"),
    Option("--max-rows", int, "the most rows of one person that count in each group"),
    Option("--max-total-rows", int, "the most rows of one person that count in all groups"),
    Option(
        "--per-person",
        OWN,
        "count the sum or mean of a person's rows in a group as their only value",
    ),
    Option(
        "--without-id",
        WITHOUT_ID,
        "how to treat rows without an id: an error, or each its own person, which protects a "
        "person with several such rows less (error)",
    ),
)
_RESULTS: Final = (
    Option("--json", bool, "print JSON"),
    Option("--output", file_name, "write the table (.csv, .parquet) or the record (JSON)"),
    Option("--record", file_name, "write the record of what was done: JSON"),
    Option("--plot", file_name, "draw bars with error bars: out.png"),
    Option("--html", file_name, "write an HTML page with the numbers and their meaning"),
    Option("--title", None, "the title of the page (the statistics)"),
    Option("--force", bool, "replace an earlier release, which cannot be repeated"),
)


GROUPS: Final = {
    "data": (*_FILES, *_FORMAT),
    "what to publish": _QUESTION,
    "privacy": (*_PRIVACY, *_CHECK, _LEDGER),
    "people": _PEOPLE,
    "output": _RESULTS,
}
EXAMPLES: Final = """examples:
  Count the rows of each city:
    dpnoise release people.csv --group-by city=cork,dublin

  Publish a mean, with bounds that you choose without looking at the data:
    dpnoise release people.csv --column income --query mean \\
      --lower 0 --upper 200000

  Draw a histogram:
    dpnoise release people.csv --column age --query histogram \\
      --edges 0,18,65,120 --plot ages.png

  Protect people who have several rows:
    dpnoise release visits.csv --column cost --query mean \\
      --lower 0 --upper 300 --person patient_id --max-rows 3

  Check a request in TOML, then publish it as a page, paid from a ledger:
    dpnoise release request.toml --check
    dpnoise release request.toml --html page.html --ledger budget.json
"""


# Options that have another name in a request, or another value.
_SETTING_NAMES: Final = {
    "query": "statistics",
    "group_by": "groups",
    "groups_file": "groups",
    "derive": "derived",
    "no_clamp": "clamp",
    "totals": "consistent",
}
_SETTINGS_OF_QUESTIONS: Final = {
    *("column", "statistics", "lower", "upper", "grid", "edges", "where", "per_person")
}


def _setting_of_option(dest: str, value: Any) -> str:
    """Return an option as a setting of a request in TOML, and its place there."""
    name = _SETTING_NAMES.get(dest, dest)
    if isinstance(value, list) and value and isinstance(value[0], tuple):
        value = {
            key: {"file": str(part)} if isinstance(part, Path) else part for key, part in value
        }
    if dest == "no_clamp":
        value = False
    return setting_text(name, value)


def setting_text(name: str, value: object) -> str:
    """Return a setting of a request in TOML, and its place there."""
    place = "at the top"
    if isinstance(value, dict) and name in {"groups", "derived"}:
        texts = [f"{key} = {report.toml_value(part)}" for key, part in value.items()]
        return f"{', '.join(texts)} under [{name}]"
    if name in {option.dest for option in _FORMAT}:
        place = "under [source]"
    elif name in _SETTINGS_OF_QUESTIONS:
        place = "under [[publish]]"
    return f"{name} = {report.toml_value(value)} {place}"


def request_file(arguments: argparse.Namespace) -> Path | None:
    """Return the TOML file of the request, if there is one."""
    requests = [name for name in arguments.files if name.lower().endswith(".toml")]
    if requests and len(arguments.files) > 1:
        raise ArgumentError("Give one request, and its data by --source.")
    return Path(requests[0]) if requests else None


def _check_preview(arguments: argparse.Namespace) -> None:
    """Raise if the options of a preview contradict others."""
    if arguments.rows is not None:
        check_integer("rows", arguments.rows, least=1)
    if arguments.within is not None and arguments.rows is None:
        raise ArgumentError("--within needs the number of rows: --rows 5000.")
    if arguments.rows is not None and not arguments.check:
        raise ArgumentError("--rows is about a preview: say --check, which reads no row.")
    if arguments.within is not None and arguments.epsilon is not None:
        raise ArgumentError("--within finds the least epsilon: leave out --epsilon.")


def parse_request(arguments: argparse.Namespace) -> tuple[Request, Files | None]:
    """Return the request and its data; None stands for the sample, or for no data to check."""
    path = request_file(arguments)
    _check_preview(arguments)
    if path is None:
        if arguments.source is not None:
            raise ArgumentError("--source goes with a request: dpnoise release request.toml.")
        source = _data(arguments)
        if source is not None:
            check_there(source)
        if source is not None and not arguments.check and _lacks_column(arguments):
            raise ArgumentError(
                f"Say which column of {description.describe_paths(source.path_texts)} to use: "
                f"--column NAME. {described_columns(source)}",
                delimiter=";",
            )
        return _request(arguments), source
    for option in (*_QUESTION, *_FORMAT, *_PRIVACY, *_PEOPLE):
        value = getattr(arguments, option.dest)
        if value not in (None, False):
            raise ArgumentError(
                f"{path} says what to publish. In place of {option.name}, write there: "
                f"{_setting_of_option(option.dest, value)}."
            )
    loaded = load_request(path)
    if arguments.ledger is not None and loaded.request.ledger is not None:
        raise ArgumentError(f"{path} names its ledger: leave out --ledger.")
    arguments.ledger = arguments.ledger or loaded.request.ledger
    source = loaded.files
    if arguments.source is not None:
        data_format = source or Files(())
        source = replace(data_format, paths=tuple(arguments.source))
    if arguments.sample:
        if source is not None:
            raise ArgumentError(f"{path} or --source names the data: leave out --sample.")
        return loaded.request, None
    if source is None and not arguments.check:
        raise ArgumentError(f'Say which data {path} is about: --source FILE, or source = "".')
    return loaded.request, source


def _data(arguments: argparse.Namespace) -> Files | None:
    """Return the files that the command line describes."""
    format_options = _typed_options(arguments, [option.dest for option in _FORMAT])
    if arguments.hive is not None:
        format_options["hive"] = dict(arguments.hive)
        if len(format_options["hive"]) < len(arguments.hive):
            raise ArgumentError("--hive must be given once for each column.")
    if arguments.files:
        if arguments.sample:
            raise ArgumentError("--sample takes the place of files: leave out one or the other.")
        return Files(tuple(arguments.files), **format_options)
    for name in format_options:
        raise ArgumentError(f"--{name} is about data of yours: give its file.")
    if not arguments.sample and not arguments.check:
        if description.is_input_redirected():
            raise ArgumentError(
                "No file is given. To read the standard input, give - as the file: "
                "dpnoise release - --column age."
            )
        raise ArgumentError(
            "No file is given. Name one: dpnoise release people.csv --column age. To try it on "
            "invented people, say --sample."
        )
    return None


def _questions(arguments: argparse.Namespace, columns: Sequence[str]) -> list[Question]:
    """Return the question of the command line and, with totals, those of fewer columns first."""
    options = _typed_options(arguments, ("lower", "upper", "grid", "edges", "per_person", "where"))
    query, column = arguments.query or ["count"], arguments.column
    question = Question(query, column, by=columns, **options)
    if not arguments.totals:
        return [question]
    statistics = question.additive_statistics
    if not columns or not statistics:
        raise ArgumentError("--totals needs --group-by, and a count or a sum to add up.")
    totals = replace(question, statistics=statistics, edges=None)
    return [*(replace(totals, by=columns[:number]) for number in range(len(columns))), question]


def _declared_groups(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the groups of each column of the command line."""
    files = ((column, groups_in_file(path)) for column, path in arguments.groups_file or ())
    options = [*(arguments.group_by or ()), *files]
    if len(dict(options)) < len(options):
        raise ArgumentError("--group-by and --groups-file must name each column once.")
    return dict(options)


def _lacks_column(arguments: argparse.Namespace) -> bool:
    """Return whether a statistic needs a column and has none. Counts and groups have none."""
    needed = set(arguments.query or ()) - {"count", "persons", "groups"}
    return arguments.column is None and bool(needed)


def _request(arguments: argparse.Namespace) -> Request:
    derived = dict(arguments.derive or ())
    if len(derived) < len(arguments.derive or ()):
        raise ArgumentError("--derive must be given once for each column.")
    groups = _declared_groups(arguments)
    questions = _questions(arguments, tuple(groups))
    # The groups of a derived column are all its values.
    groups = {
        name: keys for name, keys in groups.items() if keys != DISCOVER or name not in derived
    }
    chosen = (option.dest for option in (*_PRIVACY[1:], *_PEOPLE) if option.dest != "per_person")
    return Request(
        1.0 if arguments.epsilon is None and arguments.rho is None else arguments.epsilon,
        questions,
        groups,
        clamp=not arguments.no_clamp,
        suppress=arguments.suppress,
        intervals=arguments.intervals,
        consistent=arguments.totals,
        undeclared=arguments.undeclared,
        derived=derived,
        **_typed_options(arguments, ("missing", "delimiter", "confidence", "left_out", *chosen)),
    )


def _typed_options(arguments: argparse.Namespace, names: Iterable[str]) -> dict[str, Any]:
    """Return the options that the user typed, by name; the others keep their defaults."""
    values = ((name, getattr(arguments, name)) for name in names)
    return {name: value for name, value in values if value is not None}
