"""The status of a task, and the interval at which a client should poll it."""

from __future__ import annotations

from datetime import timedelta
from types import SimpleNamespace
from typing import Any, cast

from hypothesis import given
from hypothesis import strategies as st

from ductile.core.jobs.model import TERMINAL, JobReason, JobStatus
from ductile.operations.diagnose.explain_run import StepJob, StepOutcome, StepReport
from ductile.operations.tools.task import TaskStatus, measure_progress, poll_interval, task_status


@given(st.sampled_from(JobStatus), st.sampled_from(JobReason))
def test_a_task_has_ended_exactly_when_its_job_has(status: JobStatus, reason: JobReason) -> None:
    """Only an ended job is a completed or cancelled task."""
    ended = task_status(status, reason) in (TaskStatus.COMPLETED, TaskStatus.CANCELLED)
    assert ended == (status in TERMINAL)


@given(st.timedeltas(min_value=timedelta()), st.timedeltas(min_value=timedelta()))
def test_older_tasks_are_asked_for_less_often(first: timedelta, second: timedelta) -> None:
    younger, older = sorted((first, second))
    assert 1_000 <= poll_interval(younger) <= poll_interval(older) <= 5_000


def a_step(name: str, *statuses: JobStatus, outcome: StepOutcome | None = None) -> StepReport:
    jobs = tuple(
        StepJob(
            job_id="x",
            plugin="p",
            command="handle",
            status=status,
            reason=JobReason.CLAIMED,
            attempt=1,
            max_attempts=1,
            duration_ms=None,
            error=None,
        )
        for status in statuses
    )
    step_outcome = outcome or (StepOutcome.RAN if jobs else StepOutcome.NOT_REACHED)
    return StepReport(
        step=name, kind="uses", does=None, outcome=step_outcome, jobs=jobs, bypasses=(), errors=()
    )


def test_progress_counts_the_starts_and_ends_of_steps() -> None:
    """A block is not counted, and a bypassed step has ended."""
    steps = (
        a_step("holds", outcome=StepOutcome.ENTERED),
        a_step("first", JobStatus.SUCCEEDED),
        a_step("second", JobStatus.DEAD, JobStatus.RUNNING),
        a_step("third", outcome=StepOutcome.BYPASSED),
        a_step("fourth"),
    )
    progress = measure_progress(_A_JOB, steps)
    assert (progress.done, progress.total) == (1 + 2 * 2 + 1, 1 + 2 * 4)
    assert progress.text == "2 of 4 steps have ended, running: second"


@given(st.lists(st.sampled_from([None, *JobStatus]), min_size=1, max_size=6), st.data())
def test_progress_grows_with_each_step_that_goes_on(
    statuses: list[JobStatus | None], data: st.DataObject
) -> None:
    """The progress is at most the total, and equals it only if every step has ended."""

    def measure() -> int:
        steps = tuple(
            a_step(str(index), *([] if status is None else [status])) for index, status in enumerate(statuses)
        )
        progress = measure_progress(_A_JOB, steps)
        assert progress.total is not None
        assert 1 <= progress.done <= progress.total
        assert (progress.done == progress.total) == all(status in TERMINAL for status in statuses)
        return progress.done

    before = measure()
    index = data.draw(st.integers(0, len(statuses) - 1))
    if statuses[index] is None:
        statuses[index] = JobStatus.RUNNING
    elif statuses[index] not in TERMINAL:
        statuses[index] = JobStatus.SUCCEEDED
    else:
        return
    assert measure() > before


@given(st.integers(1, 20))
def test_progress_of_a_job_without_steps_is_that_of_its_attempts(attempt: int) -> None:
    waiting, running, second_attempt = (
        measure_progress(cast("Any", SimpleNamespace(attempt=number, status=status)), ())
        for number, status in (
            (attempt, JobStatus.QUEUED),
            (attempt, JobStatus.RUNNING),
            (attempt + 1, JobStatus.QUEUED),
        )
    )
    assert 1 <= waiting.done < running.done < second_attempt.done
    assert running.total is None


_A_JOB = cast("Any", None)  # the progress of a run depends on its steps only
