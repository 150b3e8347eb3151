"""Real libraries as targets: each adapter a few lines that call one as its users do.

A library is imported only when its adapter is used. Each adapter makes a generator of its own: two
targets share none, unless the library itself has one for all its users.
"""

import math
import random
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from dpnoise.core.errors import import_extra
from dpnoise.noise.generator import Generator
from dpnoise.release.additive import GaussianMechanism, LaplaceMechanism
from dpnoise.release.calibration import check_scale, gaussian_scale, laplace_scale

ReleaseFunction = Callable[[float, int], Any]
Made = tuple[float, ReleaseFunction]  # The scale of its noise, and how it releases.


@dataclass(frozen=True)
class Privacy:
    """What a target claims, and the noise that this asks for."""

    epsilon: float = 1.0
    delta: float = 1e-6
    sensitivity: float = 1.0

    def scale(self, noise: str) -> float:
        """Return the scale of Laplace noise, or the standard deviation of Gaussian noise."""
        if noise == "laplace":
            return check_scale(laplace_scale(self.epsilon, self.sensitivity))
        return check_scale(gaussian_scale(self.epsilon, self.delta, self.sensitivity))


@dataclass(frozen=True)
class Claim:
    """What an adapter is asked for: privacy, by its kind of noise."""

    privacy: Privacy
    noise: str

    @property
    def scale(self) -> float:
        """The scale of the noise that the privacy asks for."""
        return self.privacy.scale(self.noise)


Maker = Callable[[Claim], Made]


@dataclass(frozen=True)
class Adapter:
    """How a target is made, the kind of its noise, and the package behind it."""

    make: Maker
    noise: str
    package: str | None


ADAPTERS: Final[dict[str, Adapter]] = {}


def _adapter(name: str, noise: str, package: str | None = None) -> Callable[[Maker], Maker]:
    def register(make: Maker) -> Maker:
        ADAPTERS[name] = Adapter(make, noise, package)
        return make

    return register


def _added(draw: Callable[[int], Any]) -> ReleaseFunction:
    """Add noise to the value in floating point, as most code does."""
    return lambda value, n: value + draw(n)


def _one_by_one(release: Callable[[float], float]) -> ReleaseFunction:
    return lambda value, n: np.array([release(value) for _ in range(n)])


def _drawn(draw: Callable[[], float], n: int) -> NDArray[np.float64]:
    return np.fromiter((draw() for _ in range(n)), np.float64, n)


@_adapter("random.gauss", "gaussian")
def _random_gauss(claim: Claim) -> Made:
    scale = claim.scale
    rng = random.Random()  # noqa: S311 - it is the target
    return scale, _added(partial(_drawn, partial(rng.gauss, 0.0, scale)))


@_adapter("random.normalvariate", "gaussian")
def _random_normalvariate(claim: Claim) -> Made:
    scale = claim.scale
    rng = random.Random()  # noqa: S311 - it is the target
    return scale, _added(partial(_drawn, partial(rng.normalvariate, 0.0, scale)))


@_adapter("random.laplace", "laplace")
def _random_laplace(claim: Claim) -> Made:
    """Use the paper's equation (2) on random(): the standard library has no Laplace noise."""
    scale = claim.scale
    rng = random.Random()  # noqa: S311 - it is the target
    return scale, _added(lambda n: scale * _drawn(partial(paper_laplace, rng.random), n))


@_adapter("paper.laplace", "laplace")
def _paper_laplace(claim: Claim) -> Made:
    """Use the paper's equation (2) on uniforms of the operating system."""
    scale = claim.scale
    rng = random.SystemRandom()
    return scale, _added(lambda n: scale * _drawn(partial(paper_laplace, rng.random), n))


def paper_laplace(random: Callable[[], float]) -> float:
    """Equation (2) of the paper: (-1)^round(U) log(1 - 2|U - 1/2|), drawn again at U = 0."""
    while not (U := random()):
        pass
    logarithm = math.log(1.0 - 2.0 * abs(U - 0.5))
    return logarithm if U < 0.5 else -logarithm  # noqa: PLR2004 - the median


