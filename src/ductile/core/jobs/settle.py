"""The hinge: what follows from the end of an execution, all of it, as one value.

`settle` is called by the store inside the transaction that will apply its answer, with a view that
was read in that transaction. It is the only place that decides what becomes of a job.
"""

from __future__ import annotations

from datetime import datetime
from random import Random

from ductile.core.events.dispatch import EMPTY_FANOUT, EventProducer, Fanout, fan_out
from ductile.core.events.hooks import JobEnding, fire_hooks
from ductile.core.events.model import NewEvent, OutgoingEvent
from ductile.core.ids import make_id
from ductile.core.jobs import failures
from ductile.core.jobs.breaker import Breaker, BreakerSignal, breaker_after_job, breaker_change_reason
from ductile.core.jobs.model import Job, JobReason, JobStatus, SubmittedBy, Transition
from ductile.core.jobs.outcomes import (
    Completed,
    EndedEarly,
    Failed,
    Interrupted,
    Orphaned,
    Outcome,
    PluginResponse,
    RunEnded,
    StepNotCreated,
    TimedOut,
)
from ductile.core.jobs.plugin_state import CORE_COMMANDS, MAX_STATE_BYTES, StateUpdate, apply_state_updates
from ductile.core.jobs.settlement import (
    CallbackEvent,
    CallbackState,
    EventRecord,
    LogEntry,
    LogStatus,
    Settlement,
    SettleView,
)
from ductile.core.json import MAX_DEPTH, JsonValue, nests_too_deep
from ductile.core.policy import Policy
from ductile.core.runs.progress import advance_run, fail_token
from ductile.core.runs.state import MAX_RUN_JOBS, RunProgress
from ductile.core.schedules.planner import Skip, skips_while_running
from ductile.core.schedules.rule import IfRunning, Slot, slot_after_run
from ductile.struct import replace

MAX_EVENTS = 1000


def settle(view: SettleView, outcome: Outcome, rules: Policy, now: datetime, rng: Random) -> Settlement:
    """Decide what follows from `outcome` for the job in `view`."""
    settlement = _decide(view, outcome, rules, now, rng)
    breaker = _breaker_after(view, settlement, rules, now)
    next_slot, skipped = _schedule_after(view, outcome, settlement, rules, now, rng)
    callback = _callback_for(view.job, outcome, settlement)
    hooked = _hooks_for(view, outcome, settlement, rules, now, rng)
    progress = settlement.progress or _give_up_line(view, settlement, rules, now, rng)
    if hooked is EMPTY_FANOUT and not (breaker or next_slot or callback or progress):
        return settlement
    reason = None if breaker is None else breaker_change_reason(view.breaker or Breaker(), breaker)
    return replace(
        settlement,
        breaker=breaker,
        breaker_reason=reason,
        next_slot=next_slot,
        skipped=skipped,
        callback=callback,
        progress=progress,
        runs=settlement.runs + hooked.runs,
        ledger=settlement.ledger + hooked.ledger,
    )


def _decide(view: SettleView, outcome: Outcome, rules: Policy, now: datetime, rng: Random) -> Settlement:
    job = view.job
    if job.cancel_requested_at is not None and not _is_cancelled(outcome):
        # Whatever it answered meanwhile is kept in the log and changes nothing else.
        outcome = EndedEarly(reason=JobReason.CANCELLED, error="cancelled", evidence=outcome.evidence)
    match outcome:
        case Completed():
            return _succeed(view, outcome, rules, now, rng)
        case Failed():
            return failures.fail(view, outcome, rules, now, rng)
        case TimedOut():
            return failures.time_out(view, outcome, rules, now, rng)
        case Interrupted():
            return failures.interrupt(job, outcome)
        case Orphaned():
            return failures.recover(view, outcome, rules, now, rng)
        case EndedEarly():
            return failures.end(job, outcome)
        case StepNotCreated():
            return failures.not_made(job, outcome)
        case RunEnded():
            return failures.end_run(job, outcome)


def _is_cancelled(outcome: Outcome) -> bool:
    return isinstance(outcome, EndedEarly) and outcome.reason is JobReason.CANCELLED


