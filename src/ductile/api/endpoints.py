"""The table of endpoints: the routes of operations, and the API's own."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Annotated, Any

from msgspec import Meta

from ductile.api import artifacts, handlers, skills
from ductile.api.endpoint import Endpoint, Handler
from ductile.api.handlers import operation_handler, run_operation
from ductile.core.jobs.ledger import LedgerKind
from ductile.core.jobs.model import SubmittedBy
from ductile.core.jobs.settlement import LogStatus
from ductile.core.json import JsonObject
from ductile.operations.access import (
    COMMAND,
    DISCOVERY,
    EVENTS_RO,
    EVENTS_RW,
    JOBS_RO,
    ONE_PLUGIN,
    OPEN,
    PLUGIN_RO,
    PLUGIN_RW,
    SYSTEM_RO,
    TRIGGER,
    Access,
)
from ductile.operations.jobs import analytics, log
from ductile.operations.jobs.query import ResultOnly
from ductile.operations.operation import HttpRoute, get, post
from ductile.operations.plugins import catalogue, topology
from ductile.operations.request import Cursor, PageLimit, in_query
from ductile.operations.shapes import TEXT, named
from ductile.operations.submission import KeyedRequest, SubmissionRequest
from ductile.operations.system import config_view
from ductile.operations.table import OPERATIONS
from ductile.store.model.records import DEFAULT_PAGE
from ductile.struct import Value, field, replace

#: Handlers of operations whose reply is more than the response.
_HANDLERS: dict[str, Handler] = {"job.show": handlers.show_job}


def _operations() -> Iterator[Endpoint]:
    for operation in OPERATIONS.values():
        if operation.http is None:
            continue
        for path in (operation.http.path, *operation.http.aliases):
            yield Endpoint(
                http=replace(operation.http, path=path),
                summary=operation.summary,
                access=operation.access,
                handler=_HANDLERS.get(operation.name, run_operation),
                operation=operation,
            )


class ShowSkills(Value):
    format: Annotated[
        skills.Format | None, Meta(description="`markdown` for a SKILL.md that an agent can be given.")
    ] = None


class FollowEvents(Value):
    after: Annotated[
        str | None, Meta(description="As Last-Event-ID, for callers who cannot set a header.")
    ] = None
    kind: Annotated[
        str | None,
        Meta(description=f"Only these kinds, separated by commas, such as `{LedgerKind.JOB_TRANSITION}`."),
    ] = None
    job_id: Annotated[
        str | None, Meta(description="Only what concerns this job, or this run and its steps.")
    ] = None


_JSON_DOCUMENT: dict[str, JsonObject] = {"application/json": {"type": "object"}}
_HEALTH: dict[str, Any] = {"message": "All is well.", "statuses": (200, 503), "probe": True}


def _endpoint(
    http: HttpRoute,
    summary: str,
    access: Access,
    handler: Handler,
    *,
    request: type[Value] | None = None,
    answer: Any = None,
) -> Endpoint:
    return Endpoint(
        http=http, summary=summary, access=access, handler=handler, request_type=request, answer=answer
    )


#: Endpoints that run no operation.
_OWN = (
    _endpoint(
        get("/", message="Ductile, an automation runtime."),
        "What this is, and where to go on",
        OPEN,
        handlers.discover,
        answer="About",
    ),
    _endpoint(
        get("/healthz", **_HEALTH),
        "Whether the daemon and its store are well",
        OPEN,
        handlers.show_health,
        answer="Health",
    ),
    _endpoint(
        get("/readyz", **_HEALTH),
        "Whether it takes work: not while it stops, nor on a full disk",
        OPEN,
        handlers.show_readiness,
        answer="Health",
    ),
    _endpoint(
        get(
            "/job/{job_id}/artifact/{name}",
            tag="jobs",
            statuses=(200, 404, 409),
            documents={"*/*": {}},
            streams=True,
            takes_rest=True,
        ),
        "A file that the job left behind",
        JOBS_RO,
        artifacts.artifact,
    ),
    _endpoint(
        get(
            "/events",
            tag="events",
            statuses=(200, 404, 409, 503),
            documents={"text/event-stream": {**TEXT, "x-ductile-data-schema": named("LedgerEvent")}},
            streams=True,
        ),
        "The ledger as server-sent events; resume with Last-Event-ID",
        EVENTS_RO,
        handlers.events,
        request=FollowEvents,
    ),
    _endpoint(
        get("/metrics", tag="figures", documents={"text/plain": TEXT}, probe=True),
        "Metrics in Prometheus' text format",
        JOBS_RO,
        handlers.show_metrics,
    ),
    _endpoint(
        get("/skills", tag="catalogue", documents={"text/markdown": TEXT}),
        "What an agent can do here, and how to call it; as JSON or as a skill file",
        DISCOVERY,
        skills.show_skills,
        request=ShowSkills,
        answer="Skills",
    ),
    _endpoint(
        get("/openapi.json", tag="catalogue", documents=_JSON_DOCUMENT),
        "This API as an OpenAPI 3.1 document",
        DISCOVERY,
        handlers.openapi,
    ),
    _endpoint(
        get("/plugin/{plugin}/openapi.json", tag="catalogue", statuses=(200, 404), documents=_JSON_DOCUMENT),
        "The commands of one plugin as OpenAPI 3.1",
        DISCOVERY,
        handlers.openapi,
    ),
)


# ------------------------------------------------------------- operations that are not typed yet


class _StartRun(SubmissionRequest):
    at_once: Annotated[bool, in_query("Answer at once, even if the pipeline is synchronous.")] = field(
        name="async", default=False
    )
    result: Annotated[ResultOnly | None, in_query("`only`: answer with the `result` and nothing else.")] = (
        None
    )
    strict: Annotated[bool, in_query("Answer 502 instead of 200 if the run did not succeed.")] = False


class _PublishEvent(KeyedRequest, kw_only=True):
    type: Annotated[
        str,
        Meta(description="The event's type.", extra_json_schema={"minLength": 1, "maxLength": 255}),
    ]


class _ListLog(Value):
    job_id: Annotated[str | None, Meta(description="Of this job.")] = None
    plugin: Annotated[str | None, Meta(description="Of this plugin.")] = None
    command: Annotated[str | None, Meta(description="Of this command.")] = None
    submitted_by: Annotated[SubmittedBy | None, Meta(description="Submitted by this source.")] = None
    completed_from: Annotated[datetime | None, Meta(description="Not before this instant.")] = field(
        name="from", default=None
    )
    completed_before: Annotated[datetime | None, Meta(description="Before this instant.")] = field(
        name="to", default=None
    )
    query: Annotated[
        str | None, Meta(description="Words that all occur in a result, an error or stderr.")
    ] = None
    limit: PageLimit = DEFAULT_PAGE
    cursor: Cursor = None
    status: Annotated[
        LogStatus | None,
        Meta(description="That ended so.", extra={"aliases": {**log.LOG_ALIASES, "pending": None}}),
    ] = None


class _Summary(Value):
    span: Annotated[timedelta | None, Meta(description="How far to look back, such as `24h`.")] = None


_WAITING: dict[str, Any] = {
    "tag": "run",
    "statuses": (200, 202, 404, 409, 422, 502, 503),
    "waits": True,
    "tells_status": True,
    "submits": True,
}
_DONE_OR_NOT = {200: "FinishedOrResult", 202: "Unfinished", 502: "FinishedOrResult"}

_UNTYPED = (
    _endpoint(
        post(
            "/plugin/{plugin}/{command}",
            message="The job is on the queue.",
            tag="run",
            statuses=(202, 404, 422, 503),
            submits=True,
        ),
        "Run a command of a plugin",
        COMMAND,
        handlers.submit,
        request=SubmissionRequest,
        answer="Submitted",
    ),
    _endpoint(
        post("/pipeline/{pipeline}", message="The run is on the queue.", **_WAITING),
        "Run a pipeline",
        PLUGIN_RW,
        handlers.start_pipeline,
        request=_StartRun,
        answer=_DONE_OR_NOT,
    ),
    _endpoint(
        post("/trigger/{plugin}/{command}", message="The job is on the queue.", **_WAITING),
        "Run the pipeline on `plugin.command`, or the plugin if there is none",
        TRIGGER,
        handlers.trigger,
        request=_StartRun,
        answer=_DONE_OR_NOT,
    ),
    _endpoint(
        post("/event", message="The event was published.", tag="run", statuses=(202, 422, 503), submits=True),
        "Publish an event to whoever listens",
        EVENTS_RW,
        handlers.publish_event,
        request=_PublishEvent,
        answer="Published",
    ),
    _endpoint(
        get("/job-logs", tag="jobs"),
        "Executions, newest first",
        JOBS_RO,
        operation_handler(log.list_log),
        request=_ListLog,
        answer="Executions",
    ),
    _endpoint(
        get("/plugins", tag="catalogue"),
        "Every plugin, and what may be done with it",
        DISCOVERY,
        operation_handler(catalogue.list_plugins),
        answer="Plugins",
    ),
    _endpoint(
        get("/plugin/{plugin}", message="The plugin.", tag="catalogue", statuses=(200, 404)),
        "One plugin: its manifest, and how it is set up here",
        ONE_PLUGIN,
        operation_handler(catalogue.show_plugin),
        answer="Plugin",
    ),
    _endpoint(
        get("/topology", tag="catalogue"),
        "Who emits which events, and who listens",
        PLUGIN_RO,
        operation_handler(topology.show_topology),
        answer="Topology",
    ),
    _endpoint(
        get("/analytics/queue", tag="figures"),
        "The queue, plugin by plugin",
        JOBS_RO,
        operation_handler(analytics.queue_analytics),
        answer="QueueFigures",
    ),
    _endpoint(
        get("/analytics/summary", tag="figures"),
        "How executions ended, plugin by plugin",
        JOBS_RO,
        operation_handler(analytics.summary),
        request=_Summary,
        answer="RunFigures",
    ),
    _endpoint(
        get("/config/view", message="The configuration in force."),
        "The configuration in force, secrets masked",
        SYSTEM_RO,
        operation_handler(config_view.view_configuration),
        answer="ConfigView",
    ),
)

ENDPOINTS: tuple[Endpoint, ...] = (*_OWN, *_operations(), *_UNTYPED)
