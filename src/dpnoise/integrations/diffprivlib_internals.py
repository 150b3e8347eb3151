"""Every use of diffprivlib internals: what `harden` puts in their place, and where.

diffprivlib may change these in any release. So this module refuses versions that were not tested.
The functions named like methods have a mechanism of diffprivlib as `self`. They check the arguments
as its own method does.
"""

import functools
import math
import secrets
from collections.abc import Callable
from fractions import Fraction
from types import CodeType, FunctionType
from typing import Any, Final

import numpy as np

from dpnoise.core.errors import ArgumentError, MissingExtraError, import_extra
from dpnoise.integrations.numpy import SecureBitGenerator
from dpnoise.release import calibration, exact
from dpnoise.release.additive import GaussianMechanism, LaplaceMechanism
from dpnoise.release.discrete import DiscreteLaplaceMechanism
from dpnoise.release.selection import ExponentialMechanism, NoisyMax, noisy_argmax

diffprivlib: Any = import_extra("diffprivlib", "diffprivlib")

SUPPORTED: Final = ("0.6.6",)  # The same version as in pyproject.toml.
_ROUND: Final = 2.0**-50  # Exceeds the rounding errors of a few operations, relative to the result.
_LOSS_ERROR: Final = 2.0**-46  # Exceeds the rounding errors of the loss of a bounded domain.
_WEIGHT_ERROR: Final = 2.0**-40  # The cost of rounding the logarithms of two data sets' widths.
_MISSES: Final = 64 * math.log(2)  # A batch has no release within bounds with probability 2^-64.
_MOST_DRAWS: Final = 2**20
_PLACE_BITS: Final = 320
_PLACES: Final = 2.0**-30  # The grid of quantiles, relative to the range of the bounds.
_LARGEST_EXACT: Final = 2**53


def check_version(version: str) -> None:
    """Raise unless this module was tested with a version of diffprivlib."""
    if version not in SUPPORTED:
        raise MissingExtraError(
            f"diffprivlib {version} is installed, and harden() supports {', '.join(SUPPORTED)}: "
            f'pip install "diffprivlib=={SUPPORTED[-1]}"'
        )


check_version(diffprivlib.__version__)
_mechanisms: Final = diffprivlib.mechanisms

_BITS: Final = SecureBitGenerator()


class SecureState(np.random.RandomState):
    """A RandomState on secure bits, without a seed. A copy or a pickle draws other numbers.

    Its Gaussian sampler keeps a second value, so each use of a mechanism has its own instance.
    """

    def __init__(self) -> None:
        """Draw from the bits of this process."""
        super().__init__(_BITS)

    def __reduce__(self) -> Any:
        """Pickle nothing, because the bits have no state."""
        return type(self), ()


def _keep_secure_state(mechanism: Any, _given: object) -> None:
    """Give secure bits to a mechanism made while hardened. It keeps them after that, too."""
    mechanism.__dict__["_rng"] = SecureState()


_check_seed: Final = diffprivlib.utils.skl_check_random_state


def _ignore_seed(seed: object) -> SecureState:
    _check_seed(seed)
    return SecureState()


_parallel: Final = diffprivlib.models.forest.Parallel


def _run_in_threads(*arguments: Any, prefer: object = None, **options: Any) -> Any:
    """Return joblib's Parallel without processes, in which diffprivlib would not be hardened."""
    del prefer
    return _parallel(*arguments, **options, require="sharedmem")


_laplace = functools.lru_cache(LaplaceMechanism)
_gaussian = functools.lru_cache(GaussianMechanism)
_gaussian_for_scale = functools.lru_cache(GaussianMechanism.for_scale)
_discrete_laplace = functools.lru_cache(DiscreteLaplaceMechanism)


def _total_epsilon(mechanism: Any) -> float:
    """Return epsilon - log(1 - delta), rounded down: the loss of pure noise that spends delta."""
    if mechanism.delta == 0:
        return float(mechanism.epsilon)
    if mechanism.delta == 1:
        return math.inf
    return float((mechanism.epsilon - math.log1p(-mechanism.delta)) * (1 - _ROUND))


def _exact_float(value: Any) -> float:
    number = float(value)
    if number != value and not math.isnan(number):
        raise ArgumentError("value must be a number that a float holds exactly: round it first.")
    return number


