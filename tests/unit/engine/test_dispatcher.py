"""The dispatcher has a bounded pool and limits of plugins, does not poll, and starts every job in the end."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from datetime import timedelta
from itertools import count
from pathlib import Path
from random import Random
from typing import Any

import pytest

from builders.configs import a_config, loaded
from builders.jobs import START, Clock, a_new_job, ok
from builders.stores import open_sqlite
from ductile.config.compile.compiler import compile_snapshot
from ductile.config.snapshot import Discovery, Snapshot
from ductile.core.jobs.model import JobReason, JobStatus, Requeued
from ductile.core.policy import Policy
from ductile.engine.dispatcher import FIRST_RESOURCE_PAUSE, Dispatcher
from ductile.store import writer as writer_module
from ductile.store.model.jobs import ClaimedJob, Submission
from ductile.store.notifier import JobEnded, JobsReady
from ductile.store.port import Priority
from ductile.store.sqlite.store import SqliteStore
from ductile.struct import replace


class Pool:
    """A dispatcher on a real store, with executions that end when the test allows it."""

    def __init__(
        self, store: SqliteStore, snapshot: Snapshot | Callable[[], Snapshot], *, claims_from: Any = None
    ) -> None:
        """`claims_from` is the store that the dispatcher uses, if it differs from `store`."""
        self.store = store
        self.running: set[str] = set()
        self.most = 0
        self.order: list[str] = []
        self.snapshots: list[Snapshot] = []
        self.gate = asyncio.Event()
        self.failures: list[BaseException] = []
        self.changed = asyncio.Event()
        self.dispatcher = Dispatcher(
            claims_from or store,
            self._execute,
            (lambda: snapshot) if isinstance(snapshot, Snapshot) else snapshot,
            owner="test",
            on_failure=self._failed,
        )
        store.notifier.subscribe(JobsReady, self.dispatcher.on_jobs_ready)
        store.notifier.subscribe(JobEnded, self.dispatcher.on_job_ended)

    async def _execute(
        self,
        claim: ClaimedJob,
        snapshot: Snapshot,
        on_result: Callable[[], None],
        _on_resources_exhausted: Callable[[], None],
    ) -> None:
        self.snapshots.append(snapshot)
        self.running.add(claim.job.id)
        self.most = max(self.most, len(self.running))
        self.order.append(claim.job.id)
        self.changed.set()
        await self.gate.wait()
        on_result()
        await self.store.settle(claim.job, ok(), Policy())
        self.running.discard(claim.job.id)
        self.changed.set()

    def _failed(self, error: BaseException) -> None:
        self.failures.append(error)
        self.changed.set()

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(60):
            while not condition():
                self.changed.clear()
                await self.changed.wait()


class ShortPool(Pool):
    """The first `times` processes cannot be started for lack of resources."""

    def __init__(self, store: SqliteStore, snapshot: Snapshot, times: int) -> None:
        super().__init__(store, snapshot)
        self.times = times
        self.put_back: list[str] = []
        #: The times at which a pause began.
        self.paused_at: list[float] = []

    async def _execute(
        self,
        claim: ClaimedJob,
        snapshot: Snapshot,
        on_result: Callable[[], None],
        on_resources_exhausted: Callable[[], None],
    ) -> None:
        if len(self.put_back) >= self.times:
            await super()._execute(claim, snapshot, on_result, on_resources_exhausted)
            return
        self.put_back.append(claim.job.id)
        self.paused_at.append(asyncio.get_running_loop().time())
        on_resources_exhausted()
        on_result()
        short = Requeued(reason=JobReason.NO_RESOURCES, error="too many open files")
        await self.store.settle(claim.job, short, Policy())
        self.changed.set()


class LateShortPool(Pool):
    """The process of one init cannot be started, and its result is stored after the pause is over."""

    def __init__(self, store: SqliteStore, snapshot: Snapshot, short: str, other: str) -> None:
        super().__init__(store, snapshot)
        self.short = short
        #: An init of another plugin: it is claimed when the pause is over.
        self.other = other
        self.put_back = False

    async def _execute(
        self,
        claim: ClaimedJob,
        snapshot: Snapshot,
        on_result: Callable[[], None],
        on_resources_exhausted: Callable[[], None],
    ) -> None:
        if claim.job.id != self.short or self.put_back:
            await super()._execute(claim, snapshot, on_result, on_resources_exhausted)
            return
        self.put_back = True
        on_resources_exhausted()
        self.dispatcher.set_pending_init("other", self.other)
        await self.until(lambda: self.other in self.order)
        on_result()
        short = Requeued(reason=JobReason.NO_RESOURCES, error="too many open files")
        await self.store.settle(claim.job, short, Policy())


def a_snapshot(directory: Path) -> Snapshot:
    """Return a snapshot with three workers and no plugins: only the pool limits the jobs."""
    config = a_config(directory, "service: {max_workers: 3}\n")
    return compile_snapshot(loaded(config), Discovery(installed={}, refused={}, warnings=()))


@pytest.fixture
def store(tmp_path: Path) -> SqliteStore:
    return open_sqlite(tmp_path / "state.db", clock=lambda: Clock(START).now, rng=Random(1))


async def test_more_jobs_than_workers_all_run(store: SqliteStore, tmp_path: Path) -> None:
    """A free worker takes the next job at once; the dispatcher is woken once."""
    pool = Pool(store, a_snapshot(tmp_path))
    pool.gate.set()
    jobs = [a_new_job() for _ in range(40)]
    await store.enqueue(Submission(jobs=tuple(jobs)))
    service = asyncio.create_task(pool.dispatcher.run())
    pool.dispatcher.wake()
    await pool.until(lambda: len(pool.order) == len(jobs) and not pool.running)
    assert pool.order == [job.id for job in jobs], "first come, first served"
    assert pool.most <= 3
    pool.dispatcher.stop()
    await service
    await store.close()


async def test_a_job_that_comes_while_all_workers_are_busy_triggers_no_claim_and_still_runs(
    store: SqliteStore, tmp_path: Path
) -> None:
    """No claim is made for a job that cannot start; the next end of an execution triggers one."""
    pool = Pool(store, a_snapshot(tmp_path))
    service = asyncio.create_task(pool.dispatcher.run())
    jobs = [a_new_job() for _ in range(4)]
    await store.enqueue(Submission(jobs=tuple(jobs[:3])))
    await pool.until(lambda: len(pool.running) == 3)
    for _ in range(3):
        # Claims in flight are written before this write, and return.
        await store.run_write(Priority.MAINTENANCE, lambda _session: None)
    tasks = asyncio.all_tasks()
    pool.dispatcher.prepare_claim()
    await store.enqueue(Submission(jobs=tuple(jobs[3:])))
    assert asyncio.all_tasks() == tasks, "no claim was started"
    pool.gate.set()
    await pool.until(lambda: len(pool.order) == len(jobs) and not pool.running)
    pool.dispatcher.stop()
    await service
    await store.close()


async def test_nothing_is_started_after_stop_and_executions_are_waited_for(
    store: SqliteStore, tmp_path: Path
) -> None:
    """A shutdown starts no job and lets running jobs finish."""
    pool = Pool(store, a_snapshot(tmp_path))
    jobs = [a_new_job() for _ in range(5)]
    await store.enqueue(Submission(jobs=tuple(jobs)))
    service = asyncio.create_task(pool.dispatcher.run())
    pool.dispatcher.wake()
    await pool.until(lambda: len(pool.running) == 3)
    pool.dispatcher.stop()
    await service
    assert await pool.dispatcher.wait_for_executions(0) is False
    pool.gate.set()
    assert await pool.dispatcher.wait_for_executions(None) is True
    assert len(pool.order) == 3
    remaining = [await store.get_job(job.id) for job in jobs[3:]]
    assert [job.status for job in remaining if job] == [JobStatus.QUEUED] * 2
    await store.close()


async def test_a_plugins_jobs_wait_for_its_init(store: SqliteStore, tmp_path: Path) -> None:
    """The init runs first, although it was enqueued last."""
    pool = Pool(store, a_snapshot(tmp_path))
    pool.gate.set()
    first, other = a_new_job("p"), a_new_job("q")
    init = replace(a_new_job("p"), command="init")
    await store.enqueue(Submission(jobs=(first, other, init)))
    pool.dispatcher.set_pending_init("p", init.id)
    service = asyncio.create_task(pool.dispatcher.run())
    await pool.until(lambda: len(pool.order) == 3 and not pool.running)
    assert pool.order.index(init.id) < pool.order.index(first.id)
    pool.dispatcher.stop()
    await service
    await store.close()


async def test_an_init_that_ended_before_its_claim_delays_no_job(store: SqliteStore, tmp_path: Path) -> None:
    """The init was cancelled while it was queued; the jobs of the plugin do not wait for it for ever."""
    pool = Pool(store, a_snapshot(tmp_path))
    pool.gate.set()
    init, first = replace(a_new_job("p"), command="init"), a_new_job("p")
    await store.enqueue(Submission(jobs=(init, first)))
    await store.cancel(init.id, Policy())
    pool.dispatcher.set_pending_init("p", init.id)
    service = asyncio.create_task(pool.dispatcher.run())
    await pool.until(lambda: pool.order == [first.id] and not pool.running)
    pool.dispatcher.stop()
    await service
    await store.close()


async def test_no_job_of_a_held_plugin_is_started(store: SqliteStore, tmp_path: Path) -> None:
    """A plugin is held while a reload is being written, because its inits may have to come first."""
    pool = Pool(store, a_snapshot(tmp_path))
    pool.gate.set()
    held, other = a_new_job("p"), a_new_job("q")
    await store.enqueue(Submission(jobs=(held, other)))
    pool.dispatcher.pause_plugins(["p"])
    service = asyncio.create_task(pool.dispatcher.run())
    await pool.until(lambda: pool.order == [other.id] and not pool.running)
    pool.dispatcher.pause_plugins()
    await pool.until(lambda: pool.order == [other.id, held.id] and not pool.running)
    pool.dispatcher.stop()
    await service
    await store.close()


class BrokenPool(Pool):
    async def _execute(self, *_args: object) -> None:
        raise RuntimeError("a defect")


async def test_an_unexpected_error_of_an_execution_is_reported(store: SqliteStore, tmp_path: Path) -> None:
    """No task awaits the task of a job, so its error must not be silent."""
    pool = BrokenPool(store, a_snapshot(tmp_path))
    await store.enqueue(Submission(jobs=(a_new_job(),)))
    service = asyncio.create_task(pool.dispatcher.run())
    pool.dispatcher.wake()
    await pool.until(lambda: bool(pool.failures))
    assert str(pool.failures[0]) == "a defect"
    pool.dispatcher.stop()
    await service
    await store.close()


async def test_the_next_claim_shares_the_commit_of_the_result_that_frees_a_worker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A result and the next claim share one fsync; the claim runs second, so that the limit holds."""
    monkeypatch.setattr(writer_module, "MAX_SECONDS", 60)  # a batch ends by its size alone
    ticks = count()
    store = open_sqlite(
        tmp_path / "state.db", clock=lambda: START + timedelta(seconds=next(ticks)), rng=Random(1)
    )
    pool = Pool(store, replace(a_snapshot(tmp_path), max_workers=1))
    first, second = a_new_job(), a_new_job()
    await store.enqueue(Submission(jobs=(first, second)))
    service = asyncio.create_task(pool.dispatcher.run())
    pool.dispatcher.wake()
    await pool.until(lambda: pool.running == {first.id})
    released = threading.Event()
    blocked_write = store.run_write(Priority.SETTLE, lambda _session: released.wait(60))
    pool.gate.set()
    for _ in range(10):  # turns in which the result, and then the claim, reach the store
        await asyncio.sleep(0)
    released.set()
    await blocked_write
    await pool.until(lambda: second.id in pool.order and not pool.running)
    pool.dispatcher.stop()
    await service
    ended, started = await store.get_job(first.id), await store.get_job(second.id)
    assert ended is not None
    assert started is not None
    assert started.started_at == ended.completed_at
    assert pool.most == 1
    await store.close()


