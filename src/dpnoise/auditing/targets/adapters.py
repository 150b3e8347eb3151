"""Real libraries as targets: each adapter calls a library as its users do.

A library is imported only when its adapter is used. Each target has a separate generator, unless
the library itself has one global generator. There are three kinds of functions:

- A maker takes a claim, and returns the scale and the release function of a target. Its name
  begins with _make.
- A function whose name ends in _maker returns a maker.
- A function whose name ends in _draw takes a scale, and returns a function that draws n numbers.
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


def _added_noise_maker(prepare: Callable[[float], DrawFunction]) -> Maker:
    """Return a maker of targets that add noise in floating point, as most code does."""

    def make(privacy: Privacy) -> ScaleAndRelease:
        scale = privacy.scale()
        draw = prepare(scale)
        return scale, lambda value, n: np.asarray(value + draw(n))

    return make


def _release_one_by_one(release: Callable[[float], float]) -> ReleaseFunction:
    return lambda value, n: np.array([release(value) for _ in range(n)])


# The standard library and the paper's formulas ---------------------------------------------------


def _one_by_one_draw(draw: Callable[[], float]) -> DrawFunction:
    return lambda n: np.fromiter((draw() for _ in range(n)), np.float64, n)


def _random_maker(method: str) -> Maker:
    rng = random.Random
    return _added_noise_maker(
        lambda scale: _one_by_one_draw(partial(getattr(rng(), method), 0.0, scale))
    )


def _scaled_noise_maker(standard: DrawFunction) -> Maker:
    """Return a maker of targets that add standard noise times the scale."""
    return _added_noise_maker(lambda scale: lambda n: scale * standard(n))


def _paper_laplace_maker(rng: Callable[[], random.Random]) -> Maker:
    """Return a maker of equation (2), with a separate generator for each target."""

    def make(privacy: Privacy) -> ScaleAndRelease:
        return _scaled_noise_maker(_one_by_one_draw(partial(paper_laplace, rng().random)))(privacy)

    return make


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


# Arrays ------------------------------------------------------------------------------------------


def _numpy_maker(rng: Callable[[], object], method: str) -> Maker:
    return _added_noise_maker(lambda scale: partial(getattr(rng(), method), 0.0, scale))


def _scipy_draw(name: str, scale: float) -> DrawFunction:
    from scipy import stats  # noqa: PLC0415 - SciPy takes long to import

    draw: DrawFunction = getattr(stats, name)(scale=scale).rvs
    return draw


def _torch_laplace_draw(scale: float) -> DrawFunction:
    laplace = import_extra("torch", "peers").distributions.Laplace(0.0, scale)
    return lambda n: laplace.sample((n,))


def _torch_normal_draw(scale: float, dtype: str | None = None) -> DrawFunction:
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


# Mechanisms --------------------------------------------------------------------------------------


def _diffprivlib_maker(name: str, **options: float) -> Maker:
    def make(privacy: Privacy) -> ScaleAndRelease:
        scale = privacy.scale() if privacy.noise == LAPLACE else None
        mechanisms = import_extra("diffprivlib.mechanisms", "peers")
        mechanism = getattr(mechanisms, name)(**privacy.parameters, **options)
        # The library calibrates Gaussian mechanisms itself.
        used_scale = mechanism._scale if scale is None else scale  # noqa: SLF001
        return used_scale, _release_one_by_one(mechanism.randomise)

    return make


def _make_diffprivlib_discrete(privacy: Privacy) -> ScaleAndRelease:
    """Release integers, with a rejection sampler."""
    parameters = {**privacy.parameters, "sensitivity": math.ceil(privacy.sensitivity)}
    mechanism = import_extra("diffprivlib.mechanisms", "peers").GaussianDiscrete(**parameters)
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


def _dpnoise_floats_maker(method: str) -> Maker:
    """Add dpnoise's noise in floating point, which docs/limitations.md warns of."""
    draw = getattr(Generator(), method)
    return _added_noise_maker(lambda scale: lambda n: draw(scale=scale, size=n))


def _make_dpnoise(
    kind: type[LaplaceMechanism | GaussianMechanism], privacy: Privacy
) -> ScaleAndRelease:
    scale, mechanism = privacy.scale(), kind(**privacy.parameters)
    return scale, lambda value, n: mechanism.release(np.full(n, float(value)))


