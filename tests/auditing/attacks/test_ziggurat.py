"""The ziggurat: its tables equal those of the samplers, and its exclusions are never wrong."""

import math
import secrets
from functools import partial

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats
from support.alarms import check_distribution, check_probability

import dpnoise
from dpnoise.auditing.attacks.ziggurat import (
    Ziggurat,
    flag_feasible_layers,
    go_ends,
    go_layers,
    numpy_layers,
)
from dpnoise.auditing.targets import make_target, wrap
from dpnoise.release.calibration import gaussian_scale

Floats = NDArray[np.float64]

SIGMA = gaussian_scale(1.0, 1e-6, 1.0)
EDGE = 3.6541528853610088  # Of NumPy's ziggurat.


def words(count: int) -> NDArray[np.uint64]:
    return np.frombuffer(secrets.token_bytes(8 * count), dtype=np.uint64)


def uniforms(count: int) -> Floats:
    return (words(count) >> np.uint64(11)).astype(np.float64) * 2.0**-53


def go_normal(count: int, *, tied: bool) -> Floats:
    """Draw as Go's NormFloat64 does, by its published algorithm in Python.

    The tail and the wedges are as in Go. `tied` is math/rand, otherwise it is math/rand/v2.
    """
    x = go_ends()
    weights = go_layers(tied=tied).weights
    inside = 2.0**31 * np.array([x[127] / x[0], 0.0, *(x[1:127] / x[2:128])])
    heights = np.exp(-(np.array([0.0, *x[1:]]) ** 2) / 2).astype(np.float32)
    drawn = np.empty(0)
    while drawn.size < count:
        u = words(count)
        j = (u & np.uint64(0xFFFFFFFF)).astype(np.uint32).view(np.int32).astype(np.int64)
        i = (j if tied else (u >> np.uint64(32)).astype(np.int64)) & 0x7F
        z = j * weights[i]
        height = heights[i] + uniforms(count).astype(np.float32) * (heights[i - 1] - heights[i])
        wedge = (i > 0) & (height < np.exp(-z * z / 2).astype(np.float32))
        tail = (i == 0) & (np.abs(j) >= inside[i])
        z[tail] = np.sign(j[tail]) * (x[127] + tail_of(x[127], int(tail.sum())))
        drawn = np.append(drawn, z[(np.abs(j) < inside[i]) | wedge | tail])
    return drawn[:count]


def tail_of(edge: float, count: int) -> Floats:
    """Marsaglia's tail: the distance of a Gaussian beyond the edge, given that it is beyond."""
    beyond: list[float] = []
    while len(beyond) < count:
        a, b = -np.log1p(-uniforms(2))
        if 2 * b > (a / edge) ** 2:
            beyond.append(a / edge)
    return np.array(beyond)


def any_double(releases: Floats, value: float, scale: float) -> NDArray[np.bool_]:
    """Return whether any double z gives each release, without knowledge of a sampler."""
    up = down = (releases - value) / scale
    possible = np.zeros(releases.size, dtype=np.bool_)
    for _ in range(5):
        possible |= (value + scale * up == releases) | (value + scale * down == releases)
        up, down = np.nextafter(up, np.inf), np.nextafter(down, -np.inf)
    return possible


def test_numpy_table_gives_numpy_s_outputs_from_its_words() -> None:
    """The output for a word is k * w_i, unless the word is rejected or belongs to the tail.

    Such words are less than 1 %: all layers together are 1.0067 times the half Gaussian.
    """
    weights = numpy_layers().weights
    bits = np.random.PCG64()
    rng = np.random.Generator(bits)
    other = 0
    for _ in range(2000):
        state = bits.state
        word = int(bits.random_raw())
        bits.state = state
        sign = -1 if word >> 8 & 1 else 1
        k = word >> 9 & 2**52 - 1
        other += rng.standard_normal() != sign * (k * float(weights[word & 0xFF]))
    check_probability(float(stats.binom.sf(other - 1, 2000, 0.01)))


def test_numpy_table_is_the_ziggurat_of_256_layers_up_to_its_last_digits() -> None:
    """Every layer has the area of the lowest, tail included: v = x (f(below) - f(x))."""
    x = numpy_layers().weights * 2.0**52
    v = EDGE * math.exp(-(EDGE**2) / 2) + math.sqrt(math.pi / 2) * math.erfc(EDGE / math.sqrt(2))
    density = np.exp(-(np.array([0.0, *x[1:]]) ** 2) / 2)
    assert x[255] == EDGE
    assert x[1:] * (density[:-1] - density[1:]) == pytest.approx(v, rel=1e-9)
    assert x[0] == pytest.approx(v / math.exp(-(EDGE**2) / 2), rel=1e-12)


def test_go_table_has_the_published_constants() -> None:
    published = {0: 1.7290405e-09, 1: 1.2680929e-10, 2: 1.6897518e-10, 64: 7.1389966e-10}
    published |= {100: 9.790869e-10, 126: 1.5008659e-09, 127: 1.6030948e-09}
    weights = go_layers(tied=True).weights
    assert all(weights[i] == np.float32(w) for i, w in published.items())
    x = go_ends()
    assert [int(2**31 * q) for q in (x[127] / x[0], x[1] / x[2])] == [0x76AD2212, 0x600F1B53]


@pytest.mark.parametrize("tied", [True, False])
def test_the_twin_of_go_is_gaussian(tied: bool) -> None:  # noqa: FBT001 - pytest passes it
    check_distribution(go_normal(200_000, tied=tied), dpnoise.Gaussian())


