"""`ductile job explain` and `ductile schedule explain`: one sentence, the evidence, what to do."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from ductile.cli.client import Document, request
from ductile.cli.console.console import indent_continuation, printable
from ductile.cli.console.format import format_fields, format_time, section
from ductile.cli.invocation import CommandResult, Invocation
from ductile.core.terminal_text import escape_in_json

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ductile.cli.console.console import Console

_LONGEST = 300


def job(call: Invocation) -> CommandResult:
    found = request(call, "job.explain", {"job_id": call.text("JOB")})
    return CommandResult(data=found, text=lambda screen: _job_text(found, screen))


def schedule(call: Invocation) -> CommandResult:
    given = {"plugin": call.text("PLUGIN"), "schedule": call.optional("SCHEDULE")}
    found = request(call, "schedule.explain", given)
    return CommandResult(data=found, text=lambda screen: _schedule_text(found, screen))


def _job_text(found: Document, screen: Console) -> str:
    lines = [screen.style("bold", indent_continuation(found["verdict"]))]
    lines += section("Where it comes from", "\n".join(_chain_lines(found["chain"])), screen)
    lines += _list_of("What happened", found["evidence"], screen)
    if saw := _saw_lines(found["saw"]):
        lines += section("What it saw", "\n".join(saw), screen)
    lines += _list_of("Likely cause", [found["cause"]] if found["cause"] else [], screen)
    if found["compared_with"]:
        title = f"What differs from the last good run, {found['compared_with']}"
        rows = [_difference(row) for row in found["differences"]]
        same = f"Nothing in what was compared: {'; '.join(found['compared'])}."
        lines += _list_of(title, rows or [same], screen)
    lines += _list_of("What was not compared", found["not_compared"], screen)
    lines += _list_of("What to do", _advice(found, screen), screen)
    return "\n".join(lines)


def _advice(found: Document, screen: Console) -> list[str]:
    return [screen.advice(line) for line in found["advice"]]


def _schedule_text(found: Document, screen: Console) -> str:
    lines = [screen.style("bold", indent_continuation(found["verdict"]))]
    lines += _list_of("Evidence", found["evidence"], screen)
    lines += _list_of("What to do", _advice(found, screen), screen)
    return "\n".join(lines)


def _list_of(title: str, rows: Sequence[str], screen: Console) -> list[str]:
    body = "\n".join(f"  {printable(row).replace(chr(10), ' ')}" for row in rows)
    return section(title, body, screen) if rows else []


def _chain_lines(chain: Sequence[Document]) -> list[str]:
    lines = []
    for depth, link in enumerate(chain):
        known = ", ".join(part for part in (link["status"], link["job_id"]) if part)
        about = f" ({known})" if known else ""
        lines.append(f"  {'  ' * max(0, depth - 1)}{'└ ' if depth else ''}{printable(link['what'])}{about}")
    return lines


def _saw_lines(saw: Document) -> list[str]:
    event = saw["event"]
    loaded = f" (loaded {format_time(saw['config_loaded_at'])})" if saw["config_loaded_at"] else ""
    return format_fields(
        (
            ("payload", _short(saw["payload"])),
            ("event", f"{event['type']} from {event['source']}" if event else None),
            ("context", _short(saw["context"])),
            ("config", f"{saw['config']}{loaded}" if saw["config"] else None),
        )
    )


def _short(value: object) -> str | None:
    if value is None:
        return None
    text = escape_in_json(json.dumps(value, ensure_ascii=False))
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"


def _difference(row: Document) -> str:
    return f"{row['what']}: {row['good'] or 'none'} → {row['now'] or 'none'}"
