"""The project itself: public names, light imports, and pages whose examples run."""

import ast
import difflib
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
import write_help
from hypothesis import settings
from support.choices import sample_parameters
from support.package_source import nodes_by_module
from support.page_examples import check_commands, check_python

import dpnoise
from dpnoise import cli
from dpnoise.auditing.attacks import ATTACKS
from dpnoise.auditing.processes import SIDE_CHANNEL_CHECKS
from dpnoise.core.kernel_table import load_kernels
from dpnoise.core.machine import package_of
from dpnoise.kernels import elementary

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "dpnoise"
PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
]


# The most lines of a function, with its decorators, that says nothing about its length.
LONGEST_FUNCTION = 40


def test_a_long_function_says_why_it_has_so_many_lines() -> None:
    """The reason is a comment on the signature, or on the line above the function."""
    unexplained = set()
    for path, nodes in nodes_by_module().items():
        lines = path.read_text().splitlines()
        for node in nodes:
            if isinstance(node, ast.FunctionDef):
                first = min([node.lineno, *(part.lineno for part in node.decorator_list)])
                is_long = (node.end_lineno or 0) - first >= LONGEST_FUNCTION
                signature = lines[first - 2 : node.body[0].lineno - 1]
                comments = " ".join(line.partition("#")[2] for line in signature)
                if is_long and "lines" not in comments:
                    unexplained.add(f"{path.relative_to(SOURCE).as_posix()}: {node.name}")
    assert not unexplained


def page_name(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


# Files that import our modules by their names.
LAZY_IMPORTERS = ("__init__.py", "containers.py")


def test_no_module_of_ours_is_imported_by_a_string() -> None:
    """Import-linter reads only import statements, so every import must be one.

    The exceptions are packages that load public names on first use, and `release.containers`, which
    imports the release of tensors when it is given the first one.
    """
    for path, nodes in nodes_by_module().items():
        for node in nodes:
            if isinstance(node, ast.Call) and "import" in ast.unparse(node.func):
                argument = ast.unparse(node.args[0]) if node.args else ""
                assert "dpnoise" not in argument or path.name in LAZY_IMPORTERS, (
                    path.name,
                    argument,
                )


def test_device_kernels_take_their_polynomials_from_the_kernels() -> None:
    """Coefficients have more bits than all numbers in the source of the device kernels."""
    tree = ast.parse((SOURCE / "integrations" / "triton_release.py").read_text())
    constants = [node.value for node in ast.walk(tree) if isinstance(node, ast.Constant)]
    short = [(number * 2**10).is_integer() for number in constants if isinstance(number, float)]
    assert short
    assert all(short)
    coefficients = (*elementary.LOG_COEFFICIENTS[1:], *elementary.SINPI_COEFFICIENTS)
    assert not any((number * 2**10).is_integer() for number in coefficients)
    names = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    assert names >= {"LOG_COEFFICIENTS", "SINPI_COEFFICIENTS", "LOG_2", "SQRT_HALF_BITS", "ROUND"}


def test_the_design_names_every_package() -> None:
    page = (ROOT / "docs/design.md").read_text()
    rows = set(re.findall(r"^\| `([\w/]+)` \|", page, re.MULTILINE))
    packages = {f"{path.parent.name}/" for path in SOURCE.glob("*/__init__.py")}
    assert rows == packages | {path.stem for path in SOURCE.glob("*.py")} - {"__init__"}


def test_the_api_pages_have_every_public_name_and_every_attack() -> None:
    text = "".join(page.read_text() for page in (ROOT / "docs/api").glob("*.md"))
    names = {*dpnoise.__all__, *(attack.__name__ for attack in ATTACKS.values())}
    assert names <= set(re.findall(r"\w+", text))


def test_the_docs_have_the_results_of_every_attack() -> None:
    page = (ROOT / "docs/attacks.md").read_text()
    for name in [*ATTACKS, *SIDE_CHANNEL_CHECKS]:
        _, table = page.split(f"<!-- {name}: begin -->")
        assert table.startswith("\n| target |"), f"run `make attacks`: {name}"
    for name, attack in ATTACKS.items():
        assert re.search(rf"^\| `{name}` \|[^|]+\| {attack.access}\b", page, re.MULTILINE), name


def test_no_table_of_the_pages_is_empty() -> None:
    for page in PAGES:
        assert not re.search(r"<!-- [\w-]+: begin -->\s*<!--", page.read_text()), page


def documented_names(page: str) -> set[str]:
    """Return the first part, after `dpnoise`, of the names on an API page, without integrations."""
    return set(re.findall(r"^::: dpnoise\.(?!integrations\.)(\w+)", page, re.MULTILINE))


def test_public_names_of_the_integrations_are_documented() -> None:
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


def test_public_names_are_documented_and_listed() -> None:
    pages = "\n".join(page.read_text() for page in (ROOT / "docs/api").glob("*.md"))
    assert set(dpnoise.__all__) == documented_names(pages)
    assert list(dpnoise.__all__) == sorted(dpnoise.__all__) == dir(dpnoise)
    assert all(hasattr(dpnoise, name) for name in dpnoise.__all__)


@pytest.mark.long
def test_a_module_that_was_imported_is_an_attribute_of_its_package() -> None:
    """In a new process, because other tests have imported everything here."""
    code = """
import dpnoise.release.additive
dpnoise.statistics, dpnoise.auditing.attacks, dpnoise.auditing.targets, dpnoise.auditing.leakage
print(dpnoise.release.additive.__name__)
"""
    process = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, check=True, text=True
    )
    assert process.stdout == "dpnoise.release.additive\n"


