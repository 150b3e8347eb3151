"""Exact leakage: laws equal those of all uniforms one by one, and bounds contain the ideal."""

import json
import math
import re
from collections import Counter
from collections.abc import Callable
from fractions import Fraction
from itertools import product
from pathlib import Path

import mpmath
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from support import alarms

import dpnoise
from dpnoise import cli
from dpnoise.auditing.leakage import delta, laws, release_bounds, release_law, summary
from dpnoise.auditing.leakage.laws import BFLOAT16, FLOAT16, FLOAT32, Format, Law
from dpnoise.core.errors import ArgumentError
from dpnoise.kernels import variates
from dpnoise.noise.distributions import Distribution
from dpnoise.release import calibration

Floats = NDArray[np.float64]


def at_0_and_1(law: Law, fmt: Format) -> tuple[Law, Law]:
    return release_law(law, 0.0, fmt), release_law(law, 1.0, fmt)


def are_equal(a: Law, b: Law) -> bool:
    return np.array_equal(a.values, b.values) and np.array_equal(a.probabilities, b.probabilities)


# Rounding. ---------------------------------------------------------------------------------------


def test_rounding_to_float16_is_numpy_s_on_all_its_numbers_and_borders() -> None:
    """All numbers, all midpoints between two, and the float64 on either side of each."""
    patterns = np.arange(2**16, dtype=np.uint16)
    finite = patterns[patterns & 0x7C00 != 0x7C00]  # Casting a signalling NaN is reported by ARM.
    numbers = np.unique(finite.view(np.float16).astype(np.float64))
    points = np.concatenate([numbers, (numbers[1:] + numbers[:-1]) / 2, [65520.0, -65520.0]])
    points = np.concatenate([points, np.nextafter(points, np.inf), np.nextafter(points, -np.inf)])
    points = np.concatenate([points, [np.inf, -np.inf, 1e300, 5e-324]])
    with np.errstate(over="ignore"):
        expected = points.astype(np.float16).astype(np.float64)
    np.testing.assert_array_equal(FLOAT16.round(points), expected)


@given(st.floats(allow_nan=False))
def test_rounding_to_float32_is_numpy_s(x: float) -> None:
    with np.errstate(over="ignore"):
        assert FLOAT32.round(x) == np.float32(x)


def rounded_slowly(fmt: Format, x: float) -> float:
    """Round in fractions: Python rounds a Fraction to the nearest integer, ties to even."""
    size = abs(Fraction(x))
    exponent = fmt.emin
    while size >= Fraction(2) ** (exponent + 1):
        exponent += 1
    unit = Fraction(2) ** (exponent - fmt.digits + 1)
    nearest = round(size / unit) * unit
    result = math.inf if nearest >= 2 ** (2 - fmt.emin) else float(nearest)
    return math.copysign(result, x)


@given(
    st.sampled_from([BFLOAT16, Format("six", 6, -14), Format("two", 2, -4)]),
    st.floats(-64, 64) | st.floats(-1e39, 1e39) | st.sampled_from([2.0**-134, 3.0, 1 + 2.0**-8]),
)
def test_rounding_to_any_format_is_that_of_fractions(fmt: Format, x: float) -> None:
    assert float(fmt.round(x)) == rounded_slowly(fmt, x)


def test_logarithm_and_cosine_in_float16_are_correctly_rounded() -> None:
    """Rounding to float64 before float16 changes nothing, for all uniforms of 11 bits."""
    u = np.arange(2048) / 2048
    angles = FLOAT16.round(FLOAT16.round(math.pi) * u)
    with mpmath.workprec(120):
        for function, exact, points in (
            (np.log, mpmath.log, 1 - u),
            (np.cos, mpmath.cos, angles),
        ):
            computed = FLOAT16.round(function(points))
            for point, value in zip(points.tolist(), computed.tolist(), strict=True):
                true = exact(mpmath.mpf(point))
                neighbours = (np.nextafter(np.float16(value), np.float16(s)) for s in (-9, 9))
                assert all(abs(true - value) < abs(true - float(other)) for other in neighbours)


# Laws. -------------------------------------------------------------------------------------------


def uniforms_one_by_one(n: int, p: int) -> list[Floats]:
    return [axis.ravel() for axis in np.meshgrid(*[np.arange(2.0**p) / 2.0**p] * n, indexing="ij")]


