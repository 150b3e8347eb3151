"""`dpnoise audit` for a person or a CI job: its output, its status and its files."""

import html
import json
import re
import shlex
import sys
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dpnoise
from dpnoise import cli
from dpnoise.auditing import additive_noise, targets
from dpnoise.auditing.options import AuditOptions
from dpnoise.auditing.processes import Observation
from dpnoise.auditing.report import FORMAT, Report, read_list
from dpnoise.auditing.targets import adapters
from dpnoise.auditing.tradeoff import curve_words
from dpnoise.auditing.wording import bound_text

QUICK = ["--attack", "precision", "--budget", "24000"]
NUMPY = """
import os
import numpy as np
rng = np.random.default_rng()
def release(value, n):
    return value + rng.laplace(size=n)
def fails(value, n):
    if n > 1:
        raise OSError("no entropy")
    return [0.0]
def whole(value, n):
    if value % 1:
        raise OSError("a fraction")
    return release(value, n)
def exits(value, n):
    if value < 0:
        os._exit(1)
    return release(value, n)
"""


@pytest.fixture(autouse=True)
def _one_observation(monkeypatch: pytest.MonkeyPatch) -> None:
    """Return the same observation for every target; it must not change a status."""
    observation = Observation(
        "forked", found=True, words="All 3 children drew the same 64 releases."
    )
    monkeypatch.setattr(additive_noise, "run_side_channel_checks", lambda *_: [observation])


