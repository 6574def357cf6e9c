"""The scheduler at work: due on time, everything accounted for, across restarts."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest

from builders.jobs import START, failed, ok
from builders.scheduling import SchedulerUnderTest, a_snapshot, clock_at, scheduling
from builders.stores import stored, whole_ledger
from ductile.config.secrets import SecretMap
from ductile.core.jobs.model import JobStatus, LedgerKind, SubmittedBy
from ductile.errors import ConflictError, RefusedError
from ductile.struct import replace

HOUR = timedelta(hours=1)
HOURLY = "p: {schedule: {every: 1h}}"
ON_THE_HOUR = 'p: {schedule: {cron: "0 * * * *"}}'


async def refused_run(bench: SchedulerUnderTest, schedule_id: str) -> object:
    """The reason why a run on request is refused."""
    with pytest.raises(ConflictError) as refused:
        await bench.scheduler.run_now("p", schedule_id)
    return refused.value.details["reason"]


# -- every


async def test_an_interval_runs_when_first_seen(tmp_path: Path) -> None:
    """The job says who submitted it, for which schedule, and with which payload."""
    async with scheduling(tmp_path, "p: {schedules: [{id: a, every: 1h, payload: {n: 1}}]}") as bench:
        job = await bench.start_next()
        assert (job.plugin, job.command, job.payload) == ("p", "poll", {"n": 1})
        assert (job.submitted_by, job.submitted_detail) == (SubmittedBy.SCHEDULER, "a")
        assert await bench.outcomes("a") == ["10:00:00 ran"]
        assert (await bench.entry("a")).next_at == START + HOUR
        assert bench.enqueued == 1


async def test_the_next_run_counts_from_the_end_of_the_last(tmp_path: Path) -> None:
    async with scheduling(tmp_path, HOURLY) as bench:
        job = await bench.start_next()
        await bench.clock.advance(minutes=10)
        await bench.end(job, ok())
        assert (await bench.entry()).next_at == START + HOUR + timedelta(minutes=10)
        await bench.clock.advance(minutes=59)
        assert await bench.outcomes() == ["10:00:00 ran"]
        await bench.clock.advance(minutes=1)
        assert await bench.outcomes() == ["10:00:00 ran", "11:10:00 ran"]


async def test_a_failed_run_moves_its_schedule_when_all_retries_are_over(tmp_path: Path) -> None:
    """A broken plugin never runs at every tick."""
    async with scheduling(tmp_path, "p: {max_attempts: 2, schedule: {every: 1h}}") as bench:
        job = await bench.start_next()
        await bench.clock.advance(minutes=3)
        await bench.end(job, failed())
        assert (await bench.entry()).next_at == START + HOUR
        await bench.clock.advance(minutes=2)
        assert (await bench.store.release_due()).count == 1
        await bench.run_next(failed())
        assert (await bench.entry()).next_at == START + HOUR + timedelta(minutes=5)


async def test_only_the_latest_run_moves_the_schedule(tmp_path: Path) -> None:
    """The end of an older run, and jobs from other sources, leave it where it is."""
    plugins = "p: {max_outstanding_polls: 9, schedule: {every: 1h, if_running: queue}}"
    async with scheduling(tmp_path, plugins) as bench:
        first = await bench.start_next()
        await bench.clock.advance(minutes=61)
        assert (await bench.entry()).next_at == START + 2 * HOUR
        await bench.end(first, ok())
        assert (await bench.entry()).next_at == START + 2 * HOUR
        await bench.run_next(ok())
        assert (await bench.entry()).next_at == START + 2 * HOUR + timedelta(minutes=1)


async def test_a_run_that_is_still_running_is_not_overtaken(tmp_path: Path) -> None:
    """If_running skip is the default; adjacent skips are one row."""
    async with scheduling(tmp_path, HOURLY) as bench:
        job = await bench.start_next()
        await bench.clock.advance(hours=3, minutes=30)
        assert await bench.outcomes() == ["10:00:00 ran", "11:00:00 skipped x3 running"]
        await bench.end(job, ok())
        await bench.clock.advance(hours=1)
        assert (await bench.outcomes())[-1] == "14:30:00 ran"


async def test_jitter_is_chosen_once_and_kept_over_a_restart(tmp_path: Path) -> None:
    plugins = "p: {schedule: {every: 1h, jitter: 20m}}"
    async with scheduling(tmp_path, plugins) as bench:
        await bench.run_next(ok())
        planned = await bench.entry()
        assert planned.nominal_at == START + HOUR
        assert planned.next_at is not None
        assert planned.next_at != planned.nominal_at
        assert abs(planned.next_at - START - HOUR) <= timedelta(minutes=10)
        clock = bench.clock
    async with scheduling(tmp_path, plugins, clock=clock, seed=99) as bench:
        assert await bench.entry() == planned


async def test_a_replanned_start_that_is_earlier_is_met(tmp_path: Path) -> None:
    """The scheduler does not sleep past it."""
    async with scheduling(tmp_path, "p: {schedule: {every: 1m, jitter: 1m}}") as bench:
        for _ in range(5):
            await bench.run_next(ok())
            due = (await bench.entry()).next_at
            assert due is not None
            await bench.clock.advance(seconds=(due - bench.clock.now()).total_seconds())
            assert (await bench.entry()).last_fired_at == due
        assert {row.outcome for row in await bench.history()} == {"ran"}


# -- cron, at, after


async def test_runs_start_when_due_and_not_at_the_next_tick(tmp_path: Path) -> None:
    async with scheduling(
        tmp_path, 'p: {schedule: {cron: "* * * * *"}}', clock=clock_at("2026-02-08 10:00:20")
    ) as bench:
        for _ in range(3):
            await bench.clock.advance(seconds=60)
            await bench.run_next(ok())
        fired = [row.at for row in await whole_ledger(bench.store) if row.kind is LedgerKind.SCHEDULE_FIRED]
        assert [f"{at:%H:%M:%S.%f}" for at in fired] == [f"10:0{n}:00.000000" for n in (1, 2, 3)]


async def test_an_instant_runs_once_for_all_restarts_until_it_is_edited(tmp_path: Path) -> None:
    at_eleven = 'p: {schedule: {at: "2026-02-08T11:00:00Z"}}'
    async with scheduling(tmp_path, at_eleven) as bench:
        await bench.clock.advance(hours=2)
        await bench.run_next(ok())
        clock = bench.clock
    async with scheduling(tmp_path, at_eleven, clock=clock) as bench:
        await clock.advance(hours=1)
        assert await bench.outcomes() == ["11:00:00 ran"]
        await bench.reload('p: {schedule: {at: "2026-02-08T14:00:00Z"}}')
        await clock.advance(hours=2)
        assert await bench.outcomes() == ["11:00:00 ran", "14:00:00 ran"]


async def test_a_delay_is_armed_by_every_start_and_not_by_a_reload(tmp_path: Path) -> None:
    after = "p: {schedule: {after: 10m}}"
    async with scheduling(tmp_path, after) as bench:
        await bench.clock.advance(minutes=10)
        await bench.run_next(ok())
        await bench.reload(f"{after}, q: {{}}")
        await bench.clock.advance(hours=1)
        assert await bench.outcomes() == ["10:10:00 ran"]
        clock = bench.clock
    async with scheduling(tmp_path, after, clock=clock) as bench:
        await clock.advance(minutes=10)
        assert await bench.outcomes() == ["10:10:00 ran", "11:20:00 ran"]


# -- downtime


@pytest.mark.parametrize(
    ("catch_up", "expected", "jobs"),
    [
        ("skip", ["11:00:00 skipped x3 missed"], 0),
        ("run_once", ["11:00:00 skipped x2 missed", "13:00:00 late"], 1),
        ("run_all", ["11:00:00 late", "12:00:00 late", "13:00:00 late"], 3),
    ],
)
async def test_occurrences_missed_in_a_downtime_are_recorded(
    tmp_path: Path, catch_up: str, expected: list[str], jobs: int
) -> None:
    """Nothing runs at boot unless it is to be made up for; all of it is in the history."""
    plugins = f'p: {{schedule: {{cron: "0 * * * *", catch_up: {catch_up}}}}}'
    async with scheduling(tmp_path, plugins) as bench:
        clock = bench.clock
    clock = clock_at("2026-02-08 13:30")
    async with scheduling(tmp_path, plugins, clock=clock) as bench:
        assert await bench.outcomes() == expected
        assert (await bench.store.queue_counts()).depth == jobs
        assert (await bench.entry()).next_at == START + 4 * HOUR
        for row in await bench.history():
            assert row.late is None or row.late == clock.now() - row.nominal_at


async def test_runs_that_are_made_up_for_follow_one_another(tmp_path: Path) -> None:
    """Outside the poll guard, and never two at a time; the last one's end counts."""
    plugins = "p: {schedule: {every: 1h, catch_up: run_all}}"
    async with scheduling(tmp_path, plugins) as bench:
        await bench.run_next(ok())
    clock = clock_at("2026-02-08 13:30")
    async with scheduling(tmp_path, plugins, clock=clock) as bench:
        order = []
        for _ in range(3):
            (job,) = await bench.start_all()
            order.append(job.id)
            await clock.advance(minutes=1)
            await bench.end(job, ok())
        assert order == [row.job_id for row in (await bench.history())[1:]]
        assert (await bench.entry()).next_at == clock.now() + HOUR


