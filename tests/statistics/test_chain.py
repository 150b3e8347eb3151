"""The file of a ledger survives crashes, full disks, other processes and editors."""

import os
import random
import resource
import shutil
import signal
import tempfile
import threading
import traceback
from collections.abc import Callable, Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from support.alarms import LONG

from dpnoise.core.errors import BudgetError
from dpnoise.statistics import chain
from dpnoise.statistics.composition import Loss, compose
from dpnoise.statistics.ledger import Ledger, create_ledger, mend_ledger, open_ledger

EIGHTH = compose([Loss("pure", 0.125)])
NOBODY = 65534
HANGING = 120  # Seconds after which a process that hangs ends, and the test fails.


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    new = create_ledger(tmp_path / "budget.json", name="survey", epsilon=1000)
    new.spend(EIGHTH, {"publish": ["count"]})
    new.spend(EIGHTH, note="the second")
    return open_ledger(new.path)


def run_in_child(work: Callable[[], object]) -> int:
    """Run a function in a separate process and return its wait status."""
    child = os.fork()
    if not child:
        signal.alarm(HANGING)
        try:
            work()
        except BaseException:  # noqa: BLE001 - nothing of pytest may run in the child
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    return os.waitpid(child, 0)[1]


# Edited files -------------------------------------------------------------------------------------


def test_every_changed_byte_is_seen(ledger: Ledger) -> None:
    content = ledger.path.read_bytes()
    for index, byte in enumerate(content):
        changed = bytearray(content)
        changed[index] = byte ^ (1 << random.randrange(8))  # noqa: S311 - any of them is seen
        try:
            assert chain.parse(bytes(changed), ledger.path).incomplete, (
                "the end of the last line is gone"
            )
            assert index == len(content) - 1
        except BudgetError as error:
            assert "damaged" in str(error)  # noqa: PT017 - one of two things happens


def test_a_file_cut_anywhere_is_a_shorter_ledger_or_has_a_torn_line(ledger: Ledger) -> None:
    content = ledger.path.read_bytes()
    lines, heads = content.splitlines(keepends=True), chain.read(ledger.path).heads
    for size in range(len(lines[0]), len(content)):
        cut = chain.parse(content[:size], ledger.path)
        assert cut.heads == heads[: content[:size].count(b"\n")]
        assert sum(map(len, lines[: len(cut.lines)])) + len(cut.incomplete) == size
    for size in range(len(lines[0])):
        with pytest.raises(BudgetError, match="no complete line"):
            chain.parse(content[:size], ledger.path)


@pytest.mark.parametrize("cut", [1, 30])
def test_nothing_is_added_to_a_ledger_that_is_damaged_or_torn(ledger: Ledger, cut: int) -> None:
    content = ledger.path.read_bytes()
    for wrong in (content[:-cut], content.replace(b"0.125", b"0.115", 1)):
        ledger.path.write_bytes(wrong)
        with pytest.raises(BudgetError, match=r"incomplete line|damaged"):
            ledger.spend(EIGHTH)
        assert ledger.path.read_bytes() == wrong


@pytest.mark.parametrize(
    "order", [[1, 2], [0, 2], [0, 2, 1], [0, 1, 1, 2], [0, 0, 1, 2], [2, 1, 0]]
)
def test_lines_left_out_doubled_or_in_another_order_are_refused(
    ledger: Ledger, order: list[int]
) -> None:
    lines = ledger.path.read_text().splitlines(keepends=True)
    ledger.path.write_text("".join(lines[i] for i in order))
    with pytest.raises(BudgetError, match="edited"):
        open_ledger(ledger.path)


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"\n",
        b"{}\n",
        b"[]\n",
        b"5\n",
        b'"x"\n',
        b"null\n",
        b"\xff\n",
        b"\0" * 64,
        b"[" * 99999 + b"\n",
    ],
    ids=lambda text: repr(text[:8]),
)
def test_what_is_no_ledger_is_refused(tmp_path: Path, text: bytes) -> None:
    path = tmp_path / "budget.json"
    path.write_bytes(text)
    with pytest.raises(BudgetError, match=r"not a ledger|damaged"):
        open_ledger(path)


