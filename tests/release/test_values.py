"""Mechanisms are frozen values; arguments determine equality, repr, pickles and replacement."""

import copy
import dataclasses
import inspect
import itertools
import math
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from support.alarms import LONG

import dpnoise
from dpnoise.testing import fixed_generator

KEY = bytes(range(32))
Maker = Callable[..., Any]
PUBLIC = [getattr(dpnoise, name) for name in dpnoise.__all__]
MECHANISMS = [
    public
    for public in PUBLIC
    if inspect.isclass(public) and (hasattr(public, "release") or hasattr(public, "select"))
]
# Each class and each of its class methods, which are alternative constructors.
MAKERS: dict[str, Maker] = {
    maker.__qualname__: maker
    for mechanism in MECHANISMS
    for maker in (
        mechanism,
        *(
            getattr(mechanism, name)
            for name, member in vars(mechanism).items()
            if isinstance(member, classmethod)
        ),
    )
}
# Few values for each argument, in several types, so that equal ones occur.
GOOD: dict[str, list[Any]] = {
    "epsilon": [1, 1.0, np.float64(1.0), np.float32(0.5), 0.3],
    "delta": [1e-6, np.float64(1e-6), 0.25],
    "rho": [0.5, np.float32(0.5), 2],
    "scale": [1, 1.0, np.int8(1), 7.5],
    "sensitivity": [1, 1.0, np.uint8(1), 3.7],
    "grid": [None, 2.0**-20, np.float64(2.0**-20), 1, 1.0],
    "lower": [None, 0, 0.0, np.int16(0), np.float32(-2.5), -(2**70)],
    "upper": [None, 7, 7.0, np.float64(7.0), 0.1, 2**70],
    "monotonic": [False, True, np.True_, np.False_],
}
# Invalid values, some of them only together with others.
BAD: dict[str, list[Any]] = {
    "epsilon": [1e-8, 0.0, "1", None],
    "delta": [2, 0],
    "rho": [-1.0, None],
    "scale": [2.0**40, math.nan],
    "sensitivity": [2.0**40, -1.0],
    "grid": [2.0**-49, 0.3],
    "lower": [9, math.inf],
    "upper": [-3, "7"],
    "monotonic": [1],
}


DATA: dict[str, dict[str, Any]] = {"release": {"value": 0.25}, "select": {"scores": [0.1, 0.2, 0]}}


def arguments_of(maker: Maker) -> dict[str, inspect.Parameter]:
    return dict(inspect.signature(maker).parameters)


@st.composite
def valid_arguments(draw: st.DrawFn, maker: Maker) -> dict[str, Any]:
    """Draw valid arguments of a mechanism; optional ones may be missing."""
    arguments = {}
    for name, parameter in arguments_of(maker).items():
        if parameter.default is parameter.empty or draw(st.booleans()):
            arguments[name] = draw(st.sampled_from(GOOD[name]))
    assume(is_valid(maker, arguments))
    return arguments


@st.composite
def mechanisms(draw: st.DrawFn) -> Any:
    """Draw a mechanism from any constructor."""
    maker = draw(st.sampled_from(list(MAKERS.values())))
    return maker(**draw(valid_arguments(maker)))


def outcome(make: Maker, arguments: dict[str, Any]) -> Any:
    """Return the mechanism, or the error as text."""
    try:
        return make(**arguments)
    except dpnoise.DpnoiseError as error:
        return f"{type(error).__name__}: {error}"


def is_valid(maker: Maker, arguments: dict[str, Any]) -> bool:
    return not isinstance(outcome(maker, arguments), str)


def behaviour(mechanism: Any) -> dict[str, Any]:
    """Return the observable behaviour of a mechanism: its attributes and its output or error."""
    names = [name for name in dir(mechanism) if not name.startswith("_")]
    members = {name: getattr(mechanism, name) for name in names}
    attributes = {name: member for name, member in members.items() if not callable(member)}
    release = getattr(mechanism, "release", None) or mechanism.select
    data = DATA[release.__name__]
    if isinstance(mechanism, dpnoise.DiscreteLaplaceMechanism):
        data = {"value": 3}
    return {**attributes, "output": outcome(release, {"rng": fixed_generator(KEY), **data})}