async def test_runs_that_are_made_up_for_wait_for_the_one_that_is_left_over(tmp_path: Path) -> None:
    """Neither the run before the downtime nor the poll guard makes them skip."""
    plugins = "p: {schedule: {every: 1h, catch_up: run_all}}"
    async with scheduling(tmp_path, plugins) as bench:
        left_over = (await bench.history())[0].job_id
    async with scheduling(tmp_path, plugins, clock=clock_at("2026-02-08 12:30")) as bench:
        assert await bench.outcomes() == ["10:00:00 ran", "11:00:00 late", "12:00:00 late"]
        assert [job.id for job in await bench.start_all()] == [left_over]


async def test_a_crash_after_the_firing_fires_nothing_again(tmp_path: Path) -> None:
    """Occurrence, job and next are one transaction."""
    async with scheduling(tmp_path, ON_THE_HOUR) as bench:
        await bench.clock.advance(hours=1)
        before = await bench.history()
        clock = bench.clock
    async with scheduling(tmp_path, ON_THE_HOUR, clock=clock) as bench:
        await bench.wake()
        assert await bench.history() == before
        assert len(await bench.start_all()) == 1


# -- pause, resume, run now


async def test_a_pause_survives_a_restart_and_is_accounted_for(tmp_path: Path) -> None:
    """One row for all of it, and the next occurrence after the resumption runs."""
    every_minute = 'p: {schedule: {cron: "* * * * *", catch_up: run_all}}'
    async with scheduling(tmp_path, every_minute) as bench:
        assert await bench.pause()
        await bench.clock.advance(minutes=5, seconds=30)
        clock = bench.clock
    async with scheduling(tmp_path, every_minute, clock=clock) as bench:
        await clock.advance(minutes=5)
        assert await bench.scheduler.resume("p", "default")
        await clock.rest()
        assert await bench.outcomes() == ["10:01:00 skipped x10 paused"]
        await clock.advance(seconds=30)
        assert await bench.outcomes() == ["10:01:00 skipped x10 paused", "10:11:00 ran"]


