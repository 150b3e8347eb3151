"""The ledger: the privacy budget of a data set, and every release paid from it.

The metric of a ledger is fixed when it is created. Requests may depend on earlier results, so the
ledger adds up only amounts for which this is valid: epsilons and deltas (Rogers and others 2016),
or rhos and deltas (Whitehouse and others 2023). If each person is in one of several parts, releases
of different parts do not add up: a person pays for the whole and for their part. Numbers are
decimal text and are added exactly; costs are rounded up. A release is paid for before any noise is
drawn, so a crash loses budget but never privacy.
"""

import datetime as dt
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from fractions import Fraction
from itertools import accumulate
from os import PathLike
from pathlib import Path
from typing import Any, Final, Self

from dpnoise.core.errors import (
    ArgumentError,
    ArgumentTypeError,
    BudgetError,
    check_choice,
    explain_calls,
    reject,
    short_repr,
)
from dpnoise.core.safe_text import escape_text
from dpnoise.core.strict_json import Data
from dpnoise.release.additive import GaussianMechanism
from dpnoise.release.calibration import quotient_down
from dpnoise.release.discrete import DiscreteLaplaceMechanism
from dpnoise.statistics import chain
from dpnoise.statistics.bounds import ADD_REMOVE, NEIGHBOURS
from dpnoise.statistics.composition import Cost
from dpnoise.statistics.digits import (
    Number,
    number_of,
    parse_ledger_amount,
    written_down,
    written_up,
)
from dpnoise.statistics.requests import Request

EPSILON: Final = "epsilon"
RHO: Final = "rho"
_FORMAT: Final = 1
_DIGITS: Final = 6  # Digits of the numbers in messages.
# Below this share of the total, a remainder is what rounding left: parts of a budget are rounded
# down and costs up. At a total of at most 10, one count would be off by more than 10^8.
_LEAST_USEFUL: Final = Fraction(1, 2**30)
NOTHING_USEFUL: Final = "nothing useful"
_CONFIDENCE: Final = 0.95  # The probability of the margin that describes the remaining budget.
_Write = Callable[[Fraction, int], str]
_Columns = Sequence[str] | None


@dataclass(frozen=True)
class Amount:
    """An exact amount of budget.

    Parameters
    ----------
    main
        The epsilon or rho, in the metric of the ledger.
    delta
        The delta.
    """

    main: Fraction
    delta: Fraction = Fraction(0)

    def __post_init__(self) -> None:
        for name in ("main", "delta"):
            value = getattr(self, name)
            if not isinstance(value, Fraction) or value < 0:
                reject(name, value, "be a Fraction >= 0")

    def __add__(self, other: "Amount") -> "Amount":
        return Amount(self.main + other.main, self.delta + other.delta)

    def __sub__(self, other: "Amount") -> "Amount":
        return Amount(self.main - other.main, self.delta - other.delta)

    def is_within(self, other: "Amount") -> bool:
        """Return whether both numbers are at most those of the other amount."""
        return self.main <= other.main and self.delta <= other.delta

    @classmethod
    def from_line(cls, line: Data) -> Self:
        """Return the amount in a line of a ledger."""
        return cls(parse_ledger_amount(line["main"]), parse_ledger_amount(line["delta"]))

    def line(self) -> dict[str, str]:
        """Return the fields of a line of a ledger, rounded up."""
        return {"main": written_up(self.main), "delta": written_up(self.delta)}


@dataclass(frozen=True)
class Terms:
    """The terms of a ledger, fixed when it is created.

    Parameters
    ----------
    name
        The name of the data set.
    unit
        The privacy unit, in words.
    person
        The columns that identify a person; empty for one row, None if only `unit` describes it.
    neighbours
        "add-remove" or "replace": how neighbouring data sets differ.
    date
        When the ledger was created, in UTC.
    metric
        "epsilon" or "rho".
    total
        The total budget.
    parts
        The parts of the data set, if each person is in exactly one.
    """

    name: str
    unit: str
    person: tuple[str, ...] | None
    neighbours: str
    date: str
    metric: str
    total: Amount
    parts: tuple[str, ...] = ()

    @classmethod
    def from_line(cls, line: Data) -> Self:
        """Return the terms in the first line of a ledger."""
        terms = {part.name: line[part.name] for part in fields(cls) if part.name != "parts"}
        person = None if terms["person"] is None else tuple(terms["person"])
        terms |= {"person": person, "total": Amount.from_line(terms["total"])}
        return cls(**terms, parts=tuple(line.get("parts", ())))


