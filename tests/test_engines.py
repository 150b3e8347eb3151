"""Engines answer a plan with exact integers: the same ones, to the last digit."""

import pytest
from engine_list import ENGINES, check_engine
from hypothesis import Phase, given, settings
from hypothesis import strategies as st


@pytest.mark.parametrize("engine", ENGINES)
@given(data=st.data())
@settings(max_examples=40, phases=[Phase.explicit, Phase.generate])  # Tables shrink slowly.
def test_every_engine_gives_the_exact_integers(engine: str, data: st.DataObject) -> None:
    check_engine(ENGINES[engine], data)
