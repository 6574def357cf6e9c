"""Submissions of jobs."""

from __future__ import annotations

import contextlib
from datetime import timedelta
from typing import Any

import pytest

from builders.jobs import Clock, a_new_job, an_event, an_id, failed, ok
from builders.stores import StoreFactory, accept, claim_all, path_of, run_next, stored, submit, whole_ledger
from ductile.core.events.model import NewContext
from ductile.core.jobs.model import (
    Hold,
    JobReason,
    JobStatus,
    LedgerKind,
    NewJob,
    Origin,
    StateSubscription,
    SubmittedBy,
)
from ductile.core.json import JsonObject
from ductile.errors import RefusedError, StoreError
from ductile.store.model.jobs import Accepted, Deduplicated, DuplicateChild
from ductile.store.model.records import JobFilter
from ductile.store.port import Store
from ductile.struct import asdict

DAY = timedelta(hours=24)


async def test_an_accepted_job_is_read_back_with_every_field(store: Store, clock: Clock) -> None:
    """The store returns the submitted values; all other fields have their initial value."""
    event = an_event()
    context = NewContext(id=an_id(), baggage={"a": 1}, pipeline="p", step_path="s")
    new = a_new_job(
        payload={"deep": [{"x": None}]},
        submitted_by=SubmittedBy.WEBHOOK,
        submitted_detail="github",
        dedupe_key="key:a",
        parent_job_id=an_id(),
        source_event_id=event.id,
        event_context_id=context.id,
        run_id=an_id(),
        step_path="one/two",
        hops=3,
        trace_id="4bf92f",
        callback=StateSubscription(url="http://receiver.invalid/", model="m"),
        max_attempts=7,
    )
    (result,) = await submit(store, new, event=event, contexts=(context,))
    assert isinstance(result, Accepted)
    assert result.ready
    job = await stored(store, new.id)
    for name in (
        "id", "plugin", "command", "payload", "submitted_by", "submitted_detail", "dedupe_key",
        "parent_job_id", "source_event_id", "event_context_id", "run_id", "step_path",
        "hops", "trace_id", "callback", "max_attempts",
    ):  # fmt: skip
        assert getattr(job, name) == getattr(new, name), name
    assert (job.status, job.reason, job.hold) == (JobStatus.QUEUED, JobReason.SUBMITTED, None)
    assert (job.attempt, job.execution, job.seq) == (1, 0, result.seq)
    assert job.created_at == clock.now
    unset = ("started_at", "completed_at", "next_retry_at", "last_error", "owner", "lease_until")
    assert [getattr(job, name) for name in unset] == [None] * len(unset)
    assert await path_of(store, new.id) == [">queued:submitted"]
    assert await store.get_event_context(context.id) == context
    stored_event = await store.get_event(event.id)
    assert stored_event is not None
    assert (stored_event.type, stored_event.source, stored_event.payload) == (
        event.type,
        event.source,
        event.payload,
    )


EACH_FIELD: dict[str, Any] = {
    "submitted_by": SubmittedBy.CLI,
    "submitted_detail": "github",
    "payload": {"deep": [{"x": None}]},
    "dedupe_key": "key:a",
    "parent_job_id": "job",
    "source_event_id": "event",
    "event_context_id": "context",
    "run_id": "run",
    "step_path": "one/two",
    "hops": 3,
    "trace_id": "4bf92f",
    "callback": StateSubscription(url="http://receiver.invalid/", model="m"),
    "max_attempts": 7,
    "token": "agent",
}


def test_each_field_is_tried() -> None:
    """Other tests check the fields that every job has, and those that a job does not show."""
    others = {
        "id",
        "plugin",
        "command",
        "dedupe_ttl",
        "origin",
        "after_job_id",
        "configured_callback",
        "rerun_of",
        "charged",
        "node",
    }
    assert {*EACH_FIELD, *others} == {*NewJob.__struct_fields__}


