"""A release does the same work for all values and all noise.

On the default grid the reference is reached with a probability below 2^-64. Otherwise nothing
depends on the value or on the words: not the kernels and the sizes of their arrays, not the number
of words read, and not the Python instructions.
"""

import os
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest

import dpnoise
from dpnoise.core import kernel_table, reference
from dpnoise.core.entropy import AES, CHACHA20, EntropySource, Key, KeyStream
from dpnoise.kernels import second_stage
from dpnoise.release import exact
from dpnoise.release.discrete import DiscreteLaplaceMechanism
from dpnoise.statistics import selections
from dpnoise.testing import fixed_generator

pytestmark = pytest.mark.internals  # It counts CPython's bytecode instructions.

PACKAGE = str(Path(dpnoise.__file__).parent)
MECHANISMS = {
    "laplace": dpnoise.LaplaceMechanism(epsilon=1.0, sensitivity=1.0),
    "gaussian": dpnoise.GaussianMechanism.for_scale(1.7, sensitivity=1.0),
    "clamped": dpnoise.LaplaceMechanism(epsilon=1.0, sensitivity=1.0, lower=-4, upper=5),
    "loud": dpnoise.LaplaceMechanism(epsilon=1.0, sensitivity=2.0**60),
    "coarse": dpnoise.LaplaceMechanism(epsilon=1.0, sensitivity=1.0, grid=8.0),
    "coarsest": dpnoise.GaussianMechanism.for_scale(1.0, sensitivity=1.0, grid=2.0**20),
    "finest": dpnoise.LaplaceMechanism(epsilon=1.0, sensitivity=1.0, grid=2.0**-24),
}
# The kernels that releases of arrays run.
KERNELS: list[tuple[Any, tuple[str, ...]]] = [
    (kernel_table.first_stage, ("not_finite", "laplace_1", "gaussian_pairs")),
    (
        kernel_table.second_stage,
        (
            *("open_places", "laplace_1", "gaussian_pairs", "settle_floats", "settle_cells"),
            *("add_whole_grids", "to_integers"),
        ),
    ),
]
for_mechanisms = pytest.mark.parametrize("mechanism", MECHANISMS.values(), ids=MECHANISMS)
SIZE = 20_001  # An odd number of several chunks.

FLOATS = [
    *(0.0, -0.0, 1.0, 0.1, -0.1, 2.0**-21, -3 * 2.0**-21, 4.0, -4.0, 12.0, 2.0**19, 1e9, -1e9),
    *(5e-324, -5e-324, 2.3e-308, 2.0**33, 2.0**60, 1e300, -1e300, sys.float_info.max),
]
# Integers of up to 63 bits take one path; docs/exact-release-proof.md describes larger ones.
INTEGERS = [
    0,
    1,
    -1,
    4,
    -4,
    7,
    2**19,
    2**30 - 1,
    2**30,
    -(2**30),
    2**31,
    2**53 + 1,
    2**60,
    -(2**60),
]
INTEGERS += [2**62 - 1, 2**62, 2**62 + 1, -(2**62) + 1, -(2**62), -(2**62) - 1]
# With noise of the mechanisms below they stay within 64 bits.
INTEGERS += [2**63 - 2**26, 2**26 - 2**63]


def instructions(call: Callable[[], object]) -> list[tuple[str, int]]:
    """Return every Python instruction of dpnoise that a call runs, in order."""
    executed: list[tuple[str, int]] = []

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        if not frame.f_code.co_filename.startswith(PACKAGE):
            return None
        frame.f_trace_opcodes = True
        if event == "opcode":
            executed.append((frame.f_code.co_qualname, frame.f_lasti))
        return trace

    before = sys.gettrace()
    # Python 3.12 checks whether a frame wants opcodes when the trace function is set.
    sys._getframe().f_trace_opcodes = True
    sys.settrace(trace)
    try:
        call()
    finally:
        sys.settrace(before)
    return executed


