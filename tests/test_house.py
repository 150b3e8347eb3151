"""The house itself: floors, public names, light imports, and pages whose examples run."""

import ast
import doctest
import math
import os
import re
import subprocess
import sys
import tomllib
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

import dpnoise
from dpnoise.attacks import ATTACKS
from dpnoise.attacks.processes import LOOKS
from dpnoise.kernels import elementary
from dpnoise.machine import package_of

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "dpnoise"
PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
]

# A module imports from lower floors only. `make floors` draws them for docs/contributing.md.
FLOORS = {
    "machine": 0,
    "shield": 0,
    "showing": 0,
    "strict_json": 0,
    "errors": 0.1,
    "pages.markup": 0.1,
    "pages.layout": 0.2,
    "pages": 0.3,
    "entropy": 1,
    "reference": 1,
    "kernels.cache": 0.9,
    "kernels": 1,
    "kernels.elementary": 1.1,
    "kernels.fixed": 1.1,
    "kernels.variates": 1.2,
    "kernels.certified": 1.2,
    "kernels.sums": 1.2,
    "kernels.formats": 1.2,
    "kernels.pieces": 1.3,
    "kernels.refined": 1.3,
    "kernels.single": 1.3,
    "kernels.rounding": 1.3,
    "kernels.settling": 1.4,
    "chunks": 1.5,
    "arrays": 1.6,
    "noise.forms": 2.1,
    "noise.distributions": 2.2,
    "noise.inversion": 2.3,
    "noise.generator": 2.4,
    "noise": 2.5,
    "release.calibration": 3.1,
    "release.deciding": 3.1,
    "release.kinds": 3.1,
    "release.mechanism": 3.1,
    "release.additive": 3.2,
    "release.discrete": 3.2,
    "release.selection": 3.2,
    "release": 3.3,
    "statistics.plan": 4,
    "statistics.engines.checking": 4.02,
    "statistics.engines.description": 4.02,
    "statistics.engines.keys": 4.02,
    "statistics.engines.compression": 4.02,
    "statistics.engines.prepared": 4.02,
    "statistics.engines.pumping": 4.02,
    "statistics.engines.selection_keys": 4.02,
    "statistics.engines.streams": 4.02,
    "statistics.engines.texts": 4.02,
    "statistics.engines.arithmetic": 4.03,
    "statistics.engines.headers": 4.03,
    "statistics.engines.partitions": 4.03,
    "statistics.engines.postgres": 4.03,
    "statistics.engines.sqlite": 4.03,
    "statistics.engines.tables": 4.04,
    "statistics.engines.persons": 4.045,
    "statistics.engines.frames": 4.05,
    "statistics.engines.discovery": 4.055,
    "statistics.engines.sources": 4.055,
    "statistics.engines.mistakes": 4.06,
    "statistics.engines.together": 4.06,
    "statistics.engines.files": 4.07,
    "statistics.engines": 4.08,
    "statistics.bounds": 4.1,
    "statistics.columns": 4.1,
    "statistics.composition": 4.1,
    "statistics.digits": 4.1,
    "statistics.groups": 4.1,
    "statistics.ranks": 4.1,
    "statistics.amounts": 4.1,
    "statistics.chain": 4.1,
    "statistics.ledger": 4.16,
    "statistics.sharing": 4.15,
    "statistics.tallying": 4.1,
    "statistics.thresholds": 4.1,
    "statistics.reach": 4.15,
    "statistics.releases": 4.17,
    "statistics.moments": 4.18,
    "statistics.selections": 4.18,
    "statistics.queries": 4.2,
    "statistics.questions": 4.25,
    "statistics.pricing": 4.3,
    "statistics.functions": 4.3,
    "statistics.requests": 4.4,
    "statistics.loading": 4.41,
    "statistics.report.odds": 4.41,
    "statistics.report.toml": 4.41,
    "statistics.report.numbers": 4.41,
    "statistics.report.protection": 4.42,
    "statistics.report.page": 4.43,
    "statistics.report": 4.44,
    "statistics.paying": 4.45,
    "statistics.publishing": 4.5,
    "statistics": 4.6,
    "leakage.laws": 5.1,
    "leakage.curves": 5.2,
    "leakage.report": 5.3,
    "leakage": 5.4,
    "targets.adapters": 6.1,
    "targets.mechanisms": 6.1,
    "targets.target": 6.2,
    "targets": 6.3,
    "attacks.bounds": 7,
    "attacks.claims": 7.05,
    "attacks.scores": 7.05,
    "attacks.base": 7.1,
    "attacks.single_precision": 7.1,
    "attacks.searches": 7.1,
    "attacks.mt19937": 7.1,
    "attacks.clock": 7.2,
    "attacks.feasibility": 7.2,
    "attacks.mironov": 7.2,
    "attacks.pairs": 7.2,
    "attacks.patterns": 7.2,
    "attacks.exclusion": 7.2,
    "attacks.ziggurat": 7.2,
    "attacks.processes": 7.2,
    "attacks.sensitivity": 7.2,
    "attacks.twister": 7.2,
    "attacks.thresholds": 7.2,
    "attacks.threefry": 7.2,
    "attacks.tables": 7.2,
    "attacks.views": 7.25,
    "attacks.boosting": 7.255,
    "attacks.ranges": 7.255,
    "attacks.promises": 7.257,
    "attacks.learned": 7.26,
    "attacks": 7.3,
    "auditing.wording": 8.1,
    "auditing.figures": 8.2,
    "auditing.curve": 8.25,
    "auditing.page": 8.3,
    "auditing.comparison": 8.35,
    "auditing.report": 8.4,
    "auditing.calls": 8.1,
    "auditing.encoding": 8.1,
    "auditing.independence": 8.1,
    "auditing.neighbours": 8.1,
    "auditing.versions": 8.1,
    "auditing.mechanisms": 8.2,
    "auditing.spending": 8.5,
    "auditing.added": 8.55,
    "auditing.general": 8.55,
    "auditing.looks": 8.4,
    "auditing.pairs": 8.1,
    "auditing.running": 8.6,
    "auditing": 8.7,
    "testing": 8.9,
    "": 9,
    "paper.piece": 9.1,
    "paper.drawing": 9.1,
    "paper.samplers": 9.1,
    "paper.statements": 9.1,
    "paper.race": 9.15,
    "paper.adoption": 9.2,
    "paper.divisibility": 9.2,
    "paper.floating": 9.2,
    "paper.generators": 9.2,
    "paper.addition": 9.2,
    "paper.errata": 9.2,
    "paper.inversions": 9.2,
    "paper.laws": 9.2,
    "paper.level_curves": 9.2,
    "paper.page": 9.2,
    "paper.searching": 9.2,
    "paper.subset_sums": 9.2,
    "paper.symmetry": 9.2,
    "paper.timings": 9.3,
    "paper": 9.4,
    "integrations.triton_stream": 9.5,
    "integrations.triton_release": 9.6,
    "integrations.triton_noise": 9.7,
    "integrations.triton_open": 9.6,
    "integrations.pytest": 9.5,
    "integrations.device": 9.8,
    "integrations.torch": 9.9,
    "integrations.triton_search": 9.7,
    "integrations.search": 9.9,
    "integrations.triton_clipping": 9.6,
    "integrations.device_clipping": 9.7,
    "integrations.clipping": 9.8,
    "integrations.ghost": 9.9,
    "integrations.sampling": 9.5,
    "integrations.opacus": 9.95,
    "integrations": 9.4,
    "cli.bars": 10,
    "cli.files": 10,
    "cli.signals": 10,
    "cli.terminal": 10,
    "cli.progress": 10.05,
    "cli.attack": 10.1,
    "cli.audit": 10.1,
    "cli.budget": 10.1,
    "cli.leakage": 10.1,
    "cli.paper": 10.1,
    "cli.release": 10.1,
    "cli.release_arguments": 10.07,
    "cli.sample": 10.1,
    "cli": 10.2,
    "cli.__main__": 10.3,
}


