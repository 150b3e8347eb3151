"""Named mechanisms: dpnoise's are not broken, and there is one for every statistic."""

import inspect
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import polars as pl
import pytest
from support.alarms import FALSE_ALARM
from support.choices import sample_cases

import dpnoise
from dpnoise import cli, statistics
from dpnoise.auditing import targets
from dpnoise.auditing.targets import MECHANISMS
from dpnoise.core.errors import ArgumentError
from dpnoise.release import selection
from dpnoise.statistics import Question, Request, engines, functions, publish
from dpnoise.statistics.questions import QUERIES

CERTAIN = 1 - FALSE_ALARM
OWN = [name for name, mechanism in MECHANISMS.items() if mechanism.package == "dpnoise"]
DELTA = 1e-6


def delta_of(name: str) -> float:
    return DELTA if MECHANISMS[name].has_delta else 0.0


@pytest.mark.long
def test_our_own_mechanisms_are_not_broken_and_could_have_been() -> None:
    """An audit calls a correct mechanism broken with probability 10^-8 at most."""
    for name in sample_cases(OWN, 2):
        report = dpnoise.audit(name, 1.0, delta_of(name), budget=1_000, confidence=CERTAIN)
        assert not report.broken, name
        assert report.refutable, name
        assert report.version == dpnoise.__version__


def test_every_statistic_has_its_audit() -> None:
    """The list has all functions of `dpnoise.statistics`, and all statistics of a question.

    Numbers of persons and of different values have the noise of a count.
    """
    offered = {
        name
        for name in set(statistics.__all__) & set(vars(functions))
        if inspect.isfunction(getattr(statistics, name))
        if "epsilon" in inspect.signature(getattr(statistics, name)).parameters
    }
    asked = {query.partition(":")[0] for query in QUERIES} - {"persons", "distinct"}
    audited = {name.removeprefix("dpnoise.statistics.") for name in OWN}
    assert {"count", "median", "histogram"} <= offered
    assert offered | asked | {"publish"} <= audited


def publish_groups(statistic: str) -> Callable[[int, int], list[Any]]:
    """Return a mechanism: the numbers of n groups, where one person has `rows` rows in each.

    Another person has one row. Each row has a different code. One or two rows of a person count.
    """
    question = Question([statistic], "code" if statistic == "distinct" else None, by=["group"])
    most = 2 if statistic == "distinct" else None

    def mechanism(rows: int, n: int) -> list[Any]:
        groups = [f"g{i}" for i in range(n)]
        declared = {"group": groups}
        request = Request(1.0, [question], declared, person="who", max_groups=1, max_rows=most)
        persons = [(group, person) for group in groups for person in ["a", *["b"] * rows]]
        table = [(g, f"{g} {who}", f"code {i}") for i, (g, who) in enumerate(persons)]
        frame = pl.DataFrame(table, ["group", "who", "code"], orient="row")
        return [number.release.value for number in publish(frame, request)]

    return mechanism


@pytest.mark.long
@pytest.mark.parametrize("statistic", ["persons", "distinct"])
@pytest.mark.parametrize("planted", [True, False])
def test_numbers_of_persons_and_of_values_are_broken_if_a_bound_on_rows_is_forgotten(
    statistic: str, monkeypatch: pytest.MonkeyPatch, *, planted: bool
) -> None:
    """The noise is for one or two rows of a person; with the bug all twenty rows count.

    The numbers of a few calls are compared, which is too little for a confidence of `CERTAIN`.
    """
    tally_all = engines.tally_all

    def tally_without_bound(source: Any, plans: Sequence[Any], **options: Any) -> Any:
        unbounded = [replace(plan, unit=replace(plan.unit, max_rows=99)) for plan in plans]
        return tally_all(source, unbounded, **options)

    if planted:
        monkeypatch.setattr(engines, "tally_all", tally_without_bound)
    report = dpnoise.audit(
        publish_groups(statistic), 1.0, neighbours=[(0, 20)], budget=1_000,
        confidence=0.999 if planted else CERTAIN,
    )  # fmt: skip
    assert report.refutable
    assert report.broken == planted


