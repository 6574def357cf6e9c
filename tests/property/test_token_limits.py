"""Limits of access tokens: the submissions that are refused, and for how long."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

from hypothesis import given
from hypothesis import strategies as st

from ductile.core.token_limits import (
    ALL_JOBS,
    JobLimits,
    LimitName,
    Period,
    PeriodUsage,
    TokenLimits,
    TokenUsage,
    decide_refusal,
    list_limits,
    period_start,
)

INSTANTS = st.datetimes(
    min_value=datetime(2000, 1, 1),  # noqa: DTZ001 - Hypothesis adds the zone
    max_value=datetime(2100, 1, 1),  # noqa: DTZ001
    timezones=st.integers(-14 * 4, 14 * 4).map(lambda quarters: timezone(timedelta(minutes=15 * quarters))),
)
TARGETS = ("fetch", "deploy", "pipeline:nightly")
MAXIMA = st.none() | st.integers(0, 6)
JOB_LIMITS = st.fixed_dictionaries({"jobs_per_hour": MAXIMA, "jobs_per_day": MAXIMA, "running": MAXIMA})
LIMITS = st.builds(
    lambda own, cost, targets: TokenLimits(
        **own,
        cost_per_day=cost,
        targets={name: JobLimits(**job_limits) for name, job_limits in targets.items()},
    ),
    JOB_LIMITS,
    st.none() | st.integers(0, 3).map(float),
    st.dictionaries(st.sampled_from(TARGETS), JOB_LIMITS),
)
PERIODS = st.dictionaries(
    st.tuples(st.sampled_from((ALL_JOBS, *TARGETS)), st.sampled_from(Period)),
    st.builds(PeriodUsage, jobs=st.integers(0, 6), cost=st.integers(0, 3).map(float)),
)
USAGES = st.builds(
    TokenUsage,
    periods=PERIODS,
    running=st.dictionaries(st.sampled_from((ALL_JOBS, *TARGETS)), st.integers(0, 6)),
)
REQUESTED = st.dictionaries(st.sampled_from(TARGETS), st.integers(1, 3))


def usage_after(usage: TokenUsage, requested: dict[str, int]) -> TokenUsage:
    """Return the usage after the requested jobs have been started."""
    counts = {ALL_JOBS: sum(requested.values()), **requested}
    periods = {
        (target, period): PeriodUsage(
            jobs=usage.periods.get((target, period), PeriodUsage()).jobs + counts.get(target, 0),
            cost=usage.periods.get((target, period), PeriodUsage()).cost,
        )
        for target in (ALL_JOBS, *TARGETS)
        for period in Period
    }
    running = {name: usage.running.get(name, 0) + counts.get(name, 0) for name in (ALL_JOBS, *TARGETS)}
    return TokenUsage(periods=periods, running=running)


@given(LIMITS, USAGES, REQUESTED, INSTANTS)
def test_what_is_accepted_exceeds_no_limit_that_concerns_it(
    limits: TokenLimits, usage: TokenUsage, requested: dict[str, int], now: datetime
) -> None:
    """A refused submission would exceed the limit that is named, or its cost limit is used up."""
    refusal = decide_refusal(limits, usage, requested, now)
    exceeded = [
        (state.limit, state.target)
        for state in list_limits(limits, usage_after(usage, requested), now)
        if requested
        and (state.target is None or state.target in requested)
        and (
            state.used >= state.maximum
            if state.limit is LimitName.COST_PER_DAY
            else state.used > state.maximum
        )
    ]
    if refusal is None:
        assert exceeded == []
    else:
        assert (refusal.limit, refusal.target) in exceeded


@given(LIMITS, USAGES, REQUESTED, INSTANTS)
def test_the_named_limit_resets_after_all_others_that_refuse(
    limits: TokenLimits, usage: TokenUsage, requested: dict[str, int], now: datetime
) -> None:
    """After the reset, ended periods do not count, and no limit per hour or day refuses the jobs unless it is
    smaller than their number.
    """
    refusal = decide_refusal(limits, usage, requested, now)
    if refusal is None or refusal.resets_at is None:
        return
    ended = {key for key in usage.periods if period_start(key[1], now) + key[1].length <= refusal.resets_at}
    later = TokenUsage(
        periods={key: period_usage for key, period_usage in usage.periods.items() if key not in ended}
    )
    next_refusal = decide_refusal(limits, later, requested, refusal.resets_at)
    if next_refusal is not None:
        needed = sum(requested.values()) if next_refusal.target is None else requested[next_refusal.target]
        assert next_refusal.maximum < needed or next_refusal.maximum == 0


@given(LIMITS, USAGES, INSTANTS)
def test_nothing_wanted_is_never_refused(limits: TokenLimits, usage: TokenUsage, now: datetime) -> None:
    """A call that starts no job, such as a duplicate, counts nothing."""
    assert decide_refusal(limits, usage, {}, now) is None


@given(USAGES, REQUESTED, INSTANTS)
def test_without_limits_nothing_is_refused(
    usage: TokenUsage, requested: dict[str, int], now: datetime
) -> None:
    assert decide_refusal(TokenLimits(), usage, requested, now) is None


@given(st.sampled_from(Period), INSTANTS)
def test_an_instant_is_in_its_period(period: Period, now: datetime) -> None:
    """A period begins at the full hour or at midnight in UTC, whatever the zone of the instant."""
    start = period_start(period, now)
    assert start <= now < start + period.length
    assert start == period_start(period, start)
    assert start.tzinfo is UTC
    assert (start.minute, start.second, start.microsecond) == (0, 0, 0)
    assert period is Period.HOUR or start.hour == 0
