"""`job explain`: why a job failed or does not run, told as somebody would who has looked into it.

One sentence first, then where the job came from, what it saw, what differs from the last good run of the
same command, and what to do.
"""

from __future__ import annotations

from ductile.config.secrets import redact
from ductile.core.jobs.model import TERMINAL, Hold, Job, JobReason, JobStatus
from ductile.core.jobs.settlement import LogStatus
from ductile.core.json import JsonObject, JsonValue
from ductile.core.runs.graph import RUN_PLUGIN
from ductile.operations import parameters as read
from ductile.operations.context import OperationContext
from ductile.operations.diagnose.comparison import RunComparison, compare_with_last_good, config_at
from ductile.operations.diagnose.differences import first_line
from ductile.operations.diagnose.retry_advice import remedy_that_works
from ductile.operations.diagnose.waiting import (
    WaitExplanation,
    as_sentence,
    attempt_text,
    status_since,
    time_text,
    why_running,
    why_waiting,
)
from ductile.operations.jobs.documents import instant, shown_execution
from ductile.operations.jobs.lookup import resolve_job
from ductile.operations.jobs.origin import origin_chain
from ductile.operations.jobs.orphaned import dead_owner, is_orphaned, recovery_text
from ductile.store.model.maintenance import ConfigRecord
from ductile.store.model.records import LogRow, RunRecord
from ductile.struct import Value

#: Configurations that are looked through for the one a job ran with.
_CONFIGS = 200


#: An operator ended the job: nothing in what it did explains that.
_ENDED_BY_HAND = frozenset({JobReason.CANCELLED, JobReason.PURGED, JobReason.PLUGIN_REMOVED})


class _JobRecords(Value):
    job: Job
    executions: tuple[LogRow, ...]
    configs: tuple[ConfigRecord, ...]
    run: RunRecord | None

    @property
    def last(self) -> LogRow | None:
        return self.executions[-1] if self.executions else None

    @property
    def ended_badly(self) -> bool:
        return self.job.status in (JobStatus.FAILED, JobStatus.DEAD) or (
            self.job.hold is Hold.RETRY and self.last is not None
        )


async def explain_job(context: OperationContext, given: JsonObject) -> JsonObject:
    job = await resolve_job(context, read.text(given, "job_id"))
    case = await _gather(context, job)
    orphaned = is_orphaned(context, job)
    wait = await _wait(context, case, orphaned=orphaned)
    compared = await _compare(context, case)
    forsaken = orphaned or (job.status is JobStatus.QUEUED and context.engine is None)
    return {
        "job_id": job.id,
        "plugin": job.plugin,
        "command": job.command,
        "status": job.status.value,
        "reason": job.reason.value,
        "verdict": _verdict(context, case, wait, orphaned=orphaned),
        "chain": await origin_chain(context, job),
        "evidence": [*_evidence(case)],
        "saw": await _saw(context, case),
        "executions": [shown_execution(row) for row in case.executions],
        "waits_for": None if wait is None or wait.blocker is None else _shown_blocker(wait.blocker),
        "cause": compared.cause,
        "first_change": compared.first_change,
        "compared_with": compared.compared_with,
        "differences": [
            {"what": each.what, "good": each.good, "now": each.now} for each in compared.differences
        ],
        "compared": [*compared.compared],
        "not_compared": [*compared.not_compared],
        "advice": ["ductile system start"]
        if forsaken
        else [
            *([] if compared.advice is None else [compared.advice]),
            *await _advice(context, case, wait),
        ],
    }


async def _gather(context: OperationContext, job: Job) -> _JobRecords:
    return _JobRecords(
        job=job,
        executions=await context.store.executions(job.id),
        configs=await context.store.config_history(limit=_CONFIGS),
        run=await context.store.run(job.id) if job.plugin == RUN_PLUGIN else None,
    )


async def _wait(context: OperationContext, case: _JobRecords, *, orphaned: bool) -> WaitExplanation | None:
    if case.job.status is JobStatus.QUEUED:
        return await why_waiting(context, case.job)
    if case.job.status is JobStatus.RUNNING and not orphaned:
        return await why_running(context, case.job, case.run)
    return None


def _shown_blocker(blocker: Job) -> JsonObject:
    """The job in its way."""
    return {
        "job_id": blocker.id,
        "plugin": blocker.plugin,
        "command": blocker.command,
        "status": blocker.status.value,
        "since": instant(blocker.started_at or blocker.created_at),
        "attempt": blocker.attempt,
        "max_attempts": blocker.max_attempts,
    }


async def _compare(context: OperationContext, case: _JobRecords) -> RunComparison:
    if not case.ended_badly or case.job.reason in _ENDED_BY_HAND:
        return RunComparison()
    return await compare_with_last_good(context, case.job, case.executions, case.configs)


# ------------------------------------------------------------------------------------------ the sentence


