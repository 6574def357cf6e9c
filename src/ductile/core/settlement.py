"""The hinge: what follows from the end of an execution, all of it, as one value (ENGINE 1).

`settle` is called by the store inside the transaction that will apply its answer, with a view that
was read in that transaction. It is the only place that decides what becomes of a job.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum
from random import Random

from ductile.core.breaker import Breaker, BreakerReason, Verdict, after_job, reason_for
from ductile.core.dedupe import KeyDoor, namespaced_key
from ductile.core.ids import make_id
from ductile.core.jobs import (
    TERMINAL,
    Job,
    JobStatus,
    NewJob,
    Origin,
    Reason,
    SubmittedBy,
    Transition,
)
from ductile.core.json_values import MAX_DEPTH, JsonObject, JsonValue, encoded_size, nests_too_deep
from ductile.core.ledger import LedgerEntry, LedgerKind
from ductile.core.outcomes import (
    Completed,
    Ended,
    Evidence,
    Failed,
    Interrupted,
    NotMade,
    Orphaned,
    Outcome,
    Response,
    TimedOut,
)
from ductile.core.retry import plan_delay
from ductile.core.rules import Rules
from ductile.core.schedule import Slot, redrawn_slot

MAX_STATE_BYTES = 1024 * 1024
MAX_EVENTS = 1000
#: A recovered job waits its retry delay, but never longer than this: the crash was not its fault.
RECOVERY_DELAY_CAP = timedelta(seconds=60)
#: Commands the core runs for itself: their events are not routed and their state is not kept (SPEC 3.5).
CORE_COMMANDS = frozenset({"health", "init"})


class LogStatus(StrEnum):
    """How one execution ended, as its row in the job log says."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    TIMED_OUT = "timed_out"
    CANCELLED = "cancelled"
    INTERRUPTED = "interrupted"
    ORPHANED = "orphaned"
    SUPERSEDED = "superseded"


@dataclass(frozen=True, slots=True, kw_only=True)
class SettleView:
    """What surrounds the job at this instant, read under the same lock that the answer is written."""

    job: Job
    state: JsonObject
    #: Claim number of the job that last wrote the state.
    state_claim_seq: int = 0
    breaker: Breaker | None = None
    #: The schedule whose latest run this job is, if it is one.
    latest_of: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class EventRecord:
    """An emitted event as it is stored: once, however many jobs it starts."""

    id: str
    index: int
    type: str
    payload: JsonObject
    dedupe_key: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class LogEntry:
    status: LogStatus
    reason: Reason
    error: str | None
    evidence: Evidence


@dataclass(frozen=True, slots=True, kw_only=True)
class FactEntry:
    fact_type: str
    body: JsonObject