@dataclass(frozen=True)
class Entry:
    """A line of a ledger after the first: a payment, or a note.

    Parameters
    ----------
    number
        The number of the entry, from 1. The note of a record has the number of the entry before it.
    kind
        "spent" for a payment, "record" for a published record, "mended" for a removed line.
    date
        When the line was written, in UTC.
    spent
        The amount paid; 0 for notes.
    note
        A comment.
    request
        The request that was paid for, as plain data.
    record
        For a published record, its hash and the head of its payment.
    head
        The hash of the line.
    part
        The part of the data set that was paid for; None for all of it.
    published
        Whether the release was public before it was paid for, so that it may cost more than was
        left.
    """

    number: int
    kind: str
    date: str
    spent: Amount
    note: str
    request: Data | None
    record: Any
    head: str
    part: str | None = None
    published: bool = False

    @classmethod
    def from_line(cls, number: int, line: Data, head: str) -> Self:
        """Return the entry in a line."""
        kind = line["kind"]
        check_choice("kind", kind, ("spent", "record", "mended"))
        spent = Amount.from_line(line["spent"]) if kind == "spent" else Amount(Fraction(0))
        note, request, record = (line.get(name) for name in ("note", "request", "record"))
        others = line.get("part"), line.get("published") is True
        return cls(number, kind, line["date"], spent, note or "", request, record, head, *others)


@dataclass(frozen=True)
class Receipt:
    """The receipt of a payment.

    Parameters
    ----------
    head
        The head of the ledger after the payment.
    name
        The name of the data set.
    entry
        The number of the entry.
    total, left
        The total budget and the budget that remains, in words.
    """

    head: str
    name: str
    entry: int
    total: str
    left: str


