"""The catalogue as a skill file: Markdown with front matter, for the place where agents look."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence

from ductile.core.json import JsonObject, JsonValue
from ductile.operations.plugins.skills import HOW

#: What agents' loaders take: a name of so many characters, a description of so many.
_LONGEST_NAME = 64
_LONGEST_DESCRIPTION = 1024
_NAMED = 20


def skill_file(service: str, address: str, skills: Sequence[JsonObject]) -> str:
    """One page that tells all an agent needs but the token, which is not for a file that is passed on."""
    own = [skill for skill in skills if skill["kind"] != "operation"]
    fixed = [skill for skill in skills if skill["kind"] == "operation"]
    return "\n".join(
        [
            *_front_matter(service, own),
            f"# {_line(service)}",
            "",
            "Ductile runs the plugins and pipelines of this machine as durable jobs, over HTTP."
            + (f" Its address is {address}, or that of the proxy in front of it." if address else ""),
            "The token is not in this file: whoever runs you has it.",
            "",
            "## How to call it",
            "",
            *(f"- {name}: {told}" for name, told in HOW.items()),
            "",
            "## What can be run",
            "",
            *(line for skill in own for line in _own(skill)),
            "## What can be done with jobs, events and the system",
            "",
            *(line for skill in fixed for line in _fixed(skill)),
        ]
    )


def _front_matter(service: str, skills: Sequence[JsonObject]) -> list[str]:
    """Quoted as JSON, which is YAML too: whatever a service or a plugin is called, it stays a text."""
    names = [str(skill["name"]) for skill in skills]
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    listed = f": {', '.join(names[:_NAMED])}{more}" if names else ""
    about = (
        "Run automations as durable jobs with Ductile over HTTP, look at jobs, find out why one failed, "
        f"retry, cancel, publish events. What can be run{listed}."
    )
    slug = re.sub(r"[^a-z0-9]+", "-", service.lower()).strip("-")[:_LONGEST_NAME].strip("-")
    return [
        "---",
        f"name: {slug or 'ductile'}",
        f"description: {json.dumps(about[:_LONGEST_DESCRIPTION], ensure_ascii=False)}",
        "---",
        "",
    ]


def _own(skill: JsonObject) -> Iterator[str]:
    yield from (f"### {skill['name']}", "", f"{_called(skill)}: {_line(skill['description'])}", "")
    yield from (f"Answer: {skill['answer']}", "")
    for title, key in (("Payload", "input_schema"), ("Result", "output_schema")):
        if skill[key]:  # an empty one says nothing
            yield from (f"{title}, as JSON Schema:", "", "```json", _pretty(skill[key]), "```", "")


def _fixed(skill: JsonObject) -> Iterator[str]:
    yield from (f"### {skill['name']}", "", f"{_called(skill)}: {_line(skill['description'])}", "")
    yield from (f"Answer: {skill['answer']}", "")
    for title, key in (("Query", "query"), ("Body", "body")):
        named = skill[key]
        if isinstance(named, dict) and named:
            yield from (f"{title}:", "", *(f"- `{name}`: {about}" for name, about in named.items()), "")


def _called(skill: JsonObject) -> str:
    call = skill["call"]
    told = f"{call['method']} {call['path']}" if isinstance(call, dict) else ""
    return f"`{told}` (scope: {skill['scope']})"


def _line(value: JsonValue) -> str:
    """Of a text by somebody else: in one line it cannot become a heading or end a block."""
    return " ".join(str(value).split())


def _pretty(value: JsonValue) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False)
