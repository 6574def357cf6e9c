"""The engine: creates its services, connects them, and runs them from recovery to the last stored result."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import datetime
from typing import Any, TypeVar

from ductile import __version__
from ductile.config.snapshot import Snapshot
from ductile.core.jobs.model import Job, JobStatus
from ductile.engine.clock import STORE_UNAVAILABLE, TimerLoop, sleep, start_services
from ductile.engine.deps import EngineDeps, EngineStatus
from ductile.engine.dispatcher import Dispatcher, plugins_run_here
from ductile.engine.executor import Executor
from ductile.engine.job_signals import JobSignals
from ductile.engine.live_output import LiveOutput
from ductile.engine.maintenance import index_forever, prune_forever
from ductile.engine.membership import Membership, machine_id, node_name, shared_fingerprint
from ductile.engine.placement import Placer
from ductile.engine.recovery import kill_orphans, recover
from ductile.engine.reload.drain import Drain
from ductile.engine.reload.reloader import Reloader
from ductile.engine.schedules.scheduler import Scheduler
from ductile.engine.state_webhooks.sender import STOP_GRACE_SECONDS, WebhookSender
from ductile.engine.waiters import Waiters
from ductile.errors import StoreFailedError, TooBusyError
from ductile.runner.orphans import make_identity
from ductile.store.model.nodes import NodeInfo
from ductile.store.notifier import (
    CancelRequested,
    DeadlineSet,
    FailureRecorded,
    JobEnded,
    JobsEnqueued,
    JobsReady,
    LedgerAppended,
    RetryScheduled,
    SchedulesChanged,
    StoreAvailable,
    StoreFailed,
    StoreUnavailable,
)
from ductile.struct import replace
from ductile.telemetry.signals import Signal

T = TypeVar("T")


class Engine:
    """Owns the services that run without being called, and offers those that operations use."""

    def __init__(self, deps: EngineDeps, snapshot: Snapshot) -> None:
        self._deps = deps
        self._started_at = deps.clock.now()
        self._stop_requested = asyncio.Event()
        self._force_stop_requested = asyncio.Event()
        self._failure: BaseException | None = None
        self._ready = False
        self._single_flights: dict[str, asyncio.Task[Any]] = {}
        self._sync_callers = 0
        #: The fingerprint that nodes compare, and the snapshot that it was computed for.
        self._fingerprint: tuple[Snapshot, str] | None = None
        self._stop_tasks: set[asyncio.Task[None]] = set()
        store, clock, signals = deps.store, deps.clock, deps.signals
        self.job_signals = JobSignals(signals)
        self.waiters = Waiters()
        self.live_output = LiveOutput(clock.now)
        self._machine = machine_id()
        self._owner = make_identity(os.uname().nodename)
        self.membership = self._create_membership()
        self._executor = Executor(
            store,
            deps.runner,
            self.snapshot,
            clock,
            self.job_signals,
            deps.environ,
            live_output=self.live_output,
            may_run=self.membership.holds_lease,
        )
        self.dispatcher = Dispatcher(
            store,
            self._executor.execute,
            self.snapshot,
            owner=self._owner,
            on_failure=self._fail,
            may_claim=self.membership.holds_lease,
        )
        self._placer = Placer(
            store, clock, self.snapshot, signals, self.job_signals, is_leader=self.membership.is_leader
        )
        self.scheduler = self._create_scheduler()
        self._drain = Drain(
            store, clock, signals, is_stopping=self._stop_requested.is_set, on_ended=self.scheduler.wake
        )
        self.reloader = Reloader(
            deps,
            snapshot,
            self.dispatcher,
            self._drain,
            self.job_signals,
            is_stopping=self._stop_requested.is_set,
            on_switched=self._on_switched,
            started_at=self.scheduler.started_at,
        )
        self._retries = TimerLoop(clock, self._release_due)
        self._deadlines = TimerLoop(clock, self._cancel_overdue)
        self._notices = TimerLoop(clock, self._send_failure_notice)
        self._sender = WebhookSender(store, deps.webhook_client, clock, self.snapshot, signals, deps.rng)
        self._subscribe()

    def _create_membership(self) -> Membership:
        """Return the membership. It stops services that are created after it, when the lease is lost."""
        store, signals = self._deps.store, self._deps.signals
        return Membership(
            store.cluster,
            self._describe_node,
            signals,
            recover=self._recover,
            kill_orphans=lambda: kill_orphans(store, signals),
            kill_all=lambda: self._executor.kill_all(),  # noqa: PLW0108 - it is created later
            wait_for_executions=lambda: self.dispatcher.wait_for_executions(None),
            stop_jobs=self._stop_jobs,
            on_change=self._on_membership_changed,
            on_heartbeat=lambda heartbeat: self._placer.on_heartbeat(heartbeat),  # noqa: PLW0108 - as above
            on_failure=self._fail,
        )

    def _create_scheduler(self) -> Scheduler:
        return Scheduler(
            self._deps.store,
            self._deps.clock,
            self.snapshot,
            rng=self._deps.rng,
            on_fired=self.job_signals.emit_fired,
            stop_job=self._stop_cancelled,
            on_clock_set=self._on_clock_set,
            draining=lambda: self.draining,
            is_leader=self.membership.is_leader,
        )

    def _subscribe(self) -> None:
        """Connect services to the store's changes. `ductile.store.notifier` lists them all."""
        notifier = self._deps.store.notifier
        notifier.subscribe(JobsEnqueued, lambda change: self.job_signals.emit_submitted(change.results))
        notifier.subscribe(JobsReady, self.dispatcher.on_jobs_ready)
        notifier.subscribe(JobEnded, self.dispatcher.on_job_ended)
        notifier.subscribe(JobEnded, self.waiters.on_job_ended)
        notifier.subscribe(JobEnded, self.scheduler.on_job_ended)
        notifier.subscribe(CancelRequested, self._on_cancel_requested)
        notifier.subscribe(RetryScheduled, lambda change: self._retries.notify_due_at(change.due_at))
        notifier.subscribe(DeadlineSet, lambda change: self._deadlines.notify_due_at(change.due_at))
        notifier.subscribe(FailureRecorded, lambda change: self._notices.notify_due_at(change.due_at))
        notifier.subscribe(SchedulesChanged, lambda _: self.scheduler.wake())
        notifier.subscribe(LedgerAppended, lambda _: self.waiters.on_ledger_advanced())
        notifier.subscribe(StoreFailed, lambda change: self._fail(change.error))
        signals = self._deps.signals
        notifier.subscribe(
            StoreUnavailable, lambda change: signals.emit(Signal.STORE_BUSY, change.error.message)
        )
        notifier.subscribe(StoreAvailable, lambda _: signals.emit(Signal.STORE_AVAILABLE))

    # -- for operations, which also use the public services above

    def snapshot(self) -> Snapshot:
        return self.reloader.snapshot

    @property
    def stopping(self) -> bool:
        return self._stop_requested.is_set()

    @property
    def draining(self) -> frozenset[str]:
        """The plugins that take no new jobs because they are about to be disabled."""
        return self._drain.plugins

    def status(self) -> EngineStatus:
        uptime = self._deps.clock.now() - self._started_at
        return EngineStatus(
            pid=os.getpid(),
            version=__version__,
            uptime_seconds=round(uptime.total_seconds(), 1),
            config=self.snapshot().fingerprint,
            ready=self._ready,
            stopping=self.stopping,
            waiting_callers=len(self.waiters),
        )

    @contextmanager
    def sync_slot(self) -> Iterator[None]:
        """Hold a slot for a caller that waits for a run. Raises `TooBusyError` if none is free."""
        limit = self.snapshot().api.max_concurrent_sync
        if self._sync_callers >= limit:
            raise TooBusyError(
                f"{limit} callers are waiting for synchronous runs, and no more may",
                hint="Try again soon, or send ?async=true and ask for the job later.",
            )
        self._sync_callers += 1
        try:
            yield
        finally:
            self._sync_callers -= 1

    async def single_flight(self, name: str, make: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Run one task of this name at a time. Callers that come while it runs get its result too."""
        task: asyncio.Task[T] | None = self._single_flights.get(name)
        if task is None:
            task = self._single_flights[name] = asyncio.create_task(make(), name=name)
            task.add_done_callback(lambda _: self._single_flights.pop(name, None))
        return await asyncio.shield(task)

    async def stop_job(self, job_id: str) -> None:
        """Stop the process of a job whose cancellation is on disk."""
        self._deps.signals.emit(Signal.JOB_CANCELLING, job_id=job_id)
        await self._stop_cancelled(job_id)

    def stop(self) -> None:
        """Stop in stages: running jobs get their grace. A second call stops at once."""
        if self.stopping:
            self._force_stop_requested.set()
        self._stop_requested.set()
        self._drain.wake()
        self.waiters.on_ledger_advanced()

    # -- the life of the engine

    async def run(self, on_ready: Callable[[], None]) -> None:
        """Recover, serve until stopped, and shut down. Raises the error that ended the engine, if any."""
        await self._deps.store.check_files()  # Raises if the store failed before `_subscribe`.
        async with self.membership.joined():
            await self._recover()
            if not self.stopping:
                await self.reloader.start()
            if not self.stopping:
                await self._serve(on_ready)
            else:
                # No service was started; the next start completes the recovery.
                self._deps.signals.emit(Signal.SERVICE_STOPPING, data={"running": 0})
                self.waiters.close()
        if self._failure is not None:
            raise self._failure

    async def _recover(self) -> None:
        deps = self._deps
        await recover(
            deps.store, self.snapshot().policy, deps.signals, is_stopping=self._stop_requested.is_set
        )
        if deps.store.cluster is None:
            await self._placer.release_all()

    async def _serve(self, on_ready: Callable[[], None]) -> None:
        store, clock = self._deps.store, self._deps.clock
        is_leader = self.membership.is_leader
        services = start_services(
            {
                "dispatcher": self.dispatcher.run(),
                "retries": self._retries.run(),
                "deadlines": self._deadlines.run(),
                "failure notices": self._notices.run(),
                "scheduler": self.scheduler.run(),
                "pruning": prune_forever(store, clock, self.snapshot, self._deps.signals, is_leader),
                "indexing": index_forever(store, clock, is_leader),
                "webhook sender": self._sender.run(),
                "waiters": self.waiters.poll_forever(store, clock),
                "store watch": self._watch_store(),
                "placement": self._placer.run(),
            },
            on_failure=self._fail,
        )
        self._ready = True
        on_ready()
        await self._stop_requested.wait()
        await self._shut_down(services)

    async def _shut_down(self, services: Mapping[str, asyncio.Task[None]]) -> None:
        """Stop in stages: start nothing, let jobs finish, stop those that do not, store every result."""
        self._deps.signals.emit(Signal.SERVICE_STOPPING, data={"running": self.dispatcher.running})
        # The scheduler too: a schedule that is due now could not run, and its `if_running: cancel` would
        # end a job that still has its grace.
        self.scheduler.stop()
        self.dispatcher.stop()
        # Both return when firings and claims under way are on disk; claimed jobs must run or be requeued.
        await asyncio.wait({services["scheduler"], services["dispatcher"]})
        grace = self.snapshot().service.shutdown_grace.total_seconds()
        if not await self._wait_for_executions(0 if self._failure is not None else grace):
            self._executor.stop_all(at_once=self._force_stop_requested.is_set())
            if not await self._wait_for_executions(None):
                self._executor.stop_all(at_once=True)
                await self.dispatcher.wait_for_executions(None)
        await self._sender.stop(0 if self._force_stop_requested.is_set() else STOP_GRACE_SECONDS)
        for service in services.values():
            service.cancel()
        await asyncio.gather(*services.values(), return_exceptions=True)
        self.waiters.close()

    async def _wait_for_executions(self, grace: float | None) -> bool:
        """Return whether all executions ended within `grace`. A second stop request ends the wait."""
        ended = asyncio.create_task(self.dispatcher.wait_for_executions(grace))
        forced = asyncio.create_task(self._force_stop_requested.wait())
        await asyncio.wait({ended, forced}, return_when=asyncio.FIRST_COMPLETED)
        forced.cancel()
        if not ended.done():
            ended.cancel()
            return False
        return ended.result()

    def _fail(self, error: BaseException) -> None:
        """Stop the daemon after an error that no job caused. The next start recovers from the store."""
        if self._failure is None:
            self._failure = error
            signal = Signal.STORE_FAILED if isinstance(error, StoreFailedError) else Signal.SERVICE_FAILED
            self._deps.signals.emit(signal, str(error) or type(error).__name__)
        if not self.stopping:
            self.stop()

    # -- the work of the services

    async def _watch_store(self) -> None:
        """Check the store's files at every tick: an idle daemon makes no commit that would check them."""
        deps = self._deps
        while True:
            with suppress(*STORE_UNAVAILABLE):  # A server that is away comes back.
                await deps.store.check_files()
            if deps.renew_lock():
                deps.signals.emit(Signal.STORE_LOCK_RENEWED)
            await sleep(deps.clock, self.snapshot().service.tick_interval)

    async def _release_due(self) -> datetime | None:
        """Make jobs ready whose retry is due."""
        return (await self._deps.store.release_due()).next_due_at

    async def _cancel_overdue(self) -> datetime | None:
        """Cancel pipeline runs whose deadline has passed."""
        overdue = await self._deps.store.cancel_overdue(self.snapshot().policy)
        for cancelled in overdue.cancelled:
            for job_id in cancelled.stopping:
                await self.stop_job(job_id)
            self.job_signals.emit_ended(cancelled.ended)
        return overdue.next_due_at

    async def _send_failure_notice(self) -> datetime | None:
        """Report recorded failures to `service.on_failure` if a notice is due."""
        policy = self.snapshot().policy
        receiver = policy.on_failure
        if receiver is not None and receiver.plugin in self.draining:
            policy = replace(policy, on_failure=replace(receiver, accepts_jobs=False))
        return await self._deps.store.send_failure_notice(policy)

    async def _stop_cancelled(self, job_id: str) -> None:
        """Stop the cancelled execution of a job, if it still runs, and no later execution."""
        job = await self._cancelled_execution(job_id)
        if job is None:
            return
        self._executor.stop(job)
        current = await self._cancelled_execution(job_id)
        if current is None or current.execution != job.execution:
            self._executor.forget_stop(job)

    def _on_cancel_requested(self, change: CancelRequested) -> None:
        """Stop a job that runs on this node, whichever node accepted its cancellation."""
        if self._executor.is_running(change.job_id):
            self._stop_jobs((change.job_id,))

    def _stop_jobs(self, job_ids: tuple[str, ...]) -> None:
        task = asyncio.create_task(self._stop_cancelled_jobs(job_ids), name="stop cancelled jobs")
        self._stop_tasks.add(task)
        task.add_done_callback(self._stop_tasks.discard)

    async def _stop_cancelled_jobs(self, job_ids: tuple[str, ...]) -> None:
        # If the store is unavailable now, the next heartbeat names the jobs again.
        with suppress(*STORE_UNAVAILABLE):
            for job_id in job_ids:
                await self._stop_cancelled(job_id)

    async def _cancelled_execution(self, job_id: str) -> Job | None:
        """Return the job if it runs and its cancellation was requested; otherwise None."""
        job = await self._deps.store.get_job(job_id)
        if job is None or job.status is not JobStatus.RUNNING or job.cancel_requested_at is None:
            return None
        return job

    def _on_clock_set(self) -> None:
        self._deps.signals.emit(Signal.CLOCK_JUMPED)
        for service in (self._retries, self._deadlines, self._notices, self._sender):
            service.wake()

    def _describe_node(self) -> NodeInfo:
        snapshot = self.snapshot()
        if self._fingerprint is None or self._fingerprint[0] is not snapshot:
            self._fingerprint = (snapshot, shared_fingerprint(snapshot))
        return NodeInfo(
            owner=self._owner,
            name=node_name(snapshot),
            host=os.uname().nodename,
            machine=self._machine,
            version=__version__,
            config=self._fingerprint[1],
            workers=snapshot.max_workers,
            plugins=plugins_run_here(snapshot),
        )

    def _on_membership_changed(self) -> None:
        self.dispatcher.wake()
        self.scheduler.wake()

    def _on_switched(self) -> None:
        """Wake services after a reload: schedules and the receiver of failure notices may have changed."""
        self.scheduler.wake()
        self._notices.wake()
        self.membership.renew_soon()
