"""Draws outputs from mechanisms (data, n) -> n outputs of any kind, in Python or as programs."""

import gc
import math
import random
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from copy import copy, deepcopy
from functools import partial
from itertools import chain
from types import FunctionType, ModuleType
from typing import Any, Final, TypeVar

import numpy as np

from dpnoise.auditing.calls import TIMED_CALLS, Pace, call_in_time
from dpnoise.auditing.output_parts import exception_text, printed_number
from dpnoise.auditing.output_rows import Encoder, Outputs, as_list
from dpnoise.auditing.programs import Program
from dpnoise.auditing.targets import target
from dpnoise.auditing.targets.mechanisms import Pair
from dpnoise.auditing.targets.target import MECHANISM_SIGNATURE, TargetError
from dpnoise.auditing.tuning import TUNING
from dpnoise.auditing.wording import describe_data
from dpnoise.core.arrays import Floats
from dpnoise.core.errors import reject
from dpnoise.core.safe_text import shorten

_Result = TypeVar("_Result")

_CHUNK: Final = 1 << 24  # Bytes of rows that are drawn at a time.
_FIRST_OUTPUTS: Final = 64  # Outputs for each data set that decide the number of parts in a row.
_FIRST_TRIES: Final = 4  # Outputs of each data set that show whether all outputs are exceptions.
_IMMUTABLE: Final = (int, float, complex, str, bytes, range, type(None), np.generic)
# Generators with a state, and what copies share anyway.
_GENERATORS: Final = (
    random.Random, np.random.Generator, np.random.RandomState, np.random.BitGenerator,
)  # fmt: skip
_NOT_COPIED: Final = (type, FunctionType, ModuleType)
_MOST_OBJECTS_SEARCHED: Final = 10_000  # The most objects of a data set that are searched.
_LONGEST_REASON: Final = 100  # Characters of an error that a copy raised.
# Whether an exception of the mechanism ends the audit, or is one more of its outputs.
_ERROR: Final = "error"
_OUTPUT: Final = "output"


class ViewError(TargetError):
    """A view of the caller raised an exception, which the mechanism did not."""