def _succeed(view: SettleView, outcome: Completed, rules: Policy, now: datetime, rng: Random) -> Settlement:
    job, response = view.job, outcome.response
    kept = apply_state_updates(job, response.state_updates, view.state, view.state_claim_seq, rules)
    if refused := _why_refused(response, kept):
        return failures.fail(view, failures.refusal(*refused, outcome), rules, now, rng)
    events = _record_events(job, response, now, rng)
    progress = _go_on(view, events, response.result, rules, now, rng)
    if view.run is not None and progress is not None:
        size = view.run.jobs + len(progress.steps)
        if size > MAX_RUN_JOBS:
            error = f"its events would give the run {size} steps; at most {MAX_RUN_JOBS} are allowed"
            return failures.fail(
                view, failures.refusal(JobReason.RUN_TOO_LARGE, error, outcome), rules, now, rng
            )
    started = (
        EMPTY_FANOUT
        if view.run is not None and view.run.cancelled
        else _fan_out(view, events, rules, now, rng)
    )
    edge = Transition(from_status=job.status, to_status=JobStatus.SUCCEEDED, reason=JobReason.COMPLETED)
    return Settlement(
        transitions=(edge,),
        attempt=job.attempt,
        artifacts=response.artifacts,
        log=LogEntry(
            status=LogStatus.SUCCEEDED, reason=JobReason.COMPLETED, error=None, evidence=outcome.evidence
        ),
        state=kept.state,
        fact=kept.fact,
        events=events,
        children=started.jobs,
        runs=started.runs,
        progress=progress,
        ledger=started.ledger + kept.ledger,
    )


def _why_refused(response: PluginResponse, kept: StateUpdate) -> tuple[JobReason, str] | None:
    """An answer that is well-formed and cannot be applied."""
    if len(response.events) > MAX_EVENTS:
        error = f"the plugin emitted {len(response.events)} events; at most {MAX_EVENTS} are allowed"
        return JobReason.TOO_MANY_EVENTS, error
    if _is_nested(response) and nests_too_deep(_kept_parts(response)):
        return JobReason.PROTOCOL_ERROR, f"the answer is nested more than {MAX_DEPTH} levels deep"
    if kept.too_large is not None:
        error = f"the state would be {kept.too_large} bytes; at most {MAX_STATE_BYTES} are kept"
        return JobReason.STATE_TOO_LARGE, error
    return None


def _go_on(
    view: SettleView,
    events: tuple[EventRecord, ...],
    result: JsonValue,
    rules: Policy,
    now: datetime,
    rng: Random,
) -> RunProgress | None:
    """The next steps of the run that a succeeded job is a step of."""
    if view.run is None:
        return None
    emitted = [OutgoingEvent(event=as_event(event, view.job.plugin), index=event.index) for event in events]
    return advance_run(view.run, view.job, emitted, result, rules, now, rng)


def _give_up_line(
    view: SettleView, settlement: Settlement, rules: Policy, now: datetime, rng: Random
) -> RunProgress | None:
    """A step that ended without success ends its line."""
    if view.run is None or not settlement.is_terminal:
        return None
    return fail_token(view.run, view.job, settlement.last_error, rules, now, rng)


def _is_nested(response: PluginResponse) -> bool:
    return bool(
        isinstance(response.result, dict | list)
        or response.state_updates
        or response.artifacts
        or response.events
    )


def _kept_parts(response: PluginResponse) -> JsonValue:
    """Everything of an answer that is stored as JSON of our own, each as deep as it will stand there."""
    return [
        {"result": response.result},
        response.state_updates,
        list(response.artifacts),
        *(event.payload for event in response.events),
    ]


def _record_events(job: Job, response: PluginResponse, now: datetime, rng: Random) -> tuple[EventRecord, ...]:
    if job.command in CORE_COMMANDS:
        return ()
    return tuple(
        EventRecord(
            id=make_id(now, rng),
            index=index,
            type=event.type,
            # What is passed on carries the answer's result unless the event brings its own.
            payload=event.payload
            if "result" in event.payload
            else {**event.payload, "result": response.result},
            dedupe_key=event.dedupe_key,
        )
        for index, event in enumerate(response.events)
    )


