"""`dpnoise budget`: the ledger of a data set, with its budget and all payments."""

import argparse
import json
from collections.abc import Mapping
from dataclasses import asdict
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Final

from dpnoise.cli import terminal
from dpnoise.cli.output_files import file_name
from dpnoise.cli.terminal import Command, Option, Run
from dpnoise.core import strict_json
from dpnoise.core.errors import ArgumentError, BudgetError, import_extra
from dpnoise.core.safe_text import escape_text, shorten
from dpnoise.statistics.bounds import ADD_REMOVE, NEIGHBOURS
from dpnoise.statistics.digits import number_of, written_down, written_up
from dpnoise.statistics.ledger import (
    Amount,
    Entry,
    Ledger,
    create_ledger,
    is_too_little,
    mend_ledger,
    open_ledger,
)

if TYPE_CHECKING:
    from rich.text import Text

_BAR: Final = 30
_DIGITS: Final = 6
_GAP: Final = 2
_LABEL: Final = len("epsilon")  # The width of the longest label of a bar.
_SHORT_HEAD: Final = 12
_LONGEST_NAME: Final = 200
_WARNING: Final = Fraction(4, 5)  # From this fraction on the bar changes its colour.
_NEIGHBOUR_WORDS: Final = {"add-remove": "added or removed", "replace": "replaced by another"}


def _create(arguments: argparse.Namespace) -> None:
    names = ("name", "unit", "person", "neighbours", "epsilon", "rho", "delta", "parts")
    _show_ledger(
        create_ledger(arguments.file, **{name: getattr(arguments, name) for name in names})
    )


def _spend(arguments: argparse.Namespace) -> None:
    ledger = open_ledger(arguments.file)
    metric = ledger.terms.metric
    if getattr(arguments, metric) is None:
        raise ArgumentError(f"{arguments.file} counts {metric}: --{metric}.")
    main = number_of(metric, getattr(arguments, metric))
    amount = Amount(main, number_of("delta", arguments.delta, zero=True))
    pay = ledger.count_published if arguments.already_published else ledger.spend
    try:
        receipt = pay(amount, note=arguments.note, part=arguments.part)
    except BudgetError as error:
        if amount.is_within(ledger.left_for(arguments.part)):
            raise
        raise BudgetError(
            f"{error} If it is already public, count it with --already-published. All later "
            "releases are then refused."
        ) from None
    console = terminal.console(soft_wrap=True)
    console.print(
        f"Spent {ledger.words(amount)} on {escape_text(arguments.note)}: entry {receipt.entry}."
    )
    console.print(f"Left: {receipt.left}. {open_ledger(arguments.file).worth(arguments.part)}")


def _mend(arguments: argparse.Namespace) -> None:
    size = mend_ledger(arguments.file)
    console = terminal.console(soft_wrap=True)
    if not size:
        console.print(f"There is nothing to mend in {escape_text(arguments.file)}.")
        return
    console.print(
        f"Took away {size} bytes of a line that was cut short. If a crash did so, no noise was "
        "drawn for it. If something else cut the file, compare it with the records that were "
        "published: dpnoise budget show --record."
    )


def _show(arguments: argparse.Namespace) -> None:
    ledger = open_ledger(arguments.file)
    payment = None if arguments.record is None else ledger.entry_of(_record(arguments.record))
    if arguments.json:
        print(strict_json.dumps(_ledger_data(ledger, payment)))  # noqa: T201 - this is the command line
        return
    _show_ledger(ledger)
    if payment is not None:
        console = terminal.console(soft_wrap=True)
        console.print(f"{escape_text(arguments.record)} was paid for by entry {payment.number}.")


def _record(path: Path) -> dict[str, object]:
    """Read a published record."""
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise BudgetError(f"{path} cannot be read: {error.strerror}.") from None
    except (ValueError, RecursionError):
        record = None
    if not isinstance(record, dict):
        raise BudgetError(f"{path} is not a record of a release, which is a JSON object.")
    return record


