"""The ledger: what may be spent on a data set, and every release that was paid for.

Its metric is fixed when it is made. Requests may depend on what earlier ones gave, so only what is
valid for such is added up: epsilons and deltas (Rogers and others 2016), or rhos and deltas
(Whitehouse and others 2023). Numbers are decimal text, added exactly; what is spent is rounded up.
A release is paid for before any noise is drawn: a crash loses budget, never privacy.
"""

import datetime as dt
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields
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
    reject,
    shown,
)
from dpnoise.core.strict_json import Data
from dpnoise.release.additive import GaussianMechanism
from dpnoise.release.calibration import quotient_down
from dpnoise.release.discrete import DiscreteLaplaceMechanism
from dpnoise.statistics import chain
from dpnoise.statistics.bounds import ADD_REMOVE, NEIGHBOURS
from dpnoise.statistics.composition import Cost
from dpnoise.statistics.digits import Number, amount_in_ledger, number_of, written_down, written_up
from dpnoise.statistics.requests import Request

EPSILON: Final = "epsilon"
RHO: Final = "rho"
_FORMAT: Final = 1
_DIGITS: Final = 6  # Of the numbers in words.
_CONFIDENCE: Final = 0.95
_Write = Callable[[Fraction, int], str]
_Columns = Sequence[str] | None


@dataclass(frozen=True)
class Amount:
    """So much epsilon or rho, and so much delta, exactly."""

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
        """Tell whether neither number is above the other's."""
        return self.main <= other.main and self.delta <= other.delta

    @classmethod
    def told(cls, line: Data) -> Self:
        """Return what a line of a ledger says."""
        return cls(amount_in_ledger(line["main"]), amount_in_ledger(line["delta"]))

    def line(self) -> dict[str, str]:
        """Return it as a line of a ledger says it, rounded up."""
        return {"main": written_up(self.main), "delta": written_up(self.delta)}


@dataclass(frozen=True)
class Terms:
    """What a ledger is for, fixed when it is made."""

    name: str
    unit: str
    person: tuple[str, ...] | None
    neighbours: str
    date: str
    metric: str
    total: Amount

    @classmethod
    def told(cls, line: Data) -> Self:
        """Return what the first line of a ledger says."""
        told = {part.name: line[part.name] for part in fields(cls)}
        person = None if told["person"] is None else tuple(told["person"])
        return cls(**{**told, "person": person, "total": Amount.told(told["total"])})


@dataclass(frozen=True)
class Entry:
    """A line of a ledger after the first: what was spent, on what, when; or a note.

    A note of a record has the number of the entry before it.
    """

    number: int
    kind: str
    date: str
    spent: Amount
    note: str
    request: Data | None
    record: Any  # As its line says.
    head: str

    @classmethod
    def told(cls, number: int, line: Data, head: str) -> Self:
        """Return what a line says."""
        kind = line["kind"]
        check_choice("kind", kind, ("spent", "record", "mended"))
        spent = Amount.told(line["spent"]) if kind == "spent" else Amount(Fraction(0))
        note, request, record = (line.get(name) for name in ("note", "request", "record"))
        return cls(number, kind, line["date"], spent, note or "", request, record, head)


@dataclass(frozen=True)
class Receipt:
    """What was paid: the head of the ledger then, what it allows and what is left, in words."""

    head: str
    name: str
    entry: int
    total: str
    left: str


