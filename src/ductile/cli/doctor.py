"""`ductile system doctor` and `ductile system selfcheck`"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ductile import __version__
from ductile.cli.client import Document, connect_to_daemon, request
from ductile.cli.console.console import indent_continuation, printable
from ductile.cli.console.errors import paragraph
from ductile.cli.console.format import format_count
from ductile.cli.console.progress import show_waiting
from ductile.cli.invocation import CommandResult, Invocation
from ductile.control.client import exchange
from ductile.errors import ConfigError, Exit

if TYPE_CHECKING:
    import socket

    from ductile.cli.console.console import Console

_STYLES = {"ok": "green", "warn": "yellow", "error": "red"}


def doctor(call: Invocation) -> CommandResult:
    """The verdict is what was asked for, so it is an answer even when it is a bad one."""
    connection = _daemon(call)
    if connection is not None:
        # Plugins are asked for their health, each in its own time: there is no limit to wait for.
        with show_waiting(call, "the health of the plugins"):
            found: Document = exchange(
                connection, "system.doctor", {"version": __version__, "ask_health": True}, timeout=None
            )
    else:
        import asyncio  # noqa: PLC0415 - a running daemon spares it

        from ductile.offline import diagnose_offline  # noqa: PLC0415

        found = asyncio.run(diagnose_offline(call.config, call.environ, {}))
    return CommandResult(
        data=found,
        text=lambda screen: _doctor_text(found, screen, verbose=call.verbose),
        exit_status=Exit.FAILURE if found["verdict"] == "error" else Exit.OK,
    )


def selfcheck(call: Invocation) -> CommandResult:
    found = request(call, "system.selfcheck", {})
    return CommandResult(
        data=found,
        text=lambda screen: _selfcheck_text(found, screen, verbose=call.verbose),
        exit_status=Exit.OK if found["sound"] else Exit.FAILURE,
    )


def _daemon(call: Invocation) -> socket.socket | None:
    """Who runs is found out from the configuration; one that cannot be loaded is what is to be told of."""
    try:
        return connect_to_daemon(call)
    except ConfigError:
        return None


def _doctor_text(found: Document, screen: Console, *, verbose: bool) -> str:
    """What needs somebody, in full; the rest in a line each, or with -v too."""
    troubled = [row for row in found["findings"] if row["level"] != "ok"]
    parts = [_finding_text(row, screen) for row in troubled]
    well = [row for row in found["findings"] if row["level"] == "ok"]
    if verbose or not troubled:
        rows = [(row["check"], row["message"]) for row in well]
        parts.append(screen.table(("OK", "ABOUT"), rows, prose=True))
    counts = found["counts"]
    errors, warnings = format_count(counts["error"], "error"), format_count(counts["warn"], "warning")
    summary = f"{errors}, {warnings}, {counts['ok']} ok"
    return "\n\n".join([*parts, screen.style(_STYLES[found["verdict"]], f"{summary}.")])


def _finding_text(row: Document, screen: Console) -> str:
    title = f"{screen.style(_STYLES[row['level']], row['level'])}  {row['check']}"
    where = None if row["where"] is None else screen.place(row["where"])
    return paragraph(title, row["message"], (("where", where), ("fix", row["fix"])), screen)


def _selfcheck_text(found: Document, screen: Console, *, verbose: bool) -> str:
    lines = [f"{screen.style('red', 'damaged')}  {indent_continuation(line)}" for line in found["damage"]]
    for check in found["checks"]:
        if not check["holds"]:
            more = ", ..." if check["more"] else ""
            lines += [
                f"{screen.style('red', 'broken')}  {check['name']}: {check['rule']}",
                f"        {printable(', '.join(check['offenders']))}{more}",
            ]
        elif verbose:
            lines.append(f"{screen.style('green', 'holds')}   {check['name']}: {check['rule']}")
    if found["search_rebuilt"]:
        note = "the index for searching the log was damaged and is built anew; no job is affected"
        lines.append(f"{screen.style('yellow', 'note:')} {note}")
    if found["sound"]:
        lines.append(f"All {len(found['checks'])} rules of the store hold.")
    else:
        hint = "Make a backup before anything else, and report it: ductile system backup FILE"
        lines.append(f"{screen.style('bold', 'hint:')} {screen.advice(hint)}")
    return "\n".join(lines)
