"""Names from data and users are shown as they are, and cannot control or break the output."""

import io
import json
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpnoise import cli, statistics
from dpnoise.auditing import additive_noise
from dpnoise.auditing.targets import adapters
from dpnoise.cli import release, terminal
from dpnoise.core import html
from dpnoise.core.safe_text import escape_text
from dpnoise.statistics import publishing
from dpnoise.statistics.digits import format_number
from dpnoise.statistics.requests import Question, Request

NAMES = ["[kg]", "[/x]", "[bold]b", "a\\", ":heart:", "$a_{$", "$x$", "\\frac", "尺度", "<b>&amp;"]
CONTROL_NAMES = ["\x1b[31mred", "a\x07\x08", "\x9b2J", "\x7f", "\u202etxt", "\u2066", "a\nb"]


@pytest.fixture(autouse=True)
def _current_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")


def release_with_name(
    name: str, capsys: pytest.CaptureFixture[str], *arguments: str
) -> tuple[str, list[dict[str, Any]]]:
    """Release counts with this name for a column and a group; return text and releases."""
    quoted = '"' + name.replace('"', '""') + '"'
    Path("t.csv").write_text(f"{quoted},g\n1,{quoted}\n2,other\n")
    command = ["release", "t.csv", "--column", name, "--group-by", f"g={name},other"]
    status = cli.main([*command, "--output", "r.json", "--force", *arguments])
    printed = capsys.readouterr()
    assert (status, printed.err) == (0, "")
    return printed.out, json.loads(Path("r.json").read_text())["releases"]


