"""The table of operations: one row for each use case that a surface can call by name."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any

from ductile.core.json import JsonObject
from ductile.operations.context import OperationContext
from ductile.operations.operation import (
    COMMAND,
    DISCOVERY,
    EVENTS_RO,
    EVENTS_RW,
    JOBS_RO,
    JOBS_RW,
    ONE_PLUGIN,
    PLUGIN_RO,
    PLUGIN_RW,
    RUN,
    SYSTEM_RO,
    SYSTEM_RW,
    TRIGGER,
    Access,
    HttpRoute,
    Operation,
    get,
    post,
)


def _operation(
    name: str, target: str, summary: str, access: Access, http: HttpRoute | None = None, **options: bool
) -> Operation:
    return Operation(name=name, target=target, summary=summary, access=access, http=http, **options)


#: An operation that also runs while another process has the store's lock.
_read = partial(_operation, read_only=True)
#: An operation of the daemon, or of the process that has the store's lock.
_exclusive = _operation


_SYNCHRONOUS: dict[str, Any] = {
    "tag": "run",
    "statuses": (200, 202, 404, 409, 422, 502, 503),
    "submits": True,
    "waits": True,
    "sends_status_header": True,
}
_ONE_JOB = (200, 404, 409)
#: A response that comes when something has happened, or when the `timeout` of the request is over.
_LONG_POLL: dict[str, Any] = {"tag": "jobs", "waits": True}
_RUNS = (
    _exclusive(
        "plugin.run",
        "submission:run_command",
        "Run a command of a plugin",
        COMMAND,
        post(
            "/plugin/{plugin}/{command}",
            aliases=("/plugin/{plugin}",),
            message="The job is on the queue.",
            tag="run",
            statuses=(202, 200, 404, 422, 503),
            submits=True,
        ),
    ),
    _exclusive(
        "run.start",
        "runs.by_name:run_named",
        "Run a plugin or, if there is none of this name, a pipeline; does not wait for it",
        RUN,
        post(
            "/run/{name}",
            message="The job is on the queue.",
            tag="run",
            statuses=(202, 200, 400, 404, 422, 503),
            submits=True,
        ),
    ),
    _exclusive(
        "pipeline.run",
        "runs.start:run_pipeline",
        "Run a pipeline",
        PLUGIN_RW,
        post("/pipeline/{pipeline}", message="The run is on the queue.", **_SYNCHRONOUS),
    ),
    _exclusive(
        "pipeline.trigger",
        "runs.start:trigger_pipeline",
        "Run the pipeline on `plugin.command`, or the plugin if there is none",
        TRIGGER,
        post("/trigger/{plugin}/{command}", message="The job is on the queue.", **_SYNCHRONOUS),
    ),
    _read(
        "pipeline.list",
        "runs.pipelines:list_pipelines",
        "Every pipeline, with its latest run",
        PLUGIN_RO,
        get("/pipelines", tag="catalogue"),
    ),
    _read(
        "pipeline.show",
        "runs.pipelines:show_pipeline",
        "One pipeline: what starts it, its steps and its graph",
        PLUGIN_RO,
        get("/pipeline/{pipeline}", message="The pipeline.", tag="catalogue", statuses=(200, 404)),
    ),
    _read(
        "pipeline.graph",
        "runs.pipelines:graph_of_pipeline",
        "A drawing of a pipeline",
        PLUGIN_RO,
        get("/pipeline/{pipeline}/graph", tag="catalogue", statuses=(200, 404)),
    ),
    _exclusive(
        "pipeline.follow",
        "runs.pipelines:follow_run",
        "Wait for steps of a run to end",
        JOBS_RO,
        get("/run/{job_id}/follow", statuses=_ONE_JOB, **_LONG_POLL),
        waits=True,
    ),
    _exclusive(
        "event.send",
        "runs.publish:publish_event",
        "Publish an event into routing",
        EVENTS_RW,
        post("/event", tag="run", statuses=(202, 200, 422, 503), submits=True),
    ),
    _read(
        "event.explain",
        "runs.explain_event:explain_event",
        "What an event would start and what not, and why; nothing is run or stored",
        EVENTS_RO,
        post(
            "/event/explain",
            tag="run",
            message="Nothing was run or stored.",
            statuses=(200, 404, 422),
        ),
    ),
)
_JOBS = (
    _read("job.list", "jobs.query:list_jobs", "Jobs, newest first", JOBS_RO, get("/jobs", tag="jobs")),
    _read(
        "job.show",
        "jobs.query:show_job",
        "A job: its fields, payload, result and history",
        JOBS_RO,
        get(
            "/job/{job_id}",
            aliases=("/jobs/{job_id}",),
            tag="jobs",
            statuses=_ONE_JOB,
            sends_status_header=True,
        ),
    ),
    _read(
        "job.tree",
        "jobs.query:job_tree",
        "A job and all it led to",
        JOBS_RO,
        get("/job/{job_id}/tree", tag="jobs", statuses=_ONE_JOB),
    ),
    _read(
        "job.explain",
        "diagnose.explain_job:explain_job",
        "Why a job failed or does not run, and what to do",
        JOBS_RO,
        get("/job/{job_id}/explain", message="Why it is as it is.", tag="jobs", statuses=_ONE_JOB),
    ),
    _read(
        "pipeline.explain",
        "diagnose.explain_run:explain_run",
        "What became of every step of a run",
        JOBS_RO,
        get("/run/{job_id}/explain", tag="jobs", statuses=_ONE_JOB),
    ),
    _read(
        "job.logs",
        "jobs.query:job_logs",
        "What each execution of a job printed",
        JOBS_RO,
        get("/job/{job_id}/log", message="Its executions.", tag="jobs", statuses=_ONE_JOB),
    ),
    _exclusive(
        "job.follow",
        "jobs.live:follow_job",
        "Wait for output of a running job, or for its end",
        JOBS_RO,
        get("/job/{job_id}/follow", statuses=_ONE_JOB, **_LONG_POLL),
        waits=True,
    ),
    _read(
        "job.wait",
        "jobs.query:wait_for_job",
        "Wait until a job has ended",
        JOBS_RO,
        get("/job/{job_id}/wait", message="The job, as it is now.", statuses=_ONE_JOB, **_LONG_POLL),
        waits=True,
    ),
    _exclusive(
        "job.cancel",
        "jobs.change:cancel_job",
        "End a job: a running one is killed",
        JOBS_RW,
        post("/job/{job_id}/cancel", message="The job was cancelled.", tag="jobs", statuses=(*_ONE_JOB, 410)),
    ),
    _exclusive(
        "job.retry",
        "jobs.change:retry_job",
        "Queue a failed or dead job again, with fresh attempts",
        JOBS_RW,
        post(
            "/job/{job_id}/retry",
            message="The job is on the queue again.",
            tag="jobs",
            statuses=(*_ONE_JOB, 410),
        ),
    ),
    # Without a route over HTTP, where it would let every caller execute anything: see its module.
    _exclusive("job.exec", "jobs.exec:execute_command", "Run any command once as a job", SYSTEM_RW),
    _exclusive(
        "job.retry_many",
        "jobs.bulk:retry_jobs",
        "Queue again the failed and dead jobs that match a filter",
        JOBS_RW,
        post("/jobs/retry", tag="jobs", statuses=(200, 400, 404, 422)),
    ),
    _exclusive(
        "job.cancel_many",
        "jobs.bulk:cancel_jobs",
        "End the queued and running jobs that match a filter",
        JOBS_RW,
        post("/jobs/cancel", tag="jobs", statuses=(200, 400, 404, 422)),
    ),
    _exclusive(
        "job.rerun",
        "runs.start:retry_from_step",
        "Start a run again from one of its steps",
        JOBS_RW,
        post(
            "/run/{job_id}/retry",
            message="The new run is on the queue.",
            tag="jobs",
            statuses=(202, *_ONE_JOB, 422),
        ),
    ),
    _read("log.list", "jobs.log:list_log", "Executions, newest first", JOBS_RO, get("/job-logs", tag="jobs")),
    _exclusive(
        "log.follow",
        "jobs.log:follow_log",
        "Wait for executions",
        JOBS_RO,
        get("/job-logs/follow", **_LONG_POLL),
        waits=True,
    ),
    _read(
        "ledger.tail",
        "jobs.log:tail_ledger",
        "The latest entries of the ledger",
        EVENTS_RO,
        get("/ledger", tag="events"),
    ),
    _exclusive(
        "ledger.follow",
        "jobs.log:follow_ledger",
        "Wait for entries of the ledger",
        EVENTS_RO,
        get("/ledger/follow", tag="events", waits=True),
        waits=True,
    ),
    _read(
        "queue.status",
        "jobs.queue:queue_status",
        "How deep the queue is",
        JOBS_RO,
        get("/queue/status", tag="queue"),
    ),
    _read(
        "queue.list", "jobs.queue:queue_list", "Running and queued jobs", JOBS_RO, get("/queue", tag="queue")
    ),
    _exclusive(
        "queue.purge",
        "jobs.queue:queue_purge",
        "End queued jobs",
        JOBS_RW,
        post("/queue/purge", message="The queued jobs were ended.", tag="queue", statuses=(200, 404)),
    ),
)
_CATALOGUE = (
    _read(
        "plugin.list",
        "plugins.catalogue:list_plugins",
        "Every plugin, and what may be done with it",
        DISCOVERY,
        get("/plugins", tag="catalogue"),
    ),
    _read(
        "plugin.show",
        "plugins.catalogue:show_plugin",
        "One plugin: its manifest, and how it is set up here",
        ONE_PLUGIN,
        get("/plugin/{plugin}", message="The plugin.", tag="catalogue", statuses=(200, 404)),
    ),
    _read(
        "system.topology",
        "plugins.topology:show_topology",
        "Which plugins, webhooks and pipelines emit and take which events",
        PLUGIN_RO,
        get("/topology", tag="catalogue"),
    ),
)
_FIGURES = (
    _read(
        "queue.figures",
        "jobs.queue:queue_figures",
        "The queue, plugin by plugin",
        JOBS_RO,
        get("/analytics/queue", tag="figures"),
    ),
    _read(
        "log.figures",
        "jobs.queue:execution_figures",
        "How executions ended, plugin by plugin",
        JOBS_RO,
        get("/analytics/summary", tag="figures"),
    ),
    _read(
        "plugin.stats",
        "jobs.queue:plugin_figures",
        "Executions, failures, retries, run times, waits and stderr, plugin by plugin",
        JOBS_RO,
        get("/analytics/plugins", tag="figures", statuses=(200, 404)),
    ),
    _read(
        "system.config",
        "system.lifecycle:view_configuration",
        "The configuration in force, secrets masked",
        SYSTEM_RO,
        get("/config/view"),
    ),
)
_PLUGIN_RECORDS = (
    _read(
        "plugin.state",
        "plugins.catalogue:plugin_state",
        "The stored state of a plugin",
        ONE_PLUGIN,
        get("/plugin/{plugin}/state", tag="catalogue", statuses=(200, 404)),
    ),
    _read(
        "plugin.facts",
        "plugins.catalogue:plugin_facts",
        "The facts that a plugin has recorded",
        ONE_PLUGIN,
        get("/plugin/{plugin}/facts", tag="catalogue", statuses=(200, 404)),
    ),
    _read(
        "plugin.health",
        "plugins.health:list_unhealthy_plugins",
        "Plugins whose last init failed",
        PLUGIN_RO,
        get("/plugins/unhealthy", tag="catalogue"),
    ),
    _read(
        "plugin.pending",
        "system.lifecycle:pending_work",
        "Work of a plugin that has not ended",
        ONE_PLUGIN,
        get("/plugin/{plugin}/pending", tag="catalogue"),
    ),
    _exclusive(
        "plugin.drain",
        "system.lifecycle:drain_plugin",
        "Let a plugin finish its accepted work",
        PLUGIN_RW,
        waits=True,
    ),
)


def _of_schedule(method: Callable[..., HttpRoute], word: str, **options: Any) -> HttpRoute:
    """The routes of one schedule. Its id may be left out, as on the command line."""
    options = {"tag": "schedules", "statuses": (200, 404, 409)} | options
    return method(
        f"/schedule/{{plugin}}/{{schedule}}/{word}", aliases=(f"/schedule/{{plugin}}/{word}",), **options
    )


_SCHEDULES = (
    _read(
        "schedule.list",
        "schedules.manage:list_schedules",
        "Every schedule, and when it is next due",
        JOBS_RO,
        get("/schedules", tag="schedules"),
    ),
    _read(
        "schedule.next",
        "schedules.manage:preview",
        "The next runs of schedules",
        JOBS_RO,
        get("/schedules/next", tag="schedules", statuses=(200, 404)),
    ),
    _read(
        "schedule.history",
        "schedules.audit:show_history",
        "Past occurrences of a schedule, and whether there is a gap",
        JOBS_RO,
        _of_schedule(get, "history"),
    ),
    _read(
        "schedule.explain",
        "diagnose.explain_schedule:explain_schedule",
        "Why a schedule does not run, and what to do",
        JOBS_RO,
        _of_schedule(get, "explain"),
    ),
    _exclusive(
        "schedule.pause",
        "schedules.manage:pause_schedule",
        "Pause a schedule; it survives a restart",
        JOBS_RW,
        _of_schedule(post, "pause", message="Done."),
    ),
    _exclusive(
        "schedule.resume",
        "schedules.manage:resume_schedule",
        "Resume a paused schedule",
        JOBS_RW,
        _of_schedule(post, "resume", message="Done."),
    ),
    _exclusive(
        "schedule.run",
        "schedules.manage:run_schedule",
        "Run a schedule now",
        JOBS_RW,
        _of_schedule(post, "run", message="Done.", statuses=(202, 200, 404, 409), submits=True),
    ),
)
_WEBHOOKS = (
    _read(
        "webhook.list",
        "webhooks.manage:list_webhooks",
        "The webhook endpoints",
        SYSTEM_RO,
        get("/webhooks", tag="webhooks"),
    ),
    _read(
        "webhook.deliveries",
        "webhooks.manage:list_deliveries",
        "State webhooks that were sent or are due",
        JOBS_RO,
        get("/webhooks/deliveries", tag="webhooks", statuses=(200, 404, 409)),
    ),
    _exclusive(
        "webhook.resend",
        "webhooks.manage:resend_delivery",
        "Send a state webhook again",
        JOBS_RW,
        post(
            "/webhooks/deliveries/{delivery_id}/resend",
            message="It is sent again.",
            tag="webhooks",
            statuses=(200, 404, 409),
        ),
    ),
    _exclusive(
        "webhook.resend_many",
        "jobs.bulk:resend_deliveries",
        "Send again the state webhooks that match a filter",
        JOBS_RW,
        post("/deliveries/resend", tag="jobs", statuses=(200, 400, 404, 422)),
    ),
)
_SYSTEM = (
    _read(
        "system.status",
        "system.status:show_status",
        "The daemon, the queue and every plugin",
        SYSTEM_RO,
        get("/system/status"),
    ),
    _exclusive(
        "system.health",
        "plugins.health:check_health",
        "Run the health command of plugins",
        SYSTEM_RW,
        post("/system/health", message="The plugins were asked.", statuses=(200, 404)),
    ),
    _read(
        "system.doctor",
        "diagnose.doctor:doctor",
        "Problems of this installation, and how to fix them",
        SYSTEM_RO,
        get("/system/doctor"),
    ),
    _read(
        "system.digest",
        "system.digest:show_digest",
        "What ran, failed, was skipped, waits and was changed since an instant",
        SYSTEM_RO,
        get("/system/digest"),
    ),
    _read(
        "system.selfcheck",
        "system.maintenance:selfcheck",
        "Whether the store keeps its invariants",
        SYSTEM_RO,
        get("/system/selfcheck"),
    ),
    _exclusive(
        "system.sweep",
        "system.maintenance:sweep",
        "Remove what has outlived its retention, now",
        SYSTEM_RW,
        post("/system/sweep", message="What had outlived its retention was removed."),
    ),
    # Waits for a drain. The switch itself is shielded from the cancellation.
    _exclusive(
        "system.reload",
        "system.lifecycle:reload",
        "Load the configuration again and switch to it, or keep the old one",
        SYSTEM_RW,
        post("/system/reload", message="The new configuration is in force.", statuses=(200, 409, 422, 503)),
        waits=True,
    ),
    _exclusive("system.stop", "system.lifecycle:stop", "Stop the daemon", SYSTEM_RW),
    _read(
        "system.breaker",
        "system.breakers:show_breakers",
        "The circuit breakers of a plugin",
        SYSTEM_RO,
        get("/system/breaker/{plugin}", statuses=(200, 404)),
    ),
    _exclusive(
        "system.reset",
        "system.breakers:reset_breakers",
        "Close the circuit breakers of a plugin",
        SYSTEM_RW,
        post(
            "/system/breaker/{plugin}/reset", message="Its circuit breakers are closed.", statuses=(200, 404)
        ),
    ),
)

_ONE_TOKEN: dict[str, Any] = {"tag": "tokens", "statuses": (200, 403, 404, 409, 422)}
_TOKENS = (
    _exclusive(
        "token.list",
        "tokens.manage:list_tokens",
        "Tokens and shared secrets, without their values",
        SYSTEM_RO,
        get("/tokens", tag="tokens"),
    ),
    _exclusive(
        "token.show",
        "tokens.manage:show_token",
        "One token or shared secret, without its value",
        SYSTEM_RO,
        get("/tokens/{name}", message="The token.", tag="tokens", statuses=(200, 404)),
    ),
    _exclusive(
        "token.create",
        "tokens.manage:create_token",
        "Create a token, in force at once; its value is returned only once",
        SYSTEM_RW,
        post("/tokens", message="The token is in force.", tag="tokens", statuses=(200, 403, 409, 422)),
    ),
    _exclusive(
        "token.rotate",
        "tokens.manage:rotate_token",
        "Give a token a new secret; the old one stays valid for a time",
        SYSTEM_RW,
        post("/tokens/{name}/rotate", message="The new secret is in force.", **_ONE_TOKEN),
    ),
    _exclusive(
        "token.revoke",
        "tokens.manage:revoke_token",
        "Revoke a token: it is refused from now on",
        SYSTEM_RW,
        post("/tokens/{name}/revoke", message="The token is refused from now on.", **_ONE_TOKEN),
    ),
    # For the command line of the same machine, which has changed the files itself.
    _exclusive(
        "token.refresh",
        "tokens.manage:refresh_token",
        "Take one token from the configuration on disk, and nothing else",
        SYSTEM_RW,
    ),
)

OPERATIONS: Mapping[str, Operation] = {
    each.name: each
    for each in (
        *_RUNS,
        *_JOBS,
        *_CATALOGUE,
        *_PLUGIN_RECORDS,
        *_SCHEDULES,
        *_WEBHOOKS,
        *_FIGURES,
        *_SYSTEM,
        *_TOKENS,
    )
}

#: Names of the operations that are cancelled when their client on the control socket disconnects.
WAITING = frozenset(name for name, operation in OPERATIONS.items() if operation.waits)


def bind_operations(context: OperationContext) -> Mapping[str, Callable[[JsonObject], Awaitable[Any]]]:
    """The operations by name, each bound to a context: from named values to a response."""
    return {name: partial(operation.run, context) for name, operation in OPERATIONS.items()}
