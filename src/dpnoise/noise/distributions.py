"""The distributions: density, distribution function, quantiles, moments and sampling formulas.

They are frozen, hold only public parameters and describe the ideal, real-valued distribution
(Appendix A of the paper). None has a location: mechanisms add noise to a value.
"""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from dpnoise.core.arrays import Floats, Numbers
from dpnoise.core.errors import ArgumentError, check_integer, check_positive
from dpnoise.core.kernel_table import scipy_special
from dpnoise.noise import forms
from dpnoise.noise.forms import Forms


def _points(x: ArrayLike) -> Floats:
    return np.asarray(x, dtype=np.float64)


def _probabilities(q: ArrayLike) -> Floats:
    array = _points(q)
    if not np.all((array >= 0) & (array <= 1)):
        raise ArgumentError("Every q must be between 0 and 1.")
    return array


class Distribution(ABC):
    """The interface of all distributions. Their parameters are positive numbers."""

    scale: float

    def __post_init__(self) -> None:
        for name, parameter in vars(self).items():
            object.__setattr__(self, name, check_positive(name, parameter))

    @property
    @abstractmethod
    def forms(self) -> Forms:
        """The sampling formulas, the preferred one first, with the `variates` they support."""

    @property
    @abstractmethod
    def mean(self) -> float:
        """The mean; NaN if it does not exist."""

    @property
    @abstractmethod
    def variance(self) -> float:
        """The variance; NaN if it does not exist."""

    @abstractmethod
    def pdf(self, x: ArrayLike) -> Numbers:
        """Return the density at x."""

    def cdf(self, x: ArrayLike) -> Numbers:
        """Return the probability of a value at most x."""
        raise NotImplementedError(
            f"{type(self).__name__} has no closed-form distribution function."
        )

    def ppf(self, q: ArrayLike) -> Numbers:
        """Return the q-quantile: the inverse of `cdf`."""
        raise NotImplementedError(f"{type(self).__name__} has no closed-form quantile function.")


@dataclass(frozen=True)
class Uniform(Distribution):
    """The uniform distribution on [0, scale).

    Parameters
    ----------
    scale
        The upper end, greater than 0.

    Examples
    --------
    >>> Uniform(scale=2.0).mean
    1.0
    """

    scale: float = 1.0
    forms = forms.UNIFORM

    @property
    def mean(self) -> float:
        return self.scale / 2

    @property
    def variance(self) -> float:
        return self.scale**2 / 12

    def pdf(self, x: ArrayLike) -> Numbers:
        x = _points(x)
        return np.where((x >= 0) & (x <= self.scale), 1 / self.scale, 0.0)

    def cdf(self, x: ArrayLike) -> Numbers:
        return np.clip(_points(x) / self.scale, 0.0, 1.0)

    def ppf(self, q: ArrayLike) -> Numbers:
        return self.scale * _probabilities(q)


@dataclass(frozen=True)
class Gaussian(Distribution):
    """The Gaussian distribution with mean 0 and standard deviation `scale`.

    Parameters
    ----------
    scale
        The standard deviation, greater than 0.

    Examples
    --------
    >>> Gaussian(scale=3.0).variance
    9.0
    >>> Gaussian(scale=3.0).share(9)
    Gaussian(scale=1.0)
    """

    scale: float = 1.0
    forms = forms.GAUSSIAN
    mean = 0.0

    @property
    def variance(self) -> float:
        return self.scale * self.scale

    def pdf(self, x: ArrayLike) -> Numbers:
        sigma = self.scale
        return np.exp(-0.5 * (_points(x) / sigma) ** 2) / (sigma * math.sqrt(2 * math.pi))

    def cdf(self, x: ArrayLike) -> Numbers:
        return scipy_special().ndtr(_points(x) / self.scale)

    def ppf(self, q: ArrayLike) -> Numbers:
        return self.scale * scipy_special().ndtri(_probabilities(q))

    def share(self, parties: int) -> "Gaussian":
        """Return one party's part: the sum of `parties` independent shares is this distribution."""
        return Gaussian(self.scale / math.sqrt(check_integer("parties", parties, least=1)))


