"""The hinge: what follows from the end of an execution, all of it, as one value (ENGINE 1).

`settle` is called by the store inside the transaction that will apply its answer, with a view that
was read in that transaction. It is the only place that decides what becomes of a job.
"""

from __future__ import annotations

from datetime import datetime
from random import Random

from ductile.core import endings
from ductile.core.breaker import Breaker, Verdict, after_job, reason_for
from ductile.core.fanout import NOBODY, Fanout, Sender, Told, fan_out
from ductile.core.hooks import JobEnding, fire_hooks
from ductile.core.ids import make_id
from ductile.core.jobs import Job, JobStatus, Reason, SubmittedBy, Transition
from ductile.core.json_values import MAX_DEPTH, JsonValue, nests_too_deep
from ductile.core.keeping import CORE_COMMANDS, MAX_STATE_BYTES, Kept, keep_state
from ductile.core.lineage import NewEvent
from ductile.core.occurrences import Skip, skips_while_running
from ductile.core.outcomes import (
    Completed,
    Ended,
    Failed,
    Interrupted,
    NotMade,
    Orphaned,
    Outcome,
    Response,
    RunEnded,
    TimedOut,
)
from ductile.core.rules import Rules
from ductile.core.run_values import MAX_RUN_JOBS, Progress
from ductile.core.runs import Emission, advance, give_up
from ductile.core.schedule import IfRunning, Slot, redrawn_slot
from ductile.core.settlement import (
    CallbackEvent,
    CallbackState,
    EventRecord,
    LogEntry,
    LogStatus,
    Settlement,
    SettleView,
)
from ductile.value import replace

MAX_EVENTS = 1000


def settle(view: SettleView, outcome: Outcome, rules: Rules, now: datetime, dice: Random) -> Settlement:
    """Decide what follows from `outcome` for the job in `view`."""
    settlement = _decide(view, outcome, rules, now, dice)
    breaker = _breaker_after(view, settlement, rules, now)
    next_slot, skipped = _schedule_after(view, outcome, settlement, rules, now, dice)
    callback = _callback_for(view.job, outcome, settlement)
    hooked = _hooks_for(view, outcome, settlement, rules, now, dice)
    progress = settlement.progress or _give_up_line(view, settlement, rules, now, dice)
    if hooked is NOBODY and not (breaker or next_slot or callback or progress):
        return settlement
    reason = None if breaker is None else reason_for(view.breaker or Breaker(), breaker)
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


def _decide(view: SettleView, outcome: Outcome, rules: Rules, now: datetime, dice: Random) -> Settlement:
    job = view.job
    if job.cancel_requested_at is not None and not _is_cancelled(outcome):
        # Whatever it answered meanwhile is kept in the log and changes nothing else (ENGINE 3).
        outcome = Ended(reason=Reason.CANCELLED, error="cancelled", evidence=outcome.evidence)
    match outcome:
        case Completed():
            return _succeed(view, outcome, rules, now, dice)
        case Failed():
            return endings.fail(view, outcome, rules, now, dice)
        case TimedOut():
            return endings.time_out(view, outcome, rules, now, dice)
        case Interrupted():
            return endings.interrupt(job, outcome)
        case Orphaned():
            return endings.recover(view, outcome, rules, now, dice)
        case Ended():
            return endings.end(job, outcome)
        case NotMade():
            return endings.not_made(job, outcome)
        case RunEnded():
            return endings.end_run(job, outcome)


def _is_cancelled(outcome: Outcome) -> bool:
    return isinstance(outcome, Ended) and outcome.reason is Reason.CANCELLED


def _succeed(view: SettleView, outcome: Completed, rules: Rules, now: datetime, dice: Random) -> Settlement:
    job, response = view.job, outcome.response
    kept = keep_state(job, response.state_updates, view.state, view.state_claim_seq, rules)
    if refused := _why_refused(response, kept):
        return endings.fail(view, endings.refusal(*refused, outcome), rules, now, dice)
    events = _record_events(job, response, now, dice)
    progress = _go_on(view, events, response.result, rules, now, dice)
    if view.run is not None and progress is not None:
        size = view.run.jobs + len(progress.steps)
        if size > MAX_RUN_JOBS:
            error = f"its events would give the run {size} steps; at most {MAX_RUN_JOBS} are allowed"
            return endings.fail(view, endings.refusal(Reason.RUN_TOO_LARGE, error, outcome), rules, now, dice)
    started = (
        NOBODY if view.run is not None and view.run.cancelled else _fan_out(view, events, rules, now, dice)
    )
    edge = Transition(from_status=job.status, to_status=JobStatus.SUCCEEDED, reason=Reason.COMPLETED)
    return Settlement(
        transitions=(edge,),
        attempt=job.attempt,
        artifacts=response.artifacts,
        log=LogEntry(
            status=LogStatus.SUCCEEDED, reason=Reason.COMPLETED, error=None, evidence=outcome.evidence
        ),
        state=kept.state,
        fact=kept.fact,
        events=events,
        children=started.jobs,
        runs=started.runs,
        progress=progress,
        ledger=started.ledger + kept.ledger,
    )


def _why_refused(response: Response, kept: Kept) -> tuple[Reason, str] | None:
    """An answer that is well-formed and cannot be applied."""
    if len(response.events) > MAX_EVENTS:
        error = f"the plugin emitted {len(response.events)} events; at most {MAX_EVENTS} are allowed"
        return Reason.TOO_MANY_EVENTS, error
    if _is_nested(response) and nests_too_deep(_kept_parts(response)):
        return Reason.PROTOCOL_ERROR, f"the answer is nested more than {MAX_DEPTH} levels deep"
    if kept.too_large is not None:
        error = f"the state would be {kept.too_large} bytes; at most {MAX_STATE_BYTES} are kept"
        return Reason.STATE_TOO_LARGE, error
    return None


