"""Which state webhooks a URL is sent, and when they say that they happened (docs/reference/webhooks.md)."""

from __future__ import annotations

from datetime import timedelta
from typing import TypeAlias

from ductile.core.instants import format_instant, parse_instant
from ductile.core.settlement import CallbackState

#: URLs that one job is told to: each event is stored once for each of them.
MAX_SUBSCRIPTIONS = 100

#: The chosen states in the order of `CallbackState`; None means all of them.
Choice: TypeAlias = tuple[str, ...] | None

_STEP = timedelta(microseconds=1)


def wants(chosen: Choice, state: str) -> bool:
    """Return whether a subscription that chose these states is sent this one."""
    return chosen is None or state in chosen


def merge_choices(one: Choice, other: Choice) -> Choice:
    """Return the states of two subscriptions of the same URL: what either of them chose."""
    if one is None or other is None:
        return None
    return tuple(state for state in CallbackState if state in one or state in other)


def event_timestamp(stamp: str, latest: str | None) -> str:
    """Return the instant of an event: `stamp`, or just after the job's latest event if that is not earlier.

    Several events of a job can be written in one transaction, which has a single instant.
    """
    if latest is None or stamp > latest:
        return stamp
    return format_instant(parse_instant(latest) + _STEP)
