"""The catalogue for agents: what this configuration has, and the operations that every one has."""

from __future__ import annotations

import re
from collections.abc import Iterator
from enum import StrEnum
from typing import TYPE_CHECKING

from ductile.api.endpoint import ApiRequest, Endpoint, Reply
from ductile.core.json import JsonObject
from ductile.http.responses import Document
from ductile.operations import parameters as read
from ductile.operations.plugins.skills import HOW, skills_of
from ductile.operations.request import FieldSource
from ductile.struct import Value

if TYPE_CHECKING:
    from ductile.config.snapshot import Snapshot

MARKDOWN = "text/markdown; charset=utf-8"
_HOST = re.compile(rb"[A-Za-z0-9.\-\[\]:]{1,255}")


class Format(StrEnum):
    JSON = "json"
    MARKDOWN = "markdown"


class _FixedSkill(Value, kw_only=False):
    """An operation that needs no plugin. Its name begins with a word that no plugin may have as its name."""

    name: str
    method: str
    path: str
    answer: str


FIXED_SKILLS = (
    _FixedSkill("plugin.run", "POST", "/plugin/{plugin}/{command}", "202 with `job_id` and `status` queued."),
    _FixedSkill(
        "pipeline.run",
        "POST",
        "/pipeline/{pipeline}",
        "202 with `job_id`; of a synchronous pipeline 200 with `status` and `result`, or 202 with "
        "`timeout_exceeded`.",
    ),
    _FixedSkill(
        "jobs.inspect",
        "GET",
        "/job/{job_id}",
        "200 with `status`, `reason`, `last_error`, `result`, `executions`, `transitions`. To wait for a "
        "job, ask again until `status` is succeeded, failed or dead, or follow its events.",
    ),
    _FixedSkill(
        "jobs.explain",
        "GET",
        "/job/{job_id}/explain",
        "200 with `verdict`, one sentence on why it failed or does not run; then `evidence`, what it `saw`, "
        "what `differences` there are to the last good run, and `advice`.",
    ),
    _FixedSkill(
        "jobs.log", "GET", "/job/{job_id}/log", "200 with `executions`: `result`, `stdout`, `stderr` of each."
    ),
    _FixedSkill(
        "jobs.tree", "GET", "/job/{job_id}/tree", "200 with `tree`: the job, and its `children` below it."
    ),
    _FixedSkill(
        "jobs.list", "GET", "/jobs", "200 with `jobs`, newest first; `next_cursor` is for the next page."
    ),
    _FixedSkill(
        "jobs.cancel",
        "POST",
        "/job/{job_id}/cancel",
        "200; a queued job is dead, a running one as soon as its process is gone. 409 if it has ended.",
    ),
    _FixedSkill(
        "jobs.retry",
        "POST",
        "/job/{job_id}/retry",
        "200 with `status` queued: the same job, with fresh attempts. 409 if it has not failed, 410 if only "
        "its log is left.",
    ),
    _FixedSkill(
        "events.publish",
        "POST",
        "/event",
        "202 with what it `started`, each with `job_id` and `target`, what was `deduplicated` or `dropped`. "
        "GET /topology tells who hears which type.",
    ),
    _FixedSkill(
        "events.follow",
        "GET",
        "/events",
        "200, server-sent events without end, each `data` a JSON object with `seq`, `kind`, `job_id`, "
        "`data`. Resume with Last-Event-ID.",
    ),
    _FixedSkill(
        "system.doctor",
        "GET",
        "/system/doctor",
        "200 with `verdict` ok, warn or error, and `findings`, each with what mends it in `fix`.",
    ),
    _FixedSkill("system.health", "GET", "/healthz", "200 with `status` ok; 503 if the store is down."),
)


async def show_skills(asked: ApiRequest) -> Reply | Document:
    wanted = read.optional_word(asked.values, "format", Format) or Format.JSON
    snapshot = asked.context.snapshot()
    skills = [*all_skills(snapshot)]
    if wanted is Format.JSON:
        return Reply(body={"skills": [*skills], "how": HOW})
    from ductile.api.skill_file import skill_file  # noqa: PLC0415 - hardly anybody asks for it

    text = skill_file(snapshot.service.name, address_of(asked), skills)
    return Document(content=text.encode(), media_type=MARKDOWN)


def address_of(asked: ApiRequest) -> str:
    """As the caller has it; empty if what it says is no address."""
    host = asked.headers.get(b"host", b"localhost")
    return f"http://{host.decode()}" if _HOST.fullmatch(host) else ""


def all_skills(snapshot: Snapshot) -> Iterator[JsonObject]:
    from ductile.api.endpoints import ENDPOINTS  # noqa: PLC0415 - the table names the handler above

    table = {(each.http.method, each.http.path): each for each in ENDPOINTS}
    yield from skills_of(snapshot)
    yield from (_operation(fixed, table[fixed.method, fixed.path]) for fixed in FIXED_SKILLS)


def _operation(fixed: _FixedSkill, endpoint: Endpoint) -> JsonObject:
    return {
        "name": fixed.name,
        "kind": "operation",
        "description": f"{endpoint.summary}.",
        "read_only": fixed.method == "GET",
        "call": {"method": fixed.method, "path": fixed.path},
        "scope": endpoint.access.shown,
        "input_schema": None,
        "output_schema": None,
        "answer": fixed.answer,
        "query": {name: each.description for name, each in endpoint.fields[FieldSource.QUERY].items()},
        "body": {name: each.description for name, each in endpoint.fields[FieldSource.BODY].items()},
    }
