"""The jobs that one token has started, and the store that shows only these."""

from __future__ import annotations

import inspect
from datetime import timedelta
from pathlib import Path
from typing import Any

import apsw
import pytest

from builders.jobs import Clock, a_new_job, a_route, emitted, failed, ok, some_policy
from builders.pipelines import begin_run, run_until_idle, steps_policy, uses
from builders.stores import accept, claim_all, run_next, whole_ledger
from ductile.core.jobs.model import JobStatus, StateSubscription
from ductile.errors import DeniedError
from ductile.store.model.deliveries import DeliveryFilter
from ductile.store.model.jobs import CancelStatus, RetryResult
from ductile.store.model.records import JobFilter, LogFilter, LogSort
from ductile.store.own_jobs import OwnJobs
from ductile.store.port import Store
from ductile.store.sqlite.migrate import _apply, migrations

AGENT, OTHER = "agent", "other"
CALLBACK = StateSubscription(url="http://127.0.0.1:9/hook")


async def populate(store: Store) -> dict[str, str]:
    """Run jobs of two tokens and of none, with routed children, a run, failures, keys and state webhooks."""
    policy = some_policy(a_route(source="echo"))
    ids = {}
    for token in (AGENT, OTHER, None):
        name = token or "none"
        ids[name] = await accept(
            store,
            a_new_job("echo", token=token, dedupe_key=f"key:{name}", dedupe_ttl=60.0, callback=CALLBACK),
        )
        settled = await run_next(
            store, ok(emitted("found", {}), stdout='{"status":"ok","result":"common"}'), policy
        )
        (child,) = settled.started
        ids[f"{name} child"] = child.job_id
        await run_next(store, failed(permanent=True), policy)
    steps = steps_policy(uses("a"))
    ids["run"] = await begin_run(store, steps, token=OTHER)
    await run_until_idle(store, steps)
    await store.index_log()
    return ids


async def test_every_list_has_only_what_the_token_started(store: Store) -> None:
    """Every other filter and every order can be combined with it."""
    ids = await populate(store)
    own = OwnJobs(store, AGENT)
    own_ids = {ids[AGENT], ids[f"{AGENT} child"]}
    filters: tuple[dict[str, Any], ...] = (
        {},
        {"plugin": "echo"},
        {"status": JobStatus.SUCCEEDED},
        {"status": JobStatus.DEAD},
        {"query": "common"},
        {"run_id": ids["run"]},
        {"parent_job_id": ids[OTHER]},
        {"job_id": ids[OTHER]},
        {"job_id": ids[AGENT]},
    )
    for fields in filters:
        everything = {job.id for job in (await store.list_jobs(JobFilter(**fields), limit=50)).rows}
        page = await own.list_jobs(JobFilter(**fields), limit=50)
        assert {job.id for job in page.rows} == everything & own_ids
        assert await own.count_jobs(JobFilter(**fields), limit=50) == len(everything & own_ids)
    for logged in (
        LogFilter(),
        LogFilter(query="common"),
        LogFilter(plugin="echo"),
        LogFilter(job_id=ids["run"]),
    ):
        for sort in LogSort:
            whole = {row.job_id for row in (await store.list_log(logged, limit=50, sort=sort)).rows}
            rows = (await own.list_log(logged, limit=50, sort=sort)).rows
            assert {row.job_id for row in rows} == whole & own_ids
    first = await own.list_jobs(JobFilter(), limit=1)
    second = await own.list_jobs(JobFilter(), limit=1, cursor=first.next_cursor)
    assert [job.id for job in (*first.rows, *second.rows)] == [ids[f"{AGENT} child"], ids[AGENT]]
    assert second.next_cursor is None
    assert (
        set(await own.job_ids("0", limit=50)) | set(await own.job_ids_ending(ids[OTHER][-4:], limit=50))
        <= own_ids
    )
    assert await own.job_ids(ids[AGENT], limit=50) == (ids[AGENT],)
    assert await own.job_ids_ending(ids[AGENT][-8:], limit=50) == (ids[AGENT],)


async def test_the_ledger_and_the_outbox_know_the_token_of_each_job(store: Store) -> None:
    """Entries other than transitions have the token too."""
    ids = await populate(store)
    await store.cancel(await accept(store, a_new_job(token=AGENT)), some_policy())
    job_ids = {row.job_id for row in await whole_ledger(store) if row.job_id}
    jobs_by_id = {job_id: (await store.get_job(job_id)) for job_id in job_ids}
    for row in await whole_ledger(store):
        job = jobs_by_id.get(row.job_id or "")
        assert row.token == (None if job is None else job.token), row
    own = OwnJobs(store, AGENT)
    entries = [row for row in await whole_ledger(store) if row.token == AGENT]
    assert await own.list_ledger(after=0, limit=500) == tuple(entries)
    assert await own.list_ledger(after=entries[1].seq, limit=2) == tuple(entries[2:4])
    assert await own.list_ledger(after=None, limit=2) == tuple(entries[-2:])
    assert await store.list_ledger(after=None, limit=2) == tuple((await whole_ledger(store))[-2:])
    sent = (await own.list_deliveries(DeliveryFilter(), limit=50)).rows
    assert {delivery.job_id for delivery in sent} == {ids[AGENT]}
    assert await own.count_deliveries(DeliveryFilter(), limit=50) == len(sent)
    foreign = next(
        delivery for delivery in (await store.list_deliveries(limit=50)).rows if delivery.job_id == ids[OTHER]
    )
    assert await own.get_delivery(foreign.id) is None
    assert not await own.resend(foreign.id)
    assert await own.get_delivery(sent[0].id) is not None


