"""Statistics of the queue and of executions, by plugin."""

from __future__ import annotations

from datetime import timedelta

from builders.jobs import Clock, a_new_job, failed, ok
from builders.stores import accept, claim_one, run_next, settle
from ductile.core.jobs.model import JobReason, JobStatus
from ductile.core.jobs.settlement import LogStatus
from ductile.store.model.records import JobFilter, JobSort
from ductile.store.port import Store


async def test_the_queue_plugin_by_plugin(store: Store, clock: Clock) -> None:
    """There are counts of ready, waiting and running jobs, and the age of the oldest."""
    await accept(store, a_new_job("a"))
    await settle(store, await claim_one(store), failed())
    await accept(store, a_new_job("a"))
    await claim_one(store)
    first_at = clock()
    await accept(store, a_new_job("b"))
    clock.advance(minutes=1)
    await accept(store, a_new_job("b"))
    rows = {row.plugin: row for row in await store.queue_depths()}
    assert rows.keys() == {"a", "b"}
    assert (rows["a"].ready, rows["a"].waiting, rows["a"].running) == (0, 1, 1)
    assert rows["a"].oldest_ready_at is None
    assert (rows["b"].ready, rows["b"].waiting, rows["b"].running) == (2, 0, 0)
    assert rows["b"].oldest_ready_at == first_at


async def test_an_ended_job_is_not_in_the_queue(store: Store) -> None:
    await accept(store, a_new_job("a"))
    await run_next(store, ok())
    assert await store.queue_depths() == ()


async def test_how_executions_ended(store: Store, clock: Clock) -> None:
    """Executions since an instant are counted by plugin and status, among the latest only."""
    await accept(store, a_new_job("a"))
    await run_next(store, ok())
    clock.advance(hours=2)
    since = clock() - timedelta(hours=1)
    for outcome in (ok(), ok(), failed(permanent=True)):
        await accept(store, a_new_job("a"))
        await run_next(store, outcome)
    (counted,) = (await store.execution_statistics(since=since, latest=100)).plugins
    assert (counted.plugin, counted.executions) == ("a", 3)
    assert counted.by_status == {LogStatus.SUCCEEDED: 2, LogStatus.FAILED: 1}
    latest = await store.execution_statistics(since=since, latest=2)
    assert [plugin.executions for plugin in latest.plugins] == [2]
    assert not latest.complete
    everything = await store.execution_statistics(since=since - timedelta(hours=5), latest=4)
    assert everything.complete
    assert [plugin.executions for plugin in everything.plugins] == [4]
    assert (await store.execution_statistics(since=since, latest=100, plugin="b")).plugins == ()


async def test_times_of_executions(store: Store, clock: Clock) -> None:
    """The wait is that of the first start; a retry has none. Unobserved ends have no duration."""
    await accept(store, a_new_job("a", max_attempts=2))
    clock.advance(seconds=3)
    await settle(store, await claim_one(store), failed())
    clock.advance(hours=1)
    await store.release_due()
    await settle(store, await claim_one(store), failed())
    (row,) = (await store.execution_statistics(since=clock() - timedelta(days=1), latest=9)).plugins
    assert (row.executions, row.failures, row.retries, row.timeouts) == (2, 2, 1, 0)
    assert row.wait is not None
    assert row.wait.p99 == timedelta(seconds=3)


async def test_a_digest_has_what_ended_badly_and_what_waits_since_an_instant(
    store: Store, clock: Clock
) -> None:
    await accept(store, a_new_job("a"))
    await run_next(store, failed(permanent=True))
    clock.advance(hours=2)
    since = clock() - timedelta(hours=1)
    bad = await accept(store, a_new_job("a"))
    await run_next(store, failed(permanent=True))
    await accept(store, a_new_job("a"))
    await run_next(store, ok())
    waiting = await accept(store, a_new_job("b"))
    digest = await store.read_digest(since=since, latest=100)
    assert [ending.job_id for ending in digest.endings] == [bad]
    assert digest.endings_complete
    assert [(group.plugin, group.jobs, group.oldest_id) for group in digest.waiting] == [("b", 1, waiting)]
    assert [plugin.executions for plugin in digest.executions.plugins] == [2]
    assert (digest.skipped, digest.lost, digest.loads) == ((), (), ())


async def test_jobs_are_counted_and_listed_by_reason_and_duration(store: Store, clock: Clock) -> None:
    """In every order each job is on one page, whatever is added meanwhile."""
    durations = {}
    for seconds in (5, 1, 9):
        job_id = await accept(store, a_new_job("a"))
        job = await claim_one(store)
        clock.advance(seconds=seconds)
        await settle(store, job, failed(permanent=True))
        durations[job_id] = seconds
    only_failed = JobFilter(status=JobStatus.FAILED)
    assert await store.count_jobs(only_failed, limit=100) == 3
    assert await store.count_jobs(only_failed, limit=2) == 2
    assert await store.count_jobs(JobFilter(reason=JobReason.PLUGIN_ERROR), limit=9) == 3
    assert await store.count_jobs(JobFilter(reason=JobReason.KILLED), limit=9) == 0
    assert await store.count_jobs(JobFilter(reason=JobReason.SUBMITTED), limit=9) == 0
    first = await store.list_jobs(only_failed, limit=2, sort=JobSort.DURATION)
    await accept(store, a_new_job("a"))
    second = await store.list_jobs(only_failed, limit=2, cursor=first.next_cursor, sort=JobSort.DURATION)
    assert [durations[job.id] for job in (*first.rows, *second.rows)] == [9, 5, 1]
    assert second.next_cursor is None


async def test_executions_over_time(store: Store, clock: Clock) -> None:
    """Executions are counted by span and plugin. Beyond the limit, the numbers of log rows give the total."""
    begin = clock()
    for plugin in ("a", "a", "b"):
        await accept(store, a_new_job(plugin))
        await run_next(store, ok())
    clock.advance(hours=1)
    for _ in range(4):
        await accept(store, a_new_job("a"))
        await run_next(store, failed(permanent=True))
    clock.advance(hours=1)
    edges = [begin + timedelta(hours=hours, minutes=-30) for hours in range(3)]
    first, second = await store.sample_executions(edges, max_counted=100, max_timed=100)
    assert [(sample.plugin, sample.executions, sample.failures) for sample in first.counts] == [
        ("a", 2, 0),
        ("b", 1, 0),
    ]
    assert [(sample.plugin, sample.executions, sample.failures) for sample in second.counts] == [("a", 4, 4)]
    assert (first.total, second.total, len(second.times)) == (3, 4, 4)
    first_limited, second_limited = await store.sample_executions(edges, max_counted=2, max_timed=1)
    assert (first_limited.total, second_limited.total, len(second_limited.times)) == (3, 4, 1)
