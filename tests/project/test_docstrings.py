"""Public docstrings explain every parameter."""

import inspect
import re
from collections.abc import Callable, Iterator

import pytest

import dpnoise
from dpnoise import auditing, statistics


def public_callables() -> Iterator[tuple[str, Callable[..., object]]]:
    """Yield the public functions and classes, and the methods that draw, release or select."""
    names = [(module, name) for module in (dpnoise, statistics) for name in module.__all__]
    names += [(auditing, "audit_mechanism"), (auditing, "audit_noise")]
    names += [(auditing, "audit_training"), (auditing, "TrainingReport")]
    for module, name in names:
        value = getattr(module, name)
        if not callable(value) or (inspect.isclass(value) and issubclass(value, Exception)):
            continue
        yield f"{module.__name__}.{name}", value
        for method_name, method in inspect.getmembers(value, inspect.isfunction):
            drawing = value is dpnoise.Generator and not method_name.startswith("_")
            if drawing or method_name in {"release", "select", "publish"}:
                yield f"{module.__name__}.{name}.{method_name}", method


PUBLIC = dict(public_callables())


@pytest.mark.parametrize("name", PUBLIC)
def test_every_public_parameter_is_explained(name: str) -> None:
    documentation = inspect.getdoc(PUBLIC[name]) or ""
    section = documentation.partition("Parameters\n----------\n")[2]
    # A line without a space before it names one parameter or several.
    headings = re.findall(r"^([\w*][\w, *]*)$", section, re.MULTILINE)
    explained = {word.strip(" *") for heading in headings for word in heading.split(",")}
    parameters = inspect.signature(PUBLIC[name]).parameters.keys() - {"self"}
    assert parameters <= explained


def test_the_main_functions_are_public() -> None:
    assert {
        "dpnoise.Generator.laplace",
        "dpnoise.LaplaceMechanism.release",
        "dpnoise.NoisyMax.select",
        "dpnoise.audit",
        "dpnoise.auditing.audit_mechanism",
        "dpnoise.auditing.audit_noise",
        "dpnoise.auditing.audit_training",
        "dpnoise.statistics.mean",
        "dpnoise.statistics.publish",
    } <= PUBLIC.keys()
