"""Noise for differential privacy that cannot be taken back out."""

from importlib import import_module as _import_module
from types import ModuleType as _ModuleType
from typing import TYPE_CHECKING as _TYPE_CHECKING
from typing import Any as _Any

from dpnoise.auditing import audit
from dpnoise.core.errors import (
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
from dpnoise.release import containers as _containers
from dpnoise.release.additive import GaussianMechanism, LaplaceMechanism
from dpnoise.release.discrete import DiscreteLaplaceMechanism
from dpnoise.release.selection import ExponentialMechanism, NoisyMax

if _TYPE_CHECKING:
    from dpnoise import auditing, statistics, testing

__version__ = "0.1.0"

__all__ = [
    "ArgumentError",
    "ArgumentTypeError",
    "BudgetError",
    "Cauchy",
    "ChiSquared",
    "CipherError",
    "DiscreteLaplaceMechanism",
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
    "audit",
    "auditing",
    "inversion_cost",
    "statistics",
    "testing",
    "variates_for",
]

# Loaded when they are asked for: they bring SciPy, Numba or a generator with a fixed key.
_LAZY = {"auditing", "statistics", "testing"}


def _import_tensor_release() -> _Any:
    from dpnoise.integrations.torch import release_tensor  # noqa: PLC0415 - it imports PyTorch

    return release_tensor


_containers.import_tensor_release = _import_tensor_release


def __getattr__(name: str) -> _ModuleType:
    if name in _LAZY:
        return _import_module(f"dpnoise.{name}")
    raise AttributeError(f"module 'dpnoise' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
