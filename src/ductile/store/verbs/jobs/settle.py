"""Settling jobs: read the view, let the core decide, write the settlement, all in one transaction.

A settlement ends the execution. The job ends with it, or is queued again.

Nothing else writes a job's status, except a claim and an operator's retry.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta

from ductile.core.jobs.failure_notices import is_notice
from ductile.core.jobs.model import (
    Completed,
    EndedEarly,
    Evidence,
    Hold,
    Job,
    JobReason,
    JobStatus,
    LedgerKind,
    Orphaned,
    Outcome,
    OutputFormat,
    Requeued,
    RunEnded,
    SubmittedBy,
    Transition,
)
from ductile.core.jobs.settlement import (
    LogEntry,
    LogStatus,
    Settlement,
    SettleView,
    StateChange,
    WebhookState,
    decide_settlement,
)
from ductile.core.policy import Policy
from ductile.core.runs.graph import RUN_PLUGIN
from ductile.core.runs.progress import combine_artifacts, last_job, start_first_steps, summarise_run
from ductile.core.runs.state import NewRun, RunProgress
from ductile.core.timestamps import format_timestamp
from ductile.errors import ContendedError
from ductile.protocol.plugin_messages import stored_result
from ductile.store.model.jobs import (
    Accepted,
    EnqueueResult,
    JobStatusChange,
    NotSettled,
    Settled,
    SettleResult,
)
from ductile.store.notifier import JOBS_READY, JobEnded, RetryScheduled
from ductile.store.rows import (
    find_job,
    from_json,
    list_or_empty,
    planned_occurrence_or_none,
    read_breaker,
    read_job,
    storable,
    timestamp_or_none,
    to_json,
)
from ductile.store.session import Session, SqlValue
from ductile.store.verbs.failures import record_failure, report_notice
from ductile.store.verbs.jobs.insert import insert_event, release_waiting_jobs, submit_job
from ductile.store.verbs.ledger import append_ledger, write_ledger, write_transition
from ductile.store.verbs.outbox import write_state_webhooks
from ductile.store.verbs.plugins import record_init, write_plugin_effects
from ductile.store.verbs.runs import (
    baggage_of,
    insert_member,
    insert_run,
    predecessor_run,
    read_run_view,
    relink_waiting_runs,
    run_results,
    write_progress,
)
from ductile.store.verbs.token_usage import record_cost
from ductile.struct import asdict, replace

CLAIMED = Transition(from_status=JobStatus.QUEUED, to_status=JobStatus.RUNNING, reason=JobReason.CLAIMED)
#: The state between the claim and the start of the process.
LOADING = StateChange(state=WebhookState.LOADING, reason=JobReason.CLAIMED)
_CANCELLED = EndedEarly(reason=JobReason.CANCELLED, error="cancelled before any of its steps ran")


def settle_execution(session: Session, claimed: Job, outcome: Outcome, policy: Policy) -> SettleResult:
    """End an execution and apply all consequences, or nothing.

    `claimed` is the job as it was claimed for this execution. If it has been cancelled, recovered or claimed
    again since, the stored job decides; an outcome that comes too late is only logged.
    """
    if claimed.status is JobStatus.RUNNING:
        # Most jobs are unchanged. The update checks that, which saves reading the job first.
        settled = _settle_if_unchanged(session, claimed, outcome, policy)
        if settled is not None:
            return settled
    job, execution = find_job(session, claimed.id), claimed.execution
    if job is None:
        return NotSettled.UNKNOWN_JOB
    if job.status is JobStatus.RUNNING and job.execution == execution:
        return _settle_job(session, job, outcome, policy)
    log_status = session.fetch_value("log_status", job_id=job.id, execution=execution)
    # Another node, or the recovery, has ended this execution meanwhile.
    was_given_up = log_status in (LogStatus.ORPHANED, LogStatus.INTERRUPTED)
    if not was_given_up or isinstance(outcome, Orphaned | Requeued):
        return NotSettled.ALREADY_SETTLED
    log = LogEntry(
        status=LogStatus.SUPERSEDED,
        reason=job.reason,
        error="the result came after the job had been given up; it was not applied",
        evidence=outcome.evidence,
    )
    row = _log_row(session, job, log, job.status, job.reason) | {"execution": execution}
    if not session.insert("insert_log", **row):
        return NotSettled.ALREADY_SETTLED  # this execution has a late result already
    record_cost(session, job.token, outcome.evidence.cost)
    kind = LedgerKind.JOB_RESULT_SUPERSEDED
    append_ledger(session, kind, {"execution": execution}, job_id=job.id, run_id=job.run_id, token=job.token)
    return NotSettled.SUPERSEDED


def _settle_job(session: Session, job: Job, outcome: Outcome, policy: Policy) -> Settled:
    """End a job that was read in this transaction, and apply all consequences."""
    settled = _settle_if_unchanged(session, job, outcome, policy)
    if settled is None:
        raise ContendedError(f"the job {job.id} has changed since it was read")
    return settled


def end_job(session: Session, job: Job, outcome: Outcome, policy: Policy) -> Consequences:
    """End a job that was read in this transaction. It is the first of the ended jobs in the result."""
    settled = _settle_job(session, job, outcome, policy)
    ended = [_status_change(job, settled.settlement), *settled.ended]
    return Consequences(started=list(settled.started), ended=ended)


def _settle_if_unchanged(session: Session, job: Job, outcome: Outcome, policy: Policy) -> Settled | None:
    """Decide and apply the settlement.

    Returns None, and writes nothing, if the stored job differs from `job`.
    """
    view = _read_view(session, job, outcome, policy)
    settlement = decide_settlement(
        view, outcome, replace(policy, budget=session.regex_budget), session.now, session.rng
    )
    has_successors = _write_settlement(session, job, settlement)
    if has_successors is None:
        return None
    write_plugin_effects(session, job, view, settlement)
    record_init(session, job, settlement)
    for indexed_event in settlement.events:
        insert_event(session, indexed_event.event, producer=job.id, index=indexed_event.index)
    consequences = Consequences()
    consequences.started += [submit_job(session, child, policy.dedupe_ttl) for child in settlement.children]
    for run in settlement.runs:
        result, first_steps = insert_run_with_steps(session, run, policy, policy.dedupe_ttl)
        consequences.started.append(result)
        consequences.add(first_steps)
    write_ledger(session, settlement.ledger, token=job.token)
    if settlement.is_reported:
        record_failure(session, job, settlement)
    if settlement.is_terminal and is_notice(job):
        report_notice(session, job, settlement)
    if settlement.progress is not None and job.run_id is not None:
        consequences.add(write_steps(session, job.run_id, settlement.progress, policy))
    release_waiting_jobs(session, job, has_successors=has_successors and settlement.is_terminal)
    return Settled(
        job_id=job.id,
        settlement=settlement,
        started=tuple(consequences.started),
        ended=tuple(consequences.ended),
    )


# -- pipeline runs


@dataclass(slots=True)
class Consequences:
    """The jobs that a settlement started or ended."""

    started: list[EnqueueResult] = field(default_factory=list)
    ended: list[JobStatusChange] = field(default_factory=list)

    def add(self, other: Consequences) -> None:
        self.started += other.started
        self.ended += other.ended


def with_first_steps(result: EnqueueResult, consequences: Consequences) -> EnqueueResult:
    """Return the result of a submitted run for the caller, with the steps that it began with."""
    if not isinstance(result, Accepted):
        return result
    steps = tuple(submitted for submitted in consequences.started if isinstance(submitted, Accepted))
    return replace(result, steps=steps, ended=tuple(consequences.ended))


def insert_run_with_steps(
    session: Session, run: NewRun, policy: Policy, window: timedelta
) -> tuple[EnqueueResult, Consequences]:
    """Insert a run and its first steps, unless it is a duplicate."""
    info = run.info(after_job_id=predecessor_run(session, run.job))
    result = submit_job(session, run.job, window)
    if not isinstance(result, Accepted):
        return result, Consequences()
    if run.event_is_new:
        insert_event(session, run.event, producer=run.job.parent_job_id)
    insert_run(session, run)
    baggage = baggage_of(session, run.job.event_context_id)
    budgeted = replace(policy, budget=session.regex_budget)
    progress = start_first_steps(run, info, baggage, budgeted, session.now, session.rng)
    return result, write_steps(session, result.job_id, progress, policy)


def write_steps(session: Session, run_id: str, progress: RunProgress, policy: Policy) -> Consequences:
    """Write the progress of a run: new steps, steps that could not be started, and the run's end."""
    write_progress(session, run_id, progress)
    consequences = Consequences()
    for step in progress.steps:
        result = submit_job(session, step.job, policy.dedupe_ttl)
        if not isinstance(result, Accepted):
            consequences.started.append(result)
            continue
        insert_member(session, run_id, step.job.id, step.position)
        if step.fault is None:
            consequences.started.append(result)
        else:
            # The step failed before it could run. The run has counted its end already.
            job = _read_job(session, step.job.id)
            view = SettleView(job=job, state={})
            settlement = decide_settlement(view, step.fault, policy, session.now, session.rng)
            if _write_settlement(session, job, settlement) is None:
                raise ContendedError(f"the job {job.id} has changed since it was read")
            consequences.ended.append(_status_change(job, settlement))
    write_ledger(session, progress.ledger)
    if progress.ended:
        consequences.add(end_run(session, run_id, policy))
    return consequences


