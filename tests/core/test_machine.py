"""Libraries without a build for this machine, and how tables name them."""

import platform
import re
import sys
import tomllib
from importlib import import_module
from importlib.util import find_spec
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from support.alarms import FALSE_ALARM

from dpnoise.auditing import additive_noise, targets
from dpnoise.auditing.targets import adapters, target
from dpnoise.cli import main
from dpnoise.core import errors, machine
from dpnoise.core.errors import MissingExtraError, import_extra

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
MACHINES = [("linux", "x86_64"), ("linux", "aarch64"), ("darwin", "x86_64"), ("darwin", "arm64")]
WINDOWS = [("win32", "AMD64")]


def declared_requirements(extra: str) -> list[Requirement]:
    return [Requirement(line) for line in PROJECT["optional-dependencies"][extra]]


def without_pydp(monkeypatch: pytest.MonkeyPatch, system: str, processor: str) -> None:
    """Simulate a machine of this kind without PyDP."""

    def import_without_pydp(name: str, *arguments: Any) -> Any:
        if name.partition(".")[0] == "pydp":
            raise ModuleNotFoundError(name="pydp")
        return import_module(name, *arguments)

    monkeypatch.setattr(sys, "platform", system)
    monkeypatch.setattr(platform, "machine", lambda: processor)
    monkeypatch.setattr(errors, "import_module", import_without_pydp)
    monkeypatch.setattr(
        machine, "find_spec", lambda name: None if name == "pydp" else find_spec(name)
    )


@pytest.mark.parametrize("extra", ["peers", "bench"])
def test_pip_is_asked_for_a_library_exactly_where_we_say_that_it_has_a_build(extra: str) -> None:
    for requirement, (system, processor) in product(
        declared_requirements(extra), [*MACHINES, *WINDOWS]
    ):
        environment = {"sys_platform": system, "platform_machine": processor}
        is_required = requirement.marker is None or requirement.marker.evaluate(environment)
        assert is_required == machine.has_build(requirement.name, system, processor), requirement


def test_a_library_without_a_build_is_called_left_out_and_no_line_is_given_that_must_fail(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    without_pydp(monkeypatch, "linux", "aarch64")
    with pytest.raises(MissingExtraError, match="python-dp has no build for Linux on aarch64") as e:
        targets.make_target("pydp.laplace")
    assert "pip" not in str(e.value)
    assert list(targets.unavailable_targets()) == ["pydp.laplace", "pydp.gaussian"]


def test_a_library_with_a_build_gets_the_line_that_installs_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    without_pydp(monkeypatch, "linux", "x86_64")
    with pytest.raises(MissingExtraError, match=r'pip install python-dp, .* "\.\[peers\]"'):
        import_extra("pydp", "peers")
    assert not targets.unavailable_targets()


def test_an_installed_library_is_not_left_out_on_any_machine(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.setattr(machine, "find_spec", lambda _: object())
    assert machine.why_unavailable("python-dp") is None


def test_an_audit_of_all_libraries_says_at_the_end_which_were_left_out(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    without_pydp(monkeypatch, "linux", "aarch64")
    few = {name: adapters.ADAPTERS[name] for name in ("dpnoise.release", "pydp.laplace")}
    monkeypatch.setattr(target, "ADAPTERS", few)
    monkeypatch.setattr(additive_noise, "run_side_channel_checks", lambda *_: [])
    page = tmp_path / "all.html"
    certain = ["--confidence", str(1 - FALSE_ALARM)]
    arguments = ["audit", "--all", "--budget", "2000", "--attack", "threshold", *certain]
    assert main([*arguments, "--html", str(page)]) == 0
    reason = "python-dp has no build for Linux on aarch64"
    table = capsys.readouterr().out.partition("at most  by")[2]
    assert f"{'pydp.laplace':29}not audited: {reason}" in table
    assert reason in page.read_text()


# Written by commands too, but not measured: the marks, and why.
NOT_MEASURED = {
    ("docs/audit-training.md", "ceilings"): "a formula; test_training.py compares it",
    ("docs/command-line.md", "help"): "the help of commands",
    ("docs/exact-release-proof.md", "proof"): "proved bounds",
    ("docs/paper.md", "statements"): "the statements that the table before it measures",
}


def marked_tables() -> dict[tuple[str, str], str]:
    """Return what commands write into the README and the docs, by page and mark."""
    pattern = re.compile(r"<!-- ([\w-]+): begin -->\n(.*?)<!-- \1: end -->", re.DOTALL)
    return {
        (page.relative_to(ROOT).as_posix(), mark): text
        for page in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))
        for mark, text in pattern.findall(page.read_text())
    }


@pytest.mark.parametrize(
    ("page", "mark"), [name for name in marked_tables() if name not in NOT_MEASURED]
)
def test_the_tables_of_a_page_say_what_they_were_measured_with(page: str, mark: str) -> None:
    """Each table, or the note of the page on its machine, names the machine and the versions."""
    tables = marked_tables()
    text = tables.get((page, "machine"), "") + tables[page, mark]
    assert re.search(r"\b[Oo]n (x86_64|aarch64|arm64|AMD64|one NVIDIA) ", text)
    assert re.search(r"\bdpnoise \d+\.\d+\.\d+", text)
    assert re.search(r"\b([Pp]ython|PyTorch) \d+\.\d+", text)


def test_every_mark_that_is_not_measured_is_in_a_page() -> None:
    assert set(NOT_MEASURED) <= set(marked_tables())


def test_the_machine_is_named_by_its_architecture_and_its_processor() -> None:
    architecture, _, processor = machine.describe_machine().partition(" ")
    assert architecture == platform.machine()
    assert len(processor.strip("()")) > 1


def test_a_library_that_fails_to_import_is_not_called_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It fails itself, or because a dependency is missing or has another version."""
    (tmp_path / "needy.py").write_text("import no_such_library")
    (tmp_path / "outdated.py").write_text("from json import no_such_name")
    monkeypatch.syspath_prepend(tmp_path)
    for library, missing_name in (("needy", "no_such_library"), ("outdated", "no_such_name")):
        with pytest.raises(MissingExtraError, match=f"{library}, which is installed") as caught:
            import_extra(library, "peers")
        assert missing_name in str(caught.value)
        assert "\n" not in str(caught.value)
    with pytest.raises(MissingExtraError, match="absent, which is not installed"):
        import_extra("absent", "peers")