@_adapter("paper.gaussian.12bits", "gaussian")
def _paper_gaussian(claim: Claim) -> Made:
    """Keep one member of each Box-Muller pair, from uniforms of 12 bits."""
    scale = claim.scale
    return scale, _added(lambda n: scale * paper_gaussians(n, precision=12))


@_adapter("paper.theorem.8bits", "laplace")
def _paper_theorem(claim: Claim) -> Made:
    """Use Theorem 5.1 on uniforms of 8 bits."""
    scale = claim.scale
    return scale, _added(lambda n: scale * paper_theorem(n, precision=8))


def paper_gaussians(n: int, precision: int) -> NDArray[np.float64]:
    """Draw n Gaussians by equation (3), from uniforms of the operating system."""
    U1, U2 = _uniforms((2, n), precision)
    pairs = zip(U1, U2, strict=True)
    draw = (math.sqrt(-2 * math.log(1 - a)) * math.cos(2 * math.pi * b) for a, b in pairs)
    return np.fromiter(draw, np.float64, n)


def paper_theorem(n: int, precision: int) -> NDArray[np.float64]:
    """Draw n Laplace variates by Theorem 5.1, from uniforms of the operating system."""
    rows = _uniforms((n, 2, 2), precision)
    summands = [[math.log(1 - U) * math.cos(math.pi * W) for U, W in row] for row in rows]
    return np.array([a + b for a, b in summands])


def _uniforms(shape: tuple[int, ...], precision: int) -> list[Any]:
    """Return multiples of 2^-precision as Python's floats: its functions are the C library's."""
    words = np.frombuffer(secrets.token_bytes(8 * math.prod(shape)), np.uint64)
    uniforms: list[Any] = (
        np.ldexp(words >> np.uint64(64 - precision), -precision).reshape(shape).tolist()
    )
    return uniforms


@_adapter("numpy.laplace", "laplace", "numpy")
def _numpy_laplace(claim: Claim) -> Made:
    scale = claim.scale
    rng = np.random.default_rng()
    return scale, _added(lambda n: rng.laplace(scale=scale, size=n))


@_adapter("numpy.normal", "gaussian", "numpy")
def _numpy_normal(claim: Claim) -> Made:
    scale = claim.scale
    rng = np.random.default_rng()
    return scale, _added(lambda n: rng.normal(scale=scale, size=n))


@_adapter("numpy.RandomState.laplace", "laplace", "numpy")
def _legacy_laplace(claim: Claim) -> Made:
    scale = claim.scale
    rng = np.random.RandomState()
    return scale, _added(lambda n: rng.laplace(scale=scale, size=n))


@_adapter("numpy.RandomState.normal", "gaussian", "numpy")
def _legacy_normal(claim: Claim) -> Made:
    scale = claim.scale
    rng = np.random.RandomState()
    return scale, _added(lambda n: rng.normal(scale=scale, size=n))


def _scipy_stats() -> Any:
    from scipy import stats  # noqa: PLC0415 - SciPy takes long to import

    return stats


@_adapter("scipy.laplace", "laplace", "scipy")
def _scipy_laplace(claim: Claim) -> Made:
    scale = claim.scale
    laplace = _scipy_stats().laplace(scale=scale)
    return scale, _added(lambda n: laplace.rvs(size=n))


@_adapter("scipy.norm", "gaussian", "scipy")
def _scipy_norm(claim: Claim) -> Made:
    scale = claim.scale
    norm = _scipy_stats().norm(scale=scale)
    return scale, _added(lambda n: norm.rvs(size=n))


@_adapter("torch.laplace", "laplace", "torch")
def _torch_laplace(claim: Claim) -> Made:
    scale = claim.scale
    torch = import_extra("torch", "peers")
    laplace = torch.distributions.Laplace(0.0, scale)
    return scale, lambda value, n: (value + laplace.sample((n,))).numpy()


@_adapter("torch.normal", "gaussian", "torch")
def _torch_normal(claim: Claim) -> Made:
    scale = claim.scale
    torch = import_extra("torch", "peers")
    return scale, lambda value, n: (value + torch.normal(0.0, scale, (n,))).numpy()


