"""`ductile apply` and `config rollback`: check, show, seal and reload in one command."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ductile.cli.client import DAEMON_TIMEOUT, Document, connect_to_daemon, request_daemon
from ductile.cli.commands.system.daemon import refuse_timeout_without_drain, reload_text
from ductile.cli.console.console import Console, escape_controls, show_waiting
from ductile.cli.invocation import CommandResult, Invocation
from ductile.cli.spec import Argument, Example, Option, action

if TYPE_CHECKING:
    from collections.abc import Mapping
    from contextlib import AbstractContextManager

    from ductile.core.json import JsonValue

_NO_DAEMON = "No daemon is running; the next start uses this configuration."


@action(
    "apply",
    "put the configuration on disk in force: check, show, seal, reload",
    "config.apply",
    usage={"drain_timeout": "--timeout DURATION"},
    about="The running daemon checks the files in its own environment. Shows the keys that differ from what "
    "was sealed, without secrets, and what a reload changes: plugins, schedules, pipelines, routes, queued "
    "jobs that end. Only what was shown is sealed, and only what was sealed is loaded: if a file is changed "
    "meanwhile, it is refused. Without a daemon it checks and seals. With --url it is done by that daemon, "
    "with the files on its machine.",
    examples=(
        Example("ductile apply --dry-run", "what would change?"),
        Example("ductile apply", "seal the files and reload the daemon"),
    ),
)
def apply(invocation: Invocation) -> CommandResult:
    return apply_files(invocation, "apply")


@action(
    "rollback",
    "restore the files of an earlier sealed configuration, and apply them",
    "config.rollback",
    arguments=(Argument("ID", required=False, field="to"),),
    usage={"drain_timeout": "--timeout DURATION"},
    options=(
        Option("--finish", "complete a rollback that was killed between two files"),
        Option("--undo", "take back a rollback that was killed between two files"),
    ),
    about="`ductile config history` shows the ids. Checked, shown, sealed and loaded as by `ductile apply`. "
    "Files with changes that were never sealed are replaced too, and can be restored by their own id. The "
    "content of environment files is not kept: if one has changed, the rollback is refused, and so is one "
    "that brings back a token. Plugins are not restored.",
    examples=(
        Example("ductile config rollback --dry-run", "what would change?"),
        Example("ductile config rollback", "back to the configuration before the present one"),
    ),
)
def rollback(invocation: Invocation) -> CommandResult:
    if invocation.switch("finish") or invocation.switch("undo"):
        return _finish_or_undo(invocation)
    if invocation.remote is not None:
        return apply_files(invocation, "rollback")
    from ductile.admin.apply import plan_rollback

    to, contents = plan_rollback(
        invocation.config,
        invocation.environ,
        invocation.optional("ID"),
        keep_env=invocation.switch("keep_env"),
    )
    return apply_files(invocation, "rollback", contents, to=to)


def apply_files(
    invocation: Invocation,
    command: str,
    contents: Mapping[str, bytes | None] | None = None,
    *,
    to: str | None = None,
    plan_hint: bool = True,
) -> CommandResult:
    """Write these contents, then seal and load the files on disk; with --url that daemon does it.

    With `plan_hint`, a dry run shows the command that does exactly what was planned.
    """
    dry_run = invocation.switch("dry_run")
    if invocation.remote is not None:
        with _show_drain(invocation):
            response = request_daemon(
                invocation, timeout=None if invocation.switch("drain") else DAEMON_TIMEOUT
            )
        return CommandResult(
            response, lambda console: _plan_text(response, console, dry_run=dry_run, command=command)
        )
    response = apply_here(invocation, command, contents or {}, is_running=is_daemon_running(invocation))
    if to is not None:
        response["to"] = to
    return CommandResult(
        response,
        lambda console: _plan_text(response, console, dry_run=dry_run, command=command, plan_hint=plan_hint),
    )


def is_daemon_running(invocation: Invocation) -> bool | None:
    """Return whether a daemon of this configuration listens.

    Returns None if the files cannot be loaded: the path of its socket is not known then.
    """
    from ductile.errors import ConfigError

    try:
        connection = connect_to_daemon(invocation)
    except ConfigError:
        return None
    if connection is not None:
        connection.close()
    return connection is not None


def apply_here(
    invocation: Invocation, command: str, contents: Mapping[str, bytes | None], *, is_running: bool | None
) -> Document:
    """Plan and write on this machine. A running daemon checks the files and loads them."""
    refuse_timeout_without_drain(invocation)
    from ductile.admin.apply import plan_checked_by_daemon, plan_offline
    from ductile.engine.reload.effects import NameChanges
    from ductile.operations.config.plan import refuse_other_plan, refuse_restored_tokens
    from ductile.struct import convert, to_builtins

    reloaded: Document | None = None
    if is_running:
        texts: dict[str, JsonValue] = {
            name: None if data is None else data.decode() for name, data in contents.items()
        }
        response = request_daemon(invocation, "config.plan", {"files": texts})
        plan = plan_checked_by_daemon(invocation.config, invocation.environ, response["checksums"], contents)
        plan_id, reloaded = response["plan"], response["reload"]
        tokens: NameChanges | None = convert(response["reload"]["tokens"], NameChanges)
    else:
        plan = plan_offline(invocation.config, invocation.environ, contents)
        plan_id, tokens = plan.id, plan.tokens
    refuse_other_plan(plan_id, invocation.optional("plan"))
    if command == "rollback" and tokens is not None and not invocation.switch("restore_tokens"):
        refuse_restored_tokens(tokens)
    dry_run = invocation.switch("dry_run")
    sealed = plan.must_write and not dry_run
    kept_id = plan.write(command) if sealed else None
    if not dry_run:
        config = None if reloaded is None else reloaded["config"]
        if is_running is None:  # the files can be loaded now, so the path of the socket is known
            is_running = is_daemon_running(invocation)
        if is_running:
            reloaded = _reload(invocation, command, plan_id, config, sealed=sealed)
    return {
        "plan": plan_id,
        "files": [to_builtins(file) for file in plan.files],
        "sealed": sealed,
        "needed": plan.must_write,
        "daemon": bool(is_running),
        **({"kept": kept_id} if command == "rollback" else {}),
        "reload": reloaded,
        **({"dry_run": True} if dry_run else {}),
    }


def _show_drain(invocation: Invocation) -> AbstractContextManager[object]:
    from contextlib import nullcontext

    drains = invocation.switch("drain") and not invocation.switch("dry_run")
    return show_waiting(invocation, "plugins to finish their accepted jobs") if drains else nullcontext()


def _reload(
    invocation: Invocation, command: str, plan_id: str | None, config: str | None, *, sealed: bool
) -> Document:
    from ductile.errors import DuctileError

    drain = invocation.switch("drain")
    fields: dict[str, JsonValue] = {
        "expected": config,
        "command": command,
        "plan": plan_id,
        "drain": drain,
        "drain_timeout": invocation.optional("timeout"),
    }
    try:
        with _show_drain(invocation):
            return request_daemon(
                invocation, "system.reload", fields, timeout=None if drain else DAEMON_TIMEOUT
            )
    except DuctileError as error:
        seal = "The seal was renewed" if sealed else "The seal was not changed"
        hint = f"{seal}; the daemon keeps the configuration it had. Then: `ductile apply`"
        error.hint = hint if error.hint is None else f"{error.hint} {hint}"
        raise


def _finish_or_undo(invocation: Invocation) -> CommandResult:
    """Complete or undo the change of a killed command, then reload a running daemon."""
    from ductile.admin.apply import finish_or_undo_change
    from ductile.errors import UsageError

    undo = invocation.switch("undo")
    if invocation.remote is not None or invocation.switch("dry_run"):
        raise UsageError("--finish and --undo work on the files of this machine, and have no dry run")
    if undo and invocation.switch("finish"):
        raise UsageError("--finish and --undo exclude each other")
    replaced = finish_or_undo_change(invocation.config, invocation.environ, undo=undo)
    reloaded: Document | None = None
    if is_daemon_running(invocation):
        reloaded = request_daemon(invocation, "system.reload", {"command": "rollback"})
    names = [file.name for file in replaced]

    def text(console: Console) -> str:
        verb = "Took back" if undo else "Completed"
        effect = _NO_DAEMON if reloaded is None else reload_text(reloaded, console)
        return f"{verb} the change of {', '.join(map(escape_controls, names))}.\n{effect}"

    return CommandResult({"files": [*names], "undone": undo, "reload": reloaded}, text)


def _plan_text(
    response: Document, console: Console, *, dry_run: bool, command: str, plan_hint: bool = True
) -> str:
    name = "apply" if command == "apply" else f"config rollback {response['to']}"
    lines = []
    for file in response["files"]:
        lines.append(f"{console.style('bold', escape_controls(file['name']))} ({file['change']})")
        for line in file["differences"]:
            style = {"+": "green", "-": "red"}.get(line[:1], "dim")
            lines.append(f"  {console.style(style, escape_controls(line))}")
    if lines:
        lines.append("")
    if not response.get("needed", bool(response["files"])):
        lines.append("The files are as sealed.")
    elif command == "rollback":
        lines.append(f"{'Would restore' if dry_run else 'Restored'} the files of {response['to']}.")
        if kept_id := response.get("kept"):
            advice = f"`ductile config rollback {kept_id}` restores them"
            lines.append(f"They had changes that were never sealed; {advice}.")
    else:
        lines.append("Would seal these files." if dry_run else "Sealed these files.")
    lines.append(
        _NO_DAEMON
        if response["reload"] is None
        else reload_text(response["reload"], console, drain=f"ductile {name} --drain")
    )
    if dry_run and plan_hint:
        lines.append(console.hint(f"To do exactly this: `ductile {name} --plan {response['plan']}`"))
    return "\n".join(lines)
