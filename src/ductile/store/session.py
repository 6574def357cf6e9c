"""The session of a verb: named queries inside one transaction, with its instant and its random numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from random import Random
from typing import Any, Protocol

from ductile.core.expressions.regex import MatchBudget
from ductile.store.notifier import Change

SqlValue = Any  # a database column's value; verbs convert it where they read it


class Session(Protocol):
    """One transaction, which the adapter begins and commits.

    It may be rolled back and run again before that.
    """

    @property
    def now(self) -> datetime:
        """The clock, for deciding what is due. It may go back."""

    @property
    def timestamp(self) -> str:
        """The instant to store, as text. It never goes back."""

    @property
    def rng(self) -> Random: ...

    @property
    def regex_budget(self) -> MatchBudget:
        """The computing time left for regular expressions in the conditions of this verb."""

    def fetch_one(self, query: str, /, **values: SqlValue) -> tuple[SqlValue, ...] | None:
        """Return the first row of a named query, or None."""

    def value(self, query: str, /, **values: SqlValue) -> SqlValue:
        """Return the first column of the first row of a named query, or None."""

    def fetch_all(self, query: str, /, **values: SqlValue) -> Sequence[tuple[SqlValue, ...]]:
        """Return every row of a named query."""

    def insert(self, query: str, /, **values: SqlValue) -> int | None:
        """Insert one row. Returns its number, or None if a conflict prevented the insert."""

    def execute(self, query: str, /, **values: SqlValue) -> None:
        """Run a named query that returns no rows."""

    def update_one(self, query: str, /, **values: SqlValue) -> None:
        """Update exactly one row. Raises `ContendedError` if the query updates none or several."""

    def next_seq(self, max_seq_query: str, /) -> int:
        """Return the next number of a table; the query returns the highest number in use."""

    def insert_buffered(self, query: str, values: Mapping[str, SqlValue], /) -> None:
        """Insert one row before the next query that reads its table, and at the latest before the commit."""

    def publish(self, change: Change, /) -> None:
        """Publish a change to subscribers after the commit."""
