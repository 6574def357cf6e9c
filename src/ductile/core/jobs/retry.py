"""How long to wait before the next attempt."""

from __future__ import annotations

from datetime import timedelta
from random import Random

from ductile.struct import Value

#: Past this many doublings every base has long met its cap; the bound keeps the arithmetic finite.
_MOST_DOUBLINGS = 40


class RetryPolicy(Value):
    max_attempts: int = 4
    backoff_base: timedelta = timedelta(seconds=30)
    backoff_max: timedelta = timedelta(hours=1)


def plan_delay(policy: RetryPolicy, attempt: int, rng: Random) -> timedelta:
    """The wait after a failed `attempt`: doubling from the base, up to one more base of chance, capped."""
    base = policy.backoff_base.total_seconds()
    cap = policy.backoff_max.total_seconds()
    doubled = base * 2 ** min(max(attempt, 1) - 1, _MOST_DOUBLINGS)
    return timedelta(seconds=min(doubled + rng.uniform(0, base), cap))
