"""The outbox of state webhooks."""

from __future__ import annotations

import asyncio
import json
from datetime import timedelta
from typing import Any

from builders.jobs import Clock, a_new_job, a_route, emitted, failed, ok, some_policy
from builders.stores import (
    POLICY,
    StoreFactory,
    accept,
    claim_all,
    claim_one,
    run_next,
    settle,
    whole_ledger,
)
from ductile.core.jobs.model import LedgerKind, NewJob, StateSubscription
from ductile.core.json import JsonObject
from ductile.core.timestamps import format_timestamp
from ductile.core.webhooks.deliveries import ConcurrencyLimit, DeliveryAttempt, ReceiverHealth
from ductile.store.model.deliveries import (
    Delivery,
    DeliveryCapacity,
    DeliveryFilter,
    DeliveryReport,
    DeliveryStatus,
)
from ductile.store.notifier import DeliveriesDue
from ductile.store.port import Store

URL = "https://receiver.invalid/hook?secret=canary"
KEYS = [
    *("job_id", "state", "previous_state", "timestamp", "model", "attempt", "error", "result", "artifacts"),
    *("plugin", "command", "pipeline", "reason"),
]


def a_reporting_job(**fields: Any) -> NewJob:
    return a_new_job(callback=StateSubscription(url=URL, model="llama"), **fields)


async def deliveries_of(store: Store, job_id: str | None = None) -> list[Delivery]:
    """Return the deliveries, oldest first."""
    return list(reversed((await store.list_deliveries(DeliveryFilter(job_id=job_id), limit=200)).rows))


async def bodies(store: Store, job_id: str) -> list[dict[str, Any]]:
    return [json.loads(delivery.body) for delivery in await deliveries_of(store, job_id)]


async def claim_deliveries(store: Store, clock: Clock, limit: int = 100, **limits: Any) -> list[Delivery]:
    capacity = DeliveryCapacity(total=limit, **{"per_receiver": limit, **limits})
    claimed = await store.claim_deliveries(capacity, retry_at=clock.now + timedelta(minutes=1))
    return list(claimed.deliveries)


async def report_delivered(store: Store, *deliveries: Delivery) -> None:
    for delivery in deliveries:
        await store.report_delivery(DeliveryReport(id=delivery.id, attempt=DeliveryAttempt(http_status=200)))


async def test_every_transition_is_delivered_in_order(store: Store, clock: Clock) -> None:
    """A body has every key. The first `previous_state` is null; only `done` has result and artifacts."""
    job_id = await accept(store, a_reporting_job(max_attempts=2))
    job = await claim_one(store)
    await store.mark_working(job.id, job.execution)
    await settle(store, job, failed(error="boom"))
    clock.advance(minutes=1)
    await store.release_due()
    artifact: JsonObject = {"name": "a"}
    await run_next(store, ok(result={"text": "hi"}, artifacts=(artifact,)))
    sent_bodies = await bodies(store, job_id)
    assert [list(body) for body in sent_bodies] == [KEYS] * len(sent_bodies)
    assert [(body["state"], body["previous_state"], body["attempt"]) for body in sent_bodies] == [
        ("queued", None, 1),
        ("loading", "queued", 1),
        ("working", "loading", 1),
        ("queued", "working", 2),
        ("loading", "queued", 2),
        ("done", "loading", 2),
    ]
    assert {body["model"] for body in sent_bodies} == {"llama"}
    assert [body["result"] for body in sent_bodies] == [None] * 5 + [{"text": "hi"}]
    assert [body["artifacts"] for body in sent_bodies] == [None] * 5 + [[artifact]]
    assert [body["error"] for body in sent_bodies] == [None] * 6
    assert sent_bodies[-1]["timestamp"] >= format_timestamp(clock.now)
    rows = await deliveries_of(store, job_id)
    assert [row.sequence for row in rows] == list(range(1, 7))
    assert len({row.id for row in rows}) == 6
    assert {row.url for row in rows} == {URL}


async def test_an_end_without_success_is_failed_with_its_error(store: Store) -> None:
    job_id = await accept(store, a_reporting_job(max_attempts=1))
    await run_next(store, failed(error="boom"))
    last = (await bodies(store, job_id))[-1]
    assert (last["state"], last["error"], last["result"]) == ("failed", "boom", None)


async def test_a_cancelled_job_is_failed(store: Store) -> None:
    job_id = await accept(store, a_reporting_job())
    await store.cancel(job_id, POLICY)
    assert [body["state"] for body in await bodies(store, job_id)] == ["queued", "failed"]