@_adapter("torch.normal.float64", "gaussian", "torch")
def _torch_normal_double(claim: Claim) -> Made:
    scale = claim.scale
    torch = import_extra("torch", "peers")
    double = torch.float64
    return scale, lambda value, n: (value + torch.normal(0.0, scale, (n,), dtype=double)).numpy()


@_adapter("opacus", "gaussian", "opacus")
def _opacus(claim: Claim) -> Made:
    """Draw the noise of DP-SGD, with secure_mode off, as it is by default."""
    return claim.scale, _opacus_noise(claim.scale, secure=False)


@_adapter("opacus.secure_mode", "gaussian", "opacus")
def _opacus_secure(claim: Claim) -> Made:
    """Draw by Opacus's own formula for secure_mode: 2n = 4 Gaussians, summed and halved.

    Switching the mode on asks for torchcsprng, which has no build for current PyTorch; the formula
    runs without it, on PyTorch's own generator.
    """
    return claim.scale, _opacus_noise(claim.scale, secure=True)


def _opacus_noise(scale: float, *, secure: bool) -> ReleaseFunction:
    torch = import_extra("torch", "peers")
    noise = import_extra("opacus.optimizers.optimizer", "peers")._generate_noise  # noqa: SLF001
    return lambda value, n: (value + noise(scale, torch.zeros(n), None, secure)).numpy()


def _fresh_jax_key() -> Any:
    """Return a key of 64 bits from the operating system: all that JAX's generator takes."""
    jax = import_extra("jax", "peers")
    return jax.random.wrap_key_data(np.frombuffer(secrets.token_bytes(8), np.uint32))


@_adapter("jax.laplace", "laplace", "jax")
def _jax_laplace(claim: Claim) -> Made:
    scale = claim.scale
    jax = import_extra("jax", "peers")
    return scale, lambda value, n: np.asarray(
        value + scale * jax.random.laplace(_fresh_jax_key(), (n,))
    )


@_adapter("jax.normal", "gaussian", "jax")
def _jax_normal(claim: Claim) -> Made:
    scale = claim.scale
    jax = import_extra("jax", "peers")
    return scale, lambda value, n: np.asarray(
        value + scale * jax.random.normal(_fresh_jax_key(), (n,))
    )


@_adapter("jax_privacy", "gaussian", "jax-privacy")
def _jax_privacy(claim: Claim) -> Made:
    """Add the noise of DP-SGD to a sum of gradients, under the key of 31 bits it has by default."""
    scale = claim.scale
    jax = import_extra("jax", "peers")
    noise = import_extra("jax_privacy.noise_addition", "peers")
    privatizer = noise.gaussian_privatizer(stddev=scale)
    state = privatizer.init(jax.numpy.zeros(1))

    def release(value: float, n: int) -> Any:
        nonlocal state
        released, state = privatizer.update(jax.numpy.full(n, value, "float32"), state)
        return np.asarray(released)

    return scale, release


@_adapter("diffprivlib.Laplace", "laplace", "diffprivlib")
def _diffprivlib_laplace(claim: Claim) -> Made:
    privacy, scale = claim.privacy, claim.scale
    mechanisms = import_extra("diffprivlib.mechanisms", "peers")
    mechanism = mechanisms.Laplace(epsilon=privacy.epsilon, sensitivity=privacy.sensitivity)
    return scale, _one_by_one(mechanism.randomise)


@_adapter("diffprivlib.Snapping", "laplace", "diffprivlib")
def _diffprivlib_snapping(claim: Claim) -> Made:
    privacy, scale = claim.privacy, claim.scale
    mechanism = import_extra("diffprivlib.mechanisms", "peers").Snapping(
        epsilon=privacy.epsilon, sensitivity=privacy.sensitivity, lower=-1e3, upper=1e3
    )
    return scale, _one_by_one(mechanism.randomise)


@_adapter("diffprivlib.GaussianAnalytic", "gaussian", "diffprivlib")
def _diffprivlib_gaussian(claim: Claim) -> Made:
    privacy = claim.privacy
    mechanism = import_extra("diffprivlib.mechanisms", "peers").GaussianAnalytic(
        epsilon=privacy.epsilon, delta=privacy.delta, sensitivity=privacy.sensitivity
    )
    scale = mechanism._scale  # noqa: SLF001 - its own calibration
    return scale, _one_by_one(mechanism.randomise)


