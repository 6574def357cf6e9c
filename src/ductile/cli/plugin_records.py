"""`ductile plugin state|facts|lock`: what is kept of a plugin, in the store and in the seal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ductile.cli.answers import Answer, Call
from ductile.cli.daemon import Said, ask
from ductile.cli.wording import indented, moment, value_text

if TYPE_CHECKING:
    from ductile.cli.screen import Screen


def state(call: Call) -> Answer:
    kept = ask(call, "plugin.state", {"plugin": call.text("NAME"), "reveal": call.switch("reveal")})
    return Answer(data=kept, text=lambda _: _state_text(kept))


def facts(call: Call) -> Answer:
    found = ask(
        call,
        "plugin.facts",
        {
            "plugin": call.text("NAME"),
            "reveal": call.switch("reveal"),
            "limit": call.number("limit"),
            "cursor": call.optional("cursor"),
        },
    )
    return Answer(data=found, text=lambda screen: _facts_text(found, screen))


def lock(call: Call) -> Answer:
    from ductile.cli.config import lock_answer  # noqa: PLC0415 - the others ask the daemon, and are to be quick
    from ductile.operations.plugin_seal import lock_plugins  # noqa: PLC0415

    name = call.optional("NAME")
    return lock_answer(lock_plugins(call.config, call.environ, name, dry_run=call.switch("dry_run")))


def _state_text(kept: Said) -> str:
    if kept["updated_at"] is None:
        return f"{kept['plugin']} keeps nothing."
    return value_text(kept["state"])


def _facts_text(found: Said, screen: Screen) -> str:
    if not found["facts"]:
        return f"{found['plugin']} has no facts."
    parts = [
        f"{fact['seq']}  {fact['fact_type']}  {moment(fact['created_at'])}  {fact['job_id'] or '-'}\n"
        f"{indented(value_text(fact['fact']))}"
        for fact in found["facts"]
    ]
    if found["next_cursor"]:
        parts.append(screen.style("dim", f"There are more: --cursor {found['next_cursor']}"))
    return "\n\n".join(parts)