@dataclass(frozen=True)
class Ledger:
    """A ledger as it was when it was read.

    Parameters
    ----------
    path
        Its file.
    terms
        What it is for.
    entries
        Its lines after the first.
    head
        The hash that stands for all of it.
    torn
        How many bytes of a line there are that was cut short.

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

    @property
    def spent(self) -> Amount:
        """What was spent, in all."""
        return sum((entry.spent for entry in self.entries), Amount(Fraction(0)))

    @property
    def left(self) -> Amount:
        """What may still be spent."""
        return self.terms.total - self.spent

    def words(self, amount: Amount, write: _Write = written_up, *, delta: bool = False) -> str:
        """Say an amount, rounded to six digits: `epsilon 0.5`, with delta if there may be some."""
        main = f"{self.terms.metric} {write(amount.main, _DIGITS)}"
        if not (delta or self.terms.total.delta):
            return main
        return f"{main} and delta {write(amount.delta, _DIGITS)}"

    def left_in_words(self, less: Amount | None = None) -> str:
        """Say what may still be spent, or would if so much less were there, rounded down."""
        left = self.left if less is None else self.left - less
        return self.words(left, written_down)

    def margin_of_a_count(self) -> int | None:
        """Return how far off one count would be, with probability 0.95, for all that is left."""
        if self.left.main <= 0:
            return None
        try:
            amount = quotient_down(self.left.main, 1)
            if self.terms.metric == EPSILON:
                return DiscreteLaplaceMechanism(amount).error(_CONFIDENCE)
            mechanism = GaussianMechanism.for_rho(amount, sensitivity=1.0, grid=None)
            return int(mechanism.error(_CONFIDENCE) + 0.5)
        except ArgumentError:
            return None

    def spend(
        self,
        cost: Cost | Amount,
        request: Data | None = None,
        *,
        date: str | None = None,
        note: str = "",
        person: _Columns = None,
        neighbours: str | None = None,
    ) -> Receipt:
        """Pay for a release: when this returns, the disk has it, and noise may be drawn.

        Parameters
        ----------
        cost
            What it costs: in both metrics, or an amount in that of the ledger.
        request
            What is released, as plain data; none of the rows.
        date
            When, in UTC; by default now.
        note
            Words about it.
        person, neighbours
            What the release protects, if it is to be compared with what the ledger protects.
        """
        with chain.append_lines(self.path) as (lines, add):
            now = _ledger(self.path, lines)
            amount = now.check(cost, person=person, neighbours=neighbours)
            line = {"kind": "spent", "date": date or utc_time(), "spent": amount.line()}
            head = add({**line, "note": note, "request": request})
        terms, number = now.terms, 1 + (now.entries[-1].number if now.entries else 0)
        return Receipt(head, terms.name, number, now.words(terms.total), now.left_in_words(amount))

    def keep_record(self, receipt: Receipt, record: Data) -> None:
        """Note which record was published for a receipt, by its hash."""
        told = {"of": receipt.head, "sha256": chain.head_of(dict(record))}
        with chain.append_lines(self.path) as (_, add):
            add({"kind": "record", "date": utc_time(), "record": told})

    def entry_of(self, record: Data) -> Entry:
        """Return the entry that paid for a published record, or say that there is none."""
        told = record.get("ledger")
        head = told.get("head") if isinstance(told, Mapping) else None
        if head is None:
            raise BudgetError("The record names no ledger: it was published without one.")
        found = [entry for entry in self.entries if entry.kind == "spent" and entry.head == head]
        if not found:
            raise BudgetError(
                f"{self.path} does not have the release of this record. It is another ledger, an "
                "older copy, or was rolled back: what was spent then is not counted here."
            )
        kept = [entry.record for entry in self.entries if entry.kind == "record"]
        hashes = [one["sha256"] for one in kept if one["of"] == head]
        if hashes and chain.head_of(dict(record)) not in hashes:
            raise BudgetError(f"The record was changed after {self.path} noted it.")
        return found[0]

    def check(
        self, cost: Cost | Amount, *, person: _Columns = None, neighbours: str | None = None
    ) -> Amount:
        """Return what a release would take, or raise if it cannot be paid for."""
        self._check_unit(person, neighbours)
        amount = self._amount_of(cost)
        if not amount.is_within(self.left):
            delta = amount.delta > 0
            raise BudgetError(
                f"{self.path} has {self.words(self.left, written_down, delta=delta)} left, and "
                f"this costs {self.words(amount, delta=delta)}. {self.worth()}"
            )
        return amount

    def _check_unit(self, person: _Columns, neighbours: str | None) -> None:
        """Raise if a release protects something else than the ledger."""
        here = self.terms
        if neighbours is not None and neighbours != here.neighbours:
            raise BudgetError(
                f"{self.path} is for neighbours={here.neighbours!r}, the request for "
                f"{neighbours!r}: their epsilons cannot be added."
            )
        if None not in (person, here.person) and set(person or ()) != set(here.person or ()):
            raise BudgetError(
                f"{self.path} protects {_unit(here.person)}, the request {_unit(person)}: their "
                "epsilons cannot be added."
            )

    def _amount_of(self, cost: Cost | Amount) -> Amount:
        """Return what a cost is in the metric of the ledger, rounded up."""
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
        return Amount.told(amount.line())

    def worth(self) -> str:
        """Say what all that is left would buy."""
        margin = self.margin_of_a_count()
        if margin is None:
            return "Nothing can be bought any more."
        how = f"within {margin:,}" if margin else "without an error"
        return f"What is left buys one count {how} with probability {_CONFIDENCE:g}."


class Payment:
    """What a request pays, from no ledger or from one that has enough: else it is an error."""

    def __init__(self, ledger: Ledger | str | PathLike[str] | None, request: Request) -> None:
        path = ledger.path if isinstance(ledger, Ledger) else ledger
        self._ledger = None if path is None else open_ledger(path)
        self._request = request
        self._receipt: Receipt | None = None
        self._unit: Any = {"person": request.person or (), "neighbours": request.neighbours}
        self.left_after = ""
        if self._ledger is not None:
            amount = self._ledger.check(request.cost(), **self._unit)
            self.left_after = self._ledger.left_in_words(amount)

    def make(self) -> None:
        """Pay, if it was not done: when this returns, the disk has it."""
        if self._ledger is not None and self._receipt is None:
            cost, described = self._request.cost(), self._request.described()
            self._receipt = self._ledger.spend(cost, described, **self._unit)

    @property
    def told(self) -> Data | None:
        """What a record says of it: the ledger's name and head, its total and what is left."""
        if self._receipt is None:
            return None
        return {name: getattr(self._receipt, name) for name in ("name", "total", "left", "head")}

    def keep(self, record: Data) -> None:
        """Note the record that was paid for. What cannot be noted is lost, and nothing else."""
        if self._ledger is not None and self._receipt is not None:
            with suppress(BudgetError, OSError):
                self._ledger.keep_record(self._receipt, record)


