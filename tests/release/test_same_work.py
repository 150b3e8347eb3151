"""The work of a release is the same for all values and all noise: every step is counted.

On the default grid the judge is reached with a probability below 2^-64. Without it nothing depends
on the value or on the words: not which kernels run and on how much, not how many words are read,
not one instruction of Python.
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
from dpnoise.core.entropy import AES, CHACHA20, Key, KeyStream, Source
from dpnoise.kernels import second_stage
from dpnoise.release import exact
from dpnoise.release.discrete import DiscreteLaplaceMechanism
from dpnoise.statistics import selections
from dpnoise.testing import fixed_generator

pytestmark = pytest.mark.internals  # It counts the steps of CPython's bytecode.

PACKAGE = str(Path(dpnoise.__file__).parent)
MECHANISMS = {
    "laplace": dpnoise.LaplaceMechanism(1.0, 1.0),
    "gaussian": dpnoise.GaussianMechanism.for_scale(1.7, sensitivity=1.0),
    "clamped": dpnoise.LaplaceMechanism(1.0, 1.0, lower=-4, upper=5),
    "loud": dpnoise.LaplaceMechanism(1.0, 2.0**60),
    "coarse": dpnoise.LaplaceMechanism(1.0, 1.0, grid=8.0),
    "coarsest": dpnoise.GaussianMechanism.for_scale(1.0, sensitivity=1.0, grid=2.0**20),
    "finest": dpnoise.LaplaceMechanism(1.0, 1.0, grid=2.0**-24),
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
SIZE = 20_001  # Several chunks, and odd.

FLOATS = [
    *(0.0, -0.0, 1.0, 0.1, -0.1, 2.0**-21, -3 * 2.0**-21, 4.0, -4.0, 12.0, 2.0**19, 1e9, -1e9),
    *(5e-324, -5e-324, 2.3e-308, 2.0**33, 2.0**60, 1e300, -1e300, sys.float_info.max),
]
# Up to 63 bits all take one path; docs/exact-release.md says what larger ones show.
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
# Noise of the mechanisms below does not lead out of 64 bits.
INTEGERS += [2**63 - 2**26, 2**26 - 2**63]


def instructions(call: Callable[[], object]) -> list[tuple[str, int]]:
    """Return every instruction of dpnoise's own Python that a call runs, in order."""
    seen: list[tuple[str, int]] = []

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        if not frame.f_code.co_filename.startswith(PACKAGE):
            return None
        frame.f_trace_opcodes = True
        if event == "opcode":
            seen.append((frame.f_code.co_qualname, frame.f_lasti))
        return trace

    before = sys.gettrace()
    # Python 3.12 looks whether any frame asks for opcodes when the function is set.
    sys._getframe().f_trace_opcodes = True
    sys.settrace(trace)
    try:
        call()
    finally:
        sys.settrace(before)
    return seen


