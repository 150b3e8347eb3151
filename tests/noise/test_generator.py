"""The Generator for a NumPy user: shapes, formats, out, errors, and no seed."""

import copy
import inspect
import pickle
import re
import threading
import tracemalloc
from collections.abc import Callable
from dataclasses import FrozenInstanceError, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.registers import MODES, needs_known_registers, rounding_mode

import dpnoise
from dpnoise.core.entropy import SYSTEM
from dpnoise.core.errors import ArgumentError, DpnoiseError, RoundingModeError, SecretError
from dpnoise.core.parallel import run_in_parallel, run_over_key_stream
from dpnoise.noise import generator
from dpnoise.testing import fixed_generator

rng: Any = dpnoise.Generator()  # Any, because some calls here are wrong.
KEY = bytes(range(32))
METHODS: dict[str, dict[str, Any]] = {
    "random": {},
    "laplace": {},
    "normal": {},
    "exponential": {},
    "gamma": {"shape": 1.7},
    "chisquare": {"df": 2},
    "gumbel": {},
    "cauchy": {},
}


@pytest.mark.parametrize("method", METHODS)
def test_size_gives_the_shape(method: str) -> None:
    draw = partial(getattr(rng, method), **METHODS[method])
    assert isinstance(draw(), float)
    assert draw(size=5).shape == (5,)
    assert draw(size=np.int64(5)).shape == (5,)
    assert draw(size=(2, 3, 4)).shape == (2, 3, 4)
    assert draw(size=()).shape == ()
    assert draw(size=0).shape == (0,)
    assert draw(size=(3, 0)).shape == (3, 0)


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", np.float32, np.dtype("f2")])
def test_dtype_gives_the_format(dtype: Any) -> None:
    for method, options in METHODS.items():
        draw = partial(getattr(rng, method), **options, dtype=dtype)
        assert draw(size=3).dtype == np.dtype(dtype)
        assert np.asarray(draw()).dtype == np.dtype(dtype)


def test_scale_broadcasts() -> None:
    scales = np.array([1e-6, 1.0, 1e6])
    noise = fixed_generator(KEY).laplace(scale=scales, size=(1000, 3))
    plain = fixed_generator(KEY).laplace(size=(1000, 3))
    np.testing.assert_array_equal(noise, plain * scales)
    assert rng.laplace(scale=[1.0, 2.0]).shape == (2,)
    assert rng.normal(scale=np.ones((2, 1)), size=(2, 5)).shape == (2, 5)
    assert isinstance(rng.normal(scale=np.float32(2.0)), float)
    assert isinstance(rng.normal(scale=np.array(2.0)), float)
    assert isinstance(rng.normal(scale=2), float)


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16"])
def test_out_may_have_any_strides(dtype: str) -> None:
    expected = fixed_generator(KEY).laplace(scale=2.0, size=(30, 20), dtype=dtype)
    outs: list[np.ndarray[Any, Any]] = [
        np.empty((30, 20), dtype),
        np.empty((30, 20), dtype, order="F"),
        np.empty((60, 40), dtype)[::2, ::-2],
        np.empty(30 * 20 * 8 + 1, np.int8)[1 : 1 + 600 * np.dtype(dtype).itemsize]
        .view(dtype)
        .reshape(30, 20),
    ]
    for out in outs:
        assert fixed_generator(KEY).laplace(scale=2.0, out=out) is out
        np.testing.assert_array_equal(out, expected)
    scales = np.linspace(1, 2, 20)
    by_column = [fixed_generator(KEY).laplace(scale=scales, out=out).copy() for out in outs]
    for result in by_column[1:]:
        np.testing.assert_array_equal(result, by_column[0])


def test_outside_of_a_sliced_out_nothing_is_written() -> None:
    frame = np.zeros((50, 50))
    rng.laplace(out=frame[10:20, 10:20])
    assert np.count_nonzero(frame) == 100