async def test_a_result_and_the_next_claim_are_queued_when_the_writer_is_woken(
    store: SqliteStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A claim that came a turn later would need a commit of its own."""
    pool = Pool(store, replace(a_snapshot(tmp_path), max_workers=1))
    first, second = a_new_job(), a_new_job()
    await store.enqueue(Submission(jobs=(first, second)))
    service = asyncio.create_task(pool.dispatcher.run())
    pool.dispatcher.wake()
    await pool.until(lambda: pool.running == {first.id})
    writer = store.writer
    while not writer.is_idle:  # noqa: ASYNC110 - nothing signals that the thread is idle
        await asyncio.sleep(0)
    queued_priorities: list[list[Priority]] = []
    wake = writer.wake

    def record_priorities(loop: asyncio.AbstractEventLoop, turns: int) -> None:
        queued_priorities.append([priority for priority in Priority if writer.waiting(priority)])
        wake(loop, turns)

    monkeypatch.setattr(writer, "wake", record_priorities)
    pool.gate.set()
    await pool.until(lambda: second.id in pool.order and not pool.running)
    assert queued_priorities[0] == [Priority.SETTLE, Priority.CLAIM]
    pool.dispatcher.stop()
    await service
    await store.close()


async def test_a_job_runs_under_the_configuration_that_it_was_claimed_under(
    store: SqliteStore, tmp_path: Path
) -> None:
    """Under the next configuration the job would have to wait for an init."""
    first, second = a_snapshot(tmp_path), replace(a_snapshot(tmp_path), max_workers=2)
    in_force = [first]

    class ClaimThenReload:
        """A store that replaces the configuration in the turn in which a claim returns."""

        def __getattr__(self, verb: str) -> Any:
            return getattr(store, verb)

        async def claim(self, **arguments: Any) -> tuple[ClaimedJob, ...]:
            claims = await store.claim(**arguments)
            if claims:
                asyncio.get_running_loop().call_soon(in_force.__setitem__, 0, second)
            return claims

    pool = Pool(store, lambda: in_force[0], claims_from=ClaimThenReload())
    service = asyncio.create_task(pool.dispatcher.run())
    await store.enqueue(Submission(jobs=(a_new_job(),)))
    await pool.until(lambda: bool(pool.snapshots))
    assert pool.snapshots[0] is first
    assert in_force[0] is second
    pool.gate.set()
    pool.dispatcher.stop()
    await service
    await pool.dispatcher.wait_for_executions(None)
    await store.close()


async def test_nothing_is_claimed_for_a_while_when_resources_are_short(
    store: SqliteStore, tmp_path: Path
) -> None:
    """The job is requeued and claimed again; an init that could not be started still holds its plugin."""
    pool = ShortPool(store, a_snapshot(tmp_path), times=3)
    init, job, other = a_new_job("slow", "init"), a_new_job("slow"), a_new_job("quick")
    await store.enqueue(Submission(jobs=(init, job, other)))
    pool.gate.set()
    pool.dispatcher.set_pending_init("slow", init.id)
    service = asyncio.create_task(pool.dispatcher.run())
    await pool.until(lambda: len(pool.order) == 3 and not pool.running)
    assert pool.order.index(init.id) < pool.order.index(job.id)
    assert sorted(pool.order) == sorted([init.id, job.id, other.id])
    assert len(pool.put_back) == 3
    # Jobs that are claimed together are requeued together. Then no job is claimed until the pause is over.
    (first, *_, last) = pool.paused_at
    assert last - first >= FIRST_RESOURCE_PAUSE.total_seconds()
    rows = [await store.get_job(submitted.id) for submitted in (init, job, other)]
    assert [row.attempt for row in rows if row is not None] == [1, 1, 1]
    pool.dispatcher.stop()
    await service
    await store.close()


async def test_an_init_that_goes_back_when_the_pause_is_over_is_claimed_again(
    store: SqliteStore, tmp_path: Path
) -> None:
    """The init is claimed although all workers are busy and no ending job triggers a claim."""
    init, other = replace(a_new_job("p"), command="init"), replace(a_new_job("other"), command="init")
    jobs = tuple(a_new_job("busy") for _ in range(3))
    pool = LateShortPool(store, a_snapshot(tmp_path), init.id, other.id)
    await store.enqueue(Submission(jobs=jobs))
    service = asyncio.create_task(pool.dispatcher.run())
    await pool.until(lambda: len(pool.running) == len(jobs))
    await store.enqueue(Submission(jobs=(init, other)))
    pool.dispatcher.set_pending_init("p", init.id)
    await pool.until(lambda: init.id in pool.order)
    pool.gate.set()
    await pool.until(lambda: not pool.running)
    pool.dispatcher.stop()
    await service
    await store.close()
