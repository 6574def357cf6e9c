"""Handlers of endpoints: the one that runs operations, and those of endpoints that have none."""

from __future__ import annotations

import asyncio
import os
from functools import partial
from http import HTTPStatus
from typing import TYPE_CHECKING, Annotated
from urllib.parse import quote

import msgspec
from msgspec import Meta

from ductile import __version__
from ductile.api.endpoint import ApiRequest, Reply
from ductile.api.events import EventFilter, parse_last_event_id
from ductile.core.jobs.model import LedgerKind, SubmittedBy
from ductile.core.token_limits import LimitState, list_limits
from ductile.http.responses import Header, RawResponse, Stream
from ductile.operations.context import OperationContext, Source
from ductile.operations.jobs.lookup import resolve_job
from ductile.operations.jobs.query import OpenArtifact, open_artifact
from ductile.operations.operation import EVENTS_RO, JOBS_RO, OWN_JOBS_RO, within_reach
from ductile.operations.request import decode_enums, decode_request
from ductile.operations.response import Response
from ductile.operations.system import probes
from ductile.operations.system.nodes import list_nodes
from ductile.struct import Value, about, replace
from ductile.telemetry.metrics import CONTENT_TYPE

if TYPE_CHECKING:
    from uvicorn._types import ASGISendCallable

_CHUNK = 256 * 1024


async def run_operation(request: ApiRequest) -> Reply | RawResponse:
    """Run the endpoint's operation and reply with its response.

    With `?result=only` the reply is the `result` of a job or run alone; with `strict` a run that did not
    succeed is a 502. The header `X-Ductile-Status` has the status of the job.
    """
    http, operation = request.matched.endpoint.http, request.matched.endpoint.operation
    assert operation is not None  # noqa: S101 - only endpoints of operations have this handler
    response = await operation.run(_context_of(request), request.values)
    if not http.sends_status_header or not hasattr(response, "status"):  # a dry run has no job
        return Reply(response=response)
    headers: tuple[Header, ...] = ((b"x-ductile-status", str(response.status).encode()),)
    if not hasattr(response, "result"):
        return Reply(response=response, headers=headers)
    failed = request.values.get("strict") is True and response.ok is False
    status = HTTPStatus.BAD_GATEWAY if failed else HTTPStatus.OK
    if request.values.get("result") is None:
        return Reply(response=response, status=status, headers=headers)
    content = msgspec.json.encode(response.result)
    return RawResponse(content=content, media_type="application/json", status=status, headers=headers)


def _context_of(request: ApiRequest) -> OperationContext:
    """Return the operation context, whose source is the caller of this request."""
    source = Source(
        submitted_by=SubmittedBy.API,
        detail=request.token_name,
        waits=request.matched.endpoint.http.submits,
        scopes=request.scopes,
        signed_in_by_link=request.signed_in_by_link,
    )
    return replace(request.context, source=source)


async def show_health(request: ApiRequest) -> Reply:
    return Reply(response=await probes.health(request.context, request.peer, request.headers))


async def show_readiness(request: ApiRequest) -> Reply:
    return Reply(response=await probes.ready(request.context, request.peer, request.headers))


class FollowEvents(Value):
    after: Annotated[str | None, about("The same as Last-Event-ID, for callers who cannot set a header.")] = (
        None
    )
    kind: Annotated[
        frozenset[LedgerKind],
        Meta(
            description=f"Only these kinds, separated by commas, such as `{LedgerKind.JOB_TRANSITION}`.",
            extra={"decode": partial(decode_enums, LedgerKind)},
        ),
    ] = frozenset()
    job_id: Annotated[str | None, about("Only what concerns this job, or this run and its steps.")] = None


