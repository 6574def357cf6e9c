"""The reloader: holds the active configuration and switches to another one, after a drain if requested.

A reload and its dry run use the same plan, `plan_reload`, so that they cannot differ.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from random import Random
from types import MappingProxyType
from typing import Self

from ductile.config.history.seal_log import configuration_id
from ductile.config.snapshot import PluginInstance, Snapshot
from ductile.core.ids import make_id, make_trace_id
from ductile.core.jobs.model import JobReason, NewJob, SubmittedBy
from ductile.core.json import JsonObject
from ductile.core.scripts import EXEC_PLUGIN
from ductile.engine.clock import STORE_UNAVAILABLE
from ductile.engine.deps import EngineDeps
from ductile.engine.dispatcher import Dispatcher
from ductile.engine.job_signals import JobSignals, unavailable_signal
from ductile.engine.membership import node_name
from ductile.engine.reload.drain import Drain
from ductile.engine.reload.effects import (
    Effects,
    NameChanges,
    compare_schedules,
    compare_snapshots,
    enabled_plugins,
)
from ductile.engine.reload.tokens import with_token_of, without_token
from ductile.engine.schedules.entries import entries_for
from ductile.errors import ConfigError, ConflictError, Problem
from ductile.store.model.jobs import InitKey, InitResult, InitStatus, NewInit
from ductile.store.model.maintenance import NO_CAUSE, ConfigOrigin, LoadCause, PluginVersion
from ductile.store.port import Store
from ductile.struct import Value, replace
from ductile.telemetry.signals import Signal

_RELOAD = LoadCause(command="reload")


class RemovedPluginWork(Value):
    """Work that needed a plugin which is no longer configured or enabled."""

    plugin: str
    #: Queued jobs that ended, or would end, as dead (`plugin_removed`).
    jobs: int
    #: Pipeline runs that still use it.
    runs: int


class ReloadResult(Value):
    """The changes of a reload, made or planned."""

    #: The fingerprint of the new configuration.
    config: str
    effects: Effects
    ends: tuple[RemovedPluginWork, ...]
    warnings: tuple[Problem, ...]

    def with_work(self, jobs: Mapping[str, int], runs: Mapping[str, int]) -> Self:
        """Add the jobs and runs that need a removed plugin, counted by its name."""
        work = (
            RemovedPluginWork(plugin=name, jobs=jobs.get(name, 0), runs=runs.get(name, 0))
            for name in sorted({*self.effects.plugins.removed, *jobs})
        )
        return replace(self, ends=tuple(end for end in work if end.jobs or end.runs))


class Reloader:
    def __init__(
        self,
        deps: EngineDeps,
        snapshot: Snapshot,
        dispatcher: Dispatcher,
        drain: Drain,
        job_signals: JobSignals,
        *,
        is_stopping: Callable[[], bool],
        on_switched: Callable[[], None],
        started_at: datetime,
    ) -> None:
        """`on_switched` is called after each reload: schedules may have changed. `started_at` is the start of
        the daemon, from which `after` schedules count.
        """
        #: The active configuration.
        self.snapshot = snapshot
        self._deps = deps
        self._dispatcher = dispatcher
        self._drain = drain
        self._job_signals = job_signals
        self._is_stopping = is_stopping
        self._on_switched = on_switched
        self._started_at = started_at
        self._switching = asyncio.Lock()
        self._tasks: set[asyncio.Task[ReloadResult]] = set()
        self._token_tasks: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Store the configuration that the daemon starts with, and end jobs of plugins it does not have."""
        async with self._switching:  # The control socket is open already: a reload may be requested.
            await self._activate(self.snapshot, ConfigOrigin.START)
            await self._end_removed()

    async def reload(
        self,
        drain: timedelta | None = None,
        *,
        expected: str | None = None,
        cause: LoadCause = _RELOAD,
    ) -> ReloadResult:
        """Switch to the configuration on disk, or raise and change nothing. `cause` is recorded with it.

        `expected` is the fingerprint of the configuration that the caller was shown: no other one is loaded.
        With `drain`, plugins that it removes finish their accepted work first, within this time. A caller
        that is cancelled meanwhile abandons the drain and the reload.
        """
        if drain is None:
            return await asyncio.shield(self._start_switch(expected=expected, cause=cause))
        with self._drain.exclusive():
            until = self._deps.clock.now() + drain
            drained: frozenset[str] = frozenset()
            try:
                # Repeated: the configuration may be changed during the drain and remove more plugins.
                while removed := frozenset((await self._plan())[1].effects.plugins.removed) - drained:
                    await self._drain.drain(removed, until=until)
                    drained |= removed
            except BaseException:
                self._drain.abandon()
                raise
            switch = self._start_switch(drained, expected=expected, cause=cause)
            switch.add_done_callback(lambda _: self._drain.abandon())
            try:
                return await asyncio.shield(switch)
            except asyncio.CancelledError:
                # The caller was cancelled. Another drain may begin only when this switch has ended.
                await asyncio.wait({switch})
                raise

    def reload_in_background(self) -> None:
        """Reload on SIGHUP, which has no caller to answer; `config.refused` is emitted with the error."""
        # Without a reader of its exception, asyncio would report the task as a bug.
        switch = self._start_switch(cause=LoadCause(command="signal"))
        switch.add_done_callback(lambda task: task.cancelled() or task.exception())

    async def preview(self) -> ReloadResult:
        """Return the changes that a reload would make. Raises the errors that it would raise."""
        return await self._preview(await asyncio.to_thread(self._deps.load))

    async def preview_unsealed(
        self, overlay: Mapping[Path, bytes | None] = MappingProxyType({})
    ) -> tuple[Snapshot, ReloadResult]:
        """Return the configuration on disk as if it were sealed, and the changes of a reload to it.

        `overlay` replaces contents of files.
        """
        new = await self.load_unsealed(overlay)
        return new, await self._preview(new)

    async def load_unsealed(self, overlay: Mapping[Path, bytes | None] = MappingProxyType({})) -> Snapshot:
        """Return the configuration on disk as if it were sealed. Raises `ConfigError`."""
        load = self._deps.load_unsealed
        return await asyncio.to_thread(self._deps.load if load is None else partial(load, overlay))

    async def _preview(self, new: Snapshot) -> ReloadResult:
        planned = await self._plan_for(new)
        await self._deps.listeners.check(new)
        work = await self._deps.store.pending_work(planned.effects.plugins.removed)
        queued = {plugin_work.plugin: plugin_work.queued for plugin_work in work}
        runs = {plugin_work.plugin: plugin_work.runs for plugin_work in work}
        return planned.with_work(queued, runs)

    async def check_disk(self) -> None:
        """Load the configuration on disk without using it. Raises `ConfigError` if it cannot be used."""
        await asyncio.to_thread(self._deps.load)

    async def switch_token(self, name: str, *, revoked: bool = False) -> None:
        """Take the token of this name from the configuration on disk, and nothing else of it.

        A revoked token is refused from now on, even if the configuration on disk or the store cannot be used.
        For other tokens, raises `ConfigError` if the configuration on disk cannot be used.
        """
        # A separate task: a cancelled caller must not stop it after the commit and before its effects.
        task = asyncio.create_task(self._switch_token(name, revoked=revoked), name="token switch")
        self._token_tasks.add(task)
        task.add_done_callback(self._token_tasks.discard)
        await asyncio.shield(task)

    async def _switch_token(self, name: str, *, revoked: bool) -> None:
        async with self._switching:
            if revoked:
                self.snapshot = without_token(self.snapshot, name)
            try:
                disk = await asyncio.to_thread(self._deps.load)
            except ConfigError:
                if not revoked:
                    raise
                new = self.snapshot
            else:
                new = with_token_of(self.snapshot, disk, name)
                new = disk if changes_nothing(new, disk) else new
            async with self._deps.listeners.switched_to(new):
                await self._activate(new, ConfigOrigin.RELOAD, LoadCause(command="token"))

    async def drain(self, plugins: Sequence[str], time_limit: timedelta) -> None:
        """Let plugins finish their accepted work. They take no new jobs until a reload, or for a minute."""
        with self._drain.exclusive():
            try:
                await self._drain.drain(frozenset(plugins), until=self._deps.clock.now() + time_limit)
            except BaseException:
                self._drain.abandon()
                raise
            self._drain.abandon_later()

    async def _plan(self) -> tuple[Snapshot, ReloadResult]:
        """Return the configuration on disk, and the changes of a reload to it."""
        new = await asyncio.to_thread(self._deps.load)
        return new, await self._plan_for(new)

    async def _plan_for(self, new: Snapshot) -> ReloadResult:
        planned, old = plan_reload(self.snapshot, new), self.snapshot
        stored = await self._deps.store.list_schedules()
        entries = entries_for(
            new, stored, now=self._deps.clock.now(), started_at=self._started_at, rng=self._deps.rng
        )
        schedules = compare_schedules(old, new, stored, entries)
        return replace(planned, effects=replace(planned.effects, schedules=schedules))

    def _start_switch(
        self, drained: frozenset[str] | None = None, *, cause: LoadCause, expected: str | None = None
    ) -> asyncio.Task[ReloadResult]:
        # A separate task: a cancelled caller must not stop it after the commit and before its effects.
        task = asyncio.create_task(self._switch(drained, expected, cause), name="reload")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _switch(
        self, drained: frozenset[str] | None, expected: str | None, cause: LoadCause
    ) -> ReloadResult:
        async with self._switching:
            try:
                new, planned = await self._plan()
                removed = planned.effects.plugins.removed
                self._check_switch(new, expected, frozenset(removed), drained)
                work = await self._deps.store.pending_work(removed)
                async with self._deps.listeners.switched_to(new):
                    await self._activate(new, ConfigOrigin.RELOAD, cause)
            except Exception as error:
                self._deps.signals.emit(Signal.CONFIG_REFUSED, str(error) or type(error).__name__)
                raise
            if drained is not None:
                self._drain.complete(drained)
            ended = await self._end_removed(removed)
            self._on_switched()
            runs = {plugin_work.plugin: plugin_work.runs for plugin_work in work}
            return planned.with_work(ended, runs)

    def _check_switch(
        self, new: Snapshot, expected: str | None, removed: frozenset[str], drained: frozenset[str] | None
    ) -> None:
        """Raise `ConflictError` if the new configuration must not become active.

        It is not the one that the caller was shown, or it removes a plugin that another drain waits for or
        that this drain has not included.
        """
        if expected is not None and new.fingerprint != expected:
            raise ConflictError(
                "the configuration was changed after it was shown", hint="Run `ductile apply` again."
            )
        if drained is None and (draining := removed & self._drain.plugins):
            raise ConflictError(
                f"a drain of {' and '.join(sorted(draining))} is under way, "
                "and this reload would end its jobs",
                hint="Wait for it, or end the command that waits for it (Ctrl-C).",
                details={"draining": sorted(self._drain.plugins)},
            )
        if drained is not None and (undrained := removed - drained):
            names = " and ".join(sorted(undrained))
            raise ConflictError(
                f"the configuration was changed during the drain, and now removes {names} as well",
                hint="Run the command with --drain again.",
            )

    async def _activate(self, snapshot: Snapshot, origin: ConfigOrigin, cause: LoadCause = NO_CAUSE) -> None:
        """Store a configuration with its inits, make it active, and report it and its problems.

        Changes nothing if the store cannot take it.
        """
        deps, signals = self._deps, self._deps.signals
        inits = tuple(
            init
            for plugin in snapshot.plugins.values()
            if (init := init_of(plugin, now=deps.clock.now(), rng=deps.rng)) is not None
        )
        # From the commit on, jobs of these plugins must wait for the inits, which the dispatcher knows only
        # after the commit.
        self._dispatcher.pause_plugins(init.key.plugin for init in inits)
        try:
            results = await record_config(deps.store, snapshot, origin, inits, cause)
            self.snapshot = snapshot
            for init, result in zip(inits, results, strict=True):
                if result.status is InitStatus.PENDING and result.job_id is not None:
                    self._dispatcher.set_pending_init(init.key.plugin, result.job_id)
                elif result.status is InitStatus.FAILED:
                    signals.emit(Signal.PLUGIN_INIT_FAILED, result.error, plugin=init.key.plugin)
        finally:
            self._dispatcher.pause_plugins()
        signals.emit(Signal.CONFIG_LOADED, data={"fingerprint": snapshot.fingerprint, "origin": origin})
        for problem in snapshot.warnings:
            data: JsonObject = {"place": problem.location, "key": problem.key}
            signals.emit(Signal.CONFIG_WARNING, problem.message, data=data)
        for plugin in snapshot.refused:
            reason = plugin.refused.reason if plugin.refused else ""
            signals.emit(Signal.PLUGIN_REFUSED, reason, plugin=plugin.name)

    async def _end_removed(self, removed: Sequence[str] = ()) -> Counter[str]:
        """End the queued jobs of plugins that are not active. Returns how many of each plugin.

        In a store that several nodes share, these are only jobs of plugins that this reload has removed and
        that no live node runs. A node that is away for a while may run the others, which wait for it.
        If the store is unavailable now, the executor ends these jobs when they are claimed.
        """
        snapshot, cluster = self.snapshot, self._deps.store.cluster
        plugins, keep = {*enabled_plugins(snapshot), EXEC_PLUGIN}, True
        ended = Counter[str]()
        more = True
        try:
            if cluster is not None:
                others = [node for node in await cluster.nodes() if node.info.name != node_name(snapshot)]
                plugins, keep = set(removed), False
                plugins -= {name for node in others for name in node.info.plugins}
                more = bool(plugins)
            while more and not self._is_stopping():
                batch = await self._deps.store.end_queued(
                    JobReason.PLUGIN_REMOVED, snapshot.policy, plugins=[*plugins], keep=keep
                )
                self._job_signals.emit_ended(batch.jobs)
                ended.update(job.plugin for job in batch.jobs if job.reason is JobReason.PLUGIN_REMOVED)
                more = batch.more
        except STORE_UNAVAILABLE as error:
            self._deps.signals.emit(unavailable_signal(error), error.message)
        return ended


