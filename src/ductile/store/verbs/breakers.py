"""Circuit breakers: the current row, and every change of state beside it."""

from __future__ import annotations

from ductile.core.jobs.failures import Breaker, BreakerReason, BreakerState
from ductile.core.jobs.model import LedgerEntry, LedgerKind
from ductile.store.notifier import SCHEDULES_CHANGED
from ductile.store.rows import read_breaker, text_or_none
from ductile.store.session import Session
from ductile.store.verbs.ledger import write_ledger


def write_breaker(
    session: Session,
    plugin: str,
    command: str,
    before: Breaker,
    after: Breaker,
    *,
    reason: BreakerReason | None,
    job_id: str | None,
) -> None:
    """Write the row; with a reason, the change of state is recorded too."""
    session.run(
        "write_breaker",
        plugin=plugin,
        command=command,
        state=after.state,
        failure_count=after.failures,
        opened_at=text_or_none(after.opened_at),
        last_failure_at=text_or_none(after.last_failure_at),
        last_job_id=after.last_job_id,
        probe_job_id=after.probe_job_id,
        at=session.timestamp,
    )
    if reason is None:
        return
    session.run(
        "insert_breaker_transition",
        plugin=plugin,
        command=command,
        from_state=before.state,
        to_state=after.state,
        failure_count=after.failures,
        reason=reason,
        job_id=job_id,
        at=session.timestamp,
    )
    entry = LedgerEntry(
        kind=LedgerKind.BREAKER_CHANGED,
        job_id=job_id,
        data={
            "plugin": plugin,
            "command": command,
            "from": before.state,
            "to": after.state,
            "reason": reason,
        },
    )
    write_ledger(session, (entry,))


def reset_breaker(session: Session, plugin: str, command: str | None = None) -> int:
    """Close the plugin's breakers by hand; how many were not closed."""
    reset = 0
    for row in session.all("all_breakers"):
        before = read_breaker(row[2:8])
        if row[0] != plugin or command not in (None, row[1]):
            continue
        if before.state is BreakerState.CLOSED and before.failures == 0:
            continue
        was_closed = before.state is BreakerState.CLOSED
        reason = None if was_closed else BreakerReason.MANUAL_RESET
        write_breaker(session, plugin, row[1], before, Breaker(), reason=reason, job_id=None)
        reset += not was_closed
    session.publish(SCHEDULES_CHANGED)
    return reset


def begin_probe(session: Session, plugin: str, command: str, job_id: str) -> None:
    """The cooldown is over: half open, and this job is the one that may try.

    Half open follows open and nothing else: a breaker that was reset, or has its probe, stays as it is.
    """
    row = session.one("breaker", plugin=plugin, command=command)
    before = Breaker() if row is None else read_breaker(row)
    if before.state is not BreakerState.OPEN:
        return
    after = Breaker(
        state=BreakerState.HALF_OPEN,
        failures=before.failures,
        opened_at=before.opened_at,
        last_failure_at=before.last_failure_at,
        last_job_id=before.last_job_id,
        probe_job_id=job_id,
    )
    write_breaker(
        session, plugin, command, before, after, reason=BreakerReason.COOLDOWN_ELAPSED, job_id=job_id
    )
