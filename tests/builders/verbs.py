"""Every kind of verb of a store, applied to the same jobs, so that any two can conflict."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import timedelta

from builders.jobs import START, Clock, a_new_job, a_route, emitted, failed, ok, some_policy, timed_out
from builders.pipelines import begin_run, run_until_idle, split, steps_policy, uses
from builders.stores import LEASE, StoreFactory, accept, claim_all, settle, submit
from ductile.core.jobs.admission import Caps
from ductile.core.jobs.model import Job, JobReason, Outcome, Requeued, StateSubscription, SubmittedBy
from ductile.core.policy import FactRule
from ductile.core.schedules.planner import Occurrence, OccurrenceOutcome
from ductile.core.webhooks.deliveries import DeliveryAttempt
from ductile.store.model.deliveries import DeliveryCapacity, DeliveryReport
from ductile.store.model.jobs import InitKey
from ductile.store.model.maintenance import ConfigOrigin, Retention
from ductile.store.model.records import JobFilter, LogFilter
from ductile.store.model.schedules import Firing, ScheduleEntry
from ductile.store.port import Store

POLICY = some_policy(
    a_route(), a_route(to="source"), facts={"facts": (FactRule(command="poll", fact_type="seen"),)}
)
#: A pipeline with a split, its join and a last step.
FLOW = steps_policy(split("s", uses("x"), uses("y", plugin="q")), uses("after"))
CALLBACK = StateSubscription(url="http://receiver.invalid/")
ENTRY = ScheduleEntry(plugin="p", schedule_id="s", fingerprint="f", next_at=START, nominal_at=START)


@dataclass(frozen=True, slots=True, kw_only=True)
class PopulatedStore:
    """A store with every kind of job, at a time when everything is due."""

    store: Store
    clock: Clock
    running: list[Job]
    queued: list[str]
    ended: list[str]


async def a_populated_store(factory: StoreFactory) -> PopulatedStore:
    store, clock = await factory.open(), factory.clock
    await store.put_schedules([ENTRY])
    for key, outcome in (
        ("key:done", ok()),
        ("key:a", failed(permanent=True)),
        ("key:a", failed()),
        ("key:a", failed()),
        (None, timed_out()),
    ):
        await accept(store, a_new_job("source", dedupe_key=key, callback=CALLBACK, max_attempts=2))
        (claim,) = await claim_all(store)
        await settle(store, claim.job, outcome)
    ended = [job.id for job in (await store.list_jobs(JobFilter(), limit=9)).rows]
    failed_run = await begin_run(store, FLOW, dedupe_key="key:run", callback=CALLBACK)
    await run_until_idle(store, FLOW, {"s/x": failed(permanent=True)})
    recovered = [
        await accept(store, a_new_job(submitted_by=SubmittedBy.SCHEDULER, dedupe_key=key))
        for key in ("key:b", None)
    ]
    await claim_all(store)
    await store.recover(POLICY)
    for plugin, key in (("source", None), ("source", "key:a"), ("facts", None), ("echo", "key:c")):
        await accept(store, a_new_job(plugin, "poll" if plugin == "facts" else "handle", dedupe_key=key))
    runs = [await begin_run(store, FLOW, dedupe_key="key:run", callback=CALLBACK) for _ in range(2)]
    running = [claim.job for claim in await claim_all(store)]
    cancelled_run = await begin_run(store, FLOW)
    running += [claim.job for claim in await claim_all(store)]
    await store.cancel(cancelled_run, FLOW)
    queued = [
        await accept(store, a_new_job("source", dedupe_key="key:a")),
        await accept(store, a_new_job("echo", dedupe_key="key:c")),
        await accept(store, a_new_job(after_job_id=running[0].id, callback=CALLBACK)),
        await accept(store, a_new_job("other")),
        *recovered,
        await begin_run(store, FLOW),
        *runs,
    ]
    ended += [failed_run, cancelled_run]
    clock.advance(minutes=5)
    return PopulatedStore(store=store, clock=clock, running=running, queued=queued, ended=ended)


async def settle_all(populated: PopulatedStore, outcome: Outcome) -> None:
    for job in populated.running:
        await populated.store.settle(job, outcome, POLICY)


async def cancel_all(populated: PopulatedStore) -> None:
    for job_id in (*populated.queued, *(job.id for job in populated.running)):
        await populated.store.cancel(job_id, POLICY)


async def retry_all(populated: PopulatedStore) -> None:
    for job_id in (*populated.ended, *populated.queued):
        await populated.store.retry(job_id, some_policy())


async def enqueue_some(populated: PopulatedStore) -> None:
    for key in ("key:a", "key:b", "key:c", "key:done", None):
        await submit(populated.store, a_new_job("source", dedupe_key=key))
    await submit(populated.store, a_new_job("echo", dedupe_key="key:c", dedupe_ttl=60.0, callback=CALLBACK))


async def fire(populated: PopulatedStore) -> None:
    job = a_new_job("p", "poll", submitted_by=SubmittedBy.SCHEDULER)
    occurrence = Occurrence(
        plugin="p", schedule_id="s", nominal_at=START, outcome=OccurrenceOutcome.RAN, job_id=job.id
    )
    await populated.store.fire(Firing(entry=ENTRY, occurrences=(occurrence,), job=job, probe=True))


async def deliver(populated: PopulatedStore) -> None:
    later = populated.clock.now + timedelta(minutes=1)
    claimed = await populated.store.claim_deliveries(
        DeliveryCapacity(total=3, per_receiver=3), retry_at=later
    )
    for delivery in claimed.deliveries:
        await populated.store.report_delivery(
            DeliveryReport(id=delivery.id, attempt=DeliveryAttempt(http_status=200))
        )
        await populated.store.resend(delivery.id)


async def read_all(populated: PopulatedStore) -> None:
    for job_id in populated.queued:
        await populated.store.get_job(job_id)
        await populated.store.job_tree(job_id, limit=100)
    await populated.store.list_log(LogFilter(query="ok"), limit=50)
    await populated.store.queue_counts()


async def claim(populated: PopulatedStore) -> None:
    for _ in range(3):
        await populated.store.claim(
            owner="me", caps=Caps(workers=20, plugins={"echo": 2}), limit=2, lease=LEASE
        )


async def claim_by_id(populated: PopulatedStore) -> None:
    await populated.store.claim_by_id([*populated.queued, *populated.ended], owner="cli", lease=LEASE)


async def begin_init(populated: PopulatedStore) -> None:
    for _ in range(2):
        job = a_new_job("p", "init", submitted_by=SubmittedBy.CORE, max_attempts=1)
        await populated.store.begin_init(InitKey(plugin="p", fingerprint="f", config_hash="c"), job)


async def mark_working(populated: PopulatedStore) -> None:
    for job in populated.running:
        await populated.store.mark_working(job.id, job.execution)


async def recover(populated: PopulatedStore) -> None:
    await populated.store.recover(POLICY)


async def end_queued(populated: PopulatedStore) -> None:
    await populated.store.end_queued(JobReason.PLUGIN_REMOVED, POLICY, plugins=["source", "echo"])


async def release(populated: PopulatedStore) -> None:
    await populated.store.release_due()
    await populated.store.shorten_waits()


async def maintain(populated: PopulatedStore) -> None:
    await populated.store.index_log()
    await populated.store.reset_breaker("echo")
    await populated.store.record_config("h", ConfigOrigin.RELOAD, {})
    await populated.store.put_schedules([ENTRY])
    await populated.store.pause_schedule("p", "s", paused=True)


async def prune(populated: PopulatedStore) -> None:
    await populated.store.prune(Retention(succeeded_jobs=timedelta(0), deliveries=timedelta(days=1)))


Verb = Callable[[PopulatedStore], Awaitable[None]]

VERBS: dict[str, Verb] = {
    "enqueue": enqueue_some,
    "claim": claim,
    "claim_by_id": claim_by_id,
    "begin_init": begin_init,
    "mark_working": mark_working,
    "complete": lambda populated: settle_all(populated, ok(emitted(key="k"), state={"x": 1})),
    "fail": lambda populated: settle_all(populated, failed()),
    "interrupt": lambda populated: settle_all(populated, Requeued()),
    "cancel": cancel_all,
    "retry": retry_all,
    "release": release,
    "recover": recover,
    "end_queued": end_queued,
    "fire": fire,
    "deliver": deliver,
    "maintain": maintain,
    "prune": prune,
    "read_all": read_all,
}
