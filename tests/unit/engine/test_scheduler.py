"""The scheduler starts runs on time and accounts for every occurrence, across restarts."""

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


async def refused_run(harness: SchedulerUnderTest, schedule_id: str) -> object:
    """Return the reason why a run on request is refused."""
    with pytest.raises(ConflictError) as excinfo:
        await harness.scheduler.run_now("p", schedule_id)
    return excinfo.value.details["reason"]


# -- every


async def test_an_interval_runs_when_first_seen(tmp_path: Path) -> None:
    """The job has its submitter, its schedule and the payload of the schedule."""
    async with scheduling(tmp_path, "p: {schedules: [{id: a, every: 1h, payload: {n: 1}}]}") as harness:
        job = await harness.start_next()
        assert (job.plugin, job.command, job.payload) == ("p", "poll", {"n": 1})
        assert (job.submitted_by, job.submitted_detail) == (SubmittedBy.SCHEDULER, "a")
        assert await harness.outcomes("a") == ["10:00:00 ran"]
        assert (await harness.entry("a")).next_at == START + HOUR
        assert harness.enqueued == 1


async def test_the_next_run_counts_from_the_end_of_the_last(tmp_path: Path) -> None:
    async with scheduling(tmp_path, HOURLY) as harness:
        job = await harness.start_next()
        await harness.clock.advance(minutes=10)
        await harness.end(job, ok())
        assert (await harness.entry()).next_at == START + HOUR + timedelta(minutes=10)
        await harness.clock.advance(minutes=59)
        assert await harness.outcomes() == ["10:00:00 ran"]
        await harness.clock.advance(minutes=1)
        assert await harness.outcomes() == ["10:00:00 ran", "11:10:00 ran"]


async def test_a_failed_run_moves_its_schedule_when_all_retries_are_over(tmp_path: Path) -> None:
    """A broken plugin does not run at every tick."""
    async with scheduling(tmp_path, "p: {max_attempts: 2, schedule: {every: 1h}}") as harness:
        job = await harness.start_next()
        await harness.clock.advance(minutes=3)
        await harness.end(job, failed())
        assert (await harness.entry()).next_at == START + HOUR
        await harness.clock.advance(minutes=2)
        assert (await harness.store.release_due()).count == 1
        await harness.run_next(failed())
        assert (await harness.entry()).next_at == START + HOUR + timedelta(minutes=5)


async def test_only_the_latest_run_moves_the_schedule(tmp_path: Path) -> None:
    """The end of an older run, and jobs from other sources, do not move the schedule."""
    plugins = "p: {max_outstanding_polls: 9, schedule: {every: 1h, if_running: queue}}"
    async with scheduling(tmp_path, plugins) as harness:
        first = await harness.start_next()
        await harness.clock.advance(minutes=61)
        assert (await harness.entry()).next_at == START + 2 * HOUR
        await harness.end(first, ok())
        assert (await harness.entry()).next_at == START + 2 * HOUR
        await harness.run_next(ok())
        assert (await harness.entry()).next_at == START + 2 * HOUR + timedelta(minutes=1)


async def test_a_run_that_is_still_running_is_not_overtaken(tmp_path: Path) -> None:
    """`if_running: skip` is the default; adjacent skips are one row."""
    async with scheduling(tmp_path, HOURLY) as harness:
        job = await harness.start_next()
        await harness.clock.advance(hours=3, minutes=30)
        assert await harness.outcomes() == ["10:00:00 ran", "11:00:00 skipped x3 running"]
        await harness.end(job, ok())
        await harness.clock.advance(hours=1)
        assert (await harness.outcomes())[-1] == "14:30:00 ran"


async def test_jitter_is_chosen_once_and_kept_over_a_restart(tmp_path: Path) -> None:
    plugins = "p: {schedule: {every: 1h, jitter: 20m}}"
    async with scheduling(tmp_path, plugins) as harness:
        await harness.run_next(ok())
        entry = await harness.entry()
        assert entry.nominal_at == START + HOUR
        assert entry.next_at is not None
        assert entry.next_at != entry.nominal_at
        assert abs(entry.next_at - START - HOUR) <= timedelta(minutes=10)
        clock = harness.clock
    async with scheduling(tmp_path, plugins, clock=clock, seed=99) as harness:
        assert await harness.entry() == entry


