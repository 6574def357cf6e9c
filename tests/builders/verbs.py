"""Every kind of verb of a store, aimed at the same jobs of each kind, so that any two can meet."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import timedelta

from builders.jobs import START, Clock, a_new_job, a_route, emitted, failed, ok, some_policy, timed_out
from builders.pipelines import begin_run, run_out, split, steps_policy, uses
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
#: A pipeline whose steps are all of a run: a split with a join, and one more.
FLOW = steps_policy(split("s", uses("x"), uses("y", plugin="q")), uses("after"))
CALLBACK = StateSubscription(url="http://receiver.invalid/")
ENTRY = ScheduleEntry(plugin="p", schedule_id="s", fingerprint="f", next_at=START, nominal_at=START)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """A store in which every kind of job is there, and time in which everything is due."""

    store: Store
    clock: Clock
    running: list[Job]
    queued: list[str]
    ended: list[str]


async def a_scene(factory: StoreFactory) -> Scene:
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
    await run_out(store, FLOW, {"s/x": failed(permanent=True)})
    lost = [
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
        *lost,
        await begin_run(store, FLOW),
        *runs,
    ]
    ended += [failed_run, cancelled_run]
    clock.advance(minutes=5)
    return Scene(store=store, clock=clock, running=running, queued=queued, ended=ended)


async def settle_all(scene: Scene, outcome: Outcome) -> None:
    for job in scene.running:
        await scene.store.settle(job, outcome, POLICY)


async def cancel_all(scene: Scene) -> None:
    for job_id in (*scene.queued, *(job.id for job in scene.running)):
        await scene.store.cancel(job_id, POLICY)


async def retry_all(scene: Scene) -> None:
    for job_id in (*scene.ended, *scene.queued):
        await scene.store.retry(job_id, some_policy())


async def enqueue_some(scene: Scene) -> None:
    for key in ("key:a", "key:b", "key:c", "key:done", None):
        await submit(scene.store, a_new_job("source", dedupe_key=key))
    await submit(scene.store, a_new_job("echo", dedupe_key="key:c", dedupe_ttl=60.0, callback=CALLBACK))


async def fire(scene: Scene) -> None:
    job = a_new_job("p", "poll", submitted_by=SubmittedBy.SCHEDULER)
    ran = Occurrence(
        plugin="p", schedule_id="s", nominal_at=START, outcome=OccurrenceOutcome.RAN, job_id=job.id
    )
    await scene.store.fire(Firing(entry=ENTRY, occurrences=(ran,), job=job, probe=True))


async def deliver(scene: Scene) -> None:
    later = scene.clock.now + timedelta(minutes=1)
    taken = await scene.store.claim_deliveries(DeliveryCapacity(total=3, per_receiver=3), retry_at=later)
    for delivery in taken.deliveries:
        await scene.store.report_delivery(
            DeliveryReport(id=delivery.id, attempt=DeliveryAttempt(http_status=200))
        )
        await scene.store.resend(delivery.id)


async def look(scene: Scene) -> None:
    for job_id in scene.queued:
        await scene.store.get_job(job_id)
        await scene.store.job_tree(job_id, limit=100)
    await scene.store.list_log(LogFilter(query="ok"), limit=50)
    await scene.store.queue_counts()


async def claim(scene: Scene) -> None:
    for _ in range(3):
        await scene.store.claim(owner="me", caps=Caps(workers=20, plugins={"echo": 2}), limit=2, lease=LEASE)


async def claim_by_id(scene: Scene) -> None:
    await scene.store.claim_by_id([*scene.queued, *scene.ended], owner="cli", lease=LEASE)


async def begin_init(scene: Scene) -> None:
    for _ in range(2):
        job = a_new_job("p", "init", submitted_by=SubmittedBy.CORE, max_attempts=1)
        await scene.store.begin_init(InitKey(plugin="p", fingerprint="f", config_hash="c"), job)


async def mark_working(scene: Scene) -> None:
    for job in scene.running:
        await scene.store.mark_working(job.id, job.execution)


async def recover(scene: Scene) -> None:
    await scene.store.recover(POLICY)


async def end_queued(scene: Scene) -> None:
    await scene.store.end_queued(JobReason.PLUGIN_REMOVED, POLICY, plugins=["source", "echo"])


async def release(scene: Scene) -> None:
    await scene.store.release_due()
    await scene.store.shorten_waits()


async def maintain(scene: Scene) -> None:
    await scene.store.index_log()
    await scene.store.reset_breaker("echo")
    await scene.store.record_config("h", ConfigOrigin.RELOAD, {})
    await scene.store.put_schedules([ENTRY])
    await scene.store.pause_schedule("p", "s", paused=True)


async def prune(scene: Scene) -> None:
    await scene.store.prune(Retention(succeeded_jobs=timedelta(0), deliveries=timedelta(days=1)))


Verb = Callable[[Scene], Awaitable[None]]

VERBS: dict[str, Verb] = {
    "enqueue": enqueue_some,
    "claim": claim,
    "claim_these": claim_by_id,
    "begin_init": begin_init,
    "note_working": mark_working,
    "complete": lambda scene: settle_all(scene, ok(emitted(key="k"), state={"x": 1})),
    "fail": lambda scene: settle_all(scene, failed()),
    "interrupt": lambda scene: settle_all(scene, Requeued()),
    "cancel": cancel_all,
    "retry": retry_all,
    "release": release,
    "recover": recover,
    "end_queued": end_queued,
    "fire": fire,
    "deliver": deliver,
    "maintain": maintain,
    "prune": prune,
    "look": look,
}
