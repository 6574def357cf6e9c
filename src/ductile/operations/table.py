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


def _untyped(name: str, target: str, summary: str, access: Any, *, read_only: bool = False) -> Operation:
    return Operation(name=name, target=target, summary=summary, access=access, read_only=read_only)


#: Operations that still take and return JSON objects.
_UNTYPED = (
    _untyped("plugin.run", "jobs.submit:submit_from_cli", "Run a command of a plugin", COMMAND),
    _untyped(
        "plugin.state",
        "plugins.records:plugin_state",
        "The stored state of a plugin",
        PLUGIN_RO,
        read_only=True,
    ),
    _untyped(
        "plugin.health",
        "plugins.health:plugin_health",
        "Whether the last init of a plugin failed",
        PLUGIN_RO,
        read_only=True,
    ),
    _untyped(
        "plugin.pending",
        "plugins.draining:pending_work",
        "Work of a plugin that has not ended",
        PLUGIN_RO,
        read_only=True,
    ),
    _untyped(
        "plugin.drain", "plugins.draining:drain_plugin", "Let a plugin finish its accepted work", PLUGIN_RW
    ),
    _untyped(
        "plugin.facts",
        "plugins.records:plugin_facts",
        "The facts that a plugin has recorded",
        PLUGIN_RO,
        read_only=True,
    ),
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
    _untyped(
        "pipeline.explain",
        "runs.pipelines:explain_run",
        "What became of every step of a run",
        JOBS_RO,
        read_only=True,
    ),
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
    _untyped(
        "schedule.list",
        "schedules.control:list_schedules",
        "Every schedule and when it is next due",
        JOBS_RO,
        read_only=True,
    ),
    _untyped(
        "schedule.next",
        "schedules.control:schedule_next",
        "The next runs of schedules",
        JOBS_RO,
        read_only=True,
    ),
    _untyped(
        "schedule.history",
        "schedules.control:schedule_history",
        "What became of each due instant of a schedule",
        JOBS_RO,
        read_only=True,
    ),
    _untyped(
        "schedule.explain",
        "diagnose.explain_schedule:explain_schedule",
        "Why a schedule does not run",
        JOBS_RO,
        read_only=True,
    ),
    _untyped(
        "schedule.pause",
        "schedules.control:pause_schedule",
        "Pause a schedule; it survives a restart",
        JOBS_RW,
    ),
    _untyped("schedule.resume", "schedules.control:resume_schedule", "Go on with a paused schedule", JOBS_RW),
    _untyped("schedule.run", "schedules.control:run_schedule", "Run a schedule now", JOBS_RW),
    _untyped(
        "webhook.list", "webhooks.incoming:list_webhooks", "The webhook endpoints", SYSTEM_RO, read_only=True
    ),
    _untyped(
        "webhook.deliveries",
        "webhooks.incoming:list_deliveries",
        "State webhooks that were sent or are due",
        JOBS_RO,
        read_only=True,
    ),
    _untyped("webhook.resend", "webhooks.incoming:resend_delivery", "Send a state webhook again", JOBS_RW),
    _untyped(
        "system.status",
        "system.status:status",
        "The daemon, the queue and every plugin",
        SYSTEM_RO,
        read_only=True,
    ),
    _untyped("system.health", "system.status:check_health", "Run the health command of plugins", SYSTEM_RW),
    _untyped(
        "system.doctor", "diagnose.doctor:doctor", "Problems of this installation", SYSTEM_RO, read_only=True
    ),
    _untyped(
        "system.selfcheck",
        "system.maintenance:selfcheck",
        "Whether the store keeps its invariants",
        SYSTEM_RO,
        read_only=True,
    ),
    _untyped(
        "system.sweep", "system.maintenance:sweep", "Remove what has outlived its retention, now", SYSTEM_RW
    ),
    _untyped("system.reload", "system.status:reload", "Load the configuration again", SYSTEM_RW),
    _untyped("system.stop", "system.status:stop", "Stop the daemon", SYSTEM_RW),
    _untyped(
        "system.breaker",
        "system.status:show_breaker",
        "The circuit breakers of a plugin",
        SYSTEM_RO,
        read_only=True,
    ),
    _untyped(
        "system.reset", "system.status:reset_breaker", "Close the circuit breakers of a plugin", SYSTEM_RW
    ),
)

OPERATIONS: Mapping[str, Operation] = {each.name: each for each in (*_JOBS, *_UNTYPED)}


def bind_operations(
    context: OperationContext,
) -> Mapping[str, Callable[[JsonObject], Awaitable[Any]]]:
    """The operations by name, each bound to a context: from named values to a response."""
    return {name: partial(operation.run, context) for name, operation in OPERATIONS.items()}