class CallbackState(StrEnum):
    """The words of state webhooks (SPEC 9.3)."""

    QUEUED = "queued"
    LOADING = "loading"
    WORKING = "working"
    DONE = "done"
    FAILED = "failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class CallbackEvent:
    state: CallbackState
    error: str | None = None
    result: JsonValue = None
    artifacts: tuple[JsonValue, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Settlement:
    """Everything that follows. The store applies all of it in one transaction, or nothing."""

    transitions: tuple[Transition, ...]
    attempt: int
    next_retry_at: datetime | None = None
    last_error: str | None = None
    suspect: bool = False
    artifacts: tuple[JsonValue, ...] = ()
    log: LogEntry | None = None
    state: JsonObject | None = None
    fact: FactEntry | None = None
    events: tuple[EventRecord, ...] = ()
    children: tuple[NewJob, ...] = ()
    breaker: Breaker | None = None
    #: Why the breaker changed its state; None where only its counts did.
    breaker_reason: BreakerReason | None = None
    #: Where the job's schedule goes on, if its end decides that.
    next_slot: Slot | None = None
    callback: CallbackEvent | None = None
    ledger: tuple[LedgerEntry, ...] = ()

    @property
    def status(self) -> JobStatus:
        return self.transitions[-1].to_status

    @property
    def reason(self) -> Reason:
        return self.transitions[-1].reason

    @property
    def is_terminal(self) -> bool:
        return self.status in TERMINAL


def settle(view: SettleView, outcome: Outcome, rules: Rules, now: datetime, dice: Random) -> Settlement:
    """Decide what follows from `outcome` for the job in `view`."""
    settlement = _decide(view, outcome, rules, now, dice)
    breaker = _breaker_after(view, settlement, rules, now)
    next_slot = _slot_after(view, settlement, rules, now, dice)
    callback = _callback_for(view.job, outcome, settlement)
    if breaker is None and next_slot is None and callback is None:
        return settlement
    reason = None if breaker is None else reason_for(view.breaker or Breaker(), breaker)
    return replace(settlement, breaker=breaker, breaker_reason=reason, next_slot=next_slot, callback=callback)


def _decide(view: SettleView, outcome: Outcome, rules: Rules, now: datetime, dice: Random) -> Settlement:
    job = view.job
    if job.cancel_requested_at is not None and not isinstance(outcome, Ended):
        # Whatever it answered meanwhile is kept in the log and changes nothing else (ENGINE 3).
        outcome = Ended(reason=Reason.CANCELLED, error="cancelled", evidence=outcome.evidence)
    match outcome:
        case Completed():
            return _succeed(view, outcome, rules, now, dice)
        case Failed():
            return _fail(job, outcome, rules, now, dice)
        case TimedOut():
            through = Transition(
                from_status=JobStatus.RUNNING, to_status=JobStatus.TIMED_OUT, reason=Reason.DEADLINE_EXCEEDED
            )
            log = LogEntry(
                status=LogStatus.TIMED_OUT,
                reason=Reason.DEADLINE_EXCEEDED,
                error=outcome.error,
                evidence=outcome.evidence,
            )
            return _retry_or_give_up(job, through, log, rules, now, dice)
        case Interrupted():
            return _interrupt(job, outcome)
        case Orphaned():
            return _recover(job, outcome, rules, now, dice)
        case Ended():
            return _end(job, outcome)
        case NotMade():
            edge = Transition(from_status=job.status, to_status=JobStatus.FAILED, reason=outcome.reason)
            return Settlement(transitions=(edge,), attempt=job.attempt, last_error=outcome.error)


def _succeed(view: SettleView, outcome: Completed, rules: Rules, now: datetime, dice: Random) -> Settlement:
    job, response = view.job, outcome.response
    if len(response.events) > MAX_EVENTS:
        error = f"the plugin emitted {len(response.events)} events; at most {MAX_EVENTS} are allowed"
        return _fail(job, _refusal(Reason.TOO_MANY_EVENTS, error, outcome), rules, now, dice)
    if nests_too_deep(_kept_parts(response)):
        error = f"the answer is nested more than {MAX_DEPTH} levels deep"
        return _fail(job, _refusal(Reason.PROTOCOL_ERROR, error, outcome), rules, now, dice)
    kept = _keep_state(view, response, rules)
    if kept.too_large is not None:
        error = f"the state would be {kept.too_large} bytes; at most {MAX_STATE_BYTES} are kept"
        return _fail(job, _refusal(Reason.STATE_TOO_LARGE, error, outcome), rules, now, dice)
    events = _record_events(job, response, now, dice)
    children, dropped = _route(job, events, rules, now, dice)
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
        children=children,
        ledger=dropped + kept.ledger,
    )


def _kept_parts(response: Response) -> JsonValue:
    """Everything of an answer that is stored as JSON of our own, each as deep as it will stand there."""
    return [
        {"result": response.result},
        response.state_updates,
        list(response.artifacts),
        *(event.payload for event in response.events),
    ]


def _refusal(reason: Reason, error: str, outcome: Completed) -> Failed:
    """An answer that is well-formed but cannot be applied: a permanent failure of the attempt."""
    return Failed(reason=reason, error=error, permanent=True, evidence=outcome.evidence)


