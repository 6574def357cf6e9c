"""Executions over time: every span is present once, and counts are exact or estimated from the log."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from ductile.core.jobs.time_series import PluginCount, SpanSample, split_period, summarise_span

NOW = datetime(2026, 2, 8, 10, tzinfo=UTC)
INSTANTS = st.datetimes(datetime(2020, 1, 1), datetime(2035, 1, 1)).map(lambda at: at.replace(tzinfo=UTC))  # noqa: DTZ001 - bounds are naive by contract
COUNTS = st.lists(
    st.builds(
        PluginCount,
        plugin=st.sampled_from(["a", "b", "c"]),
        executions=st.integers(1, 500),
        failures=st.just(0),
    ),
    unique_by=lambda count: count.plugin,
    max_size=3,
)


@given(
    until=INSTANTS, span=st.timedeltas(timedelta(minutes=1), timedelta(days=60)), parts=st.integers(1, 200)
)
def test_spans_are_equal_and_the_last_one_holds_now(until: datetime, span: timedelta, parts: int) -> None:
    edges = split_period(until - span, until, parts)
    assert len(edges) == parts + 1
    assert len({after - before for before, after in pairwise(edges)}) == 1
    assert edges[-2] <= until < edges[-1]
    assert split_period(until - span, until, parts) == edges


@given(counts=COUNTS, missing=st.integers(0, 10_000))
def test_counts_are_exact_or_estimated_to_the_whole(counts: list[PluginCount], missing: int) -> None:
    """A span whose executions were all counted is exact; otherwise the total is that of the log."""
    counted = sum(count.executions for count in counts)
    total = counted + (missing if counts else 0)
    point = summarise_span(SpanSample(at=NOW, counts=tuple(counts), total=total, times=()))
    assert point.executions == total
    assert point.sampled == (total > counted)
    assert summarise_span(SpanSample(at=NOW, counts=(), total=0, times=())).executions == 0
