"""Identifiers: UUIDv7, so that they sort roughly by creation and can be made anywhere."""

from __future__ import annotations

from datetime import datetime, timedelta
from random import Random

from ductile.core.instants import EPOCH

_VERSION_7 = 0x7 << 76
_VARIANT = 0b10 << 62
_MILLISECOND = timedelta(milliseconds=1)


def make_id(now: datetime, dice: Random) -> str:
    """Make a UUIDv7: 48 bits of Unix milliseconds, then 74 bits of chance (RFC 9562)."""
    milliseconds = (now - EPOCH) // _MILLISECOND
    chance = dice.getrandbits(74)
    high, low = chance >> 62, chance & ((1 << 62) - 1)
    text = f"{(milliseconds << 80) | _VERSION_7 | (high << 64) | _VARIANT | low:032x}"
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"