def end_run(session: Session, run_id: str, policy: Policy, *, stalled: bool = False) -> Consequences:
    """End a run without live tokens. Its result is that of its last step."""
    job = _read_job(session, run_id)
    outcome: Outcome
    if job.status is JobStatus.QUEUED and job.cancel_requested_at is not None:  # no step was ever claimed
        relink_waiting_runs(session, job)
        outcome = _CANCELLED
    else:
        if job.status is JobStatus.QUEUED:
            relink_waiting_runs(session, job)
            job = mark_run_started(session, run_id)
        if stalled:
            outcome = RunEnded(reason=JobReason.STALLED, error=JobReason.STALLED.description)
        else:
            outcome = _outcome_of_steps(session, job)
    return end_job(session, job, outcome, policy)


def mark_run_started(session: Session, run_id: str) -> Job:
    """Mark a run as running, when the first of its steps is claimed."""
    row = session.fetch_one("start_run", id=run_id, at=session.timestamp)
    if row is None:
        raise ContendedError(f"the run {run_id} has changed since it was read")
    started = read_job(row)
    write_transition(session, CLAIMED, started, execution=started.execution)
    if started.callback is not None:
        write_state_webhooks(session, LOADING, started, attempt=started.attempt)
    return started


def _outcome_of_steps(session: Session, run: Job) -> RunEnded:
    """Return how a run ended, with the artifacts of all steps and the output of its last step."""
    results = run_results(session, run.id)
    outcome, last_job_id = summarise_run(results), last_job(results)
    rows = session.fetch_all("artifacts_of_members", run_id=run.id)
    artifacts = combine_artifacts((path or "", list_or_empty(text)) for path, text in rows)
    duration = session.now - (run.started_at or session.now)
    evidence = Evidence(duration=max(duration, timedelta(0)))
    row = None if last_job_id is None else session.fetch_one("last_output", job_id=last_job_id)
    if row is None:
        return replace(outcome, artifacts=artifacts, evidence=evidence)
    stdout, output, stderr, exit_code, signal, truncated = row
    evidence = replace(
        evidence,
        stdout=stdout,
        output=OutputFormat(output),
        stderr=stderr,
        exit_code=exit_code,
        signal=signal,
        stderr_truncated=bool(truncated),
    )
    result = stored_result(stdout, evidence.output)
    return replace(outcome, artifacts=artifacts, evidence=evidence, result=result)


