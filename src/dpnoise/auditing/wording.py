"""Formats of the numbers and data sets in a report.

Rounding never makes a finding look stronger than it is.
"""

import math
from decimal import ROUND_FLOOR, Context
from typing import Any, Final

import numpy as np

from dpnoise.core.errors import is_real

_LONGEST_DATA: Final = 60  # Characters in the description of a data set.
_LONGEST_PREDICATE: Final = 400  # Characters of a predicate that a terminal shows in full.
_SHORTENED_PREDICATE: Final = 200  # The characters that it shows of a longer one.


def format_value(x: float | str) -> str:
    """Format a value or a claim in full; return a text unchanged.

    >>> format_value(1.0), format_value(0.1), format_value(2.0**60)
    ('1', '0.1', '1.152921504606847e+18')
    """
    return x if isinstance(x, str) else repr(float(x)).removesuffix(".0")


def describe_data(data: Any) -> str:
    """Return a short description of a data set for reports and errors.

    >>> describe_data(np.array([1.0, 2.0])), describe_data(3), describe_data(list(range(100)))
    ('[1, 2]', '3', '[0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, ...] (100)')
    """
    plain = data.tolist() if isinstance(data, np.ndarray) else data
    if isinstance(plain, list | tuple) and not all(is_real(part) for part in plain):
        return f"{type(data).__name__} of {len(plain)} row{'s' * (len(plain) != 1)}"
    if isinstance(plain, list | tuple):
        text = f"[{', '.join(map(_format_part, plain))}]"
        if len(text) <= _LONGEST_DATA:
            return text
        cut = text[: _LONGEST_DATA - 12].rpartition(",")[0]
        return f"{cut}, ...] ({len(plain)})"
    if hasattr(plain, "shape"):
        return f"{type(plain).__name__} of shape {tuple(plain.shape)}"
    text = _format_part(plain)
    return text if len(text) <= _LONGEST_DATA else f"{text[: _LONGEST_DATA - 3]}..."


def describe_pair(pair: tuple[Any, Any]) -> tuple[str, str]:
    """Return short descriptions of both data sets of a pair."""
    return describe_data(pair[0]), describe_data(pair[1])


def _format_part(part: object) -> str:
    return repr(part).removesuffix(".0") if isinstance(part, float) else repr(part)


def bound_text(epsilon: float, claimed: float = 0.0) -> str:
    """Format a lower bound, rounded down: rounded up it would not be certified.

    It has three digits, or more if the rounded bound would not exceed a claim that it exceeds.

    >>> bound_text(7.1999), bound_text(0.3), bound_text(0.0), bound_text(float("inf"))
    ('7.19', '0.3', '0', 'infinity')
    >>> bound_text(1.00042), bound_text(1.00042, claimed=1.0)
    ('1', '1.0004')
    """
    if math.isinf(epsilon):
        return "infinity"
    for digits in range(3, 18):
        down = Context(prec=digits, rounding=ROUND_FLOOR)
        shown = float(down.create_decimal(repr(float(epsilon))))
        if shown > claimed or epsilon <= claimed:
            break
    return f"{shown:.{digits}g}"


def used_as_if(kind: str, claimed: float, delta: float) -> str:
    """Return the claim that an audit assumes, which the target itself may not make.

    >>> used_as_if("epsilon", 1.0, 0.0), used_as_if("epsilon", 0.5, 1e-6)
    ('used as if epsilon were 1', 'used as if epsilon were 0.5, delta 1e-06')
    """
    return f"used as if {kind} were {claimed:g}" + (f", delta {delta:g}" if delta else "")


def predicate_text(predicate: str) -> str:
    """Return a predicate as text for a terminal, or what to do about a long one."""
    if len(predicate) <= _LONGEST_PREDICATE:
        return predicate
    return f"{predicate[:_SHORTENED_PREDICATE]}... ({len(predicate):,} characters: see the report)"


def format_percent(hits: int, trials: int) -> str:
    """Format a fraction with three digits, and as 0% or 100% only if it is exactly that.

    >>> format_percent(3723, 20_000), format_percent(0, 20_000), format_percent(19_999, 20_000)
    ('18.6%', '0%', 'over 99.9%')
    """
    if hits < trials and hits / trials > 0.999:  # noqa: PLR2004 - the next step would read 100
        return "over 99.9%"
    return f"{100 * hits / trials:.3g}%"


def format_duration(seconds: float) -> str:
    """Format a time in minutes and seconds.

    >>> format_duration(3.21), format_duration(200)
    ('3.2 s', '3 min 20 s')
    """
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes else f"{seconds:.1f} s"
