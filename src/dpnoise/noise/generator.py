"""Generator: secure noise with an interface similar to NumPy's, without seed or state."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import KW_ONLY, InitVar, dataclass
from functools import lru_cache, wraps
from inspect import Parameter, signature
from typing import ClassVar, Final, NamedTuple, NoReturn, ParamSpec, TypedDict, TypeVar, Unpack

import numpy as np
from numpy.typing import ArrayLike, DTypeLike

from dpnoise.core.arrays import (
    Array,
    DType,
    Floats,
    Numbers,
    Shape,
    check_no_overlap,
    check_positive_array,
    check_rounding_mode,
)
from dpnoise.core.entropy import SYSTEM, WORD, EntropySource, Words
from dpnoise.core.errors import (
    ArgumentError,
    ArgumentTypeError,
    check_choice,
    check_integer,
    name_with_module,
    reject,
    reject_type,
    scrub_traceback,
    short_repr,
)
from dpnoise.core.kernel_table import kernel_for_one
from dpnoise.core.parallel import Worker, run_over_key_stream
from dpnoise.noise import forms
from dpnoise.noise.distributions import ChiSquared, Distribution, Gamma
from dpnoise.noise.forms import Forms
from dpnoise.noise.inversion import PRECISIONS, variates_for

Size = int | tuple[int, ...] | None

_PRECISION: Final = {np.dtype(name): digits for name, digits in PRECISIONS.items()}
_FOUR: Final = 4
_INFINITY: Final = math.inf
_LARGEST_SIZE: Final = 2**63 - 1
# All uniforms of a number are in memory at once, 16 bytes for each: 256 MiB for this many.
_MOST_VARIATES: Final = 2**24


class DrawOptions(TypedDict, total=False):
    """The arguments that all methods of a Generator share, apart from `scale` and `size`."""

    dtype: DTypeLike | None
    out: Array | None
    variates: int | None
    form: str | None
    precision: int | None


_OPTIONS: Final = frozenset(DrawOptions.__annotations__)


def _reject_unknown(options: DrawOptions) -> NoReturn:
    if "loc" in options:
        raise ArgumentTypeError(
            "Noise has mean 0, so there is no loc. To publish a number, use a mechanism, as in "
            "dpnoise.LaplaceMechanism(epsilon=1.0, sensitivity=1.0).release(number)."
        )
    names = ", ".join(DrawOptions.__annotations__)
    raise ArgumentTypeError(
        f"There is no argument {min(options.keys() - _OPTIONS)!r}: give scale, size, {names}."
    )


_Parameters = ParamSpec("_Parameters")
_Result = TypeVar("_Result")


def explain_positions(method: Callable[_Parameters, _Result]) -> Callable[_Parameters, _Result]:
    """Explain why a method takes scale and size by name only."""
    parameters = signature(method).parameters
    most = [each.kind for each in parameters.values()].count(Parameter.POSITIONAL_OR_KEYWORD)
    by_name = "scale=2.0, size=10" if "scale" in parameters else "size=10"
    name = method.__name__

    @wraps(method)
    def wrapper(*arguments: _Parameters.args, **options: _Parameters.kwargs) -> _Result:
        if len(arguments) > most:
            raise ArgumentTypeError(
                f"{name} takes arguments by name, as in {name}({by_name}): by position, NumPy's "
                "users would expect loc first, and noise has no loc."
            )
        return method(*arguments, **options)

    return wrapper


class _NoSeed:
    """The attribute `seed` of a Generator; calling it raises an error that explains."""

    def __call__(self, *_: object) -> NoReturn:
        raise ArgumentTypeError(
            "A dpnoise.Generator takes no seed: repeatable noise protects nobody. "
            "For repeatable tests, and only for tests, use dpnoise.testing.fixed_generator."
        )


_NO_SEED: Final = _NoSeed()


@dataclass(frozen=True)
class Generator:
    """Draws noise for differential privacy, each variate from n uniforms of a secure generator.

    It has neither seed nor state. Every bulk call draws a fresh 256-bit key from the operating
    system and expands it with AES-256; every scalar call takes its bits from the operating system.
    Nothing repeats after a fork, in threads or after a restore, so a Generator can be shared,
    copied and pickled freely.

    A secret plus noise in floating point can reveal the secret, even with perfect noise: see
    docs/limitations.md. To publish a number, use a mechanism such as `dpnoise.LaplaceMechanism`.

    The drawing methods share their arguments, which `laplace` explains. Arrays must be in this
    machine's byte order; they need not be contiguous.

    A call raises RoundingModeError where the thread does not round to nearest.

    Parameters
    ----------
    seed
        Must be None: noise that can be repeated protects nobody.
    threads
        The number of threads for large arrays; None is all cores.
    security_bits
        Without `variates`, n is the smallest supported number with
        (n-1) * precision >= security_bits, as the paper chooses it.

    Attributes
    ----------
    source
        The source of all bits: the operating system. Only `dpnoise.testing` has another one.

    Examples
    --------
    >>> import dpnoise
    >>> rng = dpnoise.Generator()
    >>> rng.laplace(scale=2.0, size=1000).shape
    (1000,)
    >>> rng.normal(size=(4, 4), dtype="float32", variates=8).dtype
    dtype('float32')
    """

    seed: InitVar[None] = None
    _: KW_ONLY
    threads: int | None = None
    security_bits: int = 128

    source: ClassVar[EntropySource] = SYSTEM

    def __post_init__(self, seed: object) -> None:
        if seed is not None and seed is not _NO_SEED:
            _NO_SEED()
        if self.threads is not None:
            check_integer("threads", self.threads, least=1)
        check_integer("security_bits", self.security_bits, least=1)

    def spawn(self, n_children: int) -> list[Generator]:
        """Return generators for other threads or processes: independent, as every call is.

        Parameters
        ----------
        n_children
            How many to return.
        """
        return [self] * check_integer("n_children", n_children, least=0)

    @explain_positions
    def random(
        self,
        *,
        size: Size = None,
        dtype: DTypeLike | None = None,
        out: Array | None = None,
        precision: int | None = None,
    ) -> Numbers:
        """Draw uniforms: multiples of 2^-precision on [0, 1).

        Parameters
        ----------
        size, dtype, out, precision
            As for `laplace`.
        """
        options: DrawOptions = {"dtype": dtype, "out": out, "precision": precision}
        return self._draw(forms.UNIFORM, 1.0, size, options)

    @explain_positions
    def laplace(
        self, *, scale: ArrayLike = 1.0, size: Size = None, **options: Unpack[DrawOptions]
    ) -> Numbers:
        """Draw Laplace noise with mean 0 and scale b: variance 2 b^2.

        Parameters
        ----------
        scale
            The scale b, greater than 0: one number, or an array with one for each variate.
        size
            How many: an int, a tuple for the shape of an array, or None for one number.
        **options
            `dtype` is "float64" (the default), "float32" or "float16". `out` is an array to fill.
            `variates` is n, the number of uniforms for each variate, at most 2^24. `form` is a
            name from `dpnoise.Laplace().forms`: by default, n = 2 selects the difference of
            exponentials, 4 Theorem 5.1, and 8 and its multiples the products of Gaussians. The
            insecure n = 1 needs form="inverse". `precision` is the number of random bits of each
            uniform: 53, 24 or 11 by default, as the dtype holds.

        Returns
        -------
        A float for size=None, else an array.

        Raises
        ------
        ArgumentError, ArgumentTypeError
            An argument is out of range or of the wrong type; `out` is unchanged.

        Examples
        --------
        >>> import dpnoise
        >>> isinstance(dpnoise.Generator().laplace(scale=2.0), float)
        True
        """
        return self._draw(forms.LAPLACE, scale, size, options)

    @explain_positions
    def normal(
        self, *, scale: ArrayLike = 1.0, size: Size = None, **options: Unpack[DrawOptions]
    ) -> Numbers:
        """Draw Gaussian noise with mean 0, from n/2 half pairs.

        Parameters
        ----------
        scale
            The standard deviation, greater than 0: one number, or an array.
        size, **options
            As for `laplace`.
        """
        return self._draw(forms.GAUSSIAN, scale, size, options)

    @explain_positions
    def exponential(
        self, *, scale: ArrayLike = 1.0, size: Size = None, **options: Unpack[DrawOptions]
    ) -> Numbers:
        """Draw exponential variates, each from two half gammas.

        Parameters
        ----------
        scale
            The mean, greater than 0: one number, or an array.
        size, **options
            As for `laplace`.
        """
        return self._draw(forms.gamma(1.0), scale, size, options)

    @explain_positions
    def gamma(
        self,
        shape: float,
        *,
        scale: ArrayLike = 1.0,
        size: Size = None,
        **options: Unpack[DrawOptions],
    ) -> Numbers:
        """Draw gamma variates: half gammas where 2 * shape is whole, pieces Gamma(shape/n) else.

        Parameters
        ----------
        shape
            The shape, greater than 0: one number, because it decides the form.
        scale, size, **options
            As for `laplace`.
        """
        return self._draw(Gamma(shape).forms, scale, size, options)

    @explain_positions
    def chisquare(self, df: float, *, size: Size = None, **options: Unpack[DrawOptions]) -> Numbers:
        """Draw chi-squared variates: 2 Gamma(df/2).

        Parameters
        ----------
        df
            The degrees of freedom, greater than 0.
        size, **options
            As for `laplace`.
        """
        return self._draw(ChiSquared(df).forms, 2.0, size, options)

    @explain_positions
    def gumbel(
        self, *, scale: ArrayLike = 1.0, size: Size = None, **options: Unpack[DrawOptions]
    ) -> Numbers:
        """Draw Gumbel variates with mode 0: minus the logarithm of exponential ones.

        Parameters
        ----------
        scale, size, **options
            As for `laplace`.
        """
        return self._draw(forms.GUMBEL, scale, size, options)

    @explain_positions
    def cauchy(
        self, *, scale: ArrayLike = 1.0, size: Size = None, **options: Unpack[DrawOptions]
    ) -> Numbers:
        """Draw Cauchy variates with median 0: means of n tangents.

        Parameters
        ----------
        scale, size, **options
            As for `laplace`.
        """
        return self._draw(forms.CAUCHY, scale, size, options)

    @explain_positions
    def sample(
        self, distribution: Distribution, *, size: Size = None, **options: Unpack[DrawOptions]
    ) -> Numbers:
        """Draw from a distribution object, for example a party's share.

        Parameters
        ----------
        distribution
            Such as `dpnoise.Laplace(scale=2.0).share(8)`.
        size, **options
            As for `laplace`.

        Examples
        --------
        >>> import dpnoise
        >>> share = dpnoise.Laplace(scale=2.0).share(8)
        >>> dpnoise.Generator().sample(share, size=1000).shape
        (1000,)
        """
        if not isinstance(distribution, Distribution):
            reject_type("distribution", distribution, "be a Distribution")
        return self._draw(distribution.forms, distribution.scale, size, options)

    @scrub_traceback
    def _draw(
        self, available: Forms, scale: ArrayLike | float, size: Size, options: DrawOptions
    ) -> Numbers:
        """Check everything, then draw: a check that fails leaves `out` as it was."""
        if not options.keys() <= _OPTIONS:
            _reject_unknown(options)
        dtype, out = options.get("dtype"), options.get("out")
        variates, form = options.get("variates"), options.get("form")
        precision = options.get("precision")
        if out is not None:
            dtype = _dtype_of(out, dtype)
        # Checked before the plan is looked up: to its cache 4.0 and 4 are one key.
        if variates is not None:
            variates = check_integer("variates", variates, least=1)
        if precision is not None:
            precision = check_integer("precision", precision, least=1)
        # Checked too, because a cache key must be hashable.
        if form is not None:
            check_choice("form", form, [named.name for named in available])
        if dtype is not None:
            dtype = _format(dtype)
        is_scalar = size is None and out is None
        plan = _choose_plan(
            available, form, variates, dtype, precision, self.security_bits, is_scalar
        )
        if isinstance(scale, float) and 0.0 < scale < _INFINITY:
            scales = None
        else:
            scales = check_positive_array("scale", scale)
            scale, scales = (float(scales), None) if scales.ndim == 0 else (1.0, scales)
        check_rounding_mode()
        if is_scalar and scales is None:
            return self._draw_one(plan, scale)
        target = None if out is None else np.asarray(out)  # A subclass may misreport its shape.
        shape = _output_shape(size, target, () if scales is None else scales.shape)
        target = _allocate(shape, plan.dtype, size) if target is None else target
        if target.size:
            self._fill(plan, scale, scales, target)
        return target if out is None else out

    def _fill(self, plan: _DrawPlan, scale: float, scales: Floats | None, out: Array) -> None:
        """Draw into an array; on an exception, overwrite it with zeros."""
        if scales is not None and np.may_share_memory(scales, out):
            scales = scales.copy()
        try:
            draw = _Draw(plan, scale, scales, out)
            run_over_key_stream(self.source.key(), plan.variates, out.size, draw, self.threads)
        except BaseException:
            out[...] = 0.0  # One statement: CPython runs another signal handler after it.
            raise

    def _draw_one(self, plan: _DrawPlan, scale: float) -> Numbers:
        """Draw one number."""
        kernel, scalar_kernel, n, p, parameters, _, narrow = plan
        if scalar_kernel is not None:
            value = scale * scalar_kernel(self.source.random_bytes(8 * _FOUR), p)
        else:
            words = np.frombuffer(self.source.random_bytes(8 * n), dtype=WORD)
            work = np.empty(n)
            kernel(words, n, p, *parameters, scale, work, work)
            value = work.item(0)
        if narrow is None:
            return value
        with np.errstate(all="ignore"):  # Overflow gives infinity, as in arrays.
            return narrow(value)


Generator.seed = _NO_SEED  # type: ignore[attr-defined] # Otherwise None, the argument's default.


_SYSTEM: Final = Generator()


def check_generator(rng: Generator | None) -> Generator:
    """Return the Generator to draw from; None is one on all cores."""
    if rng is None:
        return _SYSTEM
    if not isinstance(rng, Generator):
        raise ArgumentTypeError(
            f"rng must be a dpnoise.Generator, got {name_with_module(rng)}. Only a "
            "dpnoise.Generator takes new bits from the operating system for every call."
        )
    return rng


class _DrawPlan(NamedTuple):
    """The kernels that a call's arguments select, and their arguments besides the words."""

    kernel: Callable[..., None]
    scalar_kernel: Callable[..., float] | None
    variates: int
    precision: int
    parameters: tuple[float, ...]
    dtype: DType
    narrow: Callable[[float], Numbers] | None

    @property
    def arguments(self) -> tuple[float, ...]:
        return (self.variates, self.precision, *self.parameters)


