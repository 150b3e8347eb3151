"""The parts of one output: its numbers and labels, in their order."""

import math
import numbers
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import fields, is_dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from itertools import chain
from typing import Any, Final, TypeVar

import numpy as np

_Label = TypeVar("_Label")

LARGEST: Final = 1e300  # Larger numbers and infinities are clipped to this, to keep sums finite.
# Stands for -0.0, which comparisons do not tell from 0.0. Hardly an output is this number.
NEGATIVE_ZERO: Final = -float(np.finfo(np.float64).tiny)
LOW_BITS: Final = (1 << 32) - 1  # The bits of a large integer that are a part by themselves.
_NESTED: Final = (Mapping, list, tuple, AbstractSet, np.ndarray)  # Types that have parts.
_LARGEST_EXACT: Final = 1 << 53  # The largest integer up to which all are exact in float64.


class OutputParts(list[Any]):
    """The parts of one output, and the types and lengths that it shows next to them.

    The first parts are the values of that many views of the caller.
    """

    def __init__(self, parts: Iterable[Any], form: object = math.nan, views: int = 0) -> None:
        super().__init__(parts)
        self.form, self.views = form, views


def parts_of(
    output: object, label: Callable[[Any], _Label], *, split: bool = False
) -> Iterator[float | _Label]:
    """Yield the parts of an output: each number as a float, and the `label` of anything else.

    With `split`, an integer is followed by its low bits, which float64 may round away.

    >>> list(parts_of({"city": "cork", "counts": [3, None]}, repr))
    ["'city'", "'cork'", "'counts'", 3.0, 'None']
    """
    output = _as_mapping(output)
    if isinstance(output, numbers.Real | Decimal):
        yield clip_to_float(output)
        if split and isinstance(output, numbers.Integral):
            yield float(int(output) & LOW_BITS)
    elif isinstance(output, date | timedelta):
        yield _seconds_of(output)
    elif isinstance(output, Mapping):
        for key in sorted(output, key=repr):
            yield label(key)
            yield from parts_of(output[key], label, split=split)
    elif hasattr(output, "__array__") and not isinstance(output, str | bytes):
        yield from parts_of(np.asarray(output).tolist(), label, split=split)
    elif isinstance(output, list | tuple | AbstractSet):
        for part in sorted(output, key=repr) if isinstance(output, AbstractSet) else output:
            yield from parts_of(part, label, split=split)
    else:
        yield label(exception_text(output) if isinstance(output, BaseException) else output)


def _as_mapping(output: Any) -> Any:
    """Return an instance of a dataclass as a dict of its fields, and anything else as it is."""
    if is_dataclass(output) and not isinstance(output, type):
        return {field.name: getattr(output, field.name) for field in fields(output)}
    return output


def _seconds_of(time: date | timedelta) -> float:
    """Return the seconds of a duration, or those since 1970 of a date or time; NaN if missing.

    >>> _seconds_of(timedelta(minutes=1)), _seconds_of(date(1970, 1, 2))
    (60.0, 86400.0)
    """
    if time != time:  # noqa: PLR0124 - true of the missing time of pandas, which is a datetime
        return math.nan
    if isinstance(time, timedelta):
        return time.total_seconds()
    if not isinstance(time, datetime):
        time = datetime(time.year, time.month, time.day, tzinfo=UTC)
    return (time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp()


def common_keys(outputs: Sequence[object]) -> list[Hashable]:
    """Return the keys of dicts of single numbers or texts, in their order here; or none.

    >>> common_keys([{"b": 1, "a": "no"}, {"a": "yes", "b": 2}]), common_keys([{"a": [1]}])
    (['a', 'b'], [])
    """
    mappings = [x for x in map(_as_mapping, outputs) if isinstance(x, Mapping)]
    if not mappings or len(mappings) < len(outputs):
        return []
    if any(isinstance(part, _NESTED) for x in mappings for part in x.values()):
        return []
    (keys, *others) = {tuple(sorted(x, key=repr)) for x in mappings}
    return [] if others else [*keys]


def exception_text(error: BaseException) -> str:
    """Return the text that stands for an exception among outputs.

    >>> exception_text(ValueError("no rows"))
    'raised ValueError: no rows'
    """
    try:
        message = str(error)
    except Exception:  # noqa: BLE001 - an exception of the mechanism whose __str__ fails
        message = ""
    return f"raised {type(error).__name__}: {message}"


def printed_number(text: object) -> float:
    """Return the finite number that a text is, or NaN.

    >>> printed_number("-2.5e3"), printed_number("no"), printed_number("inf"), printed_number(3)
    (-2500.0, nan, nan, nan)
    """
    try:
        number = float(text) if isinstance(text, str) else math.nan
    except ValueError:
        return math.nan
    return number if math.isfinite(number) else math.nan


def has_large_integer(output: Any) -> bool:
    """Return whether an output, or several, has an integer that float64 rounds."""
    if isinstance(output, np.ndarray) and output.dtype.kind in "iuf":
        large = output.dtype.kind != "f" and output.size
        return bool(large and max(-int(output.min()), int(output.max())) > _LARGEST_EXACT)
    if isinstance(output, numbers.Integral):
        return abs(int(output)) > _LARGEST_EXACT
    parts = output.values() if isinstance(output, Mapping) else output
    is_nested = isinstance(output, list | tuple | AbstractSet | Mapping | np.ndarray)
    return is_nested and any(map(has_large_integer, parts))


def form_of(output: object) -> Hashable:
    """Return what an output shows next to its parts: types, lengths and the order of keys.

    >>> form_of({"b": [1, 2.0], "a": "no"})
    ('dict', "'b'", ('list', 'int', 'float'), "'a'", None)
    """
    form: Hashable = None
    output = _as_mapping(output)
    if isinstance(output, list | tuple):
        form = type(output).__name__, *map(form_of, output)
    elif isinstance(output, Mapping):
        parts = chain.from_iterable((repr(key), form_of(part)) for key, part in output.items())
        form = "dict", *parts
    elif isinstance(output, AbstractSet):
        form = "set", len(output)
    elif isinstance(output, np.ndarray):
        form = "array", output.dtype.kind, output.shape
    elif isinstance(output, Decimal):
        form = "Decimal", output.as_tuple().exponent
    elif isinstance(output, date | timedelta):
        form = type(output).__name__, str(getattr(output, "tzinfo", None))
    elif isinstance(output, bool | np.bool_):
        form = "bool"
    elif isinstance(output, numbers.Real):
        form = "int" if isinstance(output, numbers.Integral) else "float"
    return form


def clip_to_float(number: numbers.Real | Decimal) -> float:
    """Return a number as a float: infinity if it is too large."""
    try:
        return float(number)
    except OverflowError:
        return float("-inf") if number < 0 else float("inf")
