"""State webhooks of duplicates: which URLs get which states of the existing job."""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path
from typing import Any

import apsw

from builders.jobs import Clock, a_new_job, failed, ok
from builders.stores import POLICY, StoreFactory, accept, claim_all, claim_one, run_next, settle, submit
from ductile.core.jobs.model import NewJob, StateSubscription
from ductile.core.webhooks.deliveries import MAX_SUBSCRIPTIONS, DeliveryAttempt
from ductile.store.model.deliveries import (
    Delivery,
    DeliveryCapacity,
    DeliveryFilter,
    DeliveryReport,
    DeliveryStatus,
)
from ductile.store.model.jobs import Deduplicated
from ductile.store.model.maintenance import Retention
from ductile.store.port import Store
from ductile.store.sqlite.migrate import _apply, migrations

PRUNES = True  # the rules for rows at rest allow for it
FIRST, SECOND = "https://first.invalid/hook", "https://second.invalid/hook"


def a_keyed_job(url: str | None = None, *events: str, **fields: Any) -> NewJob:
    callback = None if url is None else StateSubscription(url=url, model="llama", events=events or None)
    return a_new_job(dedupe_key="key:a", dedupe_ttl=3600.0, callback=callback, **fields)


async def submit_duplicate(store: Store, job: NewJob) -> Deduplicated:
    (result,) = await submit(store, job)
    assert isinstance(result, Deduplicated), result
    return result


async def sent_to(store: Store, url: str) -> list[Delivery]:
    """Return the deliveries to a URL, oldest first."""
    return [row for row in reversed((await store.list_deliveries(limit=200)).rows) if row.url == url]


async def states(store: Store, url: str) -> list[str]:
    return [row.state for row in await sent_to(store, url)]


async def test_a_duplicate_while_the_job_is_queued(store: Store) -> None:
    job_id = await accept(store, a_keyed_job(FIRST))
    result = await submit_duplicate(store, a_keyed_job(SECOND))
    assert (result.job_id, result.subscribed) == (job_id, True)
    await run_next(store, ok())
    assert await states(store, FIRST) == ["queued", "loading", "done"]
    assert await states(store, SECOND) == ["loading", "done"]
    first, second = await sent_to(store, FIRST), await sent_to(store, SECOND)
    assert [(row.sequence, row.body) for row in first[1:]] == [(row.sequence, row.body) for row in second]
    assert len({row.id for row in first + second}) == 5


async def test_a_duplicate_of_a_job_that_was_claimed_without_a_url(store: Store) -> None:
    """The claimed job has no URL, but its end is delivered."""
    await accept(store, a_keyed_job())
    claimed = await claim_one(store)
    await submit_duplicate(store, a_keyed_job(FIRST))
    await settle(store, claimed, ok(result="hi"))
    (row,) = await sent_to(store, FIRST)
    body = json.loads(row.body)
    assert (row.state, row.sequence, body["result"], body["model"]) == ("done", 1, "hi", "llama")


def reporting_to(url: str, *events: str) -> StateSubscription:
    return StateSubscription(url=url, model="llama", events=events or None)


async def test_a_configured_url_gets_the_states_of_a_job(store: Store) -> None:
    """The submission needs no URL for this."""
    await accept(store, a_new_job(configured_callback=reporting_to(FIRST, "queued", "done")))
    await run_next(store, ok(result="hi"))
    queued, done = await sent_to(store, FIRST)
    assert [json.loads(row.body)["model"] for row in (queued, done)] == ["llama", "llama"]
    assert (queued.state, done.state, json.loads(done.body)["result"]) == ("queued", "done", "hi")


async def test_the_configured_url_and_that_of_the_submission_get_the_same_events(store: Store) -> None:
    job = a_new_job(callback=reporting_to(FIRST), configured_callback=reporting_to(SECOND))
    await accept(store, job)
    await run_next(store, failed(permanent=True))
    first, second = await sent_to(store, FIRST), await sent_to(store, SECOND)
    assert [row.state for row in first] == ["queued", "loading", "failed"]
    assert [(row.sequence, row.body) for row in first] == [(row.sequence, row.body) for row in second]


