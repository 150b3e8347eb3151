"""Mechanisms (data, n) -> n outputs of any kind, called from Python or as a program."""

import json
import shlex
import time
from collections.abc import Callable
from copy import deepcopy
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from dpnoise.auditing.calls import Pace, timed
from dpnoise.auditing.encoding import Encoder, single
from dpnoise.auditing.targets.target import TargetError, imported, piped
from dpnoise.core import strict_json
from dpnoise.core.errors import ArgumentError, ArgumentTypeError, is_real, reject

Floats = NDArray[np.float64]
Mechanism = Callable[[Any, int], Any]

_CHUNK: Final = 1 << 24  # Bytes of rows that are drawn at a time.
_FIRST: Final = 64  # Outputs for each data set that decide how many parts a row has.
_LONGEST: Final = 60  # Characters of a data set as it is shown.


class Source:
    """Draws rows of outputs from a mechanism, as many as are asked for, chunk by chunk.

    Parameters
    ----------
    mechanism
        A function (data, n) -> n outputs, "module:attribute", or a command as a list of strings. A
        command reads one line of JSON, {"data": ..., "n": ...}, and writes n lines of JSON.
    time_limit
        The most seconds that one call may take.
    one_by_one
        Whether to ask for one output a call: a command then makes one output a process.
    name
        What it is called, where it is known by another name than its own.
    """

    def __init__(
        self, mechanism: Any, time_limit: float, *, one_by_one: bool, name: str | None = None
    ) -> None:
        own_name, self._call = _resolved(mechanism, time_limit)
        self.name = name or own_name
        self._time_limit = time_limit
        self._one_by_one = one_by_one
        self._pace = Pace(time_limit)
        self.drawn = 0
        self.encoder: Encoder | None = None

    def prepare(self, data_sets: list[Any]) -> None:
        """See some outputs for each data set, which decide what a row is."""
        first = [self.outputs(data_sets[0], 1)]  # It says how many may be asked for at once.
        first += [self.outputs(data, m) for data in data_sets for m in self._pace.parts(_FIRST)]
        shown = f"{_FIRST} outputs of {self.name}"
        self.encoder = timed(lambda: Encoder(self.name, first), shown, self._time_limit)

    @property
    def names(self) -> list[str]:
        """What the columns of a row are called."""
        return self.encoder.names if self.encoder else []

    def text(self, code: float) -> str | None:
        """Return the text that has a code, or None for a number."""
        return self.encoder.text(code) if self.encoder else None

    def close(self) -> None:
        """Make rows functions of their outputs alone: what is new from now on has one code."""
        if self.encoder:
            self.encoder.close()

    def outputs(self, data: Any, n: int) -> Any:
        """Return n outputs as the mechanism gives them."""
        self.drawn += n
        if self._one_by_one and n > 1:
            return [single(self._outputs(data, 1)) for _ in range(n)]
        return self._outputs(data, n)

    def _outputs(self, data: Any, n: int) -> Any:
        shown = f"{self.name}({described(data)}, {n})"

        def called() -> Any:
            outputs = self._call(_own(data), n)
            sized = hasattr(outputs, "__len__") and getattr(outputs, "shape", (n,)) != ()
            if not sized or isinstance(outputs, str | bytes | dict | set | frozenset):
                raise TargetError(f"{shown} gave a {type(outputs).__name__}, not {n} outputs.")
            if len(outputs) != n:
                raise TargetError(f"{shown} gave {len(outputs)} outputs, not {n}.")
            return outputs

        start = time.perf_counter()
        outputs = timed(called, shown, self._time_limit)
        self._pace.note(n, time.perf_counter() - start)
        return outputs

    def rows(self, data: Any, n: int) -> Floats:
        """Return n outputs as rows."""
        parts = [self._rows(self.outputs(data, m), m) for m in self._pace.parts(n, self.chunk)]
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def _rows(self, outputs: Any, n: int) -> Floats:
        """Look at outputs, which may be of the mechanism's own classes: with a time limit, too."""
        if self.encoder is None:
            raise RuntimeError("prepare comes first")
        encode = self.encoder.rows
        shown = f"{n} outputs of {self.name}"
        rows: Floats = timed(lambda: encode(outputs, n), shown, self._time_limit)
        return rows

    @property
    def chunk(self) -> int:
        """How many outputs are asked for in one call."""
        row = 8 if self.encoder is None else self.encoder.row_bytes
        return max(1, _CHUNK // row)


def _own(data: Any) -> Any:
    """Return a copy of data that a mechanism could change: its next call must see the same."""
    changes = isinstance(data, list | tuple | dict | set | np.ndarray) or hasattr(data, "iloc")
    return deepcopy(data) if changes else data


def _resolved(mechanism: Any, time_limit: float) -> tuple[str, Mechanism]:
    if isinstance(mechanism, str):
        return mechanism, imported(mechanism)
    if isinstance(mechanism, list | tuple):
        if not mechanism or not all(isinstance(word, str) for word in mechanism):
            reject("target", mechanism, "to be a command: a list of strings, the program first")
        command = list(mechanism)
        return shlex.join(command), lambda data, n: _from_command(command, time_limit, data, n)
    if not callable(mechanism):
        reject("target", mechanism, "to be a function (data, n) -> n outputs, or a command")
    return str(getattr(mechanism, "__qualname__", type(mechanism).__name__)), mechanism


def _from_command(command: list[str], time_limit: float, data: Any, n: int) -> list[Any]:
    """Run a command that reads one line of JSON and writes n."""
    asked = _asked(data, n)
    call = f"{shlex.join(command)}, asked for {n} outputs,"
    lines = piped(command, time_limit, asked, call).splitlines()
    try:
        return [json.loads(line) for line in lines]
    except ValueError:
        raise TargetError(f"{call} wrote a line that is no JSON.") from None


def _asked(data: Any, n: int) -> str:
    """Return the line that asks a program for n outputs."""
    try:
        return strict_json.dumps({"data": _plain(data), "n": n}).replace("\n", "") + "\n"
    except TypeError:
        kind = type(data).__name__
        raise ArgumentTypeError(
            f"Expected data sets that JSON has, for a program; got {kind}."
        ) from None


def _plain(data: Any) -> Any:
    """Return a data set as JSON has it; a frame is a list of its rows."""
    if hasattr(data, "iloc") and hasattr(data, "columns"):
        if not data.columns.is_unique:
            raise ArgumentError("Expected a frame whose columns have different names, for JSON.")
        return _plain(data.to_dict("records"))
    for as_list in ("to_dicts", "to_pylist", "to_list", "tolist"):  # Polars, Arrow, pandas, NumPy.
        if hasattr(data, as_list):
            return getattr(data, as_list)()
    if isinstance(data, dict):
        return {key: _plain(part) for key, part in data.items()}
    if isinstance(data, list | tuple):
        return [_plain(part) for part in data]
    return data


def described(data: Any) -> str:
    """Return a data set in a few words, as reports and errors show it: of rows, their number.

    Examples
    --------
    >>> described(np.array([1.0, 2.0])), described(3), described(list(range(100)))
    ('[1, 2]', '3', '[0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, ...] (100)')
    """
    plain = data.tolist() if isinstance(data, np.ndarray) else data
    if isinstance(plain, list | tuple) and not all(is_real(part) for part in plain):
        return f"{type(data).__name__} of {len(plain)} row{'s' * (len(plain) != 1)}"
    if isinstance(plain, list | tuple):
        text = f"[{', '.join(map(_word, plain))}]"
        if len(text) <= _LONGEST:
            return text
        cut = text[: _LONGEST - 12].rpartition(",")[0]
        return f"{cut}, ...] ({len(plain)})"
    if hasattr(plain, "shape"):
        return f"{type(plain).__name__} of shape {tuple(plain.shape)}"
    text = _word(plain)
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."


def _word(part: Any) -> str:
    if isinstance(part, float):
        return repr(part).removesuffix(".0")
    return repr(part)
