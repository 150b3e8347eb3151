"""The HTML page of a release, for decision makers and readers.

The page is made only from the plain data of a record, so it contains nothing else. Every figure
about protection is rounded towards less protection.
"""

import hashlib
import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from datetime import datetime
from decimal import ROUND_CEILING, ROUND_FLOOR, Context, Decimal
from itertools import chain, groupby
from types import MappingProxyType
from typing import Final

from dpnoise.core import html, strict_json
from dpnoise.core.strict_json import Data
from dpnoise.statistics.composition import epsilon_of_zcdp
from dpnoise.statistics.digits import format_loss, format_number
from dpnoise.statistics.results import MARK, NO_INFORMATION, Number, Release

INVENTED_PEOPLE: Final = "the people in the data are invented"
_MOST_NAMED: Final = 3  # A title names at most this many subjects.
_NAMES: Final = {
    "std": "standard deviation",
    "count": "number",
    "persons": "number",
    "distinct": "number of different values",
}
_LONGEST: Final = 1e300  # Lengths of bars overflow near the largest float.
_BELIEFS: Final = (1, 10, 50, 90)  # Prior beliefs that the page shows, in percent.
_WEAK: Final = 10.0  # The page calls a larger epsilon weak.
_USUAL_DELTA: Final = 1e-6  # The delta at which a loss in rho is converted to epsilon.
_ROWS: Final = 3  # The rows of one person in an example.
_EXACT: Final = Context(prec=60)
_LARGEST: Final = Decimal(1000)  # A larger epsilon is shown like this one; exp would overflow.
_EDGES: Final = "A cell includes its lower edge, the last cell both."
_CERTAIN: Final = Decimal("99.9")  # A larger percentage would be rounded to 100.
_PLAIN_POWER: Final = 5  # A factor up to this power of ten is written without an exponent.


def record_text(record: Data) -> str:
    """Return the content of the record file. The page shows its hash."""
    return strict_json.dumps(record) + "\n"


def render_record(record: Data, title: str | None = None) -> str:
    """Return the HTML page of a record from `Table.record()`.

    The default title names the statistics.
    """
    statistics = statistics_of(record["releases"], record["request"].get("labels") or {})
    numbers = [number for statistic in statistics for number in statistic.numbers]
    confidence = record["request"]["confidence"]
    return html.render_template(
        "dpnoise.statistics.report/page.html",
        title=(title or "").strip() or _title(statistics),
        record={
            "ledger": None,
            "source": None,
            "invented": False,
            **record,
            "discovered": None,
            "releases": None,
        },
        discovered=[_discovery_view(entry) for entry in record.get("discovered") or ()],
        date=_date(record["date"]),
        confidence=confidence,
        outside=f"{100 * (1 - confidence):.6g}",
        statistics=[statistic.view() for statistic in statistics],
        wide_tables=wide_tables(statistics),
        notes=record["request"].get("notes") or (),
        released_by=record.get("released_by"),
        left_out=record.get("left_out_in_words") or (),
        some_joint=any(number.joint is not None for number in numbers),
        some_uninformative=any(number.note == NO_INFORMATION for number in numbers),
        some_suppressed=any(number.value is None and not number.is_group for number in numbers),
        some_below_margin=any(number.is_below_margin for number in numbers),
        some_intervals=any(number.interval is not None for number in numbers),
        protection=_protection(record),
        request=request_toml(record["request"]),
        digest=hashlib.sha256(record_text(record).encode("utf-8")).hexdigest(),
    )


def _discovery_view(entry: Data) -> Data:
    """Return the data for the template: the columns, which groups are shown, and the cost."""
    cost, shared = None, entry.get("paid_for", [])
    if "paid_for" in entry:
        is_rho = entry["epsilon"] is None
        cost = f"rho {entry['rho']:.4g}" if is_rho else f"epsilon {entry['epsilon']:.4g}"
        cost += f" for {', '.join(shared)} together" if len(shared) > 1 else ""
    columns = " and ".join(entry["columns"])
    view = {"rule": None, "note": None, **entry, "number": len(entry["groups"]), "cost": cost}
    return {**view, "columns": columns}


