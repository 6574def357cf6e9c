"""Lists, filters, cursors, trees and search."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

import pytest

from builders.jobs import Clock, a_new_job, a_route, an_id, emitted, failed, ok, some_policy, timed_out
from builders.stores import accept, claim_all, claim_one, run_next, settle, submit, whole_ledger
from ductile.core.jobs.model import JobStatus, LedgerKind, SubmittedBy
from ductile.core.jobs.settlement import LogStatus
from ductile.errors import RefusedError, StoreError
from ductile.store.model.jobs import Submission
from ductile.store.model.maintenance import ConfigOrigin, LoadCause, PluginVersion, PluginWork
from ductile.store.model.records import JobFilter, LedgerRow, LogFilter, Page
from ductile.store.port import Store


async def read_all_pages(read_page: Callable[[str | None], Awaitable[Page[Any]]]) -> list[Any]:
    rows: list[Any] = []
    cursor: str | None = None
    while True:
        page = await read_page(cursor)
        rows += page.rows
        cursor = page.next_cursor
        if cursor is None:
            return rows


async def test_ids_are_found_by_their_beginning_and_by_their_end(store: Store, clock: Clock) -> None:
    """Jobs of the queue and of the log are found once, in order, up to the limit."""
    ids = [f"01a1e748-4305-7000-8000-{end}" for end in ("00000000beef", "00000001beef", "00000000cafe")]
    for job_id in ids:
        await accept(store, a_new_job(id=job_id))
    await run_next(store, ok())
    assert await store.job_ids("01a1e748-43", limit=9) == (ids[0], ids[2], ids[1])
    assert await store.job_ids_ending("beef", limit=9) == tuple(ids[:2])
    assert await store.job_ids_ending("beef", limit=1) == (ids[0],)
    assert await store.job_ids_ending("8000-00000001beef", limit=9) == (ids[1],)
    assert await store.job_ids_ending("f00d", limit=9) == ()


async def test_jobs_are_listed_newest_first_without_payload(store: Store) -> None:
    ids = [await accept(store, a_new_job()) for _ in range(3)]
    rows = (await store.list_jobs(JobFilter(), limit=10)).rows
    assert [row.id for row in rows] == ids[::-1]
    assert [row.payload for row in rows] == [None] * 3


async def populate(store: Store, clock: Clock) -> dict[str, str]:
    """Create one job of each kind that the filters distinguish."""
    ids = {}
    for name, fields, outcome in (
        ("succeeded", {"plugin": "a", "command": "poll", "run_id": "run"}, ok()),
        ("failed", {"plugin": "a", "parent_job_id": "parent"}, failed(permanent=True)),
        ("dead", {"plugin": "b", "max_attempts": 1, "submitted_by": SubmittedBy.CLI}, failed()),
        ("waiting", {"plugin": "b", "run_id": "run"}, failed()),
        ("running", {"plugin": "c", "parent_job_id": "parent"}, None),
    ):
        ids[name] = await accept(store, a_new_job(**fields))
        (claim,) = await claim_all(store)
        if outcome is not None:
            await settle(store, claim.job, outcome)
        clock.advance(minutes=1)
    ids["queued"] = await accept(store, a_new_job("d"))
    return ids


@pytest.mark.parametrize(
    ("where", "expected"),
    [
        ({}, {"succeeded", "failed", "dead", "waiting", "running", "queued"}),
        ({"status": JobStatus.SUCCEEDED}, {"succeeded"}),
        ({"status": JobStatus.QUEUED}, {"waiting", "queued"}),
        ({"status": JobStatus.RUNNING}, {"running"}),
        ({"status": JobStatus.FAILED}, {"failed"}),
        ({"status": JobStatus.DEAD}, {"dead"}),
        ({"status": JobStatus.TIMED_OUT}, set()),
        ({"plugin": "a"}, {"succeeded", "failed"}),
        ({"plugin": "a", "status": JobStatus.SUCCEEDED}, {"succeeded"}),
        ({"plugin": "b", "status": JobStatus.DEAD}, {"dead"}),
        ({"command": "poll"}, {"succeeded"}),
        ({"submitted_by": SubmittedBy.CLI}, {"dead"}),
        ({"run_id": "run"}, {"succeeded", "waiting"}),
        ({"run_id": "run", "plugin": "b"}, {"waiting"}),
        ({"parent_job_id": "parent"}, {"failed", "running"}),
        ({"parent_job_id": "parent", "status": JobStatus.FAILED}, {"failed"}),
    ],
)
async def test_filters_of_jobs(store: Store, clock: Clock, where: dict[str, Any], expected: set[str]) -> None:
    ids = await populate(store, clock)
    rows = (await store.list_jobs(JobFilter(**where), limit=50)).rows
    assert {row.id for row in rows} == {ids[name] for name in expected}


async def test_jobs_by_id_and_time(store: Store, clock: Clock) -> None:
    start = clock.now
    ids = await populate(store, clock)
    assert [row.id for row in (await store.list_jobs(JobFilter(job_id=ids["dead"]), limit=9)).rows] == [
        ids["dead"]
    ]
    where = JobFilter(created_from=start + timedelta(minutes=1), created_before=start + timedelta(minutes=2))
    assert [row.id for row in (await store.list_jobs(where, limit=9)).rows] == [ids["failed"]]


@pytest.mark.parametrize(
    "where",
    [
        {"job_id": "running", "status": JobStatus.FAILED},
        {"job_id": "running", "plugin": "unknown"},
        {"run_id": "run", "parent_job_id": "parent"},
    ],
    ids=["id and status", "id and plugin", "run and parent"],
)
async def test_filters_are_all_applied(store: Store, clock: Clock, where: dict[str, Any]) -> None:
    """A list has the jobs that match every filter."""
    ids = await populate(store, clock)
    if "job_id" in where:
        where = {**where, "job_id": ids[where["job_id"]]}
    assert (await store.list_jobs(JobFilter(**where), limit=50)).rows == ()


@pytest.mark.parametrize(
    ("where", "expected"),
    [
        ({}, {"succeeded", "failed", "dead", "waiting"}),
        ({"status": LogStatus.SUCCEEDED}, {"succeeded"}),
        ({"status": LogStatus.FAILED}, {"failed", "dead", "waiting"}),
        ({"plugin": "b"}, {"dead", "waiting"}),
        ({"plugin": "a", "command": "poll"}, {"succeeded"}),
        ({"submitted_by": SubmittedBy.CLI}, {"dead"}),
    ],
)
async def test_filters_of_the_log(
    store: Store, clock: Clock, where: dict[str, Any], expected: set[str]
) -> None:
    ids = await populate(store, clock)
    rows = (await store.list_log(LogFilter(**where), limit=50)).rows
    assert {row.job_id for row in rows} == {ids[name] for name in expected}
    assert [(row.result, row.stderr, row.payload) for row in rows] == [(None, None, None)] * len(rows)


async def test_the_log_of_a_job_and_of_a_time(store: Store, clock: Clock) -> None:
    start = clock.now
    ids = await populate(store, clock)
    rows = (await store.list_log(LogFilter(job_id=ids["dead"]), limit=9)).rows
    assert [row.job_id for row in rows] == [ids["dead"]]
    where = LogFilter(
        completed_from=start + timedelta(minutes=1), completed_before=start + timedelta(minutes=3)
    )
    assert {row.job_id for row in (await store.list_log(where, limit=9)).rows} == {ids["failed"], ids["dead"]}


@pytest.mark.parametrize("limit", [1, 2, 3, 200])
async def test_pages_neither_repeat_nor_leave_out(store: Store, limit: int) -> None:
    ids = [await accept(store, a_new_job()) for _ in range(5)]
    rows = await read_all_pages(lambda cursor: store.list_jobs(JobFilter(), limit=limit, cursor=cursor))
    assert [row.id for row in rows] == ids[::-1]


async def test_pages_are_stable_while_jobs_come_in(store: Store) -> None:
    """The next page begins where the last one ended, whatever was added meanwhile."""
    ids = [await accept(store, a_new_job()) for _ in range(4)]
    first = await store.list_jobs(JobFilter(), limit=2)
    for _ in range(3):
        await accept(store, a_new_job())
    second = await store.list_jobs(JobFilter(), limit=2, cursor=first.next_cursor)
    assert [row.id for row in (*first.rows, *second.rows)] == ids[::-1]
    assert second.next_cursor is None


async def test_a_page_is_never_larger_than_the_largest(store: Store) -> None:
    await submit(store, *[a_new_job() for _ in range(201)])
    assert len((await store.list_jobs(JobFilter(), limit=10_000)).rows) == 200
    assert len((await store.list_jobs(JobFilter(), limit=0)).rows) == 1


@pytest.mark.parametrize("cursor", ["", "x", "c1:9", "\ud800", "a" * 10_000, "Yzk6MQ"])
async def test_a_cursor_that_is_not_ours_is_refused(store: Store, cursor: str) -> None:
    with pytest.raises(RefusedError):
        await store.list_jobs(JobFilter(), limit=1, cursor=cursor)


async def test_all_lists_page(store: Store) -> None:
    for _ in range(3):
        await accept(store, a_new_job())
        await run_next(store, ok())
    log = await read_all_pages(lambda cursor: store.list_log(LogFilter(), limit=2, cursor=cursor))
    assert len({row.seq for row in log}) == 3
    assert [row.seq for row in log] == sorted((row.seq for row in log), reverse=True)


# -------------------------------------------------------------------------------------------- search


async def count_found(store: Store, query: str) -> int:
    return len((await store.list_log(LogFilter(query=query), limit=200)).rows)


async def test_words_in_result_error_and_stderr_are_found(store: Store) -> None:
    await accept(store, a_new_job("weather"))
    await run_next(
        store, failed(permanent=True, error="Timeout in Graz", stderr="käse brot", stdout='{"n":"ham"}')
    )
    assert await count_found(store, "graz") == 0, "not indexed yet"
    assert await store.index_log() == 1
    assert await store.index_log() == 0
    for query in ("graz", "GRAZ timeout", "käse", "ham", "weather", "  brot  "):
        assert await count_found(store, query) == 1, query
    for query in ("graz absent", "gra", "nothing"):
        assert await count_found(store, query) == 0, query


@pytest.mark.parametrize(
    "query",
    ['"', '""', "'", "a OR b", "NOT x", "NEAR(a b)", "body:x", "x*", "^x", "-x", "(", ")", "a AND",
     "{x}", "+", "\\", "%", ";", "x\ty", "é\u0301", "🗝️", "*", '"a" "', "column : y", "a" * 5000],
)  # fmt: skip
async def test_no_query_can_break_the_search(store: Store, query: str) -> None:
    """Quotes and operators are part of the searched text."""
    await accept(store, a_new_job())
    await run_next(store, ok(stdout="harmless words"))
    await store.index_log()
    assert await count_found(store, query) == 0


async def test_a_nul_in_a_query_is_harmless(store: Store) -> None:
    assert await count_found(store, "a\x00b") == 0


async def test_operators_are_words(store: Store) -> None:
    await accept(store, a_new_job())
    await run_next(store, ok(stdout="this or that"))
    await accept(store, a_new_job())
    await run_next(store, ok(stdout="that alone"))
    await store.index_log()
    assert await count_found(store, "this OR that") == 1
    assert await count_found(store, "that") == 2


async def test_a_blank_query_is_none(store: Store) -> None:
    await accept(store, a_new_job())
    await run_next(store, ok())
    assert await count_found(store, "   ") == 1


async def test_a_search_is_narrowed_by_the_other_filters_and_pages(store: Store) -> None:
    for number in range(5):
        await accept(store, a_new_job("a" if number % 2 else "b"))
        await run_next(store, ok(stdout="needle"))
    await store.index_log()
    rows = await read_all_pages(
        lambda cursor: store.list_log(LogFilter(query="needle", plugin="b"), limit=2, cursor=cursor)
    )
    assert len(rows) == 3
    assert {row.plugin for row in rows} == {"b"}


async def test_only_the_beginning_of_a_large_output_is_searched(store: Store) -> None:
    """The limit is 64 KiB."""
    await accept(store, a_new_job())
    await run_next(store, ok(stdout="early " + "x " * 64 * 1024 + "latest"))
    await store.index_log()
    assert (await count_found(store, "early"), await count_found(store, "latest")) == (1, 0)


async def test_a_text_that_no_database_takes_is_refused_and_no_crash(store: Store) -> None:
    """Verbs raise only errors of Ductile."""
    with pytest.raises((StoreError, RefusedError)):
        await store.list_log(LogFilter(query="\ud800"), limit=1)


async def test_an_id_that_no_database_takes_is_unknown(store: Store) -> None:
    """Verbs raise only errors of Ductile, and such an id cannot exist."""
    with contextlib.suppress(StoreError, RefusedError):
        assert await store.get_job("\ud800") is None


# --------------------------------------------------------------------------------------------- trees


async def test_a_tree_is_the_job_and_all_it_led_to(store: Store, clock: Clock) -> None:
    policy = some_policy(
        a_route(source="a", to="b"), a_route(source="b", to="c"), a_route(source="b", to="d")
    )
    root = await accept(store, a_new_job("a"))
    await accept(store, a_new_job("a"))
    clock.advance(seconds=1)
    await settle(store, (await claim_all(store, limit=1))[0].job, ok(emitted()), policy)
    clock.advance(seconds=1)
    for claim in await claim_all(store):
        if claim.job.plugin == "b":
            await settle(store, claim.job, ok(emitted()), policy)
    members = await store.job_tree(root, limit=100)
    assert [member.plugin for member in members][:2] == ["a", "b"]
    assert {member.plugin for member in members} == {"a", "b", "c", "d"}
    assert len(members) == 4
    assert await store.job_tree("unknown", limit=100) == ()
    assert [member.plugin for member in await store.job_tree(root, limit=2)] == ["a", "b"]


async def test_parents_come_before_children_at_one_instant(store: Store) -> None:
    """The order is that of creation, also when the clock stood still or was set back."""
    policy = some_policy(a_route(source="echo", to="echo"))
    for _ in range(6):
        root = await accept(store, a_new_job("echo"))
        chain = [root]
        for _ in range(3):
            (claim,) = await claim_all(store)
            settled = await settle(store, claim.job, ok(emitted()), policy)
            chain += [child.job_id for child in settled.started]
        (claim,) = await claim_all(store)
        await settle(store, claim.job, ok())
        assert [member.id for member in await store.job_tree(root, limit=100)] == chain


# ------------------------------------------------------------------------------------ ledger, configs


async def test_the_ledger_is_read_in_order_and_in_pieces(store: Store) -> None:
    """Numbers rise, and consecutive pieces leave out nothing."""
    for _ in range(4):
        await accept(store, a_new_job())
        await run_next(store, timed_out())
    rows = await whole_ledger(store)
    assert [row.seq for row in rows] == sorted({row.seq for row in rows})
    pieces: list[LedgerRow] = []
    after = 0
    while piece := await store.list_ledger(after=after, limit=3):
        pieces += piece
        after = piece[-1].seq
    assert pieces == rows
    assert await store.ledger_range() == (rows[0].seq, rows[-1].seq)


async def test_the_ledger_tells_a_transition_in_full(store: Store) -> None:
    job_id = await accept(store, a_new_job(run_id=an_id()))
    run_id = (await store.list_jobs(JobFilter(), limit=1)).rows[0].run_id
    await claim_all(store)
    row = (await whole_ledger(store))[-1]
    assert (row.kind, row.job_id, row.run_id) == (LedgerKind.JOB_TRANSITION, job_id, run_id)
    assert row.data == {
        "plugin": "echo",
        "command": "handle",
        "from": "queued",
        "to": "running",
        "reason": "claimed",
        "execution": 1,
    }
    assert (await store.list_transitions(job_id))[-1].seq == row.seq


async def test_an_empty_ledger_has_no_range(store: Store) -> None:
    assert await store.ledger_range() == (0, 0)
    assert await store.list_ledger(after=0, limit=9) == ()


async def test_configurations_are_recorded(store: Store, clock: Clock) -> None:
    """The history has every load, newest first."""
    await store.record_config("h1", ConfigOrigin.START, {"service": {"name": "x"}})
    clock.advance(seconds=1)
    await store.record_config("h2", ConfigOrigin.RELOAD, {})
    newest, first = await store.config_history(limit=9)
    assert (newest.hash, newest.origin, newest.loaded_at) == ("h2", ConfigOrigin.RELOAD, clock.now)
    assert first.content == {"service": {"name": "x"}}
    assert len(await store.config_history(limit=1)) == 1
    assert [row.kind for row in await whole_ledger(store)] == [LedgerKind.CONFIG_LOADED] * 2


async def test_a_command_that_runs_jobs_by_itself_records_a_configuration_once(store: Store) -> None:
    """A command does not store the same configuration again; the start of a daemon always does."""
    origins = [ConfigOrigin.START, ConfigOrigin.RUN, ConfigOrigin.RUN, ConfigOrigin.START]
    for origin in origins:
        await store.record_config("h1", origin, {})
    await store.record_config("h2", ConfigOrigin.RUN, {})
    states = [(row.hash, row.origin) for row in reversed(await store.config_history(limit=9))]
    assert states == [("h1", ConfigOrigin.START), ("h1", ConfigOrigin.START), ("h2", ConfigOrigin.RUN)]
    assert len(await whole_ledger(store)) == 3


async def test_the_plugins_of_a_configuration_are_recorded_with_it(store: Store) -> None:
    """They show which plugin changed between two runs."""
    plugins = {
        "crm": PluginVersion(version="1.0.0", fingerprint="blake3:aa", config="blake3:bb"),
        "gone": PluginVersion(version=None, fingerprint=None, config="blake3:cc"),
    }
    await store.record_config("h1", ConfigOrigin.START, {})
    await store.record_config("h2", ConfigOrigin.RELOAD, {}, (), plugins)
    newest, first = await store.config_history(limit=9)
    assert (newest.plugins, first.plugins) == (plugins, None)


async def test_the_cause_of_a_load_is_recorded_with_it(store: Store) -> None:
    """The history and the ledger have author, command and plan; a start has no cause."""
    cause = LoadCause(command="apply", author="token deploy", plan="aa11", files="bb22")
    await store.record_config("h1", ConfigOrigin.START, {})
    await store.record_config("h2", ConfigOrigin.RELOAD, {}, (), None, cause)
    newest, first = await store.config_history(limit=9)
    assert (newest.command, newest.author, newest.files) == ("apply", "token deploy", "bb22")
    assert (first.command, first.author, first.files) == (None, None, None)
    started, applied = [row.data for row in await whole_ledger(store)]
    assert started == {"hash": "h1", "origin": "start"}
    assert applied == {
        "hash": "h2",
        "origin": "reload",
        "command": "apply",
        "author": "token deploy",
        "plan": "aa11",
        "files": "bb22",
    }


async def test_unknown_names_have_no_rows(store: Store) -> None:
    assert await store.get_job("unknown") is None
    assert await store.get_event("nothing") is None
    assert await store.get_event_context("nothing") is None
    assert await store.plugin_state("unknown") is None
    assert await store.list_transitions("unknown") == ()
    assert await store.list_executions("unknown") == ()
    assert (await store.list_facts("unknown", limit=9)).rows == ()
    assert await store.breaker_history("unknown", limit=9) == ()


async def test_jobs_are_found_by_what_they_printed(store: Store) -> None:
    """The full text of a job's executions is searched, combined with other filters, newest first."""
    first, second = await accept(store, a_new_job("a")), await accept(store, a_new_job("b"))
    for plugin, text in (("a", "blue whale"), ("b", "blue sky")):
        job = await claim_one(store)
        assert job.plugin == plugin
        await settle(store, job, ok(stdout=text))
    await store.index_log()

    async def find(**where: Any) -> list[str]:
        return [job.id for job in (await store.list_jobs(JobFilter(**where), limit=10)).rows]

    assert await find(query="blue") == [second, first]
    assert await find(query="whale blue") == [first]
    assert await find(query="blue", plugin="b") == [second]
    assert await find(query="green") == []


