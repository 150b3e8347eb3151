"""The elementary functions against mpmath, and every kernel against its naive formula."""

from collections.abc import Callable
from itertools import product

import mpmath
import numpy as np
import pytest
from numpy.typing import NDArray
from support import naive

from dpnoise.kernels import elementary, variates
from dpnoise.noise import forms


def extreme_words() -> list[int]:
    near = [0, 2**62, 2**63, 2**64]
    return sorted({(w + d) % 2**64 for w in near for d in (-4096, -2049, -1, 0, 1, 2047, 4096)})


def random_words(count: int) -> NDArray[np.uint64]:
    return np.frombuffer(np.random.default_rng().bytes(8 * count), dtype=np.uint64)


def test_log_is_as_accurate_as_its_rounding_analysis_says() -> None:
    """With u = 2^-53 and x = 2^e f, the error is at most u (4.1 |log f| + 0.21 |e| + |log x|).

    s has a relative error of 2u (one sum, one quotient), which is 2.05u of the log. Polynomial
    and product add 2.05u, log 2 as a double 0.21u, and the last operation rounds once. The error
    stays relative near x = 1, where e = 0. test_certified.py checks the constants.
    """
    rng = np.random.default_rng()
    points = np.concatenate(
        [
            1 - rng.random(3000),
            2.0 ** -rng.integers(1, 1000, 1000) * (1 + rng.random(1000)),
            1 - 2.0 ** -np.arange(1, 54),
            np.sqrt(0.5) * (1 + np.arange(-20, 20) * 2.0**-53),
        ]
    )
    for x in points:
        e = np.floor(np.log2(x / np.sqrt(0.5)))
        with mpmath.workprec(120):
            exact = mpmath.log(mpmath.mpf(float(x)))
            log_f = exact - int(e) * mpmath.log(2)
            error = abs(mpmath.mpf(elementary.log(float(x))) - exact)
            bound = mpmath.ldexp(4.1 * abs(log_f) + 0.21 * abs(e) + abs(exact), -53)
        assert error <= bound
    assert elementary.log(1.0) == 0.0


def test_sinpi_is_as_accurate_as_its_rounding_analysis_says() -> None:
    """The relative error is at most 4u with u = 2^-53.

    The error u of t changes the polynomial by at most 0.5u. The polynomial adds 0.4u, the steps of
    Horner's rule at most 1.7u, and the product u. test_certified.py checks the constants.
    """
    points = np.concatenate([np.random.default_rng().random(3000) - 0.5, 2.0 ** -np.arange(1, 60)])
    for x in points:
        with mpmath.workprec(120):
            exact = mpmath.sinpi(mpmath.mpf(float(x)))
            error = abs(mpmath.mpf(elementary.sinpi(float(x))) - exact)
            assert error <= mpmath.ldexp(4 * abs(exact), -53)
    assert elementary.sinpi(0.5) == 1.0


@pytest.mark.parametrize("precision", [1, 2, 11, 24, 52, 53])
def test_words_become_exact_multiples(precision: int) -> None:
    """Every conversion of a word is exact: integer arithmetic gives the same number."""
    words = [*extreme_words(), *random_words(1000).tolist()]
    half = 2 ** (precision - 1)
    for word in words:
        k = word >> (64 - precision)
        w = np.uint64(word)
        assert elementary.uniform(w, precision) * 2**precision == k
        assert elementary.complement(w, precision) * 2**precision == 2**precision - k
        assert elementary.half_turn(w, precision) * 2**precision == k % half
        assert elementary.half_turn_left(w, precision) * 2**precision == half - k % half
        cosine = elementary.cospi(w, precision)
        assert (cosine > 0) == (k < half)
        assert 0 < abs(cosine) <= 1