HEAVY = {"numpy", "numba", "scipy", "llvmlite", "rich", "jinja2", "duckdb", "narwhals", "flint"}


def test_import_brings_no_heavy_library() -> None:
    code = "import dpnoise, sys; print(*{name.split('.')[0] for name in sys.modules})"
    process = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, check=True, text=True
    )
    assert not HEAVY & set(process.stdout.split())


OF_EXTRAS = (
    "narwhals duckdb pyarrow pandas polars rich matplotlib sklearn threadpoolctl dp_accounting "
    "torch opacus diffprivlib"
)


def test_the_page_for_authors_of_libraries_imports_nothing_of_an_extra() -> None:
    """It says that the installation needs none, `exact_sum` and the audits included."""
    page = (ROOT / "docs/library-authors.md").read_text()
    imports = re.findall(r"^>>> ((?:from|import) [\w.]*dpnoise.*)$", page, re.MULTILINE)
    assert "from dpnoise.statistics import exact_sum" in imports
    code = f"""
from importlib.machinery import PathFinder
find = PathFinder.find_spec
def find_without_extras(name, *rest):
    return None if name.split(".")[0] in {OF_EXTRAS.split()} else find(name, *rest)
PathFinder.find_spec = find_without_extras
{chr(10).join(imports)}
from dpnoise.auditing import audit_training
assert callable(dpnoise.audit)
assert exact_sum([0.5, 7.0], lower=0, upper=5) == 5.5
from dpnoise.statistics import Question, Request, publish
try:
    publish(object(), Request(1.0, [Question(["count"])]))
except dpnoise.MissingExtraError as error:
    print(error)
"""
    process = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, check=True, text=True
    )
    assert process.stdout.startswith("This needs narwhals, which is not installed: pip install")


@pytest.mark.parametrize("option", ["--version", "--help"])
def test_the_version_and_the_help_import_no_heavy_library(option: str) -> None:
    code = f"""
import sys
from dpnoise.cli import main
try:
    main([{option!r}])
finally:
    print("imported", *{{name.split(".")[0] for name in sys.modules}})
"""
    process = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, check=True, text=True
    )
    imported = process.stdout.rpartition("imported ")[2].split()
    assert "argparse" in imported
    assert not HEAVY & set(imported)


def test_kernels_on_the_disk_are_loaded_without_the_compiler() -> None:
    load_kernels()  # This puts the kernels on the disk, where they are missing.
    code = """
import sys
from dpnoise.core.kernel_table import load_kernels
load_kernels()
print("numba.np.arraymath" in sys.modules, "scipy.linalg" in sys.modules)
"""
    process = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, check=True, text=True
    )
    assert process.stdout == "False False\n"


