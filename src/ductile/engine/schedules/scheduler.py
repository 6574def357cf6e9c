"""The scheduler: sleeps until a schedule is due, plans everything due, and has the store record it.

The scheduler decides nothing itself. `core.schedules.planner` decides what is due; the store decides whether
a run may start and records it in one transaction (`fire`), which compares the entry with the one that the
plan was made from. A reload, a pause and a settled run that moved its schedule wake the scheduler. At every
tick it checks whether the clock was set.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime, timedelta
from random import Random

from ductile.config.snapshot import Snapshot
from ductile.core.jobs.model import SubmittedBy
from ductile.core.schedules.planner import SkipReason, plan_due
from ductile.core.schedules.rule import CLOCK_SLACK, occurrence_after_clock_set_back
from ductile.engine.clock import STORE_RETRY_INTERVAL, STORE_UNAVAILABLE, Clock
from ductile.engine.reload.drain import draining_error
from ductile.engine.schedules.entries import (
    ActiveSchedule,
    ScheduleKey,
    active_schedules,
    entries_for,
    firing_of,
    firing_of_deferred,
    firing_on_demand,
    key_of,
    next_occurrence_of,
    with_next_occurrence,
    without_jobs,
)
from ductile.errors import ConflictError, RefusedError
from ductile.store.model.jobs import TokenCharge
from ductile.store.model.schedules import FireResult, FireStatus, Firing, ScheduleEntry
from ductile.store.notifier import JobEnded
from ductile.store.port import Store
from ductile.struct import replace

#: After the clock was set forward, an occurrence late by less than this still runs; others were missed.
GRACE = timedelta(seconds=60)

#: The reason and the message of the error for a requested run that is not started, by its status.
_RUN_NOW_ERRORS = {
    FireStatus.REFUSED_RUNNING: ("running", "the previous run of this schedule has not ended"),
    FireStatus.REFUSED_POLLS: (
        "outstanding_polls",
        "as many polls of this plugin as are allowed are queued or running",
    ),
}


class Scheduler:
    def __init__(
        self,
        store: Store,
        clock: Clock,
        snapshot: Callable[[], Snapshot],
        *,
        rng: Random,
        on_fired: Callable[[Firing, FireResult], None],
        stop_job: Callable[[str], Awaitable[None]],
        on_clock_set: Callable[[], None],
        draining: Callable[[], frozenset[str]] = frozenset,
        is_leader: Callable[[], bool] = lambda: True,
    ) -> None:
        """`on_fired` is called after each firing; `stop_job` stops a job without waiting for its end.

        `draining` returns the plugins that start no runs; their due occurrences stay due. Of several nodes
        only the leader plans; another leader continues from the stored entries.
        """
        self._store = store
        self._clock = clock
        self._snapshot = snapshot
        self._rng = rng
        self._on_fired = on_fired
        self._stop_job = stop_job
        self._on_clock_set = on_clock_set
        self._draining = draining
        self._is_leader = is_leader
        #: Whether the stored entries are those of this node's configuration.
        self._has_stored_entries = False
        self._woken = asyncio.Event()
        self._stopped = False
        #: Schedules that run some time after the start count from here.
        self.started_at = clock.now()
        #: The last readings of both clocks; they drift apart when the wall clock is set.
        self._last_readings = (self.started_at, clock.monotonic())
        self._loaded_snapshot: Snapshot | None = None
        self._active: dict[ScheduleKey, ActiveSchedule] = {}
        #: Plugins with an occurrence that waits for other polls to end.
        self._deferred: set[str] = set()
        #: The time since which each schedule is active; occurrences that were due before it were missed.
        self._active_since: dict[ScheduleKey, datetime] = {}

    def wake(self) -> None:
        """Check for due occurrences now: a schedule may be due earlier than planned."""
        self._woken.set()

    def on_job_ended(self, change: JobEnded) -> None:
        """Wake after a run of a schedule, and after a poll of a plugin with a deferred occurrence."""
        if change.submitted_by is SubmittedBy.SCHEDULER or (
            change.command == "poll" and change.plugin in self._deferred
        ):
            self.wake()

    def stop(self) -> None:
        """Start nothing more. `run` returns when a firing that is under way has been reported."""
        self._stopped = True
        self.wake()

    async def run(self) -> None:
        while not self._stopped:
            self._woken.clear()
            try:
                until = await self._fire_due()
            except STORE_UNAVAILABLE:
                # Nothing was recorded, so everything due is still due.
                until = self._clock.now() + STORE_RETRY_INTERVAL
            await self._clock.wait(until, self._woken)

    async def _fire_due(self) -> datetime:
        """Fire everything that is due. Returns the latest time of the next call."""
        drift = self._clock_drift()
        is_leader = self._is_leader()
        if self._loaded_snapshot is not self._snapshot() or is_leader is not self._has_stored_entries:
            await self._load_schedules(store_entries=is_leader)
            drift = drift or timedelta()
        if not is_leader:
            return self._clock.now() + self._tick
        if drift is not None:
            await self._follow_clock(drift)
        tried: set[ScheduleKey] = set()
        while not self._stopped:
            draining = self._draining()
            entries = tuple(entry for entry in await self._entries() if entry.plugin not in draining)
            self._deferred = {entry.plugin for entry in entries if entry.deferred is not None}
            if await self._fire_deferred(entries, tried):
                continue
            now = self._clock.now()
            firings = [firing for entry in entries if (firing := self._plan(entry, now)) is not None]
            if not firings:
                due = [entry.next_at for entry in entries if entry.next_at and entry.paused_at is None]
                return min([now + self._tick, *due])
            await asyncio.gather(*map(self._fire_unless_draining, firings))
        return self._clock.now()

    async def _fire_deferred(self, entries: Sequence[ScheduleEntry], tried: set[ScheduleKey]) -> bool:
        """Try to fire deferred occurrences, the oldest first, unless they are in `tried`, and add them to it.

        Returns whether any was tried.
        """
        waiting = [
            (entry, entry.deferred)
            for entry in entries
            if entry.deferred is not None and key_of(entry) not in tried
        ]
        for entry, deferred in sorted(waiting, key=lambda pair: pair[1].start_at):
            tried.add(key_of(entry))
            firing = firing_of_deferred(
                self._active[key_of(entry)], entry, deferred, now=self._clock.now(), rng=self._rng
            )
            if firing is not None:
                await self._fire_unless_draining(firing)
        return bool(waiting)

    async def _load_schedules(self, *, store_entries: bool) -> None:
        """Load the schedules of the active configuration, and store their entries as the leader.

        Called at the start, after every reload, and when the leader changes.
        """
        snapshot, now = self._snapshot(), self._clock.now()
        since = self.started_at if self._loaded_snapshot is None else now
        if store_entries:
            stored = await self._store.list_schedules()
            entries = entries_for(snapshot, stored, now=since, started_at=self.started_at, rng=self._rng)
            await self._store.put_schedules(entries)
        self._has_stored_entries = store_entries
        self._active = active_schedules(snapshot)
        self._active_since = {key: self._active_since.get(key, since) for key in self._active}
        self._loaded_snapshot = snapshot

    async def _entries(self) -> tuple[ScheduleEntry, ...]:
        return tuple(entry for entry in await self._store.list_schedules() if key_of(entry) in self._active)

    @property
    def _tick(self) -> timedelta:
        return self._snapshot().service.tick_interval

    # -- the clock

    def _clock_drift(self) -> timedelta | None:
        """Return by how much the wall clock was set since the last reading; None if it was not."""
        now, monotonic = self._clock.now(), self._clock.monotonic()
        last, last_monotonic = self._last_readings
        self._last_readings = now, monotonic
        drift = now - last - timedelta(seconds=monotonic - last_monotonic)
        return drift if abs(drift) > CLOCK_SLACK else None

    async def _follow_clock(self, drift: timedelta) -> None:
        """After the clock was set, or the machine slept: neither miss nor repeat an occurrence."""
        now = self._clock.now()
        if drift > timedelta():
            self._active_since = {key: max(at, now - GRACE) for key, at in self._active_since.items()}
        else:
            self._active_since = {key: min(at, now) for key, at in self._active_since.items()}
        for entry in await self._entries():
            if (planned := next_occurrence_of(entry)) is None:
                continue
            # After the clock was set back, the next occurrence may be too far away.
            rule = self._active[key_of(entry)].rule
            nearer = occurrence_after_clock_set_back(rule, planned, now=now, rng=self._rng)
            if nearer is not None:
                firing = Firing(entry=with_next_occurrence(entry, nearer), occurrences=(), planned_from=entry)
                await self._store.fire(firing)
        shortened = 0
        while count := await self._store.shorten_waits():
            shortened += count
        if drift or shortened:
            self._on_clock_set()

    # -- plan, then fire

    def _plan(self, entry: ScheduleEntry, now: datetime, *, resuming: bool = False) -> Firing | None:
        """Return the firing of an entry's due occurrences; None if there are none."""
        active = self._active[key_of(entry)]
        next_occurrence, paused = next_occurrence_of(entry), entry.paused_at is not None
        # Skips of a paused schedule are recorded once a tick, not one by one.
        if next_occurrence is None or (
            paused and not resuming and next_occurrence.start_at + self._tick > now
        ):
            return None
        plan = plan_due(
            active.rule,
            next_occurrence,
            now=now,
            active_since=self._active_since[active.key],
            paused=paused,
            rng=self._rng,
        )
        return None if plan is None else firing_of(active, entry, plan, now=now, rng=self._rng)

    async def _fire_unless_draining(self, firing: Firing) -> None:
        # Checked again: a drain that began after the planning must not be followed by another job.
        if firing.entry.plugin not in self._draining():
            await self._fire(firing)

    async def _fire(self, firing: Firing) -> FireStatus:
        firing = replace(firing, policy=self._snapshot().policy)
        try:
            result = await self._store.fire(firing)
        except RefusedError:
            if firing.on_demand:
                raise
            # The payload can never be stored; the occurrence is recorded as skipped.
            firing = without_jobs(firing, SkipReason.BAD_PAYLOAD)
            result = await self._store.fire(firing)
        if result.status is FireStatus.DEFERRED:
            self._deferred.add(firing.entry.plugin)
        self._on_fired(firing, result)
        for job_id in result.stopping:  # The new run starts when these have ended.
            await self._stop_job(job_id)
        return result.status

    # -- on request

    async def _entry(self, plugin: str, schedule_id: str) -> ScheduleEntry | None:
        return next(
            (entry for entry in await self._entries() if key_of(entry) == (plugin, schedule_id)), None
        )

    async def resume(self, plugin: str, schedule_id: str) -> bool:
        """Continue a paused schedule with its next occurrence. Returns False if there is no such schedule.

        Occurrences up to now are recorded as skipped.
        """
        while (entry := await self._entry(plugin, schedule_id)) is not None and entry.paused_at is not None:
            firing = self._plan(entry, self._clock.now(), resuming=True)
            if firing is None:
                break
            await self._fire(firing)
        resumed = await self._store.pause_schedule(plugin, schedule_id, paused=False)
        self.wake()
        return resumed

    async def run_now(
        self, plugin: str, schedule_id: str, *, token: str | None = None, charge: TokenCharge | None = None
    ) -> str:
        """Start a run on request, for the access token `token`, and return the id of its job.

        Raises `ConflictError` if the previous run or `max_outstanding_polls` forbids it, if the plugin is
        being drained, or if the schedule is unknown; `LimitReachedError` if a limit of the token forbids it.
        """
        if plugin in self._draining():
            raise draining_error(plugin)
        while (entry := await self._entry(plugin, schedule_id)) is not None:
            active = self._active[plugin, schedule_id]
            firing = firing_on_demand(
                active, entry, now=self._clock.now(), rng=self._rng, token=token, charge=charge
            )
            status = await self._fire(firing)
            if status is FireStatus.FIRED and firing.job is not None:
                self.wake()
                return firing.job.id
            if status in _RUN_NOW_ERRORS:
                reason, message = _RUN_NOW_ERRORS[status]
                raise ConflictError(message, details={"reason": reason})
        raise ConflictError("there is no such schedule in force", details={"reason": "unknown_schedule"})
