"""Paying for a release: before the first noise is drawn, once, and never for an error."""

import json
import os
import random
import re
import signal
import threading
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import pandas as pd
import polars as pl
import pytest
from support.alarms import LONG

from dpnoise import cli
from dpnoise.core.entropy import SYSTEM, EntropySource
from dpnoise.core.errors import ArgumentError, ArgumentTypeError, BudgetError
from dpnoise.statistics import (
    Question,
    Request,
    chain,
    create_ledger,
    engines,
    load_request,
    open_ledger,
    publish,
)
from dpnoise.statistics.queries import Count

PEOPLE = pl.DataFrame({"id": [i // 2 for i in range(40)], "x": [1.0] * 40, "g": ["a"] * 40})
COUNT = Question(["count"])


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return create_ledger(
        tmp_path / "budget.json", name="survey", unit="any", epsilon=1, delta=1e-6
    ).path


@pytest.fixture
def at_each_draw(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], object]], list[object]]:
    """Return a function that calls another at each draw of noise and collects its results."""

    def watch(look: Callable[[], object]) -> list[object]:
        answers: list[object] = []
        for hook in ("key", "random_bytes"):
            real = getattr(SYSTEM, hook)

            def draw(*arguments: Any, real: Any = real) -> Any:
                answers.append(look())
                return real(*arguments)

            monkeypatch.setattr(EntropySource, hook, staticmethod(draw))
        return answers

    return watch


DISCOVERY: dict[str, Any] = {
    "groups": {"g": "discover"},
    "delta": 1e-9,  # The probability that a group of one person appears by chance.
    "person": "id",
    "max_groups": 1,
}
REQUESTS = [
    Request(0.5, [COUNT]),
    Request(0.5, [Question(["mean", "median"], "x", lower=0, upper=2)]),
    Request(0.5, [COUNT], delta=1e-7, mechanism="gaussian"),
    Request(0.5, [Question(["count"], by=("g",))], max_rows=2, **DISCOVERY),
]


@pytest.mark.parametrize("request_", REQUESTS, ids=["count", "selection", "gaussian", "discovery"])
def test_all_is_paid_for_before_the_first_noise(
    request_: Request, path: Path, at_each_draw: Callable[[Callable[[], object]], list[object]]
) -> None:
    spent_at_draws = at_each_draw(lambda: open_ledger(path).spent)
    table = publish(PEOPLE, request_, ledger=path)
    assert spent_at_draws
    ledger = open_ledger(path)
    assert set(spent_at_draws) == {ledger.spent}
    cost = request_.cost()
    assert cost.epsilon is not None
    assert cost.epsilon <= ledger.spent.main <= Fraction(1, 2)
    assert cost.delta <= ledger.spent.delta <= Fraction("1e-6")
    record = table.record()
    assert record["ledger"] == {
        "name": "survey",
        "total": "epsilon 1 and delta 1e-6",
        "left": ledger.left_in_words(),
        "head": ledger.entries[0].head,
    }
    assert ledger.entry_of(record) == ledger.entries[0]
    assert ledger.entries[0].request == json.loads(json.dumps(request_.to_dict()))
    assert [entry.kind for entry in ledger.entries] == ["spent", "record"]


def test_without_a_ledger_a_record_names_none(tmp_path: Path) -> None:
    assert publish(PEOPLE, REQUESTS[0]).record()["ledger"] is None
    assert not any(tmp_path.iterdir())


def test_ten_requests_of_a_tenth_use_up_one(path: Path) -> None:
    for _ in range(10):
        publish(PEOPLE, Request(0.1, [COUNT]), ledger=open_ledger(path))
    with pytest.raises(BudgetError, match=r"Nothing (useful )?can be bought"):
        publish(PEOPLE, Request(0.1, [COUNT]), ledger=path)


ERRORS: list[tuple[Request, Any]] = [
    (Request(0.5, [Question(["mean"], "y", lower=0, upper=2)]), PEOPLE),
    (Request(0.5, [Question(["mean"], "x", lower=0, upper=2)]), pl.DataFrame({"x": [1.0, None]})),
    (Request(0.5, [COUNT]), "nowhere.csv"),
    (Request(0.5, [Question(["count"], "y", by=("g",))], max_rows=2, **DISCOVERY), PEOPLE),
]


