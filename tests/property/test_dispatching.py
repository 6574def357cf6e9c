"""SPEC 4.4: in whatever order claims are made and told of, and jobs end, every job is started in the end."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from builders.configs import a_config, loaded
from builders.jobs import a_job
from ductile.config.compile import compile_snapshot
from ductile.config.installed import Discovery
from ductile.config.snapshot import Snapshot
from ductile.engine.dispatcher import Dispatcher
from ductile.store.port import Store
from ductile.store.values.settling import Claim
from ductile.store.values.submitting import Accepted

WORKERS = 3
TURNS = 8


class Order:
    """A claim: asked for, then made, then told of. What comes in between, it has not seen."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.taken: tuple[Claim, ...] | None = None
        self.told: asyncio.Future[tuple[Claim, ...]] = asyncio.get_running_loop().create_future()


class World:
    """A store whose claims the test makes and tells of, and jobs that it lets end."""

    def __init__(self, snapshot: Snapshot) -> None:
        self.queue: deque[str] = deque()
        self.orders: list[Order] = []
        self.running: dict[str, asyncio.Event] = {}
        self.started: list[str] = []
        self.submitted = 0
        self.most = 0
        self.failures: list[BaseException] = []
        self.dispatcher = Dispatcher(
            cast("Store", self), self._execute, lambda: snapshot, owner="test", failed=self.failures.append
        )

    async def claim(self, *, limit: int, **_others: Any) -> tuple[Claim, ...]:
        order = Order(limit)
        self.orders.append(order)
        return await order.told

    async def _execute(self, claim: Claim, makes_room: Callable[[], None]) -> None:
        job_id = claim.job.id
        self.started.append(job_id)
        self.running[job_id] = asyncio.Event()
        self.most = max(self.most, len(self.running))
        await self.running[job_id].wait()
        del self.running[job_id]
        makes_room()

    def submit(self) -> None:
        job_id = str(self.submitted)
        self.submitted += 1
        self.queue.append(job_id)
        self.dispatcher.offer([Accepted(job_id=job_id, seq=self.submitted, ready=True)])

    def make(self, number: int) -> None:
        unmade = [order for order in self.orders if order.taken is None]
        if unmade:
            order = unmade[number % len(unmade)]
            count = min(order.limit, len(self.queue))
            order.taken = tuple(
                Claim(job=a_job(id=self.queue.popleft()), event=None, state={}, baggage={})
                for _ in range(count)
            )

    def tell(self, number: int) -> None:
        made = [order for order in self.orders if order.taken is not None]
        if made:
            order = made[number % len(made)]
            self.orders.remove(order)
            assert order.taken is not None
            order.told.set_result(order.taken)

    def finish(self, number: int) -> None:
        if self.running:
            list(self.running.values())[number % len(self.running)].set()

    async def settle_down(self) -> None:
        """Make and tell whatever was asked for, until nothing more is."""
        while self.orders:
            self.make(0)
            self.tell(0)
            await turns()


async def turns() -> None:
    for _ in range(TURNS):
        await asyncio.sleep(0)


STEPS = st.lists(
    st.tuples(st.sampled_from(["submit", "make", "tell", "finish"]), st.integers(0, 5)), max_size=40
)


@pytest.fixture(scope="module")
def snapshot(tmp_path_factory: pytest.TempPathFactory) -> Snapshot:
    directory: Path = tmp_path_factory.mktemp("config")
    config = a_config(directory, f"service: {{max_workers: {WORKERS}}}\n")
    return compile_snapshot(loaded(config), Discovery(installed={}, refused={}, warnings=()))


@given(steps=STEPS)
def test_no_job_is_left_behind(snapshot: Snapshot, steps: list[tuple[str, int]]) -> None:
    async def run() -> None:
        world = World(snapshot)
        service = asyncio.create_task(world.dispatcher.run())
        for step, number in steps:
            if step == "submit":
                world.submit()
            else:
                getattr(world, step)(number)
            await turns()
        await world.settle_down()
        while world.running or world.queue:
            assert not world.queue or len(world.running) == WORKERS, "somebody waits, and somebody is free"
            world.finish(0)
            await turns()
            await world.settle_down()
        assert sorted(world.started, key=int) == [str(number) for number in range(world.submitted)]
        assert world.most <= WORKERS
        assert not world.failures
        world.dispatcher.stop()
        await turns()
        await world.settle_down()
        await service

    asyncio.run(run())
