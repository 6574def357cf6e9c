"""The breaker as a fold over job results and probes."""

from __future__ import annotations

from datetime import timedelta

from hypothesis import given
from hypothesis import strategies as st

from builders.jobs import START
from ductile.core.jobs.failures import (
    Breaker,
    BreakerPolicy,
    BreakerReason,
    BreakerResult,
    BreakerState,
    breaker_after_job,
    breaker_change_reason,
)
from ductile.struct import replace

verdicts = st.sampled_from(BreakerResult)
policies = st.builds(BreakerPolicy, threshold=st.integers(1, 6))
#: Events of a breaker: a job ends, or a probe of an open breaker begins or ends.
breaker_events = st.lists(st.tuples(st.sampled_from(["job", "probe", "probe ends"]), verdicts), max_size=30)


def fold(
    policy: BreakerPolicy, steps: list[tuple[str, BreakerResult]]
) -> list[tuple[str, BreakerResult, Breaker, Breaker]]:
    breaker, history = Breaker(), []
    for number, (kind, verdict) in enumerate(steps):
        now = START + timedelta(minutes=number)
        if kind == "probe":
            if breaker.state is BreakerState.OPEN:
                breaker = replace(breaker, state=BreakerState.HALF_OPEN, probe_job_id=f"probe-{number}")
            continue
        job_id = breaker.probe_job_id if kind == "probe ends" and breaker.probe_job_id else f"job-{number}"
        after = breaker_after_job(breaker, verdict, job_id=job_id, policy=policy, now=now)
        history.append((job_id, verdict, breaker, after))
        breaker = after
    return history


@given(policies, st.lists(verdicts, max_size=20))
def test_it_opens_at_so_many_failures_in_a_row_and_not_before(
    policy: BreakerPolicy, sequence: list[BreakerResult]
) -> None:
    failures, opened = 0, False
    for _, verdict, _, after in fold(policy, [("job", verdict) for verdict in sequence]):
        if verdict is BreakerResult.SUCCESS:
            failures, opened = 0, False
        elif verdict is BreakerResult.FAILURE:
            failures += 1
            opened = opened or failures >= policy.threshold
        assert (after.state is BreakerState.OPEN) == opened
        assert after.failures == failures


@given(policies, breaker_events)
def test_a_success_always_closes_and_forgets(
    policy: BreakerPolicy, steps: list[tuple[str, BreakerResult]]
) -> None:
    for _, verdict, _, after in fold(policy, steps):
        if verdict is BreakerResult.SUCCESS:
            assert (after.state, after.failures) == (BreakerState.CLOSED, 0)
            assert (after.opened_at, after.probe_job_id) == (None, None)


@given(policies, breaker_events)
def test_half_open_is_exactly_one_probe(
    policy: BreakerPolicy, steps: list[tuple[str, BreakerResult]]
) -> None:
    """The probe decides; the failure of another job does not."""
    for job_id, verdict, before, after in fold(policy, steps):
        assert (after.state is BreakerState.HALF_OPEN) == (after.probe_job_id is not None)
        if before.state is BreakerState.HALF_OPEN and verdict is not BreakerResult.SUCCESS:
            is_probe = job_id == before.probe_job_id
            assert after.state is (BreakerState.OPEN if is_probe else BreakerState.HALF_OPEN)


@given(policies, breaker_events)
def test_a_breaker_that_reopens_starts_a_new_cooldown(
    policy: BreakerPolicy, steps: list[tuple[str, BreakerResult]]
) -> None:
    for _, _, before, after in fold(policy, steps):
        if before.state is not BreakerState.OPEN and after.state is BreakerState.OPEN:
            assert after.opened_at is not None
            assert before.opened_at is None or after.opened_at > before.opened_at
        if before.state is BreakerState.OPEN and after.state is BreakerState.OPEN:
            assert after.opened_at == before.opened_at, "an old job's failure does not prolong the cooldown"


@given(policies, breaker_events)
def test_every_change_has_its_reason_and_nothing_else_has(
    policy: BreakerPolicy, steps: list[tuple[str, BreakerResult]]
) -> None:
    for _, verdict, before, after in fold(policy, steps):
        reason = breaker_change_reason(before, after)
        assert (reason is None) == (before.state is after.state)
        expected = {
            BreakerResult.SUCCESS: BreakerReason.SUCCESS,
            BreakerResult.FAILURE: BreakerReason.FAILURE_THRESHOLD,
            BreakerResult.NONE: BreakerReason.PROBE_WITHOUT_VERDICT,
        }
        assert reason in (None, expected[verdict])


@given(policies, breaker_events)
def test_a_job_without_verdict_changes_nothing(
    policy: BreakerPolicy, steps: list[tuple[str, BreakerResult]]
) -> None:
    for job_id, verdict, before, after in fold(policy, steps):
        if verdict is BreakerResult.NONE and before.probe_job_id != job_id:
            assert after == before