async def test_the_same_url_configured_and_named_is_sent_each_state_once(store: Store) -> None:
    job = a_new_job(callback=reporting_to(FIRST, "done"), configured_callback=reporting_to(FIRST, "queued"))
    await accept(store, job)
    await run_next(store, ok())
    assert await states(store, FIRST) == ["queued", "done"]


async def test_a_duplicate_does_not_subscribe_the_configured_url(store: Store) -> None:
    """The existing job keeps the configured URL of its own submission."""
    await accept(store, a_keyed_job())
    result = await submit_duplicate(store, a_keyed_job(configured_callback=reporting_to(SECOND)))
    assert result.subscribed is None
    await submit_duplicate(store, a_keyed_job(FIRST, configured_callback=reporting_to(SECOND)))
    await run_next(store, ok())
    assert await states(store, FIRST) == ["loading", "done"]
    assert await states(store, SECOND) == []


async def test_a_retry_is_reported_to_the_configured_url(store: Store) -> None:
    job_id = await accept(store, a_new_job(configured_callback=reporting_to(FIRST)))
    await run_next(store, failed(permanent=True))
    await store.retry(job_id, POLICY)
    assert await states(store, FIRST) == ["queued", "loading", "failed", "queued"]


async def test_a_duplicate_without_url_subscribes_nothing(store: Store) -> None:
    await accept(store, a_keyed_job())
    assert (await submit_duplicate(store, a_keyed_job())).subscribed is None
    await run_next(store, ok())
    assert (await store.list_deliveries(limit=9)).rows == ()


async def test_the_same_url_is_subscribed_once_with_the_states_of_both(store: Store) -> None:
    for url in (FIRST, SECOND):
        await submit(store, a_keyed_job(url, "done"))
        await submit(store, a_keyed_job(url, "loading"))
    await run_next(store, ok())
    assert await states(store, FIRST) == await states(store, SECOND) == ["loading", "done"]


async def test_the_end_of_a_job_is_delivered_once_to_each_url(store: Store) -> None:
    await accept(store, a_keyed_job())
    stdout = '{"status": "ok", "result": "hi"}'
    await run_next(store, ok(result="hi", artifacts=({"name": "a"},), stdout=stdout))
    for _ in range(2):
        for url in (FIRST, SECOND):
            assert (await submit_duplicate(store, a_keyed_job(url))).subscribed is True
    for url in (FIRST, SECOND):
        (row,) = await sent_to(store, url)
        body = json.loads(row.body)
        assert (row.state, row.sequence, body["attempt"], body["previous_state"]) == ("done", 1, 1, None)
        assert (body["result"], body["artifacts"]) == ("hi", [{"name": "a"}])


async def test_the_end_of_a_job_is_delivered_only_if_its_state_was_chosen(store: Store) -> None:
    await accept(store, a_keyed_job())
    await run_next(store, ok())
    await submit_duplicate(store, a_keyed_job(FIRST, "failed"))
    assert await states(store, FIRST) == []
    await submit_duplicate(store, a_keyed_job(FIRST, "done"))
    assert await states(store, FIRST) == ["done"]


async def test_instants_of_one_job_strictly_increase(store: Store) -> None:
    """Here the clock stands still, as for all events of one transaction."""
    job_id = await accept(store, a_keyed_job(FIRST, max_attempts=1))
    job = await claim_one(store)
    await store.mark_working(job.id, job.execution)
    await settle(store, job, failed())
    await store.retry(job_id, POLICY)
    await run_next(store, ok())
    timestamps = [json.loads(row.body)["timestamp"] for row in await sent_to(store, FIRST)]
    assert len(timestamps) == 7
    assert timestamps == sorted(set(timestamps))
    await submit_duplicate(store, a_keyed_job(SECOND))
    (late_delivery,) = await sent_to(store, SECOND)
    assert json.loads(late_delivery.body)["timestamp"] == timestamps[-1]