@lru_cache(maxsize=256)
def _choose_plan(
    available: Forms,
    form: str | None,
    variates: int | None,
    dtype: DType | None,
    precision: int | None,
    security_bits: int,
    is_scalar: bool,  # noqa: FBT001 - a key of the cache, like the others
) -> _DrawPlan:
    """Choose the form, n, p and the kernels; `is_scalar` asks for the kernel of a single number."""
    kind = np.dtype(np.float64) if dtype is None else dtype
    most = _PRECISION[kind]
    p = most if precision is None else precision
    if p > most:
        reject("precision", p, f"be at most {most}, the digits of a {kind}")
    chosen, n = forms.choose_form(available, form, variates, variates_for(security_bits, p))
    if n > _MOST_VARIATES:
        name, given = ("variates", n) if variates is not None else ("security_bits", security_bits)
        raise ArgumentError(
            f"{name} must request at most 2^24 uniforms for each number, which are all in memory "
            f"at once, got {short_repr(given)}."
        )
    return _DrawPlan(
        kernel=chosen.kernel(),
        scalar_kernel=kernel_for_one(chosen.scalar_kernel(), "i")
        if is_scalar and chosen.scalar_kernel and n == _FOUR
        else None,
        variates=n,
        precision=p,
        parameters=chosen.parameters,
        dtype=kind,
        narrow=None if kind == np.float64 else kind.type,
    )