def _title(statistics: Sequence["Statistic"]) -> str:
    """Return a title such as `Mean and median of income, by city; count of rows`."""
    names: dict[str, list[str]] = {}
    for statistic in statistics:
        names.setdefault(statistic.subject, []).append(statistic.name)
    titles = [
        f"{' and '.join(dict.fromkeys(statistic_names))} of {subject}"
        for subject, statistic_names in names.items()
    ]
    omitted = len(titles) - _MOST_NAMED
    text = "; ".join(titles[:_MOST_NAMED]) + (f"; and {omitted} more" if omitted > 0 else "")
    return text[:1].upper() + text[1:] if titles else "No group could be published"


def _date(text: str) -> str:
    """Return a date such as `15 November 2026, 23:33 UTC`."""
    try:
        date = datetime.fromisoformat(text)
    except ValueError:
        return text
    return f"{date.day} {date:%B %Y, %H:%M} {date.tzname() or ''}".strip()


def request_toml(request: Data) -> str:
    r"""Return the data of a request as TOML, which `load_request` reads.

    Settings without a value are left out, and groups that no question uses, and the delimiter,
    which is a setting of the source. A list is one line, shorter than with tomli-w.

    >>> budget = {"epsilon": 1.0, "rho": None, "publish": [{"statistics": ("count",)}]}
    >>> print(request_toml({**budget, "groups": {}}))
    epsilon = 1.0
    <BLANKLINE>
    [[publish]]
    statistics = ["count"]
    """
    hierarchy = request.get("hierarchy", {})
    used = {*chain(*(question.get("by") or () for question in request["publish"])), *hierarchy}
    used |= {*chain(*hierarchy.values())}
    groups = {name: part for name, part in request.get("groups", {}).items() if name in used}
    request = {**request, "groups": groups}
    tables = ("labels", "derived", "groups")
    others = {*tables, "hierarchy", "publish", "delimiter"}
    top = {name: part for name, part in request.items() if name not in others}
    parts = [("", top), *((f"[{name}]\n", request.get(name)) for name in tables)]
    for finer, coarser in hierarchy.items():
        for column, groups in coarser.items():
            parts.append((f"[hierarchy.{_toml_name(finer)}.{_toml_name(column)}]\n", groups))
    parts += [("[[publish]]\n", question) for question in request["publish"]]
    return "\n\n".join(title + _toml_lines(part) for title, part in parts if part)


def _toml_lines(table: Data) -> str:
    return "\n".join(
        f"{_toml_name(name)} = {toml_value(part)}"
        for name, part in table.items()
        if part is not None and part not in ((), [])
    )


def _toml_name(name: str) -> str:
    return name if re.fullmatch("[A-Za-z0-9_-]+", name) else toml_value(name)


def toml_value(part: object) -> str:
    """Return a value of a setting as TOML, on one line."""
    if isinstance(part, dict):
        entries = (f"{_toml_name(name)} = {toml_value(value)}" for name, value in part.items())
        return f"{{{', '.join(entries)}}}"
    if isinstance(part, list | tuple):
        return f"[{', '.join(map(toml_value, part))}]"
    if isinstance(part, bool):
        return "true" if part else "false"
    if isinstance(part, str):  # Strings of TOML and JSON differ in one character.
        return json.dumps(part, ensure_ascii=False, allow_nan=False).replace("\x7f", "\\u007f")
    return repr(part)


