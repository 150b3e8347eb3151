"""Pages from templates: every value becomes visible text."""

import pytest
from jinja2 import UndefinedError
from markupsafe import Markup

from dpnoise.core import html

CONTROL_TEXT = "\u202e\x1b<b>.2^-1"


@pytest.mark.parametrize("filters", ["", "| powers", "| dotted"])
def test_a_value_is_visible_and_escaped_through_every_filter(filters: str) -> None:
    rendered = html.environment().from_string(f"{{{{ text {filters} }}}}").render(text=CONTROL_TEXT)
    assert rendered.startswith(r"\u202e\x1b&lt;b&gt;.")
    assert rendered.replace("<wbr/>", "").replace("<sup>-1</sup>", "^-1").endswith(".2^-1")


def test_no_type_of_a_value_is_trusted() -> None:
    class FakeMarkup:
        def __html__(self) -> str:
            return "<b>"

        def __str__(self) -> str:
            return "<i>"

    for value in (Markup("<b>"), FakeMarkup()):
        for title in (value, [value], {"a": value}, {value: 1}):
            page = html.render_template("dpnoise.core/base.html", title=title)
            assert "<b>" not in page
            assert "<i>" not in page


def test_a_template_with_a_missing_value_makes_no_page() -> None:
    with pytest.raises(UndefinedError, match="title"):
        html.render_template("dpnoise.core/base.html")
