"""The ledger: payments add up exactly, and nothing is released without a payment."""

import hashlib
import json
import math
import shutil
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpnoise.core import strict_json
from dpnoise.core.errors import ArgumentError, ArgumentTypeError, BudgetError
from dpnoise.release.additive import GaussianMechanism
from dpnoise.release.discrete import DiscreteLaplaceMechanism
from dpnoise.statistics import Question, Request, chain, publish
from dpnoise.statistics.budget_split import share
from dpnoise.statistics.composition import GAUSSIAN, PURE, Cost, Loss, compose
from dpnoise.statistics.digits import number_of, written_down, written_up
from dpnoise.statistics.ledger import Amount, Ledger, create_ledger, mend_ledger, open_ledger


def pure(epsilon: float) -> Cost:
    return compose(share([PURE], epsilon=epsilon))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "budget.json"


def test_ten_tenths_are_all_of_one_and_an_eleventh_is_refused(path: Path) -> None:
    ledger = create_ledger(path, name="survey", epsilon=1)
    for _ in range(10):
        receipt = ledger.spend(pure(0.1))
    assert receipt.entry == 10
    with pytest.raises(BudgetError, match=r"left, and this costs epsilon 0\.1"):
        ledger.spend(pure(0.1))
    assert len(open_ledger(path).entries) == 10


def test_a_cost_that_is_a_hair_above_what_is_left_is_refused(path: Path) -> None:
    ledger = create_ledger(path, name="survey", epsilon="0.1")
    with pytest.raises(BudgetError, match="left"):
        ledger.spend(compose([Loss(PURE, 0.1)]))  # The float is 5.6e-18 more than a tenth.
    ledger.spend(compose([Loss(PURE, math.nextafter(0.1, 0))]))


@settings(max_examples=25)
@given(st.lists(st.floats(1e-9, 1.0), max_size=12))
def test_what_is_spent_is_never_less_than_what_it_costs(costs: list[float]) -> None:
    spent = sum(
        (Amount.from_line(Amount(pure(c).epsilon or Fraction(0)).line()) for c in costs),
        Amount(Fraction(0)),
    )
    exact = sum((pure(c).epsilon or Fraction(0) for c in costs), Fraction(0))
    assert exact <= spent.main <= exact * (1 + Fraction(1, 10**18))


@settings(max_examples=40)
@given(st.fractions(0, 10**6), st.integers(1, 20))
def test_numbers_are_written_on_the_safe_side(number: Fraction, digits: int) -> None:
    down, up = written_down(number, digits), written_up(number, digits)
    assert Fraction(down) <= number <= Fraction(up)
    assert Fraction(up) - Fraction(down) <= number * Fraction(10) ** (1 - digits)


def test_deltas_are_counted_with_epsilon(path: Path) -> None:
    ledger = create_ledger(path, name="survey", epsilon=10, delta="1e-6")
    ledger.spend(compose([Loss(PURE, 0.5)], aside=6e-7))
    with pytest.raises(BudgetError, match=r"delta 4e-7 left.*costs epsilon 0.5 and delta 5e-7"):
        ledger.spend(compose([Loss(PURE, 0.5)], aside=5e-7))
    ledger.spend(compose([Loss(PURE, 0.5)], aside=3e-7))
    spent = open_ledger(path).spent
    assert spent.main == 1
    assert Fraction(9e-7) <= spent.delta <= Fraction("1e-6")


def test_a_ledger_without_delta_takes_nothing_that_needs_one(path: Path) -> None:
    ledger = create_ledger(path, name="survey", epsilon=10)
    with pytest.raises(BudgetError, match=r"delta 1e-6"):
        ledger.spend(compose([Loss(PURE, 0.5)], aside=1e-6))
    with pytest.raises(BudgetError, match="ledger in rho"):
        ledger.spend(compose([Loss(GAUSSIAN, 0.5)]))


def test_a_ledger_in_rho_adds_rhos_and_what_is_set_aside(path: Path) -> None:
    ledger = create_ledger(path, name="survey", rho="0.5", delta=1e-6)
    ledger.spend(compose([Loss(GAUSSIAN, 0.25)], 1e-3, aside=1e-7))
    ledger.spend(compose([Loss(PURE, 0.5)]))
    now = open_ledger(path)
    assert now.spent.main == Fraction(1, 4) + Fraction(1, 8), "an epsilon counts its square, halved"
    assert Fraction(1e-7) <= now.spent.delta < Fraction("1.001e-7"), (
        "the delta of Gaussian noise does not count"
    )
    with pytest.raises(BudgetError, match=r"rho 0\.125 and delta 9e-7 left"):
        ledger.spend(compose([Loss(GAUSSIAN, 0.126)]))