@dataclass(frozen=True)
class Ledger:
    """A privacy budget in a file, with all payments, as of the moment it was read.

    `create_ledger` and `open_ledger` return one.

    Parameters
    ----------
    path
        The file.
    terms
        The terms: the data set, the privacy unit and the total budget.
    entries
        The payments and notes.
    head
        The hash of the last line, which depends on all lines.
    torn
        The size in bytes of a last line that a crash cut short; 0 if there is none.

    Examples
    --------
    >>> from tempfile import TemporaryDirectory
    >>> from dpnoise.statistics.composition import Loss, compose
    >>> with TemporaryDirectory() as folder:
    ...     ledger = create_ledger(Path(folder, "budget.json"), name="survey", epsilon=1)
    ...     receipt = ledger.spend(compose([Loss("pure", 0.25)]), date="2026-01-31")
    ...     open_ledger(ledger.path).left.main
    Fraction(3, 4)
    """

    path: Path
    terms: Terms
    entries: tuple[Entry, ...]
    head: str
    torn: int = 0

    def __str__(self) -> str:
        """Return the data set, the remaining and the total budget, and the number of payments."""
        payments = sum(entry.kind == "spent" for entry in self.entries)
        return escape_text(
            f"{self.terms.name}: {self.left_in_words()} left of {self.words(self.terms.total)}, "
            f"after {payments:,} payment{'s' * (payments != 1)} ({self.path})"
        )

    @property
    def spent(self) -> Amount:
        """The most that was spent so far on any person."""
        amounts = [self._spent_on(part) for part in (None, *self.terms.parts)]
        mains, deltas = zip(*((amount.main, amount.delta) for amount in amounts), strict=True)
        return Amount(max(mains), max(deltas))

    def _spent_on(self, part: str | None) -> Amount:
        """Return the amount spent on the persons of a part: with that of all releases of all."""
        entries = (entry for entry in self.entries if entry.part in {None, part})
        return sum((entry.spent for entry in entries), Amount(Fraction(0)))

    @property
    def left(self) -> Amount:
        """The amount that may still be spent on the whole data set."""
        return self.left_for(None)

    def left_for(self, part: str | None) -> Amount:
        """Return the amount that may still be spent on a part; None is the whole data set.

        Nothing is left if more was published than the ledger allows.
        """
        total, spent = self.terms.total, self.spent if part is None else self._spent_on(part)
        return total - spent if spent.is_within(total) else Amount(Fraction(0))

    def words(self, amount: Amount, write: _Write = written_up, *, delta: bool = False) -> str:
        """Return an amount in words with six digits: `epsilon 0.5`, with delta if there can be."""
        main = f"{self.terms.metric} {write(amount.main, _DIGITS)}"
        if not (delta or self.terms.total.delta):
            return main
        return f"{main} and delta {write(amount.delta, _DIGITS)}"

    def left_in_words(self, less: Amount | None = None, part: str | None = None) -> str:
        """Return the remaining budget in words, after another payment of `less`, rounded down."""
        left, less = self.left_for(part), less or Amount(Fraction(0))
        words = self._remainder(left - less if less.is_within(left) else Amount(Fraction(0)))
        return words if part is None else f"{words} for {escape_text(part)}"

    def _remainder(self, left: Amount, *, delta: bool = False) -> str:
        """Return what is left in words, rounded down."""
        if is_too_little(left.main, self.terms.total.main):
            return NOTHING_USEFUL
        return self.words(left, written_down, delta=delta)

    def margin_of_a_count(self, part: str | None = None) -> int | None:
        """Return the margin, at confidence 0.95, of one count that costs the remaining budget."""
        left = self.left_for(part).main
        if left <= 0 or is_too_little(left, self.terms.total.main):
            return None
        try:
            amount = quotient_down(left, 1)
            if self.terms.metric == EPSILON:
                return DiscreteLaplaceMechanism(epsilon=amount, sensitivity=1.0).error(_CONFIDENCE)
            mechanism = GaussianMechanism.for_rho(amount, sensitivity=1.0, grid=None)
            return int(mechanism.error(_CONFIDENCE) + 0.5)
        except ArgumentError:
            return None

    def spend(  # Most of its lines are documentation.
        self,
        cost: Cost | Amount,
        request: Data | None = None,
        *,
        date: str | None = None,
        note: str = "",
        person: _Columns = None,
        neighbours: str | None = None,
        part: str | None = None,
    ) -> Receipt:
        """Pay for a release, and return when the payment is on the disk. Then draw the noise.

        Parameters
        ----------
        cost
            The cost of the release: in both metrics, or an amount in the metric of the ledger.
        request
            A description of the release as plain data, without any row.
        date
            The date of the release in UTC; by default now.
        note
            A comment.
        person, neighbours
            The privacy unit of the release. It must be that of the ledger; None skips the check.
        part
            The part of the data set that is released; None for all of it.

        Returns
        -------
        Receipt
            The number of the entry, the new head and the remaining budget.

        Raises
        ------
        BudgetError
            If the remaining budget is too small, if the privacy unit differs, or if the file cannot
            be written.
        """
        with chain.open_to_append(self.path) as (lines, add):
            current = _parse_ledger(self.path, lines)
            amount = current.check(cost, person=person, neighbours=neighbours, part=part)
            line = {"kind": "spent", "date": date or utc_time(), "spent": amount.line()}
            of_part = {} if part is None else {"part": part}
            head = add({**line, **of_part, "note": note, "request": request})
        return _receipt_of(current, head, amount, part)

    def count_published(
        self, cost: Cost | Amount, *, note: str, part: str | None = None
    ) -> Receipt:
        """Count a release that is already public, also if it costs more than what is left.

        Nothing can be paid afterwards if it does.

        Parameters
        ----------
        cost
            The cost of the release: in both metrics, or an amount in the metric of the ledger.
        note
            What was released, in words.
        part
            The part of the data set that was released; None for all of it.

        Returns
        -------
        Receipt
            The number of the entry, the new head and the remaining budget.

        Raises
        ------
        BudgetError
            If the ledger has no such part, or if the file cannot be written.
        """
        with chain.open_to_append(self.path) as (lines, add):
            current = _parse_ledger(self.path, lines)
            amount = current.check(cost, part=part, published=True)
            line = {"kind": "spent", "date": utc_time(), "spent": amount.line(), "published": True}
            of_part = {} if part is None else {"part": part}
            head = add({**line, **of_part, "note": note, "request": None})
        return _receipt_of(current, head, amount, part)

    def keep_record(self, receipt: Receipt, record: Data) -> None:
        """Add a note with the hash of the record that was published for a receipt."""
        note = {"of": receipt.head, "sha256": chain.head_of(dict(record))}
        with chain.open_to_append(self.path) as (_, add):
            add({"kind": "record", "date": utc_time(), "record": note})

    def entry_of(self, record: Data) -> Entry:
        """Return the entry that paid for a published record; raise BudgetError if none did."""
        reference = record.get("ledger")
        head = reference.get("head") if isinstance(reference, Mapping) else None
        if head is None:
            raise BudgetError("The record names no ledger: it was published without one.")
        payments = [entry for entry in self.entries if entry.kind == "spent" and entry.head == head]
        if not payments:
            raise BudgetError(
                f"{self.path} does not have the release of this record. It is another ledger, an "
                "older copy, or was rolled back: what was spent then is not counted terms."
            )
        notes = [entry.record for entry in self.entries if entry.kind == "record"]
        hashes = [note["sha256"] for note in notes if note["of"] == head]
        if hashes and chain.head_of(dict(record)) not in hashes:
            raise BudgetError(f"The record was changed after {self.path} noted it.")
        return payments[0]

    def check(
        self,
        cost: Cost | Amount,
        *,
        person: _Columns = None,
        neighbours: str | None = None,
        part: str | None = None,
        published: bool = False,
    ) -> Amount:
        """Return the amount of a release; raise BudgetError if the ledger cannot pay for it.

        A release that is already published may cost more than what is left.
        """
        self._check_unit(person, neighbours)
        if part is not None and part not in self.terms.parts:
            parts = ", ".join(self.terms.parts) or "none"
            raise BudgetError(f"{self.path} has no part {part!r}. Its parts: {parts}.")
        amount, left = self._amount_of(cost), self.left_for(part)
        if not published and not amount.is_within(left):
            delta = amount.delta > 0
            of_part = "" if part is None else f" for {escape_text(part)}"
            raise BudgetError(
                f"{self.path} has {self._remainder(left, delta=delta)} left{of_part}, and this "
                f"costs {self.words(amount, delta=delta)}. {self.worth(part)}"
            )
        return amount

    def _check_unit(self, person: _Columns, neighbours: str | None) -> None:
        """Raise BudgetError if a release has another privacy unit than the ledger."""
        terms = self.terms
        if neighbours is not None and neighbours != terms.neighbours:
            raise BudgetError(
                f"{self.path} is for neighbours={terms.neighbours!r}, the request for "
                f"{neighbours!r}: their epsilons cannot be added."
            )
        if None not in (person, terms.person) and set(person or ()) != set(terms.person or ()):
            if person:
                advice = f"Pay from a ledger that was created with person {', '.join(person)}"
            else:
                advice = (
                    f"Give person ({', '.join(terms.person or ())}) and how many rows of a person "
                    "count (max_total_rows). If each row is of another person, pay from a ledger "
                    "that was created without a person"
                )
            raise BudgetError(
                f"{self.path} protects {_unit(terms.person)}, the request {_unit(person)}: their "
                f"epsilons cannot be added. {advice}."
            )

    def _amount_of(self, cost: Cost | Amount) -> Amount:
        """Return a cost in the metric of the ledger, rounded up."""
        if isinstance(cost, Amount):
            amount = cost
        elif self.terms.metric == RHO:
            amount = Amount(cost.rho, cost.rho_delta)
        elif cost.epsilon is None:
            raise BudgetError(
                f"{self.path} counts epsilon, and Gaussian noise has none without a delta: say at "
                "which delta, or make a ledger in rho."
            )
        else:
            amount = Amount(cost.epsilon, cost.delta)
        return Amount.from_line(amount.line())

    def worth(self, part: str | None = None) -> str:
        """Describe what the remaining budget can pay for."""
        margin = self.margin_of_a_count(part)
        if margin is None:
            is_spent = not self.left_for(part).main
            return f"{'Nothing' if is_spent else 'Nothing useful'} can be bought any more."
        how = f"within {margin:,}" if margin else "without an error"
        count = "count of persons" if self.terms.person else "count"
        return f"What is left buys one {count} {how} with probability {_CONFIDENCE:g}."


