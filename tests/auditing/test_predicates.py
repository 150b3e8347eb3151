"""Events as Python: each text means exactly its event, and no text can run other code."""

import contextlib
import json
import pickle
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
from support import example_report
from support.alarms import LONG

import dpnoise
from dpnoise.auditing import additive_noise
from dpnoise.auditing.attacks import ATTACKS
from dpnoise.auditing.attacks.base import OUTPUTS, Attack, Event, EventCount, event_flags
from dpnoise.auditing.attacks.certified_bounds import BoundEstimator, Claim
from dpnoise.auditing.learned import expected_bounds, views
from dpnoise.auditing.learned.events import propose_events
from dpnoise.auditing.learned.expected_bounds import Proposal
from dpnoise.auditing.learned.exports import write_event
from dpnoise.auditing.output_rows import Encoder, list_parts
from dpnoise.auditing.predicates import evaluate_predicate
from dpnoise.auditing.report import Report
from dpnoise.auditing.targets import make_target
from dpnoise.core.errors import ArgumentError

rng = np.random.default_rng()
# Of an audit whose outputs are all read again as Python: a text that is wrong for one output in a
# hundred is wrong for some of the thousands that the final count takes.
BUDGET = 20_000 if LONG else 5_000
ESTIMATOR = BoundEstimator(Claim("epsilon", 0.1), 100_000, 0.001)


def flip(bit: int, n: int) -> Any:
    return (rng.random(n) < 0.12) ^ bool(bit)


def release_some(bit: int, n: int) -> Any:
    return np.where(rng.random((n, 4)) < 0.5, 0.0, bit + rng.laplace(size=(n, 4)))


def answer_in_tuples(bit: int, n: int) -> Any:
    noise, whole = rng.laplace(size=n).tolist(), rng.integers(1_000, size=n).tolist()
    return [
        ("yes", x, i) if a else ("no",) for a, x, i in zip(flip(bit, n), noise, whole, strict=True)
    ]


def hide_a_parity(bit: int, n: int) -> Any:
    rows = rng.random((n, 12)) < 0.5
    rows[:, 3] ^= rows[:, 7] ^ flip(bit, n)
    return rows


def forget_noise(bit: int, n: int) -> Any:
    noisy = rng.laplace(size=(n, 3))
    noisy[rng.random(n) < 0.03] = 0.0
    return noisy + bit


def leak_texts(bit: int, n: int) -> Any:
    """Rarely, an error names the bit; the position of its text is that of a number."""
    outputs = zip(forget_noise(bit, n).tolist(), rng.random(n), strict=True)
    return [(f"{bit} is odd", *y[1:]) if x < 0.02 else (*y,) for y, x in outputs]


KINDS: dict[str, Callable[[int, int], Any]] = {
    "a number": lambda bit, n: bit + rng.laplace(size=n),
    "an integer": lambda bit, n: bit + rng.geometric(0.1, n) - rng.geometric(0.1, n),
    "a text": lambda bit, n: ["yes" if a else "no" for a in flip(bit, n)],
    "bytes or None": lambda bit, n: [b"1" if a else None for a in flip(bit, n)],
    "many texts": lambda bit, n: [f"{x:.1f}" for x in 9 * (bit + rng.laplace(size=n))],
    "a vector": lambda bit, n: bit + rng.laplace(size=(n, 5)),
    "bits": lambda bit, n: rng.random((n, 6)) < 0.4 + 0.2 * bit,
    "numbers, some of them zero": release_some,
    "tuples of kinds": answer_in_tuples,
    "a parity": hide_a_parity,
    "noise that is rarely forgotten": forget_noise,
    "rare texts": leak_texts,
    "integers or floats": lambda bit, n: [[3, 3.0][int(a)] for a in flip(bit, n)],
    "spreads": lambda bit, n: rng.normal(size=(n, 8)) * (1 + bit * 0.3),
    "NaN": lambda bit, n: np.where(flip(bit, n), np.nan, rng.laplace(size=n)),
}


def learn_events(kind: str, public: tuple[int, ...] = ()) -> tuple[list[Proposal], Encoder]:
    outputs = [KINDS[kind](bit, 3_000) for bit in (0, 1)]
    encoder = Encoder("mechanism", [outputs[0][:64], outputs[1][:64]])
    rows0, rows1 = (encoder.rows(y, 3_000) for y in outputs)
    events = propose_events(
        rows0, rows1, encoder.names, ESTIMATOR, text=encoder.text, public=public
    )
    encoder.close()
    return events, encoder


