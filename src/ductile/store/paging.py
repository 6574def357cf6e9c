"""Pages of rows, newest first, and their cursors: opaque to callers, a sequence number to the store."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Mapping
from typing import TypeVar

from ductile.errors import RefusedError
from ductile.store.model.records import LARGEST_PAGE, Page
from ductile.store.session import Session, SqlValue

Row = TypeVar("Row")

_CURSOR_PREFIX = b"c1:"
_MAX_DIGITS = 18  # what fits into a column of 64 bits
_NEWEST = (1 << 63) - 1


def encode_cursor(seq: int) -> str:
    return base64.urlsafe_b64encode(_CURSOR_PREFIX + str(seq).encode()).decode().rstrip("=")


def decode_cursor(cursor: str | None) -> int | None:
    """Return the sequence number in a cursor. Raises `RefusedError` for text that is not one of ours."""
    if cursor is None:
        return None
    try:
        raw = base64.b64decode(cursor.encode() + b"=" * (-len(cursor) % 4), altchars=b"-_", validate=True)
    except (ValueError, binascii.Error):
        raw = b""
    number = raw.removeprefix(_CURSOR_PREFIX)
    if not raw.startswith(_CURSOR_PREFIX) or not number.isdigit() or len(number) > _MAX_DIGITS:
        raise RefusedError("invalid cursor", hint="Pass next_cursor of the previous page, unchanged.")
    return int(number)


def read_page(
    session: Session,
    query: str,
    values: Mapping[str, SqlValue],
    read: Callable[[tuple[SqlValue, ...]], Row],
    *,
    limit: int,
    cursor: str | None,
    seq_column: int = 0,
) -> Page[Row]:
    """Return one page of a query. `seq_column` is the column of the sequence number."""
    size = max(1, min(limit, LARGEST_PAGE))
    before = decode_cursor(cursor)
    # One row more than requested tells whether there is a next page.
    rows = session.all(query, **values, before=_NEWEST if before is None else before, limit=size + 1)
    next_cursor = encode_cursor(rows[size - 1][seq_column]) if len(rows) > size else None
    return Page(rows=tuple(read(row) for row in rows[:size]), next_cursor=next_cursor)