async def test_recovery_delivers_queued_after_working(store: Store) -> None:
    """The previous state is stored, so that it is right after a restart."""
    job_id = await accept(store, a_reporting_job())
    job = await claim_one(store)
    await store.mark_working(job.id, job.execution)
    await store.recover(POLICY)
    last = (await bodies(store, job_id))[-1]
    assert (last["state"], last["previous_state"]) == ("queued", "working")


async def test_a_manual_retry_is_delivered(store: Store) -> None:
    job_id = await accept(store, a_reporting_job(max_attempts=1))
    await run_next(store, failed())
    await store.retry(job_id, some_policy())
    last = (await bodies(store, job_id))[-1]
    assert (last["state"], last["previous_state"], last["attempt"]) == ("queued", "failed", 1)


async def test_working_is_delivered_only_for_a_running_job(store: Store) -> None:
    job_id = await accept(store, a_reporting_job())
    await store.mark_working(job_id, 0)
    job = await claim_one(store)
    await store.mark_working(job_id, job.execution + 1)
    await store.mark_working("unknown", 1)
    await settle(store, job, ok())
    await store.mark_working(job_id, job.execution)
    assert [body["state"] for body in await bodies(store, job_id)] == ["queued", "loading", "done"]


async def test_the_end_of_a_quick_job_does_not_overtake_its_working(store: Store) -> None:
    """There is a delivery for every transition, however quickly they follow each other."""
    job_id = await accept(store, a_reporting_job())
    job = await claim_one(store)
    others = [accept(store, a_new_job()) for _ in range(50)]  # the writer has its hands full
    await asyncio.gather(
        *others,
        store.mark_working(job.id, job.execution),
        store.settle(job, ok(), POLICY),
    )
    states = [body["state"] for body in await bodies(store, job_id)]
    assert states == ["queued", "loading", "working", "done"]


async def test_children_do_not_inherit_a_callback_and_other_jobs_deliver_nothing(store: Store) -> None:
    """Only jobs that were submitted with a URL have deliveries."""
    await accept(store, a_reporting_job(plugin="source"))
    settled = await run_next(store, ok(emitted()), some_policy(a_route()))
    await run_next(store, ok())
    assert await deliveries_of(store, settled.started[0].job_id) == []


async def test_a_large_result_is_a_link(store: Store) -> None:
    """A result above 256 KiB is replaced by a link."""
    job_id = await accept(store, a_reporting_job())
    await run_next(store, ok(result="x" * (256 * 1024)))
    result = (await bodies(store, job_id))[-1]["result"]
    assert isinstance(result, dict)
    assert job_id in json.dumps(result)


async def test_a_large_error_is_cut(store: Store) -> None:
    """The body stays small, so that the receiver accepts it."""
    long = "ü" * 900_000
    job_id = await accept(store, a_new_job(max_attempts=1, callback=StateSubscription(url=URL, model=long)))
    await run_next(store, failed(error=long))
    sent = [row.body for row in await deliveries_of(store, job_id)]
    last = json.loads(sent[-1])
    assert max(map(len, sent)) < 20_000
    assert last["error"].startswith("ü" * 8000)
    assert last["error"].endswith(f"… (all of it: /job/{job_id})")
    assert last["model"].startswith("ü" * 500)


async def test_many_artifacts_are_a_link(store: Store) -> None:
    """Artifacts above 256 KiB are replaced by a list with a link."""
    job_id = await accept(store, a_reporting_job())
    artifacts: tuple[JsonObject, ...] = tuple(
        {"name": f"a{number}", "path": "/x" * 200} for number in range(1000)
    )
    await run_next(store, ok(artifacts=artifacts))
    assert (await bodies(store, job_id))[-1]["artifacts"] == [{"link": f"/job/{job_id}"}]


async def test_big_integers_survive_in_bodies(store: Store) -> None:
    job_id = await accept(store, a_reporting_job())
    await run_next(store, ok(result={"n": 2**64 + 1}))
    assert (await bodies(store, job_id))[-1]["result"] == {"n": 2**64 + 1}


# ------------------------------------------------------------------------------------------- sending


async def test_first_attempts_go_out_in_order(store: Store, clock: Clock) -> None:
    """A delivery is due after the first attempt of the one before it. Other jobs do not matter."""
    first, second = await accept(store, a_reporting_job()), await accept(store, a_reporting_job())
    await claim_all(store)
    first_delivery, second_delivery = await claim_deliveries(store, clock)
    assert [(delivery.job_id, delivery.sequence) for delivery in (first_delivery, second_delivery)] == [
        (first, 1),
        (second, 1),
    ]
    # Both are under way, and later deliveries might overtake them.
    assert await claim_deliveries(store, clock) == []
    await report_delivered(store, second_delivery)
    (next_delivery,) = await claim_deliveries(store, clock)
    assert (next_delivery.job_id, next_delivery.sequence) == (second, 2)
    await report_delivered(store, first_delivery)
    (next_delivery,) = await claim_deliveries(store, clock)
    assert (next_delivery.job_id, next_delivery.sequence) == (first, 2)


