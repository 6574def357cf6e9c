"""A store with thousands of jobs of the last week, written in bulk before the daemon starts."""

from __future__ import annotations

import asyncio
import json
import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random

import apsw

from builders.daemons import Workspace
from ductile.core.ids import make_id
from ductile.core.timestamps import format_timestamp
from ductile.store.sqlite.store import open_sqlite_store

#: The default path of the store, relative to the workspace.
STORE = Path("demo") / "data" / "state.db"
_WEEK = timedelta(days=7)
#: Plugin, command, and how many of a hundred of its jobs fail.
_KINDS = (("echo", "poll", 0), ("echo", "poll", 0), ("greeter", "handle", 1), ("printer", "handle", 12))
_ERROR = "the printer does not answer"
_JOB = """
INSERT INTO job_queue (id, plugin, command, payload, status, reason, max_attempts, execution, submitted_by,
  submitted_detail, created_at, started_at, completed_at, last_error)
VALUES (:id, :plugin, :command, :payload, :status, :reason, 4, 1, :by, :detail, :created, :started, :ended,
  :error)"""
_LOG = """
INSERT INTO job_log (job_id, execution, attempt, max_attempts, plugin, command, status, reason, job_status,
  job_reason, result, stderr, exit_code, last_error, duration_ms, submitted_by, submitted_detail, created_at,
  started_at, completed_at)
VALUES (:id, 1, 1, 4, :plugin, :command, :status, :reason, :status, :reason, :result, :stderr, 0, :error,
  :duration, :by, :detail, :created, :started, :ended)"""
_TRANSITION = """
INSERT INTO job_transitions (job_id, seq, execution, from_status, to_status, reason, at)
VALUES (:id, :seq, 1, :before, :after, :reason, :at)"""


def fill_store(workspace: Workspace, jobs: int) -> None:
    """Write ended jobs, evenly over the last week. The newest ended a minute ago."""
    path = workspace.directory / STORE
    path.parent.mkdir(parents=True, exist_ok=True)
    now, rng = datetime.now(UTC), Random(19)
    # Opening the store creates the tables. The loop of a browser may run in this thread: another one is used.
    thread = threading.Thread(
        target=lambda: asyncio.run(open_sqlite_store(path, clock=lambda: now, rng=rng).close())
    )
    thread.start()
    thread.join()
    connection = apsw.Connection(str(path))
    with connection:
        for number in range(jobs):
            created = now - _WEEK + (_WEEK - timedelta(minutes=1)) * (number + 1) / jobs
            _write(connection, rng, number, created)
    connection.close()


def _write(connection: apsw.Connection, rng: Random, number: int, created: datetime) -> None:
    plugin, command, failing = rng.choice(_KINDS)
    failed = rng.randrange(100) < failing
    wait, duration = rng.lognormvariate(2, 1), rng.lognormvariate(5, 1)
    started = created + timedelta(milliseconds=wait)
    ended = started + timedelta(milliseconds=duration)
    row = {
        "id": make_id(created, rng),
        "plugin": plugin,
        "command": command,
        "payload": json.dumps({"number": number}),
        "status": "failed" if failed else "succeeded",
        "reason": "plugin_error" if failed else "completed",
        "by": "scheduler" if plugin == "echo" else "api",
        "detail": "hourly" if plugin == "echo" else None,
        "created": format_timestamp(created),
        "started": format_timestamp(started),
        "ended": format_timestamp(ended),
        "error": _ERROR if failed else None,
        "result": json.dumps({"status": "error" if failed else "ok", "result": f"done with {number}"}),
        "stderr": f"printed by job {number}\n",
        "duration": duration,
    }
    connection.execute(_JOB, row)
    connection.execute(_LOG, row)
    steps = ((None, "queued", "submitted", created), ("queued", "running", "claimed", started))
    for at, (before, after, reason, instant) in enumerate(
        (*steps, ("running", row["status"], row["reason"], ended))
    ):
        values = {"id": row["id"], "before": before, "after": after, "reason": reason}
        connection.execute(_TRANSITION, values | {"seq": at, "at": format_timestamp(instant)})