@_adapter("diffprivlib.GaussianDiscrete", "gaussian", "diffprivlib")
def _diffprivlib_discrete(claim: Claim) -> Made:
    """Release integers, with a sampler that rejects."""
    privacy = claim.privacy
    mechanism = import_extra("diffprivlib.mechanisms", "peers").GaussianDiscrete(
        epsilon=privacy.epsilon, delta=privacy.delta, sensitivity=math.ceil(privacy.sensitivity)
    )
    scale = mechanism._scale  # noqa: SLF001 - its own calibration
    return scale, _one_by_one(lambda value: mechanism.randomise(round(value)))


@_adapter("opendp.laplace", "laplace", "opendp")
def _opendp_laplace(claim: Claim) -> Made:
    scale = claim.scale
    return scale, _opendp("make_laplace", "l1_distance", scale, k=-40)


@_adapter("opendp.gaussian", "gaussian", "opendp")
def _opendp_gaussian(claim: Claim) -> Made:
    scale = claim.scale
    return scale, _opendp("make_gaussian", "l2_distance", scale, k=-40)


def _opendp(make: str, metric: str, scale: float, k: int) -> ReleaseFunction:
    """Release vectors on the grid 2^k, many times faster than one number after the other."""
    opendp = import_extra("opendp.prelude", "peers")
    opendp.enable_features("contrib")

    def release(value: float, n: int) -> Any:
        domain = opendp.vector_domain(opendp.atom_domain(T=float, nan=False), size=n)
        mechanism = getattr(opendp.m, make)(domain, getattr(opendp, metric)(T=float), scale, k=k)
        return mechanism([float(value)] * n)

    return release


@_adapter("pydp.laplace", "laplace", "python-dp")
def _pydp_laplace(claim: Claim) -> Made:
    privacy, scale = claim.privacy, claim.scale
    mechanisms = import_extra("pydp.algorithms.numerical_mechanisms", "peers")
    mechanism = mechanisms.LaplaceMechanism(privacy.epsilon, privacy.sensitivity)
    return scale, _one_by_one(lambda value: mechanism.add_noise(float(value)))


@_adapter("pydp.gaussian", "gaussian", "python-dp")
def _pydp_gaussian(claim: Claim) -> Made:
    privacy, scale = claim.privacy, claim.scale
    mechanisms = import_extra("pydp.algorithms.numerical_mechanisms", "peers")
    mechanism = mechanisms.GaussianMechanism(privacy.epsilon, privacy.delta, privacy.sensitivity)
    return scale, _one_by_one(lambda value: mechanism.add_noise(float(value)))


@_adapter("dpnoise.laplace", "laplace", "dpnoise")
def _dpnoise_laplace(claim: Claim) -> Made:
    """Our noise, added by hand in floating point: what docs/limitations.md warns of."""
    scale = claim.scale
    return scale, _added(lambda n: Generator().laplace(scale, n))


@_adapter("dpnoise.normal", "gaussian", "dpnoise")
def _dpnoise_normal(claim: Claim) -> Made:
    """Our noise, added by hand in floating point: what docs/limitations.md warns of."""
    scale = claim.scale
    return scale, _added(lambda n: Generator().normal(scale, n))


@_adapter("dpnoise.release", "laplace", "dpnoise")
def _dpnoise_release(claim: Claim) -> Made:
    privacy, scale = claim.privacy, claim.scale
    mechanism = LaplaceMechanism(privacy.epsilon, privacy.sensitivity)
    return scale, lambda value, n: mechanism.release(np.full(n, float(value)))


@_adapter("dpnoise.release.gaussian", "gaussian", "dpnoise")
def _dpnoise_release_gaussian(claim: Claim) -> Made:
    privacy, scale = claim.privacy, claim.scale
    mechanism = GaussianMechanism(
        epsilon=privacy.epsilon, delta=privacy.delta, sensitivity=privacy.sensitivity
    )
    return scale, lambda value, n: mechanism.release(np.full(n, float(value)))
