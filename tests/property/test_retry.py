"""Delays between attempts."""

from __future__ import annotations

from datetime import timedelta

from hypothesis import given
from hypothesis import strategies as st

from builders.jobs import some_rng
from ductile.core.jobs.failures import RetryPolicy, plan_delay

spans = st.integers(0, 10**12).map(lambda us: timedelta(microseconds=us))
policies = st.builds(RetryPolicy, backoff_base=spans, backoff_max=spans)
seeds = st.integers(0, 2**32)
NEARLY = 200  # microseconds that floating point may take of two weeks


@given(policies, st.integers(1, 200), seeds)
def test_the_delay_is_doubled_from_the_base_with_one_base_of_chance_and_capped(
    policy: RetryPolicy, attempt: int, seed: int
) -> None:
    delay = plan_delay(policy, attempt, some_rng(seed)) // timedelta(microseconds=1)
    base, cap = (span // timedelta(microseconds=1) for span in (policy.backoff_base, policy.backoff_max))
    doubled = base * 2 ** (attempt - 1)
    assert min(doubled, cap) - NEARLY <= delay <= min(doubled + base, cap) + NEARLY


@given(policies, st.integers(1, 100), seeds, seeds)
def test_a_later_attempt_never_waits_less(
    policy: RetryPolicy, attempt: int, first_seed: int, second_seed: int
) -> None:
    """This holds for any random numbers: 2^n bases are at least 2^(n-1) bases plus one."""
    earlier = plan_delay(policy, attempt, some_rng(first_seed))
    later = plan_delay(policy, attempt + 1, some_rng(second_seed))
    assert later >= earlier - timedelta(microseconds=NEARLY)


@given(st.integers(1, 4), seeds)
def test_the_defaults_are_half_a_minute_doubling(attempt: int, seed: int) -> None:
    delay = plan_delay(RetryPolicy(), attempt, some_rng(seed))
    base = timedelta(seconds=30)
    assert base * 2 ** (attempt - 1) <= delay <= base * 2 ** (attempt - 1) + base


@given(seeds)
def test_chance_is_used(seed: int) -> None:
    """Two jobs that fail together are not retried together."""
    rng = some_rng(seed)
    assert len({plan_delay(RetryPolicy(), 1, rng) for _ in range(5)}) > 1


@given(st.integers(1, 10**9))
def test_any_attempt_has_a_delay(attempt: int) -> None:
    assert plan_delay(RetryPolicy(), attempt, some_rng()) <= timedelta(hours=1)