@pytest.mark.long
def test_kernels_agree_with_the_compiler_off() -> None:
    """Interpreted, fused operations round twice, so noise may differ in its last bits."""
    code = """
import dpnoise
from dpnoise.testing import fixed_generator
print(dpnoise.__file__)
rng = fixed_generator(bytes(32))
drawn = [rng.laplace(), rng.normal(variates=2), *rng.laplace(size=50, variates=8)]
print([float(x) for x in drawn])
"""
    results = []
    for disabled in ("0", "1"):
        run = subprocess.run(
            [sys.executable, "-W", "error", "-c", code],
            capture_output=True,
            check=True,
            text=True,
            env={**os.environ, "NUMBA_DISABLE_JIT": disabled},
        )
        package, drawn = run.stdout.splitlines()
        assert package == dpnoise.__file__, "another dpnoise was tested"
        results.append(ast.literal_eval(drawn))
    assert len(results[0]) == 52
    assert results[0] == pytest.approx(results[1], rel=1e-13, abs=1e-13)


# Pages whose examples audit for seconds; `make test` runs a random one.
SLOW_PAGES = [ROOT / f"docs/{name}.md" for name in ("auditing", "library-authors")]
QUICK_PAGES = [page for page in PAGES if page not in SLOW_PAGES]


@pytest.mark.parametrize("page", [*QUICK_PAGES, *sample_parameters(SLOW_PAGES, 1)], ids=page_name)
def test_examples_in_the_pages_run(page: Path) -> None:
    check_python(page)


# Tests in other files run their commands: of the last one in test_case_study.py. Those of the
# others need extras: tests/tensors and tests/integrations.
PAGES_RUN_ELSEWHERE = {
    ROOT / f"docs/{name}.md"
    for name in ("dp-sgd", "audit-training", "harden-diffprivlib", "case-study")
}


@pytest.mark.parametrize(
    "page",
    [
        page
        for page in PAGES
        if "```console" in page.read_text() and page not in PAGES_RUN_ELSEWHERE
    ],
    ids=page_name,
)
def test_commands_in_the_pages_print_what_they_show(page: Path, tmp_path: Path) -> None:
    check_commands(page, tmp_path)


def test_the_margin_of_the_first_example_is_that_of_an_integer() -> None:
    """An integer moves by more than k if the Laplace noise of scale 1 exceeds k + 1/2."""
    names: dict[str, Any] = {}
    page = ROOT / "docs/index.md"
    for example in doctest.DocTestParser().get_examples(page.read_text())[:4]:
        exec(example.source, names)  # noqa: S102 - our own page
    assert isinstance(names["published"], int)
    assert math.exp(-(math.floor(names["margin"]) + 0.5)) <= 1 - 0.95


@pytest.mark.parametrize(
    "page", ["README.md", "docs/index.md", "docs/limitations.md", "examples/demo.py"]
)
def test_pages_about_time_link_to_what_timing_reveals(page: str) -> None:
    assert "timing.md#what-a-clock-certifies" in (ROOT / page).read_text()


@pytest.mark.parametrize("page", PAGES, ids=page_name)
def test_links_between_the_pages_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text()):
        assert (page.parent / target).exists(), target


PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def text_on_pypi() -> str:
    """Return the README as the build changes it for PyPI."""
    text = (ROOT / "README.md").read_text()
    hook = PYPROJECT["tool"]["hatch"]["metadata"]["hooks"]["fancy-pypi-readme"]
    for substitution in hook["substitutions"]:
        text, changes = re.subn(substitution["pattern"], substitution["replacement"], text)
        assert changes, f"the README has nothing that matches {substitution['pattern']}"
    return text


