"""What is told of a job's failed attempts while somebody waits for its end: a retry may be minutes away."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

from ductile.cli.client import Document, request_daemon
from ductile.cli.console.console import printable
from ductile.cli.console.format import format_ms
from ductile.errors import DuctileError

if TYPE_CHECKING:
    from ductile.cli.invocation import Invocation

#: What is said by the way must not keep whoever waits when the job has ended.
_PATIENCE = 5.0
_MINUTE = 60
#: Not those that a stop interrupted or a crash orphaned: they did not fail.
_FAILED = ("failed", "timed_out")


class RetryProgress:
    """Each attempt of one job that failed and is followed by another is told once."""

    def __init__(self, call: Invocation, job_id: str) -> None:
        self._call = call
        self._job_id = job_id
        self._told = 0

    def look(self) -> list[str]:
        """What has come since the last look. Whoever waits hears of a daemon that is gone in another way."""
        try:
            # The row first, which is little: what the job was given and answered may be much.
            found = request_daemon(self._call, "job.list", {"job_id": self._job_id}, timeout=_PATIENCE)
            if all(job["execution"] <= self._told or job["status"] == "running" for job in found["jobs"]):
                return []
            return self.news(
                request_daemon(self._call, "job.show", {"job_id": self._job_id}, timeout=_PATIENCE)
            )
        except DuctileError:
            return []

    def news(self, job: Document) -> list[str]:
        """Of a job as it stands: the failed attempts that have not been told yet."""
        new = [row for row in job["executions"] if row["execution"] > self._told]
        self._told = max((row["execution"] for row in new), default=self._told)
        return [_line(row, job) for row in new if row["job_status"] == "queued" and row["status"] in _FAILED]


def _line(row: Document, job: Document) -> str:
    error = printable(str(row["error"] or row["status"])).replace("\n", " ")
    line = f"attempt {row['attempt']} of {job['max_attempts']} failed: {error}"
    is_last = row["execution"] == job["executions"][-1]["execution"]
    if not (is_last and job["status"] == "queued" and job["next_retry_at"]):
        return line
    return f"{line}; next try in {_until(job['next_retry_at'])} (Ctrl-C leaves it queued)"


def _until(instant: str) -> str:
    seconds = max(0.0, (datetime.fromisoformat(instant) - datetime.now(UTC)).total_seconds())
    return f"{seconds:.0f}s" if seconds < _MINUTE else format_ms(seconds * 1000)
