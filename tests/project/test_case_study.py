"""The files that the commands of the case study write."""

from pathlib import Path

from support import page_blocks
from support.html_reader import Reader
from support.page_examples import check_commands, shell_examples


def test_the_page_of_the_case_study_names_its_title_unit_and_ledger(tmp_path: Path) -> None:
    check_commands(page_blocks.DOCS / "case-study.md", tmp_path)
    page = Reader((tmp_path / "report.html").read_text(encoding="utf-8")).text
    assert page.startswith("Visits to five clinics")
    assert "one person (patient_id)" in page
    assert "invented patients" in page, "the ledger"
    assert "P0" not in page, "a patient"


def test_the_first_block_of_the_other_page_makes_the_same_file() -> None:
    first, other = (
        shell_examples((page_blocks.DOCS / page).read_text())[0]
        for page in ("case-study.md", "coming-from.md")
    )
    assert first == other
