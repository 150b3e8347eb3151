"""Noise for differential privacy that cannot be taken back out."""

from dpnoise.auditing import audit
from dpnoise.distributions import (
    Cauchy,
    ChiSquared,
    Exponential,
    Gamma,
    Gaussian,
    Gumbel,
    Laplace,
    Uniform,
)
from dpnoise.errors import (
    ArgumentError,
    ArgumentTypeError,
    DpnoiseError,
    MissingExtraError,
    RoundingModeError,
    SecretError,
)
from dpnoise.generator import Generator
from dpnoise.mechanisms import GaussianMechanism, LaplaceMechanism
from dpnoise.security import InversionCost, inversion_cost, variates_for
from dpnoise.selection import ExponentialMechanism, NoisyMax

__version__ = "0.1.0"

__all__ = [
    "ArgumentError",
    "ArgumentTypeError",
    "Cauchy",
    "ChiSquared",
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
    "MissingExtraError",
    "NoisyMax",
    "RoundingModeError",
    "SecretError",
    "Uniform",
    "audit",
    "inversion_cost",
    "variates_for",
]
