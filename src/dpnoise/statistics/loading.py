"""Requests from TOML files, with their data and their ledger."""

import tomllib
from collections.abc import Collection
from dataclasses import dataclass, fields
from os import PathLike
from pathlib import Path
from typing import Any

from dpnoise.core.errors import (
    ArgumentError,
    DpnoiseError,
    explain_calls,
    reject_type,
    short_repr,
    unknown_name_error,
)
from dpnoise.statistics.engines.description import Files, parse_source
from dpnoise.statistics.questions import Question
from dpnoise.statistics.requests import Request


@dataclass(frozen=True)
class LoadedRequest:
    """A request from a file, with the data and the ledger that the file names."""

    request: Request
    source: Files | Path | None  # The data; None if the file does not name it.
    ledger: Path | None = None  # Pays for the request; None if the file does not name one.

    @property
    def files(self) -> Files | None:
        """The data with its format, or None if the file does not name it."""
        if isinstance(self.source, Path):
            return Files(self.source, delimiter=self.request.delimiter)
        return self.source


@explain_calls
def load_request(
    path: str | PathLike[str],
) -> LoadedRequest:  # Most of its lines are documentation.
    r"""Read a request from a TOML file.

    The file has the fields of `Request` and a table `[[publish]]` for each question. Three more
    settings are optional. `source` names the data: a file in the same folder, or a table `[source]`
    with `path` or `paths` and the other fields of `engines.Files`. `ledger` names the ledger that
    pays. The groups of a column may be in a file: `{file = "cities.txt"}`.

    Parameters
    ----------
    path
        The TOML file. Names of files in it are relative to its folder.

    Returns
    -------
    LoadedRequest
        The request as `request`, and the data and the ledger that the file names.

    Raises
    ------
    ArgumentError
        If the file cannot be read, or if a setting is unknown, missing or out of range.

    Examples
    --------
    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     path = Path(folder, "request.toml")
    ...     _ = path.write_text('epsilon = 1.0\n[[publish]]\nstatistics = ["count"]')
    ...     loaded = load_request(path)
    >>> loaded.request.epsilon, loaded.source
    (1.0, None)
    """
    if not isinstance(path, str | PathLike):
        reject_type("path", path, "be the name of a TOML file")
    path = Path(path)
    try:
        settings = tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except FileNotFoundError:
        raise ArgumentError(f"There is no file {path}.") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        is_toml_error = isinstance(error, tomllib.TOMLDecodeError)
        reason = str(error) if is_toml_error else "it is not UTF-8 text"
        raise ArgumentError(f"{path} is not TOML: {reason}.") from None
    try:
        described = settings.pop("source", None)
        if isinstance(described, dict):
            _check_names(described, ["path", *_names_of(Files)], "[source]")
        source = parse_source(described, path.parent)
        if isinstance(source, Files) and "delimiter" in settings:
            raise ArgumentError("Write the delimiter where the rest of the source is: [source].")
        ledger = settings.pop("ledger", None)
        if not isinstance(ledger, str | None):
            raise ArgumentError(f"ledger must be the name of a file, got {short_repr(ledger)}.")
        questions = settings.pop("publish", [])
        is_list = isinstance(questions, list)
        if not is_list or not all(isinstance(question, dict) for question in questions):
            raise ArgumentError("Questions must be tables: [[publish]].")
        settings["publish"] = tuple(_from_table(Question, question) for question in questions)
        settings["groups"] = _groups(settings.get("groups", {}), path.parent)
        _check_columns(settings)
        request = _from_table(Request, settings)
    except DpnoiseError as error:
        raise ArgumentError(f"{path}: {error}") from None
    return LoadedRequest(request, source, None if ledger is None else path.parent / ledger)


def _from_table(kind: Any, table: dict[str, Any]) -> Any:
    """Make a dataclass from a TOML table; raise if a name is unknown or missing."""
    _check_names(table, _names_of(kind), "[[publish]]")
    if kind is Question and "statistics" not in table:
        raise ArgumentError("Every question must name its statistics.")
    return kind(**({"epsilon": None} | table if kind is Request else table))


def _names_of(kind: Any) -> list[str]:
    """Return the names of the fields of a dataclass."""
    return [known.name for known in fields(kind)]


def _check_names(table: dict[str, Any], names: Collection[str], heading: str) -> None:
    """Raise if a table has an unknown name, or a setting of the request below its heading."""
    for name in table:
        if name not in names:
            _check_place(name, heading)
            raise unknown_name_error("setting", name, names)


def _check_columns(settings: dict[str, Any]) -> None:
    """Raise if no question uses a column that is called as a setting: it would have no effect."""
    questions = settings["publish"]
    used = {name for question in questions for name in (*question.by, question.column)}
    conditions = " ".join(question.where or "" for question in questions)
    for heading in ("groups", "derived"):
        table = settings.get(heading)
        for name in table if isinstance(table, dict) else ():
            if name not in used and name not in conditions:
                _check_place(name, f"[{heading}]")


def _check_place(name: str, heading: str) -> None:
    """Raise if a name below a heading is a setting of the whole request."""
    if name in {*_names_of(Request), "source", "ledger"}:
        raise ArgumentError(
            f"{name} is a setting of the whole request, and not of {heading}. Write it above the "
            "first [table] line."
        )


def _groups(table: object, folder: Path) -> dict[str, Any]:
    if not isinstance(table, dict):
        raise ArgumentError('groups must be a table: [groups], city = ["cork", "dublin"].')
    return {
        column: groups_in_file(folder / keys["file"])
        if isinstance(keys, dict) and isinstance(keys.get("file"), str)
        else keys
        for column, keys in table.items()
    }


def groups_in_file(path: Path) -> list[str]:
    """Return the groups in a file, one on each line; blank lines are ignored."""
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except FileNotFoundError:
        raise ArgumentError(f"There is no file {path}.") from None
    except UnicodeDecodeError:
        raise ArgumentError(f"{path} cannot be read: it is not UTF-8 text.") from None
    names = [line.strip() for line in lines if line.strip()]
    if not names:
        raise ArgumentError(f"{path} has no groups. Write one on each line.")
    return names
