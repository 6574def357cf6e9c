"""`ductile queue …`"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ductile.cli.client import Document, request
from ductile.cli.console.format import JOB_HEADERS, JOB_OPTIONAL_COLUMNS, format_count, job_row
from ductile.cli.invocation import CommandResult, Invocation

if TYPE_CHECKING:
    from ductile.cli.console.console import Console


def status(call: Invocation) -> CommandResult:
    found = request(call, "queue.status", {})
    return CommandResult(data=found, text=lambda screen: depth_text(found, screen))


def list_all(call: Invocation) -> CommandResult:
    found = request(call, "queue.list", {"plugin": call.optional("plugin"), "limit": call.number("limit")})
    return CommandResult(data=found, text=lambda screen: _list_text(found, screen))


def purge(call: Invocation) -> CommandResult:
    given = {
        "plugin": call.optional("PLUGIN"),
        "all": call.switch("all"),
        "dry_run": call.switch("dry_run"),
    }
    done = request(call, "queue.purge", given)
    return CommandResult(data=done, text=lambda _: _purge_text(done))


def depth_text(queue: Document, screen: Console) -> str:
    orphaned = ""
    if queue.get("orphaned"):
        orphaned = screen.advice(" (nobody runs them any more: `ductile system start`)")
    return f"{queue['running']} running{orphaned}, {queue['ready']} ready, {queue['waiting']} waiting"


def _list_text(found: Document, screen: Console) -> str:
    jobs = [*found["running"], *found["queued"]]
    if not jobs:
        return "The queue is empty."
    return screen.table(JOB_HEADERS, [job_row(job) for job in jobs], spare=JOB_OPTIONAL_COLUMNS)


def _purge_text(done: Document) -> str:
    if not done.get("dry_run"):
        return f"Ended {format_count(done['purged'], 'queued job')}."
    jobs = done["would_purge"]
    title = f"Would end {'more than ' if done['more'] else ''}{format_count(len(jobs), 'queued job')}"
    return "\n".join([f"{title}{':' if jobs else '.'}", *(f"  {job}" for job in jobs)])
