"""Percentiles of executions, groups of failures, and batches of changes."""

from __future__ import annotations

from collections import Counter
from datetime import datetime, timedelta
from types import SimpleNamespace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from builders.jobs import START
from ductile.core.jobs.model import JobReason
from ductile.core.jobs.settlement import LogStatus
from ductile.core.jobs.statistics import (
    BadEnding,
    ExecutionSample,
    fit_lists,
    group_endings,
    percentile,
    percentiles,
    summarise,
)
from ductile.operations.jobs.bulk import batches

SPANS = st.integers(0, 10**7).map(lambda number: timedelta(milliseconds=number))
SAMPLES = st.builds(
    ExecutionSample,
    st.sampled_from("abc"),
    st.sampled_from(LogStatus),
    st.integers(1, 4),
    st.none() | SPANS,
    st.none() | SPANS,
    st.integers(0, 10_000),
)
ENDINGS = st.builds(
    BadEnding,
    job_id=st.uuids().map(str),
    plugin=st.sampled_from("abc"),
    command=st.sampled_from(("poll", "handle")),
    reason=st.sampled_from((JobReason.PLUGIN_ERROR, JobReason.ATTEMPTS_EXHAUSTED)),
    completed_at=st.integers(0, 1000).map(lambda number: START + timedelta(seconds=number)),
    error=st.none(),
)


@given(st.lists(SPANS, min_size=1), st.integers(1, 100))
def test_a_percentile_has_occurred_and_so_many_do_not_exceed_it(
    values: list[timedelta], percent: int
) -> None:
    result = percentile(sorted(values), percent)
    assert result in values
    assert sum(value <= result for value in values) * 100 >= percent * len(values)
    assert sum(value < result for value in values) * 100 < percent * len(values)


@given(st.lists(SPANS))
def test_percentiles_are_in_order_and_need_values(values: list[timedelta]) -> None:
    result = percentiles(values)
    assert (result is None) == (not values)
    assert result is None or result.p50 <= result.p95 <= result.p99 <= max(values)


@given(st.lists(SAMPLES))
def test_every_execution_is_counted_once(samples: list[ExecutionSample]) -> None:
    rows = summarise(samples)
    assert {row.plugin: row.executions for row in rows} == Counter(sample.plugin for sample in samples)
    for row in rows:
        assert sum(row.by_status.values()) == row.executions
        assert row.timeouts <= row.failures <= row.executions
        assert row.longest is None or row.run_time is None or row.run_time.p99 <= row.longest
    assert sum(row.stderr_bytes for row in rows) == sum(sample.stderr_bytes for sample in samples)


def _key(ending: Any) -> tuple[str, str, str]:
    return ending.plugin, ending.command, ending.reason


@given(st.lists(ENDINGS))
def test_groups_have_every_failure_once_the_largest_first(endings: list[BadEnding]) -> None:
    groups = group_endings(endings)
    assert {_key(group): group.jobs for group in groups} == Counter(map(_key, endings))
    assert [group.jobs for group in groups] == sorted((group.jobs for group in groups), reverse=True)
    for group in groups:
        ends: list[datetime] = [ending.completed_at for ending in endings if _key(ending) == _key(group)]
        assert (group.first_at, group.last_at) == (min(ends), max(ends))
        assert group.latest in endings
        assert group.latest.completed_at == group.last_at


@given(st.lists(st.booleans()), st.integers(1, 5))
def test_batches_keep_order_and_leave_what_is_apart_alone(alone: list[bool], size: int) -> None:
    items: list[Any] = [
        SimpleNamespace(number=number, alone=is_alone) for number, is_alone in enumerate(alone)
    ]
    grouped = batches(items, lambda item: item.alone, size)
    assert [item for batch in grouped for item in batch] == items
    for batch in grouped:
        assert 1 <= len(batch) <= size
        assert len(batch) == 1 or not any(item.alone for item in batch)


@given(st.dictionaries(st.sampled_from("abc"), st.lists(st.integers(1, 50))), st.integers(0, 200))
def test_lists_are_cut_only_as_far_as_they_must(sizes: dict[str, list[int]], room: int) -> None:
    kept_counts = fit_lists(sizes, room)
    assert kept_counts.keys() == sizes.keys()
    used = sum(sum(items[: kept_counts[name]]) for name, items in sizes.items())
    assert used <= room
    if sum(map(sum, sizes.values())) <= room:
        assert kept_counts == {name: len(items) for name, items in sizes.items()}
