"""What every verb that changes a job also writes: its transition, the ledger, and its state webhook."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import Protocol

from ductile.core.addresses import receiver_of
from ductile.core.ids import make_id
from ductile.core.instants import format_instant
from ductile.core.jobs import Callback, Transition
from ductile.core.ledger import LedgerEntry, LedgerKind
from ductile.core.settlement import CallbackEvent
from ductile.protocol.state_events import encode_state_event
from ductile.store.rows import to_json
from ductile.store.session import Session


class Subject(Protocol):
    """The job that a transition is of, new or stored."""

    @property
    def id(self) -> str: ...
    @property
    def run_id(self) -> str | None: ...
    @property
    def plugin(self) -> str: ...
    @property
    def command(self) -> str: ...


def next_in_ledger(session: Session) -> int:
    return session.number("highest_in_ledger")


def write_transition(
    session: Session, transition: Transition, job: Subject, *, execution: int, seq: int | None = None
) -> None:
    """Append the edge to the ledger and, with its number there, to the job's own history."""
    seq = next_in_ledger(session) if seq is None else seq
    session.append(
        "insert_ledger",
        {
            "seq": seq,
            "at": session.stamp,
            "kind": LedgerKind.JOB_TRANSITION,
            "job_id": job.id,
            "run_id": job.run_id,
            "data": _told(job.plugin, job.command, transition, execution),
        },
    )
    session.append(
        "insert_transition",
        {
            "job_id": job.id,
            "seq": seq,
            "execution": execution,
            "from_status": transition.from_status,
            "to_status": transition.to_status,
            "reason": transition.reason,
            "at": session.stamp,
        },
    )


@lru_cache(maxsize=1024)
def _told(plugin: str, command: str, transition: Transition, execution: int) -> str:
    """What the ledger says of an edge: the same words for most jobs of a plugin, so they are kept."""
    return to_json(
        {
            "plugin": plugin,
            "command": command,
            "from": transition.from_status,
            "to": transition.to_status,
            "reason": transition.reason,
            "execution": execution,
        }
    )


def write_ledger(session: Session, entries: Iterable[LedgerEntry]) -> None:
    for entry in entries:
        session.append(
            "insert_ledger",
            {
                "seq": next_in_ledger(session),
                "at": session.stamp,
                "kind": entry.kind,
                "job_id": entry.job_id,
                "run_id": entry.run_id,
                "data": to_json(entry.data),
            },
        )


def write_callback(
    session: Session, event: CallbackEvent, *, job_id: str, attempt: int, callback: Callback
) -> None:
    """Put a state webhook into the outbox. Its body is frozen now; sending it is somebody else's work."""
    told = session.one("callback_state", job_id=job_id)
    numbered = session.one("next_callback", job_id=job_id, state=event.state)
    if told is None or numbered is None:
        return
    body = encode_state_event(
        job_id=job_id,
        state=event.state,
        previous_state=told[0],
        timestamp=session.stamp,
        model=callback.model,
        attempt=attempt,
        error=event.error,
        result=event.result,
        artifacts=event.artifacts,
    )
    session.run(
        "insert_delivery",
        id=make_id(session.now, session.dice),
        job_id=job_id,
        sequence=numbered[0],
        state=event.state,
        url=callback.url,
        receiver=receiver_of(callback.url),
        body=body,
        # Due by the clock: a stamp may lie ahead of it after the clock was set back.
        due_at=format_instant(session.now),
        at=session.stamp,
    )
    session.outbox_grew()
