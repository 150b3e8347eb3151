"""Tracebacks with locals, as error trackers print them, show no key, no words and no value."""

import inspect
import os
import re
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pytest

import dpnoise
from dpnoise import statistics
from dpnoise.core import entropy, kernel_table, reference
from dpnoise.release import additive, discrete, exact, selection
from dpnoise.statistics import functions, publishing
from dpnoise.testing import fixed_generator

KEY = bytes(range(100, 132))
VALUE = 31415926.5
laplace = dpnoise.LaplaceMechanism(epsilon=1.0, sensitivity=1.0)
fine = dpnoise.LaplaceMechanism(epsilon=1.0, sensitivity=1.0, grid=2.0**-50)
noisy_max = dpnoise.NoisyMax(epsilon=1.0, sensitivity=1.0)
BOUNDS: dict[str, Any] = {"lower": 0, "upper": 4e7, "epsilon": 1.0}


def one_thread() -> dpnoise.Generator:
    return fixed_generator(KEY, threads=1)


def two_threads() -> dpnoise.Generator:
    return fixed_generator(KEY, threads=2)


# Public calls, each with a secret among its arguments.
CALLS: dict[str, Callable[[], object]] = {
    "a float": lambda: laplace.release(VALUE, one_thread()),
    "an int": lambda: laplace.release(int(VALUE), one_thread()),
    "an array": lambda: laplace.release(np.full(10, VALUE), one_thread()),
    "an array, two threads": lambda: laplace.release(np.full(10**5, VALUE), two_threads()),
    "integers": lambda: laplace.release(np.full(10, int(VALUE)), one_thread()),
    "a list": lambda: laplace.release([VALUE, 1.0], one_thread()),
    "selection": lambda: noisy_max.select([VALUE, 1.0], rng=one_thread()),
    "count": lambda: statistics.count([VALUE], epsilon=1.0, rng=one_thread()),
    "sum": lambda: statistics.sum([VALUE], **BOUNDS, rng=one_thread()),
    "mean": lambda: statistics.mean([VALUE], **BOUNDS, rng=one_thread()),
    "median": lambda: statistics.median([VALUE], **BOUNDS, rng=one_thread()),
    "quantile": lambda: statistics.quantile([VALUE], 0.9, **BOUNDS, rng=one_thread()),
    "histogram": lambda: statistics.histogram(
        [VALUE], edges=[0, 4e7], epsilon=1.0, rng=one_thread()
    ),
    "a slow path": lambda: [fine.release(VALUE, one_thread()) for _ in range(50)],
    "slow paths": lambda: fine.release(np.full(1000, VALUE), one_thread()),
    "noise": lambda: one_thread().laplace(size=10),
    "noise, two threads": lambda: two_threads().laplace(size=10**6),
    "one number": lambda: one_thread().laplace(),
}


class PlantedError(BaseException):
    """An exception that no code expects, like an interrupt."""


def raise_planted(*_: Any, **__: Any) -> None:
    raise PlantedError


def text_with_locals(error: BaseException) -> str:
    """Return the traceback with the locals of dpnoise's frames, without those of callers."""
    formatted = traceback.TracebackException.from_exception(error, capture_locals=True)
    # By the path, because a checkout may have the name of the package.
    ours = str(Path(dpnoise.__file__).parent)
    frames = [frame for frame in formatted.stack if frame.filename.startswith(ours + os.sep)]
    assert frames, "the frames must stay"
    text = "\n".join(f"{frame.line}\n{frame.locals}" for frame in frames)
    return re.sub(r" at 0x[0-9a-f]+", "", text)  # An address may have the digits of a secret.


def secrets() -> list[str]:
    """Return the secrets: the value, the key and its first words, in all spellings."""
    words = np.empty(8, dtype=entropy.WORD)
    entropy.Key(KEY).stream().fill(words)
    values = [f"{VALUE:.0f}"[:-1], f"{VALUE:e}"[:5], repr(KEY)[2:12], KEY.hex()[:12]]
    return [*values, *(str(word) for word in words.tolist()), repr(words.tobytes())[2:12]]


