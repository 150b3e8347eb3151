"""Only one module uses Numba's internals, and only with the versions that it names."""

import ast
import re
from pathlib import Path

import pytest
from support.package_source import nodes_by_module

from dpnoise.kernels import numba_internals

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("version", ["0.60.0", "0.69.0", "0.69.0rc1", "1.0.0"])
def test_a_version_that_was_not_tested_is_refused_with_what_to_install(version: str) -> None:
    with pytest.raises(ImportError, match=rf"0\.61 to 0\.68, got {version}.*numba>=0\.61,<0\.69"):
        numba_internals.check_version(version)


def test_the_package_asks_for_the_versions_that_were_tested() -> None:
    numba_internals.check_version("0.61.0")
    numba_internals.check_version("0.68.1")
    oldest, first_untested = re.search(
        r'"numba>=0\.(\d+),<0\.(\d+)"', (ROOT / "pyproject.toml").read_text()
    ).groups()  # type: ignore[union-attr]
    assert (0, int(oldest)) == numba_internals.OLDEST
    assert (0, int(first_untested) - 1) == numba_internals.NEWEST


def test_no_other_module_imports_undocumented_parts_of_numba() -> None:
    for path, nodes in nodes_by_module().items():
        if path.name == "numba_internals.py":
            continue
        for node in nodes:
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom):
                names = [node.module or ""]
            assert not [name for name in names if name.startswith("numba.core")], path
