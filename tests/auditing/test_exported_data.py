"""A report names the row by which its data sets differ, and holds both."""

import html
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dpnoise
from dpnoise.auditing.exported_data import describe_change, export_pair, import_data
from dpnoise.auditing.report import Report
from dpnoise.core.errors import ArgumentError

rng = np.random.default_rng()


@pytest.mark.parametrize(
    "data",
    [
        [],
        [1, 2.5, None, "a", True],
        [(1, [2.5, "x"]), ()],
        [{"age": 41, "city": "cork"}, {}],
        {1: "a", "$type": "tuple"},
        [math.inf, -math.inf, 2**63],
        np.array([[1, 2], [3, 4]], dtype=np.int8),
        np.array(["a", "bc"]),
        np.zeros((0, 2)),
    ],
    ids=repr,
)
def test_data_sets_are_the_same_after_their_export(data: Any) -> None:
    exported = export_pair((data, [math.nan]))
    assert exported is not None
    again = import_data(exported[0])
    assert repr(again) == repr(data)
    assert math.isnan(import_data(exported[1])[0])


@pytest.mark.parametrize(
    "exported",
    [
        {"$type": "made up", "items": []},
        {"$type": ["tuple"], "items": []},
        {"$type": "tuple"},
        {"$type": "float", "items": "many"},
        {"$type": "array", "items": [1, 2], "dtype": "f8", "shape": [3]},
        {"$type": "array", "items": [1, 2], "dtype": "unknown", "shape": [2]},
        {"$type": "pandas", "columns": [["a", [1]], ["b", [1, 2]]], "dtypes": []},
        {"$type": "polars", "columns": [["a", [1]], ["b", [1, 2]]]},
        {"$type": "pyarrow", "columns": 5},
    ],
    ids=str,
)
def test_damaged_data_sets_of_a_report_are_refused(exported: Any) -> None:
    if "columns" in exported:
        pytest.importorskip(exported["$type"])
    with pytest.raises(ArgumentError, match=r"damaged, or another version .* Audit again"):
        import_data([exported])


@pytest.mark.parametrize("library", ["pandas", "polars", "pyarrow"])
def test_frames_are_the_same_after_their_export(library: str) -> None:
    module = pytest.importorskip(library)
    make = module.table if library == "pyarrow" else module.DataFrame
    frame = make({"age": [41, 3], "income": [2.5, 7.0], "city": ["cork", "galway"]})
    exported = export_pair((frame, frame[:0]))
    assert exported is not None
    assert import_data(exported[0]).equals(frame)
    assert len(import_data(exported[1])) == 0


def test_data_sets_of_other_classes_and_large_ones_are_not_exported() -> None:
    assert export_pair((object(), object())) is None
    assert export_pair((list(range(100_000)), [])) is None


def test_data_sets_that_differ_by_more_than_a_row_have_no_words() -> None:
    for first, second in (([1, 2], [2, 1]), ([1], [1, 2, 3]), (0, 1), ("ab", "a"), ({1}, set())):
        assert describe_change(first, second) == ""


def sum_ages(rows: Any, n: int) -> Any:
    return np.rint(rng.laplace(sum(row["age"] for row in rows), 50.0, n))


def test_a_finding_of_rows_is_counted_again_from_the_json_report(tmp_path: Path) -> None:
    rows = [{"age": age, "city": "cork"} for age in (41, 23, 35)]
    report = dpnoise.audit(sum_ages, 1.0, neighbours="rows", data=rows, budget=60_000)
    report.to_json(tmp_path / "a.json")
    again = Report.from_json(tmp_path / "a.json")
    (finding, *_) = again.findings
    assert finding.neighbours is not None
    assert "row " in finding.change
    shares = []
    for data in finding.neighbours:
        count = again.replay(sum_ages(data, 1_000))[0]
        assert count is not None
        shares.append(count.hits / count.trials)
    for share, hits, trials in (
        (shares[0], finding.hits0, finding.trials0),
        (shares[1], finding.hits1, finding.trials1),
    ):
        assert abs(share - hits / trials) < 0.1  # More than six standard errors.
    again.to_html(tmp_path / "a.html")
    for text in (str(report), html.unescape((tmp_path / "a.html").read_text())):
        assert finding.change in " ".join(text.split())
