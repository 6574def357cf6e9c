"""`ductile queue …`"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ductile.cli.client import Document, request
from ductile.cli.commands.arguments import LIMIT, OF_PLUGIN
from ductile.cli.console.format import format_count, jobs_table
from ductile.cli.invocation import CommandResult, Invocation
from ductile.cli.spec import DRY_RUN, Argument, Option, action

if TYPE_CHECKING:
    from ductile.cli.console.console import Console


@action("status", "show how deep the queue is", "queue.status")
def status(call: Invocation) -> CommandResult:
    found = request(call)
    return CommandResult(found, lambda console: depth_text(found, console))


@action("list", "list running and waiting jobs", "queue.list", options=(OF_PLUGIN, LIMIT))
def list_jobs(call: Invocation) -> CommandResult:
    found = request(call)
    jobs = [*found["running"], *found["queued"]]
    return CommandResult(found, lambda console: jobs_table(jobs, console) if jobs else "The queue is empty.")


@action(
    "purge",
    "end queued jobs; they are kept as dead",
    "queue.purge",
    arguments=(Argument("PLUGIN", "end those of this plugin", required=False, field="plugin"),),
    options=(Option("--all", "end those of every plugin", "all"), DRY_RUN),
)
def purge(call: Invocation) -> CommandResult:
    done = request(call)
    return CommandResult(done, lambda _: _purge_text(done))


def depth_text(queue: Document, console: Console) -> str:
    orphaned = ""
    if queue.get("orphaned"):
        orphaned = console.hint(" (no process runs them any more: `ductile system start`)")
    return f"{queue['running']} running{orphaned}, {queue['ready']} ready, {queue['waiting']} waiting"


def _purge_text(done: Document) -> str:
    if not done.get("dry_run"):
        return f"Ended {format_count(done['purged'], 'queued job')}."
    jobs = done["would_purge"]
    title = f"Would end {'more than ' if done['more'] else ''}{format_count(len(jobs), 'queued job')}"
    return "\n".join([f"{title}{':' if jobs else '.'}", *(f"  {job}" for job in jobs)])