def test_every_mechanism_that_selects_has_its_audit() -> None:
    offered = {
        name
        for name in dpnoise.__all__
        if name in vars(selection) and hasattr(getattr(dpnoise, name), "select")
    }
    assert {f"dpnoise.{name}" for name in offered} <= set(OWN)
    assert len(offered) == 2


@pytest.mark.sample(1)
@pytest.mark.parametrize("name", ["dpnoise.statistics.count", "dpnoise.NoisyMax"])
def test_too_little_noise_in_our_own_is_found(name: str) -> None:
    """The mechanism is made for an epsilon of 8, and audited with a claim of 1."""
    mechanism = MECHANISMS[name]
    report = dpnoise.audit(
        mechanism.build(8.0, 0.0), 1.0, neighbours=mechanism.neighbours[:1], budget=1_000
    )
    assert report.broken


@pytest.mark.sample(5)
@pytest.mark.parametrize("name", OWN)
def test_a_mechanism_gives_as_many_outputs_as_are_asked_for_of_every_data_set(name: str) -> None:
    mechanism = MECHANISMS[name]
    release = mechanism.build(1.0, delta_of(name))
    for pair in mechanism.neighbours:
        for data in pair:
            assert len(release(data, 2)) == 2


@pytest.mark.parametrize("name", MECHANISMS)
def test_neighbours_are_no_further_apart_than_their_relation_says(name: str) -> None:
    for a, b in MECHANISMS[name].neighbours:
        if MECHANISMS[name].neighbours is targets.mechanisms.SCORES:
            assert 0 < np.abs(np.subtract(a, b)).max() <= 1
        elif isinstance(a, list):
            counts = [abs(a.count(row) - b.count(row)) for row in {*a, *b}]
            assert sum(counts) == 1 or (sum(counts) == 2 and len(a) == len(b))
        else:
            assert a != b


def test_an_audit_by_name_says_what_runs_it_again() -> None:
    report = dpnoise.audit("dpnoise.NoisyMax", 1.0, budget=1_000)
    assert report.target == "dpnoise.NoisyMax"
    assert report.command.startswith("dpnoise audit dpnoise.NoisyMax --epsilon 1 ")
    assert report.pairs[0] == ("[1, 1, 1, 1]", "[2, 0, 0, 0]")


def test_neighbours_that_are_given_take_the_place_of_those_declared() -> None:
    report = dpnoise.audit("dpnoise.NoisyMax", 1.0, neighbours=[([1, 0], [0, 1])], budget=1_000)
    assert report.pairs == [("[1, 0]", "[0, 1]")]


def test_the_command_audits_and_lists_them(capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["audit", "dpnoise.ExponentialMechanism", "--epsilon", "1", "--budget", "1000"]
    assert cli.main([*asked, "--confidence", str(CERTAIN)]) == 0
    assert "dpnoise.ExponentialMechanism" in capsys.readouterr().out
    assert cli.main(["attack", "--list"]) == 0
    listed = capsys.readouterr().out
    assert all(name in listed for name in MECHANISMS)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("dpnoise.statistics.publish", {"epsilon": 1.0}, "no finite epsilon at delta = 0"),
        ("dpnoise.NoisyMax", {"mu": 1.0}, "is made for an epsilon: give it, not mu or rho"),
        ("dpnoise.NoisyMax", {"epsilon": 1.0, "attacks": ["bits"]}, "attacks is for added noise"),
        ("dpnoise.NoisyMix", {"epsilon": 1.0}, "Did you mean dpnoise.NoisyMax"),
    ],
)
def test_an_option_that_a_name_does_not_take_is_reported(
    name: str, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ArgumentError) as e:
        dpnoise.audit(name, **options)
    assert message in str(e.value)
