"""Real libraries as targets: each adapter calls a library as its users do.

A library is imported only when its adapter is used. Each target has a separate generator, unless
the library itself has one global generator. There are two kinds of functions:

- A maker takes a claim last, and returns the scale and the release function of a target. Its name
  begins with _make.
- A function whose name ends in _draw takes a scale last, and returns a function that draws n
  numbers, which `_adder` makes a target of.
"""

import math
import random
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dpnoise.core.arrays import Floats
from dpnoise.core.errors import import_extra
from dpnoise.noise.generator import Generator
from dpnoise.release.additive import GaussianMechanism, LaplaceMechanism
from dpnoise.release.calibration import check_scale, gaussian_scale, laplace_scale

ReleaseFunction = Callable[[float, int], ArrayLike]
DrawFunction = Callable[[int], NDArray[np.floating]]
ScaleAndRelease = tuple[float, ReleaseFunction]

LAPLACE: Final = "laplace"
GAUSSIAN: Final = "gaussian"


@dataclass(frozen=True)
class Privacy:
    """The privacy that a target claims, which determines the scale of its noise."""

    epsilon: float = 1.0
    delta: float = 1e-6
    sensitivity: float = 1.0
    noise: str = LAPLACE

    def scale(self, noise: str | None = None) -> float:
        """Return the scale of Laplace noise, or the standard deviation of Gaussian noise.

        `noise` replaces the noise of the claim.
        """
        if (noise or self.noise) == LAPLACE:
            return check_scale(laplace_scale(self.epsilon, self.sensitivity))
        return check_scale(gaussian_scale(self.epsilon, self.delta, self.sensitivity))

    @property
    def parameters(self) -> dict[str, float]:
        """The parameters of a mechanism with this noise, as most libraries name them."""
        parameters = {"epsilon": self.epsilon, "sensitivity": self.sensitivity}
        return parameters if self.noise == LAPLACE else {**parameters, "delta": self.delta}


Maker = Callable[[Privacy], ScaleAndRelease]


@dataclass(frozen=True)
class Adapter:
    """How to call one library: its maker, the kind of its noise, and its package."""

    make: Maker
    noise: str
    package: str | None = None


def _adder(prepare: Callable[..., DrawFunction], *arguments: object) -> Maker:
    """Return a maker of targets that add noise in floating point, as most code does."""

    def make(privacy: Privacy) -> ScaleAndRelease:
        scale = privacy.scale()
        draw = prepare(*arguments, scale)
        return scale, lambda value, n: np.asarray(value + draw(n))

    return make


def _release_one_by_one(release: Callable[[float], float]) -> ReleaseFunction:
    return lambda value, n: np.array([release(value) for _ in range(n)])


def _one_by_one_draw(draw: Callable[[], float]) -> DrawFunction:
    return lambda n: np.fromiter((draw() for _ in range(n)), np.float64, n)


def _random_draw(method: str, scale: float) -> DrawFunction:
    return _one_by_one_draw(partial(getattr(random.Random(), method), 0.0, scale))  # noqa: S311 - a target


def _paper_laplace_draw(rng: Callable[[], random.Random], scale: float) -> DrawFunction:
    uniform = rng().random
    return _one_by_one_draw(lambda: scale * paper_laplace(uniform))


def _scaled_draw(standard: Callable[[int, int], Floats], bits: int, scale: float) -> DrawFunction:
    """Draw standard noise from uniforms of this many bits, times the scale."""
    return lambda n: scale * standard(n, bits)


def paper_laplace(uniform: Callable[[], float]) -> float:
    """Equation (2) of the paper: (-1)^round(U) log(1 - 2|U - 1/2|), drawn again at U = 0."""
    while not (U := uniform()):
        pass
    logarithm = math.log(1.0 - 2.0 * abs(U - 0.5))
    return logarithm if U < 0.5 else -logarithm  # noqa: PLR2004 - the median


def paper_gaussians(n: int, precision: int) -> Floats:
    """Draw n Gaussians by equation (3), from uniforms of the operating system."""
    U1, U2 = _uniforms((2, n), precision).tolist()
    pairs = zip(U1, U2, strict=True)
    draw = (math.sqrt(-2 * math.log(1 - a)) * math.cos(2 * math.pi * b) for a, b in pairs)
    return np.fromiter(draw, np.float64, n)


def paper_theorem(n: int, precision: int) -> Floats:
    """Draw n Laplace variates by Theorem 5.1, from uniforms of the operating system."""
    rows = _uniforms((n, 2, 2), precision).tolist()
    summands = [[math.log(1 - U) * math.cos(math.pi * W) for U, W in row] for row in rows]
    return np.array([a + b for a, b in summands])


