"""Overlap, the poll guard and the breaker are decided in one transaction."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from pathlib import Path
from random import Random

import pytest

from builders.jobs import START, a_new_job, failed, ok
from builders.scheduling import SchedulerUnderTest, clock_at, scheduling
from builders.stores import accept, path_of, stored
from ductile.core.jobs.failures import Breaker, BreakerState
from ductile.core.jobs.model import EndedEarly, Hold, JobReason, JobStatus
from ductile.core.schedules.planner import plan_due
from ductile.engine.schedules.entries import active_schedules, firing_of, next_occurrence_of
from ductile.store.model.schedules import FireStatus, Firing
from ductile.struct import replace

HOUR = timedelta(hours=1)


async def a_firing(harness: SchedulerUnderTest) -> Firing:
    """Return the firing of the scheduler for the next occurrence of the default schedule."""
    entry = await harness.entry()
    occurrence = next_occurrence_of(entry)
    assert occurrence is not None
    watched = active_schedules(harness.snapshot)["p", "default"]
    now = occurrence.start_at
    plan = plan_due(watched.rule, occurrence, now=now, active_since=START, paused=False, rng=Random(1))
    assert plan is not None
    return firing_of(watched, entry, plan, now=now, rng=Random(1))


# -- overlap


async def test_queue_waits_for_the_run_before(tmp_path: Path) -> None:
    """Every occurrence gets its run, one after the other."""
    plugins = "p: {max_outstanding_polls: 9, schedule: {every: 1h, if_running: queue}}"
    async with scheduling(tmp_path, plugins) as harness:
        first = await harness.start_next()
        await harness.clock.advance(hours=2)
        waiting = [row.job_id for row in (await harness.history())[1:]]
        assert [(await stored(harness.store, job or "")).hold for job in waiting] == [Hold.PREDECESSOR] * 2
        assert await harness.start_all() == []
        await harness.end(first, ok())
        assert [job.id for job in await harness.start_all()] == waiting[:1]


async def test_cancel_kills_the_running_job_and_the_new_one_waits_for_its_end(tmp_path: Path) -> None:
    """Cancel request and new job are one transaction; the old job ends as dead with `cancelled`."""
    async with scheduling(tmp_path, "p: {schedule: {every: 1h, if_running: cancel}}") as harness:
        old = await harness.start_next()
        await harness.clock.advance(hours=1)
        assert harness.stopped == [old.id]
        assert (await stored(harness.store, old.id)).cancel_requested_at == START + HOUR
        new = (await harness.history())[-1].job_id
        assert new is not None
        assert (await stored(harness.store, new)).hold is Hold.PREDECESSOR
        await harness.end(old, ok())
        assert (await path_of(harness.store, old.id))[-1] == "running>dead:cancelled"
        # The end of the replaced run does not move the schedule.
        assert (await harness.entry()).next_at == START + 2 * HOUR
        assert [job.id for job in await harness.start_all()] == [new]


async def test_cancel_ends_a_queued_run_at_once(tmp_path: Path) -> None:
    async with scheduling(tmp_path, "p: {schedule: {every: 1h, if_running: cancel}}") as harness:
        (first,) = [row.job_id for row in await harness.history()]
        await harness.clock.advance(hours=1)
        assert first is not None
        old = await stored(harness.store, first)
        assert (old.status, old.reason) == (JobStatus.DEAD, JobReason.CANCELLED)
        assert harness.stopped == []
        assert harness.ended == [first], "its end is reported"
        assert (await harness.entry()).next_at == START + 2 * HOUR
        assert len(await harness.start_all()) == 1


async def test_cancel_ends_everything_that_a_changed_policy_left_behind(tmp_path: Path) -> None:
    """Runs that were queued under `if_running: queue` are ended by `cancel`."""
    queue = "p: {max_outstanding_polls: 9, schedule: {every: 1h, if_running: queue}}"
    async with scheduling(tmp_path, queue) as harness:
        running = await harness.start_next()
        await harness.clock.advance(hours=2)
        queued = [row.job_id or "" for row in (await harness.history())[1:]]
        await harness.reload(queue.replace("queue", "cancel"))
        await harness.clock.advance(hours=1)
        assert harness.stopped == [running.id]
        assert set(harness.ended) == set(queued)
        assert {(await stored(harness.store, job)).status for job in queued} == {JobStatus.DEAD}
        assert await harness.start_all() == []
        await harness.end(running, EndedEarly(reason=JobReason.CANCELLED, error="cancelled"))
        assert [job.id for job in await harness.start_all()] == [(await harness.entry()).last_job_id]


# -- the poll guard


async def test_polls_from_every_source_count(tmp_path: Path) -> None:
    """Queued and running polls of every submitter count. One occurrence waits and runs late."""
    async with scheduling(tmp_path, 'p: {schedule: {cron: "0 * * * *"}}') as harness:
        await accept(harness.store, a_new_job("p", "poll"))
        await harness.clock.advance(hours=1)
        other = await harness.start_next()
        await harness.clock.advance(hours=2)
        assert await harness.outcomes() == ["12:00:00 skipped x2 waiting"]
        await harness.clock.advance(minutes=5)
        await harness.end(other, ok())
        assert await harness.outcomes() == ["12:00:00 skipped x2 waiting", "11:00:00 late outstanding_polls"]
        assert (await harness.history())[-1].late == timedelta(hours=2, minutes=5)
        await harness.run_next(ok())
        await harness.clock.advance(hours=1)
        assert (await harness.outcomes())[-1] == "14:00:00 ran"


async def test_an_occurrence_that_waits_survives_a_restart(tmp_path: Path) -> None:
    plugins = 'p: {schedule: {cron: "0 * * * *"}}'
    async with scheduling(tmp_path, plugins) as harness:
        await accept(harness.store, a_new_job("p", "poll"))
        await harness.clock.advance(hours=1)
        other = await harness.start_next()
    async with scheduling(tmp_path, plugins, clock=clock_at("2026-02-08 11:30")) as harness:
        assert (await harness.outcomes(), (await harness.entry()).deferred is None) == ([], False)
        await harness.end(other, ok())
        assert await harness.outcomes() == ["11:00:00 late outstanding_polls"]


async def test_the_occurrence_that_waits_longest_starts_first(tmp_path: Path) -> None:
    plugins = 'p: {schedules: [{id: a, cron: "30 * * * *"}, {id: b, cron: "10 * * * *"}]}'
    async with scheduling(tmp_path, plugins) as harness:
        await accept(harness.store, a_new_job("p", "poll"))
        await harness.clock.advance(minutes=40)
        await harness.run_next(ok())
        assert (await harness.outcomes("a"), await harness.outcomes("b")) == (
            [],
            ["10:10:00 late outstanding_polls"],
        )
        await harness.run_next(ok())
        assert await harness.outcomes("a") == ["10:30:00 late outstanding_polls"]


@pytest.mark.parametrize(
    ("more", "reason"), [("", "paused"), (', only_between: "08:00-11:30"', "outside_hours")]
)
async def test_an_occurrence_that_may_not_run_any_more_does_not_wait(
    tmp_path: Path, more: str, reason: str
) -> None:
    """The schedule is paused, or its hours are over, when the guard is free."""
    async with scheduling(tmp_path, f'p: {{schedule: {{cron: "0 11 * * *"{more}}}}}') as harness:
        await accept(harness.store, a_new_job("p", "poll"))
        await harness.clock.advance(hours=1)
        if reason == "paused":
            await harness.pause()
        await harness.clock.advance(hours=1)
        await harness.run_next(ok())
        assert await harness.outcomes() == [f"11:00:00 skipped {reason}"]
        assert (await harness.entry()).deferred is None


async def test_with_queue_one_run_waits_for_the_one_before(tmp_path: Path) -> None:
    """The previous poll of the schedule fills the guard; only `if_running: skip` skips for that."""
    async with scheduling(tmp_path, "p: {schedule: {every: 1h, if_running: queue}}") as harness:
        first = await harness.start_next()
        await harness.clock.advance(hours=1)
        assert (await harness.entry()).deferred is not None
        await harness.end(first, ok())
        assert await harness.outcomes() == ["10:00:00 ran", "11:00:00 late outstanding_polls"]


async def test_other_commands_and_other_plugins_do_not_count(tmp_path: Path) -> None:
    async with scheduling(tmp_path, 'p: {schedule: {cron: "0 * * * *"}}, q: {}') as harness:
        await accept(harness.store, a_new_job("p", "handle"))
        await accept(harness.store, a_new_job("q", "poll"))
        await harness.clock.advance(hours=1)
        assert await harness.outcomes() == ["11:00:00 ran"]


async def test_two_schedules_at_the_same_instant_do_not_break_the_guard(tmp_path: Path) -> None:
    """Both are planned with no poll outstanding. One runs, and the other waits for it and runs then."""
    plugins = 'p: {schedules: [{id: a, cron: "0 * * * *"}, {id: b, cron: "0 * * * *"}]}'
    async with scheduling(tmp_path, plugins) as harness:
        for hour in (11, 12):
            await harness.clock.advance(hours=1)
            assert (await harness.store.queue_counts()).depth == 1
            await harness.run_next(ok())
            assert (await harness.store.queue_counts()).depth == 1
            await harness.run_next(ok())
            last = [(await harness.outcomes("a"))[-1], (await harness.outcomes("b"))[-1]]
            assert last == [f"{hour}:00:00 ran", f"{hour}:00:00 late outstanding_polls"]


# -- the store decides


async def test_a_plan_that_is_overtaken_changes_nothing(tmp_path: Path) -> None:
    """Between planning and firing, the schedule was paused or the end of its run moved it."""
    async with scheduling(tmp_path, "p: {schedule: {every: 1h}}") as harness:
        job = await harness.start_next()
        before_pause = await a_firing(harness)
        await harness.pause()
        assert (await harness.store.fire(before_pause)).status is FireStatus.STALE
        await harness.scheduler.resume("p", "default")
        before_end = await a_firing(harness)
        await harness.clock.advance(minutes=1)
        await harness.end(job, ok())
        assert (await harness.store.fire(before_end)).status is FireStatus.STALE
        await harness.reload("q: {}")
        assert (await harness.store.fire(before_end)).status is FireStatus.STALE
        assert (await harness.store.queue_counts()).depth == 0


async def test_the_same_plan_fires_once(tmp_path: Path) -> None:
    """The second firing finds a moved entry and does nothing."""
    async with scheduling(tmp_path, 'p: {schedule: {cron: "0 * * * *"}}') as harness:
        firing = await a_firing(harness)
        reports = await asyncio.gather(*(harness.store.fire(firing) for _ in range(5)))
        assert sorted(report.status for report in reports) == ["fired", *["stale"] * 4]


async def test_a_run_that_may_not_start_any_more_waits(tmp_path: Path) -> None:
    """A poll is accepted between planning and firing."""
    async with scheduling(tmp_path, 'p: {schedule: {cron: "0 * * * *"}}') as harness:
        firing = await a_firing(harness)
        await accept(harness.store, a_new_job("p", "poll"))
        assert (await harness.store.fire(firing)).status is FireStatus.DEFERRED
        assert await harness.outcomes() == []
        entry = await harness.entry()
        assert entry.last_job_id is None
        assert entry.deferred is not None
        assert entry.deferred.nominal_at == firing.occurrences[0].nominal_at


async def test_an_instant_that_has_its_row_is_not_run_again(tmp_path: Path) -> None:
    """The clock was set back over a run; its schedule continues after it."""
    async with scheduling(tmp_path, 'p: {schedule: {cron: "0 * * * *"}}') as harness:
        firing = await a_firing(harness)
        await harness.clock.advance(hours=1)
        await harness.run_next(ok())
        second_firing = replace(firing, planned_from=await harness.entry())
        assert (await harness.store.fire(second_firing)).status is FireStatus.SKIPPED
        assert await harness.outcomes() == ["11:00:00 ran"]


# -- the breaker


async def read_breaker(harness: SchedulerUnderTest) -> Breaker:
    (row,) = await harness.store.list_breakers()
    return row.breaker


async def open_breaker(harness: SchedulerUnderTest) -> None:
    for _ in range(3):
        await harness.run_next(failed(permanent=True))
        await harness.clock.advance(minutes=10)


BROKEN = "p: {circuit_breaker: {threshold: 3, reset_after: 30m}, schedule: {every: 10m}}"


async def test_an_open_breaker_stops_the_schedule_until_one_probe(tmp_path: Path) -> None:
    """Occurrences are skipped with the reason; then exactly one probe runs and closes the breaker."""
    async with scheduling(tmp_path, BROKEN) as harness:
        await open_breaker(harness)
        await harness.clock.advance(minutes=19)
        assert (await harness.outcomes())[-1] == "10:30:00 skipped x2 breaker_open"
        await harness.clock.advance(minutes=1)
        half_open = await read_breaker(harness)
        assert (half_open.state, half_open.probe_job_id) == (
            BreakerState.HALF_OPEN,
            (await harness.history())[-1].job_id,
        )
        probe = await harness.start_next()
        await harness.clock.advance(minutes=25)
        assert (await harness.outcomes())[-1] == "11:00:00 skipped x2 breaker_half_open"
        await harness.end(probe, ok())
        assert (await read_breaker(harness)).state is BreakerState.CLOSED
        await harness.clock.advance(minutes=10)
        assert (await harness.outcomes())[-1].endswith("ran")


async def test_a_failed_probe_opens_it_again(tmp_path: Path) -> None:
    async with scheduling(tmp_path, BROKEN) as harness:
        await open_breaker(harness)
        await harness.clock.advance(minutes=20)
        await harness.run_next(failed(permanent=True))
        reopened = await read_breaker(harness)
        assert (reopened.state, reopened.opened_at) == (BreakerState.OPEN, harness.clock.now())


async def test_runs_that_are_made_up_for_do_not_flood_a_broken_plugin(tmp_path: Path) -> None:
    """One of a hundred missed runs is the probe."""
    plugins = BROKEN.replace("every: 10m", "every: 10m, catch_up: run_all")
    async with scheduling(tmp_path, plugins) as harness:
        await open_breaker(harness)
    async with scheduling(tmp_path, plugins, clock=clock_at("2026-02-08 11:30")) as harness:
        assert (await harness.store.queue_counts()).depth == 1
        assert (await harness.outcomes())[-1].endswith("breaker_half_open")


async def test_a_person_may_run_what_the_breaker_stops(tmp_path: Path) -> None:
    """A success of that run closes the breaker."""
    async with scheduling(tmp_path, BROKEN) as harness:
        await open_breaker(harness)
        assert await harness.scheduler.run_now("p", "default")
        await harness.run_next(ok())
        assert (await read_breaker(harness)).state is BreakerState.CLOSED


# -- planning again is cheap


@pytest.mark.parametrize("command", ["poll", "handle"])
async def test_jobs_from_other_sources_move_no_schedule(tmp_path: Path, command: str) -> None:
    async with scheduling(
        tmp_path, "p: {schedule: {every: 1h, at: null}, max_outstanding_polls: 2}"
    ) as harness:
        await harness.run_next(ok())
        before = await harness.entry()
        await harness.clock.advance(minutes=5)
        await accept(harness.store, a_new_job("p", command, submitted_detail="default"))
        result = await harness.end(await harness.start_next(), ok())
        assert result.settlement.next_occurrence is None
        assert await harness.entry() == before