def test_every_mechanism_is_tested_and_every_argument() -> None:
    assert {mechanism.__name__ for mechanism in MECHANISMS} >= {
        "LaplaceMechanism",
        "GaussianMechanism",
        "DiscreteLaplaceMechanism",
        "NoisyMax",
        "ExponentialMechanism",
    }
    assert {"GaussianMechanism.for_rho", "GaussianMechanism.for_scale"} <= MAKERS.keys()
    named = {name for maker in MAKERS.values() for name in arguments_of(maker)}
    assert named == GOOD.keys() == BAD.keys(), "give it values"


@pytest.mark.sample(2)
@pytest.mark.parametrize("maker", MAKERS.values(), ids=MAKERS)
@given(data=st.data())
@settings(max_examples=25)
def test_a_replaced_mechanism_equals_a_new_one(maker: Maker, data: st.DataObject) -> None:
    """For every argument and value: the same mechanism, or the same error."""
    arguments = data.draw(valid_arguments(maker))
    mechanism = maker(**arguments)
    for name in arguments_of(maker):
        change = {name: data.draw(st.sampled_from(GOOD[name] + BAD[name]))}
        new, replaced = outcome(maker, arguments | change), outcome(mechanism.replace, change)
        assert replaced == new
        assert outcome(mechanism.__replace__, change) == new, "what copy.replace calls"
        if not isinstance(new, str):
            assert behaviour(replaced) == behaviour(new)


@given(mechanism=mechanisms())
def test_a_repr_evaluates_to_an_equal_mechanism(mechanism: Any) -> None:
    evaluated = eval(repr(mechanism), {name: getattr(dpnoise, name) for name in dpnoise.__all__})  # noqa: S307 - the claim
    assert evaluated == mechanism
    assert behaviour(evaluated) == behaviour(mechanism)
    assert repr(evaluated) == repr(mechanism)


@given(mechanism=mechanisms())
@settings(max_examples=50 if LONG else 15)
def test_copies_and_pickles_are_equal_and_do_the_same(mechanism: Any) -> None:
    pickles = [
        pickle.loads(pickle.dumps(mechanism, protocol))
        for protocol in range(pickle.HIGHEST_PROTOCOL + 1)
    ]
    for other in (*pickles, copy.copy(mechanism), copy.deepcopy(mechanism), mechanism.replace()):
        assert other == mechanism
        assert hash(other) == hash(mechanism)
        assert repr(other) == repr(mechanism)
        assert behaviour(other) == behaviour(mechanism)
        assert other.replace(sensitivity=2.0) == mechanism.replace(sensitivity=2.0)


@pytest.mark.parametrize("maker", MAKERS.values(), ids=MAKERS)
def test_mechanisms_with_equal_arguments_of_any_type_are_equal(maker: Maker) -> None:
    first = {name: GOOD[name][0] for name in arguments_of(maker)}
    for name in first:
        outcomes = [(value, outcome(maker, {**first, name: value})) for value in GOOD[name]]
        for (value_a, a), (value_b, b) in itertools.combinations(outcomes, 2):
            if value_a == value_b:
                assert isinstance(a, str) == isinstance(b, str), (name, a, b)
                if not isinstance(a, str):
                    assert a == b
                    assert hash(a) == hash(b)
                    assert behaviour(a) == behaviour(b)
            elif not isinstance(a, str):
                assert a != b


@given(mechanism=mechanisms())
def test_public_attributes_are_python_numbers(mechanism: Any) -> None:
    types = {name: type(value) for name, value in vars(mechanism).items() if name[0] != "_"}
    assert set(types.values()) <= {int, float, bool, type(None)}, types


