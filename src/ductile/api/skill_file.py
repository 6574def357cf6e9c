"""The catalogue as a skill file: Markdown with front matter, for the place where agents look."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence

from ductile.operations.plugins.skills import HOW, Skill

#: What agents' loaders take: a name of so many characters, a description of so many.
_LONGEST_NAME = 64
_LONGEST_DESCRIPTION = 1024
_NAMED = 20


def skill_file(service: str, address: str, skills: Sequence[Skill]) -> str:
    """One page that tells all an agent needs but the token, which is not for a file that is passed on."""
    own = [skill for skill in skills if skill.kind != "operation"]
    fixed = [skill for skill in skills if skill.kind == "operation"]
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
            *(line for skill in own for line in _described(skill)),
            "## What can be done with jobs, events and the system",
            "",
            *(line for skill in fixed for line in _described(skill)),
        ]
    )


def _front_matter(service: str, skills: Sequence[Skill]) -> list[str]:
    """Quoted as JSON, which is YAML too: whatever a service or a plugin is called, it stays a text."""
    names = [skill.name for skill in skills]
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


def _described(skill: Skill) -> Iterator[str]:
    call = f"`{skill.call.method} {skill.call.path}` (scope: {skill.scope})"
    yield from (f"### {skill.name}", "", f"{call}: {_line(skill.description)}", "")
    yield from (f"Answer: {skill.answer}", "")
    for title, schema in (("Payload", skill.input_schema), ("Result", skill.output_schema)):
        if schema:  # an empty one says nothing
            shown = json.dumps(schema, indent=2, ensure_ascii=False)
            yield from (f"{title}, as JSON Schema:", "", "```json", shown, "```", "")
    for title, fields in (("Query", skill.query), ("Body", skill.body)):
        if isinstance(fields, dict) and fields:
            yield from (f"{title}:", "", *(f"- `{name}`: {about}" for name, about in fields.items()), "")


def _line(text: str) -> str:
    """A foreign text in one line: it cannot become a heading or end a block."""
    return " ".join(text.split())
