"""The usage of access tokens, counted in the transaction that starts or settles a job."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from datetime import datetime
from math import ceil

from ductile.core.timestamps import format_timestamp, parse_timestamp
from ductile.core.token_limits import (
    ALL_JOBS,
    LimitName,
    LimitState,
    Period,
    PeriodUsage,
    TokenUsage,
    decide_refusal,
    period_start,
    target_of,
)
from ductile.errors import LimitReachedError
from ductile.store.model.jobs import Accepted, EnqueueResult, TokenCharge
from ductile.store.session import Session

#: The seconds after which a caller with too many unfinished jobs may try again.
_POLL_SECONDS = 5
_USAGE_TEXTS = {
    LimitName.JOBS_PER_HOUR: "has started {used} jobs{of} this hour",
    LimitName.JOBS_PER_DAY: "has started {used} jobs{of} today",
    LimitName.RUNNING: "has {used} unfinished jobs{of}",
    LimitName.COST_PER_DAY: "has spent {used} today",
}


def record_cost(session: Session, token: str | None, cost: float | None) -> None:
    """Add a cost to the costs of the token today, whether or not it has a limit."""
    if token is not None and cost:
        _add(session, token, ALL_JOBS, Period.DAY, cost=cost)


def charge_started(session: Session, charge: TokenCharge, results: Iterable[EnqueueResult]) -> None:
    """Count the accepted jobs. Raises `LimitReachedError` if they exceed a limit; duplicates cost nothing."""
    accepted = (result for result in results if isinstance(result, Accepted))
    charge_jobs(session, charge, Counter(target_of(result.plugin, result.command) for result in accepted))


def charge_jobs(
    session: Session, charge: TokenCharge, new_jobs: Mapping[str, int], *, are_of_token: bool = True
) -> None:
    """Count new jobs by target. Raises `LimitReachedError` if they exceed a limit of the token.

    The jobs are in the store already: the error rolls back both the jobs and the count. `are_of_token`:
    whether they are among the unfinished jobs of the token; a retried job of another token is not. The count
    is written first, which locks its row, so that no other node counts at the same time.
    """
    total = sum(new_jobs.values())
    if total == 0:
        return
    token, limits, periods = charge.token, charge.limits, {}
    counted = {ALL_JOBS: total, **{name: new_jobs[name] for name in new_jobs if name in limits.targets}}
    for target, jobs in sorted(counted.items()):
        for period in Period:
            after = _add(session, token, target, period, jobs=jobs)
            periods[target, period] = PeriodUsage(jobs=after.jobs - jobs, cost=after.cost)
    running = _unfinished_by_target(session, token)
    before = {
        target: running.get(target, 0) - (jobs if are_of_token else 0) for target, jobs in counted.items()
    }
    usage = TokenUsage(periods=periods, running=before)
    refusal = decide_refusal(limits, usage, new_jobs, parse_timestamp(session.timestamp))
    if refusal is not None:
        raise _limit_reached(token, refusal, parse_timestamp(session.timestamp))


def read_token_usage(session: Session, token: str) -> TokenUsage:
    """Return the usage of a token in the current hour and day, and its unfinished jobs."""
    periods = {}
    for target, name, started_at, jobs, cost in session.fetch_all("token_usage", token=token):
        period = Period(name)
        if parse_timestamp(started_at) == period_start(period, session.now):
            periods[target, period] = PeriodUsage(jobs=jobs, cost=cost)
    return TokenUsage(periods=periods, running=_unfinished_by_target(session, token))


def _add(
    session: Session, token: str, target: str, period: Period, *, jobs: int = 0, cost: float = 0.0
) -> PeriodUsage:
    """Add to the current period of a token. Returns the sums.

    Stored timestamps never go back, so no earlier period begins again.
    """
    started_at = period_start(period, parse_timestamp(session.timestamp))
    row = session.fetch_one(
        "add_token_usage",
        token=token,
        target=target,
        period=period,
        started_at=format_timestamp(started_at),
        jobs=jobs,
        cost=cost,
    )
    assert row is not None  # noqa: S101 - an insert or an update returns its row
    return PeriodUsage(jobs=row[0], cost=row[1])


def _unfinished_by_target(session: Session, token: str) -> dict[str, int]:
    """Return the unfinished jobs by target, and all of them."""
    targets: Counter[str] = Counter()
    for plugin, command, count in session.fetch_all("unfinished_of_token", token=token):
        targets[target_of(plugin, command)] += count
        targets[ALL_JOBS] += count
    return targets


def _limit_reached(token: str, state: LimitState, now: datetime) -> LimitReachedError:
    of_target = "" if state.target is None else f" of {state.target}"
    usage = _USAGE_TEXTS[state.limit].format(used=f"{state.used:g}", of=of_target)
    resets_at = None if state.resets_at is None else format_timestamp(state.resets_at)
    seconds = _POLL_SECONDS if state.resets_at is None else ceil((state.resets_at - now).total_seconds())
    advice = "Wait until one of them has ended"
    if resets_at is not None:
        advice = f"The count starts again at {resets_at}"
    return LimitReachedError(
        f"the token {token} {usage}; its limit {state.limit} is {state.maximum:g}",
        hint=f"{advice}. An operator can raise it in `limits` of the token, and run `ductile apply`.",
        details={
            "token": token,
            "limit": state.limit,
            "target": state.target,
            "used": state.used,
            "maximum": state.maximum,
            "resets_at": resets_at,
            "retry_after_seconds": max(1, seconds),
        },
    )
