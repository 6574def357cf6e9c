"""When a submission is a duplicate of a job that is already there."""

from __future__ import annotations

from datetime import datetime, timedelta
from enum import StrEnum

from ductile.struct import Value

#: Characters of a key. It names something, and comes back with every job that is listed.
LONGEST_KEY = 1024


class KeyNamespace(StrEnum):
    """The namespaces of keys as they are stored. Keys of different ones never meet, whatever their text.

    Explicit keys (of callers, commands, events and routes) are one namespace. Namespaces are internal:
    plugins, logs, the ledger and answers have a key as it was given (`given_key`).
    """

    EXPLICIT = "key"
    IDEMPOTENCY = "idem"
    DELIVERY = "delivery"


#: Those whose keys belong to somebody: a token, an endpoint.
_OWNED_PREFIXES = (f"{KeyNamespace.IDEMPOTENCY}:", f"{KeyNamespace.DELIVERY}:")
#: Before schema version 3 the keys of events were a namespace of their own; a few may be left of it.
_LEGACY_EVENT_PREFIX = "event:"


class KeyMatch(Value):
    """A job with the same plugin, command and key."""

    job_id: str
    #: When it succeeded; None while it is queued or running.
    succeeded_at: datetime | None


def normalise_key(key: str | None) -> str | None:
    """Keys are trimmed, and a blank one is none."""
    return (key.strip() or None) if key is not None else None


def namespaced_key(door: KeyNamespace, key: str | None, *, owner: str | None = None) -> str | None:
    """The key as it is stored: its namespace, in some whose it is (token, endpoint), and its text."""
    text = normalise_key(key)
    if text is None:
        return None
    if owner is None:
        return f"{door}:{text}"
    # Where the owner ends must not depend on what it is called.
    return f"{door}:{owner.replace('%', '%25').replace(':', '%3A')}:{text}"


def bare_key(stored: str | None) -> str | None:
    """The key as it was given, without its namespace."""
    if stored is None:
        return None
    if stored.startswith(_OWNED_PREFIXES):
        return stored.split(":", 2)[-1]
    return stored.removeprefix(
        _LEGACY_EVENT_PREFIX if stored.startswith(_LEGACY_EVENT_PREFIX) else f"{KeyNamespace.EXPLICIT}:"
    )


def find_duplicate(
    matches: tuple[KeyMatch, ...], *, window: timedelta, override: bool, now: datetime
) -> KeyMatch | None:
    """The match that makes a submission a duplicate, or None if it may be enqueued.

    A success counts while it lies within the window. A queued or running match counts only with a
    per-call override: otherwise a second job with the key is accepted and waits its turn.
    """
    for match in matches:
        if match.succeeded_at is None:
            if override:
                return match
        elif holds_key(match.succeeded_at, window=window, now=now):
            return match
    return None


def holds_key(ended_at: datetime | None, *, window: timedelta, now: datetime) -> bool:
    """Whether a job that ended then still has its key; one that has not ended has."""
    return ended_at is None or now - ended_at <= window
