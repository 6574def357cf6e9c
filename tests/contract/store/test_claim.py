"""Claims of ready jobs."""

from __future__ import annotations

import asyncio
from datetime import timedelta

from builders.jobs import Clock, a_new_job, an_id, failed, ok
from builders.stores import (
    LEASE,
    POLICY,
    ROOMY,
    accept,
    claim_all,
    claim_one,
    path_of,
    run_next,
    settle,
    stored,
    submit,
)
from ductile.core.events.model import NewContext
from ductile.core.jobs.admission import Caps
from ductile.core.jobs.model import JobReason, JobStatus
from ductile.store.port import Store


async def test_a_claim_is_ours_and_says_so(store: Store, clock: Clock) -> None:
    job_id = await accept(store, a_new_job())
    clock.advance(seconds=5)
    (claim,) = await claim_all(store, owner="daemon-1")
    assert claim.job == await stored(store, job_id)
    assert (claim.job.status, claim.job.reason) == (JobStatus.RUNNING, JobReason.CLAIMED)
    assert (claim.job.execution, claim.job.attempt) == (1, 1)
    assert claim.job.started_at == clock.now
    assert (claim.job.owner, claim.job.lease_until) == ("daemon-1", clock.now + LEASE)
    assert await path_of(store, job_id) == [">queued:submitted", "queued>running:claimed"]
    assert await claim_all(store) == []


async def test_a_claim_brings_state_and_baggage(store: Store) -> None:
    await accept(store, a_new_job())
    await run_next(store, ok(state={"cursor": 7}))
    context = NewContext(id=an_id(), baggage={"who": "me"})
    await submit(store, a_new_job(event_context_id=context.id), contexts=(context,))
    (claim,) = await claim_all(store)
    assert claim.state == {"cursor": 7}
    assert claim.baggage == {"who": "me"}
    assert claim.event is None


async def test_oldest_first_whatever_the_plugin(store: Store) -> None:
    """Eligible jobs are claimed in the order of their creation."""
    ids = [await accept(store, a_new_job(plugin)) for plugin in ("b", "a", "c", "a", "b")]
    assert [claim.job.id for claim in await claim_all(store)] == ids


async def test_order_is_by_sequence_when_the_clock_goes_back(store: Store, clock: Clock) -> None:
    """The order is that of the sequence, not of the clock."""
    first = await accept(store, a_new_job("b"))
    clock.advance(hours=-3)
    second = await accept(store, a_new_job("a"))
    assert [claim.job.id for claim in await claim_all(store)] == [first, second]


async def test_no_more_jobs_are_claimed_than_requested(store: Store) -> None:
    for _ in range(5):
        await accept(store, a_new_job())
    assert len(await claim_all(store, limit=2)) == 2
    assert len(await claim_all(store, limit=0)) == 0
    assert len(await claim_all(store, limit=9)) == 3


async def test_the_pool_is_a_cap_of_each_node(store: Store) -> None:
    """`max_workers` limits each owner; the end of a job makes room."""
    for _ in range(6):
        await accept(store, a_new_job())
    caps = Caps(workers=2)
    first, _second = await claim_all(store, caps=caps, owner="a")
    assert await claim_all(store, caps=caps, owner="a") == []
    assert len(await claim_all(store, caps=caps, owner="b")) == 2
    await settle(store, first.job, ok())
    assert await claim_all(store, caps=caps, owner="b") == []
    assert len(await claim_all(store, caps=caps, owner="a")) == 1


async def test_the_cap_of_a_plugin_is_for_all_nodes_together(store: Store) -> None:
    for _ in range(4):
        await accept(store, a_new_job("a"))
    caps = Caps(workers=9, plugins={"a": 2})
    assert len(await claim_all(store, caps=caps, owner="one", limit=1)) == 1
    assert len(await claim_all(store, caps=caps, owner="two")) == 1
    assert await claim_all(store, caps=caps, owner="one") == []


async def test_a_node_claims_only_the_plugins_it_runs(store: Store) -> None:
    ids = [await accept(store, a_new_job(plugin)) for plugin in ("gpu", "echo")]
    claims = await claim_all(store, caps=Caps(workers=9, claimable=frozenset({"echo"})))
    assert [claim.job.id for claim in claims] == [ids[1]]


async def test_a_capped_plugin_is_passed_over_and_not_waited_for(store: Store) -> None:
    """Jobs of a plugin at its cap are passed over, and later jobs are claimed."""
    ids = [await accept(store, a_new_job(plugin)) for plugin in ("a", "a", "a", "b", "a", "b")]
    caps = Caps(workers=10, plugins={"a": 1})
    claims = await claim_all(store, caps=caps)
    assert [claim.job.id for claim in claims] == [ids[0], ids[3], ids[5]]
    await settle(store, claims[0].job, ok())
    assert [claim.job.id for claim in await claim_all(store, caps=caps)] == [ids[1]]


async def test_a_cap_of_none_starts_nothing(store: Store) -> None:
    await accept(store, a_new_job("a"))
    assert await claim_all(store, caps=Caps(workers=3, plugins={"a": 0})) == []
    assert await claim_all(store, caps=Caps(workers=0)) == []


async def test_two_claims_at_once_never_share_a_job(store: Store) -> None:
    """Claiming is atomic."""
    ids = {await accept(store, a_new_job()) for _ in range(20)}
    batches = await asyncio.gather(*(claim_all(store, limit=3, owner=f"w{n}") for n in range(10)))
    claimed = [claim.job.id for claims in batches for claim in claims]
    assert len(claimed) == len(set(claimed)) == len(ids)


