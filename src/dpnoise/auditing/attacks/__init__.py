"""Attacks that remove or see through noise, one file for each family."""

from typing import Final

from dpnoise.auditing.attacks.base import Attack
from dpnoise.auditing.attacks.generic import BitPatterns, Feasibility, Precision, Threshold
from dpnoise.auditing.attacks.mironov import Mironov, Tabulated
from dpnoise.auditing.attacks.pairs import BoxMullerPair
from dpnoise.auditing.attacks.searches import GaussianSearch, MeetInTheMiddle
from dpnoise.auditing.attacks.sensitivity import SensitivityAttack
from dpnoise.auditing.attacks.threefry import KeySearch
from dpnoise.auditing.attacks.twister import MersenneTwister
from dpnoise.auditing.attacks.ziggurat import Ziggurat

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
    "SensitivityAttack",
    "Tabulated",
    "Threshold",
    "Ziggurat",
]

# The attacks of the paper come first.
_ALL: Final[tuple[type[Attack], ...]] = (
    Mironov, BoxMullerPair, GaussianSearch, MeetInTheMiddle, Precision, Feasibility, BitPatterns,
    Threshold, Tabulated, KeySearch, MersenneTwister, Ziggurat, SensitivityAttack,
)  # fmt: skip
ATTACKS: Final = {attack.name: attack for attack in _ALL}
