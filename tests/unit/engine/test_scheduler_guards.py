"""Overlap, the poll guard and the breaker, decided where nothing can change meanwhile."""

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


async def a_firing(bench: SchedulerUnderTest) -> Firing:
    """What the scheduler would say for a schedule that is due at the next hour."""
    entry = await bench.entry()
    occurrence = next_occurrence_of(entry)
    assert occurrence is not None
    watched = active_schedules(bench.snapshot)["p", "default"]
    now = occurrence.start_at
    plan = plan_due(watched.rule, occurrence, now=now, active_since=START, paused=False, rng=Random(1))
    assert plan is not None
    return firing_of(watched, entry, plan, now=now, rng=Random(1))


# -- overlap


async def test_queue_waits_for_the_run_before(tmp_path: Path) -> None:
    """Every occurrence gets its run, one after the other."""
    plugins = "p: {max_outstanding_polls: 9, schedule: {every: 1h, if_running: queue}}"
    async with scheduling(tmp_path, plugins) as bench:
        first = await bench.start_next()
        await bench.clock.advance(hours=2)
        waiting = [row.job_id for row in (await bench.history())[1:]]
        assert [(await stored(bench.store, job or "")).hold for job in waiting] == [Hold.PREDECESSOR] * 2
        assert await bench.start_all() == []
        await bench.end(first, ok())
        assert [job.id for job in await bench.start_all()] == waiting[:1]


async def test_cancel_kills_the_running_job_and_the_new_one_waits_for_its_end(tmp_path: Path) -> None:
    """Request and new job are one transaction; the old job ends dead/cancelled."""
    async with scheduling(tmp_path, "p: {schedule: {every: 1h, if_running: cancel}}") as bench:
        old = await bench.start_next()
        await bench.clock.advance(hours=1)
        assert bench.stopped == [old.id]
        assert (await stored(bench.store, old.id)).cancel_requested_at == START + HOUR
        new = (await bench.history())[-1].job_id
        assert new is not None
        assert (await stored(bench.store, new)).hold is Hold.PREDECESSOR
        await bench.end(old, ok())
        assert (await path_of(bench.store, old.id))[-1] == "running>dead:cancelled"
        # The end of the replaced run says nothing about the schedule.
        assert (await bench.entry()).next_at == START + 2 * HOUR
        assert [job.id for job in await bench.start_all()] == [new]


async def test_cancel_ends_a_queued_run_at_once(tmp_path: Path) -> None:
    async with scheduling(tmp_path, "p: {schedule: {every: 1h, if_running: cancel}}") as bench:
        (first,) = [row.job_id for row in await bench.history()]
        await bench.clock.advance(hours=1)
        assert first is not None
        old = await stored(bench.store, first)
        assert (old.status, old.reason) == (JobStatus.DEAD, JobReason.CANCELLED)
        assert bench.stopped == []
        assert bench.ended == [first], "its end is reported"
        assert (await bench.entry()).next_at == START + 2 * HOUR
        assert len(await bench.start_all()) == 1


async def test_cancel_ends_everything_that_a_changed_policy_left_behind(tmp_path: Path) -> None:
    """A chain of queued runs, from when the policy was `queue`, does not outlive `cancel`."""
    queue = "p: {max_outstanding_polls: 9, schedule: {every: 1h, if_running: queue}}"
    async with scheduling(tmp_path, queue) as bench:
        running = await bench.start_next()
        await bench.clock.advance(hours=2)
        queued = [row.job_id or "" for row in (await bench.history())[1:]]
        await bench.reload(queue.replace("queue", "cancel"))
        await bench.clock.advance(hours=1)
        assert bench.stopped == [running.id]
        assert set(bench.ended) == set(queued)
        assert {(await stored(bench.store, job)).status for job in queued} == {JobStatus.DEAD}
        assert await bench.start_all() == []
        await bench.end(running, EndedEarly(reason=JobReason.CANCELLED, error="cancelled"))
        assert [job.id for job in await bench.start_all()] == [(await bench.entry()).last_job_id]


# -- the poll guard


async def test_polls_from_every_door_count(tmp_path: Path) -> None:
    """By any submitter, queued or running. One occurrence waits, and runs late."""
    async with scheduling(tmp_path, 'p: {schedule: {cron: "0 * * * *"}}') as bench:
        await accept(bench.store, a_new_job("p", "poll"))
        await bench.clock.advance(hours=1)
        other = await bench.start_next()
        await bench.clock.advance(hours=2)
        assert await bench.outcomes() == ["12:00:00 skipped x2 waiting"]
        await bench.clock.advance(minutes=5)
        await bench.end(other, ok())
        assert await bench.outcomes() == ["12:00:00 skipped x2 waiting", "11:00:00 late outstanding_polls"]
        assert (await bench.history())[-1].late == timedelta(hours=2, minutes=5)
        await bench.run_next(ok())
        await bench.clock.advance(hours=1)
        assert (await bench.outcomes())[-1] == "14:00:00 ran"


