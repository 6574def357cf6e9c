"""In every order of claims, publications and ends of jobs, every job is started in the end."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from builders.configs import a_config, loaded
from builders.jobs import a_job
from ductile.config.compile.compiler import compile_snapshot
from ductile.config.snapshot import Discovery, Snapshot
from ductile.engine import dispatcher
from ductile.engine.dispatcher import Dispatcher
from ductile.errors import StoreFullError
from ductile.store.model.jobs import ClaimedJob
from ductile.store.notifier import JOBS_READY
from ductile.store.port import Store

WORKERS = 3
TURNS = 8


class Request:
    """A request to the store: submitted, then executed, then published and resolved."""

    def __init__(self, do: Callable[[], object], publish: Callable[[], None] = lambda: None) -> None:
        self.execute = do
        self.publish = publish
        self.result: object = None
        self.error: StoreFullError | None = None
        self.future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()


class Simulation:
    """A store that executes batches and lets jobs end when the test does.

    Like the real store, it publishes a whole batch at once and runs claims last.
    """

    def __init__(self, snapshot: Snapshot) -> None:
        self.queue: deque[str] = deque()
        self.ends: deque[Request] = deque()
        self.starts: deque[Request] = deque()
        self.claims: deque[Request] = deque()
        self.done: deque[list[Request]] = deque()
        self.is_full = False
        self.cluster = None
        self.running: dict[str, asyncio.Event] = {}
        self.children = 0
        self.started: list[str] = []
        self.created = 0
        self.max_running = 0
        self.failures: list[BaseException] = []
        self.dispatcher = Dispatcher(
            cast("Store", self),
            self._execute,
            lambda: snapshot,
            owner="test",
            on_failure=self.failures.append,
        )

    async def claim(self, *, limit: int, **_others: Any) -> tuple[ClaimedJob, ...]:
        request = Request(lambda: self._take(limit))
        self.claims.append(request)
        claims: tuple[ClaimedJob, ...] = await request.future
        return claims

    def _take(self, limit: int) -> tuple[ClaimedJob, ...]:
        taken = [self.queue.popleft() for _ in range(min(limit, len(self.queue)))]
        return tuple(ClaimedJob(job=a_job(id=job_id), event=None, state={}, baggage={}) for job_id in taken)

    async def _execute(
        self,
        claim: ClaimedJob,
        _under: Snapshot,
        on_result: Callable[[], None],
        _on_resources_exhausted: Callable[[], None],
    ) -> None:
        job_id = claim.job.id
        self.started.append(job_id)
        self.running[job_id] = asyncio.Event()
        self.max_running = max(self.max_running, len(self.running))
        await self.running[job_id].wait()
        children = self.children
        on_result()
        end = Request(lambda: self._end(job_id, children))
        self.ends.append(end)
        await end.future

    def _end(self, job_id: str, children: int) -> None:
        """End the job without publishing its children: a claim must still find them."""
        del self.running[job_id]
        for _ in range(children):
            self.queue.append(self._create())

    def _create(self) -> str:
        self.created += 1
        return str(self.created)

    def submit(self, _number: int) -> None:
        job_id = self._create()
        self.dispatcher.prepare_claim()
        self.starts.append(
            Request(
                lambda: self.queue.append(job_id), publish=lambda: self.dispatcher.on_jobs_ready(JOBS_READY)
            )
        )

    def wake(self, _number: int) -> None:
        """Wake the dispatcher without a reason."""
        self.dispatcher.wake()

    def fill(self, _number: int) -> None:
        """Make the disk full for the claims of the next batch."""
        self.is_full = True

    def execute_batch(self, _number: int = 0) -> None:
        batch = [*self.ends, *self.starts, *self.claims]
        for request in batch:
            if self.is_full and request in self.claims:
                request.error = StoreFullError("the disk is full")
            else:
                request.result = request.execute()
        for requests in (self.ends, self.starts, self.claims):
            requests.clear()
        self.is_full = False
        if batch:
            self.done.append(batch)

    def publish_batch(self, _number: int = 0) -> None:
        batch = self.done.popleft() if self.done else []
        for request in batch:
            if request.error is None:
                request.publish()
        for request in batch:
            if request.error is not None:
                request.future.set_exception(request.error)
                continue
            request.future.set_result(request.result)

    def finish(self, number: int, children: int | None = None) -> None:
        running_jobs = [event for event in self.running.values() if not event.is_set()]
        if running_jobs:
            self.children = number % 4 if children is None else children
            running_jobs[number % len(running_jobs)].set()

    async def settle_down(self) -> None:
        """Execute and publish requests until none is left."""
        await turns()
        while self.ends or self.starts or self.claims or self.done:
            self.execute_batch()
            self.publish_batch()
            await turns()


async def turns() -> None:
    for _ in range(TURNS):
        await asyncio.sleep(0)


STEPS = st.lists(
    st.tuples(
        st.sampled_from(
            ["submit", "wake", "fill", "execute_batch", "publish_batch", "finish", "turn", "turns", "turns"]
        ),
        st.integers(0, 11),
    ),
    max_size=60,
)


@pytest.fixture(scope="module")
def snapshot(tmp_path_factory: pytest.TempPathFactory) -> Snapshot:
    directory: Path = tmp_path_factory.mktemp("config")
    config = a_config(directory, f"service: {{max_workers: {WORKERS}}}\n")
    return compile_snapshot(loaded(config), Discovery(installed={}, refused={}, warnings=()))


#: A claim finds no job. Then a job ends that frees one worker and has two children.
TWO_CHILDREN = [
    *("submit", "turns", "execute_batch", "publish_batch", "turns"),
    *("wake", "turns", "execute_batch"),
    *("finish", "turns", "publish_batch", "turns", "execute_batch", "publish_batch"),
]

#: A claim for all workers has found no job, and a later job is published in the same turn.
PUBLISHED_TOGETHER = [
    "wake",
    "turns",
    "execute_batch",
    "submit",
    "execute_batch",
    "publish_batch",
    "publish_batch",
]


@pytest.fixture(scope="module", autouse=True)
def _retry_at_once() -> Iterator[None]:
    """A full store is tried again in the next turn, not after a second."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dispatcher, "STORE_RETRY_INTERVAL", timedelta(0))
        yield


@settings(max_examples=1500)
@example(steps=[(step, 2) for step in TWO_CHILDREN])
@example(steps=[(step, 0) for step in PUBLISHED_TOGETHER])
@given(steps=STEPS)
def test_no_job_is_left_behind(snapshot: Snapshot, steps: list[tuple[str, int]]) -> None:
    async def run() -> None:
        simulation = Simulation(snapshot)
        service = asyncio.create_task(simulation.dispatcher.run())
        for step, number in steps:
            if step == "turn":  # without it, both steps happen in the same turn
                await asyncio.sleep(0)
            elif step == "turns":
                await turns()
            else:
                getattr(simulation, step)(number)
        await simulation.settle_down()
        while simulation.running or simulation.queue:
            assert not simulation.queue or len(simulation.running) == WORKERS, (
                "a job waits, and a worker is free"
            )
            simulation.finish(0, children=0)
            await simulation.settle_down()
        assert sorted(simulation.started, key=int) == [
            str(number + 1) for number in range(simulation.created)
        ]
        assert simulation.max_running <= WORKERS
        assert not simulation.failures
        simulation.dispatcher.stop()
        await simulation.settle_down()
        await service

    asyncio.run(run())
