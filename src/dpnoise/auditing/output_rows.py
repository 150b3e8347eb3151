"""Outputs of mechanisms as rows of numbers.

A row holds the length of an output, then its parts. A number becomes the nearest float64, a missing
part becomes NaN, and anything else gets a code. Equal parts have equal codes. Further columns hold
what these lose, where the first outputs show that it varies: the low bits of integers beyond 2^53,
and the form of an output, which is the order of its keys, the lengths of inner lists and the types
of numbers. Before the final count the encoder is closed: all parts not seen before then share one
code. A row is then a function of its output only, so that a bound certified on rows holds for
outputs.
"""

import math
from collections.abc import Callable, Hashable, Sequence
from itertools import chain, zip_longest
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from dpnoise.auditing.output_parts import (
    LARGEST,
    LOW_BITS,
    NEGATIVE_ZERO,
    OutputParts,
    clip_to_float,
    common_keys,
    form_of,
    has_large_integer,
    parts_of,
)
from dpnoise.auditing.predicates import part_label
from dpnoise.auditing.targets.mechanisms import Data
from dpnoise.auditing.targets.target import TargetError
from dpnoise.core.arrays import Floats
from dpnoise.core.errors import short_repr
from dpnoise.core.parallel import cores, run_in_parallel
from dpnoise.core.safe_text import shorten
from dpnoise.kernels import compile_kernel

Outputs = Data  # Outputs of any type: the code checks their attributes.

_MAX_PARTS: Final = 4096  # Parts of an output that are used; further ones are ignored.
_NUMBERS: Final = "biuf"  # Kinds of NumPy's types.
_SMALL_TYPES: Final = (np.bool_, np.int8, np.uint8)  # Types with rows of 16 bits a part.
_PLAIN_TYPES: Final = {int, float, bool, np.float64, np.int64}
_FIRST_CODE: Final = 0.3141592653589793  # Its fraction is unlikely among real outputs.
# Later codes are scattered over this range. In increasing order they would show which data set a
# text that never repeats is from, because the releases of one are drawn before those of the other.
_FEW_CODES: Final = 64
_CODE_RANGE: Final = 1 << 24
_OTHER_CODE: Final = _CODE_RANGE / 2 + 0.5 + _FIRST_CODE  # No code is this number.
_MIXER: Final = 0x9E3779B97F4A7C15  # An odd factor that mixes the bits of a hash.
# The most objects that compare equal only to themselves; an abort may be such an object.
_MOST_OBJECTS: Final = 256
_THREAD_ROWS: Final = 1 << 14  # Rows from which on a thread pays.
# Numbers that are converted at a time, so that they stay in the cache, but at least of these rows.
_BLOCK_NUMBERS: Final = 1 << 15
_LEAST_BLOCK_ROWS: Final = 64
_LONGEST_TEXT: Final = 40  # Characters of a text in an event's words.
_ACCEPTED: Final = (
    "a number, a text, a date, None, or tuples, lists, dicts, sets, arrays and frames of these"
)


