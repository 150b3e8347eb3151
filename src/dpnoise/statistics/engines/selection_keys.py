"""One encoding of a value for hashing, the same whatever type a column has.

A reader infers the type of a column from all rows: one empty cell or one 0.5 turns integers into
floats, one word turns them into text. The hash that selects a person's rows and groups must not
follow. So it is taken of two parts, of which one is null:

- the number: the float64 nearest to an integer, a float, a decimal, or text that reads as a number;
- the text: other text in lower case, "true" or "false", a date as 2024-02-29, a time as
  2024-02-29 10:30:00 in UTC, at midnight as its date.

Different values may have one encoding, such as 7 and the text 07. Their hashes are then equal, and
the values themselves decide.
"""

from typing import Any, Final

_MIDNIGHT: Final = "' 00:00:00$'"  # A regular expression, as SQL has it.
_LAST_DIGIT: Final = 57  # The code of 9: no text that begins after it reads as a number.
_ROUNDED_TWICE: Final = ("decimal", "hugeint", "uhugeint")  # Where they are cast to floats.
_WORDS: Final = ("bool", "date", "timestamp")  # How the names of types without numbers begin.


def duckdb_parts(relation: Any) -> dict[str, list[str]]:
    """Map each column of a relation of DuckDB to the SQL of its number and its text."""
    types = zip(relation.columns, map(str, relation.types), strict=True)
    return {name: _duckdb_parts(name, kind.lower()) for name, kind in types}


def _duckdb_parts(name: str, kind: str) -> list[str]:
    held = f"CAST({name} AS VARCHAR)" if kind.startswith(_ROUNDED_TWICE) else name
    number = f"TRY_CAST({held} AS DOUBLE) + 0.0"  # -0.0 becomes 0.0.
    if kind.startswith("varchar"):
        return _parts_of_text(name, number)
    if not kind.startswith(_WORDS) and kind != "uuid":
        return [number, "NULL"]
    if kind.startswith(("timestamp with", "timestamptz")):
        name = f"make_timestamp(epoch_us(CAST({name} AS TIMESTAMPTZ)))"
    return ["NULL", f"regexp_replace(CAST({name} AS VARCHAR), {_MIDNIGHT}, '')"]


def _parts_of_text(name: str, number: str) -> list[str]:
    """Return the number that a text reads as, or else the text; a failed cast takes long."""
    number = f"CASE WHEN ascii({name}) <= {_LAST_DIGIT} THEN {number} END"
    return [number, f"CASE WHEN ({number}) IS NULL THEN lower({name}) END"]


def spark_parts(frame: Any) -> dict[str, list[str]]:
    """Map each column of a frame of Spark to the SQL of its number and its text."""
    return {name: _spark_parts(name, kind) for name, kind in frame.dtypes}


def _spark_parts(name: str, kind: str) -> list[str]:
    held = f"CAST({name} AS STRING)" if kind.startswith(_ROUNDED_TWICE) else name
    number = f"TRY_CAST({held} AS DOUBLE) + 0.0D"
    if kind.startswith("string"):
        return _parts_of_text(name, number)
    if not kind.startswith(_WORDS):
        return [number, "CAST(NULL AS STRING)"]
    if kind == "timestamp":
        name = f"to_utc_timestamp({name}, current_timezone())"
    text = f"regexp_replace(CAST({name} AS STRING), {_MIDNIGHT}, '')"
    return ["CAST(NULL AS DOUBLE)", text]
