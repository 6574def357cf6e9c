"""The reloader: has the active configuration and switches to another one, after a drain if asked.

A reload and its dry run use the same plan, `plan_reload`, so that they cannot differ.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from random import Random
from typing import Self

from ductile.config.snapshot import PluginInstance, Snapshot
from ductile.core.ids import make_id, make_trace_id
from ductile.core.jobs.model import JobReason, NewJob, SubmittedBy
from ductile.core.scripts import EXEC_PLUGIN
from ductile.engine.clock import STORE_UNAVAILABLE
from ductile.engine.deps import EngineDeps
from ductile.engine.dispatcher import Dispatcher
from ductile.engine.job_signals import JobSignals, unavailable_signal
from ductile.engine.reload.drain import Drain
from ductile.engine.reload.tokens import with_token_of, without_token
from ductile.errors import ConfigError, ConflictError, Problem
from ductile.store.model.jobs import InitKey, InitResult, InitStatus, NewInit
from ductile.store.model.maintenance import ConfigOrigin, PluginVersion
from ductile.store.port import Store
from ductile.struct import Value, replace
from ductile.telemetry.signals import Signal


class RemovedPluginWork(Value):
    """Work that needed a plugin which is no longer configured or enabled."""

    plugin: str
    #: Queued jobs that ended, or would end, as dead (`plugin_removed`).
    jobs: int
    #: Pipeline runs that still use it.
    runs: int


class ReloadResult(Value):
    """What a reload changed, or what one would change."""

    #: The fingerprint of the new configuration.
    config: str
    #: Names of plugins.
    added: tuple[str, ...]
    changed: tuple[str, ...]
    removed: tuple[str, ...]
    #: Sections of the configuration, besides `plugins`, that differ.
    settings: tuple[str, ...]
    ends: tuple[RemovedPluginWork, ...]
    warnings: tuple[Problem, ...]

    def with_work(self, jobs: Mapping[str, int], runs: Mapping[str, int]) -> Self:
        """Add the jobs and runs that need a removed plugin, counted by its name."""
        work = (
            RemovedPluginWork(plugin=name, jobs=jobs.get(name, 0), runs=runs.get(name, 0))
            for name in sorted({*self.removed, *jobs})
        )
        return replace(self, ends=tuple(each for each in work if each.jobs or each.runs))


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
    ) -> None:
        """`on_switched` is called after each reload: schedules may have changed."""
        #: The active configuration.
        self.snapshot = snapshot
        self._deps = deps
        self._dispatcher = dispatcher
        self._drain = drain
        self._job_signals = job_signals
        self._is_stopping = is_stopping
        self._on_switched = on_switched
        self._switching = asyncio.Lock()
        self._tasks: set[asyncio.Task[ReloadResult]] = set()
        self._token_tasks: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Store the configuration that the daemon starts with, and end jobs of plugins it does not have."""
        async with self._switching:  # The control socket is open already: a reload may be requested.
            await self._activate(self.snapshot, ConfigOrigin.START)
            await self._end_removed()

    async def reload(self, drain: timedelta | None = None, *, expected: str | None = None) -> ReloadResult:
        """Switch to the configuration on disk, or raise and change nothing.

        `expected` is the fingerprint that it must have: it is what the caller was shown, or nothing changes.
        With `drain`, plugins that it removes finish their accepted work first, within this time. A caller
        that is cancelled meanwhile abandons the drain and the reload.
        """
        if drain is None:
            return await asyncio.shield(self._start_switch(expected=expected))
        with self._drain.exclusive():
            until = self._deps.clock.now() + drain
            drained: frozenset[str] = frozenset()
            try:
                # Repeated: the configuration may be changed during the drain and remove more plugins.
                while removed := frozenset((await self._plan())[1].removed) - drained:
                    await self._drain.drain(removed, until=until)
                    drained |= removed
            except BaseException:
                self._drain.abandon()
                raise
            switch = self._start_switch(drained, expected=expected)
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
        self._start_switch().add_done_callback(lambda task: task.cancelled() or task.exception())

    async def preview(self, *, unsealed: bool = False) -> ReloadResult:
        """Return what a reload would change. Raises what the reload would raise.

        With `unsealed`, as if the files on disk were sealed.
        """
        new, planned = await self._plan(unsealed=unsealed)
        await self._deps.listeners.check(new)
        work = await self._deps.store.pending_work(planned.removed)
        jobs, runs = {one.plugin: one.queued for one in work}, {one.plugin: one.runs for one in work}
        return planned.with_work(jobs, runs)

    async def check_disk(self) -> None:
        """Load the configuration on disk and use nothing of it. Raises `ConfigError` if it cannot be used."""
        await asyncio.to_thread(self._deps.load)

    async def switch_token(self, name: str, *, revoked: bool = False) -> None:
        """Take the token of this name from the configuration on disk, and nothing else of it.

        A revoked one is refused from now on, whatever the disk and the store say. Raises `ConfigError` for
        another one if the configuration on disk cannot be used.
        """
        # A task of its own: a cancelled caller must not stop it between the store and the engine.
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
                new = disk if is_same(new, disk) else new
            async with self._deps.listeners.switched_to(new):
                await self._activate(new, ConfigOrigin.RELOAD)

    async def drain(self, plugins: Sequence[str], longest: timedelta) -> None:
        """Let plugins finish their accepted work. They take no new jobs until a reload, or for a minute."""
        with self._drain.exclusive():
            try:
                await self._drain.drain(frozenset(plugins), until=self._deps.clock.now() + longest)
            except BaseException:
                self._drain.abandon()
                raise
            self._drain.abandon_later()

    async def _plan(self, *, unsealed: bool = False) -> tuple[Snapshot, ReloadResult]:
        """Return the configuration on disk, and what a reload to it changes."""
        load = (self._deps.load_unsealed if unsealed else None) or self._deps.load
        new = await asyncio.to_thread(load)
        return new, plan_reload(self.snapshot, new)

    def _start_switch(
        self, drained: frozenset[str] | None = None, *, expected: str | None = None
    ) -> asyncio.Task[ReloadResult]:
        # A task of its own: a cancelled caller must not stop it between the store and the engine.
        task = asyncio.create_task(self._switch(drained, expected), name="reload")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _switch(self, drained: frozenset[str] | None, expected: str | None) -> ReloadResult:
        async with self._switching:
            try:
                new, planned = await self._plan()
                _refuse_unexpected(new, expected)
                self._check_drained(frozenset(planned.removed), drained)
                work = await self._deps.store.pending_work(planned.removed)
                async with self._deps.listeners.switched_to(new):
                    await self._activate(new, ConfigOrigin.RELOAD)
            except Exception as error:
                self._deps.signals.emit(Signal.CONFIG_REFUSED, str(error) or type(error).__name__)
                raise
            if drained is not None:
                self._drain.complete(drained)
            ended = await self._end_removed()
            self._on_switched()
            return planned.with_work(ended, {one.plugin: one.runs for one in work})

    def _check_drained(self, removed: frozenset[str], drained: frozenset[str] | None) -> None:
        """Raise `ConflictError` if a removed plugin is not drained, or another drain waits for it."""
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
                hint="Run `ductile reload --drain` again.",
            )

    async def _activate(self, snapshot: Snapshot, origin: ConfigOrigin) -> None:
        """Store a configuration with its inits, then use it. Changes nothing if the store cannot take it."""
        deps = self._deps
        found = (init_of(plugin, now=deps.clock.now(), rng=deps.rng) for plugin in snapshot.plugins.values())
        inits = tuple(init for init in found if init is not None)
        # From the commit on, jobs of these plugins must wait for the inits; we resume after the commit.
        self._dispatcher.pause_plugins(init.key.plugin for init in inits)
        try:
            results = await record_config(deps.store, snapshot, origin, inits)
            self.snapshot = snapshot
            for init, result in zip(inits, results, strict=True):
                if result.status is InitStatus.PENDING and result.job_id is not None:
                    self._dispatcher.set_pending_init(init.key.plugin, result.job_id)
                elif result.status is InitStatus.FAILED:
                    deps.signals.emit(Signal.PLUGIN_INIT_FAILED, result.error, plugin=init.key.plugin)
        finally:
            self._dispatcher.pause_plugins()
        self._emit_loaded(snapshot, origin)

    def _emit_loaded(self, snapshot: Snapshot, origin: ConfigOrigin) -> None:
        signals = self._deps.signals
        signals.emit(Signal.CONFIG_LOADED, data={"fingerprint": snapshot.fingerprint, "origin": origin})
        for problem in snapshot.warnings:
            signals.emit(
                Signal.CONFIG_WARNING, problem.message, data={"place": problem.location, "key": problem.key}
            )
        for plugin in snapshot.refused:
            reason = plugin.refused.reason if plugin.refused else ""
            signals.emit(Signal.PLUGIN_REFUSED, reason, plugin=plugin.name)

    async def _end_removed(self) -> Counter[str]:
        """End the queued jobs of plugins that are not active. Returns how many of each plugin.

        If the store cannot take it now, the executor ends these jobs when they are claimed.
        """
        snapshot = self.snapshot
        active = _enabled_plugins(snapshot)
        ended = Counter[str]()
        more = True
        try:
            while more and not self._is_stopping():
                sweep = await self._deps.store.end_queued(
                    JobReason.PLUGIN_REMOVED, snapshot.policy, plugins=[*active, EXEC_PLUGIN], keep=True
                )
                self._job_signals.ended(sweep.jobs)
                ended.update(job.plugin for job in sweep.jobs if job.reason is JobReason.PLUGIN_REMOVED)
                more = sweep.more
        except STORE_UNAVAILABLE as error:
            self._deps.signals.emit(unavailable_signal(error), error.message)
        return ended