def module_name(path: Path) -> str:
    parts = path.relative_to(SOURCE).with_suffix("").parts
    return ".".join(part for part in parts if part != "__init__")


def imported(path: Path) -> set[str]:
    """Return the modules of dpnoise that a file imports, wherever in the file it does so."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "dpnoise":
            base = (node.module or "").removeprefix("dpnoise").removeprefix(".")
            deeper = {f"{base}.{alias.name}".removeprefix(".") for alias in node.names}
            names |= (deeper & FLOORS.keys()) or {base}
        elif isinstance(node, ast.Import):
            names |= {
                alias.name.removeprefix("dpnoise.")
                for alias in node.names
                if alias.name.startswith("dpnoise.")
            }
    return names


def page_name(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


@pytest.mark.parametrize("path", sorted(SOURCE.rglob("*.py")), ids=module_name)
def test_imports_go_down_the_floors_only(path: Path) -> None:
    here = module_name(path)
    assert here in FLOORS, f"give {here} its floor"
    for name in imported(path):
        assert FLOORS[name] < FLOORS[here], f"{here} imports {name}, which is not below it"


def test_the_check_of_the_floors_sees_imports() -> None:
    generator = imported(SOURCE / "noise/generator.py")
    assert generator >= {"chunks", "entropy", "errors", "noise.forms"}
    assert "auditing.running" in imported(SOURCE / "auditing/__init__.py"), "inside a function"
    assert imported(SOURCE / "kernels/variates.py") == {"kernels", "kernels.elementary"}


def test_device_kernels_take_their_polynomials_from_the_kernels() -> None:
    """No coefficient has as few bits as the numbers that are written there."""
    tree = ast.parse((SOURCE / "integrations" / "triton_release.py").read_text())
    written = [node.value for node in ast.walk(tree) if isinstance(node, ast.Constant)]
    short = [(number * 2**10).is_integer() for number in written if isinstance(number, float)]
    assert short
    assert all(short)
    coefficients = (*elementary.LOG_COEFFICIENTS[1:], *elementary.SINPI_COEFFICIENTS)
    assert not any((number * 2**10).is_integer() for number in coefficients)
    names = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    assert names >= {"LOG_COEFFICIENTS", "SINPI_COEFFICIENTS", "LOG_2", "SQRT_HALF_BITS", "ROUND"}


def test_the_picture_shows_every_module_on_its_floor() -> None:
    drawn = (ROOT / "docs/pictures/floors.svg").read_text()
    shown = re.findall(r'data-module="(.*?)" data-floor="(.*?)"', drawn)
    assert {name: float(floor) for name, floor in shown} == FLOORS, "run `make floors`"


def test_the_table_of_the_design_has_every_package_and_module_on_its_floor() -> None:
    page = (ROOT / "docs/design.md").read_text()
    found = re.findall(r"^\| ([\d.]+) \| `([\w/]+)` \|", page, re.MULTILINE)
    rows = {name: float(floor) for floor, name in found}
    packages = {f"{path.name}/" for path in SOURCE.iterdir() if path.is_dir()} - {"__pycache__/"}
    modules = {path.stem for path in SOURCE.glob("*.py")} - {"__init__"}
    assert rows.keys() == packages | modules | {"dpnoise"}
    for name in modules:
        assert rows[name] == FLOORS[name], name
    for name in packages - {"data/"}:  # It has no code.
        assert rows[name] == int(FLOORS[name.removesuffix("/")]), name


def test_the_api_pages_have_every_public_name_and_every_attack() -> None:
    text = "".join(page.read_text() for page in (ROOT / "docs/api").glob("*.md"))
    names = {*dpnoise.__all__, *(attack.__name__ for attack in ATTACKS.values())}
    assert names <= set(re.findall(r"\w+", text))


def test_the_docs_have_what_every_attack_found() -> None:
    page = (ROOT / "docs/attacks.md").read_text()
    for name in [*ATTACKS, *LOOKS]:
        _, found = page.split(f"<!-- {name}: begin -->")
        assert found.startswith("\n| target |"), f"run `make attacks`: {name}"


def test_no_table_of_the_pages_is_empty() -> None:
    for page in PAGES:
        assert not re.search(r"<!-- [\w-]+: begin -->\s*<!--", page.read_text()), page


def documented(page: str) -> set[str]:
    """Return what the names on an API page start with, after `dpnoise`; not of the integrations."""
    return set(re.findall(r"^::: dpnoise\.(?!integrations\.)(\w+)", page, re.MULTILINE))


def test_what_the_integrations_offer_is_documented() -> None:
    pages = "\n".join(page.read_text() for page in (ROOT / "docs/api").glob("*.md"))
    offered = {
        f"{path.stem}.{name}"
        for path in (SOURCE / "integrations").glob("*.py")
        for name in re.findall(
            r'"(\w+)"', "".join(re.findall(r"^__all__ = .*", path.read_text(), re.MULTILINE))
        )
    }
    assert len(offered) >= 3
    assert offered == set(re.findall(r"^::: dpnoise\.integrations\.([\w.]+)", pages, re.MULTILINE))


def test_what_is_public_is_what_is_documented_and_what_can_be_seen() -> None:
    """In a process of its own: here other tests have imported what is not public."""
    pages = "\n".join(page.read_text() for page in (ROOT / "docs/api").glob("*.md"))
    code = """
