"""When a state webhook is sent again."""

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
#: Failures that are retried: after 410 the receiver gets no further attempt.
failures = st.builds(
    DeliveryAttempt,
    http_status=st.none() | st.integers(300, 599).filter(lambda status: status != GONE),
    retry_after=st.none() | st.timedeltas(timedelta(), timedelta(days=3)),
)
bases = st.timedeltas(timedelta(milliseconds=1), timedelta(minutes=5))


def planned(
    attempt: DeliveryAttempt, attempts: int, most: int, base: timedelta, seed: int
) -> datetime | None:
    return next_attempt(
        attempt, attempts=attempts, max_attempts=most, backoff_base=base, now=START, rng=Random(seed)
    )


@given(failures, st.integers(1, 50), st.integers(1, 20), bases, st.integers())
def test_it_is_tried_so_often_and_no_more(
    attempt: DeliveryAttempt, attempts: int, most: int, base: timedelta, seed: int
) -> None:
    """Retry is bounded by `max_attempts`, then it is dropped."""
    assert (planned(attempt, attempts, most, base, seed) is None) == (attempts >= most)
    assert may_attempt(attempts, max_attempts=most) == (attempts <= most)


@given(failures, st.integers(1, 19), bases, st.integers())
def test_the_wait_doubles_obeys_the_receiver_and_is_bounded(
    attempt: DeliveryAttempt, attempts: int, base: timedelta, seed: int
) -> None:
    """Backoff from the base, `Retry-After` obeyed, an hour at most."""
    retry_at = planned(attempt, attempts, 20, base, seed)
    assert retry_at is not None
    wait = retry_at - START
    doubled = base * 2 ** (attempts - 1)
    least = max(doubled, attempt.retry_after or timedelta())
    most = max(doubled + base, attempt.retry_after or timedelta())
    rounding = timedelta(microseconds=1)
    assert min(least, MAX_DELIVERY_DELAY) - rounding <= wait <= min(most, MAX_DELIVERY_DELAY) + rounding


@given(st.integers(1, 19), bases, st.integers())
def test_a_receiver_that_is_gone_gets_no_further_attempt(attempts: int, base: timedelta, seed: int) -> None:
    assert planned(DeliveryAttempt(http_status=GONE), attempts, 20, base, seed) is None


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
def test_whatever_a_receiver_writes_is_no_crash(text: str) -> None:
    wait = parse_retry_after(text, START)
    assert wait is None or wait >= timedelta()


@pytest.mark.parametrize("zone", ["+99999999999999999999", "-9999", "+2400", "+000000000000"])
def test_a_date_in_a_zone_that_is_nowhere_asks_for_nothing_much(zone: str) -> None:
    """The status of the answer decides, whatever else the receiver writes."""
    wait = parse_retry_after(f"Mon, 01 Jan 2024 00:00:00 {zone}", START)
    assert wait is None or wait >= timedelta()


def test_only_2xx_is_delivered() -> None:
    """Retry on non-2xx or connection failure."""
    delivered = [status for status in range(100, 600) if DeliveryAttempt(http_status=status).delivered]
    assert delivered == list(range(200, 300))
    assert not DeliveryAttempt(error="no connection").delivered


choices = st.none() | st.lists(st.sampled_from([*map(str, WebhookState)]), min_size=1, unique=True).map(tuple)
subscriptions = st.none() | st.builds(
    StateSubscription, url=st.sampled_from(["https://a.invalid/", "https://b.invalid/"]), events=choices
)


@given(subscriptions, subscriptions)
def test_a_new_job_reports_every_wanted_state_once_to_each_url(
    named: StateSubscription | None, configured: StateSubscription | None
) -> None:
    """A URL gets a state if the submission or the configuration wants it there, and never twice."""
    given_ones = [each for each in (named, configured) if each is not None]
    merged = merge_subscriptions(named, configured)
    assert len({each.url for each in merged}) == len(merged)
    assert [each.url for each in merged[:1]] == [each.url for each in given_ones[:1]]
    for url in {each.url for each in given_ones}:
        for state in WebhookState:
            wanted = any(each.url == url and includes_state(each.events, state) for each in given_ones)
            assert any(each.url == url and includes_state(each.events, state) for each in merged) == wanted
