"""The decision when a state webhook is sent again."""

from __future__ import annotations

from datetime import datetime, timedelta
from email.utils import format_datetime
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from builders.jobs import START
from ductile.core.jobs.model import StateSubscription
from ductile.core.jobs.settlement import WebhookState
from ductile.core.webhooks.deliveries import (
    MAX_DELIVERY_DELAY,
    DeliveryAttempt,
    includes_state,
    may_attempt,
    merge_subscriptions,
    next_attempt,
    parse_retry_after,
)

GONE = 410
#: Failures that are retried. After 410 the receiver gets no further attempt.
failures = st.builds(
    DeliveryAttempt,
    http_status=st.none() | st.integers(300, 599).filter(lambda status: status != GONE),
    retry_after=st.none() | st.timedeltas(timedelta(), timedelta(days=3)),
)
bases = st.timedeltas(timedelta(milliseconds=1), timedelta(minutes=5))


def plan_attempt(
    attempt: DeliveryAttempt, attempts: int, max_attempts: int, base: timedelta, seed: int
) -> datetime | None:
    return next_attempt(
        attempt, attempts=attempts, max_attempts=max_attempts, backoff_base=base, now=START, rng=Random(seed)
    )


@given(failures, st.integers(1, 50), st.integers(1, 20), bases, st.integers())
def test_it_is_tried_so_often_and_no_more(
    attempt: DeliveryAttempt, attempts: int, max_attempts: int, base: timedelta, seed: int
) -> None:
    """After `max_attempts` the delivery is dropped."""
    assert (plan_attempt(attempt, attempts, max_attempts, base, seed) is None) == (attempts >= max_attempts)
    assert may_attempt(attempts, max_attempts=max_attempts) == (attempts <= max_attempts)


@given(failures, st.integers(1, 19), bases, st.integers())
def test_the_wait_doubles_obeys_the_receiver_and_is_bounded(
    attempt: DeliveryAttempt, attempts: int, base: timedelta, seed: int
) -> None:
    """The backoff starts with the base, respects `Retry-After`, and is at most an hour."""
    retry_at = plan_attempt(attempt, attempts, 20, base, seed)
    assert retry_at is not None
    wait = retry_at - START
    doubled = base * 2 ** (attempts - 1)
    shortest = max(doubled, attempt.retry_after or timedelta())
    longest = max(doubled + base, attempt.retry_after or timedelta())
    rounding = timedelta(microseconds=1)
    assert min(shortest, MAX_DELIVERY_DELAY) - rounding <= wait <= min(longest, MAX_DELIVERY_DELAY) + rounding


@given(st.integers(1, 19), bases, st.integers())
def test_a_receiver_that_is_gone_gets_no_further_attempt(attempts: int, base: timedelta, seed: int) -> None:
    assert plan_attempt(DeliveryAttempt(http_status=GONE), attempts, 20, base, seed) is None


@given(st.integers(0, 10**12))
def test_seconds_are_read(seconds: int) -> None:
    wait = parse_retry_after(f" {seconds} ", START)
    assert wait is not None
    assert wait == timedelta(seconds=seconds) or (wait == MAX_DELIVERY_DELAY and seconds >= 10**9)


@given(st.integers(-100_000, 100_000))
def test_dates_are_read_and_past_ones_mean_now(seconds: int) -> None:
    at = START + timedelta(seconds=seconds)
    assert parse_retry_after(format_datetime(at, usegmt=True), START) == timedelta(seconds=max(0, seconds))


@given(st.text(max_size=60))
def test_no_retry_after_header_raises(text: str) -> None:
    wait = parse_retry_after(text, START)
    assert wait is None or wait >= timedelta()


@pytest.mark.parametrize("zone", ["+99999999999999999999", "-9999", "+2400", "+000000000000"])
def test_a_date_with_an_invalid_zone_gives_no_negative_wait(zone: str) -> None:
    """The status of the response decides, whatever the header contains."""
    wait = parse_retry_after(f"Mon, 01 Jan 2024 00:00:00 {zone}", START)
    assert wait is None or wait >= timedelta()


def test_only_2xx_is_delivered() -> None:
    """Other statuses and connection failures are retried."""
    delivered = [status for status in range(100, 600) if DeliveryAttempt(http_status=status).delivered]
    assert delivered == list(range(200, 300))
    assert not DeliveryAttempt(error="no connection").delivered


choices = st.none() | st.lists(st.sampled_from([*map(str, WebhookState)]), min_size=1, unique=True).map(tuple)
subscriptions = st.none() | st.builds(
    StateSubscription, url=st.sampled_from(["https://a.invalid/", "https://b.invalid/"]), events=choices
)


@given(subscriptions, subscriptions)
def test_a_new_job_reports_every_wanted_state_once_to_each_url(
    submitted: StateSubscription | None, configured: StateSubscription | None
) -> None:
    """A URL gets a state once if the submission or the configuration wants it there."""
    given_subscriptions = [
        subscription for subscription in (submitted, configured) if subscription is not None
    ]
    merged = merge_subscriptions(submitted, configured)
    assert len({subscription.url for subscription in merged}) == len(merged)
    assert [subscription.url for subscription in merged[:1]] == [
        subscription.url for subscription in given_subscriptions[:1]
    ]
    for url in {subscription.url for subscription in given_subscriptions}:
        for state in WebhookState:
            is_wanted = any(
                subscription.url == url and includes_state(subscription.events, state)
                for subscription in given_subscriptions
            )
            assert (
                any(
                    subscription.url == url and includes_state(subscription.events, state)
                    for subscription in merged
                )
                == is_wanted
            )