async def test_same_key_runs_one_at_a_time_and_in_order(store: Store) -> None:
    """While a job runs, jobs with the same key and target wait."""
    ids = [await accept(store, a_new_job(dedupe_key="key:a")) for _ in range(4)]
    claimed_ids: list[str] = []
    while claims := await claim_all(store):
        (claim,) = claims
        claimed_ids.append(claim.job.id)
        await settle(store, claim.job, ok())
    assert claimed_ids == ids


async def test_a_retry_wait_lets_the_next_of_the_key_go_and_gets_its_place_back(
    store: Store, clock: Clock
) -> None:
    """The end of an execution makes the next job ready. When its retry is due, the older job is
    first again.
    """
    ids = [await accept(store, a_new_job(dedupe_key="key:a")) for _ in range(3)]
    await run_next(store, failed())
    second = await claim_one(store)
    assert second.id == ids[1]
    clock.advance(minutes=1)
    assert (await store.release_due()).count == 1
    assert await claim_all(store) == [], "its key is held by the second"
    await settle(store, second, ok())
    assert [claim.job.id for claim in await claim_all(store)] == [ids[0]]


async def test_a_due_job_with_a_free_key_is_ready(store: Store, clock: Clock) -> None:
    job_id = await accept(store, a_new_job(dedupe_key="key:a"))
    await run_next(store, failed())
    clock.advance(minutes=1)
    await store.release_due()
    assert (await claim_one(store)).id == job_id


async def test_an_execution_is_counted_for_each_claim_and_never_reset(store: Store, clock: Clock) -> None:
    """The execution number is the fencing token. A manual retry resets only the attempts."""
    job_id = await accept(store, a_new_job(max_attempts=2))
    for expected in (1, 2):
        job = await claim_one(store)
        assert (job.execution, job.attempt) == (expected, expected)
        await settle(store, job, failed())
        clock.advance(minutes=2)
        await store.release_due()
    await store.retry(job_id, POLICY)
    job = await claim_one(store)
    assert (job.execution, job.attempt) == (3, 1)


async def test_later_claims_have_larger_numbers(store: Store) -> None:
    for _ in range(4):
        await accept(store, a_new_job())
    numbers = [(await claim_one(store)).claim_seq for _ in range(4)]
    assert numbers == sorted(set(numbers))


async def test_counts_tell_ready_waiting_and_running(store: Store) -> None:
    for key in ("key:a", "key:a", None, None):
        await accept(store, a_new_job(dedupe_key=key))
    await claim_all(store, limit=1)
    counts = await store.queue_counts()
    assert (counts.ready, counts.waiting, counts.running, counts.depth) == (2, 1, 1, 4)


async def test_outstanding_jobs_count_whatever_their_source(store: Store) -> None:
    """Queued, waiting and running polls count; ended jobs and other commands do not."""
    for command in ("poll", "poll", "poll", "handle"):
        await accept(store, a_new_job("p", command))
    await accept(store, a_new_job("q", "poll"))
    await run_next(store, ok())
    await run_next(store, failed())
    assert await store.count_outstanding("p", "poll") == 2
    assert await store.count_outstanding("unknown", "poll") == 0


async def test_the_lease_is_from_the_clock(store: Store, clock: Clock) -> None:
    await accept(store, a_new_job())
    (claim,) = await store.claim(owner="x", caps=ROOMY, limit=1, lease=timedelta(seconds=7))
    assert claim.job.lease_until == clock.now + timedelta(seconds=7)


# ---------------------------------------------------------------------------------- claiming by name


async def test_named_jobs_are_claimed_in_the_order_given_whatever_the_caps(store: Store) -> None:
    """A run without a daemon takes only its own jobs and leaves the others alone."""
    first, second, other = [await accept(store, a_new_job()) for _ in range(3)]
    claims = await store.claim_by_id([second, first], owner="cli", lease=LEASE)
    assert [claim.job.id for claim in claims] == [second, first]
    assert {claim.job.owner for claim in claims} == {"cli"}
    assert (await stored(store, other)).status is JobStatus.QUEUED
    assert (await path_of(store, first))[-1] == "queued>running:claimed"


async def test_named_jobs_that_are_not_ready_are_left(store: Store) -> None:
    running = await accept(store, a_new_job())
    await claim_all(store)
    holder, follower = [await accept(store, a_new_job(dedupe_key="key:a")) for _ in range(2)]
    waiting = await accept(store, a_new_job(after_job_id=running))
    claims = await store.claim_by_id(
        [running, follower, waiting, holder, "unknown"], owner="cli", lease=LEASE
    )
    assert [claim.job.id for claim in claims] == [holder]
    assert await store.claim_by_id([], owner="cli", lease=LEASE) == ()


async def test_a_job_named_twice_is_claimed_once(store: Store) -> None:
    job_id = await accept(store, a_new_job())
    claims = await store.claim_by_id([job_id, job_id], owner="cli", lease=LEASE)
    assert [claim.job.id for claim in claims] == [job_id]


async def test_a_job_can_be_submitted_and_claimed_in_one_step(store: Store) -> None:
    """Waiting jobs do not matter. The limit of running jobs of its plugin does."""
    await accept(store, a_new_job("p"))
    beside = a_new_job("p", "health")
    (claim,) = await store.enqueue_and_claim(beside, owner="me", lease=LEASE, limit=1)
    assert (claim.job.id, claim.job.status, claim.job.execution) == (beside.id, JobStatus.RUNNING, 1)
    refused = a_new_job("p", "health")
    assert await store.enqueue_and_claim(refused, owner="me", lease=LEASE, limit=1) == ()
    assert await store.get_job(refused.id) is None
    (another,) = await store.enqueue_and_claim(refused, owner="me", lease=LEASE, limit=None)
    assert another.job.id == refused.id
