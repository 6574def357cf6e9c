"""`ductile queue …`"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ductile.cli.answers import Answer, Call
from ductile.cli.daemon import Said, ask
from ductile.cli.wording import JOB_HEADERS, JOB_SPARE, count, job_row

if TYPE_CHECKING:
    from ductile.cli.screen import Screen


def status(call: Call) -> Answer:
    found = ask(call, "queue.status", {})
    return Answer(data=found, text=lambda screen: depth_text(found, screen))


def list_all(call: Call) -> Answer:
    found = ask(call, "queue.list", {"plugin": call.optional("plugin"), "limit": call.number("limit")})
    return Answer(data=found, text=lambda screen: _list_text(found, screen))


def purge(call: Call) -> Answer:
    given = {
        "plugin": call.optional("PLUGIN"),
        "all": call.switch("all"),
        "dry_run": call.switch("dry_run"),
    }
    done = ask(call, "queue.purge", given)
    return Answer(data=done, text=lambda _: _purge_text(done))


def depth_text(queue: Said, screen: Screen) -> str:
    orphaned = ""
    if queue.get("orphaned"):
        orphaned = screen.advice(" (nobody runs them any more: `ductile system start`)")
    return f"{queue['running']} running{orphaned}, {queue['ready']} ready, {queue['waiting']} waiting"


def _list_text(found: Said, screen: Screen) -> str:
    jobs = [*found["running"], *found["queued"]]
    if not jobs:
        return "The queue is empty."
    return screen.table(JOB_HEADERS, [job_row(job) for job in jobs], spare=JOB_SPARE)


def _purge_text(done: Said) -> str:
    if not done.get("dry_run"):
        return f"Ended {count(done['purged'], 'queued job')}."
    jobs = done["would_purge"]
    title = f"Would end {'more than ' if done['more'] else ''}{count(len(jobs), 'queued job')}"
    return "\n".join([f"{title}{':' if jobs else '.'}", *(f"  {job}" for job in jobs)])
