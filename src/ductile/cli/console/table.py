"""Fit a table or a text to the width of a terminal. Help needs the word wrap, so nothing slow is imported.

Ids and times are shortened first; then columns without a value and optional columns are left out; then the
widest columns are cut. A last column of whole sentences is wrapped instead.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

GAP = "  "
#: Optional columns are left out before another column gets narrower than this.
_MIN_COLUMN = 16
#: The same for a column that is wrapped.
_MIN_WRAPPED = 30
_ID = r"\b[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[0-9a-f]{4}-([0-9a-f]{12})\b"
_TIME = r"\b(\d{4}-\d\d-\d\d) (\d\d:\d\d)(:\d\d)\b"


class Table(NamedTuple):
    """Headers and rows of text, before they are aligned."""

    headers: Sequence[str]
    rows: Sequence[Sequence[str]]

    @property
    def widths(self) -> list[int]:
        columns = range(len(self.headers))
        return [max(len(row[column]) for row in (self.headers, *self.rows)) for column in columns]

    def without_column(self, header: str) -> Table:
        column = list(self.headers).index(header)
        headers, *rows = ([*row[:column], *row[column + 1 :]] for row in (self.headers, *self.rows))
        return Table(headers, rows)


def fit_table(
    table: Table, width: int, optional: Sequence[str], today: str, *, wrap_last: bool = False
) -> Table:
    """Return the table in lines of at most `width`, as far as possible. `optional` columns are left out in
    this order. With `wrap_last` the last column is wrapped into further rows.
    """
    if _line_length(table.widths) <= width:
        return table
    table = Table(table.headers, [[_shorten(cell, today) for cell in row] for row in table.rows])
    # The column to wrap stays even without a value: otherwise another column would be wrapped in its place.
    wrapped_header = table.headers[-1] if wrap_last else None
    for header, *cells in zip(table.headers, *table.rows, strict=True):
        is_empty = header != wrapped_header and all(cell in ("", "-") for cell in cells)
        if is_empty and _line_length(table.widths) > width:
            table = table.without_column(header)
    for position, header in enumerate(optional, start=1):
        if header not in table.headers:
            continue
        *others, last = (max(len(text), _MIN_COLUMN) for text in table.headers)
        # The last column has the reasons. It gets narrow only to keep the most important optional column.
        minimum_widths = [*others, max(last, _MIN_WRAPPED) if wrap_last or position < len(optional) else last]
        if _line_length([*map(min, minimum_widths, table.widths)]) <= width:
            break
        table = table.without_column(header)
    if wrap_last:
        return _wrap_last(table, width)
    widths = _cut(table.widths, table.headers, width)
    return Table(table.headers, [_cut_row(row, widths) for row in table.rows])


def _wrap_last(table: Table, width: int) -> Table:
    """Wrap the last column into the room that the others leave, but not below its minimum width."""
    *others, last = table.widths
    room = width - _line_length([*others, 0])
    *widths, last_width = _cut([*others, min(last, max(room, _MIN_WRAPPED))], table.headers, width)
    rows: list[list[str]] = []
    for *cells, text in table.rows:
        first, *more = wrap(text, last_width)
        rows.append([*_cut_row(cells, widths), first])
        rows += [[*("" for _ in widths), line] for line in more]
    return Table(table.headers, rows)


def _line_length(widths: Sequence[int]) -> int:
    return sum(widths) + len(GAP) * (len(widths) - 1)


def _shorten(cell: str, today: str) -> str:
    """Return the cell with shorter times, and ids cut to their end, in which jobs of one minute differ."""
    import re

    def shorten_time(match: re.Match[str]) -> str:
        day, minute, seconds = match.groups()
        return f"{minute}{seconds}" if day == today else f"{day[5:]} {minute}"

    return re.sub(_TIME, shorten_time, re.sub(_ID, r"\1", cell))


def _cut(widths: list[int], headers: Sequence[str], width: int) -> list[int]:
    """Narrow the widest column until all fit, but none below its header."""
    minimum_widths = [len(header) for header in headers]
    while _line_length(widths) > width:
        shrinkable = [column for column, size in enumerate(widths) if size > minimum_widths[column]]
        if not shrinkable:
            break
        widths[max(shrinkable, key=lambda column: widths[column])] -= 1
    return widths


def _cut_row(row: Sequence[str], widths: Sequence[int]) -> list[str]:
    return [
        cell if len(cell) <= width else f"{cell[: max(width - 1, 0)]}…"
        for cell, width in zip(row, widths, strict=True)
    ]


def wrap(text: str, width: int) -> list[str]:
    """Return the text in lines of at most `width`, broken at spaces. A longer word is broken as well."""
    return _fill(text.split(), width)


def _fill(words: Sequence[str], width: int) -> list[str]:
    """Return the words in lines of at most `width`. A word that contains spaces is never broken."""
    lines = [""]
    for word in words:
        room = width - len(lines[-1]) - 1
        if lines[-1] and len(word) <= room:
            lines[-1] += f" {word}"
            continue
        size = len(word) if " " in word else width
        pieces = [word[start : start + size] for start in range(0, len(word), size)]
        lines = [*lines, *pieces] if lines[-1] else pieces
    return lines


def wrap_hanging(left: str, text: str | Sequence[str], width: int, *, indent: int = 0) -> list[str]:
    """Return lines with the text, or its words, beside `left`.

    Further lines begin below the first word, or `indent` columns further.
    """
    words = text.split() if isinstance(text, str) else text
    first, *others = _fill(words, width - len(left) - indent)
    return [f"{left}{first}".rstrip(), *(" " * (len(left) + indent) + line for line in others)]
