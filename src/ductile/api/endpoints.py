"""The table of endpoints: requests are routed by it, and what describes the API is made from it."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from ductile.api import artifacts, handlers, skills
from ductile.api.endpoint import Endpoint, Handler, Parameter, ParameterType
from ductile.api.handlers import operation_handler
from ductile.api.vocabulary import (
    CHANGE,
    COMMAND,
    DISCOVERY,
    EVENTS_RO,
    EVENTS_RW,
    FILTERS,
    JOB_STATUS,
    JOBS_RO,
    JOBS_RW,
    LOG_STATUS,
    ONE_PLUGIN,
    PLUGIN_RO,
    PLUGIN_RW,
    RESULT,
    STRICT,
    SUBMISSION,
    SYSTEM_RO,
    SYSTEM_RW,
    TRIGGER,
)
from ductile.core.jobs.ledger import LedgerKind
from ductile.core.json import JsonObject
from ductile.http.authentication import OPEN
from ductile.operations.context import OperationContext
from ductile.operations.jobs import analytics, log, query
from ductile.operations.plugins import catalogue, topology
from ductile.operations.schedules import control
from ductile.operations.shapes import TEXT, named
from ductile.operations.system import config_view, status
from ductile.operations.table import OPERATIONS, Operation

_WAITING = (200, 202, 404, 409, 422, 502, 503)
#: The answers of those who wait; 502 is for those who ask for it.
_DONE_OR_NOT = {200: "FinishedOrResult", 202: "Unfinished", 502: "FinishedOrResult"}


def _open_endpoints() -> Iterator[Endpoint]:
    yield Endpoint(
        method="GET",
        path="/",
        summary="What this is, and where to go on",
        access=OPEN,
        handler=handlers.discover,
        message="Ductile, an automation runtime.",
        answer="About",
    )
    for path, summary, handler in (
        ("/healthz", "Whether the daemon and its store are well", handlers.show_health),
        ("/readyz", "Whether it takes work: not while it stops, nor on a full disk", handlers.show_readiness),
    ):
        yield Endpoint(
            method="GET",
            path=path,
            summary=summary,
            access=OPEN,
            handler=handler,
            message="All is well.",
            answer="Health",
            probe=True,
            statuses=(200, 503),
        )


def _submissions() -> Iterator[Endpoint]:
    yield Endpoint(
        method="POST",
        path="/plugin/{plugin}/{command}",
        summary="Run a command of a plugin",
        access=COMMAND,
        handler=handlers.submit,
        message="The job is on the queue.",
        answer="Submitted",
        body=SUBMISSION,
        intake=True,
        statuses=(202, 404, 422, 503),
        tag="run",
    )
    yield Endpoint(
        method="POST",
        path="/pipeline/{pipeline}",
        summary="Run a pipeline",
        access=PLUGIN_RW,
        handler=handlers.start_pipeline,
        message="The run is on the queue.",
        answer=_DONE_OR_NOT,
        query=(
            Parameter(
                name="async",
                kind=ParameterType.FLAG,
                about="Answer at once, even if the pipeline is synchronous.",
            ),
            RESULT,
            STRICT,
        ),
        body=SUBMISSION,
        waits=True,
        tells_status=True,
        intake=True,
        statuses=_WAITING,
        tag="run",
    )
    yield Endpoint(
        method="POST",
        path="/trigger/{plugin}/{command}",
        summary="Run the pipeline on `plugin.command`, or the plugin if there is none",
        access=TRIGGER,
        handler=handlers.trigger,
        message="The job is on the queue.",
        answer=_DONE_OR_NOT,
        query=(
            Parameter(name="async", kind=ParameterType.FLAG, about="Answer at once in any case."),
            RESULT,
            STRICT,
        ),
        body=SUBMISSION,
        waits=True,
        tells_status=True,
        intake=True,
        statuses=_WAITING,
        tag="run",
    )
    yield Endpoint(
        method="POST",
        path="/event",
        summary="Publish an event to whoever listens",
        access=EVENTS_RW,
        handler=handlers.publish_event,
        message="The event was published.",
        answer="Published",
        body=("type", "payload", "dedupe_key"),
        intake=True,
        statuses=(202, 422, 503),
        tag="run",
    )


def _jobs() -> Iterator[Endpoint]:
    for path in ("/job/{job_id}", "/jobs/{job_id}"):
        yield Endpoint(
            method="GET",
            path=path,
            summary="A job: its fields, payload, result and history",
            access=JOBS_RO,
            handler=handlers.show_job,
            message="The job.",
            answer="JobOrResult",
            query=(RESULT,),
            tells_status=True,
            statuses=(200, 404, 409),
            tag="jobs",
        )
    yield _job(
        "/job/{job_id}/tree",
        "A job and all it led to",
        operation_handler(query.job_tree),
        "The job and all it led to.",
        "JobTree",
    )
    yield _job(
        "/job/{job_id}/explain",
        "Why a job failed or does not run, and what to do",
        operation_handler(OPERATIONS["job.explain"]),
        "Why it is as it is.",
        "Explanation",
    )
    yield _job(
        "/job/{job_id}/log",
        "What each execution of a job printed",
        operation_handler(query.job_logs),
        "Its executions.",
        "JobLog",
    )
    yield Endpoint(
        method="GET",
        path="/job/{job_id}/artifact/{name}",
        summary="A file that the job left behind",
        access=JOBS_RO,
        handler=artifacts.artifact,
        message="",
        documents={"*/*": {}},
        streams=True,
        takes_rest=True,
        statuses=(200, 404, 409),
        tag="jobs",
    )
    for action, summary, handler in (
        ("cancel", "End a job: a running one is killed", handlers.cancel_job),
        (
            "retry",
            "Queue a failed or dead job again, with fresh attempts",
            operation_handler(query.retry_job),
        ),
    ):
        yield Endpoint(
            method="POST",
            path=f"/job/{{job_id}}/{action}",
            summary=summary,
            access=JOBS_RW,
            handler=handler,
            message="The job was cancelled." if action == "cancel" else "The job is on the queue again.",
            answer="Cancelled" if action == "cancel" else "Retried",
            body=CHANGE,
            statuses=(200, 404, 409, 410),
            tag="jobs",
        )


def _lists() -> Iterator[Endpoint]:
    yield Endpoint(
        method="GET",
        path="/jobs",
        summary="Jobs, newest first",
        access=JOBS_RO,
        handler=operation_handler(query.list_jobs),
        message="Jobs, newest first.",
        answer="Jobs",
        query=(
            *FILTERS,
            JOB_STATUS,
            Parameter(name="parent", about="Started by this job."),
            Parameter(name="run", about="Steps of this pipeline run."),
        ),
        tag="jobs",
    )
    yield Endpoint(
        method="GET",
        path="/job-logs",
        summary="Executions, newest first",
        access=JOBS_RO,
        handler=operation_handler(log.list_log),
        message="Executions, newest first.",
        answer="Executions",
        query=(*FILTERS, LOG_STATUS),
        tag="jobs",
    )


def _job(path: str, summary: str, handler: Handler, message: str, answer: str) -> Endpoint:
    return Endpoint(
        method="GET",
        path=path,
        summary=summary,
        access=JOBS_RO,
        handler=handler,
        message=message,
        answer=answer,
        statuses=(200, 404, 409),
        tag="jobs",
    )


def _catalogue() -> Iterator[Endpoint]:
    yield Endpoint(
        method="GET",
        path="/skills",
        summary="What an agent can do here, and how to call it; as JSON or as a skill file",
        access=DISCOVERY,
        handler=skills.show_skills,
        message="What an agent can do here, and how to call it.",
        answer="Skills",
        documents={"text/markdown": TEXT},
        query=(
            Parameter(
                name="format",
                about="`markdown` for a SKILL.md that an agent can be given.",
                schema={"enum": [*skills.Format]},
            ),
        ),
        tag="catalogue",
    )
    yield Endpoint(
        method="GET",
        path="/plugins",
        summary="Every plugin, and what may be done with it",
        access=DISCOVERY,
        handler=operation_handler(catalogue.list_plugins),
        message="Every plugin, and what may be done with it.",
        answer="Plugins",
        tag="catalogue",
    )
    for path, summary, handler in (
        ("/openapi.json", "This API as an OpenAPI 3.1 document", handlers.openapi),
        ("/plugin/{plugin}/openapi.json", "The commands of one plugin as OpenAPI 3.1", handlers.openapi),
        ("/.well-known/ai-plugin.json", "Where tools for language models look first", handlers.ai_plugin),
    ):
        yield Endpoint(
            method="GET",
            path=path,
            summary=summary,
            access=DISCOVERY,
            handler=handler,
            message="",
            documents={"application/json": {"type": "object"}},
            statuses=(200, 404) if "{" in path else (200,),
            tag="catalogue",
        )
    yield Endpoint(
        method="GET",
        path="/plugin/{plugin}",
        summary="One plugin: its manifest, and how it is set up here",
        access=ONE_PLUGIN,
        handler=operation_handler(catalogue.show_plugin),
        message="The plugin.",
        answer="Plugin",
        statuses=(200, 404),
        tag="catalogue",
    )
    yield Endpoint(
        method="GET",
        path="/topology",
        summary="Who emits which events, and who listens",
        access=PLUGIN_RO,
        handler=operation_handler(topology.show_topology),
        message="Who emits which events, and who listens.",
        answer="Topology",
        tag="catalogue",
    )


def _events() -> Iterator[Endpoint]:
    yield Endpoint(
        method="GET",
        path="/events",
        summary="The ledger as server-sent events; resume with Last-Event-ID",
        access=EVENTS_RO,
        handler=handlers.events,
        message="",
        documents={"text/event-stream": {**TEXT, "x-ductile-data-schema": named("Event")}},
        query=(
            Parameter(name="after", about="As Last-Event-ID, for callers who cannot set a header."),
            Parameter(
                name="kind",
                about=f"Only these kinds, separated by commas, such as `{LedgerKind.JOB_TRANSITION}`.",
            ),
            Parameter(name="job_id", about="Only what concerns this job, or this run and its steps."),
        ),
        streams=True,
        statuses=(200, 404, 409, 503),
        tag="events",
    )


def _schedules() -> Iterator[Endpoint]:
    yield Endpoint(
        method="GET",
        path="/schedules",
        summary="Where every schedule stands",
        access=JOBS_RO,
        handler=operation_handler(control.list_schedules),
        message="Where every schedule stands.",
        answer="Schedules",
        query=(Parameter(name="plugin", about="Of this plugin."),),
        tag="schedules",
    )
    for action, summary, handler in (
        ("pause", "Pause a schedule; it survives a restart", operation_handler(control.pause_schedule)),
        ("resume", "Go on with a paused schedule", operation_handler(control.resume_schedule)),
        ("run", "Run a schedule now", handlers.run_schedule),
    ):
        yield Endpoint(
            method="POST",
            path=f"/schedule/{{plugin}}/{{schedule}}/{action}",
            summary=summary,
            access=JOBS_RW,
            handler=handler,
            message="Done.",
            answer="ScheduleRun" if action == "run" else "ScheduleSwitched",
            body=CHANGE,
            intake=action == "run",
            statuses=(202, 200, 404, 409) if action == "run" else (200, 404, 409),
            tag="schedules",
        )


def _figures() -> Iterator[Endpoint]:
    yield Endpoint(
        method="GET",
        path="/analytics/queue",
        summary="The queue, plugin by plugin",
        access=JOBS_RO,
        handler=operation_handler(analytics.queue_analytics),
        message="The queue, plugin by plugin.",
        answer="QueueFigures",
        tag="figures",
    )
    yield Endpoint(
        method="GET",
        path="/analytics/summary",
        summary="How executions ended, plugin by plugin",
        access=JOBS_RO,
        handler=operation_handler(analytics.summary),
        message="How executions ended, plugin by plugin.",
        answer="RunFigures",
        query=(Parameter(name="span", about="How far to look back, such as `24h`."),),
        tag="figures",
    )
    yield Endpoint(
        method="GET",
        path="/metrics",
        summary="Metrics in Prometheus' text format",
        access=JOBS_RO,
        handler=handlers.show_metrics,
        message="",
        documents={"text/plain": TEXT},
        probe=True,
        tag="figures",
    )


async def _only_look(operation: Operation, context: OperationContext, given: JsonObject) -> JsonObject:
    """Whoever may only read starts nothing: plugins are not asked for their health."""
    return await operation(context, {**given, "ask_health": False})


def _system() -> Iterator[Endpoint]:
    yield Endpoint(
        method="GET",
        path="/config/view",
        summary="The configuration in force, secrets masked",
        access=SYSTEM_RO,
        handler=operation_handler(config_view.view_configuration),
        message="The configuration in force.",
        answer="ConfigView",
    )
    for name, summary, answer in (
        ("doctor", "What is doubtful about this installation", "Doctor"),
        ("selfcheck", "Whether the store keeps its own rules", "SelfCheck"),
    ):
        yield Endpoint(
            method="GET",
            path=f"/system/{name}",
            summary=summary,
            access=SYSTEM_RO,
            handler=operation_handler(partial(_only_look, OPERATIONS[f"system.{name}"])),
            message=f"{summary}.",
            answer=answer,
        )
    yield Endpoint(
        method="POST",
        path="/system/reload",
        summary="Load the configuration again and switch to it, or keep the old one",
        access=SYSTEM_RW,
        handler=operation_handler(status.reload),
        message="The new configuration is in force.",
        answer="Reloaded",
        body=("drain", "drain_timeout", *CHANGE),
        statuses=(200, 409, 422, 503),
    )
    yield Endpoint(
        method="POST",
        path="/system/sweep",
        summary="Remove what has been kept long enough, now",
        access=SYSTEM_RW,
        handler=operation_handler(OPERATIONS["system.sweep"]),
        message="What had been kept long enough was removed.",
        answer="Swept",
        body=CHANGE,
        statuses=(200,),
    )
    yield Endpoint(
        method="POST",
        path="/system/breaker/{plugin}/reset",
        summary="Close the circuit breakers of a plugin",
        access=SYSTEM_RW,
        handler=operation_handler(status.reset_breaker),
        message="Its circuit breakers are closed.",
        answer="BreakerReset",
        body=("command", *CHANGE),
        statuses=(200, 404),
    )


ENDPOINTS: tuple[Endpoint, ...] = (
    *_open_endpoints(),
    *_submissions(),
    *_jobs(),
    *_lists(),
    *_events(),
    *_catalogue(),
    *_schedules(),
    *_figures(),
    *_system(),
)