def test_a_large_budget_buys_a_count_without_an_error(path: Path) -> None:
    ledger = create_ledger(path, name="survey", epsilon=10)
    assert "one count without an error with probability 0.95" in ledger.worth()


def test_an_exhausted_ledger_says_what_is_left_and_what_it_would_buy(path: Path) -> None:
    ledger = create_ledger(path, name="survey", epsilon=1)
    ledger.spend(pure(0.75))
    margin = DiscreteLaplaceMechanism(epsilon=0.25, sensitivity=1.0).error(0.95)
    words = "has epsilon 0.25 left, and this costs epsilon 0.5. What is left buys one count within"
    with pytest.raises(BudgetError) as refused:
        ledger.spend(pure(0.5))
    assert f"{words} {margin} " in str(refused.value)
    ledger.spend(pure(0.25))
    assert open_ledger(path).worth() == "Nothing can be bought any more."


def test_what_rounding_leaves_of_a_budget_is_nothing_useful(path: Path) -> None:
    """An epsilon of 2 in three parts costs at least 10^-17 less than 2."""
    create_ledger(path, name="survey", epsilon=2)
    statistics = Question(["count", "mean", "median"], "x", lower=0, upper=9)
    record = publish(
        pl.DataFrame({"x": [1.0, 2.0]}), Request(2.0, [statistics]), ledger=path
    ).record()
    assert record["ledger"]["left"] == "nothing useful"
    ledger = open_ledger(path)
    assert 0 < ledger.left.main < Fraction(1, 10**15)
    assert str(ledger).startswith("survey: nothing useful left of epsilon 2, ")
    assert ledger.worth() == "Nothing useful can be bought any more."
    assert ledger.margin_of_a_count() is None
    with pytest.raises(BudgetError, match=r"nothing useful left, and this costs epsilon 1\."):
        ledger.spend(pure(1.0))


@pytest.mark.parametrize("rho", ["0.5", "1e-30", "1e15"])
def test_what_rho_buys_is_a_count_that_is_rounded(path: Path, rho: str) -> None:
    ledger = create_ledger(path, name="survey", rho=rho)
    margin = ledger.margin_of_a_count()
    assert margin is not None
    mechanism = GaussianMechanism.for_rho(float(rho), sensitivity=1.0)
    assert margin == pytest.approx(mechanism.error(0.95), rel=1e-6, abs=0.5)


# The privacy unit ---------------------------------------------------------------------------------


def test_a_request_that_protects_something_else_is_refused(path: Path) -> None:
    ledger = create_ledger(path, name="survey", person=["clinic", "patient"], epsilon=1)
    assert ledger.terms.unit == "one person (clinic, patient)"
    for person in ((), ("patient",)):
        with pytest.raises(BudgetError, match="one person"):
            ledger.spend(pure(0.1), person=person)
    with pytest.raises(BudgetError, match=r"with person patient, a ward\.$"):
        ledger.spend(pure(0.1), person=("patient", "a ward"))
    with pytest.raises(BudgetError, match="and how many rows of a person count"):
        ledger.spend(pure(0.1), person=())
    with pytest.raises(BudgetError, match="replace"):
        ledger.spend(pure(0.1), person=("patient", "clinic"), neighbours="replace")
    ledger.spend(pure(0.1), person=("patient", "clinic"), neighbours="add-remove")
    assert len(open_ledger(path).entries) == 1


def test_a_unit_in_words_is_not_compared(path: Path) -> None:
    ledger = create_ledger(path, name="survey", unit="one household", epsilon=1)
    ledger.spend(pure(0.1), person=("household",))
    assert open_ledger(path).terms.unit == "one household"


# The chain and published records ------------------------------------------------------------------


def publish_record(ledger: Ledger) -> dict[str, Any]:
    receipt = ledger.spend(pure(0.1), {"edges": [-math.inf, 0.5]}, date="2026-01-31")
    record = {"ledger": {"head": receipt.head, "name": receipt.name}, "top": math.inf}
    ledger.keep_record(receipt, record)
    parsed: dict[str, Any] = json.loads(strict_json.dumps(record))
    return parsed


def test_a_record_leads_to_its_entry(path: Path) -> None:
    ledger = create_ledger(path, name="survey", epsilon=1)
    record = publish_record(ledger)
    other = publish_record(ledger)
    assert open_ledger(path).entry_of(other).number == 2
    entry = open_ledger(path).entry_of(record)
    assert (entry.number, entry.date, entry.request) == (1, "2026-01-31", {"edges": ["-inf", 0.5]})


