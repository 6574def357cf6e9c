"""Limits of an access token: how many jobs it may start, have unfinished, and how much they may cost.

The jobs that a token submits are counted; the cost of all jobs that follow from them counts too. Hours and
days are those of UTC: the same on every node, and all of the same length. See docs/how-to/limit-an-agent.md.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from enum import StrEnum

from ductile.core.runs.graph import RUN_PLUGIN
from ductile.struct import Value, field

#: The target of the limits that apply to all jobs of a token.
ALL_JOBS = ""
_PIPELINE = "pipeline:"
#: Sums of costs are rounded to this many digits before they are compared: ten times 0.1 reaches a limit of 1.
_COST_DIGITS = 9


class Period(StrEnum):
    HOUR = "hour"
    DAY = "day"

    @property
    def length(self) -> timedelta:
        return timedelta(hours=1) if self is Period.HOUR else timedelta(days=1)


class LimitName(StrEnum):
    JOBS_PER_HOUR = "jobs_per_hour"
    JOBS_PER_DAY = "jobs_per_day"
    RUNNING = "running"
    COST_PER_DAY = "cost_per_day"


class JobLimits(Value):
    """Limits on the jobs of one plugin or pipeline, or on all; None for no limit."""

    jobs_per_hour: int | None = None
    jobs_per_day: int | None = None
    #: Jobs that have not ended: queued or running.
    running: int | None = None


class TokenLimits(JobLimits):
    cost_per_day: float | None = None
    #: Limits of single plugins and pipelines, by `target_of`.
    targets: Mapping[str, JobLimits] = field(default_factory=dict)


class PeriodUsage(Value):
    """The jobs and the cost of one period."""

    jobs: int = 0
    cost: float = 0.0


_UNUSED = PeriodUsage()


class TokenUsage(Value):
    """The usage of a token by target and current period, and its unfinished jobs by target."""

    periods: Mapping[tuple[str, Period], PeriodUsage] = field(default_factory=dict)
    running: Mapping[str, int] = field(default_factory=dict)

    @property
    def spent_today(self) -> float:
        return round(self.periods.get((ALL_JOBS, Period.DAY), _UNUSED).cost, _COST_DIGITS)


class LimitState(Value):
    """One limit and how much of it is used."""

    limit: LimitName
    #: A plugin or `pipeline:NAME`; None if the limit applies to all jobs.
    target: str | None
    maximum: float
    used: float
    #: When the count starts again at 0; None for jobs that have to end first.
    resets_at: datetime | None

    def refuses(self, new_jobs: int) -> bool:
        """Return whether so many new jobs would exceed the limit. Costs are known only afterwards."""
        if self.limit is LimitName.COST_PER_DAY:
            return round(self.used, _COST_DIGITS) >= self.maximum
        return new_jobs > 0 and self.used + new_jobs > self.maximum


def target_of(plugin: str, command: str) -> str:
    """Return the target that limits name: the plugin, or `pipeline:NAME` for a run."""
    return f"{_PIPELINE}{command}" if plugin == RUN_PLUGIN else plugin


def period_start(period: Period, now: datetime) -> datetime:
    """Return the beginning of the hour or day, in UTC, that contains `now`."""
    hour = now.astimezone(UTC).replace(minute=0, second=0, microsecond=0)
    return hour if period is Period.HOUR else hour.replace(hour=0)


def list_limits(limits: TokenLimits, usage: TokenUsage, now: datetime) -> tuple[LimitState, ...]:
    """Return every limit with its usage: those of all jobs first."""
    states = [*_limit_states(limits, ALL_JOBS, usage, now)]
    if limits.cost_per_day is not None:
        states.append(
            LimitState(
                limit=LimitName.COST_PER_DAY,
                target=None,
                maximum=limits.cost_per_day,
                used=usage.spent_today,
                resets_at=period_start(Period.DAY, now) + Period.DAY.length,
            )
        )
    for target, target_limits in sorted(limits.targets.items()):
        states += _limit_states(target_limits, target, usage, now)
    return tuple(states)


def decide_refusal(
    limits: TokenLimits, usage: TokenUsage, requested: Mapping[str, int], now: datetime
) -> LimitState | None:
    """Return the limit that refuses new jobs, `requested` by target; None if they are within all limits.

    If several refuse, return the one that resets last: a caller that waits for it meets no other one then.
    """
    total = sum(requested.values())
    if total == 0:
        return None
    refusing = [
        state
        for state in list_limits(limits, usage, now)
        if state.refuses(total if state.target is None else requested.get(state.target, 0))
    ]
    return max(refusing, key=lambda state: state.resets_at or now, default=None)


def _limit_states(limits: JobLimits, target: str, usage: TokenUsage, now: datetime) -> Iterator[LimitState]:
    state_target = target or None
    per_period = (
        (LimitName.JOBS_PER_HOUR, limits.jobs_per_hour, Period.HOUR),
        (LimitName.JOBS_PER_DAY, limits.jobs_per_day, Period.DAY),
    )
    for name, maximum, period in per_period:
        if maximum is not None:
            used = usage.periods.get((target, period), _UNUSED).jobs
            resets_at = period_start(period, now) + period.length
            yield LimitState(limit=name, target=state_target, maximum=maximum, used=used, resets_at=resets_at)
    if limits.running is not None:
        used = usage.running.get(target, 0)
        yield LimitState(
            limit=LimitName.RUNNING, target=state_target, maximum=limits.running, used=used, resets_at=None
        )
