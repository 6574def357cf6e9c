"""From a request to an operation and back: each handler calls one operation and says how it answers."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from enum import StrEnum
from functools import partial
from http import HTTPStatus
from typing import TypeAlias

import msgspec

from ductile import __version__
from ductile.api.endpoint import Asked, Document, Handler, Reply, Stream
from ductile.api.events import Wanted, read_last_id
from ductile.api.skills import address_of
from ductile.core.jobs import SubmittedBy
from ductile.core.json_values import JsonObject, JsonValue
from ductile.core.ledger import LedgerKind
from ductile.operations import health, jobs, schedules
from ductile.operations import parameters as read
from ductile.operations.desk import Desk
from ductile.operations.intake import Door
from ductile.operations.job_ids import named_job
from ductile.store.values.settling import CancelAnswer
from ductile.telemetry.metrics import CONTENT_TYPE, Reading

Operation: TypeAlias = Callable[[Desk, JsonObject], Awaitable[JsonObject]]


def by(operation: Operation) -> Handler:
    """An operation whose answer is the answer."""

    async def handle(asked: Asked) -> Reply:
        return Reply(body=await operation(asked.desk, asked.given))

    return handle


def door_of(asked: Asked) -> Door:
    return Door(submitted_by=SubmittedBy.API, detail=asked.token)


async def submit(asked: Asked) -> Reply:
    body = await jobs.submit(asked.desk, door_of(asked), asked.given)
    body["execution_mode"] = "async"
    return Reply(body=_accepted(body), status=202)


def _accepted(body: JsonObject) -> JsonObject:
    """With a message of its own where nothing was put on the queue."""
    if body.get("deduplicated") and "message" not in body:
        return {**body, "message": "This is a duplicate: the job is there already."}
    return body


class ResultChoice(StrEnum):
    ONLY = "only"


async def start_pipeline(asked: Asked) -> Reply | Document:
    from ductile.operations import runs  # noqa: PLC0415 - loaded with the first run

    only = _wants_result_only(asked)
    answer = await runs.start_pipeline(asked.desk, door_of(asked), asked.given)
    return _run_answer(asked, _accepted(answer.body), done=answer.done, only=only)


async def trigger(asked: Asked) -> Reply | Document:
    from ductile.operations import runs  # noqa: PLC0415 - loaded with the first run

    only = _wants_result_only(asked)
    answer = await runs.trigger(asked.desk, door_of(asked), asked.given)
    return _run_answer(asked, _accepted(answer.body), done=answer.done, only=only)


def _wants_result_only(asked: Asked) -> bool:
    return read.optional_word(asked.given, "result", ResultChoice) is ResultChoice.ONLY


def _run_answer(asked: Asked, body: JsonObject, *, done: bool, only: bool) -> Reply | Document:
    """The answer of a run. With `strict`, one that did not succeed is a 502; else the header tells it."""
    headers = _status_header(body)
    if not done:
        return Reply(body=body, status=202, headers=headers)
    failed = read.flag(asked.given, "strict") and body["ok"] is False
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


async def publish_event(asked: Asked) -> Reply:
    from ductile.operations import runs  # noqa: PLC0415 - loaded with the first event

    door = door_of(asked)
    body = await runs.publish_event(asked.desk, door, asked.given)
    told = runs.why_nothing_started(asked.desk.snapshot(), door, body)
    return Reply(body=body if told is None else {**body, "message": told}, status=202)


async def show_job(asked: Asked) -> Reply | Document:
    only = _wants_result_only(asked)
    body = await jobs.show_job(asked.desk, asked.given)
    if only:
        return _bare(body["result"], _status_header(body))
    told = f"{body['plugin']} {body['command']}: {body['status']} ({body['reason']})"
    error = body["last_error"]
    message = f"{told}: {error}" if error else told
    return Reply(body={**body, "message": message}, headers=_status_header(body))


async def cancel_job(asked: Asked) -> Reply:
    body = await jobs.cancel_job(asked.desk, asked.given)
    if body["cancel"] == CancelAnswer.REQUESTED:
        return Reply(body={**body, "message": "The job is being ended: it was running."})
    return Reply(body=body)


async def run_schedule(asked: Asked) -> Reply:
    body = await schedules.run_schedule(asked.desk, asked.given)
    return Reply(body=body, status=200 if "dry_run" in body else 202)


async def show_health(asked: Asked) -> Reply:
    return Reply(body=await health.health(asked.desk, asked.peer, asked.headers))


async def show_readiness(asked: Asked) -> Reply:
    return Reply(body=await health.ready(asked.desk, asked.peer, asked.headers))


async def events(asked: Asked) -> Stream:
    header = asked.headers.get(b"last-event-id")
    after = read_last_id(
        header.decode("latin-1") if header is not None else read.optional_text(asked.given, "after")
    )
    job = await named_job(asked.desk, asked.given) if "job_id" in asked.given else None
    wanted = Wanted(
        after=after,
        kinds=read.words(asked.given, "kind", LedgerKind),
        job_id=None if job is None else job.id,
    )
    authorization = asked.headers.get(b"authorization")
    admitted = partial(asked.services.gatekeeper.still_admits, asked.route, authorization)
    return Stream(run=await asked.services.streams.opened(wanted, admitted))


async def show_metrics(asked: Asked) -> Document:
    counts = await asked.desk.store.counts()
    breakers = await asked.desk.store.breakers()
    reading = Reading(
        ready=counts.ready,
        waiting=counts.waiting,
        running=counts.running,
        breakers=[(row.plugin, row.command, row.breaker.state) for row in breakers],
        streams=asked.services.streams.count,
        version=__version__,
    )
    return Document(content=asked.services.metrics.render(reading), media_type=CONTENT_TYPE)


async def discover(asked: Asked) -> Reply:
    links: dict[str, JsonValue] = {
        "health": "/healthz",
        "skills": "/skills",
        "plugins": "/plugins",
        "openapi": "/openapi.json",
        "jobs": "/jobs",
        "events": "/events",
    }
    # Strangers learn as little here as from /healthz.
    version = __version__ if health.is_here(asked.desk, asked.peer, asked.headers) else None
    return Reply(body={"name": "ductile", "version": version, "links": links})


async def openapi(asked: Asked) -> Document:
    from ductile.api.openapi import describe  # noqa: PLC0415 - it describes the table that names this handler

    plugin = read.optional_text(asked.given, "plugin")
    document = describe(asked.desk.snapshot(), plugin)
    return Document(content=msgspec.json.encode(document), media_type="application/json")


async def ai_plugin(asked: Asked) -> Document:
    """How tools for language models find an API: the older convention, which several still read."""
    name = asked.desk.snapshot().service.name
    document: JsonObject = {
        "schema_version": "v1",
        "name_for_human": name,
        "name_for_model": re.sub(r"\W+", "_", name),
        "description_for_human": "Automations of this machine.",
        "description_for_model": "Runs plugins and pipelines as jobs; /skills tells how to call them.",
        "auth": {"type": "user_http", "authorization_type": "bearer"},
        "api": {"type": "openapi", "url": f"{address_of(asked)}/openapi.json"},
        "logo_url": "",
        "contact_email": "",
        "legal_info_url": "",
    }
    return Document(content=msgspec.json.encode(document), media_type="application/json")