def test_a_ledger_that_was_rolled_back_is_detected_by_a_record(path: Path) -> None:
    ledger = create_ledger(path, name="survey", epsilon=1)
    earlier = path.read_bytes()
    record = publish_record(ledger)
    path.write_bytes(earlier)
    open_ledger(path)  # Without the record it looks valid.
    with pytest.raises(BudgetError, match="rolled back"):
        open_ledger(path).entry_of(record)
    publish_record(ledger)
    with pytest.raises(BudgetError, match="rolled back"):
        open_ledger(path).entry_of(record)


def test_of_a_ledger_and_its_copy_each_misses_the_other_s_releases(path: Path) -> None:
    ledger = create_ledger(path, name="survey", epsilon=1)
    copy = path.with_name("copy.json")
    shutil.copy(path, copy)
    record, copy_record = publish_record(ledger), publish_record(open_ledger(copy))
    open_ledger(path).entry_of(record)
    open_ledger(copy).entry_of(copy_record)
    with pytest.raises(BudgetError, match="another ledger"):
        open_ledger(path).entry_of(copy_record)
    with pytest.raises(BudgetError, match="another ledger"):
        open_ledger(copy).entry_of(record)


def test_a_record_that_was_changed_is_refused(path: Path) -> None:
    ledger = create_ledger(path, name="survey", epsilon=1)
    record = publish_record(ledger)
    with pytest.raises(BudgetError, match="changed"):
        open_ledger(path).entry_of({**record, "top": 5})
    nothing: list[dict[str, Any]] = [{}, {"ledger": None}, {"ledger": "x"}, {"ledger": {}}]
    for without in nothing:
        with pytest.raises(BudgetError, match="names no ledger"):
            open_ledger(path).entry_of(without)


def test_two_ledgers_that_are_made_alike_have_other_heads(tmp_path: Path) -> None:
    heads = {create_ledger(tmp_path / name, name="n", epsilon=1).head for name in ("a", "b")}
    assert len(heads) == 2


def test_the_head_is_what_anybody_can_compute(path: Path) -> None:
    """The documented rule: the SHA-256 of the line in canonical JSON, without its head."""
    ledger = create_ledger(path, name="survey", epsilon=1)
    publish_record(ledger)
    previous = ""
    for text in path.read_text().splitlines():
        line = json.loads(text)
        head = line.pop("head")
        plain = json.dumps(line, sort_keys=True, separators=(",", ":"))
        assert hashlib.sha256(plain.encode()).hexdigest() == head
        assert line["before"] == previous
        previous = head
    assert open_ledger(path).head == previous


def test_a_forger_who_computes_all_hashes_is_detected_only_if_too_much_is_spent(
    path: Path,
) -> None:
    """A chain without a key: docs/budgets.md says so."""
    ledger = create_ledger(path, name="survey", epsilon=1)
    publish_record(ledger)
    first, *_ = chain.read(path).lines
    forged = path.with_name("forged.json")
    chain.create(forged, {**first, "total": {"main": "100", "delta": "0"}})
    assert open_ledger(forged).terms.total.main == 100


# Hostile input ------------------------------------------------------------------------------------

NAMES = ["[bold]x[/]", "a\nb\x1b[2J", "\ud800", "é" * 5000, "\0", "'; DROP TABLE", "{}"]


@pytest.mark.parametrize("name", NAMES, ids=ascii)
def test_names_and_notes_may_hold_anything(path: Path, name: str) -> None:
    ledger = create_ledger(path, name=name, unit=name, person=[name], epsilon=1)
    ledger.spend(pure(0.1), {"column": name, name: [name]}, note=name, date=name)
    now = open_ledger(path)
    assert (now.terms.name, now.terms.unit, now.terms.person) == (name, name, (name,))
    assert (now.entries[0].note, now.entries[0].request) == (name, {"column": name, name: [name]})
    assert path.read_bytes().isascii()
    assert path.read_bytes().count(b"\n") == 2