def _add_noise(mechanism: LaplaceMechanism | GaussianMechanism, value: Any) -> np.float64:
    """Release a number as a float. diffprivlib passes NaN and infinities on, so this does too."""
    if isinstance(value, int | np.integer) and abs(int(value)) > _LARGEST_EXACT:
        return np.float64(mechanism.release(int(value)))
    number = _exact_float(value)
    return np.float64(mechanism.release(number) if math.isfinite(number) else number)


def _release_laplace(self: Any, value: Any) -> np.float64:
    self._check_all(value)
    epsilon = _total_epsilon(self)
    if self.sensitivity == 0 or epsilon == math.inf:
        return np.float64(value)
    return _add_noise(_laplace(epsilon=epsilon, sensitivity=float(self.sensitivity)), value)


def _release_gaussian(self: Any, value: Any) -> np.float64:
    self._check_all(value)
    scale = float(self._scale)
    if scale == 0:
        return np.float64(value)
    if isinstance(self, _mechanisms.GaussianAnalytic) and self.delta < 1:
        # diffprivlib's calibration loses its digits for small delta.
        names = ("epsilon", "delta", "sensitivity")
        least = _gaussian(**{name: getattr(self, name) for name in names}).scale
        scale = max(scale, least)
    return _add_noise(_gaussian_for_scale(scale * (1 + _ROUND), sensitivity=1.0), value)


def _first_within(
    mechanism: LaplaceMechanism, value: float, lower: float, upper: float, chance: float
) -> float:
    """Return the first of many releases that is within bounds: noise conditioned on them.

    `chance` is at most the probability that a release is, for every value. It fixes the number of
    releases, so that the time reveals the noise or the value with probability 2^-64 at most, unless
    `chance` is below 2^-14.
    """
    draws = 1 if chance >= 1 else math.ceil(min(_MISSES / -math.log1p(-chance), _MOST_DRAWS))
    while True:
        released = np.asarray(mechanism.release(np.full(draws, value)))
        within = np.flatnonzero((released >= lower) & (released <= upper))
        if len(within):
            return float(released[within[0]])


def _domain_loss(sensitivity: float, diameter: float, scale: float) -> float:
    """Return the loss of Laplace noise that is conditioned on a domain (Holohan et al. 2018)."""
    distance = min(sensitivity, diameter)
    ends = math.expm1(-distance / scale) + math.expm1((distance - diameter) / scale)
    return distance / scale + math.log(ends / math.expm1(-diameter / scale))


@functools.lru_cache
def _domain_mechanism(
    epsilon: float, sensitivity: float, lower: float, upper: float, scale: float
) -> tuple[LaplaceMechanism, float]:
    """Return a mechanism, and a margin by which its accepted releases may leave the domain.

    A release stands for a cell of the grid. The cells of all accepted releases cover the domain
    and at most 8 margins more. The loss on this larger domain is at most epsilon, for which the
    scale is raised.
    """
    if epsilon <= 2 * _LOSS_ERROR:
        raise ArgumentError(f"epsilon must be above 2^-45 for a bounded domain, got {epsilon}.")
    step = _ROUND
    while True:
        mechanism = LaplaceMechanism(epsilon=1.0, sensitivity=scale)
        margin = max([mechanism.grid, *(math.ulp(x) for x in (lower, upper) if math.isfinite(x))])
        loss = _domain_loss(sensitivity, upper - lower + 8 * margin, scale)
        if loss + _LOSS_ERROR <= epsilon:
            return mechanism, margin
        scale, step = scale * (1 + step), 2 * step


def _release_in_domain(self: Any, value: Any) -> np.float64:
    """Release within [lower, upper] by conditioning exact releases on it."""
    self._check_all(value)
    if self._scale is None:
        self._scale = self._find_scale()
    if math.isnan(value):
        return np.float64(value)
    lower, upper, scale = float(self.lower), float(self.upper), float(self._scale)
    value = min(max(_exact_float(value), lower), upper)
    if scale == 0 or lower == upper or math.isinf(value):
        return np.float64(value)
    sensitivity = float(self.sensitivity)
    mechanism, margin = _domain_mechanism(_total_epsilon(self), sensitivity, lower, upper, scale)
    chance = -math.expm1((lower - upper) / mechanism.scale) / 2
    released = _first_within(mechanism, value, lower - margin, upper + margin, chance)
    return np.float64(min(max(released, lower), upper))


