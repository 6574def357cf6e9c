"""`ductile system digest`: what happened since an instant."""

from __future__ import annotations

from ductile.cli.client import Document
from ductile.cli.console import format as fmt
from ductile.cli.console.console import Console
from ductile.cli.spec import Example, renders


@renders(
    "digest",
    "say what ran, failed, was skipped, waits and was changed since an instant",
    "system.digest",
    about="On one screen, with an example and what to do for each kind of failure. "
    "Only what the store knows is reported: `complete` is false if retention or a limit left something out.",
    examples=(Example("ductile system digest --since 12h", "what happened last night"),),
)
def digest(found: Document, console: Console) -> str:
    more = found["more"]
    ran = ", ".join(f"{row['plugin']} {row['executions']}" for row in found["ran"])
    title = f"{fmt.count(found['executions'], 'execution')} from {found['since']} to {found['until']}"
    lines = [console.style("bold", f"{title}{'' if found['complete'] else ' (not all are known)'}")]
    if ran:
        lines.append(f"  {ran}{_rest(more, 'ran')}")
    rows = []
    for row in found["failed"]:
        error = f": {row['error']}" if row["error"] else ""
        rows += [
            f"{row['jobs']} x {row['plugin']} {row['command']}, {row['reason']}{error}",
            f"   {row['first']} to {row['last']}, such as {row['example']}",
            f"   {console.hint(row['fix'])}",
        ]
    sections = {
        "failed": (f"Failed: {fmt.count(found['failed_jobs'], 'job')}", rows),
        "skipped": (
            "Skipped",
            [
                f"{row['count']} x {row['plugin']} {row['schedule']}, {row['reason']}, "
                f"{row['first']} to {row['last']}"
                for row in found["skipped"]
            ],
        ),
        "waiting": (
            f"Waiting: {fmt.count(found['waiting_jobs'], 'job')}",
            [
                f"{row['jobs']} x {row['plugin']}, the oldest {row['oldest']}: {row['why']}"
                for row in found["waiting"]
            ],
        ),
        "breakers": (
            "Circuit breakers",
            [
                f"{row['plugin']} {row['command']} {row['state']} since {row['since']}. "
                f"{console.hint(row['fix'])}"
                for row in found["breakers"]
            ],
        ),
        "deliveries": (
            "State webhooks given up",
            [
                f"{row['receiver']}: {row['dropped']} dropped, {row['gone']} gone, such as {row['example']}"
                f"{': ' + row['error'] if row['error'] else ''}"
                for row in found["deliveries"]
            ],
        ),
        "config": (
            "Configuration changed",
            [
                f"{row['at']} ({row['origin']}): {', '.join(row['plugins']) or 'no plugin'}"
                for row in found["config"]
            ],
        ),
        "starts": ("Daemon started", found["starts"]),
    }
    for name, (title, items) in sections.items():
        if items:
            lines += fmt.section(title, "\n".join(f"  {item}" for item in items) + _rest(more, name), console)
    lines += fmt.list_section("To see more", found["next"], console)
    return "\n".join(lines)


def _rest(more: Document, name: str) -> str:
    return f" and {more[name]} more" if name in more else ""