@pytest.mark.parametrize("field", EACH_FIELD)
async def test_a_field_is_read_back_where_it_is_the_only_one(store: Store, field: str) -> None:
    """The way in which a row is written depends on its fields; the values that are read do not."""
    event = an_event(id="event")
    context = NewContext(id="context", baggage={})
    new = a_new_job(**{"payload": None if field == "source_event_id" else {"n": 1}, field: EACH_FIELD[field]})
    await submit(store, new, event=event, contexts=(context,))
    job = await stored(store, new.id)
    expected = asdict(new)
    if new.payload is None:
        expected["payload"] = event.payload
    names = expected.keys() & set(job.__struct_fields__)
    assert {name: getattr(job, name) for name in names} == {name: expected[name] for name in names}
    assert (job.attempt, job.execution, job.hold) == (1, 0, None)


async def test_a_job_without_a_payload_has_its_events(store: Store) -> None:
    """The payload of an event is stored once and read with every job that it started."""
    event = an_event(payload={"body": "x"}, headers={"x-id": "7"})
    jobs = [a_new_job(payload=None, source_event_id=event.id) for _ in range(2)]
    await submit(store, *jobs, event=event)
    assert [(await stored(store, job.id)).payload for job in jobs] == [{"body": "x"}] * 2
    assert [claim.event.headers for claim in await claim_all(store) if claim.event] == [{"x-id": "7"}] * 2


async def test_a_submission_is_accepted_whole_or_not_at_all(store: Store) -> None:
    """One job that cannot be stored keeps out the other jobs, their event and contexts."""
    twin = a_new_job()
    event = an_event()
    context = NewContext(id=an_id(), baggage={})
    first = a_new_job()
    before = await whole_ledger(store)
    with pytest.raises(StoreError):
        await submit(store, first, twin, twin, event=event, contexts=(context,))
    assert await store.get_job(first.id) is None
    assert await store.get_job(twin.id) is None
    assert await store.get_event(event.id) is None
    assert await store.get_event_context(context.id) is None
    assert await whole_ledger(store) == before


async def test_answers_come_in_the_order_of_the_jobs(store: Store) -> None:
    first, second = a_new_job(), a_new_job(dedupe_key="key:a", dedupe_ttl=60)
    again = a_new_job(dedupe_key="key:a", dedupe_ttl=60)
    results = await submit(store, first, second, again)
    assert [type(result) for result in results] == [Accepted, Accepted, Deduplicated]
    assert [result.job_id for result in results] == [first.id, second.id, second.id]
    accepted = [result.seq for result in results if isinstance(result, Accepted)]
    assert accepted == sorted(accepted)


# ------------------------------------------------------------------------------------------- dedupe


async def test_a_success_within_the_window_drops_the_submission(store: Store, clock: Clock) -> None:
    """The end of the window is included. The ledger records key and job."""
    original = await accept(store, a_new_job(dedupe_key="key:a"))
    await run_next(store, ok())
    clock.advance(hours=24)
    (result,) = await submit(store, a_new_job(dedupe_key="key:a"), dedupe_window=DAY)
    assert isinstance(result, Deduplicated)
    assert (result.job_id, result.dedupe_key) == (original, "key:a")
    entry = (await whole_ledger(store))[-1]
    assert (entry.kind, entry.job_id) == (LedgerKind.JOB_DEDUPLICATED, original)
    assert entry.data["dedupe_key"] == "a"
    clock.advance(microseconds=1)
    (later,) = await submit(store, a_new_job(dedupe_key="key:a"), dedupe_window=DAY)
    assert isinstance(later, Accepted)


async def test_the_newest_success_counts(store: Store, clock: Clock) -> None:
    newest = ""
    for _ in range(2):
        await submit(store, a_new_job(dedupe_key="key:a"), dedupe_window=timedelta(0))
        newest = (await run_next(store, ok())).job_id
        clock.advance(hours=1)
    (result,) = await submit(store, a_new_job(dedupe_key="key:a"), dedupe_window=timedelta(hours=1))
    assert isinstance(result, Deduplicated)
    assert (result.job_id, result.dedupe_key) == (newest, "key:a")


@pytest.mark.parametrize("permanent", [True, False], ids=["failed", "dead"])
async def test_only_a_success_counts(store: Store, permanent: bool) -> None:
    await accept(store, a_new_job(dedupe_key="key:a", max_attempts=1))
    await run_next(store, failed(permanent=permanent))
    (result,) = await submit(store, a_new_job(dedupe_key="key:a"))
    assert isinstance(result, Accepted)


