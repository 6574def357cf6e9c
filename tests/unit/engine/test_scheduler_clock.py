"""Suspend, NTP and wrong clocks: neither lost nor stormed."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from pathlib import Path

from builders.jobs import START, failed, ok
from builders.scheduling import clock_at, scheduling
from builders.stores import stored
from ductile.engine.clock import SystemClock

HOUR = timedelta(hours=1)


async def test_a_machine_that_slept_makes_up_for_nothing_by_default(tmp_path: Path) -> None:
    """All missed occurrences are recorded, and the next occurrence runs."""
    async with scheduling(tmp_path, 'p: {schedule: {cron: "*/5 * * * *"}}') as bench:
        await bench.clock.set_by(hours=8, minutes=2)
        await bench.clock.advance(minutes=1)
        assert await bench.outcomes() == ["10:05:00 skipped x96 missed"]
        await bench.clock.advance(minutes=2)
        assert (await bench.outcomes())[1:] == ["18:05:00 ran"]
        assert bench.clock_changes == 1


async def test_a_machine_that_slept_catches_up_as_configured(tmp_path: Path) -> None:
    """The wake-up is the end of a downtime."""
    async with scheduling(tmp_path, "p: {schedule: {every: 1h, catch_up: run_once}}") as bench:
        await bench.run_next(ok())
        await bench.clock.set_by(hours=5, minutes=30)
        await bench.clock.advance(minutes=1)
        assert await bench.outcomes() == ["10:00:00 ran", "11:00:00 skipped x4 missed", "15:00:00 late"]


async def test_a_small_step_forward_loses_nothing(tmp_path: Path) -> None:
    """NTP jumped over the instant; it runs, late by the jump."""
    async with scheduling(
        tmp_path, 'p: {schedule: {cron: "0 * * * *"}}', clock=clock_at("2026-02-08 10:59:50")
    ) as bench:
        await bench.clock.set_by(seconds=30)
        (row,) = await bench.history()
        assert (row.outcome, row.late) == ("late", timedelta(seconds=20))


async def test_a_clock_set_back_repeats_no_cron_run(tmp_path: Path) -> None:
    """An occurrence is its nominal instant, however often the clock shows it."""
    async with scheduling(tmp_path, 'p: {schedule: {cron: "*/10 * * * *"}}') as bench:
        await bench.clock.advance(minutes=10)
        await bench.run_next(ok())
        await bench.clock.set_by(minutes=-5)
        await bench.wake()
        await bench.clock.advance(minutes=16)
        await bench.run_next(ok())
        assert await bench.outcomes() == ["10:10:00 ran", "10:20:00 ran"]


async def test_a_clock_set_back_starves_no_schedule(tmp_path: Path) -> None:
    """It had been a year ahead; nothing waits until the wrong date comes."""
    plugins = (
        'p: {max_outstanding_polls: 9, schedules: [{id: every, every: 1h}, {id: cron, cron: "0 * * * *"}, '
        "{id: after, after: 2h}]}"
    )
    async with scheduling(tmp_path, plugins, clock=clock_at("2027-02-08 10:00")) as bench:
        await bench.run_next(ok())
        await bench.clock.set_by(days=-365)
        await bench.wake()
        now = bench.clock.now()
        assert now == START
        due = {name: (await bench.entry(name)).next_at for name in ("every", "cron", "after")}
        assert due == {"every": now + HOUR, "cron": now + HOUR, "after": now + 2 * HOUR}


async def test_a_clock_set_back_is_noticed_by_the_tick_alone(tmp_path: Path) -> None:
    """A loop that slept by the wall clock alone would stand still until the clock has caught up."""
    async with scheduling(tmp_path, "p: {schedule: {every: 10m}}") as bench:
        await bench.run_next(ok())
        await bench.clock.set_by(hours=-3)
        await bench.clock.advance(minutes=11)
        assert await bench.outcomes() == ["10:00:00 ran", "07:11:00 ran"]
        assert bench.clock_changes == 1


async def test_a_clock_set_back_while_the_daemon_was_down(tmp_path: Path) -> None:
    async with scheduling(
        tmp_path, "p: {schedule: {every: 1h}}", clock=clock_at("2027-02-08 10:00")
    ) as bench:
        await bench.run_next(ok())
    async with scheduling(
        tmp_path, "p: {schedule: {every: 1h}}", clock=clock_at("2026-02-08 10:00")
    ) as bench:
        assert (await bench.entry()).next_at == START + HOUR


async def test_after_a_clock_set_back_no_wait_becomes_longer(tmp_path: Path) -> None:
    """Retries too; the loop that releases them is woken."""
    async with scheduling(tmp_path, "p: {schedule: {every: 1h}}") as bench:
        job = await bench.run_next(failed())
        waited = (await stored(bench.store, job.id)).next_retry_at
        assert waited is not None
        await bench.clock.set_by(hours=-3)
        await bench.wake()
        clamped = (await stored(bench.store, job.id)).next_retry_at
        assert clamped is not None
        assert abs(clamped - (waited - 3 * HOUR)) < timedelta(seconds=1)
        assert bench.clock_changes == 1


async def test_an_occurrence_due_after_a_clock_set_back_was_not_missed(tmp_path: Path) -> None:
    async with scheduling(tmp_path, 'p: {schedule: {at: "2026-02-08T09:30:00Z"}}') as bench:
        assert await bench.outcomes() == ["09:30:00 skipped missed"]
        await bench.clock.set_by(hours=-2)
        await bench.reload('p: {schedule: {at: "2026-02-08T08:30:00Z"}}')
        await bench.clock.advance(hours=1)
        assert (await bench.outcomes())[-1] == "08:30:00 ran"


async def test_a_slow_clock_is_not_a_clock_that_was_set(tmp_path: Path) -> None:
    async with scheduling(tmp_path, "p: {schedule: {every: 1h}}") as bench:
        for _ in range(5):
            await bench.clock.set_by(milliseconds=300)
            await bench.clock.advance(minutes=1)
        assert bench.clock_changes == 0


async def test_the_real_clock_waits_for_an_instant_or_an_event() -> None:
    clock = SystemClock()
    woken = asyncio.Event()
    await clock.wait(datetime.now(UTC) - HOUR, woken)
    before = clock.now()
    await clock.wait(before + timedelta(milliseconds=5), woken)
    assert clock.now() >= before + timedelta(milliseconds=5)
    waiting = asyncio.create_task(clock.wait(None, woken))
    woken.set()
    await waiting
    assert woken.is_set()


async def test_the_real_clock_waits_no_longer_because_it_was_set_back() -> None:
    """What was to take a moment takes a moment."""

    class SetBack(SystemClock):
        readings = 0

        def now(self) -> datetime:
            self.readings += 1
            return super().now() - (HOUR if self.readings > 2 else timedelta())

    clock = SetBack()
    async with asyncio.timeout(60):
        await clock.wait(clock.now() + timedelta(milliseconds=5), asyncio.Event())
    assert clock.readings > 2, "it was set back meanwhile"
