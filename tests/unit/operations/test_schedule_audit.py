"""The history of a schedule says whether it is complete, and where it is not."""

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


async def audit(bench: SchedulerUnderTest, limit: int = DEFAULT_PAGE) -> HistoryAudit:
    context = OperationContext(
        store=bench.store, snapshot=lambda: bench.snapshot, now=bench.clock.now, rng=Random(1)
    )
    return (await show_history(context, ShowHistory(plugin="p", limit=limit))).account


def forget_one(bench: SchedulerUnderTest, position: int) -> None:
    """Delete the row of one occurrence."""
    connection = sqlite3.connect(bench.directory / "state.db")
    connection.execute(
        "DELETE FROM occurrences WHERE seq = (SELECT seq FROM occurrences ORDER BY seq LIMIT 1 OFFSET ?)",
        (position,),
    )
    connection.commit()
    connection.close()


async def a_day(bench: SchedulerUnderTest) -> None:
    """Runs, a pause, a run out of turn, a run that takes too long."""
    for hour in range(24):
        await bench.clock.advance(minutes=30)
        if hour == 4:
            await bench.scheduler.run_now("p", "default")
        if hour == 8:
            await bench.pause()
        if hour == 11:
            await bench.scheduler.resume("p", "default")
        await bench.clock.advance(minutes=30)
        if hour not in (15, 16, 17):
            for job in await bench.start_all():
                await bench.end(job, ok())


@pytest.mark.parametrize("plugins", [HOURLY, EVERY], ids=["cron", "every"])
async def test_a_whole_history_is_proven(tmp_path: Path, plugins: str) -> None:
    """With pauses, overlaps, runs on demand and a downtime in between."""
    async with scheduling(tmp_path, plugins) as bench:
        await a_day(bench)
        found = await audit(bench)
        assert (found.complete, found.gaps) == (True, ())
        later = SimulatedClock(bench.clock.now() + timedelta(hours=7))
    async with scheduling(tmp_path, plugins, clock=later) as bench:
        await a_day(bench)
        found = await audit(bench)
        assert (found.complete, found.gaps) == (True, ())
        newer = await audit(bench, limit=5)
        assert newer.complete
        assert (newer.from_at or "") > (found.from_at or "")


@pytest.mark.parametrize("plugins", [HOURLY, EVERY], ids=["cron", "every"])
async def test_a_gap_is_named(tmp_path: Path, plugins: str) -> None:
    """The gap of one deleted row has its bounds, and how many occurrences were due."""
    async with scheduling(tmp_path, plugins) as bench:
        for _ in range(6):
            for job in await bench.start_all():
                await bench.end(job, ok())
            await bench.clock.advance(hours=1, minutes=10)
        forget_one(bench, 2)
        found = await audit(bench)
        assert not found.complete
        (gap,) = found.gaps
        assert (gap.expected, gap.found) == (1, 0)


async def test_a_missing_latest_occurrence_is_a_gap_too(tmp_path: Path) -> None:
    """The history has to reach up to the next occurrence."""
    async with scheduling(tmp_path, HOURLY) as bench:
        await bench.clock.advance(hours=4)
        last = len(await bench.history()) - 1
        forget_one(bench, last)
        assert not (await audit(bench)).complete


async def test_rows_of_an_earlier_definition_are_no_gaps(tmp_path: Path) -> None:
    """Rows before an edit are not compared with the new rule."""
    async with scheduling(tmp_path, HOURLY) as bench:
        for _ in range(3):
            await bench.clock.advance(hours=1)
            await bench.run_next(ok())
        await bench.clock.advance(minutes=30)
        await bench.reload('p: {schedule: {cron: "*/10 * * * *"}}')
        assert (await audit(bench)).complete is None
        for _ in range(6):
            await bench.clock.advance(minutes=10)
            await bench.run_next(ok())
        found = await audit(bench)
        assert (found.complete, found.gaps) == (True, ())


async def test_a_definition_that_the_daemon_does_not_know_yet_proves_nothing(tmp_path: Path) -> None:
    """The file was edited and not reloaded: the rows are not compared, and `about` says so."""
    async with scheduling(tmp_path, HOURLY) as bench:
        await bench.clock.advance(hours=3)
        edited = scheduling(tmp_path / "other", 'p: {schedule: {cron: "*/10 * * * *"}}')
        async with edited as other:
            bench.snapshot = other.snapshot
        found = await audit(bench)
        assert found.complete is None
        assert "was changed" in (found.about or "")


async def test_a_run_that_was_retried_leaves_no_gap(tmp_path: Path) -> None:
    """An `every` counts from the end of its run, which is the end of its last attempt, not of its first."""
    tried = "p: {retry: {max_attempts: 2, backoff_base: 10s, backoff_max: 20s}, schedule: {every: 1m}}"
    async with scheduling(tmp_path, tried) as bench:
        for last in (ok(), failed()):
            await bench.run_next(failed())
            await bench.clock.advance(seconds=20)
            await bench.store.release_due()
            await bench.run_next(last)
            await bench.clock.advance(seconds=61)
        assert len(await bench.history()) == 3
        found = await audit(bench)
        assert (found.complete, found.gaps) == (True, ())


async def test_a_run_by_hand_before_the_first_occurrence_is_no_gap(tmp_path: Path) -> None:
    """A cron that was never due has no occurrence to audit; after the first one it has."""
    async with scheduling(tmp_path, HOURLY) as bench:
        await bench.clock.advance(minutes=10)
        await bench.scheduler.run_now("p", "default")
        await bench.run_next(ok())
        found = await audit(bench)
        assert (found.complete, found.gaps) == (None, ())
        assert found.about == "nothing has been due since the schedule was last changed"
        await bench.clock.advance(hours=1)
        found = await audit(bench)
        assert (found.complete, found.gaps) == (True, ())


@pytest.mark.parametrize("plugins", [HOURLY, EVERY], ids=["cron", "every"])
async def test_an_occurrence_that_waits_for_other_polls_is_no_gap(tmp_path: Path, plugins: str) -> None:
    """Neither while it waits nor after, whatever page its row is on."""
    async with scheduling(tmp_path, plugins) as bench:
        await bench.clock.advance(hours=1)
        for job in await bench.start_all():
            await bench.end(job, ok())
        for _ in range(3):
            await accept(bench.store, a_new_job("p", "poll"))
            blocker = await bench.start_next()
            for _ in range(4):
                await bench.clock.advance(hours=1)
                assert (await audit(bench)).gaps == ()
            assert (await bench.entry()).deferred is not None
            await bench.end(blocker, ok())
            for _ in range(2):
                for job in await bench.start_all():
                    await bench.end(job, ok())
                await bench.clock.advance(hours=1)
            for job in await bench.start_all():
                await bench.end(job, ok())
        rows = await bench.history()
        assert "outstanding_polls" in {row.reason for row in rows}
        for limit in range(1, len(rows) + 1):
            assert (await audit(bench, limit=limit)).gaps == ()
        assert (await audit(bench)).complete is True
