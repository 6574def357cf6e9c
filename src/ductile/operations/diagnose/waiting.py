"""Explain why a job has not ended: the job, limit or time that it waits for, and commands that help."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ductile.config.snapshot import PluginInstance
from ductile.core.jobs.model import Hold, Job, JobStatus
from ductile.core.runs.graph import RUN_PLUGIN
from ductile.operations.context import OperationContext
from ductile.operations.diagnose.wording import (
    as_sentence,
    attempt_text,
    job_text,
    status_since,
    step_text,
    time_text,
)
from ductile.operations.system.nodes import list_nodes, node_offer
from ductile.store.model.jobs import InitStatus
from ductile.store.model.nodes import Node
from ductile.store.model.records import JobFilter, RunRecord
from ductile.struct import Value, replace

#: The most running jobs that are read.
_MAX_RUNNING = 200
#: The most jobs that are followed where each waits for the next.
_MAX_CHAIN = 20
#: The most steps of a run that are explained.
_MAX_STEPS = 5


class WaitExplanation(Value):
    """A sentence, the job in the way, and commands that help."""

    why: str
    blocker: Job | None = None
    advice: tuple[str, ...] = ()


async def explain_waiting(context: OperationContext, job: Job) -> WaitExplanation:
    """Explain why a queued job does not run, and whether a daemon would start it."""
    held = await _explain_hold(context, job)
    if context.engine is not None:
        return held or await _explain_ready_job(context, job)
    return WaitExplanation(why=f"{held.why} No daemon is running." if held else "no daemon is running.")


async def explain_running(context: OperationContext, job: Job, run: RunRecord | None) -> WaitExplanation:
    """Explain how far a running job is; for a pipeline run, which of its steps run or wait, and for what."""
    if run is not None:
        return await _explain_live_steps(context, run)
    why = f"{attempt_text(job)}."
    plugin = context.snapshot().plugins.get(job.plugin)
    # The timeout of a step may be set by its pipeline, so only that of other jobs is known here.
    if plugin is not None and job.started_at is not None and job.run_id is None:
        deadline = job.started_at + plugin.timeout_for(job.command)
        why = f"{why} It is ended at {time_text(deadline)} if it has not ended by then."
    return WaitExplanation(why=why, advice=(f"To end it now: ductile job cancel {job.id}",))


async def _explain_hold(context: OperationContext, job: Job) -> WaitExplanation | None:
    """Explain the hold of a job; None for a job without one, which is ready to start."""
    match job.hold:
        case Hold.RETRY:
            error = as_sentence(job.last_error or job.reason.description)
            due = time_text(job.next_retry_at)
            return WaitExplanation(why=f"{attempt_text(job)} is due at {due}. The one before: {error}")
        case Hold.KEY:
            return await _explain_blocker(context, job, "has the same dedupe key and has not ended")
        case Hold.PREDECESSOR:
            return await _explain_blocker(context, job, "goes first and has not ended")
        case Hold.SUSPECT:
            why = "ran when the daemon died too, and such jobs are tried one at a time"
            return await _explain_blocker(context, job, why)
        case Hold.NO_NODE:
            wait = _explain_no_node(job, await list_nodes(context))
            if job.held_since is None:
                return wait
            ends_at = time_text(job.held_since + context.snapshot().service.dedupe_ttl)
            why = f"{wait.why} It ends at {ends_at} if none has come by then (service.dedupe_ttl)."
            return replace(wait, why=why)
        case Hold.RUN:
            record = await context.store.get_run(job.id)
            if record is None:
                return WaitExplanation(why="none of its steps has started yet.")
            return await _explain_live_steps(context, record)
        case None:
            return None


async def _explain_blocker(context: OperationContext, job: Job, why: str) -> WaitExplanation:
    """Explain a wait for another job. If that waits too, the blocker is the last job of the chain."""
    direct = await context.store.blocking_job(job.id)
    if direct is None:
        return WaitExplanation(why=f"another job {why}.")
    first, seen = direct, {job.id, direct.id}
    for _ in range(_MAX_CHAIN):
        blocker = await _blocker_of(context, first)
        if blocker is None or blocker.id in seen:
            break
        first = blocker
        seen.add(blocker.id)
    now = context.now()
    first_text = "" if first is direct else f" The first in line is {job_text(first, now)}."
    return WaitExplanation(
        why=f"{job_text(direct, now)} {why}.{first_text}", blocker=first, advice=_blocker_commands(first)
    )


async def _blocker_of(context: OperationContext, job: Job) -> Job | None:
    """Return the job that a job waits for. A pipeline run that has not started waits by its steps."""
    if job.hold is not Hold.RUN:
        return await context.store.blocking_job(job.id)
    record = await context.store.get_run(job.id)
    for step in () if record is None else record.steps:
        if step.hold is Hold.PREDECESSOR:
            return await context.store.blocking_job(step.id)
    return None


def _blocker_commands(blocker: Job) -> tuple[str, ...]:
    return (
        f"See what it does: ductile job explain {blocker.id}",
        f"To wait for it: ductile job wait {blocker.id}",
        f"To end it: ductile job cancel {blocker.id}",
    )


async def _explain_ready_job(context: OperationContext, job: Job) -> WaitExplanation:
    """Explain why a ready job has not started: the init of its plugin, a limit, or it starts in a moment."""
    if context.sees_only_own:
        why = "it starts when a worker and its plugin are free; jobs of others, not shown here, may be first."
        return WaitExplanation(why=why)
    for init in await context.store.list_inits():
        if init.key.plugin != job.plugin or init.status is not InitStatus.PENDING:
            continue
        init_job = None if init.job_id in (None, job.id) else await context.store.get_job(init.job_id or "")
        if init_job is not None and init_job.completed_at is None:
            why = f"{job_text(init_job, context.now())} initialises the plugin and has not ended."
            return WaitExplanation(why=why, blocker=init_job, advice=_blocker_commands(init_job))
    rows = (await context.store.list_jobs(JobFilter(status=JobStatus.RUNNING), limit=_MAX_RUNNING)).rows
    running = [other for other in rows if other.plugin != RUN_PLUGIN]
    same_plugin = [other for other in running if other.plugin == job.plugin]
    plugin = context.snapshot().plugins.get(job.plugin)
    workers = context.snapshot().max_workers
    full = len(running) >= workers
    if nodes := await list_nodes(context):
        suitable = [node for node in nodes if node_offer(node).may_run(job.plugin, job.node)]
        if not suitable:
            return _explain_no_node(job, nodes)
        workers = sum(node.info.workers for node in suitable)
        full = all(node.running >= node.info.workers for node in suitable)
    # With the default for a plugin, its limit is that of the workers: raising its own would not help.
    at_limit = plugin is not None and len(same_plugin) >= plugin.parallelism
    if plugin is not None and at_limit and not (full and plugin.parallelism >= workers):
        return _explain_plugin_limit(context, plugin, same_plugin, workers=len(running) + 1 if full else None)
    if full:
        key = "service.max_workers"
        busy = "the only worker is" if len(running) == 1 else f"all {len(running)} workers are"
        return _explain_limit(
            context, running, f"{busy} busy ({key})", _raise_limits({key: len(running) + 1})
        )
    return WaitExplanation(why="it is about to be started.")


def _explain_no_node(job: Job, nodes: Sequence[Node]) -> WaitExplanation:
    """Explain that none of the live nodes may run a job."""
    if job.node is not None:
        return WaitExplanation(
            why=f"it belongs to the node {job.node}, where it was submitted, and that node is not running.",
            advice=(f"Start the node {job.node}, or: ductile job cancel {job.id}",),
        )
    names = ", ".join(node.info.name for node in nodes)
    why = f"{names} may not run it (service.run_only), or do not have it" if names else "no daemon is running"
    return WaitExplanation(
        why=f"no live node runs {job.plugin}: {why}.",
        advice=("Start the node that runs it, or see what each one runs: ductile system status --json",),
    )


def _explain_plugin_limit(
    context: OperationContext, plugin: PluginInstance, running: Sequence[Job], *, workers: int | None
) -> WaitExplanation:
    """Explain that a plugin runs as many jobs as it may.

    `workers` is how many are needed for one job more, if all are busy.
    """
    key = f"plugins.{plugin.name}.parallelism"
    count = len(running)
    jobs = f"1 job of {plugin.name} runs" if count == 1 else f"{count} jobs of {plugin.name} run"
    if plugin.installed is not None and not plugin.installed.manifest.concurrency_safe:
        why = f"{jobs}, and no more may: its manifest says `concurrency_safe: false`"
        return _explain_limit(context, running, why, ())
    limits = {key: count + 1} | ({} if workers is None else {"service.max_workers": workers})
    also = "" if workers is None else "; all workers are busy, too (service.max_workers)"
    return _explain_limit(context, running, f"{jobs}, and no more may ({key}){also}", _raise_limits(limits))


def _raise_limits(limits: Mapping[str, int]) -> tuple[str, ...]:
    first, *others = (f"ductile config set {key} {value} --lock" for key, value in limits.items())
    return (
        f"To let more run at once: {first}",
        *(f"and: {command}" for command in others),
        "and then: ductile system reload",
    )


def _explain_limit(
    context: OperationContext, running: Sequence[Job], why: str, advice: tuple[str, ...]
) -> WaitExplanation:
    longest_running = min(running, key=lambda other: other.started_at or other.created_at)
    return WaitExplanation(
        why=f"{why}. The longest: {job_text(longest_running, context.now())}.",
        blocker=longest_running,
        advice=(*_blocker_commands(longest_running), *advice),
    )


async def _explain_live_steps(context: OperationContext, run: RunRecord) -> WaitExplanation:
    """Explain which steps of a run are running or queued, and why the queued ones wait."""
    live = [step for step in run.steps if step.status in (JobStatus.QUEUED, JobStatus.RUNNING)]
    if not live:
        return WaitExplanation(why="none of its steps is live.", advice=("ductile system selfcheck",))
    sentences, blocker, advice = [], None, []
    for step in live[:_MAX_STEPS]:
        if step.status is JobStatus.RUNNING:
            since = status_since(step, context.now())
            sentences.append(f"{step_text(step)} is {since}, {attempt_text(step)}.")
            blocker = blocker or step
            advice.append(f"To end this step: ductile job cancel {step.id}")
            continue
        wait = await _explain_hold(context, step)
        if wait is None and context.engine is not None:
            wait = await _explain_ready_job(context, step)
        wait = wait or WaitExplanation(why="it is ready to start.")
        sentences.append(f"{step_text(step)} waits: {wait.why}")
        blocker = blocker or wait.blocker
        advice += wait.advice or (f"See more: ductile job explain {step.id}",)
    if len(live) > _MAX_STEPS:
        sentences.append(f"{len(live) - _MAX_STEPS} more steps have not ended.")
    advice.append(f"To end the run: ductile job cancel {run.job.id}")
    return WaitExplanation(why=" ".join(sentences), blocker=blocker, advice=tuple(dict.fromkeys(advice)))
