"""From a request to an operation and back: each handler calls one operation and says how it answers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from http import HTTPStatus
from typing import TypeAlias

import msgspec

from ductile import __version__
from ductile.api.endpoint import ApiRequest, Handler, Reply
from ductile.api.events import EventFilter, parse_last_event_id
from ductile.core.jobs.ledger import LedgerKind
from ductile.core.jobs.model import SubmittedBy
from ductile.core.json import JsonObject, JsonValue
from ductile.http.responses import Document, Stream
from ductile.operations import parameters as read
from ductile.operations.context import OperationContext
from ductile.operations.jobs.lookup import resolve_job
from ductile.operations.jobs.query import ResultOnly
from ductile.operations.jobs.submit import submit as submit_job
from ductile.operations.submission import Source
from ductile.operations.system import probes
from ductile.operations.table import OPERATIONS
from ductile.telemetry.metrics import CONTENT_TYPE, GaugeReading

UntypedOperation: TypeAlias = Callable[[OperationContext, JsonObject], Awaitable[JsonObject]]


def operation_handler(operation: UntypedOperation) -> Handler:
    """An operation whose answer is the answer."""

    async def handle(asked: ApiRequest) -> Reply:
        return Reply(body=await operation(asked.context, asked.values))

    return handle


async def run_operation(request: ApiRequest) -> Reply:
    """Run the endpoint's operation; its response is the reply."""
    operation = request.route.endpoint.operation
    assert operation is not None  # noqa: S101 - only endpoints of operations have this handler
    return Reply(body=await operation.run(request.context, request.values))


def api_source(asked: ApiRequest) -> Source:
    return Source(submitted_by=SubmittedBy.API, detail=asked.token)


async def submit(asked: ApiRequest) -> Reply:
    body = await submit_job(asked.context, api_source(asked), asked.values)
    body["execution_mode"] = "async"
    return Reply(body=_accepted(body), status=202)


def _accepted(body: JsonObject) -> JsonObject:
    """With a message of its own where nothing was put on the queue."""
    if body.get("deduplicated") and "message" not in body:
        return {**body, "message": "This is a duplicate: the job is there already."}
    return body


async def start_pipeline(asked: ApiRequest) -> Reply | Document:
    from ductile.operations.runs import start  # noqa: PLC0415 - loaded with the first run

    only = _wants_result_only(asked)
    answer = await start.start_pipeline(asked.context, api_source(asked), asked.values)
    return _run_answer(asked, _accepted(answer.body), done=answer.done, only=only)


async def trigger(asked: ApiRequest) -> Reply | Document:
    from ductile.operations.runs import start  # noqa: PLC0415 - loaded with the first run

    only = _wants_result_only(asked)
    answer = await start.trigger(asked.context, api_source(asked), asked.values)
    return _run_answer(asked, _accepted(answer.body), done=answer.done, only=only)


def _wants_result_only(asked: ApiRequest) -> bool:
    return read.optional_word(asked.values, "result", ResultOnly) is ResultOnly.ONLY


def _run_answer(asked: ApiRequest, body: JsonObject, *, done: bool, only: bool) -> Reply | Document:
    """The answer of a run. With `strict`, one that did not succeed is a 502; else the header tells it."""
    headers = _status_header(body)
    if not done:
        return Reply(body=body, status=202, headers=headers)
    failed = read.flag(asked.values, "strict") and body["ok"] is False
    status = HTTPStatus.BAD_GATEWAY if failed else HTTPStatus.OK
    if only:
        return _bare(body["result"], headers, status)
    return Reply(body=body, status=status, headers=headers)


def _status_header(body: JsonObject) -> tuple[tuple[bytes, bytes], ...]:
    return ((b"x-ductile-status", str(body["status"]).encode()),) if "status" in body else ()


def _bare(
    result: JsonValue, headers: tuple[tuple[bytes, bytes], ...], status: int = HTTPStatus.OK
) -> Document:
    content = msgspec.json.encode(result)
    return Document(content=content, media_type="application/json", status=status, headers=headers)


async def publish_event(asked: ApiRequest) -> Reply:
    from ductile.operations.runs import start  # noqa: PLC0415 - loaded with the first event

    door = api_source(asked)
    body = await start.publish_event(asked.context, door, asked.values)
    told = start.why_nothing_started(asked.context.snapshot(), door, body)
    return Reply(body=body if told is None else {**body, "message": told}, status=202)


async def show_job(asked: ApiRequest) -> Reply | Document:
    response = await OPERATIONS["job.show"].run(asked.context, asked.values)
    headers = _status_header({"status": response.status})
    if asked.values.get("result") == ResultOnly.ONLY:
        return _bare(response.result, headers)
    return Reply(body=response, headers=headers)


async def show_health(asked: ApiRequest) -> Reply:
    return Reply(body=await probes.health(asked.context, asked.peer, asked.headers))


async def show_readiness(asked: ApiRequest) -> Reply:
    return Reply(body=await probes.ready(asked.context, asked.peer, asked.headers))


async def events(asked: ApiRequest) -> Stream:
    header = asked.headers.get(b"last-event-id")
    after = parse_last_event_id(
        header.decode("latin-1") if header is not None else read.optional_text(asked.values, "after")
    )
    job = await resolve_job(asked.context, str(asked.values["job_id"])) if "job_id" in asked.values else None
    wanted = EventFilter(
        after=after,
        kinds=read.words(asked.values, "kind", LedgerKind),
        job_id=None if job is None else job.id,
    )
    authorization = asked.headers.get(b"authorization")
    admitted = partial(
        asked.services.authenticator.still_admits,
        asked.route.endpoint.access,
        asked.route.values,
        authorization,
    )
    return Stream(run=await asked.services.streams.opened(wanted, admitted))


async def show_metrics(asked: ApiRequest) -> Document:
    counts = await asked.context.store.counts()
    breakers = await asked.context.store.breakers()
    reading = GaugeReading(
        ready=counts.ready,
        waiting=counts.waiting,
        running=counts.running,
        breakers=[(row.plugin, row.command, row.breaker.state) for row in breakers],
        streams=asked.services.streams.count,
        version=__version__,
    )
    return Document(content=asked.services.metrics.render(reading), media_type=CONTENT_TYPE)


async def discover(asked: ApiRequest) -> Reply:
    links: dict[str, JsonValue] = {
        "health": "/healthz",
        "skills": "/skills",
        "plugins": "/plugins",
        "openapi": "/openapi.json",
        "jobs": "/jobs",
        "events": "/events",
    }
    # Strangers learn as little here as from /healthz.
    version = __version__ if probes.is_local_caller(asked.context, asked.peer, asked.headers) else None
    return Reply(body={"name": "ductile", "version": version, "links": links})


async def openapi(asked: ApiRequest) -> Document:
    from ductile.api.openapi import describe  # noqa: PLC0415 - it describes the table that names this handler

    plugin = read.optional_text(asked.values, "plugin")
    document = describe(asked.context.snapshot(), plugin)
    return Document(content=msgspec.json.encode(document), media_type="application/json")