def _fail(job: Job, outcome: Failed, rules: Rules, now: datetime, dice: Random) -> Settlement:
    through = Transition(from_status=job.status, to_status=JobStatus.FAILED, reason=outcome.reason)
    log = LogEntry(
        status=LogStatus.FAILED, reason=outcome.reason, error=outcome.error, evidence=outcome.evidence
    )
    if outcome.permanent:
        return Settlement(transitions=(through,), attempt=job.attempt, last_error=outcome.error, log=log)
    return _retry_or_give_up(job, through, log, rules, now, dice)


def _retry_or_give_up(
    job: Job, through: Transition, log: LogEntry, rules: Rules, now: datetime, dice: Random
) -> Settlement:
    if job.attempt >= job.max_attempts:
        last = Transition(
            from_status=through.to_status, to_status=JobStatus.DEAD, reason=Reason.ATTEMPTS_EXHAUSTED
        )
        return Settlement(transitions=(through, last), attempt=job.attempt, last_error=log.error, log=log)
    back = Transition(from_status=through.to_status, to_status=JobStatus.QUEUED, reason=Reason.RETRY)
    return Settlement(
        transitions=(through, back),
        attempt=job.attempt + 1,
        next_retry_at=now + plan_delay(rules.plugin(job.plugin).retry, job.attempt, dice),
        last_error=log.error,
        log=log,
    )


def _interrupt(job: Job, outcome: Interrupted) -> Settlement:
    back = Transition(from_status=job.status, to_status=JobStatus.QUEUED, reason=Reason.INTERRUPTED)
    return Settlement(
        transitions=(back,),
        attempt=job.attempt,
        last_error=job.last_error,
        suspect=job.suspect,
        log=LogEntry(
            status=LogStatus.INTERRUPTED,
            reason=Reason.INTERRUPTED,
            error="the daemon was stopped while the job ran",
            evidence=outcome.evidence,
        ),
    )


def _recover(job: Job, outcome: Orphaned, rules: Rules, now: datetime, dice: Random) -> Settlement:
    error = "the daemon died while the job ran"
    log = LogEntry(status=LogStatus.ORPHANED, reason=Reason.ORPHANED, error=error, evidence=outcome.evidence)
    if job.attempt >= job.max_attempts:
        through = Transition(from_status=job.status, to_status=JobStatus.FAILED, reason=Reason.ORPHANED)
        return _retry_or_give_up(job, through, log, rules, now, dice)
    delay = min(plan_delay(rules.plugin(job.plugin).retry, job.attempt, dice), RECOVERY_DELAY_CAP)
    back = Transition(from_status=job.status, to_status=JobStatus.QUEUED, reason=Reason.RECOVERED)
    return Settlement(
        transitions=(back,),
        attempt=job.attempt + 1,
        next_retry_at=now + delay,
        last_error=error,
        suspect=True,
        log=log,
    )