class WorkRecorder:
    """Records each kernel of a release with the sizes of its arrays, and the words read."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.entries: list[Any] = []
        kernel_table.load_kernels()  # The first kernel of a process draws a word.
        fill = KeyStream.fill
        second_words = Key.second_words

        def record_fill(stream: KeyStream, words: Any) -> None:
            self.entries.append(("words", words.size))
            fill(stream, words)

        def record_second_words(key: Key, variates: int) -> Callable[..., Any]:
            return self.wrap("second words", second_words(key, variates))

        for module, names in KERNELS:
            for name in names:
                kernel = self.wrap(name, getattr(module, name))
                monkeypatch.setattr(module, name, kernel)
        for form in (exact.LAPLACE_1, exact.GAUSSIAN_2):
            for name in ("release_float", "release_integer", "release_raised"):
                kernel = self.wrap(f"one: {form.name}", getattr(form, name))
                monkeypatch.setitem(vars(form), name, kernel)
        monkeypatch.setattr(KeyStream, "fill", record_fill)
        monkeypatch.setattr(Key, "second_words", record_second_words)
        reference_recorder = self.wrap("the reference", reference.released_whole)
        monkeypatch.setattr(reference, "released_whole", reference_recorder)

    def wrap(self, name: str, function: Any) -> Callable[..., Any]:
        """Return a function that records its name and the sizes of its arguments."""

        def record_call(*arguments: Any) -> Any:
            sizes = [getattr(argument, "shape", None) for argument in arguments]
            self.entries.append((name, sizes))
            return function(*arguments)

        return record_call

    def record(self, call: Callable[[], object]) -> list[Any]:
        """Return the entries of a call."""
        self.entries = []
        call()
        return self.entries


def random_key() -> dpnoise.Generator:
    return fixed_generator(os.urandom(32), threads=1)


def arrays_of_floats() -> list[Any]:
    rng = np.random.default_rng()
    mixed = rng.choice(FLOATS, SIZE)
    return [*(np.full(SIZE, value) for value in FLOATS), mixed, rng.standard_normal(SIZE)]


def arrays_of_integers() -> list[Any]:
    rng = np.random.default_rng()
    ends = [*INTEGERS, 2**63 - 1, -(2**63)]
    return [*(np.full(SIZE, value) for value in ends), rng.choice(np.array(ends), SIZE)]


@for_mechanisms
@pytest.mark.parametrize("arrays", [arrays_of_floats, arrays_of_integers])
def test_arrays_of_all_values_take_the_same_stages(
    mechanism: Any, arrays: Callable[[], list[Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each array under three keys: the same kernels, numbers, slots and words."""
    mechanism.release(np.ones(3), rng=random_key())  # Does everything that is done once.
    recorder = WorkRecorder(monkeypatch)
    entries = [
        recorder.record(lambda array=array: mechanism.release(array, rng=random_key()))  # type: ignore[misc]
        for array in arrays()
        for _ in range(3)
    ]
    assert all(entry == entries[0] for entry in entries)
    names = [name for name, _ in entries[0]]
    assert names.count("second words") > 1
    assert "the reference" not in names


@for_mechanisms
@pytest.mark.parametrize("arrays", [arrays_of_floats, arrays_of_integers])
def test_arrays_of_all_values_run_the_same_instructions(
    mechanism: Any, arrays: Callable[[], list[Any]]
) -> None:
    all_arrays = arrays()
    mechanism.release(all_arrays[0], rng=random_key())
    runs = [
        instructions(lambda array=array: mechanism.release(array, rng=random_key()))  # type: ignore[misc]
        for array in all_arrays
    ]
    assert len(runs[0]) > 1000
    assert all(run == runs[0] for run in runs)