@dataclass(frozen=True)
class _Draw:
    """Prepares the workers that draw into `out`; it is called once in each thread."""

    plan: _DrawPlan
    scale: float
    scales: Floats | None
    out: Array

    @property
    def direct(self) -> bool:
        """True if the kernel can write directly into `out`."""
        flags = self.out.flags
        return bool(flags.c_contiguous and flags.aligned and self.out.dtype == np.float64)

    def __call__(self, chunk_elements: int) -> Worker:
        kernel, arguments = self.plan.kernel, (*self.plan.arguments, self.scale)
        scratch = np.empty(chunk_elements * self.plan.variates)
        scales = None if self.scales is None else np.broadcast_to(self.scales, self.out.shape).flat
        flat = self.out.reshape(-1) if self.out.flags.c_contiguous else self.out.flat
        buffer = None if self.direct else np.empty(chunk_elements)

        def chunk(words: Words, start: int, stop: int) -> None:
            z = flat[start:stop] if buffer is None else buffer[: stop - start]
            # New threads do not inherit NumPy's error settings; overflow needs no warning.
            with np.errstate(all="ignore"):
                kernel(words, *arguments, scratch, z)
                if scales is not None:
                    z *= scales[start:stop]
                if buffer is not None:
                    flat[start:stop] = z  # Rounded once, to the format of `out`.

        return chunk


