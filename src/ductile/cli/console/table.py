"""Making a table fit a terminal: what matters least gives way first, and no column falls off the edge.

Ids and instants are said shorter; then columns that a table can spare are left out; then the widest are cut.
A last column of prose is not cut: it goes on below itself.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

from ductile.cli.console.wrap import wrap

if TYPE_CHECKING:
    from collections.abc import Sequence

GAP = "  "
#: A column that is not cut shorter than this can still be read.
_LEGIBLE = 20
#: Prose in lines that are shorter than this is tiring.
_FLUENT = 30
_ID = re.compile(r"\b[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[0-9a-f]{4}-([0-9a-f]{12})\b")
_INSTANT = re.compile(r"\b(\d{4}-\d\d-\d\d)T(\d\d:\d\d)(:\d\d)Z")


class Table(NamedTuple):
    headers: Sequence[str]
    rows: Sequence[Sequence[str]]

    @property
    def widths(self) -> list[int]:
        columns = range(len(self.headers))
        return [max(len(row[column]) for row in (self.headers, *self.rows)) for column in columns]

    def without(self, header: str) -> Table:
        gone = list(self.headers).index(header)
        headers, *rows = ([*row[:gone], *row[gone + 1 :]] for row in (self.headers, *self.rows))
        return Table(headers, rows)


def fit_table(table: Table, width: int, spare: Sequence[str], today: str, *, prose: bool = False) -> Table:
    """The table in lines no longer than `width`, as far as that can be. `spare` may go, in this order.
    If the last column is `prose`, what has no room in it goes on in further rows.
    """
    if _length(table.widths) <= width:
        return table
    table = Table(table.headers, [[_shorter(cell, today) for cell in row] for row in table.rows])
    for header in spare:
        if _length(_legible(table, prose=prose)) <= width:
            break
        table = table.without(header)
    if prose:
        return _folded(table, width)
    widths = _cut(table.widths, table.headers, width)
    return Table(table.headers, [_cut_row(row, widths) for row in table.rows])


def _folded(table: Table, width: int) -> Table:
    """The prose gets what the other columns leave, and takes from them what it needs to be read."""
    *others, last = table.widths
    left = width - _length([*others, 0])
    *kept, room = _cut([*others, min(last, max(left, _FLUENT))], table.headers, width)
    rows: list[list[str]] = []
    for *cells, text in table.rows:
        first, *more = wrap(text, room)
        rows.append([*_cut_row(cells, kept), first])
        rows += [[*("" for _ in kept), line] for line in more]
    return Table(table.headers, rows)


def _length(widths: Sequence[int]) -> int:
    return sum(widths) + len(GAP) * (len(widths) - 1)


def _legible(table: Table, *, prose: bool) -> list[int]:
    """How narrow each column may become and still be read."""
    *others, last = (max(len(header), _LEGIBLE) for header in table.headers)
    least = [*others, max(last, _FLUENT) if prose else last]
    return [min(each, width) for each, width in zip(least, table.widths, strict=True)]


def _shorter(cell: str, today: str) -> str:
    """An id by its end, which tells jobs of a minute apart; an instant without a date that is known."""
    return _INSTANT.sub(lambda found: _shorter_instant(found, today), _ID.sub(r"\1", cell))


def _shorter_instant(found: re.Match[str], today: str) -> str:
    day, minute, seconds = found.groups()
    return f"{minute}{seconds}Z" if day == today else f"{day[5:]} {minute}Z"


def _cut(widths: list[int], headers: Sequence[str], width: int) -> list[int]:
    """The widest column gives way until all fit, down to its header."""
    least = [len(header) for header in headers]
    while _length(widths) > width:
        open_ones = [column for column, each in enumerate(widths) if each > least[column]]
        if not open_ones:
            break
        widths[max(open_ones, key=lambda column: widths[column])] -= 1
    return widths


def _cut_row(row: Sequence[str], widths: Sequence[int]) -> list[str]:
    return [
        cell if len(cell) <= width else f"{cell[: max(width - 1, 0)]}…"
        for cell, width in zip(row, widths, strict=True)
    ]
