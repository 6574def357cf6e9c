"""Ids: UUIDv7, which sort roughly by creation, and trace ids."""

from __future__ import annotations

from datetime import datetime, timedelta
from functools import lru_cache
from random import Random

from ductile.core.timestamps import EPOCH

_MILLISECOND = timedelta(milliseconds=1)
#: The digit of a UUID that has its variant, two fixed bits and two random ones, for each random digit.
_VARIANT = {digit: "89ab"[number % 4] for number, digit in enumerate("0123456789abcdef")}


def make_id(now: datetime, rng: Random) -> str:
    """Return a UUIDv7: 48 bits of Unix milliseconds, then 74 random bits (RFC 9562)."""
    digits = rng.randbytes(10).hex()
    time_part = _time_part((now - EPOCH) // _MILLISECOND)
    return f"{time_part}{digits[:3]}-{_VARIANT[digits[3]]}{digits[4:7]}-{digits[8:]}"


@lru_cache(maxsize=16)
def _time_part(milliseconds: int) -> str:
    """Return the time part. Cached, because many ids are made within a millisecond."""
    digits = milliseconds.to_bytes(6, "big").hex()
    return f"{digits[:8]}-{digits[8:]}-7"


def make_trace_id(rng: Random) -> str:
    """Return a trace id of W3C Trace Context."""
    return rng.randbytes(16).hex()
