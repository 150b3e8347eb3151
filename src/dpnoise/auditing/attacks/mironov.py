"""Mironov's attack of 2012: a value is excluded if no uniform leads from it to the release.

`Mironov` inverts Laplace noise by inverse CDF in float64, Algorithm 1 of the paper. Two ways to
write the sampler are in use:

    the paper's equation (2)      z = (-1)^round(U) log(1 - 2|U - 1/2|)
    NumPy, and SciPy through it   z = log(U + U) for U < 1/2, else -log(2 - U - U)

They differ in a rounding: 2 - U loses U's last bit, which changes about half of the positive z.

`Tabulated` runs a float32 sampler over all of its 2^23 or 2^24 uniforms instead. Its model is the
library called step by step, each operation rounded to float32: fl(c + fl(s z)). Compiled into one
kernel (jax.jit), the same formula is rounded differently, and has another table.
"""

import math
from dataclasses import dataclass
from functools import lru_cache
from importlib.util import find_spec
from typing import Final

import numpy as np
from numpy.typing import NDArray

from dpnoise.auditing.attacks import base
from dpnoise.auditing.attacks.base import SOURCE, Attack, Event, Progress, no_progress
from dpnoise.auditing.targets.target import Releases, Target
from dpnoise.core.arrays import Flags, Floats
from dpnoise.core.errors import check_choice, check_integer, import_extra
from dpnoise.kernels import compile_kernel

Outputs = NDArray[np.float32]

# With this many candidate uniforms, one of them very likely fits: so the search is skipped.
_MAX_CANDIDATES: Final = 2.0**7
FORMULAS: Final = ("numpy", "paper")
NUMPY: Final = FORMULAS.index("numpy")

SAMPLERS: Final = ("jax.normal", "jax.laplace", "torch.laplace")


@compile_kernel
def laplace_release(U: float, value: float, scale: float, formula: int) -> float:
    """Return the release of a value from a uniform, to the last bit.

    Product and sum are rounded separately, as they are unless a build fuses them.
    """
    if U < 0.5:
        return value + scale * math.log(U + U)
    V = 2.0 - U - U if formula == NUMPY else 1.0 - 2.0 * (U - 0.5)
    return value - scale * math.log(V)


@compile_kernel
def has_uniform(q: float, c: float, s: float, precision: int, formula: int) -> bool:
    """Return whether a uniform U, or its mirror image 1 - U, gives the release q of the value c."""
    w = q - c
    z = w / s
    # |q - c - w| is at most half an ulp of q. The errors of the quotient, exp and log are below the
    # second term. So all preimages lie within `width` of the middle.
    slack = abs(np.nextafter(q, np.inf) - q) / s + 2.0**-50 * (abs(z) + 1.0)
    unit = 2.0**-precision
    middle = math.exp(-abs(z)) * 0.5
    width = middle * slack + 2.0 * unit
    if width > _MAX_CANDIDATES * unit:
        return True
    U = max(unit, math.floor((middle - width) / unit) * unit)
    while U <= min(0.5, middle + width):  # noqa: SIM300 - U is the variable
        if laplace_release(U, c, s, formula) == q or laplace_release(1.0 - U, c, s, formula) == q:
            return True
        U += unit
    return False


@compile_kernel
def _have_uniforms(q: Floats, c: float, s: float, precision: int, formula: int, out: Flags) -> None:
    for i in range(q.size):
        out[i] = has_uniform(q[i], c, s, precision, formula)


@dataclass(frozen=True)
class Mironov(Attack):
    """Excludes a value if no uniform of `precision` bits leads from it to the release.

    `formula` is "paper" or "numpy"; by default the one that excludes more.
    """

    name = "mironov"
    access = SOURCE
    breaks = "Laplace noise by inverse CDF: the paper's equation (2), NumPy, SciPy"
    source = "Mironov 2012; Holohan and Braghin 2021, Algorithm 1"
    default_target = "numpy.laplace"
    noise = "laplace"

    precision: int = 53
    formula: str | None = None

    def __post_init__(self) -> None:
        check_integer("precision", self.precision, least=2, most=53)
        check_choice("formula", self.formula, (None, *FORMULAS))

    def find(
        self, target: Target, value0: float, value1: float, n: int, progress: Progress = no_progress
    ) -> Event:
        """Return the event that value0 is possible and value1 is not, for the best formula."""
        words, events = f"no uniform of {self.precision} bits leads from {value1:g} to y", []
        for formula in FORMULAS if self.formula is None else (self.formula,):
            model = self.precision, FORMULAS.index(formula)
            possible = base.possible_by_kernel(_have_uniforms, target.scale, model)
            options = {"precision": self.precision, "formula": formula}
            source = base.exclusion_source(self, target, value0, value1, **options)
            event = base.exclusion_event(
                f"{words} ({formula})", possible, value0, value1, source=source
            )
            events.append(event)
        return base.best_event(events, target, value0, value1, n)


