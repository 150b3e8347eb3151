"""The commands of the pages that need PyTorch and Opacus."""

from pathlib import Path

import pytest
from support.page_examples import check_commands

DOCS = Path(__file__).parents[2] / "docs"


@pytest.mark.parametrize("page", ["dp-sgd.md", "audit-training.md"])
def test_the_training_of_a_page_prints_what_it_shows(page: str, tmp_path: Path) -> None:
    check_commands(DOCS / page, tmp_path)
