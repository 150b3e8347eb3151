"""Rows of every container get the same changes, so that a bug is found in all of them."""

import csv
import math
import sys
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from support.choices import sample_parameters

import dpnoise
from dpnoise.auditing.data_rows import DataRows
from dpnoise.auditing.neighbours import neighbours_of, pairs_like
from dpnoise.auditing.report import Report
from dpnoise.cli import main
from dpnoise.core.errors import ArgumentError

NAMES = ("age", "income", "city")
ROWS = [(23, 31.5, "cork"), (45, 52.0, "dublin"), (31, 28.75, "cork"), (67, 44.5, "galway")]


class Person(NamedTuple):
    """A row of `ROWS`."""

    age: int
    income: float
    city: str


def convert_rows(kind: str) -> Any:
    """Return the rows in a container."""
    dicts = [dict(zip(NAMES, row, strict=True)) for row in ROWS]
    if kind in {"pandas", "polars"}:
        return pytest.importorskip(kind).DataFrame(dicts)
    if kind == "pyarrow":
        return pytest.importorskip(kind).Table.from_pylist(dicts)
    containers = {
        "numbers": [age for age, *_ in ROWS],
        "dicts": dicts,
        "tuples": ROWS,
        "lists": [list(row) for row in ROWS],
        "named tuples": [Person(*row) for row in ROWS],
        "a tuple": tuple(dicts),
        "an array": np.array([row[:2] for row in ROWS]),
    }
    return containers[kind]


KINDS = [
    "numbers", "dicts", "tuples", "lists", "named tuples", "a tuple", "an array", "pandas",
    "polars", "pyarrow",
]  # fmt: skip

