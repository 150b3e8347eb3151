"""Real libraries as targets: each adapter calls a library as its users do.

A library is imported only when its adapter is used. Each target has a separate generator, unless
the library itself has one global generator.
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
Draw = Callable[[int], NDArray[np.floating]]
ScaleAndRelease = tuple[float, ReleaseFunction]

LAPLACE: Final = "laplace"
GAUSSIAN: Final = "gaussian"


@dataclass(frozen=True)
class Privacy:
    """The claim of a target, and the scale of the noise for it."""

    epsilon: float = 1.0
    delta: float = 1e-6
    sensitivity: float = 1.0
    noise: str = LAPLACE

    def scale(self, noise: str | None = None) -> float:
        """Return the scale of Laplace noise, or the standard deviation of Gaussian noise."""
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
    """The function that makes a target, the kind of its noise, and its package."""

    make: Maker
    noise: str
    package: str | None = None


def _add_noise(prepare: Callable[[float], Draw]) -> Maker:
    """Add noise of the claimed scale to the value in floating point, as most code does."""

    def make(privacy: Privacy) -> ScaleAndRelease:
        scale = privacy.scale()
        draw = prepare(scale)
        return scale, lambda value, n: np.asarray(value + draw(n))

    return make


def _release_one_by_one(release: Callable[[float], float]) -> ReleaseFunction:
    return lambda value, n: np.array([release(value) for _ in range(n)])


# The standard library and the paper's formulas ---------------------------------------------------


def _draw_one_by_one(draw: Callable[[], float]) -> Draw:
    return lambda n: np.fromiter((draw() for _ in range(n)), np.float64, n)


def _random(method: str) -> Maker:
    rng = random.Random
    return _add_noise(lambda scale: _draw_one_by_one(partial(getattr(rng(), method), 0.0, scale)))


def _scale_noise(standard: Draw) -> Maker:
    return _add_noise(lambda scale: lambda n: scale * standard(n))


def _paper_laplace(rng: Callable[[], random.Random]) -> Maker:
    """Apply equation (2) to uniforms, with a separate generator for each target."""

    def make(privacy: Privacy) -> ScaleAndRelease:
        return _scale_noise(_draw_one_by_one(partial(paper_laplace, rng().random)))(privacy)

    return make


def paper_laplace(random: Callable[[], float]) -> float:
    """Equation (2) of the paper: (-1)^round(U) log(1 - 2|U - 1/2|), drawn again at U = 0."""
    while not (U := random()):
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


# Arrays ------------------------------------------------------------------------------------------


def _numpy(rng: Callable[[], object], method: str) -> Maker:
    return _add_noise(lambda scale: partial(getattr(rng(), method), 0.0, scale))


def _scipy(name: str, scale: float) -> Draw:
    from scipy import stats  # noqa: PLC0415 - SciPy takes long to import

    draw: Draw = getattr(stats, name)(scale=scale).rvs
    return draw


def _torch_laplace(scale: float) -> Draw:
    laplace = import_extra("torch", "peers").distributions.Laplace(0.0, scale)
    return lambda n: laplace.sample((n,))


def _torch_normal(scale: float, dtype: str | None = None) -> Draw:
    torch = import_extra("torch", "peers")
    options = {} if dtype is None else {"dtype": getattr(torch, dtype)}
    return lambda n: torch.normal(0.0, scale, (n,), **options)


def _opacus(scale: float, *, secure: bool) -> Draw:
    """Draw the noise of DP-SGD; secure_mode is off by default.

    Its formula for secure_mode sums 2n = 4 Gaussians and halves them. The mode needs torchcsprng,
    which has no build for current PyTorch. The formula also runs without it, on PyTorch's default
    generator.
    """
    torch = import_extra("torch", "peers")
    noise = import_extra("opacus.optimizers.optimizer", "peers")._generate_noise  # noqa: SLF001
    return lambda n: noise(scale, torch.zeros(n), None, secure)


def _jax(name: str, scale: float) -> Draw:
    """Draw under keys of 64 bits from the operating system, the most that JAX's generator takes."""
    jax = import_extra("jax", "peers")

    def key() -> object:
        return jax.random.wrap_key_data(np.frombuffer(secrets.token_bytes(8), np.uint32))

    return lambda n: scale * getattr(jax.random, name)(key(), (n,))


def _jax_privacy(privacy: Privacy) -> ScaleAndRelease:
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


# Mechanisms --------------------------------------------------------------------------------------


def _diffprivlib(name: str, **options: float) -> Maker:
    def make(privacy: Privacy) -> ScaleAndRelease:
        scale = privacy.scale() if privacy.noise == LAPLACE else None
        mechanisms = import_extra("diffprivlib.mechanisms", "peers")
        mechanism = getattr(mechanisms, name)(**privacy.parameters, **options)
        # The library calibrates Gaussian mechanisms itself.
        used_scale = mechanism._scale if scale is None else scale  # noqa: SLF001
        return used_scale, _release_one_by_one(mechanism.randomise)

    return make


def _diffprivlib_discrete(privacy: Privacy) -> ScaleAndRelease:
    """Release integers, with a rejection sampler."""
    parameters = {
        **privacy.parameters,
        "sensitivity": math.ceil(privacy.sensitivity),
    }
    mechanism = import_extra("diffprivlib.mechanisms", "peers").GaussianDiscrete(**parameters)
    scale = mechanism._scale  # noqa: SLF001 - its own calibration
    return scale, _release_one_by_one(lambda value: mechanism.randomise(round(value)))