@dataclass(frozen=True)
class Laplace(Distribution):
    """The Laplace distribution with mean 0 and scale b: density exp(-|x|/b) / 2b.

    Parameters
    ----------
    scale
        The scale b, greater than 0.

    Examples
    --------
    >>> Laplace(scale=2.0).variance
    8.0
    >>> for form in Laplace().forms:
    ...     print(form)
    <'exponentials': E1 - E2; variates=2>
    <'theorem': log V1 cos(pi U1) + log V2 cos(pi U2); variates=4>
    <'products': N1 N2 - N3 N4; variates=4, 8, 16, 24, ...>
    <'squares': (N1^2 - N2^2 + N3^2 - N4^2)/2; variates=4, 8, 16, 24, ...>
    <'gammas': sum of n/2 differences of Gamma(2/n), each by inverse CDF; variates=2, 4, 6, ...>
    <'inverse': inverse CDF of one uniform, insecure as floating noise; variates=1>
    """

    scale: float = 1.0
    forms = forms.LAPLACE
    mean = 0.0

    @property
    def variance(self) -> float:
        return 2 * self.scale * self.scale

    def pdf(self, x: ArrayLike) -> Numbers:
        b = self.scale
        return np.exp(-np.abs(_points(x)) / b) / (2 * b)

    def cdf(self, x: ArrayLike) -> Numbers:
        z = _points(x) / self.scale
        tail = 0.5 * np.exp(-np.abs(z))
        return np.where(z <= 0, tail, 1 - tail)

    def ppf(self, q: ArrayLike) -> Numbers:
        q = _probabilities(q)
        with np.errstate(divide="ignore"):
            return self.scale * np.where(q < 0.5, np.log(2 * q), -np.log(2 * (1 - q)))

    def share(self, parties: int) -> "LaplaceShare":
        """Return one party's part: the sum of `parties` independent shares is this distribution."""
        return LaplaceShare(self.scale, parties)


@dataclass(frozen=True)
class LaplaceShare(Distribution):
    """One of `parties` shares of a Laplace variate: the difference of two Gamma(1/parties).

    The sum of shares in floating point is not exactly Laplace, so it has no exact privacy
    guarantee.

    Parameters
    ----------
    scale
        The scale b of the Laplace variate, greater than 0.
    parties
        The number of shares.
    """

    scale: float
    parties: int
    mean = 0.0

    def __post_init__(self) -> None:
        parties = check_integer("parties", self.parties, least=1)
        super().__post_init__()
        # The base class stores a float.
        object.__setattr__(self, "parties", parties)

    @property
    def forms(self) -> Forms:
        return forms.laplace_share(self.parties)

    @property
    def variance(self) -> float:
        return 2 * self.scale**2 / self.parties

    def pdf(self, x: ArrayLike) -> Numbers:
        """Return z^c K_c(z) / (b sqrt(pi) Gamma(a) 2^c), z = |x|/b, a = 1/parties, c = a - 1/2."""
        a = 1 / self.parties
        z = np.abs(_points(x)) / self.scale
        norm = self.scale * math.sqrt(math.pi) * math.gamma(a) * 2 ** (a - 0.5)
        with np.errstate(divide="ignore"):
            return z ** (a - 0.5) * scipy_special().kv(a - 0.5, z) / norm


def _gamma_pdf(shape: float, z: Floats) -> Floats:
    """Return the gamma density z^(shape-1) exp(-z) / Gamma(shape).

    It is computed by logarithms to avoid overflow.
    """
    special = scipy_special()
    inside = np.where(z >= 0, z, 0.0)
    logarithm = special.xlogy(shape - 1, inside) - inside - special.gammaln(shape)
    density: Floats = np.where(z >= 0, np.exp(logarithm), 0.0)
    return density


@dataclass(frozen=True)
class Gamma(Distribution):
    """The gamma distribution of the given shape k and scale theta.

    Where 2k is whole it is drawn as a sum of half gammas N^2/2; other shapes as a sum of n pieces
    Gamma(k/n), each by the inverse of its distribution function from one uniform.

    Parameters
    ----------
    shape
        The shape k, greater than 0.
    scale
        The scale theta, greater than 0.

    Examples
    --------
    >>> Gamma(shape=2.5, scale=2.0).mean
    5.0
    >>> Gamma(shape=2.5).share(5)
    Gamma(shape=0.5, scale=1.0)
    """

    shape: float
    scale: float = 1.0

    @property
    def forms(self) -> Forms:
        return forms.gamma(float(self.shape))

    @property
    def mean(self) -> float:
        return self.shape * self.scale

    @property
    def variance(self) -> float:
        return self.shape * self.scale**2

    def pdf(self, x: ArrayLike) -> Numbers:
        return _gamma_pdf(self.shape, _points(x) / self.scale) / self.scale

    def cdf(self, x: ArrayLike) -> Numbers:
        return scipy_special().gammainc(self.shape, np.maximum(_points(x) / self.scale, 0.0))

    def ppf(self, q: ArrayLike) -> Numbers:
        return self.scale * scipy_special().gammaincinv(self.shape, _probabilities(q))

    def share(self, parties: int) -> "Gamma":
        """Return one party's part: the sum of `parties` independent shares is this distribution."""
        return Gamma(self.shape / check_integer("parties", parties, least=1), self.scale)