async def test_a_url_does_not_wait_for_the_first_attempts_of_another(store: Store, clock: Clock) -> None:
    await accept(store, a_keyed_job(FIRST))
    await submit_duplicate(store, a_keyed_job(SECOND))
    await claim_all(store)
    claimed = await store.claim_deliveries(
        DeliveryCapacity(total=9, per_receiver=9), retry_at=clock.now + timedelta(minutes=1)
    )
    assert {(delivery.url, delivery.state) for delivery in claimed.deliveries} == {
        (FIRST, "queued"),
        (SECOND, "loading"),
    }


async def test_a_job_has_so_many_urls_and_no_more(store: Store) -> None:
    await accept(store, a_keyed_job(FIRST))
    urls = [f"https://many.invalid/{index}" for index in range(1, MAX_SUBSCRIPTIONS)]
    for url in urls:
        assert (await submit_duplicate(store, a_keyed_job(url))).subscribed is True
    assert (await submit_duplicate(store, a_keyed_job(SECOND))).subscribed is False
    assert (await submit_duplicate(store, a_keyed_job(urls[0]))).subscribed is True
    await run_next(store, ok())
    assert await states(store, SECOND) == []


async def test_subscriptions_survive_a_restart(store_factory: StoreFactory) -> None:
    store = await store_factory.open()
    await accept(store, a_keyed_job(FIRST))
    await submit_duplicate(store, a_keyed_job(SECOND, "done"))
    await store.close()
    store = await store_factory.open()
    await run_next(store, ok())
    assert await states(store, SECOND) == ["done"]


async def test_a_gone_receiver_is_recorded_and_not_due_again(store: Store, clock: Clock) -> None:
    await accept(store, a_keyed_job(FIRST))
    capacity, later = DeliveryCapacity(total=9, per_receiver=9), clock.now + timedelta(minutes=1)
    (delivery,) = (await store.claim_deliveries(capacity, retry_at=later)).deliveries
    await store.report_delivery(DeliveryReport(id=delivery.id, attempt=DeliveryAttempt(http_status=410)))
    clock.advance(days=1)
    assert (await store.claim_deliveries(capacity, retry_at=later)).deliveries == ()
    (row,) = (await store.list_deliveries(DeliveryFilter(status=DeliveryStatus.GONE), limit=9)).rows
    assert (row.id, row.last_status) == (delivery.id, 410)


async def test_subscriptions_go_with_their_job(
    store: Store, store_factory: StoreFactory, clock: Clock
) -> None:
    await accept(store, a_keyed_job(FIRST))
    await submit_duplicate(store, a_keyed_job(SECOND))
    await run_next(store, ok())
    clock.advance(days=400)
    await accept(store, a_new_job("newer"))
    while (await store.prune(Retention())).rows:
        pass
    count = "SELECT count(*) FROM state_subscriptions"
    assert store_factory.kind.run_sql(store_factory.directory, count) == [(0,)]


async def test_deliveries_of_an_older_store_are_kept(tmp_path: Path) -> None:
    connection = apsw.Connection(str(tmp_path / "old.db"))
    all_migrations = migrations()
    for version, sql in all_migrations[:2]:
        _apply(connection, version, sql)
    insert = (
        "INSERT INTO state_deliveries"
        " (seq, id, job_id, sequence, state, url, receiver, body, status, next_attempt_at, created_at)"
        " VALUES (?, ?, 'j', ?, 'queued', 'u', 'r', '{}', 'pending', 'n', 'c')"
    )
    for number in (1, 2, 9):
        connection.execute(insert, (number, f"d{number}", number))
    connection.execute("DELETE FROM state_deliveries WHERE seq = 9")
    columns = [column[1] for column in connection.execute("PRAGMA table_info(state_deliveries)")]
    query = f"SELECT {', '.join(columns)} FROM state_deliveries"  # noqa: S608 - names of columns
    before = connection.execute(query).fetchall()
    for version, sql in all_migrations[2:]:
        _apply(connection, version, sql)
    assert connection.execute(query).fetchall() == before
    connection.execute(insert.replace("?, ?, 'j'", "NULL, ?, 'j'"), ("d10", 10))
    assert connection.execute("SELECT max(seq) FROM state_deliveries").fetchall() == [(10,)]
    connection.close()
