"""Rows that wait to be inserted together.

With each statement the interpreter's lock is let go and fought for again, which costs a busy daemon more
than the statement does. So as many rows as possible go into one.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from itertools import chain

from ductile.errors import StoreError
from ductile.store.session import Cell
from ductile.store.sqlite.places import NAME, picker

_INSERT = re.compile(r"(INSERT INTO (\w+) .*?\bVALUES\s*)(\([^()]*\))(.*)", re.DOTALL)
_MOST_ROWS = 64


class Rows:
    """Those of one query, an INSERT of one row."""

    __slots__ = ("_head", "_in_order", "_row", "_statements", "_tail", "_waiting", "table")

    def __init__(self, sql: str) -> None:
        found = _INSERT.fullmatch(sql)
        if found is None:
            raise StoreError(f"this inserts no row: {sql}")
        self._head, self.table, row, self._tail = found.groups()
        self._row = NAME.sub("?", row)
        self._in_order = picker(tuple(NAME.findall(row)))
        self._statements: dict[int, str] = {}
        self._waiting: list[tuple[Cell, ...]] = []

    def add(self, values: Mapping[str, Cell]) -> None:
        self._waiting.append(self._in_order(values))

    def discard(self) -> None:
        self._waiting = []

    def take(self) -> Iterator[tuple[str, tuple[Cell, ...]]]:
        """Statements with their values. By powers of two, so that there are few to compile."""
        rows, self._waiting = self._waiting, []
        while rows:
            count = min(1 << (len(rows).bit_length() - 1), _MOST_ROWS)
            yield self._statement(count), tuple(chain.from_iterable(rows[:count]))
            rows = rows[count:]

    def _statement(self, count: int) -> str:
        if count not in self._statements:
            self._statements[count] = f"{self._head}{', '.join([self._row] * count)}{self._tail}"
        return self._statements[count]
