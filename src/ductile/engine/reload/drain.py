"""Drains: before a plugin is disabled, it takes no new jobs and its accepted jobs run.

A drain is not stored. After a crash, as at every start, the configuration on disk decides.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta

from ductile.engine.clock import Clock, sleep
from ductile.errors import ConflictError, TooBusyError
from ductile.store.model.maintenance import PluginWork
from ductile.store.notifier import JobEnded
from ductile.store.port import Store
from ductile.struct import to_builtins
from ductile.telemetry.signals import Signal, SignalBus

#: The shortest and the longest time between two counts of the pending work.
MIN_COUNT_INTERVAL = timedelta(milliseconds=100)
MAX_COUNT_INTERVAL = timedelta(seconds=5)
#: How long a drained plugin takes no jobs, so that its removal can be written and loaded.
KEEP_DRAINING = timedelta(seconds=60)


class Drain:
    """The plugins that take no new jobs. There is one drain at a time."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        signals: SignalBus,
        *,
        is_stopping: Callable[[], bool],
        on_ended: Callable[[], None],
    ) -> None:
        """`on_ended` is called when plugins take jobs again: their schedules may be due."""
        self._store = store
        self._clock = clock
        self._signals = signals
        self._is_stopping = is_stopping
        self._on_ended = on_ended
        self.plugins: frozenset[str] = frozenset()
        self._busy = False
        self._end_timer: asyncio.TimerHandle | None = None
        #: Set when a job has ended, or the daemon stops: the pending work is counted again.
        self._woken = asyncio.Event()

    def wake(self) -> None:
        """Count the pending work now: the daemon is stopping."""
        self._woken.set()

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        """Allow no other drain meanwhile. Raises `ConflictError` if another drain is under way."""
        if self._busy:
            names = " and ".join(sorted(self.plugins)) or "other plugins"
            raise ConflictError(
                f"a drain of {names} is under way",
                hint="Wait for it, or end the command that waits for it (Ctrl-C).",
                details={"draining": sorted(self.plugins)},
            )
        self._busy = True
        try:
            yield
        finally:
            self._busy = False

    async def drain(self, plugins: frozenset[str], *, until: datetime) -> None:
        """Accept no jobs of these plugins and wait until no accepted work needs them.

        Raises `TooBusyError` at `until`, or if the daemon stops. The plugins take no new jobs until the drain
        is completed or abandoned.
        """
        self._cancel_end_timer()
        for plugin in sorted(plugins - self.plugins):
            self._signals.emit(Signal.PLUGIN_DRAINING, plugin=plugin)
        self.plugins |= plugins
        store = self._store
        unsubscribe = store.notifier.subscribe(JobEnded, lambda _: self._woken.set())
        try:
            while True:
                self._woken.clear()
                names = sorted(self.plugins | plugins)
                # The second count runs behind all queued writes, which may contain a submission that was
                # accepted before the drain.
                work = await store.pending_work(names) or await store.pending_work_behind_queued_writes(names)
                if not work:
                    break
                self._check_deadline(work, until)
                await self._clock.wait(min(until, self._clock.now() + MAX_COUNT_INTERVAL), self._woken)
                # Jobs end in quick succession; one count serves many.
                await sleep(self._clock, MIN_COUNT_INTERVAL)
        finally:
            unsubscribe()
        for plugin in sorted(plugins):
            self._signals.emit(Signal.PLUGIN_DRAINED, plugin=plugin)

    def _check_deadline(self, work: tuple[PluginWork, ...], until: datetime) -> None:
        """Raise `TooBusyError` about the pending work at `until`, or if the daemon stops."""
        pending = "; ".join(describe_work(pending_work) for pending_work in work)
        details: dict[str, object] = {"pending": [to_builtins(pending_work) for pending_work in work]}
        if self._is_stopping():
            raise TooBusyError(
                f"the daemon is stopping, and the drain was abandoned: {pending}",
                hint="At the next start the configuration on disk decides which plugins run.",
                details=details,
            )
        if self._clock.now() >= until:
            raise TooBusyError(
                f"the drain has not ended in time, and nothing was changed: {pending}",
                hint="See what it waits for with `ductile queue list`, or allow more time with --timeout.",
                details=details,
            )

    def abandon_later(self) -> None:
        """Abandon the drain in a minute, unless the command that disables the plugins comes first."""
        self._cancel_end_timer()
        self._end_timer = asyncio.get_running_loop().call_later(KEEP_DRAINING.total_seconds(), self.abandon)

    def complete(self, removed: Iterable[str]) -> None:
        """End the drain successfully: the active configuration is without these plugins."""
        self.plugins -= frozenset(removed)
        self.abandon()

    def abandon(self) -> None:
        """End the drain: plugins that were not removed take jobs again."""
        self._cancel_end_timer()
        drained, self.plugins = self.plugins, frozenset()
        for plugin in sorted(drained):
            self._signals.emit(Signal.PLUGIN_DRAIN_ABANDONED, plugin=plugin)
        if drained:
            self._on_ended()

    def _cancel_end_timer(self) -> None:
        if self._end_timer is not None:
            self._end_timer.cancel()
            self._end_timer = None


def describe_work(work: PluginWork) -> str:
    """Return a text such as `echo: 3 queued, 1 running, 2 pipeline runs that use it`."""
    counts = (
        (work.queued, "queued"),
        (work.running, "running"),
        (work.runs, "pipeline run that uses it" if work.runs == 1 else "pipeline runs that use it"),
    )
    return f"{work.plugin}: {', '.join(f'{count} {label}' for count, label in counts if count)}"


def draining_error(plugin: str, user: str | None = None) -> ConflictError:
    """Return the error of a job that is not accepted. `user` is a pipeline that uses the plugin."""
    subject = f"the plugin {plugin}" if user is None else f"{user} uses the plugin {plugin}, which"
    return ConflictError(
        f"{subject} is being drained and takes no new jobs",
        hint="It is about to be disabled. `ductile status` shows whether the drain is still under way.",
        details={"plugin": plugin, "reason": "draining"},
    )
