"""`ductile system digest`: what happened since an instant."""

from __future__ import annotations

from ductile.cli.client import Document
from ductile.cli.console import format as fmt
from ductile.cli.console.console import Console
from ductile.cli.spec import Example, renders

#: Marks a line that belongs to the one above it, and is indented further.
_BELOW = "\t"


@renders(
    "digest",
    "say what ran, failed, was skipped, waits and was changed since an instant",
    "system.digest",
    about="On one screen, with an example and what to do for each kind of failure. "
    "Only what the store knows is reported: `complete` is false if retention or a limit left something out.",
    examples=(Example("ductile system digest --since 12h", "what happened last night"),),
)
def digest(response: Document, console: Console) -> str:
    more = response["more"]
    executions = ", ".join(f"{row['plugin']} {row['executions']}" for row in response["ran"])
    since, until = _time(response["since"], console), _time(response["until"], console)
    title = f"{fmt.count(response['executions'], 'execution')} from {since} to {until}"
    title = f"{title}{'' if response['complete'] else ' (not all are known)'}"
    lines = [console.style("bold", fmt.sentence(title, console))]
    if executions:
        lines.append(fmt.sentence(f"{executions}{_more_text(more, 'ran')}", console, "  "))
    rows = []
    for row in response["failed"]:
        error = f": {row['error']}" if row["error"] else ""
        rows += [
            f"{row['jobs']} x {row['plugin']} {row['command']}, {row['reason']}{error}",
            f"{_BELOW}{_period(row, console)}, such as {row['example']}",
            f"{_BELOW}{console.hint(row['fix'])}",
        ]
    sections = {
        "failed": (f"Failed: {fmt.count(response['failed_jobs'], 'job')}", rows),
        "skipped": (
            "Skipped",
            [
                f"{row['count']} x {row['plugin']} {row['schedule']}, {row['reason']}, "
                f"{_period(row, console)}"
                for row in response["skipped"]
            ],
        ),
        "waiting": (
            f"Waiting: {fmt.count(response['waiting_jobs'], 'job')}",
            [
                f"{row['jobs']} x {row['plugin']}, the oldest {row['oldest']}: {row['why']}"
                for row in response["waiting"]
            ],
        ),
        "breakers": (
            "Circuit breakers",
            [
                f"{row['plugin']} {row['command']} {row['state']} since {_time(row['since'], console)}. "
                f"{console.hint(row['fix'])}"
                for row in response["breakers"]
            ],
        ),
        "deliveries": (
            "State webhooks given up",
            [
                f"{row['receiver']}: {row['dropped']} dropped, {row['gone']} gone, such as {row['example']}"
                f"{': ' + row['error'] if row['error'] else ''}"
                for row in response["deliveries"]
            ],
        ),
        "config": (
            "Configuration changed",
            [
                f"{_time(row['at'], console)} ({row['origin']}): {', '.join(row['plugins']) or 'no plugin'}"
                for row in response["config"]
            ],
        ),
        "starts": ("Daemon started", [_time(instant, console) for instant in response["starts"]]),
    }
    for name, (title, items) in sections.items():
        if items:
            body = "\n".join(
                fmt.sentence(item.removeprefix(_BELOW), console, "     " if item.startswith(_BELOW) else "  ")
                for item in items
            )
            lines += fmt.section(title, body + _more_text(more, name), console)
    lines += fmt.list_section("To see more", response["next"], console)
    return "\n".join(lines)


def _time(instant: str, console: Console) -> str:
    return instant if instant == "-" else fmt.local_time(instant, console)


def _period(row: Document, console: Console) -> str:
    first, last = _time(row["first"], console), _time(row["last"], console)
    return f"at {first}" if first == last else f"{first} to {last}"


def _more_text(more: Document, name: str) -> str:
    return f" and {more[name]} more" if name in more else ""
