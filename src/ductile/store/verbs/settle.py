"""Ending jobs: read the view, ask the core, apply its answer, all in one transaction.

Nothing else writes a job's status, but for the claim and an operator's retry.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta

from ductile.core.jobs.model import (
    Completed,
    EndedEarly,
    Evidence,
    Interrupted,
    Job,
    JobReason,
    JobStatus,
    Orphaned,
    Outcome,
    RunEnded,
    StepNotCreated,
    SubmittedBy,
    Transition,
)
from ductile.core.jobs.settlement import (
    CallbackEvent,
    CallbackState,
    LogStatus,
    Settlement,
    SettleView,
    settle,
)
from ductile.core.policy import Policy
from ductile.core.runs.progress import combine_artifacts, last_job, start_first_steps, summarise_run
from ductile.core.runs.state import NewRun, RunInfo, RunProgress
from ductile.core.schedules.rule import Slot
from ductile.core.timestamps import parse_timestamp
from ductile.errors import StoreError
from ductile.protocol.plugin_messages import result_in
from ductile.store.model.jobs import Settled, SettleResult, Unsettled
from ductile.store.model.submission import Accepted, EnqueueResult, JobStateChange
from ductile.store.rows import (
    list_or_empty,
    object_or_none,
    read_breaker,
    read_job,
)
from ductile.store.session import Session
from ductile.store.verbs.holds import release_after
from ductile.store.verbs.inits import note_init
from ductile.store.verbs.insert import insert_event, submit_job
from ductile.store.verbs.ledger import write_callback, write_ledger, write_transition
from ductile.store.verbs.runs import (
    baggage_of,
    earlier_run,
    ends_of,
    insert_member,
    insert_run,
    leave_line,
    read_run_view,
    write_progress,
)
from ductile.store.verbs.settle_rows import log_late_result, write_end, write_plugin_effects
from ductile.struct import Value, replace

_CANCELLED = "cancelled before any of its steps ran"
_RUN_CLAIMED = Transition(from_status=JobStatus.QUEUED, to_status=JobStatus.RUNNING, reason=JobReason.CLAIMED)


def settle_execution(session: Session, claimed: Job, outcome: Outcome, rules: Policy) -> SettleResult:
    """Apply an outcome if the job still runs with this execution; otherwise only take note of it.

    Most are still as they were claimed, which the writing itself finds out; only the others are read again.
    """
    if claimed.status is JobStatus.RUNNING:
        settled = _settle_as_seen(session, claimed, outcome, rules)
        if settled is not None:
            return settled
    row = session.one("job_for_settle", id=claimed.id)
    if row is None:
        return Unsettled.UNKNOWN_JOB
    job, execution = read_job(row), claimed.execution
    if job.status is JobStatus.RUNNING and job.execution == execution:
        return settle_job(session, job, outcome, rules)
    logged = session.one("log_status", job_id=job.id, execution=execution)
    given_up = logged is not None and logged[0] in (LogStatus.ORPHANED, LogStatus.INTERRUPTED)
    if not given_up or isinstance(outcome, Orphaned | Interrupted):
        return Unsettled.ALREADY_SETTLED
    first = log_late_result(session, job, execution, outcome)
    return Unsettled.SUPERSEDED if first else Unsettled.ALREADY_SETTLED


def settle_job(session: Session, job: Job, outcome: Outcome, rules: Policy) -> Settled:
    """Decide and apply. The caller has read `job` in this transaction."""
    settled = _settle_as_seen(session, job, outcome, rules)
    if settled is None:
        raise _changed_under_us(job.id)
    return settled


def _changed_under_us(job_id: str) -> StoreError:
    """A defect: whoever reads a job in a transaction finds it so until its end."""
    return StoreError(f"the job {job_id} is not as it was read")


def _settle_as_seen(session: Session, job: Job, outcome: Outcome, rules: Policy) -> Settled | None:
    """Decide and apply; None, and nothing is written, if the job is not as in `job` any more."""
    view = _read_view(session, job, outcome, rules)
    settlement = settle(view, outcome, replace(rules, budget=session.budget), session.now, session.rng)
    awaited = write_end(session, job, settlement)
    if awaited is None:
        return None
    write_plugin_effects(session, job, view, settlement)
    note_init(session, job, settlement)
    for outgoing in settlement.events:
        insert_event(session, outgoing.event, producer=job.id, index=outgoing.index)
    followed = _Followed()
    followed.started += [submit_job(session, child, rules.dedupe_ttl) for child in settlement.children]
    for run in settlement.runs:
        followed.add(start_run(session, run, rules, rules.dedupe_ttl))
    write_ledger(session, settlement.ledger)
    if settlement.progress is not None and job.run_id is not None:
        followed.add(write_steps(session, job.run_id, settlement.progress, rules))
    release_after(session, job, awaited=awaited and settlement.is_terminal)
    return Settled(
        job_id=job.id, settlement=settlement, started=tuple(followed.started), ended=tuple(followed.ended)
    )


# ------------------------------------------------------------------------------------- pipeline runs


@dataclass(slots=True)
class _Followed:
    """What a settlement led to, collected on the way."""

    started: list[EnqueueResult] = field(default_factory=list)
    ended: list[JobStateChange] = field(default_factory=list)

    def add(self, other: _Followed | StartedRun) -> None:
        if isinstance(other, StartedRun):
            self.started.append(other.answer)
        self.started += other.started
        self.ended += other.ended


class StartedRun(Value):
    answer: EnqueueResult
    started: tuple[EnqueueResult, ...] = ()
    ended: tuple[JobStateChange, ...] = ()

    def enqueue_result(self) -> EnqueueResult:
        """The answer for whoever submitted it, with all that it led to at once."""
        if not isinstance(self.answer, Accepted):
            return self.answer
        members = tuple(started for started in self.started if isinstance(started, Accepted))
        return replace(self.answer, members=members, ended=self.ended)


def start_run(session: Session, run: NewRun, rules: Policy, window: timedelta) -> StartedRun:
    """Insert a run and its first steps, unless it is a duplicate."""
    facts = RunInfo(
        id=run.job.id,
        graph=run.graph,
        hops=run.job.hops,
        trace_id=run.job.trace_id,
        after_job_id=earlier_run(session, run.job),
    )
    answer = submit_job(session, run.job, window)
    if not isinstance(answer, Accepted):
        return StartedRun(answer=answer)
    if run.event_is_new:
        insert_event(session, run.event, producer=run.job.parent_job_id)
    insert_run(session, run)
    baggage = baggage_of(session, run.job.event_context_id)
    progress = start_first_steps(
        run, facts, baggage, replace(rules, budget=session.budget), session.now, session.rng
    )
    return continue_run(session, answer, progress, rules)


def continue_run(session: Session, answer: Accepted, progress: RunProgress, rules: Policy) -> StartedRun:
    """The first steps of a run that was accepted."""
    followed = write_steps(session, answer.job_id, progress, rules)
    return StartedRun(answer=answer, started=tuple(followed.started), ended=tuple(followed.ended))


def write_steps(session: Session, run_id: str, progress: RunProgress, rules: Policy) -> _Followed:
    """How far a run got: its new steps, those that could not be made, and its end if it has come."""
    write_progress(session, run_id, progress)
    followed = _Followed()
    for step in progress.steps:
        answer = submit_job(session, step.job, rules.dedupe_ttl)
        if not isinstance(answer, Accepted):
            followed.started.append(answer)
            continue
        insert_member(session, run_id, step.job.id, step.position)
        if step.fault is None:
            followed.started.append(answer)
        else:
            followed.ended.append(_end_unmade(session, step.job.id, step.fault, rules))
    write_ledger(session, progress.ledger)
    if progress.ended:
        followed.add(end_run(session, run_id, rules))
    return followed


def _end_unmade(session: Session, job_id: str, fault: StepNotCreated, rules: Policy) -> JobStateChange:
    """A step that failed before it could run. Its run has counted its end already."""
    job = _read_again(session, job_id)
    settlement = settle(SettleView(job=job, state={}), fault, rules, session.now, session.rng)
    if write_end(session, job, settlement) is None:
        raise _changed_under_us(job.id)
    return state_change(job, settlement)


def end_run(session: Session, run_id: str, rules: Policy, *, stalled: bool = False) -> _Followed:
    """No line of the run is live: it ends as they did, and answers what its last step answered."""
    job = _read_again(session, run_id)
    if job.status is JobStatus.QUEUED:  # nothing of it was ever claimed
        leave_line(session, job)
        if job.cancel_requested_at is not None:
            return _end_with(session, job, EndedEarly(reason=JobReason.CANCELLED, error=_CANCELLED), rules)
        job = claim_run(session, run_id)
    ends = ends_of(session, run_id)
    if stalled:
        outcome = RunEnded(reason=JobReason.STALLED, error=JobReason.STALLED.description)
    else:
        outcome = _with_last_answer(session, summarise_run(ends), last_job(ends), job)
    return _end_with(session, job, outcome, rules)


def _end_with(session: Session, job: Job, outcome: Outcome, rules: Policy) -> _Followed:
    settled = settle_job(session, job, outcome, rules)
    ended = [state_change(job, settled.settlement), *settled.ended]
    return _Followed(started=list(settled.started), ended=ended)


def claim_run(session: Session, run_id: str) -> Job:
    """The first of its steps was claimed, and with it the run."""
    row = session.one("start_run", id=run_id, at=session.timestamp)
    if row is None:
        raise _changed_under_us(run_id)
    started = read_job(row)
    write_transition(session, _RUN_CLAIMED, started, execution=started.execution)
    if started.callback is not None:
        told = CallbackEvent(state=CallbackState.LOADING, reason=JobReason.CLAIMED)
        write_callback(session, told, started, attempt=started.attempt)
    return started


def _with_last_answer(session: Session, ended: RunEnded, last: str | None, job: Job) -> RunEnded:
    took = session.now - (job.started_at or session.now)
    evidence = Evidence(duration=max(took, timedelta(0)))
    named = session.all("artifacts_of_members", run_id=job.id)
    ended = replace(
        ended, artifacts=combine_artifacts((path or "", list_or_empty(listed)) for path, listed in named)
    )
    row = None if last is None else session.one("last_answer", job_id=last)
    if row is None:
        return replace(ended, evidence=evidence)
    stdout, stderr, exit_code, signal = row
    evidence = replace(evidence, stdout=stdout, stderr=stderr, exit_code=exit_code, signal=signal)
    return replace(ended, evidence=evidence, result=result_in(stdout))


def _read_again(session: Session, job_id: str) -> Job:
    row = session.one("job_for_settle", id=job_id)
    assert row is not None  # noqa: S101 - the caller has just written it, or holds a step of it
    return read_job(row)


def state_change(job: Job, settlement: Settlement) -> JobStateChange:
    return JobStateChange(
        id=job.id,
        plugin=job.plugin,
        command=job.command,
        status=settlement.status,
        reason=settlement.reason,
        attempt=settlement.attempt,
        error=settlement.last_error,
    )


# ------------------------------------------------------------------------------------------- plain jobs


def _read_view(session: Session, job: Job, outcome: Outcome, rules: Policy) -> SettleView:
    """Only what this outcome can need is read: most jobs keep no state and have no breaker."""
    state, breaker, latest = None, None, None
    baggage = baggage_of(session, job.event_context_id)
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
        slot=None if latest is None else _slot(latest[1], latest[2]),
        paused=latest is not None and latest[3] is not None,
        baggage=baggage,
        run=read_run_view(session, job, baggage),
    )


def _slot(next_at: str | None, nominal_at: str | None) -> Slot | None:
    if next_at is None or nominal_at is None:
        return None
    return Slot(nominal_at=parse_timestamp(nominal_at), start_at=parse_timestamp(next_at))