def _show_ledger(ledger: Ledger) -> None:
    console = terminal.console(soft_wrap=True)
    terms = ledger.terms
    name, unit = (shorten(escape_text(text), _LONGEST_NAME) for text in (terms.name, terms.unit))
    console.print(f"{name}: {unit}, {_NEIGHBOUR_WORDS.get(terms.neighbours, terms.neighbours)}\n")
    total, spent, left = terms.total, ledger.spent, ledger.left
    console.print(_meter(terms.metric, (total.main, spent.main, left.main), console.width))
    if total.delta:
        console.print(_meter("delta", (total.delta, spent.delta, left.delta), console.width))
    for part in terms.parts:
        console.print(f"left: {ledger.left_in_words(part=part)}")
    if ledger.entries:
        console.print()
        titles, rows = _rows(ledger)
        terminal.print_table(
            console, terminal.format_table(titles, rows, console.width, folded=len(titles) - 1)
        )
    console.print(f"\n{ledger.worth()}")
    console.print(f"Head {ledger.head[:_SHORT_HEAD]}, in {escape_text(ledger.path)}.")
    if ledger.torn:
        console.print("Its last line was cut short: dpnoise budget mend takes it away.")


def _meter(name: str, amounts: tuple[Fraction, Fraction, Fraction], width: int) -> "Text":
    """Return a name, a bar of the spent part and the numbers, as wide as the terminal allows."""
    total, spent, left = amounts
    numbers = f"{written_up(spent, _DIGITS)} of {written_up(total, _DIGITS)} spent, "
    rest = Fraction(0) if is_too_little(left, total) else left
    remainder = f"{written_down(rest, _DIGITS)} left"
    length = max(min(_BAR, width - _LABEL - len(numbers) - len(remainder) - 2 * _GAP), 0)
    filled = min(
        -(-length * spent // total), length
    )  # Rounded up, so that small payments are visible.
    colour = "red" if not left else "yellow" if spent / total >= _WARNING else "cyan"
    full, empty = ("█", "░") if terminal.can_show("█░") else ("#", "-")
    line: Text = import_extra("rich.text", "cli").Text(f"{name:<{_LABEL}}  ")
    line.append(full * filled, style=colour)
    line.append(empty * (length - filled) + " " * _GAP, style="dim")
    line.append(numbers)
    line.append(remainder, style="bold")
    return line


def _rows(ledger: Ledger) -> tuple[list[str], list[list[str]]]:
    """Return the titles and rows of a table of payments."""
    delta = bool(ledger.terms.total.delta)
    titles = ["", "date", ledger.terms.metric, *(["delta"] if delta else []), "on what"]
    rows = []
    for entry in ledger.entries:
        if entry.kind == "record":
            continue
        amounts = [entry.spent.main, *([entry.spent.delta] if delta else [])]
        numbers = [written_up(amount, _DIGITS) for amount in amounts]
        date = shorten(escape_text(entry.date), len("2026-01-31T00:00:00"))[:16].replace("T", " ")
        rows.append([str(entry.number), date, *numbers, _about(entry)])
    return titles, rows


def _about(entry: Entry) -> str:
    """Return a short description of an entry."""
    if entry.kind == "mended":
        return "a line that was cut short was taken away"
    questions = entry.request.get("publish") if isinstance(entry.request, Mapping) else None
    texts = [_question_text(part) for part in questions or () if isinstance(part, Mapping)]
    words = "; ".join(filter(None, [entry.note, *texts]))
    return shorten(words if entry.part is None else f"{entry.part}: {words}", _LONGEST_NAME)


def _question_text(question: Mapping[str, object]) -> str:
    names = question.get("statistics")
    words = ", ".join(map(str, names)) if isinstance(names, list) else "a release"
    column = "" if question.get("column") is None else f" of {question['column']}"
    where = "" if question.get("where") is None else f" where {question['where']}"
    by = question.get("by")
    groups = f" by {' and '.join(map(str, by))}" if isinstance(by, list) and by else ""
    return words + column + where + groups


def _ledger_data(ledger: Ledger, payment: Entry | None) -> dict[str, object]:
    """Return a ledger as plain data, with numbers as decimal text because floats would round."""

    def amounts(amount: Amount, *, down: bool = False) -> dict[str, str]:
        write = written_down if down else written_up
        return {ledger.terms.metric: write(amount.main), "delta": write(amount.delta)}

    def entry_data(entry: Entry) -> dict[str, object]:
        entry_fields = asdict(entry)
        return {"entry": entry_fields.pop("number"), **entry_fields, "spent": amounts(entry.spent)}

    terms = asdict(ledger.terms)
    return {
        **{"made" if name == "date" else name: part for name, part in terms.items()},
        "total": amounts(ledger.terms.total),
        "spent": amounts(ledger.spent),
        "left": amounts(ledger.left, down=True),
        "left_for": {
            part: amounts(ledger.left_for(part), down=True) for part in ledger.terms.parts
        },
        "margin_of_a_count": ledger.margin_of_a_count(),
        "head": ledger.head,
        "torn": ledger.torn,
        "entry_of_record": None if payment is None else payment.number,
        "entries": [entry_data(entry) for entry in ledger.entries],
    }


def _action(name: str, run: Run, summary: str, *options: Option, total: str = "") -> Command:
    """Return an action on a ledger; `total` explains its epsilon or rho, if it takes one."""
    one_of: tuple[Option, ...] = ()
    if total:
        one_of = (
            Option("--epsilon", {"metavar": "E"}, f"{total}, in epsilon"),
            Option("--rho", {"metavar": "R"}, f"{total}, in rho (zCDP)"),
        )
        delta = Option("--delta", {"default": "0", "metavar": "D"}, "the same for delta (0)")
        options = (delta, *options)
    file = Option("file", {"type": file_name, "metavar": "FILE"}, "the ledger")
    description = f"{summary[0].upper()}{summary[1:]}."
    return Command(name, run, (file, *options), one_of, description, help=summary)


_CREATE: Final = _action(
    "create",
    _create,
    "create a ledger in a new file",
    Option("--name", {"required": True}, "the name of the data set"),
    Option("--unit", None, 'the privacy unit in words: "one household"'),
    Option(
        "--person",
        {"action": "append", "metavar": "COLUMN", "default": []},
        "a column that identifies a person; repeat it for several. Requests that protect something "
        "else are then refused",
    ),
    Option("--neighbours", {"choices": NEIGHBOURS, "default": ADD_REMOVE}, f"({ADD_REMOVE})"),
    Option(
        "--part",
        {"action": "append", "metavar": "NAME", "default": [], "dest": "parts"},
        "a part of the data, such as a region; repeat it for all. Each person is in exactly one. "
        "Releases of different parts do not add up",
    ),
    total="the total that may ever be spent",
)
_SHOW: Final = _action(
    "show",
    _show,
    "show what was spent, and what is left",
    Option("--json", bool, "print JSON"),
    Option(
        "--record",
        {"type": file_name, "metavar": "FILE"},
        "find the entry that paid for a published record, or say that the ledger was rolled back "
        "or the record changed",
    ),
)
_SPEND: Final = _action(
    "spend",
    _spend,
    "count a release that was made elsewhere",
    Option("--note", {"required": True}, "what was released, in words"),
    Option("--part", None, "the part of the data that was released; by default all of it"),
    Option(
        "--already-published",
        bool,
        "count it even if less is left. Later releases are then refused",
    ),
    total="what it costs",
)
_MEND: Final = _action("mend", _mend, "take away a last line that a crash cut short")
BUDGET: Final = Command(
    "budget",
    description="A ledger of all releases about some persons: how much may be spent in all, and "
    "what was spent on what. dpnoise release --ledger FILE pays from it before it draws noise.",
    actions=(_CREATE, _SHOW, _SPEND, _MEND),
)
