"""The attack on pairs of Gaussians that share their uniforms: section 2.4 of the paper.

Both Gaussians reveal both uniforms, by the paper's equation (4), which needs a reduction mod 1:

    U1 = 1 - exp(-(N1^2 + N2^2)/2),    U2 = atan2(N2, N1) / 2 pi  mod 1

    Box-Muller    random.gauss, which keeps the second of a pair for the next call; torch on a CPU,
                  which pairs element j with j + 8 in each block of 16
    polar         numpy.random.RandomState.normal: x, y uniform in the unit disc, r2 = x^2 + y^2,
                  both multiplied by sqrt(-2 log(r2) / r2); y is returned first, x kept

torch's float32 Gaussians are computed to the last bit, which a test compares with torch:

    x86-64, with AVX2      the polynomials of the Cephes library's logf, sinf and cosf (Moshier
                           1989), joined into fused multiply-adds by torch's compiler
    aarch64, and without   the C library's functions: the machine's own are called
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Final

import numpy as np

from dpnoise.auditing.attacks import base
from dpnoise.auditing.attacks.base import SOURCE, Attack, Event, Progress, no_progress
from dpnoise.auditing.targets.target import Releases, Target
from dpnoise.core.arrays import Flags, Floats
from dpnoise.core.errors import check_choice
from dpnoise.kernels import compile_kernel

# With this many candidate pairs of uniforms, one of them very likely fits: so no search is made.
_MAX_CANDIDATES: Final = 2.0**11
_BLOCK: Final = 16
DOUBLE, SINGLE, VECTORISED = range(3)  # The arithmetic: torch's float32 is one of the last two.

_f = np.float32
_SQRT_HALF = _f(math.sqrt(0.5))
_LN2_HIGH, _LN2_LOW = _f(0.693359375), _f(-2.12194440e-4)
_FOUR_OVER_PI = _f(4.0 / math.pi)
# pi/4 in three parts, so that subtracting multiples of it is accurate enough.
_QUARTERS = (-0.78515625, -2.4187564849853515625e-4, -3.77489497744594108e-8)
_QUARTER_1, _QUARTER_2, _QUARTER_3 = map(_f, _QUARTERS)
_LOG = tuple(map(_f, (
    7.0376836292e-2, -1.1514610310e-1, 1.1676998740e-1, -1.2420140846e-1, 1.4249322787e-1,
    -1.6668057665e-1, 2.0000714765e-1, -2.4999993993e-1, 3.3333331174e-1,
)))  # fmt: skip
_SIN = (_f(-1.9515295891e-4), _f(8.3321608736e-3), _f(-1.6666654611e-1))
_COS = (_f(2.443315711809948e-5), _f(-1.388731625493765e-3), _f(4.166664568298827e-2))


@compile_kernel
def _fma(a: np.float32, b: np.float32, c: np.float32) -> np.float32:
    """Return a * b + c, rounded once: the product of two float32 is exact in float64.

    The sum is rounded to odd there, after which the second rounding is that of the exact sum
    (Boldo and Melquiond 2008). Rounded to nearest it would differ in about one case of 2^29.
    """
    product, summand = np.float64(a) * np.float64(b), np.float64(c)
    total = product + summand
    part = total - product
    lost = (product - (total - part)) + (summand - part)
    bits = np.float64(total).view(np.int64)
    if lost != 0.0 and bits & 1 == 0:
        bits += 1 if (lost > 0.0) == (total > 0.0) else -1
    return np.float32(np.int64(bits).view(np.float64))


@compile_kernel
def log_32(x: np.float32) -> np.float32:
    """Return log x of a normal x > 0."""
    significand, exponent = math.frexp(x)
    m, e = np.float32(significand), np.float32(exponent)
    if m < _SQRT_HALF:
        e -= _f(1.0)
        m += m
    m -= _f(1.0)
    square = m * m
    y = _LOG[0]
    for c in _LOG[1:]:
        y = _fma(y, m, c)
    y = _fma(y * m, square, e * _LN2_LOW)
    y = _fma(-square, _f(0.5), y)
    return _fma(e, _LN2_HIGH, m + y)


@compile_kernel
def sincos_32(x: np.float32) -> tuple[np.float32, np.float32]:
    """Return sin x and cos x of an x >= 0."""
    octant = (np.int32(x * _FOUR_OVER_PI) + 1) & ~1
    y = np.float32(octant)
    x = _fma(y, _QUARTER_3, _fma(y, _QUARTER_2, _fma(y, _QUARTER_1, x)))
    z = x * x
    cosine = _fma(_fma(_COS[0], z, _COS[1]), z, _COS[2]) * z
    cosine = _fma(cosine, z, -(z * _f(0.5))) + _f(1.0)
    sine = _fma(_fma(_SIN[0], z, _SIN[1]), z, _SIN[2]) * z
    sine = _fma(sine, x, x)
    if octant & 2:
        sine, cosine = cosine, sine
    if octant & 4:
        sine = -sine
    if (octant + 2) & 4:
        cosine = -cosine
    return sine, cosine


@compile_kernel
def radius_of(V1: float, arithmetic: int) -> float:
    """Return sqrt(-2 log V1), as computed by an arithmetic."""
    if arithmetic == DOUBLE:
        return math.sqrt(-2.0 * math.log(V1))
    V = np.float32(V1)
    log = log_32(V) if arithmetic == VECTORISED else _f(math.log(V))
    return np.float64(np.sqrt(_f(-2.0) * log))


@compile_kernel
def release_pair(
    radius: float, U2: float, c: float, s: float, arithmetic: int
) -> tuple[float, float]:
    """Return the two releases of the value c from a radius and U2, by an arithmetic."""
    if arithmetic == DOUBLE:
        angle = U2 * (2.0 * math.pi)
        return c + s * (math.cos(angle) * radius), c + s * (math.sin(angle) * radius)
    if arithmetic == VECTORISED:
        sine, cosine = sincos_32(_f(2.0 * math.pi) * np.float32(U2))
    else:
        narrow = np.float32(2.0 * math.pi * U2)
        sine, cosine = _f(math.sin(narrow)), _f(math.cos(narrow))
    r, value, scale = np.float32(radius), np.float32(c), np.float32(s)
    return np.float64(value + scale * (r * cosine)), np.float64(value + scale * (r * sine))


@compile_kernel
def _slack(q: float, s: float, n: float, half: float) -> float:
    """Return a bound on the error of n = (q - c)/s as the Gaussian of q; `half` is half an ulp."""
    return (2.0 * abs(q) / s + 5.0 * abs(n)) * half


@compile_kernel
def _window(
    q1: float, q2: float, c: float, s: float, unit: float, half: float
) -> tuple[float, float, float, float]:
    """Return estimates of V = 1 - U1 and U2 in units, and the widths to search around them."""
    n1, n2 = (q1 - c) / s, (q2 - c) / s
    r2 = n1 * n1 + n2 * n2
    if r2 == 0.0:
        return 0.0, 0.0, _MAX_CANDIDATES, _MAX_CANDIDATES
    slack = max(_slack(q1, s, n1, half), _slack(q2, s, n2, half))
    V, turn = math.exp(-r2 / 2.0), math.atan2(n2, n1) / (2.0 * math.pi) % 1.0
    rows = V * (math.sqrt(2.0 * r2) * slack + 4.0 * r2 * unit) / unit + 2.0
    columns = slack / (2.0 * math.pi * math.sqrt(r2)) / unit + 2.0
    return np.rint(V / unit), np.rint(turn / unit), rows, columns


@compile_kernel
def _box_muller(q1: float, q2: float, c: float, s: float, precision: int, arithmetic: int) -> bool:
    """Return whether a pair of uniforms of this many bits gives both releases of the value c."""
    unit = 2.0**-precision
    half = 2.0**-53 if arithmetic == DOUBLE else 2.0**-24
    V, turn, rows, columns = _window(q1, q2, c, s, unit, half)
    if rows * columns > _MAX_CANDIDATES:
        return True
    for i in range(-int(rows), int(rows) + 1):
        V1 = (V + i) * unit
        if not 0.0 < V1 <= 1.0:
            continue
        radius = radius_of(V1, arithmetic)
        for j in range(-int(columns), int(columns) + 1):
            U2 = (turn + j) * unit % 1.0
            y1, y2 = release_pair(radius, U2, c, s, arithmetic)
            if y1 == q1 and y2 == q2:
                return True
    return False


@compile_kernel
def _polar(q1: float, q2: float, c: float, s: float) -> bool:
    """Return whether a point of the disc gives both releases: q1 from its y, q2 from its x."""
    n1, n2 = (q1 - c) / s, (q2 - c) / s
    norm = n1 * n1 + n2 * n2
    if norm == 0.0:
        return True
    slack = max(_slack(q1, s, n1, 2.0**-53), _slack(q2, s, n2, 2.0**-53))
    factor = math.sqrt(norm / math.exp(-norm / 2.0))
    # An error of the norm also changes the factor, by a relative error of norm * slack at most.
    steps = (1.0 + norm) * slack / factor / 2.0**-52 + 2.0
    if steps * steps > _MAX_CANDIDATES:
        return True
    for i in range(-int(steps), int(steps) + 1):
        y = (np.rint(n1 / factor / 2.0**-52) + i) * 2.0**-52
        for j in range(-int(steps), int(steps) + 1):
            x = (np.rint(n2 / factor / 2.0**-52) + j) * 2.0**-52
            r2 = x * x + y * y
            if not 0.0 < r2 < 1.0:
                continue
            f = math.sqrt(-2.0 * math.log(r2) / r2)
            if c + s * (f * y) == q1 and c + s * (f * x) == q2:
                return True
    return False


@compile_kernel
def find_box_muller_pairs(
    pairs: Releases, value: float, scale: float, precision: int, arithmetic: int, out: Flags
) -> None:
    """Fill `out` with whether Box-Muller on uniforms of this many bits gives each pair."""
    c, s = np.float64(value), np.float64(scale)
    for i in range(out.size):
        q1, q2 = np.float64(pairs[i, 0]), np.float64(pairs[i, 1])
        out[i] = _box_muller(q1, q2, c, s, precision, arithmetic)


@compile_kernel
def find_polar_pairs(pairs: Floats, value: float, scale: float, out: Flags) -> None:
    """Fill `out` with whether the polar method gives each pair from this value."""
    for i in range(out.size):
        out[i] = _polar(pairs[i, 0], pairs[i, 1], value, scale)


def _pair_successive(y: Releases, phase: int) -> Releases:
    """Pair each release with the next; in phase 1 the first release belongs to an earlier pair."""
    whole = (len(y) - phase) // 2 * 2
    return y[phase : phase + whole].reshape(-1, 2)


def _pair_in_blocks(y: Releases) -> Releases:
    """Pair element j with j + 8 in each block of 16.

    If numbers are left over, PyTorch draws the last 16 again. So the last block is not used, unless
    it is the only one.
    """
    full = len(y) // _BLOCK
    used = max(min(full, 1), full - (len(y) % _BLOCK > 0))
    blocks = y[: used * _BLOCK].reshape(-1, 2, _BLOCK // 2)
    return blocks.transpose(0, 2, 1).reshape(-1, 2)


Layout = Callable[[Releases], Releases]
_EVEN: Final[Layout] = partial(_pair_successive, phase=0)
_ODD: Final[Layout] = partial(_pair_successive, phase=1)
# A method, its kernel, its parameters, and how releases are paired.
_Guess = tuple[str, Callable[..., None], tuple[int, ...], Layout]
_GUESSES: Final[dict[str, list[_Guess]]] = {
    "float64": [
        ("Box-Muller, in this phase", find_box_muller_pairs, (53, DOUBLE), _EVEN),
        ("Box-Muller, in the other phase", find_box_muller_pairs, (53, DOUBLE), _ODD),
        ("polar, in this phase", find_polar_pairs, (), _EVEN),
        ("polar, in the other phase", find_polar_pairs, (), _ODD),
        ("Box-Muller in blocks of 16", find_box_muller_pairs, (53, DOUBLE), _pair_in_blocks),
    ],
    "float32": [
        ("Box-Muller in blocks of 16", find_box_muller_pairs, (24, arithmetic), _pair_in_blocks)
        for arithmetic in (VECTORISED, SINGLE)
    ],
}
METHODS: Final = tuple(
    dict.fromkeys(guess[0] for guesses in _GUESSES.values() for guess in guesses)
)


@dataclass(frozen=True)
class BoxMullerPair(Attack):
    """Excludes a value if no pair of uniforms leads from it to two releases.

    `method` is how the target makes its pairs, one of METHODS; by default all are tried.
    """

    name = "pair"
    access = SOURCE
    breaks = "random.gauss, torch on a CPU, Opacus, numpy.random.RandomState.normal"
    source = "Holohan and Braghin 2021, section 2.4"
    default_target = "random.gauss"
    noise = "gaussian"

    method: str | None = None

    def __post_init__(self) -> None:
        check_choice("method", self.method, (None, *METHODS))

    def find(
        self, target: Target, value0: float, value1: float, n: int, progress: Progress = no_progress
    ) -> Event:
        """Return the event that value0 is possible and value1 is not, for the best guess."""
        dtype = target(value0, n).dtype
        guesses = [g for g in _GUESSES.get(str(dtype), []) if self.method in {None, g[0]}]
        if not guesses or n < 2 * _BLOCK:
            return base.impossible_event(f"no method is known for pairs of {dtype}")
        events = []
        for method, kernel, model, layout in guesses:
            words = f"no pair of uniforms leads from {value1:g} to y and y' ({method})"
            possible = base.possible_by_kernel(kernel, target.scale, model, dtype.type)
            source = base.exclusion_source(self, target, value0, value1, method=method)
            event = base.exclusion_event(words, possible, value0, value1, layout, 2, source)
            events.append(event)
        return base.best_event(events, target, value0, value1, n)
