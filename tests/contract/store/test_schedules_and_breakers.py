"""Schedules with their occurrences, and circuit breakers."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import pytest

from builders.jobs import START, Clock, a_new_job, failed, ok
from builders.pipelines import policy_of, uses
from builders.stores import (
    POLICY,
    StoreFactory,
    accept,
    claim_all,
    claim_one,
    run_next,
    settle,
    stored,
    whole_ledger,
)
from ductile.core.jobs.failures import Breaker, BreakerPolicy, BreakerState
from ductile.core.jobs.model import (
    JobReason,
    JobStatus,
    LedgerKind,
    NewJob,
    Outcome,
    Requeued,
    SubmittedBy,
)
from ductile.core.policy import PluginPolicy, Policy
from ductile.core.schedules.admission import StartConditions
from ductile.core.schedules.planner import Occurrence, OccurrenceOutcome
from ductile.core.schedules.rule import Every, IfRunning, PlannedOccurrence, ScheduleRule
from ductile.store.model.maintenance import Retention
from ductile.store.model.records import JobFilter
from ductile.store.model.schedules import FireStatus, Firing, ScheduleEntry
from ductile.store.port import Store
from ductile.struct import replace

HOUR = timedelta(hours=1)


def an_entry(**fields: Any) -> ScheduleEntry:
    defaults: dict[str, Any] = {
        "plugin": "p",
        "schedule_id": "default",
        "fingerprint": "every 1h",
        "next_at": START,
        "nominal_at": START,
    }
    return ScheduleEntry(**(defaults | fields))


def a_scheduled_job(**fields: Any) -> NewJob:
    return a_new_job("p", "poll", submitted_by=SubmittedBy.SCHEDULER, **fields)


def a_firing(nominal: datetime, job: NewJob, **fields: Any) -> Firing:
    occurrence = Occurrence(
        plugin="p", schedule_id="default", nominal_at=nominal, outcome=OccurrenceOutcome.RAN, job_id=job.id
    )
    following = an_entry(next_at=nominal + HOUR, nominal_at=nominal + HOUR)
    defaults: dict[str, Any] = {"entry": following, "occurrences": (occurrence,), "job": job}
    return Firing(**(defaults | fields))


def a_skip(nominal: datetime, reason: str = "running", *, count: int = 1) -> Firing:
    until = nominal + (count - 1) * HOUR
    occurrence = Occurrence(
        plugin="p",
        schedule_id="default",
        nominal_at=nominal,
        until_at=until,
        count=count,
        outcome=OccurrenceOutcome.SKIPPED,
        reason=reason,
    )
    return Firing(entry=an_entry(next_at=until + HOUR, nominal_at=until + HOUR), occurrences=(occurrence,))


async def history(store: Store) -> list[Occurrence]:
    """Return the occurrences, oldest first."""
    return list(reversed((await store.list_occurrences("p", "default", limit=200)).rows))


async def test_schedules_are_listed_and_removed(store: Store) -> None:
    entries = [an_entry(schedule_id=name) for name in ("b", "a")]
    await store.put_schedules(entries)
    assert await store.list_schedules() == tuple(replace(entry, defined_at=START) for entry in entries[::-1])
    await store.put_schedules(entries[:1])
    assert await store.list_schedules() == (replace(entries[0], defined_at=START),)
    await store.put_schedules([])
    assert await store.list_schedules() == ()


async def test_a_known_schedule_keeps_its_place(store: Store) -> None:
    await store.put_schedules([an_entry()])
    job = a_scheduled_job()
    await store.fire(a_firing(START, job))
    await store.put_schedules([an_entry(next_at=None, nominal_at=None)])
    (entry,) = await store.list_schedules()
    assert (entry.next_at, entry.last_job_id) == (START + HOUR, job.id)


async def test_an_edited_schedule_starts_anew_but_stays_paused(store: Store, clock: Clock) -> None:
    await store.put_schedules([an_entry()])
    await store.pause_schedule("p", "default", paused=True)
    clock.advance(minutes=1)
    await store.put_schedules([an_entry()])
    assert [entry.defined_at for entry in await store.list_schedules()] == [START], "it is as it was"
    await store.put_schedules([an_entry(fingerprint="every 2h", next_at=START + 2 * HOUR)])
    (entry,) = await store.list_schedules()
    assert (entry.fingerprint, entry.next_at) == ("every 2h", START + 2 * HOUR)
    assert entry.defined_at == clock.now
    assert entry.paused_at is not None


async def test_firing_is_occurrence_job_and_next_together(store: Store, clock: Clock) -> None:
    await store.put_schedules([an_entry()])
    job = a_scheduled_job(submitted_detail="default")
    assert (await store.fire(a_firing(START, job))).status is FireStatus.FIRED
    assert (await stored(store, job.id)).submitted_by is SubmittedBy.SCHEDULER
    (entry,) = await store.list_schedules()
    assert (entry.next_at, entry.nominal_at) == (START + HOUR, START + HOUR)
    assert (entry.last_job_id, entry.last_fired_at) == (job.id, clock.now)
    (occurrence,) = await history(store)
    assert (occurrence.nominal_at, occurrence.outcome, occurrence.job_id) == (
        START,
        OccurrenceOutcome.RAN,
        job.id,
    )
    fired = [row for row in await whole_ledger(store) if row.kind is LedgerKind.SCHEDULE_FIRED]
    assert [row.job_id for row in fired] == [job.id]


async def test_a_firing_repeated_after_a_crash_changes_nothing(store_factory: StoreFactory) -> None:
    """The nominal time identifies an occurrence."""
    store = await store_factory.open()
    await store.put_schedules([an_entry()])
    await store.fire(a_firing(START, a_scheduled_job()))
    store = await store_factory.reopen()
    before = await whole_ledger(store)
    second_job = a_scheduled_job()
    repeated = replace(a_firing(START, second_job), entry=an_entry(next_at=START + 9 * HOUR))
    assert (await store.fire(repeated)).status is FireStatus.ALREADY_FIRED
    assert await store.get_job(second_job.id) is None
    assert (await store.list_schedules())[0].next_at == START + HOUR
    assert await whole_ledger(store) == before


async def test_lateness_is_kept(store: Store) -> None:
    await store.put_schedules([an_entry()])
    job = a_scheduled_job()
    late = Occurrence(
        plugin="p",
        schedule_id="default",
        nominal_at=START,
        outcome=OccurrenceOutcome.LATE,
        job_id=job.id,
        late=timedelta(seconds=90, milliseconds=5),
    )
    await store.fire(a_firing(START, job, occurrences=(late,)))
    (occurrence,) = await history(store)
    assert (occurrence.outcome, occurrence.late) == (OccurrenceOutcome.LATE, late.late)


async def test_adjacent_skips_for_one_reason_are_one_row(store: Store) -> None:
    """The row has the first and the last nominal time and the count."""
    await store.put_schedules([an_entry()])
    for hour, reason, count in ((0, "running", 1), (1, "running", 3), (4, "window", 1), (5, "running", 1)):
        report = await store.fire(a_skip(START + hour * HOUR, reason, count=count))
        assert report.status is FireStatus.SKIPPED
    assert [(row.nominal_at, row.until_at, row.count, row.reason) for row in await history(store)] == [
        (START, START + 3 * HOUR, 4, "running"),
        (START + 4 * HOUR, START + 4 * HOUR, 1, "window"),
        (START + 5 * HOUR, START + 5 * HOUR, 1, "running"),
    ]
    skipped = [row for row in await whole_ledger(store) if row.kind is LedgerKind.SCHEDULE_SKIPPED]
    assert [row.data["count"] for row in skipped] == [1, 3, 1, 1]


async def test_a_run_between_keeps_skips_apart(store: Store) -> None:
    await store.put_schedules([an_entry()])
    await store.fire(a_skip(START))
    await store.fire(a_firing(START + HOUR, a_scheduled_job()))
    await store.fire(a_skip(START + 2 * HOUR))
    assert [row.outcome for row in await history(store)] == ["skipped", "ran", "skipped"]


@pytest.mark.parametrize("hour", [0, 1, 3])
async def test_an_instant_inside_a_merged_skip_is_accounted_for(store: Store, hour: int) -> None:
    """A skip that is repeated after a crash is found although it has no row of its own."""
    await store.put_schedules([an_entry()])
    await store.fire(a_skip(START))
    await store.fire(a_skip(START + HOUR, count=3))
    assert (await store.fire(a_skip(START + hour * HOUR))).status is FireStatus.ALREADY_FIRED
    (row,) = await history(store)
    assert row.count == 4


async def test_a_skip_before_the_last_row_takes_no_coverage_away(store: Store) -> None:
    """An occurrence of an earlier instant, after the clock went back, does not shorten a later row."""
    await store.put_schedules([an_entry()])
    await store.fire(a_skip(START + 5 * HOUR, count=3))
    await store.fire(a_skip(START))
    covered = [(row.nominal_at, row.until_at) for row in await history(store)]
    assert (START + 5 * HOUR, START + 7 * HOUR) in covered


async def test_skips_of_another_schedule_are_another_row(store: Store) -> None:
    await store.put_schedules([an_entry(), an_entry(schedule_id="b")])
    await store.fire(a_skip(START))
    skip = a_skip(START + HOUR)
    moved = replace(skip.occurrences[0], schedule_id="b")
    await store.fire(replace(skip, entry=an_entry(schedule_id="b"), occurrences=(moved,)))
    assert len(await history(store)) == 1


async def test_pauses_survive_a_restart(store_factory: StoreFactory) -> None:
    store = await store_factory.open()
    await store.put_schedules([an_entry()])
    assert await store.pause_schedule("p", "default", paused=True)
    store = await store_factory.reopen()
    assert (await store.list_schedules())[0].paused_at == store_factory.clock.now
    assert await store.pause_schedule("p", "default", paused=False)
    assert (await store.list_schedules())[0].paused_at is None
    assert not await store.pause_schedule("p", "nothing", paused=True)
    kinds = [row.kind for row in await whole_ledger(store)]
    assert kinds == [LedgerKind.SCHEDULE_PAUSED, LedgerKind.SCHEDULE_RESUMED]


async def test_occurrences_page_newest_first(store: Store) -> None:
    await store.put_schedules([an_entry()])
    for hour in range(5):
        await store.fire(a_firing(START + hour * HOUR, a_scheduled_job()))
    rows: list[Occurrence] = []
    cursor: str | None = None
    for _ in range(3):
        page = await store.list_occurrences("p", "default", limit=2, cursor=cursor)
        rows += page.rows
        cursor = page.next_cursor
    assert [row.nominal_at for row in rows] == [START + hour * HOUR for hour in (4, 3, 2, 1, 0)]
    assert cursor is None


async def test_an_occurrence_tells_how_its_job_stands(store: Store, clock: Clock) -> None:
    """When the job has left the queue, the status is that of its last execution."""
    await store.put_schedules([an_entry()])
    await store.fire(a_firing(START, a_scheduled_job()))
    assert [row.job_status for row in await history(store)] == ["queued"]
    await run_next(store, failed(permanent=True))
    await store.fire(a_firing(START + HOUR, a_scheduled_job()))
    await run_next(store, ok())
    await store.fire(a_firing(START + 2 * HOUR, a_scheduled_job()))
    await store.fire(a_skip(START + 3 * HOUR))
    assert [row.job_status for row in await history(store)] == ["failed", "succeeded", "queued", None]
    clock.advance(days=2)
    await store.prune(Retention())
    assert [row.job_status for row in await history(store)] == ["failed", "succeeded", "queued", None]


# ------------------------------------------------------------------------------------------ breakers


async def fail_scheduled(store: Store, count: int) -> list[str]:
    ids = []
    for _ in range(count):
        ids.append(await accept(store, a_scheduled_job(max_attempts=1)))
        await run_next(store, failed())
    return ids


async def breaker(store: Store) -> Breaker:
    (row,) = await store.list_breakers()
    assert (row.plugin, row.command) == ("p", "poll")
    return row.breaker


async def test_three_failed_jobs_open_the_breaker(store: Store, clock: Clock) -> None:
    """The jobs failed one after the other. Each change is recorded with its reason."""
    ids = await fail_scheduled(store, 2)
    assert (await breaker(store)).state is BreakerState.CLOSED
    ids += await fail_scheduled(store, 1)
    opened = await breaker(store)
    assert (opened.state, opened.failures, opened.opened_at) == (BreakerState.OPEN, 3, clock.now)
    assert opened.last_job_id == ids[-1]
    (change,) = await store.breaker_history("p", limit=9)
    assert (change.from_state, change.to_state, change.reason, change.job_id) == (
        "closed",
        "open",
        "failure_threshold",
        ids[-1],
    )
    entry = next(row for row in await whole_ledger(store) if row.kind is LedgerKind.BREAKER_CHANGED)
    assert (entry.data["from"], entry.data["to"]) == ("closed", "open")


async def test_a_success_starts_the_count_again(store: Store) -> None:
    await fail_scheduled(store, 2)
    await accept(store, a_scheduled_job())
    await run_next(store, ok())
    await fail_scheduled(store, 2)
    assert (await breaker(store)).state is BreakerState.CLOSED


async def test_jobs_of_other_sources_do_not_count(store: Store) -> None:
    for _ in range(4):
        await accept(store, a_new_job("p", "poll", max_attempts=1))
        await run_next(store, failed())
    assert await store.list_breakers() == ()


async def test_a_retry_is_no_verdict(store: Store) -> None:
    """Failed jobs count, not failed attempts."""
    await accept(store, a_scheduled_job(max_attempts=4))
    await run_next(store, failed())
    assert await store.list_breakers() == ()


async def start_probe(store: Store) -> NewJob:
    await store.put_schedules([an_entry()])
    await fail_scheduled(store, 3)
    job = a_scheduled_job(max_attempts=1)
    await store.fire(a_firing(START, job, probe=True))
    return job


async def test_a_probe_is_recorded_with_the_firing(store: Store) -> None:
    job = await start_probe(store)
    half = await breaker(store)
    assert (half.state, half.probe_job_id) == (BreakerState.HALF_OPEN, job.id)
    change = (await store.breaker_history("p", limit=1))[0]
    assert (change.to_state, change.reason, change.job_id) == ("half_open", "cooldown_elapsed", job.id)


async def test_a_good_probe_closes_and_a_bad_one_opens_again(store: Store, clock: Clock) -> None:
    await start_probe(store)
    clock.advance(minutes=1)
    await run_next(store, failed())
    reopened = await breaker(store)
    assert (reopened.state, reopened.opened_at, reopened.probe_job_id) == (BreakerState.OPEN, clock.now, None)
    await store.fire(a_firing(START + HOUR, a_scheduled_job(), probe=True))
    await run_next(store, ok())
    assert (await breaker(store)).state is BreakerState.CLOSED
    reasons = [row.reason for row in await store.breaker_history("p", limit=9)]
    assert reasons == [
        "success",
        "cooldown_elapsed",
        "failure_threshold",
        "cooldown_elapsed",
        "failure_threshold",
    ]


async def test_a_probe_without_a_verdict_opens_with_a_fresh_cooldown(store: Store, clock: Clock) -> None:
    """A cancelled, purged or removed probe has no verdict."""
    job = await start_probe(store)
    clock.advance(minutes=5)
    await store.cancel(job.id, POLICY)
    reopened = await breaker(store)
    assert (reopened.state, reopened.opened_at, reopened.probe_job_id) == (BreakerState.OPEN, clock.now, None)
    assert (await store.breaker_history("p", limit=1))[0].reason == "probe_without_verdict"


async def test_an_interrupted_probe_is_still_the_probe(store: Store) -> None:
    job = await start_probe(store)
    await run_next(store, Requeued())
    assert (await breaker(store)).probe_job_id == job.id


async def test_a_job_queued_before_closes_an_open_breaker(store: Store) -> None:
    """Queued jobs run while the breaker is open, and a success of a scheduled job closes it."""
    jobs = [await accept(store, a_scheduled_job(max_attempts=1)) for _ in range(4)]
    claims = [claim.job for claim in await claim_all(store)]
    assert [job.id for job in claims] == jobs
    for job in claims[:3]:
        await settle(store, job, failed())
    assert (await breaker(store)).state is BreakerState.OPEN
    await settle(store, claims[3], ok())
    assert (await breaker(store)).state is BreakerState.CLOSED


async def test_resetting_by_hand(store: Store) -> None:
    """The result is the number of breakers that were not closed; the reason is `manual_reset`."""
    await fail_scheduled(store, 3)
    assert await store.reset_breaker("p", "handle") == 0
    assert await store.reset_breaker("other") == 0
    assert await store.reset_breaker("p") == 1
    assert await breaker(store) == Breaker()
    assert (await store.breaker_history("p", limit=1))[0].reason == "manual_reset"
    assert await store.reset_breaker("p", "poll") == 0
    assert len(await store.breaker_history("p", limit=9)) == 2


async def test_a_reset_forgets_failures_that_have_not_opened_it(store: Store) -> None:
    await fail_scheduled(store, 2)
    assert await store.reset_breaker("p") == 0
    await fail_scheduled(store, 2)
    assert (await breaker(store)).state is BreakerState.CLOSED


async def test_a_probe_waits_like_any_job(store: Store) -> None:
    await start_probe(store)
    assert (await claim_one(store)).submitted_by is SubmittedBy.SCHEDULER


# ----------------------------------------------------------- what is checked in the transaction itself


def conditions(**fields: Any) -> StartConditions:
    defaults: dict[str, Any] = {
        "if_running": IfRunning.SKIP,
        "max_polls": None,
        "breaker": BreakerPolicy(threshold=3, reset_after=timedelta(minutes=30)),
    }
    return StartConditions(**(defaults | fields))


async def fire_next(store: Store, **fields: Any) -> tuple[FireStatus, NewJob]:
    """Fire the next occurrence of the schedule, under conditions."""
    (entry,) = await store.list_schedules()
    assert entry.nominal_at is not None
    job = a_scheduled_job(max_attempts=1, submitted_detail="default")
    firing = a_firing(entry.nominal_at, job, planned_from=entry, **({"conditions": conditions()} | fields))
    firing = replace(firing, entry=replace(firing.entry, deferred=entry.deferred))
    return (await store.fire(firing)).status, job


@pytest.mark.parametrize("meanwhile", ["gone", "paused", "fired", "edited"])
async def test_a_firing_planned_from_what_is_no_more_does_nothing(store: Store, meanwhile: str) -> None:
    """An acknowledged reload or pause holds, although a firing was already planned."""
    await store.put_schedules([an_entry()])
    (planned,) = await store.list_schedules()
    if meanwhile == "gone":
        await store.put_schedules([])
    elif meanwhile == "paused":
        await store.pause_schedule("p", "default", paused=True)
    elif meanwhile == "fired":
        await fire_next(store)
    else:
        await store.put_schedules([an_entry(fingerprint="every 2h")])
    before = await whole_ledger(store)
    job = a_scheduled_job()
    report = await store.fire(a_firing(START, job, planned_from=planned, conditions=conditions()))
    assert report.status is FireStatus.STALE
    assert await store.get_job(job.id) is None
    assert await whole_ledger(store) == before


async def test_an_open_breaker_stops_the_scheduler_until_it_has_cooled_down(
    store: Store, clock: Clock
) -> None:
    """The breaker is half open with exactly one probe. Each skip is recorded."""
    await store.put_schedules([an_entry()])
    await fail_scheduled(store, 3)
    clock.advance(minutes=29)
    status, stopped = await fire_next(store)
    assert (status, await store.get_job(stopped.id)) == (FireStatus.SKIPPED, None)
    clock.advance(minutes=1)
    status, probe_job = await fire_next(store)
    assert status is FireStatus.FIRED
    assert (await breaker(store)).probe_job_id == probe_job.id
    status, second = await fire_next(store)
    assert (status, await store.get_job(second.id)) == (FireStatus.SKIPPED, None)
    assert (await breaker(store)).probe_job_id == probe_job.id
    assert [row.outcome for row in await history(store)] == ["skipped", "ran", "skipped"]


async def test_a_run_on_demand_does_not_ask_the_breaker(store: Store) -> None:
    """The breaker stops only the scheduler."""
    await store.put_schedules([an_entry()])
    await fail_scheduled(store, 3)
    status, _ = await fire_next(store, conditions=conditions(breaker=None), on_demand=True)
    assert status is FireStatus.FIRED
    assert (await breaker(store)).state is BreakerState.OPEN


async def test_if_running_skip(store: Store) -> None:
    """On demand the skip is only the result, otherwise it is recorded."""
    await store.put_schedules([an_entry()])
    await fire_next(store)
    before = await whole_ledger(store)
    status, refused = await fire_next(store, on_demand=True)
    assert status is FireStatus.REFUSED_RUNNING
    assert await whole_ledger(store) == before
    status, skipped = await fire_next(store)
    assert status is FireStatus.SKIPPED
    assert [await store.get_job(job.id) for job in (refused, skipped)] == [None, None]
    await run_next(store, ok())
    assert (await fire_next(store))[0] is FireStatus.FIRED


async def test_if_running_queue(store: Store) -> None:
    """The jobs run one after the other, also when each takes longer than the interval."""
    await store.put_schedules([an_entry()])
    jobs = [(await fire_next(store, conditions=conditions(if_running=IfRunning.QUEUE)))[1] for _ in range(3)]
    for job in jobs:
        (claim,) = await claim_all(store)
        assert claim.job.id == job.id
        await settle(store, claim.job, ok())


async def test_a_queued_job_ended_by_if_running_cancel_fires_its_hook(store: Store) -> None:
    """It has ended like any other job. The new run, not the ended one, moves the schedule."""
    policy = policy_of(
        {"name": "alarm", "on-hook": "job.failed", "steps": [uses("tell", plugin="r")]},
        plugins={"p": {"notify_on_complete": True, "schedule": {"id": "default", "every": "7m"}}},
    )
    assert "default" in policy.plugin("p").schedules  # the end of its latest run would move it
    await store.put_schedules([an_entry()])
    cancelling = conditions(if_running=IfRunning.CANCEL)
    _, replaced = await fire_next(store, conditions=cancelling, policy=policy)
    await fire_next(store, conditions=cancelling, policy=policy)
    (alarm,) = (await store.list_jobs(JobFilter(plugin="pipeline"), limit=9)).rows
    assert (alarm.command, alarm.parent_job_id) == ("alarm", replaced.id)
    (entry,) = await store.list_schedules()
    assert entry.nominal_at == START + 2 * HOUR


async def test_if_running_cancel(store: Store) -> None:
    """One transaction requests the end of the old job and makes the new one wait for it."""
    await store.put_schedules([an_entry()])
    cancelling = conditions(if_running=IfRunning.CANCEL)
    await fire_next(store, conditions=cancelling)
    old = await claim_one(store)
    _, replaced = await fire_next(store, conditions=cancelling)
    (entry,) = await store.list_schedules()
    assert entry.nominal_at is not None
    new = a_scheduled_job(submitted_detail="default")
    report = await store.fire(a_firing(entry.nominal_at, new, planned_from=entry, conditions=cancelling))
    assert [(job.id, job.status, job.reason, job.error) for job in report.ended] == [
        (replaced.id, JobStatus.DEAD, JobReason.CANCELLED, "cancelled while it was queued")
    ]
    assert report.stopping == (old.id,)
    assert (await stored(store, old.id)).cancel_requested_at is not None
    assert (await stored(store, replaced.id)).reason is JobReason.CANCELLED
    assert await claim_all(store) == []
    await settle(store, old, ok())
    assert (await stored(store, old.id)).reason is JobReason.CANCELLED
    assert (await claim_one(store)).id == new.id


async def test_the_poll_guard_counts_jobs_of_every_source(store: Store) -> None:
    await store.put_schedules([an_entry()])
    await accept(store, a_new_job("p", "poll"))
    guarded = conditions(max_polls=1)
    assert (await fire_next(store, conditions=guarded, on_demand=True))[0] is FireStatus.REFUSED_POLLS
    assert (await fire_next(store, conditions=guarded))[0] is FireStatus.DEFERRED
    (entry,) = await store.list_schedules()
    assert entry.deferred == PlannedOccurrence(nominal_at=START, start_at=START)
    assert (entry.nominal_at, entry.last_job_id, await history(store)) == (START + HOUR, None, [])
    assert LedgerKind.SCHEDULE_DEFERRED in [row.kind for row in await whole_ledger(store)]
    assert (await store.queue_counts()).depth == 1


async def test_a_deferred_occurrence_starts_when_the_polls_before_it_have_ended(
    store_factory: StoreFactory,
) -> None:
    """It is stored, there is only one, and a firing that comes too early changes nothing."""
    store = await store_factory.open()
    await store.put_schedules([an_entry()])
    await accept(store, a_new_job("p", "poll"))
    guarded = conditions(max_polls=1)
    await fire_next(store, conditions=guarded)
    store = await store_factory.reopen()
    assert (await fire_next(store, conditions=guarded))[0] is FireStatus.SKIPPED
    (entry,) = await store.list_schedules()
    job = a_scheduled_job(submitted_detail="default")
    late = replace(
        a_firing(START, job).occurrences[0],
        outcome=OccurrenceOutcome.LATE,
        reason="outstanding_polls",
        late=HOUR,
    )
    firing = a_firing(
        START,
        job,
        entry=replace(entry, deferred=None),
        occurrences=(late,),
        conditions=guarded,
        planned_from=entry,
        was_deferred=True,
    )
    assert (await store.fire(firing)).status is FireStatus.DEFERRED
    assert (await store.list_schedules()) == (entry,)
    await run_next(store, ok())
    assert (await store.fire(firing)).status is FireStatus.FIRED
    assert (await store.fire(firing)).status is FireStatus.STALE
    (after,) = await store.list_schedules()
    assert (after.deferred, after.last_job_id, after.nominal_at) == (None, job.id, START + 2 * HOUR)
    assert [(row.nominal_at, row.outcome, row.reason) for row in await history(store)] == [
        (START + HOUR, "skipped", "waiting"),
        (START, "late", "outstanding_polls"),
    ]


async def test_runs_that_are_made_up_for_follow_one_another(store: Store) -> None:
    """With `run_all`, missed occurrences run one after the other."""
    await store.put_schedules([an_entry()])
    jobs = [a_scheduled_job() for _ in range(3)]
    due = tuple(a_firing(START + n * HOUR, job).occurrences[0] for n, job in enumerate(jobs))
    firing = a_firing(START, jobs[0], occurrences=due, catch_up_jobs=tuple(jobs[1:]), conditions=conditions())
    assert (await store.fire(firing)).status is FireStatus.FIRED
    for job in jobs:
        assert [claim.job.id for claim in await claim_all(store)] == [job.id]
        await settle(store, await stored(store, job.id), ok())
    assert [row.job_id for row in await history(store)] == [job.id for job in jobs]


@pytest.mark.parametrize("outcome", [ok(), failed()], ids=["succeeded", "failed"])
async def test_the_end_of_the_latest_run_decides_the_next(
    store: Store, clock: Clock, outcome: Outcome
) -> None:
    """`every` counts from the end, successful or not; the end of an older run changes nothing."""
    every = ScheduleRule(trigger=Every(interval=HOUR))
    policy = Policy(plugins={"p": PluginPolicy(schedules={"default": every})})
    await store.put_schedules([an_entry()])
    queueing = conditions(if_running=IfRunning.QUEUE)
    for _ in range(2):
        await fire_next(store, conditions=queueing)
    provisional = (await store.list_schedules())[0].next_at
    clock.advance(minutes=7)
    await settle(store, await claim_one(store), outcome, policy)
    assert (await store.list_schedules())[0].next_at == provisional
    await settle(store, await claim_one(store), outcome, policy)
    assert (await store.list_schedules())[0].next_at == clock.now + HOUR


async def a_late_end(
    store: Store, clock: Clock, if_running: IfRunning, *, paused: bool = False, crashed: bool = False
) -> ScheduleEntry:
    """End a run two and a half hours after it fired, and return the schedule entry."""
    every = ScheduleRule(trigger=Every(interval=HOUR), if_running=if_running)
    policy = Policy(plugins={"p": PluginPolicy(schedules={"default": every})})
    await store.put_schedules([an_entry()])
    await fire_next(store)
    job = await claim_one(store)
    if paused:
        await store.pause_schedule("p", "default", paused=True)
    clock.advance(hours=2, minutes=30)
    if crashed:
        await store.recover(policy)
    else:
        await settle(store, job, ok(), policy)
    (entry,) = await store.list_schedules()
    return entry


async def test_the_end_of_a_run_accounts_for_what_fell_due_meanwhile(store: Store, clock: Clock) -> None:
    """The transaction that counts anew from the end writes a row for the skipped occurrences."""
    entry = await a_late_end(store, clock, IfRunning.SKIP)
    assert entry.nominal_at == clock.now + HOUR
    first, skipped = await history(store)
    assert (first.outcome, first.nominal_at) == (OccurrenceOutcome.RAN, START)
    assert (skipped.outcome, skipped.reason, skipped.count) == (OccurrenceOutcome.SKIPPED, "running", 2)
    assert (skipped.nominal_at, skipped.until_at) == (START + HOUR, START + 2 * HOUR)
    assert LedgerKind.SCHEDULE_SKIPPED in [row.kind for row in await whole_ledger(store)]


@pytest.mark.parametrize(
    ("if_running", "paused", "crashed"),
    [
        (IfRunning.QUEUE, False, False),
        (IfRunning.CANCEL, False, False),
        (IfRunning.SKIP, True, False),
        (IfRunning.SKIP, False, True),
    ],
    ids=["queue", "cancel", "paused", "crashed"],
)
async def test_occurrences_that_the_end_of_a_run_cannot_judge_are_left_to_the_scheduler(
    store: Store, clock: Clock, if_running: IfRunning, *, paused: bool, crashed: bool
) -> None:
    """They may have to be queued, were paused, or were missed; the schedule does not move."""
    entry = await a_late_end(store, clock, if_running, paused=paused, crashed=crashed)
    assert entry.nominal_at == START + HOUR
    assert [row.outcome for row in await history(store)] == [OccurrenceOutcome.RAN]