@pytest.mark.parametrize(("request_", "source"), ERRORS, ids=["column", "null", "file", "later"])
def test_an_error_about_the_data_costs_nothing(request_: Request, source: Any, path: Path) -> None:
    with pytest.raises(ArgumentError):
        publish(source, request_, ledger=path)
    assert open_ledger(path).entries == ()


def test_what_cannot_be_paid_for_is_refused_before_a_row_is_read(
    path: Path, at_each_draw: Callable[[Callable[[], object]], list[object]]
) -> None:
    draws = at_each_draw(lambda: None)
    with pytest.raises(
        BudgetError, match="epsilon 1 and delta 1e-6 left, and this costs epsilon 2"
    ):
        publish("nowhere.csv", Request(2.0, [COUNT]), ledger=path)
    with pytest.raises(BudgetError, match="There is no ledger"):
        publish("nowhere.csv", Request(0.5, [COUNT]), ledger=path.with_name("other.json"))
    assert not draws
    assert open_ledger(path).entries == ()


def test_budget_that_another_took_in_the_meantime_is_missed_before_noise(
    path: Path,
    monkeypatch: pytest.MonkeyPatch,
    at_each_draw: Callable[[Callable[[], object]], list[object]],
) -> None:
    """The data is read between the first check of the ledger and the payment."""
    genuine = engines.tally_all

    def spend_and_tally(*arguments: Any, **options: Any) -> Any:
        open_ledger(path).spend(Request(0.75, [COUNT]).cost())
        return genuine(*arguments, **options)

    monkeypatch.setattr(engines, "tally_all", spend_and_tally)
    draws = at_each_draw(lambda: None)
    with pytest.raises(BudgetError, match=r"has epsilon 0\.25"):
        publish(PEOPLE, Request(0.5, [COUNT]), ledger=path)
    assert not draws


