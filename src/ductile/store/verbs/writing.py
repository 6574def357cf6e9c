"""What every verb that changes a job also writes: its transition, the ledger, and its state webhook."""

from __future__ import annotations

from collections.abc import Iterable

from ductile.core.ids import make_id
from ductile.core.jobs import Callback, Transition
from ductile.core.ledger import LedgerEntry, LedgerKind
from ductile.core.settlement import CallbackEvent
from ductile.protocol.state_events import encode_state_event
from ductile.store.rows import to_json
from ductile.store.session import Session


def write_transition(
    session: Session, transition: Transition, *, job_id: str, run_id: str | None, execution: int, about: str
) -> None:
    """Append the edge to the ledger and, with its number there, to the job's own history.

    `about` is the job's plugin.command.
    """
    told = {
        "job": about,
        "from": transition.from_status,
        "to": transition.to_status,
        "reason": transition.reason,
        "execution": execution,
    }
    seq = session.insert(
        "insert_ledger",
        at=session.stamp,
        kind=LedgerKind.JOB_TRANSITION,
        job_id=job_id,
        run_id=run_id,
        data=to_json(told),
    )
    session.run(
        "insert_transition",
        job_id=job_id,
        seq=seq,
        execution=execution,
        from_status=transition.from_status,
        to_status=transition.to_status,
        reason=transition.reason,
        at=session.stamp,
    )


def write_ledger(session: Session, entries: Iterable[LedgerEntry]) -> None:
    for entry in entries:
        session.run(
            "insert_ledger",
            at=session.stamp,
            kind=entry.kind,
            job_id=entry.job_id,
            run_id=entry.run_id,
            data=to_json(entry.data),
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
        body=body,
        at=session.stamp,
    )