def _dtype_of(out: object, dtype: DTypeLike | None) -> DType:
    """Return the dtype of `out`; raise if `out` cannot be filled or contradicts `dtype`."""
    if not isinstance(out, np.ndarray):
        raise ArgumentTypeError(f"out must be a NumPy array, got {type(out).__name__}.")
    if isinstance(out, np.ma.MaskedArray):
        raise ArgumentTypeError("out must not be a masked array: give out.data.")
    out = np.asarray(out)
    check_no_overlap(out)
    if not out.flags.writeable:
        raise ArgumentError("out must be writeable, got a read-only array.")
    kind: DType = out.dtype
    _check_byte_order("out", kind)
    if kind not in _PRECISION:
        allowed = ", ".join(PRECISIONS)
        reject_type("out.dtype", str(kind), f"be one of {allowed}")
    if dtype is not None and _format(dtype) != kind:
        given = str(np.dtype(dtype))
        reject_type("dtype", given, f"be that of out, {str(kind)!r}")
    return kind


def _format(dtype: DTypeLike) -> DType:
    """Return a dtype as one of the supported formats."""
    try:
        kind = np.dtype(dtype)
    except (TypeError, ValueError):
        kind = None
    if kind is not None:
        _check_byte_order("dtype", kind)
    if kind not in _PRECISION:
        given = dtype if kind is None else str(kind)
        reject("dtype", given, "be one of " + ", ".join(PRECISIONS))
    return kind


