"""docs/file-formats.md names every field of the files that dpnoise writes, and no other."""

import csv
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dpnoise
from dpnoise import cli
from dpnoise.statistics import Question, Request, create_ledger
from dpnoise.statistics.publishing import rehearsal

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "file-formats.md").read_text()


def section(heading: str) -> str:
    return PAGE.split(f"\n## {heading}\n")[1].split("\n## ")[0]


def names_in(text: str) -> set[str]:
    return {*re.findall(r"`([a-z][a-z0-9_]*)`", text)}


def table_names(text: str) -> Iterator[set[str]]:
    """Yield the names in the first column of each table."""
    for rows in re.findall(r"\|---\|---\|\n((?:\|.*\n)+)", text):
        yield names_in("".join(row.split("|")[1] for row in rows.splitlines()))


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Publish discovered groups with a ledger, mend the ledger, and audit a function."""
    folder = tmp_path_factory.mktemp("files")
    rows = [f"{i % 400},{'ab'[i % 2]},{i % 7}" for i in range(800)]
    (folder / "data.csv").write_text("\n".join(["who,city,x", *rows]))
    request = """
        epsilon = 1.0
        delta = 1e-6
        person = "who"
        max_groups = 1
        max_rows = 2
        intervals = true
        left_out = 0.1
        groups = {city = "discover"}
        part = "a"
        [[publish]]
        statistics = ["mean", "median"]
        column = "x"
        lower = 0
        upper = 7
        by = ["city"]
    """
    (folder / "request.toml").write_text(request)
    ledger = folder / "ledger"
    create_ledger(ledger, name="x", epsilon=3, delta=1e-3, person="who", parts=("a", "b"))
    places = {"ledger": ledger, "output": folder / "table.csv", "record": folder / "record.json"}
    command = ["release", str(folder / "request.toml"), "--source", str(folder / "data.csv")]
    command += [f"--{name}={place}" for name, place in places.items()]
    assert cli.main(command) == 0
    with ledger.open("a") as file:
        file.write("{")
    assert cli.main(["budget", "mend", str(ledger)]) == 0
    spend = ["budget", "spend", str(ledger), "--epsilon=0.5", "--part=a", "--already-published"]
    assert cli.main([*spend, "--note=before"]) == 0
    return folder


def test_the_columns_of_a_table_are_named(files: Path) -> None:
    with (files / "table.csv").open() as file:
        columns = csv.DictReader(file).fieldnames or []
    assert [{*columns} - {"city"}] == [*table_names(section("The table"))]


def test_the_fields_of_a_record_are_named(files: Path) -> None:
    record = json.loads((files / "record.json").read_text())
    text = section("The record")
    assert [{*record}, {*record["releases"][0]}] == [*table_names(text)]
    for part in (record["discovered"][0], record["privacy"], record["ledger"]):
        assert {*part} <= names_in(text)


def test_the_fields_of_a_ledger_are_named(files: Path) -> None:
    lines = [json.loads(line) for line in (files / "ledger").read_text().splitlines()]
    assert {line["kind"] for line in lines} == {"ledger", "spent", "record", "mended"}
    text = section("The ledger")
    linked, terms = table_names(text)
    assert all(linked <= {*line} for line in lines)
    assert {*lines[0]} == linked | terms
    for line in lines:
        objects = [part for part in line.values() if isinstance(part, dict)]
        inner = {name for part in objects if "publish" not in part for name in part}
        assert {*line, *inner} <= names_in(text)


def test_the_fields_of_a_report_are_named() -> None:
    def count(rows: list[int], n: int) -> Any:
        return len(rows) + np.random.default_rng().laplace(size=n)

    report = dpnoise.audit(count, 1.0, neighbours=[([5, 7], [5])], budget=4_000).to_dict()
    assert [{*report}] == [*table_names(section("The report of an audit"))]
    assert {*report["curve"]} <= names_in(section("The report of an audit"))


def test_the_page_names_the_formats() -> None:
    record = rehearsal(Request(1.0, [Question(["count"])])).record()
    report = dpnoise.audit("numpy.laplace", 1.0, attacks=["threshold"], budget=4_000).to_dict()
    for heading, number in (("The record", record["format"]), ("The report", report["format"])):
        assert f"| `format` | {number} |" in PAGE.split(f"## {heading}")[1].split("## ")[0]
