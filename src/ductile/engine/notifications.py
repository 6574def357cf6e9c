"""Telling what happened to a job, after it is on disk: signals, waiting callers, whoever may go on."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from datetime import datetime

from ductile.core.jobs.dedupe import bare_key
from ductile.core.jobs.ledger import LedgerKind
from ductile.core.jobs.model import Job, JobReason, JobStatus, SubmittedBy
from ductile.core.jobs.settlement import Settlement
from ductile.core.json import JsonValue
from ductile.engine.waiters import Waiters
from ductile.errors import DuctileError, StoreFullError
from ductile.runner.interpret import ExecutionWarning, Interpretation
from ductile.store.model.jobs import Settled, SettleResult, Unsettled
from ductile.store.model.submission import (
    Accepted,
    ChildConflict,
    Deduplicated,
    EnqueueResult,
    JobStateChange,
)
from ductile.struct import Value
from ductile.telemetry.signals import Signal, SignalBus, SignalLevel

_REMARKS = {
    ExecutionWarning.EXIT_IGNORED: "the plugin answered ok and exited with a failure status; the answer "
    "counts",
    ExecutionWarning.STDERR_CUT: "the plugin wrote more to stderr than is kept",
    ExecutionWarning.LEFTOVERS: "the plugin left processes behind; those of its group were ended",
}
_LEVELS = {
    "debug": SignalLevel.DEBUG,
    "info": SignalLevel.INFO,
    "warn": SignalLevel.WARN,
    "warning": SignalLevel.WARN,
    "error": SignalLevel.ERROR,
}
_LEDGER_SIGNALS = {
    LedgerKind.EVENT_DROPPED: Signal.EVENT_DROPPED,
    LedgerKind.STATE_STALE: Signal.STATE_STALE,
    LedgerKind.SWITCH: Signal.STEP_BYPASSED,
}
#: For jobs that others ended: by what became of them.
_SIGNALS = {
    JobStatus.SUCCEEDED: Signal.JOB_SUCCEEDED,
    JobStatus.FAILED: Signal.JOB_FAILED,
    JobStatus.DEAD: Signal.JOB_DEAD,
    JobStatus.QUEUED: Signal.JOB_RETRYING,
}


#: The command that the poll guard counts.
POLL = "poll"


class SettlementCallbacks(Value):
    """Who goes on when a job was settled. None of them may block."""

    retry_expected: Callable[[datetime], None]
    schedule_moved: Callable[[], None]
    job_ended: Callable[[], None]
    #: With the name of the plugin.
    poll_ended: Callable[[str], None] = lambda _plugin: None
    settled: Callable[[SettleResult], None] = lambda _answer: None
    #: Told of a job whose process could not be started because the machine lacks something.
    short_of_resources: Callable[[str], None] = lambda _job_id: None


class JobNotifications:
    def __init__(self, signals: SignalBus, waiters: Waiters, followers: SettlementCallbacks) -> None:
        self._signals = signals
        self._waiters = waiters
        self._followers = followers
        self._kept: set[asyncio.Task[None]] = set()

    def keep(self, task: asyncio.Task[None]) -> None:
        """Hold on to a task that nobody waits for: the event loop itself would not."""
        self._kept.add(task)
        task.add_done_callback(self._kept.discard)

    def claimed(self, job: Job) -> None:
        waited = None
        if job.execution == 1 and job.started_at is not None:
            waited = (job.started_at - job.created_at).total_seconds() * 1000
        self._emit(Signal.JOB_CLAIMED, job, execution=job.execution, waited_ms=waited)

    def started(self, job: Job, seconds_ago: float) -> None:
        self._emit(
            Signal.JOB_STARTED, job, execution=job.execution, ms_ago=int(seconds_ago * 1_000_000) / 1000
        )

    def exited(self, job: Job, judgement: Interpretation) -> None:
        evidence = judgement.outcome.evidence
        self._emit(Signal.JOB_EXITED, job, exit_code=evidence.exit_code, signal_number=evidence.signal)
        if evidence.stderr:
            self._signals.emit(Signal.JOB_STDERR, evidence.stderr, plugin=job.plugin, job_id=job.id)
        for remark in judgement.remarks:
            self._signals.emit(Signal.JOB_STDERR, _REMARKS[remark], plugin=job.plugin, job_id=job.id)
        for line in judgement.logs:
            level = _LEVELS.get(str(line.level), SignalLevel.INFO)
            self._signals.emit(Signal.JOB_SAID, line.message, plugin=job.plugin, job_id=job.id, level=level)

    def short_of_resources(self, job: Job) -> None:
        """What it lacks is told when the job is back on the queue."""
        self._followers.short_of_resources(job.id)

    def held(self, job: Job, error: DuctileError) -> None:
        """Tell that a result could not be written yet, and why."""
        self._signals.emit(refusal_signal(error), error.message, plugin=job.plugin, job_id=job.id)

    def settled(self, job: Job, answer: SettleResult) -> None:
        self._followers.settled(answer)
        if isinstance(answer, Unsettled):
            self._emit(Signal.JOB_SUPERSEDED, job, answer=answer)
            return
        self._tell_end(job, answer.settlement)
        self._tell_events(job, answer)
        self.ended(answer.ended)
        if (due := answer.settlement.next_retry_at) is not None:
            self._followers.retry_expected(due)
        if answer.settlement.is_terminal:
            self._followers.job_ended()
            self._waiters.ended(job.id)
            if job.submitted_by is SubmittedBy.SCHEDULER:
                self._followers.schedule_moved()
            elif job.command == POLL:
                self._followers.poll_ended(job.plugin)

    def ended(self, jobs: Sequence[JobStateChange]) -> None:
        """Jobs that ended without an execution of their own: by hand, with their run, or as a run."""
        for job in jobs:
            data: dict[str, JsonValue] = {"command": job.command, "reason": job.reason}
            if job.error is not None:
                data["error"] = job.error
            self._signals.emit(_SIGNALS[job.status], plugin=job.plugin, job_id=job.id, data=data)
            self._waiters.ended(job.id)

    def _tell_end(self, job: Job, settlement: Settlement) -> None:
        signal = _signal_for(settlement)
        self._emit(
            signal,
            job,
            reason=settlement.reason,
            attempt=job.attempt,
            execution=job.execution,
            error=settlement.last_error,
        )
        if job.command == "init" and settlement.is_terminal and settlement.status is not JobStatus.SUCCEEDED:
            self._emit(Signal.PLUGIN_INIT_FAILED, job, error=settlement.last_error)
        for skip in settlement.skipped:
            data: dict[str, JsonValue] = {"count": skip.count, "reason": skip.reason}
            if job.submitted_detail is not None:
                data["schedule"] = job.submitted_detail
            self._signals.emit(Signal.SCHEDULE_SKIPPED, plugin=job.plugin, data=data)
        if settlement.breaker is not None and settlement.breaker_reason is not None:
            changed = settlement.breaker
            self._emit(Signal.BREAKER_CHANGED, job, state=changed.state, reason=settlement.breaker_reason)

    def _tell_events(self, job: Job, settled: Settled) -> None:
        settlement = settled.settlement
        progress = settlement.progress
        for entry in (*settlement.ledger, *(progress.ledger if progress else ())):
            # The whole verdict is in the ledger; a log line needs the sentence.
            told = {name: value for name, value in entry.data.items() if name != "verdict"}
            level = SignalLevel.ERROR if "error" in told else None
            self._signals.emit(
                _LEDGER_SIGNALS[entry.kind], plugin=job.plugin, job_id=job.id, level=level, data=told
            )
        routed = {child.source_event_id for child in settlement.children}
        routed |= {run.event.id for run in settlement.runs}
        for outgoing in settlement.events:
            if outgoing.event.id not in routed and job.run_id is None:
                self._emit(Signal.EVENT_UNROUTED, job, event_type=outgoing.event.type)
        self.submitted(settled.started, parent=job.id)

    def submitted(self, answers: Sequence[EnqueueResult], *, parent: str | None = None) -> None:
        """What became of submissions, from outside or by an event."""
        by: dict[str, JsonValue] = {} if parent is None else {"parent": parent}
        for answer in answers:
            job_id = answer.job_id
            match answer:
                case Accepted():
                    self._emit_accepted(answer, by)
                    for member in answer.members:
                        self._emit_accepted(member, {"parent": job_id})
                    if answer.ended:
                        self.ended(answer.ended)
                case Deduplicated(plugin=plugin, command=command, dedupe_key=key):
                    told = {"command": command, **by, "dedupe_key": bare_key(key)}
                    self._signals.emit(Signal.JOB_DEDUPLICATED, plugin=plugin, job_id=job_id, data=told)
                case ChildConflict():
                    self._signals.emit(Signal.JOB_CHILD_CONFLICT, job_id=job_id, data=by)

    def _emit_accepted(self, accepted: Accepted, by: dict[str, JsonValue]) -> None:
        data: dict[str, JsonValue] = {"command": accepted.command, **by}
        self._signals.emit(Signal.JOB_ACCEPTED, plugin=accepted.plugin, job_id=accepted.job_id, data=data)

    def _emit(self, signal: Signal, job: Job, **data: str | float | None) -> None:
        told: dict[str, JsonValue] = {
            "command": job.command,
            **{name: value for name, value in data.items() if value is not None},
        }
        self._signals.emit(signal, plugin=job.plugin, job_id=job.id, data=told)


def refusal_signal(error: DuctileError) -> Signal:
    """How to tell that the store could not take something for now."""
    return Signal.STORE_FULL if isinstance(error, StoreFullError) else Signal.STORE_BUSY


def _signal_for(settlement: Settlement) -> Signal:
    match settlement.status, settlement.reason:
        case JobStatus.SUCCEEDED, _:
            return Signal.JOB_SUCCEEDED
        case JobStatus.QUEUED, JobReason.INTERRUPTED:
            return Signal.JOB_INTERRUPTED
        case JobStatus.QUEUED, JobReason.NO_RESOURCES:
            return Signal.JOB_POSTPONED
        case JobStatus.QUEUED, _:
            return Signal.JOB_RETRYING
        case JobStatus.FAILED, _:
            return Signal.JOB_FAILED
        case _:
            return Signal.JOB_DEAD
