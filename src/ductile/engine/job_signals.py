"""Emit the signals of jobs and schedules, after each change is on disk."""

from __future__ import annotations

from collections.abc import Sequence

from ductile.core.jobs.admission import bare_key
from ductile.core.jobs.model import Job, JobReason, JobStatus, LedgerKind, NewJob
from ductile.core.jobs.settlement import Settlement
from ductile.core.json import JsonObject
from ductile.errors import DuctileError, StoreFullError
from ductile.runner.interpret import ExecutionWarning, Interpretation
from ductile.store.model.jobs import (
    Accepted,
    Deduplicated,
    DuplicateChild,
    EnqueueResult,
    JobStatusChange,
    NotSettled,
    SettleResult,
)
from ductile.store.model.schedules import FireResult, FireStatus, Firing
from ductile.telemetry.signals import Signal, SignalBus, SignalLevel

_WARNINGS = {
    ExecutionWarning.EXIT_IGNORED: (
        "the plugin responded ok and exited with a failure status; the response counts"
    ),
    ExecutionWarning.STDERR_CUT: "the plugin wrote more to stderr than is kept",
    ExecutionWarning.LEFTOVERS: "the plugin left processes behind; those of its group were ended",
}
#: Levels that plugins give to log lines.
_LEVELS = {level.name.lower(): level for level in SignalLevel} | {"warning": SignalLevel.WARN}
_LEDGER_SIGNALS = {
    LedgerKind.EVENT_DROPPED: Signal.EVENT_DROPPED,
    LedgerKind.STATE_STALE: Signal.STATE_STALE,
    LedgerKind.CONDITION_FALSE: Signal.STEP_BYPASSED,
}
#: The signal of a job that changed its status without an execution of its own.
_STATUS_SIGNALS = {
    JobStatus.SUCCEEDED: Signal.JOB_SUCCEEDED,
    JobStatus.FAILED: Signal.JOB_FAILED,
    JobStatus.DEAD: Signal.JOB_DEAD,
    JobStatus.QUEUED: Signal.JOB_RETRYING,
}
#: The signal of an occurrence that was planned to run. With other statuses nothing was recorded.
_FIRE_SIGNALS = {
    FireStatus.FIRED: Signal.SCHEDULE_FIRED,
    FireStatus.SKIPPED: Signal.SCHEDULE_SKIPPED,
    FireStatus.DEFERRED: Signal.SCHEDULE_DEFERRED,
}


