"""The dispatcher: whenever something may be able to start, claim it and hand it to an execution.

It never polls: enqueueing, settling, releasing and reloading wake it. How many run is asked of the
store with each claim; what is held here only tells how many workers of this daemon are free.

A job whose result is on its way to the store counts as gone. So the next claim follows that result
closely enough to share its commit, and the store, which runs claims last, still keeps to the caps. A claim
does not wait for the one before it: several may be in flight.

Before a submission is written, `expect` creates the task of a claim. Its first step runs in the next turn of
the event loop, before the store's writer is woken, so the claim shares the commit with the jobs submitted.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from datetime import timedelta
from functools import partial
from typing import Any, TypeVar

from ductile.config.snapshot import Snapshot
from ductile.core.jobs.admission import Caps
from ductile.core.jobs.model import Job, NewJob
from ductile.engine.executor import ResultNotStoredError
from ductile.errors import StoreBusyError, StoreFullError
from ductile.store.model.jobs import ClaimedJob
from ductile.store.model.submission import Accepted, EnqueueResult
from ductile.store.port import Store
from ductile.struct import replace

R = TypeVar("R")

#: Renewed by nobody on one machine, where the lock says who lives; for several machines it matters.
LEASE = timedelta(minutes=5)
#: How long to leave a store alone that is full or locked before asking it again.
PAUSE = timedelta(seconds=1)
#: How long nothing is claimed when the machine is short of what a process needs: the first time, and at most.
FIRST_REST = timedelta(milliseconds=500)
LONGEST_REST = timedelta(seconds=5)
_MOST_RESTS = 10


class Dispatcher:
    def __init__(
        self,
        store: Store,
        execute: Callable[[ClaimedJob, Snapshot, Callable[[], None]], Awaitable[None]],
        snapshot: Callable[[], Snapshot],
        *,
        owner: str,
        failed: Callable[[BaseException], None],
    ) -> None:
        """`failed` is told of what an execution cannot deal with: the store is gone, or we have a defect."""
        self._store = store
        self._execute = execute
        self._snapshot = snapshot
        self._owner = owner
        self._failed = failed
        #: Jobs that were put on the queue; unless they run already, they are a reason to look.
        self._offered: set[str] = set()
        self._has_to_look = False
        self._will_look = False
        self._tasks: set[asyncio.Task[None]] = set()
        self._running: set[str] = set()
        self._leaving: set[str] = set()
        #: Those of them that need no worker: they were started beside the queue.
        self._beside: set[str] = set()
        self._initialising: dict[str, str] = {}
        self._held: frozenset[str] = frozenset()
        self._caps_of: tuple[Snapshot, Caps] | None = None
        #: Set while it runs.
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopped = asyncio.Event()
        #: Claims on their way, and how many workers they are for.
        self._claims: set[asyncio.Task[Any]] = set()
        self._claimed_for = 0
        self._pause: asyncio.TimerHandle | None = None
        #: Set while nothing is claimed because the machine is short of something, and how often that was.
        self._resting: asyncio.TimerHandle | None = None
        self._rests = 0
        #: Jobs that were claimed and go back to the queue without a process.
        self._unstarted: set[str] = set()

    @property
    def running(self) -> int:
        return len(self._tasks)

    def wake(self) -> None:
        """Something may be able to start."""
        self._has_to_look = True
        self._look_soon()

    def _look_soon(self) -> None:
        """Once for all who ask for it in the same turn."""
        if not self._will_look and self._loop is not None:
            self._will_look = True
            self._begin(self._look())

    def expect(self) -> None:
        """A job is about to come: if a worker is free, it is claimed in the commit that brings it."""
        if self._free() > 0:
            self.wake()

    def on_enqueued(self, answers: Iterable[EnqueueResult]) -> None:
        """Jobs are on the queue. Most have been claimed by the same commit, if anybody was there to do so."""
        if self._free() <= 0 and not self._claimed_for:
            return  # everybody is busy, and whoever leaves looks in any case
        for answer in answers:
            if isinstance(answer, Accepted):
                self._offered.update(started.job_id for started in answer.members or (answer,))
        if not self._claimed_for:  # or else the answer to that claim is followed by a look
            self._look_soon()

    def hold(self, plugins: Iterable[str] = ()) -> None:
        """Claim nothing of these plugins, and of no others, until told again: their inits may be coming."""
        self._held = frozenset(plugins)
        self.wake()

    def initialise(self, plugin: str, job_id: str) -> None:
        """Hold the plugin's jobs back until this init has ended, and start that."""
        self._initialising[plugin] = job_id
        self.wake()

    async def start_beside(self, job: NewJob, *, limit: int | None) -> bool:
        """Start a job at once, beside the queue and its workers.

        False if `limit` jobs of its plugin run already, if its init has not ended, or if the daemon stops.
        """
        if self._stopped.is_set() or job.plugin in self._initialising or job.plugin in self._held:
            return False
        return await asyncio.shield(self._begin(self._claim_beside(job, limit)))

    async def _claim_beside(self, job: NewJob, limit: int | None) -> bool:
        claims = await self._store.enqueue_and_claim(job, owner=self._owner, lease=LEASE, limit=limit)
        self._beside.update(claim.job.id for claim in claims)
        self._launch(claims)
        return bool(claims)

    async def run(self) -> None:
        """Start what may start, until told to stop."""
        self._loop = asyncio.get_running_loop()
        self._look_soon()
        await self._stopped.wait()
        while self._claims:  # their jobs are claimed on disk soon, and must be run
            await asyncio.wait(self._claims)

    async def _look(self) -> None:
        self._will_look = False
        if self._stopped.is_set() or self._resting is not None or not self._has_reason_to_look():
            return
        for plugin, job_id in self._initialising.items():
            if job_id not in self._running:
                self._begin(self._claim_init(plugin, job_id))
        free = self._free()
        if free <= 0 and self._claimed_for:
            return  # the reason to look stays until those claims are answered
        self._has_to_look, self._offered = False, set()
        if free > 0:
            await self._claim_for(free)

    def _has_reason_to_look(self) -> bool:
        self._offered -= self._running
        return self._has_to_look or bool(self._offered)

    async def _claim_init(self, plugin: str, job_id: str) -> None:
        self._launch(await self._store.claim_by_id([job_id], owner=self._owner, lease=LEASE))
        if job_id not in self._running and self._initialising.get(plugin) == job_id:
            # It ended before it was started, by a cancel or a purge; its plugin must not wait for ever.
            del self._initialising[plugin]
            self.wake()

    def _free(self) -> int:
        """Free workers, without those reserved by claims in flight."""
        busy = len(self._running) - len(self._beside) - len(self._leaving)
        return self._snapshot().max_workers - busy - self._claimed_for

    async def _claim_for(self, workers: int) -> None:
        """Claim jobs for so many workers, which are reserved until the claim is answered."""
        self._claimed_for += workers
        try:
            claims = await self._store.claim(owner=self._owner, caps=self._caps(), limit=workers, lease=LEASE)
        finally:
            self._claimed_for -= workers
        self._launch(claims)
        # As many as were asked for: there may be more in the queue, such as the children of a job.
        self._has_to_look = self._has_to_look or len(claims) == workers
        if self._has_reason_to_look():  # this claim may not have seen jobs that came meanwhile
            self._look_soon()

    def _begin(self, claiming: Coroutine[Any, Any, R]) -> asyncio.Task[R]:
        task = asyncio.get_running_loop().create_task(claiming, name="claim")
        self._claims.add(task)
        task.add_done_callback(self._claim_ended)
        return task

    def _claim_ended(self, claim: asyncio.Task[Any]) -> None:
        self._claims.discard(claim)
        error = None if claim.cancelled() else claim.exception()
        if isinstance(error, StoreFullError | StoreBusyError):
            # Nothing is claimed that could not be written. The queue is on disk and can wait.
            self._look_again_later()
        elif error is not None:
            self._failed(error)

    def _look_again_later(self) -> None:
        if self._pause is None:
            self._pause = asyncio.get_running_loop().call_later(PAUSE.total_seconds(), self._end_pause)

    def _end_pause(self) -> None:
        self._pause = None
        self.wake()

    def rest(self, job_id: str) -> None:
        """The process of this job could not be started for want of something: claim nothing for a while.

        Each time longer, until a job has ended in another way.
        """
        self._unstarted.add(job_id)
        if self._resting is None:
            pause = min(FIRST_REST * 2**self._rests, LONGEST_REST)
            self._rests = min(self._rests + 1, _MOST_RESTS)
            self._resting = asyncio.get_running_loop().call_later(pause.total_seconds(), self._end_rest)

    def _end_rest(self) -> None:
        self._resting = None
        self.wake()

    def _caps(self) -> Caps:
        snapshot = self._snapshot()
        if self._caps_of is None or self._caps_of[0] is not snapshot:
            each = {name: plugin.parallelism for name, plugin in snapshot.plugins.items()}
            self._caps_of = (snapshot, Caps(workers=snapshot.max_workers, plugins=each))
        caps = self._caps_of[1]
        waiting = dict.fromkeys((*self._initialising, *self._held), 0)
        return replace(caps, plugins={**caps.plugins, **waiting}) if waiting else caps

    def _launch(self, claims: tuple[ClaimedJob, ...]) -> None:
        # Of this turn: the same commit may have brought a new one, for whose inits these have not waited.
        snapshot = self._snapshot()
        for claim in claims:
            self._running.add(claim.job.id)
            task = asyncio.create_task(self._work(claim, snapshot), name=f"job {claim.job.id}")
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _work(self, claim: ClaimedJob, snapshot: Snapshot) -> None:
        try:
            await self._execute(claim, snapshot, partial(self._make_room, claim.job.id))
        except ResultNotStoredError:
            pass  # it stays running in the store, and the next start finds it so
        except Exception as error:  # noqa: BLE001 - nobody waits for this task, so it has to tell
            self._failed(error)
        finally:
            self._left(claim.job)

    def _make_room(self, job_id: str) -> None:
        if job_id in self._beside:
            return
        self._leaving.add(job_id)
        self.wake()

    def _left(self, job: Job) -> None:
        self._running.discard(job.id)
        is_back = job.id in self._unstarted
        self._unstarted.discard(job.id)
        if not is_back:
            self._rests = 0
        self._beside.discard(job.id)
        if job.id in self._leaving:
            self._leaving.discard(job.id)  # its room was offered when its result was handed in
        else:
            self.wake()
        if self._initialising.get(job.plugin) == job.id and not is_back:
            del self._initialising[job.plugin]
            self.wake()

    def stop(self) -> None:
        """Claim nothing more; what runs goes on."""
        self._stopped.set()

    async def drain(self, grace: float | None) -> bool:
        """Wait for what runs, for ever if there is no grace; whether all of it ended in time."""
        loop = asyncio.get_running_loop()
        end = None if grace is None else loop.time() + grace
        while self._tasks:  # again: a claim that was under way may have been launched meanwhile
            left = None if end is None else max(0.0, end - loop.time())
            _, late = await asyncio.wait(tuple(self._tasks), timeout=left)
            if late:
                return False
        return True