class Encoder:
    """Converts outputs to rows.

    `name` is the mechanism's name for errors. `first` holds some outputs for each data set, which
    decide the number of parts in a row, and whether it has the form of its output, which
    `with_form` adds always.

    >>> encoder = Encoder("mine", [[("no", 3.5), ("no",), None]])
    >>> encoder.rows([("no", 3.5), ("no",), None], 3).tolist()
    [[2.0, 0.3141592653589793, 3.5], [1.0, 0.3141592653589793, nan], [0.0, nan, nan]]
    >>> encoder.names, encoder.text(0.3141592653589793)
    (['its length', 'y[0]', 'y[1]'], "'no'")
    """

    def __init__(self, name: str, first: Sequence[Outputs], *, with_form: bool = False) -> None:
        self._name = name
        self._codes: dict[Hashable, float] = {}
        self._coded: dict[float, Hashable] = {}
        self._identity_only = 0  # Objects that compare equal only to themselves.
        self._closed = False
        self._split_integers = any(map(has_large_integer, first))
        lists = [outputs for outputs in first if isinstance(outputs, list | tuple)]
        forms = dict.fromkeys(
            (len(self._flatten(y)), form_of(y)) for y in chain.from_iterable(lists)
        )
        self._with_form = with_form or len(forms) > len({length for length, _ in forms})
        for _, form in forms if self._with_form else ():
            self._code(form)
        self._widths = {self._width(outputs) for outputs in first}
        # Outputs in a frame have the names of its columns.
        self._frame_columns = list(getattr(first[0], "columns", ())) if first else []
        self._parts = min(max(self._widths, default=0), _MAX_PARTS)
        self._keys = common_keys(list(chain.from_iterable(lists)))
        arrays = [self._as_array(outputs) for outputs in first]
        self._small = all(array is not None and array.dtype in _SMALL_TYPES for array in arrays)

    @property
    def row_bytes(self) -> int:
        """The bytes of a row, if later outputs are like the first ones."""
        return (2 if self._small else 8) * self._columns

    @property
    def _columns(self) -> int:
        return 1 + self._parts + self._with_form

    @property
    def names(self) -> list[str]:
        """The names of the columns of a row in an event's words."""
        if len(self._frame_columns) == self._parts:
            return ["its length", *(f"y[{name!r}]" for name in self._frame_columns)]
        parts = ["y"] if self._parts == 1 else [f"y[{j}]" for j in range(self._parts)]
        if 2 * len(self._keys) == self._parts:  # Each key is a part, and then its value.
            parts[1::2] = [f"y[{key!r}]" for key in self._keys]
        return ["its length", *parts, *["its form"] * self._with_form]

    def text(self, code: float) -> str | None:
        """Return the text of the part with this code, or None if the number is not a code."""
        if code == NEGATIVE_ZERO:
            return "-0.0"
        if code not in self._coded:
            return None
        return shorten(short_repr(self._coded[code]), _LONGEST_TEXT)

    @property
    def codes(self) -> dict[object, float]:
        """The code of each label: of each part that is not a number."""
        return {part_label(part): code for code, part in self._coded.items()}

    @property
    def other_code(self) -> float:
        """The code of all parts that were not seen before the encoder was closed."""
        return _OTHER_CODE

    @property
    def form_index(self) -> int | None:
        """The index of an output's form, as if it were one of its parts, if rows have it."""
        return self._parts if self._with_form else None

    def decode(self, rows: Floats, views: int = 0) -> list[OutputParts]:
        """Return the parts of each row: its numbers, and the labels that codes stand for.

        The first parts are the values of that many `views`.
        """
        labels: dict[float, object] = {code: name for name, code in self.codes.items()}
        return [
            OutputParts(
                [labels.get(x, x) for x in row[1 : 1 + min(int(row[0]), self._parts)]],
                labels.get(row[-1], row[-1]) if self._with_form else math.nan,
                views,
            )
            for row in rows.astype(np.float64).tolist()
        ]

    def scatter(self, rows: Floats) -> Floats:
        """Return rows with a pseudo-random number from 0 to 1 in place of each code.

        It depends only on the part. Codes depend on the order in which parts were first seen.
        """
        if not self._coded:
            return rows
        codes = np.sort([*self._coded])
        parts = (self._coded[code] for code in codes.tolist())
        numbers = np.array([hash(part) * _MIXER % 2**64 / 2**64 for part in parts])
        nearest = np.minimum(np.searchsorted(codes, rows), len(codes) - 1)
        return np.where(rows == codes[nearest], numbers[nearest], rows)

    def close(self) -> None:
        """Encode all parts not seen so far with one code from now on."""
        self._closed = True

    def rows(self, outputs: Outputs, n: int) -> Floats:
        """Return a row for each of n outputs, or raise TargetError if there are not n."""
        array = self._as_array(outputs)
        rows = self._from_list(as_list(outputs)) if array is None else self._from_array(array)
        if len(rows) != n:
            raise TargetError(f"{self._name} gave {len(rows)} outputs, not {n}.")
        return rows

    def _as_array(self, outputs: Outputs) -> NDArray[np.generic] | None:
        """Return outputs as an array of numbers or texts, or None if that would change them."""
        if (self._split_integers or self._with_form) and isinstance(outputs, list | tuple):
            return None
        array = _as_array(outputs)
        if self._split_integers and array is not None and array.dtype.kind in "iu":
            low = array.astype(np.uint64) & np.uint64(LOW_BITS)
            array = np.stack([array.astype(np.float64), low.astype(np.float64)], axis=-1)
            return array.reshape(len(array), -1)
        return array

    def _width(self, outputs: Outputs) -> int:
        array = self._as_array(outputs)
        if array is None:
            return max((len(self._flatten(output)) for output in as_list(outputs)), default=0)
        return 1 if array.ndim == 1 else array.shape[1]

    def _from_array(self, array: NDArray[np.generic]) -> Floats:
        parts = array.reshape(len(array), -1)
        width = parts.shape[1]
        # Outputs of one number each may be a list in which no output happens to have more parts.
        if array.ndim > 1 and width not in self._widths:
            widths = f"{width} parts, not {' or '.join(map(str, sorted(self._widths)))}"
            advice = "Give all arrays the same width, or return a list of outputs."
            raise TargetError(f"{self._name} changed its outputs' shape: {widths}. {advice}")
        small = array.dtype in _SMALL_TYPES and width == self._parts
        small = small and not self._with_form
        rows = _empty(len(parts), self._columns, np.int16 if small else np.float64)
        rows[:, 0] = width
        kept = parts[:, : self._parts]
        if not small:
            rows[:, 1 + kept.shape[1] :] = np.nan
        if array.dtype.kind in _NUMBERS:
            numbers = rows[:, 1 : 1 + kept.shape[1]]

            def convert(first: int, last: int) -> None:
                step = max(_LEAST_BLOCK_ROWS, _BLOCK_NUMBERS // max(1, kept.shape[1]))
                for start in range(first, last, step):
                    block = kept[start : min(last, start + step)].T
                    _convert_numbers(np.ascontiguousarray(block, np.float64), start, rows.T)

            if array.dtype.kind == "f":
                run_in_parallel(convert, len(kept), _THREAD_ROWS, cores())
            else:
                numbers[:] = kept
        else:
            for j, column in enumerate(kept.T):
                values, indices = np.unique(column, return_inverse=True)
                rows[:, 1 + j] = np.array([self._code(value) for value in values.tolist()])[indices]
        if self._with_form:
            rows[:, -1] = self._code(("array", array.dtype.kind))
        return rows

    def _from_list(self, outputs: list[object]) -> Floats:
        flat = [self._flatten(output) for output in outputs]
        rows = _empty(len(flat), self._columns)
        rows[:] = np.nan
        rows[:, 0] = [len(parts) for parts in flat]
        columns = zip_longest(*(parts[: self._parts] for parts in flat), fillvalue=np.nan)
        for j, column in enumerate(columns):
            rows[:, 1 + j] = column
        np.clip(rows, -LARGEST, LARGEST, out=rows)
        _mark_negative_zeros(rows)
        if self._with_form:
            rows[:, -1] = [self._code(form_of(output)) for output in outputs]
        return rows

    def _flatten(self, output: object) -> list[float]:
        """Return the parts of an output as a flat list; None, an abort, has no parts."""
        if output is None:
            return []
        if (
            not self._split_integers
            and isinstance(output, list | tuple)
            and {*map(type, output)} <= _PLAIN_TYPES
        ):
            return list(map(clip_to_float, output))
        return list(parts_of(output, self._code, split=self._split_integers))

    def _code(self, part: Hashable) -> float:
        kind = type(part).__name__
        try:
            code = self._codes.get(part, _OTHER_CODE)
        except TypeError:
            advice = " Return its .value." if hasattr(part, "value") else ""
            gave = f"{self._name} gave a {kind}: expected {_ACCEPTED}."
            raise TargetError(gave + advice) from None
        if code == _OTHER_CODE and not self._closed:
            self._identity_only += type(part).__eq__ is object.__eq__
            if self._identity_only > _MOST_OBJECTS:
                gave = f"{self._name} gave many of {kind}, each unlike all others"
                raise TargetError(f"{gave}: expected {_ACCEPTED}.")
            code = _code_number(len(self._codes)) + _FIRST_CODE
            self._codes[part], self._coded[code] = code, part
        return code


def _code_number(k: int) -> int:
    """Return the number of the k-th code: k if it is small, else one of a wide range.

    >>> [_code_number(k) for k in (0, 63, 64, 65, 66)]
    [0, 63, 64, 4881493, 9762922]
    """
    return k if k < _FEW_CODES else _FEW_CODES + (k - _FEW_CODES) * _MIXER % _CODE_RANGE


def list_parts(
    outputs: Outputs, views: Sequence[Callable[[Any], object]] = ()
) -> list[OutputParts]:
    """Return each output as the flat list of its parts: numbers and labels.

    The first ones are the values of the caller's views.

    >>> list_parts([("no", 3.5), ("no",), None])
    [['no', 3.5], ['no'], []]
    """
    if views:
        outputs = [(*(view(output) for view in views), output) for output in as_list(outputs)]
    encoder = Encoder("what is replayed", [outputs], with_form=True)
    return encoder.decode(encoder.rows(outputs, len(outputs)), len(views))


@compile_kernel
def _convert_numbers(block: Floats, start: int, columns: Floats) -> None:
    """Write numbers to the columns after the first one: clipped, and negative zeros marked."""
    for j in range(block.shape[0]):
        for i in range(block.shape[1]):
            x = block[j, i]
            clipped = math.copysign(LARGEST, x) if abs(x) > LARGEST else x
            is_negative_zero = x == 0 and math.copysign(1.0, x) < 0
            columns[1 + j, start + i] = NEGATIVE_ZERO if is_negative_zero else clipped


def _mark_negative_zeros(rows: Floats) -> None:
    """Replace -0.0 in rows of float64."""
    zeros = rows.view(np.int64) == np.iinfo(np.int64).min
    if zeros.any():
        rows[zeros] = NEGATIVE_ZERO


def _empty(n: int, width: int, dtype: type = np.float64) -> Floats:
    """Return n rows with contiguous columns, because views read columns."""
    return np.empty((width, n), dtype=dtype).T


def as_list(outputs: Outputs) -> list[object]:
    """Return outputs of any container as a list."""
    return list(outputs.to_numpy() if hasattr(outputs, "to_numpy") else outputs)


def _as_array(outputs: Outputs) -> NDArray[np.generic] | None:
    """Return outputs as an array of numbers or texts, or None if that would change them."""
    if hasattr(outputs, "to_numpy"):  # A frame or a Series, which goes through its columns.
        outputs = outputs.to_numpy()
    if isinstance(outputs, np.ma.MaskedArray):
        outputs = outputs.tolist()
    if hasattr(outputs, "__array__"):  # Of NumPy, PyTorch, JAX and others.
        outputs = np.asarray(outputs)
    if not isinstance(outputs, np.ndarray):
        types = set(map(type, outputs)) if isinstance(outputs, list | tuple) else set()
        if not types or not types <= _PLAIN_TYPES:
            return None
        try:
            return np.array(outputs, dtype=np.float64)
        except OverflowError:
            return None
    plain = np.asarray(outputs)
    if plain.dtype.kind == "c":
        plain = np.stack([plain.real, plain.imag], axis=-1)
    if plain.dtype.kind in "mM":
        plain = plain.view(np.int64)
    if plain.ndim == 0 or plain.dtype.kind not in _NUMBERS + "US":
        return None
    return plain if plain.ndim < 3 else plain.reshape(len(plain), -1)  # noqa: PLR2004 - rows and parts