def _verdict(
    context: OperationContext, case: _JobRecords, wait: WaitExplanation | None, *, orphaned: bool
) -> str:
    job, last = case.job, case.last
    name = f"{job.plugin} {job.command}"
    match job.status:
        case JobStatus.SUCCEEDED:
            return f"{name} succeeded, {attempt_text(job)}."
        case JobStatus.RUNNING if orphaned:
            return (
                f"{name} was running when {dead_owner(job)} died, {attempt_text(job)}. {recovery_text(job)}"
            )
        case JobStatus.RUNNING:
            link = ":" if case.run is not None else ","
            return f"{name} is {status_since(job, context.now())}{link} {'' if wait is None else wait.why}"
        case JobStatus.QUEUED:
            return f"{name} waits: {'' if wait is None else wait.why}"
        case _ if case.run is not None:
            why = _failed_step(case.run) or job.reason.description
            return f"pipeline {job.command} {_verb(job.status)}: {why}"
        case _:
            why = as_sentence(job.last_error or job.reason.description)
            if job.reason is not JobReason.ATTEMPTS_EXHAUSTED or last is None:
                return f"{name} {_verb(job.status)} ({job.reason}): {why}"
            tries = "its only attempt" if job.max_attempts == 1 else f"all of its {job.max_attempts} attempts"
            return f"{name} failed in {tries}, the last time ({last.reason}): {why}"


def _verb(status: JobStatus) -> str:
    return "is dead" if status is JobStatus.DEAD else status


def _failed_step(run: RunRecord) -> str | None:
    """The step that failed first is what the others followed from."""
    bad = [job for job in run.members if job.status in (JobStatus.FAILED, JobStatus.DEAD)]
    if not bad:
        return None
    first = min(bad, key=lambda job: job.completed_at or job.created_at)
    said = as_sentence(first.last_error or first.reason.description)
    what = f"step {first.step_path} ({first.plugin} {first.command}, job {first.id})"
    return f"{what} {_verb(first.status)}: {said}"


# ------------------------------------------------------------------------------------------ the evidence


def _evidence(case: _JobRecords) -> list[str]:
    told = [_told_of(row) for row in case.executions if case.run is None]
    if case.job.cancel_requested_at is not None:
        told.append(f"Its cancellation was requested at {time_text(case.job.cancel_requested_at)}.")
    if case.run is not None:
        told += [
            f"Step {job.step_path} ({job.plugin} {job.command}): {job.status} ({job.reason})."
            for job in case.run.members
        ]
        told += [
            f"Bypassed: {note.data.get('step') or note.data.get('pipeline')}: {note.data['explanation']}"
            for note in case.run.notes
            if "explanation" in note.data
        ]
    return told


def _told_of(row: LogRow) -> str:
    ended = f"exit status {row.exit_code}" if row.exit_code is not None else None
    ended = f"signal {row.signal}" if row.signal is not None else ended
    said = first_line(row.error) or (None if row.status is LogStatus.SUCCEEDED else row.reason.description)
    parts = [part for part in (ended, said) if part]
    took = "" if row.duration is None else f" after {row.duration.total_seconds():.3f}s"
    # An error that ends with stderr has told it already.
    stderr = None if "stderr ends with: " in (row.error or "") else first_line(row.stderr)
    tail = f" It wrote to stderr: {stderr}" if stderr and row.status is not LogStatus.SUCCEEDED else ""
    return f"Execution {row.execution} {row.status}{took}: {as_sentence(', '.join(parts) or 'ok')}{tail}"


async def _saw(context: OperationContext, case: _JobRecords) -> JsonObject:
    """What it was given. Secret-looking values are masked, as everywhere where nobody asked to see them."""
    job = case.job
    event = None if job.source_event_id is None else await context.store.event(job.source_event_id)
    event_context = (
        None if job.event_context_id is None else await context.store.context(job.event_context_id)
    )
    config = config_at(case.configs, job.started_at)
    payload: JsonValue = job.payload
    return {
        "payload": redact(payload),
        "event": None if event is None else {"type": event.type, "source": event.source},
        "context": None if event_context is None else redact(event_context.baggage),
        "config": None if config is None else config.hash,
        "config_loaded_at": None if config is None else instant(config.loaded_at),
    }


async def _advice(context: OperationContext, case: _JobRecords, wait: WaitExplanation | None) -> list[str]:
    job, last = case.job, case.last
    told: list[str] = []
    if job.run_id is not None and job.status in TERMINAL and job.status is not JobStatus.SUCCEEDED:
        told.append(f"It is a step of a run: ductile job explain {job.run_id}")
    reason = last.reason if last is not None and case.ended_badly and case.run is None else job.reason
    if job.reason in _ENDED_BY_HAND:
        reason = job.reason
    if wait is not None and job.hold is not Hold.RETRY:
        return [*wait.advice] or ["ductile system status"]
    told.append(await remedy_that_works(context, job, reason, case.run))
    return told
