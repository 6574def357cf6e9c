"""Remedies for jobs, by the reason of their status. Only commands that will work are advised."""

from __future__ import annotations

from ductile.core.jobs.model import TERMINAL, Job, JobReason, JobStatus, OutputFormat
from ductile.core.runs.expectations import NOT_CREATED
from ductile.core.runs.graph import RUN_PLUGIN
from ductile.core.scripts import EXEC_PLUGIN
from ductile.operations.context import OperationContext
from ductile.store.model.jobs import RetryResult
from ductile.store.model.records import RunRecord

#: `{plugin}`, `{command}` and `{job}` are filled in by `remedy_for`.
REMEDIES: dict[JobReason, str] = {
    JobReason.SUBMITTED: "Nothing has to be done.",
    JobReason.CLAIMED: "Nothing has to be done; ductile job wait {job} returns when it has ended.",
    JobReason.COMPLETED: "Nothing has to be done.",
    JobReason.PLUGIN_ERROR: "The plugin itself reported the error: fix its cause, then: ductile job retry "
    "{job}",
    JobReason.PROTOCOL_ERROR: "See what it printed with `ductile job logs {job}`; "
    "ductile plugin test {plugin} shows where it breaks the protocol.",
    JobReason.BAD_EXIT: "It ended without a response: its output (ductile job logs {job}) says where.",
    JobReason.KILLED: "If you did not kill it, the kernel did: look at plugins.{plugin}.limits "
    "and at the machine's memory (dmesg).",
    JobReason.OUTPUT_TOO_LARGE: "Have it write large results to a file and name that as an artifact.",
    JobReason.STATE_TOO_LARGE: "Have it keep less: ductile plugin state {plugin}",
    JobReason.TOO_MANY_EVENTS: "Have it emit fewer events in one response, or several items in one event.",
    JobReason.RUN_TOO_LARGE: "Split the work: emit an event that starts a run of its own for each part.",
    JobReason.COULD_NOT_START: "Look at the entrypoint's first line and mode: ductile plugin check {plugin}",
    JobReason.PLUGIN_UNAVAILABLE: "See why it is refused with `ductile plugin check {plugin}`, then: "
    "ductile job retry {job}",
    JobReason.RUNNER_LOST: "Try again with `ductile job retry {job}`; if it happens again, set "
    "plugins.{plugin}.warm to false.",
    JobReason.DEADLINE_EXCEEDED: "Find out what it waits for, or give it more time: "
    "ductile config set plugins.{plugin}.timeouts.{command} DURATION --lock",
    JobReason.ORPHANED: "See in the log why the daemon died. A job that kills it runs out of attempts.",
    JobReason.RETRY: "It will be retried without your help; to prevent that: ductile job cancel {job}",
    JobReason.ATTEMPTS_EXHAUSTED: "Fix the cause, then: ductile job retry {job}",
    JobReason.INTERRUPTED: "Nothing has to be done: it runs again.",
    JobReason.NO_RESOURCES: "Nothing has to be done: it runs again. If that continues, lower "
    "service.max_workers, or give the daemon more open files, processes or memory.",
    JobReason.RECOVERED: "Nothing has to be done: it runs again.",
    JobReason.BAD_TEMPLATE: "The step's `with` names something that its input does not have: "
    "correct the pipeline, then start it again.",
    JobReason.BAD_BAGGAGE: "The step's `baggage` names something that is not there, or is taken: "
    "correct the pipeline, then start it again.",
    JobReason.BAD_CONDITION: "The step's `if` cannot be evaluated: correct the pipeline, then start it "
    "again.",
    JobReason.CANCELLED: "If that was not intended: ductile job retry {job}",
    JobReason.PLUGIN_REMOVED: "Put {plugin} back under `plugins` or enable it, then: ductile job retry {job}",
    JobReason.NO_NODE: "Start a node that runs it (`ductile system status` shows those that live), then: "
    "ductile job retry {job}",
    JobReason.PURGED: "If that was not intended: ductile job retry {job}",
    JobReason.MANUAL_RETRY: "Nothing has to be done: it runs again.",
    JobReason.STEP_FAILED: "Fix what failed in the step, then: ductile job retry {job}",
    JobReason.PARTIAL_SUCCESS: "Fix the branch that failed, then: ductile job retry {job}",
    JobReason.STALLED: "That is a bug in Ductile: ductile system selfcheck, and report it. To go on: "
    "ductile job retry {job}",
}

