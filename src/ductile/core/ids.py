"""Identifiers: UUIDv7, so that they sort roughly by creation and can be made anywhere; and ids of traces."""

from __future__ import annotations

from datetime import datetime, timedelta
from functools import lru_cache
from random import Random

from ductile.core.timestamps import EPOCH

_MILLISECOND = timedelta(milliseconds=1)
#: Two bits are given and two are chance: a digit of chance, as it is written there.
_VARIANT = {digit: "89ab"[number % 4] for number, digit in enumerate("0123456789abcdef")}


def make_id(now: datetime, rng: Random) -> str:
    """Make a UUIDv7: 48 bits of Unix milliseconds, then 74 bits of chance (RFC 9562)."""
    chance = rng.randbytes(10).hex()
    begin = _begin((now - EPOCH) // _MILLISECOND)
    return f"{begin}{chance[:3]}-{_VARIANT[chance[3]]}{chance[4:7]}-{chance[8:]}"


@lru_cache(maxsize=16)
def _begin(milliseconds: int) -> str:
    """The same for all that are made within a millisecond: in a rush many are."""
    digits = milliseconds.to_bytes(6, "big").hex()
    return f"{digits[:8]}-{digits[8:]}-7"


def make_trace_id(rng: Random) -> str:
    """Of a new trace, as W3C Trace Context has it."""
    return rng.randbytes(16).hex()
