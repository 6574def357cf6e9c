"""Ending jobs: read the view, ask the core, apply its answer, all in one transaction (ENGINE 1).

Nothing else writes a job's status, but for the claim and an operator's retry.
"""

from __future__ import annotations

from collections.abc import Sequence

from ductile.core.breaker import Breaker
from ductile.core.instants import format_instant
from ductile.core.jobs import REASONS, TERMINAL, Hold, Job, JobStatus, Reason, SubmittedBy, Transition
from ductile.core.json_values import JsonValue
from ductile.core.ledger import LedgerEntry, LedgerKind
from ductile.core.outcomes import Completed, Ended, Interrupted, Orphaned, Outcome
from ductile.core.rules import Rules
from ductile.core.settlement import (
    CallbackEvent,
    CallbackState,
    LogEntry,
    LogStatus,
    Settlement,
    SettleView,
    settle,
)
from ductile.store.rows import object_or_none, read_breaker, read_job, storable, text_or_none, to_json
from ductile.store.session import Cell, Session
from ductile.store.values import (
    CancelAnswer,
    Moved,
    MovedJob,
    NewEvent,
    RetryAnswer,
    SettleAnswer,
    Settled,
    Unsettled,
)
from ductile.store.verbs.breakers import write_breaker
from ductile.store.verbs.holds import SWEEP, hold_for, is_live, release_after
from ductile.store.verbs.inits import note_init
from ductile.store.verbs.submit import insert_event, submit_job
from ductile.store.verbs.writing import write_callback, write_ledger, write_transition


def settle_execution(
    session: Session, job_id: str, execution: int, outcome: Outcome, rules: Rules
) -> SettleAnswer:
    """Apply an outcome if the job still runs with this execution; otherwise only take note of it."""
    row = session.one("job_for_settle", id=job_id)
    if row is None:
        return Unsettled.UNKNOWN_JOB
    job = read_job(row)
    if job.status is JobStatus.RUNNING and job.execution == execution:
        return settle_job(session, job, outcome, rules)
    logged = session.one("log_status", job_id=job_id, execution=execution)
    given_up = logged is not None and logged[0] in (LogStatus.ORPHANED, LogStatus.INTERRUPTED)
    if not given_up or isinstance(outcome, Orphaned | Interrupted):
        return Unsettled.ALREADY_SETTLED
    first = _log_late_result(session, job, execution, outcome)
    return Unsettled.SUPERSEDED if first else Unsettled.ALREADY_SETTLED


def settle_job(session: Session, job: Job, outcome: Outcome, rules: Rules) -> Settled:
    """Decide and apply. The caller has read `job` in this transaction."""
    view = _read_view(session, job, outcome, rules)
    settlement = settle(view, outcome, rules, session.now, session.dice)
    _write_job(session, job, settlement)
    if settlement.log is not None:
        _write_log(
            session,
            job,
            settlement.log,
            execution=job.execution,
            became=(settlement.status, settlement.reason),
            artifacts=settlement.artifacts,
        )
    for transition in settlement.transitions:
        write_transition(session, transition, job, execution=job.execution)
    _write_plugin_effects(session, job, view, settlement)
    note_init(session, job, settlement)
    for event in settlement.events:
        new = NewEvent(
            id=event.id,
            type=event.type,
            source=job.plugin,
            payload=event.payload,
            dedupe_key=event.dedupe_key,
        )
        insert_event(session, new, producer=job.id, index=event.index)
    started = tuple(submit_job(session, child, rules.dedupe_ttl) for child in settlement.children)
    write_ledger(session, settlement.ledger)
    if settlement.callback is not None and job.callback is not None:
        write_callback(
            session,
            settlement.callback,
            job_id=job.id,
            attempt=settlement.attempt,
            callback=job.callback,
        )
    release_after(session, job, ended=settlement.is_terminal)
    return Settled(job_id=job.id, settlement=settlement, started=started)