def _refuse_unexpected(new: Snapshot, expected: str | None) -> None:
    """Raise `ConflictError` if a configuration is not the one that the caller was shown."""
    if expected is not None and new.fingerprint != expected:
        raise ConflictError(
            "the configuration was changed after it was shown", hint="Run `ductile apply` again."
        )


def plan_reload(old: Snapshot, new: Snapshot) -> ReloadResult:
    """Return what a reload changes, without the work that it ends.

    Raises `ConflictError` if settings differ that only a restart can change.
    """
    if fixed := _fixed_settings(old, new):
        raise ConflictError(
            f"a reload cannot change {' and '.join(fixed)}",
            hint="Restart the daemon: ductile system stop, then ductile system start.",
            details={"settings": fixed},
        )
    before, after = _enabled_plugins(old), _enabled_plugins(new)
    sections_before, sections_after = _sections(old), _sections(new)
    refused = tuple(
        Problem(
            message=f"{name} cannot run any more, and its jobs will fail: {plugin.refused.reason}",
            key=f"plugins.{name}",
            hint=plugin.refused.hint,
        )
        for name, plugin in after.items()
        if plugin.refused is not None and name in before and before[name].refused is None
    )
    return ReloadResult(
        config=new.fingerprint,
        added=tuple(sorted(after.keys() - before.keys())),
        changed=tuple(sorted(name for name in after.keys() & before.keys() if after[name] != before[name])),
        removed=tuple(sorted(before.keys() - after.keys())),
        settings=tuple(name for name in sections_after if sections_after[name] != sections_before[name]),
        ends=(),
        warnings=(*refused, *new.warnings),
    )


