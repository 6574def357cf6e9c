"""Changes as NOTIFY payloads: what one node has committed, for the notifiers of the others.

A payload has less than 8,000 bytes, so many changes become several payloads. Of times at which something is
due, only the earliest is sent: it wakes a loop that reads the others.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import datetime

import msgspec

from ductile.store.notifier import (
    DELIVERIES_DUE,
    JOBS_READY,
    LEDGER_APPENDED,
    SCHEDULES_CHANGED,
    CancelRequested,
    Change,
    DeadlineSet,
    DeliveriesDue,
    FailureRecorded,
    JobEnded,
    JobsReady,
    LedgerAppended,
    RetryScheduled,
    SchedulesChanged,
    SessionEnded,
)

_MAX_BYTES = 7_000
_DUE: tuple[type[RetryScheduled | DeadlineSet | FailureRecorded], ...] = (
    RetryScheduled,
    DeadlineSet,
    FailureRecorded,
)
_WITHOUT_CONTENT: tuple[Change, ...] = (JOBS_READY, SCHEDULES_CHANGED, DELIVERIES_DUE, LEDGER_APPENDED)
_TYPES: dict[str, type[Change]] = {
    kind.__name__: kind
    for kind in (
        JobsReady,
        SchedulesChanged,
        DeliveriesDue,
        LedgerAppended,
        JobEnded,
        CancelRequested,
        SessionEnded,
        *_DUE,
    )
}


class _Payload(msgspec.Struct, array_like=True):
    #: The store object that committed, which has published its changes itself.
    sender: str
    #: Each with the name of its type.
    changes: list[tuple[str, msgspec.Raw]]


def all_due(now: datetime) -> tuple[Change, ...]:
    """Return the changes after which every loop reads anew."""
    return (*_WITHOUT_CONTENT, *(due(due_at=now) for due in _DUE))


def encode_changes(sender: str, changes: Iterable[Change]) -> Iterator[str]:
    """Yield the payloads of what a commit has changed; none if no other node needs to know."""
    shared = (change for change in changes if type(change).__name__ in _TYPES)
    encoded = [msgspec.json.encode((type(change).__name__, change)) for change in _combined(shared)]
    part: list[bytes] = []
    size = 0
    for change in encoded:
        if part and size + len(change) > _MAX_BYTES:
            yield _payload(sender, part)
            part, size = [], 0
        part.append(change)
        size += len(change) + 1
    if part:
        yield _payload(sender, part)


def decode_changes(payload: str) -> tuple[str, list[Change]]:
    """Return the sender and its changes. Those that this version does not know are left out."""
    decoded = msgspec.json.decode(payload, type=_Payload)
    return decoded.sender, [
        msgspec.json.decode(content, type=_TYPES[name]) for name, content in decoded.changes if name in _TYPES
    ]


def _combined(changes: Iterable[Change]) -> Iterator[Change]:
    """Leave out repetitions, and due times that are not the earliest of their kind."""
    earliest: dict[type[Change], datetime] = {}
    seen: set[Change] = set()
    for change in changes:
        if isinstance(change, _DUE):
            known = earliest.get(type(change))
            earliest[type(change)] = change.due_at if known is None else min(known, change.due_at)
        elif change not in seen:
            seen.add(change)
            yield change
    for kind in _DUE:
        if kind in earliest:
            yield kind(due_at=earliest[kind])


def _payload(sender: str, changes: list[bytes]) -> str:
    return f'["{sender}",[{",".join(change.decode() for change in changes)}]]'