def _release_with_bound(self: Any, value: Any) -> np.float64:
    """Add bounded noise: noise on the grid, conditioned on the bound, to the value on the grid.

    Rounding the value to the grid raises the sensitivity by at most one step of it.
    """
    self._check_all(value)
    if self.sensitivity == 0 or self.epsilon == math.inf or not math.isfinite(value):
        return np.float64(value)
    epsilon, sensitivity = self.epsilon, float(self.sensitivity)
    grid = _laplace(epsilon=epsilon, sensitivity=sensitivity).grid
    mechanism = _laplace(
        epsilon=epsilon, sensitivity=(sensitivity + grid) * (1 + _ROUND), grid=grid
    )
    tail = math.expm1(min(epsilon, 700.0)) / 2 / self.delta
    bound = mechanism.scale * (math.log1p(tail) + max(epsilon - 700.0, 0.0)) * (1 + _ROUND) + grid
    self._scale, self._noise_bound = mechanism.scale, bound + grid
    chance = -math.expm1((grid - bound) / mechanism.scale)
    noise = _first_within(mechanism, 0.0, -bound, bound, chance)
    steps = round(Fraction(_exact_float(value)) / Fraction(grid)) + round(noise / grid)
    return np.float64(float(steps * Fraction(grid)))


def _release_geometric(self: Any, value: Any) -> int:
    self._check_all(value)
    if self.sensitivity == 0 or self.epsilon == math.inf:
        return int(value)
    mechanism = _discrete_laplace(epsilon=self.epsilon, sensitivity=float(self.sensitivity))
    return int(mechanism.release(int(value)))


_float_exponential: Final = _mechanisms.Exponential.randomise
_weigh: Final = _mechanisms.Exponential._find_probabilities.__func__  # noqa: SLF001
_float_permute_and_flip: Final = _mechanisms.PermuteAndFlip.randomise
_float_categorical: Final = _mechanisms.ExponentialCategorical.randomise


def _has_infinite_scale(mechanism: Any) -> bool:
    return not mechanism.sensitivity / mechanism.epsilon > 0


def _options(mechanism: Any) -> dict[str, Any]:
    return {name: getattr(mechanism, name) for name in ("epsilon", "sensitivity", "monotonic")}


def _select_exponential(self: Any, value: None = None) -> Any:
    """Select with probability proportional to measure * exp(scale * utility).

    Rounding a logarithm changes that measure by a factor within 1 + 2^-42, before any noise.
    """
    weigh = type(self)._find_probabilities.__func__  # noqa: SLF001
    if _has_infinite_scale(self) or weigh is not _weigh:
        return _float_exponential(self, value)
    self._check_all(value)
    if not self.measure:
        chosen = ExponentialMechanism(**_options(self)).select(self.utility)
    else:
        scale = calibration.selection_scale(**_options(self))
        indices = np.flatnonzero(np.array(self.measure, dtype=float) > 0)
        if not len(indices):
            raise ArgumentError("measure must have an entry above 0.")
        utility = np.array(self.utility, dtype=float)[indices]
        weight = scale * np.log(np.array(self.measure, dtype=float)[indices])

        def exact_score(i: int) -> Fraction:
            return Fraction(utility[i]) + Fraction(weight[i])

        chosen = indices[noisy_argmax(utility + weight, exact_score, scale, None, exact.GUMBEL)]
    return self.candidates[chosen] if self.candidates else chosen


def _permute_and_flip(self: Any, value: None = None) -> Any:
    if _has_infinite_scale(self):
        return _float_permute_and_flip(self, value)
    self._check_all(value)
    return NoisyMax(**_options(self)).select(self.utility, self.candidates or None)


def _select_category(self: Any, value: str) -> str:
    self._check_all(value)
    if self._sensitivity == 0 or self.epsilon == math.inf:
        return str(_float_categorical(self, value))
    options = {"sensitivity": self._sensitivity, "monotonic": self._balanced_tree}
    mechanism = ExponentialMechanism(epsilon=self.epsilon, **options)
    scores = [-self._get_utility(value, other) for other in self._domain_values]
    return str(mechanism.select(scores, self._domain_values))


def _answer_binary(self: Any, value: str) -> str:
    self._check_all(value)
    if self.epsilon == math.inf:
        return value
    mechanism = ExponentialMechanism(epsilon=self.epsilon, sensitivity=1.0, monotonic=True)
    answers = [self.value0, self.value1]
    return str(mechanism.select([int(answer == value) for answer in answers], answers))


