"""After a suspend, an NTP step or a wrong clock, no run is lost and none is repeated."""

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
    async with scheduling(tmp_path, 'p: {schedule: {cron: "*/5 * * * *"}}') as harness:
        await harness.clock.set_by(hours=8, minutes=2)
        await harness.clock.advance(minutes=1)
        assert await harness.outcomes() == ["10:05:00 skipped x96 missed"]
        await harness.clock.advance(minutes=2)
        assert (await harness.outcomes())[1:] == ["18:05:00 ran"]
        assert harness.clock_changes == 1


async def test_a_machine_that_slept_catches_up_as_configured(tmp_path: Path) -> None:
    """The wake-up counts as the end of a downtime."""
    async with scheduling(tmp_path, "p: {schedule: {every: 1h, catch_up: run_once}}") as harness:
        await harness.run_next(ok())
        await harness.clock.set_by(hours=5, minutes=30)
        await harness.clock.advance(minutes=1)
        assert await harness.outcomes() == ["10:00:00 ran", "11:00:00 skipped x4 missed", "15:00:00 late"]


async def test_a_small_step_forward_loses_nothing(tmp_path: Path) -> None:
    """NTP stepped over the instant; the run is late by the step."""
    async with scheduling(
        tmp_path, 'p: {schedule: {cron: "0 * * * *"}}', clock=clock_at("2026-02-08 10:59:50")
    ) as harness:
        await harness.clock.set_by(seconds=30)
        (row,) = await harness.history()
        assert (row.outcome, row.late) == ("late", timedelta(seconds=20))


async def test_a_clock_set_back_repeats_no_cron_run(tmp_path: Path) -> None:
    """An occurrence is identified by its nominal instant, however often the clock shows it."""
    async with scheduling(tmp_path, 'p: {schedule: {cron: "*/10 * * * *"}}') as harness:
        await harness.clock.advance(minutes=10)
        await harness.run_next(ok())
        await harness.clock.set_by(minutes=-5)
        await harness.wake()
        await harness.clock.advance(minutes=16)
        await harness.run_next(ok())
        assert await harness.outcomes() == ["10:10:00 ran", "10:20:00 ran"]


async def test_a_clock_set_back_starves_no_schedule(tmp_path: Path) -> None:
    """The clock was a year ahead; no schedule waits until that date."""
    plugins = (
        'p: {max_outstanding_polls: 9, schedules: [{id: every, every: 1h}, {id: cron, cron: "0 * * * *"}, '
        "{id: after, after: 2h}]}"
    )
    async with scheduling(tmp_path, plugins, clock=clock_at("2027-02-08 10:00")) as harness:
        await harness.run_next(ok())
        await harness.clock.set_by(days=-365)
        await harness.wake()
        now = harness.clock.now()
        assert now == START
        due = {name: (await harness.entry(name)).next_at for name in ("every", "cron", "after")}
        assert due == {"every": now + HOUR, "cron": now + HOUR, "after": now + 2 * HOUR}


async def test_a_clock_set_back_is_noticed_by_the_tick_alone(tmp_path: Path) -> None:
    """A loop that slept by the wall clock would not run until the clock has caught up."""
    async with scheduling(tmp_path, "p: {schedule: {every: 10m}}") as harness:
        await harness.run_next(ok())
        await harness.clock.set_by(hours=-3)
        await harness.clock.advance(minutes=11)
        assert await harness.outcomes() == ["10:00:00 ran", "07:11:00 ran"]
        assert harness.clock_changes == 1


async def test_a_clock_set_back_while_the_daemon_was_down(tmp_path: Path) -> None:
    async with scheduling(
        tmp_path, "p: {schedule: {every: 1h}}", clock=clock_at("2027-02-08 10:00")
    ) as harness:
        await harness.run_next(ok())
    async with scheduling(
        tmp_path, "p: {schedule: {every: 1h}}", clock=clock_at("2026-02-08 10:00")
    ) as harness:
        assert (await harness.entry()).next_at == START + HOUR


async def test_after_a_clock_set_back_no_wait_becomes_longer(tmp_path: Path) -> None:
    """The loop that releases retries is woken too."""
    async with scheduling(tmp_path, "p: {schedule: {every: 1h}}") as harness:
        job = await harness.run_next(failed())
        waited = (await stored(harness.store, job.id)).next_retry_at
        assert waited is not None
        await harness.clock.set_by(hours=-3)
        await harness.wake()
        clamped = (await stored(harness.store, job.id)).next_retry_at
        assert clamped is not None
        assert abs(clamped - (waited - 3 * HOUR)) < timedelta(seconds=1)
        assert harness.clock_changes == 1


async def test_an_occurrence_due_after_a_clock_set_back_was_not_missed(tmp_path: Path) -> None:
    async with scheduling(tmp_path, 'p: {schedule: {at: "2026-02-08T09:30:00Z"}}') as harness:
        assert await harness.outcomes() == ["09:30:00 skipped missed"]
        await harness.clock.set_by(hours=-2)
        await harness.reload('p: {schedule: {at: "2026-02-08T08:30:00Z"}}')
        await harness.clock.advance(hours=1)
        assert (await harness.outcomes())[-1] == "08:30:00 ran"


async def test_a_slow_clock_is_not_a_clock_that_was_set(tmp_path: Path) -> None:
    async with scheduling(tmp_path, "p: {schedule: {every: 1h}}") as harness:
        for _ in range(5):
            await harness.clock.set_by(milliseconds=300)
            await harness.clock.advance(minutes=1)
        assert harness.clock_changes == 0


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
    """A short wait stays short."""

    class SetBackClock(SystemClock):
        readings = 0

        def now(self) -> datetime:
            self.readings += 1
            return super().now() - (HOUR if self.readings > 2 else timedelta())

    clock = SetBackClock()
    async with asyncio.timeout(60):
        await clock.wait(clock.now() + timedelta(milliseconds=5), asyncio.Event())
    assert clock.readings > 2, "it was set back meanwhile"