async def test_a_first_attempt_that_a_crash_cut_off_is_made_before_the_next(
    store: Store, clock: Clock
) -> None:
    """The order also holds after a crash. When the attempt has ended, later deliveries are due."""
    await accept(store, a_reporting_job())
    await claim_all(store)
    await claim_deliveries(store, clock)
    clock.advance(minutes=1)
    (repeated,) = await claim_deliveries(store, clock)
    assert (repeated.sequence, repeated.attempts) == (1, 2)
    assert await claim_deliveries(store, clock) == []
    later = clock.now + timedelta(minutes=5)
    await store.report_delivery(DeliveryReport(id=repeated.id, attempt=DeliveryAttempt(), retry_at=later))
    assert [delivery.sequence for delivery in await claim_deliveries(store, clock)] == [2]


async def test_receivers_have_room_of_their_own(store: Store, clock: Clock) -> None:
    """A busy receiver, or one with many deliveries, does not delay the deliveries to another one."""
    slow, quick = "https://slow.invalid", "https://quick.invalid"
    for url in (slow, slow, slow, quick):
        await accept(store, a_new_job(callback=StateSubscription(url=f"{url}/hook")))
    claimed = await claim_deliveries(store, clock, per_receiver=2)
    assert sorted(delivery.receiver for delivery in claimed) == [f"{quick}:443", f"{slow}:443", f"{slow}:443"]
    assert await claim_deliveries(store, clock, per_receiver=2, busy={f"{slow}:443": 2}) == []
    await accept(store, a_new_job(callback=StateSubscription(url=f"{quick}/hook")))
    assert [
        delivery.receiver
        for delivery in await claim_deliveries(store, clock, per_receiver=2, busy={f"{slow}:443": 2})
    ] == [f"{quick}:443"]
    assert [
        delivery.receiver
        for delivery in await claim_deliveries(store, clock, per_receiver=2, busy={f"{slow}:443": 1})
    ] == [f"{slow}:443"]


async def test_receivers_that_kept_us_waiting_share_what_is_left_to_them(store: Store, clock: Clock) -> None:
    """Slow receivers share a part of the slots. Receivers without a delivery under way come first."""
    for name in ("dead1", "dead2", "dead3", "new", "good", "good"):
        await accept(store, a_new_job(callback=StateSubscription(url=f"https://{name}.invalid/hook")))
    slow = {f"https://dead{number}.invalid:443": ReceiverHealth.SLOW for number in (1, 2, 3)}
    room: dict[str, Any] = {
        "per_receiver": 2,
        "health": {**slow, "https://good.invalid:443": ReceiverHealth.PROMPT},
        "limits": {
            ReceiverHealth.SLOW: ConcurrencyLimit(per_receiver=1, total=2),
            ReceiverHealth.UNKNOWN: ConcurrencyLimit(per_receiver=1, total=9),
        },
    }
    claimed = await claim_deliveries(store, clock, **room)
    hosts = [delivery.receiver.removeprefix("https://").partition(".")[0] for delivery in claimed]
    assert hosts == ["dead1", "dead2", "good", "good", "new"]
    for name in ("dead1", "last"):
        await accept(store, a_new_job(callback=StateSubscription(url=f"https://{name}.invalid/hook")))
    busy = {"https://dead1.invalid:443": 1, "https://dead3.invalid:443": 1}
    (last,) = await claim_deliveries(store, clock, limit=1, per_receiver=2, busy=busy)
    assert last.receiver == "https://last.invalid:443"


async def test_the_next_due_time_is_returned_when_only_time_is_missing(store: Store, clock: Clock) -> None:
    """No timer is set for a delivery that waits for a report or a slot."""
    room, later = DeliveryCapacity(total=9, per_receiver=9), clock.now + timedelta(minutes=1)
    assert (await store.claim_deliveries(room, retry_at=later)).next_due_at is None
    await accept(store, a_reporting_job())
    await claim_all(store)
    assert (await store.claim_deliveries(room, retry_at=later)).next_due_at == later