async def test_an_occurrence_that_waits_survives_a_restart(tmp_path: Path) -> None:
    plugins = 'p: {schedule: {cron: "0 * * * *"}}'
    async with scheduling(tmp_path, plugins) as bench:
        await accept(bench.store, a_new_job("p", "poll"))
        await bench.clock.advance(hours=1)
        other = await bench.start_next()
    async with scheduling(tmp_path, plugins, clock=clock_at("2026-02-08 11:30")) as bench:
        assert (await bench.outcomes(), (await bench.entry()).deferred is None) == ([], False)
        await bench.end(other, ok())
        assert await bench.outcomes() == ["11:00:00 late outstanding_polls"]


async def test_the_occurrence_that_waits_longest_starts_first(tmp_path: Path) -> None:
    plugins = 'p: {schedules: [{id: a, cron: "30 * * * *"}, {id: b, cron: "10 * * * *"}]}'
    async with scheduling(tmp_path, plugins) as bench:
        await accept(bench.store, a_new_job("p", "poll"))
        await bench.clock.advance(minutes=40)
        await bench.run_next(ok())
        assert (await bench.outcomes("a"), await bench.outcomes("b")) == (
            [],
            ["10:10:00 late outstanding_polls"],
        )
        await bench.run_next(ok())
        assert await bench.outcomes("a") == ["10:30:00 late outstanding_polls"]


@pytest.mark.parametrize(
    ("more", "reason"), [("", "paused"), (', only_between: "08:00-11:30"', "outside_hours")]
)
async def test_an_occurrence_that_may_not_run_any_more_does_not_wait(
    tmp_path: Path, more: str, reason: str
) -> None:
    """It was paused, or its hours are over when the guard is free."""
    async with scheduling(tmp_path, f'p: {{schedule: {{cron: "0 11 * * *"{more}}}}}') as bench:
        await accept(bench.store, a_new_job("p", "poll"))
        await bench.clock.advance(hours=1)
        if reason == "paused":
            await bench.pause()
        await bench.clock.advance(hours=1)
        await bench.run_next(ok())
        assert await bench.outcomes() == [f"11:00:00 skipped {reason}"]
        assert (await bench.entry()).deferred is None


async def test_with_queue_one_run_waits_for_the_one_before(tmp_path: Path) -> None:
    """Its own previous poll fills the guard; only `if_running: skip` skips for that."""
    async with scheduling(tmp_path, "p: {schedule: {every: 1h, if_running: queue}}") as bench:
        first = await bench.start_next()
        await bench.clock.advance(hours=1)
        assert (await bench.entry()).deferred is not None
        await bench.end(first, ok())
        assert await bench.outcomes() == ["10:00:00 ran", "11:00:00 late outstanding_polls"]


async def test_other_commands_and_other_plugins_do_not_count(tmp_path: Path) -> None:
    async with scheduling(tmp_path, 'p: {schedule: {cron: "0 * * * *"}}, q: {}') as bench:
        await accept(bench.store, a_new_job("p", "handle"))
        await accept(bench.store, a_new_job("q", "poll"))
        await bench.clock.advance(hours=1)
        assert await bench.outcomes() == ["11:00:00 ran"]


async def test_two_schedules_at_the_same_instant_do_not_break_the_guard(tmp_path: Path) -> None:
    """Both are planned with no poll outstanding. One runs, the other waits for it and runs then."""
    plugins = 'p: {schedules: [{id: a, cron: "0 * * * *"}, {id: b, cron: "0 * * * *"}]}'
    async with scheduling(tmp_path, plugins) as bench:
        for hour in (11, 12):
            await bench.clock.advance(hours=1)
            assert (await bench.store.queue_counts()).depth == 1
            await bench.run_next(ok())
            assert (await bench.store.queue_counts()).depth == 1
            await bench.run_next(ok())
            last = [(await bench.outcomes("a"))[-1], (await bench.outcomes("b"))[-1]]
            assert last == [f"{hour}:00:00 ran", f"{hour}:00:00 late outstanding_polls"]


# -- the store decides


async def test_a_plan_that_is_overtaken_changes_nothing(tmp_path: Path) -> None:
    """Between planning and firing the schedule was paused, or its run's end has moved it."""
    async with scheduling(tmp_path, "p: {schedule: {every: 1h}}") as bench:
        job = await bench.start_next()
        before_pause = await a_firing(bench)
        await bench.pause()
        assert (await bench.store.fire(before_pause)).status is FireStatus.STALE
        await bench.scheduler.resume("p", "default")
        before_end = await a_firing(bench)
        await bench.clock.advance(minutes=1)
        await bench.end(job, ok())
        assert (await bench.store.fire(before_end)).status is FireStatus.STALE
        await bench.reload("q: {}")
        assert (await bench.store.fire(before_end)).status is FireStatus.STALE
        assert (await bench.store.queue_counts()).depth == 0


