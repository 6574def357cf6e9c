"""Limits of access tokens: what is refused, and for how long."""

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
        **own, cost_per_day=cost, targets={name: JobLimits(**each) for name, each in targets.items()}
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
WANTED = st.dictionaries(st.sampled_from(TARGETS), st.integers(1, 3))


def after(usage: TokenUsage, wanted: dict[str, int]) -> TokenUsage:
    """The usage when the wanted jobs have been started."""
    counts = {ALL_JOBS: sum(wanted.values()), **wanted}
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


@given(LIMITS, USAGES, WANTED, INSTANTS)
def test_what_is_accepted_exceeds_no_limit_that_concerns_it(
    limits: TokenLimits, usage: TokenUsage, wanted: dict[str, int], now: datetime
) -> None:
    """And what is refused would exceed the limit that is named, or its money is spent."""
    refusal = decide_refusal(limits, usage, wanted, now)
    exceeded = [
        (state.limit, state.target)
        for state in list_limits(limits, after(usage, wanted), now)
        if wanted
        and (state.target is None or state.target in wanted)
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


@given(LIMITS, USAGES, WANTED, INSTANTS)
def test_the_named_limit_resets_after_all_others_that_refuse(
    limits: TokenLimits, usage: TokenUsage, wanted: dict[str, int], now: datetime
) -> None:
    """Once it has reset, periods that ended before it count nothing, and no job per hour or day is refused
    unless the limit is smaller than what is wanted.
    """
    refusal = decide_refusal(limits, usage, wanted, now)
    if refusal is None or refusal.resets_at is None:
        return
    ended = {key for key in usage.periods if period_start(key[1], now) + key[1].length <= refusal.resets_at}
    later = TokenUsage(periods={key: each for key, each in usage.periods.items() if key not in ended})
    again = decide_refusal(limits, later, wanted, refusal.resets_at)
    if again is not None:
        needed = sum(wanted.values()) if again.target is None else wanted[again.target]
        assert again.maximum < needed or again.maximum == 0


@given(LIMITS, USAGES, INSTANTS)
def test_nothing_wanted_is_never_refused(limits: TokenLimits, usage: TokenUsage, now: datetime) -> None:
    """A call that starts nothing, such as a duplicate, costs nothing."""
    assert decide_refusal(limits, usage, {}, now) is None


@given(USAGES, WANTED, INSTANTS)
def test_without_limits_nothing_is_refused(usage: TokenUsage, wanted: dict[str, int], now: datetime) -> None:
    assert decide_refusal(TokenLimits(), usage, wanted, now) is None


@given(st.sampled_from(Period), INSTANTS)
def test_an_instant_is_in_its_period(period: Period, now: datetime) -> None:
    """A period begins at the full hour or at midnight, in UTC, whatever the zone of the instant."""
    start = period_start(period, now)
    assert start <= now < start + period.length
    assert start == period_start(period, start)
    assert start.tzinfo is UTC
    assert (start.minute, start.second, start.microsecond) == (0, 0, 0)
    assert period is Period.HOUR or start.hour == 0