class LedgerCharge:
    """The payment for a request, from a ledger if there is one: by default that of the request.

    The constructor raises BudgetError if the ledger cannot pay.
    """

    def __init__(self, ledger: Ledger | str | PathLike[str] | None, request: Request) -> None:
        path = ledger.path if isinstance(ledger, Ledger) else ledger
        if request.ledger is not None:
            _check_same_file(path, request.ledger)
            path = request.ledger
        self._ledger = None if path is None else open_ledger(path)
        self._request = request
        self._receipt: Receipt | None = None
        self._unit: Any = {
            "person": request.person or (),
            "neighbours": request.neighbours,
            "part": request.part,
        }
        self.left_after = ""
        if self._ledger is not None:
            amount = self._ledger.check(request.cost(), **self._unit)
            self.left_after = self._ledger.left_in_words(amount, request.part)

    def pay(self) -> None:
        """Pay unless already paid, and return when the payment is on the disk."""
        if self._ledger is not None and self._receipt is None:
            cost, described = self._request.cost(), self._request.to_dict()
            self._receipt = self._ledger.spend(cost, described, **self._unit)

    @property
    def summary(self) -> Data | None:
        """The payment as records have it: the ledger's name, total, remainder and head."""
        if self._receipt is None:
            return None
        return {name: getattr(self._receipt, name) for name in ("name", "total", "left", "head")}

    def note_record(self, record: Data) -> None:
        """Add a note about the record to the ledger. A failure loses only the note."""
        if self._ledger is not None and self._receipt is not None:
            with suppress(BudgetError, OSError):
                self._ledger.keep_record(self._receipt, record)


