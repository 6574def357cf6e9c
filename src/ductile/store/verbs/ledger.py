"""What every verb that changes a job also writes: its transition, the ledger, and its state webhook."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import Protocol

from ductile.core.ids import make_id
from ductile.core.jobs.model import LedgerEntry, LedgerKind, Transition
from ductile.core.jobs.settlement import CallbackEvent
from ductile.core.timestamps import format_timestamp
from ductile.core.webhooks.deliveries import event_timestamp, wants
from ductile.core.webhooks.url_policy import receiver_of
from ductile.protocol.state_webhook import encode_state_webhook
from ductile.store.notifier import LEDGER_ADVANCED, OUTBOX_GREW
from ductile.store.rows import read_choice, to_json
from ductile.store.session import Session


class JobIdentity(Protocol):
    """The job that a transition is of, new or stored."""

    @property
    def id(self) -> str: ...
    @property
    def run_id(self) -> str | None: ...
    @property
    def plugin(self) -> str: ...
    @property
    def command(self) -> str: ...


def next_ledger_seq(session: Session) -> int:
    return session.next_seq("highest_in_ledger")


def write_transition(
    session: Session, transition: Transition, job: JobIdentity, *, execution: int, seq: int | None = None
) -> None:
    """Append the edge to the ledger and, with its number there, to the job's own history."""
    seq = next_ledger_seq(session) if seq is None else seq
    session.insert_later(
        "insert_ledger",
        {
            "seq": seq,
            "at": session.timestamp,
            "kind": LedgerKind.JOB_TRANSITION,
            "job_id": job.id,
            "run_id": job.run_id,
            "data": _transition_data(job.plugin, job.command, transition, execution),
        },
    )
    session.publish(LEDGER_ADVANCED)
    session.insert_later(
        "insert_transition",
        {
            "job_id": job.id,
            "seq": seq,
            "execution": execution,
            "from_status": transition.from_status,
            "to_status": transition.to_status,
            "reason": transition.reason,
            "at": session.timestamp,
        },
    )


@lru_cache(maxsize=1024)
def _transition_data(plugin: str, command: str, transition: Transition, execution: int) -> str:
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
        session.insert_later(
            "insert_ledger",
            {
                "seq": next_ledger_seq(session),
                "at": session.timestamp,
                "kind": entry.kind,
                "job_id": entry.job_id,
                "run_id": entry.run_id,
                "data": to_json(entry.data),
            },
        )
        session.publish(LEDGER_ADVANCED)


def write_callback(session: Session, event: CallbackEvent, job: JobIdentity, *, attempt: int) -> None:
    """Put a state webhook into the outbox, once for each URL that is subscribed to this state.

    The body is frozen here. The event counts as one of the job's even if no URL is sent it.
    """
    row = session.one("callback_of_job", job_id=job.id)
    if row is None:
        return
    state, latest, url, model, chosen = row
    timestamp = event_timestamp(session.timestamp, latest)
    numbered = session.one("next_callback", job_id=job.id, state=event.state, at=timestamp)
    subscriptions = [(url, chosen), *session.all("further_subscriptions", job_id=job.id)]
    urls = [each for each, states in subscriptions if each and wants(read_choice(states), event.state)]
    if numbered is None or not urls:
        return
    body = encode_callback(event, job, attempt=attempt, timestamp=timestamp, previous=state, model=model)
    for each in urls:
        write_delivery(session, job_id=job.id, sequence=numbered[0], state=event.state, url=each, body=body)


def encode_callback(
    event: CallbackEvent,
    job: JobIdentity,
    *,
    attempt: int,
    timestamp: str,
    previous: str | None,
    model: str | None,
) -> str:
    return encode_state_webhook(
        job_id=job.id,
        state=event.state,
        previous_state=previous,
        timestamp=timestamp,
        model=model,
        attempt=attempt,
        error=event.error,
        result=event.result,
        artifacts=event.artifacts,
        plugin=job.plugin,
        command=job.command,
        reason=event.reason,
    )


def write_delivery(session: Session, *, job_id: str, sequence: int, state: str, url: str, body: str) -> None:
    session.run(
        "insert_delivery",
        id=make_id(session.now, session.rng),
        job_id=job_id,
        sequence=sequence,
        state=state,
        url=url,
        receiver=receiver_of(url),
        body=body,
        # Due by the clock: a stamp may lie ahead of it after the clock was set back.
        due_at=format_timestamp(session.now),
        at=session.timestamp,
    )
    session.publish(OUTBOX_GREW)
