"""The session of a verb: named queries inside one transaction, with its instant and its random numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from random import Random
from typing import Any, Protocol

from ductile.core.expressions.regex import MatchBudget
from ductile.store.notifier import Change

Cell = Any  # a database column's value; verbs convert it where they read it


class Session(Protocol):
    """One transaction, which the adapter begins and commits.

    It may be rolled back and run again before that.
    """

    @property
    def now(self) -> datetime:
        """The clock, for deciding what is due. It may go back."""
        ...

    @property
    def timestamp(self) -> str:
        """The instant to store, as text. It never goes back."""
        ...

    @property
    def rng(self) -> Random: ...

    @property
    def budget(self) -> MatchBudget:
        """The computing time left for the conditions of this verb."""
        ...

    def one(self, query: str, /, **values: Cell) -> tuple[Cell, ...] | None:
        """Return the first row of a named query, or None."""
        ...

    def all(self, query: str, /, **values: Cell) -> Sequence[tuple[Cell, ...]]:
        """Return every row of a named query."""
        ...

    def insert(self, query: str, /, **values: Cell) -> int | None:
        """Insert one row. Returns its number, or None if a conflict prevented the insert."""
        ...

    def run(self, query: str, /, **values: Cell) -> None:
        """Run a named query that returns no rows."""
        ...

    def change(self, query: str, /, **values: Cell) -> None:
        """Change exactly one row. Raises `ContendedError` if there is none to change."""
        ...

    def next_seq(self, highest: str, /) -> int:
        """Return the next number of a table; the query `highest` returns the highest number in use."""
        ...

    def insert_later(self, query: str, values: Mapping[str, Cell], /) -> None:
        """Insert one row before the next query that reads its table, and at the latest before the commit."""
        ...

    def publish(self, change: Change, /) -> None:
        """Publish a change to subscribers after the commit."""
        ...
