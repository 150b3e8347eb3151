"""Each attack with a model of a library checks the model against that library on this machine."""

import math
from fractions import Fraction
from typing import Any, ClassVar

import numpy as np
import pytest
from support.verdicts import on_other_machine

import dpnoise
from dpnoise.auditing import additive_noise
from dpnoise.auditing.attacks import ATTACKS, Attack, base, pairs, twister
from dpnoise.auditing.attacks.base import MISFIT, SOURCE, Event, impossible_event, no_progress
from dpnoise.auditing.targets import make_target, wrap
from dpnoise.cli import main

# These attacks use only outputs and the scale. An attack in this list models no library.
MODEL_FREE = {"precision", "feasibility", "bits", "threshold", "sensitivity"}
# The libraries of these attacks are heavy: tests/peers/test_peer_models.py tests them.
WITH_PEERS = {"table", "key-search"}
MODELS = sorted(set(ATTACKS) - MODEL_FREE - WITH_PEERS)


def size_of(attack: Attack) -> int:
    return min(attack.default_size, 2_000)


def test_every_attack_is_known_to_model_a_library_or_to_model_none() -> None:
    """A new attack fails here until it is in a list; the base rejects a model without a check."""
    given_the_source = {name for name, attack in ATTACKS.items() if attack.access == SOURCE}
    assert given_the_source == {*MODELS, *WITH_PEERS}
    assert set(ATTACKS) == given_the_source | MODEL_FREE


@pytest.mark.sample(3)
@pytest.mark.parametrize("name", MODELS)
def test_a_model_explains_the_library_on_this_machine(name: str) -> None:
    attack = ATTACKS[name]()
    event = attack.event(attack.target(), 0.0, 1.0, size_of(attack))
    assert event.applies, event.words
    assert event.explains is not None


@pytest.mark.sample(2)
@pytest.mark.parametrize("name", MODELS)
def test_nothing_is_concluded_from_a_model_of_another_machine(name: str) -> None:
    """Of 2,000 releases hundreds exclude their true value; the ziggurat's are 28.

    The probability that none does is below 10^-11.
    """
    attack = ATTACKS[name]()
    outcome = attack(on_other_machine(attack.target()), n=size_of(attack), placebo=False)
    assert not outcome.applies
    assert MISFIT in outcome.event or name == "twister"
    assert outcome.at0.hits == outcome.at1.hits == 0
    assert outcome.epsilon_lower() == 0


def test_the_twister_distinguishes_a_wrong_model_from_another_generator(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Without a state that explains the releases, the attack cannot know the reason."""
    attack = ATTACKS["twister"]()
    target = on_other_machine(attack.target())
    assert MISFIT not in attack.event(target, 0.0, 1.0, 5_000).words
    right = twister.predict_noise
    monkeypatch.setattr(twister, "predict_noise", lambda *a: np.nextafter(right(*a), np.inf))
    assert MISFIT in attack.event(target, 0.0, 1.0, 5_000).words


def test_the_search_excludes_no_value_whose_noise_is_zero_up_to_rounding() -> None:
    """Its preimages leave out U1 = 0 and cos(2 pi U2) = 0, one release of some thousands."""
    scale = make_target("paper.gaussian.12bits").scale
    radii = [math.sqrt(-2 * math.log(1 - U1)) for U1 in (0.0, 2.0**-12, 0.5, 1 - 2.0**-12)]
    noise = [radius * math.cos(2 * math.pi * U2) for radius in radii for U2 in (0.25, 0.75)]
    target = wrap(lambda value, n: value + scale * np.resize(noise, n), noise="gaussian")
    event = ATTACKS["gaussian-search"]().event(target, 0.0, 1.0, len(noise))
    assert event.applies, event.words


@pytest.mark.parametrize("sign", [1.0, -1.0])
@pytest.mark.parametrize("tiny", [2.0**-60, -(2.0**-60)])
def test_a_fused_operation_of_torch_is_rounded_once(sign: float, tiny: float) -> None:
    """The product lies half way between two float32, and the summand decides."""
    factor = np.float32(1 + 2.0**-12)
    fused = pairs._fma(np.float32(sign) * factor, factor, np.float32(sign * tiny))
    assert fused == sign * (1 + 2.0**-11 + (2.0**-23 if tiny > 0 else 0.0))


def test_a_fused_operation_is_the_nearest_to_the_exact_result() -> None:
    rng = np.random.default_rng()
    for a, b, c in rng.normal(size=(500, 3)).astype(np.float32):
        fused = np.float32(pairs._fma(a, b, c))
        exact = Fraction(float(a)) * Fraction(float(b)) + Fraction(float(c))
        near = [np.nextafter(fused, np.float32(side)) for side in (-np.inf, np.inf)]
        error = abs(Fraction(float(fused)) - exact)
        assert all(error <= abs(Fraction(float(other)) - exact) for other in near)


def test_an_attack_that_models_a_library_must_say_how_it_explains_a_release() -> None:
    class Unchecked(Attack):
        name: ClassVar[str] = "unchecked"
        access: ClassVar[str] = SOURCE

        def find(self, *_: Any, progress: Any = no_progress) -> Event:
            progress(1.0)
            return Event("y < 0", lambda y: np.asarray(y < 0))

    with pytest.raises(ValueError, match="unchecked knows a library's source"):
        Unchecked()(make_target("numpy.laplace"), n=10)


def test_a_model_that_excludes_a_true_value_once_is_seen_to() -> None:
    class Once(Attack):
        name: ClassVar[str] = "once"
        access: ClassVar[str] = SOURCE

        def find(self, *_: Any, progress: Any = no_progress) -> Event:
            progress(1.0)
            return Event("none", lambda y: y < 0, explains=lambda y, _: y != 7.0)

    fine = wrap(lambda _, n: np.arange(float(n)) % 7)
    wrong = wrap(lambda _, n: np.arange(float(n)))
    assert Once().event(fine, 0.0, 1.0, 8).applies
    words = Once().event(wrong, 0.0, 1.0, 8).words
    assert words == f"{MISFIT}: 1 of 8 releases of the value 0 exclude that value (none)"


def test_the_method_whose_model_fits_is_preferred_to_one_that_excludes_more() -> None:
    """A model that excludes everything has the largest advantage, and is wrong."""
    fits = Event("fits", lambda y: y < 0.5, explains=lambda y, _: y >= 0)
    greedy = Event("greedy", lambda y: y < 2, explains=lambda y, _: y < 0)
    target = wrap(lambda value, n: np.full(n, value))
    assert base.best_event([greedy, fits], target, 0.0, 3.0, 10).words == "fits"
    assert impossible_event("nothing").explains is None


def test_an_audit_skips_a_model_that_does_not_fit_and_says_why(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(additive_noise, "run_side_channel_checks", lambda *_: [])
    target = on_other_machine(make_target("numpy.laplace"))
    report = dpnoise.audit(target, 1.0, attacks=["mironov", "bits"], budget=24_000)
    assert [finding.attack for finding in report.findings] == ["bits"]
    assert report.skipped["mironov"].startswith(MISFIT)


def test_the_command_says_that_nothing_is_concluded(capsys: pytest.CaptureFixture[str]) -> None:
    """Exact release rounds to a grid, which no uniform of NumPy's leads to."""
    assert main(["attack", "mironov", "--target", "dpnoise.release", "--size", "2000"]) == 0
    shown = capsys.readouterr().out
    assert MISFIT in shown
    assert "concluded  nothing" in shown
    assert "certified" not in shown