def write(event: Proposal, encoder: Encoder) -> str:
    codes = encoder.codes, encoder.other_code
    return write_event(event, encoder.decode, *codes, encoder.form_index)


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    ("kind", "public"),
    [*((kind, ()) for kind in KINDS), ("a parity", (1,)), ("NaN", (1,)), ("rare texts", (1,))],
)
def test_every_learned_event_is_true_of_the_same_outputs_as_its_text(
    kind: str, public: tuple[int, ...]
) -> None:
    """Texts come from events of every view, and from sums of views."""
    events, encoder = learn_events(kind, public)
    fresh = KINDS[kind](1, 150)
    fresh_rows, parts = encoder.rows(fresh, 150), list_parts(fresh)
    assert events
    differ = [
        text
        for event in events
        for text in [write(event, encoder)]
        if not text or (evaluate_predicate(text, parts) != event.event.holds(fresh_rows)).any()
    ]
    # Patterns of columns with many different texts are the exception: audits drop such a text.
    assert len(differ) <= (len(events) // 4 if kind == "many texts" else 0), differ[:1]


def name_counts(bit: int, n: int) -> Any:
    """Return dicts, with a key that depends on the bit in some of them."""
    noise = rng.laplace(size=(n, 2)).tolist()
    named = ("cork", "galway") if bit else ("cork", "dublin")
    return [
        {named[int(a)]: x, "all": (-0.0, y)} for (x, y), a in zip(noise, flip(bit, n), strict=True)
    ]


OF_OUTPUTS = {
    "dicts": name_counts,
    "None": lambda bit, n: [None if a else (3, "no") for a in flip(bit, n)],
    "sets": lambda bit, n: [{"a", "b", 7} if a else {"a", 7} for a in flip(bit, n)],
    "signs of zero": lambda bit, n: [-0.0 if a else 0.0 for a in flip(bit, n)],
    "large integers": lambda bit, n: [2**60 + int(a) for a in flip(bit, n)],
    "nested arrays": lambda bit, n: [(np.arange(3) + a, "x") for a in flip(bit, n)],
}


@pytest.mark.parametrize("kind", [*OF_OUTPUTS, "tuples of kinds", "integers or floats"])
def test_the_exported_function_takes_an_output_as_the_mechanism_returns_it(kind: str) -> None:
    mechanism = (KINDS | OF_OUTPUTS)[kind]
    report = dpnoise.audit(mechanism, 1.0, neighbours=[(0, 1)], budget=BUDGET)
    (finding, *_) = report.findings
    outputs = [*mechanism(0, 100), *mechanism(1, 100)]
    names: dict[str, Any] = {}
    exec("from dpnoise.auditing.predicates import *", names)  # noqa: S102 - as the page says
    event = eval(f"lambda y: {finding.predicate}", names)  # noqa: S307 - of our own report
    count = report.replay(outputs)[0]
    assert count is not None
    assert 0 < sum(map(event, outputs)) == count.hits < 200


def raise_for_nobody(rows: list[int], n: int) -> Any:
    if not rows:
        raise ValueError("no rows")
    return rng.laplace(len(rows), 1.0, n)


def count_by_city(rows: list[str], n: int) -> Any:
    cities = sorted(set(rows))
    noise = rng.laplace(scale=2.0, size=(n, len(cities)))
    return [
        {city: rows.count(city) + x for city, x in zip(cities, of_output, strict=True)}
        for of_output in noise.tolist()
    ]


@pytest.mark.parametrize(
    ("mechanism", "pair"),
    [
        (raise_for_nobody, ([], [1])),
        (count_by_city, (["cork", "dublin", "galway"], ["cork", "dublin"])),
    ],
)
def test_of_events_that_certify_about_the_same_the_shortest_is_chosen(
    mechanism: Any, pair: Any
) -> None:
    """Many sums and discriminants of parts tell these outputs apart as well."""
    report = dpnoise.audit(mechanism, 1.0, neighbours=[pair], budget=20_000)
    assert report.certified > 0.95 * report.ceiling
    assert report.findings[0].predicate.startswith(("label(y, ", "number(y, "))
    assert len(report.findings[0].predicate) < 60


def test_exceptions_are_counted_again_as_objects() -> None:
    report = dpnoise.audit(raise_for_nobody, 1.0, neighbours=[([], [1])], budget=4_000)
    (finding, *_) = report.findings
    assert "ValueError: no rows" in finding.event
    count = report.replay([ValueError("no rows"), 3.25, KeyError("no rows"), 1.5])[0]
    assert count == EventCount(1, 4)


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    ("kind", "called"),
    [
        ("a vector", "discriminant("),
        ("spreads", "discriminant("),
        ("noise that is rarely forgotten", "pattern(y, [-1, 0, 1, 2]"),
        ("rare texts", "with_codes("),
        ("integers or floats", "label(with_form(y, 1), 1)"),
    ],
)
def test_events_of_several_parts_and_rare_leaks_have_a_text(kind: str, called: str) -> None:
    events, encoder = learn_events(kind)
    assert any(called in write(event, encoder) for event in events)


