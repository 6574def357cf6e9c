"""The dispatcher: claims ready jobs for free workers and starts their executions.

A claim is made when the store publishes `JobsReady`, when a worker becomes free, when an init has ended,
after a reload, after a pause, and every 30 seconds in case something was missed.

All state here is used on the event loop only, and only counts the free workers of this daemon. The caps of
workers and plugins are enforced by the store, inside the transaction of a claim.

- A worker is free when the result of its job is handed to the store, before it is committed. So the claim for
  the next job is queued with that result and shares its commit. The store runs claims last in a commit, so
  the caps hold.
- Several claims may be in flight. Each reserves the workers it claims for until it returns.
- `prepare_claim` is called before a submission is written and creates the task of a claim. The first step of
  that task runs in the next iteration of the event loop, before the store's writer thread is woken, so the
  claim shares the commit of the submission.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from contextlib import suppress
from datetime import timedelta
from enum import Enum, auto
from functools import partial
from typing import Any, TypeAlias, TypeVar

from ductile.config.snapshot import Snapshot
from ductile.core.jobs.admission import Caps
from ductile.core.jobs.model import TERMINAL, NewJob
from ductile.core.scripts import EXEC_PLUGIN
from ductile.engine.clock import STORE_RETRY_INTERVAL, STORE_UNAVAILABLE
from ductile.engine.executor import ResultNotStoredError
from ductile.engine.membership import node_name
from ductile.store.model.jobs import ClaimedJob
from ductile.store.notifier import JobEnded, JobsReady
from ductile.store.port import Store
from ductile.struct import replace

#: Stored with a claim as `lease_until`, which decides nothing. On one machine the store's lock proves that
#: the daemon lives; with several nodes, the lease that each of them renews (`ductile.engine.membership`).
LEASE = timedelta(minutes=5)
POLL_INTERVAL = timedelta(seconds=30)
#: The first and the longest pause of claims after a process could not be started for lack of resources.
FIRST_RESOURCE_PAUSE = timedelta(milliseconds=500)
MAX_RESOURCE_PAUSE = timedelta(seconds=5)
#: With more failures in a row the pause is at its maximum. The limit keeps the arithmetic finite.
_MAX_FAILED_STARTS = 10

R = TypeVar("R")
#: Runs a claimed job under a configuration. The first callback is called before the result is handed to the
#: store; the second one, before the first, if the process could not be started for lack of resources.
Execute: TypeAlias = Callable[
    [ClaimedJob, Snapshot, Callable[[], None], Callable[[], None]], Awaitable[object]
]


def plugins_run_here(snapshot: Snapshot) -> tuple[str, ...]:
    """Return the plugins whose jobs this node claims from a store that it shares with others."""
    run_only = snapshot.service.run_only
    return tuple(
        name
        for name, plugin in snapshot.plugins.items()
        if plugin.enabled and (run_only is None or name in run_only)
    )


class Pause(Enum):
    """The reasons to wait for a while before the next claim."""

    #: A claim is repeated after a while because the store was full or locked. Other claims go on.
    STORE = auto()
    #: Nothing is claimed because resources were exhausted.
    RESOURCES = auto()


class Dispatcher:
    def __init__(
        self,
        store: Store,
        execute: Execute,
        snapshot: Callable[[], Snapshot],
        *,
        owner: str,
        on_failure: Callable[[BaseException], None],
        may_claim: Callable[[], bool] = lambda: True,
    ) -> None:
        """`on_failure` is called with an error that no job caused: the store failed, or Ductile has a bug.

        While `may_claim` is false nothing is claimed; `wake` is called when it may be true again.
        """
        self._store = store
        self._execute = execute
        self._snapshot = snapshot
        self._owner = owner
        self._on_failure = on_failure
        self._may_claim = may_claim
        self._is_running = False
        self._stopped = asyncio.Event()
        self._executions: set[asyncio.Task[None]] = set()
        #: Busy workers = executing - settling - outside the queue:
        #: jobs that are being executed, those of them whose result was handed to the store, and those that
        #: were started without a worker.
        self._executing: set[str] = set()
        self._settling: set[str] = set()
        self._outside_queue: set[str] = set()
        #: Whether jobs may be ready that no claim has searched for, and whether a claim is about to start.
        self._claim_needed = False
        self._claim_scheduled = False
        self._claim_tasks: set[asyncio.Task[Any]] = set()
        #: Workers that claims in flight are for.
        self._reserved = 0
        #: The init job of each plugin whose other jobs wait for it.
        self._init_jobs: dict[str, str] = {}
        self._paused_plugins: frozenset[str] = frozenset()
        self._caps_cache: tuple[Snapshot, Caps] | None = None
        self._pauses: set[Pause] = set()
        #: How often in a row resources were exhausted, and the jobs that go back to the queue because of it.
        self._failed_starts = 0
        self._requeued: set[str] = set()

    @property
    def running(self) -> int:
        """The number of executions, with those whose result is being stored."""
        return len(self._executions)

    # -- triggers of a claim

    def wake(self) -> None:
        """Claim in the next iteration of the event loop: a job may be ready, or a worker free."""
        self._claim_needed = True
        if self._is_running and not self._claim_scheduled:
            self._claim_scheduled = True
            self._start_claim(self._claim_ready())

    def prepare_claim(self) -> None:
        """If a worker is free, claim in the commit of the submission that the caller is about to make."""
        if self._free_workers() > 0:
            self.wake()

    def on_jobs_ready(self, _change: JobsReady) -> None:
        if self._reserved:
            # A claim in flight may or may not have seen the jobs; when it returns, another one follows.
            self._claim_needed = True
        elif self._free_workers() > 0:
            self.wake()
        # Otherwise all workers are busy; the next one to finish triggers a claim.

    def on_job_ended(self, change: JobEnded) -> None:
        """Claim if a pending init has ended.

        An init that is cancelled while it is queued blocks its plugin until a claim finds that it has ended.
        """
        if self._init_jobs.get(change.plugin) == change.job_id:
            self.wake()

    def pause_plugins(self, plugins: Iterable[str] = ()) -> None:
        """Claim no job of these plugins until the next call, which replaces them.

        A reload pauses the plugins whose inits it is about to store.
        """
        self._paused_plugins = frozenset(plugins)
        self.wake()

    def set_pending_init(self, plugin: str, job_id: str) -> None:
        """Claim this init, which is stored, and no other job of the plugin until the init has ended."""
        self._init_jobs[plugin] = job_id
        self.wake()

    async def start_outside_queue(self, job: NewJob, *, limit: int | None) -> bool:
        """Store a job and start it at once, without a worker.

        Returns False if `limit` jobs of its plugin run already, if its init has not ended, if this node may
        not claim, or if the daemon stops.
        """
        is_blocked = job.plugin in self._init_jobs or job.plugin in self._paused_plugins
        if self._stopped.is_set() or is_blocked or not self._may_claim():
            return False
        # Shielded: a job that was claimed must run, even if the caller is cancelled.
        return await asyncio.shield(self._start_claim(self._claim_outside_queue(job, limit)))

    async def run(self) -> None:
        """Claim and start jobs until `stop`. Returns when no claim is in flight."""
        self._is_running = True
        self.wake()
        while not self._stopped.is_set():
            try:
                async with asyncio.timeout(POLL_INTERVAL.total_seconds()):
                    await self._stopped.wait()
            except TimeoutError:
                self.wake()
        while self._claim_tasks:
            await asyncio.wait(self._claim_tasks)

    def stop(self) -> None:
        """Start no more claims. Executions continue."""
        self._stopped.set()

    async def wait_for_executions(self, grace: float | None) -> bool:
        """Wait for all executions, at most `grace` seconds if given. Returns whether all have ended."""
        with suppress(TimeoutError):
            async with asyncio.timeout(grace):
                while self._executions:  # Repeated: a claim in flight may have started one meanwhile.
                    await asyncio.wait(tuple(self._executions))
        return not self._executions

    # -- claims

    def _start_claim(self, claim: Coroutine[Any, Any, R]) -> asyncio.Task[R]:
        task = asyncio.create_task(claim, name="claim")
        self._claim_tasks.add(task)
        task.add_done_callback(self._on_claim_done)
        return task

    def _on_claim_done(self, claim: asyncio.Task[Any]) -> None:
        self._claim_tasks.discard(claim)
        error = None if claim.cancelled() else claim.exception()
        if isinstance(error, STORE_UNAVAILABLE):
            # Nothing was claimed. The queue is on disk and can wait.
            if Pause.STORE not in self._pauses:
                self._begin_pause(Pause.STORE, STORE_RETRY_INTERVAL)
        elif error is not None:
            self._on_failure(error)

    def _begin_pause(self, pause: Pause, span: timedelta) -> None:
        self._pauses.add(pause)
        asyncio.get_running_loop().call_later(span.total_seconds(), self._end_pause, pause)

    def _end_pause(self, pause: Pause) -> None:
        self._pauses.discard(pause)
        self.wake()

    async def _claim_ready(self) -> None:
        """Claim the pending inits, and ready jobs for the free workers."""
        self._claim_scheduled = False
        if self._stopped.is_set() or Pause.RESOURCES in self._pauses or not self._claim_needed:
            return
        if not self._may_claim():
            return
        for plugin, job_id in self._init_jobs.items():
            if job_id not in self._executing:
                self._start_claim(self._claim_init(plugin, job_id))
        workers = self._free_workers()
        if workers <= 0 and self._reserved:
            return  # The claims in flight may return fewer jobs than they reserve; then this is repeated.
        self._claim_needed = False
        if workers <= 0:
            return
        self._reserved += workers
        try:
            claims = await self._store.claim(owner=self._owner, caps=self._caps(), limit=workers, lease=LEASE)
        finally:
            self._reserved -= workers
        self._launch(claims)
        # A claim that reached its limit may have left ready jobs, and jobs may have come during the claim.
        if self._claim_needed or len(claims) == workers:
            self.wake()

    async def _claim_init(self, plugin: str, job_id: str) -> None:
        self._launch(await self._store.claim_by_id([job_id], owner=self._owner, lease=LEASE))
        if job_id not in self._executing and self._init_jobs.get(plugin) == job_id:
            job = await self._store.get_job(job_id)
            if job is not None and job.status not in TERMINAL:
                return  # Another node runs the init.
            # The init has ended: on another node, or by a cancel or a purge before it was claimed.
            del self._init_jobs[plugin]
            self.wake()

    async def _claim_outside_queue(self, job: NewJob, limit: int | None) -> bool:
        claims = await self._store.enqueue_and_claim(job, owner=self._owner, lease=LEASE, limit=limit)
        self._outside_queue.update(claim.job.id for claim in claims)
        self._launch(claims)
        return bool(claims)

    def _free_workers(self) -> int:
        """Return the number of workers without a job, less those that claims in flight are for."""
        busy = len(self._executing) - len(self._outside_queue) - len(self._settling)
        return self._snapshot().max_workers - busy - self._reserved

    def _caps(self) -> Caps:
        """Return the limits of the next claim: 0 for plugins that are paused or have a pending init."""
        snapshot = self._snapshot()
        if self._caps_cache is None or self._caps_cache[0] is not snapshot:
            plugin_caps = {
                name: plugin.parallelism_limit
                for name, plugin in snapshot.plugins.items()
                if plugin.parallelism_limit is not None
            }
            caps = Caps(workers=snapshot.max_workers, plugins=plugin_caps)
            if self._store.cluster is not None:
                plugins = frozenset((*plugins_run_here(snapshot), EXEC_PLUGIN))
                caps = replace(caps, claimable=plugins, node=node_name(snapshot))
            self._caps_cache = (snapshot, caps)
        caps = self._caps_cache[1]
        paused = dict.fromkeys((*self._init_jobs, *self._paused_plugins), 0)
        return replace(caps, plugins={**caps.plugins, **paused}) if paused else caps

    # -- executions

    def _launch(self, claims: tuple[ClaimedJob, ...]) -> None:
        # Read now: in the next iteration another configuration may be active, for whose inits these jobs have
        # not waited.
        snapshot = self._snapshot()
        for claim in claims:
            self._executing.add(claim.job.id)
            task = asyncio.create_task(self._run_execution(claim, snapshot), name=f"job {claim.job.id}")
            self._executions.add(task)
            task.add_done_callback(self._executions.discard)

    async def _run_execution(self, claim: ClaimedJob, snapshot: Snapshot) -> None:
        job = claim.job
        try:
            await self._execute(
                claim,
                snapshot,
                partial(self._on_result, job.id),
                partial(self._on_resources_exhausted, job.id),
            )
        except ResultNotStoredError:
            pass  # The job stays `running` in the store; the next start recovers it.
        except Exception as error:  # noqa: BLE001 - nothing awaits this task
            self._on_failure(error)
        finally:
            self._executing.discard(job.id)
            self._outside_queue.discard(job.id)
            is_requeued = job.id in self._requeued
            self._requeued.discard(job.id)
            if not is_requeued:
                self._failed_starts = 0
            if job.id in self._settling:
                self._settling.discard(job.id)  # Its worker was freed, and a claim made, by `_on_result`.
            else:
                self.wake()
            if self._init_jobs.get(job.plugin) == job.id:
                if not is_requeued:
                    del self._init_jobs[job.plugin]
                self.wake()

    def _on_result(self, job_id: str) -> None:
        """Count the worker as free, because the result of its job is about to be handed to the store."""
        if job_id not in self._outside_queue:
            self._settling.add(job_id)
            self.wake()

    def _on_resources_exhausted(self, job_id: str) -> None:
        """Claim nothing for a while, because a process could not be started for lack of resources.

        The pause doubles until an execution ends in another way.
        """
        self._requeued.add(job_id)
        if Pause.RESOURCES not in self._pauses:
            span = min(FIRST_RESOURCE_PAUSE * 2**self._failed_starts, MAX_RESOURCE_PAUSE)
            self._failed_starts = min(self._failed_starts + 1, _MAX_FAILED_STARTS)
            self._begin_pause(Pause.RESOURCES, span)