SECRETS = secrets()


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize(
    "part", ["the key stream", "the rounding check", "the reference", "a kernel"]
)
def test_a_failure_inside_shows_no_secret(
    call: str, part: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if part == "the key stream":
        monkeypatch.setattr(entropy.KeyStream, "fill", raise_planted)
    elif part == "the rounding check":
        for module in (additive, exact, discrete, selection):
            monkeypatch.setattr(module, "check_rounding_mode", raise_planted)
    elif part == "the reference":
        monkeypatch.setattr(reference, "released_whole", raise_planted)
    else:
        for name in ("not_finite", "laplace_1", "gaussian_pairs", "exponential", "gumbel"):
            monkeypatch.setattr(kernel_table.first_stage, name, raise_planted)
        for name in ("count_and_sum", "sum_squares", "count_cells"):
            monkeypatch.setattr(kernel_table.sums, name, raise_planted)
    try:
        CALLS[call]()
    except PlantedError as error:
        text = text_with_locals(error)
        for secret in SECRETS:
            assert secret not in text
    else:
        is_noise = call in {"noise", "noise, two threads", "one number"}
        assert is_noise or part in {"the reference", "a kernel"} or call == "quantile"


def test_an_argument_error_shows_no_value() -> None:
    for bad in ([VALUE, float("nan")], [VALUE, "x"], np.array([VALUE, np.inf]), [[VALUE], [1, 2]]):
        with pytest.raises((ValueError, TypeError)) as caught:
            laplace.release(bad)
        assert "3141592" not in text_with_locals(caught.value)
        assert "3141592" not in str(caught.value)


def test_frames_of_libraries_below_ours_show_no_value() -> None:
    """If a library fails during our call, its frames contain our values."""
    secret = 271828182
    calls: list[Callable[[], object]] = [
        lambda: statistics.count(pd.DataFrame({"a": [secret]}), epsilon=1.0),
        lambda: statistics.count(pl.Series(["secret", str(secret)]), epsilon=1.0),
        lambda: noisy_max.select(pl.Series([str(secret)]), rng=one_thread()),
        lambda: laplace.release(pl.Series([str(secret)]), one_thread()),
    ]
    for call in calls:
        try:
            call()
        except (ValueError, TypeError) as raised:
            error: BaseException | None = raised
            while error is not None:
                formatted = traceback.TracebackException.from_exception(error, capture_locals=True)
                frames = [
                    frame for frame in formatted.stack if "test_tracebacks" not in frame.filename
                ]
                assert str(secret) not in "".join(str(frame.locals) for frame in frames)
                error = error.__context__
        else:
            pytest.fail("expected an error")


def test_the_exception_that_was_being_handled_is_unchanged() -> None:
    """Only our frames are cleared, not those of a caller that handles an exception."""

    def fail_in_caller() -> None:
        mine = "a caller's own"
        raise KeyError(mine)

    try:
        fail_in_caller()
    except KeyError as before:
        with pytest.raises(ValueError, match="finite"):
            laplace.release(float("nan"))
        frame = before.__traceback__.tb_next.tb_frame  # type: ignore[union-attr]
        assert frame.f_locals["mine"] == "a caller's own"


def test_every_public_function_that_takes_data_forgets_it() -> None:
    """The methods of the mechanisms, and each public function of statistics on values."""
    takes_values = [
        function
        for name, function in vars(functions).items()
        if inspect.isfunction(function)
        and function.__module__ == "dpnoise.statistics.functions"
        and not name.startswith("_")
        and "values" in inspect.signature(function).parameters
        and not inspect.isgeneratorfunction(function)
    ]
    assert len(takes_values) == 10
    for function in [
        *takes_values,
        dpnoise.LaplaceMechanism.release,
        dpnoise.GaussianMechanism.release,
        dpnoise.NoisyMax.select,
        dpnoise.ExponentialMechanism.select,
        dpnoise.Generator._draw,
        publishing.publish,
    ]:
        assert hasattr(function, "__wrapped__"), function
