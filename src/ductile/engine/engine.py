"""The engine: its parts put together, and its life from recovery to the last result on disk."""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import AbstractContextManager
from datetime import datetime, timedelta
from random import Random
from typing import Any, TypeVar

from ductile import __version__
from ductile.config.snapshot import Snapshot
from ductile.core.jobs.model import Job, JobReason, JobStatus, NewJob
from ductile.core.json import JsonObject
from ductile.engine.clock import Clock
from ductile.engine.config_record import init_of, record_config
from ductile.engine.dispatcher import Dispatcher
from ductile.engine.executor import Executor, ProcessDefaults
from ductile.engine.maintenance import Maintenance
from ductile.engine.notifications import JobNotifications, SettlementCallbacks, refusal_signal
from ductile.engine.ownership.process_identity import make_identity
from ductile.engine.recovery import recover
from ductile.engine.reload.drain import Drain, draining_error
from ductile.engine.reload.plan import ListenerSwitch, NoListeners, ReloadPlan, plan_reload
from ductile.engine.results import EngineStatus, ReloadResult
from ductile.engine.schedules.scheduler import RunNowRefusal, RunNowStarted, Scheduler
from ductile.engine.state_webhooks.client import HttpWebhookClient, WebhookClient
from ductile.engine.state_webhooks.sender import STOP_GRACE_SECONDS, WebhookSender
from ductile.engine.timer_loop import TimerLoop
from ductile.engine.waiters import SyncLimit, Waiters
from ductile.errors import ConflictError, StoreBusyError, StoreFailedError, StoreFullError
from ductile.runner.port import Runner
from ductile.store.model.jobs import InitResult, InitStatus
from ductile.store.model.maintenance import ConfigOrigin
from ductile.store.model.schedules import FireResult, FireStatus, Firing
from ductile.store.model.submission import JobStateChange
from ductile.store.notifier import DeadlineSet, JobsEnqueued, StoreFailed
from ductile.store.port import Store
from ductile.struct import Value, field
from ductile.telemetry.signals import Signal, SignalBus

T = TypeVar("T")

_WHY_NOT_NOW = {
    RunNowRefusal.UNKNOWN_SCHEDULE: "there is no such schedule in force",
    RunNowRefusal.RUNNING: "the previous run of this schedule has not ended",
    RunNowRefusal.OUTSTANDING_POLLS: "as many polls of this plugin as are allowed are queued or running",
}


#: Answers after which the occurrences of a firing are on record.
_ACCOUNTED = frozenset({FireStatus.FIRED, FireStatus.SKIPPED, FireStatus.DEFERRED})


#: What is told of an occurrence that was planned to run, by what came of it.
_SIGNALS = {
    FireStatus.FIRED: Signal.SCHEDULE_FIRED,
    FireStatus.SKIPPED: Signal.SCHEDULE_SKIPPED,
    FireStatus.DEFERRED: Signal.SCHEDULE_DEFERRED,
}


class EngineDeps(Value):
    """Everything the engine does not make itself."""

    store: Store
    runner: Runner
    clock: Clock
    rng: Random
    signals: SignalBus
    environ: Mapping[str, str]
    #: Reads and compiles the configuration again; blocking, raises `ConfigError`.
    load: Callable[[], Snapshot]
    poster: WebhookClient = field(default_factory=HttpWebhookClient)
    listening: ListenerSwitch = NoListeners()
    #: Takes the store's lock file again if it was removed; whether it was.
    renew_lock: Callable[[], bool] = lambda: False


