"""Attacks that break libraries which are heavy to install, in the pinned versions."""

import numba
import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats
from support.alarms import check_probability
from support.verdicts import (
    DELTA,
    Break,
    check_break,
    check_placebo,
    check_withstands,
    peer,
    run_attack,
)

from dpnoise.auditing.attacks import (
    ATTACKS,
    Attack,
    BitPatterns,
    BoxMullerPair,
    Feasibility,
    GaussianSearch,
    KeySearch,
    MeetInTheMiddle,
    Precision,
    Tabulated,
)
from dpnoise.auditing.attacks.pairs import SINGLE, VECTORISED, radius_of, release_pair
from dpnoise.auditing.targets import make_target, names
from dpnoise.core.errors import import_extra

Single = NDArray[np.float32]
torch = import_extra("torch", "peers")

# Rates of the first measurement; today's are higher.
BREAKS = [
    *(
        Break(BoxMullerPair(), target, 1.0, least=0.94)
        for target in ("torch.normal", "torch.normal.float64", "opacus")
    ),
    Break(Precision(), "torch.normal", 1.0, least=0.044),
    Break(Precision(), "opacus", 1.0, least=0.044),
    Break(Precision(), "torch.laplace", 1.0, least=0.147),
    Break(Precision(), "diffprivlib.Laplace", 1.0, least=0.147),
    Break(Precision(), "diffprivlib.GaussianAnalytic", 1.0, least=0.044),
    Break(BitPatterns(), "diffprivlib.Laplace", 1.0, least=0.147, most=0.005),
    # Its grid of 2^-53 is finer than its sums, which lose a bit from 1 to a y between -1 and 0.
    Break(BitPatterns(), "pydp.gaussian", 1.0, least=0.044, most=0.005),
    Break(Feasibility(), "diffprivlib.Laplace", 1.0, least=0.34, n=100_000),
    Break(Tabulated(), "jax.normal", 1.0, least=0.62),
    Break(Tabulated(), "jax.laplace", 1.0, least=0.62),
    Break(Tabulated(), "torch.laplace", 1.0, least=0.62),
]


@pytest.mark.parametrize("row", BREAKS, ids=str)
def test_libraries_known_to_be_broken_are_broken(row: Break) -> None:
    check_break(row)


@pytest.mark.parametrize("value", [0.0, 1.0, -7.3, 1000.0])
@pytest.mark.parametrize("name", ["torch.normal", "torch.normal.float64", "opacus"])
def test_the_true_value_is_never_excluded(name: str, value: float) -> None:
    target = make_target(name, delta=DELTA)
    # At 1000 hardly anything is excluded, and releases do not reveal the method.
    event = BoxMullerPair("Box-Muller in blocks of 16").find(target, value + 1, value, n=4000)
    assert not event.holds(target(value, 20_000)).any()


WITHSTAND = [
    "pydp.laplace",
    "opendp.laplace",
    "opendp.gaussian",
    "diffprivlib.Snapping",
]
GENERAL = [name for name, attack in ATTACKS.items() if attack.in_audit]


@pytest.mark.parametrize("name", WITHSTAND)
@pytest.mark.parametrize("attack", GENERAL)
def test_libraries_that_round_their_releases_are_not_broken(attack: str, name: str) -> None:
    """One epsilon is claimed and no more is certified, in either direction."""
    target = peer(name, epsilon=1.0, delta=DELTA)
    n = 2000 if name.startswith("opendp") else 10_000
    for values in ((0.0, 1.0), (1.0, 0.0)):
        check_withstands(run_attack(ATTACKS[attack](), target, *values, n), target, 1.0)


SPECIAL: list[Attack] = [
    GaussianSearch(),
    MeetInTheMiddle(),
    KeySearch(seeds=range(2**16)),
    ATTACKS["twister"](),
    ATTACKS["sensitivity"](),
]


@pytest.mark.parametrize("attack", SPECIAL, ids=lambda attack: attack.name)
def test_pydp_withstands_the_attacks_on_other_samplers_too(attack: Attack) -> None:
    target = peer("pydp.laplace", epsilon=1.0)
    n = 100 if attack.default_size < 20_000 else 5000
    check_withstands(run_attack(attack, target, n=n), target, 1.0)


@pytest.mark.parametrize("name", ["feasibility", "table"])
def test_attacks_on_peers_pass_the_placebo(name: str) -> None:
    attack = ATTACKS[name]()
    check_placebo(run_attack(attack, attack.target(epsilon=1.0), n=2000))


@pytest.mark.parametrize("name", names())
def test_every_adapter_releases_n_numbers_and_knows_its_version(name: str) -> None:
    """The median of |noise| is at most 0.7 scales, and Snapping rounds to a grid of two."""
    target = peer(name, epsilon=0.5, delta=1e-5)
    releases = target(3.0, 200)
    assert len(np.unique(releases)) > 1
    assert np.median(np.abs(releases - 3.0)) < 2 * target.scale
    assert (target.version != "") == (target.package is not None)


# The formulas of torch ---------------------------------------------------------------------------


@numba.njit  # type: ignore[untyped-decorator]
def box_muller(uniforms: Single, out: Single, vectorised: bool) -> None:  # noqa: FBT001
    """Make Gaussians from uniforms like torch: element j is paired with j + 8 of its block."""
    for block in range(0, uniforms.size, 16):
        for j in range(block, block + 8):
            arithmetic = VECTORISED if vectorised else SINGLE
            radius = radius_of(np.float32(1) - uniforms[j], arithmetic)
            out[j], out[j + 8] = release_pair(radius, uniforms[j + 8], 0.0, 1.0, arithmetic)


def test_the_formulas_of_float32_equal_torch_to_the_last_bit() -> None:
    """One of two variants is this machine's: 20 operations, each wrong in one of 2^29 cases."""
    size = 2**20
    seed = torch.seed()
    uniforms = torch.rand(size).numpy()
    torch.manual_seed(seed)
    normals = torch.randn(size).numpy()
    ours = np.empty_like(normals)

    def count_differing(vectorised: bool) -> int:  # noqa: FBT001
        box_muller(uniforms, ours, vectorised)
        return int((ours != normals).sum())

    differing = min(map(count_differing, (True, False)))
    check_probability(float(stats.binom.sf(differing - 1, size, 20 / 2**29)))