@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"epsilon": 1, "rho": 1},
        {"epsilon": 0},
        {"epsilon": -1},
        {"epsilon": "nan"},
        {"epsilon": math.inf},
        {"epsilon": "sNaN"},
        {"epsilon": "much"},
        {"epsilon": True},
        {"epsilon": None, "rho": None},
        {"epsilon": "1e999999999"},
        {"epsilon": "1e-999999999"},
        {"epsilon": "1." + "0" * 30 + "1"},
        {"epsilon": 10**400},
        {"epsilon": 1, "delta": 1},
        {"epsilon": 1, "delta": -1e-6},
        {"epsilon": 1, "name": ""},
        {"epsilon": 1, "name": 5},
        {"epsilon": 1, "unit": ""},
        {"epsilon": 1, "person": [5]},
        {"epsilon": 1, "neighbours": "all"},
    ],
    ids=str,
)
def test_a_ledger_that_makes_no_sense_is_not_made(path: Path, arguments: dict[str, Any]) -> None:
    with pytest.raises(ArgumentError):
        create_ledger(path, **{"name": "survey", **arguments})
    assert not path.exists()


@pytest.mark.parametrize("make", [create_ledger, open_ledger, mend_ledger])
@pytest.mark.parametrize(
    ("name", "reason"),
    [("\0", "NUL"), ("a\0b.json", "NUL"), ("\ud800.json", "can encode")],
    ids=["NUL", "NUL inside", "a lone surrogate"],
)
def test_a_path_that_cannot_name_a_file_is_refused(
    tmp_path: Path, make: Any, name: str, reason: str
) -> None:
    terms = {"name": "survey", "epsilon": 1} if make is create_ledger else {}
    for file in (f"{tmp_path}/{name}", Path(tmp_path, name)):
        with pytest.raises(ArgumentError, match=f"path of a ledger must .*{reason}"):
            make(file, **terms)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("make", [create_ledger, open_ledger, mend_ledger])
@pytest.mark.parametrize("file", [b"budget.json", 5, None])
def test_a_path_that_is_not_text_is_refused(make: Any, file: Any) -> None:
    terms = {"name": "survey", "epsilon": 1} if make is create_ledger else {}
    with pytest.raises(ArgumentTypeError, match="path of a ledger must be a str"):
        make(file, **terms)


# Python's Decimal accepts these texts, but the writer may have meant something else.
NOT_PLAIN = ["1_0", "1__0", "_1", "1e1_0", " 1", "1 ", "1\n", "\t1", "1\xa0", "\u0663", "\uff11"]
NOT_NUMBERS = ["", ".", "e5", "1e", "0x10", "1,5", "1/3", "inf", "nan", "sNaN", "\u22121", "\xb2"]


@pytest.mark.parametrize("text", NOT_PLAIN + NOT_NUMBERS, ids=ascii)
@pytest.mark.parametrize("amount", ["epsilon", "rho", "delta"])
def test_text_that_is_not_a_plain_decimal_number_is_refused(
    path: Path, amount: str, text: str
) -> None:
    terms: dict[str, Any] = {"name": "survey"} | ({"epsilon": 1} if amount == "delta" else {})
    with pytest.raises(ArgumentError, match=f"{amount} must be a finite decimal number"):
        create_ledger(path, **terms, **{amount: text})
    assert not path.exists()


@pytest.mark.parametrize("text", NOT_PLAIN + NOT_NUMBERS, ids=ascii)
def test_a_ledger_whose_amounts_are_not_plain_decimal_numbers_is_not_read(
    path: Path, text: str
) -> None:
    create_ledger(path, name="survey", epsilon=10)
    first = json.loads(path.read_text())
    first["total"]["main"] = text
    del first["head"]
    first["head"] = chain.head_of(first)
    path.write_text(strict_json.canonical_line(first) + "\n")
    with pytest.raises(BudgetError, match="not a ledger"):
        open_ledger(path)


@pytest.mark.parametrize("text", ["1", "+1", "01.0", "1.", "10e-1", ".1E+1", "1e0"])
def test_every_plain_spelling_of_a_number_is_read(text: str) -> None:
    assert number_of("epsilon", text) == 1


def test_integers_are_taken_exactly() -> None:
    assert number_of("epsilon", 2**53 + 1) == 2**53 + 1


def test_numbers_are_taken_as_they_are_written() -> None:
    assert number_of("e", 0.1) == number_of("e", "0.1") == number_of("e", Decimal("0.1"))
    assert number_of("e", "0.1") == Fraction(1, 10)
    assert number_of("delta", 0, zero=True) == 0


@pytest.mark.parametrize("epsilon", [Fraction(-1), 0.5, math.nan, "1"], ids=str)
def test_a_cost_that_is_none_is_refused_and_earns_nothing(path: Path, epsilon: Any) -> None:
    ledger = create_ledger(path, name="survey", epsilon=1)
    with pytest.raises(ArgumentError, match="Fraction"):
        ledger.spend(Cost(epsilon, Fraction(0), Fraction(0), Fraction(0)))
    assert open_ledger(path).left.main == 1


