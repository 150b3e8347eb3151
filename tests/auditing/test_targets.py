"""Targets: adapters add the noise they name, and their answers are checked before use."""

import math
import random
import sys
from typing import Any

import numpy as np
import pytest
from scipy import stats
from support.alarms import check_probability

import dpnoise
from dpnoise.auditing.targets import Target, TargetError, adapters, make_target, names, wrap
from dpnoise.core.errors import ArgumentError, ArgumentTypeError, MissingExtraError
from dpnoise.release.calibration import gaussian_scale

# Targets that need only the dependencies of dpnoise.
AT_HAND = [
    name
    for name, adapter in adapters.ADAPTERS.items()
    if adapter.package in {None, "numpy", "scipy", "dpnoise"}
]
LAWS = {"laplace": dpnoise.Laplace, "gaussian": dpnoise.Gaussian}
# The largest distance of the law of short uniforms from the distribution.
OFF = {"paper.theorem.8bits": 2.0**-7, "paper.gaussian.12bits": 2.0**-10}


@pytest.mark.parametrize("value", [0.0, 42.0])
@pytest.mark.parametrize("name", AT_HAND)
def test_an_adapter_adds_the_noise_that_its_claims_ask_for(name: str, value: float) -> None:
    target = make_target(name, epsilon=0.5, delta=1e-5, sensitivity=3.0)
    releases = target(value, 3000)
    assert releases.shape == (3000,)
    assert releases.dtype == np.float64
    law = LAWS[target.noise](target.scale)
    distance = stats.kstest(releases - value, law.cdf).statistic - OFF.get(name, 0.0)
    check_probability(float(stats.kstwo.sf(distance, len(releases))))


@pytest.mark.parametrize("name", AT_HAND)
def test_the_scale_is_what_epsilon_delta_and_sensitivity_give(name: str) -> None:
    target = make_target(name, epsilon=0.5, delta=1e-5, sensitivity=3.0)
    expected = {"laplace": 3.0 / 0.5, "gaussian": gaussian_scale(0.5, 1e-5, 3.0)}
    assert target.scale == expected[target.noise]


def test_two_targets_of_one_name_share_no_noise() -> None:
    for name in AT_HAND:
        first, second = make_target(name), make_target(name)
        assert not np.isin(first(0.0, 5), second(0.0, 5)).all()


def test_the_names_are_those_of_both_kinds_of_noise() -> None:
    assert sorted(names("laplace") + names("gaussian")) == sorted(names())
    assert set(AT_HAND) <= set(names())
    assert {"numpy.laplace", "dpnoise.release", "pydp.laplace"} <= set(names("laplace"))
    assert {"random.gauss", "opacus", "opacus.secure_mode", "jax_privacy"} <= set(names("gaussian"))


def test_a_name_that_does_not_exist_is_answered_with_the_nearest_five() -> None:
    with pytest.raises(ArgumentError, match=r"There is no target 'nump'\. The nearest of ") as e:
        make_target("nump")
    listed = str(e.value).partition(": ")[2].removesuffix(".").split(", ")
    assert len(listed) == 5
    assert set(listed) < set(names())
    assert {"numpy.laplace", "numpy.normal"} < set(listed)
    with pytest.raises(ArgumentError, match=r"Did you mean numpy\.laplace"):
        make_target("numpy.lapalce")


def test_a_library_that_is_missing_is_named_with_the_line_that_installs_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(
        MissingExtraError, match=r"needs torch.*pip install torch, .* \"\.\[peers\]\""
    ):
        make_target("torch.normal")


def test_a_target_knows_the_version_of_its_package() -> None:
    assert make_target("numpy.laplace").version == np.__version__
    assert make_target("random.gauss").version == ""
    assert Target("t", "laplace", 1.0, lambda _, n: np.zeros(n), "no-such-package").version == ""


def test_the_paper_s_formula_is_equation_2_to_the_last_bit() -> None:
    rng = random.SystemRandom()
    for _ in range(10_000):
        U = rng.random()
        expected = (-1) ** round(U) * math.log(1 - 2 * abs(U - 1 / 2))
        assert adapters.paper_laplace(iter([U]).__next__) == expected


