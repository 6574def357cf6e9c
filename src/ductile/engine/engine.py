"""The engine: its parts put together, and its life from recovery to the last result on disk (SPEC 4.8)."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import datetime
from random import Random

from ductile import __version__
from ductile.config.snapshot import PluginInstance, Snapshot
from ductile.core.ids import make_id
from ductile.core.jobs import TERMINAL, NewJob, Reason, SubmittedBy
from ductile.core.json_values import JsonObject
from ductile.engine.clock import Clock
from ductile.engine.dispatcher import Dispatcher
from ductile.engine.execution import Executor, Surroundings
from ductile.engine.releases import Releases
from ductile.engine.reloading import ReloadPlan, plan_reload
from ductile.engine.reporting import Followers, Reporter
from ductile.engine.scheduler import Refused, Scheduler, Started
from ductile.engine.survivors import end_survivors
from ductile.engine.upkeep import Upkeep
from ductile.engine.waiters import Waiters
from ductile.errors import ConfigError, ConflictError, StoreFailedError
from ductile.runner.port import Runner
from ductile.store.port import Store
from ductile.store.values import (
    ConfigOrigin,
    Enqueued,
    Firing,
    FiringAnswer,
    InitKey,
    InitStatus,
    MovedJob,
)
from ductile.telemetry.signals import Signal, Signals

_WHY_NOT_NOW = {
    Refused.UNKNOWN_SCHEDULE: "there is no such schedule in force",
    Refused.RUNNING: "the previous run of this schedule has not ended",
    Refused.OUTSTANDING_POLLS: "as many polls of this plugin as are allowed are queued or running",
}


#: Answers after which the occurrences of a firing are on record.
_ACCOUNTED = frozenset({FiringAnswer.FIRED, FiringAnswer.SKIPPED})


@dataclass(frozen=True, slots=True, kw_only=True)
class Equipment:
    """Everything the engine does not make itself."""

    store: Store
    runner: Runner
    clock: Clock
    dice: Random
    signals: Signals
    environ: Mapping[str, str]
    #: Reads and compiles the configuration again; blocking, raises `ConfigError`.
    load: Callable[[], Snapshot]


class Engine:
    """Implements `ductile.operations.desk.RunningEngine`."""

    def __init__(self, equipment: Equipment, snapshot: Snapshot) -> None:
        self._with = equipment
        self._snapshot = snapshot
        self._started_at = equipment.clock.now()
        self._stop_wanted = asyncio.Event()
        self._hurry = asyncio.Event()
        self._failure: BaseException | None = None
        self._reloading = asyncio.Lock()
        self._waiters = Waiters()
        store, clock, signals = equipment.store, equipment.clock, equipment.signals
        self._upkeep = Upkeep(store, clock, self.snapshot, signals)
        followers = Followers(
            retry_expected=self._expect_retry,
            schedule_moved=self._move_schedule,
            job_ended=self._upkeep.job_ended,
        )
        # A copy: reading os.environ decodes every variable anew, for each job.
        surroundings = Surroundings(environ=dict(equipment.environ), directory=os.getcwd())  # noqa: PTH109
        self._reporter = Reporter(signals, self._waiters, followers)
        self._executor = Executor(store, equipment.runner, self.snapshot, clock, self._reporter, surroundings)
        owner = f"{os.uname().nodename}:{os.getpid()}"
        self._dispatcher = Dispatcher(
            store, self._executor.execute, self.snapshot, owner=owner, failed=self._fail
        )
        self._releases = Releases(store, clock, self._dispatcher.wake)
        self._scheduler = Scheduler(
            store,
            clock,
            self.snapshot,
            dice=equipment.dice,
            fired=self._tell_firing,
            stop_job=self._executor.stop,
            clock_was_set=self._notice_clock,
        )

    # -- what operations ask for

    def snapshot(self) -> Snapshot:
        return self._snapshot

    def wake(self) -> None:
        self._dispatcher.wake()
        self._releases.poke()

    def told_of(self, answers: Sequence[Enqueued]) -> None:
        self._reporter.submitted(answers)
        self._dispatcher.wake()

    def ended(self, jobs: Sequence[MovedJob]) -> None:
        for job in jobs:
            data: JsonObject = {"command": job.command, "reason": job.reason}
            self._with.signals.emit(Signal.JOB_DEAD, plugin=job.plugin, job_id=job.id, data=data)
            self._waiters.ended(job.id)
        # Somebody may have waited for one of them: for its key, its place, or its verdict.
        self._dispatcher.wake()
        self._scheduler.poke()

    def reschedule(self) -> None:
        self._scheduler.poke()

    def waiting_for(self, job_id: str) -> AbstractContextManager[asyncio.Future[None]]:
        return self._waiters.waiting_for(job_id)

    async def resume_schedule(self, plugin: str, schedule_id: str) -> bool:
        return await self._scheduler.resume(plugin, schedule_id)

    async def run_schedule(self, plugin: str, schedule_id: str) -> str:
        answer = await self._scheduler.run_now(plugin, schedule_id)
        if isinstance(answer, Started):
            return answer.job_id
        raise ConflictError(_WHY_NOT_NOW[answer], details={"reason": answer})

    async def end_running(self, job_id: str) -> None:
        self._with.signals.emit(Signal.JOB_CANCELLING, job_id=job_id)
        self._executor.stop(job_id)

    def stop(self) -> None:
        """Stop in good order; asked a second time, at once."""
        if self._stop_wanted.is_set():
            self._hurry.set()
        self._stop_wanted.set()

    def status(self) -> JsonObject:
        uptime = self._with.clock.now() - self._started_at
        return {
            "pid": os.getpid(),
            "version": __version__,
            "uptime_seconds": round(uptime.total_seconds(), 1),
            "config": self._snapshot.fingerprint,
            "stopping": self._stop_wanted.is_set(),
        }

    async def reload(self) -> JsonObject:
        """Switch to the configuration on disk, or raise and leave everything as it is (SPEC 10)."""
        async with self._reloading:
            try:
                new = await asyncio.to_thread(self._with.load)
                plan = plan_reload(self._snapshot, new)
                _refuse_fixed(plan)
            except (ConfigError, ConflictError) as error:
                self._with.signals.emit(Signal.CONFIG_REFUSED, error.message)
                raise
            self._snapshot = new
            await self._adopt(ConfigOrigin.RELOAD)
            self._scheduler.poke()
            self._dispatcher.wake()
            return {
                "config": new.fingerprint,
                "added": list(plan.added),
                "changed": list(plan.changed),
                "removed": list(plan.removed),
                "warnings": [problem.message for problem in new.warnings],
            }

    # -- life

    async def run(self, ready: Callable[[], None]) -> None:
        """From recovery until stopped. Raises what made it fail, if something did."""
        await self._recover()
        await self._adopt(ConfigOrigin.START)
        services = [
            asyncio.create_task(service, name=name)
            for name, service in (
                ("dispatcher", self._dispatcher.run()),
                ("releases", self._releases.run()),
                ("scheduler", self._scheduler.run()),
                ("pruning", self._upkeep.prune_forever()),
                ("indexing", self._upkeep.index_forever()),
            )
        ]
        for service in services:
            service.add_done_callback(self._service_ended)
        self._dispatcher.wake()
        ready()
        await self._stop_wanted.wait()
        await self._wind_down(services)
        if self._failure is not None:
            raise self._failure

    async def _recover(self) -> None:
        """End what outlived the last daemon, then put its jobs back (ENGINE 3)."""
        store, signals = self._with.store, self._with.signals
        for survivor in await end_survivors(store.store_id):
            signals.emit(Signal.SURVIVOR_ENDED, job_id=survivor.job_id, data={"pid": survivor.pid})
        while True:
            moved = await store.recover(self._snapshot.rules)
            for job in moved.jobs:
                data: JsonObject = {"status": job.status, "reason": job.reason, "attempt": job.attempt}
                signals.emit(Signal.JOB_RECOVERED, plugin=job.plugin, job_id=job.id, data=data)
                if job.status in TERMINAL:
                    self._waiters.ended(job.id)
            if not moved.more:
                return

    async def _adopt(self, origin: ConfigOrigin) -> None:
        """Make the store follow the snapshot: record it, end jobs of plugins that are gone, begin inits."""
        snapshot, store, signals = self._snapshot, self._with.store, self._with.signals
        shown = snapshot.shown if isinstance(snapshot.shown, dict) else {}
        await store.record_config(snapshot.fingerprint, origin, shown)
        signals.emit(Signal.CONFIG_LOADED, data={"fingerprint": snapshot.fingerprint, "origin": origin})
        for problem in snapshot.warnings:
            signals.emit(Signal.CONFIG_WARNING, problem.message, data={"place": problem.place})
        for plugin in snapshot.refused:
            reason = plugin.refused.reason if plugin.refused else ""
            signals.emit(Signal.PLUGIN_REFUSED, reason, plugin=plugin.name)
        active = [name for name, plugin in snapshot.plugins.items() if plugin.enabled]
        while (
            moved := await store.end_queued(Reason.PLUGIN_REMOVED, snapshot.rules, plugins=active, keep=True)
        ).jobs:
            self.ended(moved.jobs)
        for plugin in snapshot.plugins.values():
            if plugin.runnable and plugin.installed and "init" in plugin.installed.manifest.commands:
                await self._begin_init(plugin)

    async def _begin_init(self, plugin: PluginInstance) -> None:
        """Once for each version of a plugin and its configuration; its jobs wait for it (ENGINE 13)."""
        fingerprint = plugin.installed.fingerprint if plugin.installed else ""
        key = InitKey(plugin=plugin.name, fingerprint=fingerprint, config_hash=plugin.config_hash)
        job = NewJob(
            id=make_id(self._with.clock.now(), self._with.dice),
            plugin=plugin.name,
            command="init",
            submitted_by=SubmittedBy.CORE,
            max_attempts=1,
        )
        answer = await self._with.store.begin_init(key, job)
        if answer.status is InitStatus.PENDING and answer.job_id is not None:
            self._dispatcher.initialise(plugin.name, answer.job_id)
        elif answer.status is InitStatus.FAILED:
            self._with.signals.emit(Signal.PLUGIN_INIT_FAILED, answer.error, plugin=plugin.name)

    async def _wind_down(self, services: list[asyncio.Task[None]]) -> None:
        """Stop in stages: nothing new, time to finish, an end to what does not, and all of it on disk."""
        signals = self._with.signals
        signals.emit(Signal.SERVICE_STOPPING, data={"running": self._dispatcher.running})
        self._dispatcher.stop()
        # It ends by itself: a claim that is under way is on disk soon, and must be run or handed back.
        await asyncio.wait({services[0]})
        grace = self._snapshot.service.shutdown_grace.total_seconds()
        if not await self._drain(0 if self._failure is not None else grace):
            self._executor.stop_all(at_once=self._hurry.is_set())
            if not await self._drain(grace=None):
                self._executor.stop_all(at_once=True)
                await self._dispatcher.drain(None)
        for service in services:
            service.cancel()
        await asyncio.gather(*services, return_exceptions=True)
        self._waiters.everybody()

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

    def _expect_retry(self, due_at: datetime) -> None:
        self._releases.expect(due_at)

    def _move_schedule(self) -> None:
        self._scheduler.poke()

    def _tell_firing(self, firing: Firing, answer: FiringAnswer) -> None:
        if answer is FiringAnswer.FIRED:
            self._dispatcher.wake()
        for occurrence in firing.occurrences if answer in _ACCOUNTED else ():
            skipped = answer is FiringAnswer.SKIPPED or occurrence.job_id is None
            data: JsonObject = {"schedule": occurrence.schedule_id, "count": occurrence.count}
            if occurrence.reason is not None:
                data["reason"] = occurrence.reason
            self._with.signals.emit(
                Signal.SCHEDULE_SKIPPED if skipped else Signal.SCHEDULE_FIRED,
                plugin=occurrence.plugin,
                job_id=None if skipped else occurrence.job_id,
                data=data,
            )

    def _notice_clock(self) -> None:
        self._with.signals.emit(Signal.CLOCK_JUMPED)
        self._releases.poke()


def _refuse_fixed(plan: ReloadPlan) -> None:
    if plan.fixed:
        raise ConflictError(
            f"a reload cannot change {' and '.join(plan.fixed)}",
            hint="Restart the daemon: ductile system stop, then ductile system start.",
            details={"settings": list(plan.fixed)},
        )
