"""Outputs of any kind as rows of numbers: the length of each, then its parts.

A part that is a number stays what it is, up to the nearest float64. Anything else has a code, the
same whenever it is seen. What is missing is NaN. When the encoder is closed, before the last count,
all that was never seen has one code: a row is a function of its output alone, so that whatever is
certified of rows is certified of outputs.
"""

import numbers
from collections.abc import Hashable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from copy import copy
from decimal import Decimal
from functools import partial
from itertools import zip_longest
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from dpnoise.auditing.targets.target import TargetError
from dpnoise.core.errors import shown
from dpnoise.core.parallel import cores, in_runs
from dpnoise.core.safe_text import shortened

Floats = NDArray[np.float64]

_WIDEST: Final = 4096  # Parts of an output that are looked at.
_LARGEST: Final = 1e300  # Infinities and what is beyond this count as this: it can be added up.
_NUMBERS: Final = "biuf"  # Kinds of NumPy's types.
_SMALL: Final = (np.bool_, np.int8, np.uint8)  # Types of outputs whose rows have 16 bits a part.
_PLAIN: Final = {int, float, bool, np.float64, np.int64}
_FIRST: Final = 0.3141592653589793  # The first code: no number that is likely to stand beside it.
_OBJECTS: Final = 256  # The most objects that may stand for themselves alone, as an abort may.
_RUN: Final = 1 << 14  # Rows that are worth a thread.
_LONGEST: Final = 40  # Characters of a text in an event's words.
_TAKEN: Final = "a number, a text, None, or tuples, lists and arrays of these"


class Encoder:
    """Makes rows of outputs; it is made with what a mechanism gives first, for all data sets.

    Parameters
    ----------
    name
        Of the mechanism, for errors.
    first
        Some outputs for each data set: they decide how many parts a row has.

    Examples
    --------
    >>> encoder = Encoder("mine", [[("no", 3.5), ("no",), None]])
    >>> encoder.rows([("no", 3.5), ("no",), None], 3).tolist()
    [[2.0, 0.3141592653589793, 3.5], [1.0, 0.3141592653589793, nan], [0.0, nan, nan]]
    >>> encoder.names, encoder.text(0.3141592653589793)
    (['its length', 'y[0]', 'y[1]'], "'no'")
    """

    def __init__(self, name: str, first: Sequence[Any]) -> None:
        self._name = name
        self._codes: dict[Hashable, float] = {}
        self._coded: list[Hashable] = []
        self._alone = 0  # Objects that are equal to nothing but themselves.
        self._closed = False
        widths = {self._width(outputs) for outputs in first}
        self._widths = widths
        self._parts = min(max(widths, default=0), _WIDEST)
        arrays = [_as_array(outputs) for outputs in first]
        self._small = all(array is not None and array.dtype in _SMALL for array in arrays)

    @property
    def row_bytes(self) -> int:
        """How large a row is, if it is like the first ones."""
        return (2 if self._small else 8) * (1 + self._parts)

    @property
    def names(self) -> list[str]:
        """What the columns of a row are called in an event."""
        parts = ["y"] if self._parts == 1 else [f"y[{j}]" for j in range(self._parts)]
        return ["its length", *parts]

    def text(self, code: float) -> str | None:
        """Return what has this code, or None if it is no code."""
        k = round(code - _FIRST) if abs(code) < len(self._coded) else -1
        if k < 0 or k + _FIRST != code:
            return None
        return shortened(shown(self._coded[k]), _LONGEST)

    def close(self) -> None:
        """Give what was never seen one code from now on."""
        self._closed = True

    def rows(self, outputs: Any, n: int) -> Floats:
        """Return a row for each of n outputs, or raise if these are not n."""
        array = _as_array(outputs)
        rows = self._from_list(_listed(outputs)) if array is None else self._from_array(array)
        if len(rows) != n:
            raise TargetError(f"{self._name} gave {len(rows)} outputs, not {n}.")
        return rows

    def _width(self, outputs: Any) -> int:
        array = _as_array(outputs)
        if array is None:
            return max((len(self._flat(output)) for output in _listed(outputs)), default=0)
        return 1 if array.ndim == 1 else array.shape[1]

    def _from_array(self, array: NDArray[Any]) -> Floats:
        parts = array.reshape(len(array), -1)
        width = parts.shape[1]
        if width not in self._widths:
            was = " or ".join(map(str, sorted(self._widths)))
            raise TargetError(f"{self._name} changed its outputs' shape: {width} parts, not {was}.")
        small = array.dtype in _SMALL and width == self._parts
        rows = _empty(len(parts), 1 + self._parts, np.int16 if small else np.float64)
        rows[:, 0] = width
        kept = parts[:, : self._parts]
        if not small:
            rows[:, 1 + kept.shape[1] :] = np.nan
        if array.dtype.kind in _NUMBERS:
            numbers = rows[:, 1 : 1 + kept.shape[1]]
            if array.dtype.kind == "f":
                in_runs(partial(_clip, kept, numbers), len(kept), _RUN, cores())
            else:
                numbers[:] = kept
        else:
            for j, column in enumerate(kept.T):
                values, places = np.unique(column, return_inverse=True)
                rows[:, 1 + j] = np.array([self._code(value) for value in values.tolist()])[places]
        return rows

    def _from_list(self, outputs: list[Any]) -> Floats:
        flat = [self._flat(output) for output in outputs]
        rows = _empty(len(flat), 1 + self._parts)
        rows[:] = np.nan
        rows[:, 0] = [len(parts) for parts in flat]
        columns = zip_longest(*(parts[: self._parts] for parts in flat), fillvalue=np.nan)
        for j, column in enumerate(columns):
            rows[:, 1 + j] = column
        return np.clip(rows, -_LARGEST, _LARGEST, out=rows)

    def _flat(self, output: Any) -> list[float]:
        """Return the parts of an output one after the other; none if it is None, an abort."""
        if output is None:
            return []
        if isinstance(output, list | tuple) and {*map(type, output)} <= _PLAIN:
            return list(map(_float, output))
        return list(self._parts_of(output))

    def _parts_of(self, output: Any) -> Iterator[float]:
        if isinstance(output, numbers.Real | Decimal):
            yield _float(output)
        elif isinstance(output, Mapping):
            for key in sorted(output, key=repr):
                yield self._code(key)
                yield from self._parts_of(output[key])
        elif hasattr(output, "__array__") and not isinstance(output, str | bytes):
            yield from self._parts_of(np.asarray(output).tolist())
        elif isinstance(output, list | tuple):
            for part in output:
                yield from self._parts_of(part)
        elif isinstance(output, AbstractSet):
            for part in sorted(output, key=repr):
                yield from self._parts_of(part)
        else:
            yield self._code(output)

    def _code(self, part: Any) -> float:
        new = len(self._codes) + _FIRST
        kind = type(part).__name__
        try:
            code = self._codes.get(part, new)
        except TypeError:
            raise TargetError(f"{self._name} gave a {kind}: expected {_TAKEN}.") from None
        if code == new and not self._closed:
            equality: Any = type(part).__eq__
            self._alone += equality is object.__eq__
            if self._alone > _OBJECTS:
                raise TargetError(
                    f"{self._name} gave many of {kind}, each unlike all others: expected {_TAKEN}."
                )
            self._codes[part] = code
            self._coded.append(part)
        return code


