"""The table of endpoints: the routes of operations, and the API's own."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ductile.api import handlers, skills
from ductile.api.endpoint import Endpoint, Handler
from ductile.api.handlers import run_operation
from ductile.api.openapi_schemas import schema_ref
from ductile.core.json import JsonObject
from ductile.operations.operation import (
    DISCOVERY,
    JOBS_RO,
    OPEN,
    OWN_EVENTS_RO,
    OWN_JOBS_RO,
    Access,
    HttpRoute,
    get,
)
from ductile.operations.plugins.skills import Skills
from ductile.operations.response import Response
from ductile.operations.system.probes import Health
from ductile.operations.table import OPERATIONS
from ductile.struct import Value, replace


def _operations() -> Iterator[Endpoint]:
    for operation in OPERATIONS.values():
        if operation.http is None:
            continue
        for path in (operation.http.path, *operation.http.aliases):
            yield Endpoint(
                http=replace(operation.http, path=path),
                summary=operation.summary,
                access=operation.access,
                handler=run_operation,
                operation=operation,
            )


_TEXT: JsonObject = {"type": "string"}
_JSON_DOCUMENT: dict[str, JsonObject] = {"application/json": {"type": "object"}}
_HEALTH: dict[str, Any] = {"message": "All is well.", "statuses": (200, 503), "probe": True}


def _endpoint(
    http: HttpRoute,
    summary: str,
    access: Access,
    handler: Handler,
    *,
    request: type[Value] | None = None,
    responses: tuple[type[Response], ...] | None = None,
) -> Endpoint:
    return Endpoint(
        http=http,
        summary=summary,
        access=access,
        handler=handler,
        request_type=request,
        response_types=responses,
    )


#: Endpoints that run no operation.
_WITHOUT_OPERATION = (
    _endpoint(
        get("/", message="Ductile, an automation runtime."),
        "What this is, and where to go on",
        OPEN,
        handlers.discover,
        responses=(handlers.About,),
    ),
    _endpoint(
        get("/healthz", **_HEALTH),
        "Whether the daemon and its store are well",
        OPEN,
        handlers.show_health,
        responses=(Health,),
    ),
    _endpoint(
        get("/readyz", **_HEALTH),
        "Whether it takes work: not while it stops, nor on a full disk",
        OPEN,
        handlers.show_readiness,
        responses=(Health,),
    ),
    _endpoint(
        get(
            "/job/{job_id}/artifact/{name}",
            tag="jobs",
            statuses=(200, 404, 409),
            content_types={"*/*": {}},
            streams=True,
            takes_rest=True,
        ),
        "A file that the job left behind",
        OWN_JOBS_RO,
        handlers.send_artifact,
    ),
    _endpoint(
        get(
            "/events",
            tag="events",
            statuses=(200, 404, 409, 503),
            content_types={
                "text/event-stream": {**_TEXT, "x-ductile-data-schema": schema_ref("LedgerEvent")}
            },
            streams=True,
        ),
        "The ledger as server-sent events; resume with Last-Event-ID",
        OWN_EVENTS_RO,
        handlers.events,
        request=handlers.FollowEvents,
    ),
    _endpoint(
        get("/metrics", tag="figures", content_types={"text/plain": _TEXT}, probe=True),
        "Metrics in Prometheus' text format",
        JOBS_RO,
        handlers.show_metrics,
    ),
    _endpoint(
        get("/skills", tag="catalogue", content_types={"text/markdown": _TEXT}),
        "What an agent can do here, and how to call it; as JSON or as a skill file",
        DISCOVERY,
        skills.show_skills,
        request=skills.ShowSkills,
        responses=(Skills,),
    ),
    _endpoint(
        get("/openapi.json", tag="catalogue", content_types=_JSON_DOCUMENT),
        "This API as an OpenAPI 3.1 document",
        DISCOVERY,
        handlers.openapi,
    ),
    _endpoint(
        get(
            "/plugin/{plugin}/openapi.json",
            tag="catalogue",
            statuses=(200, 404),
            content_types=_JSON_DOCUMENT,
        ),
        "The commands of one plugin as OpenAPI 3.1",
        DISCOVERY,
        handlers.openapi,
    ),
)

ENDPOINTS: tuple[Endpoint, ...] = (*_WITHOUT_OPERATION, *_operations())