# Most of its lines are documentation.
@explain_calls
def create_ledger(  # noqa: PLR0913 - the terms of a ledger, which `Terms` holds behind it
    path: str | PathLike[str],
    *,
    name: str,
    unit: str | None = None,
    person: Sequence[str] = (),
    neighbours: str = ADD_REMOVE,
    epsilon: Number | None = None,
    rho: Number | None = None,
    delta: Number = 0,
    parts: Sequence[str] = (),
) -> Ledger:
    """Create a ledger, which limits the total privacy loss of a data set, in a new file.

    Parameters
    ----------
    path
        The file to create. It must not exist.
    name
        The name of the data set.
    unit
        The privacy unit in words, such as "one household". Without `person`, it is not compared
        with the privacy unit of requests.
    person
        The columns that identify a person. By default the privacy unit is one row. The ledger
        rejects requests with another privacy unit.
    neighbours
        "add-remove" if a person is added or removed, "replace" if another person replaces them. The
        ledger rejects requests that differ.
    epsilon, rho
        The total budget, in one of the two metrics. Text must be a plain decimal number, such as
        "0.3" or "1e-6". It counts exactly as it is written.
    delta
        The total delta, for Gaussian noise and discovered groups; 0 by default.
    parts
        The names of parts, such as regions, if each person is in exactly one of them in all data
        that is ever released. Releases of different parts then do not add up. Needs "add-remove".

    Raises
    ------
    ArgumentError
        If an argument is out of range, or if not exactly one of epsilon and rho is given.
    BudgetError
        If the file exists or cannot be written.

    Examples
    --------
    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     ledger = create_ledger(f"{folder}/b.json", name="survey", epsilon="0.3", delta=1e-6)
    >>> ledger.words(ledger.left)
    'epsilon 0.3 and delta 1e-6'
    >>> ledger.worth()
    'What is left buys one count within 10 with probability 0.95.'
    """
    file = _file_path(path)
    if (epsilon is None) == (rho is None):
        raise ArgumentError("Give a total of either epsilon or rho.")
    check_choice("neighbours", neighbours, NEIGHBOURS)
    person_columns = [person] if isinstance(person, str) else list(person)
    columns = None if unit is not None and not person_columns else person_columns
    part_names = [parts] if isinstance(parts, str) else list(parts)
    if part_names and neighbours != ADD_REMOVE:
        raise ArgumentError(
            'parts need neighbours="add-remove": a person who is replaced by one of another part '
            "changes both."
        )
    if len(set(part_names)) < len(part_names):
        raise ArgumentError(f"Every part must be named once, got {short_repr(part_names)}.")
    texts = [name, *person_columns, *part_names, *([] if unit is None else [unit])]
    if not all(isinstance(text, str) and text for text in texts):
        raise ArgumentError(f"Names and the unit must be text, got {short_repr(texts)}.")
    metric, number = (RHO, rho) if epsilon is None else (EPSILON, epsilon)
    total = Amount(number_of(metric, number), number_of("delta", delta, zero=True))
    if total.delta >= 1:
        reject("delta", delta, "be below 1")
    line = {
        "kind": "ledger",
        "format": _FORMAT,
        "date": utc_time(),
        "name": name,
        "unit": _unit(person_columns) if unit is None else unit,
        "person": columns,
        "neighbours": neighbours,
        "metric": metric,
        "total": total.line(),
        **({"parts": part_names} if part_names else {}),
    }
    chain.create(file, line)
    return open_ledger(file)


