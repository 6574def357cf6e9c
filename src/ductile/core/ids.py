"""Identifiers: UUIDv7, so that they sort roughly by creation and can be made anywhere; and ids of traces."""

from __future__ import annotations

from datetime import datetime, timedelta
from random import Random

from ductile.core.instants import EPOCH

_MILLISECOND = timedelta(milliseconds=1)
#: Two bits are given and two are chance: a digit of chance, as it is written there.
_VARIANT = {digit: "89ab"[number % 4] for number, digit in enumerate("0123456789abcdef")}


def make_id(now: datetime, dice: Random) -> str:
    """Make a UUIDv7: 48 bits of Unix milliseconds, then 74 bits of chance (RFC 9562)."""
    time = ((now - EPOCH) // _MILLISECOND).to_bytes(6, "big")
    digits = (time + dice.randbytes(10)).hex()
    return f"{digits[:8]}-{digits[8:12]}-7{digits[13:16]}-{_VARIANT[digits[16]]}{digits[17:20]}-{digits[20:]}"


def make_trace_id(dice: Random) -> str:
    """Of a new trace, as W3C Trace Context has it."""
    return dice.randbytes(16).hex()
