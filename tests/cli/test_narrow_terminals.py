"""The output of commands is wrapped between words, at 80 and at 60 columns."""

import ast
from dataclasses import replace
from pathlib import Path

import pytest
from support import example_report

import reproduction
from dpnoise import cli
from dpnoise.cli import audit as audit_command
from dpnoise.cli import terminal
from reproduction import __main__ as paper_command
from reproduction.piece import Judgement, Result

WIDTHS = (80, 60)
DEMO = Path(__file__).parents[2] / "examples" / "demo.py"


@pytest.fixture(params=WIDTHS)
def width(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setenv("COLUMNS", str(request.param))
    return int(request.param)


def test_an_audit(width: int, capsys: pytest.CaptureFixture[str]) -> None:
    report = example_report.broken_report()
    audit_command._show(report, terminal.console(soft_wrap=True))
    out = capsys.readouterr().out
    before, table, curve, after = out.split("\n\n")
    text, command = after.split("Again: ")
    assert command.strip() == report.command, "the command can be copied"
    assert {*report.method.split()} <= {*text.split()}
    assert all(len(line) <= width for line in f"{before}\n{curve}\n{text}".splitlines())
    assert curve.startswith("The certified curve: epsilon")
    assert "used as if epsilon were 1" in before
    assert "nothing above epsilon 7.4 can be certified" in " ".join(text.split())
    # A table that is too wide exceeds the width: half a number would be another number.
    rows, observed = table.split("Three forked", 1)
    assert all(len(line.rstrip()) <= 80 for line in rows.splitlines())
    assert all(len(line) <= width for line in observed.splitlines())
    events = {word for finding in report.findings for word in finding.event.split()}
    assert events <= {*rows.split()}


def test_a_comparison_of_audits(capsys: pytest.CaptureFixture[str]) -> None:
    long = replace(
        example_report.broken_report(), target="diffprivlib.GaussianAnalytic", version="0.6.6"
    )
    audit_command._compare([long], {}, terminal.console(soft_wrap=True))
    head, row = capsys.readouterr().out.strip().splitlines()
    assert row.split() == ["diffprivlib.GaussianAnalytic", "0.6.6", "1", "5.82", "7.4", "precision"]
    assert [row.index(cell) + len(cell) for cell in ("5.82", "7.4")] == [
        head.index(title) + len(title) for title in ("certified", "at most")
    ]
    assert len(row) <= 80


def test_the_preview_of_a_request(width: int, capsys: pytest.CaptureFixture[str]) -> None:
    cities = ",".join(f"city{i}" for i in range(30))
    columns_and_queries = [
        "--column",
        "income",
        "--query",
        "mean",
        "--query",
        "median",
        "--lower",
        "0",
    ]
    limits = ["--upper", "200000", "--epsilon", "1", "--group-by", f"city={cities}", "--check"]
    assert cli.main(["release", *columns_and_queries, *limits]) == 0
    out = capsys.readouterr().out
    assert all(len(line.rstrip()) <= width for line in out.splitlines())
    assert {f"city{i}" for i in range(30)} <= {word.strip(",") for word in out.split()}


def test_the_pieces_of_the_paper(width: int, capsys: pytest.CaptureFixture[str]) -> None:
    assert paper_command.main(["--list"]) == 0
    pieces = reproduction.choose(None)
    reason = "diffprivlib is not installed, and neither is anything else that this needs here"
    paper_command._show([Result(piece, Judgement("not run", reason), 0.0) for piece in pieces])
    out = capsys.readouterr().out
    assert all(len(line) <= width for line in out.splitlines())
    words = {*out.split()}
    assert all({*piece.title.split(), *reason.split()} <= words for piece in pieces)


def test_no_line_of_the_demo_is_folded() -> None:
    """Its texts are laid out for 80 columns."""
    calls = [node for node in ast.walk(ast.parse(DEMO.read_text())) if isinstance(node, ast.Call)]
    printed = [call for call in calls if ast.unparse(call.func) == "console.print"]
    parts = [part for call in printed for part in ast.walk(call) if isinstance(part, ast.Constant)]
    lines = [line for part in parts for line in str(part.value).splitlines()]
    assert len(lines) > 20
    assert [line for line in lines if len(line) > 80] == []