async def test_subscribers_of_the_outbox_are_notified_after_the_commit(store: Store, clock: Clock) -> None:
    """The notification comes after the commit of a delivery, and only then."""
    notified = asyncio.Event()
    store.notifier.subscribe(DeliveriesDue, lambda _: notified.set())
    await accept(store, a_new_job(plugin="silent"))
    await store.queue_counts()
    assert not notified.is_set()
    await accept(store, a_reporting_job())
    await asyncio.wait_for(notified.wait(), 60)
    (delivery,) = await claim_deliveries(store, clock)
    notified.clear()
    await report_delivered(store, delivery)
    assert await store.resend(delivery.id)
    await asyncio.wait_for(notified.wait(), 60)


async def test_an_attempt_is_counted_before_it_is_made(store_factory: StoreFactory) -> None:
    """After a crash while it is sent, a delivery is due again and the attempt is counted."""
    store, clock = await store_factory.open(), store_factory.clock
    await accept(store, a_reporting_job())
    (delivery,) = await claim_deliveries(store, clock)
    assert delivery.attempts == 1
    store = await store_factory.reopen()
    assert await claim_deliveries(store, clock) == []
    clock.advance(minutes=1)
    (repeated,) = await claim_deliveries(store, clock)
    assert (repeated.id, repeated.attempts, repeated.body) == (delivery.id, 2, delivery.body)


async def test_a_delivered_state_is_not_due_again(store: Store, clock: Clock) -> None:
    await accept(store, a_reporting_job())
    (delivery,) = await claim_deliveries(store, clock)
    await store.report_delivery(DeliveryReport(id=delivery.id, attempt=DeliveryAttempt(http_status=204)))
    (row,) = await deliveries_of(store)
    assert (row.status, row.last_status, row.completed_at) == (DeliveryStatus.DELIVERED, 204, clock.now)
    assert row.next_attempt_at is None
    clock.advance(hours=1)
    assert await claim_deliveries(store, clock) == []
    entry = (await whole_ledger(store))[-1]
    assert (entry.kind, entry.job_id) == (LedgerKind.DELIVERY_DELIVERED, delivery.job_id)


async def test_a_failed_attempt_is_due_again_and_holds_no_other_back(store: Store, clock: Clock) -> None:
    """A retry never holds back a later event."""
    await accept(store, a_reporting_job())
    await claim_all(store)
    (first,) = await claim_deliveries(store, clock)
    later = clock.now + timedelta(minutes=5)
    await store.report_delivery(
        DeliveryReport(id=first.id, attempt=DeliveryAttempt(http_status=503, error="busy"), retry_at=later)
    )
    (second,) = await claim_deliveries(store, clock)
    assert second.sequence == 2
    clock.now = later
    assert first.id in {delivery.id for delivery in await claim_deliveries(store, clock)}
    row = (await deliveries_of(store))[0]
    assert (row.last_status, row.last_error, row.attempts) == (503, "busy", 2)


async def test_an_attempt_that_is_given_back_was_none(store: Store, clock: Clock) -> None:
    """A delivery that a stop prevented keeps all its attempts and its order."""
    await accept(store, a_reporting_job())
    await claim_all(store)
    (delivery,) = await claim_deliveries(store, clock)
    await store.report_delivery(
        DeliveryReport(
            id=delivery.id, attempt=DeliveryAttempt(error="stopped"), retry_at=clock.now, counts=False
        )
    )
    (repeated,) = await claim_deliveries(store, clock)
    assert (repeated.id, repeated.sequence, repeated.attempts) == (delivery.id, 1, 1)


async def test_a_delivery_that_is_given_up_is_dropped_and_recorded(store: Store, clock: Clock) -> None:
    await accept(store, a_reporting_job())
    (delivery,) = await claim_deliveries(store, clock)
    await store.report_delivery(DeliveryReport(id=delivery.id, attempt=DeliveryAttempt(error="refused")))
    (row,) = await deliveries_of(store)
    assert (row.status, row.last_error) == (DeliveryStatus.DROPPED, "refused")
    assert (await whole_ledger(store))[-1].kind is LedgerKind.DELIVERY_DROPPED


async def test_the_ledger_never_tells_the_url(store: Store, clock: Clock) -> None:
    """URLs may hold secrets."""
    job_id = await accept(store, a_reporting_job())
    (delivery,) = await claim_deliveries(store, clock)
    await store.report_delivery(DeliveryReport(id=delivery.id, attempt=DeliveryAttempt(http_status=200)))
    await store.cancel(job_id, POLICY)
    assert "canary" not in repr(await whole_ledger(store))


