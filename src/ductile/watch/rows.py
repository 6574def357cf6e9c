"""What the operations answer, as the rows of the screen's tables. Pure, so it is tested without a screen."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, TypeAlias

from ductile.struct import Value

#: An answer, decoded. What is in it is up to the operation.
Said: TypeAlias = Mapping[str, Any]

RUN_PLUGIN = "pipeline"
#: Of this many columns on, a line has room for a job, its plugin and both of its states.
_ROOMY = 60
_USUAL = ("submitted", "claimed", "completed")


class Row(Value):
    """One line of a table; `key` is what an action on it needs."""

    key: str
    cells: tuple[str, ...]


JOB_COLUMNS = ("job", "what", "state", "since", "attempt")
RUN_COLUMNS = ("run", "pipeline", "state", "steps", "now at", "since")
FAILED_COLUMNS = ("job", "what", "ended", "why")
SCHEDULE_COLUMNS = ("plugin", "schedule", "next", "last")
PLUGIN_COLUMNS = ("plugin", "last run", "health", "breakers")


def job_rows(queue: Said, now: datetime) -> list[Row]:
    """What runs, then what waits, oldest first; runs have a table of their own."""
    running = [job for job in reversed(queue["running"]) if job["plugin"] != RUN_PLUGIN]
    queued = [job for job in reversed(queue["queued"]) if job["plugin"] != RUN_PLUGIN]
    return [_job_row(job, now) for job in [*running, *queued]]


def _job_row(job: Said, now: datetime) -> Row:
    state = job["status"] if job["status"] == "running" else job["hold"] or "ready"
    if job["cancel_requested_at"] is not None:
        state = "cancelling"
    if state == "retry":
        state = f"retry in {until(job['next_retry_at'], now)}"
    what = f"{job['plugin']} {job['command']}" + (f" ({job['step']})" if job["step"] else "")
    since = age(job["started_at"] if job["status"] == "running" else job["created_at"], now)
    attempts = f"{job['attempt']}/{job['max_attempts']}"
    return Row(key=job["job_id"], cells=(short(job["job_id"]), what, state, since, attempts))


def run_rows(runs: Iterable[tuple[Said, Iterable[Said]]], now: datetime) -> list[Row]:
    """Pipeline runs that are under way, each with its steps."""
    rows = []
    for run, steps in runs:
        known = list(steps)
        done = sum(step["status"] in ("succeeded", "failed", "dead") for step in known)
        at = ", ".join(sorted({str(step["step"]) for step in known if step["status"] == "running"}))
        cells = (
            short(run["job_id"]),
            run["command"],
            "cancelling" if run["cancel_requested_at"] else run["status"],
            f"{done}/{len(known)}",
            at or "-",
            age(run["created_at"], now),
        )
        rows.append(Row(key=run["job_id"], cells=cells))
    return rows


def failed_rows(jobs: Iterable[Said], now: datetime) -> list[Row]:
    """Jobs that ended badly, the latest first; a step is retried with its run."""
    latest = sorted(jobs, key=lambda job: str(job["completed_at"]), reverse=True)
    return [
        Row(
            key=job["run_id"] or job["job_id"],
            cells=(
                short(job["job_id"]),
                f"{job['plugin']} {job['command']}",
                f"{job['status']} {age(job['completed_at'], now)} ago",
                str(job["last_error"] or job["reason"]).splitlines()[0][:60],
            ),
        )
        for job in latest
    ]


def schedule_rows(schedules: Said, now: datetime) -> list[Row]:
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


def plugin_rows(status: Said, now: datetime) -> list[Row]:
    rows = []
    for plugin in status["plugins"]:
        last = plugin["last_run"]
        opened = [
            f"{command} {breaker['state']}"
            for command, breaker in plugin["breakers"].items()
            if breaker["state"] != "closed"
        ]
        ran = f"{last['status']} {age(last['completed_at'], now)} ago" if last else "never"
        state = "refused" if plugin["refused"] else "disabled" if not plugin["enabled"] else ran
        cells = (plugin["name"], state, plugin["health"] or "-", ", ".join(opened) or "closed")
        rows.append(Row(key=plugin["name"], cells=cells))
    return rows


def headline(status: Said) -> str:
    daemon, queue = status["daemon"], status["queue"]
    if not daemon["running"]:
        return "no daemon is running"
    word = "stopping" if daemon["stopping"] else "up"
    up = span(timedelta(seconds=float(daemon["uptime_seconds"])))
    return (
        f"{word} {up} · {queue['running']} running · {queue['ready']} ready · {queue['waiting']} waiting"
        f" · version {daemon['version']}"
    )


def event_line(event: Said, width: int) -> str:
    """One entry of the ledger: when, what, of whom, and why. Where lines are short, without what another
    line tells, or a table beside it: the job, what state it was in, and why if that is no surprise.
    """
    data, brief = event["data"], width < _ROOMY
    who = " ".join(str(data[name]) for name in ("plugin", "command") if name in data)
    if event["kind"] == "job.transition":
        before = "" if brief else f"{data.get('from') or 'new'} "
        why = "" if brief and data["reason"] in _USUAL else f" ({data['reason']})"
        what = f"{before}→ {data['to']}{why}"
    else:
        told = (data.get("explanation"), data.get("error"), data.get("reason"), data.get("state"))
        what = f"{event['kind']} " + next((str(word) for word in told if word), "")
    job = short(event["job_id"]) if event["job_id"] and not brief else ""
    return f"{event['at'][11:19]} {job} {who} {what}".replace("  ", " ").strip()


def short(job_id: str) -> str:
    """The end of an id: its beginning is the time, and the same for jobs of one moment."""
    return job_id[-12:]


def age(instant: str | None, now: datetime) -> str:
    return "-" if instant is None else span(now - datetime.fromisoformat(instant))


def until(instant: str | None, now: datetime) -> str:
    if instant is None:
        return "-"
    left = datetime.fromisoformat(instant) - now
    return "now" if left <= timedelta(0) else span(left)


def span(time: timedelta) -> str:
    """Rounded to what a glance takes in: 5s, 3m, 2h, 4d."""
    seconds = max(0, round(time.total_seconds()))
    for size, unit in ((86400, "d"), (3600, "h"), (60, "m")):
        if seconds >= 2 * size:
            return f"{seconds // size}{unit}"
    return f"{seconds}s"


def utc_now() -> datetime:
    return datetime.now(UTC)