async def test_a_replanned_start_that_is_earlier_is_met(tmp_path: Path) -> None:
    """The scheduler wakes at the earlier start."""
    async with scheduling(tmp_path, "p: {schedule: {every: 1m, jitter: 1m}}") as harness:
        for _ in range(5):
            await harness.run_next(ok())
            due = (await harness.entry()).next_at
            assert due is not None
            await harness.clock.advance(seconds=(due - harness.clock.now()).total_seconds())
            assert (await harness.entry()).last_fired_at == due
        assert {row.outcome for row in await harness.history()} == {"ran"}


# -- cron, at, after


async def test_runs_start_when_due_and_not_at_the_next_tick(tmp_path: Path) -> None:
    async with scheduling(
        tmp_path, 'p: {schedule: {cron: "* * * * *"}}', clock=clock_at("2026-02-08 10:00:20")
    ) as harness:
        for _ in range(3):
            await harness.clock.advance(seconds=60)
            await harness.run_next(ok())
        fired_at = [
            row.at for row in await whole_ledger(harness.store) if row.kind is LedgerKind.SCHEDULE_FIRED
        ]
        assert [f"{at:%H:%M:%S.%f}" for at in fired_at] == [f"10:0{n}:00.000000" for n in (1, 2, 3)]


async def test_an_instant_runs_once_for_all_restarts_until_it_is_edited(tmp_path: Path) -> None:
    at_eleven = 'p: {schedule: {at: "2026-02-08T11:00:00Z"}}'
    async with scheduling(tmp_path, at_eleven) as harness:
        await harness.clock.advance(hours=2)
        await harness.run_next(ok())
        clock = harness.clock
    async with scheduling(tmp_path, at_eleven, clock=clock) as harness:
        await clock.advance(hours=1)
        assert await harness.outcomes() == ["11:00:00 ran"]
        await harness.reload('p: {schedule: {at: "2026-02-08T14:00:00Z"}}')
        await clock.advance(hours=2)
        assert await harness.outcomes() == ["11:00:00 ran", "14:00:00 ran"]


async def test_a_delay_is_armed_by_every_start_and_not_by_a_reload(tmp_path: Path) -> None:
    after = "p: {schedule: {after: 10m}}"
    async with scheduling(tmp_path, after) as harness:
        await harness.clock.advance(minutes=10)
        await harness.run_next(ok())
        await harness.reload(f"{after}, q: {{}}")
        await harness.clock.advance(hours=1)
        assert await harness.outcomes() == ["10:10:00 ran"]
        clock = harness.clock
    async with scheduling(tmp_path, after, clock=clock) as harness:
        await clock.advance(minutes=10)
        assert await harness.outcomes() == ["10:10:00 ran", "11:20:00 ran"]


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
    """A missed occurrence runs at the start of the daemon only with `catch_up`; all are in the history."""
    plugins = f'p: {{schedule: {{cron: "0 * * * *", catch_up: {catch_up}}}}}'
    async with scheduling(tmp_path, plugins) as harness:
        clock = harness.clock
    clock = clock_at("2026-02-08 13:30")
    async with scheduling(tmp_path, plugins, clock=clock) as harness:
        assert await harness.outcomes() == expected
        assert (await harness.store.queue_counts()).depth == jobs
        assert (await harness.entry()).next_at == START + 4 * HOUR
        for row in await harness.history():
            assert row.late is None or row.late == clock.now() - row.nominal_at


async def test_runs_that_are_made_up_for_follow_one_another(tmp_path: Path) -> None:
    """The poll guard does not apply, two runs never overlap, and the end of the last one counts."""
    plugins = "p: {schedule: {every: 1h, catch_up: run_all}}"
    async with scheduling(tmp_path, plugins) as harness:
        await harness.run_next(ok())
    clock = clock_at("2026-02-08 13:30")
    async with scheduling(tmp_path, plugins, clock=clock) as harness:
        order = []
        for _ in range(3):
            (job,) = await harness.start_all()
            order.append(job.id)
            await clock.advance(minutes=1)
            await harness.end(job, ok())
        assert order == [row.job_id for row in (await harness.history())[1:]]
        assert (await harness.entry()).next_at == clock.now() + HOUR


