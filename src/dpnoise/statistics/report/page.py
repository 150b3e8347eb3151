"""The page: the numbers first, then what is protected, what was spent, and how to check it."""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, Final

from dpnoise.core import strict_json
from dpnoise.core.markup import Markup, tag
from dpnoise.core.page_layout import HOUSE, definitions, document, section
from dpnoise.statistics.digits import rounded
from dpnoise.statistics.report import numbers, protection, toml
from dpnoise.statistics.report.numbers import Statistic
from dpnoise.statistics.report.protection import Promise

Data = Mapping[str, Any]

_MOST_NAMED: Final = 3  # Statistics that a title names.


def record_text(record: Data) -> str:
    """Return the record as the file that is kept of it: the page names its hash."""
    return strict_json.dumps(record) + "\n"


def render(record: Data, title: str | None = None) -> str:
    """Return the page of one record, given as `Table.record()`.

    Without a title, the page is called by what was published.
    """
    found = numbers.statistics_of(record["releases"])
    title = (title or "").strip() or _titled(found)
    promise = Promise.of(record)
    return document(
        title,
        _header(record, title, promise),
        section("The numbers", *map(numbers.shown, found), *_discovered(record)),
        _explained(record, found, promise),
        protection.explained(promise),
        _spent(record, found, promise),
        _request(record),
        _checked(record, found),
        styles=(HOUSE, "dpnoise.statistics.report"),
    )


def _titled(found: Sequence[Statistic]) -> str:
    """Name what was published: `Mean and median of income, by city; count of rows`."""
    names: dict[str, list[str]] = {}
    for one in found:
        names.setdefault(one.of_what, []).append(one.called)
    titles = [f"{' and '.join(dict.fromkeys(called))} of {of}" for of, called in names.items()]
    more = len(titles) - _MOST_NAMED
    text = "; ".join(titles[:_MOST_NAMED]) + (f"; and {more} more" if more > 0 else "")
    return text[:1].upper() + text[1:] if titles else "No group could be published"


def _header(record: Data, title: str, promise: Promise) -> Markup:
    facts = [
        ("Published", f"{_date(record['date'])}, with dpnoise {record['dpnoise']}"),
        ("Protected", f"{promise.unit}; {promise.strength}"),
        ("Margins", f"hold with probability {_share(record['request']['confidence'])}"),
    ]
    lead = (
        "Every number on this page has random noise in it, so that it tells little about any one "
        f"{promise.noun}. Its margin says how far off the noise can have moved it."
    )
    over = tag("p", "Published statistics", class_="over")
    return tag("header", over, tag("h1", title), tag("p", lead, class_="lead"), definitions(facts))


def _discovered(record: Data) -> Iterator[Markup]:
    """Say how groups were found that nobody had declared."""
    for one in record.get("discovered") or ():
        counted = Promise.of(record).noun
        yield tag(
            "p",
            f"The groups of {one['column']} were not declared. Shown are those whose number of "
            f"{counted}s, with noise of its own, is {one['threshold']:,} or more: "
            f"{len(one['groups']):,} of them. There may be others.",
        )


def _explained(record: Data, found: Sequence[Statistic], promise: Promise) -> Markup:
    confidence = record["request"]["confidence"]
    shown = [number for one in found for number in one.numbers]
    alone = (
        f"“Within” is the margin of each number by itself: with probability {_share(confidence)} "
        "the noise has moved it by no more. The line at the end of a bar shows it; where it has "
        "no mark at its end, it goes further than the picture."
    )
    points = [alone]
    if any(number.joint is not None for number in shown):
        points.append(
            "“All within” holds for all numbers of one statistic together, with the same "
            f"probability. Of 100 numbers, {_share(1 - confidence)[:-1]} are outside of their own "
            "margins on average: to compare many, use this one."
        )
    if any(number.interval is not None for number in shown):
        points.append("A median or another quantile is inside of its interval, likewise.")
    points.append(
        "Margins are about the noise alone. They do not say how well the data stand for anybody "
        "else, nor what the declared bounds cut off. They are rounded up, and hold for the numbers "
        "as they are rounded here; the record has every digit."
    )
    if promise.noun == "person":
        points.append(
            f"The unit is {promise.unit}. What a person has beyond that was left out, so counts "
            "and sums may be below those of all rows."
        )
    if record["request"].get("clamp"):
        points.append("Counts below 0 are published as 0, so small ones are too large on average.")
    return section("How to read the numbers", tag("ul", *(tag("li", point) for point in points)))


def _spent(record: Data, found: Sequence[Statistic], promise: Promise) -> Markup:
    words = f"Everything on this page together cost {promise.cost}. What releases cost adds up."
    costs = definitions((one.title, _cost(one.release)) for one in found)
    several = costs if len(found) > 1 else Markup("")
    return section("What was spent, and what is left", tag("p", words), several, *_ledger(record))


def _cost(release: Data) -> str:
    """Say what a statistic cost, and its parts: `epsilon 0.5 (median 0.25, interval 0.25)`."""
    inner = ", ".join(f"{name} {part:.4g}" for name, part in release["parts"].items())
    amount = "rho" if release["epsilon"] is None else "epsilon"
    return f"{amount} {release[amount]:.4g}" + (f" ({inner})" if inner else "")


def _ledger(record: Data) -> Iterator[Markup]:
    """Say what the ledger knows, if there was one."""
    ledger = record.get("ledger")
    if not ledger:
        yield tag(
            "p",
            f"The record names no ledger: what else was published about the same "
            f"{Promise.of(record).noun}s, and how much may still be, is not known here.",
        )
        return
    titles = {"name": "Ledger", "total": "Allowed in all", "left": "Left after this release"}
    facts = [(title, str(ledger[key])) for key, title in titles.items() if key in ledger]
    yield definitions([*facts, ("Its head", str(ledger["head"]))])
    yield tag(
        "p",
        "The head is a hash of all that the ledger had when this was published. A ledger in which "
        "it does not occur is another one, or was set back.",
    )


def _request(record: Data) -> Markup:
    note = "Settled before a row was read; a file with these lines asks for the same again."
    text = toml.written(record["request"])
    return section("The request", tag("p", note), tag("pre", tag("code", text)))


def _checked(record: Data, found: Sequence[Statistic]) -> Markup:
    digest = hashlib.sha256(record_text(record).encode("utf-8")).hexdigest()
    note = (
        "Whoever published this has its record, a file in JSON with every number in full and "
        "nothing else of the data. The SHA-256 of that file must be this one:"
    )
    facts = [
        ("Date", record["date"]),
        ("Version", f"dpnoise {record['dpnoise']}, record format {record['format']}"),
        ("Neighbours", record["neighbours"]),
        *((one.title, _how(one.release)) for one in found),
    ]
    return section(
        "How to check this page",
        tag("p", note),
        tag("pre", tag("code", digest)),
        definitions(facts),
    )


def _how(release: Data) -> str:
    """Say how a statistic was released: `discrete Laplace noise, exact; scale 1; grid 1`."""
    amounts = {name: release[name] for name in ("scale", "grid") if release[name] is not None}
    parts = [f"{name} {rounded(amount, None)[0]}" for name, amount in amounts.items()]
    return "; ".join(filter(None, [release["mechanism"], *parts]))


def _date(text: str) -> str:
    """Write a date as people do: `15 November 2026, 23:33 UTC`."""
    try:
        date = datetime.fromisoformat(text)
    except ValueError:
        return text
    return f"{date.day} {date:%B %Y, %H:%M} {date.tzname() or ''}".strip()


def _share(probability: float) -> str:
    return f"{100 * probability:.6g}%"