def _read_view(session: Session, job: Job, outcome: Outcome, rules: Rules) -> SettleView:
    """Only what this outcome can need is read: most jobs keep no state and have no breaker."""
    state, breaker, latest = None, None, None
    if isinstance(outcome, Completed) and outcome.response.state_updates:
        state = session.one("plugin_state", plugin=job.plugin)
    if job.submitted_by is SubmittedBy.SCHEDULER:
        breaker = session.one("breaker", plugin=job.plugin, command=job.command)
        if job.submitted_detail in rules.plugin(job.plugin).schedules:
            latest = session.one(
                "schedule_of_latest_job",
                plugin=job.plugin,
                schedule_id=job.submitted_detail,
                job_id=job.id,
            )
    return SettleView(
        job=job,
        state={} if state is None else object_or_none(state[0]) or {},
        state_claim_seq=0 if state is None else state[1],
        breaker=None if breaker is None else read_breaker(breaker),
        latest_of=None if latest is None else latest[0],
    )


def _write_job(session: Session, job: Job, settlement: Settlement) -> None:
    retry_at = settlement.next_retry_at
    session.change(
        "settle_job",
        seq=job.seq,
        from_status=job.status,
        status=settlement.status,
        reason=settlement.reason,
        # An interrupted job is ready at once: it held its key while it ran and goes on holding it.
        hold=None if retry_at is None else Hold.RETRY,
        attempt=settlement.attempt,
        completed_at=session.stamp if settlement.is_terminal else None,
        next_retry_at=text_or_none(retry_at),
        retry_wait=None if retry_at is None else (retry_at - session.now).total_seconds(),
        last_error=storable(settlement.last_error),
        suspect=int(settlement.suspect),
        artifacts=to_json(settlement.artifacts) if settlement.artifacts else None,
    )


def _write_log(
    session: Session,
    job: Job,
    log: LogEntry,
    *,
    execution: int,
    became: tuple[JobStatus, Reason],
    artifacts: Sequence[JsonValue] = (),
) -> bool:
    """Write the row of an execution; False if it has one."""
    evidence = log.evidence
    written = session.insert(
        "insert_log",
        job_id=job.id,
        execution=execution,
        attempt=job.attempt,
        max_attempts=job.max_attempts,
        plugin=job.plugin,
        command=job.command,
        status=log.status,
        reason=log.reason,
        job_status=became[0],
        job_reason=became[1],
        result=storable(evidence.stdout),
        stderr=storable(evidence.stderr),
        exit_code=evidence.exit_code,
        signal=evidence.signal,
        error=storable(log.error),
        duration_ms=evidence.duration.total_seconds() * 1000,
        submitted_by=job.submitted_by,
        submitted_detail=job.submitted_detail,
        dedupe_key=job.dedupe_key,
        created_at=format_instant(job.created_at),
        started_at=text_or_none(job.started_at),
        at=session.stamp,
        parent_job_id=job.parent_job_id,
        source_event_id=job.source_event_id,
        event_context_id=job.event_context_id,
        run_id=job.run_id,
        step_path=job.step_path,
        trace_id=job.trace_id,
        artifacts=to_json(artifacts) if artifacts else None,
    )
    return written is not None


def _log_late_result(session: Session, job: Job, execution: int, outcome: Outcome) -> bool:
    """Keep what came too late; whether it was news."""
    log = LogEntry(
        status=LogStatus.SUPERSEDED,
        reason=job.reason,
        error="the result came after the job had been given up; it was not applied",
        evidence=outcome.evidence,
    )
    if not _write_log(session, job, log, execution=execution, became=(job.status, job.reason)):
        return False
    entry = LedgerEntry(
        kind=LedgerKind.JOB_RESULT_SUPERSEDED,
        job_id=job.id,
        run_id=job.run_id,
        data={"execution": execution},
    )
    write_ledger(session, (entry,))
    return True