def plan_reload(old: Snapshot, new: Snapshot) -> ReloadResult:
    """Return the changes of a reload, without the work that it ends.

    Raises `ConflictError` if settings differ that only a restart can change.
    """
    if fixed := _fixed_settings(old, new):
        raise ConflictError(
            f"a reload cannot change {' and '.join(fixed)}",
            hint="Restart the daemon: ductile system stop, then ductile system start.",
            details={"settings": fixed},
        )
    before, after = enabled_plugins(old), enabled_plugins(new)
    refused = tuple(
        Problem(
            message=f"{name} cannot run{' any more' if name in before else ''}, and its jobs will fail: "
            f"{plugin.refused.reason}",
            key=f"plugins.{name}",
            hint=plugin.refused.hint,
        )
        for name, plugin in after.items()
        if plugin.refused is not None and (name not in before or before[name].refused is None)
    )
    return ReloadResult(
        config=new.fingerprint,
        effects=compare_snapshots(old, new),
        ends=(),
        warnings=(*refused, *new.warnings),
    )


def changes_nothing(active: Snapshot, disk: Snapshot) -> bool:
    """Return whether a reload from the active configuration to the one on disk would change nothing."""
    if _fixed_settings(active, disk):
        return False
    effects = compare_snapshots(active, disk)
    return effects.plugins == NameChanges() and not effects.settings