async def test_a_paused_schedule_is_written_down_once_a_tick(tmp_path: Path) -> None:
    """A paused schedule does not write each second."""
    async with scheduling(tmp_path, "p: {schedule: {every: 1s}}") as bench:
        await bench.run_next(ok())
        await bench.pause()
        await bench.clock.rest()
        await bench.clock.advance(minutes=10)
        skipped = [row for row in await whole_ledger(bench.store) if row.kind is LedgerKind.SCHEDULE_SKIPPED]
        assert 5 <= len(skipped) <= 10
        (_, pause) = await bench.history()
        assert pause.count >= 540


async def test_pausing_what_is_not_there(tmp_path: Path) -> None:
    async with scheduling(tmp_path, HOURLY) as bench:
        assert not await bench.pause("nothing")
        assert not await bench.scheduler.resume("unknown", "default")
        assert await refused_run(bench, "nothing") == "unknown_schedule"


async def test_run_now_is_in_the_history_and_an_interval_counts_from_it(tmp_path: Path) -> None:
    async with scheduling(tmp_path, HOURLY) as bench:
        await bench.run_next(ok())
        await bench.clock.advance(minutes=20)
        job_id = await bench.scheduler.run_now("p", "default")
        assert (await bench.entry()).next_at == START + HOUR + timedelta(minutes=20)
        await bench.clock.advance(minutes=5)
        assert (await bench.run_next(ok())).id == job_id
        assert (await bench.entry()).next_at == START + HOUR + timedelta(minutes=25)
        assert await bench.outcomes() == ["10:00:00 ran", "10:20:00 ran run_now"]