def _end(job: Job, outcome: Ended) -> Settlement:
    edge = Transition(from_status=job.status, to_status=JobStatus.DEAD, reason=outcome.reason)
    log = LogEntry(
        status=LogStatus.CANCELLED, reason=outcome.reason, error=outcome.error, evidence=outcome.evidence
    )
    return Settlement(
        transitions=(edge,),
        attempt=job.attempt,
        last_error=outcome.error,
        log=log if job.status is JobStatus.RUNNING else None,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Kept:
    state: JsonObject | None = None
    fact: FactEntry | None = None
    too_large: int | None = None
    ledger: tuple[LedgerEntry, ...] = ()


def _keep_state(view: SettleView, response: Response, rules: Rules) -> _Kept:
    """What becomes of `state_updates`: merged into the state, or a fact that may replace it (SPEC 3.6)."""
    job, updates = view.job, response.state_updates
    if not updates or job.command in CORE_COMMANDS:
        return _Kept()
    rule = rules.plugin(job.plugin).fact_rule(job.command)
    state = {**view.state, **updates} if rule is None else updates
    if (size := encoded_size(state)) > MAX_STATE_BYTES:
        return _Kept(too_large=size)
    if rule is None:
        return _Kept(state=state)
    fact = FactEntry(fact_type=rule.fact_type, body=updates)
    if not rule.mirror:
        return _Kept(fact=fact)
    if view.state_claim_seq > job.claim_seq:
        stale: JsonObject = {"plugin": job.plugin, "fact_type": rule.fact_type}
        entry = LedgerEntry(kind=LedgerKind.STATE_STALE, job_id=job.id, run_id=job.run_id, data=stale)
        return _Kept(fact=fact, ledger=(entry,))
    return _Kept(fact=fact, state=state)


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


def _route(
    job: Job, events: tuple[EventRecord, ...], rules: Rules, now: datetime, dice: Random
) -> tuple[tuple[NewJob, ...], tuple[LedgerEntry, ...]]:
    """The jobs that the events start, and an entry for each event that had crossed too many hops."""
    children: list[NewJob] = []
    dropped: list[LedgerEntry] = []
    for event in events:
        routes = rules.routes.matching(job.plugin, event.type)
        if routes and job.hops >= rules.max_hops:
            data: JsonObject = {
                "event_id": event.id,
                "event_type": event.type,
                "targets": [route.target for route in routes],
                "error": f"the event had crossed {job.hops} hops, the limit (service.max_hops)",
            }
            dropped.append(
                LedgerEntry(kind=LedgerKind.EVENT_DROPPED, job_id=job.id, run_id=job.run_id, data=data)
            )
            continue
        children += [
            NewJob(
                id=make_id(now, dice),
                plugin=route.plugin,
                command=route.command,
                submitted_by=SubmittedBy.ROUTE,
                submitted_detail=f"{job.plugin}:{event.type}",
                max_attempts=rules.plugin(route.plugin).retry.max_attempts,
                dedupe_key=namespaced_key(KeyDoor.EVENT, event.dedupe_key),
                parent_job_id=job.id,
                source_event_id=event.id,
                event_context_id=job.event_context_id,
                hops=job.hops + 1,
                trace_id=job.trace_id,
                origin=Origin(
                    job_id=job.id,
                    execution=job.execution,
                    event_index=event.index,
                    target=route.target,
                ),
            )
            for route in routes
        ]
    return tuple(children), tuple(dropped)


def _breaker_after(view: SettleView, settlement: Settlement, rules: Rules, now: datetime) -> Breaker | None:
    """The breaker's new value when a scheduler's job has ended, else None."""
    job = view.job
    if job.submitted_by is not SubmittedBy.SCHEDULER or not settlement.is_terminal:
        return None
    before = view.breaker or Breaker()
    policy = rules.plugin(job.plugin).breaker
    after = after_job(before, _verdict(settlement), job_id=job.id, policy=policy, now=now)
    return None if after == before else after


def _slot_after(
    view: SettleView, settlement: Settlement, rules: Rules, now: datetime, dice: Random
) -> Slot | None:
    """The next run of an `every`: counted from the end of its latest one, good or bad (SPEC 5.2)."""
    if view.latest_of is None or not settlement.is_terminal:
        return None
    rule = rules.plugin(view.job.plugin).schedules.get(view.latest_of)
    return None if rule is None else redrawn_slot(rule, ended_at=now, dice=dice)


def _verdict(settlement: Settlement) -> Verdict:
    if settlement.status is JobStatus.SUCCEEDED:
        return Verdict.SUCCESS
    if settlement.status is JobStatus.FAILED or settlement.reason is Reason.ATTEMPTS_EXHAUSTED:
        return Verdict.FAILURE
    return Verdict.NONE


def _callback_for(job: Job, outcome: Outcome, settlement: Settlement) -> CallbackEvent | None:
    if job.callback is None:
        return None
    match settlement.status:
        case JobStatus.SUCCEEDED if isinstance(outcome, Completed):
            return CallbackEvent(
                state=CallbackState.DONE,
                result=outcome.response.result,
                artifacts=outcome.response.artifacts,
            )
        case JobStatus.QUEUED:
            return CallbackEvent(state=CallbackState.QUEUED)
        case _:
            return CallbackEvent(state=CallbackState.FAILED, error=settlement.last_error)
