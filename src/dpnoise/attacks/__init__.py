"""Everything that is known to take noise back out, one file for each family."""

from typing import Final

from dpnoise.attacks.base import Attack
from dpnoise.attacks.exclusion import GaussianSearch, MeetInTheMiddle
from dpnoise.attacks.feasibility import Feasibility
from dpnoise.attacks.mironov import Mironov
from dpnoise.attacks.pairs import BoxMullerPair
from dpnoise.attacks.patterns import BitPatterns, Precision
from dpnoise.attacks.sensitivity import Sensitivity
from dpnoise.attacks.tables import Tabulated
from dpnoise.attacks.threefry import KeySearch
from dpnoise.attacks.thresholds import Threshold
from dpnoise.attacks.twister import MersenneTwister
from dpnoise.attacks.ziggurat import Ziggurat

__all__ = [
    "ATTACKS",
    "Attack",
    "BitPatterns",
    "BoxMullerPair",
    "Feasibility",
    "GaussianSearch",
    "KeySearch",
    "MeetInTheMiddle",
    "MersenneTwister",
    "Mironov",
    "Precision",
    "Sensitivity",
    "Tabulated",
    "Threshold",
    "Ziggurat",
]

# By name, the paper's own first.
ATTACKS: Final[dict[str, type[Attack]]] = {
    attack.name: attack
    for attack in (
        Mironov,
        BoxMullerPair,
        GaussianSearch,
        MeetInTheMiddle,
        Precision,
        Feasibility,
        BitPatterns,
        Threshold,
        Tabulated,
        KeySearch,
        MersenneTwister,
        Ziggurat,
        Sensitivity,
    )
}
