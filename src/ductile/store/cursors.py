"""Cursors: opaque to callers, a sequence number to us."""

from __future__ import annotations

import base64
import binascii

from ductile.errors import RefusedError

_MARK = b"c1:"
_LONGEST = 18  # digits: what fits into a column of 64 bits


def encode_cursor(seq: int) -> str:
    return base64.urlsafe_b64encode(_MARK + str(seq).encode()).decode().rstrip("=")


def decode_cursor(cursor: str | None) -> int | None:
    """The sequence number in a cursor; raises `RefusedError` for anything we did not make."""
    if cursor is None:
        return None
    try:
        raw = base64.b64decode(cursor.encode() + b"=" * (-len(cursor) % 4), altchars=b"-_", validate=True)
    except (ValueError, binascii.Error):
        raw = b""
    number = raw.removeprefix(_MARK)
    if not raw.startswith(_MARK) or not number.isdigit() or len(number) > _LONGEST:
        raise RefusedError("invalid cursor", hint="Pass next_cursor of the previous page, unchanged.")
    return int(number)
