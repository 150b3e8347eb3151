"""Programs as mechanisms: started once if they stay alive, else for each request."""

import sys
from pathlib import Path

import pytest

import dpnoise
from dpnoise.auditing import programs
from dpnoise.auditing.programs import Program
from dpnoise.auditing.targets import DependentError, TargetError

START = "import json, os, random, sys; open({path!r}, 'a').write('started\\n')\n"
ANSWER = "for _ in range(json.loads({line})['n']): print(random.random(), flush=True)\n"
STAYS = START + "for line in sys.stdin:\n    " + ANSWER.format(line="line")
ENDS = START + ANSWER.format(line="sys.stdin.readline()")
READS_ALL = START + ANSWER.format(line="sys.stdin.read()")


def make_program(text: str, folder: Path) -> Program:
    return Program(
        [sys.executable, "-c", text.replace("{path!r}", repr(str(folder / "log")))], 20.0
    )


def starts(folder: Path) -> int:
    return (folder / "log").read_text().count("started")


def ask_often(program: Program, times: int = 6) -> list[str]:
    request = '{"data": 0, "n": 20}\n'
    answers = [program.ask(request, 20, "it") for _ in range(times)]
    return [line for answer in answers for line in answer]


def test_a_program_that_stays_is_started_once_and_once_more_to_compare(tmp_path: Path) -> None:
    assert len(set(ask_often(make_program(STAYS, tmp_path)))) == 120
    assert starts(tmp_path) == 2


def test_a_program_that_ends_is_started_for_each_request(tmp_path: Path) -> None:
    assert len(set(ask_often(make_program(ENDS, tmp_path), 3))) == 60
    assert starts(tmp_path) == 3


def test_a_program_that_reads_to_the_end_gets_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(programs, "_PATIENCE", 0.5)
    assert len(set(ask_often(make_program(READS_ALL, tmp_path), 3))) == 60
    assert starts(tmp_path) == 3


def test_a_seed_that_is_fixed_at_the_start_is_found(tmp_path: Path) -> None:
    seeded = STAYS.replace("for line", "random.seed(7)\nfor line", 1)
    with pytest.raises(DependentError, match="the same in two processes: a fixed seed"):
        ask_often(make_program(seeded, tmp_path))


def test_a_constant_is_no_fixed_seed(tmp_path: Path) -> None:
    assert set(ask_often(make_program(STAYS.replace("random.random()", "7"), tmp_path))) == {"7"}


def test_lines_that_nobody_asked_for_are_an_error(tmp_path: Path) -> None:
    text = STAYS.replace("flush=True)", "flush=True)\n    print('more', flush=True)")
    with pytest.raises(TargetError, match="more lines than it was asked for"):
        ask_often(make_program(text, tmp_path), 50)


def test_the_status_and_the_last_error_of_a_program_are_named(tmp_path: Path) -> None:
    text = STAYS.replace("for line in sys.stdin:", "for line in sys.stdin:\n    sys.exit('no key')")
    with pytest.raises(TargetError, match="it gave status 1: no key"):
        ask_often(make_program(text, tmp_path))


def test_a_program_that_stays_is_audited(tmp_path: Path) -> None:
    text = STAYS.replace("random.random()", "json.loads(line)['data'] + random.random()")
    text = text.replace("{path!r}", repr(str(tmp_path / "log")))
    report = dpnoise.audit([sys.executable, "-c", text], 1.0, neighbours=[(0, 1)], budget=4_000)
    assert report.broken
    assert starts(tmp_path) <= 3