def test_the_readme_on_pypi_leads_to_the_repository() -> None:
    """PyPI has only the README, so the build makes pictures and links absolute."""
    text = text_on_pypi()
    links = re.findall(r"\]\(([^)]+)\)", text)
    assert all(link.startswith(("https://", "#")) for link in links)
    source = PYPROJECT["project"]["urls"]["Source"]
    raw = source.replace("github.com", "raw.githubusercontent.com")
    pictures = re.findall(r"!\[[^\]]*\]\(([^)]+)\)", text)
    assert pictures
    assert all(picture.startswith(f"{raw}/main/docs/pictures/") for picture in pictures)


def test_the_readme_on_pypi_differs_only_in_its_links_and_in_how_to_install() -> None:
    text = text_on_pypi()
    source = PYPROJECT["project"]["urls"]["Source"]
    raw = source.replace("github.com", "raw.githubusercontent.com")
    relative = text.replace(f"{raw}/main/", "").replace(f"{source}/blob/main/", "").splitlines()
    readme = (ROOT / "README.md").read_text().splitlines()
    changes = [line for line in difflib.ndiff(readme, relative) if line.startswith(("- ", "+ "))]
    added = [line for line in changes if line.startswith("+ ")]
    assert '+ pip install "dpnoise[cli]"' in added
    status = next(line for line in added if line.startswith("+ **Status"))
    assert status.endswith(":")
    assert len(added) == 2
    assert "not on PyPI" not in text
    assert "git clone" not in text
    assert '```\npip install "dpnoise[cli]"\n```' in text


def anchors(page: Path) -> set[str]:
    """Return the anchors of a page: its headings, as GitHub and the site write them."""
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    words = [re.sub(r"[^\w\s-]", "", heading).strip().lower() for heading in headings]
    by_site = {re.sub(r"[-\s]+", "-", heading) for heading in words}
    return by_site & {heading.replace(" ", "-") for heading in words}


@pytest.mark.parametrize("page", PAGES, ids=page_name)
def test_links_to_parts_of_pages_lead_to_a_heading(page: Path) -> None:
    links = re.findall(r"\]\((?!https?:)([^)#\s]*)#([^)\s]+)\)", page.read_text())
    for target, anchor in links:
        target_page = (page.parent / target) if target else page
        assert target_page.suffix == ".md", target
        assert anchor in anchors(target_page), f"{target}#{anchor}"


def test_the_check_of_anchors_finds_them() -> None:
    assert "what-a-clock-certifies" in anchors(ROOT / "docs/timing.md")
    assert "what-a-clock-tells" not in anchors(ROOT / "docs/timing.md")


def test_the_changelog_has_each_heading_once_and_whole_lists() -> None:
    for version in (ROOT / "CHANGELOG.md").read_text().split("\n## ")[1:]:
        headings = re.findall(r"^### (.+)$", version, re.MULTILINE)
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


def test_make_figures_runs_every_script_that_measures() -> None:
    text = (ROOT / "Makefile").read_text().replace("\\\n", "")
    measured = re.findall(r"^FIGURES := (.*)$", text, re.MULTILINE)[0].split()
    recipes = dict(re.findall(r"^([\w-]+):.*\n((?:\t.*\n)+)", text, re.MULTILINE))
    commands = "".join(recipes[target] for target in measured)
    scripts = [*(ROOT / "benchmarks").glob("*.py"), *(ROOT / "tools").glob("measure_*.py")]
    for script in scripts:
        if re.search(r"write_between_marks\(|add_argument\(", script.read_text()):
            names = script.relative_to(ROOT).as_posix(), f"-m benchmarks.{script.stem}"
            is_part = script.stem in ("pages", "__main__")  # Of `python -m benchmarks`.
            assert is_part or any(name in commands for name in names), script
    written = re.findall(r'@echo "make ([\w-]+) [^"]*; writes', text)
    assert {*written} <= {*measured}


def test_the_citation_names_this_version_and_the_paper() -> None:
    citation = (ROOT / "CITATION.cff").read_text()
    assert f"\nversion: {dpnoise.__version__}\n" in citation
    assert "Secure Random Sampling in Differential Privacy" in citation