def test_lines_with_true_hashes_that_say_something_else_are_refused(tmp_path: Path) -> None:
    terms: dict[str, Any] = {"kind": "ledger", "format": 1, "name": "n", "unit": "u", "person": []}
    terms |= {"neighbours": "add-remove", "metric": "epsilon", "date": "d"}
    total = {"main": "1", "delta": "0"}
    wrong: list[dict[str, Any]] = [
        {"kind": "ledger"},
        {**terms, "total": 1},
        {**terms, "total": {"main": 1.0, "delta": "0"}},
        {**terms, "total": {"main": "-1", "delta": "0"}},
        {**terms, "total": {"main": "1e999999999", "delta": "0"}},
        {**terms, "total": {"main": "nan", "delta": "0"}},
        {**terms, "total": total, "format": 2},
    ]
    for i, first in enumerate(wrong):
        chain.create(tmp_path / str(i), first)
        with pytest.raises(BudgetError, match="not a ledger"):
            open_ledger(tmp_path / str(i))
    spent = {"kind": "spent", "date": "d"}
    wrong_entries: list[dict[str, Any]] = [
        {"kind": "gift", "date": "d"},
        spent,
        {**spent, "spent": {"main": "-0.5", "delta": "0"}},
        {**spent, "spent": {"main": "0.5"}},
        {**spent, "spent": {"main": "1.5", "delta": "0"}},
    ]
    for i, entry in enumerate(wrong_entries):
        path = tmp_path / f"later {i}"
        chain.create(path, {**terms, "total": total})
        with chain.open_to_append(path) as (_, add):
            add(entry)
        with pytest.raises(BudgetError, match=r"not a ledger|edited"):
            open_ledger(path)


# Crashes ------------------------------------------------------------------------------------------


def spend_until_killed(ledger: Ledger, writer: int) -> None:
    signal.alarm(HANGING)
    try:
        while True:
            receipt = ledger.spend(EIGHTH)
            os.write(writer, receipt.head.encode())  # Here noise would be drawn.
    finally:
        os._exit(1)


@pytest.fixture
def memory() -> Iterator[Path]:
    """Give a folder in memory if possible. Only processes are killed, so no disk is needed."""
    shared = Path("/dev/shm")  # noqa: S108 - the folder in it has a random name
    with tempfile.TemporaryDirectory(dir=shared if shared.is_dir() else None) as name:
        yield Path(name)


@pytest.mark.sample(1)
@pytest.mark.parametrize("run", range(4))
def test_kill_9_at_random_points_loses_no_release(memory: Path, run: int) -> None:
    """The long tests kill at a hundred points, in four ledgers to keep each short.

    Every reported release was paid for, and each kill loses at most one payment.
    """
    kills = 25 if LONG else 9
    ledger = create_ledger(memory / f"budget {run}.json", name="survey", epsilon=10**6)
    reported: list[str] = []
    for i in range(kills):
        reader, writer = os.pipe()
        child = os.fork()
        if not child:
            spend_until_killed(ledger, writer)
        os.close(writer)
        reported += [os.read(reader, 64).decode() for _ in range(i % 3)]
        threading.Event().wait(random.random() / 1000)  # noqa: S311 - any moment will do
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        with os.fdopen(reader, "rb") as heads:
            text = heads.read().decode()
        reported += [text[i : i + 64] for i in range(0, len(text), 64)]
        if open_ledger(ledger.path).torn:
            mend_ledger(ledger.path)
    entries = [entry for entry in open_ledger(ledger.path).entries if entry.kind == "spent"]
    paid = {entry.head for entry in entries}
    assert len(reported) >= sum(i % 3 for i in range(kills)), "all heads that were waited for"
    assert set(reported) <= paid
    assert len(reported) == len(set(reported)), "no head twice"
    assert len(paid) <= len(reported) + kills, "a kill loses one entry at most"
    assert open_ledger(ledger.path).spent.main == Fraction(len(paid), 8)


CALLS = ["open", "write", "fsync", "close"]