def test_the_paper_s_formula_draws_again_where_it_has_no_logarithm() -> None:
    for zeros in range(1, 4):
        uniforms = iter([0.0] * zeros + [0.25])
        assert adapters.paper_laplace(uniforms.__next__) == math.log(0.5)


@pytest.mark.parametrize("precision", [1, 8, 12, 53])
def test_uniforms_are_all_multiples_of_their_last_bit(precision: int) -> None:
    uniforms = np.array(adapters._uniforms((20, 50), precision))
    assert uniforms.shape == (20, 50)
    assert (np.mod(uniforms * 2.0**precision, 1.0) == 0).all()
    assert ((uniforms >= 0) & (uniforms < 1)).all()
    assert (uniforms >= 0.5).any()


# What a target answers ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (np.zeros(4), r"odd\(1\.0, 3\) must return an array of n = 3 releases, .* shape \(4,\)\."),
        (np.zeros((3, 1)), r"must return an array of n = 3 releases, got .* shape \(3, 1\)\."),
        (0.5, r"must return an array of n = 3 releases, got float\."),
        (None, r"must return an array of n = 3 releases, got NoneType\."),
        ([1.0, math.nan, 2.0], "gave a NaN or an infinity"),
        ([1.0, math.inf, 2.0], "gave a NaN or an infinity"),
        (np.array([1, 2, 3], dtype=object), "must return floats of at most 64 bits, got object"),
        (np.zeros(3, dtype=np.longdouble), "must return floats of at most 64 bits"),
        (np.zeros(3, dtype=np.complex128), "must return floats of .*, got complex128"),
        (["1", "2", "3"], r"got <U1\. For outputs of other kinds, give neighbours\."),
        (np.zeros(3, dtype=np.bool_), "must return floats of .*, got bool"),
    ],
)
def test_an_answer_that_is_not_n_floats_is_refused(answer: Any, message: str) -> None:
    with pytest.raises(TargetError, match=message):
        wrap(lambda _value, _n: answer, "odd")(1.0, 3)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_floats_keep_their_format(dtype: str) -> None:
    assert wrap(lambda _, n: np.zeros(n, dtype), "zero")(0.0, 3).dtype == dtype


@pytest.mark.parametrize("dtype", ["int8", "uint16", "int64"])
def test_integers_become_floats(dtype: str) -> None:
    releases = wrap(lambda value, n: np.full(n, value, dtype), "whole")(7.0, 3)
    assert releases.dtype == np.float64
    assert releases.tolist() == [7.0, 7.0, 7.0]


def test_an_exception_is_wrapped_with_the_call_and_kept_as_the_cause() -> None:
    def release(_value: float, _n: int) -> Any:
        raise KeyError("seed")

    with pytest.raises(TargetError, match=r"odd\(2\.5, 7\) raised KeyError: 'seed'") as e:
        wrap(release, "odd")(2.5, 7)
    assert isinstance(e.value.__cause__, KeyError)


def test_an_exception_of_dpnoise_itself_is_not_wrapped() -> None:
    with pytest.raises(ArgumentError, match="scale must "):
        wrap(lambda _, n: dpnoise.Generator().laplace(scale=-1.0, size=n))(0.0, 3)


def test_a_function_is_wrapped_under_its_name_and_claims() -> None:
    def repeat_value(value: float, n: int) -> Any:
        return [value] * n

    target = wrap(repeat_value, epsilon=0.5, sensitivity=2.0)
    assert target.name.endswith("repeat_value")
    assert (target.noise, target.scale) == ("laplace", 4.0)
    assert target(3.0, 2).tolist() == [3.0, 3.0]
    gaussian = wrap(repeat_value, "g", "gaussian", epsilon=0.5, delta=1e-9)
    assert (gaussian.name, gaussian.scale) == ("g", gaussian_scale(0.5, 1e-9, 1.0))


def test_what_cannot_be_called_cannot_be_wrapped() -> None:
    with pytest.raises(ArgumentTypeError, match=r"target must be a function .*, got int"):
        wrap(3)  # type: ignore[arg-type]
