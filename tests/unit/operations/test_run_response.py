"""The response for a run that is not done in time."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from builders.jobs import a_job
from ductile.core.jobs.model import JobReason, JobStatus
from ductile.operations.runs.response import SyncWait, still_running_response
from ductile.store.model.records import JobDetails

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
SECOND = timedelta(seconds=1)


def test_why_the_waiting_ended_does_not_depend_on_the_clock() -> None:
    """`timeout_exceeded` unless the daemon stops, also where the clock was set back meanwhile."""
    answers = {
        (stopping, seconds): still_running_response(
            JobDetails(job=a_job(), steps=(), executions={}),
            SyncWait(timeout=timedelta(seconds=30), until=NOON),
            elapsed=timedelta(seconds=seconds),
            stopping=stopping,
            duplicate=False,
        )
        for stopping in (True, False)
        for seconds in (-3600, 1, 30)
    }
    assert {case: answer.timeout_exceeded for case, answer in answers.items()} == {
        (True, -3600): False,
        (True, 1): False,
        (True, 30): True,
        (False, -3600): True,
        (False, 1): True,
        (False, 30): True,
    }
    assert "stopping" in answers[True, 1].message
    assert "stopping" not in answers[False, 1].message


@pytest.mark.parametrize(
    ("cancels", "reason", "ended_at", "out_of_time"),
    [
        (True, JobReason.CANCELLED, NOON, True),
        (True, JobReason.CANCELLED, NOON + SECOND, True),
        # Cancelled by hand before the deadline.
        (True, JobReason.CANCELLED, NOON - SECOND, False),
        # It failed by itself, a moment late.
        (True, JobReason.STALLED, NOON, False),
        (False, JobReason.CANCELLED, NOON + SECOND, False),
    ],
)
def test_a_run_that_its_deadline_ended_is_late_in_every_order_of_events(
    *, cancels: bool, reason: JobReason, ended_at: datetime, out_of_time: bool
) -> None:
    """The engine cancels at the instant at which its caller gives up; the answer is the same."""
    waiting = SyncWait(timeout=SECOND, until=NOON, cancel_on_timeout=cancels)
    job = a_job(status=JobStatus.DEAD, reason=reason, completed_at=ended_at)
    assert waiting.has_ended_by_deadline(job) is out_of_time