@pytest.mark.sample(6)
@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("moment", ["before", "after"])
@pytest.mark.parametrize("which", [0, 1])
def test_a_crash_at_every_step_of_a_line_leaves_it_whole_or_absent(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch, call: str, moment: str, which: int
) -> None:
    """The process is killed before or after each system call."""
    entries_before = len(ledger.entries)
    genuine, calls = getattr(os, call), []

    def kill_at_call(*arguments: Any, **options: Any) -> Any:
        calls.append(call)
        if len(calls) == which + 1:
            result = genuine(*arguments, **options) if moment == "after" else None
            os.kill(os.getpid(), signal.SIGKILL)
            return result
        return genuine(*arguments, **options)

    def work() -> None:
        monkeypatch.setattr(os, call, kill_at_call)
        ledger.spend(EIGHTH)

    status = run_in_child(work)
    killed = os.WIFSIGNALED(status)
    assert killed or (call, which) == ("write", 1), "a line is written by one call"
    now = open_ledger(ledger.path)
    assert not now.torn
    is_written = not killed or call in {"close", "fsync"} or (call, moment) == ("write", "after")
    assert len(now.entries) == entries_before + is_written
    now.spend(EIGHTH)


@pytest.mark.parametrize("part", [1, 50, -1])
def test_a_line_cut_short_by_a_crash_is_refused_until_it_is_mended(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch, part: int
) -> None:
    genuine = os.write

    def write_part(descriptor: int, text: bytes) -> int:
        genuine(descriptor, bytes(text)[:part])
        os.kill(os.getpid(), signal.SIGKILL)
        return 0

    def work() -> None:
        monkeypatch.setattr(os, "write", write_part)
        ledger.spend(EIGHTH)

    assert os.WIFSIGNALED(run_in_child(work))
    assert open_ledger(ledger.path).torn
    with pytest.raises(BudgetError, match="mend"):
        ledger.spend(EIGHTH)
    assert mend_ledger(ledger.path) > 0
    assert mend_ledger(ledger.path) == 0, "there is nothing left to mend"
    mended = open_ledger(ledger.path)
    assert [entry.kind for entry in mended.entries] == ["spent", "spent", "mended"]
    assert mended.spent == ledger.spent
    ledger.spend(EIGHTH)


def test_an_interrupt_in_the_middle_of_a_line_takes_it_back(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    content, genuine = ledger.path.read_bytes(), os.write

    def interrupt(descriptor: int, text: bytes) -> int:
        genuine(descriptor, bytes(text)[:30])
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "write", interrupt)
    with pytest.raises(KeyboardInterrupt):
        ledger.spend(EIGHTH)
    assert ledger.path.read_bytes() == content


def test_a_disk_that_does_not_take_the_line_for_certain_counts_it_as_spent(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: int) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(BudgetError, match="Input/output error"):
        ledger.spend(EIGHTH)
    assert len(open_ledger(ledger.path).entries) == 3


# Several processes and threads --------------------------------------------------------------------


def test_eight_processes_spend_the_last_bit_once(tmp_path: Path) -> None:
    """Forty eighths are allowed; each process reports every eighth that it gets."""
    ledger = create_ledger(tmp_path / "budget.json", name="survey", epsilon=5)
    reader, writer = os.pipe()

    def work() -> None:
        os.read(ready, 1)
        while True:
            try:
                os.write(writer, ledger.spend(EIGHTH).head.encode())
            except BudgetError as error:
                assert "epsilon 0 left" in str(error)  # noqa: PT017 - in a child process
                return

    ready, steady = os.pipe()
    children = []
    for _ in range(8):
        child = os.fork()
        if not child:
            os.close(steady)
            signal.alarm(HANGING)
            status = 1
            try:
                work()
                status = 0
            finally:
                os._exit(status)
        children.append(child)
    os.close(steady)  # All start now.
    os.close(writer)
    with os.fdopen(reader, "rb") as heads:
        text = heads.read().decode()
    assert [os.waitpid(child, 0)[1] for child in children] == [0] * 8
    os.close(ready)
    reported = {text[i : i + 64] for i in range(0, len(text), 64)}
    now = open_ledger(ledger.path)
    assert len(reported) == 40
    assert reported == {entry.head for entry in now.entries}
    assert now.left.main == 0


