"""`job explain`: says why a job failed or does not run.

One sentence first, then where the job came from, its input, the differences to the last good run of the same
command, and what to do.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated, Any

from ductile.config.secrets import redact
from ductile.core.jobs.failure_notices import is_notice
from ductile.core.jobs.model import TERMINAL, Hold, Job, JobReason, JobStatus, SubmittedBy
from ductile.core.jobs.settlement import LogStatus
from ductile.core.runs.graph import RUN_PLUGIN
from ductile.operations.context import OperationContext
from ductile.operations.diagnose.comparison import (
    ChangedStep,
    RunComparison,
    compare_with_last_good,
    config_at,
    first_failed,
)
from ductile.operations.diagnose.differences import Difference
from ductile.operations.diagnose.remedies import applicable_remedy
from ductile.operations.diagnose.waiting import WaitExplanation, explain_running, explain_waiting
from ductile.operations.diagnose.wording import (
    as_sentence,
    attempt_text,
    command_text,
    first_line,
    status_since,
    step_text,
    time_text,
)
from ductile.operations.jobs.documents import Execution, listed_execution
from ductile.operations.jobs.lookup import OneJob, resolve_job
from ductile.operations.response import Id, Response, Timestamp, from_record, timestamp
from ductile.store.model.maintenance import ConfigRecord
from ductile.store.model.records import LogRow, RunRecord
from ductile.struct import Value, about, asdict

#: The owner of a job that `ductile run` executes without a daemon begins with this.
_RUN_OWNER_PREFIX = "cli:"

#: How many configurations are searched for the one that a job ran with.
_MAX_CONFIGS = 200
#: The most links in a chain of origin. Hops are limited, but a run may have thousands of steps, each started
#: by the one before; in a longer chain the steps in between are left out.
_MAX_CHAIN = 50
#: Reasons of jobs that an operator ended: no difference to a good run explains such an end.
_ENDED_BY_OPERATOR = frozenset({JobReason.CANCELLED, JobReason.PURGED, JobReason.PLUGIN_REMOVED})
_SOURCES: dict[SubmittedBy, str] = {
    SubmittedBy.SCHEDULER: "the scheduler",
    SubmittedBy.WEBHOOK: "a webhook",
    SubmittedBy.ROUTE: "an event",
    SubmittedBy.CLI: "the command line",
    SubmittedBy.API: "the HTTP API",
    SubmittedBy.HOOK: "the end of a job",
    SubmittedBy.MCP: "an agent",
    SubmittedBy.CORE: "Ductile itself",
}


class ChainLink(Value):
    job_id: Id | None
    what: str
    status: JobStatus | None


class InputEvent(Value):
    type: str
    source: str


class JobInput(Value):
    """The input of the job, secret-looking values masked, and the configuration it ran with."""

    payload: dict[str, Any] | None
    event: InputEvent | None
    context: dict[str, Any] | None
    config: str | None
    config_loaded_at: Timestamp | None


class BlockingJob(Value):
    job_id: Id
    plugin: str
    command: str
    status: JobStatus
    since: Timestamp
    attempt: int
    max_attempts: int


class JobExplanation(Response):
    job_id: Id
    plugin: str
    command: str
    status: JobStatus
    reason: JobReason
    verdict: Annotated[str, about("The explanation in one sentence.")]
    chain: Annotated[tuple[ChainLink, ...], about("Where it came from, the first cause first.")]
    evidence: tuple[str, ...]
    saw: JobInput
    executions: tuple[Execution, ...]
    waits_for: Annotated[
        BlockingJob | None,
        about(
            "The job in its way, if it has not ended: the holder of its key or of a slot, or the "
            "step of a run that runs."
        ),
    ]
    cause: Annotated[str | None, about("The first step whose output changed shape, and what needed it.")]
    first_change: ChangedStep | None
    compared_with: Annotated[
        Id | None, about("The last good job of the same command, or run of the same pipeline.")
    ]
    differences: tuple[Difference, ...]
    compared: Annotated[tuple[str, ...], about("What was compared.")]
    not_compared: Annotated[tuple[str, ...], about("What was not compared, and may differ.")]
    advice: tuple[str, ...]


class _JobRecords(Value):
    """The rows by which a job is explained."""

    job: Job
    executions: tuple[LogRow, ...]
    #: The loaded configurations, newest first.
    configs: tuple[ConfigRecord, ...]
    #: The record of the run, if the job is a pipeline run.
    run: RunRecord | None

    @property
    def last(self) -> LogRow | None:
        return self.executions[-1] if self.executions else None

    @property
    def failed(self) -> bool:
        """True if the job failed, or waits for a retry after a failure."""
        waits_for_retry = self.job.hold is Hold.RETRY and self.last is not None
        return waits_for_retry or self.job.status in (JobStatus.FAILED, JobStatus.DEAD)


async def explain_job(context: OperationContext, request: OneJob) -> JobExplanation:
    """Explain why a job failed, does not run or has not ended, and what to do."""
    job = await resolve_job(context, request.job_id)
    records = _JobRecords(
        job=job,
        executions=await context.store.list_executions(job.id),
        configs=await context.store.config_history(limit=_MAX_CONFIGS),
        run=await context.store.get_run(job.id) if job.plugin == RUN_PLUGIN else None,
    )
    orphaned = context.is_orphaned(job)
    wait: WaitExplanation | None = None
    if job.status is JobStatus.QUEUED:
        wait = await explain_waiting(context, job)
    elif job.status is JobStatus.RUNNING and not orphaned:
        wait = await explain_running(context, job, records.run)
    comparison = RunComparison()
    if records.failed and job.reason not in _ENDED_BY_OPERATOR:
        comparison = await compare_with_last_good(context, job, records.executions, records.configs)
    blocker = None if wait is None else wait.blocker
    if orphaned or (job.status is JobStatus.QUEUED and context.engine is None):
        advice = ["ductile system start"]
    else:
        advice = [] if comparison.advice is None else [comparison.advice]
        advice += await _advice(context, records, wait)
    return from_record(
        JobExplanation,
        job,
        job_id=job.id,
        verdict=_verdict(context, records, wait, orphaned=orphaned),
        chain=await _origin_chain(context, job),
        evidence=tuple(_evidence(records)),
        saw=await _job_input(context, records),
        executions=tuple(listed_execution(row) for row in records.executions),
        waits_for=None
        if blocker is None
        else from_record(
            BlockingJob, blocker, job_id=blocker.id, since=timestamp(blocker.started_at or blocker.created_at)
        ),
        **asdict(comparison) | {"advice": tuple(advice)},
    )


def _verdict(
    context: OperationContext, records: _JobRecords, wait: WaitExplanation | None, *, orphaned: bool
) -> str:
    job, last = records.job, records.last
    name = f"{job.plugin} {job.command}"
    why_not_done = "" if wait is None else wait.why
    match job.status:
        case JobStatus.SUCCEEDED:
            return f"{name} succeeded, {attempt_text(job)}."
        case JobStatus.RUNNING if orphaned:
            by_run = (job.owner or "").startswith(_RUN_OWNER_PREFIX)
            owner = "the `ductile run` that ran it" if by_run else "the daemon"
            died = f"{name} was running when {owner} died, {attempt_text(job)}."
            return f"{died} {_recovery_text(job)}"
        case JobStatus.RUNNING:
            link = ":" if records.run is not None else ","
            return f"{name} is {status_since(job, context.now())}{link} {why_not_done}"
        case JobStatus.QUEUED:
            return f"{name} waits: {why_not_done}"
        case _ if records.run is not None:
            step = first_failed(records.run)
            why = job.reason.description
            if step is not None:
                error = as_sentence(step.last_error or step.reason.description)
                why = f"{step_text(step)} {_verb(step.status)}: {error}"
            return f"pipeline {job.command} {_verb(job.status)}: {why}"
        case _:
            error = as_sentence(job.last_error or job.reason.description)
            if job.reason is not JobReason.ATTEMPTS_EXHAUSTED or last is None:
                return f"{name} {_verb(job.status)} ({job.reason}): {error}"
            if job.max_attempts == 1:
                return f"{name} failed in its only attempt ({last.reason}): {error}"
            tries = f"all of its {job.max_attempts} attempts"
            return f"{name} failed in {tries}, the last time ({last.reason}): {error}"


def _verb(status: JobStatus) -> str:
    """Return `failed`, or `is dead`."""
    return "is dead" if status is JobStatus.DEAD else status


async def _origin_chain(context: OperationContext, job: Job) -> tuple[ChainLink, ...]:
    """Return where a job came from: its source, then runs, routes and parents, the job itself last."""
    links = [_link(job)]
    first, seen = job, {job.id}
    while (parent_id := first.parent_job_id) is not None and parent_id not in seen:
        if first.run_id is not None and parent_id != first.run_id and len(links) >= _MAX_CHAIN:
            links.append(ChainLink(job_id=None, what="earlier steps, left out here", status=None))
            parent_id = first.run_id
        seen.add(parent_id)
        parent = await context.store.get_job(parent_id)
        if parent is None:
            links.append(ChainLink(job_id=parent_id, what="a job that is no longer stored", status=None))
            break
        links.append(_link(parent))
        first = parent
    detail = f" ({first.submitted_detail})" if first.submitted_detail else ""
    origin = "failures of other jobs" if is_notice(first) else _SOURCES[first.submitted_by]
    source = f"{origin}{detail}, at {time_text(first.created_at)}"
    links.append(ChainLink(job_id=None, what=source, status=None))
    return tuple(reversed(links))


def _link(job: Job) -> ChainLink:
    step = f", step {job.step_path}" if job.step_path else ""
    return ChainLink(job_id=job.id, what=f"{command_text(job)}{step}", status=job.status)


def _evidence(records: _JobRecords) -> list[str]:
    """Return how each execution or step ended, whether the job is a rerun, and when it was cancelled."""
    run = records.run
    lines = [_execution_text(row) for row in records.executions if run is None]
    if records.job.rerun_of is not None:
        lines.append(f"It runs job {records.job.rerun_of} again.")
    if records.job.cancel_requested_at is not None:
        lines.append(f"Its cancellation was requested at {time_text(records.job.cancel_requested_at)}.")
    if run is not None:
        lines += [
            f"Step {step.step_path} ({step.plugin} {step.command}): {step.status} ({step.reason})."
            for step in run.steps
        ]
        lines += [
            f"Bypassed: {row.data.get('step') or row.data.get('pipeline')}: {row.data['explanation']}"
            for row in run.ledger_entries
            if "explanation" in row.data
        ]
    return lines


def _execution_text(row: LogRow) -> str:
    """Return how an execution ended, after how long, and what it wrote to stderr if it failed."""
    succeeded = row.status is LogStatus.SUCCEEDED
    ended = f"exit status {row.exit_code}" if row.exit_code is not None else None
    ended = f"signal {row.signal}" if row.signal is not None else ended
    error = first_line(row.error) or (None if succeeded else row.reason.description)
    parts = (
        [error] if error and error.startswith("exited with ") else [part for part in (ended, error) if part]
    )
    took = "" if row.duration is None else f" after {row.duration.total_seconds():.3f} s"
    if row.duration is not None and row.duration < timedelta(milliseconds=1):
        took = " after less than 1 ms"
    # Some errors quote the end of stderr already.
    stderr = None if succeeded or "stderr ends with: " in (row.error or "") else first_line(row.stderr)
    tail = f" It wrote to stderr: {stderr}" if stderr else ""
    return f"Execution {row.execution} {row.status}{took}: {as_sentence(', '.join(parts) or 'ok')}{tail}"


async def _job_input(context: OperationContext, records: _JobRecords) -> JobInput:
    job, store = records.job, context.store
    event = None if job.source_event_id is None else await store.get_event(job.source_event_id)
    stored = None if job.event_context_id is None else await store.get_event_context(job.event_context_id)
    config = config_at(records.configs, job.started_at)
    payload: Any = redact(job.payload)
    baggage: Any = None if stored is None else redact(stored.baggage)
    return JobInput(
        payload=payload,
        event=None if event is None else from_record(InputEvent, event),
        context=baggage,
        config=None if config is None else config.hash,
        config_loaded_at=None if config is None else timestamp(config.loaded_at),
    )


async def _advice(context: OperationContext, records: _JobRecords, wait: WaitExplanation | None) -> list[str]:
    """Return what to do about a job that waits, or about the reason for which it ended."""
    job, last = records.job, records.last
    if wait is not None and job.hold is not Hold.RETRY:
        return [*wait.advice] or ["ductile system status"]
    remedies = []
    if job.run_id is not None and job.status in TERMINAL and job.status is not JobStatus.SUCCEEDED:
        remedies.append(f"It is a step of a run: ductile job explain {job.run_id}")
    by_hand = job.reason in _ENDED_BY_OPERATOR
    # The reason of the last execution is more specific than that of the job: `attempts_exhausted`.
    use_execution = records.failed and records.run is None and not by_hand
    reason = last.reason if last is not None and use_execution else job.reason
    remedies.append(await applicable_remedy(context, job, reason, records.run))
    return remedies


def _recovery_text(job: Job) -> str:
    """Return what the next start of the daemon does with an orphaned job."""
    if job.cancel_requested_at is not None:
        return "The next start ends it as cancelled."
    if job.plugin == RUN_PLUGIN:
        return "The next start continues it."
    if job.attempt >= job.max_attempts:
        return "That was its last attempt: the next start ends it as dead."
    return f"The next start runs it again, as attempt {job.attempt + 1} of {job.max_attempts}."
