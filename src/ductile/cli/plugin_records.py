"""`ductile plugin state|facts|lock`: what is kept of a plugin, in the store and in the seal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ductile.cli.client import Document, request
from ductile.cli.console.format import format_time, format_value, indent
from ductile.cli.invocation import CommandResult, Invocation

if TYPE_CHECKING:
    from ductile.cli.console.console import Console


def state(call: Invocation) -> CommandResult:
    kept = request(call, "plugin.state", {"plugin": call.text("NAME"), "reveal": call.switch("reveal")})
    return CommandResult(data=kept, text=lambda _: _state_text(kept))


def facts(call: Invocation) -> CommandResult:
    found = request(
        call,
        "plugin.facts",
        {
            "plugin": call.text("NAME"),
            "reveal": call.switch("reveal"),
            "limit": call.number("limit"),
            "cursor": call.optional("cursor"),
        },
    )
    return CommandResult(data=found, text=lambda screen: _facts_text(found, screen))


def lock(call: Invocation) -> CommandResult:
    from ductile.admin.plugin_seal import lock_plugins  # noqa: PLC0415
    from ductile.cli.config import lock_answer  # noqa: PLC0415 - the others ask the daemon, and are to be quick

    name = call.optional("NAME")
    return lock_answer(lock_plugins(call.config, call.environ, name, dry_run=call.switch("dry_run")))


def _state_text(kept: Document) -> str:
    if kept["updated_at"] is None:
        return f"{kept['plugin']} keeps nothing."
    return format_value(kept["state"])


def _facts_text(found: Document, screen: Console) -> str:
    if not found["facts"]:
        return f"{found['plugin']} has no facts."
    parts = [
        f"{fact['seq']}  {fact['fact_type']}  {format_time(fact['created_at'])}  {fact['job_id'] or '-'}\n"
        f"{indent(format_value(fact['fact']))}"
        for fact in found["facts"]
    ]
    if found["next_cursor"]:
        parts.append(screen.style("dim", f"There are more: --cursor {found['next_cursor']}"))
    return "\n\n".join(parts)
