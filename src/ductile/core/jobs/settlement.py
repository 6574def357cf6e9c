"""Decide everything that follows from an outcome, as one value: `decide_settlement(...) -> Settlement`.

The store reads a `SettleView`, calls `decide_settlement` and writes the `Settlement`, in one transaction. No
other code decides the next status of a job. See docs/reference/jobs.md.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from enum import StrEnum
from random import Random

from ductile.core.events.model import IndexedEvent, NewEvent
from ductile.core.events.routing import EMPTY_FANOUT, EventProducer, Fanout, JobEnding, fan_out, fire_hooks
from ductile.core.ids import make_id
from ductile.core.jobs.failure_notices import is_reported
from ductile.core.jobs.failures import (
    Breaker,
    BreakerReason,
    BreakerResult,
    breaker_after_job,
    breaker_change_reason,
    plan_delay,
)
from ductile.core.jobs.model import (
    TERMINAL,
    Completed,
    EndedEarly,
    Evidence,
    Failed,
    Job,
    JobReason,
    JobStatus,
    LedgerEntry,
    NewJob,
    NoNodeFound,
    Orphaned,
    Outcome,
    PluginResponse,
    Requeued,
    RunEnded,
    StepNotStarted,
    SubmittedBy,
    TimedOut,
    Transition,
)
from ductile.core.jobs.plugin_state import (
    MAX_STATE_BYTES,
    SYSTEM_COMMANDS,
    FactEntry,
    StateUpdate,
    apply_state_updates,
)
from ductile.core.json import MAX_DEPTH, JsonObject, JsonValue, nests_too_deep
from ductile.core.policy import Policy
from ductile.core.runs.progress import advance_run, fail_token
from ductile.core.runs.state import MAX_RUN_JOBS, NewRun, RunProgress, RunView
from ductile.core.schedules.planner import Skip, skips_while_running
from ductile.core.schedules.rule import IfRunning, PlannedOccurrence, occurrence_after_run
from ductile.struct import Value, field, replace

#: The most events in one response.
MAX_EVENTS = 1000
#: The reasons of a dead job that count as a failure of its plugin.
_FAILURES = frozenset({JobReason.ATTEMPTS_EXHAUSTED, JobReason.DEADLINE_EXCEEDED})
#: A recovered job waits for its retry delay, but not longer: it did not cause the crash.
RECOVERY_DELAY_CAP = timedelta(seconds=60)


class LogStatus(StrEnum):
    """The end of one execution, as its row in the log has it."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    TIMED_OUT = "timed_out"
    CANCELLED = "cancelled"
    INTERRUPTED = "interrupted"
    ORPHANED = "orphaned"
    SUPERSEDED = "superseded"


class LogEntry(Value):
    status: LogStatus
    reason: JobReason
    error: str | None
    evidence: Evidence


class WebhookState(StrEnum):
    """The states that state webhooks report."""

    QUEUED = "queued"
    LOADING = "loading"
    WORKING = "working"
    DONE = "done"
    FAILED = "failed"


class StateChange(Value):
    """The state that a job has reached, as its state webhooks report it."""

    state: WebhookState
    reason: JobReason
    error: str | None = None
    result: JsonValue = None
    artifacts: tuple[JsonValue, ...] | None = None


class SettleView(Value):
    """The job and everything that its settlement depends on, read in the transaction that writes it."""

    job: Job
    #: The plugin's state, and the claim number of the job that last wrote it.
    state: JsonObject
    state_claim_seq: int = 0
    breaker: Breaker | None = None
    #: The schedule of which the job is the latest run, its next occurrence, and whether it is paused.
    schedule_id: str | None = None
    next_occurrence: PlannedOccurrence | None = None
    paused: bool = False
    baggage: JsonObject = field(default_factory=dict)
    #: The pipeline run that the job is a step of.
    run: RunView | None = None
    #: Whether the daemon died during the execution before this one, too.
    was_orphaned: bool = False