@lru_cache(maxsize=3)
def all_outputs(sampler: str) -> Outputs:
    """Return every output of a sampler at scale 1, in the order of its uniforms."""
    check_choice("sampler", sampler, SAMPLERS)
    library, function = sampler.split(".")
    table = _jax_outputs(function, 2**23) if library == "jax" else _torch_laplace_outputs()
    table.flags.writeable = False
    return table


@lru_cache(maxsize=3)
def _other_outputs(sampler: str) -> Outputs:
    """Return further outputs of a sampler, which it has in arrays of other sizes.

    XLA compiles a sampler for each size, and rounds differently in a large array of odd size. On
    aarch64 this changes one Laplace variate of 200.
    """
    library, function = sampler.split(".")
    if library != "jax":
        return np.empty(0, np.float32)
    usual, odd = all_outputs(sampler), _jax_outputs(function, 2**23 + 1)[: 2**23]
    return np.asarray(odd[odd != usual])


def _jax_outputs(function: str, size: int) -> Outputs:
    """Run a sampler of jax.random on all 2^23 mantissas, cyclically up to `size`.

    JAX makes a float32 uniform of the top 23 of 32 bits. A counting generator with element i equal
    to i 2^9 replaces the generator of JAX, so that the library itself computes the table.
    """
    jax = import_extra("jax", "peers")
    extend = import_extra("jax.extend.random", "peers")
    numpy = jax.numpy

    def bits(_key: object, _width: int, shape: tuple[int, ...]) -> object:
        return numpy.arange(shape[0], dtype=numpy.uint32) << 9

    def no_key(*_: object) -> object:
        return numpy.zeros(1, numpy.uint32)

    counting = extend.define_prng_impl(
        key_shape=(1,), seed=no_key, split=no_key, random_bits=bits, fold_in=no_key, tag="count"
    )
    key = jax.random.key(0, impl=counting)
    return np.asarray(getattr(jax.random, function)(key, (size,), np.float32))


def _torch_laplace_outputs() -> Outputs:
    """Run the formula of torch.distributions.Laplace on all 2^24 uniforms, in PyTorch.

    PyTorch draws x = k 2^-24, then u = x (2 - eps) + (eps - 1), rounded once. In float64 this is
    exact before the rounding.
    """
    torch = import_extra("torch", "peers")
    eps = torch.finfo(torch.float32).eps
    x = np.arange(2**24) * 2.0**-24
    u = torch.from_numpy((x * (2.0 - eps) + (eps - 1.0)).astype(np.float32))
    return np.asarray((-u.sign() * torch.log1p(-u.abs())).numpy())


@dataclass(frozen=True)
class Tabulated(Attack):
    """Excludes a value if no uniform at all leads from it to the release.

    `sampler` is "jax.normal", "jax.laplace" or "torch.laplace"; by default the one that excludes
    most, among those of installed libraries.
    """

    name = "table"
    access = SOURCE
    breaks = "float32 noise of one uniform: JAX normal and Laplace, PyTorch Laplace"
    source = "Mironov 2012, with a table of all outputs"
    default_target = "jax.normal"

    sampler: str | None = None

    def __post_init__(self) -> None:
        check_choice("sampler", self.sampler, (None, *SAMPLERS))

    def find(
        self, target: Target, value0: float, value1: float, n: int, progress: Progress = no_progress
    ) -> Event:
        """Return the event that value0 is possible and value1 is not, for the best sampler."""
        dtype = target(value0, n).dtype
        if dtype != np.float32:
            return base.impossible_event(f"no table holds all outputs in {dtype}")
        installed = [name for name in SAMPLERS if find_spec(name.split(".")[0])]
        if self.sampler is None and not installed:
            import_extra("jax", "peers")  # Raises, and names the extra.
        events = []
        for done, sampler in enumerate(installed if self.sampler is None else [self.sampler]):
            progress(done / len(SAMPLERS))
            words = f"{sampler} has a uniform that leads from {value0:g} to y, none from {value1:g}"
            possible = _have_outputs(sampler, target.scale)
            source = base.exclusion_source(self, target, value0, value1, sampler=sampler)
            event = base.exclusion_event(words, possible, value0, value1, source=source)
            events.append(event)
        return base.best_event(events, target, value0, value1, n)


def _have_outputs(sampler: str, scale: float) -> base.Explains:
    variates = np.concatenate([all_outputs(sampler), _other_outputs(sampler)])
    noise = np.sort(np.float32(scale) * variates)

    @lru_cache(maxsize=2)
    def releases(value: float) -> Outputs:
        # Rounding is monotonic, so the sum stays sorted.
        return np.asarray(np.float32(value) + noise)

    return lambda y, value: _is_in_table(y, releases(value))


def _is_in_table(y: Releases, table: Outputs) -> Flags:
    """Return which numbers are in a sorted table."""
    indices = np.minimum(np.searchsorted(table, y), table.size - 1)
    return np.asarray(table[indices] == y)
