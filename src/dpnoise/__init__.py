"""Differential privacy whose guarantee holds for the code that runs."""

from importlib import import_module as _import_module
from typing import TYPE_CHECKING as _TYPE_CHECKING

from dpnoise.core.version import __version__ as __version__

if _TYPE_CHECKING:
    from dpnoise import auditing, statistics, testing
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
    from dpnoise.release.additive import GaussianMechanism, LaplaceMechanism
    from dpnoise.release.discrete import DiscreteLaplaceMechanism
    from dpnoise.release.selection import ExponentialMechanism, NoisyMax

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

# The module of each public name, which is imported when a name is first used: NumPy and the other
# libraries take a while, and `dpnoise --help` needs none of them.
_MODULES = {
    "auditing": "audit",
    "core.errors": "ArgumentError ArgumentTypeError BudgetError CipherError DpnoiseError "
    "MissingExtraError RoundingModeError SecretError",
    "noise.distributions": "Cauchy ChiSquared Distribution Exponential Gamma Gaussian Gumbel "
    "Laplace LaplaceShare Uniform",
    "noise.generator": "Generator",
    "noise.inversion": "InversionCost inversion_cost variates_for",
    "release.additive": "GaussianMechanism LaplaceMechanism",
    "release.discrete": "DiscreteLaplaceMechanism",
    "release.selection": "ExponentialMechanism NoisyMax",
}
_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names.split()}


def __getattr__(name: str) -> object:
    module = name if name in {"auditing", "statistics", "testing"} else _MODULE_OF.get(name)
    if module is None:
        raise AttributeError(f"module 'dpnoise' has no attribute {name!r}")
    # NumPy cannot be imported again after an interrupt in the middle of its import.
    run_uninterrupted = _import_module("dpnoise.core.signals").run_uninterrupted
    value: object = run_uninterrupted(lambda: _import_module(f"dpnoise.{module}"))
    if name != module:
        value = globals()[name] = getattr(value, name)  # The next use finds it without this.
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
