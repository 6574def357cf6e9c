"""Faults of the PostgreSQL server: nothing is lost or doubled, and the store recovers by itself."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from builders.cut_connections import CutAt, CuttingProxy
from builders.jobs import Clock, a_new_job, ok, some_rng
from builders.postgres import END_WRITER, start_proxy, store_url
from builders.stores import POLICY, POSTGRES, accept, claim_one, settle
from ductile.core.jobs.model import JobStatus
from ductile.errors import StoreBusyError, StoreError, StoreFullError
from ductile.store.port import Priority
from ductile.store.postgres import connection, write_connection
from ductile.store.postgres.store import PostgresStore, open_postgres_store
from ductile.store.session import Session


@pytest.fixture
def proxy(tmp_path: Path) -> Iterator[CuttingProxy]:
    proxy = start_proxy(tmp_path)
    yield proxy
    proxy.close()


@asynccontextmanager
async def opened(directory: Path, *, seed: int = 1, proxied: bool = True) -> AsyncIterator[PostgresStore]:
    store = open_postgres_store(store_url(directory, proxied=proxied), clock=Clock(), rng=some_rng(seed))
    try:
        yield store
    finally:
        await store.close()


@pytest.mark.parametrize("cut_at", CutAt)
async def test_a_connection_lost_during_commit_neither_loses_nor_doubles(
    tmp_path: Path, proxy: CuttingProxy, cut_at: CutAt
) -> None:
    """The store asks the server whether the transaction was committed, and repeats it only if not."""
    async with opened(tmp_path) as store:
        await accept(store, a_new_job(plugin="first"))
        proxy.cut_at = cut_at
        job_id = await accept(store, a_new_job(plugin="second"))
        assert proxy.cuts == 1
        assert await store.get_job(job_id) is not None
        transitions = await store.list_transitions(job_id)
        assert len(transitions) == 1, "submitted once"


@pytest.mark.parametrize("cut_at", CutAt)
async def test_a_result_is_settled_once_if_the_connection_is_lost_during_its_commit(
    tmp_path: Path, proxy: CuttingProxy, cut_at: CutAt
) -> None:
    async with opened(tmp_path) as store:
        await accept(store, a_new_job())
        job = await claim_one(store)
        proxy.cut_at = cut_at
        settled = await settle(store, job, ok(), POLICY)
        assert proxy.cuts == 1
        assert settled.settlement.status is JobStatus.SUCCEEDED
        assert len(await store.list_executions(job.id)) == 1


def test_a_transaction_that_a_failover_has_lost_was_not_committed(tmp_path: Path) -> None:
    """The new primary may not have assigned the id of the transaction yet, and the question fails."""
    with connection.connect(store_url(tmp_path), application_name="test") as server:
        current = "SELECT CAST(pg_current_xact_id() AS text)"
        (committed,) = server.execute(current).fetchone() or ("",)
        assert write_connection.was_committed(server, committed) is True
        server.execute("BEGIN")
        (aborted,) = server.execute(current).fetchone() or ("",)
        assert write_connection.was_committed(server, aborted) is None
        server.execute("ROLLBACK")
        assert write_connection.was_committed(server, aborted) is False
        assert write_connection.was_committed(server, str(int(aborted) + 1_000_000)) is False


async def test_connections_that_were_cut_while_idle_are_opened_again(
    tmp_path: Path, proxy: CuttingProxy
) -> None:
    """After a restart of the server neither a read nor a write fails."""
    async with opened(tmp_path) as store:
        job_id = await accept(store, a_new_job())
        assert await store.get_job(job_id) is not None
        proxy.cut_all()
        assert await store.get_job(job_id) is not None
        await accept(store, a_new_job())


async def test_an_unreachable_server_refuses_work_and_is_used_again_when_it_is_back(
    tmp_path: Path, proxy: CuttingProxy
) -> None:
    async with opened(tmp_path) as store:
        job_id = await accept(store, a_new_job())
        proxy.is_down = True
        proxy.cut_all()
        with pytest.raises(StoreBusyError):
            await accept(store, a_new_job())
        with pytest.raises(StoreBusyError):
            await store.get_job(job_id)
        proxy.is_down = False
        while True:
            try:
                await accept(store, a_new_job())
            except StoreBusyError:
                await asyncio.sleep(0)
            else:
                break
        assert await store.get_job(job_id) is not None


async def test_two_nodes_write_one_after_the_other(tmp_path: Path) -> None:
    """The numbers of the ledger have no gaps and no repetitions, and become visible in order."""
    async with (
        opened(tmp_path, seed=1, proxied=False) as first,
        opened(tmp_path, seed=2, proxied=False) as second,
    ):
        stores = (first, second)
        await asyncio.gather(*(accept(stores[number % 2], a_new_job()) for number in range(60)))
        ledger = await first.list_ledger(after=0, limit=1000)
        assert [row.seq for row in ledger] == list(range(1, len(ledger) + 1))
        claims = await asyncio.gather(*(claim_one(stores[number % 2]) for number in range(60)))
        assert len({job.id for job in claims}) == 60


async def test_two_nodes_may_create_the_store_at_the_same_moment(tmp_path: Path) -> None:
    url = store_url(tmp_path, proxied=False)

    def create(seed: int) -> PostgresStore:
        return open_postgres_store(url, clock=Clock(), rng=some_rng(seed))

    stores = await asyncio.gather(*(asyncio.to_thread(create, seed) for seed in range(4)))
    assert len({store.store_id for store in stores}) == 1
    for store in stores:
        await store.close()


async def test_a_wrong_password_is_a_clear_error_without_the_url(tmp_path: Path) -> None:
    del tmp_path
    with pytest.raises(StoreError) as caught:
        open_postgres_store(
            "postgresql://someone:canary-secret@/nowhere?host=/nonexistent", clock=Clock(), rng=some_rng(1)
        )
    assert "canary-secret" not in str(caught.value)
    assert "cannot be reached" in str(caught.value)


async def test_a_node_that_stops_inside_a_transaction_does_not_block_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server ends the transaction and gives the lock to other nodes. The request runs again later."""
    monkeypatch.setattr(write_connection, "IDLE_MILLISECONDS", 200)
    entered, go_on = threading.Event(), threading.Event()

    def stop_once(session: Session) -> str:
        job_id = f"{len(attempts)}"
        attempts.append(job_id)
        if len(attempts) == 1:
            session.execute("put_meta", key="stopped", value="first")
            entered.set()
            go_on.wait()
        session.execute("put_meta", key="stopped", value="again")
        return job_id

    attempts: list[str] = []
    async with (
        opened(tmp_path, seed=1, proxied=False) as stopped,
        opened(tmp_path, seed=2, proxied=False) as other,
    ):
        writing = asyncio.ensure_future(stopped.run_write(Priority.SETTLE, stop_once))
        await asyncio.to_thread(entered.wait)
        await accept(other, a_new_job())
        go_on.set()
        await writing
        assert len(attempts) == 2
        assert await other.run_read(lambda session: session.fetch_value("get_meta", key="stopped")) == "again"