async def test_a_delivery_can_be_sent_again(store: Store, clock: Clock) -> None:
    """It has the same id and body. A pending delivery is not changed."""
    await accept(store, a_reporting_job())
    (delivery,) = await claim_deliveries(store, clock)
    assert not await store.resend(delivery.id)
    await store.report_delivery(DeliveryReport(id=delivery.id, attempt=DeliveryAttempt(http_status=200)))
    clock.advance(hours=1)
    assert await store.resend(delivery.id)
    (repeated,) = await claim_deliveries(store, clock)
    assert (repeated.id, repeated.body, repeated.status) == (
        delivery.id,
        delivery.body,
        DeliveryStatus.PENDING,
    )
    assert repeated.attempts == 1
    assert not await store.resend("unknown")


async def test_a_report_on_an_unknown_delivery_is_harmless(store: Store) -> None:
    await store.report_delivery(DeliveryReport(id="unknown", attempt=DeliveryAttempt(http_status=200)))


async def test_deliveries_are_listed_by_job_and_status(store: Store, clock: Clock) -> None:
    first, second = await accept(store, a_reporting_job()), await accept(store, a_reporting_job())
    (delivery, _other) = await claim_deliveries(store, clock)
    await store.report_delivery(DeliveryReport(id=delivery.id, attempt=DeliveryAttempt(http_status=200)))
    assert [row.job_id for row in await deliveries_of(store)] == [first, second]
    assert [row.job_id for row in await deliveries_of(store, second)] == [second]
    done = (await store.list_deliveries(DeliveryFilter(status=DeliveryStatus.DELIVERED), limit=9)).rows
    assert [row.job_id for row in done] == [first]


async def test_deliveries_with_any_text_can_be_filtered(store: Store) -> None:
    """An error may contain NUL, which some types of a database cannot store."""
    job_id = await accept(store, a_reporting_job())
    await run_next(store, failed(permanent=True, error="a\x00b"))
    page = await store.list_deliveries(DeliveryFilter(plugin="echo", command="handle"), limit=9)
    assert {row.job_id for row in page.rows} == {job_id}


async def test_no_more_deliveries_are_claimed_than_requested(store: Store, clock: Clock) -> None:
    for _ in range(3):
        await accept(store, a_reporting_job())
    assert len(await claim_deliveries(store, clock, limit=2)) == 2


async def test_a_clock_set_back_does_not_silence_the_outbox(store: Store, clock: Clock) -> None:
    """A delivery is due by the clock, not by the last stored instant."""
    await accept(store, a_new_job())
    clock.advance(hours=-6)
    await accept(store, a_reporting_job())
    assert len(await claim_deliveries(store, clock)) == 1


async def test_a_pending_delivery_waits_no_longer_than_its_retry_time(store: Store, clock: Clock) -> None:
    """After a jump of the clock the waiting times of deliveries are shortened too."""
    await accept(store, a_reporting_job())
    (delivery,) = await claim_deliveries(store, clock)
    retry_at = clock.now + timedelta(seconds=5)
    await store.report_delivery(DeliveryReport(id=delivery.id, attempt=DeliveryAttempt(), retry_at=retry_at))
    clock.advance(hours=-6)
    await store.shorten_waits()
    clock.advance(minutes=5)
    assert len(await claim_deliveries(store, clock)) == 1


async def test_a_failure_that_is_reported_late_does_not_undo_a_later_attempt(
    store: Store, clock: Clock
) -> None:
    """While a sender was stopped, another one has sent the delivery again."""
    job_id = await accept(store, a_reporting_job())
    (first,) = await claim_deliveries(store, clock)
    clock.advance(minutes=2)
    (second,) = await claim_deliveries(store, clock)
    assert (first.id, second.attempts) == (second.id, 2)
    late_report = DeliveryReport(
        id=first.id,
        attempt=DeliveryAttempt(error="the connection was lost"),
        retry_at=clock.now,
        attempts=first.attempts,
    )
    await store.report_delivery(late_report)
    assert await claim_deliveries(store, clock) == [], "the second attempt is under way"
    await report_delivered(store, second)
    await store.report_delivery(late_report)
    (row,) = await deliveries_of(store, job_id)
    assert (row.status, row.attempts) == (DeliveryStatus.DELIVERED, 2)


async def test_a_success_counts_once_however_late_it_is_reported(store: Store, clock: Clock) -> None:
    job_id = await accept(store, a_reporting_job())
    (first,) = await claim_deliveries(store, clock)
    clock.advance(minutes=2)
    (second,) = await claim_deliveries(store, clock)
    await report_delivered(store, first, second)
    (row,) = await deliveries_of(store, job_id)
    assert row.status is DeliveryStatus.DELIVERED
    kinds = [entry.kind for entry in await whole_ledger(store)]
    assert kinds.count(LedgerKind.DELIVERY_DELIVERED) == 1