def _fixed_settings(old: Snapshot, new: Snapshot) -> list[str]:
    """Return the changed settings that a reload cannot apply: the store, and addresses of open listeners."""
    fixed = []
    if old.state != new.state:
        fixed.append("state")
    if old.api.enabled and new.api.enabled and old.api.listen != new.api.listen:
        fixed.append("api.listen")
    stay_enabled = old.webhooks_enabled and new.webhooks_enabled
    if stay_enabled and old.webhooks_listen != new.webhooks_listen:
        fixed.append("webhooks.listen")
    return fixed


_INIT = "init"


def init_of(plugin: PluginInstance, *, now: datetime, rng: Random) -> NewInit | None:
    """Return the init of a plugin; None if the plugin cannot run or has no `init` command."""
    installed = plugin.installed
    if not plugin.runnable or installed is None or _INIT not in installed.manifest.commands:
        return None
    job = NewJob(
        id=make_id(now, rng),
        plugin=plugin.name,
        command=_INIT,
        submitted_by=SubmittedBy.CORE,
        max_attempts=1,
        trace_id=make_trace_id(rng),
    )
    key = InitKey(plugin=plugin.name, fingerprint=installed.fingerprint, config_hash=plugin.config_hash)
    return NewInit(key=key, job=job)


async def record_config(
    store: Store,
    snapshot: Snapshot,
    origin: ConfigOrigin,
    inits: Sequence[NewInit] = (),
    cause: LoadCause = NO_CAUSE,
) -> Sequence[InitResult]:
    """Store the configuration and its inits in one transaction. Returns a result for each init."""
    versions = {
        name: PluginVersion(
            version=None if plugin.installed is None else plugin.installed.version,
            fingerprint=None if plugin.installed is None else plugin.installed.fingerprint,
            config=plugin.config_hash,
        )
        for name, plugin in snapshot.plugins.items()
    }
    redacted = snapshot.redacted if isinstance(snapshot.redacted, dict) else {}
    files = configuration_id({name: file.hash for name, file in snapshot.checksums.files.items()})
    cause = replace(cause, files=files)
    return await store.record_config(snapshot.fingerprint, origin, redacted, tuple(inits), versions, cause)
