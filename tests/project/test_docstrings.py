"""Public docstrings explain every parameter."""

import inspect
import re

import pytest

from dpnoise import statistics

PUBLIC = [name for name in statistics.__all__ if callable(getattr(statistics, name))]


@pytest.mark.parametrize("name", PUBLIC)
def test_every_parameter_of_a_public_statistic_is_explained(name: str) -> None:
    function = getattr(statistics, name)
    documentation = inspect.getdoc(function) or ""
    section = documentation.partition("Parameters\n----------\n")[2]
    # A line without a space before it names one parameter or several.
    headings = re.findall(r"^([\w*][\w, *]*)$", section, re.MULTILINE)
    explained = {word.strip(" *") for heading in headings for word in heading.split(",")}
    assert inspect.signature(function).parameters.keys() <= explained


def test_there_are_public_statistics() -> None:
    assert {"count", "mean", "publish", "Request"} <= set(PUBLIC)