class OutputSource:
    """Draws rows of outputs from a mechanism, chunk by chunk.

    A mechanism is a function (data, n) -> n outputs, "module:attribute", or a command as a list of
    strings, which speaks the protocol of `programs`. With `one_by_one`, each call and each request
    asks for one output. `exceptions` is "error", "output", or None if `take_exceptions` may decide.
    Outputs begin with the values of the caller's `views`. `name` replaces the mechanism's own name
    in reports. Call `prepare` before `rows`.
    """

    encoder: Encoder

    def __init__(
        self,
        mechanism: object,
        time_limit: float,
        *,
        one_by_one: bool,
        exceptions: str | None = _ERROR,
        views: Sequence[Callable[[Any], object]] = (),
        name: str | None = None,
    ) -> None:
        words = list(mechanism) if isinstance(mechanism, list | tuple) else []
        program = Program(words, time_limit)
        own_name, self._call = target.function_of(
            mechanism,
            lambda _, data, n: program.outputs(data, n),
            MECHANISM_SIGNATURE,
            one_by_one=one_by_one,
        )
        self.name, self._is_program = name or own_name, bool(words)
        # An exception ends a call, so that only of one output is it known which raised it.
        self._one_by_one = one_by_one or exceptions == _OUTPUT
        self._exceptions, self.views = exceptions, views
        self._first_failure: TargetError | None = None
        self._pace = Pace(time_limit)
        # Data sets with their descriptions, by their ids. They are kept so that ids stay unique.
        self._shown: dict[int, tuple[object, str]] = {}
        # For each data set, its random generators by their ids.
        self._generators: dict[int, dict[int, object]] = {}
        self.drawn = self.raised = 0  # Numbers of outputs, and of exceptions among them.
        self.not_copied: set[str] = set()  # Which classes of data have no copy, and why.

    def prepare(self, pairs: Sequence[Pair]) -> None:
        """Draw some outputs for each data set of the pairs, and make the encoder of rows from them.

        After `take_exceptions`, raise its exception if the first outputs are all exceptions. Raise
        it for a program as well if none is: it needs a process for each output.
        """
        data_sets, first = list(chain.from_iterable(pairs)), []
        failure = self._first_failure
        for data in data_sets * _FIRST_TRIES if failure else data_sets[:1]:
            # The time of these calls limits the size of the next ones.
            first.append(self.outputs(data, 1))
            if self.raised < self.drawn:
                break
        if failure is not None and self.raised == self.drawn:
            raise failure
        for data in data_sets:
            first += [self.outputs(data, m) for m in self._pace.call_sizes(_FIRST_OUTPUTS)]
        if failure is not None and self._is_program and not self.raised:
            raise failure
        if not self.views and _are_printed_numbers(first):
            self.views = (printed_number,)
            first = [[(printed_number(text), text) for text in outputs] for outputs in first]
        shown = f"{_FIRST_OUTPUTS} outputs of {self.name}"
        self.encoder = call_in_time(lambda: Encoder(self.name, first), shown, self._pace.seconds)

    def may_take(self, error: TargetError) -> bool:
        """Return whether exceptions can be outputs, because the mechanism raised this error."""
        return self._exceptions is None and _cause_of(error) is not None

    def take_exceptions(self, error: TargetError) -> bool:
        """Make exceptions outputs from now on, if the mechanism raised one and the caller agrees.

        Return whether they are: then call `prepare` again.
        """
        if not self.may_take(error):
            return False
        self._exceptions, self._one_by_one, self._first_failure = _OUTPUT, True, error
        self._pace, self.drawn = Pace(self._pace.seconds), 0
        return True

    def seconds_per_release(self) -> float:
        """Return the seconds that the mechanism takes for a release."""
        return self._pace.seconds_per_release()

    def affordable_calls(self, data: object) -> int:
        """Return how many calls the final count may make, after timing calls for one output."""
        for _ in range(TIMED_CALLS):
            self.outputs(data, 1)
        return self._pace.affordable_calls(TUNING.final_calls)

    def time_calls(self, pair: Pair, at_second: Sequence[bool]) -> list[float]:
        """Return the seconds of calls for one output each, at one or the other data set."""
        seconds: list[float] = []
        each = self._pace.seconds  # Seconds of the last calls and of their copies, for each.

        def time_some(sides: Sequence[bool]) -> None:
            for side in sides:
                # Which copy is the newer one does not depend on the side.
                order = (0, 1) if len(seconds) % 2 else (1, 0)
                copies = {i: self._copy(pair[i]) for i in order}
                start = time.perf_counter()
                try:
                    self._call(copies[side], 1)
                except (Exception, SystemExit):
                    if self._exceptions != _OUTPUT:
                        raise
                seconds.append(time.perf_counter() - start)

        while len(seconds) < len(at_second):
            some = at_second[len(seconds) :][: max(1, int(self._pace.seconds / 4 / each))]
            start = time.perf_counter()
            call_in_time(partial(time_some, some), f"{self.name}, timed,", self._pace.seconds)
            each = (time.perf_counter() - start) / len(some)
        return seconds

    def outputs(self, data: object, n: int) -> Outputs:
        """Return n outputs as the mechanism returns them."""
        if not self._one_by_one or n == 1:
            return self._in_time(data, n, lambda outputs: outputs)
        sizes = self._pace.call_sizes(n)
        return list(chain.from_iterable(self._in_time(data, m, list) for m in sizes))

    def _copy(self, data: object) -> object:
        """Return a copy of data that a mechanism could change: its next call must see the same.

        Random generators in the data are not copied, because each copy would repeat their noise.
        """
        if isinstance(data, _IMMUTABLE):
            return data
        if id(data) not in self._generators:
            self._generators[id(data)] = _generators_in(data)
        try:
            return deepcopy(data, dict(self._generators[id(data)]))
        except Exception as error:  # noqa: BLE001 - code of the caller's types
            reason = shorten(exception_text(error).removeprefix("raised "), _LONGEST_REASON)
            self.not_copied.add(f"{type(data).__name__} cannot be copied ({reason})")
            return data

    def rows(self, data: object, n: int) -> Floats:
        """Return n outputs as rows."""
        # Encoding may run code of the mechanism's own classes, so it has the time limit, too.
        chunks = [
            self._in_time(data, m, partial(self.encoder.rows, n=m))
            for m in self._pace.call_sizes(n, self.chunk)
        ]
        return chunks[0] if len(chunks) == 1 else np.concatenate(chunks)

    def _in_time(self, data: object, n: int, convert: Callable[[Outputs], _Result]) -> _Result:
        """Draw n outputs and convert them, with the time limit of a call."""
        if id(data) not in self._shown:
            self._shown[id(data)] = data, describe_data(data)
        shown = f"{self.name}({self._shown[id(data)][1]}, {n})"
        self.drawn += n

        def draw_and_convert() -> _Result:
            if self._one_by_one:
                return convert([self._draw_one(data, shown) for _ in range(n)])
            return convert(self.draw(data, n, shown))

        return self._pace.call(draw_and_convert, shown, n)

    def _draw_one(self, data: object, shown: str) -> object:
        """Return one output; or the exception as a text, if exceptions are outputs."""
        try:
            # A copy, because a mechanism may overwrite its only output with the next.
            return copy(as_list(self.draw(data, 1, shown))[0])
        except (Exception, SystemExit) as error:
            cause = _cause_of(error)
            if self._exceptions != _OUTPUT or cause is None:
                raise
            self.raised += 1
            text = exception_text(cause)
            missing = math.nan if printed_number in self.views else None
            return (*[missing] * len(self.views), text) if self.views else text

    def draw(self, data: object, n: int, shown: str) -> Outputs:
        """Return n outputs of one call, each with the values of the views if there are any."""
        outputs = self._call(self._copy(data), n)
        sized = hasattr(outputs, "__len__") and getattr(outputs, "shape", (n,)) != ()
        if not sized or isinstance(outputs, str | bytes | dict | set | frozenset):
            raise TargetError(
                f"{shown} gave one {type(outputs).__name__}, not {n} outputs. Return a list or an "
                "array of n outputs; or, for one output a call, take no n and say one_by_one=True."
            )
        if len(outputs) != n:
            raise TargetError(
                f"{shown} gave {len(outputs)} outputs, not {n}. An output of k parts is one row of "
                "an array of shape (n, k), or one entry of a list of n."
            )
        if not self.views:
            return outputs
        each = outputs.to_numpy() if hasattr(outputs, "to_numpy") else outputs
        return [(*self._view(output, shown), output) for output in each]

    def _view(self, output: object, shown: str) -> Iterator[object]:
        for i, view in enumerate(self.views):
            try:
                yield view(output)
            except Exception as error:
                call = f"views[{i}], of an output of {shown},"
                raise ViewError(f"{call} raised {type(error).__name__}: {error}") from error

    @property
    def names(self) -> list[str]:
        """The names of the columns of a row in an event's words."""
        length, *parts = self.encoder.names
        if not self.views:
            return [length, *parts]
        others = len(parts) - len(self.views)
        own = ["y"] if others == 1 else [f"y[{j}]" for j in range(others)]
        if self.views == (printed_number,):
            return [length, "the number in y", *own]
        return [length, *(f"views[{i}](y)" for i in range(len(self.views))), *own]

    def columns_of(self, public: Sequence[int | str]) -> list[int]:
        """Return the columns of the public parts, or raise for one that does not exist."""
        names = self.names[1 + len(self.views) :]
        columns = []
        for part in public:
            index = names.index(part) if part in names else part
            if not isinstance(index, int) or not 0 <= index < len(names):
                reject("public", part, f"be a part of an output: 0 to {len(names) - 1}")
            columns.append(1 + len(self.views) + int(index))
        return columns

    @property
    def chunk(self) -> int:
        """The number of outputs per call."""
        return max(1, _CHUNK // self.encoder.row_bytes)


def _are_printed_numbers(first: Sequence[Outputs]) -> bool:
    """Return whether the first outputs are texts, and most of them different numbers."""
    if not all(isinstance(outputs, list | tuple | np.ndarray) for outputs in first):
        return False
    texts = [*chain.from_iterable(first)]
    if not all(isinstance(text, str) for text in texts):
        return False
    numbers = {number for text in texts if not math.isnan(number := printed_number(text))}
    return 2 * len(numbers) > len(texts)


def _generators_in(data: object) -> dict[int, object]:
    """Return the random generators that data refers to, by their ids."""
    found: dict[int, object] = {}
    seen: set[int] = set()
    waiting = deque([data])
    while waiting and len(seen) < _MOST_OBJECTS_SEARCHED:
        part = waiting.popleft()
        if isinstance(part, _GENERATORS):
            found[id(part)] = part
        elif gc.is_tracked(part) and id(part) not in seen and not isinstance(part, _NOT_COPIED):
            seen.add(id(part))
            waiting += gc.get_referents(part)
    return found


def _cause_of(error: BaseException) -> BaseException | None:
    """Return the exception that the mechanism itself raised, or None."""
    if isinstance(error, ViewError):
        return None
    return error.__cause__ if isinstance(error, TargetError) else error
