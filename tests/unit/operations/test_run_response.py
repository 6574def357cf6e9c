"""The response for a run that has not ended in time."""

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
    """`timeout_exceeded` is set unless the daemon stops, also if the clock was set back meanwhile."""
    responses = {
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
    assert {case: response.timeout_exceeded for case, response in responses.items()} == {
        (True, -3600): False,
        (True, 1): False,
        (True, 30): True,
        (False, -3600): True,
        (False, 1): True,
        (False, 30): True,
    }
    assert "stopping" in responses[True, 1].message
    assert "stopping" not in responses[False, 1].message


@pytest.mark.parametrize(
    ("cancels", "reason", "ended_at", "out_of_time"),
    [
        (True, JobReason.CANCELLED, NOON, True),
        (True, JobReason.CANCELLED, NOON + SECOND, True),
        # The run was cancelled by hand before the deadline.
        (True, JobReason.CANCELLED, NOON - SECOND, False),
        # The run failed a moment after the deadline.
        (True, JobReason.STALLED, NOON, False),
        (False, JobReason.CANCELLED, NOON + SECOND, False),
    ],
)
def test_a_run_that_its_deadline_ended_is_late_in_every_order_of_events(
    *, cancels: bool, reason: JobReason, ended_at: datetime, out_of_time: bool
) -> None:
    """The engine cancels at the instant at which the caller gives up; the response is the same in both
    orders.
    """
    waiting = SyncWait(timeout=SECOND, until=NOON, cancel_on_timeout=cancels)
    job = a_job(status=JobStatus.DEAD, reason=reason, completed_at=ended_at)
    assert waiting.has_ended_by_deadline(job) is out_of_time
