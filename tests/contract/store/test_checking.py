"""The state of a store and its recent failures (`system doctor`)."""

from __future__ import annotations

from datetime import timedelta
from random import Random
from string import ascii_lowercase

from builders.jobs import Clock, a_new_job, failed, ok
from builders.stores import POLICY, accept, run_next
from ductile.core.jobs.model import StateSubscription, SubmittedBy
from ductile.core.webhooks.deliveries import DeliveryAttempt
from ductile.store.model.deliveries import DeliveryCapacity, DeliveryReport
from ductile.store.model.records import LogFilter
from ductile.store.port import Store

CALLBACK = StateSubscription(url="https://example.com/hook?key=sesame")
DAY = timedelta(days=1)


async def test_a_new_store_is_sound_and_has_no_troubles(store: Store, clock: Clock) -> None:
    stats = await store.stats()
    assert (stats.damage, stats.schema_version) == ((), stats.newest_schema)
    assert stats.size > 0
    recent_failures = await store.recent_failures(since=clock() - DAY)
    assert (recent_failures.newest_at, recent_failures.endings, recent_failures.receivers) == (None, (), ())


async def test_a_store_that_was_searched_is_not_called_damaged(store: Store) -> None:
    """A connection that has searched caches parts of the index, and must not check it."""
    rng = Random(1)
    assert (await store.stats()).damage == ()
    for _ in range(5):
        for _ in range(40):
            text = " ".join("".join(rng.choices(ascii_lowercase, k=7)) for _ in range(750))
            await accept(store, a_new_job())
            await run_next(store, ok(stderr=text))
        while await store.index_log():
            pass
        for _ in range(4):
            await store.list_log(LogFilter(query="hello"), limit=1)
            stats = await store.stats()
            assert (stats.damage, stats.search_damage) == ((), ())


async def test_jobs_that_failed_for_good_are_counted_by_command(store: Store, clock: Clock) -> None:
    """Cancelled jobs and old jobs are not counted; health checks are reported separately."""
    await accept(store, a_new_job("old"))
    await run_next(store, failed(permanent=True))
    clock.advance(days=2)
    ids = []
    for _ in range(2):
        ids.append(await accept(store, a_new_job(max_attempts=1)))
        await run_next(store, failed())
    await accept(store, a_new_job())
    await run_next(store, ok())
    cancelled = await accept(store, a_new_job("sink"))
    await store.cancel(cancelled, POLICY)
    await accept(store, a_new_job("sink", "health", submitted_by=SubmittedBy.CORE))
    await run_next(store, failed(permanent=True))
    recent_failures = await store.recent_failures(since=clock() - DAY)
    assert [(bad.plugin, bad.command, bad.jobs, bad.latest_job_id) for bad in recent_failures.endings] == [
        ("echo", "handle", 2, ids[-1])
    ]
    assert recent_failures.newest_at == clock()


async def test_receivers_that_do_not_answer_are_named_without_their_secrets(
    store: Store, clock: Clock
) -> None:
    """A URL may hold secrets; its receiver is scheme, host and port."""
    await accept(store, a_new_job(callback=CALLBACK))
    await run_next(store, ok())
    claimed = await store.claim_deliveries(
        DeliveryCapacity(total=10, per_receiver=10), retry_at=clock() + DAY
    )
    (first,) = claimed.deliveries
    assert (await store.recent_failures(since=clock() - DAY)).receivers == ()
    await store.report_delivery(
        DeliveryReport(
            id=first.id, attempt=DeliveryAttempt(http_status=503, error="503"), retry_at=clock() + DAY
        )
    )
    (troubled,) = (await store.recent_failures(since=clock() - DAY)).receivers
    assert (troubled.receiver, troubled.waiting, troubled.dropped) == ("https://example.com:443", 1, 0)
    assert "sesame" not in repr(troubled)
    clock.advance(days=1)
    await store.claim_deliveries(DeliveryCapacity(total=1, per_receiver=1), retry_at=clock() + DAY)
    await store.report_delivery(DeliveryReport(id=first.id, attempt=DeliveryAttempt(error="refused")))
    (troubled,) = (await store.recent_failures(since=clock() - DAY)).receivers
    assert (troubled.waiting, troubled.dropped, troubled.last_error) == (0, 1, "refused")
    clock.advance(days=2)
    assert (await store.recent_failures(since=clock() - DAY)).receivers == ()


async def test_the_error_of_a_receiver_is_that_of_its_latest_delivery(store: Store, clock: Clock) -> None:
    for error in ("refused", "503", "no answer"):
        await accept(store, a_new_job(callback=CALLBACK))
        claimed = await store.claim_deliveries(
            DeliveryCapacity(total=1, per_receiver=1), retry_at=clock() + DAY
        )
        (delivery,) = claimed.deliveries
        await store.report_delivery(DeliveryReport(id=delivery.id, attempt=DeliveryAttempt(error=error)))
        clock.advance(seconds=1)
    (failing,) = (await store.recent_failures(since=clock() - DAY)).receivers
    (lost,) = await store.lost_deliveries(since=clock() - DAY, limit=10)
    assert (failing.dropped, failing.last_error) == (3, "no answer")
    assert (lost.dropped, lost.last_error) == (3, "no answer")