import dpnoise
reachable = {name for name in vars(dpnoise) if not name.startswith("_")}
for name in dpnoise.__all__:
    getattr(dpnoise, name)
later = {name for name in vars(dpnoise) if not name.startswith("_")}
print(*sorted(reachable | later))
print(*dir(dpnoise))
"""
    seen = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True)
    reachable, listed = (line.split() for line in seen.stdout.splitlines())
    assert set(dpnoise.__all__) == documented(pages)
    assert list(dpnoise.__all__) == sorted(dpnoise.__all__)
    assert listed == dpnoise.__all__
    assert reachable == listed


def test_the_judge_knows_nothing_of_the_kernels() -> None:
    assert imported(SOURCE / "reference.py") == set()


def test_import_brings_no_heavy_library() -> None:
    code = "import dpnoise, sys; print(*{name.split('.')[0] for name in sys.modules})"
    loaded = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, check=True, text=True
    )
    assert not {"numba", "scipy", "llvmlite", "rich"} & set(loaded.stdout.split())


def test_kernels_agree_with_the_compiler_off() -> None:
    """Interpreted, the fused operations round twice: noise may differ in its last bits only."""
    code = """
import dpnoise
from dpnoise.testing import fixed_generator
print(dpnoise.__file__)
rng = fixed_generator(bytes(32))
drawn = [rng.laplace(), rng.normal(variates=2), *rng.laplace(size=50, variates=8)]
print([float(x) for x in drawn])
"""
    results = []
    for off in ("0", "1"):
        run = subprocess.run(
            [sys.executable, "-W", "error", "-c", code],
            capture_output=True,
            check=True,
            text=True,
            env={**os.environ, "NUMBA_DISABLE_JIT": off},
        )
        package, drawn = run.stdout.splitlines()
        assert package == dpnoise.__file__, "another dpnoise was tested"
        results.append(ast.literal_eval(drawn))
    assert len(results[0]) == 52
    assert results[0] == pytest.approx(results[1], rel=1e-13, abs=1e-13)


@pytest.mark.parametrize("page", PAGES, ids=page_name)
def test_examples_in_the_pages_run(page: Path) -> None:
    failures, _ = doctest.testfile(str(page), module_relative=False)
    assert failures == 0


@pytest.mark.parametrize("page", [ROOT / "README.md", ROOT / "docs/index.md"], ids=page_name)
def test_the_margin_of_the_first_example_is_that_of_an_integer(page: Path) -> None:
    """A Laplace number of scale 1 is beyond k + 1/2, so that it moves an integer by more than k."""
    names: dict[str, Any] = {}
    for example in doctest.DocTestParser().get_examples(page.read_text())[:4]:
        exec(example.source, names)  # noqa: S102 - ours
    assert isinstance(names["published"], int)
    assert math.exp(-(math.floor(names["margin"]) + 0.5)) <= 1 - 0.95


@pytest.mark.parametrize(
    "page", ["README.md", "docs/index.md", "docs/limitations.md", "examples/demo.py"]
)
def test_who_speaks_of_time_says_what_a_clock_still_sees(page: str) -> None:
    assert "threat-model.md#what-a-clock-certifies" in (ROOT / page).read_text()


@pytest.mark.parametrize("page", PAGES, ids=page_name)
def test_links_between_the_pages_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text()):
        assert (page.parent / target).exists(), target


def anchors(page: Path) -> set[str]:
    """Return what links to parts of a page may say: its headings, as GitHub and the site do."""
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    words = [re.sub(r"[^\w\s-]", "", heading).strip().lower() for heading in headings]
    by_site = {re.sub(r"[-\s]+", "-", heading) for heading in words}
    return by_site & {heading.replace(" ", "-") for heading in words}


@pytest.mark.parametrize("page", PAGES, ids=page_name)
def test_links_to_parts_of_pages_lead_to_a_heading(page: Path) -> None:
    links = re.findall(r"\]\((?!https?:)([^)#\s]*)#([^)\s]+)\)", page.read_text())
    for target, anchor in links:
        there = (page.parent / target) if target else page
        assert there.suffix == ".md", target
        assert anchor in anchors(there), f"{target}#{anchor}"


def test_the_check_of_anchors_sees_them() -> None:
    assert "what-a-clock-certifies" in anchors(ROOT / "docs/threat-model.md")
    assert "what-a-clock-tells" not in anchors(ROOT / "docs/threat-model.md")


def test_the_changelog_has_each_heading_once_and_whole_lists() -> None:
    for version in (ROOT / "CHANGELOG.md").read_text().split("\n## ")[1:]:
        headings = re.findall(r"^### (\w+)$", version, re.MULTILINE)
        assert len(headings) == len(set(headings)), headings
        lists = re.split(r"^### .*\n\n", version, flags=re.MULTILINE)[1:]
        assert not any("\n\n-" in items for items in lists)


def test_make_help_names_every_target() -> None:
    text = (ROOT / "Makefile").read_text().replace("\\\n", "")
    targets = re.findall(r"^\.PHONY: (.*)$", text, re.MULTILINE)[0].split()
    assert {*targets} - {"help"} == {*re.findall(r'@echo "make ([\w-]+) ', text)}


def test_make_help_says_what_each_target_needs_and_takes_and_the_page_shows_it() -> None:
    printed = re.findall(r'^\t@echo "(.*)"$', (ROOT / "Makefile").read_text(), re.MULTILINE)
    helped = [line for line in printed if line.startswith(("make ", "Times"))]
    assert all(re.search("; needs .*; takes ", line) for line in helped[1:])
    page = (ROOT / "docs/contributing.md").read_text()
    assert "\n".join(["```", *helped, "```"]) in page, "copy what `make help` prints"


def test_the_citation_names_this_version_and_the_paper() -> None:
    citation = (ROOT / "CITATION.cff").read_text()
    assert f"\nversion: {dpnoise.__version__}\n" in citation
    assert "Secure Random Sampling in Differential Privacy" in citation


def needed_by(extra: str, extras: dict[str, list[str]]) -> list[str]:
    """Return what an extra requires, and what the extras in it do."""
    needed: list[str] = []
    for line in extras[extra]:
        own = re.fullmatch(r"dpnoise\[(.*)\]", line)
        inner = [needed_by(name, extras) for name in own[1].split(",")] if own else [[line]]
        needed += [requirement for part in inner for requirement in part]
    return needed


def test_the_oldest_dependencies_tested_are_the_oldest_allowed() -> None:
    """`make test-oldest` takes its versions from requirements/oldest.txt."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    allowed = [*project["dependencies"], *needed_by("test", project["optional-dependencies"])]
    pinned = (ROOT / "requirements" / "oldest.txt").read_text().splitlines()
    oldest = [line for line in pinned if not line.startswith("#")]
    assert sorted(oldest) == sorted(line.replace(">=", "==") for line in allowed)
    assert all(re.fullmatch(r"[\w-]+==[\d.]+", line) for line in oldest), "give it a lower bound"