def test_an_older_store_learns_the_token_of_its_entries(tmp_path: Path) -> None:
    """The token is that of the job in the store."""
    connection = apsw.Connection(str(tmp_path / "old.db"))
    known = migrations()
    for version, sql in known[:11]:
        _apply(connection, version, sql)
    job = (
        "INSERT INTO job_queue (seq, id, plugin, command, status, reason, max_attempts, submitted_by,"
        " created_at, hops, token) VALUES (?, ?, 'echo', 'poll', 'queued', 'submitted', 1, 'api', 'c', 0, ?)"
    )
    for seq, job_id, token in ((1, "mine", AGENT), (2, "local", None)):
        connection.execute(job, (seq, job_id, token))
        connection.execute(
            "INSERT INTO ledger (seq, at, kind, job_id, data) VALUES (?, 'c', 'job.transition', ?, '{}')",
            (seq, job_id),
        )
    for version, sql in known[11:]:
        _apply(connection, version, sql)
    assert connection.execute("SELECT job_id, token FROM ledger ORDER BY seq").fetchall() == [
        ("mine", AGENT),
        ("local", None),
    ]
    connection.close()


async def test_a_job_of_another_token_does_not_exist(store: Store, clock: Clock) -> None:
    """It cannot be read, and a change of it has the result of an unknown id."""
    ids = await populate(store)
    own, policy = OwnJobs(store, AGENT), some_policy()
    for name in (OTHER, f"{OTHER} child", "none", "none child", "run", "unknown"):
        job_id = ids.get(name, name)
        assert await own.get_job(job_id) is None
        assert await own.job_details(job_id) is None
        assert await own.get_run(job_id) is None
        assert await own.blocking_job(job_id) is None
        assert await own.job_tree(job_id, limit=9) == ()
        assert await own.list_executions(job_id) == ()
        assert await own.list_transitions(job_id) == ()
        assert await own.list_job_ledger(job_id, limit=9) == ()
        assert await own.short_payloads([job_id], max_length=99) == {}
        assert (await own.cancel(job_id, policy)).status is CancelStatus.UNKNOWN_JOB
        assert await own.check_retry(job_id) is RetryResult.UNKNOWN_JOB
        assert await own.retry(job_id, policy) is RetryResult.UNKNOWN_JOB
        graph = next(iter(steps_policy(uses("a")).pipelines.by_name.values())).graph
        assert await own.check_rerun(job_id, "a", graph) is RetryResult.UNKNOWN_JOB
    assert {job.id for job in await own.job_tree(ids[AGENT], limit=9)} == {ids[AGENT], ids[f"{AGENT} child"]}
    assert await own.latest_with_key("echo", "handle", f"key:{OTHER}") is None
    duplicate = a_new_job("echo", dedupe_key=f"key:{OTHER}", dedupe_ttl=60.0)
    assert await store.find_duplicates([duplicate], timedelta(hours=1)) == (ids[OTHER],)
    assert await own.find_duplicates([duplicate], timedelta(hours=1)) == (None,)
    assert await own.retry(ids[f"{AGENT} child"], policy) is RetryResult.QUEUED
    assert [claimed.job.id for claimed in await claim_all(store)] == [ids[f"{AGENT} child"]]


async def test_what_is_not_about_own_jobs_is_refused(store: Store) -> None:
    """Every verb that is not explicitly supported raises an error."""
    own = OwnJobs(store, AGENT)
    for verb in (own.queue_counts, own.list_breakers, own.release_due, own.stats, own.close, own.is_full):
        with pytest.raises(DeniedError):
            await verb()
    with pytest.raises(DeniedError):
        await own.list_ledger(after=0, limit=1, token=OTHER)
    with pytest.raises(DeniedError):
        await own.job_ids("0", limit=1, token=OTHER)


def test_what_is_for_own_jobs_is_named_here() -> None:
    """A new verb of the store of own jobs must be added to this list."""
    own = {name for name, attribute in vars(OwnJobs).items() if inspect.iscoroutinefunction(attribute)}
    adapter = {"close", "check_files", "is_full", "stats"}
    passed_on = {"get_event", "get_event_context", "config_history", "ledger_range", "index_log", "enqueue"}
    by_job = {
        *("get_job", "list_jobs", "count_jobs", "short_payloads", "latest_with_key", "find_duplicates"),
        *("blocking_job", "job_ids", "job_ids_ending", "job_tree", "list_transitions", "list_executions"),
        *("list_log", "job_details", "get_run", "list_ledger", "list_job_ledger", "list_deliveries"),
        *("count_deliveries", "get_delivery", "resend", "cancel", "check_retry", "retry", "check_rerun"),
        "rerun",
    }
    assert own - {"_is_own"} == adapter | passed_on | by_job