@dataclass(frozen=True)
class Statistic:
    """One statistic of one column, of all rows or of every group."""

    column: str | None
    by: tuple[str, ...]
    release: Release
    where: str | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    numbers: list[Number] = field(default_factory=list)

    @property
    def name(self) -> str:
        """The name of the statistic."""
        of_values = " of values" if self.release.query == "count" and self.column else ""
        return _NAMES.get(self.release.query, self.release.query) + of_values

    @property
    def short_title(self) -> str:
        """The statistic and its column, such as `Mean of income`."""
        return f"{self.name[:1].upper()}{self.name[1:]} of {self._values}"

    @property
    def subject(self) -> str:
        """The column, the filter and the groups, such as `rows where age >= 18, by city`."""
        if self.release.query == "groups":
            return " and ".join(self.shown_by)
        return self._values + self.filter_and_groups

    @property
    def filter_and_groups(self) -> str:
        """The filter and the groups, such as ` where age >= 18, by city`."""
        where = "" if self.where is None else self.labels.get(self.where, f"where {self.where}")
        return (where and f" {where}") + (f", by {' and '.join(self.shown_by)}" if self.by else "")

    @property
    def shown_by(self) -> list[str]:
        """What people call the columns of the groups."""
        return [self.labels.get(name, name) for name in self.by]

    @property
    def _values(self) -> str:
        column = self.column or ("persons" if self.release.query == "persons" else "rows")
        return self.labels.get(column, column)

    def view(self) -> Data:
        """Return the data for the template: a single number or a table with bars, and the cost."""
        title = f"{self.name[:1].upper()}{self.name[1:]} of {self.subject}"
        is_number = self.release.query != "groups"
        cost = self._cost() if is_number else None  # The discovery has the cost of groups.
        note = _EDGES if self.release.query == "histogram" else ""
        view = {"title": title, "cost": cost, "noise": self._noise(), "note": note}
        if len(self.numbers) == 1:
            (number,) = self.numbers
            return {**view, "path": number.path, "shown": number.format(mark=MARK)}
        joint = any(number.joint is not None for number in self.numbers)
        label = self._values if self.release.labels else self.shown_by[-1]
        head = [label, "Published", *(["Within"] if is_number else [])]
        head += ["All within"] if joint else []
        scale = Scale.of([number for number in self.numbers if not number.is_hidden])
        groups = [
            {
                "name": ", ".join(
                    f"{by} {key}" for by, key in zip(self.shown_by, keys, strict=False)
                ),
                "rows": [
                    (
                        number.path[-1],
                        number.format(mark=MARK)[: len(head) - 1],
                        None if number.is_hidden else scale.bar(number),
                    )
                    for number in numbers
                ],
            }
            for keys, numbers in groupby(self.numbers, key=lambda number: number.path[:-1])
        ]
        return {**view, "shown": None, "head": head, "groups": groups}

    def _cost(self) -> str:
        """Return the cost and its parts: `epsilon 0.5 (median 0.25, interval 0.25)`."""
        release = self.release
        parts = ", ".join(f"{name} {part:.4g}" for name, part in release.parts.items())
        is_rho = release.epsilon is None
        amount = f"rho {release.rho:.4g}" if is_rho else f"epsilon {release.epsilon:.4g}"
        shared = f" for {release.paid_for} together" if release.shared else ""
        return amount + (f" ({parts})" if parts else "") + shared

    def _noise(self) -> str:
        """Return the mechanism in words: `discrete Laplace noise, exact; scale 1; grid 1`."""
        amounts = (("scale", self.release.scale), ("grid", self.release.grid))
        parts = [f"{name} {format_number(x, None)[0]}" for name, x in amounts if x is not None]
        return "; ".join(filter(None, [self.release.mechanism, *parts]))


