"""Nodes that share a store: membership, limits of an ended node, and notifications between nodes."""

from __future__ import annotations

import asyncio
import select
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from datetime import timedelta
from pathlib import Path
from random import Random
from typing import Any

import psycopg
import pytest
from hypothesis import given
from hypothesis import strategies as st
from psycopg.pq import ExecStatus

from builders.daemons import PATIENCE
from builders.jobs import Clock, a_new_job, ok, some_rng
from builders.postgres import store_url
from builders.stores import LEASE, POLICY, ROOMY, accept, settle, whole_ledger
from ductile.core.jobs.model import JobStatus
from ductile.errors import ContendedError
from ductile.store.model.jobs import CancelStatus
from ductile.store.model.maintenance import Invariant
from ductile.store.model.nodes import NodeInfo
from ductile.store.notifier import CancelRequested, Change, JobEnded, JobsReady, RetryScheduled, SessionEnded
from ductile.store.postgres import cluster, write_connection
from ductile.store.postgres.notifications import decode_changes, encode_changes
from ductile.store.postgres.session import load_postgres_queries
from ductile.store.postgres.store import PostgresStore, open_postgres_store


def a_node(name: str, **fields: object) -> NodeInfo:
    values = {
        "owner": f"{name}:1:1",
        "name": name,
        "host": "host",
        "machine": "machine",
        "version": "1",
        "config": "c",
        "workers": 2,
        "plugins": ("echo",),
    }
    return NodeInfo(**{**values, **fields})  # type: ignore[arg-type]


@asynccontextmanager
async def open_store(
    directory: Path, seed: int = 1, *, copy_of: Path | None = None
) -> AsyncIterator[PostgresStore]:
    # Stores of other tests are in the same database, and have other ids: notifications are sent by id.
    rng = Random(f"{copy_of or directory} {seed}")
    store = open_postgres_store(store_url(directory), clock=Clock(), rng=rng)
    try:
        yield store
    finally:
        await store.close()


def silence(directory: Path, name: str, seconds: int) -> None:
    with psycopg.connect(store_url(directory), autocommit=True) as connection:
        connection.execute(
            "UPDATE nodes SET heartbeat_at = heartbeat_at - make_interval(secs => %s) WHERE name = %s",
            (seconds, name),
        )


async def test_the_oldest_live_node_leads_and_is_replaced_when_it_is_silent(tmp_path: Path) -> None:
    async with open_store(tmp_path) as store:
        one, two = a_node("one"), a_node("two")
        assert await store.cluster.join(one) is None
        assert await store.cluster.join(two) is None
        first, second = await store.cluster.renew(one), await store.cluster.renew(two)
        assert first is not None
        assert second is not None
        assert (first.is_leader, second.is_leader) == (True, False)
        assert [node.info.name for node in await store.cluster.nodes()] == ["one", "two"]
        silence(tmp_path, "one", 16)
        second = await store.cluster.renew(two)
        assert second is not None
        assert second.is_leader
        assert second.longest_silence > 15
        assert await store.cluster.end_silent_nodes() == ("one",)
        assert await store.cluster.renew(one) is None, "it has to join again"
        assert [node.info.name for node in await store.cluster.nodes()] == ["two"]


async def test_a_node_that_answers_is_not_ended(tmp_path: Path) -> None:
    async with open_store(tmp_path) as store:
        await store.cluster.join(a_node("one"))
        silence(tmp_path, "one", 14)
        assert await store.cluster.end_silent_nodes() == ()


async def test_no_two_live_nodes_have_one_name(tmp_path: Path) -> None:
    async with open_store(tmp_path) as store:
        assert await store.cluster.join(a_node("one")) is None
        other = await store.cluster.join(a_node("one", owner="one:2:2", host="elsewhere"))
        assert other is not None
        assert other.info.owner == "one:1:1"
        await store.cluster.end_node("one:1:1")
        assert await store.cluster.join(a_node("one", owner="one:2:2")) is None


async def test_an_ended_node_claims_nothing_and_its_jobs_are_recovered(tmp_path: Path) -> None:
    """The jobs of live nodes do not change. A late result of the ended node changes nothing."""
    async with open_store(tmp_path) as store:
        one, two = a_node("one"), a_node("two")
        for node in (one, two):
            await store.cluster.join(node)
        for _ in range(3):
            await accept(store, a_new_job())
        (lost,) = await store.claim(owner=one.owner, caps=ROOMY, limit=1, lease=LEASE)
        (kept,) = await store.claim(owner=two.owner, caps=ROOMY, limit=1, lease=LEASE)
        assert (await store.recover(POLICY)).jobs == (), "both nodes live"
        await store.cluster.end_node(one.owner)
        with pytest.raises(ContendedError):
            await store.claim(owner=one.owner, caps=ROOMY, limit=1, lease=LEASE)
        heartbeat = await store.cluster.renew(two)
        assert heartbeat is not None
        assert heartbeat.has_orphans
        assert [job.id for job in (await store.recover(POLICY)).jobs] == [lost.job.id]
        late = await store.settle(lost.job, ok(), POLICY)
        assert not hasattr(late, "settlement"), "another node may run it by now"
        job = await store.get_job(kept.job.id)
        assert job is not None
        assert job.status is JobStatus.RUNNING