_quantiles: Final = import_extra("diffprivlib.tools.quantiles", "diffprivlib")
_float_quantile: Final[CodeType] = _quantiles.quantile.__code__


def release_quantile(*arguments: Any, **options: Any) -> Any:
    """Call diffprivlib's `quantile`, with an exact choice of the interval and of the place in it.

    Two data sets may round the logarithms of their widths differently. The epsilon of the choice
    is lowered by what that can cost.
    """
    seen: dict[str, Any] = {}

    def clip_to_bounds(array: Any, bounds: Any) -> Any:
        clipped = diffprivlib.validation.clip_to_bounds(array, bounds)
        seen["points"], seen["bounds"] = np.sort(np.append(clipped, list(bounds))), bounds
        return clipped

    def choose_interval(*, epsilon: float, **given: Any) -> Any:
        if epsilon <= 2 * _WEIGHT_ERROR:
            raise ArgumentError(f"epsilon must be above 2^-39 for a quantile, got {epsilon}.")
        mechanism = _mechanisms.Exponential(epsilon=epsilon - _WEIGHT_ERROR, **given)
        seen["interval"] = mechanism.randomise()
        mechanism.randomise = lambda: seen["interval"]
        return mechanism

    names = {"clip_to_bounds": clip_to_bounds, "Exponential": choose_interval}
    globals_ = {**vars(_quantiles), **names}
    defaults = _quantiles.quantile.__defaults__
    result = FunctionType(_float_quantile, globals_, "quantile", defaults)(*arguments, **options)
    if "interval" not in seen:  # NaN, or quantiles of several columns or orders: calls of this.
        return result
    left, right = (Fraction(float(x)) for x in seen["points"][seen["interval"] :][:2])
    lower, upper = (float(bound) for bound in seen["bounds"])
    grid = Fraction(2) ** math.floor(math.log2((upper - lower) * _PLACES))
    place = Fraction(2 * secrets.randbits(_PLACE_BITS) + 1, 2 ** (_PLACE_BITS + 1))
    whole = math.floor((left + place * (right - left)) / grid + Fraction(1, 2))
    return np.float64(min(max(float(whole * grid), lower), upper))


def _quantile(
    array: Any,
    quant: Any,
    epsilon: Any = 1.0,
    bounds: Any = None,
    axis: Any = None,
    keepdims: Any = False,  # noqa: FBT002 - the signature of diffprivlib
    random_state: Any = None,
    accountant: Any = None,
    **unused_args: Any,
) -> Any:
    """Call `release_quantile`.

    diffprivlib's function gets this code, because users import that function by name.
    """
    # Here the globals are those of diffprivlib.
    from dpnoise.integrations.diffprivlib_internals import release_quantile  # noqa: PLC0415

    given = (epsilon, bounds, axis, keepdims, random_state, accountant)
    return release_quantile(array, quant, *given, **unused_args)


EXACT: Final[dict[str, Callable[..., Any]]] = {
    "Laplace": _release_laplace,
    "LaplaceBoundedDomain": _release_in_domain,
    "LaplaceBoundedNoise": _release_with_bound,
    "Gaussian": _release_gaussian,
    "Geometric": _release_geometric,
    "Exponential": _select_exponential,
    "PermuteAndFlip": _permute_and_flip,
    "ExponentialCategorical": _select_category,
    "Binary": _answer_binary,
}
# These post-process a release of another class.
INHERITING: Final = (
    *("LaplaceTruncated", "LaplaceFolded", "GaussianAnalytic", "GeometricTruncated"),
    *("GeometricFolded", "ExponentialHierarchical"),
)
SECURE_BITS: Final = ("Bingham", "GaussianDiscrete", "Snapping", "Staircase", "Uniform", "Vector")
# Each is an object, the name of an attribute and its value while diffprivlib is hardened.
REPLACEMENTS: Final[tuple[tuple[Any, str, Any], ...]] = (
    *((getattr(_mechanisms, name), "randomise", method) for name, method in EXACT.items()),
    (_mechanisms.base.DPMechanism, "_rng", property(lambda _: SecureState(), _keep_secure_state)),
    (diffprivlib.utils, "skl_check_random_state", _ignore_seed),
    (diffprivlib.models.forest, "Parallel", _run_in_threads),
    (diffprivlib.models.logistic_regression, "Parallel", _run_in_threads),
    (_quantiles.quantile, "__code__", _quantile.__code__),
)