async def test_without_an_override_a_live_match_is_waited_for(store: Store) -> None:
    """A queued or running match drops nothing: the second job waits for it."""
    first = await accept(store, a_new_job(dedupe_key="key:a"))
    (second,) = await submit(store, a_new_job(dedupe_key="key:a"))
    assert isinstance(second, Accepted)
    assert not second.ready
    assert (await stored(store, second.job_id)).hold is Hold.KEY
    assert [claim.job.id for claim in await claim_all(store)] == [first]


@pytest.mark.parametrize("status", [JobStatus.QUEUED, JobStatus.RUNNING])
async def test_with_an_override_a_live_match_drops_it(store: Store, status: JobStatus) -> None:
    """With a time limit of its own, a submission also counts live jobs. The caller gets the id
    of that job.
    """
    first = await accept(store, a_new_job(dedupe_key="key:a"))
    if status is JobStatus.RUNNING:
        await claim_all(store)
    (result,) = await submit(store, a_new_job(dedupe_key="key:a", dedupe_ttl=1.0))
    assert isinstance(result, Deduplicated)
    assert (result.job_id, result.dedupe_key) == (first, "key:a")


async def test_with_an_override_a_match_that_waits_for_its_retry_drops_it(store: Store) -> None:
    first = await accept(store, a_new_job(dedupe_key="key:a"))
    await run_next(store, failed())
    (result,) = await submit(store, a_new_job(dedupe_key="key:a", dedupe_ttl=1.0))
    assert isinstance(result, Deduplicated)
    assert (result.job_id, result.dedupe_key) == (first, "key:a")


async def test_an_override_is_the_window(store: Store, clock: Clock) -> None:
    """The time limit of the submission replaces the default, shorter or longer."""
    await accept(store, a_new_job(dedupe_key="key:a"))
    await run_next(store, ok())
    clock.advance(seconds=11)
    (longer,) = await submit(
        store, a_new_job(dedupe_key="key:a", dedupe_ttl=11), dedupe_window=timedelta(seconds=1)
    )
    assert isinstance(longer, Deduplicated)
    (shorter,) = await submit(store, a_new_job(dedupe_key="key:a", dedupe_ttl=10), dedupe_window=DAY)
    assert isinstance(shorter, Accepted)


async def test_the_identity_is_plugin_command_and_key(store: Store) -> None:
    """A job with the same key for another target is no duplicate, and runs at the same time."""
    jobs = [
        a_new_job("echo", "handle", dedupe_key="key:a", dedupe_ttl=60),
        a_new_job("echo", "poll", dedupe_key="key:a", dedupe_ttl=60),
        a_new_job("other", "handle", dedupe_key="key:a", dedupe_ttl=60),
        a_new_job("echo", "handle", dedupe_key="key:b", dedupe_ttl=60),
    ]
    results = await submit(store, *jobs)
    assert all(isinstance(result, Accepted) and result.ready for result in results)
    assert len(await claim_all(store)) == len(jobs)


async def test_the_latest_job_with_a_key_is_found_whatever_became_of_it(store: Store) -> None:
    """A failed job is found too, with its payload; jobs of another plugin or command are not."""
    assert await store.latest_with_key("echo", "handle", "key:a") is None
    first = await accept(store, a_new_job(dedupe_key="key:a", max_attempts=1, payload={"n": 1}))
    await run_next(store, failed(permanent=True))
    await accept(store, a_new_job("echo", "poll", dedupe_key="key:a"))
    await accept(store, a_new_job(dedupe_key="key:b"))
    failed_job = await store.latest_with_key("echo", "handle", "key:a")
    assert failed_job is not None
    assert (failed_job.id, failed_job.status, failed_job.payload) == (first, JobStatus.FAILED, {"n": 1})
    newer = await accept(store, a_new_job(dedupe_key="key:a"))
    latest = await store.latest_with_key("echo", "handle", "key:a")
    assert latest is not None
    assert latest.id == newer