def _opendp(make: str, metric: str, privacy: Privacy) -> ScaleAndRelease:
    """Release vectors on the grid 2^-40, which is much faster than single numbers."""
    scale = privacy.scale()
    opendp = import_extra("opendp.prelude", "peers")
    opendp.enable_features("contrib")

    def release(value: float, n: int) -> ArrayLike:
        domain = opendp.vector_domain(opendp.atom_domain(T=float, nan=False), size=n)
        mechanism = getattr(opendp.m, make)(domain, getattr(opendp, metric)(T=float), scale, k=-40)
        return np.asarray(mechanism([float(value)] * n))

    return scale, release


def _pydp(name: str, privacy: Privacy) -> ScaleAndRelease:
    scale = privacy.scale()
    mechanisms = import_extra("pydp.algorithms.numerical_mechanisms", "peers")
    mechanism = getattr(mechanisms, name)(**privacy.parameters)
    return scale, _release_one_by_one(lambda value: mechanism.add_noise(float(value)))


def _dpnoise_in_floats(method: str) -> Maker:
    """Add dpnoise's noise in floating point, which docs/limitations.md warns of."""
    draw = getattr(Generator(), method)
    return _add_noise(lambda scale: lambda n: draw(scale=scale, size=n))


def _dpnoise(kind: type[LaplaceMechanism | GaussianMechanism], privacy: Privacy) -> ScaleAndRelease:
    scale, mechanism = privacy.scale(), kind(**privacy.parameters)
    return scale, lambda value, n: mechanism.release(np.full(n, float(value)))


ADAPTERS: Final[dict[str, Adapter]] = {
    "random.gauss": Adapter(_random("gauss"), GAUSSIAN),
    "random.normalvariate": Adapter(_random("normalvariate"), GAUSSIAN),
    # The standard library has no Laplace noise: this is equation (2) on its uniforms.
    "random.laplace": Adapter(_paper_laplace(random.Random), LAPLACE),
    "paper.laplace": Adapter(_paper_laplace(random.SystemRandom), LAPLACE),
    "paper.gaussian.12bits": Adapter(
        _scale_noise(partial(paper_gaussians, precision=12)), GAUSSIAN
    ),
    "paper.theorem.8bits": Adapter(_scale_noise(partial(paper_theorem, precision=8)), LAPLACE),
    "numpy.laplace": Adapter(_numpy(np.random.default_rng, "laplace"), LAPLACE, "numpy"),
    "numpy.normal": Adapter(_numpy(np.random.default_rng, "normal"), GAUSSIAN, "numpy"),
    "numpy.RandomState.laplace": Adapter(
        _numpy(np.random.RandomState, "laplace"), LAPLACE, "numpy"
    ),
    "numpy.RandomState.normal": Adapter(_numpy(np.random.RandomState, "normal"), GAUSSIAN, "numpy"),
    "scipy.laplace": Adapter(_add_noise(partial(_scipy, "laplace")), LAPLACE, "scipy"),
    "scipy.norm": Adapter(_add_noise(partial(_scipy, "norm")), GAUSSIAN, "scipy"),
    "torch.laplace": Adapter(_add_noise(_torch_laplace), LAPLACE, "torch"),
    "torch.normal": Adapter(_add_noise(_torch_normal), GAUSSIAN, "torch"),
    "torch.normal.float64": Adapter(
        _add_noise(partial(_torch_normal, dtype="float64")), GAUSSIAN, "torch"
    ),
    "opacus": Adapter(_add_noise(partial(_opacus, secure=False)), GAUSSIAN, "opacus"),
    "opacus.secure_mode": Adapter(_add_noise(partial(_opacus, secure=True)), GAUSSIAN, "opacus"),
    "jax.laplace": Adapter(_add_noise(partial(_jax, "laplace")), LAPLACE, "jax"),
    "jax.normal": Adapter(_add_noise(partial(_jax, "normal")), GAUSSIAN, "jax"),
    "jax_privacy": Adapter(_jax_privacy, GAUSSIAN, "jax-privacy"),
    "diffprivlib.Laplace": Adapter(_diffprivlib("Laplace"), LAPLACE, "diffprivlib"),
    "diffprivlib.Snapping": Adapter(
        _diffprivlib("Snapping", lower=-1e3, upper=1e3), LAPLACE, "diffprivlib"
    ),
    "diffprivlib.GaussianAnalytic": Adapter(
        _diffprivlib("GaussianAnalytic"), GAUSSIAN, "diffprivlib"
    ),
    "diffprivlib.GaussianDiscrete": Adapter(_diffprivlib_discrete, GAUSSIAN, "diffprivlib"),
    "opendp.laplace": Adapter(partial(_opendp, "make_laplace", "l1_distance"), LAPLACE, "opendp"),
    "opendp.gaussian": Adapter(
        partial(_opendp, "make_gaussian", "l2_distance"), GAUSSIAN, "opendp"
    ),
    "pydp.laplace": Adapter(partial(_pydp, "LaplaceMechanism"), LAPLACE, "python-dp"),
    "pydp.gaussian": Adapter(partial(_pydp, "GaussianMechanism"), GAUSSIAN, "python-dp"),
    "dpnoise.laplace": Adapter(_dpnoise_in_floats("laplace"), LAPLACE, "dpnoise"),
    "dpnoise.normal": Adapter(_dpnoise_in_floats("normal"), GAUSSIAN, "dpnoise"),
    "dpnoise.release": Adapter(partial(_dpnoise, LaplaceMechanism), LAPLACE, "dpnoise"),
    "dpnoise.release.gaussian": Adapter(partial(_dpnoise, GaussianMechanism), GAUSSIAN, "dpnoise"),
}
