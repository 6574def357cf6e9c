"""`ductile schedule …`"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ductile.cli.client import Document, request, request_daemon
from ductile.cli.console.format import format_count, format_ms, format_time
from ductile.cli.console.table import Table
from ductile.cli.invocation import CommandResult, Invocation

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ductile.cli.console.console import Console
    from ductile.core.json import JsonObject

#: For what is due, and waits for a daemon.
AT_START = "at the next start"


def list_all(call: Invocation) -> CommandResult:
    found = request(call, "schedule.list", {"plugin": call.optional("PLUGIN")})
    return CommandResult(data=found, text=lambda screen: _list_text(found, screen))


def coming(call: Invocation) -> CommandResult:
    given = _named(call) | {"count": call.number("count")}
    found = request(call, "schedule.next", given)
    return CommandResult(data=found, text=lambda screen: _coming_text(found, screen))


def history(call: Invocation) -> CommandResult:
    given = _named(call) | {"limit": call.number("limit"), "cursor": call.optional("cursor")}
    found = request(call, "schedule.history", given)
    return CommandResult(data=found, text=lambda screen: _history_text(found, screen))


def pause(call: Invocation) -> CommandResult:
    return _switch(call, "schedule.pause", "paused")


def resume(call: Invocation) -> CommandResult:
    return _switch(call, "schedule.resume", "resumed")


def run_now(call: Invocation) -> CommandResult:
    done = request_daemon(call, "schedule.run", _named(call) | {"dry_run": call.switch("dry_run")})
    name = f"{done['plugin']}/{done['id']}"
    what = f"Would run {name} now" if done.get("dry_run") else f"{name} runs now as job {done['job_id']}"
    return CommandResult(data=done, text=lambda _: f"{what}.")


def _switch(call: Invocation, operation: str, becomes: str) -> CommandResult:
    done = request(call, operation, _named(call) | {"dry_run": call.switch("dry_run")})
    name = f"{done['plugin']}/{done['id']}"
    what = (
        f"Nothing was changed; {name} would be {becomes}" if done.get("dry_run") else f"{name} is {becomes}"
    )
    return CommandResult(data=done, text=lambda _: f"{what}.")


def _named(call: Invocation) -> JsonObject:
    return {"plugin": call.optional("PLUGIN"), "schedule": call.optional("SCHEDULE")}


def _list_text(found: Document, screen: Console) -> str:
    if not found["schedules"]:
        return "There are no schedules. They are configured under `plugins.NAME.schedules`."
    rows = [
        (
            row["plugin"],
            row["id"],
            row["command"] or "-",
            _rule_text(row),
            _next_text(row),
            row["next_local"] or "-",
            format_time(row["last_fired_at"]),
            row["last_job_id"] or "-",
            _about_schedule(row),
        )
        for row in found["schedules"]
    ]
    headers = ("PLUGIN", "ID", "COMMAND", "RULE", "NEXT", "LOCAL", "LAST", "LAST JOB", "ABOUT")
    return _table(headers, rows, screen, spare=("LAST JOB", "COMMAND", "LAST"))


def _about_schedule(row: Document) -> str:
    parts = [] if row["breaker"] == "closed" else [f"breaker {row['breaker']}"]
    if row["waiting_since"]:
        parts.append(f"waits for other polls since {format_time(row['waiting_since'])}")
    return ", ".join(parts)


def _table(
    headers: Sequence[str], rows: Sequence[Sequence[str]], screen: Console, spare: Sequence[str] = ()
) -> str:
    """Without the local times where no schedule has a clock of its own."""
    local = headers.index("LOCAL")
    if all(row[local] == "-" for row in rows):
        headers, rows = Table(headers, rows).without("LOCAL")
    return screen.table(headers, rows, spare=spare)


def _rule_text(row: Document) -> str:
    if row["rule"] is None:
        return "no longer configured"
    return row["rule"] if row["timezone"] == "UTC" else f"{row['rule']} {row['timezone']}"


def _next_text(row: Document) -> str:
    if row["paused_at"]:
        return "paused"
    return AT_START if row["at_start"] else format_time(row["next_at"])


def _coming_text(found: Document, screen: Console) -> str:
    if not found["occurrences"]:
        return "No upcoming runs."
    rows = [
        (
            AT_START if row["at_start"] else format_time(row["start_at"]),
            row["local"] or "-",
            row["plugin"],
            row["id"],
            format_time(row["nominal_at"]),
            _about_skip(row),
        )
        for row in found["occurrences"]
    ]
    return _table(("STARTS", "LOCAL", "PLUGIN", "ID", "NOMINAL", "ABOUT"), rows, screen)


def _about_skip(row: Document) -> str:
    if not row["skip"]:
        return ""
    until = f" until {format_time(row['skipped_until'])}" if row["skipped_until"] else ""
    return f"skipped: {row['skip']}{until}"


def _history_text(found: Document, screen: Console) -> str:
    if not found["occurrences"]:
        return "It has not been due yet."
    table = screen.table(
        ("DUE", "OUTCOME", "JOB", "ABOUT"),
        [
            (format_time(row["nominal_at"]), row["outcome"], row["job_id"] or "-", _about(row))
            for row in found["occurrences"]
        ],
    )
    parts = [table, _account_text(found["account"], screen)]
    if more := found["next_cursor"]:
        parts.append(f"There are more: --cursor {more}")
    return "\n\n".join(parts)


def _account_text(account: Document, screen: Console) -> str:
    """Whether every due instant among these is accounted for."""
    if account["complete"] is None:
        return f"Not checked for gaps: {account['about']}."
    span_of_it = f"from {format_time(account['from'])} to {format_time(account['to'])}"
    if account["complete"]:
        return f"Accounted without a gap {span_of_it}."
    lines = [screen.style("red", f"There are gaps {span_of_it}:")]
    return "\n".join([*lines, *(f"  {_gap_text(gap)}" for gap in account["gaps"])])


def _gap_text(gap: Document) -> str:
    where = format_time(gap["from"])
    if gap["to"] != gap["from"]:
        where = f"{where} to {format_time(gap['to'])}"
    return f"{where}: {format_count(gap['expected'], 'occurrence')} due, {gap['found']} accounted for"


def _about(row: Document) -> str:
    parts = [row["reason"]] if row["reason"] else []
    if row["late_ms"]:
        parts.append(f"{format_ms(row['late_ms'])} late")
    if row["count"] > 1:
        parts.append(f"{row['count']} times, until {format_time(row['until_at'])}")
    return ", ".join(parts)