async def test_a_server_that_hangs_counts_as_away(
    tmp_path: Path, proxy: CuttingProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The network acknowledges every packet, and no response comes: callers are refused."""
    monkeypatch.setattr(write_connection, "WRITE_ANSWER_SECONDS", 1.0)
    monkeypatch.setattr(connection, "CONNECT_OPTIONS", {**connection.CONNECT_OPTIONS, "connect_timeout": 2})
    async with opened(tmp_path) as store:
        await accept(store, a_new_job())
        proxy.flows.clear()
        with pytest.raises(StoreBusyError, match="cannot be reached"):
            await accept(store, a_new_job())
        with pytest.raises(StoreBusyError, match="cannot be reached"):
            await store.check_files()
        proxy.flows.set()
        await until_accepted(store)


@pytest.mark.parametrize("state", ["08006", "40001", "40P01", "53200", "53300", "55P03", "57014", "58030"])
async def test_faults_that_pass_are_not_failures(tmp_path: Path, state: str) -> None:
    """After a fault of connections, locks or memory the same write may succeed later."""
    async with opened(tmp_path, proxied=False) as store:
        POSTGRES.run_sql(tmp_path, fail_inserts_into("job_queue", state))
        with pytest.raises(StoreBusyError):
            await accept(store, a_new_job())
        POSTGRES.run_sql(tmp_path, "DROP TRIGGER failing ON job_queue")
        await until_accepted(store)


async def test_a_full_disk_of_the_server_refuses_submissions_until_there_is_room(tmp_path: Path) -> None:
    async with opened(tmp_path, proxied=False) as store:
        for table in ("job_queue", "store_meta"):
            POSTGRES.run_sql(tmp_path, fail_inserts_into(table, "53100"))
        with pytest.raises(StoreFullError, match="no room"):
            await accept(store, a_new_job())
        assert await store.is_full()
        for table in ("job_queue", "store_meta"):
            POSTGRES.run_sql(tmp_path, f"DROP TRIGGER failing ON {table}")
        assert not await store.is_full(), "found out without a submission"
        await accept(store, a_new_job())


async def test_connections_that_the_server_ends_while_idle_do_not_fail_a_verb(tmp_path: Path) -> None:
    """An operator or a limit for idle sessions ends them."""
    async with opened(tmp_path, proxied=False) as store:
        job_id = await accept(store, a_new_job())
        await store.get_job(job_id)
        assert POSTGRES.run_sql(tmp_path, END_WRITER) == [(True,)]
        await accept(store, a_new_job())
        assert await store.get_job(job_id) is not None


async def until_accepted(store: PostgresStore) -> str:
    while True:
        try:
            return await accept(store, a_new_job())
        except StoreBusyError:
            await asyncio.sleep(0)


def fail_inserts_into(table: str, state: str) -> str:
    return (
        "CREATE OR REPLACE FUNCTION fail() RETURNS trigger LANGUAGE plpgsql AS "
        "$$ BEGIN RAISE EXCEPTION 'it fails' USING ERRCODE = TG_ARGV[0]; END $$; "
        f"CREATE TRIGGER failing BEFORE INSERT ON {table} FOR EACH ROW EXECUTE FUNCTION fail('{state}')"
    )
