"""When a state webhook is sent again, and when it is given up (SPEC 9.3)."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from random import Random

from ductile.core.retry import RetryPolicy, plan_delay
from ductile.value import Value

#: No wait is longer, whatever the receiver asks for: a delivery that nobody expects any more is worth little.
LONGEST_WAIT = timedelta(hours=1)

_MOST_DIGITS = 9
_ACCEPTED = range(200, 300)


class Attempt(Value):
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
    attempt: Attempt,
    *,
    attempts: int,
    max_attempts: int,
    backoff_base: timedelta,
    now: datetime,
    dice: Random,
) -> datetime | None:
    """When to send again after a failure, the `attempts`-th; None if that was the last one, or it is gone."""
    if attempts >= max_attempts or attempt.gone:
        return None
    policy = RetryPolicy(max_attempts=max_attempts, backoff_base=backoff_base, backoff_max=LONGEST_WAIT)
    wait = plan_delay(policy, attempts, dice)
    return now + min(max(wait, attempt.retry_after or timedelta()), LONGEST_WAIT)


def parse_retry_after(text: str | None, now: datetime) -> timedelta | None:
    """The wait that a `Retry-After` header asks for: seconds, or a date. What is neither asks for nothing."""
    if text is None:
        return None
    stripped = text.strip()
    if stripped.isascii() and stripped.isdigit():
        return timedelta(seconds=int(stripped)) if len(stripped) <= _MOST_DIGITS else LONGEST_WAIT
    try:
        date = parsedate_to_datetime(stripped)
    except (ValueError, OverflowError):  # the latter from a zone further away than any
        return None
    # A date without a zone is a fault of the sender; HTTP dates are always in GMT.
    aware = date if date.tzinfo is not None else date.replace(tzinfo=UTC)
    return max(aware - now, timedelta())
