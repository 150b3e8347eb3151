"""Exact release in three stages: floats, fixed point, and the reference implementation.

Every stage computes the cell floor((value + scale * Z) / grid + 1/2) as in real arithmetic, for Z
made of infinite strings of bits. The first stage decides almost all numbers of an array. The second
takes a fixed number of each chunk, open or not, and every single number, so the work of these two
reveals nothing. Fewer than one number in 2^64 is left to the reference implementation, on the grids
for which docs/exact-release-proof.md shows it.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property, lru_cache, partial
from itertools import count
from typing import Final, NoReturn, TypeVar

import numpy as np

from dpnoise.core import reference
from dpnoise.core.arrays import Floats, Integers, NumPyInteger, check_rounding_mode
from dpnoise.core.entropy import WORD, EntropySource, Key, Words
from dpnoise.core.errors import ArgumentError
from dpnoise.core.kernel_table import first_stage, kernel_for_one, second_stage
from dpnoise.core.parallel import Worker, cores, first_words, run_in_parallel, run_over_key_stream
from dpnoise.noise.distributions import Distribution, Exponential, Gaussian, Gumbel, Laplace

Rows = Iterator[
    Sequence[int]
]  # The words of an element's uniforms: 64 digits of each, the next 64 ...
_Values = TypeVar("_Values", Floats, Integers)
ReferenceCell = Callable[[float, float, float], int]  # From value, scale and grid to a cell.

_BITS: Final = reference.WORD_BITS
_CHUNK_WORDS: Final = 2**17  # Longer than for noise: the second stage has a cost for each chunk.
_WORTH_A_THREAD: Final = 2**20  # Values for which a thread pays off if they are only read.
_LARGEST: Final = float(np.finfo(np.float64).max)
_INT64: Final = np.iinfo(np.int64)
_MOST_SHIFT: Final = 62  # The kernels release integers on grids of at most 2^62.
_OPEN: Final = int(_INT64.min)
_SIGN: Final = np.uint64(2**63)


# A kernel of the first stage takes words, bits, values, scale, grid and the array of results.
FirstStage = Callable[[Words, int, Floats | Integers, float, float, Floats], int]
# A kernel of the second stage takes words, further words, slots and the array of noise.
SecondStage = Callable[[Words, Words, Integers, Words], None]


@dataclass(frozen=True, eq=False)
class ExactForm:
    """A way to make one Z, or several, of n uniforms, with a formula in the reference."""

    name: str  # For display.
    variates: int  # n.
    formulas: tuple[reference.Formula, ...]  # The reference formula of each Z.
    distribution: Distribution  # Of each Z.

    @property
    def formula(self) -> reference.Formula:
        """The formula of the first Z."""
        return self.formulas[0]

    @property
    def width(self) -> int:
        """The number of Z that n uniforms make."""
        return len(self.formulas)


@dataclass(frozen=True, eq=False)
class SelectionForm(ExactForm):
    """A form for selection. `kernel` returns the kernel that computes noise and error bounds.

    It is a function, because `import dpnoise` must not import the kernels.
    """

    kernel: Callable[[], Callable[[Words, int, Floats, Floats], None]]


def _no_kernels() -> NoReturn:
    raise NotImplementedError("This form makes several numbers at once.")


@dataclass(frozen=True, eq=False)
class AdditiveForm(ExactForm):
    """A form for noise that is added; `one_number` returns the kernels for a float and an int."""

    first_stage: Callable[[], FirstStage]
    second_stage: Callable[[], SecondStage]
    one_number: Callable[[], tuple[Callable[..., float], Callable[..., np.int64]]] = _no_kernels

    # Cached, because each step counts in the time of a single number.

    @cached_property
    def release_float(self) -> Callable[[bytes, float, float, float], float]:
        """Release a float, from bytes, value, scale and grid."""
        return kernel_for_one(self.one_number()[0], "fff")

    @cached_property
    def release_integer(self) -> Callable[[bytes, int, int, float], int]:
        """Release a Python integer, from bytes, value, shift and ratio."""
        return kernel_for_one(self.one_number()[1], "pif")

    @cached_property
    def release_raised(self) -> Callable[[bytes, int, int, float], int]:
        """Release an integer given as value + 2^63."""
        return kernel_for_one(self.one_number()[1], "uif")


LAPLACE_1: Final = AdditiveForm(
    "laplace_1",
    1,
    (reference.laplace_1,),
    Laplace(),
    lambda: first_stage.laplace_1,
    lambda: second_stage.laplace_1,
    lambda: (second_stage.laplace_1_float, second_stage.laplace_1_integer),
)
GAUSSIAN_2: Final = AdditiveForm(
    "gaussian_2",
    2,
    (reference.gaussian_2,),
    Gaussian(),
    lambda: first_stage.gaussian_2,
    lambda: second_stage.gaussian_2,
    lambda: (second_stage.gaussian_2_float, second_stage.gaussian_2_integer),
)
GAUSSIAN_PAIRS: Final = AdditiveForm(
    "gaussian_pairs",
    2,
    (reference.gaussian_cosine, reference.gaussian_sine),
    Gaussian(),
    lambda: first_stage.gaussian_pairs,
    lambda: second_stage.gaussian_pairs,
)
EXPONENTIAL: Final = SelectionForm(
    "exponential", 1, (reference.exponential,), Exponential(), lambda: first_stage.exponential
)
GUMBEL: Final = SelectionForm(
    "gumbel", 1, (reference.gumbel,), Gumbel(), lambda: first_stage.gumbel
)

ADDITIVE: Final = {form.name: form for form in (LAPLACE_1, GAUSSIAN_2, GAUSSIAN_PAIRS)}
SELECTION: Final = {form.name: form for form in (EXPONENTIAL, GUMBEL)}
FORMS: Final[dict[str, ExactForm]] = {**ADDITIVE, **SELECTION}


def check_finite(values: Floats, threads: int | None = 1) -> None:
    """Raise if a value is NaN or infinite, before any noise is drawn, without showing a value."""
    flat = _read_only_view(values.reshape(-1))
    counts: list[int] = []

    def count_in(first: int, last: int) -> None:
        counts.append(first_stage.not_finite(flat[first:last]))

    run_in_parallel(count_in, flat.size, _WORTH_A_THREAD, cores() if threads is None else threads)
    if bad := sum(counts):
        raise ArgumentError(f"Every value must be finite, got {bad} NaN or infinite.")


def _read_only_view(values: _Values) -> _Values:
    """Return a read-only view, so that kernels compile for one kind of array only."""
    view = values.view()
    view.flags.writeable = False
    return view


def open_after_first_stage(ratio: float) -> float:
    """Return an upper bound on the probability that the first stage leaves a number open.

    ratio = scale/grid. docs/exact-release-proof.md derives it, for all forms and all values.
    """
    return (ratio + 8.0 + 1.0 / ratio) * 2.0**-42


@lru_cache(maxsize=64)
def slots_for(elements: int, chunks: int, ratio: float, width: int) -> int:
    """Return the number of elements of a chunk that take the second stage, open or not.

    The probability that more are open, in any chunk of a call, is below 2^-64: among N elements,
    each open with probability p, S or more are open with probability at most (e N p/S)^S.
    """
    mean = math.e * elements * width * open_after_first_stage(ratio)
    slots = min(elements, max(1, math.ceil(mean)))
    while slots < elements and slots * math.log2(slots / mean) < 64 + math.log2(chunks):
        slots += 1 + slots // 16
    return min(slots, elements)


class _SecondStage:
    """The second stage of one thread: the same work for every chunk of the same size."""

    def __init__(
        self, form: AdditiveForm, key: Key, chunk_elements: int, chunks: int, ratio: float
    ) -> None:
        self._form, self._key, self._chunks, self._ratio = form, key, chunks, ratio
        self._read = key.second_words(form.variates)
        self._draw = form.second_stage()
        self._slots = np.empty(chunk_elements + 1, dtype=np.int64)
        self._blocks = np.empty(chunk_elements + 1, dtype=np.int64)
        self._first = np.arange(slots_for(chunk_elements, chunks, ratio, form.width))

    def noise(self, words: Words, start: int, out: Floats) -> tuple[Words, Integers]:
        """Return second-stage noise for every NaN in `out`, padded to a fixed count, with slots."""
        width = self._form.width
        padded = slots_for(-(-out.size // width), self._chunks, self._ratio, width)
        self._slots[:padded] = self._first[:padded]
        open_count = second_stage.open_places(out, width, padded, self._blocks, self._slots)
        slots = self._slots[: max(padded, open_count)]
        noise = np.empty((slots.size * width, 4), dtype=np.uint64)
        self._draw(words, self._read(slots + start), slots, noise)
        return noise, slots

    def left_open(self, words: Words, start: int, out: Floats) -> list[tuple[int, ReferenceCell]]:
        """Return the index of each NaN in `out`, with the reference implementation for it."""
        n, width = self._form.variates, self._form.width
        undecided: list[tuple[int, ReferenceCell]] = []
        for i in np.flatnonzero(np.isnan(out)).tolist():
            element = i // width
            rows = rows_from_key(self._key, start + element, words[element * n : (element + 1) * n])
            undecided.append(
                (i, partial(reference.released_whole, self._form.formulas[i % width], rows))
            )
        return undecided


def release_floats(
    form: AdditiveForm, values: Floats, scale: float, grid: float, key: Key, threads: int | None
) -> Floats:
    """Return the released values: the nearest floats to the grid points."""
    values = _read_only_view(values)
    first, settle = form.first_stage(), second_stage.settle_floats
    out = np.empty(values.shape)
    elements = -(-values.size // form.width)

    def prepare(chunk_elements: int) -> Worker:
        check_rounding_mode()
        second = _SecondStage(
            form, key, chunk_elements, -(-elements // chunk_elements), scale / grid
        )

        def work(words: Words, start: int, stop: int) -> None:
            span = slice(start * form.width, stop * form.width)
            inside, results = values[span], out[span]
            first(words, _BITS, inside, scale, grid, results)
            noise, slots = second.noise(words, start, results)
            if settle(noise, slots, form.width, inside, scale, grid, results):
                for i, cell_of in second.left_open(words, start, results):
                    results[i] = nearest_float(cell_of(float(inside[i]), scale, grid), grid)

        return work

    if elements:
        run_over_key_stream(key, form.variates, elements, prepare, threads, _CHUNK_WORDS)
    return out


def release_cells(
    form: AdditiveForm, values: Integers, shift: int, scale: float, key: Key, threads: int | None
) -> Integers:
    """Return the released values in whole grids of 2^shift, shift <= 62, which saturate."""
    values = _read_only_view(values)
    first, settle = form.first_stage(), second_stage.settle_cells
    out = np.empty(values.shape, dtype=np.int64)
    grid, ratio = float(1 << shift), math.ldexp(scale, -shift)
    elements = -(-values.size // form.width)

    def prepare(chunk_elements: int) -> Worker:
        check_rounding_mode()
        second = _SecondStage(form, key, chunk_elements, -(-elements // chunk_elements), ratio)

        def work(words: Words, start: int, stop: int) -> None:
            span = slice(start * form.width, stop * form.width)
            inside, results = values[span], out[span]
            points = results.view(np.float64)
            first(words, _BITS, inside, scale, grid, points)
            noise, slots = second.noise(words, start, points)
            left = settle(noise, slots, form.width, inside, shift, ratio, points)
            undecided = second.left_open(words, start, points) if left else []
            second_stage.add_whole_grids(inside, shift, results)
            for i, cell_of in undecided:
                point = cell_of(int(inside[i]), scale, grid)
                results[i] = min(max(point, _INT64.min), _INT64.max)

        return work

    if elements:
        run_over_key_stream(key, form.variates, elements, prepare, threads, _CHUNK_WORDS)
    return out


def release_integers(
    form: AdditiveForm, values: Integers, shift: int, scale: float, key: Key, threads: int | None
) -> Integers:
    """Return the released values on a grid of 2^shift, which saturate."""
    if shift > _MOST_SHIFT:
        points = reference_integers(form, values.reshape(-1).tolist(), shift, scale, key)
        saturated = [min(max(point, _INT64.min), _INT64.max) for point in points]
        return np.array(saturated, dtype=np.int64).reshape(values.shape)
    out = release_cells(form, values, shift, scale, key, threads)
    if shift:
        second_stage.to_integers(shift, out)
    return out


def release_integers_of_any_size(
    form: AdditiveForm, values: list[int], shift: int, scale: float, key: Key, threads: int | None
) -> list[int]:
    """Return the released values on a grid of 2^shift, as integers without a limit."""
    if shift > _MOST_SHIFT:
        return reference_integers(form, values, shift, scale, key)
    low_bits = (1 << shift) - 1
    rests = np.array([value & low_bits for value in values], dtype=np.int64)
    cells = release_cells(form, rests, shift, scale, key, threads)
    return [
        ((value >> shift) + cell) << shift
        for value, cell in zip(values, cells.tolist(), strict=True)
    ]


def reference_integers(
    form: ExactForm, values: list[int], shift: int, scale: float, key: Key
) -> list[int]:
    """Release integers by the reference implementation, on grids too coarse for the kernels."""
    n, width = form.variates, form.width
    words = first_words(key, -(-len(values) // width) * n)
    released = []
    for i, value in enumerate(values):
        element = i // width
        rows = rows_from_key(key, element, words[element * n : (element + 1) * n])
        formula = form.formulas[i % width]
        released.append(reference.released_whole(formula, rows, value, scale, 2.0**shift) << shift)
    return released


def release_float(
    form: AdditiveForm, value: float, scale: float, grid: float, source: EntropySource
) -> float:
    """Return one released float."""
    raw = source.scalar_words(form.variates)
    result = form.release_float(raw, value, scale, grid)
    if math.isnan(result):
        rows = rows_from_bytes(raw, source)
        result = nearest_float(
            reference.released_whole(form.formula, rows, value, scale, grid), grid
        )
    return result


def _add_2_to_63(value: NumPyInteger) -> int:
    """Return value + 2^63, or 0 if that exceeds uint64, computed in NumPy at a fixed width.

    As Python integers, all results except those near 0 have three digits of 30 bits.
    """
    signed = value.dtype != np.uint64
    if signed or value < _SIGN:
        word = np.int64(value).view(np.uint64) if signed else np.uint64(value)
        return int(word ^ _SIGN)
    return 0


def release_integer(
    form: AdditiveForm, value: int | NumPyInteger, shift: int, scale: float, source: EntropySource
) -> int:
    """Return one released integer, on a grid of 2^shift.

    Only the kernel reads a Python integer of up to 63 bits, unless the result has more bits.
    """
    raw = source.scalar_words(form.variates)
    if shift <= _MOST_SHIFT:
        ratio = math.ldexp(scale, -shift)
        if isinstance(value, np.integer):
            cell = form.release_raised(raw, _add_2_to_63(value), shift, ratio)
        else:
            cell = form.release_integer(raw, value, shift, ratio)
        if cell != _OPEN:
            return cell << shift
        # The bits above the 62nd are a whole number of grids and are added at the end.
        beyond = int(value) >> _MOST_SHIFT << _MOST_SHIFT
        cell = form.release_integer(raw, int(value) - beyond, shift, ratio)
        if cell != _OPEN:
            return (cell << shift) + beyond
    rows = rows_from_bytes(raw, source)
    return reference.released_whole(form.formula, rows, int(value), scale, 2.0**shift) << shift


def reference_release(
    form: ExactForm,
    key: Key,
    element: int,
    member: int,
    first: Words,
    problem: tuple[float, float, float],
) -> float:
    """Release one number by the reference implementation; `problem` is value, scale and grid."""
    rows = rows_from_key(key, element, first)
    value, scale, grid = problem
    cell = reference.released_whole(form.formulas[member], rows, value, scale, grid)
    return nearest_float(cell, grid)


def nearest_float(cell: int, grid: float) -> float:
    """Return the nearest float to cell * grid, saturating at the largest."""
    point = cell * Fraction(grid)
    try:
        return point.numerator / point.denominator
    except OverflowError:
        return _LARGEST if point > 0 else -_LARGEST


def rows_from_key(key: Key, element: int, first: Words) -> Rows:
    """Yield the words of an element of a bulk call, in the layout of `dpnoise.core.entropy`."""
    yield first.tolist()
    for row in count():
        yield key.further_words(element, first.size, row).tolist()


def rows_from_bytes(raw: bytes, source: EntropySource) -> Rows:
    """Yield the words of a scalar call; `raw` holds the first two of each uniform."""
    words = np.frombuffer(raw, dtype=WORD)
    variates = words.size // 2
    yield from words.reshape(2, variates).tolist()
    for row in count(1):
        yield source.further_words(variates, row)
