"""The commands of the pages that need PyTorch and Opacus."""

from pathlib import Path

from support.page_examples import check_commands

DOCS = Path(__file__).parents[2] / "docs"


def test_the_training_of_the_tutorial_prints_what_it_shows(tmp_path: Path) -> None:
    check_commands(DOCS / "dp-sgd.md", tmp_path)