def test_a_release_that_fails_after_it_was_paid_for_stays_paid(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> Any:
        raise MemoryError

    monkeypatch.setattr(Count, "release", fail)
    with pytest.raises(MemoryError):
        publish(PEOPLE, REQUESTS[0], ledger=path)
    assert open_ledger(path).spent.main == Fraction(1, 2)


def test_a_record_that_cannot_be_noted_is_published_all_the_same(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    genuine = chain._append

    def append_to_full_disk(descriptor: int, path: Path, line: Any) -> str:
        if line["kind"] == "record":
            raise BudgetError("the disk is full")
        return genuine(descriptor, path, line)

    monkeypatch.setattr(chain, "_append", append_to_full_disk)
    record = publish(PEOPLE, REQUESTS[0], ledger=path).record()
    assert open_ledger(path).entry_of(record).number == 1


def test_persons_and_rows_are_not_paid_from_one_ledger(tmp_path: Path) -> None:
    persons = create_ledger(tmp_path / "persons", name="n", person=["id"], epsilon=1).path
    rows = create_ledger(tmp_path / "rows", name="n", epsilon=1).path
    by_person = Request(0.5, [COUNT], person="id", max_rows=2)
    with pytest.raises(BudgetError, match=r"one person \(id\), the request one row"):
        publish(PEOPLE, Request(0.5, [COUNT]), ledger=persons)
    with pytest.raises(BudgetError, match=r"one row, the request one person \(id\)"):
        publish(PEOPLE, by_person, ledger=rows)
    replaced = Request(0.5, [COUNT], person="id", max_rows=2, neighbours="replace")
    with pytest.raises(BudgetError, match="replace"):
        publish(PEOPLE, replaced, ledger=persons)
    publish(PEOPLE, by_person, ledger=persons)


def test_a_request_in_rho_is_paid_in_rho(tmp_path: Path) -> None:
    path = create_ledger(tmp_path / "rho", name="n", rho="0.1").path
    in_rho: dict[str, Any] = {"rho": 0.05, "mechanism": "gaussian"}
    publish(PEOPLE, Request(None, [COUNT], **in_rho), ledger=path)
    publish(
        PEOPLE, Request(0.25, [COUNT]), ledger=path
    )  # A pure epsilon counts its square, halved.
    spent = open_ledger(path).spent.main
    assert (
        Fraction("0.05") * (1 - Fraction(1, 10**9)) + Fraction(1, 32)
        <= spent
        <= Fraction("0.08125")
    )
    with pytest.raises(BudgetError, match="rho"):
        publish(PEOPLE, Request(None, [COUNT], **in_rho), ledger=path)


def test_a_request_that_finds_no_group_is_paid_for_and_published(path: Path) -> None:
    table = publish(PEOPLE.head(2), REQUESTS[3], ledger=path)
    assert table.rows() == []
    assert open_ledger(path).entry_of(table.record()).number == 1


# Several processes --------------------------------------------------------------------------------


# A fork does not copy the threads of Polars; pandas has none.
FEW = pd.DataFrame({"x": [1.0, 2.0]})
HANGING = 600  # Seconds after which a process that hangs ends, and the test fails.


def start_children(number: int, work: Callable[[], object]) -> list[int]:
    """Start processes that call a function and never return to pytest."""
    children = []
    for _ in range(number):
        child = os.fork()
        if not child:
            status = 1
            signal.alarm(HANGING)
            try:
                work()
                status = 0
            finally:
                os._exit(status)
        children.append(child)
    return children


@pytest.mark.long
def test_eight_processes_publish_what_one_budget_allows(path: Path) -> None:
    def work() -> None:
        while True:
            try:
                publish(FEW, Request(0.0625, [COUNT]), ledger=path)
            except BudgetError:
                return

    assert [os.waitpid(child, 0)[1] for child in start_children(8, work)] == [0] * 8
    ledger = open_ledger(path)
    assert ledger.left.main == 0
    assert sum(entry.kind == "spent" for entry in ledger.entries) == 16


def test_a_release_that_was_seen_before_kill_9_was_paid_for(tmp_path: Path) -> None:
    path = create_ledger(tmp_path / "b.json", name="n", epsilon=10**6).path
    published: list[str] = []
    kills = 10 if LONG else 5
    for _ in range(kills):
        reader, writer = os.pipe()

        def work(writer: int = writer) -> None:
            while True:
                payment = publish(FEW, REQUESTS[0], ledger=path).ledger
                os.write(writer, str((payment or {})["head"]).encode())

        (child,) = start_children(1, work)
        os.close(writer)
        published.append(os.read(reader, 64).decode())
        threading.Event().wait(random.random() / 50)  # noqa: S311 - any moment will do
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        with os.fdopen(reader, "rb") as rest:
            text = rest.read().decode()
        published += [text[i : i + 64] for i in range(0, len(text), 64)]
    paid = [entry.head for entry in open_ledger(path).entries if entry.kind == "spent"]
    assert len(set(published)) == len(published) >= kills
    assert set(published) <= set(paid)
    assert len(paid) <= len(published) + kills


# The command line ---------------------------------------------------------------------------------


@pytest.fixture
def _work_folder(tmp_path: Path, path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("t.csv").write_text("x\n1\n2\n")
    assert path.name == "budget.json"
    return tmp_path


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    status = cli.main([*arguments])
    printed = capsys.readouterr()
    return status, printed.out, printed.err


RELEASE = ["release", "t.csv", "--column", "x", "--epsilon", "0.75", "--ledger", "budget.json"]


@pytest.mark.usefixtures("_work_folder")
def test_release_pays_and_says_what_is_left(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, err = run(capsys, *RELEASE, "--check")
    assert (status, err) == (0, "")
    assert out.endswith(
        "budget.json can pay for it, and would have epsilon 0.25 and delta 1e-6 left.\n"
    )
    assert open_ledger("budget.json").entries == ()
    status, out, err = run(capsys, *RELEASE, "--record", "r.json", "--html", "r.html")
    assert (status, err) == (0, "")
    assert "epsilon 0.25 and delta 1e-6" in Path("r.html").read_text(encoding="utf-8")
    assert "Paid from budget.json, which has epsilon 0.25 and delta 1e-6 left.\n" in out
    assert run(capsys, "budget", "show", "budget.json", "--record", "r.json")[0] == 0
    for options in ([], ["--check"]):
        status, out, err = run(capsys, *RELEASE, *options)
        assert status == 2
        assert (
            "budget.json has epsilon 0.25 and delta 1e-6 left, and this costs epsilon 0.75" in err
        )


@pytest.mark.usefixtures("_work_folder")
@pytest.mark.parametrize(
    ("ledger", "words"),
    [
        ("t.csv", "damaged|not a ledger"),
        ("nowhere.json", "no ledger nowhere.json: dpnoise budget create makes one"),
        ("no/where.json", "There is no folder no"),
        (".", "not a regular file"),
        ("/dev/full", "not a regular file"),
        ("torn.json", "dpnoise budget mend"),
        ("edited.json", "line 1 is not the one that was written"),
        ("", "give the name of a file"),
    ],
)
def test_what_is_no_ledger_pays_for_nothing(
    ledger: str,
    words: str,
    capsys: pytest.CaptureFixture[str],
    at_each_draw: Callable[[Callable[[], object]], list[object]],
) -> None:
    content = Path("budget.json").read_bytes()
    Path("torn.json").write_bytes(content + b"{")
    Path("edited.json").write_bytes(content.replace(b"survey", b"surfer"))
    draws = at_each_draw(lambda: None)
    try:
        status = cli.main([*RELEASE[:-1], ledger])
    except SystemExit as error:  # argparse exits
        status = int(error.code or 0)
    printed = capsys.readouterr()
    assert (status, printed.out) == (2, "")
    assert re.search(words, printed.err)
    assert printed.err.count("\n") == 1
    assert not draws


@pytest.mark.usefixtures("_work_folder")
def test_a_request_in_a_file_may_name_its_ledger(capsys: pytest.CaptureFixture[str]) -> None:
    folder = Path("requests")
    folder.mkdir()
    lines = ["epsilon = 0.5", 'source = "../t.csv"', 'ledger = "../budget.json"', "[[publish]]"]
    request_file = folder / "r.toml"
    request_file.write_text("\n".join([*lines, 'statistics = ["count"]']))
    assert run(capsys, "release", str(request_file))[0] == 0
    assert open_ledger("budget.json").spent.main == Fraction(1, 2)
    status, _, err = run(capsys, "release", str(request_file), "--ledger", "budget.json")
    assert status == 2
    assert "leave out --ledger" in err
    request_file.write_text(
        "\n".join(["ledger = 5", *lines[:2], lines[3], 'statistics = ["count"]'])
    )
    assert "ledger must be the name of a file" in run(capsys, "release", str(request_file))[2]


@pytest.mark.usefixtures("_work_folder")
@pytest.mark.parametrize("option", ["--output", "--record", "--plot", "--html"])
def test_nothing_is_written_over_the_ledger(
    option: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("link.png").symlink_to("budget.json")
    for target in ("budget.json", "link.png"):
        status, _, err = run(capsys, *RELEASE, option, target, "--force")
        assert status == 2
        assert "is the ledger. Write to another file." in err
    assert open_ledger("budget.json").entries == ()


@pytest.mark.parametrize(
    "frame", [PEOPLE, PEOPLE.to_pandas(), None], ids=["polars", "pandas", "file"]
)
def test_a_request_that_names_a_ledger_is_paid_for_wherever_it_is_published(
    frame: Any, path: Path
) -> None:
    PEOPLE.write_csv(path.with_name("people.csv"))
    toml = path.with_name("request.toml")
    toml.write_text(
        f'epsilon = 0.5\nsource = "people.csv"\nledger = "{path.name}"\n'
        '[[publish]]\nstatistics = ["count"]'
    )
    loaded = load_request(toml)
    table = publish(loaded.source if frame is None else frame, loaded.request)
    ledger = open_ledger(path)
    assert ledger.spent.main == Fraction(1, 2)
    assert ledger.entry_of(table.record()) == ledger.entries[0]
    assert str(path.parent) not in json.dumps(table.record()), "no path of this machine"
    publish(PEOPLE, loaded.request, ledger=open_ledger(path))  # The same ledger is paid once.
    assert open_ledger(path).left.main == 0
    with pytest.raises(BudgetError, match="Nothing can be bought"):
        publish(PEOPLE, loaded.request)


def test_a_request_is_not_paid_from_another_ledger_than_it_names(path: Path) -> None:
    other = create_ledger(path.with_name("other.json"), name="other", epsilon=1)
    named = Request(0.5, [COUNT], ledger=path)
    with pytest.raises(ArgumentError, match=r"The request names its ledger, .*: leave out ledger="):
        publish(PEOPLE, named, ledger=other)
    assert {open_ledger(each).spent.main for each in (path, other.path)} == {0}
    with pytest.raises(ArgumentTypeError, match="ledger must be the name of a file, got"):
        Request(0.5, [COUNT], ledger=other)  # type: ignore[arg-type]