def half(x: Floats | float) -> NDArray[np.float16]:
    return np.asarray(x, dtype=np.float16)


def theorem_in_float16(n: int, p: int) -> NDArray[np.float16]:
    """Theorem 5.1 in NumPy's own float16; its sums and products are rounded correctly."""
    u = uniforms_one_by_one(n, p)
    pi = half(math.pi)
    first, second = (
        half(np.log(1 - v)) * half(np.cos((pi * half(w)).astype(np.float64)))
        for v, w in (u[:2], u[2:])
    )
    return first + second


def exponentials_in_float16(n: int, p: int) -> NDArray[np.float16]:
    u, v = uniforms_one_by_one(n, p)
    return -half(np.log(1 - u)) - -half(np.log(1 - v))


def pairs_in_float16(n: int, p: int) -> NDArray[np.float16]:
    u = uniforms_one_by_one(n, p)
    pi = half(math.pi)
    total: NDArray[np.float16] | None = None
    for v, w in zip(u[::2], u[1::2], strict=True):
        root = half(np.sqrt(-half(np.log(1 - v)).astype(np.float64)))
        pair = root * half(np.cos((pi * half(w)).astype(np.float64)))
        total = pair if total is None else total + pair
    assert total is not None
    return half(2 / math.sqrt(n)) * total


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    ("form", "n", "p", "twin"),
    [
        ("exponentials", 2, 8, exponentials_in_float16),
        ("theorem", 4, 4, theorem_in_float16),
        ("pairs", 2, 8, pairs_in_float16),
        ("pairs", 4, 4, pairs_in_float16),
        ("pairs", 6, 3, pairs_in_float16),
    ],
)
def test_the_machine_s_law_is_that_of_all_uniforms_one_by_one(
    form: str, n: int, p: int, twin: Callable[[int, int], NDArray[np.float16]]
) -> None:
    counted = Counter((twin(n, p).astype(np.float64) + 0.0).tolist())
    law = laws.stepwise_law(form, n, p, FLOAT16)
    total = 2 ** (n * p)
    assert dict(zip(law.values.tolist(), law.probabilities.tolist(), strict=True)) == {
        value: count / total for value, count in counted.items()
    }