def is_same(active: Snapshot, disk: Snapshot) -> bool:
    """Return whether a reload from one to the other would change nothing."""
    if _fixed_settings(active, disk):
        return False
    planned = plan_reload(active, disk)
    return not any((planned.added, planned.changed, planned.removed, planned.settings))


def _sections(snapshot: Snapshot) -> dict[str, object]:
    """Return the compiled content of each section that a reload may change, in the order of the reference."""
    return {
        "service": (snapshot.service, snapshot.timezone, snapshot.max_workers),
        "plugin_roots": snapshot.plugin_roots,
        "routes": snapshot.routes,
        "pipelines": snapshot.pipelines,
        "api": snapshot.api,
        "webhooks": (snapshot.webhooks, snapshot.webhooks_enabled),
        "tokens": (snapshot.tokens, snapshot.secrets),
        "state_webhooks": (snapshot.state_webhooks, snapshot.state_webhook_secret),
        "artifacts": snapshot.artifact_roots,
    }


def _enabled_plugins(snapshot: Snapshot) -> dict[str, PluginInstance]:
    return {name: plugin for name, plugin in snapshot.plugins.items() if plugin.enabled}


def _fixed_settings(old: Snapshot, new: Snapshot) -> list[str]:
    """Return the changed settings that a reload cannot apply: the store, and addresses of open listeners."""
    fixed = []
    if old.state != new.state:
        fixed.append("state")
    if old.api.enabled and new.api.enabled and old.api.listen != new.api.listen:
        fixed.append("api.listen")
    stays = old.webhooks_enabled and new.webhooks_enabled
    if stays and old.webhooks_listen != new.webhooks_listen:
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
    store: Store, snapshot: Snapshot, origin: ConfigOrigin, inits: Sequence[NewInit] = ()
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
    return await store.record_config(snapshot.fingerprint, origin, redacted, tuple(inits), versions)
