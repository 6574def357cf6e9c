"""`ductile logs`: what ran, from the log that the store keeps, once or as it goes on."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from ductile.cli.answers import Answer, Call
from ductile.cli.daemon import Said, ask, ask_daemon
from ductile.cli.screen import printable, screen_for
from ductile.cli.wording import indented, moment, span, status_word
from ductile.core.terminal_text import escape_in_json

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ductile.cli.screen import Screen

#: Asked again and again, so that a daemon that died is noticed; what is new is answered at once.
_FOLLOW_FOR = "60s"


def show(call: Call) -> Answer:
    plugin = call.optional("PLUGIN")
    given = {"plugin": plugin, "limit": call.number("limit"), "output": call.verbose}
    found = ask(call, "log.list", given)
    in_order = found["logs"][::-1]
    if not call.switch("follow"):
        return Answer(data=found, text=lambda screen: _text(in_order, screen))
    _follow(call, plugin, in_order)
    return Answer(data=None)


def _follow(call: Call, plugin: str | None, latest: list[Said]) -> None:
    """Until the daemon stops or somebody presses Ctrl-C."""
    _print(call, latest)
    after = max((row["seq"] for row in latest), default=0)
    while True:
        news = ask_daemon(
            call,
            "log.follow",
            {"plugin": plugin, "after": after, "timeout": _FOLLOW_FOR, "output": call.verbose},
            timeout=None,
        )
        _print(call, news["logs"])
        after = max((row["seq"] for row in news["logs"]), default=after)
        if news["stopping"]:
            return


def _print(call: Call, rows: list[Said]) -> None:
    screen = screen_for(call.out, call.environ)
    for row in rows:
        line = escape_in_json(json.dumps(row, ensure_ascii=False)) if call.json else _line(row, screen)
        print(line, file=call.out, flush=True)


def _text(rows: list[Said], screen: Screen) -> str:
    if not rows:
        return "Nothing has run yet."
    cells = [] if screen.width is None else [_cells(row) for row in rows]
    widths = [max(len(cell) for cell in column) for column in zip(*cells, strict=True)]
    return "\n".join(_line(row, screen, widths) for row in rows)


def _cells(row: Said) -> tuple[str, str, str]:
    return f"{row['plugin']} {row['command']}", row["status"], span(row["duration_ms"])


def _line(row: Said, screen: Screen, widths: Sequence[int] = ()) -> str:
    """In columns where their widths are known: on a terminal, and not for what is still to come."""
    what, status, took = _cells(row)
    word = status_word(status, screen)
    if widths:
        what, took = what.ljust(widths[0]), took.rjust(widths[2])
        word += " " * (widths[1] - len(status))
    line = f"{moment(row['completed_at'])}  {what}  {word}  {took}  {row['job_id']}"
    if row["error"]:
        error = printable(row["error"]).replace("\n", " ")
        line = f"{line}  {error}" if error == row["reason"] else f"{line}  {row['reason']}: {error}"
    return f"{line}\n{indented(row['stderr'])}" if row.get("stderr") else line
