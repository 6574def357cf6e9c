"""The rows of the screen's tables, made from the responses of operations. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta, tzinfo
from typing import Any, TypeAlias

from ductile.struct import Value

#: A decoded document of an operation.
JsonDocument: TypeAlias = Mapping[str, Any]

RUN_PLUGIN = "pipeline"
#: From this width on, an event line has room for the job, its plugin and both states.
_WIDE = 60
_USUAL_REASONS = ("submitted", "claimed", "completed")


class Row(Value):
    """One line of a table; `key` is what an action on it needs."""

    key: str
    cells: tuple[str, ...]


JOB_COLUMNS = ("job", "what", "state", "since", "attempt")
RUN_COLUMNS = ("run", "pipeline", "state", "steps", "running", "since")
FAILED_COLUMNS = ("job", "what", "ended", "why")
SCHEDULE_COLUMNS = ("plugin", "schedule", "next", "last")
PLUGIN_COLUMNS = ("plugin", "last run", "health", "breakers")


def job_rows(queue: JsonDocument, now: datetime) -> list[Row]:
    """Return rows of running jobs, then of queued ones, oldest first. Runs have a table of their own."""
    rows = []
    for job in [*reversed(queue["running"]), *reversed(queue["queued"])]:
        if job["plugin"] == RUN_PLUGIN:
            continue
        running = job["status"] == "running"
        state = job["status"] if running else job["hold"] or "ready"
        if job["cancel_requested_at"] is not None:
            state = "cancelling"
        if state == "retry":
            state = f"retry in {until(job['next_retry_at'], now)}"
        name = f"{job['plugin']} {job['command']}" + (f" ({job['step']})" if job["step"] else "")
        since = age(job["started_at" if running else "created_at"], now)
        cells = (short_id(job["job_id"]), name, state, since, f"{job['attempt']}/{job['max_attempts']}")
        rows.append(Row(key=job["job_id"], cells=cells))
    return rows


def run_rows(runs: Iterable[tuple[JsonDocument, Iterable[JsonDocument]]], now: datetime) -> list[Row]:
    """Return rows of pipeline runs that have not ended. Each run comes with the jobs of its steps."""
    rows = []
    for run, steps in runs:
        step_jobs = list(steps)
        ended = sum(step["status"] in ("succeeded", "failed", "dead") for step in step_jobs)
        running_steps = ", ".join(
            sorted({str(step["step"]) for step in step_jobs if step["status"] == "running"})
        )
        cells = (
            short_id(run["job_id"]),
            run["command"],
            "cancelling" if run["cancel_requested_at"] else run["status"],
            f"{ended}/{len(step_jobs)}",
            running_steps or "-",
            age(run["created_at"], now),
        )
        rows.append(Row(key=run["job_id"], cells=cells))
    return rows


def failed_rows(jobs: Iterable[JsonDocument], now: datetime) -> list[Row]:
    """Return rows of failed and dead jobs, the latest first. A step has the key of its run: it is retried."""
    rows = []
    for job in sorted(jobs, key=lambda job: str(job["completed_at"]), reverse=True):
        error = str(job["last_error"] or job["reason"])
        # For a program that failed, its last line on stderr is the most useful part.
        error = (error.partition("; stderr ends with: ")[2] or error).splitlines()[0][:80]
        ended = f"{job['status']} {age(job['completed_at'], now)} ago"
        cells = (short_id(job["job_id"]), f"{job['plugin']} {job['command']}", ended, error)
        rows.append(Row(key=job["run_id"] or job["job_id"], cells=cells))
    return rows


def schedule_rows(schedules: JsonDocument, now: datetime) -> list[Row]:
    return [
        Row(
            key=f"{entry['plugin']}\t{entry['id']}",
            cells=(
                entry["plugin"],
                entry["id"],
                "paused" if entry["paused_at"] else until(entry["next_at"], now),
                age(entry["last_fired_at"], now) + " ago" if entry["last_fired_at"] else "never",
            ),
        )
        for entry in schedules["schedules"]
    ]


def plugin_rows(status: JsonDocument, now: datetime) -> list[Row]:
    """Return a row for each plugin: its last run, its health, and circuit breakers that are not closed."""
    rows = []
    for plugin in status["plugins"]:
        latest = plugin["last_run"]
        open_breakers = [
            f"{command} {breaker['state']}"
            for command, breaker in plugin["breakers"].items()
            if breaker["state"] != "closed"
        ]
        last_run = f"{latest['status']} {age(latest['completed_at'], now)} ago" if latest else "never"
        state = "refused" if plugin["refused"] else "disabled" if not plugin["enabled"] else last_run
        cells = (plugin["name"], state, plugin["health"] or "-", ", ".join(open_breakers) or "closed")
        rows.append(Row(key=plugin["name"], cells=cells))
    return rows


def headline(status: JsonDocument) -> str:
    """Return the first line of the screen: the state of the daemon, the queue and the nodes."""
    daemon, queue = status["daemon"], status["queue"]
    if not daemon["running"]:
        return "no daemon is running"
    state = "stopping" if daemon["stopping"] else "up"
    uptime = span(timedelta(seconds=float(daemon["uptime_seconds"])))
    nodes = "".join(
        f" · {node['name']} " + (f"{node['busy']}/{node['workers']}" if node["alive"] else "silent")
        for node in status["nodes"]
    )
    held = sum(int(group["jobs"]) for group in status.get("without_node", ()))
    nodes += f" · {held} without a node" if held else ""
    return (
        f"{state} {uptime} · {queue['running']} running · {queue['ready']} ready · {queue['waiting']} waiting"
        f" · version {daemon['version']}{nodes}"
    )


def event_line(event: JsonDocument, width: int, zone: tzinfo) -> str:
    """Return one ledger entry as a line: time in `zone`, job, plugin, change and reason.

    Narrow lines omit the job, the previous state and usual reasons, which other lines and tables show.
    """
    data, narrow = event["data"], width < _WIDE
    subject = " ".join(str(data[name]) for name in ("plugin", "command") if name in data)
    if event["kind"] == "job.transition":
        before = "" if narrow else f"{data.get('from') or 'new'} "
        reason = "" if narrow and data["reason"] in _USUAL_REASONS else f" ({data['reason']})"
        change = f"{before}→ {data['to']}{reason}"
    else:
        texts = (data.get("explanation"), data.get("error"), data.get("reason"), data.get("state"))
        change = f"{event['kind']} " + next((str(text) for text in texts if text), "")
    job = short_id(event["job_id"]) if event["job_id"] and not narrow else ""
    at = datetime.fromisoformat(event["at"]).astimezone(zone)
    return f"{at:%H:%M:%S} {job} {subject} {change}".replace("  ", " ").strip()


def short_id(job_id: str) -> str:
    """Return the end of an id, as lists show it. Ids of jobs of the same moment begin alike."""
    return job_id[-8:]


def age(instant: str | None, now: datetime) -> str:
    """Return the rounded time since an instant."""
    return "-" if instant is None else span(now - datetime.fromisoformat(instant))


def until(instant: str | None, now: datetime) -> str:
    """Return the rounded time until an instant."""
    if instant is None:
        return "-"
    remaining = datetime.fromisoformat(instant) - now
    return "now" if remaining <= timedelta(0) else span(remaining)


def span(time: timedelta) -> str:
    """Return a rounded duration: 5s, 3m, 2h, 4d."""
    seconds = max(0, round(time.total_seconds()))
    for size, unit in ((86400, "d"), (3600, "h"), (60, "m")):
        if seconds >= 2 * size:
            return f"{seconds // size}{unit}"
    return f"{seconds}s"