@for_mechanisms
@pytest.mark.parametrize("values", [FLOATS, INTEGERS], ids=["floats", "integers"])
def test_single_numbers_take_the_same_stages_and_instructions(
    mechanism: Any, values: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    check_single_numbers(mechanism, values, monkeypatch)


@pytest.mark.parametrize("name", ["laplace", "coarse"])
def test_single_numpy_integers_take_the_same_stages_and_instructions(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    check_single_numbers(MECHANISMS[name], [*map(np.int64, INTEGERS)], monkeypatch)


def check_single_numbers(
    mechanism: Any, values: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Release each number several times, and once with a recorder."""
    rng = dpnoise.Generator()
    mechanism.release(values[0], rng=rng)
    runs = [
        instructions(lambda value=value: mechanism.release(value, rng=rng))  # type: ignore[misc]
        for value in values
        for _ in range(5)
    ]
    assert len(runs[0]) > 100
    assert all(run == runs[0] for run in runs)
    recorder = WorkRecorder(monkeypatch)
    for value in values:
        (entry,) = recorder.record(lambda value=value: mechanism.release(value, rng=rng))  # type: ignore[misc]
        assert entry[0].startswith("one: ")


class LoudSource(EntropySource):
    """A source with one draw: Laplace noise of 41 scales."""

    __slots__ = ()

    def scalar_words(self, variates: int) -> bytes:
        """Return a uniform of almost all ones."""
        assert variates == 1
        return (2**64 - 8).to_bytes(8, "little") + os.urandom(8)


class LoudGenerator(dpnoise.Generator):
    """A Generator with noise of 41 scales."""

    source = LoudSource()


@pytest.mark.parametrize("value", [*INTEGERS, 2**63 - 1, 1 - 2**63, -(2**63), 2**63, 2**64])
def test_noise_that_leads_out_of_64_bits_takes_the_same_stages(
    value: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the reference decided it, timing would reveal the noise of a value.

    Only values of more than 63 bits pass through the kernel twice.
    """
    recorder = WorkRecorder(monkeypatch)
    for mechanism in (
        MECHANISMS["loud"],
        dpnoise.LaplaceMechanism(epsilon=1.0, sensitivity=2.0**81),
    ):
        entries = recorder.record(lambda m=mechanism: m.release(value, rng=LoudGenerator()))  # type: ignore[misc]
        times = 1 if abs(value) < 2**63 else 2
        assert [name for name, _ in entries] == ["one: laplace_1"] * times


@for_mechanisms
def test_the_kernel_runs_twice_only_because_of_the_result(
    mechanism: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Next to 2^63, the only reason is a result of more than 63 bits.

    Noise of 1 or more has a probability of at least 0.3; 120 draws without it one below 10^-18.
    """
    recorder, turns = WorkRecorder(monkeypatch), set()
    rng = dpnoise.Generator()
    for value in (2**63 - 1, 2**63 - 8, 1 - 2**63, 8 - 2**63):
        for _ in range(60):
            released: list[int] = []
            entries = recorder.record(
                lambda v=value, r=released: r.append(mechanism.release(v, rng=rng))  # type: ignore[misc]
            )
            assert {name for name, _ in entries} == {entries[0][0]}
            if mechanism.upper is None:  # A clamped result does not show the cell.
                cells = released[0] >> mechanism._integer_shift
                assert len(entries) == 1 + (not -(2**63) < cells < 2**63)
            turns.add(len(entries))
    assert turns == ({1} if mechanism._integer_shift else {1, 2})


def test_only_the_kernel_reads_a_python_integer(monkeypatch: pytest.MonkeyPatch) -> None:
    """It gets the object itself; a conversion in Python would reveal its size by timing."""
    passed: list[Any] = []

    kernel = exact.LAPLACE_1.release_integer

    def record(*arguments: Any) -> Any:
        passed.append(arguments[1])
        return kernel(*arguments)

    monkeypatch.setitem(vars(exact.LAPLACE_1), "release_integer", record)
    for value in [int(str(value)) for value in INTEGERS]:
        MECHANISMS["laplace"].release(value)
        (argument,) = passed
        assert argument is value
        passed.clear()


@pytest.mark.parametrize("cipher", [AES, CHACHA20])
@for_mechanisms
def test_open_numbers_do_not_change_the_work_or_the_result(
    mechanism: Any, cipher: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """NaNs are planted after the first stage, until a share of the slots is needed."""
    rng = np.random.default_rng()
    values, secret = rng.standard_normal(SIZE), os.urandom(32)
    first, width = mechanism._form.first_stage(), mechanism._form.width
    slots: list[int] = []

    def release(share: float = 0.0) -> Any:
        chunk = iter(slots)

        def plant_nans(*arguments: Any) -> None:
            first(*arguments)
            out = arguments[-1]
            padded = np.append(out, np.zeros(-out.size % width))
            is_open = np.isnan(padded).reshape(-1, width).any(axis=1)
            missing = int(next(chunk) * share) - int(is_open.sum()) if share else 0
            positions = rng.permutation(np.flatnonzero(~is_open))[: max(missing, 0)]
            out[np.minimum(positions * width + rng.integers(width), out.size - 1)] = np.nan

        with monkeypatch.context() as patch:
            if recorder is not None:
                release_with_nans = recorder.wrap(mechanism._form.name, plant_nans)
                patch.setattr(kernel_table.first_stage, mechanism._form.name, release_with_nans)
            return mechanism.release(values, fixed_generator(secret, cipher=cipher, threads=1))

    recorder: WorkRecorder | None = None
    expected = release()
    recorder = WorkRecorder(monkeypatch)
    usual = recorder.record(release)
    slots += [sizes[0][0] for name, sizes in usual if name == "second words"]
    assert max(slots) > 1
    for share in (0.01, 0.5, 1.0):

        def release_with_nans(share: float = share) -> None:
            np.testing.assert_array_equal(release(share), expected)

        assert recorder.record(release_with_nans) == usual


def test_the_slots_are_all_for_numbers_of_the_chunk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Unneeded slots get other numbers, whose results do not change."""
    rng = np.random.default_rng()
    calls: list[Any] = []
    settle = second_stage.settle_floats

    def record(noise: Any, slots: Any, width: int, *arguments: Any) -> None:
        calls.append((slots.copy(), arguments[-1].size, width))
        settle(noise, slots, width, *arguments)

    monkeypatch.setattr(kernel_table.second_stage, "settle_floats", record)
    for mechanism in MECHANISMS.values():
        mechanism.release(rng.standard_normal(SIZE), rng=random_key())
    assert len(calls) > len(MECHANISMS)
    for slots, size, width in calls:
        assert np.all((slots >= 0) & (slots < -(-size // width)))


def test_more_work_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    """These tests can fail: the reference, an extra slot and a larger integer are detected."""
    mechanism = MECHANISMS["laplace"]
    rng = dpnoise.Generator()
    mechanism.release(1, rng=rng)
    small, large = (
        instructions(lambda value=value: mechanism.release(value, rng=rng))  # type: ignore[misc]
        for value in (5, 2**70)
    )
    assert small != large
    values = np.zeros(SIZE)
    mechanism.release(values, rng=random_key())
    recorder = WorkRecorder(monkeypatch)
    usual = recorder.record(lambda: mechanism.release(values, rng=random_key()))
    # On the finest grid the reference decides noise beyond 2^53 grids; none has probability e^-27.
    finest, many = mechanism.replace(grid=2.0**-50), np.zeros(4 * SIZE)
    entries = recorder.record(lambda: finest.release(many, rng=random_key()))
    assert "the reference" in [name for name, _ in entries]

    def all_open(*arguments: Any) -> None:
        arguments[-1][:] = np.nan

    monkeypatch.setattr(kernel_table.first_stage, "laplace_1", recorder.wrap("laplace_1", all_open))
    assert recorder.record(lambda: mechanism.release(values, rng=random_key())) != usual


@pytest.mark.parametrize("levels", [[0.5], [0.1, 0.5, 0.9]])
def test_a_quantile_is_the_same_work_for_all_rows(levels: list[float]) -> None:
    """One value, all values or none: the same instructions."""
    cells = 256
    all_counts = [
        np.zeros(cells, np.int64),
        np.full(cells, 7),
        np.eye(1, cells, 38, dtype=np.int64)[0],
    ]
    all_counts[2] *= 10**6
    for counts in all_counts:
        selections.select_places(counts, levels, 1.0, fixed_generator(bytes(32)))
    runs = {
        tuple(
            instructions(
                partial(selections.select_places, counts, levels, 1.0, fixed_generator(bytes(32)))
            )
        )
        for counts in all_counts
    }
    assert len(runs) == 1


def test_every_count_is_the_same_work() -> None:
    mechanism = DiscreteLaplaceMechanism(epsilon=0.1, sensitivity=1.0)
    values = [np.array([value]) for value in (0, 1, 2**30, 2**40)]
    mechanism.release(values[0], fixed_generator(bytes(32)))
    runs = {
        tuple(instructions(partial(mechanism.release, value, fixed_generator(bytes(32)))))
        for value in values
    }
    assert len(runs) == 1
