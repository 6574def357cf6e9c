"""Rows that are inserted together by one statement.

Each statement releases and takes the interpreter's lock, which costs a busy daemon more than the statement
itself. Statements are compiled for 2^n rows, so that there are few of them; unused rows are all NULL and
filtered out, which requires that the first column of a real row is never NULL.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from itertools import chain
from operator import itemgetter

from ductile.errors import StoreError
from ductile.store.session import Cell

#: The first value must be a parameter: with a constant, an unused row would not begin with NULL.
_INSERT = re.compile(r"(INSERT INTO (\w+) .*?)\bVALUES\s*(\(\s*:[^()]*\))(.*)", re.DOTALL)
#: The tables that `insert_later` writes to.
_BUFFERED = re.compile(r"\b(job_queue|job_log|job_transitions|ledger|events)\b")
_PARAMETER = re.compile(r":([a-z_]+)")
_MAX_ROWS = 64
#: The columns that may be large. The size of the others is bounded or negligible.
_LARGE = ("payload", "result", "stderr")


@cache
def buffered_tables_in(sql: str) -> frozenset[str]:
    """Return the tables named by a query that may have buffered rows, which have to be written first."""
    return frozenset(_BUFFERED.findall(sql))


class InsertBuffer:
    """The waiting rows of one query, which inserts one row."""

    __slots__ = (
        "_bind",
        "_head",
        "_large",
        "_row",
        "_rows",
        "_statements",
        "_tail",
        "_unused",
        "size",
        "table",
    )

    def __init__(self, sql: str) -> None:
        found = _INSERT.fullmatch(sql)
        if found is None:
            raise StoreError(f"not an INSERT of one row: {sql}")
        self._head, self.table, row, self._tail = found.groups()
        names = tuple(_PARAMETER.findall(row))
        self._row = _PARAMETER.sub("?", row)
        self._unused: tuple[Cell, ...] = (None,) * len(names)
        self._bind: Callable[[Mapping[str, Cell]], tuple[Cell, ...]] = itemgetter(*names)
        self._large = tuple(names.index(name) for name in _LARGE if name in names)
        self._statements: dict[int, str] = {}
        self._rows: list[tuple[Cell, ...]] = []
        #: Characters in the large columns of the waiting rows.
        self.size = 0

    def add(self, values: Mapping[str, Cell]) -> int:
        """Add a row. Returns the characters in its large columns."""
        row = self._bind(values)
        if row[0] is None:
            raise StoreError(f"the first column of a row for {self.table} is NULL")
        self._rows.append(row)
        size = 0
        for column in self._large:
            if (text := row[column]) is not None:
                size += len(text)
        self.size += size
        return size

    def discard(self) -> None:
        self._rows, self.size = [], 0

    def take(self) -> Iterator[tuple[str, tuple[Cell, ...]]]:
        """Empty the buffer. Yields statements with their values."""
        waiting = self._rows
        self.discard()
        while waiting:
            rows, waiting = waiting[:_MAX_ROWS], waiting[_MAX_ROWS:]
            capacity = 1 << (len(rows) - 1).bit_length()
            rows += [self._unused] * (capacity - len(rows))
            yield self._statement(capacity), tuple(chain.from_iterable(rows))

    def _statement(self, capacity: int) -> str:
        if capacity not in self._statements:
            rows = ", ".join([self._row] * capacity)
            # SQLite calls the first column of a list of values `column1`.
            used = f"SELECT * FROM (VALUES {rows}) WHERE column1 IS NOT NULL"  # noqa: S608 - our own query
            self._statements[capacity] = f"{self._head}{used}{self._tail}"
        return self._statements[capacity]
