"""Outputs of mechanisms (data, n) -> n outputs of any kind, as rows of numbers.

A mechanism is called from Python or as a program. A row holds the length of an output, then its
parts. A part that is a number stays what it is, up to the nearest float64. Anything else has a
code, the same whenever it is seen. What is missing is NaN. When the encoder is closed, before the
last count, all that was never seen has one code: a row is a function of its output alone, so that
whatever is certified of rows is certified of outputs.
"""

import json
import numbers
import shlex
from collections.abc import Hashable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from copy import copy, deepcopy
from decimal import Decimal
from functools import partial
from itertools import zip_longest
from typing import Final

import numpy as np
from numpy.typing import NDArray

from dpnoise.auditing.calls import Pace, call_in_time
from dpnoise.auditing.targets.mechanisms import Data
from dpnoise.auditing.targets.target import TargetError, function_of, piped
from dpnoise.core import strict_json
from dpnoise.core.arrays import Floats
from dpnoise.core.errors import ArgumentError, ArgumentTypeError, is_real, shown
from dpnoise.core.parallel import cores, run_in_parallel
from dpnoise.core.safe_text import shortened

Outputs = Data  # What a mechanism gives: told by its attributes.

_CHUNK: Final = 1 << 24  # Bytes of rows that are drawn at a time.
_FIRST_OUTPUTS: Final = 64  # Outputs for each data set that decide how many parts a row has.
_LONGEST_DATA: Final = 60  # Characters of a data set as it is shown.
_WIDEST: Final = 4096  # Parts of an output that are looked at.
_LARGEST: Final = 1e300  # Infinities and what is beyond this count as this: it can be added up.
_NUMBERS: Final = "biuf"  # Kinds of NumPy's types.
_SMALL: Final = (np.bool_, np.int8, np.uint8)  # Types of outputs whose rows have 16 bits a part.
_PLAIN: Final = {int, float, bool, np.float64, np.int64}
_FIRST_CODE: Final = 0.3141592653589793  # Unlike any number that is likely to stand next to it.
_OBJECTS: Final = 256  # The most objects that may stand for themselves alone, as an abort may.
_RUN: Final = 1 << 14  # Rows that are worth a thread.
_LONGEST_TEXT: Final = 40  # Characters of a text in an event's words.
_TAKEN: Final = "a number, a text, None, or tuples, lists and arrays of these"


