"""Rows: schedules."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ductile.operations.operation import JOBS_RO, JOBS_RW, HttpRoute, get, post
from ductile.operations.table.row import exclusive, read


def _of_schedule(method: Callable[..., HttpRoute], word: str, **options: Any) -> HttpRoute:
    """Return the routes of one schedule. Its id may be left out, as on the command line."""
    options = {"tag": "schedules", "statuses": (200, 404, 409)} | options
    return method(
        f"/schedule/{{plugin}}/{{schedule}}/{word}", aliases=(f"/schedule/{{plugin}}/{word}",), **options
    )


SCHEDULES = (
    read(
        "schedule.list",
        "schedules.manage:list_schedules",
        "Every schedule, and when it is next due",
        JOBS_RO,
        get("/schedules", tag="schedules"),
    ),
    read(
        "schedule.next",
        "schedules.manage:preview",
        "The next runs of schedules",
        JOBS_RO,
        get("/schedules/next", tag="schedules", statuses=(200, 404)),
    ),
    read(
        "schedule.history",
        "schedules.audit:show_history",
        "Past occurrences of a schedule, and whether there is a gap",
        JOBS_RO,
        _of_schedule(get, "history"),
    ),
    read(
        "schedule.explain",
        "diagnose.explain_schedule:explain_schedule",
        "Why a schedule does not run, and what to do",
        JOBS_RO,
        _of_schedule(get, "explain"),
    ),
    exclusive(
        "schedule.pause",
        "schedules.manage:pause_schedule",
        "Pause a schedule; it survives a restart",
        JOBS_RW,
        _of_schedule(post, "pause", message="Done."),
    ),
    exclusive(
        "schedule.resume",
        "schedules.manage:resume_schedule",
        "Resume a paused schedule",
        JOBS_RW,
        _of_schedule(post, "resume", message="Done."),
    ),
    exclusive(
        "schedule.run",
        "schedules.manage:run_schedule",
        "Run a schedule now",
        JOBS_RW,
        _of_schedule(post, "run", message="Done.", statuses=(202, 200, 404, 409), submits=True),
    ),
)
