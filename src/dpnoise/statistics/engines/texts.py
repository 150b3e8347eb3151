"""Text in SQL: quoted where it is a name or a value, and read as a number where one is asked for.

What is read depends on the text alone: DuckDB's cast rounds to the nearest float, and what it takes
for a number but people do not is a mistake.
"""

from collections.abc import Sequence
from contextlib import suppress
from decimal import Decimal, InvalidOperation, localcontext
from typing import Any, Final

from dpnoise.core.errors import ArgumentError, is_real, shown

# What stands for a missing number in text, besides nothing at all and NaN.
_MISSING_WORDS: Final = (
    *("#N/A", "#N/A N/A", "#NA", "-1.#IND", "-1.#QNAN", "1.#IND", "1.#QNAN", "N/A", "NA", "NULL"),
    *("n/a", "null"),
)
_LONGEST_DECIMAL: Final = 38  # Digits, of DuckDB's.


def literal(text: str) -> str:
    """Return a text as SQL has it."""
    doubled = text.replace("'", "''")
    return f"'{doubled}'"


def quoted(name: str) -> str:
    """Return a name as SQL has it."""
    doubled = name.replace('"', '""')
    return f'"{doubled}"'


def number(text: str, decimal: str) -> str:
    """Return the number that a text, an expression of SQL, reads as, if it is not wrong."""
    return f"TRY_CAST({_readable(text, decimal)} AS DOUBLE)"


def is_wrong(text: str, decimal: str) -> str:
    """Tell, by 0 or 1, where text is neither a number nor stands for a missing one."""
    words = ", ".join(map(literal, _MISSING_WORDS))
    return (
        f"CASE WHEN {text} IS NULL THEN 0 WHEN {_odd(text)} THEN 1 "
        f"WHEN {number(text, decimal)} IS NOT NULL THEN 0 "
        # Of few rows: an IN would be a join of all.
        f"WHEN list_contains(['', {words}], trim({text})) THEN 0 ELSE 1 END"
    )


def _odd(text: str) -> str:
    """Tell where DuckDB reads a number that people would not: 1_000 and +-5."""
    return f"(contains({text}, '_') OR contains({text}, '+-'))"


def _readable(text: str, decimal: str) -> str:
    """Return the text of a number with a decimal point; with a decimal comma a point is no sign."""
    if decimal == ".":
        return text
    return f"CASE WHEN contains({text}, '.') THEN '.' ELSE replace({text}, ',', '.') END"


def is_parsed(kind: str, keys: Sequence[Any]) -> bool:
    """Tell whether a column of groups, of DuckDB's type `kind`, is read as numbers."""
    return kind == "VARCHAR" and all(is_real(key) for key in keys)


def group(text: str, kind: str, keys: Sequence[Any], decimal: str) -> str:
    """Return a column, of DuckDB's type `kind`, as its declared keys are compared with it."""
    if is_parsed(kind, keys):
        return f"CASE WHEN NOT {_odd(text)} THEN {number(text, decimal)} END"
    if kind.startswith("DECIMAL"):
        return f"CAST({text} AS VARCHAR)"
    # Bytes that are no text are in no declared group.
    return f"TRY(decode({text}))" if kind == "BLOB" else text


def keys_of(column: str, kind: str, keys: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return declared keys as `group` writes the column: of decimals with all their places."""
    if not kind.startswith("DECIMAL"):
        return keys
    scale = int(kind.rstrip(")").rpartition(",")[2])
    return tuple(_as_decimal(column, key, scale) for key in keys)


def _as_decimal(column: str, key: Any, scale: int) -> str:
    with localcontext(prec=3 * _LONGEST_DECIMAL), suppress(InvalidOperation):
        exact = Decimal(str(key))
        if exact.is_finite() and abs(exact.adjusted()) < _LONGEST_DECIMAL:
            units = exact.scaleb(scale)
            if units == int(units):
                # Without a sign in front of 0, and with all decimals: 1.5 is 1.50.
                return f"{Decimal(int(units)).scaleb(-scale):f}"
    raise ArgumentError(
        f"Column {column!r} holds decimals with {scale} places, so no row could be in the group "
        f"{shown(key)}. Declare groups as the column holds them."
    )