class Ledger:
    """Writes down each kernel that release runs with the sizes of its arrays, and words read."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.entries: list[Any] = []
        kernel_table.load_kernels()  # The first kernel of a process draws a word.
        fill = KeyStream.fill
        second_words = Key.second_words

        def filled(stream: KeyStream, words: Any) -> None:
            self.entries.append(("words", words.size))
            fill(stream, words)

        def further(key: Key, variates: int) -> Callable[..., Any]:
            return self.noted("second words", second_words(key, variates))

        for module, names in KERNELS:
            for name in names:
                kernel = self.noted(name, getattr(module, name))
                monkeypatch.setattr(module, name, kernel)
        for form in (exact.LAPLACE_1, exact.GAUSSIAN_2):
            for name in ("release_float", "release_integer", "release_raised"):
                kernel = self.noted(f"one: {form.name}", getattr(form, name))
                monkeypatch.setitem(vars(form), name, kernel)
        monkeypatch.setattr(KeyStream, "fill", filled)
        monkeypatch.setattr(Key, "second_words", further)
        judge = self.noted("the judge", reference.grid_point)
        monkeypatch.setattr(reference, "grid_point", judge)

    def noted(self, name: str, function: Any) -> Callable[..., Any]:
        """Return a function that writes its name down."""

        def noted(*arguments: Any) -> Any:
            sizes = [getattr(argument, "shape", None) for argument in arguments]
            self.entries.append((name, sizes))
            return function(*arguments)

        return noted

    def of(self, call: Callable[[], object]) -> list[Any]:
        """Return what a call wrote."""
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
    """Each array under three keys: the same kernels on as many numbers, slots and words."""
    mechanism.release(np.ones(3), rng=random_key())  # What is done once is done.
    ledger = Ledger(monkeypatch)
    entries = [
        ledger.of(lambda array=array: mechanism.release(array, rng=random_key()))  # type: ignore[misc]
        for array in arrays()
        for _ in range(3)
    ]
    assert all(entry == entries[0] for entry in entries)
    names = [name for name, _ in entries[0]]
    assert names.count("second words") > 1
    assert "the judge" not in names


@for_mechanisms
@pytest.mark.parametrize("arrays", [arrays_of_floats, arrays_of_integers])
def test_arrays_of_all_values_run_the_same_instructions(
    mechanism: Any, arrays: Callable[[], list[Any]]
) -> None:
    given = arrays()
    mechanism.release(given[0], rng=random_key())
    runs = [
        instructions(lambda array=array: mechanism.release(array, rng=random_key()))  # type: ignore[misc]
        for array in given
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
def test_so_do_those_of_numpy(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    check_single_numbers(MECHANISMS[name], [*map(np.int64, INTEGERS)], monkeypatch)


def check_single_numbers(
    mechanism: Any, values: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Release them several times, and once with a ledger."""
    rng = dpnoise.Generator()
    mechanism.release(values[0], rng=rng)
    runs = [
        instructions(lambda value=value: mechanism.release(value, rng=rng))  # type: ignore[misc]
        for value in values
        for _ in range(5)
    ]
    assert len(runs[0]) > 100
    assert all(run == runs[0] for run in runs)
    ledger = Ledger(monkeypatch)
    for value in values:
        (entry,) = ledger.of(lambda value=value: mechanism.release(value, rng=rng))  # type: ignore[misc]
        assert entry[0].startswith("one: ")


class LoudSource(Source):
    """A source of one draw alone: Laplace noise of 41 scales."""

    __slots__ = ()

    def two_words_each(self, variates: int) -> bytes:
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
    """Were it left to the judge, the clock would tell which noise a value has.

    Only values that are themselves of more than 63 bits are given to the kernel twice.
    """
    ledger = Ledger(monkeypatch)
    for mechanism in (MECHANISMS["loud"], dpnoise.LaplaceMechanism(1.0, 2.0**81)):
        entries = ledger.of(lambda m=mechanism: m.release(value, rng=LoudGenerator()))  # type: ignore[misc]
        times = 1 if abs(value) < 2**63 else 2
        assert [name for name, _ in entries] == ["one: laplace_1"] * times


