"""Requests from TOML files, with the data that they are about and the ledger that pays."""

import tomllib
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from dpnoise.core.errors import ArgumentError, DpnoiseError, shown, unknown
from dpnoise.statistics.engines.description import Files, source_of
from dpnoise.statistics.questions import Question
from dpnoise.statistics.requests import Request


@dataclass(frozen=True)
class Signed:
    """A request from a file, and the data that it is about and its ledger, if the file says so."""

    request: Request
    source: Files | Path | None
    ledger: Path | None = None

    @property
    def files(self) -> Files | None:
        """The data, with all that is said about it."""
        if isinstance(self.source, Path):
            return Files(self.source, delimiter=self.request.delimiter)
        return self.source


def load_request(path: Path) -> Signed:  # Most of its lines are documentation.
    r"""Read a request from a TOML file.

    It has the fields of `Request`, a table `[[publish]]` for each question, and may have `source`,
    the file of data beside it, or a table `[source]` with `path` or `paths` and what else
    `engines.Files` takes, and `ledger`, the one that pays for it. The groups of a column may be in
    a file: `{file = "cities.txt"}`.

    Examples
    --------
    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     path = Path(folder, "request.toml")
    ...     _ = path.write_text('epsilon = 1.0\n[[publish]]\nstatistics = ["count"]')
    ...     signed = load_request(path)
    >>> signed.request.epsilon, signed.source
    (1.0, None)
    """
    try:
        told = tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except FileNotFoundError:
        raise ArgumentError(f"There is no file {path}.") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        words = str(error) if isinstance(error, tomllib.TOMLDecodeError) else "it is no UTF-8 text"
        raise ArgumentError(f"{path} is no TOML: {words}.") from None
    try:
        source = source_of(told.pop("source", None), path.parent)
        if isinstance(source, Files) and "delimiter" in told:
            raise ArgumentError("Write the delimiter where the rest of the source is: [source].")
        ledger = told.pop("ledger", None)
        if not isinstance(ledger, str | None):
            raise ArgumentError(f"ledger must be the name of a file, got {shown(ledger)}.")
        questions = told.pop("publish", [])
        if not isinstance(questions, list) or not all(isinstance(one, dict) for one in questions):
            raise ArgumentError("Questions must be tables: [[publish]].")
        told["publish"] = tuple(_made(Question, one) for one in questions)
        told["groups"] = _groups(told.get("groups", {}), path.parent)
        request = _made(Request, told)
    except DpnoiseError as error:
        raise ArgumentError(f"{path}: {error}") from None
    return Signed(request, source, None if ledger is None else path.parent / ledger)


def _made(kind: Any, told: dict[str, Any]) -> Any:
    """Make a dataclass of a table of TOML, or say which of its names is wrong or missing."""
    known = [one.name for one in fields(kind)]
    for name in told:
        if name not in known:
            raise unknown("setting", name, known)
    if kind is Question and "statistics" not in told:
        raise ArgumentError("Every question must name its statistics.")
    return kind(**({"epsilon": None} | told if kind is Request else told))


def _groups(told: object, folder: Path) -> dict[str, Any]:
    if not isinstance(told, dict):
        raise ArgumentError('groups must be a table: [groups], city = ["cork", "dublin"].')
    return {
        column: groups_in_file(folder / keys["file"])
        if isinstance(keys, dict) and isinstance(keys.get("file"), str)
        else keys
        for column, keys in told.items()
    }


def groups_in_file(path: Path) -> list[str]:
    """Return the groups of a file that has one on each line; blank lines are passed over."""
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except FileNotFoundError:
        raise ArgumentError(f"There is no file {path}.") from None
    except UnicodeDecodeError:
        raise ArgumentError(f"{path} cannot be read: it is no UTF-8 text.") from None
    names = [line.strip() for line in lines if line.strip()]
    if not names:
        raise ArgumentError(f"{path} has no groups. Write one on each line.")
    return names