async def test_run_now_leaves_a_calendar_alone_and_does_not_ask_about_pauses(tmp_path: Path) -> None:
    async with scheduling(tmp_path, ON_THE_HOUR) as bench:
        await bench.pause()
        assert await bench.scheduler.run_now("p", "default")
        entry = await bench.entry()
        assert (entry.next_at, entry.paused_at) == (START + HOUR, START)


async def test_run_now_is_refused_while_it_runs(tmp_path: Path) -> None:
    """Nothing is recorded but the answer."""
    async with scheduling(tmp_path, HOURLY) as bench:
        before = await whole_ledger(bench.store)
        assert await refused_run(bench, "default") == "running"
        assert await whole_ledger(bench.store) == before
    second = "p: {schedules: [{every: 1h}, {id: b, every: 1w}]}"
    async with scheduling(tmp_path, second) as bench:
        assert await refused_run(bench, "b") == "outstanding_polls"


# -- reload


async def test_a_disabled_plugin_is_not_scheduled_and_keeps_its_place(tmp_path: Path) -> None:
    """Disabled, refused or missing; what fell due meanwhile was missed."""
    async with scheduling(tmp_path, ON_THE_HOUR) as bench:
        await bench.reload('p: {enabled: false, schedule: {cron: "0 * * * *"}}')
        await bench.clock.advance(hours=2, minutes=30)
        assert await bench.outcomes() == []
        await bench.reload(ON_THE_HOUR)
        await bench.clock.advance(minutes=30)
        assert await bench.outcomes() == ["11:00:00 skipped x2 missed", "13:00:00 ran"]


async def test_a_reload_at_the_moment_of_a_run_does_not_lose_it(tmp_path: Path) -> None:
    """What was looked after before the reload has not been missed."""
    async with scheduling(tmp_path, ON_THE_HOUR, clock=clock_at("2026-02-08 10:59:59.800")) as bench:
        bench.snapshot = a_snapshot(tmp_path, f"{ON_THE_HOUR}, q: {{}}")
        await bench.clock.set_by(milliseconds=500)
        assert await bench.outcomes() == ["11:00:00 ran"]


async def test_a_plugin_that_is_not_there_is_not_scheduled(tmp_path: Path) -> None:
    async with scheduling(tmp_path, "ghost: {schedule: {every: 1h}}") as bench:
        assert await bench.store.list_schedules() == ()
        assert bench.enqueued == 0


async def test_a_reload_takes_schedules_in_and_out(tmp_path: Path) -> None:
    """Unchanged schedules keep their next occurrence."""
    async with scheduling(tmp_path, HOURLY) as bench:
        await bench.run_next(ok())
        await bench.clock.advance(minutes=30)
        await bench.reload("p: {schedule: {every: 1h}}, q: {schedule: {every: 2h}}")
        assert (await bench.entry()).next_at == START + HOUR
        assert (await bench.entry(plugin="q")).last_fired_at == bench.clock.now()
        await bench.reload("q: {schedule: {every: 2h}}")
        assert [entry.plugin for entry in await bench.store.list_schedules()] == ["q"]


async def test_a_queued_job_of_the_schedule_is_stored_before_anybody_is_woken(tmp_path: Path) -> None:
    async with scheduling(tmp_path, HOURLY) as bench:
        (row,) = await bench.history()
        assert row.job_id is not None
        assert (await stored(bench.store, row.job_id)).status is JobStatus.QUEUED


async def test_a_payload_that_cannot_be_stored_is_a_skip_and_delays_no_schedule(tmp_path: Path) -> None:
    """The occurrence is recorded with its reason; a run on request gets the error."""
    async with scheduling(tmp_path, "q: {schedule: {every: 1h}}") as bench:
        wanted = a_snapshot(tmp_path, "p: {schedule: {every: 1h}}, q: {schedule: {every: 1h}}")
        plugin = wanted.plugins["p"]
        # Half a character, as a variable of the environment can hold it: no database takes it.
        unfit = replace(plugin.schedules[0], payload=SecretMap({"text": "\ud800"}, {}))
        plugins = {**wanted.plugins, "p": replace(plugin, schedules=(unfit,))}
        bench.snapshot = replace(wanted, plugins=plugins)
        await bench.wake()
        await bench.clock.advance(hours=1)
        assert await bench.outcomes() == ["10:00:00 skipped x2 bad_payload"]
        assert (await bench.entry()).next_at == START + 2 * HOUR
        assert len(await bench.history(plugin="q")) == 2
        with pytest.raises(RefusedError):
            await bench.scheduler.run_now("p", "default")