async def test_runs_that_are_made_up_for_wait_for_the_one_that_is_left_over(tmp_path: Path) -> None:
    """Neither the run before the downtime nor the poll guard makes the runs skip."""
    plugins = "p: {schedule: {every: 1h, catch_up: run_all}}"
    async with scheduling(tmp_path, plugins) as harness:
        left_over = (await harness.history())[0].job_id
    async with scheduling(tmp_path, plugins, clock=clock_at("2026-02-08 12:30")) as harness:
        assert await harness.outcomes() == ["10:00:00 ran", "11:00:00 late", "12:00:00 late"]
        assert [job.id for job in await harness.start_all()] == [left_over]


async def test_a_crash_after_the_firing_fires_nothing_again(tmp_path: Path) -> None:
    """Occurrence, job and next occurrence are one transaction."""
    async with scheduling(tmp_path, ON_THE_HOUR) as harness:
        await harness.clock.advance(hours=1)
        before = await harness.history()
        clock = harness.clock
    async with scheduling(tmp_path, ON_THE_HOUR, clock=clock) as harness:
        await harness.wake()
        assert await harness.history() == before
        assert len(await harness.start_all()) == 1


# -- pause, resume, run now


async def test_a_pause_survives_a_restart_and_is_accounted_for(tmp_path: Path) -> None:
    """The pause is one row, and the next occurrence after it runs."""
    every_minute = 'p: {schedule: {cron: "* * * * *", catch_up: run_all}}'
    async with scheduling(tmp_path, every_minute) as harness:
        assert await harness.pause()
        await harness.clock.advance(minutes=5, seconds=30)
        clock = harness.clock
    async with scheduling(tmp_path, every_minute, clock=clock) as harness:
        await clock.advance(minutes=5)
        assert await harness.scheduler.resume("p", "default")
        await clock.rest()
        assert await harness.outcomes() == ["10:01:00 skipped x10 paused"]
        await clock.advance(seconds=30)
        assert await harness.outcomes() == ["10:01:00 skipped x10 paused", "10:11:00 ran"]


async def test_a_paused_schedule_is_written_down_once_a_tick(tmp_path: Path) -> None:
    """A paused schedule does not write each second."""
    async with scheduling(tmp_path, "p: {schedule: {every: 1s}}") as harness:
        await harness.run_next(ok())
        await harness.pause()
        await harness.clock.rest()
        await harness.clock.advance(minutes=10)
        skipped = [
            row for row in await whole_ledger(harness.store) if row.kind is LedgerKind.SCHEDULE_SKIPPED
        ]
        assert 5 <= len(skipped) <= 10
        (_, pause) = await harness.history()
        assert pause.count >= 540


async def test_pausing_what_is_not_there(tmp_path: Path) -> None:
    async with scheduling(tmp_path, HOURLY) as harness:
        assert not await harness.pause("nothing")
        assert not await harness.scheduler.resume("unknown", "default")
        assert await refused_run(harness, "nothing") == "unknown_schedule"


async def test_run_now_is_in_the_history_and_an_interval_counts_from_it(tmp_path: Path) -> None:
    async with scheduling(tmp_path, HOURLY) as harness:
        await harness.run_next(ok())
        await harness.clock.advance(minutes=20)
        job_id = await harness.scheduler.run_now("p", "default")
        assert (await harness.entry()).next_at == START + HOUR + timedelta(minutes=20)
        await harness.clock.advance(minutes=5)
        assert (await harness.run_next(ok())).id == job_id
        assert (await harness.entry()).next_at == START + HOUR + timedelta(minutes=25)
        assert await harness.outcomes() == ["10:00:00 ran", "10:20:00 ran run_now"]


async def test_run_now_leaves_a_calendar_alone_and_does_not_ask_about_pauses(tmp_path: Path) -> None:
    async with scheduling(tmp_path, ON_THE_HOUR) as harness:
        await harness.pause()
        assert await harness.scheduler.run_now("p", "default")
        entry = await harness.entry()
        assert (entry.next_at, entry.paused_at) == (START + HOUR, START)