Kernel = Callable[..., None]
FORMS: list[tuple[str, Kernel, tuple[float, ...], int, Callable[[int], naive.Formula]]] = [
    ("gaussian 2", variates.gaussian, (), 2, lambda _: naive.gaussian),
    ("gaussian 4", variates.gaussian, (), 4, lambda _: naive.gaussian),
    ("gaussian 6", variates.gaussian, (), 6, lambda _: naive.gaussian),
    ("theorem", variates.laplace_theorem, (), 4, lambda _: naive.laplace_theorem),
    ("exponentials", variates.laplace_exponentials, (), 2, lambda _: naive.laplace_exponentials),
    ("inverse", variates.laplace_inverse, (), 1, lambda _: naive.laplace_inverse),
    ("squares 4", variates.laplace_squares, (), 4, lambda _: naive.laplace_squares),
    ("squares 8", variates.laplace_squares, (), 8, lambda _: naive.laplace_squares),
    ("products 4", variates.laplace_products, (), 4, lambda _: naive.laplace_products),
    ("products 16", variates.laplace_products, (), 16, lambda _: naive.laplace_products),
    ("gammas 6", forms.gamma_differences, (1.0,), 6, lambda _: naive.laplace_gammas),
    ("half gammas 1x2", variates.gamma_from_halves, (1,), 2, lambda _: naive.half_gammas(1)),
    ("half gammas 2x2", variates.gamma_from_halves, (2,), 4, lambda _: naive.half_gammas(2)),
    ("half gammas 5x2", variates.gamma_from_halves, (5,), 10, lambda _: naive.half_gammas(5)),
    ("half gammas 3x4", variates.gamma_from_halves, (3,), 12, lambda _: naive.half_gammas(3)),
    ("gamma pieces", forms.gamma_pieces, (0.3,), 4, lambda _: naive.gamma_pieces(0.3)),
    ("gumbel 4", variates.gumbel, (), 4, naive.gumbel),
    ("gumbel 8", variates.gumbel, (), 8, naive.gumbel),
    ("cauchy 1", variates.cauchy, (), 1, lambda _: naive.cauchy),
    ("cauchy 3", variates.cauchy, (), 3, lambda _: naive.cauchy),
]


def run(
    kernel: Kernel, parameters: tuple[float, ...], words: NDArray[np.uint64], n: int, p: int
) -> NDArray[np.float64]:
    out = np.empty(words.size // n)
    words = words.ravel()
    words.flags.writeable = False
    kernel(words, n, p, *parameters, 1.0, np.empty(words.size), out)
    return out


@pytest.mark.parametrize("precision", [1, 5, 24, 53])
@pytest.mark.parametrize(
    ("kernel", "parameters", "n", "formula"), [row[1:] for row in FORMS], ids=[r[0] for r in FORMS]
)
def test_kernel_equals_its_naive_twin(
    kernel: Kernel,
    parameters: tuple[float, ...],
    n: int,
    formula: Callable[[int], naive.Formula],
    precision: int,
) -> None:
    """On random words, and on combinations of extreme ones, up to rounding."""
    extremes = list(product([0, 1, 2**62, 2**63, 2**63 - 1, 2**64 - 1], repeat=min(n, 3)))
    tiled = np.array([(list(e) * n)[:n] for e in extremes], dtype=np.uint64)
    words = np.concatenate([tiled, random_words(1001 * n).reshape(-1, n)])
    u = (words >> np.uint64(64 - precision)).astype(np.float64) * 2.0**-precision
    expected = formula(precision)(u)
    computed = run(kernel, parameters, words, n, precision)
    # Tangents are unbounded and may cancel, so errors are relative to their size before that. The
    # same holds for the pieces of a Gaussian: the nearer it is to 0, the fewer digits its log has.
    size = naive.cauchy_size(u) if kernel is variates.cauchy else np.abs(expected)
    if kernel is variates.gumbel:
        size += naive.gumbel_size(u, precision)
    assert np.all(np.abs(computed - expected) <= 1e-13 * (1 + size))


def test_one_element_kernels_equal_the_array_kernels() -> None:
    """They read words from bytes, without Python integers, whose length timing could reveal."""
    extremes = np.array(list(product([0, 1, 2**63, 2**64 - 1], repeat=4)), dtype=np.uint64)
    words = np.append(extremes, random_words(4000))
    rows: list[tuple[Callable[..., float], Kernel]] = [
        (variates.laplace_from_bytes, variates.laplace_theorem),
        (variates.gaussian_from_bytes, variates.gaussian),
    ]
    for scalar_kernel, array_kernel in rows:
        expected = run(array_kernel, (), words.copy(), 4, 53)
        computed = [scalar_kernel(row.tobytes(), 53) for row in words.astype("<u8").reshape(-1, 4)]
        np.testing.assert_array_equal(computed, expected)


def test_the_asymmetry_of_remark_1_is_gone() -> None:
    """At small p, the cosines of all words come in pairs of opposite signs."""
    for precision in range(1, 12):
        words = np.arange(2**precision, dtype=np.uint64) << np.uint64(64 - precision)
        cosines = np.array([elementary.cospi(word, precision) for word in words])
        np.testing.assert_array_equal(np.sort(cosines), np.sort(-cosines))
        plain = np.cos(np.pi * np.arange(2**precision) / 2**precision)
        assert not np.allclose(np.sort(plain), np.sort(-plain))