@dataclass(frozen=True)
class Exponential(Distribution):
    """The exponential distribution with mean `scale`: Gamma(1), two half gammas.

    Parameters
    ----------
    scale
        The mean, greater than 0.

    Examples
    --------
    >>> Exponential(scale=3.0).share(2)
    Gamma(shape=0.5, scale=3.0)
    """

    scale: float = 1.0

    @property
    def forms(self) -> Forms:
        return forms.gamma(1.0)

    @property
    def mean(self) -> float:
        return self.scale

    @property
    def variance(self) -> float:
        return self.scale * self.scale

    def pdf(self, x: ArrayLike) -> Numbers:
        z = _points(x) / self.scale
        return np.where(z >= 0, np.exp(-np.maximum(z, 0.0)), 0.0) / self.scale

    def cdf(self, x: ArrayLike) -> Numbers:
        return -np.expm1(-np.maximum(_points(x) / self.scale, 0.0))

    def ppf(self, q: ArrayLike) -> Numbers:
        with np.errstate(divide="ignore"):
            return -self.scale * np.log1p(-_probabilities(q))

    def share(self, parties: int) -> Gamma:
        """Return one party's part: the sum of `parties` independent shares is this distribution."""
        return Gamma(1 / check_integer("parties", parties, least=1), self.scale)


@dataclass(frozen=True)
class ChiSquared(Distribution):
    """The chi-squared distribution with `df` degrees of freedom: 2 Gamma(df/2).

    Parameters
    ----------
    df
        The degrees of freedom, greater than 0.

    Examples
    --------
    >>> ChiSquared(df=3).variance
    6.0
    """

    df: float

    @property
    def scale(self) -> float:  # type: ignore[override]
        """The scale of the equivalent gamma distribution, always 2."""
        return 2.0

    @property
    def forms(self) -> Forms:
        return forms.gamma(self.df / 2)

    @property
    def mean(self) -> float:
        return self.df

    @property
    def variance(self) -> float:
        return 2 * self.df

    def pdf(self, x: ArrayLike) -> Numbers:
        return _gamma_pdf(self.df / 2, _points(x) / 2) / 2

    def cdf(self, x: ArrayLike) -> Numbers:
        return Gamma(self.df / 2, 2.0).cdf(x)

    def ppf(self, q: ArrayLike) -> Numbers:
        return Gamma(self.df / 2, 2.0).ppf(q)

    def share(self, parties: int) -> Gamma:
        """Return one party's part: the sum of `parties` independent shares is this distribution."""
        return Gamma(self.df / 2, 2.0).share(parties)


@dataclass(frozen=True)
class Gumbel(Distribution):
    """The Gumbel distribution with mode 0: minus the logarithm of an exponential variate.

    Parameters
    ----------
    scale
        The scale, greater than 0.

    Examples
    --------
    >>> round(Gumbel().mean, 4)
    0.5772
    """

    scale: float = 1.0
    forms = forms.GUMBEL

    @property
    def mean(self) -> float:
        return self.scale * float(np.euler_gamma)

    @property
    def variance(self) -> float:
        return (math.pi * self.scale) ** 2 / 6

    def pdf(self, x: ArrayLike) -> Numbers:
        z = _points(x) / self.scale
        with np.errstate(over="ignore"):
            return np.exp(-z - np.exp(-z)) / self.scale

    def cdf(self, x: ArrayLike) -> Numbers:
        with np.errstate(over="ignore"):
            return np.exp(-np.exp(-_points(x) / self.scale))

    def ppf(self, q: ArrayLike) -> Numbers:
        with np.errstate(divide="ignore"):
            return -self.scale * np.log(-np.log(_probabilities(q)))


@dataclass(frozen=True)
class Cauchy(Distribution):
    """The Cauchy distribution with median 0; it has neither mean nor variance.

    Parameters
    ----------
    scale
        Half of the distance between the quartiles, greater than 0.

    Examples
    --------
    >>> Cauchy(scale=6.0).share(3)
    Cauchy(scale=2.0)
    """

    scale: float = 1.0
    forms = forms.CAUCHY
    mean = math.nan
    variance = math.nan

    def pdf(self, x: ArrayLike) -> Numbers:
        return 1 / (math.pi * self.scale * (1 + (_points(x) / self.scale) ** 2))

    def cdf(self, x: ArrayLike) -> Numbers:
        # This form of the arctangent is accurate in the lower tail.
        return np.arctan2(1.0, -_points(x) / self.scale) / math.pi

    def ppf(self, q: ArrayLike) -> Numbers:
        q = _probabilities(q)
        # tan(pi (q - 1/2)) = -1 / tan(pi q): use each where it is accurate.
        with np.errstate(divide="ignore"):
            tails = -np.sign(0.5 - q) / np.tan(math.pi * np.minimum(q, 1 - q))
        middle = np.tan(math.pi * (q - 0.5))
        return self.scale * np.where(np.abs(q - 0.5) < 0.25, middle, tails)

    def share(self, parties: int) -> "Cauchy":
        """Return one party's part: the sum of `parties` independent shares is this distribution."""
        return Cauchy(self.scale / check_integer("parties", parties, least=1))