@pytest.mark.sample(4)
@pytest.mark.parametrize("name", NAMES)
def test_names_are_printed_as_they_are(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    out, published = release_with_name(name, capsys)
    title, first, second = out.splitlines()[:3]
    assert title.startswith(f"{name} ")
    assert first.startswith(f"{name}, count ")
    assert second.startswith("other, count ")
    assert [release["group"] for release in published] == [name, "other"]


@pytest.mark.sample(4)
@pytest.mark.parametrize("name", CONTROL_NAMES)
def test_control_characters_are_printed_as_escapes(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    out, published = release_with_name(name, capsys)
    assert out.replace("\n", "").isprintable()
    assert f"{escape_text(name)}, count " in out
    assert published[0]["group"] == name


@pytest.mark.sample(1)
@pytest.mark.parametrize("ending", ["png", "svg"])
def test_every_name_can_be_drawn(ending: str) -> None:
    groups = [*NAMES, *CONTROL_NAMES]
    request = Request(1.0, [Question(["count"], "$a_{$", by=("g",))], {"g": groups})
    target = Path(f"plot.{ending}")
    release.draw_bars(publishing.rehearsal(request), target)
    assert target.stat().st_size > 1000
    if ending == "svg":
        text = target.read_text(encoding="utf-8")
        assert "\x1b" not in text
        assert "\u202e" not in text


def test_names_of_any_length_and_bars_of_any_size_can_be_drawn() -> None:
    question = Question(["count"], "x" * 10_000, by=("g",))
    request = Request(1.0, [question], {"g": ["y" * 10_000]})
    for value in (0.0, 1.7e308, -1.7e308, 5e-324, 2**70, float("inf")):
        count = statistics.Release("count", value, 1.0, 1.0, 1.0, 0.95)
        published = publishing.Published("x" * 10_000, ("g",), ("y" * 10_000,), count)
        release.draw_bars(publishing.Table(request, (published,), ""), Path("p.png"))


def test_two_equal_queries_are_two_bars() -> None:
    request = Request(1.0, [Question(["count", "count"], "x")])
    drawn_bars = release.bars_of(publishing.rehearsal(request))
    assert len(drawn_bars) == 2
    table = publishing.rehearsal(request)
    release.draw_bars(table, Path("two.svg"))
    drawn = re.findall(r'id="patch_\d+"', Path("two.svg").read_text())
    release.draw_bars(publishing.Table(request, table.published[:1], ""), Path("one.svg"))
    assert len(drawn) == len(re.findall(r'id="patch_\d+"', Path("one.svg").read_text())) + 1


@pytest.mark.long
@given(st.text(max_size=30))
@settings(deadline=None, max_examples=50)
def test_shown_text_is_visible_and_on_one_line(text: str) -> None:
    assert escape_text(text + "\n\udcff").isprintable()
    if text.isprintable():
        assert escape_text(text) == text


# Other places of names ---------------------------------------------------------------------------


def test_a_target_may_have_any_name(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    quick = adapters.Adapter(lambda _: (1.0, lambda value, n: np.full(n, value)), "laplace", None)
    monkeypatch.setattr(additive_noise, "run_side_channel_checks", lambda *_: [])
    for name in ("[/x]:heart:", "\x1b[2Jgone"):
        monkeypatch.setitem(adapters.ADAPTERS, name, quick)
        options = ["--epsilon", "1", "--budget", "1000", "--html", "a.html"]
        assert cli.main(["audit", name, *options]) in {0, 1}
        assert cli.main(["attack", "precision", "--target", name, "--size", "50"]) == 0
        printed = capsys.readouterr()
        assert (
            printed.out.count(escape_text(name)) == 3
        )  # The last one is the command to reproduce it.
        assert (printed.out + printed.err).replace("\n", "").isprintable()
        page = Path("a.html").read_text(encoding="utf-8")
        assert escape_text(name) in page
        assert "\x1b" not in page


def test_a_page_can_be_written_with_any_quoted_text() -> None:
    """A page escapes characters that change the direction, and bytes that are not text."""
    template = html.environment().from_string('<p title="{{ title }}">{{ text }}</p>')
    rendered = template.render(text="\u202e\udcff\x00<b>\nnext", title="\x1b")
    assert rendered.encode("utf-8") == (
        rb'<p title="\x1b">\u202e\udcff\x00&lt;b&gt;' + b"\nnext</p>"
    )


def test_a_progress_bar_shows_its_title_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    screen = Terminal()
    monkeypatch.setenv("TERM", "xterm")  # A dumb terminal has no bar.
    monkeypatch.setattr(sys, "stderr", screen)
    with terminal.progress_bar("reading [/x][kg]:heart:\x07") as show:
        show(0.5)
    assert "reading [/x][kg]:heart:\\x07" in screen.getvalue()


# Numbers and widths ------------------------------------------------------------------------------


def counts(groups: list[str], values: list[float], errors: list[float | None]) -> publishing.Table:
    """Return a table of counts of these groups."""
    request = Request(1.0, [Question(["count"], "a column", by=("g",))], {"g": groups})
    releases = [
        publishing.Published(
            "a column", ("g",), (group,), statistics.Release("count", value, 1.0, 1.0, error, 0.95)
        )
        for group, value, error in zip(groups, values, errors, strict=True)
    ]
    return publishing.Table(request, tuple(releases), "")


def test_no_number_is_cut_at_any_width(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    values = [-1234567.891, 123456789012345678901234567890, 9.87654321e15, 0.5]
    groups = [f"group{'-long' * i * 5}-{i}" for i in range(len(values))]
    table = counts(groups, values, [0.001, 1.0, 1e9, None])
    numbers = [
        format_number(published.release.value, published.release.error) for published in table
    ]
    for width in (*range(1, 60), 80, 120, 200):
        monkeypatch.setenv("COLUMNS", str(width))
        release._show(table, as_json=False)
        out = capsys.readouterr().out
        assert "…" not in out
        for number in (part for pair in numbers for part in pair):
            assert number in out, width
        names = re.sub(r"\s", "", "".join(line.split("  ")[0] for line in out.splitlines()))
        for group in groups:
            assert group in names, width


def test_a_wide_terminal_has_bars_and_none_is_wider_than_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    published = counts(["a", "b"], [100, 50], [1.0, 1.0])
    for width in range(40, 200):
        monkeypatch.setenv("COLUMNS", str(width))
        release._show(published, as_json=False)
        table = capsys.readouterr().out.split("\n\n")[0].splitlines()
        assert all(len(line.rstrip()) <= width for line in table)
        long, short = (line.count("█") for line in table[1:])
        assert long == 2 * short or abs(long - 2 * short) == 1
        assert long >= 5
    assert long == 30


def test_no_number_of_an_audit_is_cut_at_any_width() -> None:
    row = ("attack", "1.234567890123", "0: 14.70%", "1.7e+308: 0.00%", "y is " + "a" * 50)
    for width in range(1, 200):
        out = io.StringIO()
        console = terminal.console(file=out, width=width)
        table = terminal.format_table(
            ("a", "epsilon >=", "at", "at", "event"), [row], width, folded=4
        )
        terminal.print_table(console, table)
        assert all(number in out.getvalue() for number in row[:4])
        assert re.sub(r"\s", "", out.getvalue()).count("a" * 12) >= 1