class JobSignals:
    def __init__(self, signals: SignalBus) -> None:
        self._signals = signals

    # -- an execution

    def emit_claimed(self, job: Job) -> None:
        waited_ms = None
        if job.execution == 1 and job.started_at is not None:
            waited_ms = (job.started_at - job.created_at).total_seconds() * 1000
        self._emit(Signal.JOB_CLAIMED, job, execution=job.execution, waited_ms=waited_ms)

    def emit_started(self, job: Job, seconds_ago: float) -> None:
        ms_ago = int(seconds_ago * 1_000_000) / 1000
        self._emit(Signal.JOB_STARTED, job, execution=job.execution, ms_ago=ms_ago)

    def emit_exited(self, job: Job, interpretation: Interpretation) -> None:
        evidence = interpretation.outcome.evidence
        self._emit(Signal.JOB_EXITED, job, exit_code=evidence.exit_code, signal_number=evidence.signal)
        if evidence.stderr:
            self._signals.emit(Signal.JOB_STDERR, evidence.stderr, plugin=job.plugin, job_id=job.id)
        for warning in interpretation.warnings:
            self._signals.emit(Signal.JOB_STDERR, _WARNINGS[warning], plugin=job.plugin, job_id=job.id)
        for line in interpretation.logs:
            level = _LEVELS.get(str(line.level), SignalLevel.INFO)
            self._signals.emit(Signal.JOB_SAID, line.message, plugin=job.plugin, job_id=job.id, level=level)

    def emit_result_not_stored(self, job: Job, error: DuctileError) -> None:
        """Emit that the store could not take the result now. The result is kept and stored later."""
        self._signals.emit(unavailable_signal(error), error.message, plugin=job.plugin, job_id=job.id)

    def emit_settled(self, job: Job, result: SettleResult) -> None:
        if isinstance(result, NotSettled):
            self._emit(Signal.JOB_SUPERSEDED, job, answer=result)
            return
        settlement = result.settlement
        self._emit_settlement(job, settlement)
        for entry in (*settlement.ledger, *(settlement.progress.ledger if settlement.progress else ())):
            # The ledger has the whole result of a condition; a log line needs its explanation only.
            data = {name: value for name, value in entry.data.items() if name != "verdict"}
            level = SignalLevel.ERROR if "error" in data else None
            self._signals.emit(
                _LEDGER_SIGNALS[entry.kind], plugin=job.plugin, job_id=job.id, level=level, data=data
            )
        routed = {child.source_event_id for child in settlement.children}
        routed |= {run.event.id for run in settlement.runs}
        for indexed_event in settlement.events:
            if indexed_event.event.id not in routed and job.run_id is None:
                self._emit(Signal.EVENT_UNROUTED, job, event_type=indexed_event.event.type)
        self.emit_submitted(result.started, parent=job.id)
        self.emit_ended(result.ended)

    def _emit_settlement(self, job: Job, settlement: Settlement) -> None:
        error = settlement.last_error
        match settlement.status, settlement.reason:
            case JobStatus.QUEUED, JobReason.INTERRUPTED:
                signal = Signal.JOB_INTERRUPTED
            case JobStatus.QUEUED, JobReason.NO_RESOURCES:
                signal = Signal.JOB_POSTPONED
            case _:
                signal = _STATUS_SIGNALS.get(settlement.status, Signal.JOB_DEAD)
        self._emit(
            signal,
            job,
            reason=settlement.reason,
            attempt=job.attempt,
            execution=job.execution,
            error=error,
        )
        if job.command == "init" and settlement.is_terminal and settlement.status is not JobStatus.SUCCEEDED:
            self._emit(Signal.PLUGIN_INIT_FAILED, job, error=error)
        for skip in settlement.skipped:
            data: JsonObject = {"count": skip.count, "reason": skip.reason}
            if job.submitted_detail is not None:
                data["schedule"] = job.submitted_detail
            self._signals.emit(Signal.SCHEDULE_SKIPPED, plugin=job.plugin, data=data)
        if (breaker := settlement.breaker) is not None and settlement.breaker_reason is not None:
            self._emit(Signal.BREAKER_CHANGED, job, state=breaker.state, reason=settlement.breaker_reason)

    # -- jobs without an execution

    def emit_ended(self, jobs: Sequence[JobStatusChange]) -> None:
        """Emit the end of each job that ended without an execution: on request, with its run, or as a run."""
        for job in jobs:
            self._emit(_STATUS_SIGNALS[job.status], job, reason=job.reason, error=job.error)

    def emit_submitted(self, results: Sequence[EnqueueResult], *, parent: str | None = None) -> None:
        """Emit the submissions of a caller, or of an event of the job `parent`."""
        origin: JsonObject = {} if parent is None else {"parent": parent}
        for result in results:
            job_id = result.job_id
            match result:
                case Accepted():
                    self._emit_accepted(result, origin)
                    for member in result.steps:
                        self._emit_accepted(member, {"parent": job_id})
                    self.emit_ended(result.ended)
                case Deduplicated(plugin=plugin, command=command, dedupe_key=key):
                    data: JsonObject = {"command": command, **origin, "dedupe_key": bare_key(key)}
                    self._signals.emit(Signal.JOB_DEDUPLICATED, plugin=plugin, job_id=job_id, data=data)
                case DuplicateChild():
                    self._signals.emit(Signal.JOB_CHILD_CONFLICT, job_id=job_id, data=origin)

    def _emit_accepted(self, accepted: Accepted, origin: JsonObject) -> None:
        data: JsonObject = {"command": accepted.command, **origin}
        self._signals.emit(Signal.JOB_ACCEPTED, plugin=accepted.plugin, job_id=accepted.job_id, data=data)

    # -- schedules

    def emit_fired(self, firing: Firing, result: FireResult) -> None:
        """Emit the jobs of a firing, the jobs that it ended, and each of its occurrences."""
        status = result.status
        if status is FireStatus.FIRED:
            for job in (firing.job, *firing.catch_up_jobs):
                if job is not None:
                    self._emit(Signal.JOB_ACCEPTED, job)
        self.emit_ended(result.ended)
        if status not in _FIRE_SIGNALS or (status is FireStatus.DEFERRED and firing.was_deferred):
            return
        for occurrence in firing.occurrences:
            is_run = occurrence.job_id is not None
            signal = _FIRE_SIGNALS[status] if is_run else Signal.SCHEDULE_SKIPPED
            data: JsonObject = {"schedule": occurrence.schedule_id, "count": occurrence.count}
            if (reason := (result.reason if is_run else None) or occurrence.reason) is not None:
                data["reason"] = reason
            job_id = occurrence.job_id if signal is Signal.SCHEDULE_FIRED else None
            self._signals.emit(signal, plugin=occurrence.plugin, job_id=job_id, data=data)

    def _emit(self, signal: Signal, job: Job | NewJob | JobStatusChange, **data: str | float | None) -> None:
        fields = {name: value for name, value in data.items() if value is not None}
        self._signals.emit(signal, plugin=job.plugin, job_id=job.id, data={"command": job.command, **fields})


def unavailable_signal(error: DuctileError) -> Signal:
    """Return the signal of a store that cannot take a write now."""
    return Signal.STORE_FULL if isinstance(error, StoreFullError) else Signal.STORE_BUSY
