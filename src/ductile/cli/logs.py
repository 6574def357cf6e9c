"""`ductile logs`: what ran, from the log that the store keeps, once or as it goes on."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from ductile.cli.client import Document, request, request_daemon
from ductile.cli.console.console import console_for, printable
from ductile.cli.console.format import format_ms, format_time, indent, styled_status
from ductile.cli.invocation import CommandResult, Invocation
from ductile.core.terminal_text import escape_in_json

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ductile.cli.console.console import Console

#: Asked again and again, so that a daemon that died is noticed; what is new is answered at once.
_FOLLOW_FOR = "60s"


def show(call: Invocation) -> CommandResult:
    plugin = call.optional("PLUGIN")
    given = {"plugin": plugin, "limit": call.number("limit"), "output": call.verbose}
    found = request(call, "log.list", given)
    in_order = found["logs"][::-1]
    if not call.switch("follow"):
        return CommandResult(data=found, text=lambda screen: _text(in_order, screen))
    _follow(call, plugin, in_order)
    return CommandResult(data=None)


def _follow(call: Invocation, plugin: str | None, latest: list[Document]) -> None:
    """Until the daemon stops or somebody presses Ctrl-C."""
    _print(call, latest)
    after = max((row["seq"] for row in latest), default=0)
    while True:
        news = request_daemon(
            call,
            "log.follow",
            {"plugin": plugin, "after": after, "timeout": _FOLLOW_FOR, "output": call.verbose},
            timeout=None,
        )
        _print(call, news["logs"])
        after = max((row["seq"] for row in news["logs"]), default=after)
        if news["stopping"]:
            return


def _print(call: Invocation, rows: list[Document]) -> None:
    screen = console_for(call.out, call.environ)
    for row in rows:
        line = escape_in_json(json.dumps(row, ensure_ascii=False)) if call.json else _line(row, screen)
        print(line, file=call.out, flush=True)


def _text(rows: list[Document], screen: Console) -> str:
    if not rows:
        return "Nothing has run yet."
    cells = [] if screen.width is None else [_cells(row) for row in rows]
    widths = [max(len(cell) for cell in column) for column in zip(*cells, strict=True)]
    return "\n".join(_line(row, screen, widths) for row in rows)


def _cells(row: Document) -> tuple[str, str, str]:
    return f"{row['plugin']} {row['command']}", row["status"], format_ms(row["duration_ms"])


def _line(row: Document, screen: Console, widths: Sequence[int] = ()) -> str:
    """In columns where their widths are known: on a terminal, and not for what is still to come."""
    what, status, took = _cells(row)
    word = styled_status(status, screen)
    if widths:
        what, took = what.ljust(widths[0]), took.rjust(widths[2])
        word += " " * (widths[1] - len(status))
    line = f"{format_time(row['completed_at'])}  {what}  {word}  {took}  {row['job_id']}"
    if row["error"]:
        error = printable(row["error"]).replace("\n", " ")
        line = f"{line}  {error}" if error == row["reason"] else f"{line}  {row['reason']}: {error}"
    return f"{line}\n{indent(row['stderr'])}" if row.get("stderr") else line
