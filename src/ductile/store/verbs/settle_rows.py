"""What the end of an execution leaves in the store: the job's row, its log, its edges, its plugin's state.

Decides nothing: `ductile.store.verbs.settle` has asked for the settlement, and does what follows from it.
"""

from __future__ import annotations

from collections.abc import Sequence

from ductile.core.jobs.failures import Breaker
from ductile.core.jobs.model import Hold, Job, JobReason, JobStatus, LedgerEntry, LedgerKind, Outcome
from ductile.core.jobs.settlement import LogEntry, LogStatus, Settlement, SettleView
from ductile.core.json import JsonValue
from ductile.core.runs.graph import RUN_PLUGIN
from ductile.core.schedules.planner import Skip
from ductile.core.timestamps import format_timestamp
from ductile.store.model.schedules import Occurrence, OccurrenceOutcome
from ductile.store.notifier import JOBS_READY, JobEnded, RetryScheduled
from ductile.store.rows import storable, text_or_none, to_json
from ductile.store.session import Cell, Session
from ductile.store.verbs.breakers import write_breaker
from ductile.store.verbs.ledger import write_callback, write_ledger, write_transition
from ductile.store.verbs.occurrences import has_row, record


def write_end(session: Session, job: Job, settlement: Settlement) -> bool | None:
    """The job's own row, its log, its edges and what its caller is told; whether somebody waits for it.

    None, and nothing is written, if the job is not as in `job` any more.
    """
    row = _write_job(session, job, settlement)
    if row is None:
        return None
    if settlement.log is not None:
        became = (settlement.status, settlement.reason)
        values = _log_row(session, job, settlement.log, became=became, artifacts=settlement.artifacts)
        session.insert_later("insert_log", values)
    for transition in settlement.transitions:
        write_transition(session, transition, job, execution=job.execution)
    if settlement.callback is not None:
        write_callback(session, settlement.callback, job, attempt=settlement.attempt)
    if settlement.is_terminal:
        session.publish(
            JobEnded(job_id=job.id, plugin=job.plugin, command=job.command, submitted_by=job.submitted_by)
        )
    elif settlement.next_retry_at is not None:
        session.publish(RetryScheduled(due_at=settlement.next_retry_at))
    else:
        session.publish(JOBS_READY)
    if job.plugin == RUN_PLUGIN:
        session.run("clear_deadline", run_id=job.id)
    return bool(row[0])


def _write_job(session: Session, job: Job, settlement: Settlement) -> tuple[Cell, ...] | None:
    retry_at = settlement.next_retry_at
    return session.one(
        "settle_job",
        seq=job.seq,
        id=job.id,
        from_status=job.status,
        execution=job.execution,
        cancel_requested_at=text_or_none(job.cancel_requested_at),
        # A duplicate may have subscribed a URL since the job was read, and its event is decided with one.
        callback_url=None if job.callback is None else job.callback.url,
        status=settlement.status,
        reason=settlement.reason,
        # An interrupted job is ready at once: it held its key while it ran and goes on holding it.
        hold=None if retry_at is None else Hold.RETRY,
        attempt=settlement.attempt,
        completed_at=session.timestamp if settlement.is_terminal else None,
        next_retry_at=text_or_none(retry_at),
        retry_wait=None if retry_at is None else (retry_at - session.now).total_seconds(),
        last_error=storable(settlement.last_error),
        suspect=int(settlement.suspect),
        artifacts=to_json(settlement.artifacts) if settlement.artifacts else None,
    )


def _log_row(
    session: Session,
    job: Job,
    log: LogEntry,
    *,
    became: tuple[JobStatus, JobReason],
    artifacts: Sequence[JsonValue] = (),
) -> dict[str, Cell]:
    """The row of an execution."""
    evidence = log.evidence
    return {
        "job_id": job.id,
        "execution": job.execution,
        "attempt": job.attempt,
        "max_attempts": job.max_attempts,
        "plugin": job.plugin,
        "command": job.command,
        "status": log.status,
        "reason": log.reason,
        "job_status": became[0],
        "job_reason": became[1],
        "result": storable(evidence.stdout),
        "stderr": storable(evidence.stderr),
        "exit_code": evidence.exit_code,
        "signal": evidence.signal,
        "error": storable(log.error),
        "duration_ms": evidence.duration.total_seconds() * 1000,
        "submitted_by": job.submitted_by,
        "submitted_detail": job.submitted_detail,
        "dedupe_key": job.dedupe_key,
        "created_at": format_timestamp(job.created_at),
        "started_at": text_or_none(job.started_at),
        "at": session.timestamp,
        "parent_job_id": job.parent_job_id,
        "source_event_id": job.source_event_id,
        "event_context_id": job.event_context_id,
        "run_id": job.run_id,
        "step_path": job.step_path,
        "trace_id": job.trace_id,
        "artifacts": to_json(artifacts) if artifacts else None,
    }


def log_late_result(session: Session, job: Job, execution: int, outcome: Outcome) -> bool:
    """Keep what came too late; whether it was news."""
    log = LogEntry(
        status=LogStatus.SUPERSEDED,
        reason=job.reason,
        error="the result came after the job had been given up; it was not applied",
        evidence=outcome.evidence,
    )
    row = _log_row(session, job, log, became=(job.status, job.reason)) | {"execution": execution}
    if session.insert("insert_log", **row) is None:
        return False  # it has one
    entry = LedgerEntry(
        kind=LedgerKind.JOB_RESULT_SUPERSEDED,
        job_id=job.id,
        run_id=job.run_id,
        data={"execution": execution},
    )
    write_ledger(session, (entry,))
    return True


def write_plugin_effects(session: Session, job: Job, view: SettleView, settlement: Settlement) -> None:
    if settlement.fact is not None:
        session.run(
            "insert_fact",
            plugin=job.plugin,
            fact_type=settlement.fact.fact_type,
            job_id=job.id,
            execution=job.execution,
            command=job.command,
            body=to_json(settlement.fact.body),
            at=session.timestamp,
        )
    if settlement.state is not None:
        session.run(
            "write_state",
            plugin=job.plugin,
            state=to_json(settlement.state),
            claim_seq=job.claim_seq,
            at=session.timestamp,
        )
    for skip in settlement.skipped:
        _record_skip(session, job.plugin, str(view.latest_of), skip)
    if settlement.next_slot is not None:
        session.run(
            "redraw_schedule",
            plugin=job.plugin,
            schedule_id=view.latest_of,
            next_at=format_timestamp(settlement.next_slot.start_at),
            nominal_at=format_timestamp(settlement.next_slot.nominal_at),
            at=session.timestamp,
        )
    if settlement.breaker is not None:
        before = view.breaker or Breaker()
        write_breaker(
            session,
            job.plugin,
            job.command,
            before,
            settlement.breaker,
            reason=settlement.breaker_reason,
            job_id=job.id,
        )


def _record_skip(session: Session, plugin: str, schedule_id: str, skip: Skip) -> None:
    occurrence = Occurrence(
        plugin=plugin,
        schedule_id=schedule_id,
        nominal_at=skip.nominal_at,
        until_at=skip.until_at,
        count=skip.count,
        outcome=OccurrenceOutcome.SKIPPED,
        reason=skip.reason,
    )
    if not has_row(session, occurrence):  # after the clock was set back, an instant comes again
        record(session, occurrence)
