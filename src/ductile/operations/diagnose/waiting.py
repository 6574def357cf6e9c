"""What a job that has not ended waits for: which other job, since when, and what can be done about it."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

from ductile.core.jobs.model import Hold, Job, JobStatus
from ductile.core.runs.graph import RUN_PLUGIN
from ductile.operations.context import OperationContext
from ductile.operations.diagnose.differences import first_line
from ductile.store.model.jobs import InitStatus
from ductile.store.model.records import JobFilter, RunRecord
from ductile.struct import Value

_PAGE = 200
#: A job may wait for one that waits itself. So many are followed.
_LONGEST_CHAIN = 20
_MOST_STEPS = 5
_MINUTE, _HOUR, _DAY = 60, 3600, 86400


class WaitExplanation(Value):
    """Why a job is not done: a sentence, the job in its way, and commands that help."""

    why: str
    blocker: Job | None = None
    advice: tuple[str, ...] = ()


def attempt_text(job: Job) -> str:
    return f"attempt {job.attempt} of {job.max_attempts}"


def as_sentence(text: str) -> str:
    """The first line of what a plugin said, with an end."""
    line = first_line(text) or text
    return line if line.endswith((".", "!", "?")) else f"{line}."


def time_text(at: datetime | None) -> str:
    return "-" if at is None else f"{at:%Y-%m-%dT%H:%M:%SZ}"


def span_text(span: timedelta) -> str:
    """`5s`, `3m20s`, `2h05m`, `3d04h`."""
    seconds = max(0, int(span.total_seconds()))
    if seconds < _MINUTE:
        return f"{seconds}s"
    if seconds < _HOUR:
        return f"{seconds // _MINUTE}m{seconds % _MINUTE:02d}s"
    if seconds < _DAY:
        return f"{seconds // _HOUR}h{seconds % _HOUR // _MINUTE:02d}m"
    return f"{seconds // _DAY}d{seconds % _DAY // _HOUR:02d}h"


def status_since(job: Job, now: datetime) -> str:
    """`running since … (for 5m)`, or since when it is queued."""
    at = job.started_at if job.status is JobStatus.RUNNING and job.started_at else job.created_at
    return f"{job.status} since {time_text(at)} (for {span_text(now - at)})"


def job_text(job: Job, now: datetime) -> str:
    """A job as the cause of another's waiting."""
    what = f"run of pipeline {job.command}" if job.plugin == RUN_PLUGIN else f"{job.plugin} {job.command}"
    return f"job {job.id} ({what}, {status_since(job, now)})"


async def why_waiting(context: OperationContext, job: Job) -> WaitExplanation:
    """What a queued job waits for, and whether a daemon would start it then."""
    held = await _why_held(context, job)
    if context.engine is not None:
        return held or await _why_not_started(context, job)
    return WaitExplanation(why=f"{held.why} No daemon is running." if held else "no daemon is running.")


async def _why_held(context: OperationContext, job: Job) -> WaitExplanation | None:
    match job.hold:
        case Hold.RETRY:
            said = as_sentence(job.last_error or job.reason.description)
            due = time_text(job.next_retry_at)
            return WaitExplanation(why=f"{attempt_text(job)} is due at {due}. The one before: {said}")
        case Hold.KEY:
            return await _behind(context, job, "has the same dedupe key and has not ended")
        case Hold.PREDECESSOR:
            return await _behind(context, job, "goes first and has not ended")
        case Hold.SUSPECT:
            return await _behind(
                context, job, "ran when the daemon died too, and such jobs are tried one at a time"
            )
        case Hold.RUN:
            record = await context.store.run(job.id)
            return (
                WaitExplanation(why="none of its steps has started yet.")
                if record is None
                else await _run(context, record)
            )
        case None:
            return None


async def _behind(context: OperationContext, job: Job, why: str) -> WaitExplanation:
    """Behind another job, and behind what that one waits for in turn."""
    direct = await context.store.blocking_job(job.id)
    if direct is None:
        return WaitExplanation(why=f"another job {why}.")
    first, seen = direct, {job.id, direct.id}
    for _ in range(_LONGEST_CHAIN):
        above = await _in_front_of(context, first)
        if above is None or above.id in seen:
            break
        first = above
        seen.add(above.id)
    last = "" if first is direct else f" The first in line is {job_text(first, context.now())}."
    return WaitExplanation(
        why=f"{job_text(direct, context.now())} {why}.{last}", blocker=first, advice=_ways_past(first)
    )


async def _in_front_of(context: OperationContext, job: Job) -> Job | None:
    """The job that it waits for. A run that has not started waits by its steps."""
    if job.hold is not Hold.RUN:
        return await context.store.blocking_job(job.id)
    record = await context.store.run(job.id)
    for step in () if record is None else record.members:
        if step.hold is Hold.PREDECESSOR:
            return await context.store.blocking_job(step.id)
    return None


