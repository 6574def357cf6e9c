"""Identifiers: UUIDv7, so that they sort roughly by creation and can be made anywhere."""

from __future__ import annotations

from datetime import datetime, timedelta
from random import Random

from ductile.core.instants import EPOCH

_MILLISECOND = timedelta(milliseconds=1)


def make_id(now: datetime, dice: Random) -> str:
    """Make a UUIDv7: 48 bits of Unix milliseconds, then 74 bits of chance (RFC 9562)."""
    milliseconds = (now - EPOCH) // _MILLISECOND
    chance = dice.getrandbits(74)
    return (
        f"{milliseconds >> 16:08x}-{milliseconds & 0xFFFF:04x}"
        f"-7{chance >> 62:03x}-{0x8000 | (chance >> 48) & 0x3FFF:04x}-{chance & 0xFFFFFFFFFFFF:012x}"
    )