def _write_plugin_effects(session: Session, job: Job, view: SettleView, settlement: Settlement) -> None:
    if settlement.fact is not None:
        session.run(
            "insert_fact",
            plugin=job.plugin,
            fact_type=settlement.fact.fact_type,
            job_id=job.id,
            execution=job.execution,
            command=job.command,
            body=to_json(settlement.fact.body),
            at=session.stamp,
        )
    if settlement.state is not None:
        session.run(
            "write_state",
            plugin=job.plugin,
            state=to_json(settlement.state),
            claim_seq=job.claim_seq,
            at=session.stamp,
        )
    if settlement.next_slot is not None:
        session.run(
            "redraw_schedule",
            plugin=job.plugin,
            schedule_id=view.latest_of,
            next_at=format_instant(settlement.next_slot.start_at),
            nominal_at=format_instant(settlement.next_slot.nominal_at),
            at=session.stamp,
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


# ------------------------------------------------------------------- what operators and sweeps ask for


def cancel(session: Session, job_id: str, rules: Rules) -> CancelAnswer:
    row = session.one("job_for_settle", id=job_id)
    if row is None:
        logged = session.one("job_was_logged", job_id=job_id)
        return CancelAnswer.UNKNOWN_JOB if logged is None else CancelAnswer.ALREADY_ENDED
    job = read_job(row)
    if job.status in TERMINAL:
        return CancelAnswer.ALREADY_ENDED
    if job.status is JobStatus.QUEUED:
        settle_job(session, job, Ended(reason=Reason.CANCELLED, error="cancelled while it was queued"), rules)
        return CancelAnswer.CANCELLED
    if job.cancel_requested_at is None:
        session.run("request_cancel", seq=job.seq, at=session.stamp)
        entry = LedgerEntry(kind=LedgerKind.JOB_CANCEL_REQUESTED, job_id=job.id, run_id=job.run_id)
        write_ledger(session, (entry,))
    return CancelAnswer.REQUESTED


def retry(session: Session, job_id: str) -> RetryAnswer:
    """Put a failed or dead job back with fresh attempts; its executions go on counting."""
    row = session.one("job_for_settle", id=job_id)
    if row is None:
        logged = session.one("job_was_logged", job_id=job_id)
        return RetryAnswer.UNKNOWN_JOB if logged is None else RetryAnswer.RETAINED_NO_MORE
    job = read_job(row)
    if job.status is JobStatus.SUCCEEDED:
        return RetryAnswer.SUCCEEDED
    if job.status not in TERMINAL:
        return RetryAnswer.NOT_ENDED
    if job.run_id is not None and not is_live(session, job.run_id):
        return RetryAnswer.RUN_ENDED
    hold = hold_for(session, job, suspect=False)
    session.change("reopen_job", seq=job.seq, from_status=job.status, hold=hold)
    back = Transition(from_status=job.status, to_status=JobStatus.QUEUED, reason=Reason.MANUAL_RETRY)
    write_transition(session, back, job, execution=job.execution)
    if job.callback is not None:
        told = CallbackEvent(state=CallbackState.QUEUED)
        write_callback(session, told, job_id=job.id, attempt=1, callback=job.callback)
    return RetryAnswer.QUEUED


def recover(session: Session, rules: Rules, *, limit: int = SWEEP) -> Moved:
    """Every running job is an orphan: nothing else runs on this store when this is called (SPEC 4.8)."""
    return _settle_all(session, session.all("running_jobs", limit=limit), Orphaned(), rules, limit=limit)


def end_queued(
    session: Session,
    reason: Reason,
    rules: Rules,
    *,
    plugins: Sequence[str] | None,
    keep: bool,
    limit: int = SWEEP,
) -> Moved:
    names = None if plugins is None else to_json(list(plugins))
    rows = session.all("queued_of_plugins", plugins=names, keep=int(keep), limit=limit)
    outcome = Ended(reason=reason, error=REASONS[reason])
    return _settle_all(session, rows, outcome, rules, limit=limit)


def _settle_all(
    session: Session, rows: Sequence[tuple[Cell, ...]], outcome: Outcome, rules: Rules, *, limit: int
) -> Moved:
    moved: list[MovedJob] = []
    for row in rows:
        # Read again: ending the one before may have let this one move on.
        fresh = session.one("job_for_settle", id=row[0])
        if fresh is None:
            continue
        job = read_job(fresh)
        settlement = settle_job(session, job, outcome, rules).settlement
        moved.append(
            MovedJob(
                id=job.id,
                plugin=job.plugin,
                command=job.command,
                status=settlement.status,
                reason=settlement.reason,
                attempt=settlement.attempt,
            )
        )
    return Moved(jobs=tuple(moved), more=len(rows) == limit)
