"""The session of a verb: named queries inside one transaction, with its instant and its random numbers."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import cache
from random import Random
from typing import Any, Protocol

from ductile.core.expressions.regex import MatchBudget
from ductile.store.notifier import Change

SqlValue = Any  # a database column's value; verbs convert it where they read it

#: The tables that `insert_buffered` writes to.
_BUFFERED = re.compile(r"\b(job_queue|job_log|job_transitions|ledger|events)\b")


@cache
def buffered_tables_in(sql: str) -> frozenset[str]:
    """Return the tables named by a query that may have buffered rows, which have to be written first."""
    return frozenset(_BUFFERED.findall(sql))


class Session(Protocol):
    """One transaction, which the adapter begins and commits.

    It may be rolled back and run again before that.
    """

    @property
    def now(self) -> datetime:
        """The time by the clock, for deciding what is due. It may go back."""

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

    def fetch_value(self, query: str, /, **values: SqlValue) -> SqlValue:
        """Return the first column of the first row of a named query, or None."""

    def fetch_all(self, query: str, /, **values: SqlValue) -> Sequence[tuple[SqlValue, ...]]:
        """Return every row of a named query."""

    def fetch_each(
        self, calls: Sequence[tuple[str, Mapping[str, SqlValue]]], /
    ) -> Sequence[Sequence[tuple[SqlValue, ...]]]:
        """Return the rows of each of several named queries, in one round trip if the database is a server."""

    def insert(self, query: str, /, **values: SqlValue) -> bool:
        """Insert one row. Returns False if a conflict prevented it."""

    def execute(self, query: str, /, **values: SqlValue) -> None:
        """Run a named query that returns no rows."""

    def update_one(self, query: str, /, **values: SqlValue) -> None:
        """Update exactly one row. Raises `ContendedError` if the query updates none or several."""

    def claim_jobs(self, numbers: Mapping[int, int], /, **values: SqlValue) -> Sequence[tuple[SqlValue, ...]]:
        """Run the query `claim_job` for each job, whose `seq` is mapped to its `claim_seq`, in this order.

        Returns the rows of those that were claimed.
        """

    def settle_job(self, **values: SqlValue) -> bool | None:
        """Run the query `settle_job`, at the latest before the commit. Returns whether jobs wait for it.

        Returns None, and changes nothing, if the job has changed since its end was decided.
        """

    def next_seq(self, max_seq_query: str, /) -> int:
        """Return the next number of a table; the query returns the highest number in use."""

    def insert_buffered(self, query: str, values: Mapping[str, SqlValue], /) -> None:
        """Insert one row before the next query that reads its table, and at the latest before the commit."""

    def publish(self, change: Change, /) -> None:
        """Publish a change to subscribers after the commit."""
