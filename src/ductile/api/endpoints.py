"""The table of endpoints: the routes of operations, and the API's own."""

from __future__ import annotations

from typing import Any

from ductile.api import handlers, skills
from ductile.api.endpoint import Endpoint
from ductile.api.openapi_schemas import schema_ref
from ductile.core.json import JsonObject
from ductile.operations.operation import (
    DISCOVERY,
    JOBS_RO,
    OPEN,
    OWN_EVENTS_RO,
    OWN_JOBS_RO,
    get,
)
from ductile.operations.plugins.skills import Skills
from ductile.operations.system.probes import Health
from ductile.operations.table import OPERATIONS
from ductile.struct import replace

_TEXT: JsonObject = {"type": "string"}
_JSON_DOCUMENT: dict[str, JsonObject] = {"application/json": {"type": "object"}}
_HEALTH: dict[str, Any] = {"message": "All is well.", "statuses": (200, 503), "is_polled": True}


#: Endpoints that run no operation.
_WITHOUT_OPERATION = (
    Endpoint(
        http=get("/", message="Ductile, an automation runtime."),
        summary="The name of this service, and links to its endpoints",
        access=OPEN,
        handler=handlers.show_links,
        response_types=(handlers.About,),
    ),
    Endpoint(
        http=get("/healthz", **_HEALTH),
        summary="The health of the daemon and of its store",
        access=OPEN,
        handler=handlers.show_health,
        response_types=(Health,),
    ),
    Endpoint(
        http=get("/readyz", **_HEALTH),
        summary="Whether the daemon accepts work: not while it starts or stops, nor on a full disk",
        access=OPEN,
        handler=handlers.show_readiness,
        response_types=(Health,),
    ),
    Endpoint(
        http=get(
            "/job/{job_id}/artifact/{name}",
            tag="jobs",
            statuses=(200, 404, 409),
            content_types={"*/*": {}},
            streams=True,
            is_catch_all=True,
        ),
        summary="A file that the job left behind",
        access=OWN_JOBS_RO,
        handler=handlers.send_artifact,
    ),
    Endpoint(
        http=get(
            "/events",
            tag="events",
            statuses=(200, 404, 409, 503),
            content_types={
                "text/event-stream": {**_TEXT, "x-ductile-data-schema": schema_ref("LedgerEvent")}
            },
            streams=True,
        ),
        summary="The ledger as server-sent events; resume with Last-Event-ID",
        access=OWN_EVENTS_RO,
        handler=handlers.follow_events,
        request_type=handlers.FollowEvents,
    ),
    Endpoint(
        http=get("/metrics", tag="figures", content_types={"text/plain": _TEXT}, is_polled=True),
        summary="Metrics in Prometheus' text format",
        access=JOBS_RO,
        handler=handlers.show_metrics,
    ),
    Endpoint(
        http=get("/skills", tag="catalogue", content_types={"text/markdown": _TEXT}),
        summary="What an agent can do here, and how to call it; as JSON or as a skill file",
        access=DISCOVERY,
        handler=skills.show_skills,
        request_type=skills.ShowSkills,
        response_types=(Skills,),
    ),
    Endpoint(
        http=get("/openapi.json", tag="catalogue", content_types=_JSON_DOCUMENT),
        summary="This API as an OpenAPI 3.1 document",
        access=DISCOVERY,
        handler=handlers.show_openapi,
    ),
    Endpoint(
        http=get(
            "/plugin/{plugin}/openapi.json",
            tag="catalogue",
            statuses=(200, 404),
            content_types=_JSON_DOCUMENT,
        ),
        summary="The commands of one plugin as OpenAPI 3.1",
        access=DISCOVERY,
        handler=handlers.show_openapi,
    ),
)

ENDPOINTS: tuple[Endpoint, ...] = (
    *_WITHOUT_OPERATION,
    *(
        Endpoint(
            http=replace(operation.http, path=path),
            summary=operation.summary,
            access=operation.access,
            handler=handlers.run_operation,
            operation=operation,
        )
        for operation in OPERATIONS.values()
        if operation.http is not None
        for path in (operation.http.path, *operation.http.aliases)
    ),
)