async def test_an_ended_node_comes_back_when_its_jobs_are_recovered(tmp_path: Path) -> None:
    async with open_store(tmp_path) as store:
        one = a_node("one")
        await store.cluster.join(one)
        await accept(store, a_new_job())
        await store.claim(owner=one.owner, caps=ROOMY, limit=1, lease=LEASE)
        await store.cluster.end_node(one.owner)
        await store.cluster.join(one)
        assert await store.cluster.renew(one) is None, "its job still counts as running"
        await store.recover(POLICY)
        await store.cluster.join(one)
        assert await store.cluster.renew(one) is not None


async def test_a_heartbeat_names_the_jobs_to_stop(tmp_path: Path) -> None:
    async with open_store(tmp_path) as store:
        one = a_node("one")
        await store.cluster.join(one)
        job_id = await accept(store, a_new_job())
        await store.claim(owner=one.owner, caps=ROOMY, limit=1, lease=LEASE)
        assert (await store.cancel(job_id, POLICY)).status is CancelStatus.REQUESTED
        heartbeat = await store.cluster.renew(one)
        assert heartbeat is not None
        assert heartbeat.cancelled == (job_id,)


async def test_nodes_whose_clocks_differ_by_minutes_store_instants_in_order(tmp_path: Path) -> None:
    """The nodes write in turn, and no stored instant is earlier than the one before it."""
    late, early = Clock(), Clock()
    early.advance(minutes=7)
    one = open_postgres_store(store_url(tmp_path), clock=late, rng=some_rng(1))
    two = open_postgres_store(store_url(tmp_path), clock=early, rng=some_rng(2))
    try:
        for store, other in ((one, two), (two, one), (one, two)):
            job_id = await accept(store, a_new_job())
            (claim,) = await other.claim(owner="x", caps=ROOMY, limit=1, lease=LEASE)
            await settle(store, claim.job, ok())
            job = await store.get_job(job_id)
            assert job is not None
            assert job.started_at is not None
            assert job.completed_at is not None
            assert job.created_at <= job.started_at <= job.completed_at
        instants = [row.at for row in await whole_ledger(one)]
        assert instants == sorted(instants)
        assert await one.find_violations(Invariant.LEDGER_NEVER_GOES_BACK, limit=5) == ()
    finally:
        await one.close()
        await two.close()


async def test_changes_of_one_node_reach_the_subscribers_of_another(tmp_path: Path) -> None:
    async with open_store(tmp_path) as store, open_store(tmp_path, seed=2) as other:
        changes: asyncio.Queue[Change] = asyncio.Queue()
        ready = asyncio.Event()
        other.notifier.subscribe(JobsReady, lambda _: ready.set())
        for kind in (JobEnded, CancelRequested):
            other.notifier.subscribe(kind, changes.put_nowait)
        listener = asyncio.create_task(other.cluster.listen())
        try:
            async with asyncio.timeout(PATIENCE):
                await ready.wait()  # Published once when it begins to listen.
                ready.clear()
                job_id = await accept(store, a_new_job())
                await ready.wait()
                (claim,) = await other.claim(owner="x", caps=ROOMY, limit=1, lease=LEASE)
                await store.cancel(job_id, POLICY)
                assert await changes.get() == CancelRequested(job_id=job_id)
                await settle(store, claim.job, ok())
                ended = await changes.get()
            assert isinstance(ended, JobEnded)
            assert ended.job_id == job_id
        finally:
            listener.cancel()
            await asyncio.wait({listener})


async def test_a_copy_of_the_store_beside_it_is_not_notified(tmp_path: Path) -> None:
    """A copy has the same id and the same jobs. A cancel in one must not reach the other."""
    own = tmp_path / "own"
    async with (
        open_store(tmp_path / "copy", copy_of=own) as copy,
        open_store(own) as store,
        open_store(own, seed=2) as other,
    ):
        assert copy.store_id == store.store_id
        changes: asyncio.Queue[Change] = asyncio.Queue()
        is_listening = asyncio.Event()
        other.notifier.subscribe(JobsReady, lambda _: is_listening.set())
        other.notifier.subscribe(JobEnded, changes.put_nowait)
        listener = asyncio.create_task(other.cluster.listen())
        try:
            async with asyncio.timeout(PATIENCE):
                await is_listening.wait()
                ids = []
                for written_store in (copy, store):
                    ids.append(await accept(written_store, a_new_job()))
                    (claim,) = await written_store.claim(owner="x", caps=ROOMY, limit=1, lease=LEASE)
                    await settle(written_store, claim.job, ok())
                first = await changes.get()
            assert isinstance(first, JobEnded)
            assert first.job_id == ids[1]
        finally:
            listener.cancel()
            await asyncio.wait({listener})