def test_the_library_does_not_speak_of_the_command_line_s_options() -> None:
    """Errors name Python's arguments, and the command line translates them."""
    # A report says which command made it.
    rooms = {*SOURCE.rglob("*.py")} - {*SOURCE.glob("cli/*"), SOURCE / "auditing/running.py"}
    assert len(rooms) > 50
    for room in rooms:
        for node in ast.walk(ast.parse(room.read_text())):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                assert not re.search(r"(?<![\w-])--[a-z]", node.value), (room.name, node.value)


def extras() -> dict[str, list[str]]:
    """Return the packages that each extra declares by itself."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return {
        extra: re.findall(r"^[\w-]+", "\n".join(lines), re.MULTILINE)
        for extra, lines in project["optional-dependencies"].items()
    }


@cache
def asked_for() -> set[tuple[str, str]]:
    """Return every package that the code imports by `import_extra`, with the extra it names."""
    calls = (
        node
        for path in SOURCE.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "import_extra"
    )
    named = (tuple(ast.literal_eval(argument) for argument in call.args) for call in calls)
    return {(package_of(module).replace("_", "-"), extra) for module, extra in named}


def test_an_extra_that_an_error_names_installs_what_is_missing() -> None:
    declared = extras()
    assert len(asked_for()) > 5
    for package, extra in asked_for():
        assert package in declared.get(extra, []), f"dpnoise[{extra}] does not install {package}"


@pytest.mark.parametrize("page", PAGES, ids=page_name)
def test_the_extras_in_the_pages_are_those_of_the_code(page: Path) -> None:
    text = page.read_text()
    assert 'pip install "dpnoise' not in text, "it is not published: install a checkout"
    for named in re.findall(r'"(?:\./dpnoise|\.)\[([\w,]+)\]"|\(extra `(\w+)`\)', text):
        assert set("".join(named).split(",")) <= {extra for _, extra in asked_for()}
    for library, extra in re.findall(r"^\| ([\w-]+) \(extra `(\w+)`\)", text, re.MULTILINE):
        assert (library, extra) in asked_for(), f"the code does not ask for {extra}"


def test_no_test_has_a_limit_in_time() -> None:
    assert settings().deadline is None
