"""Every engine filters rows and derives columns as plain Python does."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from support.alarms import LONG
from support.expression_tables import (
    CONDITIONS,
    DATE_CONDITIONS,
    SOURCES,
    TABLE,
    VALUE_EXPRESSIONS,
    arrow_table,
    check_conditions,
    check_values,
    conditions,
    numbers,
)


# These compute in different ways. The others load their rows into DuckDB, and take turns.
DIFFERENT = ("Polars", "DuckDB", "CSV file")


def texts_for(source: str, texts: list[str]) -> list[str]:
    """Return all texts, or a fourth of them for an engine that computes like another."""
    index = list(SOURCES).index(source)
    return texts if LONG or source in DIFFERENT else texts[index % 4 :: 4]


@pytest.mark.parametrize("source", SOURCES)
def test_every_engine_keeps_the_same_rows(source: str, tmp_path: Path) -> None:
    rows = SOURCES[source].read(arrow_table(TABLE), tmp_path)
    texts = CONDITIONS + ([] if "d" in SOURCES[source].lacks else DATE_CONDITIONS)
    check_conditions(rows, TABLE, texts_for(source, texts))


@pytest.mark.parametrize("source", SOURCES)
def test_every_engine_derives_the_same_values(source: str, tmp_path: Path) -> None:
    rows = SOURCES[source].read(arrow_table(TABLE), tmp_path)
    check_values(rows, TABLE, texts_for(source, VALUE_EXPRESSIONS))


@pytest.mark.parametrize("source", SOURCES)
@given(data=st.data())
@settings(
    max_examples=20 if LONG else 2,
    phases=[Phase.explicit, Phase.generate],
)
def test_random_expressions_are_those_of_plain_python(
    source: str, data: st.DataObject, tmp_path_factory: Any
) -> None:
    rows = SOURCES[source].read(arrow_table(TABLE), tmp_path_factory.mktemp("table"))
    check_conditions(rows, TABLE, data.draw(st.lists(conditions(), min_size=3, max_size=3)))
    text = f"{data.draw(numbers())} + n"
    check_values(rows, TABLE, [text], where=data.draw(conditions()))
