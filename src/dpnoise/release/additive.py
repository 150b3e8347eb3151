"""Mechanisms that add noise: the ideal real-valued mechanism, rounded once to a grid.

    Y = grid * floor((value + scale * Z) / grid + 1/2)        in real arithmetic

Y is a function of only the ideal mechanism's output value + scale * Z. So the textbook guarantee
holds without a floating-point caveat. A mechanism is frozen and public; the secret is an argument.
"""

import math
from collections.abc import Callable, KeysView
from typing import Any, ClassVar, Final, Self

import numpy as np

from dpnoise.core.arrays import (
    Array,
    DType,
    NumPyInteger,
    as_plain_array,
    check_rounding_mode,
    numeric_array,
    round_to_dtype,
    to_float64,
)
from dpnoise.core.errors import (
    ArgumentError,
    ArgumentTypeError,
    check_bound,
    check_power_of_two,
    check_probability,
    explain_calls,
    import_extra,
    is_integer,
    reject,
    scrub_traceback,
)
from dpnoise.core.kernel_table import import_uninterrupted
from dpnoise.noise.distributions import Gaussian, Laplace
from dpnoise.noise.generator import Generator, check_generator
from dpnoise.release import calibration, containers, exact
from dpnoise.release.containers import TensorTask, Value, is_tensor, release_like
from dpnoise.release.exact import AdditiveForm
from dpnoise.release.mechanism import Mechanism, check_all_positive, require_named_arguments

_FINEST: Final = 2.0**-50  # Finest grid, in scales: the first stage decides nothing on finer ones.
_COARSEST: Final = 2.0**60  # Coarsest grid, in scales: on coarser ones all outputs are equal.
_INT64: Final = np.iinfo(np.int64)
_FLOAT64: Final = np.dtype(np.float64)