def _read_job(session: Session, job_id: str) -> Job:
    job = find_job(session, job_id)
    assert job is not None  # noqa: S101 - the caller has just written it, or holds a step of it
    return job


def _status_change(job: Job, settlement: Settlement) -> JobStatusChange:
    return JobStatusChange(
        id=job.id,
        plugin=job.plugin,
        command=job.command,
        status=settlement.status,
        reason=settlement.reason,
        attempt=settlement.attempt,
        error=settlement.last_error,
    )


# -- the view, and the rows of an end


def _read_view(session: Session, job: Job, outcome: Outcome, policy: Policy) -> SettleView:
    """Read the values that the decision depends on.

    State, breaker and schedule are read only if the outcome can change them.
    """
    state, breaker, schedule = None, None, None
    baggage = baggage_of(session, job.event_context_id)
    if isinstance(outcome, Completed) and outcome.response.state_updates:
        state = session.fetch_one("plugin_state", plugin=job.plugin)
    if job.submitted_by is SubmittedBy.SCHEDULER:
        breaker = session.fetch_one("breaker", plugin=job.plugin, command=job.command)
        if job.submitted_detail in policy.plugin(job.plugin).schedules:
            key = {"plugin": job.plugin, "schedule_id": job.submitted_detail}
            schedule = session.fetch_one("schedule_of_latest_job", **key, job_id=job.id)
    was_orphaned = isinstance(outcome, Orphaned) and (
        session.fetch_value("log_status", job_id=job.id, execution=job.execution - 1) == LogStatus.ORPHANED
    )
    schedule_id, next_at, nominal_at, paused_at = schedule or (None, None, None, None)
    return SettleView(
        job=job,
        state={} if state is None else from_json(state[0]),
        state_claim_seq=0 if state is None else state[1],
        breaker=None if breaker is None else read_breaker(breaker),
        schedule_id=schedule_id,
        next_occurrence=planned_occurrence_or_none(nominal_at, next_at),
        paused=paused_at is not None,
        baggage=baggage,
        run=read_run_view(session, job, baggage),
        was_orphaned=was_orphaned,
    )