class Source:
    """Draws rows of outputs from a mechanism, as many as are asked for, chunk by chunk.

    A mechanism is a function (data, n) -> n outputs, "module:attribute", or a command as a list of
    strings. A command reads one line of JSON, {"data": ..., "n": ...}, and writes n lines of JSON;
    if it is asked one by one, it makes one output a process. `name` is for a mechanism that is
    known by another name than its own. Rows can be drawn when `prepare` has made the encoder.
    """

    encoder: "Encoder"

    def __init__(
        self, mechanism: object, time_limit: float, *, one_by_one: bool, name: str | None = None
    ) -> None:
        by_command = partial(_from_command, time_limit)
        expected = "a function (data, n) -> n outputs"
        own_name, self._call = function_of(mechanism, by_command, expected)
        self.name = name or own_name
        self._one_by_one = one_by_one
        self._pace = Pace(time_limit)
        self.drawn = 0

    def prepare(self, data_sets: list[object]) -> None:
        """See some outputs for each data set, which decide what a row is."""
        first = [self.outputs(data_sets[0], 1)]  # It says how many may be asked for at once.
        for data in data_sets:
            first += [self.outputs(data, m) for m in self._pace.parts(_FIRST_OUTPUTS)]
        shown = f"{_FIRST_OUTPUTS} outputs of {self.name}"
        self.encoder = call_in_time(lambda: Encoder(self.name, first), shown, self._pace.seconds)

    def outputs(self, data: object, n: int) -> Outputs:
        """Return n outputs as the mechanism gives them."""
        self.drawn += n
        if self._one_by_one and n > 1:
            return [single(self._outputs(data, 1)) for _ in range(n)]
        return self._outputs(data, n)

    def _outputs(self, data: object, n: int) -> Outputs:
        shown = f"{self.name}({described(data)}, {n})"

        def called() -> Outputs:
            outputs = self._call(_own(data), n)
            sized = hasattr(outputs, "__len__") and getattr(outputs, "shape", (n,)) != ()
            if not sized or isinstance(outputs, str | bytes | dict | set | frozenset):
                raise TargetError(f"{shown} gave a {type(outputs).__name__}, not {n} outputs.")
            if len(outputs) != n:
                raise TargetError(f"{shown} gave {len(outputs)} outputs, not {n}.")
            return outputs

        return self._pace.call(called, shown, n)

    def rows(self, data: object, n: int) -> Floats:
        """Return n outputs as rows."""
        parts = []
        for m in self._pace.parts(n, self.chunk):
            # Outputs may be of the mechanism's own classes: looking at them has a time limit, too.
            encode = partial(self.encoder.rows, self.outputs(data, m), m)
            parts.append(call_in_time(encode, f"{m} outputs of {self.name}", self._pace.seconds))
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    @property
    def chunk(self) -> int:
        """How many outputs are asked for in one call."""
        return max(1, _CHUNK // self.encoder.row_bytes)


def _own(data: object) -> object:
    """Return a copy of data that a mechanism could change: its next call must see the same."""
    changes = isinstance(data, list | tuple | dict | set | np.ndarray) or hasattr(data, "iloc")
    return deepcopy(data) if changes else data


def _from_command(time_limit: float, command: list[str], data: object, n: int) -> list[object]:
    """Run a command that reads one line of JSON and writes n."""
    try:
        line = strict_json.dumps({"data": _plain(data), "n": n}).replace("\n", "") + "\n"
    except TypeError:
        kind = type(data).__name__
        raise ArgumentTypeError(
            f"A program reads data sets as JSON, which has no {kind}."
        ) from None
    call = f"{shlex.join(command)}, asked for {n} outputs,"
    lines = piped(command, time_limit, line, call).splitlines()
    try:
        return [json.loads(line) for line in lines]
    except ValueError:
        raise TargetError(f"{call} wrote a line that is no JSON.") from None


def _plain(data: Data) -> object:
    """Return a data set as JSON has it; a frame is a list of its rows."""
    if hasattr(data, "iloc") and hasattr(data, "columns"):
        if not data.columns.is_unique:
            raise ArgumentError("The columns of a frame must have different names, for JSON.")
        return _plain(data.to_dict("records"))
    for as_list in ("to_dicts", "to_pylist", "to_list", "tolist"):  # Polars, Arrow, pandas, NumPy.
        if hasattr(data, as_list):
            return getattr(data, as_list)()
    if isinstance(data, dict):
        return {key: _plain(part) for key, part in data.items()}
    if isinstance(data, list | tuple):
        return [_plain(part) for part in data]
    return data


def described(data: object) -> str:
    """Return a data set in a few words, as reports and errors show it: of rows, their number.

    >>> described(np.array([1.0, 2.0])), described(3), described(list(range(100)))
    ('[1, 2]', '3', '[0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, ...] (100)')
    """
    plain = data.tolist() if isinstance(data, np.ndarray) else data
    if isinstance(plain, list | tuple) and not all(is_real(part) for part in plain):
        return f"{type(data).__name__} of {len(plain)} row{'s' * (len(plain) != 1)}"
    if isinstance(plain, list | tuple):
        text = f"[{', '.join(map(_word, plain))}]"
        if len(text) <= _LONGEST_DATA:
            return text
        cut = text[: _LONGEST_DATA - 12].rpartition(",")[0]
        return f"{cut}, ...] ({len(plain)})"
    if hasattr(plain, "shape"):
        return f"{type(plain).__name__} of shape {tuple(plain.shape)}"
    text = _word(plain)
    return text if len(text) <= _LONGEST_DATA else f"{text[: _LONGEST_DATA - 3]}..."


def _word(part: object) -> str:
    return repr(part).removesuffix(".0") if isinstance(part, float) else repr(part)


class Encoder:
    """Makes rows of outputs.

    `name` is the mechanism's, for errors. `first` are some outputs for each data set, which decide
    how many parts a row has.

    >>> encoder = Encoder("mine", [[("no", 3.5), ("no",), None]])
    >>> encoder.rows([("no", 3.5), ("no",), None], 3).tolist()
    [[2.0, 0.3141592653589793, 3.5], [1.0, 0.3141592653589793, nan], [0.0, nan, nan]]
    >>> encoder.names, encoder.text(0.3141592653589793)
    (['its length', 'y[0]', 'y[1]'], "'no'")
    """

    def __init__(self, name: str, first: Sequence[Outputs]) -> None:
        self._name = name
        self._codes: dict[Hashable, float] = {}
        self._coded: list[Hashable] = []
        self._alone = 0  # Objects that are equal to nothing but themselves.
        self._closed = False
        self._widths = {self._width(outputs) for outputs in first}
        self._parts = min(max(self._widths, default=0), _WIDEST)
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
        k = round(code - _FIRST_CODE) if abs(code) < len(self._coded) else -1
        if k < 0 or k + _FIRST_CODE != code:
            return None
        return shortened(shown(self._coded[k]), _LONGEST_TEXT)

    def close(self) -> None:
        """Give what was never seen one code from now on."""
        self._closed = True

    def rows(self, outputs: Outputs, n: int) -> Floats:
        """Return a row for each of n outputs, or raise if these are not n."""
        array = _as_array(outputs)
        rows = self._from_list(_listed(outputs)) if array is None else self._from_array(array)
        if len(rows) != n:
            raise TargetError(f"{self._name} gave {len(rows)} outputs, not {n}.")
        return rows

    def _width(self, outputs: Outputs) -> int:
        array = _as_array(outputs)
        if array is None:
            return max((len(self._flat(output)) for output in _listed(outputs)), default=0)
        return 1 if array.ndim == 1 else array.shape[1]

    def _from_array(self, array: NDArray[np.generic]) -> Floats:
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

            def clip(first: int, last: int) -> None:
                some = slice(first, last)
                np.clip(kept[some], -_LARGEST, _LARGEST, out=numbers[some], dtype=np.float64)

            if array.dtype.kind == "f":
                run_in_parallel(clip, len(kept), _RUN, cores())
            else:
                numbers[:] = kept
        else:
            for j, column in enumerate(kept.T):
                values, places = np.unique(column, return_inverse=True)
                rows[:, 1 + j] = np.array([self._code(value) for value in values.tolist()])[places]
        return rows

    def _from_list(self, outputs: list[object]) -> Floats:
        flat = [self._flat(output) for output in outputs]
        rows = _empty(len(flat), 1 + self._parts)
        rows[:] = np.nan
        rows[:, 0] = [len(parts) for parts in flat]
        columns = zip_longest(*(parts[: self._parts] for parts in flat), fillvalue=np.nan)
        for j, column in enumerate(columns):
            rows[:, 1 + j] = column
        return np.clip(rows, -_LARGEST, _LARGEST, out=rows)

    def _flat(self, output: object) -> list[float]:
        """Return the parts of an output one after the other; none if it is None, an abort."""
        if output is None:
            return []
        if isinstance(output, list | tuple) and {*map(type, output)} <= _PLAIN:
            return list(map(_float, output))
        return list(self._parts_of(output))

    def _parts_of(self, output: object) -> Iterator[float]:
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

    def _code(self, part: Hashable) -> float:
        new = len(self._codes) + _FIRST_CODE
        kind = type(part).__name__
        try:
            code = self._codes.get(part, new)
        except TypeError:
            raise TargetError(f"{self._name} gave a {kind}: expected {_TAKEN}.") from None
        if code == new and not self._closed:
            self._alone += type(part).__eq__ is object.__eq__
            if self._alone > _OBJECTS:
                raise TargetError(
                    f"{self._name} gave many of {kind}, each unlike all others: expected {_TAKEN}."
                )
            self._codes[part] = code
            self._coded.append(part)
        return code


def _empty(n: int, width: int, dtype: type = np.float64) -> Floats:
    """Return n rows whose columns lie together in memory: views take columns."""
    return np.empty((width, n), dtype=dtype).T


def _float(number: numbers.Real | Decimal) -> float:
    try:
        return float(number)
    except OverflowError:
        return float("-inf") if number < 0 else float("inf")


def single(outputs: Outputs) -> object:
    """Return the only one of outputs; a copy, because a mechanism may write the next over it."""
    return copy(_listed(outputs)[0])


def _listed(outputs: Outputs) -> list[object]:
    return list(outputs.to_numpy() if hasattr(outputs, "to_numpy") else outputs)


def _as_array(outputs: Outputs) -> NDArray[np.generic] | None:
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