def _uniforms(shape: tuple[int, ...], precision: int) -> Floats:
    """Return random multiples of 2^-precision, from the operating system."""
    words = np.frombuffer(secrets.token_bytes(8 * math.prod(shape)), np.uint64)
    uniforms: Floats = np.ldexp(words >> np.uint64(64 - precision), -precision)
    return uniforms.reshape(shape)


def _numpy_draw(rng: Callable[[], object], method: str, scale: float) -> DrawFunction:
    return partial(getattr(rng(), method), 0.0, scale)


def _scipy_draw(name: str, scale: float) -> DrawFunction:
    from scipy import stats  # noqa: PLC0415 - SciPy takes long to import

    draw: DrawFunction = getattr(stats, name)(scale=scale).rvs
    return draw


def _torch_laplace_draw(scale: float) -> DrawFunction:
    laplace = import_extra("torch", "peers").distributions.Laplace(0.0, scale)
    return lambda n: laplace.sample((n,))


def _torch_normal_draw(dtype: str | None, scale: float) -> DrawFunction:
    torch = import_extra("torch", "peers")
    options = {} if dtype is None else {"dtype": getattr(torch, dtype)}
    return lambda n: torch.normal(0.0, scale, (n,), **options)


def _opacus_draw(scale: float, *, secure: bool) -> DrawFunction:
    """Return the noise of Opacus for DP-SGD. Opacus leaves secure_mode off by default.

    Its formula for secure_mode sums 2n = 4 Gaussians and halves them. The mode needs torchcsprng,
    which has no build for current PyTorch. The formula also runs without it, on PyTorch's default
    generator.
    """
    torch = import_extra("torch", "peers")
    noise = import_extra("opacus.optimizers.optimizer", "peers")._generate_noise  # noqa: SLF001
    return lambda n: noise(scale, torch.zeros(n), None, secure)


def _jax_draw(name: str, scale: float) -> DrawFunction:
    """Draw under keys of 64 bits from the operating system, the longest that JAX accepts."""
    jax = import_extra("jax", "peers")

    def key() -> object:
        return jax.random.wrap_key_data(np.frombuffer(secrets.token_bytes(8), np.uint32))

    return lambda n: scale * getattr(jax.random, name)(key(), (n,))


def _make_jax_privacy(privacy: Privacy) -> ScaleAndRelease:
    """Add the noise of DP-SGD to a sum of gradients, under its default key of 31 bits."""
    scale = privacy.scale()
    jax = import_extra("jax", "peers")
    noise = import_extra("jax_privacy.noise_addition", "peers")
    privatizer = noise.gaussian_privatizer(stddev=scale)
    state = privatizer.init(jax.numpy.zeros(1))

    def release(value: float, n: int) -> ArrayLike:
        nonlocal state
        released, state = privatizer.update(jax.numpy.full(n, value, "float32"), state)
        return np.asarray(released)

    return scale, release


_SNAPPED: Final = {"lower": -1e3, "upper": 1e3}


def _make_diffprivlib(name: str, options: dict[str, float], privacy: Privacy) -> ScaleAndRelease:
    scale = privacy.scale() if privacy.noise == LAPLACE else None
    mechanisms = import_extra("diffprivlib.mechanisms", "diffprivlib")
    mechanism = getattr(mechanisms, name)(**privacy.parameters, **options)
    # The library calibrates Gaussian mechanisms itself.
    used_scale = mechanism._scale if scale is None else scale  # noqa: SLF001
    return used_scale, _release_one_by_one(mechanism.randomise)


def _make_diffprivlib_discrete(privacy: Privacy) -> ScaleAndRelease:
    """Release integers, with a rejection sampler."""
    parameters = {**privacy.parameters, "sensitivity": math.ceil(privacy.sensitivity)}
    mechanism = import_extra("diffprivlib.mechanisms", "diffprivlib").GaussianDiscrete(**parameters)
    scale = mechanism._scale  # noqa: SLF001 - its own calibration
    return scale, _release_one_by_one(lambda value: mechanism.randomise(round(value)))


def _make_opendp(constructor: str, metric: str, privacy: Privacy) -> ScaleAndRelease:
    """Release vectors on the grid 2^-40, which is much faster than single numbers."""
    scale = privacy.scale()
    opendp = import_extra("opendp.prelude", "peers")
    opendp.enable_features("contrib")

    def release(value: float, n: int) -> ArrayLike:
        domain = opendp.vector_domain(opendp.atom_domain(T=float, nan=False), size=n)
        mechanism = getattr(opendp.m, constructor)(
            domain, getattr(opendp, metric)(T=float), scale, k=-40
        )
        return np.asarray(mechanism([float(value)] * n))

    return scale, release


