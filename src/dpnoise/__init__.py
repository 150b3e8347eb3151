"""Noise for differential privacy that cannot be taken back out."""

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
from dpnoise.errors import ArgumentError, ArgumentTypeError, DpnoiseError, SecretError
from dpnoise.generator import Generator
from dpnoise.security import InversionCost, inversion_cost, variates_for

__version__ = "0.1.0"

__all__ = [
    "ArgumentError",
    "ArgumentTypeError",
    "Cauchy",
    "ChiSquared",
    "DpnoiseError",
    "Exponential",
    "Gamma",
    "Gaussian",
    "Generator",
    "Gumbel",
    "InversionCost",
    "Laplace",
    "SecretError",
    "Uniform",
    "inversion_cost",
    "variates_for",
]