def test_other_classes_and_other_ways_of_asking_make_other_values() -> None:
    gaussian = dpnoise.GaussianMechanism.for_rho(0.5, sensitivity=1.0)
    same_noise = dpnoise.GaussianMechanism.for_scale(gaussian.scale, sensitivity=1.0)
    assert gaussian.scale == same_noise.scale
    assert gaussian != same_noise
    assert dpnoise.NoisyMax(epsilon=1.0, sensitivity=1.0) != dpnoise.ExponentialMechanism(
        epsilon=1.0, sensitivity=1.0
    )
    assert dpnoise.NoisyMax(epsilon=1.0, sensitivity=1.0) != (1.0, 1.0)


def test_an_explicit_grid_is_kept_and_a_default_one_is_chosen_again() -> None:
    default = dpnoise.LaplaceMechanism(epsilon=1.0, sensitivity=1.0)
    explicit = dpnoise.LaplaceMechanism(epsilon=1.0, sensitivity=1.0, grid=2.0**-20)
    assert default.grid == explicit.grid == 2.0**-20
    assert default.replace(epsilon=2.0**-10).grid == 2.0**-10
    assert explicit.replace(epsilon=2.0**-10).grid == 2.0**-20
    assert explicit.replace(grid=None) == default
    assert explicit != default, "they release the same, but replace differs"


def test_a_replaced_gaussian_is_calibrated_like_the_original() -> None:
    gaussian = dpnoise.GaussianMechanism
    by_rho = gaussian.for_rho(0.5, sensitivity=1.0, lower=0)
    assert by_rho.replace(sensitivity=2.0) == gaussian.for_rho(0.5, sensitivity=2.0, lower=0)
    assert by_rho.replace(sensitivity=2.0).scale == 2.0
    assert by_rho.replace(rho=2.0).scale == 0.5
    by_scale = gaussian.for_scale(3.0, sensitivity=1.0)
    assert by_scale.replace(sensitivity=2.0).scale == 3.0
    assert by_scale.replace(scale=4.0).scale == 4.0
    by_loss = gaussian(epsilon=1.0, delta=1e-6, sensitivity=1.0)
    stronger = gaussian(epsilon=0.5, delta=1e-6, sensitivity=1.0)
    assert by_loss.replace(epsilon=0.5).scale == stronger.scale > by_loss.scale


def test_a_gaussian_has_only_the_loss_of_its_arguments() -> None:
    gaussian = dpnoise.GaussianMechanism
    mechanisms = [
        gaussian(epsilon=1.0, delta=1e-6, sensitivity=1.0),
        gaussian.for_rho(0.5, sensitivity=1.0),
        gaussian.for_scale(3.0, sensitivity=1.0),
    ]
    assert [(m.epsilon, m.delta, m.rho) for m in mechanisms] == [
        (1.0, 1e-6, None),
        (None, None, 0.5),
        (None, None, None),
    ]


REPRS = [
    "LaplaceMechanism(epsilon=1.0, sensitivity=1.0)",
    "LaplaceMechanism(epsilon=0.1, sensitivity=1.0, grid=0.5, lower=0, upper=9.5)",
    "GaussianMechanism(epsilon=1.0, delta=1e-06, sensitivity=1.0)",
    "GaussianMechanism.for_rho(0.5, sensitivity=1.0)",
    "GaussianMechanism.for_scale(2.0, sensitivity=1.0, lower=-1.5)",
    "NoisyMax(epsilon=1.0, sensitivity=1.0)",
    "ExponentialMechanism(epsilon=1.0, sensitivity=1.0, monotonic=True)",
]


@pytest.mark.parametrize("text", REPRS)
def test_the_repr_of_a_mechanism_is_its_call(text: str) -> None:
    assert repr(eval(text, vars(dpnoise))) == text  # noqa: S307 - as above


