"""When a job is a task in which status, and how often to ask for it."""

from __future__ import annotations

from datetime import timedelta

from hypothesis import given
from hypothesis import strategies as st

from ductile.core.jobs.model import TERMINAL, JobReason, JobStatus
from ductile.operations.tools.task import TaskStatus, poll_interval, task_status


@given(st.sampled_from(JobStatus), st.sampled_from(JobReason))
def test_a_task_has_ended_exactly_when_its_job_has(status: JobStatus, reason: JobReason) -> None:
    """Nothing but an ended job is a completed or cancelled task."""
    ended = task_status(status, reason) in (TaskStatus.COMPLETED, TaskStatus.CANCELLED)
    assert ended == (status in TERMINAL)


@given(st.timedeltas(min_value=timedelta()), st.timedeltas(min_value=timedelta()))
def test_older_tasks_are_asked_for_less_often(one: timedelta, other: timedelta) -> None:
    younger, older = sorted((one, other))
    assert 1_000 <= poll_interval(younger) <= poll_interval(older) <= 5_000
