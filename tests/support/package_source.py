"""The syntax of the package's modules, parsed once for all tests of a process."""

import ast
from functools import cache
from pathlib import Path

SOURCE = Path(__file__).parents[2] / "src" / "dpnoise"
# Only what a test asks for is kept: the whole trees are several hundred thousand nodes.
_KEPT = (ast.Call, ast.Constant, ast.FunctionDef, ast.Import, ast.ImportFrom)


@cache
def nodes_by_module() -> dict[Path, list[ast.AST]]:
    """Return calls, constants, functions and imports of every module, in the order of ast.walk."""
    return {
        path: [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, _KEPT)]
        for path in SOURCE.rglob("*.py")
    }
