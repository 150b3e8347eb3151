"""Noise for differential privacy that cannot be taken back out."""

from importlib import import_module as _import_module
from types import ModuleType as _ModuleType
from typing import TYPE_CHECKING as _TYPE_CHECKING

from dpnoise.auditing import audit
from dpnoise.errors import (
    ArgumentError,
    ArgumentTypeError,
    BudgetError,
    CipherError,
    DpnoiseError,
    MissingExtraError,
    RoundingModeError,
    SecretError,
)
from dpnoise.noise.distributions import (
    Cauchy,
    ChiSquared,
    Distribution,
    Exponential,
    Gamma,
    Gaussian,
    Gumbel,
    Laplace,
    LaplaceShare,
    Uniform,
)
from dpnoise.noise.generator import Generator
from dpnoise.noise.inversion import InversionCost, inversion_cost, variates_for
from dpnoise.release.additive import GaussianMechanism, LaplaceMechanism
from dpnoise.release.selection import ExponentialMechanism, NoisyMax

if _TYPE_CHECKING:
    from dpnoise import attacks, auditing, leakage, statistics, targets, testing

__version__ = "0.1.0"

__all__ = [
    "ArgumentError",
    "ArgumentTypeError",
    "BudgetError",
    "Cauchy",
    "ChiSquared",
    "CipherError",
    "Distribution",
    "DpnoiseError",
    "Exponential",
    "ExponentialMechanism",
    "Gamma",
    "Gaussian",
    "GaussianMechanism",
    "Generator",
    "Gumbel",
    "InversionCost",
    "Laplace",
    "LaplaceMechanism",
    "LaplaceShare",
    "MissingExtraError",
    "NoisyMax",
    "RoundingModeError",
    "SecretError",
    "Uniform",
    "attacks",
    "audit",
    "auditing",
    "inversion_cost",
    "leakage",
    "statistics",
    "targets",
    "testing",
    "variates_for",
]

# Loaded when they are asked for: they bring SciPy, Numba or the noise that protects nobody.
_LAZY = {"attacks", "auditing", "leakage", "statistics", "targets", "testing"}


def __getattr__(name: str) -> _ModuleType:
    if name in _LAZY:
        module = _import_module(f"dpnoise.{name}")
        _hide_modules()
        return module
    raise AttributeError(f"module 'dpnoise' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)


def _hide_modules() -> None:
    """Take back the names of modules that no page documents.

    Python binds every module that is imported to its package. These are no part of the surface:
    whoever needs one imports it by its full name.
    """
    for name, value in list(globals().items()):
        if isinstance(value, _ModuleType) and name not in __all__:
            del globals()[name]


_hide_modules()
