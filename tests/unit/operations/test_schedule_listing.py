"""The positions and upcoming runs of schedules, also of those that no daemon has loaded."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from random import Random

from builders.clocks import SimulatedClock
from builders.jobs import ok
from builders.scheduling import SchedulerUnderTest, a_snapshot, clock_at, scheduling
from builders.stores import open_sqlite
from ductile.operations.context import OperationContext
from ductile.operations.schedules.manage import ListSchedules, PreviewRuns, list_schedules, preview

NIGHTLY = 'p: {schedule: {cron: "30 2 * * *", timezone: Europe/Berlin}}'


def a_context(harness: SchedulerUnderTest, plugins: str | None = None) -> OperationContext:
    """Return a context without a daemon. `plugins` is a configuration that was edited after the last
    start.
    """
    snapshot = harness.snapshot if plugins is None else a_snapshot(harness.directory / "edited", plugins)
    return OperationContext(
        store=harness.store, snapshot=lambda: snapshot, now=harness.clock.now, rng=Random(1)
    )


async def preview_starts(context: OperationContext, plugin: str | None = None) -> list[str]:
    upcoming = await preview(context, PreviewRuns(plugin=plugin, count=2))
    return [occurrence.start_at[:16] for occurrence in upcoming.occurrences]


async def test_a_schedule_that_no_daemon_has_loaded_is_previewed(tmp_path: Path) -> None:
    """A new rule can be previewed before the daemon starts."""
    clock = clock_at("2026-11-17 10:00")
    store = open_sqlite(tmp_path / "state.db", clock=clock, rng=Random(1))
    snapshot = a_snapshot(tmp_path, f"{NIGHTLY}, q: {{schedule: {{every: 5m, jitter: 30s}}}}")
    context = OperationContext(store=store, snapshot=lambda: snapshot, now=clock.now, rng=Random(1))
    assert await preview_starts(context, plugin="p") == ["2026-11-18T01:30", "2026-11-19T01:30"]
    nightly, frequent = (await list_schedules(context, ListSchedules())).schedules
    assert (nightly.command, nightly.rule) == ("poll", "cron 30 2 * * *")
    assert (nightly.timezone, nightly.next_local) == ("Europe/Berlin", "2026-11-18 02:30:00 CET")
    assert (nightly.at_start, nightly.last_job_id, nightly.breaker) == (False, None, "closed")
    assert (frequent.rule, frequent.at_start, frequent.next_local) == ("every 5m ±15s", True, None)
    assert await preview_starts(context, plugin="q") == ["2026-11-17T10:00", "2026-11-17T10:05"]
    await store.close()


async def test_an_edited_rule_replaces_the_stored_one(tmp_path: Path) -> None:
    """The last run is kept."""
    async with scheduling(tmp_path, NIGHTLY, clock=clock_at("2026-11-17 01:00")) as harness:
        await harness.clock.advance(hours=1)
        job = await harness.run_next(ok())
        context = a_context(harness, 'p: {schedule: {cron: "45 5 * * *", timezone: Europe/Berlin}}')
        assert await preview_starts(context) == ["2026-11-17T04:45", "2026-11-18T04:45"]
        (row,) = (await list_schedules(context, ListSchedules())).schedules
        assert (row.last_job_id, row.rule) == (job.id, "cron 45 5 * * *")


async def test_missed_runs_are_previewed_as_catch_up_says(tmp_path: Path) -> None:
    """Overdue occurrences are skipped, or run as soon as a daemon starts."""
    async with scheduling(tmp_path, NIGHTLY, clock=clock_at("2026-11-17 01:00")) as harness:
        harness.clock = SimulatedClock(harness.clock.now() + timedelta(days=3))
        assert await preview_starts(a_context(harness)) == ["2026-11-20T01:30", "2026-11-21T01:30"]
        once = 'p: {schedule: {cron: "30 2 * * *", timezone: Europe/Berlin, catch_up: run_once}}'
        assert await preview_starts(a_context(harness, once)) == ["2026-11-20T01:00", "2026-11-20T01:30"]


async def test_the_preview_crosses_a_change_of_the_clock_with_local_times(tmp_path: Path) -> None:
    """A run in the skipped hour starts at the next instant that exists."""
    async with scheduling(tmp_path, NIGHTLY, clock=clock_at("2027-03-26 12:00")) as harness:
        upcoming = await preview(a_context(harness), PreviewRuns(count=3))
        assert [(occurrence.local or "")[:20] for occurrence in upcoming.occurrences] == [
            "2027-03-27 02:30:00 ",
            "2027-03-28 03:00:00 ",
            "2027-03-29 02:30:00 ",
        ]
        assert [(occurrence.local or "")[20:] for occurrence in upcoming.occurrences] == [
            "CET",
            "CEST",
            "CEST",
        ]