AUDITED_ATTACKS = [name for name, kind in ATTACKS.items() if kind.in_audit]


@pytest.mark.parametrize(
    "attack",
    # The table has all 2^24 outputs of JAX.
    [pytest.param(x, marks=[pytest.mark.long] * (x == "table")) for x in AUDITED_ATTACKS],
)
def test_the_text_of_every_attack_is_true_of_the_same_releases(attack: str) -> None:
    name = "numpy.laplace" if attack == "threshold" else ATTACKS[attack].default_target
    if name.partition(".")[0] in {"diffprivlib", "jax"}:
        pytest.importorskip(name.partition(".")[0])
    target = make_target(name, epsilon=1.0, delta=1e-6)
    event = ATTACKS[attack]().event(target, 0.0, 1.0, 1_000)
    releases = target(0.0, 400)
    flags = event_flags(event, releases)
    assert flags.any()
    assert (evaluate_predicate(event.source, releases) == flags).all()


@pytest.mark.parametrize(
    "text",
    [
        "__import__('os').system('true')",
        "().__class__",
        "[x for x in (1, 2)]",
        "(lambda: 1)()",
        "f'{y}'",
        "y[0]",
        "10 ** 10 ** 10",
        "number.__globals__",
        "open",
        "(other := y)",
    ],
)
def test_a_text_that_could_run_other_code_is_refused(text: str) -> None:
    with pytest.raises(ArgumentError, match="A predicate cannot have"):
        evaluate_predicate(text, [[1.0]])


@pytest.mark.parametrize("text", ["'%9999999999d' % 1", "(z := 'aa') == (z := z + z)"])
def test_a_text_that_could_fill_the_memory_is_refused(text: str) -> None:
    with pytest.raises(ArgumentError, match="adds or divides numbers only, got a str"):
        evaluate_predicate(text, [[1.0]])


@pytest.mark.parametrize(
    "name", ["findings", "observations", "points", "pairs", "seconds", "delta"]
)
@pytest.mark.parametrize("value", [None, 5, "text", [5], [{"$type": 5}]])
def test_a_damaged_report_is_refused_or_read(name: str, value: object) -> None:
    """No other error leaves it."""
    report = dpnoise.audit(lambda _, n: np.zeros(n), 1.0, neighbours=[(0, 1)], budget=1_000)
    with contextlib.suppress(ArgumentError):
        Report.from_dict(report.to_dict() | {name: value})
    data = report.to_dict()
    del data[name]
    with pytest.raises(ArgumentError, match="The report is damaged"):
        Report.from_dict(data)


Drawn = dict[int, list[Any]]


def audit_and_keep(mechanism: Callable[[int, int], Any], **options: Any) -> tuple[Report, Drawn]:
    """Audit a mechanism on 0 and 1, and keep its outputs."""
    drawn: Drawn = {0: [], 1: []}

    def keep(bit: int, n: int) -> Any:
        outputs = mechanism(bit, n)
        drawn[bit] += list(outputs)
        return outputs

    options = {"boosting": False, "budget": BUDGET} | options
    return dpnoise.audit(keep, 1.0, neighbours=[(0, 1)], **options), drawn


def check_replay(report: Report, drawn: Drawn) -> None:
    """Check that each finding is counted again in the same outputs with the same result."""
    for i, finding in enumerate(report.findings):
        assert finding.predicate
        for hits, trials, value in (
            (finding.hits0, finding.trials0, finding.value0),
            (finding.hits1, finding.trials1, finding.value1),
        ):
            count = report.replay(drawn[int(value)][-trials:])[i]
            assert count == EventCount(hits, trials)


# A mechanism for each kind of learned events.
OF_KIND: dict[str, str] = {
    views.PARTS: "a number",
    views.DIFFERENCES: "a vector",
    views.WHOLE: "numbers, some of them zero",
    views.CODES: "a parity",
    views.SIDES[0]: "tuples of kinds",
    views.SIDES[1]: "tuples of kinds",
    views.DISCRIMINANT: "spreads",
    views.LEAKS: "noise that is rarely forgotten",
    views.TREES: "a vector",
}


