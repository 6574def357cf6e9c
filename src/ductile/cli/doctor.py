"""`ductile system doctor` and `ductile system selfcheck`"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ductile import __version__
from ductile.cli.answers import Answer, Call
from ductile.cli.daemon import Said, ask, find_daemon
from ductile.cli.failures import paragraph
from ductile.cli.progress import waiting_for
from ductile.cli.screen import printable, within
from ductile.cli.wording import count
from ductile.control.client import converse
from ductile.errors import ConfigError, Exit

if TYPE_CHECKING:
    import socket

    from ductile.cli.screen import Screen

_STYLES = {"ok": "green", "warn": "yellow", "error": "red"}


def doctor(call: Call) -> Answer:
    """The verdict is what was asked for, so it is an answer even when it is a bad one."""
    connection = _daemon(call)
    if connection is not None:
        # Plugins are asked for their health, each in its own time: there is no limit to wait for.
        with waiting_for(call, "the health of the plugins"):
            found: Said = converse(
                connection, "system.doctor", {"version": __version__, "ask_health": True}, timeout=None
            )
    else:
        import asyncio  # noqa: PLC0415 - a running daemon spares it

        from ductile.app import diagnose_without_daemon  # noqa: PLC0415

        found = asyncio.run(diagnose_without_daemon(call.config, call.environ, {}))
    return Answer(
        data=found,
        text=lambda screen: _doctor_text(found, screen, verbose=call.verbose),
        exit_status=Exit.FAILURE if found["verdict"] == "error" else Exit.OK,
    )


def selfcheck(call: Call) -> Answer:
    found = ask(call, "system.selfcheck", {})
    return Answer(
        data=found,
        text=lambda screen: _selfcheck_text(found, screen, verbose=call.verbose),
        exit_status=Exit.OK if found["sound"] else Exit.FAILURE,
    )


def _daemon(call: Call) -> socket.socket | None:
    """Who runs is found out from the configuration; one that cannot be loaded is what is to be told of."""
    try:
        return find_daemon(call)
    except ConfigError:
        return None


def _doctor_text(found: Said, screen: Screen, *, verbose: bool) -> str:
    """What needs somebody, in full; the rest in a line each, or with -v too."""
    troubled = [row for row in found["findings"] if row["level"] != "ok"]
    parts = [_finding_text(row, screen) for row in troubled]
    well = [row for row in found["findings"] if row["level"] == "ok"]
    if verbose or not troubled:
        rows = [(row["check"], row["message"]) for row in well]
        parts.append(screen.table(("OK", "ABOUT"), rows, prose=True))
    counts = found["counts"]
    summary = f"{count(counts['error'], 'error')}, {count(counts['warn'], 'warning')}, {counts['ok']} ok"
    return "\n\n".join([*parts, screen.style(_STYLES[found["verdict"]], f"{summary}.")])


def _finding_text(row: Said, screen: Screen) -> str:
    title = f"{screen.style(_STYLES[row['level']], row['level'])}  {row['check']}"
    where = None if row["where"] is None else screen.place(row["where"])
    return paragraph(title, row["message"], (("where", where), ("fix", row["fix"])), screen)


def _selfcheck_text(found: Said, screen: Screen, *, verbose: bool) -> str:
    lines = [f"{screen.style('red', 'damaged')}  {within(line)}" for line in found["damage"]]
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