class Settlement(Value):
    """All consequences. The store applies them in one transaction, or none of them."""

    transitions: tuple[Transition, ...]
    attempt: int
    next_retry_at: datetime | None = None
    last_error: str | None = None
    suspect: bool = False
    artifacts: tuple[JsonValue, ...] = ()
    log: LogEntry | None = None
    state: JsonObject | None = None
    fact: FactEntry | None = None
    events: tuple[IndexedEvent, ...] = ()
    children: tuple[NewJob, ...] = ()
    #: Pipeline runs started by an event or by the end of the job.
    runs: tuple[NewRun, ...] = ()
    #: The progress of the run that the job is a step of.
    progress: RunProgress | None = None
    breaker: Breaker | None = None
    #: Why the breaker changed its state; None if only its counts changed.
    breaker_reason: BreakerReason | None = None
    #: The next occurrence of the job's schedule, if the end of the job decides it.
    next_occurrence: PlannedOccurrence | None = None
    #: Occurrences of that schedule that fell due while the job ran and have no row yet.
    skipped: tuple[Skip, ...] = ()
    state_change: StateChange | None = None
    #: Whether a failure notice reports this end.
    is_reported: bool = False
    ledger: tuple[LedgerEntry, ...] = ()

    @property
    def status(self) -> JobStatus:
        return self.transitions[-1].to_status

    @property
    def reason(self) -> JobReason:
        return self.transitions[-1].reason

    @property
    def is_terminal(self) -> bool:
        return self.status in TERMINAL


def decide_settlement(
    view: SettleView, outcome: Outcome, policy: Policy, now: datetime, rng: Random
) -> Settlement:
    """Decide everything that follows from `outcome` for the job in `view`."""
    settlement = _settle_job(view, outcome, policy, now, rng)
    breaker = _update_breaker(view, settlement, policy, now)
    next_occurrence, skipped = _update_schedule(view, outcome, settlement, policy, now, rng)
    state_change = None if view.job.callback is None else _state_change(outcome, settlement)
    hook_runs = _fire_hooks(view, outcome, settlement, policy, now, rng)
    progress = settlement.progress
    if progress is None and view.run is not None and settlement.is_terminal:
        progress = fail_token(view.run, view.job, settlement.last_error, policy, now, rng)
    reported = policy.on_failure is not None and is_reported(view.job, settlement.status, settlement.reason)
    if hook_runs is EMPTY_FANOUT and not (breaker or next_occurrence or state_change or progress or reported):
        return settlement
    return replace(
        settlement,
        breaker=breaker,
        breaker_reason=None if breaker is None else breaker_change_reason(view.breaker or Breaker(), breaker),
        next_occurrence=next_occurrence,
        skipped=skipped,
        state_change=state_change,
        is_reported=reported,
        progress=progress,
        runs=settlement.runs + hook_runs.runs,
        ledger=settlement.ledger + hook_runs.ledger,
    )


def _settle_job(view: SettleView, outcome: Outcome, policy: Policy, now: datetime, rng: Random) -> Settlement:
    """Decide the status of the job, and the jobs and runs that a successful response starts."""
    job = view.job
    outcome = _apply_cancellation(job, outcome)
    match outcome:
        case Completed():
            return _succeed(view, outcome, policy, now, rng)
        case Failed(permanent=False):
            return _retry_or_give_up(view, JobStatus.FAILED, _log(outcome, outcome.reason), policy, now, rng)
        case TimedOut():
            log = _log(outcome, JobReason.DEADLINE_EXCEEDED, LogStatus.TIMED_OUT)
            return _retry_or_give_up(
                view, JobStatus.TIMED_OUT, log, policy, now, rng, may_retry=not outcome.permanent
            )
        case Orphaned():
            return _recover(view, outcome, policy, now, rng)
        case Requeued():
            log = _log(outcome, outcome.reason, LogStatus.INTERRUPTED)
            log = log if log.error else replace(log, error="the daemon was stopped while the job ran")
            settlement = _single_transition(
                job, JobStatus.QUEUED, outcome.reason, outcome.error or job.last_error, log
            )
            return replace(settlement, suspect=job.suspect)
        case Failed():
            log = _log(outcome, outcome.reason)
            return _single_transition(job, JobStatus.FAILED, outcome.reason, outcome.error, log)
        case EndedEarly():
            log = _log(outcome, outcome.reason, LogStatus.CANCELLED)
            has_run = job.status is JobStatus.RUNNING
            return _single_transition(
                job, JobStatus.DEAD, outcome.reason, outcome.error, log if has_run else None
            )
        case StepNotStarted() | NoNodeFound():
            status = JobStatus.FAILED if isinstance(outcome, StepNotStarted) else JobStatus.DEAD
            return _single_transition(job, status, outcome.reason, outcome.error, None)
        case RunEnded():
            status = JobStatus.SUCCEEDED if outcome.succeeded else JobStatus.FAILED
            log = _log(outcome, outcome.reason, LogStatus(status.value))
            settlement = _single_transition(job, status, outcome.reason, outcome.error, log)
            return replace(settlement, artifacts=outcome.artifacts)


