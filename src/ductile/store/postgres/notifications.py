"""Changes as NOTIFY payloads: the changes that one node has committed, for the notifiers of the other nodes.

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
_WITH_DUE_TIME: tuple[type[RetryScheduled | DeadlineSet | FailureRecorded], ...] = (
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
        *_WITH_DUE_TIME,
    )
}


class _Payload(msgspec.Struct, array_like=True):
    #: The store object that committed, which has published its changes itself.
    sender: str
    #: The changes as JSON, each with the name of its type.
    changes: list[tuple[str, msgspec.Raw]]


def changes_that_wake_all(now: datetime) -> tuple[Change, ...]:
    """Return the changes after which every loop reads the store again."""
    return (*_WITHOUT_CONTENT, *(kind(due_at=now) for kind in _WITH_DUE_TIME))


def encode_changes(sender: str, changes: Iterable[Change]) -> Iterator[str]:
    """Yield the payloads for the changes of a commit; none if they concern this node only."""
    shared = (change for change in changes if type(change).__name__ in _TYPES)
    encoded = [
        msgspec.json.encode((type(change).__name__, change)) for change in _without_repetitions(shared)
    ]
    contents: list[bytes] = []
    size = 0
    for content in encoded:
        if contents and size + len(content) > _MAX_BYTES:
            yield _payload(sender, contents)
            contents, size = [], 0
        contents.append(content)
        size += len(content) + 1
    if contents:
        yield _payload(sender, contents)


def decode_changes(payload: str) -> tuple[str, list[Change]]:
    """Return the sender and its changes. Changes of a type that this version does not know are left out."""
    decoded = msgspec.json.decode(payload, type=_Payload)
    return decoded.sender, [
        msgspec.json.decode(content, type=_TYPES[name]) for name, content in decoded.changes if name in _TYPES
    ]


def _without_repetitions(changes: Iterable[Change]) -> Iterator[Change]:
    """Yield each change once, and of the changes with a due time the earliest of each type."""
    earliest: dict[type[Change], datetime] = {}
    seen: set[Change] = set()
    for change in changes:
        if isinstance(change, _WITH_DUE_TIME):
            due_at = earliest.get(type(change), change.due_at)
            earliest[type(change)] = min(due_at, change.due_at)
        elif change not in seen:
            seen.add(change)
            yield change
    for kind in _WITH_DUE_TIME:
        if kind in earliest:
            yield kind(due_at=earliest[kind])


def _payload(sender: str, contents: list[bytes]) -> str:
    return f'["{sender}",[{",".join(content.decode() for content in contents)}]]'
