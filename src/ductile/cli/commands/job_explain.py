"""`ductile job explain`: one sentence, the evidence, what to do."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ductile.cli.client import Document, request
from ductile.cli.commands.arguments import JOB
from ductile.cli.console.console import indent_continuation, printable
from ductile.cli.console.format import format_fields, format_time, list_section, section, to_json
from ductile.cli.invocation import CommandResult, Invocation
from ductile.cli.spec import Example, action

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ductile.cli.console.console import Console

_MAX_VALUE = 300


@action(
    "explain",
    "say why a job failed or does not run, and what to do",
    "job.explain",
    arguments=(JOB,),
    about="One sentence first; then where the job comes from, what happened, its input, and the "
    "differences from the last good run of the same command: configuration, exit status, stderr, "
    "duration, input.",
    examples=(Example("ductile job explain 8000a1b2c3d4", "by the end of its id, as `job list` shows it"),),
)
def explain(call: Invocation) -> CommandResult:
    found = request(call)
    return CommandResult(found, lambda console: _text(found, console))


def _text(found: Document, console: Console) -> str:
    lines = [console.style("bold", indent_continuation(found["verdict"]))]
    lines += section("Where it comes from", "\n".join(_chain_lines(found["chain"])), console)
    lines += list_section("What happened", found["evidence"], console)
    if saw := _input_lines(found["saw"]):
        lines += section("What it saw", "\n".join(saw), console)
    lines += list_section("Likely cause", [found["cause"]] if found["cause"] else [], console)
    if found["compared_with"]:
        title = f"What differs from the last good run, {found['compared_with']}"
        rows = [
            f"{row['what']}: {row['good'] or 'none'} → {row['now'] or 'none'}" for row in found["differences"]
        ]
        same = f"Nothing in what was compared: {'; '.join(found['compared'])}."
        lines += list_section(title, rows or [same], console)
    lines += list_section("What was not compared", found["not_compared"], console)
    lines += list_section("What to do", [console.hint(line) for line in found["advice"]], console)
    return "\n".join(lines)


def _chain_lines(chain: Sequence[Document]) -> list[str]:
    lines = []
    for depth, link in enumerate(chain):
        known = ", ".join(part for part in (link["status"], link["job_id"]) if part)
        note = f" ({known})" if known else ""
        lines.append(f"  {'  ' * max(0, depth - 1)}{'└ ' if depth else ''}{printable(link['what'])}{note}")
    return lines


def _input_lines(saw: Document) -> list[str]:
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
    text = None if value is None else to_json(value)
    return text if text is None or len(text) <= _MAX_VALUE else f"{text[:_MAX_VALUE]}…"