class Engine:
    """Implements `ductile.operations.context.RunningEngine`."""

    def __init__(self, equipment: EngineDeps, snapshot: Snapshot) -> None:
        self._with = equipment
        self._snapshot = snapshot
        self._started_at = equipment.clock.now()
        self._stop_wanted = asyncio.Event()
        self._hurry = asyncio.Event()
        self._failure: BaseException | None = None
        self._ready = False
        self._adopting = asyncio.Lock()
        self._reloads: set[asyncio.Task[ReloadResult]] = set()
        self._shared: dict[str, asyncio.Task[Any]] = {}
        self._waiters = Waiters()
        self._slots = SyncLimit()
        store, clock, signals = equipment.store, equipment.clock, equipment.signals
        self._draining = Drain(
            store, clock, signals, stopping=self._stop_wanted.is_set, reopened=self._move_schedule
        )
        self._upkeep = Maintenance(store, clock, self.snapshot, signals)
        followers = SettlementCallbacks(
            retry_expected=self._expect_retry,
            schedule_moved=self._move_schedule,
            job_ended=self._job_ended,
            short_of_resources=self._rest,
            poll_ended=self._poll_ended,
        )
        # A copy: reading os.environ decodes every variable anew, for each job.
        surroundings = ProcessDefaults(environ=dict(equipment.environ), directory=os.getcwd())  # noqa: PTH109
        self._reporter = JobNotifications(signals, self._waiters, followers)
        self._executor = Executor(store, equipment.runner, self.snapshot, clock, self._reporter, surroundings)
        owner = make_identity(os.uname().nodename)
        self._dispatcher = Dispatcher(
            store, self._executor.execute, self.snapshot, owner=owner, failed=self._fail
        )
        self._releases = TimerLoop(clock, self._release_due)
        self._deadlines = TimerLoop(clock, self._cancel_overdue)
        self._scheduler = Scheduler(
            store,
            clock,
            self.snapshot,
            rng=equipment.rng,
            fired=self._tell_firing,
            stop_job=self._stop_cancelled,
            clock_was_set=self._notice_clock,
            draining=lambda: self._draining.plugins,
        )
        self._deliveries = WebhookSender(
            store, equipment.poster, clock, self.snapshot, signals, equipment.rng
        )

        notifier = store.notifier
        notifier.subscribe(JobsEnqueued, self._on_enqueued)
        notifier.subscribe(DeadlineSet, lambda change: self._deadlines.expect(change.due_at))
        notifier.subscribe(StoreFailed, lambda change: self._fail(change.error))

    # -- what operations ask for

    def snapshot(self) -> Snapshot:
        return self._snapshot

    def wake(self) -> None:
        self._dispatcher.wake()
        self._releases.wake()

    def expect(self) -> None:
        self._dispatcher.expect()

    def _on_enqueued(self, change: JobsEnqueued) -> None:
        self._reporter.submitted(change.results)
        self._dispatcher.on_enqueued(change.results)

    def ended(self, jobs: Sequence[JobStateChange]) -> None:
        self._reporter.ended(jobs)
        # Somebody may have waited for one of them: for its key, its place, or its verdict.
        self._dispatcher.wake()
        self._scheduler.wake()
        self._draining.wake()

    def reschedule(self) -> None:
        self._scheduler.wake()

    def waiting_for(self, job_id: str) -> AbstractContextManager[asyncio.Future[None]]:
        return self._waiters.waiting_for(job_id)

    async def start_beside(self, job: NewJob, *, limit: int | None) -> bool:
        return await self._dispatcher.start_beside(job, limit=limit)

    async def share(self, name: str, make: Callable[[], Coroutine[Any, Any, T]]) -> T:
        task: asyncio.Task[T] | None = self._shared.get(name)
        if task is None:
            task = self._shared[name] = asyncio.create_task(make(), name=name)
            task.add_done_callback(lambda _: self._shared.pop(name, None))
        return await asyncio.shield(task)

    async def resume_schedule(self, plugin: str, schedule_id: str) -> bool:
        return await self._scheduler.resume(plugin, schedule_id)

    @property
    def draining(self) -> frozenset[str]:
        return self._draining.plugins

    async def run_schedule(self, plugin: str, schedule_id: str) -> str:
        if plugin in self._draining.plugins:
            raise draining_error(plugin)
        answer = await self._scheduler.run_now(plugin, schedule_id)
        if isinstance(answer, RunNowStarted):
            return answer.job_id
        raise ConflictError(_WHY_NOT_NOW[answer], details={"reason": answer})

    async def end_running(self, job_id: str) -> None:
        self._with.signals.emit(Signal.JOB_CANCELLING, job_id=job_id)
        await self._stop_cancelled(job_id)

    async def _stop_cancelled(self, job_id: str) -> None:
        """Stop the execution that was cancelled, if it still runs, and no later one of the same job."""
        job = await self._cancelled_execution(job_id)
        if job is None:
            return
        self._executor.stop(job)
        after = await self._cancelled_execution(job_id)
        if after is None or after.execution != job.execution:
            self._executor.forget(job)

    async def _cancelled_execution(self, job_id: str) -> Job | None:
        job = await self._with.store.job(job_id)
        if job is None or job.status is not JobStatus.RUNNING or job.cancel_requested_at is None:
            return None
        return job

    def stop(self) -> None:
        """Stop in good order; asked a second time, at once."""
        if self._stop_wanted.is_set():
            self._hurry.set()
        self._stop_wanted.set()
        self._draining.wake()

    @property
    def stopping(self) -> bool:
        return self._stop_wanted.is_set()

    def status(self) -> EngineStatus:
        uptime = self._with.clock.now() - self._started_at
        return EngineStatus(
            pid=os.getpid(),
            version=__version__,
            uptime_seconds=round(uptime.total_seconds(), 1),
            config=self._snapshot.fingerprint,
            ready=self._ready,
            stopping=self.stopping,
            waiting_callers=len(self._waiters),
        )

    async def reload(self, drain: timedelta | None = None) -> ReloadResult:
        """Switch to the configuration on disk, or raise and leave everything as it is.

        With `drain`, plugins that it removes run dry first, for at most so long. A caller who goes away
        meanwhile abandons the drain, and with it the reload.
        """
        if drain is None:
            return await asyncio.shield(self._reload_in_background())
        with self._draining.begin():
            until = self._with.clock.now() + drain
            drained: frozenset[str] = frozenset()
            try:
                while late := frozenset((await self._plan_reload()).removed) - drained:
                    await self._draining.run_dry(late, until=until)
                    drained |= late
            except BaseException:
                self._draining.reopen()
                raise
            switching = self._reload_in_background(drained=drained)
            switching.add_done_callback(lambda _: self._draining.reopen())
            try:
                return await asyncio.shield(switching)
            except asyncio.CancelledError:
                # The caller has gone. Another drain may begin only when this switch has ended.
                await asyncio.wait({switching})
                raise

    async def drain(self, plugins: Sequence[str], longest: timedelta) -> None:
        """Let these plugins run dry. They take no jobs until a reload removes them, or a minute is over."""
        with self._draining.begin():
            try:
                await self._draining.run_dry(frozenset(plugins), until=self._with.clock.now() + longest)
            except BaseException:
                self._draining.reopen()
                raise
            self._draining.hold()

    async def try_reload(self) -> ReloadResult:
        plan = await self._plan_reload()
        await self._with.listening.check(plan.new)
        work = await self._with.store.pending_work(plan.removed)
        return plan.result({one.plugin: one.queued for one in work}, {one.plugin: one.runs for one in work})

    async def _plan_reload(self) -> ReloadPlan:
        new = await asyncio.to_thread(self._with.load)
        return plan_reload(self._snapshot, new)

    def _reload_in_background(self, *, drained: frozenset[str] | None = None) -> asyncio.Task[ReloadResult]:
        # A task of its own: a caller who goes away must not leave it between the store and here.
        task = asyncio.create_task(self._reload_now(drained), name="reload")
        self._reloads.add(task)
        task.add_done_callback(self._reloads.discard)
        return task

    async def _reload_now(self, drained: frozenset[str] | None = None) -> ReloadResult:
        async with self._adopting:
            try:
                plan = await self._plan_reload()
                self._refuse_undrained(plan, drained)
                runs = {one.plugin: one.runs for one in await self._with.store.pending_work(plan.removed)}
                async with self._with.listening.switched_to(plan.new):
                    await self._adopt(plan.new, ConfigOrigin.RELOAD)
            except Exception as error:
                self._with.signals.emit(Signal.CONFIG_REFUSED, str(error) or type(error).__name__)
                raise
            if drained is not None:
                self._draining.finish(drained)
            ended = await self._end_removed()
            self._scheduler.wake()
            self._dispatcher.wake()
            return plan.result(ended, runs)

    def _refuse_undrained(self, plan: ReloadPlan, drained: frozenset[str] | None) -> None:
        """A plugin that a drain waits for is not disabled by another reload; nor one that came to it late."""
        removed = frozenset(plan.removed)
        wrong = removed & self._draining.plugins if drained is None else removed - drained
        if wrong:
            names = " and ".join(sorted(wrong))
            if drained is None:
                raise ConflictError(
                    f"a drain of {names} is under way, and this reload would end its jobs",
                    hint="Wait for it, or end the command that waits for it (Ctrl-C).",
                    details={"draining": sorted(self._draining.plugins)},
                )
            raise ConflictError(
                f"the configuration was changed during the drain, and now removes {names} as well",
                hint="Run `ductile reload --drain` again.",
            )

    # -- life

    async def run(self, ready: Callable[[], None]) -> None:
        """From recovery until stopped. Raises what made it fail, if something did."""
        await self._with.store.check_files()
        await recover(
            self._with.store,
            self._snapshot.rules,
            self._with.signals,
            self._waiters,
            is_stopping=self._stop_wanted.is_set,
        )
        if not self._stop_wanted.is_set():
            async with self._adopting:  # the socket is open already: somebody may ask for a reload
                await self._adopt(self._snapshot, ConfigOrigin.START)
                await self._end_removed()
        if self._stop_wanted.is_set():
            # Asked to stop before anything was started: what was not put in order is found by the next start.
            self._with.signals.emit(Signal.SERVICE_STOPPING, data={"running": 0})
            self._waiters.close()
        else:
            await self._serve(ready)
        if self._failure is not None:
            raise self._failure

    async def _serve(self, ready: Callable[[], None]) -> None:
        services = {
            name: asyncio.create_task(service, name=name)
            for name, service in (
                ("dispatcher", self._dispatcher.run()),
                ("releases", self._releases.run()),
                ("deadlines", self._deadlines.run()),
                ("scheduler", self._scheduler.run()),
                ("pruning", self._upkeep.prune_forever()),
                ("indexing", self._upkeep.index_forever()),
                ("deliveries", self._deliveries.run()),
                ("store watch", self._watch_store()),
            )
        }
        for service in services.values():
            service.add_done_callback(self._service_ended)
        self._dispatcher.wake()
        self._ready = True
        ready()
        await self._stop_wanted.wait()
        await self._wind_down(services)

    async def _adopt(self, snapshot: Snapshot, origin: ConfigOrigin) -> None:
        """Put a configuration in force: on disk first, with its inits, and only then here.

        If the store cannot take it, nothing has changed.
        """
        now, rng = self._with.clock.now(), self._with.rng
        found = (init_of(plugin, now=now, rng=rng) for plugin in snapshot.plugins.values())
        inits = tuple(init for init in found if init is not None)
        # Their jobs wait for the inits from the moment those are on disk, which is before we hear of it.
        self._dispatcher.hold(init.key.plugin for init in inits)
        try:
            answers = await record_config(self._with.store, snapshot, origin, inits)
            self._snapshot = snapshot
            for init, answer in zip(inits, answers, strict=True):
                self._follow_init(init.key.plugin, answer)
        finally:
            self._dispatcher.hold()
        self._tell_config(snapshot, origin)

    def _follow_init(self, plugin: str, answer: InitResult) -> None:
        """Once for each version of a plugin and its configuration; its jobs wait for it."""
        if answer.status is InitStatus.PENDING and answer.job_id is not None:
            self._dispatcher.initialise(plugin, answer.job_id)
        elif answer.status is InitStatus.FAILED:
            self._with.signals.emit(Signal.PLUGIN_INIT_FAILED, answer.error, plugin=plugin)

    def _tell_config(self, snapshot: Snapshot, origin: ConfigOrigin) -> None:
        signals = self._with.signals
        signals.emit(Signal.CONFIG_LOADED, data={"fingerprint": snapshot.fingerprint, "origin": origin})
        for problem in snapshot.warnings:
            signals.emit(
                Signal.CONFIG_WARNING, problem.message, data={"place": problem.place, "key": problem.key}
            )
        for plugin in snapshot.refused:
            reason = plugin.refused.reason if plugin.refused else ""
            signals.emit(Signal.PLUGIN_REFUSED, reason, plugin=plugin.name)

    async def _end_removed(self) -> Counter[str]:
        """End what waits for plugins that are gone; how many jobs of each.

        What a full store does not let us end, its claim does.
        """
        snapshot = self._snapshot
        ended = Counter[str]()
        active = [name for name, plugin in snapshot.plugins.items() if plugin.enabled]
        more = True
        try:
            while more and not self._stop_wanted.is_set():
                moved = await self._with.store.end_queued(
                    JobReason.PLUGIN_REMOVED, snapshot.rules, plugins=active, keep=True
                )
                self.ended(moved.jobs)
                ended.update(job.plugin for job in moved.jobs if job.reason is JobReason.PLUGIN_REMOVED)
                more = moved.more
        except (StoreFullError, StoreBusyError) as error:
            self._with.signals.emit(refusal_signal(error), error.message)
        return ended

    async def _wind_down(self, services: Mapping[str, asyncio.Task[None]]) -> None:
        """Stop in stages: nothing new, time to finish, an end to what does not, and all of it on disk."""
        signals = self._with.signals
        signals.emit(Signal.SERVICE_STOPPING, data={"running": self._dispatcher.running})
        # A schedule that falls due now is for the next start: nothing could run, and `if_running: cancel`
        # would end a job that still has its time to finish.
        self._scheduler.stop()
        self._dispatcher.stop()
        # They end by themselves: what is under way is on disk soon, and must be run or handed back.
        await asyncio.wait({services["scheduler"], services["dispatcher"]})
        grace = self._snapshot.service.shutdown_grace.total_seconds()
        if not await self._drain(0 if self._failure is not None else grace):
            self._executor.stop_all(at_once=self._hurry.is_set())
            if not await self._drain(grace=None):
                self._executor.stop_all(at_once=True)
                await self._dispatcher.drain(None)
        await self._deliveries.stop(0 if self._hurry.is_set() else STOP_GRACE_SECONDS)
        for service in services.values():
            service.cancel()
        await asyncio.gather(*services.values(), return_exceptions=True)
        self._waiters.close()

    async def _drain(self, grace: float | None) -> bool:
        """Whether everything ended in time; being hurried ends the waiting."""
        drained = asyncio.create_task(self._dispatcher.drain(grace))
        hurried = asyncio.create_task(self._hurry.wait())
        await asyncio.wait({drained, hurried}, return_when=asyncio.FIRST_COMPLETED)
        hurried.cancel()
        if not drained.done():
            drained.cancel()
            return False
        return drained.result()

    # -- what the parts tell each other

    def _service_ended(self, service: asyncio.Task[None]) -> None:
        if not service.cancelled() and (error := service.exception()) is not None:
            self._fail(error)

    def _fail(self, error: BaseException) -> None:
        """A part failed: stop everything. What is on disk is whole, and the next start goes on from it."""
        if self._failure is None:
            self._failure = error
            signal = Signal.STORE_FAILED if isinstance(error, StoreFailedError) else Signal.SERVICE_FAILED
            self._with.signals.emit(signal, str(error) or type(error).__name__)
        self._stop_wanted.set()

    async def _watch_store(self) -> None:
        """Look at the store's files with every tick: an idle daemon makes no commit that would do it."""
        never = asyncio.Event()
        while True:
            await self._with.store.check_files()
            if self._with.renew_lock():
                self._with.signals.emit(Signal.STORE_LOCK_RENEWED)
            await self._with.clock.wait(self._with.clock.now() + self._snapshot.service.tick_interval, never)

    async def _release_due(self) -> datetime | None:
        """Let jobs whose retry time has come move on."""
        released = await self._with.store.release_due()
        if released.count:
            self._dispatcher.wake()
        return released.next_due_at

    async def _cancel_overdue(self) -> datetime | None:
        """End pipeline runs that were to be cancelled when their time is up."""
        overdue = await self._with.store.cancel_overdue(self._snapshot.rules)
        for cancelling in overdue.cancelled:
            for job_id in cancelling.stopping:
                await self.end_running(job_id)
            self.ended(cancelling.ended)
        return overdue.next_due_at

    def waiting_slot(self) -> AbstractContextManager[None]:
        return self._slots.take(self._snapshot.api.max_concurrent_sync)

    def _rest(self, job_id: str) -> None:
        self._dispatcher.rest(job_id)

    def _job_ended(self) -> None:
        self._upkeep.job_ended()
        self._draining.wake()

    def _expect_retry(self, due_at: datetime) -> None:
        self._releases.expect(due_at)

    def _poll_ended(self, plugin: str) -> None:
        self._scheduler.poll_ended(plugin)

    def _move_schedule(self) -> None:
        self._scheduler.wake()

    def _tell_firing(self, firing: Firing, report: FireResult) -> None:
        answer = report.answer
        if answer is FireStatus.FIRED:
            for job in (firing.job, *firing.followers):
                if job is not None:
                    self._with.signals.emit(
                        Signal.JOB_ACCEPTED, plugin=job.plugin, job_id=job.id, data={"command": job.command}
                    )
            self._dispatcher.wake()
        if report.ended:
            self.ended(report.ended)
        if answer not in _ACCOUNTED or (answer is FireStatus.DEFERRED and firing.was_deferred):
            return
        for occurrence in firing.occurrences:
            planned = occurrence.job_id is not None
            signal = _SIGNALS[answer] if planned else Signal.SCHEDULE_SKIPPED
            data: JsonObject = {"schedule": occurrence.schedule_id, "count": occurrence.count}
            if (reason := (report.reason if planned else None) or occurrence.reason) is not None:
                data["reason"] = reason
            self._with.signals.emit(
                signal,
                plugin=occurrence.plugin,
                job_id=occurrence.job_id if signal is Signal.SCHEDULE_FIRED else None,
                data=data,
            )

    def _notice_clock(self) -> None:
        self._with.signals.emit(Signal.CLOCK_JUMPED)
        self._releases.wake()
        self._deadlines.wake()
        self._deliveries.wake()