async def test_a_context_of_a_duplicate_is_not_kept(store: Store) -> None:
    """A duplicate is recognised before a context is written."""
    await accept(store, a_new_job(dedupe_key="key:a"))
    context = NewContext(id=an_id(), baggage={"a": 1})
    duplicate = a_new_job(dedupe_key="key:a", dedupe_ttl=60, event_context_id=context.id)
    await submit(store, duplicate, contexts=(context,))
    assert await store.get_event_context(context.id) is None


# -------------------------------------------------------------------------------------------- origin


async def test_the_same_child_is_not_made_twice(store: Store) -> None:
    """Producer, execution, event and target identify a child; a conflict is reported."""
    origin = Origin(job_id=an_id(), execution=1, event_index=0, target="sink.handle")
    first = a_new_job(origin=origin)
    await accept(store, first)
    (result,) = await submit(store, a_new_job(origin=origin))
    assert result == DuplicateChild(job_id=first.id)
    assert len((await store.list_jobs(JobFilter(), limit=10)).rows) == 1
    entry = (await whole_ledger(store))[-1]
    assert (entry.kind, entry.job_id) == (LedgerKind.CHILD_CONFLICT, origin.job_id)
    assert entry.data["child"] == first.id


@pytest.mark.parametrize(
    "other",
    [{"execution": 2}, {"event_index": 1}, {"target": "sink.poll"}, {"job_id": "another"}],
    ids=lambda other: next(iter(other)),
)
async def test_another_origin_is_another_child(store: Store, other: dict[str, Any]) -> None:
    first: dict[str, Any] = {"job_id": "parent", "execution": 1, "event_index": 0, "target": "sink.handle"}
    await accept(store, a_new_job(origin=Origin(**first)))
    await accept(store, a_new_job(origin=Origin(**{**first, **other})))


# ------------------------------------------------------------------------------------ odd but honest


async def test_numbers_survive_exactly(store: Store) -> None:
    """Integers beyond 2^53, and beyond 64 bits, are not rounded."""
    payload = {"n": 2**53 + 1, "m": -(2**63), "big": 10**40, "f": 0.1, "one": 1.0, "bool": True}
    job_id = await accept(store, a_new_job(payload=payload))
    stored_payload = (await stored(store, job_id)).payload
    assert stored_payload == payload
    assert [type(value) for value in (stored_payload or {}).values()] == [int, int, int, float, float, bool]


async def test_any_text_survives(store: Store) -> None:
    text = "\x00 \u202e ключ 🗝️ \r\n\t' \" ; -- \\ \uffff"
    job_id = await accept(store, a_new_job(payload={text: text}, submitted_detail=text, dedupe_key=text))
    job = await stored(store, job_id)
    assert (job.payload, job.submitted_detail, job.dedupe_key) == ({text: text}, text, text)


async def test_a_job_that_cannot_be_stored_is_refused_and_harms_no_other(store: Store) -> None:
    """No database stores a lone surrogate: its caller gets an error, other callers do not."""
    with pytest.raises(RefusedError):
        await submit(store, a_new_job(payload={"x": "\ud800"}))
    await accept(store, a_new_job())


async def test_whatever_was_stored_can_be_claimed(store: Store) -> None:
    """A payload of any depth is refused or can be read: none stops the queue."""
    for depth in (*range(200, 300, 8), *range(960, 1000)):
        payload: JsonObject = {}
        for _ in range(depth):
            payload = {"x": payload}
        event = an_event(payload=payload)
        with contextlib.suppress(StoreError, RefusedError):
            await submit(store, a_new_job(payload=None, source_event_id=event.id), event=event)
            continue
        break
    innocent = await accept(store, a_new_job("other"))
    assert innocent in [claim.job.id for claim in await claim_all(store)]


async def test_a_submission_without_jobs_keeps_its_event(store: Store) -> None:
    """An event that starts nothing is stored."""
    event = an_event()
    assert await submit(store, event=event) == ()
    assert await store.get_event(event.id) is not None


async def test_a_reopened_store_goes_on_counting(store_factory: StoreFactory) -> None:
    """Numbers are not used again, whatever was removed."""
    store = await store_factory.open()
    (first,) = await submit(store, a_new_job())
    store = await store_factory.reopen()
    (second,) = await submit(store, a_new_job())
    assert isinstance(first, Accepted)
    assert isinstance(second, Accepted)
    assert second.seq > first.seq
