"""`ductile apply`: check, show, seal and reload in one command."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ductile.cli.client import DAEMON_TIMEOUT, Document, connect_to_daemon, request_daemon
from ductile.cli.commands.system.daemon import reload_text
from ductile.cli.console.console import Console, printable, show_waiting
from ductile.cli.invocation import CommandResult, Invocation
from ductile.cli.spec import CONFIG_FILES, DRY_RUN, Example, Option, action

if TYPE_CHECKING:
    from ductile.admin.apply import SealPlan
    from ductile.core.json import JsonObject, JsonValue

#: Changed keys that are listed for one file.
_MAX_KEYS = 100


@action(
    "apply",
    "put the configuration on disk in force: check, show, seal, reload",
    local=CONFIG_FILES,
    options=(
        Option("--drain", "let plugins that are removed or disabled finish their accepted work first"),
        Option("--timeout DURATION", "how long a drain may take (default 1h)"),
        DRY_RUN,
    ),
    about="Shows the keys that differ from what was sealed, without secrets, and what a reload changes: "
    "plugins, settings, queued jobs that end. Only what was shown is sealed, and only what was sealed is "
    "loaded: if a file is changed meanwhile, it is refused. Without a daemon it checks and seals.",
    examples=(
        Example("ductile apply --dry-run", "what would change?"),
        Example("ductile apply", "seal the files and reload the daemon"),
    ),
)
def apply(invocation: Invocation) -> CommandResult:
    from contextlib import nullcontext

    from ductile.admin.apply import plan_seal
    from ductile.errors import DuctileError

    plan = plan_seal(invocation.config, invocation.environ)
    connection = connect_to_daemon(invocation)
    runs = connection is not None
    if connection is not None:
        connection.close()
    dry_run, drain = invocation.switch("dry_run"), invocation.switch("drain")
    preview = {"dry_run": True, "unsealed": True}
    reloaded = request_daemon(invocation, "system.reload", preview) if runs else None
    sealed = plan.needed and not dry_run
    if sealed:
        plan.write()
    if reloaded is not None and not dry_run:
        fields = {
            "expected": reloaded["config"],
            "drain": drain,
            "drain_timeout": invocation.optional("timeout"),
        }
        try:
            with show_waiting(invocation, "the queue to run dry") if drain else nullcontext():
                reloaded = request_daemon(
                    invocation, "system.reload", fields, timeout=None if drain else DAEMON_TIMEOUT
                )
        except DuctileError as error:
            seal = "The seal was renewed" if sealed else "The seal was not changed"
            hint = f"{seal}; the daemon keeps the configuration it had. Then: `ductile apply`"
            error.hint = hint if error.hint is None else f"{error.hint} {hint}"
            raise
    files: list[JsonValue] = [
        {"name": each.name, "change": each.change, "differences": [*each.describe(most=_MAX_KEYS)]}
        for each in plan.files
    ]
    for name in plan.plugins:
        files.append({"name": f"plugin {name}", "change": "changed", "differences": []})  # noqa: PERF401 - typed
    data: JsonObject = {
        "files": files,
        "sealed": sealed,
        "daemon": runs,
        "reload": reloaded,
    }
    return CommandResult(data, lambda console: _text(plan, reloaded, console, dry_run=dry_run))


def _text(plan: SealPlan, reloaded: Document | None, console: Console, *, dry_run: bool) -> str:
    lines = []
    for each in plan.files:
        lines.append(f"{console.style('bold', printable(each.name))} ({each.change})")
        for line in each.describe(most=_MAX_KEYS):
            style = {"+": "green", "-": "red"}.get(line[:1], "dim")
            lines.append(f"  {console.style(style, printable(line))}")
    lines += [f"{console.style('bold', f'plugin {name}')} (its files changed)" for name in plan.plugins]
    if lines:
        lines.append("")
    if not plan.needed:
        lines.append("The files are as sealed.")
    else:
        lines.append("Would seal these files." if dry_run else "Sealed these files.")
    if reloaded is None:
        lines.append("No daemon is running; the next start uses this configuration.")
    else:
        lines.append(reload_text(reloaded, console))
    return "\n".join(lines)
