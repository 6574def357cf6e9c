"""The scheduler: sleeps until something is due, plans all of it, and has the store account for it.

It decides nothing itself. What is due comes from `core.occurrences`; whether a run may start, and its
place in the ledger, is one transaction of the store. Several wake it: a reload, a pause, a
settled run that moved its schedule. The tick is only a heartbeat, by which a clock that was set is
noticed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime, timedelta
from enum import StrEnum
from random import Random
from typing import TypeAlias

from ductile.config.snapshot import Snapshot
from ductile.core.schedules.planner import DuePlan, SkipReason, plan_due
from ductile.core.schedules.rule import CLOCK_SLACK, slot_after_clock_set_back
from ductile.engine.clock import Clock
from ductile.engine.schedules.entries import (
    ActiveSchedule,
    ScheduleKey,
    active_schedules,
    entries_for,
    firing_of,
    firing_of_deferred,
    firing_on_demand,
    moved,
    paused_long_enough,
    slot_of,
    without_job,
)
from ductile.errors import RefusedError, StoreBusyError, StoreFullError
from ductile.store.model.schedules import FireResult, FireStatus, Firing, ScheduleEntry
from ductile.store.port import Store
from ductile.struct import Value, replace

#: After the clock was set forward, what is late by less than this still runs; the rest was missed.
GRACE = timedelta(seconds=60)
#: How long to leave a store alone that is full or locked.
PAUSE = timedelta(seconds=1)


class RunNowRefusal(StrEnum):
    """Why a run that somebody asked for was not started."""

    UNKNOWN_SCHEDULE = "unknown_schedule"
    RUNNING = "running"
    OUTSTANDING_POLLS = "outstanding_polls"


class RunNowStarted(Value):
    job_id: str


RunNowAnswer: TypeAlias = RunNowStarted | RunNowRefusal


class Scheduler:
    def __init__(
        self,
        store: Store,
        clock: Clock,
        snapshot: Callable[[], Snapshot],
        *,
        rng: Random,
        fired: Callable[[Firing, FireResult], None],
        stop_job: Callable[[str], Awaitable[None]],
        clock_was_set: Callable[[], None],
        draining: Callable[[], frozenset[str]] = frozenset,
    ) -> None:
        """`draining` names the plugins that are not to be started; what falls due meanwhile stays due.

        `fired` is told what came of each firing, `stop_job` stops a job without waiting for its end.
        """
        self._store = store
        self._clock = clock
        self._snapshot = snapshot
        self._rng = rng
        self._fired = fired
        self._stop_job = stop_job
        self._clock_was_set = clock_was_set
        self._draining = draining
        self._woken = asyncio.Event()
        self._stopped = False
        self._started_at = clock.now()
        self._read = (self._started_at, clock.monotonic())
        self._armed_for: Snapshot | None = None
        self._watched: dict[ScheduleKey, ActiveSchedule] = {}
        #: Plugins of which an occurrence waits for other polls to end.
        self._deferred: set[str] = set()
        #: Since when each schedule is looked after; what was due before was missed.
        self._armed_since: dict[ScheduleKey, datetime] = {}

    def wake(self) -> None:
        """Something has changed that may make a schedule due earlier: look again."""
        self._woken.set()

    def poll_ended(self, plugin: str) -> None:
        """A poll of the plugin has ended: an occurrence may have waited for that."""
        if plugin in self._deferred:
            self.wake()

    def stop(self) -> None:
        """Start nothing more; a firing that is under way is told of as always, and then `run` ends."""
        self._stopped = True
        self.wake()

    async def run(self) -> None:
        while not self._stopped:
            self._woken.clear()
            try:
                until = await self._turn()
            except (StoreFullError, StoreBusyError):
                # What could not be accounted for is still due, and will be found so.
                until = self._clock.now() + PAUSE
            await self._clock.wait(until, self._woken)

    async def _turn(self) -> datetime:
        """Do all that is due; the instant to look again."""
        was_set = self._clock_drift()
        if self._armed_for is not self._snapshot():
            await self._arm()
            was_set = was_set or timedelta()
        if was_set is not None:
            await self._follow_clock(was_set)
        tried: set[ScheduleKey] = set()
        while not self._stopped:
            closed = self._draining()
            entries = tuple(entry for entry in await self._entries() if entry.plugin not in closed)
            self._deferred = {entry.plugin for entry in entries if entry.deferred is not None}
            if await self._fire_deferred(entries, tried):
                continue
            now = self._clock.now()
            firings = [firing for entry in entries if (firing := self._plan(entry, now)) is not None]
            if not firings:
                return self._next_look(entries, now)
            await asyncio.gather(*map(self._fire_unless_draining, firings))
        return self._clock.now()

    async def _fire_deferred(self, entries: Sequence[ScheduleEntry], tried: set[ScheduleKey]) -> bool:
        """Try the occurrences that wait for other polls, the longest waiting first, each once a turn.

        Whether any was tried.
        """
        waiting = [
            (entry.deferred.start_at, entry, entry.deferred)
            for entry in entries
            if entry.deferred is not None and (entry.plugin, entry.schedule_id) not in tried
        ]
        for _, entry, deferred in sorted(waiting, key=lambda each: each[0]):
            key = (entry.plugin, entry.schedule_id)
            tried.add(key)
            now = self._clock.now()
            firing = firing_of_deferred(self._watched[key], entry, deferred, now=now, rng=self._rng)
            if firing is not None:
                await self._fire_unless_draining(firing)
        return bool(waiting)

    # -- what is looked after

    async def _arm(self) -> None:
        """Take over the current configuration: at the start, and after every reload."""
        snapshot, now = self._snapshot(), self._clock.now()
        first = self._armed_for is None
        begun = self._started_at if first else now
        known = await self._store.schedules()
        entries = entries_for(snapshot, known, now=begun, started_at=self._started_at, rng=self._rng)
        await self._store.put_schedules(entries)
        self._watched = active_schedules(snapshot)
        self._armed_since = {key: self._armed_since.get(key, begun) for key in self._watched}
        self._armed_for = snapshot

    async def _entries(self) -> tuple[ScheduleEntry, ...]:
        stored = await self._store.schedules()
        return tuple(entry for entry in stored if (entry.plugin, entry.schedule_id) in self._watched)

    def _next_look(self, entries: tuple[ScheduleEntry, ...], now: datetime) -> datetime:
        due = [entry.next_at for entry in entries if entry.next_at is not None and entry.paused_at is None]
        return min([now + self._tick, *due])

    @property
    def _tick(self) -> timedelta:
        return self._snapshot().service.tick_interval

    # -- the clock

    def _clock_drift(self) -> timedelta | None:
        """By how much the clock was set since it was last read, if it was."""
        now, monotonic = self._clock.now(), self._clock.monotonic()
        before, monotonic_before = self._read
        self._read = now, monotonic
        drift = now - before - timedelta(seconds=monotonic - monotonic_before)
        return drift if abs(drift) > CLOCK_SLACK else None

    async def _follow_clock(self, drift: timedelta) -> None:
        """Neither lose nor repeat anything because the clock was set, or the machine slept."""
        now = self._clock.now()
        if drift > timedelta():
            self._armed_since = {key: max(at, now - GRACE) for key, at in self._armed_since.items()}
        else:
            self._armed_since = {key: min(at, now) for key, at in self._armed_since.items()}
        for entry in await self._entries():
            await self._pull_back(entry, now)
        moved = 0
        while clamped := await self._store.clamp_waits():
            moved += clamped
        if drift or moved:
            self._clock_was_set()

    async def _pull_back(self, entry: ScheduleEntry, now: datetime) -> None:
        slot = slot_of(entry)
        rule = self._watched[entry.plugin, entry.schedule_id].rule
        nearer = None if slot is None else slot_after_clock_set_back(rule, slot, now=now, rng=self._rng)
        if nearer is not None:
            await self._store.fire(Firing(entry=moved(entry, nearer), occurrences=(), planned_from=entry))

    # -- plan, then act

    def _plan(self, entry: ScheduleEntry, now: datetime, *, resuming: bool = False) -> Firing | None:
        watched = self._watched[entry.plugin, entry.schedule_id]
        slot, paused = slot_of(entry), entry.paused_at is not None
        if slot is None or (paused and not resuming and not paused_long_enough(entry, now, self._tick)):
            return None
        plan: DuePlan | None = plan_due(
            watched.rule,
            slot,
            now=now,
            armed_since=self._armed_since[watched.key],
            paused=paused,
            rng=self._rng,
        )
        return None if plan is None else firing_of(watched, entry, plan, now=now, rng=self._rng)

    async def _fire_unless_draining(self, firing: Firing) -> None:
        # Asked again: a drain may have begun since this was planned, and must find all that came before it.
        if firing.entry.plugin not in self._draining():
            await self._fire(firing)

    async def _fire(self, firing: Firing) -> FireStatus:
        firing = replace(firing, rules=self._snapshot().rules)
        try:
            report = await self._store.fire(firing)
        except RefusedError:
            if firing.on_demand:
                raise
            # Its payload cannot be stored, now or ever. The occurrence is accounted for without a job.
            firing = without_job(firing, SkipReason.BAD_PAYLOAD)
            report = await self._store.fire(firing)
        if report.answer is FireStatus.DEFERRED:
            self._deferred.add(firing.entry.plugin)
        self._fired(firing, report)
        for job_id in report.stopping:  # the new run starts when these are gone
            await self._stop_job(job_id)
        return report.answer

    # -- what people ask for

    async def _entry(self, plugin: str, schedule_id: str) -> ScheduleEntry | None:
        entries = await self._entries()
        return next(
            (each for each in entries if (each.plugin, each.schedule_id) == (plugin, schedule_id)), None
        )

    async def pause(self, plugin: str, schedule_id: str) -> bool:
        """Run it no more until it is resumed; False if there is no such schedule."""
        found = await self._store.pause_schedule(plugin, schedule_id, paused=True)
        self.wake()
        return found

    async def resume(self, plugin: str, schedule_id: str) -> bool:
        """Go on with the next occurrence; those up to now were paused. False if there is no such schedule."""
        while (entry := await self._entry(plugin, schedule_id)) is not None and entry.paused_at is not None:
            firing = self._plan(entry, self._clock.now(), resuming=True)
            if firing is None:
                break
            await self._fire(firing)
        found = await self._store.pause_schedule(plugin, schedule_id, paused=False)
        self.wake()
        return found

    async def run_now(self, plugin: str, schedule_id: str) -> RunNowAnswer:
        """Start a run out of turn, unless the previous one or other polls stand in its way."""
        while (entry := await self._entry(plugin, schedule_id)) is not None:
            watched = self._watched[plugin, schedule_id]
            firing = firing_on_demand(watched, entry, now=self._clock.now(), rng=self._rng)
            match await self._fire(firing):
                case FireStatus.FIRED if firing.job is not None:
                    self.wake()
                    return RunNowStarted(job_id=firing.job.id)
                case FireStatus.REFUSED_RUNNING:
                    return RunNowRefusal.RUNNING
                case FireStatus.REFUSED_POLLS:
                    return RunNowRefusal.OUTSTANDING_POLLS
        return RunNowRefusal.UNKNOWN_SCHEDULE