def test_a_cost_beyond_all_bounds_is_refused_like_any_other(path: Path) -> None:
    ledger = create_ledger(path, name="survey", rho="0.5")
    with pytest.raises(BudgetError, match=r"this costs rho 5\.0\d*e599"):
        ledger.spend(compose([Loss(PURE, 1e300)]))


# Parts --------------------------------------------------------------------------------------------


def test_releases_of_different_parts_do_not_add_up(tmp_path: Path) -> None:
    """A person of the north pays 0.5 + 0.25, one of the south 0.5 + 0.125, others 0.5."""
    path = tmp_path / "b.json"
    ledger = create_ledger(path, name="survey", epsilon=1, parts=["north", "south", "west"])
    half, quarter, eighth = (Amount(Fraction(1, n)) for n in (2, 4, 8))
    ledger.spend(half, note="all")
    assert ledger.spend(quarter, note="n", part="north").left == "epsilon 0.25 for north"
    ledger.spend(eighth, note="s", part="south")
    ledger = open_ledger(path)
    left = {part: ledger.left_for(part).main for part in (None, *ledger.terms.parts)}
    assert left == {
        None: Fraction(1, 4),
        "north": Fraction(1, 4),
        "south": Fraction(3, 8),
        "west": Fraction(1, 2),
    }
    assert ledger.spent.main == Fraction(3, 4)
    with pytest.raises(BudgetError, match=r"has epsilon 0\.25 left for north, and this costs"):
        ledger.spend(Amount(Fraction(3, 8)), part="north")
    with pytest.raises(BudgetError, match=r"has epsilon 0\.25 left, and this costs"):
        ledger.spend(Amount(Fraction(3, 8)))
    ledger.spend(Amount(Fraction(3, 8)), part="south")
    assert open_ledger(path).left_for("south").main == 0
    assert open_ledger(path).left.main == 0  # A release of all would be of the south, too.


def test_the_largest_epsilon_and_the_largest_delta_may_be_of_different_parts(
    tmp_path: Path,
) -> None:
    path = tmp_path / "b.json"
    ledger = create_ledger(path, name="survey", epsilon=1, delta="0.5", parts=["north", "south"])
    ledger.spend(Amount(Fraction(1, 2), Fraction(0)), part="north")
    ledger.spend(Amount(Fraction(1, 4), Fraction(1, 4)), part="south")
    left = open_ledger(path).left
    assert (left.main, left.delta) == (Fraction(1, 2), Fraction(1, 4))


def test_a_request_names_the_part_that_pays(tmp_path: Path) -> None:
    path = tmp_path / "b.json"
    create_ledger(path, name="survey", epsilon=1, parts=["north", "south"])
    for part in ("north", "south"):
        request = Request(0.75, [Question(["count"])], part=part)
        table = publish(pl.DataFrame({"x": [1]}), request, ledger=path)
        assert table.record()["ledger"]["left"] == f"epsilon 0.25 for {part}"
        assert table.record()["request"]["part"] == part
    north = Request(0.75, [Question(["count"])], part="north")
    west = Request(0.1, [Question(["count"])], part="west")
    with pytest.raises(BudgetError, match=r"left for north"):
        publish(pl.DataFrame({"x": [1]}), north, ledger=path)
    with pytest.raises(BudgetError, match=r"has no part 'west'\. Its parts: north, south\."):
        publish(pl.DataFrame({"x": [1]}), west, ledger=path)


def test_parts_need_persons_who_are_added_or_removed_and_names_of_their_own(
    tmp_path: Path,
) -> None:
    """A person who is replaced by one of another part changes both parts."""
    path = tmp_path / "b.json"
    for options, words in (
        ({"neighbours": "replace", "parts": ["a"]}, "a person who is replaced by one of another"),
        ({"parts": ["a", "a"]}, "must be named once"),
        ({"parts": [""]}, "must be text"),
    ):
        with pytest.raises(ArgumentError, match=words):
            create_ledger(path, name="survey", epsilon=1, **options)
    assert not path.exists()


def test_a_payment_for_a_part_that_the_ledger_does_not_have_was_edited(tmp_path: Path) -> None:
    path = tmp_path / "b.json"
    create_ledger(path, name="survey", epsilon=1)
    line = {"kind": "spent", "date": "now", "spent": Amount(Fraction(1, 4)).line(), "part": "north"}
    with chain.open_to_append(path) as (_, add):
        add(line)
    with pytest.raises(BudgetError, match="pays for a part that it does not have"):
        open_ledger(path)