ADAPTERS: Final[dict[str, Adapter]] = {
    "random.gauss": Adapter(_random_maker("gauss"), GAUSSIAN),
    "random.normalvariate": Adapter(_random_maker("normalvariate"), GAUSSIAN),
    # The standard library has no Laplace noise: this is equation (2) on its uniforms.
    "random.laplace": Adapter(_paper_laplace_maker(random.Random), LAPLACE),
    "paper.laplace": Adapter(_paper_laplace_maker(random.SystemRandom), LAPLACE),
    "paper.gaussian.12bits": Adapter(
        _scaled_noise_maker(partial(paper_gaussians, precision=12)), GAUSSIAN
    ),
    "paper.theorem.8bits": Adapter(
        _scaled_noise_maker(partial(paper_theorem, precision=8)), LAPLACE
    ),
    "numpy.laplace": Adapter(_numpy_maker(np.random.default_rng, "laplace"), LAPLACE, "numpy"),
    "numpy.normal": Adapter(_numpy_maker(np.random.default_rng, "normal"), GAUSSIAN, "numpy"),
    "numpy.RandomState.laplace": Adapter(
        _numpy_maker(np.random.RandomState, "laplace"), LAPLACE, "numpy"
    ),
    "numpy.RandomState.normal": Adapter(
        _numpy_maker(np.random.RandomState, "normal"), GAUSSIAN, "numpy"
    ),
    "scipy.laplace": Adapter(_added_noise_maker(partial(_scipy_draw, "laplace")), LAPLACE, "scipy"),
    "scipy.norm": Adapter(_added_noise_maker(partial(_scipy_draw, "norm")), GAUSSIAN, "scipy"),
    "torch.laplace": Adapter(_added_noise_maker(_torch_laplace_draw), LAPLACE, "torch"),
    "torch.normal": Adapter(_added_noise_maker(_torch_normal_draw), GAUSSIAN, "torch"),
    "torch.normal.float64": Adapter(
        _added_noise_maker(partial(_torch_normal_draw, dtype="float64")), GAUSSIAN, "torch"
    ),
    "opacus": Adapter(_added_noise_maker(partial(_opacus_draw, secure=False)), GAUSSIAN, "opacus"),
    "opacus.secure_mode": Adapter(
        _added_noise_maker(partial(_opacus_draw, secure=True)), GAUSSIAN, "opacus"
    ),
    "jax.laplace": Adapter(_added_noise_maker(partial(_jax_draw, "laplace")), LAPLACE, "jax"),
    "jax.normal": Adapter(_added_noise_maker(partial(_jax_draw, "normal")), GAUSSIAN, "jax"),
    "jax_privacy": Adapter(_make_jax_privacy, GAUSSIAN, "jax-privacy"),
    "diffprivlib.Laplace": Adapter(_diffprivlib_maker("Laplace"), LAPLACE, "diffprivlib"),
    "diffprivlib.Snapping": Adapter(
        _diffprivlib_maker("Snapping", lower=-1e3, upper=1e3), LAPLACE, "diffprivlib"
    ),
    "diffprivlib.GaussianAnalytic": Adapter(
        _diffprivlib_maker("GaussianAnalytic"), GAUSSIAN, "diffprivlib"
    ),
    "diffprivlib.GaussianDiscrete": Adapter(_make_diffprivlib_discrete, GAUSSIAN, "diffprivlib"),
    "opendp.laplace": Adapter(
        partial(_make_opendp, "make_laplace", "l1_distance"), LAPLACE, "opendp"
    ),
    "opendp.gaussian": Adapter(
        partial(_make_opendp, "make_gaussian", "l2_distance"), GAUSSIAN, "opendp"
    ),
    "pydp.laplace": Adapter(partial(_make_pydp, "LaplaceMechanism"), LAPLACE, "python-dp"),
    "pydp.gaussian": Adapter(partial(_make_pydp, "GaussianMechanism"), GAUSSIAN, "python-dp"),
    "dpnoise.laplace": Adapter(_dpnoise_floats_maker("laplace"), LAPLACE, "dpnoise"),
    "dpnoise.normal": Adapter(_dpnoise_floats_maker("normal"), GAUSSIAN, "dpnoise"),
    "dpnoise.release": Adapter(partial(_make_dpnoise, LaplaceMechanism), LAPLACE, "dpnoise"),
    "dpnoise.release.gaussian": Adapter(
        partial(_make_dpnoise, GaussianMechanism), GAUSSIAN, "dpnoise"
    ),
}