def _apply_cancellation(job: Job, outcome: Outcome) -> Outcome:
    """Replace any other outcome of a job that is being cancelled. The log keeps what the plugin printed."""
    is_cancelled = isinstance(outcome, EndedEarly) and outcome.reason is JobReason.CANCELLED
    if job.cancel_requested_at is None or is_cancelled:
        return outcome
    return EndedEarly(reason=JobReason.CANCELLED, error="cancelled", evidence=outcome.evidence)


# -- outcomes without success


def _log(
    outcome: Failed | TimedOut | Requeued | EndedEarly | RunEnded,
    reason: JobReason,
    status: LogStatus = LogStatus.FAILED,
) -> LogEntry:
    return LogEntry(status=status, reason=reason, error=outcome.error, evidence=outcome.evidence)


def _single_transition(
    job: Job, status: JobStatus, reason: JobReason, error: str | None, log: LogEntry | None
) -> Settlement:
    """Settle a job by one transition, without another attempt."""
    transition = Transition(from_status=job.status, to_status=status, reason=reason)
    return Settlement(transitions=(transition,), attempt=job.attempt, last_error=error, log=log)


def _retry_or_give_up(
    view: SettleView,
    status: JobStatus,
    log: LogEntry,
    policy: Policy,
    now: datetime,
    rng: Random,
    *,
    may_retry: bool = True,
) -> Settlement:
    """Queue the next attempt, or end the job if this was the last. It passes through `status`.

    Without `may_retry` the job ends in any case: its plugin does not want it repeated. The delay follows the
    retry policy of the step, or else of the plugin.
    """
    job = view.job
    failure = Transition(from_status=job.status, to_status=status, reason=log.reason)
    is_exhausted = job.attempt >= job.max_attempts
    if is_exhausted or not may_retry:
        reason = JobReason.ATTEMPTS_EXHAUSTED if is_exhausted else log.reason
        end = Transition(from_status=status, to_status=JobStatus.DEAD, reason=reason)
        return Settlement(transitions=(failure, end), attempt=job.attempt, last_error=log.error, log=log)
    retry = Transition(from_status=status, to_status=JobStatus.QUEUED, reason=JobReason.RETRY)
    step = None if view.run is None else view.run.info.graph.step(job.step_path)
    step_policy = None if step is None or step.retry is None else step.retry.policy
    return Settlement(
        transitions=(failure, retry),
        attempt=job.attempt + 1,
        next_retry_at=now + plan_delay(step_policy or policy.plugin(job.plugin).retry, job.attempt, rng),
        last_error=log.error,
        log=log,
    )