#: Remedies for scripts and `ductile exec`, where they differ from those for plugins.
_SCRIPT_REMEDIES: dict[JobReason, str] = {
    JobReason.PROTOCOL_ERROR: "See what it printed with `ductile job logs {job}`: its `output` is json, so "
    "it has to print one JSON document and nothing else.",
    JobReason.BAD_EXIT: "Its output says why: ductile job logs {job}",
    JobReason.OUTPUT_TOO_LARGE: "Have it write large results to a file, and print the name of that.",
}
_EXEC_REMEDIES: dict[JobReason, str] = _SCRIPT_REMEDIES | {
    JobReason.KILLED: "If you did not kill it, the kernel did: look at the machine's memory (dmesg).",
    JobReason.COULD_NOT_START: "Look at the command in `ductile job show {job}`: its program has to exist, "
    "to be executable, and to begin with #! if it is a script.",
    JobReason.DEADLINE_EXCEEDED: "Find out what it waits for, or give it more time with --timeout.",
}

_RETRY = "ductile job retry {job}"


def remedy_for(reason: JobReason, *, plugin: str, command: str, job_id: str) -> str:
    return REMEDIES[reason].format(plugin=plugin, command=command, job=job_id)


async def applicable_remedy(
    context: OperationContext, job: Job, reason: JobReason, run: RunRecord | None
) -> str:
    """Return the remedy for a job with this reason. It advises a retry only if the store would accept one.

    `run` is the record of the job if it is a pipeline run.
    """
    plain = remedy_for(reason, plugin=job.plugin, command=job.command, job_id=job.run_id or job.id)
    if (special := _script_remedies(context, job).get(reason)) is not None:
        return special.format(job=job.id)
    if job.status not in TERMINAL or job.status is JobStatus.SUCCEEDED:
        return plain
    if reason in NOT_CREATED and job.run_id is not None and job.step_path is not None:
        return await _rerun_remedy(context, job.run_id, job) or plain
    if _RETRY not in REMEDIES[reason]:
        return plain
    result = RetryResult.UNKNOWN_JOB
    # The retry of a step is that of its run, or the step's own while the run is live.
    for job_id in (job.run_id, job.id):
        if job_id is not None:
            result = await context.store.check_retry(job_id)
            if result is RetryResult.QUEUED:
                return remedy_for(reason, plugin=job.plugin, command=job.command, job_id=job_id)
    not_created = [step for step in run.steps if step.reason in NOT_CREATED] if run else []
    if not_created:
        first = min(not_created, key=lambda step: step.completed_at or step.created_at)
        rerun = await _rerun_remedy(context, job.id, first)
        return rerun or "Correct the pipeline, then start it again."
    if result in (RetryResult.UNKNOWN_JOB, RetryResult.PRUNED):
        return "Only its log is left, so that it cannot be retried: submit it again."
    return "It cannot be retried: fix the cause, then submit it again."


def _script_remedies(context: OperationContext, job: Job) -> dict[JobReason, str]:
    """Return the remedies of a script or a command of `ductile exec`; none for other plugins."""
    if job.plugin == EXEC_PLUGIN:
        return _EXEC_REMEDIES
    plugin = context.snapshot().plugins.get(job.plugin)
    script = None if plugin is None or plugin.installed is None else plugin.installed.script
    return {} if script is None or script.output is OutputFormat.PROTOCOL else _SCRIPT_REMEDIES


async def _rerun_remedy(context: OperationContext, run_id: str, step: Job) -> str | None:
    """Return advice to start the run again from a corrected step; None if the store would refuse that."""
    run = await context.store.get_job(run_id)
    if run is None or run.plugin != RUN_PLUGIN or step.step_path is None:
        return None
    pipeline = context.snapshot().policy.pipelines.by_name.get(run.command)
    if pipeline is None:
        return None
    if await context.store.check_rerun(run_id, step.step_path, pipeline.graph) is not RetryResult.QUEUED:
        return None
    return (
        f"{step.reason.description} A retry would fail in the same way: correct the pipeline, "
        f"`ductile apply`, then: ductile job retry {run_id} --from-step {step.step_path}"
    )