@pytest.mark.sample(2)
@pytest.mark.parametrize(("form", "p"), [("theorem", 4), ("pairs", 4)])
@pytest.mark.parametrize("fmt", [FLOAT16, FLOAT32, BFLOAT16], ids=lambda fmt: fmt.name)
def test_halves_give_the_law_of_the_whole_kernel(form: str, p: int, fmt: Format) -> None:
    """Run the kernel on all words of four uniforms: the sum of two tabulated pairs is the same."""
    kernel = {"theorem": variates.laplace_theorem, "pairs": variates.gaussian}[form]
    axis = np.arange(2**p, dtype=np.uint64) << np.uint64(64 - p)
    words = np.array(list(product(axis, repeat=4)), dtype=np.uint64).ravel()
    out = np.empty(words.size // 4)
    kernel(words, 4, p, 1.0, np.empty(words.size), out)
    whole = laws.merge(fmt.round(out), np.full(out.size, 1 / out.size))
    assert are_equal(laws.sampler_law(form, 4, p, fmt), whole)


@pytest.mark.parametrize(("form", "n"), [("inverse", 1), ("theorem", 4), ("pairs", 4)])
def test_draws_have_the_law_of_dpnoise_s_own_sampler(form: str, n: int) -> None:
    law = laws.sampler_law(form, n, 3, FLOAT16)
    rng = dpnoise.Generator()
    draw = rng.normal if form == "pairs" else rng.laplace
    drawn = draw(size=200_000, dtype="float16", form=form, variates=n, precision=3)
    indices = np.searchsorted(law.values, drawn.astype(np.float64))
    np.testing.assert_array_equal(law.values[indices], drawn)
    counts = np.bincount(indices, minlength=len(law.values))
    alarms.check_counts(counts, law.probabilities)


@pytest.mark.sample(1)
@pytest.mark.parametrize("fmt", [FLOAT16, BFLOAT16], ids=lambda fmt: fmt.name)
def test_probabilities_are_exact(fmt: Format) -> None:
    """They are whole numbers of 2^-(n p), and add up to 1 without an error."""
    for enumerate_all, (form, n) in product(
        (laws.stepwise_law, laws.sampler_law), [("inverse", 1), ("exponentials", 2), ("theorem", 4)]
    ):
        law = enumerate_all(form, n, 5, fmt)
        assert sum(map(Fraction, law.probabilities.tolist())) == 1
        assert np.all(law.probabilities * 2.0 ** (5 * n) % 1 == 0)
        assert np.all(np.diff(law.values) > 0)


@pytest.mark.parametrize("distribution", [dpnoise.Laplace(), dpnoise.Gaussian()], ids=str)
def test_longer_uniforms_tend_to_perfect_noise(distribution: Distribution) -> None:
    """Theorem 5.1 and two pairs, rounded once: delta approaches that of perfect noise with p."""
    form = "theorem" if isinstance(distribution, dpnoise.Laplace) else "pairs"
    limit = delta(1.0, *at_0_and_1(laws.ideal_law(distribution, FLOAT16), FLOAT16))
    gaps = [
        abs(delta(1.0, *at_0_and_1(laws.sampler_law(form, 4, p, FLOAT16), FLOAT16)) - limit)
        for p in (4, 5, 6)
    ]
    assert gaps == sorted(gaps, reverse=True)
    assert gaps[-1] < 0.01


def test_perfect_noise_has_the_probabilities_of_its_cells() -> None:
    law = laws.ideal_law(dpnoise.Laplace(), FLOAT16)
    at = dict(zip(law.values.tolist(), law.probabilities.tolist(), strict=True))
    low, high = 1 - 2.0**-12, 1 + 2.0**-11  # The borders of 1, whose lower neighbour is nearer.
    assert at[1.0] == pytest.approx((math.exp(-low) - math.exp(-high)) / 2, rel=1e-12)
    assert at[-1.0] == at[1.0]
    assert at[0.0] == pytest.approx(-math.expm1(-(2.0**-25)), rel=1e-12)
    assert law.probabilities.sum() == pytest.approx(1, abs=1e-15)


# Leaks. ------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def theorem() -> tuple[Law, Law]:
    return at_0_and_1(laws.stepwise_law("theorem", 4, 11, FLOAT16), FLOAT16)


def test_the_inverse_cdf_in_float16_leaks_805_thousandths() -> None:
    at_0, at_1 = at_0_and_1(laws.stepwise_law("inverse", 1, 11, FLOAT16), FLOAT16)
    assert round(delta(1.0, at_0, at_1), 3) == 0.805
    assert delta(5.0, at_0, at_1) > 0.99 * delta(1.0, at_0, at_1)


@pytest.mark.long
def test_theorem_5_1_in_float16_leaks_352_thousandths(theorem: tuple[Law, Law]) -> None:
    at_0, at_1 = theorem
    assert round(delta(1.0, at_0, at_1), 3) == 0.352
    assert round(delta(1.0, at_1, at_0), 3) == 0.034
    assert delta(5.0, at_0, at_1) > 0.99 * delta(1.0, at_0, at_1)


def test_theorem_5_1_s_leak_is_of_outputs_that_a_sum_with_1_cannot_have(
    theorem: tuple[Law, Law],
) -> None:
    """The sampler has no holes here, so the rest of the leak is there at every epsilon."""
    at_0, at_1 = theorem
    impossible = ~np.isin(at_0.values, at_1.values)
    mass = at_0.probabilities[impossible].sum()
    assert mass == pytest.approx(delta(30.0, at_0, at_1), abs=1e-6)
    assert mass > 0.99 * delta(1.0, at_0, at_1)
    # No noise at all could give nearly all of these outputs: no z has fl(1 + z) = y.
    magnitudes = FLOAT16.magnitudes()
    reachable = FLOAT16.round(1 + FLOAT16.round(np.concatenate([-magnitudes, magnitudes])))
    assert at_0.probabilities[~np.isin(at_0.values, reachable)].sum() > 0.99 * mass


def test_delta_is_the_largest_difference_over_all_sets() -> None:
    rng = np.random.default_rng()
    for _ in range(20):
        p0, p1 = rng.dirichlet(np.ones(7)), rng.dirichlet(np.ones(7))
        law0, law1 = Law(np.arange(7.0), p0), Law(np.arange(2.0, 9.0), p1)
        wide0, wide1 = np.append(p0, [0, 0]), np.append([0, 0], p1)
        for epsilon in (0.0, 0.5, 3.0):
            best = max(
                float(np.dot(chosen, wide0 - math.exp(epsilon) * wide1))
                for chosen in product([0, 1], repeat=9)
            )
            assert delta(epsilon, law0, law1) == pytest.approx(best, abs=1e-14)


@pytest.mark.sample(1)
@pytest.mark.parametrize(("n", "has_holes"), [(4, False), (8, True)])
def test_the_factor_of_eight_uniforms_opens_holes_again(n: int, has_holes: bool) -> None:  # noqa: FBT001
    """The numbers between 2 and 2 sqrt(2), times 1/sqrt(2), are too few to fill sqrt(2) to 2."""
    numbers = np.arange(1449, 2048) / 1024
    missing = ~np.isin(numbers, laws.stepwise_law("pairs", n, 6, FLOAT16).values)
    assert missing.any() == has_holes


def test_a_scale_that_is_no_power_of_two_opens_holes_again() -> None:
    """The leak of 1 against 0, at the epsilon of the scale, grows several times over."""
    law = laws.stepwise_law("theorem", 4, 8, FLOAT16)

    def leak(scale: float) -> float:
        return delta(
            1 / scale, release_law(law, 1, FLOAT16, scale), release_law(law, 0, FLOAT16, scale)
        )

    assert leak(1.5) > 3 * max(leak(1.0), leak(2.0))


# Exact release. ----------------------------------------------------------------------------------


def test_the_page_shows_what_short_words_leave_open() -> None:
    page = (Path(__file__).parents[2] / "docs" / "leakage.md").read_text()
    tables = re.findall(r"(?m)^  (\w+) \(in real arithmetic, rounded.*\n((?:    .*bits\n)+)", page)
    assert [form for form, _ in tables] == ["laplace_1", "gaussian_2"]
    for form, lines in tables:
        low, high, bits = re.findall(r"([\d.]+) and ([\d.]+) by words of (\d+) bits", lines)[0]
        bounds = release_bounds(form, int(bits))
        assert (low, high) == (f"{bounds.low:.4f}", f"{bounds.high:.4f}")


@pytest.mark.long
def test_the_page_shows_the_table_of_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["leakage"]) == 0
    page = (Path(__file__).parents[2] / "docs" / "leakage.md").read_text()
    assert capsys.readouterr().out in page


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    ("form", "bits"),
    [
        ("laplace_1", (4, 8, 12, 16)),
        ("gaussian_2", (6, 8, 10)),
    ],
)
@pytest.mark.parametrize("grid", [1.0, 2.0])
def test_the_ideal_delta_lies_within_bounds_that_shrink(
    form: str, bits: tuple[int, ...], grid: float
) -> None:
    for epsilon, (x, y) in [(0.5, (0.0, 1.0)), (1.0, (1.0, 0.0)), (1.0, (0.3, -0.4))]:
        widths = []
        for b in bits:
            bound = release_bounds(form, b, epsilon, value0=x, value1=y, grid=grid, scale=1.0)
            assert bound.low - 1e-15 <= bound.ideal <= bound.high + 1e-15
            widths.append(bound.high - bound.low)
        assert widths == sorted(widths, reverse=True)


