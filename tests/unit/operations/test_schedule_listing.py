"""Where schedules stand and what is to come, whether or not a daemon has seen them."""

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


def a_context(bench: SchedulerUnderTest, plugins: str | None = None) -> OperationContext:
    """A context without a daemon. With `plugins`, the configuration was edited after the last start."""
    snapshot = bench.snapshot if plugins is None else a_snapshot(bench.directory / "edited", plugins)
    return OperationContext(store=bench.store, snapshot=lambda: snapshot, now=bench.clock.now, rng=Random(1))


async def starts(context: OperationContext, plugin: str | None = None) -> list[str]:
    upcoming = await preview(context, PreviewRuns(plugin=plugin, count=2))
    return [each.start_at[:16] for each in upcoming.occurrences]


async def test_a_schedule_that_no_daemon_has_loaded_is_previewed(tmp_path: Path) -> None:
    """A new rule can be tried before the daemon starts."""
    clock = clock_at("2026-11-17 10:00")
    store = open_sqlite(tmp_path / "state.db", clock=clock, rng=Random(1))
    snapshot = a_snapshot(tmp_path, f"{NIGHTLY}, q: {{schedule: {{every: 5m, jitter: 30s}}}}")
    context = OperationContext(store=store, snapshot=lambda: snapshot, now=clock.now, rng=Random(1))
    assert await starts(context, plugin="p") == ["2026-11-18T01:30", "2026-11-19T01:30"]
    nightly, often = (await list_schedules(context, ListSchedules())).schedules
    assert (nightly.command, nightly.rule) == ("poll", "cron 30 2 * * *")
    assert (nightly.timezone, nightly.next_local) == ("Europe/Berlin", "2026-11-18 02:30:00 CET")
    assert (nightly.at_start, nightly.last_job_id, nightly.breaker) == (False, None, "closed")
    assert (often.rule, often.at_start, often.next_local) == ("every 5m ±15s", True, None)
    assert await starts(context, plugin="q") == ["2026-11-17T10:00", "2026-11-17T10:05"]
    await store.close()


async def test_an_edited_rule_replaces_the_stored_one(tmp_path: Path) -> None:
    """When it ran last is kept."""
    async with scheduling(tmp_path, NIGHTLY, clock=clock_at("2026-11-17 01:00")) as bench:
        await bench.clock.advance(hours=1)
        job = await bench.run_next(ok())
        context = a_context(bench, 'p: {schedule: {cron: "45 5 * * *", timezone: Europe/Berlin}}')
        assert await starts(context) == ["2026-11-17T04:45", "2026-11-18T04:45"]
        (row,) = (await list_schedules(context, ListSchedules())).schedules
        assert (row.last_job_id, row.rule) == (job.id, "cron 45 5 * * *")


async def test_missed_runs_are_previewed_as_catch_up_says(tmp_path: Path) -> None:
    """Overdue occurrences are skipped, or run as soon as a daemon starts."""
    async with scheduling(tmp_path, NIGHTLY, clock=clock_at("2026-11-17 01:00")) as bench:
        bench.clock = SimulatedClock(bench.clock.now() + timedelta(days=3))
        assert await starts(a_context(bench)) == ["2026-11-20T01:30", "2026-11-21T01:30"]
        once = 'p: {schedule: {cron: "30 2 * * *", timezone: Europe/Berlin, catch_up: run_once}}'
        assert await starts(a_context(bench, once)) == ["2026-11-20T01:00", "2026-11-20T01:30"]


async def test_the_preview_crosses_a_change_of_the_clock_with_local_times(tmp_path: Path) -> None:
    """In the skipped hour the run starts at the next instant that exists."""
    async with scheduling(tmp_path, NIGHTLY, clock=clock_at("2027-03-26 12:00")) as bench:
        upcoming = await preview(a_context(bench), PreviewRuns(count=3))
        assert [(each.local or "")[:20] for each in upcoming.occurrences] == [
            "2027-03-27 02:30:00 ",
            "2027-03-28 03:00:00 ",
            "2027-03-29 02:30:00 ",
        ]
        assert [(each.local or "")[20:] for each in upcoming.occurrences] == ["CET", "CEST", "CEST"]