def test_a_delta_that_is_not_given_is_asked_for_by_its_option(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert cli.main(["audit", "numpy.normal", "--epsilon", "1"]) == 2
    assert "Give the delta that is claimed: --delta 1e-06." in capsys.readouterr().err


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder for reports, in a current folder with a module."""
    (tmp_path / "audited_module.py").write_text(NUMPY)
    monkeypatch.chdir(tmp_path)
    sys.modules.pop("audited_module", None)
    (tmp_path / "out").mkdir()
    return tmp_path / "out"


def run(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    """Run the command, with a claim of epsilon 1 unless all targets are audited or it has one."""
    claim = [] if {"--all", "--epsilon"}.intersection(arguments) else ["--epsilon", "1"]
    status = cli.main(["audit", *claim, *(str(argument) for argument in arguments)])
    printed = capsys.readouterr()
    return status, printed.out, printed.err


def test_large_values_of_a_finding_are_told_apart_and_a_budget_may_have_commas(
    capsys: pytest.CaptureFixture[str],
) -> None:
    arguments = ("--attack", "precision", "--budget", "24,000", "--pair", "1073741824,1073741825")
    _, out, _ = run(capsys, "numpy.laplace", *arguments)
    words = out.replace("\n", " ").split()
    assert {"1073741824:", "1073741825:"} <= set(words)
    assert "--budget 24000" in out
    with pytest.raises(SystemExit):
        run(capsys, "numpy.laplace", "--budget", "24,00")
    assert "give an integer, as 24000, not '24,00'" in capsys.readouterr().err


def test_status_1_is_broken(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    written = folder / "report.json"
    status, out, _ = run(capsys, "audited_module:release", *QUICK, "--json", written)
    assert status == 1
    assert "Broken: epsilon is at least" in out
    assert "2^" in out
    assert "! All 3 children drew the same 64 releases." in out
    report = Report.from_json(written)
    assert report.broken
    assert json.loads(written.read_text())["format"] == FORMAT
    assert [path.name for path in folder.iterdir()] == ["report.json"]


@pytest.mark.sample(1)
@pytest.mark.parametrize("options", [[], ["--neighbours", "vector", "--size", "1"]])
def test_the_page_and_the_terminal_show_event_curve_ceiling_and_how_to_reproduce(
    options: list[str], folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page, data = folder / "report.html", folder / "report.json"
    quick = ["--budget", "24000"] if options else QUICK
    _, out, _ = run(
        capsys, "audited_module:release", *options, *quick, "--html", page, "--json", data
    )
    report = Report.from_json(data)
    page_text = html_text(page.read_text())
    event = report.findings[0].event
    for text in (" ".join(out.split()), page_text):
        assert event.replace("^", "") in text.replace("^", "")
        assert bound_text(report.ceiling) in text
        assert report.command in text
    curve = report.curve()
    assert f"The certified curve: {curve_words(curve)}" in " ".join(out.split())
    assert "The certified curve" in page_text
    assert f"<dt>Mu</dt><dd>at least {bound_text(curve.mu)}</dd>" in page.read_text()
    assert curve_words(curve) in str(report)
    assert report.command in str(report)


def html_text(page: str) -> str:
    """Return the text of a page, without tags."""
    return " ".join(html.unescape(re.sub(r"<[^>]*>", "", page)).split())


def test_status_0_is_nothing_found(capsys: pytest.CaptureFixture[str]) -> None:
    """At this confidence a false alarm has a chance of 1e-8."""
    status, out, _ = run(capsys, "dpnoise.release", *QUICK, "--confidence", 1 - 1e-8)
    assert status == 0
    assert "Not broken by these attacks. This does not mean safe." in out
    assert "may stay unseen." in " ".join(out.split())


@pytest.mark.sample(12)
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "Give one of TARGET, --command COMMAND and --all, as in dpnoise audit numpy.laplace"),
        (["numpy.laplace", "--all"], "Give one of TARGET, --command COMMAND and --all, as in"),
        (["mymech.good"], "A function of your own is written mymech:good."),
        (["python noise.py"], "dpnoise audit --command 'python noise.py'."),
        (["random:gauss", "--size", "3"], "size is for mechanisms of any kind: give neighbours."),
        (
            ["numpy.laplace", "--neighbours", "vector"],
            "adds noise to a number: leave out neighbours.",
        ),
        (["audited_module:release", "--neighbours", "rows"], "--neighbours rows needs --data FILE"),
        (["audited_module:release", "--boosting"], "boosting is for mechanisms of any kind: give"),
        (["numpy:ndarray"], "numpy:ndarray is a class. Give a function (value, n) -> array"),
        (["math:sqrt"], "math:sqrt must be a function (value, n) -> array, got math:sqrt(x, /)."),
        (["--command", "no-such-program"], "Give the path of a program, or its interpreter first"),
        (["./noise.py"], "A program is given by --command: dpnoise audit --command ./noise.py."),
        (["folder/noise.py:f"], "A function of your own is written folder.noise:f."),
        (["--command", "echo '[1, 2]'"], "line that is not a number: '[1, 2]'. For outputs that"),
        (["numpy.lapalce"], "There is no target 'numpy.lapalce'"),
        (["numpy.normal"], "Gaussian noise, which has no finite epsilon at delta = 0"),
        (["numpy.laplace", "--attack", "nothing"], "There is no attack 'nothing'"),
        (["numpy.laplace", "--budget", "10"], "--budget must be at least 1000, got 10"),
        (["numpy.laplace", "--epsilon", "-1"], "--epsilon must be greater than 0, got -1.0"),
        (["numpy.laplace", "--json", "nowhere/report.json"], "There is no folder nowhere"),
        (["--command", ""], "must be a command"),
        (["--command", "'unbalanced"], "must be a command, got"),
        (["audited_module:whole", "--pair", "0.5,1"], "only integers, give --whole."),
        (["math:sqrt"], "Give --one-by-one, or a function that calls it n times"),
        (["--all", "--budget", "10"], "--budget must be at least 1000, got 10"),
        (["no_such_module:f"], "no_such_module:f was not imported"),
    ],
)
def test_status_2_is_wrong_usage_with_one_line_that_explains(
    arguments: list[str], message: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    status, _, err = run(capsys, *arguments)
    assert folder.is_dir()
    assert status == 2
    assert err.startswith("dpnoise: ")
    assert message in err
    assert err.count("\n") == 1


@pytest.mark.parametrize("pair", ["0", "0,1,2", "0;1", "a,b"])
def test_a_pair_is_two_numbers(pair: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        run(capsys, "numpy.laplace", "--pair", pair)
    expected = f"give two numbers with a comma between them, as in --pair 0,1, not '{pair}'."
    assert expected in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["numpy.laplace"], "numpy.laplace is a target. dpnoise audit numpy.laplace --epsilon 1"),
        (["mine:f"], "for one attack, dpnoise attack NAME --target mine:f."),
        (["mironv"], "There is no attack 'mironv'. Did you mean mironov?"),
        (["mironov", "--target", "mymech.good"], "A function of your own is written mymech:good."),
        (["mironov", "--target", "nump"], "The nearest of "),
        (["mironov", "--target", "opendp.noisy_max"], "Run dpnoise audit opendp.noisy_max --eps"),
        (["mironov", "--target", "math:sqrt"], "must be a function (value, n) -> array, got "),
        (["mironov", "--value0", "1"], "value1 must differ from --value0 1, got 1.0."),
        (["mironov", "--size", "0"], "--size must be at least 1, got 0."),
        (["mironov", "--epsilon", "0"], "--epsilon must be greater than 0, got 0.0."),
    ],
)
def test_a_wrong_attack_is_answered_with_what_to_do(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["attack", *arguments]) == 2
    err = capsys.readouterr().err
    assert message in err
    assert len(err) < 300


def test_an_attack_asks_a_target_for_one_release_a_call_as_its_error_advises(
    capsys: pytest.CaptureFixture[str],
) -> None:
    command = ["attack", "bits", "--target", "math:sqrt", "--size", "50"]
    assert cli.main(command) == 2
    assert "Give --one-by-one, or a function that calls it n times" in capsys.readouterr().err
    assert cli.main([*command, "--one-by-one"]) == 0
    assert "bits against math:sqrt" in capsys.readouterr().out
    assert cli.main(["attack", "precision", "--size", "50", "--one-by-one"]) == 0


def test_an_audit_that_fails_keeps_an_older_report_and_leaves_no_file(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    older, newer = folder / "report.json", folder / "report.html"
    older.write_text("an older report")
    status, _, err = run(capsys, "audited_module:fails", *QUICK, "--json", older, "--html", newer)
    assert status == 2
    assert "audited_module:fails(0.0, 136) raised OSError: no entropy" in err
    assert [path.name for path in folder.iterdir()] == ["report.json"]
    assert older.read_text() == "an older report"


def test_findings_before_the_target_failed_are_shown(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """An event is counted before the next pair is tried, so its bound holds."""
    status, out, err = run(capsys, "audited_module:exits", *QUICK, "--json", folder / "report.json")
    assert status == 2
    assert err.startswith("dpnoise: audited_module:exits ended its process with status 1. ")
    assert "The audit was at this step: -1 against 0." in err
    assert "What was certified before the target failed:" in out
    assert "precision" in out
    assert not list(folder.iterdir())


def test_status_2_is_also_that_no_attack_could_be_run(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """NumPy's model excludes exact releases of every value, so the attack does not apply."""
    written = folder / "report.json"
    only_mironov = ["--attack", "mironov", "--budget", "24000", "--json", written]
    status, out, err = run(capsys, "dpnoise.release", *only_mironov)
    assert status == 2
    assert "No attack was run: nothing is known." in out
    assert "mironov gave no result: its model of" in out
    assert err == "dpnoise: No attack could be run against dpnoise.release: nothing is known.\n"
    assert not Report.from_json(written).findings


@pytest.mark.long
def test_a_command_is_audited(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    program = "import sys; [print(line, end='') for line in sys.stdin]"
    status, _, _ = run(
        capsys, "--command", shlex.join([sys.executable, "-c", program]),
        "--attack", "bits", "--budget", "1000",
        "--json", folder / "report.json", "--html", folder / "a.html",
    )  # fmt: skip
    assert status == 1
    assert Report.from_json(folder / "report.json").target.startswith(sys.executable)
    assert "<html" in (folder / "a.html").read_text()


# Of all libraries --------------------------------------------------------------------------------


def use_only_targets(monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
    """Make these the only known targets."""
    kinds = {name: add_adapter.noise for name, add_adapter in adapters.ADAPTERS.items()}

    def target_names(noise: str | None = None) -> list[str]:
        return [name for name in names if noise in {None, kinds[name]}]

    monkeypatch.setattr(targets, "names", target_names)


def add_adapter(monkeypatch: pytest.MonkeyPatch, name: str, release: Any) -> None:
    adapter = adapters.Adapter(lambda _: (1.0, release), "laplace", None)
    monkeypatch.setitem(adapters.ADAPTERS, name, adapter)


def test_all_libraries_are_compared_gaussian_ones_at_a_delta(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    use_only_targets(monkeypatch, "numpy.laplace", "numpy.normal", "paper.laplace")
    status, out, _ = run(capsys, "--all", *QUICK, "--json", folder / "all.json")
    assert status == 1
    assert "numpy.normal: Broken" in out
    reports = read_list(folder / "all.json")
    assert [(report.target, report.delta) for report in reports] == [
        ("numpy.laplace", 0.0),
        ("numpy.normal", 1e-6),
    ]


def test_a_library_that_is_not_installed_is_passed_over(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    use_only_targets(monkeypatch, "torch.laplace", "dpnoise.release")
    status, out, _ = run(capsys, "--all", *QUICK, "--confidence", 1 - 1e-8)
    assert status == 0
    assert "torch.laplace: This needs torch, which is not installed: pip install torch, or" in out


def test_a_library_that_fails_costs_the_status_but_not_the_others(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    add_adapter(monkeypatch, "failing", lambda *_: 1 / 0)
    add_adapter(monkeypatch, "constant", lambda _, n: np.zeros(n))
    use_only_targets(monkeypatch, "failing", "constant")
    status, out, _ = run(capsys, "--all", *QUICK, "--json", folder / "all.json")
    assert status == 2
    assert "failing: failing(0.0, 1) raised ZeroDivisionError" in out
    assert [report.target for report in read_list(folder / "all.json")] == ["constant"]


def test_a_library_that_no_attack_could_be_run_against_costs_the_status(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    use_only_targets(monkeypatch, "dpnoise.release")
    status, _, err = run(capsys, "--all", "--attack", "mironov", "--budget", "24000")
    assert status == 2
    assert "No attack could be run against dpnoise.release: nothing is known." in err


@pytest.fixture
def received(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Return the options that `dpnoise.audit` receives from the command, in place of an audit."""
    received: dict[str, Any] = {}

    def audit(_target: object, **options: Any) -> None:
        received.update(options)
        raise targets.TargetError("not audited")

    monkeypatch.setattr(dpnoise, "audit", audit)
    return received


def test_the_command_that_repeats_an_audit_gives_every_option_again(
    received: dict[str, Any],
) -> None:
    """A new option must be one of the command line, or be listed here."""
    only_in_python = {"views", "progress", "watch"}
    read_from_a_file = {"data"}
    options: dict[str, Any] = {
        "sensitivity": 2.0, "neighbours": "vector", "size": 7, "attacks": ["precision"],
        "pairs": [(0.0, 1.0)], "one_by_one": True, "exceptions": "output", "time": "output",
        "boosting": True, "public": [0, "y[1]"], "budget": 5_000, "confidence": 0.99, "scale": 2.0,
        "time_limit": 3.0, "seed": 0,
    }  # fmt: skip
    seen = only_in_python | read_from_a_file
    noise: dict[str, Any] = {"epsilon": 1.0, "delta": 1e-6, "curve": True}
    for claim in (noise, {"mu": 1.0}, {"rho": 0.5}):
        again = AuditOptions(**claim, **options).command("numpy.laplace", "numpy.laplace")
        received.clear()
        assert cli.main(shlex.split(again)[1:]) == 2
        expected = {**claim, **options, "delta": claim.get("delta", 0.0)}
        assert {name: received[name] for name in expected} == expected
        seen |= expected.keys()
    assert seen == {option.name for option in fields(AuditOptions)}


def test_boosting_is_left_to_the_default_unless_it_is_asked_for(received: dict[str, Any]) -> None:
    assert cli.main(["audit", "numpy.laplace", "--epsilon", "1"]) == 2
    assert "boosting" not in received


def test_the_claim_is_required(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["audit", "numpy.laplace"]) == 2
    assert "Say which epsilon is claimed: --epsilon 1." in capsys.readouterr().err


@pytest.mark.long
def test_a_command_with_brackets_is_shown_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    """They are not markup for the terminal."""
    code = "import sys; [print(len('[/z]') + float(line)) for line in sys.stdin]"
    command = shlex.join([sys.executable, "-c", code])
    _, out, err = run(capsys, "--command", command, *QUICK[:2], "--budget", "1000")
    assert "[/z]" in out + err


def test_a_folder_cannot_be_written_to(capsys: pytest.CaptureFixture[str], folder: Path) -> None:
    status, _, err = run(capsys, "numpy.laplace", *QUICK, "--html", folder)
    assert status == 2
    assert "is a folder" in err