def _ways_past(blocker: Job) -> tuple[str, ...]:
    return (
        f"See what it does: ductile job explain {blocker.id}",
        f"To wait for it: ductile job wait {blocker.id}",
        f"To end it: ductile job cancel {blocker.id}",
    )


async def _why_not_started(context: OperationContext, job: Job) -> WaitExplanation:
    """It is ready: a limit is reached, its plugin is being initialised, or it starts in a moment."""
    inits = [init for init in await context.store.inits() if init.key.plugin == job.plugin]
    starting = [
        init for init in inits if init.status is InitStatus.PENDING and init.job_id not in (None, job.id)
    ]
    if starting:
        found = await context.store.job(starting[0].job_id or "")
        if found is not None and found.completed_at is None:
            why = f"{job_text(found, context.now())} initialises the plugin and has not ended."
            return WaitExplanation(why=why, blocker=found, advice=_ways_past(found))
    running = [
        each
        for each in (await context.store.jobs(JobFilter(status=JobStatus.RUNNING), limit=_PAGE)).rows
        if each.plugin != RUN_PLUGIN
    ]
    plugin = context.snapshot().plugins.get(job.plugin)
    own = [each for each in running if each.plugin == job.plugin]
    if plugin is not None and len(own) >= plugin.parallelism:
        key = f"plugins.{job.plugin}.parallelism"
        return _full(context, own, f"{_jobs_run(len(own), job.plugin)}, and no more may ({key})", key)
    workers = context.snapshot().max_workers
    if len(running) >= workers:
        key = "service.max_workers"
        busy = "the only worker is" if len(running) == 1 else f"all {len(running)} workers are"
        return _full(context, running, f"{busy} busy ({key})", key)
    return WaitExplanation(why="it is about to be started.")


def _full(context: OperationContext, running: Sequence[Job], why: str, key: str) -> WaitExplanation:
    longest = min(running, key=lambda each: each.started_at or each.created_at)
    return WaitExplanation(
        why=f"{why}. The longest: {job_text(longest, context.now())}.",
        blocker=longest,
        advice=(
            *_ways_past(longest),
            f"To let more run at once: ductile config set {key} {len(running) + 1} --lock",
            "and then: ductile system reload",
        ),
    )


def _jobs_run(number: int, plugin: str) -> str:
    return f"1 job of {plugin} runs" if number == 1 else f"{number} jobs of {plugin} run"


# -------------------------------------------------------------------------------------------- running


async def why_running(context: OperationContext, job: Job, run: RunRecord | None) -> WaitExplanation:
    """What a job that runs is at: of a run, which steps run or wait, and for what."""
    if run is not None:
        return await _run(context, run)
    until = _deadline(context, job)
    limit = "" if until is None else f" It is ended at {time_text(until)} if it has not ended by then."
    return WaitExplanation(
        why=f"{attempt_text(job)}.{limit}", advice=(f"To end it now: ductile job cancel {job.id}",)
    )


def _deadline(context: OperationContext, job: Job) -> datetime | None:
    """Of a step its pipeline may say otherwise, so it is told of other jobs only."""
    plugin = context.snapshot().plugins.get(job.plugin)
    if plugin is None or job.started_at is None or job.run_id is not None:
        return None
    return job.started_at + plugin.timeout_for(job.command)


async def _run(context: OperationContext, run: RunRecord) -> WaitExplanation:
    live = [one for one in run.members if one.status in (JobStatus.QUEUED, JobStatus.RUNNING)]
    if not live:
        return WaitExplanation(why="none of its steps is live.", advice=("ductile system selfcheck",))
    told, blocker, advice = [], None, []
    for step in live[:_MOST_STEPS]:
        name = f"step {step.step_path} ({step.plugin} {step.command}, job {step.id})"
        if step.status is JobStatus.RUNNING:
            told.append(f"{name} is {status_since(step, context.now())}, {attempt_text(step)}.")
            blocker = blocker or step
            advice.append(f"To end this step: ductile job cancel {step.id}")
            continue
        wait = await _step_wait(context, step)
        told.append(f"{name} waits: {wait.why}")
        blocker = blocker or wait.blocker
        advice += wait.advice or (f"See more: ductile job explain {step.id}",)
    if len(live) > _MOST_STEPS:
        told.append(f"{len(live) - _MOST_STEPS} more steps have not ended.")
    advice.append(f"To end the run: ductile job cancel {run.job.id}")
    return WaitExplanation(why=" ".join(told), blocker=blocker, advice=tuple(dict.fromkeys(advice)))


async def _step_wait(context: OperationContext, step: Job) -> WaitExplanation:
    held = await _why_held(context, step)
    if held is not None:
        return held
    return (
        await _why_not_started(context, step)
        if context.engine is not None
        else WaitExplanation(why="it is ready to start.")
    )