def _write_settlement(session: Session, job: Job, settlement: Settlement) -> bool | None:
    """Write the job's row, log, transitions and state webhook.

    Returns whether jobs wait to run after it (`after_job_id`); None, if the stored job differs from `job`:
    then it has written nothing.
    """
    retry_at = settlement.next_retry_at
    artifacts = to_json(settlement.artifacts) if settlement.artifacts else None
    cost = None if settlement.log is None else settlement.log.evidence.cost
    has_successors = session.settle_job(
        seq=job.seq,
        id=job.id,
        from_status=job.status,
        execution=job.execution,
        cancel_requested_at=timestamp_or_none(job.cancel_requested_at),
        # A duplicate may have subscribed a URL since the job was read: the end is then decided again.
        callback_url=None if job.callback is None else job.callback.url,
        status=settlement.status,
        reason=settlement.reason,
        # An interrupted job is ready at once: it keeps the key that it held while it ran.
        hold=None if retry_at is None else Hold.RETRY,
        attempt=settlement.attempt,
        completed_at=session.timestamp if settlement.is_terminal else None,
        next_retry_at=timestamp_or_none(retry_at),
        retry_wait=None if retry_at is None else (retry_at - session.now).total_seconds(),
        last_error=storable(settlement.last_error),
        suspect=int(settlement.suspect),
        artifacts=artifacts,
        cost=job.cost if cost is None else (job.cost or 0) + cost,
    )
    if has_successors is None:
        return None
    if settlement.log is not None:
        record_cost(session, job.token, cost)
        log_row = _log_row(session, job, settlement.log, settlement.status, settlement.reason)
        log_row["artifacts"] = artifacts
        session.insert_buffered("insert_log", log_row)
    for transition in settlement.transitions:
        write_transition(session, transition, job, execution=job.execution)
    if settlement.state_change is not None:
        write_state_webhooks(session, settlement.state_change, job, attempt=settlement.attempt)
    if settlement.is_terminal:
        session.publish(
            JobEnded(job_id=job.id, plugin=job.plugin, command=job.command, submitted_by=job.submitted_by)
        )
    elif retry_at is not None:
        session.publish(RetryScheduled(due_at=retry_at))
    else:
        session.publish(JOBS_READY)
    if job.plugin == RUN_PLUGIN:
        session.execute("clear_deadline", run_id=job.id)
    return has_successors


def _log_row(
    session: Session, job: Job, log: LogEntry, status: JobStatus, reason: JobReason
) -> dict[str, SqlValue]:
    """Return the log row of an execution that left the job in this state."""
    evidence = log.evidence
    row: dict[str, SqlValue] = asdict(job)  # most columns have the names of the fields
    row |= {
        "job_id": job.id,
        "status": log.status,
        "reason": log.reason,
        "job_status": status,
        "job_reason": reason,
        "result": storable(evidence.stdout),
        "output": evidence.output,
        "stderr": storable(evidence.stderr),
        "stderr_truncated": int(evidence.stderr_truncated),
        "exit_code": evidence.exit_code,
        "signal": evidence.signal,
        "error": storable(log.error),
        "duration_ms": evidence.duration.total_seconds() * 1000,
        "created_at": format_timestamp(job.created_at),
        "started_at": timestamp_or_none(job.started_at),
        "at": session.timestamp,
        "artifacts": None,
        "cost": evidence.cost,
    }
    return row