async def test_an_account_holds_a_job_and_the_latest_of_what_it_answered(store: Store, clock: Clock) -> None:
    """These are the details for a caller that has waited for a plugin."""
    job_id = await accept(store, a_new_job(max_attempts=2))
    await settle(store, await claim_one(store), failed())
    clock.advance(hours=1)
    await store.release_due()
    await settle(store, await claim_one(store), ok(stdout="the last"))
    details = await store.job_details(job_id)
    assert details is not None
    assert (details.job.id, details.job.status, details.steps) == (job_id, JobStatus.SUCCEEDED, ())
    assert {job_key: execution.result for job_key, execution in details.executions.items()} == {
        job_id: "the last"
    }


async def test_the_account_of_an_unknown_plugin_is_none(store: Store) -> None:
    assert await store.job_details(an_id()) is None


async def test_the_job_in_the_way_of_a_held_one_is_found(store: Store) -> None:
    """It is the holder of the key or the predecessor. A job without a hold has none."""
    first = await accept(store, a_new_job(dedupe_key="k"))
    await claim_one(store)
    held = [
        await accept(store, a_new_job(dedupe_key="k")),
        await accept(store, a_new_job(after_job_id=first)),
    ]
    for waiting in held:
        blocking = await store.blocking_job(waiting)
        assert blocking is not None
        assert blocking.id == first
    assert await store.blocking_job(first) is None
    assert await store.blocking_job(an_id()) is None


async def test_pending_work_is_what_still_needs_a_plugin(store: Store) -> None:
    """Queued and running jobs count, and ended ones do not. Writes that were requested before
    are included.
    """
    await accept(store, a_new_job("a"))
    await run_next(store, ok())
    await accept(store, a_new_job("a", max_attempts=2))
    await run_next(store, failed())  # waits for its retry
    for plugin in ("b", "a"):
        await accept(store, a_new_job(plugin))
    await claim_one(store)  # of b
    assert await store.pending_work(("a", "b", "c")) == (
        PluginWork(plugin="a", queued=2),
        PluginWork(plugin="b", running=1),
    )
    coming = asyncio.create_task(store.enqueue(Submission(jobs=(a_new_job("c"),))))
    await asyncio.sleep(0)  # the submission is handed to the writer
    assert await store.pending_work_behind_queued_writes(("c",)) == (PluginWork(plugin="c", queued=1),)
    await coming