def test_threads_take_runs_in_turn_each_once_and_a_failure_is_raised() -> None:
    runs: list[tuple[int, int]] = []
    others_are_done = threading.Event()

    def wait_in_first(first: int, last: int) -> None:
        if first == 0:
            assert others_are_done.wait(60)
        runs.append((first, last))
        if len(runs) == len(range(0, 1001, 100)) - 1:
            others_are_done.set()

    run_in_parallel(wait_in_first, 1001, 100, 2)
    assert runs[-1] == (0, 100)  # Its thread took no other run.
    assert [i for run in sorted(runs) for i in range(*run)] == list(range(1001))

    def fail_in_sixth(first: int, _last: int) -> None:
        if first == 500:
            raise ValueError("the sixth")

    with pytest.raises(ValueError, match="the sixth"):
        run_in_parallel(fail_in_sixth, 1001, 100, 2)


@pytest.mark.sample(1)
@pytest.mark.parametrize("variates", [1, 4, 6])
def test_result_does_not_depend_on_chunks_or_threads(
    variates: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    form = "inverse" if variates == 1 else "gammas" if variates == 6 else None
    results = []
    for chunk_words in (7, 1000, 2**16):
        for threads in (1, 2, 5):
            monkeypatch.setattr(
                generator,
                "run_over_key_stream",
                partial(run_over_key_stream, chunk_words=chunk_words),
            )
            fixed = fixed_generator(KEY, threads=threads)
            results.append(fixed.laplace(size=4001, variates=variates, form=form))
    for result in results[1:]:
        np.testing.assert_array_equal(result, results[0])


def test_security_bits_and_precision_choose_the_variates(monkeypatch: pytest.MonkeyPatch) -> None:
    """Section 5.3 of the paper, rounded up to a number that each sampler supports."""
    variates: list[int] = []
    monkeypatch.setattr(generator, "run_over_key_stream", lambda _key, n, *_: variates.append(n))
    for bits in (128, 192, 256):
        for dtype in ("float64", "float32", "float16"):
            rng = dpnoise.Generator(security_bits=bits)
            rng.laplace(size=2, dtype=dtype)
            rng.normal(size=2, dtype=dtype)
            rng.exponential(size=2, dtype=dtype)
    laplace, normal, exponential = variates[::3], variates[1::3], variates[2::3]
    assert laplace == [4, 8, 16, 8, 16, 24, 8, 16, 32]
    assert normal == [4, 8, 14, 6, 10, 20, 6, 12, 26]
    assert exponential == [4, 8, 16, 8, 12, 20, 8, 12, 28]


def test_the_number_of_variates_picks_the_form() -> None:
    for variates, form in ((2, "exponentials"), (4, "theorem"), (8, "products"), (24, "products")):
        np.testing.assert_array_equal(
            fixed_generator(KEY).laplace(size=100, variates=variates),
            fixed_generator(KEY).laplace(size=100, variates=variates, form=form),
        )


@pytest.mark.parametrize("seed", [42, 0, "seed", b"x" * 32, [1, 2]])
def test_a_seed_is_refused_with_an_explanation(seed: Any) -> None:
    with pytest.raises(TypeError, match=r"takes no seed.*dpnoise\.testing\.fixed_generator"):
        dpnoise.Generator(seed)
    with pytest.raises(TypeError, match="takes no seed"):
        dpnoise.Generator(seed=seed)


@pytest.mark.parametrize("rng", [dpnoise.Generator(), fixed_generator(bytes(32))], ids=str)
def test_a_generator_cannot_be_seeded_later_either(rng: Any) -> None:
    with pytest.raises(TypeError, match=r"takes no seed.*dpnoise\.testing\.fixed_generator"):
        rng.seed(1)


def test_a_generator_can_be_replaced_by_one_with_other_threads() -> None:
    assert replace(dpnoise.Generator(security_bits=64), threads=1) == dpnoise.Generator(
        threads=1, security_bits=64
    )


def test_the_source_is_the_systems_and_cannot_be_given() -> None:
    for ours in (rng, pickle.loads(pickle.dumps(rng)), *rng.spawn(2)):
        assert ours.source is SYSTEM
    assert "the operating system" in repr(SYSTEM)
    with pytest.raises(TypeError, match="source"):
        dpnoise.Generator(source=fixed_generator(KEY).source)  # type: ignore[call-arg]
    with pytest.raises(FrozenInstanceError):
        rng.source = fixed_generator(KEY).source


def test_a_fixed_source_says_so_and_keeps_its_key() -> None:
    source = fixed_generator(KEY).source
    source.random_bytes(8)
    assert "fixed" in repr(source)
    assert "only for tests" in repr(source)
    assert KEY.hex() not in repr(source)
    assert KEY not in repr(source).encode()
    for duplicate in (pickle.dumps, copy.copy, copy.deepcopy):
        for thing in (source, fixed_generator(KEY)):
            with pytest.raises(SecretError):
                duplicate(thing)


def test_a_fixed_generator_repeats_and_says_so() -> None:
    first, second = fixed_generator(KEY), fixed_generator(KEY)
    draws: list[Callable[[dpnoise.Generator], Any]] = [
        lambda g: g.laplace(),
        lambda g: g.gamma(0.7),
        lambda g: g.normal(size=5),
    ]
    for draw in draws:
        np.testing.assert_array_equal(draw(first), draw(second))
    assert first.laplace() != first.laplace()
    assert "only for tests" in repr(first)
    assert KEY.hex() not in repr(first)
    assert KEY not in repr(first).encode()
    with pytest.raises(SecretError):
        pickle.dumps(first)
    with pytest.raises(TypeError, match="key must be 32 bytes"):
        fixed_generator(42)  # type: ignore[arg-type]


DRAWING_METHODS = {
    name: inspect.signature(method).parameters
    for name, method in inspect.getmembers(rng, inspect.ismethod)
    if "size" in inspect.signature(method).parameters and not name.startswith("_")
}


def test_there_are_drawing_methods() -> None:
    assert {"random", "laplace", "normal", "gamma", "sample"} <= DRAWING_METHODS.keys()


@pytest.mark.parametrize("name", DRAWING_METHODS)
def test_arguments_of_numpy_by_position_are_an_error_that_explains(name: str) -> None:
    """`rng.normal(10, 2)` of NumPy has mean 10 and scale 2, and returns one number."""
    parameters = DRAWING_METHODS[name].values()
    needed = [1.0 for parameter in parameters if parameter.kind is parameter.POSITIONAL_OR_KEYWORD]
    with pytest.raises(
        TypeError, match=rf"{name} takes arguments by name, as in {name}\(.*size=10"
    ):
        getattr(rng, name)(*needed, 10)


PAGE = Path(__file__).parents[2] / "docs" / "library-authors.md"
PORTED = re.findall(r"^\| `(rng\..+)` \| `(.+)` \|$", PAGE.read_text(), re.MULTILINE)


def test_the_page_ports_every_distribution_that_numpy_has() -> None:
    named = " ".join(call for _, call in PORTED)
    assert {name for name in DRAWING_METHODS if f"rng.{name}(" not in named} == {"sample"}


@pytest.mark.parametrize(("numpy_call", "call"), PORTED)
def test_a_ported_call_returns_as_many_numbers_as_that_of_numpy(numpy_call: str, call: str) -> None:
    numpy_result = eval(numpy_call, {"rng": np.random.default_rng()})  # noqa: S307 - our own page
    result = eval(call, {"rng": rng, "dpnoise": dpnoise})  # noqa: S307 - our own page
    assert np.shape(result) == np.shape(numpy_result)


def test_a_mean_is_an_error_that_recommends_a_mechanism() -> None:
    with pytest.raises(TypeError, match=r"there is no loc\..* dpnoise\.LaplaceMechanism"):
        rng.laplace(loc=3.0)


BAD: list[tuple[Callable[..., Any], type[Exception], str]] = [
    (
        lambda **k: rng.laplace(scale=-1.0, **k),
        ValueError,
        r"scale must be greater than 0, got -1\.0\.",
    ),
    (
        lambda **k: rng.laplace(scale=0, **k),
        ValueError,
        r"scale must be greater than 0, got 0\.0\.",
    ),
    (lambda **k: rng.normal(scale=float("nan"), **k), ValueError, "scale must be finite"),
    (lambda **k: rng.normal(scale=float("inf"), **k), ValueError, "scale must be finite"),
    (
        lambda **k: rng.normal(scale=[1.0, -2.0], **k),
        ValueError,
        r"scale must be greater than 0, got -2\.0",
    ),
    (lambda **k: rng.normal(scale="wide", **k), TypeError, "scale must be a number"),
    (lambda **k: rng.gamma(0.0, **k), ValueError, r"shape must be greater than 0, got 0\.0"),
    (lambda **k: rng.chisquare(-3, **k), ValueError, r"df must be greater than 0, got -3\.0"),
    (
        lambda **k: rng.laplace(variates=3, **k),
        ValueError,
        r"variates must be .*2 with form='exponentials'; 4 with form='theorem'; 4, 8, 16, 24",
    ),
    (lambda **k: rng.laplace(variates=1, **k), ValueError, r"1 with form='inverse'"),
    (lambda **k: rng.normal(variates=5, **k), ValueError, r"2, 4, 6, \.\.\. with form='pairs'"),
    (
        lambda **k: (rng.normal(variates=4), rng.normal(variates=4.0, **k)),
        TypeError,
        r"variates must be an int",
    ),
    (
        lambda **k: rng.laplace(variates=4, form="exponentials", **k),
        ValueError,
        r"be a supported number, got .*: 2 with form='exponentials'\.",
    ),
    (
        lambda **k: rng.laplace(form="ziggurat", **k),
        ValueError,
        "form must be one of 'exponentials', 'theorem'",
    ),
    (
        lambda **k: rng.laplace(form=[1], **k),
        ValueError,
        r"form must be one of 'exponentials', 'theorem'",
    ),
    (
        lambda **k: rng.random(precision=54, **k),
        ValueError,
        "precision must be at most 53, the digits",
    ),
    (lambda **k: rng.random(precision=0, **k), ValueError, "precision must be at least 1, got 0"),
    (lambda **k: rng.sample("laplace", **k), TypeError, "must be a Distribution"),
]


@pytest.mark.parametrize(("call", "error", "message"), BAD, ids=[row[2] for row in BAD])
def test_bad_arguments_are_named_and_leave_out_as_it_was(
    call: Callable[..., Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        call()
    out = np.arange(6.0).reshape(2, 3)
    with pytest.raises(error, match=message):
        call(out=out)
    np.testing.assert_array_equal(out, np.arange(6.0).reshape(2, 3))


def test_bad_sizes_dtypes_and_outs_are_named() -> None:
    read_only = np.zeros(3)
    read_only.flags.writeable = False
    cases: list[tuple[dict[str, Any], type[Exception], str]] = [
        ({"size": -1}, ValueError, "size must be at least 0, got -1"),
        ({"size": (2, -3)}, ValueError, "size must be at least 0, got -3"),
        ({"size": 2.5}, TypeError, r"size must be an integer"),
        ({"dtype": "int64"}, ValueError, "dtype must be one of float16, float32"),
        ({"dtype": ">i8"}, ValueError, "dtype must be one of float16, float32"),
        ({"dtype": "foo"}, ValueError, "dtype must be one of float16, float32"),
        ({"dtype": [1], "size": 3}, ValueError, r"dtype must be one of float16"),
        ({"dtype": "foo", "out": np.zeros(3)}, ValueError, "dtype must be one of"),
        ({"size": 2**62}, ValueError, "size must be that of an array, got "),
        ({"size": (2**40, 2**40)}, ValueError, "be that of an array, got "),
        ({"size": (1,) * 100}, ValueError, "be that of an array, got "),
        ({"dtype": "float32", "precision": 25}, ValueError, "precision must be at most 24"),
        ({"dtype": "float16", "precision": 12}, ValueError, "precision must be at most 11"),
        ({"out": [0.0, 0.0]}, TypeError, "out must be a NumPy array, got list"),
        ({"out": np.zeros(3, int)}, TypeError, r"out\.dtype must be one of"),
        ({"out": np.zeros(3), "dtype": "float32"}, TypeError, "dtype must be that of out"),
        ({"out": read_only}, ValueError, "out must be writeable"),
        ({"out": np.zeros(3), "size": 4}, ValueError, r"size must be the shape of out, \(3,\)"),
        ({"scale": np.ones(2), "size": 3}, ValueError, "scale must broadcast to"),
        ({"scale": np.ones((2, 3)), "size": 3}, ValueError, "scale must broadcast to"),
    ]
    for arguments, error, message in cases:
        with pytest.raises(error, match=message) as e:
            rng.laplace(**arguments)
        assert isinstance(e.value, DpnoiseError)
    for bad in ({"threads": 0}, {"threads": 1.5}, {"security_bits": 0}):
        with pytest.raises((ValueError, TypeError), match=f"{next(iter(bad))} must "):
            dpnoise.Generator(**bad)


@pytest.mark.parametrize("kind", ["f2", "f4", "f8"])
def test_the_other_byte_order_is_refused_with_the_dtype_to_use(kind: str) -> None:
    swapped = np.dtype(kind).newbyteorder("S")
    message = f"byte order of this machine, got '{swapped}'. Draw in {np.dtype(kind).name} and"
    out = np.arange(6).astype(swapped)
    for arguments in ({"dtype": swapped}, {"dtype": swapped, "size": 6}, {"out": out}):
        with pytest.raises(ArgumentError, match=re.escape(message)):
            rng.laplace(**arguments)
    assert out.tolist() == [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize("kind", ["f2", "f4", "f8", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8"])
def test_scales_are_read_in_either_byte_order(kind: str) -> None:
    scales = np.array([1, 2, 100], dtype=kind)
    native = fixed_generator(KEY).laplace(scale=scales)
    swapped = fixed_generator(KEY).laplace(scale=scales.astype(scales.dtype.newbyteorder("S")))
    assert native.dtype == swapped.dtype == np.dtype(np.float64)
    assert swapped.dtype.isnative
    assert native.tolist() == swapped.tolist()


@pytest.mark.parametrize("variates", [2**24 + 8, 2**40, 2**62, 2**63, 2**70])
@pytest.mark.parametrize("method", ["laplace", "normal", "exponential", "gumbel", "cauchy"])
def test_more_uniforms_than_fit_in_memory_are_refused_before_out_is_touched(
    method: str, variates: int
) -> None:
    draw, out = getattr(rng, method), np.arange(6.0)
    for arguments in ({}, {"size": 3}, {"size": 0}, {"out": out}, {"dtype": "float32"}):
        with pytest.raises(ArgumentError, match=r"variates must request at most 2\^24"):
            draw(variates=variates, **arguments)
    assert out.tolist() == [0, 1, 2, 3, 4, 5]


def test_security_bits_that_take_too_many_uniforms_are_refused() -> None:
    for bits in (53 * 2**24 + 54, 2**70):
        with pytest.raises(ArgumentError, match=r"security_bits must request at most 2\^24"):
            dpnoise.Generator(security_bits=bits).normal()


@needs_known_registers
@pytest.mark.parametrize("mode", MODES, ids=["down", "up", "to zero"])
@pytest.mark.parametrize("method", METHODS)
def test_another_rounding_mode_is_refused_and_leaves_out_as_it_was(method: str, mode: int) -> None:
    draw = partial(getattr(rng, method), **METHODS[method])
    out, raised = np.arange(6.0), []
    for arguments in ({}, {"size": 3}, {"out": out}, {"dtype": "float16"}):
        draw(**arguments | ({"out": np.empty(6)} if "out" in arguments else {}))
        with rounding_mode(mode):
            try:
                draw(**arguments)
            except RoundingModeError as error:
                raised.append(error)
    assert len(raised) == 4
    assert out.tolist() == [0, 1, 2, 3, 4, 5]


def test_memory_beyond_the_output_is_constant() -> None:
    out = np.empty(5_000_000)
    two_threads = dpnoise.Generator(threads=2)
    two_threads.laplace(out=out[:10])
    tracemalloc.start()
    try:
        two_threads.laplace(out=out)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 8 * 2**20


def test_an_argument_that_is_not_known_is_named() -> None:
    misspelt: dict[str, Any] = {"precison": 24}
    with pytest.raises(TypeError, match=r"no argument 'precison': give scale, size, dtype, out"):
        rng.laplace(size=3, **misspelt)
