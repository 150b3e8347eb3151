"""`dpnoise budget`: ledgers from the command line."""

import json
import re
from pathlib import Path

import pytest

from dpnoise import cli
from dpnoise.core.safe_text import escape_text
from dpnoise.statistics.composition import Loss, compose
from dpnoise.statistics.ledger import open_ledger


@pytest.fixture(autouse=True)
def _current_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    try:
        status = cli.main(["budget", *arguments])
    except SystemExit as error:  # Raised by argparse.
        status = error.code if isinstance(error.code, int) else 70
    printed = capsys.readouterr()
    return status, printed.out, printed.err


def create(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    status, out, err = run(capsys, "create", "b.json", "--name", "survey", *arguments)
    assert (status, err) == (0, "")
    return out


def test_a_ledger_is_made_spent_from_and_shown(capsys: pytest.CaptureFixture[str]) -> None:
    out = create(capsys, "--epsilon", "1", "--delta", "1e-6", "--person", "patient_id")
    assert out.startswith("survey: one person (patient_id), added or removed\n")
    assert "0 of 1 spent, 1 left" in out
    for _ in range(3):
        status, out, err = run(capsys, "spend", "b.json", "--epsilon", "0.3", "--note", "by hand")
        assert (status, err) == (0, "")
    assert out.startswith("Spent epsilon 0.3 and delta 0 on by hand: entry 3.\nLeft: epsilon 0.1 ")
    status, out, err = run(capsys, "show", "b.json")
    assert "0.9 of 1 spent, 0.1 left" in out
    assert "0 of 1e-6 spent, 1e-6 left" in out
    assert out.count("█") == 27, "nine tenths of 30"
    assert out.count("by hand") == 3
    assert max(map(len, out.splitlines())) <= 80


def test_parts_are_made_paid_for_and_shown(capsys: pytest.CaptureFixture[str]) -> None:
    create(capsys, "--epsilon", "1", "--part", "north", "--part", "south")
    spent = ("--epsilon", "0.3", "--note", "by hand", "--part", "north")
    assert "Left: epsilon 0.7 for north. " in run(capsys, "spend", "b.json", *spent)[1]
    Path("people.csv").write_text("x\n1\n")
    request = ["release", "people.csv", "--epsilon", "0.5", "--ledger", "b.json"]
    assert cli.main([*request, "--part", "south"]) == 0
    capsys.readouterr()
    shown = run(capsys, "show", "b.json")[1]
    for text in ("left: epsilon 0.7 for north", "left: epsilon 0.5 for south", "north: by hand"):
        assert text in shown
    assert "0.5 of 1 spent, 0.5 left" in shown
    left = json.loads(run(capsys, "show", "b.json", "--json")[1])["left_for"]
    assert {part: amount["epsilon"] for part, amount in left.items()} == {
        "north": "0.7",
        "south": "0.5",
    }


def test_more_than_the_remaining_budget_cannot_be_spent(capsys: pytest.CaptureFixture[str]) -> None:
    create(capsys, "--epsilon", "1")
    before = Path("b.json").read_bytes()
    status, out, err = run(capsys, "spend", "b.json", "--epsilon", "1.01", "--note", "too much")
    assert (status, out) == (2, "")
    assert "has epsilon 1 left, and this costs epsilon 1.01. What is left buys one count" in err
    assert Path("b.json").read_bytes() == before


def test_what_was_published_without_the_ledger_is_counted_and_nothing_more_is_paid(
    capsys: pytest.CaptureFixture[str],
) -> None:
    create(capsys, "--epsilon", "3", "--delta", "1e-6")
    spend = ("spend", "b.json", "--note", "by hand", "--epsilon")
    assert run(capsys, *spend, "2")[0] == 0
    status, _, err = run(capsys, *spend, "2")
    assert status == 2
    assert "If it is already public, count it with --already-published." in err
    status, out, err = run(capsys, *spend, "2", "--already-published")
    assert (status, err) == (0, "")
    assert out.endswith("Left: epsilon 0 and delta 0. Nothing can be bought any more.\n")
    shown = run(capsys, "show", "b.json")[1]
    assert "4 of 3 spent, 0 left" in shown
    assert open_ledger("b.json").spent.main == 4
    status, _, err = run(capsys, *spend, "1e-9")
    assert status == 2
    assert "has epsilon 0 and delta 0 left" in err
    Path("people.csv").write_text("x\n1\n")
    before = Path("b.json").read_bytes()
    assert cli.main(["release", "people.csv", "--epsilon", "0.1", "--ledger", "b.json"]) == 2
    assert Path("b.json").read_bytes() == before


def test_a_delta_that_was_overdrawn_leaves_no_epsilon(capsys: pytest.CaptureFixture[str]) -> None:
    """The promise of epsilon at a delta does not hold any more, whatever else is released."""
    create(capsys, "--epsilon", "3", "--delta", "1e-6")
    spend = ("spend", "b.json", "--note", "by hand", "--epsilon", "1")
    assert run(capsys, *spend, "--delta", "1e-5", "--already-published")[0] == 0
    assert run(capsys, *spend)[0] == 2
    assert "0 left" in run(capsys, "show", "b.json")[1]


def test_an_overdraft_of_one_part_leaves_the_other(capsys: pytest.CaptureFixture[str]) -> None:
    create(capsys, "--epsilon", "1", "--part", "north", "--part", "south")
    spend = ("spend", "b.json", "--note", "by hand", "--epsilon", "0.6")
    north = (*spend, "--part", "north")
    assert [run(capsys, *north, "--already-published")[0] for _ in range(2)] == [0, 0]
    assert run(capsys, *north)[0] == 2
    assert run(capsys, *spend)[0] == 2, "the whole has persons of the north"
    assert run(capsys, *spend, "--part", "south")[0] == 0
    assert run(capsys, *spend, "--part", "west", "--already-published")[0] == 2


def test_what_rounding_leaves_is_shown_as_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    create(capsys, "--epsilon", "3")
    spent = "2.99999999999999999"
    assert run(capsys, "spend", "b.json", "--note", "n", "--epsilon", spent)[0] == 0
    assert "3 of 3 spent, 0 left" in run(capsys, "show", "b.json")[1]


def test_a_payment_shows_the_filter(capsys: pytest.CaptureFixture[str]) -> None:
    create(capsys, "--epsilon", "3")
    Path("people.csv").write_text("x,month\n1,10\n")
    request = ["release", "people.csv", "--ledger", "b.json", "--epsilon", "0.1"]
    for month in ("10", "11"):
        assert cli.main([*request, "--where", f"month == {month}"]) == 0
    capsys.readouterr()
    shown = run(capsys, "show", "b.json")[1]
    payments = [line.partition("count ")[2].strip() for line in shown.splitlines()[5:7]]
    assert payments == ["where month == 10", "where month == 11"]


def test_json_has_the_numbers_as_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    create(capsys, "--rho", "0.1", "--unit", "one household", "--neighbours", "replace")
    run(capsys, "spend", "b.json", "--rho", "0.03", "--note", "x")
    ledger_json = json.loads(run(capsys, "show", "b.json", "--json")[1])
    assert ledger_json["total"] == {"rho": "0.1", "delta": "0"}
    assert ledger_json["spent"] == {"rho": "0.03", "delta": "0"}
    assert ledger_json["left"] == {"rho": "0.07", "delta": "0"}
    assert (ledger_json["unit"], ledger_json["neighbours"]) == ("one household", "replace")
    assert ledger_json["entries"][0]["note"] == "x"
    assert ledger_json["head"] == open_ledger("b.json").head == ledger_json["entries"][0]["head"]


def test_a_record_is_found_or_missed(capsys: pytest.CaptureFixture[str]) -> None:
    create(capsys, "--epsilon", "1")
    before = Path("b.json").read_bytes()
    question = {"statistics": ["count", "mean"], "column": "income", "by": ["city"]}
    receipt = open_ledger("b.json").spend(compose([Loss("pure", 0.5)]), {"publish": [question]})
    Path("record.json").write_text(json.dumps({"ledger": {"head": receipt.head}}))
    status, out, _ = run(capsys, "show", "b.json", "--record", "record.json")
    assert status == 0
    assert "count, mean of income by city" in out
    assert out.endswith("record.json was paid for by entry 1.\n")
    ledger_json = json.loads(run(capsys, "show", "b.json", "--record", "record.json", "--json")[1])
    assert ledger_json["entry_of_record"] == 1
    Path("b.json").write_bytes(before)
    status, out, err = run(capsys, "show", "b.json", "--record", "record.json")
    assert (status, out) == (2, "")
    assert "rolled back" in err
    for text in ("", "[]", "{", "\xff"):
        Path("record.json").write_text(text, encoding="latin-1")
        status, _, err = run(capsys, "show", "b.json", "--record", "record.json")
        assert status == 2
        assert "is not a record" in err
    assert "cannot be read" in run(capsys, "show", "b.json", "--record", "nowhere")[2]


def test_a_torn_line_is_shown_and_mended(capsys: pytest.CaptureFixture[str]) -> None:
    create(capsys, "--epsilon", "1")
    with Path("b.json").open("ab") as file:
        file.write(b'{"before":"12')
    status, out, _ = run(capsys, "show", "b.json")
    assert status == 0
    assert "cut short" in out
    status, _, err = run(capsys, "spend", "b.json", "--epsilon", "0.1", "--note", "x")
    assert status == 2
    assert "dpnoise budget mend" in err
    assert "13 bytes" in run(capsys, "mend", "b.json")[1]
    assert "nothing to mend" in run(capsys, "mend", "b.json")[1]
    assert "taken away" in run(capsys, "show", "b.json")[1]
    assert run(capsys, "spend", "b.json", "--epsilon", "0.1", "--note", "x")[0] == 0


WRONG = [
    (["create", "new.json"], "--name"),
    (["create", "new.json", "--name", "n"], "--epsilon --rho"),
    (["create", "new.json", "--name", "n", "--epsilon", "1", "--rho", "1"], "not allowed"),
    (["create", "new.json", "--name", "n", "--epsilon", "much"], "--epsilon must"),
    (["create", "new.json", "--name", "n", "--epsilon=-1"], "greater than 0"),
    (["create", "new.json", "--name", "n", "--epsilon", "nan"], "finite"),
    (["create", "new.json", "--name", "n", "--epsilon", "1e999999999"], "digits"),
    (["create", "new.json", "--name", "n", "--epsilon", "1", "--delta", "2"], "below 1"),
    (["create", "new.json", "--name", "", "--epsilon", "1"], "text"),
    (["create", "no/where.json", "--name", "n", "--epsilon", "1"], "There is no folder no."),
    (["create", "b.json", "--name", "n", "--epsilon", "1"], "exists"),
    (["create", "", "--name", "n", "--epsilon", "1"], "the name of a file"),
    (["show", "new.json"], "dpnoise budget create"),
    (["show", "."], "not a regular file"),
    (["spend", "b.json", "--epsilon", "0.1"], "--note"),
    (["spend", "b.json", "--epsilon", "0", "--note", "x"], "greater than 0"),
    (["spend", "b.json", "--epsilon", "0.1", "--delta", "1e-9", "--note", "x"], "delta 0 left"),
    (["spend", "b.json", "--rho", "0.1", "--note", "x"], "counts epsilon: --epsilon"),
    (["mend", "new.json"], "There is no ledger"),
    (["burn", "b.json"], "there is no 'burn'. Choose from create, show"),
    ([], "ACTION"),
]


@pytest.mark.parametrize(("arguments", "words"), WRONG, ids=lambda value: " ".join(value)[:60])
def test_errors_are_one_line(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    create(capsys, "--epsilon", "1")
    before = Path("b.json").read_bytes()
    status, out, err = run(capsys, *arguments)
    assert (status, out) == (2, "")
    assert err.startswith("dpnoise: ")
    assert words in err
    assert err.count("\n") == 1
    assert Path("b.json").read_bytes() == before
    assert [path.name for path in Path().iterdir()] == ["b.json"]


NAMES = ["[bold]x[/]", "[/nothing]", ":heart:", "a\x1b[2J\nb", "\u202etxet", "尺" * 300]


@pytest.mark.sample(4)
@pytest.mark.parametrize("name", NAMES, ids=ascii)
@pytest.mark.parametrize("columns", ["20", "80"])
def test_names_neither_control_nor_break_the_output(
    name: str, columns: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    named = ["--name", name, "--unit", name, "--epsilon", "1", "--delta", "1e-6"]
    assert run(capsys, "create", "b.json", *named)[0] == 0
    request = {"publish": [{"statistics": [name], "column": name, "by": [name]}, name], name: name}
    ledger = open_ledger("b.json")
    ledger.spend(compose([Loss("pure", 0.5)]), request, note=name, date=name)
    ledger.spend(compose([Loss("pure", 0.25)]), {"publish": name}, date="")
    assert run(capsys, "spend", "b.json", "--epsilon", "0.1", "--note", name)[0] == 0
    status, out, err = run(capsys, "show", "b.json")
    assert (status, err) == (0, "")
    assert out.replace("\n", "").isprintable()
    assert escape_text(name)[:10] in out
    assert re.search(r"0\.85 of 1 spent, 0\.15 left", out), "no number is cut"


def test_an_encoding_without_blocks_has_other_bars(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    create(capsys, "--epsilon", "1")
    run(capsys, "spend", "b.json", "--epsilon", "0.5", "--note", "x")
    monkeypatch.setattr("dpnoise.cli.terminal.can_show", lambda symbols: symbols.isascii())
    out = run(capsys, "show", "b.json")[1]
    assert "#" * 15 + "-" * 15 in out
    assert out.isascii()
