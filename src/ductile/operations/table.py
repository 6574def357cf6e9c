"""The table of operations: one row for each use case that a surface can call by name."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any

from ductile.core.json import JsonObject
from ductile.operations.access import (
    COMMAND,
    EVENTS_RO,
    EVENTS_RW,
    JOBS_RO,
    JOBS_RW,
    PLUGIN_RO,
    PLUGIN_RW,
    SYSTEM_RO,
    SYSTEM_RW,
)
from ductile.operations.context import OperationContext
from ductile.operations.operation import Operation, get, post

_ONE_JOB = (200, 404, 409)
_JOBS = (
    Operation(
        name="job.list",
        target="jobs.query:list_jobs",
        summary="Jobs, newest first",
        access=JOBS_RO,
        read_only=True,
        http=get("/jobs", tag="jobs"),
    ),
    Operation(
        name="job.show",
        target="jobs.query:show_job",
        summary="A job: its fields, payload, result and history",
        access=JOBS_RO,
        read_only=True,
        http=get(
            "/job/{job_id}", aliases=("/jobs/{job_id}",), tag="jobs", statuses=_ONE_JOB, tells_status=True
        ),
    ),
    Operation(
        name="job.tree",
        target="jobs.query:job_tree",
        summary="A job and all it led to",
        access=JOBS_RO,
        read_only=True,
        http=get("/job/{job_id}/tree", tag="jobs", statuses=_ONE_JOB),
    ),
    Operation(
        name="job.explain",
        target="diagnose.explain_job:explain_job",
        summary="Why a job failed or does not run, and what to do",
        access=JOBS_RO,
        read_only=True,
        http=get("/job/{job_id}/explain", message="Why it is as it is.", tag="jobs", statuses=_ONE_JOB),
    ),
    Operation(
        name="pipeline.explain",
        target="diagnose.explain_run:explain_run",
        summary="What became of every step of a run",
        access=JOBS_RO,
        read_only=True,
    ),
    Operation(
        name="job.logs",
        target="jobs.query:job_logs",
        summary="What each execution of a job printed",
        access=JOBS_RO,
        read_only=True,
        http=get("/job/{job_id}/log", message="Its executions.", tag="jobs", statuses=_ONE_JOB),
    ),
    Operation(
        name="job.wait",
        target="jobs.query:wait_for_job",
        summary="Wait until a job has ended",
        access=JOBS_RO,
        read_only=True,
    ),
    Operation(
        name="job.cancel",
        target="jobs.change:cancel_job",
        summary="End a job: a running one is killed",
        access=JOBS_RW,
        http=post(
            "/job/{job_id}/cancel", message="The job was cancelled.", tag="jobs", statuses=(*_ONE_JOB, 410)
        ),
    ),
    Operation(
        name="job.retry",
        target="jobs.change:retry_job",
        summary="Queue a failed or dead job again, with fresh attempts",
        access=JOBS_RW,
        http=post(
            "/job/{job_id}/retry",
            message="The job is on the queue again.",
            tag="jobs",
            statuses=(*_ONE_JOB, 410),
        ),
    ),
)
_PLUGIN_RECORDS = (
    Operation(
        name="plugin.state",
        target="plugins.records:plugin_state",
        summary="The stored state of a plugin",
        access=PLUGIN_RO,
        read_only=True,
    ),
    Operation(
        name="plugin.facts",
        target="plugins.records:plugin_facts",
        summary="The facts that a plugin has recorded",
        access=PLUGIN_RO,
        read_only=True,
    ),
    Operation(
        name="plugin.health",
        target="plugins.health:list_unhealthy_plugins",
        summary="Plugins whose last init failed",
        access=PLUGIN_RO,
        read_only=True,
    ),
    Operation(
        name="plugin.pending",
        target="system.lifecycle:pending_work",
        summary="Work of a plugin that has not ended",
        access=PLUGIN_RO,
        read_only=True,
    ),
    Operation(
        name="plugin.drain",
        target="system.lifecycle:drain_plugin",
        summary="Let a plugin finish its accepted work",
        access=PLUGIN_RW,
    ),
)
_ONE_SCHEDULE: dict[str, Any] = {"message": "Done.", "tag": "schedules"}
_SCHEDULES = (
    Operation(
        name="schedule.list",
        target="schedules.manage:list_schedules",
        summary="Every schedule, and when it is next due",
        access=JOBS_RO,
        read_only=True,
        http=get("/schedules", tag="schedules"),
    ),
    Operation(
        name="schedule.next",
        target="schedules.manage:preview",
        summary="The next runs of schedules",
        access=JOBS_RO,
        read_only=True,
    ),
    Operation(
        name="schedule.history",
        target="schedules.audit:show_history",
        summary="Past occurrences of a schedule, and whether there is a gap",
        access=JOBS_RO,
        read_only=True,
    ),
    Operation(
        name="schedule.explain",
        target="diagnose.explain_schedule:explain_schedule",
        summary="Why a schedule does not run, and what to do",
        access=JOBS_RO,
        read_only=True,
    ),
    Operation(
        name="schedule.pause",
        target="schedules.manage:pause_schedule",
        summary="Pause a schedule; it survives a restart",
        access=JOBS_RW,
        http=post("/schedule/{plugin}/{schedule}/pause", statuses=(200, 404, 409), **_ONE_SCHEDULE),
    ),
    Operation(
        name="schedule.resume",
        target="schedules.manage:resume_schedule",
        summary="Resume a paused schedule",
        access=JOBS_RW,
        http=post("/schedule/{plugin}/{schedule}/resume", statuses=(200, 404, 409), **_ONE_SCHEDULE),
    ),
    Operation(
        name="schedule.run",
        target="schedules.manage:run_schedule",
        summary="Run a schedule now",
        access=JOBS_RW,
        http=post(
            "/schedule/{plugin}/{schedule}/run", statuses=(202, 200, 404, 409), submits=True, **_ONE_SCHEDULE
        ),
    ),
)
_WEBHOOKS = (
    Operation(
        name="webhook.list",
        target="webhooks.endpoints:list_webhooks",
        summary="The webhook endpoints",
        access=SYSTEM_RO,
        read_only=True,
    ),
    Operation(
        name="webhook.deliveries",
        target="webhooks.deliveries:list_deliveries",
        summary="State webhooks that were sent or are due",
        access=JOBS_RO,
        read_only=True,
    ),
    Operation(
        name="webhook.resend",
        target="webhooks.deliveries:resend_delivery",
        summary="Send a state webhook again",
        access=JOBS_RW,
    ),
)
_SYSTEM = (
    Operation(
        name="system.status",
        target="system.status:show_status",
        summary="The daemon, the queue and every plugin",
        access=SYSTEM_RO,
        read_only=True,
    ),
    Operation(
        name="system.health",
        target="plugins.health:check_health",
        summary="Run the health command of plugins",
        access=SYSTEM_RW,
    ),
    Operation(
        name="system.doctor",
        target="diagnose.doctor:doctor",
        summary="Problems of this installation, and how to fix them",
        access=SYSTEM_RO,
        read_only=True,
        http=get("/system/doctor"),
    ),
    Operation(
        name="system.selfcheck",
        target="system.maintenance:selfcheck",
        summary="Whether the store keeps its invariants",
        access=SYSTEM_RO,
        read_only=True,
        http=get("/system/selfcheck"),
    ),
    Operation(
        name="system.sweep",
        target="system.maintenance:sweep",
        summary="Remove what has outlived its retention, now",
        access=SYSTEM_RW,
        http=post("/system/sweep", message="What had outlived its retention was removed."),
    ),
    Operation(
        name="system.reload",
        target="system.lifecycle:reload",
        summary="Load the configuration again and switch to it, or keep the old one",
        access=SYSTEM_RW,
        http=post(
            "/system/reload", message="The new configuration is in force.", statuses=(200, 409, 422, 503)
        ),
    ),
    Operation(
        name="system.stop", target="system.lifecycle:stop", summary="Stop the daemon", access=SYSTEM_RW
    ),
    Operation(
        name="system.breaker",
        target="system.breakers:show_breakers",
        summary="The circuit breakers of a plugin",
        access=SYSTEM_RO,
        read_only=True,
    ),
    Operation(
        name="system.reset",
        target="system.breakers:reset_breakers",
        summary="Close the circuit breakers of a plugin",
        access=SYSTEM_RW,
        http=post(
            "/system/breaker/{plugin}/reset", message="Its circuit breakers are closed.", statuses=(200, 404)
        ),
    ),
)


def _untyped(name: str, target: str, summary: str, access: Any, *, read_only: bool = False) -> Operation:
    return Operation(name=name, target=target, summary=summary, access=access, read_only=read_only)


#: Operations that still take and return JSON objects.
_UNTYPED = (
    _untyped("plugin.run", "jobs.submit:submit_from_cli", "Run a command of a plugin", COMMAND),
    _untyped("job.rerun", "runs.rerun:retry_from_cli", "Start a run again from one of its steps", JOBS_RW),
    _untyped("pipeline.run", "runs.pipelines:run_from_cli", "Run a pipeline", PLUGIN_RW),
    _untyped(
        "pipeline.list",
        "runs.pipelines:list_pipelines",
        "Every pipeline, with its latest run",
        PLUGIN_RO,
        read_only=True,
    ),
    _untyped("pipeline.follow", "runs.pipelines:follow_run", "Wait for steps of a run to end", JOBS_RO),
    _untyped("event.send", "runs.pipelines:send_from_cli", "Publish an event", EVENTS_RW),
    _untyped("log.list", "jobs.log:list_log", "Executions, newest first", JOBS_RO, read_only=True),
    _untyped("log.follow", "jobs.log:follow_log", "Wait for executions", JOBS_RO),
    _untyped(
        "ledger.tail", "jobs.log:tail_ledger", "The latest entries of the ledger", EVENTS_RO, read_only=True
    ),
    _untyped("ledger.follow", "jobs.log:follow_ledger", "Wait for entries of the ledger", EVENTS_RO),
    _untyped("queue.status", "jobs.queue:queue_status", "How deep the queue is", JOBS_RO, read_only=True),
    _untyped("queue.list", "jobs.queue:queue_list", "Running and queued jobs", JOBS_RO, read_only=True),
    _untyped("queue.purge", "jobs.queue:queue_purge", "End queued jobs", JOBS_RW),
)

OPERATIONS: Mapping[str, Operation] = {
    each.name: each for each in (*_JOBS, *_PLUGIN_RECORDS, *_SCHEDULES, *_WEBHOOKS, *_SYSTEM, *_UNTYPED)
}


def bind_operations(
    context: OperationContext,
) -> Mapping[str, Callable[[JsonObject], Awaitable[Any]]]:
    """The operations by name, each bound to a context: from named values to a response."""
    return {name: partial(operation.run, context) for name, operation in OPERATIONS.items()}