async def test_a_session_that_is_signed_out_on_one_node_is_refused_by_all(tmp_path: Path) -> None:
    async with open_store(tmp_path) as store, open_store(tmp_path, seed=2) as other:
        changes: asyncio.Queue[SessionEnded] = asyncio.Queue()
        is_listening = asyncio.Event()
        other.notifier.subscribe(JobsReady, lambda _: is_listening.set())
        other.notifier.subscribe(SessionEnded, changes.put_nowait)
        listener = asyncio.create_task(other.cluster.listen())
        try:
            async with asyncio.timeout(PATIENCE):
                await is_listening.wait()
                await store.end_session("one", Clock()() + timedelta(days=7))
                assert (await changes.get()).session_id == "one"
        finally:
            listener.cancel()
            await asyncio.wait({listener})


async def test_what_was_missed_during_an_interruption_is_read_anew(tmp_path: Path) -> None:
    # An id of its own: a test that runs beside this one must keep its listener.
    async with open_store(tmp_path, seed=4711) as store:
        ready = asyncio.Event()
        store.notifier.subscribe(JobsReady, lambda _: ready.set())
        listener = asyncio.create_task(store.cluster.listen())
        try:
            async with asyncio.timeout(PATIENCE):
                await ready.wait()
                ready.clear()
                with psycopg.connect(store_url(tmp_path), autocommit=True) as connection:
                    connection.execute(
                        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                        "WHERE application_name = 'ductile listener' AND query LIKE %s",
                        (f"%{store.store_id}%",),
                    )
                await ready.wait()
        finally:
            listener.cancel()
            await asyncio.wait({listener})


@given(st.lists(st.text(max_size=40), max_size=300), st.lists(st.datetimes(), max_size=5))
def test_payloads_carry_every_end_and_fit_a_notification(ids: list[str], dues: list) -> None:  # type: ignore[type-arg]
    ends = [JobEnded(job_id=job_id, plugin="p", command="c", submitted_by="api") for job_id in ids]  # type: ignore[arg-type]
    payloads = list(encode_changes("me", [*ends, *(RetryScheduled(due_at=due) for due in dues)]))
    assert all(len(payload.encode()) < 8_000 for payload in payloads)
    decoded = [decode_changes(payload) for payload in payloads]
    assert {sender for sender, _ in decoded} <= {"me"}
    changes = [change for _, decoded_changes in decoded for change in decoded_changes]
    ended_ids = [change.job_id for change in changes if isinstance(change, JobEnded)]
    assert sorted(ended_ids) == sorted(set(ids))
    earliest = [change.due_at for change in changes if isinstance(change, RetryScheduled)]
    assert earliest == ([min(dues)] if dues else [])


async def test_jobs_of_a_node_that_has_just_ended_wait_for_the_next_recovery(tmp_path: Path) -> None:
    """Remaining processes of the node were not looked for yet."""
    node = a_node("one")
    async with open_store(tmp_path) as store:
        await store.cluster.join(node)
        job_id = await accept(store, a_new_job())
        await store.claim(owner=node.owner, caps=ROOMY, limit=1, lease=LEASE)
        live_owners = [live_node.info.owner for live_node in await store.cluster.nodes()]
        await store.cluster.end_node(node.owner)
        assert (await store.recover(POLICY, on_node=True, live_owners=live_owners)).jobs == ()
        (recovered,) = (await store.recover(POLICY, on_node=True)).jobs
        assert recovered.id == job_id


async def test_a_node_that_stops_while_it_sends_statements_does_not_block_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server would wait for the rest of a batch for ever. A node that waits for the lock ends this."""
    monkeypatch.setattr(write_connection, "HANGING_SECONDS", 0.1)
    monkeypatch.setattr(cluster, "STUCK_SECONDS", 0.1)
    node = a_node("one")
    async with open_store(tmp_path) as store:
        await store.cluster.join(node)
        with closing(psycopg.connect(store_url(tmp_path), autocommit=True)) as stopped:
            send_half_a_batch(stopped)
            waiting = asyncio.ensure_future(accept(store, a_new_job()))
            async with asyncio.timeout(PATIENCE):
                while not waiting.done():
                    await store.cluster.renew(node)
            await waiting


def send_half_a_batch(connection: psycopg.Connection[Any]) -> None:
    """Take the lock of the store in a transaction, and leave the batch of statements incomplete."""
    raw = connection.pgconn
    raw.enter_pipeline_mode()
    raw.send_query_params(b"BEGIN", None)
    raw.send_query_params(load_postgres_queries()["lock_store"].encode(), None)
    raw.send_flush_request()
    raw.flush()
    for expected in (ExecStatus.COMMAND_OK, None, ExecStatus.TUPLES_OK):  # until it has the lock
        while raw.is_busy():
            select.select([raw.socket], [], [])
            raw.consume_input()
        result = raw.get_result()
        assert (None if result is None else result.status) == expected