def wide_tables(statistics: Iterable[Statistic]) -> list[Data]:
    """Return a table of groups by statistics for each grouping with several statistics."""
    by_grouping: dict[tuple[object, ...], list[Statistic]] = {}
    for one in statistics:
        if one.by and not one.release.labels and one.release.query != "groups":
            paths = tuple(number.path for number in one.numbers)
            by_grouping.setdefault((one.by, one.where, paths), []).append(one)
    return [
        {
            "title": "All statistics" + members[0].filter_and_groups,
            "head": [*members[0].shown_by, *(one.short_title for one in members)],
            "key_columns": len(members[0].by),
            "rows": [
                [*numbers[0].path, *(" ".join(number.format(mark=MARK)[:2]) for number in numbers)]
                for numbers in zip(*(one.numbers for one in members), strict=True)
            ],
        }
        for members in by_grouping.values()
        if len(members) > 1
    ]


def statistics_of(
    releases: Iterable[Data], labels: Mapping[str, str] = MappingProxyType({})
) -> list[Statistic]:
    """Collect the groups of each statistic. A repeated statistic appears twice."""
    statistics: dict[tuple[object, ...], Statistic] = {}
    repeats: dict[tuple[object, ...], int] = {}
    for record in releases:
        column, by, where = record["column"], tuple(record["by"]), record.get("where")
        keys = tuple(
            map(quote_blanks, record["group"] if len(by) > 1 else [record["group"]] * len(by))
        )
        names = (part.name for part in fields(Release) if part.name in record)
        release = Release(**{name: record[name] for name in names})
        subject = (column, by, where, release.query)
        repeat = repeats[(*subject, keys)] = repeats.get((*subject, keys), 0) + 1
        new = Statistic(column, by, release, where, labels)
        statistic = statistics.setdefault((*subject, repeat), new)
        statistic.numbers.extend(release.numbers(keys))
    return list(statistics.values())


def quote_blanks(key: object) -> str:
    """Return the name of a group, in quotes if it is empty or has blanks at an end.

    >>> quote_blanks("cork"), quote_blanks(" cork"), quote_blanks(""), quote_blanks(7)
    ('cork', '" cork"', '""', '7')
    """
    text = str(key)
    return text if text and text == text.strip() else f'"{text}"'


@dataclass(frozen=True)
class Scale:
    """The range of numbers that the bars of one statistic cover."""

    low: float
    high: float

    @classmethod
    def of(cls, numbers: Sequence[Number]) -> "Scale":
        """Return a scale with zero, all numbers, and margins as long as bars keep a third of it."""
        values = [0.0, *(_clamp(number.value) for number in numbers)]
        least, most = min(values), max(values)
        length = (most - least) or _LONGEST
        ends = [_clamp(end) for number in numbers for end in _error_bar(number)]
        low = max(min([least, *ends]), least - length)
        high = min(max([most, *ends]), most + length)
        return cls(low, high if high > low else low + 1.0)

    def position(self, value: float) -> float:
        """Return the position of a number, as a fraction of the width."""
        inside = min(max(_clamp(value), self.low), self.high)
        return (inside - self.low) / (self.high - self.low)

    def bar(self, number: Number) -> Data:
        """Return the bar of a number from zero, and its margin with caps at its visible ends."""
        zero, end = self.position(0.0), self.position(number.value)
        low, high = _error_bar(number)
        return {
            "x": min(zero, end),
            "width": abs(end - zero),
            "zero": zero,
            "margin": [self.position(low), self.position(high)] if low < high else None,
            "caps": [self.position(cap) for cap in (low, high) if self.low <= cap <= self.high],
        }


def _error_bar(number: Number) -> tuple[float, float]:
    """Return the two ends of the error bar of a number."""
    if number.interval is not None:
        return float(number.interval[0]), float(number.interval[1])
    error = number.error if number.error and math.isfinite(number.error) else 0
    return float(number.value - error), float(number.value + error)


def _clamp(value: float) -> float:
    """Clamp a number so that differences do not overflow; integers may exceed all floats."""
    return float(min(max(value, -_LONGEST), _LONGEST))