async def test_run_now_is_refused_while_it_runs(tmp_path: Path) -> None:
    """No occurrence is recorded; the caller gets the reason."""
    async with scheduling(tmp_path, HOURLY) as harness:
        before = await whole_ledger(harness.store)
        assert await refused_run(harness, "default") == "running"
        assert await whole_ledger(harness.store) == before
    second = "p: {schedules: [{every: 1h}, {id: b, every: 1w}]}"
    async with scheduling(tmp_path, second) as harness:
        assert await refused_run(harness, "b") == "outstanding_polls"


# -- reload


async def test_a_disabled_plugin_is_not_scheduled_and_keeps_its_place(tmp_path: Path) -> None:
    """A disabled, refused or missing plugin is not scheduled; occurrences in the meantime are missed."""
    async with scheduling(tmp_path, ON_THE_HOUR) as harness:
        await harness.reload('p: {enabled: false, schedule: {cron: "0 * * * *"}}')
        await harness.clock.advance(hours=2, minutes=30)
        assert await harness.outcomes() == []
        await harness.reload(ON_THE_HOUR)
        await harness.clock.advance(minutes=30)
        assert await harness.outcomes() == ["11:00:00 skipped x2 missed", "13:00:00 ran"]


async def test_a_reload_at_the_moment_of_a_run_does_not_lose_it(tmp_path: Path) -> None:
    """An occurrence that was due before the reload is not missed."""
    async with scheduling(tmp_path, ON_THE_HOUR, clock=clock_at("2026-02-08 10:59:59.800")) as harness:
        harness.snapshot = a_snapshot(tmp_path, f"{ON_THE_HOUR}, q: {{}}")
        await harness.clock.set_by(milliseconds=500)
        assert await harness.outcomes() == ["11:00:00 ran"]


async def test_a_plugin_that_is_not_there_is_not_scheduled(tmp_path: Path) -> None:
    async with scheduling(tmp_path, "ghost: {schedule: {every: 1h}}") as harness:
        assert await harness.store.list_schedules() == ()
        assert harness.enqueued == 0


async def test_a_reload_takes_schedules_in_and_out(tmp_path: Path) -> None:
    """Unchanged schedules keep their next occurrence."""
    async with scheduling(tmp_path, HOURLY) as harness:
        await harness.run_next(ok())
        await harness.clock.advance(minutes=30)
        await harness.reload("p: {schedule: {every: 1h}}, q: {schedule: {every: 2h}}")
        assert (await harness.entry()).next_at == START + HOUR
        assert (await harness.entry(plugin="q")).last_fired_at == harness.clock.now()
        await harness.reload("q: {schedule: {every: 2h}}")
        assert [entry.plugin for entry in await harness.store.list_schedules()] == ["q"]


async def test_a_queued_job_of_the_schedule_is_stored_before_anybody_is_woken(tmp_path: Path) -> None:
    async with scheduling(tmp_path, HOURLY) as harness:
        (row,) = await harness.history()
        assert row.job_id is not None
        assert (await stored(harness.store, row.job_id)).status is JobStatus.QUEUED


async def test_a_payload_that_cannot_be_stored_is_a_skip_and_delays_no_schedule(tmp_path: Path) -> None:
    """The occurrence is recorded with its reason; a run on request gets the error."""
    async with scheduling(tmp_path, "q: {schedule: {every: 1h}}") as harness:
        snapshot = a_snapshot(tmp_path, "p: {schedule: {every: 1h}}, q: {schedule: {every: 1h}}")
        plugin = snapshot.plugins["p"]
        # A lone surrogate, as an environment variable can contain: no database stores it.
        schedule = replace(plugin.schedules[0], payload=SecretMap({"text": "\ud800"}, {}))
        plugins = {**snapshot.plugins, "p": replace(plugin, schedules=(schedule,))}
        harness.snapshot = replace(snapshot, plugins=plugins)
        await harness.wake()
        await harness.clock.advance(hours=1)
        assert await harness.outcomes() == ["10:00:00 skipped x2 bad_payload"]
        assert (await harness.entry()).next_at == START + 2 * HOUR
        assert len(await harness.history(plugin="q")) == 2
        with pytest.raises(RefusedError):
            await harness.scheduler.run_now("p", "default")