def _make_pydp(name: str, privacy: Privacy) -> ScaleAndRelease:
    scale = privacy.scale()
    mechanisms = import_extra("pydp.algorithms.numerical_mechanisms", "peers")
    mechanism = getattr(mechanisms, name)(**privacy.parameters)
    return scale, _release_one_by_one(lambda value: mechanism.add_noise(float(value)))


def _dpnoise_draw(method: str, scale: float) -> DrawFunction:
    """Draw noise to add in floating point, which docs/limitations.md warns of."""
    draw = getattr(Generator(), method)
    return lambda n: draw(scale=scale, size=n)


def _make_dpnoise(
    kind: type[LaplaceMechanism | GaussianMechanism], privacy: Privacy
) -> ScaleAndRelease:
    scale, mechanism = privacy.scale(), kind(**privacy.parameters)
    return scale, lambda value, n: mechanism.release(np.full(n, float(value)))


_MAKERS: Final[dict[str, tuple[str, Maker]]] = {
    "random.gauss": (GAUSSIAN, _adder(_random_draw, "gauss")),
    "random.normalvariate": (GAUSSIAN, _adder(_random_draw, "normalvariate")),
    # The standard library has no Laplace noise: this is equation (2) on its uniforms.
    "random.laplace": (LAPLACE, _adder(_paper_laplace_draw, random.Random)),
    "paper.laplace": (LAPLACE, _adder(_paper_laplace_draw, random.SystemRandom)),
    "paper.gaussian.12bits": (GAUSSIAN, _adder(_scaled_draw, paper_gaussians, 12)),
    "paper.theorem.8bits": (LAPLACE, _adder(_scaled_draw, paper_theorem, 8)),
    "numpy.laplace": (LAPLACE, _adder(_numpy_draw, np.random.default_rng, "laplace")),
    "numpy.normal": (GAUSSIAN, _adder(_numpy_draw, np.random.default_rng, "normal")),
    "numpy.RandomState.laplace": (LAPLACE, _adder(_numpy_draw, np.random.RandomState, "laplace")),
    "numpy.RandomState.normal": (GAUSSIAN, _adder(_numpy_draw, np.random.RandomState, "normal")),
    "scipy.laplace": (LAPLACE, _adder(_scipy_draw, "laplace")),
    "scipy.norm": (GAUSSIAN, _adder(_scipy_draw, "norm")),
    "torch.laplace": (LAPLACE, _adder(_torch_laplace_draw)),
    "torch.normal": (GAUSSIAN, _adder(_torch_normal_draw, None)),
    "torch.normal.float64": (GAUSSIAN, _adder(_torch_normal_draw, "float64")),
    "opacus": (GAUSSIAN, _adder(partial(_opacus_draw, secure=False))),
    "opacus.secure_mode": (GAUSSIAN, _adder(partial(_opacus_draw, secure=True))),
    "jax.laplace": (LAPLACE, _adder(_jax_draw, "laplace")),
    "jax.normal": (GAUSSIAN, _adder(_jax_draw, "normal")),
    "jax_privacy": (GAUSSIAN, _make_jax_privacy),
    "diffprivlib.Laplace": (LAPLACE, partial(_make_diffprivlib, "Laplace", {})),
    "diffprivlib.Snapping": (LAPLACE, partial(_make_diffprivlib, "Snapping", _SNAPPED)),
    "diffprivlib.GaussianAnalytic": (GAUSSIAN, partial(_make_diffprivlib, "GaussianAnalytic", {})),
    "diffprivlib.GaussianDiscrete": (GAUSSIAN, _make_diffprivlib_discrete),
    "opendp.laplace": (LAPLACE, partial(_make_opendp, "make_laplace", "l1_distance")),
    "opendp.gaussian": (GAUSSIAN, partial(_make_opendp, "make_gaussian", "l2_distance")),
    "pydp.laplace": (LAPLACE, partial(_make_pydp, "LaplaceMechanism")),
    "pydp.gaussian": (GAUSSIAN, partial(_make_pydp, "GaussianMechanism")),
    "dpnoise.laplace": (LAPLACE, _adder(_dpnoise_draw, "laplace")),
    "dpnoise.normal": (GAUSSIAN, _adder(_dpnoise_draw, "normal")),
    "dpnoise.release": (LAPLACE, partial(_make_dpnoise, LaplaceMechanism)),
    "dpnoise.release.gaussian": (GAUSSIAN, partial(_make_dpnoise, GaussianMechanism)),
}


def library_package(name: str) -> str | None:
    """Return the package behind the name of a target or a mechanism; None for Python itself."""
    names = {"jax_privacy": "jax-privacy", "pydp": "python-dp", "smartnoise": "smartnoise-sql"}
    library = name.partition(".")[0]
    return None if library in {"random", "paper"} else names.get(library, library)


ADAPTERS: Final = {
    name: Adapter(make, noise, library_package(name)) for name, (noise, make) in _MAKERS.items()
}
