"""`ductile queue …`: shows and empties the queue."""

from __future__ import annotations

from ductile.cli.client import Document
from ductile.cli.console import format as fmt
from ductile.cli.console.console import Console
from ductile.cli.spec import OPTIONAL_PLUGIN, renders


def depth_text(queue: Document, console: Console) -> str:
    orphaned = ""
    if queue.get("orphaned"):
        orphaned = console.hint(" (no process runs them any more: `ductile system start`)")
    return f"{queue['running']} running{orphaned}, {queue['ready']} ready, {queue['waiting']} waiting"


status = renders("status", "show how deep the queue is", "queue.status")(depth_text)


@renders("list", "list running and waiting jobs", "queue.list")
def list_jobs(response: Document, console: Console) -> str:
    jobs = [*response["running"], *response["queued"]]
    return fmt.jobs_table(jobs, console) if jobs else "The queue is empty."


@renders("purge", "end queued jobs; they are kept as dead", "queue.purge", arguments=(OPTIONAL_PLUGIN,))
def purge(response: Document, _: Console) -> str:
    if not response.get("dry_run"):
        return f"Ended {fmt.count(response['purged'], 'queued job')}."
    jobs = response["would_purge"]
    title = f"Would end {'more than ' if response['more'] else ''}{fmt.count(len(jobs), 'queued job')}"
    return "\n".join([f"{title}{':' if jobs else '.'}", *(f"  {job}" for job in jobs)])
