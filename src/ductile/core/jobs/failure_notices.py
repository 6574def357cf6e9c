"""Failure notices: which ends of jobs are reported, when the next notice is due, and what it contains.

The first failure is reported at once and begins a window. Failures within a window are reported together at
its end, which begins a window twice as long. After a window without a failure the next one is reported at
once. See docs/reference/jobs.md#failure-notices.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

from ductile.core.jobs.model import EARLY_END_REASONS, Job, JobReason, JobStatus, NewJob, SubmittedBy
from ductile.core.json import JsonObject, JsonValue
from ductile.core.runs.graph import RUN_PLUGIN
from ductile.core.timestamps import format_timestamp
from ductile.struct import Value

#: The `submitted_detail` of a notice; with `submitted_by: hook` it identifies one.
NOTICE_DETAIL = "service.on_failure"
#: Type and source of the event that a notice handles.
NOTICE_EVENT, NOTICE_SOURCE = "ductile.failures", "ductile"
FIRST_WINDOW = timedelta(minutes=1)
LONGEST_WINDOW = timedelta(hours=1)
#: The most failures that one notice describes; all are counted.
MAX_EXAMPLES = 10
#: The most characters of an error in a notice. The job itself has all of it.
MAX_ERROR_LENGTH = 1000

_BAD_ENDS = frozenset({JobStatus.FAILED, JobStatus.DEAD})
#: The most characters of an error in a line of the text.
_MAX_LINE = 200


class ReportedFailure(Value):
    """A job or run that ended badly, as notices describe it."""

    job_id: str
    plugin: str
    command: str
    pipeline: str | None
    status: JobStatus
    reason: JobReason
    error: str | None
    attempts: int
    ended_at: datetime

    @property
    def name(self) -> str:
        return f"{self.plugin} {self.command}"  # Of a run: `pipeline NAME`.


class FailureGroup(Value):
    """The failures of one command for one reason since the last notice: their number, and the first few."""

    plugin: str
    command: str
    reason: JobReason
    count: int
    first_at: datetime
    last_at: datetime
    examples: tuple[ReportedFailure, ...]


class NoticeWindow(Value):
    """The window that the latest notice began."""

    begins_at: datetime
    length: timedelta

    @property
    def ends_at(self) -> datetime:
        return self.begins_at + self.length


def is_notice(job: Job | NewJob) -> bool:
    return job.submitted_by is SubmittedBy.HOOK and job.submitted_detail == NOTICE_DETAIL


def is_reported(job: Job, status: JobStatus, reason: JobReason) -> bool:
    """Return whether this end of the job is reported.

    A step is reported by its run. Early ends were requested, and a health check reports to its caller.
    """
    return (
        status in _BAD_ENDS
        and reason not in EARLY_END_REASONS
        and job.run_id is None
        and not is_notice(job)
        and not (job.submitted_by is SubmittedBy.CORE and job.command == "health")
    )


def notice_due_at(window: NoticeWindow | None, first_at: datetime, now: datetime) -> datetime:
    """Return when failures, the first at `first_at`, are to be reported: not after `now` means at once."""
    # A window that begins in the future: the clock was set back, and its end may be far away.
    if window is None or first_at >= window.ends_at or window.begins_at > now:
        return min(first_at, now)
    return window.ends_at


def window_after(window: NoticeWindow | None, first_at: datetime, now: datetime) -> NoticeWindow:
    """Return the window that begins with a notice sent now: longer if failures continued."""
    if window is None or first_at >= window.ends_at:
        return NoticeWindow(begins_at=now, length=FIRST_WINDOW)
    return NoticeWindow(begins_at=now, length=min(window.length * 2, LONGEST_WINDOW))


def choose_examples(groups: Sequence[FailureGroup]) -> tuple[ReportedFailure, ...]:
    """Return up to `MAX_EXAMPLES` failures, oldest first: the first of every group, then the second, …"""
    ranked = [(rank, failure) for group in groups for rank, failure in enumerate(group.examples)]
    ranked.sort(key=lambda pair: (pair[0], pair[1].ended_at, pair[1].job_id))
    chosen = [failure for _rank, failure in ranked[:MAX_EXAMPLES]]
    return tuple(sorted(chosen, key=lambda failure: (failure.ended_at, failure.job_id)))


def notice_payload(groups: Sequence[FailureGroup]) -> JsonObject:
    """Return the payload of the notice about these failures. There is at least one."""
    count = sum(group.count for group in groups)
    reasons: dict[str, dict[str, int]] = {}
    for group in groups:
        name = f"pipeline:{group.command}" if group.plugin == RUN_PLUGIN else group.plugin
        counts = reasons.setdefault(name, {})
        counts[group.reason] = counts.get(group.reason, 0) + group.count
    by_plugin: JsonObject = {
        name: {"count": sum(counts.values()), "reasons": {**counts}} for name, counts in reasons.items()
    }
    examples = choose_examples(groups)
    failures: list[JsonValue] = [
        {
            "job_id": failure.job_id,
            "plugin": failure.plugin,
            "command": failure.command,
            "pipeline": failure.pipeline,
            "status": failure.status.value,
            "reason": failure.reason.value,
            "error": failure.error,
            "attempts": failure.attempts,
            "ended_at": format_timestamp(failure.ended_at),
        }
        for failure in examples
    ]
    return {
        "failures": failures,
        "count": count,
        "by_plugin": by_plugin,
        "first_at": format_timestamp(min(group.first_at for group in groups)),
        "last_at": format_timestamp(max(group.last_at for group in groups)),
        "type": "failure",
        "text": _notice_text(count, reasons, examples),
    }


def _notice_text(count: int, reasons: dict[str, dict[str, int]], examples: Sequence[ReportedFailure]) -> str:
    if count == 1 and len(examples) == 1:
        (only,) = examples
        attempts = f" after {only.attempts} attempts" if only.attempts > 1 else ""
        return f"{only.name} failed{attempts}: {_line(only)}\nductile job explain {only.job_id}"
    lines = [f"{count} jobs failed"]
    for name, counts in reasons.items():
        listed = ", ".join(f"{reason} {number}" for reason, number in counts.items())
        lines.append(f"{name}: {sum(counts.values())} ({listed})")
    lines.append("")
    lines += [f"{failure.job_id} {failure.name}: {_line(failure)}" for failure in examples]
    if count > len(examples):
        lines.append(f"and {count - len(examples)} more")
    return "\n".join(lines)


def _line(failure: ReportedFailure) -> str:
    """Return the error in one line: its first line, and its last, with which the output of a program ends."""
    lines = [line.strip() for line in (failure.error or failure.reason.description).splitlines()]
    lines = [line for line in lines if line] or [failure.reason.description]
    line = lines[0] if len(lines) == 1 else f"{lines[0]} … {lines[-1]}"
    return line if len(line) <= _MAX_LINE else f"{line[:_MAX_LINE]}…"
