"""Rows that wait to be inserted together.

With each statement the interpreter's lock is let go and fought for again, which costs a busy daemon more
than the statement does. So as many rows as possible go into one. A statement is compiled for a power of two
of them, so that there are few to compile, and what it has room for beyond the rows is left empty: an empty
row begins with a null, as no row of ours may, and is passed over.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from itertools import chain

from ductile.errors import StoreError
from ductile.store.session import Cell
from ductile.store.sqlite.statements import NAME, make_binder

#: It begins with a value that is given: with a constant, rows that are left empty would not be empty.
_INSERT = re.compile(r"(INSERT INTO (\w+) .*?)\bVALUES\s*(\(\s*:[^()]*\))(.*)", re.DOTALL)
_MOST_ROWS = 64
#: What may be large: these are weighed. The other columns are bounded, or next to nothing.
_LARGE = ("payload", "result")


class InsertBuffer:
    """Those of one query, an INSERT of one row."""

    __slots__ = (
        "_empty",
        "_head",
        "_in_order",
        "_large",
        "_row",
        "_statements",
        "_tail",
        "_waiting",
        "table",
        "weight",
    )

    def __init__(self, sql: str) -> None:
        found = _INSERT.fullmatch(sql)
        if found is None:
            raise StoreError(f"this inserts no row: {sql}")
        self._head, self.table, row, self._tail = found.groups()
        names = tuple(NAME.findall(row))
        self._row = NAME.sub("?", row)
        self._empty: tuple[Cell, ...] = (None,) * len(names)
        self._in_order = make_binder(names)
        self._large = next((names.index(name) for name in _LARGE if name in names), None)
        self._statements: dict[int, str] = {}
        self._waiting: list[tuple[Cell, ...]] = []
        #: Characters in the large column of those that wait.
        self.weight = 0

    def add(self, values: Mapping[str, Cell]) -> int:
        """How much it weighs."""
        row = self._in_order(values)
        if row[0] is None:
            raise StoreError(f"a row for {self.table} begins with a null")
        self._waiting.append(row)
        if self._large is None or (text := row[self._large]) is None:
            return 0
        self.weight += len(text)
        return len(text)

    def discard(self) -> None:
        self._waiting, self.weight = [], 0

    def take(self) -> Iterator[tuple[str, tuple[Cell, ...]]]:
        """Statements with their values."""
        rows = self._waiting
        self.discard()
        while rows:
            now, rows = rows[:_MOST_ROWS], rows[_MOST_ROWS:]
            room = 1 << (len(now) - 1).bit_length()
            now += [self._empty] * (room - len(now))
            yield self._statement(room), tuple(chain.from_iterable(now))

    def _statement(self, room: int) -> str:
        if room not in self._statements:
            rows = ", ".join([self._row] * room)
            # `column1` is what SQLite calls the first of a row of values.
            chosen = f"SELECT * FROM (VALUES {rows}) WHERE column1 IS NOT NULL"  # noqa: S608 - our own query
            self._statements[room] = f"{self._head}{chosen}{self._tail}"
        return self._statements[room]