def _fan_out(
    view: SettleView, events: tuple[EventRecord, ...], rules: Policy, now: datetime, rng: Random
) -> Fanout:
    """What the events start outside of the job's own run."""
    if not events:
        return EMPTY_FANOUT
    job = view.job
    sender = EventProducer(
        submitted_by=SubmittedBy.ROUTE,
        job_id=job.id,
        execution=job.execution,
        run_id=job.run_id,
        context_id=job.event_context_id,
        baggage=view.baggage,
        hops=job.hops + 1,
        trace_id=job.trace_id,
    )
    told = [OutgoingEvent(event=as_event(event, job.plugin), index=event.index) for event in events]
    return fan_out(sender, told, rules, now, rng)


def as_event(record: EventRecord, source: str) -> NewEvent:
    return NewEvent(
        id=record.id,
        type=record.type,
        source=source,
        payload=record.payload,
        dedupe_key=record.dedupe_key,
    )


def _breaker_after(view: SettleView, settlement: Settlement, rules: Policy, now: datetime) -> Breaker | None:
    """The breaker's new value when a scheduler's job has ended, else None."""
    job = view.job
    if job.submitted_by is not SubmittedBy.SCHEDULER or not settlement.is_terminal:
        return None
    before = view.breaker or Breaker()
    policy = rules.plugin(job.plugin).breaker
    after = breaker_after_job(before, _verdict(settlement), job_id=job.id, policy=policy, now=now)
    return None if after == before else after


def _schedule_after(
    view: SettleView, outcome: Outcome, settlement: Settlement, rules: Policy, now: datetime, rng: Random
) -> tuple[Slot | None, tuple[Skip, ...]]:
    """The next run of an `every`: counted from the end of its latest one, good or bad.

    Instants that are due already and have no row, because the scheduler has not come to them, are not passed
    over: they are skipped here, or the schedule stays where it is and the scheduler decides about them.
    """
    if view.latest_of is None or not settlement.is_terminal:
        return None, ()
    rule = rules.plugin(view.job.plugin).schedules.get(view.latest_of)
    following = None if rule is None else slot_after_run(rule, ended_at=now, rng=rng)
    if rule is None or following is None or view.slot is None or view.slot.start_at > now:
        return following, ()
    # Only while its process ran is it certain that a run was the reason, and not a daemon that was down.
    ran = view.job.status is JobStatus.RUNNING and not isinstance(outcome, Orphaned)
    if not ran or view.paused or rule.if_running is not IfRunning.SKIP:
        return None, ()
    skipped = skips_while_running(rule, view.slot, now=now)
    return (None, ()) if skipped is None else (following, skipped)


def _verdict(settlement: Settlement) -> BreakerSignal:
    if settlement.status is JobStatus.SUCCEEDED:
        return BreakerSignal.SUCCESS
    if settlement.status is JobStatus.FAILED or settlement.reason is JobReason.ATTEMPTS_EXHAUSTED:
        return BreakerSignal.FAILURE
    return BreakerSignal.NONE


def _callback_for(job: Job, outcome: Outcome, settlement: Settlement) -> CallbackEvent | None:
    if job.callback is None:
        return None
    reason = settlement.reason
    match settlement.status:
        case JobStatus.SUCCEEDED if isinstance(outcome, RunEnded):
            return CallbackEvent(
                state=CallbackState.DONE, reason=reason, result=outcome.result, artifacts=outcome.artifacts
            )
        case JobStatus.SUCCEEDED if isinstance(outcome, Completed):
            return CallbackEvent(
                state=CallbackState.DONE,
                reason=reason,
                result=outcome.response.result,
                artifacts=outcome.response.artifacts,
            )
        case JobStatus.QUEUED:
            return CallbackEvent(state=CallbackState.QUEUED, reason=reason)
        case _:
            return CallbackEvent(state=CallbackState.FAILED, reason=reason, error=settlement.last_error)


def _hooks_for(
    view: SettleView, outcome: Outcome, settlement: Settlement, rules: Policy, now: datetime, rng: Random
) -> Fanout:
    """The runs that the end of a job starts, if pipelines want to be told of it."""
    if not settlement.is_terminal or not rules.pipelines.have_hooks:
        return EMPTY_FANOUT
    ending = JobEnding(
        status=settlement.status,
        timed_out=any(edge.to_status is JobStatus.TIMED_OUT for edge in settlement.transitions),
        error=settlement.last_error,
        attempt=settlement.attempt,
        duration=outcome.evidence.duration,
    )
    return fire_hooks(view.job, ending, view.baggage, rules, now, rng)