# A mechanism in a module of its own, because the command line imports it. It reads ages from any
# container, and has a bug of practice.
MODULE = """
import numpy as np

rng = np.random.default_rng()


def column(rows, j, name):
    if hasattr(rows, "columns"):
        return np.array(rows[name]).tolist()
    if isinstance(rows, np.ndarray):
        return rows[:, j].tolist()
    if not isinstance(rows[0] if rows else 0, (dict, list, tuple)):
        return rows
    return [row[name] if isinstance(row, dict) else row[j] for row in rows]


def add_noise(total, scale, n):
    return np.rint(rng.laplace(total, scale, n) * 2.0**20) / 2.0**20


def casts_before_clamping(rows, n):
    ages = np.array(column(rows, 0, "age"), dtype=np.int64)
    return add_noise(np.minimum(ages.astype(np.int32), 100).sum(), 200.0, n)


def forgets_to_clamp(rows, n):
    return add_noise(sum(column(rows, 0, "age")), 200.0, n)


def clamps_from_above_only(rows, n):
    return add_noise(np.minimum(column(rows, 0, "age"), 100).sum(), 200.0, n)


def lets_nan_through(rows, n):
    return add_noise(np.clip(column(rows, 1, "income"), 0, 100).sum(), 200.0, n)


def shows_new_cities(rows, n):
    cities = set(column(rows, 2, "city")) | {"cork", "dublin", "galway"}
    return np.full(n, len(cities))


def drops_duplicates(rows, n):
    ages = column(rows, 0, "age")
    return add_noise(len(ages), 2.0 if len(set(ages)) == len(ages) else 0.02, n)
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    (tmp_path / "mechanisms_of_rows.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    sys.modules.pop("mechanisms_of_rows", None)
    import mechanisms_of_rows  # type: ignore[import-not-found]

    return mechanisms_of_rows


@pytest.mark.sample(3)
@pytest.mark.parametrize("kind", KINDS)
def test_one_bug_is_found_in_rows_of_every_kind(kind: str, module: Any) -> None:
    """The true epsilon is so large that all bounds are near the largest possible one."""
    report = dpnoise.audit(
        module.casts_before_clamping,
        epsilon=1.0,
        neighbours="rows",
        data=convert_rows(kind),
        budget=60_000,
    )
    assert report.certified > 0.8 * report.ceiling


BUGS = [
    "forgets_to_clamp", "clamps_from_above_only", "lets_nan_through", "shows_new_cities",
    "drops_duplicates",
]  # fmt: skip


@pytest.mark.parametrize("relation", ["rows", "replaced"])
@pytest.mark.parametrize("bug", sample_parameters(BUGS, 2))
def test_every_bug_is_found_in_rows_that_are_dicts(bug: str, relation: str, module: Any) -> None:
    report = dpnoise.audit(
        getattr(module, bug), 1.0, neighbours=relation, data=convert_rows("dicts"), budget=100_000
    )
    assert report.certified > 3


def test_the_command_line_finds_the_bug_in_rows_of_a_csv_file(
    module: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    with Path("people.csv").open("w", newline="") as file:
        csv.writer(file).writerows([NAMES, *ROWS])
    words = ["audit", f"{module.__name__}:casts_before_clamping", "--epsilon", "1"]
    words += ["--neighbours", "rows", "--data", "people.csv", "--budget", "60000"]
    assert main([*words, "--json", "report.json"]) == 1
    report = Report.from_json("report.json")
    assert report.certified > 0.8 * report.ceiling
    assert "Broken" in capsys.readouterr().out


@pytest.mark.parametrize("kind", KINDS)
def test_rows_of_every_kind_get_the_same_invented_cells(kind: str) -> None:
    """The largest age is 67, so that others have 671 and -671; the last row is from galway."""
    data = convert_rows(kind)
    added = [DataRows(b) for _, b in neighbours_of("added", 1, 1.0, data) if len(b) > len(ROWS)]
    rows = [list(more.row(len(ROWS)).values()) for more in added]
    invented = [row for row in rows if row not in [list(row) for row in ROWS]]
    assert {-671, 671} <= {row[0] for row in invented}
    width = len(invented[0])
    if width > 1:
        assert {-521, 521} <= {row[1] for row in invented}
        assert any(row[1] is None or math.isnan(row[1]) for row in invented)
        assert [67, 521] in [row[:2] for row in invented]  # One column at a time as well.
    if width > 2:
        assert "new" in {row[2] for row in invented}
        assert {"", None} & {None if row[2] != row[2] else row[2] for row in invented}
        assert [23, 52.0, "cork"] in invented  # Each of these cells is in some other row.


@pytest.mark.parametrize("kind", KINDS)
def test_a_search_ends_formats_in_rows_of_every_kind(kind: str) -> None:
    pair = neighbours_of("rows", 1, 1.0, convert_rows(kind))[0]
    longer = [DataRows(b) for _, b in pairs_like(pair)]
    ages = {next(iter(rows.row(len(rows) - 1).values())) for rows in longer}
    least = -1e308 if kind == "an array" else -(2**63)
    assert {0, 2**31, 2**53, -(2**15), least} <= ages


@pytest.mark.parametrize("kind", KINDS)
def test_relations_add_or_replace_rows(kind: str) -> None:
    data = convert_rows(kind)
    both, added, replaced = (
        neighbours_of(relation, 1, 1.0, data) for relation in ("rows", "added", "replaced")
    )
    assert all(abs(len(a) - len(b)) == 1 for a, b in added)
    assert all(len(a) == len(b) for a, b in replaced)
    assert len(added) < len(both) < len(added) + len(replaced)
    for pair in replaced:
        for a, b in [pair, *pairs_like(pair)]:
            rows_a, rows_b = (
                [repr(x.row(i)) for i in range(len(x))] for x in map(DataRows, (a, b))
            )
            assert sum(x != y for x, y in zip(rows_a, rows_b, strict=True)) == 1


def test_a_sum_that_is_private_if_rows_are_added_is_broken_if_they_are_replaced() -> None:
    """Values are -1 or 1: one more changes the sum by 1, another in its place by 2."""
    rng = np.random.default_rng()

    def noisy(rows: Any, n: int) -> Any:
        noise = rng.geometric(1 - math.exp(-1), (2, n))
        return int(np.sign(rows).sum()) + noise[0] - noise[1]

    options: dict[str, Any] = {"data": [3, -2, 5], "budget": 60_000}
    assert not dpnoise.audit(noisy, 1.0, neighbours="added", **options).broken
    report = dpnoise.audit(noisy, 1.0, neighbours="replaced", **options)
    assert 1.5 < report.epsilon_lower < 2


def test_one_row_without_cells_to_change_cannot_be_replaced() -> None:
    with pytest.raises(ArgumentError, match="data must have two different rows"):
        neighbours_of("replaced", 1, 1.0, [None])


def test_rows_with_different_keys_have_none_where_a_key_is_missing() -> None:
    assert DataRows([{"a": 1}, {"b": "x"}]).columns == {"a": [1, None], "b": [None, "x"]}
