"""What a verb works with: named queries inside one transaction, an instant, and chance."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from random import Random
from typing import Any, Protocol

from ductile.core.expressions.regex import MatchBudget

Cell = Any  # what a database column holds: the verbs turn it into values where they read it


class Session(Protocol):
    """One transaction as the verbs see it. The adapter begins and commits it."""

    @property
    def now(self) -> datetime:
        """The clock, for what is due: it may go back."""
        ...

    @property
    def stamp(self) -> str:
        """The instant that is written down, as text: it never goes back."""
        ...

    @property
    def rng(self) -> Random: ...

    @property
    def budget(self) -> MatchBudget:
        """The computing time for the conditions of this unit of work."""
        ...

    def one(self, query: str, /, **values: Cell) -> tuple[Cell, ...] | None:
        """The first row of a named query, or None."""
        ...

    def all(self, query: str, /, **values: Cell) -> Sequence[tuple[Cell, ...]]:
        """Every row of a named query."""
        ...

    def insert(self, query: str, /, **values: Cell) -> int | None:
        """Insert one row; its number, or None if a conflict kept it out."""
        ...

    def run(self, query: str, /, **values: Cell) -> None:
        """A named query that gives no rows."""
        ...

    def number(self, highest: str, /) -> int:
        """The next number of a table whose rows are all numbered so; `highest` tells the highest so far."""
        ...

    def append(self, query: str, values: Mapping[str, Cell], /) -> None:
        """Insert one row, some time before anything looks at its table or the transaction is committed."""
        ...

    def outbox_grew(self) -> None:
        """A delivery was made due: whoever watches the outbox is told when this is committed."""
        ...

    def change(self, query: str, /, **values: Cell) -> None:
        """Change exactly one row; that there is none to change is a defect, and undoes the transaction."""
        ...
