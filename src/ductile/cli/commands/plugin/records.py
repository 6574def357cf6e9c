"""`ductile plugin lock`, `state` and `facts`: the records of a plugin, in the seal and in the store."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ductile.cli.client import Document
from ductile.cli.commands.arguments import CURSOR, LIMIT, REVEAL
from ductile.cli.console.format import format_time, format_value, indent
from ductile.cli.invocation import CommandResult, Invocation
from ductile.cli.spec import DRY_RUN, Argument, action, renders

if TYPE_CHECKING:
    from ductile.cli.console.console import Console

_NAME = Argument("NAME", "name of the plugin, as it is configured", field="plugin")


@action(
    "lock",
    "renew the seal of plugins: authorise them as they are now",
    arguments=(Argument("NAME", "only this plugin", required=False),),
    options=(DRY_RUN,),
    about="The sealed hashes of files are not changed; `config lock` renews all of them.",
)
def lock(call: Invocation) -> CommandResult:
    from ductile.admin.seal import lock_plugins
    from ductile.cli.commands.config import seal_result

    name, dry_run = call.optional("NAME"), call.switch("dry_run")
    return seal_result(lock_plugins(call.config, call.environ, name, dry_run=dry_run))


@renders(
    "state",
    "show the state that a plugin keeps from run to run",
    "plugin.state",
    arguments=(_NAME,),
    options=(REVEAL,),
    about="Values under keys that look secret are masked.",
)
def state(found: Document, _: Console) -> str:
    if found["updated_at"] is None:
        return f"{found['plugin']} has no stored state."
    return format_value(found["state"])


@renders(
    "facts",
    "show the facts that a plugin has recorded, newest first",
    "plugin.facts",
    arguments=(_NAME,),
    options=(REVEAL, LIMIT, CURSOR),
)
def facts(found: Document, console: Console) -> str:
    if not found["facts"]:
        return f"{found['plugin']} has no facts."
    parts = []
    for fact in found["facts"]:
        head = (fact["seq"], fact["fact_type"], format_time(fact["created_at"]), fact["job_id"] or "-")
        parts.append(f"{'  '.join(str(each) for each in head)}\n{indent(format_value(fact['fact']))}")
    if found["next_cursor"]:
        parts.append(console.style("dim", f"There are more: --cursor {found['next_cursor']}"))
    return "\n\n".join(parts)
