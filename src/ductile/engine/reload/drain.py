"""Draining plugins: they take no new jobs, and the accepted ones run, before a plugin is disabled.

A drain is not stored. After a crash the configuration on disk decides, as at every start.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta

from ductile.engine.clock import Clock
from ductile.errors import ConflictError, TooBusyError
from ductile.store.model.maintenance import PluginWork
from ductile.store.port import Store
from ductile.struct import to_builtins
from ductile.telemetry.signals import Signal, SignalBus

#: Ends of jobs come in quick succession; the queue is not counted for each of them.
BETWEEN_LOOKS = timedelta(milliseconds=100)
#: The queue is also looked at without being told of an end.
LONGEST_LOOK = timedelta(seconds=5)
#: A plugin that has run dry stays closed for so long, so that its removal can be written and loaded.
HOLD = timedelta(seconds=60)


class Drain:
    """The plugins that take no new jobs at the moment. There is one drain at a time."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        signals: SignalBus,
        *,
        stopping: Callable[[], bool],
        reopened: Callable[[], None],
    ) -> None:
        """`reopened` is called when plugins take jobs again: their schedules may be due."""
        self._store = store
        self._clock = clock
        self._signals = signals
        self._stopping = stopping
        self._reopened = reopened
        self._closed: frozenset[str] = frozenset()
        self._busy = False
        self._hold: asyncio.TimerHandle | None = None
        self._woken = asyncio.Event()

    @property
    def plugins(self) -> frozenset[str]:
        return self._closed

    def wake(self) -> None:
        """A job has ended, or the daemon is stopping: look again."""
        self._woken.set()

    @contextmanager
    def begin(self) -> Iterator[None]:
        """The right to drain. ConflictError if another drain is under way."""
        if self._busy:
            names = " and ".join(sorted(self._closed)) or "other plugins"
            raise ConflictError(
                f"a drain of {names} is under way",
                hint="Wait for it, or end the command that waits for it (Ctrl-C).",
                details={"draining": sorted(self._closed)},
            )
        self._busy = True
        try:
            yield
        finally:
            self._busy = False

    async def run_dry(self, plugins: frozenset[str], *, until: datetime) -> None:
        """Close these plugins and wait until no accepted work needs them. They stay closed in any case.

        TooBusyError if that has not come by `until`, or the daemon stops.
        """
        self._close(plugins)
        never = asyncio.Event()
        while work := await self._look(plugins):
            self._refuse_to_wait(work, until)
            await self._clock.wait(min(until, self._clock.now() + LONGEST_LOOK), self._woken)
            await self._clock.wait(self._clock.now() + BETWEEN_LOOKS, never)
        for plugin in sorted(plugins):
            self._signals.emit(Signal.PLUGIN_DRAINED, plugin=plugin)

    async def _look(self, plugins: frozenset[str]) -> tuple[PluginWork, ...]:
        self._woken.clear()
        names = sorted(self._closed | plugins)
        # The second time behind the writer: a submission that was let in before the drain may wait there.
        return await self._store.pending_work(names) or await self._store.pending_work_after_writes(names)

    def _refuse_to_wait(self, work: tuple[PluginWork, ...], until: datetime) -> None:
        told = "; ".join(describe_work(one) for one in work)
        details: dict[str, object] = {"pending": [to_builtins(one) for one in work]}
        if self._stopping():
            raise TooBusyError(
                f"the daemon is stopping, and the drain was abandoned: {told}",
                hint="At the next start the configuration on disk decides which plugins run.",
                details=details,
            )
        if self._clock.now() >= until:
            raise TooBusyError(
                f"the drain has not ended in time, and nothing was changed: {told}",
                hint="See what it waits for with `ductile queue list`, or allow more time with --timeout.",
                details=details,
            )

    def hold(self) -> None:
        """Keep the plugins closed for a while, for the command that is about to disable them."""
        self._cancel_hold()
        self._hold = asyncio.get_running_loop().call_later(HOLD.total_seconds(), self.reopen)

    def finish(self, removed: Iterable[str]) -> None:
        """A configuration without these plugins is in force; the others take jobs again."""
        self._closed -= frozenset(removed)
        self.reopen()

    def reopen(self) -> None:
        """The drain is over, and what is still closed takes jobs again."""
        self._cancel_hold()
        closed, self._closed = self._closed, frozenset()
        for plugin in sorted(closed):
            self._signals.emit(Signal.PLUGIN_DRAIN_ABANDONED, plugin=plugin)
        if closed:
            self._reopened()

    def _close(self, plugins: frozenset[str]) -> None:
        self._cancel_hold()
        for plugin in sorted(plugins - self._closed):
            self._signals.emit(Signal.PLUGIN_DRAINING, plugin=plugin)
        self._closed |= plugins

    def _cancel_hold(self) -> None:
        if self._hold is not None:
            self._hold.cancel()
            self._hold = None


def describe_work(work: PluginWork) -> str:
    """`echo: 3 queued, 1 running, 2 pipeline runs that use it`."""
    counts = (
        (work.queued, "queued"),
        (work.running, "running"),
        (work.runs, "pipeline run that uses it" if work.runs == 1 else "pipeline runs that use it"),
    )
    return f"{work.plugin}: {', '.join(f'{count} {what}' for count, what in counts if count)}"


def draining_error(plugin: str, user: str | None = None) -> ConflictError:
    """Why a job is not accepted: the plugin is about to be disabled. `user` is a pipeline that uses it."""
    what = f"the plugin {plugin}" if user is None else f"{user} uses the plugin {plugin}, which"
    return ConflictError(
        f"{what} is being drained and takes no new jobs",
        hint="It is about to be disabled. `ductile status` shows whether the drain is still under way.",
        details={"plugin": plugin, "reason": "draining"},
    )