async def follow_events(request: ApiRequest) -> Stream:
    """Stream the ledger. Raises `UsageError`, `NotFoundError` for the job, and as `EventStreams.open`."""
    requested = decode_request(FollowEvents, request.values, request.context.now_and_zone)
    matched, headers = request.matched, request.headers
    header = headers.get(b"last-event-id")
    after = requested.after if header is None else header.decode("latin-1")
    context = within_reach(_context_of(request), matched.endpoint.access)
    job = None if requested.job_id is None else await resolve_job(context, requested.job_id)
    only_own = context.sees_only_own
    # A stream of all entries ends when a reload leaves the token only the right to follow its own.
    access = matched.endpoint.access if only_own else EVENTS_RO
    event_filter = EventFilter(
        after=parse_last_event_id(after),
        kinds=requested.kind,
        job_id=None if job is None else job.id,
        # The output of a job needs the right to read jobs.
        output=job is not None
        and not requested.kind
        and request.services.authenticator.still_admits(OWN_JOBS_RO if only_own else JOBS_RO, {}, headers),
        token=request.token_name if only_own else None,
    )
    is_still_admitted = partial(request.services.authenticator.still_admits, access, matched.values, headers)
    return Stream(run=await request.services.streams.open(event_filter, is_still_admitted))


async def show_metrics(request: ApiRequest) -> RawResponse:
    context = request.context
    counts = await context.store.queue_counts()
    breakers = await context.store.list_breakers()
    limits: list[tuple[str, LimitState]] = []
    for token in context.snapshot().tokens:
        if token.limits is not None and token.expires_at is None:
            usage = await context.store.token_usage(token.name)
            limits += [(token.name, state) for state in list_limits(token.limits, usage, context.now())]
    page = request.services.metrics.render(
        version=__version__,
        queue={"ready": counts.ready, "waiting": counts.waiting, "running": counts.running},
        breakers=[(row.plugin, row.command, row.breaker.state) for row in breakers],
        streams=request.services.streams.count,
        limits=limits,
        nodes=[(node.info.name, node.info.workers, node.running) for node in await list_nodes(context)],
    )
    return RawResponse(content=page, media_type=CONTENT_TYPE)


class About(Response):
    name: str
    version: Annotated[str | None, about("Null for a caller on another machine.")]
    links: dict[str, str]


async def show_links(request: ApiRequest) -> Reply | RawResponse:
    """Reply with the links of the API; redirect a browser to the dashboard."""
    has_dashboard = request.context.snapshot().api.ui
    if has_dashboard and b"text/html" in request.headers.get(b"accept", b""):
        redirect = ((b"location", b"/ui"), (b"vary", b"accept"))
        return RawResponse(content=b"", media_type="text/html", status=HTTPStatus.FOUND, headers=redirect)
    is_local = probes.is_local_caller(request.context, request.peer, request.headers)
    links = {
        "health": "/healthz",
        "skills": "/skills",
        "plugins": "/plugins",
        "openapi": "/openapi.json",
        "jobs": "/jobs",
        "events": "/events",
        **({"dashboard": "/ui"} if has_dashboard else {}),
    }
    return Reply(response=About(name="ductile", version=__version__ if is_local else None, links=links))


async def show_openapi(request: ApiRequest) -> RawResponse:
    from ductile.api.openapi import describe  # noqa: PLC0415 - it describes the table with this handler

    plugin = request.values.get("plugin")
    document = describe(request.context.snapshot(), None if plugin is None else str(plugin))
    return RawResponse(content=msgspec.json.encode(document), media_type="application/json")


async def send_artifact(request: ApiRequest) -> Stream:
    """Send a file that a plugin left behind, in chunks. Raises as `open_artifact`."""
    context = within_reach(_context_of(request), request.matched.endpoint.access)
    artifact = await open_artifact(
        context, decode_request(OpenArtifact, request.values, context.now_and_zone)
    )

    # This function makes the headers: if that failed before there is a stream, the file would stay open.
    async def run(send: ASGISendCallable) -> None:
        name = quote(artifact.name, safe="")
        # A plugin's file may be a web page: a browser must download it, and not run it with our origin.
        headers = [
            (b"content-type", artifact.media_type.encode()),
            (b"content-length", str(artifact.size).encode()),
            (b"content-disposition", f"attachment; filename*=UTF-8''{name}".encode()),
            (b"x-content-type-options", b"nosniff"),
            (b"content-security-policy", b"sandbox; default-src 'none'"),
            (b"cache-control", b"private, no-store"),
        ]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        remaining = artifact.size
        while remaining:
            chunk = await asyncio.to_thread(os.read, artifact.descriptor, min(_CHUNK, remaining))
            if not chunk:  # the file has become shorter: the response ends early, which the client notices
                return
            remaining -= len(chunk)
            await send({"type": "http.response.body", "body": chunk, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    return Stream(run=run, close=partial(os.close, artifact.descriptor))
