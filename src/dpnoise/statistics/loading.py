"""Requests from TOML files, with their data and their ledger."""

import re
import tomllib
from collections.abc import Collection
from dataclasses import dataclass, fields
from itertools import chain
from os import PathLike
from pathlib import Path
from typing import Any, Final

from dpnoise.core.errors import (
    ArgumentError,
    DpnoiseError,
    add_prefix,
    explain_calls,
    reject_type,
    unknown_name_error,
)
from dpnoise.statistics.engines.description import Files, parse_source
from dpnoise.statistics.questions import Question
from dpnoise.statistics.requests import Request


def _names_of(kind: Any) -> list[str]:
    """Return the names of the fields of a dataclass."""
    return [known.name for known in fields(kind)]


_SOURCE_NAMES: Final = ("path", *_names_of(Files))
# A delimiter is a setting of the data. In Python it is one of the request too.
_QUESTION_NAMES: Final = _names_of(Question)
_REQUEST_NAMES: Final = [name for name in _names_of(Request) if name != "delimiter"]


@dataclass(frozen=True)
class LoadedRequest:
    """A request from a file, and the data that the file names."""

    request: Request  # With the ledger, so that publishing it is paid for.
    source: Files | Path | None  # The data; None if the file does not name it.

    @property
    def files(self) -> Files | None:
        """The data with its format, or None if the file does not name it."""
        if isinstance(self.source, Path):
            return Files(self.source)
        return self.source


@explain_calls
def load_request(
    path: str | PathLike[str],
) -> LoadedRequest:  # Most of its lines are documentation.
    r"""Read a request from a TOML file.

    The file has the fields of `Request`, except `delimiter`, and a table `[[publish]]` for each
    question. `source` may name the data: a file in the same folder, or a table `[source]` with
    `path` or `paths` and the other fields of `engines.Files`. The groups of a column may be in a
    file: `{file = "cities.txt"}`.

    Parameters
    ----------
    path
        The TOML file. Names of files in it are relative to its folder.

    Returns
    -------
    LoadedRequest
        The request as `request`, with its ledger, and the data that the file names as `source`.

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
        text = path.read_text(encoding="utf-8-sig")
        settings = tomllib.loads(text)
    except FileNotFoundError:
        raise ArgumentError(f"There is no file {path}.") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        is_toml_error = isinstance(error, tomllib.TOMLDecodeError)
        reason = str(error) if is_toml_error else "it is not UTF-8 text"
        advice = _advice_on_toml(text) if is_toml_error else ""
        raise ArgumentError(f"{path} is not TOML: {reason}.{advice}") from None
    try:
        described = settings.pop("source", None)
        if isinstance(described, dict):
            _check_names(described, _SOURCE_NAMES, "[source]")
        source = parse_source(described, path.parent)
        if isinstance(settings.get("ledger"), str):
            settings["ledger"] = path.parent / settings["ledger"]
        questions = settings.pop("publish", [])
        is_list = isinstance(questions, list)
        if not is_list or not all(isinstance(question, dict) for question in questions):
            raise ArgumentError("Questions must be tables: write [[publish]] above each.")
        settings["publish"] = tuple(_from_table(Question, question) for question in questions)
        _check_headings(settings)
        settings["groups"] = _groups(settings.get("groups", {}), path.parent)
        request = _from_table(Request, settings)
        _check_groups_are_used(request)
    except DpnoiseError as error:
        raise add_prefix(f"{path}: ", error) from None
    return LoadedRequest(request, source)


def _from_table(kind: Any, table: dict[str, Any]) -> Any:
    """Make a dataclass from a TOML table; raise if a name is unknown or missing."""
    names = _REQUEST_NAMES if kind is Request else _names_of(kind)
    _check_names(table, names, "[[publish]]")
    if kind is Question and "statistics" not in table:
        raise ArgumentError("Every question must name its statistics.")
    return kind(**({"epsilon": None} | table if kind is Request else table))


def _advice_on_toml(text: str) -> str:
    """Return advice on frequent mistakes in TOML, after a space."""
    advice = ""
    if re.search(r"=\s*[+-]?\d+,\d", text):
        advice += " Write numbers with a decimal point and no thousands sign."
    if re.search(r"^\s*\[publish\]", text, re.MULTILINE):
        advice += " Write [[publish]] above each question."
    return advice


def _check_names(table: dict[str, Any], names: Collection[str], heading: str) -> None:
    """Raise if a table has an unknown name, or a setting of the request below its heading."""
    _check_place(table, names, heading)
    for name in table:
        if name not in names and name in _SOURCE_NAMES:
            raise ArgumentError(f"{name} belongs in [source], as the other settings of the data.")
        if name not in names and name in _QUESTION_NAMES:
            raise ArgumentError(f"{name} belongs in each [[publish]] that it is for.")
        if name not in names:
            raise unknown_name_error("setting", name, names)


def _check_place(table: dict[str, Any], names: Collection[str | None], heading: str) -> None:
    """Raise if a table has a setting of the request that is none of its names."""
    for name in table:
        if name not in names and name in {*_REQUEST_NAMES, "source"}:
            raise ArgumentError(
                f"{name} is a setting of the whole request, and not of {heading}. Write it above "
                "the first [table] line."
            )


def _check_headings(settings: dict[str, Any]) -> None:
    """Raise if a setting of the request is written below a heading that lists columns.

    A column may have the name of a setting, if a question uses it.
    """
    used: set[str | None] = set()
    for question in settings["publish"]:
        used |= {*question.by, question.column, *re.findall(r"\w+", question.where or "")}
    for heading in ("groups", "derived", "labels", "hierarchy"):
        table = settings.get(heading)
        _check_place(table if isinstance(table, dict) else {}, used, f"[{heading}]")


def _check_groups_are_used(request: Request) -> None:
    """Raise if no question groups by a column with groups, which may be misspelled."""
    used = {*request.grouped, *request.hierarchy, *chain(*request.hierarchy.values())}
    for column in request.groups:
        if column not in used:
            raise ArgumentError(
                f"The groups of {column!r} are used by no question: leave them out, or name the "
                "column in by."
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