class _Additive(Mechanism):
    """The common base of both mechanisms: everything except the calibration."""

    scale: float
    sensitivity: float
    grid: float
    lower: float | None
    upper: float | None
    _form: ClassVar[AdditiveForm]  # For arrays.
    _form_for_one: ClassVar[AdditiveForm]

    @property
    def _noise(self) -> Laplace | Gaussian:
        raise NotImplementedError

    def _set_up(
        self,
        calibrated: dict[str, float],
        scale: float,
        grid: float | None,
        lower: float | None,
        upper: float | None,
    ) -> None:
        """Check the options that both mechanisms share, and set all attributes."""
        calibration.check_scale(scale)
        given_grid = None if grid is None else check_power_of_two("grid", grid)
        grid = _default_grid(scale) if given_grid is None else given_grid
        if not (_FINEST * scale <= grid <= _COARSEST * scale and grid <= calibration.EXTREME):
            reject("grid", grid, f"be between 2^-50 and 2^60 times the scale, {scale}")
        lower, upper = check_bound("lower", lower), check_bound("upper", upper)
        if lower is not None and upper is not None and lower >= upper:
            reject("lower", lower, f"be below upper={upper}")
        options = {"grid": given_grid, "lower": lower, "upper": upper}
        self._set_attributes({**calibrated, **options}, scale=scale, grid=grid)

    def dp_event(self) -> Any:
        """Return the event for dp_accounting (extra `accounting`)."""
        dp_accounting = import_extra("dp_accounting", "accounting")
        multiplier = calibration.quotient_down(self.scale, self.sensitivity)
        if isinstance(self._noise, Laplace):
            return dp_accounting.LaplaceDpEvent(multiplier)
        return dp_accounting.GaussianDpEvent(multiplier)

    @property
    def variance(self) -> float:
        """The variance of a released float: that of the noise plus grid^2/12 for the rounding."""
        return self._noise.variance + self.grid * self.grid / 12

    def error(self, confidence: float = 0.95) -> float:
        """Return h such that a release is within h of its value with this probability.

        h includes the rounding to the grid. For integers on a grid below 1, add 1/2.
        """
        confidence = check_probability("confidence", confidence)
        # The upper quantile by symmetry: the lower one keeps its digits for confidences near 1.
        quantile = -float(self._noise.ppf((1 - confidence) / 2))
        return math.nextafter(quantile + self.grid / 2, math.inf)

    @scrub_traceback
    def release(  # Most of its lines are documentation.
        self, value: Value, rng: Generator | None = None
    ) -> Value:
        """Return the value plus noise, exactly as in real arithmetic, rounded once to the grid.

        Parameters
        ----------
        value
            The secret: a float, an int of any size, an array (float or integer), a list, a tuple, a
            pandas or polars Series, or a PyTorch tensor. Every number gets independent noise;
            `sensitivity` is that of all of them together. Error messages may reveal the value:
            show them only to people who may see the data.
        rng
            A Generator; by default one on all cores.

        Returns
        -------
        The same kind
            Floats for floats, multiples of `grid`; integers for integers, multiples of
            max(1, grid). Arrays of floats keep their dtype. Arrays and Series of integers are
            released as int64. Arrays have this machine's byte order. NumPy's float scalars keep
            their type; its integer scalars become Python ints. Python ints have no limit, also in a
            list. Other results saturate at the largest number of their type.
        """
        rng = check_generator(rng)
        check_rounding_mode()
        if type(value) is int:  # First: operations on an int may reveal it by their time.
            return self._release_integer(value, rng)
        if isinstance(value, float):
            released = self._release_float(float(value), rng)
            return np.float64(released) if isinstance(value, np.float64) else released
        if isinstance(value, bool):
            raise ArgumentTypeError("value must be a number, got a bool: release int(value).")
        if is_integer(value):
            number = value if isinstance(value, np.integer) else int(value)
            return self._release_integer(number, rng)
        if isinstance(value, np.float32 | np.float16):
            scalar = as_plain_array(np.asarray(value))
            released = self._release_float(float(to_float64(scalar)), rng, scalar.dtype)
            return round_to_dtype(np.array(released), scalar.dtype)[()]
        if is_tensor(value):
            return self._release_tensor(value, rng)
        return release_like(value, lambda array: self._release_array(array, rng))

    def _release_tensor(self, value: Value, rng: Generator) -> Value:
        """Release a PyTorch tensor. The import is late, because it imports PyTorch."""

        def release_array(array: Array) -> Array:
            return self._release_array(numeric_array(array), rng)

        task = TensorTask(self._form, self.scale, self.grid, self._float_bounds, release_array)
        return import_uninterrupted(containers.import_tensor_release)(task, value, rng)

    def _release_float(self, value: float, rng: Generator, dtype: DType = _FLOAT64) -> float:
        if not math.isfinite(value):
            raise ArgumentError("The value must be finite, got NaN or an infinity.")
        bounds = self._float_bounds(dtype)
        form, scale, grid = self._form_for_one, self.scale, self.grid
        result = exact.release_float(form, value, scale, grid, rng.source)
        return result if bounds is None else min(max(result, bounds[0]), bounds[1])

    def _release_integer(self, value: int | NumPyInteger, rng: Generator) -> int:
        lowest, highest = self._integer_bounds()
        form, scale, shift = self._form_for_one, self.scale, self._integer_shift
        return _clamp(exact.release_integer(form, value, shift, scale, rng.source), lowest, highest)

    def _release_array(self, array: Array, rng: Generator) -> Array:
        if array.dtype.kind == "f":
            return self._release_floats(array, rng)
        lowest, highest = self._integer_bounds()
        form, scale, shift = self._form, self.scale, self._integer_shift
        if array.dtype in (np.dtype(object), np.dtype(np.uint64)):
            integers = [int(x) for x in array.flat]
            released = exact.release_integers_of_any_size(
                form, integers, shift, scale, rng.source.key(), rng.threads
            )
            clamped = [_clamp(x, lowest, highest) for x in released]
            return np.array(clamped, dtype=object).reshape(array.shape)
        flat = array.astype(np.int64, copy=False).reshape(-1)
        out = exact.release_integers(form, flat, shift, scale, rng.source.key(), rng.threads)
        if lowest is not None or highest is not None:
            low = _INT64.min if lowest is None else _clamp(lowest, _INT64.min, _INT64.max)
            high = _INT64.max if highest is None else _clamp(highest, _INT64.min, _INT64.max)
            np.clip(out, low, high, out=out)
        return out.reshape(array.shape)

    def _release_floats(self, array: Array, rng: Generator) -> Array:
        bounds = self._float_bounds(array.dtype)
        flat = to_float64(array).reshape(-1)
        exact.check_finite(flat, rng.threads)
        form, scale, grid = self._form, self.scale, self.grid
        out = exact.release_floats(form, flat, scale, grid, rng.source.key(), rng.threads)
        if bounds is not None:
            np.clip(out, *bounds, out=out)
        return round_to_dtype(out, array.dtype).reshape(array.shape)

    @property
    def _integer_shift(self) -> int:
        """The grid of integers, max(1, grid), is 2 to this power."""
        return max(0, math.frexp(self.grid)[1] - 1)

    def _float_bounds(self, dtype: DType) -> tuple[float, float] | None:
        """Return the smallest and largest release in a format, or None if there is no bound.

        Both are numbers of the format, so rounding to it stays within the bounds.
        """
        if self.lower is None and self.upper is None and dtype == _FLOAT64:
            return None
        largest = float(np.finfo(dtype).max)
        # Adding to 0.0, or subtracting from it, turns -0.0 into 0.0.
        lowest = -largest if self.lower is None else 0.0 - _at_most(-self.lower, dtype)
        highest = largest if self.upper is None else 0.0 + _at_most(self.upper, dtype)
        if lowest > highest:
            reject("lower", self.lower, f"leave a {dtype} up to upper={self.upper}")
        return lowest, highest

    def _integer_bounds(self) -> tuple[int | None, int | None]:
        lowest = None if self.lower is None else math.ceil(self.lower)
        highest = None if self.upper is None else math.floor(self.upper)
        if lowest is not None and highest is not None and lowest > highest:
            reject("lower", self.lower, f"leave an integer below upper={self.upper}")
        return lowest, highest


