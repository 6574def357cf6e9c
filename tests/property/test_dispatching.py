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
    """A request to the store: submitted, then done, then published and resolved."""

    def __init__(self, do: Callable[[], object], publish: Callable[[], None] = lambda: None) -> None:
        self.do = do
        self.publish = publish
        self.answer: object = None
        self.error: StoreFullError | None = None
        self.future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()


class World:
    """A store that works in batches, when the test says so; and jobs that it lets end.

    Like the real one it publishes a whole batch at once, and runs claims last.
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
        self.made = 0
        self.most = 0
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
        self.most = max(self.most, len(self.running))
        await self.running[job_id].wait()
        children = self.children
        on_result()
        end = Request(lambda: self._end(job_id, children))
        self.ends.append(end)
        await end.future

    def _end(self, job_id: str, children: int) -> None:
        """Its children are not published: a claim must still find them."""
        del self.running[job_id]
        for _ in range(children):
            self.queue.append(self._make())

    def _make(self) -> str:
        self.made += 1
        return str(self.made)

    def submit(self, _number: int) -> None:
        job_id = self._make()
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
        """The disk is full for the claims of the next batch."""
        self.is_full = True

    def work(self, _number: int = 0) -> None:
        batch = [*self.ends, *self.starts, *self.claims]
        for request in batch:
            if self.is_full and request in self.claims:
                request.error = StoreFullError("the disk is full")
            else:
                request.answer = request.do()
        for waiting in (self.ends, self.starts, self.claims):
            waiting.clear()
        self.is_full = False
        if batch:
            self.done.append(batch)

    def tell(self, _number: int = 0) -> None:
        batch = self.done.popleft() if self.done else []
        for request in batch:
            if request.error is None:
                request.publish()
        for request in batch:
            if request.error is not None:
                request.future.set_exception(request.error)
                continue
            request.future.set_result(request.answer)

    def finish(self, number: int, children: int | None = None) -> None:
        going = [event for event in self.running.values() if not event.is_set()]
        if going:
            self.children = number % 4 if children is None else children
            going[number % len(going)].set()

    async def settle_down(self) -> None:
        """Run every requested action and report it, until none is left."""
        await turns()
        while self.ends or self.starts or self.claims or self.done:
            self.work()
            self.tell()
            await turns()


async def turns() -> None:
    for _ in range(TURNS):
        await asyncio.sleep(0)


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["submit", "wake", "fill", "work", "tell", "finish", "turn", "turns", "turns"]),
        st.integers(0, 11),
    ),
    max_size=60,
)


@pytest.fixture(scope="module")
def snapshot(tmp_path_factory: pytest.TempPathFactory) -> Snapshot:
    directory: Path = tmp_path_factory.mktemp("config")
    config = a_config(directory, f"service: {{max_workers: {WORKERS}}}\n")
    return compile_snapshot(loaded(config), Discovery(installed={}, refused={}, warnings=()))


#: A claim sees nothing; then a job ends that frees one worker and leaves two children.
TWO_CHILDREN = [
    *("submit", "turns", "work", "tell", "turns"),
    *("wake", "turns", "work"),
    *("finish", "turns", "tell", "turns", "work", "tell"),
]

#: A claim for all workers has seen nothing, and a later job is published in the same turn.
PUBLISHED_TOGETHER = ["wake", "turns", "work", "submit", "work", "tell", "tell"]


@pytest.fixture(scope="module", autouse=True)
def _impatient() -> Iterator[None]:
    """A full store is asked again in the next turn, not after a second."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dispatcher, "STORE_RETRY_INTERVAL", timedelta(0))
        yield


@settings(max_examples=1500)
@example(steps=[(step, 2) for step in TWO_CHILDREN])
@example(steps=[(step, 0) for step in PUBLISHED_TOGETHER])
@given(steps=STEPS)
def test_no_job_is_left_behind(snapshot: Snapshot, steps: list[tuple[str, int]]) -> None:
    async def run() -> None:
        world = World(snapshot)
        service = asyncio.create_task(world.dispatcher.run())
        for step, number in steps:
            if step == "turn":  # otherwise they happen in the same
                await asyncio.sleep(0)
            elif step == "turns":
                await turns()
            else:
                getattr(world, step)(number)
        await world.settle_down()
        while world.running or world.queue:
            assert not world.queue or len(world.running) == WORKERS, "a job waits, and a worker is free"
            world.finish(0, children=0)
            await world.settle_down()
        assert sorted(world.started, key=int) == [str(number + 1) for number in range(world.made)]
        assert world.most <= WORKERS
        assert not world.failures
        world.dispatcher.stop()
        await world.settle_down()
        await service

    asyncio.run(run())
