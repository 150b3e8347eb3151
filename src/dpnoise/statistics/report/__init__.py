"""What was published, as one HTML page, for the people who decide and the people who read.

It knows only the plain data of a record, so that a page says nothing that the record does not.
"""

import hashlib
import json
import re
from collections.abc import Sequence
from datetime import datetime
from typing import Final

from dpnoise.core import html, strict_json
from dpnoise.core.strict_json import Data
from dpnoise.statistics.digits import rounded
from dpnoise.statistics.report.numbers import Statistic, statistics_of
from dpnoise.statistics.report.protection import Protection

__all__ = ["record_text", "render", "request_toml"]

_MOST_NAMED: Final = 3  # Statistics that a title names.


def record_text(record: Data) -> str:
    """Return the record as the file that is kept of it: the page names its hash."""
    return strict_json.dumps(record) + "\n"


def render(record: Data, title: str | None = None) -> str:
    """Return the page of one record, given as `Table.record()`.

    Without a title, the page is called by what was published.
    """
    statistics = statistics_of(record["releases"])
    numbers = [number for statistic in statistics for number in statistic.numbers]
    return html.render(
        "dpnoise.statistics.report/page.html",
        title=(title or "").strip() or _title(statistics),
        record={"discovered": None, "ledger": None, **record, "releases": None},
        date=_date(record["date"]),
        confidence=_percent(record["request"]["confidence"]),
        outside=_percent(1 - record["request"]["confidence"])[:-1],
        statistics=[
            {**one.view(), "cost": _cost(one.release), "noise": _noise(one.release)}
            for one in statistics
        ],
        some_joint=any(number.joint is not None for number in numbers),
        some_intervals=any(number.interval is not None for number in numbers),
        protection=Protection.of(record).view(),
        request=request_toml(record["request"]),
        digest=hashlib.sha256(record_text(record).encode("utf-8")).hexdigest(),
    )


def _title(statistics: Sequence[Statistic]) -> str:
    """Name what was published: `Mean and median of income, by city; count of rows`."""
    names: dict[str, list[str]] = {}
    for one in statistics:
        names.setdefault(one.of_what, []).append(one.called)
    titles = [f"{' and '.join(dict.fromkeys(called))} of {of}" for of, called in names.items()]
    more = len(titles) - _MOST_NAMED
    text = "; ".join(titles[:_MOST_NAMED]) + (f"; and {more} more" if more > 0 else "")
    return text[:1].upper() + text[1:] if titles else "No group could be published"


def _cost(release: Data) -> str:
    """Say what a statistic cost, and its parts: `epsilon 0.5 (median 0.25, interval 0.25)`."""
    inner = ", ".join(f"{name} {part:.4g}" for name, part in release["parts"].items())
    amount = "rho" if release["epsilon"] is None else "epsilon"
    return f"{amount} {release[amount]:.4g}" + (f" ({inner})" if inner else "")


def _noise(release: Data) -> str:
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


def _percent(probability: float) -> str:
    return f"{100 * probability:.6g}%"


def request_toml(request: Data) -> str:
    r"""Return a described request in TOML, as a person signs it and `load_request` reads it.

    What is not set is left out. A list is one line, which makes it shorter than tomli-w's.

    Examples
    --------
    >>> asked = {"epsilon": 1.0, "rho": None, "publish": [{"statistics": ("count",)}]}
    >>> print(request_toml({**asked, "groups": {}}))
    epsilon = 1.0
    <BLANKLINE>
    [[publish]]
    statistics = ["count"]
    """
    top = {name: part for name, part in request.items() if name not in {"groups", "publish"}}
    parts = [("", top), ("[groups]\n", request["groups"])]
    parts += [("[[publish]]\n", question) for question in request["publish"]]
    return "\n\n".join(title + _toml_lines(part) for title, part in parts if part)


def _toml_lines(table: Data) -> str:
    return "\n".join(
        f"{name if re.fullmatch('[A-Za-z0-9_-]+', name) else _toml(name)} = {_toml(part)}"
        for name, part in table.items()
        if part is not None and part not in ((), [])
    )


def _toml(part: object) -> str:
    if isinstance(part, list | tuple):
        return f"[{', '.join(map(_toml, part))}]"
    if isinstance(part, bool):
        return "true" if part else "false"
    if isinstance(part, str):  # The strings of TOML are those of JSON but for one character.
        return json.dumps(part, ensure_ascii=False, allow_nan=False).replace("\x7f", "\\u007f")
    return repr(part)