def _check_byte_order(name: str, kind: DType) -> None:
    """Raise if a supported format is requested in the other byte order."""
    if not kind.isnative and kind.newbyteorder("=") in _PRECISION:
        raise ArgumentError(
            f"{name} must have the byte order of this machine, got {str(kind)!r}. Draw in "
            f"{kind.newbyteorder('=').name} and convert the result with astype({str(kind)!r})."
        )


def _allocate(shape: Shape, kind: DType, size: Size) -> Array:
    """Return a new array; raise if no array can have this shape."""
    try:
        return np.empty(shape, dtype=kind)
    except ValueError as error:
        reject("size", size, f"be that of an array: {str(error).rstrip('.')}")


def _output_shape(size: Size, out: Array | None, scale_shape: Shape) -> Shape:
    """Return the shape to draw; raise if `size`, `out` and `scale` disagree."""
    shape = None if out is None else out.shape
    if size is not None:
        entries = size if isinstance(size, tuple) else (size,)
        shape = tuple(
            check_integer("size", entry, least=0, most=_LARGEST_SIZE) for entry in entries
        )
        if out is not None and out.shape != shape:
            reject("size", size, f"be the shape of out, {out.shape}")
    if shape is None or not scale_shape:
        return scale_shape if shape is None else shape
    try:
        if np.broadcast_shapes(shape, scale_shape) == shape:
            return shape
    except ValueError:
        pass
    raise ArgumentError(f"scale must broadcast to the shape {shape}, got shape {scale_shape}.")