def _recover(view: SettleView, outcome: Orphaned, policy: Policy, now: datetime, rng: Random) -> Settlement:
    """Queue a job again that ran when the daemon died. It is a suspect: it may have caused the crash.

    The first end of a node is attributed to its machine, so all its jobs run elsewhere at once.
    """
    error = "the daemon died while the job ran"
    log = LogEntry(
        status=LogStatus.ORPHANED, reason=JobReason.ORPHANED, error=error, evidence=outcome.evidence
    )
    settlement = _retry_or_give_up(view, JobStatus.FAILED, log, policy, now, rng)
    if settlement.next_retry_at is None:
        return settlement
    recovered = Transition(
        from_status=view.job.status, to_status=JobStatus.QUEUED, reason=JobReason.RECOVERED
    )
    at_once = outcome.on_node and not view.job.suspect and not view.was_orphaned
    retry_at = now if at_once else min(settlement.next_retry_at, now + RECOVERY_DELAY_CAP)
    return replace(settlement, transitions=(recovered,), next_retry_at=retry_at, suspect=not at_once)


# -- success


def _succeed(view: SettleView, outcome: Completed, policy: Policy, now: datetime, rng: Random) -> Settlement:
    """Apply a response and route its events, or fail the job if the response cannot be applied."""
    job, response = view.job, outcome.response
    update = apply_state_updates(job, response.state_updates, view.state, view.state_claim_seq, policy)
    if (fault := _response_fault(response, update)) is not None:
        return _fail_permanently(job, outcome, *fault)
    events = () if job.command in SYSTEM_COMMANDS else _number_events(job, response, now, rng)
    progress = None
    if view.run is not None:
        progress = advance_run(view.run, job, events, response.result, policy, now, rng)
        if (size := view.run.jobs + len(progress.steps)) > MAX_RUN_JOBS:
            error = f"its events would give the run {size} steps; at most {MAX_RUN_JOBS} are allowed"
            return _fail_permanently(job, outcome, JobReason.RUN_TOO_LARGE, error)
    fanout = EMPTY_FANOUT
    if events and not (view.run is not None and view.run.cancelled):
        producer = EventProducer(
            submitted_by=SubmittedBy.ROUTE,
            job_id=job.id,
            execution=job.execution,
            run_id=job.run_id,
            context_id=job.event_context_id,
            baggage=view.baggage,
            hops=job.hops + 1,
            trace_id=job.trace_id,
            token=job.token,
        )
        fanout = fan_out(producer, events, policy, now, rng)
    transition = Transition(from_status=job.status, to_status=JobStatus.SUCCEEDED, reason=JobReason.COMPLETED)
    return Settlement(
        transitions=(transition,),
        attempt=job.attempt,
        artifacts=response.artifacts,
        log=LogEntry(
            status=LogStatus.SUCCEEDED, reason=JobReason.COMPLETED, error=None, evidence=outcome.evidence
        ),
        state=update.state,
        fact=update.fact,
        events=events,
        children=fanout.jobs,
        runs=fanout.runs,
        progress=progress,
        ledger=fanout.ledger + update.ledger,
    )


def _response_fault(response: PluginResponse, update: StateUpdate) -> tuple[JobReason, str] | None:
    """Return why a well-formed response cannot be applied; None if it can."""
    if len(response.events) > MAX_EVENTS:
        error = f"the plugin emitted {len(response.events)} events; at most {MAX_EVENTS} are allowed"
        return JobReason.TOO_MANY_EVENTS, error
    # The parts that are stored as JSON, nested as they are in the store.
    stored: list[JsonValue] = [response.state_updates, list(response.artifacts)]
    if isinstance(response.result, dict | list):
        stored.append({"result": response.result})
    stored += [event.payload for event in response.events]
    if any(stored) and nests_too_deep(stored):
        return JobReason.PROTOCOL_ERROR, f"the response is nested more than {MAX_DEPTH} levels deep"
    if update.too_large is not None:
        error = f"the state would be {update.too_large} bytes; at most {MAX_STATE_BYTES} are kept"
        return JobReason.STATE_TOO_LARGE, error
    return None


def _fail_permanently(job: Job, outcome: Completed, reason: JobReason, error: str) -> Settlement:
    log = LogEntry(status=LogStatus.FAILED, reason=reason, error=error, evidence=outcome.evidence)
    return _single_transition(job, JobStatus.FAILED, reason, error, log)