@pytest.mark.parametrize("scale", [1.0, SIGMA, 1e-3, 12345.678])
@pytest.mark.parametrize("value", [0.0, 1.0, -7.3, 1e9])
def test_the_true_value_is_never_excluded(value: float, scale: float) -> None:
    rng = np.random.default_rng()
    assert flag_feasible_layers(rng.normal(value, scale, 5000), value, scale).all()
    for table in ("go", "go/v2"):
        releases = value + scale * go_normal(2000, tied=table == "go")
        assert flag_feasible_layers(releases, value, scale, table).all()


@pytest.mark.parametrize("value", [0.0, 1.0])
def test_feasible_agrees_with_a_search_of_all_nearby_integers(value: float) -> None:
    weights = numpy_layers().weights
    releases = SIGMA * 2.0 ** np.random.default_rng().uniform(-12, 1, 60)

    def has_integer(q: float) -> bool:
        near = np.round((q - value) / SIGMA / weights)
        k = near[:, None] + np.arange(-30, 31)
        within = np.abs(k) < 2.0**52
        return bool((within & (value + SIGMA * (k * weights[:, None]) == q)).any())

    assert flag_feasible_layers(releases, value, SIGMA).tolist() == [
        has_integer(q) for q in releases
    ]


@pytest.mark.sample(1)
@pytest.mark.parametrize("exponent", [-12, -10, -8, -6])
def test_numpy_s_holes_are_those_that_256_grids_leave(exponent: int) -> None:
    """A layer's grid of spacing w meets a double z with probability ulp(z) / w."""
    z = np.ldexp(1 + uniforms(50_000), exponent)
    expected = float(np.prod(1 - 2.0 ** (exponent - 52) / numpy_layers().weights))
    holes = int((~flag_feasible_layers(z, 0.0, 1.0)).sum())
    # The grids are not quite independent of each other, so the formula is given two percent.
    check_probability(float(stats.binom.sf(holes - 1, z.size, min(1.0, 1.02 * expected))))
    check_probability(float(stats.binom.cdf(holes, z.size, 0.98 * expected)))


def test_numpy_s_holes_close_between_a_sixteenth_and_two() -> None:
    z = 2.0 ** (5 * uniforms(100_000) - 4)
    # The formula above gives 2e-6 for the lowest binade and less than 1e-11 for the others.
    check_probability(
        float(stats.binom.sf((~flag_feasible_layers(z, 0.0, 1.0)).sum() - 1, z.size, 2e-6))
    )


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    ("true", "wrong", "most"), [(0.0, 1.0, 0.001), (1.0, 0.0, 0.01)], ids=["wrong 1", "wrong 0"]
)
def test_numpy_s_ziggurat_adds_little_to_what_any_double_excludes(
    true: float, wrong: float, most: float
) -> None:
    releases = np.random.default_rng().normal(true, SIGMA, 100_000)
    possible = any_double(releases, wrong, SIGMA)
    excluded = ~flag_feasible_layers(releases, wrong, SIGMA)
    added = int((excluded & possible).sum())
    print(f"\n{true:g}, not {wrong:g}: any double {1 - possible.mean():.4%}, ", end="")
    print(f"ziggurat {excluded.mean():.4%}, of it added {added / releases.size:.4%}")
    check_probability(float(stats.binom.sf(added - 1, releases.size, most)))
    # A release that no double gives comes from no layer, except in the tail: nothing is excluded.
    tail = np.abs(releases - wrong) >= SIGMA * EDGE * (1 - 1e-9)
    assert not (~possible & ~excluded & ~tail).any()


@pytest.mark.sample(1)
@pytest.mark.parametrize("table", ["go", "go/v2"])
@pytest.mark.parametrize(("true", "wrong"), [(0.0, 1.0), (1.0, 0.0)])
def test_go_s_ziggurat_excludes_the_wrong_value_outside_the_tail(
    table: str, true: float, wrong: float
) -> None:
    """By chance, a wrong candidate is met by less than one release in 10,000."""
    releases = true + SIGMA * go_normal(100_000, tied=table == "go")
    missed = int(flag_feasible_layers(releases, wrong, SIGMA, table).sum())
    edge = go_layers(tied=True).edge
    shift = (true - wrong) / SIGMA
    tail = float(stats.norm.sf(edge - shift) + stats.norm.cdf(-edge - shift))
    print(f"\n{table}: {true:g}, not {wrong:g}: excluded {1 - missed / releases.size:.4%}")
    check_probability(float(stats.binom.sf(missed - 1, releases.size, tail + 1e-4)))


def test_the_attack_distinguishes_go_s_values_and_not_a_placebo() -> None:
    target = wrap(
        lambda value, n: value + SIGMA * go_normal(n, tied=True), name="go", noise="gaussian"
    )
    outcome = Ziggurat("go")(target, n=5000)
    assert outcome.at0.rate > 0.99
    assert outcome.at1.hits == 0
    assert outcome.placebo is not None
    assert [count.hits for count in outcome.placebo] == [0, 0]


def test_the_attack_never_happens_at_the_other_value_of_numpy() -> None:
    outcome = Ziggurat()(make_target("numpy.normal"), n=20_000)
    assert outcome.at1.hits == 0
    assert outcome.at0.hits > 0


def test_an_unknown_table_is_named() -> None:
    for call in (
        partial(Ziggurat, "julia"),
        partial(flag_feasible_layers, np.zeros(1), 0.0, 1.0, "julia"),
    ):
        with pytest.raises(ValueError, match=r"table must be .*'numpy', 'go', 'go/v2'"):
            call()
