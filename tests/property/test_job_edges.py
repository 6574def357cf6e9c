"""A job stays on the documented transitions for any sequence of outcomes."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from builders.jobs import START, a_job, failed, ok, some_policy, some_rng, timed_out
from ductile.core.jobs.model import (
    EDGES,
    TERMINAL,
    EndedEarly,
    Job,
    JobReason,
    JobStatus,
    Orphaned,
    Outcome,
    Requeued,
    StepNotStarted,
    Transition,
)
from ductile.core.jobs.settlement import SettleView, decide_settlement
from ductile.struct import replace

OUTCOMES: dict[str, Outcome] = {
    "ok": ok(),
    "failed": failed(),
    "permanent": failed(permanent=True),
    "timed_out": timed_out(),
    "interrupted": Requeued(),
    "orphaned": Orphaned(),
    "purged": EndedEarly(reason=JobReason.PURGED, error="x"),
    "not_made": StepNotStarted(reason=JobReason.BAD_TEMPLATE, error="x"),
}


def apply_outcome(job: Job, outcome_name: str) -> tuple[Job, tuple[Transition, ...]]:
    """Return the job after one outcome that its status allows; claims and manual retries count as
    outcomes.
    """
    if job.status in TERMINAL:
        if outcome_name != "permanent" or job.status is JobStatus.SUCCEEDED:
            return job, ()
        edge = Transition(from_status=job.status, to_status=JobStatus.QUEUED, reason=JobReason.MANUAL_RETRY)
        return replace(job, status=JobStatus.QUEUED, attempt=1), (edge,)
    if job.status is JobStatus.QUEUED and outcome_name not in ("purged", "not_made"):
        edge = Transition(from_status=job.status, to_status=JobStatus.RUNNING, reason=JobReason.CLAIMED)
        return replace(job, status=JobStatus.RUNNING, execution=job.execution + 1), (edge,)
    settlement = decide_settlement(
        SettleView(job=job, state={}), OUTCOMES[outcome_name], some_policy(), START, some_rng()
    )
    return replace(job, status=settlement.status, attempt=settlement.attempt), settlement.transitions


@given(st.lists(st.sampled_from(sorted(OUTCOMES)), max_size=40), st.integers(1, 5))
def test_every_life_is_a_walk_on_the_edges(outcome_names: list[str], max_attempts: int) -> None:
    job = a_job(status=JobStatus.QUEUED, max_attempts=max_attempts)
    walk: list[Transition] = []
    for outcome_name in outcome_names:
        job, edges = apply_outcome(job, outcome_name)
        walk += edges
        assert 1 <= job.attempt <= max_attempts
        assert job.execution == sum(edge.to_status is JobStatus.RUNNING for edge in walk)
    for before, following in pairwise(walk):
        assert before.to_status is following.from_status
        assert (following.from_status, following.to_status) in EDGES


@given(st.integers(1, 8))
def test_failures_alone_end_a_job_after_all_its_attempts(max_attempts: int) -> None:
    job = a_job(status=JobStatus.QUEUED, max_attempts=max_attempts)
    while job.status not in TERMINAL:
        job, _ = apply_outcome(job, "failed")
    assert (job.status, job.attempt, job.execution) == (JobStatus.DEAD, max_attempts, max_attempts)
