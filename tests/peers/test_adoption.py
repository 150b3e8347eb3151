"""Libraries that adopted the paper's fix: section 5.3."""

from reproduction import adoption
from reproduction.piece import CONFIRMED, Effort


def test_diffprivlib_ships_the_theorem_and_the_addition_breaks_its_adopters() -> None:
    """The certified epsilons are wrong with probability 10^-9 each."""
    judgement = adoption.check_adopted(Effort(quick=True))
    assert judgement.verdict == CONFIRMED
    names = " ".join(judgement.tables[0].column("released"))
    assert "diffprivlib.Laplace" in names
    assert "secure_mode" in names