def create_ledger(  # Most of its lines are documentation.
    path: str | PathLike[str],
    *,
    name: str,
    unit: str | None = None,
    person: Sequence[str] = (),
    neighbours: str = ADD_REMOVE,
    epsilon: Number | None = None,
    rho: Number | None = None,
    delta: Number = 0,
) -> Ledger:
    """Make a ledger in a new file.

    Parameters
    ----------
    path
        The file, which does not exist.
    name
        Of the data set.
    unit
        What is protected, in words. Without `person`, it is not compared with what requests say.
    person
        The columns that identify a person; by default it is a row that is protected. Requests are
        refused that say something else.
    neighbours
        "add-remove" or "replace": what its epsilons are about.
    epsilon, rho
        The total that may ever be spent, in one of the two metrics. Text must be a plain decimal
        number, such as "0.3" or "1e-6", and is taken exactly as it is written.
    delta
        The total of delta; by default none.

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
    named = [person] if isinstance(person, str) else list(person)
    columns = None if unit is not None and not named else named
    given = [name, *named, *([] if unit is None else [unit])]
    if not all(isinstance(text, str) and text for text in given):
        raise ArgumentError(f"The name and the unit must be text, got {shown(given)}.")
    metric, number = (RHO, rho) if epsilon is None else (EPSILON, epsilon)
    total = Amount(number_of(metric, number), number_of("delta", delta, zero=True))
    if total.delta >= 1:
        reject("delta", delta, "be below 1")
    line = {
        "kind": "ledger",
        "format": _FORMAT,
        "date": utc_time(),
        "name": name,
        "unit": _unit(named) if unit is None else unit,
        "person": columns,
        "neighbours": neighbours,
        "metric": metric,
        "total": total.line(),
    }
    chain.create(file, line)
    return open_ledger(file)


def open_ledger(path: str | PathLike[str]) -> Ledger:
    """Read a ledger and check all of it: its chain, and that no more was spent than allowed."""
    file = _file_path(path)
    return _ledger(file, chain.read(file))


def mend_ledger(path: str | PathLike[str]) -> int:
    """Take away a line that a crash cut short, before its noise was drawn; return its bytes."""
    file = open_ledger(path).path
    return chain.mend(file, {"kind": "mended", "date": utc_time()})


def _file_path(path: object) -> Path:
    """Return the path of a ledger; raise unless it is text that can name a file."""
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
            f"The path of a ledger must not contain a NUL character, got {shown(text)}."
        )
    try:
        os.fsencode(text)
    except UnicodeEncodeError:
        raise ArgumentError(
            f"The path of a ledger must be text that the file system can encode, got {shown(text)}."
        ) from None
    return Path(text)


def _ledger(path: Path, lines: chain.Chain) -> Ledger:
    """Understand the lines of a file."""
    first, *others = lines.lines
    try:
        if (first["kind"], first["format"]) != ("ledger", _FORMAT):
            raise BudgetError(f"{path} is no ledger that this version of dpnoise can read.")
        terms = Terms.told(first)
        numbers = accumulate(int(line["kind"] != "record") for line in others)
        entries = tuple(map(Entry.told, numbers, others, lines.heads[1:]))
    except (KeyError, TypeError, ValueError, ArithmeticError):
        raise BudgetError(f"{path} is no ledger: its lines do not say what they should.") from None
    ledger = Ledger(path, terms, entries, lines.heads[-1], len(lines.torn))
    if not ledger.spent.is_within(terms.total):
        raise BudgetError(f"{path} was edited: more was spent than it allows.")
    return ledger


def _unit(person: _Columns) -> str:
    """Say what is protected, by the columns that identify it."""
    return f"one person ({', '.join(person)})" if person else "one row"


def utc_time() -> str:
    """Return the time in UTC, as ledgers and records have it."""
    return dt.datetime.now(dt.UTC).isoformat(timespec="seconds")