@for_mechanisms
def test_a_second_turn_of_the_kernel_is_taken_by_the_result_alone(
    mechanism: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Next to 2^63, a result of more than 63 bits is the one reason for it.

    Noise of 1 or more has a probability of 0.3 or more: 120 draws without it one below 10^-18.
    """
    ledger, turns = Ledger(monkeypatch), set()
    rng = dpnoise.Generator()
    for value in (2**63 - 1, 2**63 - 8, 1 - 2**63, 8 - 2**63):
        for _ in range(60):
            released: list[int] = []
            entries = ledger.of(lambda v=value, r=released: r.append(mechanism.release(v, rng=rng)))  # type: ignore[misc]
            assert {name for name, _ in entries} == {entries[0][0]}
            if mechanism.upper is None:  # What is clamped no longer shows what it was.
                cells = released[0] >> mechanism._integer_shift
                assert len(entries) == 1 + (not -(2**63) < cells < 2**63)
            turns.add(len(entries))
    assert turns == ({1} if mechanism._integer_shift else {1, 2})


def test_the_kernel_alone_sees_one_of_pythons_integers(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is given the very object, and its digits: a number made of it would show them in time."""
    given: list[Any] = []

    kernel = exact.LAPLACE_1.release_integer

    def noted(*arguments: Any) -> Any:
        given.append(arguments[1])
        return kernel(*arguments)

    monkeypatch.setitem(vars(exact.LAPLACE_1), "release_integer", noted)
    for value in [int(str(value)) for value in INTEGERS]:
        MECHANISMS["laplace"].release(value)
        (seen,) = given
        assert seen is value
        given.clear()


@pytest.mark.parametrize("cipher", [AES, CHACHA20])
@for_mechanisms
def test_what_is_open_does_not_change_the_work_or_the_result(
    mechanism: Any, cipher: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After the first stage NaNs are planted, until so much of each chunk's slots is needed."""
    rng = np.random.default_rng()
    values, secret = rng.standard_normal(SIZE), os.urandom(32)
    first, width = mechanism._form.first_stage(), mechanism._form.width
    slots: list[int] = []

    def release(part: float = 0.0) -> Any:
        chunk = iter(slots)

        def with_nans(*arguments: Any) -> None:
            first(*arguments)
            out = arguments[-1]
            padded = np.append(out, np.zeros(-out.size % width))
            is_open = np.isnan(padded).reshape(-1, width).any(axis=1)
            more = int(next(chunk) * part) - int(is_open.sum()) if part else 0
            places = rng.permutation(np.flatnonzero(~is_open))[: max(more, 0)]
            out[np.minimum(places * width + rng.integers(width), out.size - 1)] = np.nan

        with monkeypatch.context() as patch:
            if ledger is not None:
                planted = ledger.noted(mechanism._form.name, with_nans)
                patch.setattr(kernel_table.first_stage, mechanism._form.name, planted)
            return mechanism.release(values, fixed_generator(secret, cipher=cipher, threads=1))

    ledger: Ledger | None = None
    expected = release()
    ledger = Ledger(monkeypatch)
    usual = ledger.of(release)
    slots += [sizes[0][0] for name, sizes in usual if name == "second words"]
    assert max(slots) > 1
    for part in (0.01, 0.5, 1.0):

        def planted(part: float = part) -> None:
            np.testing.assert_array_equal(release(part), expected)

        assert ledger.of(planted) == usual


def test_the_slots_are_all_for_numbers_of_the_chunk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that nothing open needs are filled with others, whose results are kept."""
    rng = np.random.default_rng()
    seen: list[Any] = []
    settle = second_stage.settle_floats

    def noted(noise: Any, slots: Any, width: int, *rest: Any) -> None:
        seen.append((slots.copy(), rest[-1].size, width))
        settle(noise, slots, width, *rest)

    monkeypatch.setattr(kernel_table.second_stage, "settle_floats", noted)
    for mechanism in MECHANISMS.values():
        mechanism.release(rng.standard_normal(SIZE), rng=random_key())
    assert len(seen) > len(MECHANISMS)
    for slots, size, width in seen:
        assert np.all((slots >= 0) & (slots < -(-size // width)))


def test_more_work_would_be_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """What these tests rest on: the judge, a slot too many and a larger integer all show."""
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
    ledger = Ledger(monkeypatch)
    usual = ledger.of(lambda: mechanism.release(values, rng=random_key()))
    # On the finest grid, noise beyond 2^53 grids is the judge's: none is with probability e^-27.
    finest, many = mechanism.replace(grid=2.0**-50), np.zeros(4 * SIZE)
    entries = ledger.of(lambda: finest.release(many, rng=random_key()))
    assert "the judge" in [name for name, _ in entries]

    def all_open(*arguments: Any) -> None:
        arguments[-1][:] = np.nan

    monkeypatch.setattr(kernel_table.first_stage, "laplace_1", ledger.noted("laplace_1", all_open))
    assert ledger.of(lambda: mechanism.release(values, rng=random_key())) != usual


@pytest.mark.parametrize("places", [[0.5], [0.1, 0.5, 0.9]])
def test_a_quantile_is_the_same_work_whatever_the_rows(places: list[float]) -> None:
    """One value, all values, none: the same instructions, but for how far halves reach."""
    cells = 256
    every = [np.zeros(cells, np.int64), np.full(cells, 7), np.eye(1, cells, 38, dtype=np.int64)[0]]
    every[2] *= 10**6
    for counts in every:
        selections.select_places(counts, places, 1.0, fixed_generator(bytes(32)))
    seen = {
        tuple(
            instructions(
                partial(selections.select_places, counts, places, 1.0, fixed_generator(bytes(32)))
            )
        )
        for counts in every
    }
    assert len(seen) == 1


def test_a_count_is_the_same_work_whatever_it_is() -> None:
    mechanism = DiscreteLaplaceMechanism(0.1)
    values = [np.array([value]) for value in (0, 1, 2**30, 2**40)]
    mechanism.release(values[0], fixed_generator(bytes(32)))
    seen = {
        tuple(instructions(partial(mechanism.release, value, fixed_generator(bytes(32)))))
        for value in values
    }
    assert len(seen) == 1