def requirements_of(extra: str, extras: dict[str, list[str]]) -> list[str]:
    """Return the requirements of an extra, including those of its extras."""
    requirements: list[str] = []
    for line in extras[extra]:
        extras_in_line = re.fullmatch(r"dpnoise\[(.*)\]", line)
        inner = (
            [requirements_of(name, extras) for name in extras_in_line[1].split(",")]
            if extras_in_line
            else [[line]]
        )
        requirements += [requirement for part in inner for requirement in part]
    return requirements


def test_the_oldest_dependencies_tested_are_the_oldest_allowed() -> None:
    """`make test-oldest` takes its versions from requirements/oldest.txt."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    allowed = [*project["dependencies"], *requirements_of("test", project["optional-dependencies"])]
    pinned = (ROOT / "requirements" / "oldest.txt").read_text().splitlines()
    oldest = [line for line in pinned if not line.startswith("#")]
    assert sorted(oldest) == sorted(line.split(",")[0].replace(">=", "==") for line in allowed)
    assert all(re.fullmatch(r"[\w-]+==[\d.]+", line) for line in oldest), "give it a lower bound"


def test_the_library_does_not_mention_command_line_options() -> None:
    """Errors name Python's arguments, and the command line translates them."""
    # A report names the command that made it.
    modules = {*SOURCE.rglob("*.py")} - {*SOURCE.glob("cli/*"), SOURCE / "auditing/options.py"}
    assert len(modules) > 50
    for module in modules:
        for node in nodes_by_module()[module]:
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                assert not re.search(r"(?<![\w-])--[a-z]", node.value), (module.name, node.value)


def extras() -> dict[str, list[str]]:
    """Return the packages that each extra declares."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return {
        extra: re.findall(r"^[\w-]+", "\n".join(lines), re.MULTILINE)
        for extra, lines in project["optional-dependencies"].items()
    }


@cache
def imported_extras() -> set[tuple[str, str]]:
    """Return every package that the code imports with `import_extra`, and its extra."""
    calls = (
        node
        for nodes in nodes_by_module().values()
        for node in nodes
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "import_extra"
    )
    imports = (tuple(ast.literal_eval(argument) for argument in call.args) for call in calls)
    return {(package_of(module).replace("_", "-"), extra) for module, extra in imports}


def test_an_extra_that_an_error_names_installs_what_is_missing() -> None:
    declared = extras()
    assert len(imported_extras()) > 5
    for package, extra in imported_extras():
        assert package in declared.get(extra, []), f"dpnoise[{extra}] does not install {package}"


@pytest.mark.parametrize("page", PAGES, ids=page_name)
def test_the_extras_in_the_pages_match_the_code(page: Path) -> None:
    text = page.read_text()
    assert 'pip install "dpnoise' not in text, "it is not published: install a checkout"
    for named in re.findall(r'"(?:\./dpnoise|\.)\[([\w,]+)\]"|\(extra `(\w+)`\)', text):
        assert set("".join(named).split(",")) <= {extra for _, extra in imported_extras()}
    for library, extra in re.findall(r"^\| ([\w-]+) \(extra `(\w+)`\)", text, re.MULTILINE):
        assert (library, extra) in imported_extras(), f"the code does not ask for {extra}"


def test_every_planted_error_and_name_in_the_table_of_mutants_is_in_the_source() -> None:
    process = subprocess.run(
        [sys.executable, "tools/mutants.py", "--list"],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    shown = process.stdout + process.stderr
    missing = [line for line in shown.splitlines() if "in the source" in line]
    assert (process.returncode, missing) == (0, []), shown[-2_000:]
    assert " mutants, " in shown


def test_no_test_has_a_limit_in_time() -> None:
    assert settings().deadline is None


def test_the_page_of_the_command_line_has_the_help_of_every_command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    page = write_help.PAGE.read_text()
    assert write_help.help_texts() in page, "run `make pictures`"
    with pytest.raises(SystemExit):
        cli.main(["--help"])
    commands = re.findall(r"^    (\w+) ", capsys.readouterr().out, re.MULTILINE)
    assert {command.split()[0] for command in write_help.COMMANDS} == set(commands)
