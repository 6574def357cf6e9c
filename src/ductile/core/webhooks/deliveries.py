"""State webhooks: which events a receiver gets, when a delivery is retried, and how many are in flight.

Every attempt occupies one of a limited number of slots until it is answered or times out. A receiver has
several slots only while it answers promptly. A slow or unknown one has a single slot, and all such receivers
together have a part of the slots, so that they do not delay others.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from enum import StrEnum
from http import HTTPStatus
from random import Random
from typing import TypeAlias

from ductile.core.jobs.failures import RetryPolicy, plan_delay
from ductile.core.jobs.model import StateSubscription
from ductile.core.jobs.settlement import WebhookState
from ductile.core.timestamps import format_timestamp, parse_timestamp
from ductile.struct import Value, replace

#: The longest delay between attempts, also if the receiver asks for more.
MAX_DELIVERY_DELAY = timedelta(hours=1)
#: The most URLs that one job reports to: each event is stored once per URL.
MAX_SUBSCRIPTIONS = 100
#: A response within this time is prompt: it does not delay other receivers.
PROMPT = timedelta(seconds=5)

_MAX_DIGITS = 9
_ACCEPTED = range(200, 300)
_TICK = timedelta(microseconds=1)

#: The subscribed states in the order of `WebhookState`; None for all of them.
StateChoice: TypeAlias = tuple[str, ...] | None


def includes_state(choice: StateChoice, state: str) -> bool:
    """Return whether a subscription to these states gets this one."""
    return choice is None or state in choice


def merge_choices(choice: StateChoice, other: StateChoice) -> StateChoice:
    """Return the states that either of two subscriptions of the same URL chose."""
    if choice is None or other is None:
        return None
    return tuple(state for state in WebhookState if state in choice or state in other)


def merge_subscriptions(
    named: StateSubscription | None, configured: StateSubscription | None
) -> tuple[StateSubscription, ...]:
    """Return the subscriptions of a new job: the one that its submission names, and the configured one.

    If both have the same URL, it gets the states of both, each once.
    """
    if named is None or configured is None:
        return tuple(subscription for subscription in (named, configured) if subscription is not None)
    if named.url != configured.url:
        return (named, configured)
    return (replace(named, events=merge_choices(named.events, configured.events)),)


def event_timestamp(timestamp: str, latest: str | None) -> str:
    """Return the instant of an event: `timestamp`, but always later than the job's latest event.

    Several events of a job can be written in one transaction, which has a single instant.
    """
    if latest is None or timestamp > latest:
        return timestamp
    return format_timestamp(parse_timestamp(latest) + _TICK)


class DeliveryAttempt(Value):
    """The result of one attempt: the receiver's HTTP status, or an error."""

    http_status: int | None = None
    error: str | None = None
    #: The delay that the receiver asks for.
    retry_after: timedelta | None = None

    @property
    def delivered(self) -> bool:
        return self.http_status in _ACCEPTED

    @property
    def gone(self) -> bool:
        """Return whether the receiver no longer exists, so that retries are useless."""
        return self.http_status == HTTPStatus.GONE


def may_attempt(attempts: int, *, max_attempts: int) -> bool:
    """Return whether the `attempts`-th attempt may be made.

    Attempts are counted before they are made, so that a daemon that crashes during each of them stops too.
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
    """Return when to retry after the failed `attempts`-th attempt; None if it was the last one."""
    if attempts >= max_attempts or attempt.gone:
        return None
    policy = RetryPolicy(max_attempts=max_attempts, backoff_base=backoff_base, backoff_max=MAX_DELIVERY_DELAY)
    delay = plan_delay(policy, attempts, rng)
    return now + min(max(delay, attempt.retry_after or timedelta()), MAX_DELIVERY_DELAY)


def parse_retry_after(text: str | None, now: datetime) -> timedelta | None:
    """Return the delay of a `Retry-After` header in seconds or as a date; None if it is neither."""
    if text is None:
        return None
    stripped = text.strip()
    if stripped.isascii() and stripped.isdigit():
        return timedelta(seconds=int(stripped)) if len(stripped) <= _MAX_DIGITS else MAX_DELIVERY_DELAY
    try:
        date = parsedate_to_datetime(stripped)
    except (ValueError, OverflowError):  # OverflowError: an impossible time zone
        return None
    # HTTP dates are in GMT, also if the sender omits the zone.
    aware = date if date.tzinfo is not None else date.replace(tzinfo=UTC)
    return max(aware - now, timedelta())


class ReceiverHealth(StrEnum):
    """The behaviour of a receiver at the last delivery."""

    PROMPT = "prompt"
    UNKNOWN = "unknown"
    SLOW = "slow"  # late, or not at all


def health_after(attempt: DeliveryAttempt, duration: timedelta) -> ReceiverHealth:
    """Return the health after an attempt. Any response in time counts as prompt, also a refusal."""
    is_prompt = attempt.http_status is not None and duration <= PROMPT
    return ReceiverHealth.PROMPT if is_prompt else ReceiverHealth.SLOW


class ConcurrencyLimit(Value):
    """The most slots of receivers with one health: per receiver, and for all of them together."""

    per_receiver: int
    total: int


class SlotAllocator:
    """Allocates the free slots to receivers."""

    def __init__(
        self,
        *,
        free: int,
        per_receiver: int,
        busy: Mapping[str, int],
        health: Mapping[str, ReceiverHealth],
        limits: Mapping[ReceiverHealth, ConcurrencyLimit],
    ) -> None:
        """`free` is the number of free slots; `busy` has the used slots per receiver. `per_receiver` is the
        limit of receivers whose health has none in `limits`.
        """
        self.free = free
        self._per_receiver = per_receiver
        self._busy = Counter(busy)
        self._health = health
        self._limits = limits
        self._busy_by_health = Counter[ReceiverHealth]()
        for receiver, count in busy.items():
            self._busy_by_health[self._health_of(receiver)] += count

    def idle_first(self, receivers: Iterable[str]) -> list[str]:
        """Return the receivers, those without a used slot first."""
        return sorted(receivers, key=lambda receiver: self._busy[receiver] > 0)

    def available(self, receiver: str) -> int:
        """Return how many slots the receiver can take now."""
        limit = self._limits.get(health := self._health_of(receiver))
        if limit is None:
            return max(0, min(self.free, self._per_receiver - self._busy[receiver]))
        return max(
            0,
            min(
                self.free,
                limit.per_receiver - self._busy[receiver],
                limit.total - self._busy_by_health[health],
            ),
        )

    def take(self, receiver: str, count: int) -> None:
        self.free -= count
        self._busy[receiver] += count
        self._busy_by_health[self._health_of(receiver)] += count

    def _health_of(self, receiver: str) -> ReceiverHealth:
        return self._health.get(receiver, ReceiverHealth.UNKNOWN)
