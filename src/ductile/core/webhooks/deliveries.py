"""When a state webhook is sent again, and when it is given up."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from random import Random
from typing import TypeAlias

from ductile.core.jobs.retry import RetryPolicy, plan_delay
from ductile.core.jobs.settlement import CallbackState
from ductile.core.timestamps import format_timestamp, parse_timestamp
from ductile.struct import Value

#: No wait is longer, whatever the receiver asks for: a delivery that nobody expects any more is worth little.
MAX_DELIVERY_DELAY = timedelta(hours=1)

_MOST_DIGITS = 9
_ACCEPTED = range(200, 300)


class DeliveryAttempt(Value):
    """What came of sending once: the receiver's status, or why there is none."""

    http_status: int | None = None
    error: str | None = None
    #: How long the receiver asks to be left alone.
    retry_after: timedelta | None = None

    @property
    def delivered(self) -> bool:
        return self.http_status in _ACCEPTED

    @property
    def gone(self) -> bool:
        """Whether the receiver says that it does not exist any more, so that trying again is no use."""
        return self.http_status == HTTPStatus.GONE


def may_attempt(attempts: int, *, max_attempts: int) -> bool:
    """Whether the `attempts`-th attempt may be made. They are counted before: whoever crashes in each of them
    has used them up, and reported none.
    """
    return attempts <= max_attempts


def next_attempt(
    attempt: DeliveryAttempt,
    *,
    attempts: int,
    max_attempts: int,
    backoff_base: timedelta,
    now: datetime,
    rng: Random,
) -> datetime | None:
    """When to send again after a failure, the `attempts`-th; None if that was the last one, or it is gone."""
    if attempts >= max_attempts or attempt.gone:
        return None
    policy = RetryPolicy(max_attempts=max_attempts, backoff_base=backoff_base, backoff_max=MAX_DELIVERY_DELAY)
    wait = plan_delay(policy, attempts, rng)
    return now + min(max(wait, attempt.retry_after or timedelta()), MAX_DELIVERY_DELAY)


def parse_retry_after(text: str | None, now: datetime) -> timedelta | None:
    """The wait that a `Retry-After` header asks for: seconds, or a date. What is neither asks for nothing."""
    if text is None:
        return None
    stripped = text.strip()
    if stripped.isascii() and stripped.isdigit():
        return timedelta(seconds=int(stripped)) if len(stripped) <= _MOST_DIGITS else MAX_DELIVERY_DELAY
    try:
        date = parsedate_to_datetime(stripped)
    except (ValueError, OverflowError):  # the latter from a zone further away than any
        return None
    # A date without a zone is a fault of the sender; HTTP dates are always in GMT.
    aware = date if date.tzinfo is not None else date.replace(tzinfo=UTC)
    return max(aware - now, timedelta())


#: URLs that one job is told to: each event is stored once for each of them.
MAX_SUBSCRIPTIONS = 100

#: The chosen states in the order of `CallbackState`; None means all of them.
StateChoice: TypeAlias = tuple[str, ...] | None

_STEP = timedelta(microseconds=1)


def wants(chosen: StateChoice, state: str) -> bool:
    """Return whether a subscription that chose these states is sent this one."""
    return chosen is None or state in chosen


def merge_choices(one: StateChoice, other: StateChoice) -> StateChoice:
    """Return the states of two subscriptions of the same URL: what either of them chose."""
    if one is None or other is None:
        return None
    return tuple(state for state in CallbackState if state in one or state in other)


def event_timestamp(stamp: str, latest: str | None) -> str:
    """Return the instant of an event: `stamp`, or just after the job's latest event if that is not earlier.

    Several events of a job can be written in one transaction, which has a single instant.
    """
    if latest is None or stamp > latest:
        return stamp
    return format_timestamp(parse_timestamp(latest) + _STEP)
