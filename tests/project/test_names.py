"""One name has one meaning: the modules, classes and functions of the package."""

import ast
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from support.package_source import nodes_by_module

PACKAGE = Path(__file__).resolve().parents[2] / "src" / "dpnoise"

# Names that several modules share, with the one thing that all of them do.
SHARED_NAMES = {
    # The same formula in the reference, in the stages of the CPU and on the GPU.
    "certain_point": "the grid point of value + noise, and whether the rounding is certain",
    "cosine": "the symmetric cosine of a word",
    "cospi": "cos(pi x)",
    "exponential": "exponential noise from one uniform",
    "gaussian_2": "Gaussian noise from two uniforms",
    "gaussian_pair": "both members of a Box-Muller pair",
    "gaussian_pairs": "Gaussian noise for a whole array, two numbers from each pair",
    "gumbel": "Gumbel noise from one uniform",
    "laplace_1": "Laplace noise from one uniform",
    "log": "the natural logarithm",
    "nearest": "the nearest number of a float format",
    "reciprocal_bound": "an upper bound on a reciprocal",
    "sinpi": "sin(pi x)",
    "uniforms": "uniform numbers on [0, 1)",
    "with_sign_of": "the size of one number with the sign bit of another",
    "word_of": "the bits of a float as a word",
    # The same operation in the layer that users call and in those that carry it out.
    "Generator": "the methods of a source of noise: for arrays, and for tensors",
    "assert_private": "assert that an audit does not break a claim",
    "check_version": "raise for a version of a dependency that was not tested",
    "clipped_sums": "exact sums of clipped gradients: on the CPU, and on the GPU",
    "count_persons_by_group": "the groups of columns, and the number of persons in each",
    "is_missing": "whether a value is missing: in a column of a frame, and in an output",
    "release": "release a tensor",
    "release_float": "release one float",
    "release_floats": "release an array or a tensor of floats",
    "release_integer": "release one integer",
    "tally_all": "answer several plans in one scan",
}

# A participle or adverb says what something is like, not what a function does or returns.
PARTICIPLE = re.compile(r"_*[a-z]+(ed|ly)")
IRREGULAR = {"apart", "found", "given", "held", "kept", "known", "never", "only", "shown", "told"}
VERBS = {"tally"}


def definitions(file: Path) -> Iterator[tuple[str, str]]:
    """Yield the kind and the name of a module, its classes and its public functions."""
    if not file.stem.startswith("__"):
        yield "module", file.stem
    for node in ast.parse(file.read_text()).body:
        if isinstance(node, ast.ClassDef):
            yield "class", node.name.lstrip("_")
        if isinstance(node, ast.FunctionDef) and not node.name.startswith("_"):
            if any(getattr(each, "id", None) == "overload" for each in node.decorator_list):
                continue  # `@overload`: another signature of the function that follows.
            yield "function", node.name


def test_a_name_exists_once_or_has_one_stated_meaning() -> None:
    defined = Counter(pair for file in PACKAGE.rglob("*.py") for pair in definitions(file))
    assert {name for (_, name), number in defined.items() if number > 1} == SHARED_NAMES.keys()


def is_property(function: ast.FunctionDef) -> bool:
    """Return whether a function is read as an attribute."""
    decorators = {getattr(node, "id", None) for node in function.decorator_list}
    return bool(decorators & {"property", "cached_property"})


def test_no_function_is_a_bare_participle_or_adverb() -> None:
    nodes = [node for nodes_of_module in nodes_by_module().values() for node in nodes_of_module]
    functions = [node for node in nodes if isinstance(node, ast.FunctionDef)]
    names = {node.name for node in functions if not is_property(node)}
    assert len(names) > 1000
    participles = {name for name in names if PARTICIPLE.fullmatch(name)} - VERBS
    assert participles | (names & IRREGULAR) == set()