def test_the_exact_release_leaks_nothing_that_16_bits_could_see() -> None:
    bound = release_bounds("laplace_1", 16)
    assert bound.ideal == pytest.approx(0, abs=1e-15)
    assert bound.high < 0.0012


def test_the_ideal_of_a_fine_grid_is_the_ideal_of_real_arithmetic() -> None:
    """Rounding can only reduce the leak, and a grid of 2^-10 reduces it little."""
    for form, noise in (("laplace_1", "Laplace"), ("gaussian_2", "Gaussian")):
        for epsilon in (0.25, 1.0):
            bound = release_bounds(form, 2, epsilon, grid=2.0**-10)
            assert bound.ideal == pytest.approx(summary._ideal_delta(noise, epsilon), abs=1e-3)
            assert bound.ideal <= summary._ideal_delta(noise, epsilon) + 1e-12


def test_the_ideal_gaussian_is_the_calibration_s() -> None:
    for epsilon in (0.1, 1.0, 3.0):
        ball = calibration.gaussian_delta_ball(1.0, epsilon, 1.0, bits=128)
        assert summary._ideal_delta("Gaussian", epsilon) == pytest.approx(float(ball), rel=1e-9)


# The command. ------------------------------------------------------------------------------------


@pytest.fixture
def few_cases(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep the cheap cases: the others are tested above one by one."""
    cheap = [(*case[:4], case[4][:1]) for case in summary._CASES]
    monkeypatch.setattr(summary, "_CASES", cheap)
    monkeypatch.setattr(summary, "_RELEASES", [("laplace_1", (8, 12)), ("gaussian_2", (6,))])


@pytest.mark.long
@pytest.mark.usefixtures("few_cases")
def test_the_command_prints_both_tables_and_draws(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert cli.main(["leakage", "--plot", str(tmp_path / "leakage.png")]) == 0
    printed = capsys.readouterr().out
    assert "Laplace, float16, every operation rounded (in real arithmetic 0.000)" in printed
    assert "exact release on a grid of 1: delta(1) lies between" in printed
    assert f"Written to {tmp_path / 'leakage.png'}." in printed
    assert (tmp_path / "leakage.png").read_bytes().startswith(b"\x89PNG")
    assert [path.name for path in tmp_path.iterdir()] == ["leakage.png"]


@pytest.mark.usefixtures("few_cases")
def test_the_command_prints_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["leakage", "--epsilon", "0.5", "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["epsilon"] == 0.5
    assert {row["arithmetic"] for row in printed["leaks"]} == {
        summary.EVERY,
        summary.ONCE,
        summary.PERFECT,
    }
    assert all(0 <= row["delta"] <= 1 for row in printed["leaks"])
    assert all(row["low"] <= row["ideal"] <= row["high"] for row in printed["releases"])


@pytest.mark.usefixtures("few_cases")
def test_progress_ends_at_1() -> None:
    progress: list[float] = []
    summary.leakage_table(progress=progress.append)
    assert progress == sorted(progress)
    assert progress[-1] == 1.0


def test_bad_arguments_are_named(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    law = Law(np.zeros(1), np.ones(1))
    cases: list[tuple[Callable[[], object], str]] = [
        (
            lambda: laws.stepwise_law("inverse", 1, 12, FLOAT16),
            "precision must be at most 11, got 12",
        ),
        (
            lambda: laws.stepwise_law("pairs", 8, 7, FLOAT16),
            "precision must be at most 6 for 8 uniforms, got 7",
        ),
        (
            lambda: laws.stepwise_law("pairs", 2, 13, FLOAT32),
            "precision must be at most 12 for 2",
        ),
        (lambda: laws.stepwise_law("products", 4, 4, FLOAT16), "form must be one of"),
        (
            lambda: laws.sampler_law("theorem", 4, 9, FLOAT16),
            "precision must be at most 8 for 4 uniforms, got 9",
        ),
        (
            lambda: laws.sampler_law("theorem", 4, 7, FLOAT32),
            "precision must be at most 6 for 4 uniforms, got 7",
        ),
        (lambda: laws.sampler_law("theorem", 3, 4, FLOAT32), "variates must be a supported"),
        (lambda: laws.ideal_law(dpnoise.Laplace(), FLOAT32), "with fewer numbers"),
        (lambda: Format("wide", 53, -1022), "digits must be at most 24, got 53"),
        (lambda: Format("low", 4, -1), "emin must be at most -4, got -1"),
        (lambda: release_law(law, 0.1, FLOAT16), "value must be a value of float16"),
        (lambda: delta(-1.0, law, law), "epsilon must be between 0 and 700"),
        (lambda: release_bounds("gaussian_2", 13), "bits must be at most 12, got 13"),
        (lambda: release_bounds("laplace_1", 8, grid=0.3), "must be a power of two"),
        (lambda: release_bounds("laplace_1", 8, grid=2.0**-11), "decide nothing"),
        (lambda: release_bounds("cauchy_1", 8), "form must be one of"),
    ]
    for call, message in cases:
        with pytest.raises(ArgumentError, match=message):
            call()

    def alarm(*_: object) -> None:
        pytest.fail("it began to enumerate")

    monkeypatch.setattr(summary, "leakage_table", alarm)
    assert cli.main(["leakage", "--plot", "leakage.txt"]) == 2
    assert "must end in .png, .pdf, .svg" in capsys.readouterr().err
