"""Paying for a release from a ledger: once, before the first noise is drawn."""

from collections.abc import Mapping
from contextlib import suppress
from os import PathLike
from typing import Any

from dpnoise.core.errors import BudgetError
from dpnoise.statistics.ledger import Ledger, Receipt, open_ledger
from dpnoise.statistics.requests import Request


class Payment:
    """What a request pays, from no ledger or from one that has enough: else it is an error."""

    def __init__(self, ledger: Ledger | str | PathLike[str] | None, request: Request) -> None:
        path = ledger.path if isinstance(ledger, Ledger) else ledger
        self._ledger = None if path is None else open_ledger(path)
        self._request = request
        self._receipt: Receipt | None = None
        self.left_after = ""
        if self._ledger is not None:
            amount = self._ledger.check(request.cost(), **self._protects)
            self.left_after = self._ledger.left_in_words(amount)

    @property
    def _protects(self) -> dict[str, Any]:
        return {"person": self._request.person or (), "neighbours": self._request.neighbours}

    def make(self) -> None:
        """Pay, if it was not done: when this returns, the disk has it."""
        if self._ledger is not None and self._receipt is None:
            request = self._request
            self._receipt = self._ledger.spend(
                request.cost(), request.described(), **self._protects
            )

    @property
    def told(self) -> Mapping[str, Any] | None:
        """What a record says of it: the ledger's name and head, its total and what is left."""
        if self._receipt is None:
            return None
        return {name: getattr(self._receipt, name) for name in ("name", "total", "left", "head")}

    def keep(self, record: Mapping[str, Any]) -> None:
        """Note the record that was paid for. What cannot be noted is lost, and nothing else."""
        if self._ledger is not None and self._receipt is not None:
            with suppress(BudgetError, OSError):
                self._ledger.keep_record(self._receipt, record)
