"""The skills: what an agent can call in this configuration, as JSON and as a SKILL.md."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

from ductile.api.endpoint import ApiRequest, Reply
from ductile.http.responses import RawResponse
from ductile.operations.plugins.skills import CALL_RULES, Skill, SkillCall, Skills, skills_of
from ductile.operations.request import FieldSource, decode_request
from ductile.struct import Value, about

if TYPE_CHECKING:
    from ductile.config.snapshot import Snapshot

MARKDOWN = "text/markdown; charset=utf-8"
#: Limits of the programs that load skill files for agents, in characters.
_MAX_NAME = 64
_MAX_DESCRIPTION = 1024
#: The most skills that the description names.
_MAX_NAMED = 20
_HOST = re.compile(rb"[A-Za-z0-9.\-\[\]:]{1,255}")


class _FixedSkill(Value, kw_only=False):
    """An operation that needs no plugin. No plugin may have the first word of its name."""

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
        "GET /topology has the routes and pipelines that take each type.",
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
        "200 with `verdict` ok, warn or error, and `findings`, each with a remedy in `fix`.",
    ),
    _FixedSkill("system.health", "GET", "/healthz", "200 with `status` ok; 503 if the store is down."),
)


class SkillFormat(StrEnum):
    JSON = "json"
    MARKDOWN = "markdown"


class ShowSkills(Value):
    format: Annotated[SkillFormat, about("`markdown` for a SKILL.md that an agent can be given.")] = (
        SkillFormat.JSON
    )


async def show_skills(request: ApiRequest) -> Reply | RawResponse:
    snapshot = request.context.snapshot()
    skills = [*all_skills(snapshot)]
    if decode_request(ShowSkills, request.values, request.context.now_and_zone).format is SkillFormat.JSON:
        return Reply(response=Skills(skills=skills, how=CALL_RULES))
    text = skill_file(snapshot.service.name, address_of(request), skills)
    return RawResponse(content=text.encode(), media_type=MARKDOWN)


def address_of(request: ApiRequest) -> str:
    """Return the address that the caller used, from `Host`; empty if that is not an address."""
    host = request.headers.get(b"host", b"localhost")
    return f"http://{host.decode()}" if _HOST.fullmatch(host) else ""


def all_skills(snapshot: Snapshot) -> Iterator[Skill]:
    """Yield the skills of commands and pipelines, then those of operations."""
    from ductile.api.endpoints import ENDPOINTS  # noqa: PLC0415 - the table names the handler above

    table = {(endpoint.http.method, endpoint.http.path): endpoint for endpoint in ENDPOINTS}
    yield from skills_of(snapshot)
    for fixed in FIXED_SKILLS:
        endpoint = table[fixed.method, fixed.path]
        yield Skill(
            name=fixed.name,
            kind="operation",
            description=f"{endpoint.summary}.",
            read_only=fixed.method == "GET",
            call=SkillCall(method=fixed.method, path=fixed.path),
            scope=endpoint.access.doc_text,
            input_schema=None,
            output_schema=None,
            answer=fixed.answer,
            query={name: field.description for name, field in endpoint.fields[FieldSource.QUERY].items()},
            body={name: field.description for name, field in endpoint.fields[FieldSource.BODY].items()},
        )


def skill_file(service: str, address: str, skills: Sequence[Skill]) -> str:
    """Return the skills as a SKILL.md. It has no token, because the file may be passed on."""
    return "\n".join([*front_matter(service, skills), skill_page(service, address, skills)])


def skill_page(service: str, address: str, skills: Sequence[Skill]) -> str:
    """Return the calls of every command, pipeline and operation as Markdown."""
    configured = [skill for skill in skills if skill.kind != "operation"]
    operations = [skill for skill in skills if skill.kind == "operation"]
    return "\n".join(
        [
            f"# {_on_one_line(service)}",
            "",
            "Ductile runs the plugins and pipelines of this machine as durable jobs, over HTTP."
            + (f" Its address is {address}, or that of the proxy in front of it." if address else ""),
            "The token is not in this file: ask for it where you run.",
            "",
            "## How to call it",
            "",
            *(f"- {name}: {rule}" for name, rule in CALL_RULES.items()),
            "",
            "## What can be run",
            "",
            *(line for skill in configured for line in _section(skill)),
            "## What can be done with jobs, events and the system",
            "",
            *(line for skill in operations for line in _section(skill)),
        ]
    )


def front_matter(service: str, skills: Sequence[Skill]) -> list[str]:
    """Return the lines of the YAML header of a SKILL.md.

    Texts are quoted as JSON, so that no name is read as a number or a date.
    """
    names = [skill.name for skill in skills if skill.kind != "operation"]
    more = f" and {len(names) - _MAX_NAMED} more" if len(names) > _MAX_NAMED else ""
    listed = f": {', '.join(names[:_MAX_NAMED])}{more}" if names else ""
    about = (
        "Run automations as durable jobs with Ductile, look at jobs, find out why one failed, retry, cancel, "
        f"publish events. What can be run{listed}."
    )
    slug = re.sub(r"[^a-z0-9]+", "-", service.lower()).strip("-")[:_MAX_NAME].strip("-")
    return [
        "---",
        f"name: {slug or 'ductile'}",
        f"description: {json.dumps(about[:_MAX_DESCRIPTION], ensure_ascii=False)}",
        "---",
        "",
    ]


def _section(skill: Skill) -> Iterator[str]:
    """Yield the lines of Markdown that describe a skill."""
    call = f"`{skill.call.method} {skill.call.path}` (scope: {skill.scope})"
    yield from (f"### {skill.name}", "", f"{call}: {_on_one_line(skill.description)}", "")
    yield from (f"Answer: {skill.answer}", "")
    for title, schema in (("Payload", skill.input_schema), ("Result", skill.output_schema)):
        if schema:  # an empty schema allows everything
            text = json.dumps(schema, indent=2, ensure_ascii=False)
            yield from (f"{title}, as JSON Schema:", "", "```json", text, "```", "")
    for title, fields in (("Query", skill.query), ("Body", skill.body)):
        if isinstance(fields, dict) and fields:
            yield from (f"{title}:", "", *(f"- `{name}`: {about}" for name, about in fields.items()), "")


def _on_one_line(text: str) -> str:
    """Return a text of a plugin or the configuration on one line: it cannot be a heading or end a block."""
    return " ".join(text.split())
