"""The history of a schedule reports whether it is complete, and its gaps."""

from __future__ import annotations

import sqlite3
from datetime import timedelta
from pathlib import Path
from random import Random

import pytest

from builders.clocks import SimulatedClock
from builders.jobs import a_new_job, failed, ok
from builders.scheduling import SchedulerUnderTest, scheduling
from builders.stores import accept
from ductile.operations.context import OperationContext
from ductile.operations.schedules.audit import HistoryAudit, ShowHistory, show_history
from ductile.store.model.records import DEFAULT_PAGE

HOURLY = 'p: {schedule: {cron: "0 * * * *"}}'
EVERY = "p: {schedule: {every: 1h, jitter: 10m}}"


async def audit(harness: SchedulerUnderTest, limit: int = DEFAULT_PAGE) -> HistoryAudit:
    context = OperationContext(
        store=harness.store, snapshot=lambda: harness.snapshot, now=harness.clock.now, rng=Random(1)
    )
    return (await show_history(context, ShowHistory(plugin="p", limit=limit))).account


def delete_occurrence(harness: SchedulerUnderTest, position: int) -> None:
    """Delete the row of one occurrence."""
    connection = sqlite3.connect(harness.directory / "state.db")
    connection.execute(
        "DELETE FROM occurrences WHERE seq = (SELECT seq FROM occurrences ORDER BY seq LIMIT 1 OFFSET ?)",
        (position,),
    )
    connection.commit()
    connection.close()


async def a_day(harness: SchedulerUnderTest) -> None:
    """Simulate a day with runs, a pause, a run on request, and a run that takes too long."""
    for hour in range(24):
        await harness.clock.advance(minutes=30)
        if hour == 4:
            await harness.scheduler.run_now("p", "default")
        if hour == 8:
            await harness.pause()
        if hour == 11:
            await harness.scheduler.resume("p", "default")
        await harness.clock.advance(minutes=30)
        if hour not in (15, 16, 17):
            for job in await harness.start_all():
                await harness.end(job, ok())


@pytest.mark.parametrize("plugins", [HOURLY, EVERY], ids=["cron", "every"])
async def test_a_whole_history_is_proven(tmp_path: Path, plugins: str) -> None:
    """The history has pauses, overlaps, runs on request and a downtime."""
    async with scheduling(tmp_path, plugins) as harness:
        await a_day(harness)
        result = await audit(harness)
        assert (result.complete, result.gaps) == (True, ())
        later = SimulatedClock(harness.clock.now() + timedelta(hours=7))
    async with scheduling(tmp_path, plugins, clock=later) as harness:
        await a_day(harness)
        result = await audit(harness)
        assert (result.complete, result.gaps) == (True, ())
        shorter = await audit(harness, limit=5)
        assert shorter.complete
        assert (shorter.from_at or "") > (result.from_at or "")


@pytest.mark.parametrize("plugins", [HOURLY, EVERY], ids=["cron", "every"])
async def test_a_gap_is_named(tmp_path: Path, plugins: str) -> None:
    """The gap of a deleted row has its bounds and the number of expected occurrences."""
    async with scheduling(tmp_path, plugins) as harness:
        for _ in range(6):
            for job in await harness.start_all():
                await harness.end(job, ok())
            await harness.clock.advance(hours=1, minutes=10)
        delete_occurrence(harness, 2)
        result = await audit(harness)
        assert not result.complete
        (gap,) = result.gaps
        assert (gap.expected, gap.found) == (1, 0)


async def test_a_missing_latest_occurrence_is_a_gap_too(tmp_path: Path) -> None:
    """The history has to reach the next occurrence."""
    async with scheduling(tmp_path, HOURLY) as harness:
        await harness.clock.advance(hours=4)
        last = len(await harness.history()) - 1
        delete_occurrence(harness, last)
        assert not (await audit(harness)).complete


async def test_rows_of_an_earlier_definition_are_no_gaps(tmp_path: Path) -> None:
    """Rows before an edit are not compared with the new rule."""
    async with scheduling(tmp_path, HOURLY) as harness:
        for _ in range(3):
            await harness.clock.advance(hours=1)
            await harness.run_next(ok())
        await harness.clock.advance(minutes=30)
        await harness.reload('p: {schedule: {cron: "*/10 * * * *"}}')
        assert (await audit(harness)).complete is None
        for _ in range(6):
            await harness.clock.advance(minutes=10)
            await harness.run_next(ok())
        result = await audit(harness)
        assert (result.complete, result.gaps) == (True, ())


async def test_a_definition_that_the_daemon_does_not_know_yet_proves_nothing(tmp_path: Path) -> None:
    """The file was edited and not reloaded: the rows are not compared, and `about` says so."""
    async with scheduling(tmp_path, HOURLY) as harness:
        await harness.clock.advance(hours=3)
        edited = scheduling(tmp_path / "other", 'p: {schedule: {cron: "*/10 * * * *"}}')
        async with edited as other:
            harness.snapshot = other.snapshot
        result = await audit(harness)
        assert result.complete is None
        assert "was changed" in (result.about or "")


async def test_a_run_that_was_retried_leaves_no_gap(tmp_path: Path) -> None:
    """An interval counts from the end of the last attempt of its run."""
    plugins = "p: {retry: {max_attempts: 2, backoff_base: 10s, backoff_max: 20s}, schedule: {every: 1m}}"
    async with scheduling(tmp_path, plugins) as harness:
        for last in (ok(), failed()):
            await harness.run_next(failed())
            await harness.clock.advance(seconds=20)
            await harness.store.release_due()
            await harness.run_next(last)
            await harness.clock.advance(seconds=61)
        assert len(await harness.history()) == 3
        result = await audit(harness)
        assert (result.complete, result.gaps) == (True, ())


async def test_a_run_by_hand_before_the_first_occurrence_is_no_gap(tmp_path: Path) -> None:
    """A cron schedule that was never due has no occurrence to audit."""
    async with scheduling(tmp_path, HOURLY) as harness:
        await harness.clock.advance(minutes=10)
        await harness.scheduler.run_now("p", "default")
        await harness.run_next(ok())
        result = await audit(harness)
        assert (result.complete, result.gaps) == (None, ())
        assert result.about == "nothing has been due since the schedule was last changed"
        await harness.clock.advance(hours=1)
        result = await audit(harness)
        assert (result.complete, result.gaps) == (True, ())


@pytest.mark.parametrize("plugins", [HOURLY, EVERY], ids=["cron", "every"])
async def test_an_occurrence_that_waits_for_other_polls_is_no_gap(tmp_path: Path, plugins: str) -> None:
    """The occurrence is no gap while it waits and afterwards, on every page of the history."""
    async with scheduling(tmp_path, plugins) as harness:
        await harness.clock.advance(hours=1)
        for job in await harness.start_all():
            await harness.end(job, ok())
        for _ in range(3):
            await accept(harness.store, a_new_job("p", "poll"))
            blocker = await harness.start_next()
            for _ in range(4):
                await harness.clock.advance(hours=1)
                assert (await audit(harness)).gaps == ()
            assert (await harness.entry()).deferred is not None
            await harness.end(blocker, ok())
            for _ in range(2):
                for job in await harness.start_all():
                    await harness.end(job, ok())
                await harness.clock.advance(hours=1)
            for job in await harness.start_all():
                await harness.end(job, ok())
        rows = await harness.history()
        assert "outstanding_polls" in {row.reason for row in rows}
        for limit in range(1, len(rows) + 1):
            assert (await audit(harness, limit=limit)).gaps == ()
        assert (await audit(harness)).complete is True