def _go_on(
    view: SettleView,
    events: tuple[EventRecord, ...],
    result: JsonValue,
    rules: Rules,
    now: datetime,
    dice: Random,
) -> Progress | None:
    """The next steps of the run that a succeeded job is a step of."""
    if view.run is None:
        return None
    emitted = [Emission(event=as_event(event, view.job.plugin), index=event.index) for event in events]
    return advance(view.run, view.job, emitted, result, rules, now, dice)


def _give_up_line(
    view: SettleView, settlement: Settlement, rules: Rules, now: datetime, dice: Random
) -> Progress | None:
    """A step that ended without success ends its line."""
    if view.run is None or not settlement.is_terminal:
        return None
    return give_up(view.run, view.job, settlement.last_error, rules, now, dice)


def _is_nested(response: Response) -> bool:
    return bool(
        isinstance(response.result, dict | list)
        or response.state_updates
        or response.artifacts
        or response.events
    )


def _kept_parts(response: Response) -> JsonValue:
    """Everything of an answer that is stored as JSON of our own, each as deep as it will stand there."""
    return [
        {"result": response.result},
        response.state_updates,
        list(response.artifacts),
        *(event.payload for event in response.events),
    ]


def _record_events(job: Job, response: Response, now: datetime, dice: Random) -> tuple[EventRecord, ...]:
    if job.command in CORE_COMMANDS:
        return ()
    return tuple(
        EventRecord(
            id=make_id(now, dice),
            index=index,
            type=event.type,
            # What is passed on carries the answer's result unless the event brings its own (SPEC 3.3).
            payload=event.payload
            if "result" in event.payload
            else {**event.payload, "result": response.result},
            dedupe_key=event.dedupe_key,
        )
        for index, event in enumerate(response.events)
    )


def _fan_out(
    view: SettleView, events: tuple[EventRecord, ...], rules: Rules, now: datetime, dice: Random
) -> Fanout:
    """What the events start outside of the job's own run."""
    if not events:
        return NOBODY
    job = view.job
    sender = Sender(
        submitted_by=SubmittedBy.ROUTE,
        job_id=job.id,
        execution=job.execution,
        run_id=job.run_id,
        context_id=job.event_context_id,
        baggage=view.baggage,
        hops=job.hops + 1,
        trace_id=job.trace_id,
    )
    told = [Told(event=as_event(event, job.plugin), index=event.index) for event in events]
    return fan_out(sender, told, rules, now, dice)


def as_event(record: EventRecord, source: str) -> NewEvent:
    return NewEvent(
        id=record.id,
        type=record.type,
        source=source,
        payload=record.payload,
        dedupe_key=record.dedupe_key,
    )


def _breaker_after(view: SettleView, settlement: Settlement, rules: Rules, now: datetime) -> Breaker | None:
    """The breaker's new value when a scheduler's job has ended, else None."""
    job = view.job
    if job.submitted_by is not SubmittedBy.SCHEDULER or not settlement.is_terminal:
        return None
    before = view.breaker or Breaker()
    policy = rules.plugin(job.plugin).breaker
    after = after_job(before, _verdict(settlement), job_id=job.id, policy=policy, now=now)
    return None if after == before else after


def _schedule_after(
    view: SettleView, outcome: Outcome, settlement: Settlement, rules: Rules, now: datetime, dice: Random
) -> tuple[Slot | None, tuple[Skip, ...]]:
    """The next run of an `every`: counted from the end of its latest one, good or bad (SPEC 5.2).

    Instants that are due already and have no row, because the scheduler has not come to them, are not passed
    over: they are skipped here, or the schedule stays where it is and the scheduler decides about them.
    """
    if view.latest_of is None or not settlement.is_terminal:
        return None, ()
    rule = rules.plugin(view.job.plugin).schedules.get(view.latest_of)
    following = None if rule is None else redrawn_slot(rule, ended_at=now, dice=dice)
    if rule is None or following is None or view.slot is None or view.slot.start_at > now:
        return following, ()
    # Only while its process ran is it certain that a run was the reason, and not a daemon that was down.
    ran = view.job.status is JobStatus.RUNNING and not isinstance(outcome, Orphaned)
    if not ran or view.paused or rule.if_running is not IfRunning.SKIP:
        return None, ()
    skipped = skips_while_running(rule, view.slot, now=now)
    return (None, ()) if skipped is None else (following, skipped)


def _verdict(settlement: Settlement) -> Verdict:
    if settlement.status is JobStatus.SUCCEEDED:
        return Verdict.SUCCESS
    if settlement.status is JobStatus.FAILED or settlement.reason is Reason.ATTEMPTS_EXHAUSTED:
        return Verdict.FAILURE
    return Verdict.NONE


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
    view: SettleView, outcome: Outcome, settlement: Settlement, rules: Rules, now: datetime, dice: Random
) -> Fanout:
    """The runs that the end of a job starts, if pipelines want to be told of it (SPEC 7.6)."""
    if not settlement.is_terminal or not rules.pipelines.have_hooks:
        return NOBODY
    ending = JobEnding(
        status=settlement.status,
        timed_out=any(edge.to_status is JobStatus.TIMED_OUT for edge in settlement.transitions),
        error=settlement.last_error,
        attempt=settlement.attempt,
        duration=outcome.evidence.duration,
    )
    return fire_hooks(view.job, ending, view.baggage, rules, now, dice)
