"""Models of libraries that are heavy to install, compared with them on this machine."""

from typing import Any

import numpy as np
import pytest
from support.alarms import SAMPLES
from support.verdicts import on_other_machine, peer, run_attack

from dpnoise.auditing.attacks import ATTACKS, Attack, BoxMullerPair, KeySearch, Tabulated, threefry
from dpnoise.auditing.attacks.base import MISFIT
from dpnoise.auditing.targets import Target

MODELS: list[tuple[Attack, str]] = [
    (BoxMullerPair(), "torch.normal"),
    (BoxMullerPair(), "opacus"),
    (BoxMullerPair(), "torch.normal.float64"),
    (Tabulated(), "torch.laplace"),
    (Tabulated(), "jax.normal"),
    (Tabulated(), "jax.laplace"),
]


@pytest.mark.parametrize(("attack", "name"), MODELS)
def test_a_model_explains_the_library_on_this_machine(attack: Attack, name: str) -> None:
    event = attack.event(peer(name), 0.0, 1.0, 2_000)
    assert event.applies, event.words


@pytest.mark.parametrize(("attack", "name"), MODELS)
def test_nothing_is_concluded_from_a_model_of_another_machine(attack: Attack, name: str) -> None:
    """Hundreds of 2,000 releases are excluded although their value is true, not by chance."""
    outcome = run_attack(attack, on_other_machine(peer(name)), n=2_000)
    assert not outcome.applies
    assert outcome.event.startswith(MISFIT)


@pytest.mark.parametrize("size", [1, 100, 40_000, SAMPLES // 3, SAMPLES // 3 + 1])
@pytest.mark.parametrize("name", ["jax.normal", "jax.laplace"])
def test_the_table_has_the_outputs_of_arrays_of_every_size(name: str, size: int) -> None:
    """XLA compiles a sampler for each size, and rounds differently in large odd sizes."""
    target = peer(name)
    event = Tabulated(name).find(target, 0.0, 1.0, 1)
    assert event.explains is not None
    assert event.explains(target(0.0, size), 0.0).all()


def test_the_search_for_keys_explains_jax_on_this_machine_and_a_run_that_it_has_found() -> None:
    jax = pytest.importorskip("jax")
    assert threefry.bounds_hold_for_jax(0.0, 1.0)
    assert threefry.bounds_hold_for_jax(1000.0, 0.1)
    key = jax.random.key(7)
    target = Target("one key", "gaussian", 1.0, lambda v, n: v + jax.random.normal(key, (n,)))
    event = KeySearch(path=(), seeds=range(2**10)).event(target, 0.0, 1.0, 100)
    assert event.applies
    assert event.explains is not None


def test_the_search_for_keys_says_that_its_bounds_do_not_fit_this_machine(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With bounds that are wrong by five mantissas no key is found, not even a known one."""
    mantissas = threefry.mantissa_bounds

    def shifted_mantissas(*arguments: Any) -> Any:
        return tuple(bound + np.uint32(5) for bound in mantissas(*arguments))

    monkeypatch.setattr(threefry, "mantissa_bounds", shifted_mantissas)
    event = KeySearch(seeds=range(2**10)).event(ATTACKS["key-search"]().target(), 0.0, 1.0, 100)
    assert event.words.startswith(MISFIT)