async def test_the_same_plan_fires_once(tmp_path: Path) -> None:
    """The second firing finds a moved entry and does nothing."""
    async with scheduling(tmp_path, 'p: {schedule: {cron: "0 * * * *"}}') as bench:
        firing = await a_firing(bench)
        reports = await asyncio.gather(*(bench.store.fire(firing) for _ in range(5)))
        assert sorted(report.status for report in reports) == ["fired", *["stale"] * 4]


async def test_a_run_that_may_not_start_any_more_waits(tmp_path: Path) -> None:
    """A poll came in between planning and firing."""
    async with scheduling(tmp_path, 'p: {schedule: {cron: "0 * * * *"}}') as bench:
        firing = await a_firing(bench)
        await accept(bench.store, a_new_job("p", "poll"))
        assert (await bench.store.fire(firing)).status is FireStatus.DEFERRED
        assert await bench.outcomes() == []
        entry = await bench.entry()
        assert entry.last_job_id is None
        assert entry.deferred is not None
        assert entry.deferred.nominal_at == firing.occurrences[0].nominal_at


async def test_an_instant_that_has_its_row_is_not_run_again(tmp_path: Path) -> None:
    """The clock was set back over a run; its schedule moves on past it."""
    async with scheduling(tmp_path, 'p: {schedule: {cron: "0 * * * *"}}') as bench:
        firing = await a_firing(bench)
        await bench.clock.advance(hours=1)
        await bench.run_next(ok())
        again = replace(firing, planned_from=await bench.entry())
        assert (await bench.store.fire(again)).status is FireStatus.SKIPPED
        assert await bench.outcomes() == ["11:00:00 ran"]


# -- the breaker


async def breaker(bench: SchedulerUnderTest) -> Breaker:
    (row,) = await bench.store.list_breakers()
    return row.breaker


async def opened(bench: SchedulerUnderTest) -> None:
    for _ in range(3):
        await bench.run_next(failed(permanent=True))
        await bench.clock.advance(minutes=10)


BROKEN = "p: {circuit_breaker: {threshold: 3, reset_after: 30m}, schedule: {every: 10m}}"


async def test_an_open_breaker_stops_the_schedule_until_one_probe(tmp_path: Path) -> None:
    """Skipped with the reason, then exactly one probe, then closed."""
    async with scheduling(tmp_path, BROKEN) as bench:
        await opened(bench)
        await bench.clock.advance(minutes=19)
        assert (await bench.outcomes())[-1] == "10:30:00 skipped x2 breaker_open"
        await bench.clock.advance(minutes=1)
        half = await breaker(bench)
        assert (half.state, half.probe_job_id) == (BreakerState.HALF_OPEN, (await bench.history())[-1].job_id)
        probe = await bench.start_next()
        await bench.clock.advance(minutes=25)
        assert (await bench.outcomes())[-1] == "11:00:00 skipped x2 breaker_half_open"
        await bench.end(probe, ok())
        assert (await breaker(bench)).state is BreakerState.CLOSED
        await bench.clock.advance(minutes=10)
        assert (await bench.outcomes())[-1].endswith("ran")


async def test_a_failed_probe_opens_it_again(tmp_path: Path) -> None:
    async with scheduling(tmp_path, BROKEN) as bench:
        await opened(bench)
        await bench.clock.advance(minutes=20)
        await bench.run_next(failed(permanent=True))
        again = await breaker(bench)
        assert (again.state, again.opened_at) == (BreakerState.OPEN, bench.clock.now())


async def test_runs_that_are_made_up_for_do_not_flood_a_broken_plugin(tmp_path: Path) -> None:
    """Of a hundred missed runs one is the probe."""
    plugins = BROKEN.replace("every: 10m", "every: 10m, catch_up: run_all")
    async with scheduling(tmp_path, plugins) as bench:
        await opened(bench)
    async with scheduling(tmp_path, plugins, clock=clock_at("2026-02-08 11:30")) as bench:
        assert (await bench.store.queue_counts()).depth == 1
        assert (await bench.outcomes())[-1].endswith("breaker_half_open")


async def test_a_person_may_run_what_the_breaker_stops(tmp_path: Path) -> None:
    """And a success of that run closes it."""
    async with scheduling(tmp_path, BROKEN) as bench:
        await opened(bench)
        assert await bench.scheduler.run_now("p", "default")
        await bench.run_next(ok())
        assert (await breaker(bench)).state is BreakerState.CLOSED


# -- planning again is cheap


@pytest.mark.parametrize("command", ["poll", "handle"])
async def test_jobs_from_other_doors_move_no_schedule(tmp_path: Path, command: str) -> None:
    async with scheduling(
        tmp_path, "p: {schedule: {every: 1h, at: null}, max_outstanding_polls: 2}"
    ) as bench:
        await bench.run_next(ok())
        before = await bench.entry()
        await bench.clock.advance(minutes=5)
        await accept(bench.store, a_new_job("p", command, submitted_detail="default"))
        settled = await bench.end(await bench.start_next(), ok())
        assert settled.settlement.next_occurrence is None
        assert await bench.entry() == before