def _reject_scale_and_delta(names: KeysView[str]) -> None:
    """Explain how to get a Laplace mechanism of a given scale, and what takes a delta."""
    if "delta" in names:
        raise ArgumentTypeError(
            "Laplace noise has no delta. Leave it out, or use GaussianMechanism."
        )
    if "scale" in names:
        raise ArgumentTypeError(
            "LaplaceMechanism takes epsilon and sensitivity, not scale, which is sensitivity / "
            "epsilon: give epsilon = sensitivity / scale."
        )


class LaplaceMechanism(_Additive):
    """The Laplace mechanism: epsilon-differential privacy, exactly.

    A mechanism is frozen. Two mechanisms are equal if they were made in the same way with equal
    arguments, and evaluating the repr makes an equal one.

    Parameters
    ----------
    epsilon
        The privacy loss of a release. Smaller is more private; 0.1 to 10 are common.
    sensitivity
        The largest change of the value when one person's data is added, removed or replaced. For
        an array, the sum of the changes of its numbers (L1).
    grid
        A power of two. Released floats are multiples of it, released integers multiples of
        max(1, grid). By default the smallest power of two that is at least scale * 2^-20.
    lower, upper
        Clamp the released number to this range. None does not clamp.

    Attributes
    ----------
    scale
        The scale of the noise: the smallest float that is at least sensitivity / epsilon.
    grid
        The grid in use.
    epsilon, sensitivity, lower, upper
        The arguments.

    Examples
    --------
    >>> mechanism = LaplaceMechanism(epsilon=0.5, sensitivity=1.0)
    >>> mechanism.scale, mechanism.grid
    (2.0, 1.9073486328125e-06)
    >>> isinstance(mechanism.release(42), int)
    True
    >>> round(mechanism.error(confidence=0.95), 2)
    5.99
    >>> mechanism.replace(epsilon=0.25, lower=0)
    LaplaceMechanism(epsilon=0.25, sensitivity=1.0, lower=0)
    """

    epsilon: float
    _form = exact.LAPLACE_1
    _form_for_one = exact.LAPLACE_1

    @require_named_arguments(_reject_scale_and_delta)
    def __init__(
        self,
        *,
        epsilon: float,
        sensitivity: float,
        grid: float | None = None,
        lower: float | None = None,
        upper: float | None = None,
    ) -> None:
        checked = check_all_positive(epsilon=epsilon, sensitivity=sensitivity)
        scale = calibration.laplace_scale(**checked)
        self._set_up(checked, scale, grid, lower, upper)

    @property
    def _noise(self) -> Laplace:
        return Laplace(self.scale)


def _require_epsilon_and_delta(names: KeysView[str]) -> None:
    """Explain the other constructors if epsilon or delta is missing."""
    others = sorted(names & {"rho", "scale"})
    if others and {"epsilon", "delta"} <= names:
        raise ArgumentTypeError(
            f"Epsilon and delta determine the noise, so {' and '.join(others)} must not be given. "
            f"To give {others[0]}, use GaussianMechanism.for_{others[0]}."
        )
    if others or not {"epsilon", "delta"} <= names:
        raise ArgumentTypeError(
            "GaussianMechanism needs both epsilon and delta, by name. There are also "
            "GaussianMechanism.for_rho(rho, sensitivity=...), "
            "GaussianMechanism.for_scale(scale, sensitivity=...) and, without delta, "
            "LaplaceMechanism."
        )


