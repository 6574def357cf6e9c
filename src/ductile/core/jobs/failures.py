"""Policies after failures: the delay of a retry, and the circuit breaker of a scheduled (plugin, command)."""

from __future__ import annotations

from datetime import datetime, timedelta
from enum import StrEnum
from random import Random

from ductile.struct import Value, replace


class BreakerState(StrEnum):
    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half_open"


class BreakerReason(StrEnum):
    FAILURE_THRESHOLD = "failure_threshold"
    SUCCESS = "success"
    COOLDOWN_ELAPSED = "cooldown_elapsed"
    MANUAL_RESET = "manual_reset"
    PROBE_WITHOUT_VERDICT = "probe_without_verdict"


class BreakerResult(StrEnum):
    """The end of a scheduled job as it counts for the circuit breaker."""

    SUCCESS = "success"
    FAILURE = "failure"
    NONE = "none"  # cancelled, purged or removed


class BreakerPolicy(Value):
    threshold: int = 3
    reset_after: timedelta = timedelta(minutes=30)


class Breaker(Value):
    state: BreakerState = BreakerState.CLOSED
    failures: int = 0
    opened_at: datetime | None = None
    last_failure_at: datetime | None = None
    last_job_id: str | None = None
    #: The job that runs while the breaker is half open.
    probe_job_id: str | None = None


def breaker_after_job(
    breaker: Breaker, result: BreakerResult, *, job_id: str, policy: BreakerPolicy, now: datetime
) -> Breaker:
    """Return the breaker after the end of a scheduled job."""
    match result:
        case BreakerResult.SUCCESS:
            return Breaker(last_job_id=job_id, last_failure_at=breaker.last_failure_at)
        case BreakerResult.FAILURE:
            failed = replace(breaker, failures=breaker.failures + 1, last_failure_at=now, last_job_id=job_id)
            if breaker.state is BreakerState.HALF_OPEN:
                if breaker.probe_job_id not in (None, job_id):
                    return failed  # Only the end of the probe decides.
                return replace(failed, state=BreakerState.OPEN, opened_at=now, probe_job_id=None)
            if breaker.state is BreakerState.CLOSED and failed.failures >= policy.threshold:
                return replace(failed, state=BreakerState.OPEN, opened_at=now)
            return failed
        case BreakerResult.NONE:
            if breaker.probe_job_id == job_id:
                return replace(breaker, state=BreakerState.OPEN, opened_at=now, probe_job_id=None)
            return breaker


def breaker_change_reason(before: Breaker, after: Breaker) -> BreakerReason | None:
    """Return why the end of a job changed the state; None if it did not."""
    if before.state is after.state:
        return None
    if after.state is BreakerState.CLOSED:
        return BreakerReason.SUCCESS
    if after.failures == before.failures:
        return BreakerReason.PROBE_WITHOUT_VERDICT
    return BreakerReason.FAILURE_THRESHOLD


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