@pytest.mark.sample(1)
@pytest.mark.parametrize("kind", views.KINDS)
def test_every_kind_of_learned_events_is_counted_again_alike(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only events of this kind are proposed, so that the audit counts one."""
    if kind == views.TREES:
        pytest.importorskip("sklearn")
    keep_best = expected_bounds.drop_duplicates

    def keep_kind(proposals: Any) -> list[Proposal]:
        return keep_best(p for p in proposals if {view.kind for view in p.score.views} == {kind})

    monkeypatch.setattr(expected_bounds, "drop_duplicates", keep_kind)
    report, drawn = audit_and_keep(KINDS[OF_KIND[kind]], boosting=kind == views.TREES)
    assert report.findings[0].hits0
    check_replay(report, drawn)


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    ("mechanism", "predicate"),
    [
        (lambda _, n: rng.laplace(size=n), "number(y, 0) "),
        (lambda _, n: rng.choice(["yes", "no", "no"], n), "label(y, 0) == 'no'"),
        (lambda _, n: np.zeros(n), "False"),
    ],
)
def test_the_event_is_counted_again_if_nothing_was_learned(
    mechanism: Any, predicate: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(expected_bounds, "drop_duplicates", lambda _: [])
    report, drawn = audit_and_keep(mechanism)
    assert report.findings[0].predicate.startswith(predicate)
    check_replay(report, drawn)


def gap(output: Any) -> float:
    return float(output[1] - output[0])


def test_an_event_of_your_own_view_is_counted_again_in_the_process_of_the_audit() -> None:
    def shift_both(bit: int, n: int) -> Any:
        shared = rng.normal(scale=1e9, size=(n, 1))
        return shared + rng.laplace(size=(n, 2)) + np.array([0, 4 * bit])

    report, drawn = audit_and_keep(shift_both, views=[gap])
    assert "own(y, 'gap')" in report.findings[0].predicate
    check_replay(report, drawn)
    for copied in (Report.from_dict(report.to_dict()), pickle.loads(pickle.dumps(report))):
        with pytest.raises(ArgumentError, match="your own gap"):
            copied.replay(drawn[0])


class Quarters(Attack):
    """An attack of a user: one release in four of added noise says more than its size."""

    name, access, breaks, source = "quarters", OUTPUTS, "noise", "a test"
    default_target = "numpy.laplace"

    def find(self, *_: object) -> Event:
        """Return the event, which needs no releases to be found."""
        return Event("y[0] of four is low", lambda y: y.reshape(-1, 4)[:, 0] < 0, releases=4)


def test_an_event_of_your_own_attack_is_counted_again_in_the_process_of_the_audit() -> None:
    with mock.patch.object(additive_noise, "run_side_channel_checks", return_value=[]):
        report = dpnoise.audit("numpy.laplace", 1.0, attacks=[Quarters()], budget=24_000)
    (finding,) = report.findings
    assert finding.predicate == "own(releases, 'quarters')"
    assert report.replay(np.arange(-9.0, 1.0)) == [EventCount(2, 2)]
    with pytest.raises(ArgumentError, match="your own quarters"):
        Report.from_dict(report.to_dict()).replay([0.0] * 8)


def test_a_report_from_a_file_counts_its_events_again_in_the_outputs_that_were_counted(
    tmp_path: Path,
) -> None:
    """The last outputs of each data set are those of the final count."""
    report, drawn = audit_and_keep(answer_in_tuples)
    report.to_json(tmp_path / "a.json")
    check_replay(Report.from_json(tmp_path / "a.json"), drawn)
    assert json.loads((tmp_path / "a.json").read_text())["findings"][0]["predicate"]


def test_the_words_of_a_range_are_exact() -> None:
    """Six digits would say "above 1.67772e+07 and at most 1.67772e+07"."""

    def wrap_around(value: float, n: int) -> Any:
        return np.where(rng.random(n) < 0.9, 2.0**24 + value, rng.integers(0, 2**25, n))

    report = dpnoise.audit(wrap_around, 1.0, neighbours=[(1.0, 2.0)], budget=20_000)
    assert report.broken
    assert str(2**24 + 1) in report.findings[0].event or str(2**24 + 2) in report.findings[0].event


def test_an_event_without_a_text_has_no_count() -> None:
    """An audit drops a text that is not true of the same outputs as its event."""
    report = replace(
        example_report.broken_report(),
        findings=[example_report.finding(), example_report.finding(predicate="")],
    )
    assert report.replay([0.75, 2.0**-60]) == [EventCount(1, 2), None]