@given(mechanism=mechanisms())
def test_no_attribute_is_set_or_deleted(mechanism: Any) -> None:
    before = behaviour(mechanism)
    for name in ("scale", "sensitivity", "grid", "new"):
        with pytest.raises(AttributeError, match=r"frozen.* replace"):
            setattr(mechanism, name, 2.0)
        with pytest.raises(AttributeError, match="frozen"):
            delattr(mechanism, name)
    assert behaviour(mechanism) == before


untyped: Any = dpnoise  # Any, because the calls here are wrong.
LOSS = {"epsilon": 1.0, "delta": 1e-6}
by_rho: Any = dpnoise.GaussianMechanism.for_rho(0.5, sensitivity=1.0)
WRONG: list[tuple[Callable[[], object], str]] = [
    (lambda: untyped.GaussianMechanism(rho=0.5, sensitivity=1.0), r"for_rho\(rho, sens"),
    (lambda: untyped.GaussianMechanism(scale=2.0, sensitivity=1.0), r"for_scale\(scale, sens"),
    (
        lambda: untyped.GaussianMechanism(**LOSS, rho=0.5, sensitivity=1.0),
        r"^Epsilon and delta determine the noise, so rho .* GaussianMechanism\.for_rho\.$",
    ),
    (
        lambda: untyped.GaussianMechanism(**LOSS, scale=2.0, sensitivity=1.0),
        r"^Epsilon and delta determine the noise, so scale .* GaussianMechanism\.for_scale\.$",
    ),
    (lambda: untyped.LaplaceMechanism(scale=2.0), r"give epsilon = sensitivity / scale\.$"),
    (
        lambda: untyped.LaplaceMechanism(epsilon=1.0, sensitivity=1.0, scale=2.0),
        "epsilon and sensitivity, not sc",
    ),
    (lambda: untyped.GaussianMechanism(epsilon=1.0, sensitivity=1.0), "delta.*LaplaceMechanism"),
    (lambda: untyped.GaussianMechanism(sensitivity=1.0), "needs both epsilon and delta"),
    (lambda: untyped.GaussianMechanism(1.0, 1e-6, 1.0), "by name"),
    (lambda: by_rho.replace(epsilon=1.0), r"for_rho.*rho, sensitivity, grid.*got epsilon.*new"),
    (lambda: by_rho.replace(scale=1.0), "got scale"),
    (lambda: by_rho.replace(sensitivity=2.0, b=1, a=2), "got a, b"),
    (
        lambda: untyped.NoisyMax(epsilon=1.0, sensitivity=1.0).replace(monotone=True),
        "monotonic.*got monotone",
    ),
]


@pytest.mark.parametrize(("call", "message"), WRONG, ids=[row[1] for row in WRONG])
def test_arguments_that_a_mechanism_does_not_take_are_named(
    call: Callable[[], object], message: str
) -> None:
    with pytest.raises(dpnoise.ArgumentTypeError, match=message):
        call()


def test_the_replace_of_dataclasses_does_not_apply() -> None:
    """It would treat a default grid as an explicit one."""
    mechanisms: list[Any] = [
        by_rho,
        dpnoise.LaplaceMechanism(epsilon=1, sensitivity=1),
        dpnoise.NoisyMax(epsilon=1, sensitivity=1),
    ]
    for mechanism in mechanisms:
        with pytest.raises(TypeError, match="dataclass"):
            dataclasses.replace(mechanism, sensitivity=2.0)


class GaussianSubclass(dpnoise.GaussianMechanism):
    """A subclass with three constructors."""


def test_a_subclass_shows_its_own_name() -> None:
    mechanisms = [
        GaussianSubclass(epsilon=1.0, delta=1e-6, sensitivity=1.0),
        GaussianSubclass.for_rho(0.5, sensitivity=1.0),
        GaussianSubclass.for_scale(2.0, sensitivity=1.0),
    ]
    for mechanism in mechanisms:
        assert eval(repr(mechanism)) == mechanism  # noqa: S307 - our own repr
