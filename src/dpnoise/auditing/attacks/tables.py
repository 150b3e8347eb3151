"""Float32 samplers that use one uniform: every output they have, tabulated.

Such a sampler has 2^23 or 2^24 outputs in all. Running it over every uniform takes a second or two,
adding a candidate to the table gives every release that the candidate can have, and a release that
is not among them excludes the candidate. This is Mironov's attack of 2012 on float64
noise, where the table would be too large and each release had to be inverted by itself.

The model is the library called step by step, each operation rounded to float32: fl(c + fl(s z)).
Compiled into one kernel (jax.jit), the same formula is rounded elsewhere, and has another table.
"""

from dataclasses import dataclass
from functools import lru_cache
from importlib.util import find_spec
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from dpnoise.auditing.attacks.base import (
    SOURCE,
    Attack,
    Event,
    Flags,
    Progress,
    best,
    excluded,
    never,
    silent,
)
from dpnoise.auditing.targets.target import Releases, Target
from dpnoise.core.errors import check_choice, import_extra

Outputs = NDArray[np.float32]

SAMPLERS: Final = ("jax.normal", "jax.laplace", "torch.laplace")


@lru_cache(maxsize=3)
def outputs(sampler: str) -> Outputs:
    """Return every output of a sampler at scale 1, in the order of its uniforms."""
    check_choice("sampler", sampler, SAMPLERS)
    library, function = sampler.split(".")
    table = _jax_outputs(function, 2**23) if library == "jax" else _torch_laplace_outputs()
    table.flags.writeable = False
    return table


@lru_cache(maxsize=3)
def _other_outputs(sampler: str) -> Outputs:
    """Return the outputs that a sampler has beside these in arrays of some other sizes.

    XLA compiles a sampler for each size, and rounds otherwise in a large array of odd size: seen on
    aarch64, where one Laplace variate of 200 is another one then.
    """
    library, function = sampler.split(".")
    if library != "jax":
        return np.empty(0, np.float32)
    usual, odd = outputs(sampler), _jax_outputs(function, 2**23 + 1)[: 2**23]
    return np.asarray(odd[odd != usual])


def _jax_outputs(function: str, size: int) -> Outputs:
    """Run a sampler of jax.random on all 2^23 mantissas, and from the first on again.

    JAX makes a float32 uniform of the top 23 of 32 bits. A generator whose element i is i 2^9,
    given to JAX in the place of its own, makes the library itself write the table.
    """
    jax = import_extra("jax", "peers")
    extend = import_extra("jax.extend.random", "peers")
    numpy = jax.numpy

    def bits(_key: Any, _width: int, shape: tuple[int, ...]) -> Any:
        return numpy.arange(shape[0], dtype=numpy.uint32) << 9

    def no_key(*_: Any) -> Any:
        return numpy.zeros(1, numpy.uint32)

    counting = extend.define_prng_impl(
        key_shape=(1,), seed=no_key, split=no_key, random_bits=bits, fold_in=no_key, tag="count"
    )
    key = jax.random.key(0, impl=counting)
    return np.asarray(getattr(jax.random, function)(key, (size,), np.float32))


def _torch_laplace_outputs() -> Outputs:
    """Run the formula of torch.distributions.Laplace on all 2^24 uniforms, in PyTorch.

    PyTorch draws x = k 2^-24, then u = x (2 - eps) + (eps - 1), rounded once; float64 holds that
    exactly before the rounding.
    """
    torch = import_extra("torch", "peers")
    eps = torch.finfo(torch.float32).eps
    x = np.arange(2**24) * 2.0**-24
    u = torch.from_numpy((x * (2.0 - eps) + (eps - 1.0)).astype(np.float32))
    return np.asarray((-u.sign() * torch.log1p(-u.abs())).numpy())


@dataclass(frozen=True)
class Tabulated(Attack):
    """Excludes a value when no uniform at all gives the release from it.

    Parameters
    ----------
    sampler
        "jax.normal", "jax.laplace" or "torch.laplace"; by default the one that excludes most, of
        those whose library is installed.
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
        self, target: Target, value0: float, value1: float, n: int, progress: Progress = silent
    ) -> Event:
        """Return the event that value0 is possible and value1 is not, for the best sampler."""
        dtype = target(value0, n).dtype
        if dtype != np.float32:
            return never(f"no table holds all outputs in {dtype}")
        events = []
        for done, sampler in enumerate(self._samplers()):
            progress(done / len(SAMPLERS))
            events.append(_event(sampler, target.scale, value0, value1))
        return best(events, target, value0, value1, n)

    def _samplers(self) -> list[str]:
        if self.sampler is not None:
            return [self.sampler]
        installed = [name for name in SAMPLERS if find_spec(name.split(".")[0])]
        if not installed:
            import_extra("jax", "peers")
        return installed


def _event(sampler: str, scale: float, value0: float, value1: float) -> Event:
    variates = np.concatenate([outputs(sampler), _other_outputs(sampler)])
    noise = np.sort(np.float32(scale) * variates)
    # Rounding is monotonic, so what is sorted stays sorted.
    releases = {value: np.float32(value) + noise for value in (value0, value1)}

    def possible(y: Releases, value: float) -> Flags:
        return _among(y, releases[value])

    words = f"{sampler} has a uniform that leads from {value0:g} to y, none from {value1:g}"
    return excluded(words, possible, value0, value1)


def _among(y: Releases, table: Outputs) -> Flags:
    """Tell which numbers a sorted table has."""
    at = np.minimum(np.searchsorted(table, y), table.size - 1)
    return np.asarray(table[at] == y)