def test_threads_wait_for_each_other_too(ledger: Ledger) -> None:
    threads = [threading.Thread(target=ledger.spend, args=(EIGHTH,)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(open_ledger(ledger.path).entries) == 10


def test_a_ledger_that_is_replaced_while_somebody_waits_is_spent_from_again(ledger: Ledger) -> None:
    copy = ledger.path.with_name("copy")
    shutil.copy(ledger.path, copy)
    with chain.open_to_append(ledger.path):
        waiting = threading.Thread(target=ledger.spend, args=(EIGHTH,))
        waiting.start()
        copy.replace(ledger.path)
    waiting.join()
    assert len(open_ledger(ledger.path).entries) == 3, "in the file that has the name now"


# Disks, folders and links -------------------------------------------------------------------------


def run_with_file_limit(size: int, work: Callable[[], object]) -> int:
    """Run a function in a process that cannot write larger files, as on a full disk."""

    def limit_and_work() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))
        work()

    return run_in_child(limit_and_work)


@pytest.mark.parametrize("free_bytes", [0, 1, 100])
def test_a_full_disk_is_an_error_and_leaves_the_ledger_whole(
    ledger: Ledger, free_bytes: int
) -> None:
    content = ledger.path.read_bytes()

    def work() -> None:
        with pytest.raises(BudgetError, match="cannot be written"):
            ledger.spend(EIGHTH)

    assert run_with_file_limit(len(content) + free_bytes, work) == 0
    assert ledger.path.read_bytes() == content
    ledger.spend(EIGHTH)


def test_a_full_disk_leaves_no_half_of_a_new_ledger(tmp_path: Path) -> None:
    def work() -> None:
        with pytest.raises(BudgetError, match="cannot be written"):
            create_ledger(tmp_path / "budget.json", name="survey", epsilon=1)

    assert run_with_file_limit(50, work) == 0
    assert not any(tmp_path.iterdir())


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """Give a folder that everybody may enter."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        yield folder


def run_without_privileges(work: Callable[[], object]) -> int:
    """Run a function as a user without privileges, because permissions do not bind root."""

    def drop_and_work() -> None:
        if os.geteuid() == 0:
            os.setresuid(NOBODY, NOBODY, NOBODY)
        work()

    return run_in_child(drop_and_work)


def test_a_read_only_folder_takes_no_new_ledger_but_a_ledger_in_it_can_be_spent_from(
    open_folder: Path,
) -> None:
    ledger = create_ledger(open_folder / "budget.json", name="survey", epsilon=1)
    ledger.path.chmod(0o666)
    open_folder.chmod(0o555)

    def work() -> None:
        ledger.spend(EIGHTH)
        with pytest.raises(BudgetError, match="Permission denied"):
            create_ledger(open_folder / "other.json", name="survey", epsilon=1)

    assert run_without_privileges(work) == 0
    open_folder.chmod(0o755)
    assert len(open_ledger(ledger.path).entries) == 1


def test_a_read_only_ledger_can_be_read_and_not_spent_from(open_folder: Path) -> None:
    ledger = create_ledger(open_folder / "budget.json", name="survey", epsilon=1)
    ledger.path.chmod(0o444)

    def work() -> None:
        assert open_ledger(ledger.path).left.main == 1
        with pytest.raises(BudgetError, match="Permission denied"):
            ledger.spend(EIGHTH)

    assert run_without_privileges(work) == 0


def test_links_lead_to_one_ledger(ledger: Ledger, tmp_path: Path) -> None:
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    (folder / "link").symlink_to(ledger.path)
    (folder / "hard").hardlink_to(ledger.path)
    for name in ("link", "hard"):
        open_ledger(folder / name).spend(EIGHTH)
    assert len(open_ledger(ledger.path).entries) == 4
    (folder / "circle").symlink_to(folder / "circle")
    with pytest.raises(BudgetError, match="circle"):
        open_ledger(folder / "circle")


def test_no_file_is_written_over(ledger: Ledger, tmp_path: Path) -> None:
    nowhere = tmp_path / "nowhere"
    (tmp_path / "dangling").symlink_to(nowhere)
    for path in (ledger.path, tmp_path, tmp_path / "dangling"):
        with pytest.raises(BudgetError, match="exists"):
            create_ledger(path, name="survey", epsilon=1)
    assert not nowhere.exists()


def test_what_is_no_regular_file_is_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", tmp_path, Path("/dev/full"), Path("/dev/null")):
        with pytest.raises(BudgetError, match=r"not a regular file|Is a directory"):
            open_ledger(path)
    for missing in (tmp_path / "missing", tmp_path / "no" / "folder"):
        with pytest.raises(BudgetError, match="There is no"):
            open_ledger(missing)