def _protection(record: Data) -> Data:
    """Return the data for the template; `noun` is the privacy unit in one word.

    A record without `privacy` spent the epsilon of its request. A loss in rho is converted to an
    epsilon at a usual delta.
    """
    request, unit = record["request"], record["privacy_unit"]
    privacy = record.get("privacy") or {"epsilon": request["epsilon"]}
    epsilon, delta, rho = privacy["epsilon"], privacy.get("delta") or 0.0, None
    if epsilon is None:
        rho = privacy["rho"]
        epsilon = epsilon_of_zcdp(rho, _USUAL_DELTA)
        delta = _USUAL_DELTA + (privacy.get("rho_delta") or 0.0)
    shown_delta = format_loss(delta) if delta else None
    once_in = f"{1 / delta:,.0f}" if delta > 1e-15 else f"{1 / delta:.2g}" if delta else None  # noqa: PLR2004 - readable
    return {
        "unit": unit,
        "noun": "row" if unit.startswith("one row") else "person",
        "replaced": request.get("neighbours") == "replace",
        "weak": epsilon > _WEAK,
        "epsilon": format_loss(epsilon),
        "rho": None if rho is None else format_loss(rho),
        "loss": f"epsilon {format_loss(epsilon)}" + (f" and delta {shown_delta}" if delta else ""),
        "delta": shown_delta,
        "once_in": once_in,
        "usual_delta": f"{_USUAL_DELTA:g}",
        "factor": factor(epsilon),
        "rows": _ROWS,
        "factor_of_rows": factor(_ROWS * epsilon),
        "beliefs": [_range(belief, epsilon) for belief in _BELIEFS],
        "from_half": at_most(50, epsilon),
    }


def _range(belief: int, epsilon: float) -> Data:
    """Return the range that a belief in percent can reach, in words and as fractions."""
    most = _exp(epsilon)
    return {
        "percent": belief,
        "says": f"{smallest_changed_belief(belief, epsilon)} to {at_most(belief, epsilon)}",
        "low": float(_belief(belief, 1 / most) / 100),
        "high": float(_belief(belief, most) / 100),
    }


def factor(epsilon: float) -> str:
    """Return the largest factor of odds, exp(epsilon), with three digits, rounded up.

    >>> factor(1.0), factor(0.1), factor(5.0), factor(50.0)
    ('2.72', '1.11', '149', '5.19e+21')
    """
    up = Context(prec=3, rounding=ROUND_CEILING).plus(_exp(epsilon))
    return f"{up:.3g}" if up.adjusted() > _PLAIN_POWER else f"{up.normalize(_EXACT):f}"


def at_most(percent: int, epsilon: float) -> str:
    """Return the largest belief, in percent, that another can become.

    >>> at_most(50, 1.0), at_most(10, 0.1), at_most(50, 20.0)
    ('73.2%', '11%', 'over 99.9%')
    """
    return _percent_text(_belief(percent, _exp(epsilon)), ROUND_CEILING)


def smallest_changed_belief(percent: int, epsilon: float) -> str:
    """Return the smallest belief, in percent, that another can become.

    >>> [smallest_changed_belief(*prior) for prior in ((50, 1.0), (10, 0.1), (50, 20.0))]
    ['26.8%', '9.1%', '0%']
    """
    return _percent_text(_belief(percent, 1 / _exp(epsilon)), ROUND_FLOOR)


def _exp(epsilon: float) -> Decimal:
    return _EXACT.exp(min(Decimal(epsilon), _LARGEST))


def _belief(percent: int, times: Decimal) -> Decimal:
    """Return the percentage with `times` the odds of another percentage."""
    odds = times * percent / (100 - percent)
    return 100 * odds / (1 + odds)


def _percent_text(percent: Decimal, rounding: str) -> str:
    if percent > _CERTAIN:
        return "over 99.9%"
    rounded = percent.quantize(Decimal("0.1"), rounding)
    return f"{rounded.normalize(_EXACT):f}%"
