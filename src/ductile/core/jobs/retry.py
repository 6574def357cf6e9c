"""Retry policy: the delay before the next attempt."""

from __future__ import annotations

from datetime import timedelta
from random import Random

from ductile.struct import Value

#: With more doublings every delay is above its cap. The limit keeps the arithmetic finite.
_MAX_DOUBLINGS = 40


class RetryPolicy(Value):
    max_attempts: int = 4
    backoff_base: timedelta = timedelta(seconds=30)
    backoff_max: timedelta = timedelta(hours=1)


def plan_delay(policy: RetryPolicy, attempt: int, rng: Random) -> timedelta:
    """Return the delay after a failed `attempt`: exponential from the base, with up to one base of jitter."""
    base = policy.backoff_base.total_seconds()
    cap = policy.backoff_max.total_seconds()
    doubled = base * 2 ** min(max(attempt, 1) - 1, _MAX_DOUBLINGS)
    return timedelta(seconds=min(doubled + rng.uniform(0, base), cap))