@explain_calls
def open_ledger(path: str | PathLike[str]) -> Ledger:
    """Read a ledger and check every line of it.

    Parameters
    ----------
    path
        The file of the ledger.

    Raises
    ------
    BudgetError
        If the file cannot be read, if a line was changed, or if more was spent than the total.

    Examples
    --------
    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     _ = create_ledger(f"{folder}/budget.json", name="survey", epsilon=1)
    ...     ledger = open_ledger(f"{folder}/budget.json")
    >>> ledger.left_in_words()
    'epsilon 1'
    """
    file = _file_path(path)
    return _parse_ledger(file, chain.read(file))


def mend_ledger(path: str | PathLike[str]) -> int:
    """Remove a last line that a crash cut short, and note it in the ledger.

    The crash happened before noise was drawn, so nothing was released for that line.

    Parameters
    ----------
    path
        The file of the ledger.

    Returns
    -------
    int
        The size of the removed line in bytes; 0 if there was none.

    Raises
    ------
    BudgetError
        If the file cannot be read or written, or if another line was changed.
    """
    file = open_ledger(path).path
    return chain.repair(file, {"kind": "mended", "date": utc_time()})


def _file_path(path: object) -> Path:
    """Return the path of a ledger; raise unless it is valid text."""
    try:
        text = os.fspath(path)  # type: ignore[call-overload]
    except TypeError:
        text = None
    if not isinstance(text, str):
        raise ArgumentTypeError(
            f"The path of a ledger must be a str or a pathlib.Path, got {type(path).__name__}."
        )
    if "\0" in text:
        raise ArgumentError(
            f"The path of a ledger must not contain a NUL character, got {short_repr(text)}."
        )
    try:
        os.fsencode(text)
    except UnicodeEncodeError:
        raise ArgumentError(
            f"The path of a ledger must be text that the file system can encode, "
            f"got {short_repr(text)}."
        ) from None
    return Path(text)


def _parse_ledger(path: Path, lines: chain.Chain) -> Ledger:
    """Return the ledger in the lines of a file; raise BudgetError if they are not valid."""
    first, *others = lines.lines
    try:
        if (first["kind"], first["format"]) != ("ledger", _FORMAT):
            raise BudgetError(f"{path} is not a ledger that this version of dpnoise can read.")
        terms = Terms.from_line(first)
        numbers = accumulate(int(line["kind"] != "record") for line in others)
        entries = tuple(map(Entry.from_line, numbers, others, lines.heads[1:]))
        if not {entry.part for entry in entries} <= {None, *terms.parts}:
            raise BudgetError(f"{path} was edited: it pays for a part that it does not have.")
    except (KeyError, TypeError, ValueError, ArithmeticError):
        raise BudgetError(f"{path} is not a ledger: its lines are not valid.") from None
    ledger = Ledger(path, terms, entries, lines.heads[-1], len(lines.incomplete))
    paid_first = tuple(entry for entry in entries if not entry.published)
    if not replace(ledger, entries=paid_first).spent.is_within(terms.total):
        raise BudgetError(f"{path} was edited: more was spent than it allows.")
    return ledger


def _check_same_file(path: str | PathLike[str] | None, named: str | PathLike[str]) -> None:
    """Raise if another ledger is given than the request names."""
    if path is not None and _file_path(path).resolve() != _file_path(named).resolve():
        raise ArgumentError(f"The request names its ledger, {named}: leave out ledger={path}.")


def _receipt_of(ledger: Ledger, head: str, amount: Amount, part: str | None) -> Receipt:
    """Return the receipt for a payment that was made after the ledger was read."""
    terms, last = ledger.terms, ledger.entries[-1].number if ledger.entries else 0
    total, left = ledger.words(terms.total), ledger.left_in_words(amount, part)
    return Receipt(head, terms.name, last + 1, total, left)


def _unit(person: _Columns) -> str:
    """Return the privacy unit in words."""
    return f"one person ({', '.join(person)})" if person else "one row"


def is_too_little(left: Fraction, total: Fraction) -> bool:
    """Return whether what is left is above 0, and too little for any useful release."""
    return 0 < left < _LEAST_USEFUL * total


def utc_time() -> str:
    """Return the current time in UTC, in the format of ledgers and records."""
    return dt.datetime.now(dt.UTC).isoformat(timespec="seconds")
