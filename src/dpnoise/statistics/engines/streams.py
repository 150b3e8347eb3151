"""What DuckDB takes for a table of Arrow: each scan opens it anew."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Stream:
    """Batches of rows, to be read as often as needed."""

    reader: Callable[[], Any]

    def __arrow_c_stream__(self, schema: object = None) -> object:
        return self.reader().__arrow_c_stream__(schema)