def _number_events(
    job: Job, response: PluginResponse, now: datetime, rng: Random
) -> tuple[IndexedEvent, ...]:
    """Return the events with their ids. A payload without a `result` gets that of the response."""
    return tuple(
        IndexedEvent(
            event=NewEvent(
                id=make_id(now, rng),
                type=event.type,
                source=job.plugin,
                payload=event.payload
                if "result" in event.payload
                else {**event.payload, "result": response.result},
                dedupe_key=event.dedupe_key,
            ),
            index=index,
        )
        for index, event in enumerate(response.events)
    )


# -- consequences of every outcome


def _update_breaker(
    view: SettleView, settlement: Settlement, policy: Policy, now: datetime
) -> Breaker | None:
    """Return the changed breaker after the end of a scheduled job; None if it did not change."""
    job = view.job
    if job.submitted_by is not SubmittedBy.SCHEDULER or not settlement.is_terminal:
        return None
    if settlement.status is JobStatus.SUCCEEDED:
        signal = BreakerResult.SUCCESS
    elif settlement.status is JobStatus.FAILED or settlement.reason in _FAILURES:
        signal = BreakerResult.FAILURE
    else:
        signal = BreakerResult.NONE
    before = view.breaker or Breaker()
    limits = policy.plugin(job.plugin).breaker
    after = breaker_after_job(before, signal, job_id=job.id, policy=limits, now=now)
    return None if after == before else after


def _update_schedule(
    view: SettleView, outcome: Outcome, settlement: Settlement, policy: Policy, now: datetime, rng: Random
) -> tuple[PlannedOccurrence | None, tuple[Skip, ...]]:
    """Return the next occurrence of an `every`, counted from the end of its latest run, and its skips.

    Occurrences that are due and have no row yet are skipped here with a reason. If that is not possible, the
    result is empty, and the scheduler decides about them.
    """
    if view.schedule_id is None or not settlement.is_terminal:
        return None, ()
    rule = policy.plugin(view.job.plugin).schedules.get(view.schedule_id)
    planned = None if rule is None else occurrence_after_run(rule, ended_at=now, rng=rng)
    due = view.next_occurrence
    if rule is None or planned is None or due is None or due.start_at > now:
        return planned, ()
    # Only for a job whose process ran is it certain that the job, not a stopped daemon, caused the delay.
    ran = view.job.status is JobStatus.RUNNING and not isinstance(outcome, Orphaned)
    if not ran or view.paused or rule.if_running is not IfRunning.SKIP:
        return None, ()
    skipped = skips_while_running(rule, due, now=now)
    return (None, ()) if skipped is None else (planned, skipped)


def _state_change(outcome: Outcome, settlement: Settlement) -> StateChange:
    reason = settlement.reason
    match settlement.status, outcome:
        case JobStatus.SUCCEEDED, RunEnded(result=result, artifacts=artifacts):
            return StateChange(state=WebhookState.DONE, reason=reason, result=result, artifacts=artifacts)
        case JobStatus.SUCCEEDED, Completed(response=response):
            return StateChange(
                state=WebhookState.DONE, reason=reason, result=response.result, artifacts=response.artifacts
            )
        case JobStatus.QUEUED, _:
            return StateChange(state=WebhookState.QUEUED, reason=reason)
        case _:
            return StateChange(state=WebhookState.FAILED, reason=reason, error=settlement.last_error)


def _fire_hooks(
    view: SettleView, outcome: Outcome, settlement: Settlement, policy: Policy, now: datetime, rng: Random
) -> Fanout:
    """Return the runs that the end of the job starts through `on-hook`."""
    if not settlement.is_terminal or not policy.pipelines.has_hooks:
        return EMPTY_FANOUT
    ending = JobEnding(
        status=settlement.status,
        timed_out=any(transition.to_status is JobStatus.TIMED_OUT for transition in settlement.transitions),
        error=settlement.last_error,
        attempt=settlement.attempt,
        duration=outcome.evidence.duration,
    )
    return fire_hooks(view.job, ending, view.baggage, policy, now, rng)