def _clip(numbers: NDArray[Any], out: Floats, first: int, last: int) -> None:
    """Copy some rows of numbers, none larger than the largest."""
    some = slice(first, last)
    np.clip(numbers[some], -_LARGEST, _LARGEST, out=out[some], dtype=np.float64)


def _empty(n: int, width: int, dtype: type = np.float64) -> NDArray[Any]:
    """Return n rows whose columns lie together in memory: views take columns."""
    return np.empty((width, n), dtype=dtype).T


def _float(number: Any) -> float:
    try:
        return float(number)
    except OverflowError:
        return float("inf") if number > 0 else float("-inf")


def single(outputs: Any) -> Any:
    """Return the only one of outputs; a copy, because a mechanism may write the next over it."""
    return copy(_listed(outputs)[0])


def _listed(outputs: Any) -> list[Any]:
    return list(outputs.to_numpy() if hasattr(outputs, "to_numpy") else outputs)


def _as_array(outputs: Any) -> NDArray[Any] | None:
    """Return outputs as an array of numbers or texts if they are one, or become one unchanged."""
    if hasattr(outputs, "to_numpy"):  # A frame or a Series, which goes through its columns.
        outputs = outputs.to_numpy()
    if isinstance(outputs, np.ma.MaskedArray):
        outputs = outputs.tolist()
    if hasattr(outputs, "__array__"):  # Of NumPy, PyTorch, JAX and others.
        outputs = np.asarray(outputs)
    if not isinstance(outputs, np.ndarray):
        types = set(map(type, outputs)) if isinstance(outputs, list | tuple) else set()
        if not types or not types <= _PLAIN:
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
