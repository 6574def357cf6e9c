"""`ductile event …`"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from ductile.cli.client import Document, request, request_daemon
from ductile.cli.console.console import console_for, printable
from ductile.cli.console.format import format_time
from ductile.cli.invocation import CommandResult, Invocation
from ductile.cli.json_argument import json_object
from ductile.core.terminal_text import escape_in_json
from ductile.errors import UsageError

if TYPE_CHECKING:
    from ductile.cli.console.console import Console
    from ductile.core.json import JsonObject

#: Asked again and again, so that a daemon that died is noticed; what is new is answered at once.
_FOLLOW_FOR = "60s"
#: Digits of a job's id.
_ID = 36


def send(call: Invocation) -> CommandResult:
    if not call.text("TYPE").strip():
        raise UsageError("an event needs a type", hint="such as order.placed")
    given: JsonObject = {
        "type": call.text("TYPE"),
        "payload": json_object(call.optional("payload"), "payload"),
        "dedupe_key": call.optional("dedupe_key"),
        "dry_run": call.switch("dry_run"),
    }
    done = request(call, "event.send", given)
    return CommandResult(data=done, text=lambda _: _sent_text(done))


def tail(call: Invocation) -> CommandResult:
    found = request(call, "ledger.tail", {"limit": call.number("limit")})
    if not call.switch("follow"):
        return CommandResult(data=found, text=lambda screen: _tail_text(found, screen))
    _follow(call, found)
    return CommandResult(data=None)


def _follow(call: Invocation, found: Document) -> None:
    """Until the daemon stops or somebody presses Ctrl-C."""
    _print(call, found["events"])
    after = max((row["seq"] for row in found["events"]), default=found["highest"])
    while True:
        given = {"after": after, "timeout": _FOLLOW_FOR}
        news = request_daemon(call, "ledger.follow", given, timeout=None)
        if news.get("gap"):  # which an older daemon does not tell
            _print_gap(call, news["gap"])
        _print(call, news["events"])
        after = max((row["seq"] for row in news["events"]), default=after)
        if news["stopping"]:
            return


def _print(call: Invocation, rows: list[Document]) -> None:
    screen = console_for(call.out, call.environ)
    for row in rows:
        line = escape_in_json(json.dumps(row, ensure_ascii=False)) if call.json else _line(row, screen)
        print(line, file=call.out, flush=True)


def _print_gap(call: Invocation, gap: Document) -> None:
    """In between, where they would have been: what is shown is not all that happened."""
    told = f"Some are missing here: {gap['message']}."
    text = console_for(call.out, call.environ).style("yellow", told)
    print(json.dumps({"kind": "gap", **gap}) if call.json else text, file=call.out, flush=True)


def _sent_text(done: Document) -> str:
    if done.get("dry_run"):
        return "\n".join(f"Would start {target}." for target in done["would_start"]) or _unmatched(done)
    lines = [_accepted_line(one) for one in done["started"]]
    lines += [f"Already accepted {one['target']}: {one['job_id']}" for one in done["deduplicated"]]
    lines += [f"Not started {one['target']}: {one['reason']}" for one in done["dropped"]]
    return printable("\n".join(lines)) or _unmatched(done)


def _accepted_line(one: Document) -> str:
    """Nothing has run by now: it waits on the queue, or has ended without running anything."""
    # A daemon that was not restarted since an update does not tell how it stands.
    line = f"{one.get('status', 'queued').capitalize()} {one['target']}: {one['job_id']}"
    return f"{line}: {one['error']}" if one.get("error") else line


def _unmatched(done: Document) -> str:
    return printable(f"No route or pipeline matches {done['type']} from `cli`.")


def _tail_text(found: Document, screen: Console) -> str:
    rows = found["events"]
    kind = 0 if screen.width is None else max((len(row["kind"]) for row in rows), default=0)
    return "\n".join(_line(row, screen, kind) for row in rows) or "Nothing has happened yet."


def _line(row: Document, screen: Console, kind: int = 0) -> str:
    """In columns on a terminal, if it is known how wide the widest kind is."""
    data = {name: value for name, value in row["data"].items() if name != "verdict"}
    told = "  ".join(f"{name}={_short(value)}" for name, value in data.items() if value is not None)
    job = (row["job_id"] or "-").ljust(_ID if kind else 0)
    name = screen.style("bold", row["kind"]) + " " * max(0, kind - len(row["kind"]))
    line = f"{format_time(row['at'])}  {name}  {job}  {told}"
    return line.rstrip()


def _short(value: object) -> str:
    text = value if isinstance(value, str) else escape_in_json(json.dumps(value, ensure_ascii=False))
    return printable(text).replace("\n", " ")