class GaussianMechanism(_Additive):
    """The Gaussian mechanism, exactly: (epsilon, delta)-differential privacy, or rho-zCDP.

    Give epsilon and delta, or use `for_rho` or `for_scale`. It is frozen, as LaplaceMechanism is;
    `replace` takes the arguments that it was made with.

    Parameters
    ----------
    epsilon, delta
        The privacy loss, and the probability with which it may be exceeded; delta should be far
        below 1 divided by the number of people. The scale is the smallest that suffices, by the
        analytic calibration of Balle and Wang (2018), certified in ball arithmetic.
    sensitivity
        The largest change of the value when one person's data is added, removed or replaced. For
        an array, the Euclidean distance (L2).
    grid, lower, upper
        As in LaplaceMechanism.

    Attributes
    ----------
    scale
        The standard deviation of the noise.
    grid
        The grid in use.
    epsilon, delta, rho
        The privacy loss; None for those that are not arguments.
    sensitivity, lower, upper
        The arguments.

    Examples
    --------
    >>> mechanism = GaussianMechanism(epsilon=1.0, delta=1e-6, sensitivity=1.0)
    >>> round(mechanism.scale, 4)
    4.2247
    >>> mechanism.replace(sensitivity=2.0).scale / mechanism.scale
    2.0
    """

    epsilon: float | None = None
    delta: float | None = None
    rho: float | None = None
    _form = exact.GAUSSIAN_PAIRS
    _form_for_one = exact.GAUSSIAN_2

    @require_named_arguments(_require_epsilon_and_delta)
    def __init__(
        self,
        *,
        epsilon: float,
        delta: float,
        sensitivity: float,
        grid: float | None = None,
        lower: float | None = None,
        upper: float | None = None,
    ) -> None:
        checked = check_all_positive(epsilon=epsilon, delta=delta, sensitivity=sensitivity)
        scale = calibration.gaussian_scale(**checked)
        self._set_up(checked, scale, grid, lower, upper)

    @classmethod
    @explain_calls
    def for_rho(
        cls,
        rho: float,
        *,
        sensitivity: float,
        grid: float | None = None,
        lower: float | None = None,
        upper: float | None = None,
    ) -> Self:
        """Return a mechanism with loss rho in zero-concentrated differential privacy (rho-zCDP).

        The scale is the smallest float that is at least sensitivity / sqrt(2 rho).

        Examples
        --------
        >>> mechanism = GaussianMechanism.for_rho(0.5, sensitivity=2.0)
        >>> mechanism.scale
        2.0
        >>> mechanism.replace(rho=2.0)
        GaussianMechanism.for_rho(2.0, sensitivity=2.0)
        """
        self = cls.__new__(cls)
        checked = check_all_positive(rho=rho, sensitivity=sensitivity)
        scale = calibration.gaussian_scale_for_rho(**checked)
        self._set_up(checked, scale, grid, lower, upper)
        return self

    @classmethod
    @explain_calls
    def for_scale(
        cls,
        scale: float,
        *,
        sensitivity: float,
        grid: float | None = None,
        lower: float | None = None,
        upper: float | None = None,
    ) -> Self:
        """Return a mechanism whose noise has this standard deviation.

        Examples
        --------
        >>> GaussianMechanism.for_scale(3.0, sensitivity=1.0, grid=0.5)
        GaussianMechanism.for_scale(3.0, sensitivity=1.0, grid=0.5)
        """
        self = cls.__new__(cls)
        checked = check_all_positive(scale=scale, sensitivity=sensitivity)
        self._set_up(checked, checked["scale"], grid, lower, upper)
        return self

    @property
    def _maker(self) -> Callable[..., Self]:
        if "rho" in self._arguments:
            return self.for_rho
        if "scale" in self._arguments:
            return self.for_scale
        return type(self)

    @property
    def _noise(self) -> Gaussian:
        return Gaussian(self.scale)


def _default_grid(scale: float) -> float:
    """Return the smallest power of two that is at least scale * 2^-20."""
    significand, exponent = math.frexp(scale)
    return math.ldexp(1.0, exponent - 20 - (significand == 0.5))  # noqa: PLR2004 - of a power of two


def _at_most(bound: float, dtype: DType) -> float:
    """Return the largest finite number of a format that is at most an int or a float."""
    largest = float(np.finfo(dtype).max)
    if bound < -largest:
        return -math.inf
    inside = min(bound, largest)
    nearest = round_to_dtype(np.array(float(inside)), dtype)
    # Python compares an int with a float exactly.
    if float(nearest) > inside:
        with np.errstate(all="ignore"):
            nearest = np.nextafter(nearest, dtype.type(-math.inf))
    return float(nearest)


def _clamp(value: int, lower: int | None, upper: int | None) -> int:
    if lower is not None:
        value = max(value, lower)
    return value if upper is None else min(value, upper)
