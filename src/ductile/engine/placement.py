"""Placement: jobs that no live node may run are held where operators see them, until such a node is there.

Each heartbeat contains which jobs are queued and which nodes live. The leader holds jobs and ends those that
were held for too long. Every node releases the jobs that it may run itself, so that they start as soon as the
node is there.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import timedelta

from ductile.config.snapshot import Snapshot
from ductile.core.jobs.placement import JobGroup, NodeOffer, decide_placement
from ductile.core.json import JsonObject
from ductile.engine.clock import STORE_UNAVAILABLE, Clock
from ductile.engine.dispatcher import plugins_run_here
from ductile.engine.job_signals import JobSignals
from ductile.engine.membership import node_name
from ductile.store.model.nodes import Heartbeat
from ductile.store.port import Store
from ductile.telemetry.signals import Signal, SignalBus


class Placer:
    def __init__(
        self,
        store: Store,
        clock: Clock,
        snapshot: Callable[[], Snapshot],
        signals: SignalBus,
        job_signals: JobSignals,
        *,
        is_leader: Callable[[], bool],
    ) -> None:
        self._store = store
        self._clock = clock
        self._snapshot = snapshot
        self._signals = signals
        self._job_signals = job_signals
        self._is_leader = is_leader
        #: The offers of the nodes in the latest heartbeat.
        self._offers: tuple[NodeOffer, ...] = ()
        self._requested = asyncio.Event()

    def on_heartbeat(self, heartbeat: Heartbeat) -> None:
        """Request a placement from `run` if jobs have to be held, released or ended."""
        own = self._own_offer()
        # The heartbeat has an older offer of this node.
        self._offers = (own, *(offer for offer in heartbeat.offers if offer.name != own.name))
        is_leader = self._is_leader()
        offers, max_hold = (self._offers, self._max_hold) if is_leader else ((own,), timedelta.max)
        placement = decide_placement(heartbeat.groups, offers, now=self._clock.now(), max_hold=max_hold)
        if placement.release or (is_leader and placement):
            self._requested.set()

    async def run(self) -> None:
        """Place jobs whenever a heartbeat has shown that some have to be placed."""
        while True:
            await self._requested.wait()
            self._requested.clear()
            with suppress(*STORE_UNAVAILABLE):  # The next heartbeat requests it again.
                await self._place()

    async def release_all(self) -> None:
        """Release every held job: this store is for one daemon now, which runs all of them."""
        more = True
        while more:
            result = await self._store.place_jobs(None, self._snapshot().policy, max_hold=self._max_hold)
            more = result.more

    async def _place(self) -> None:
        held: dict[JobGroup, int] = {}
        released: dict[JobGroup, int] = {}
        more = True
        while more:
            is_leader = self._is_leader()
            result = await self._store.place_jobs(
                self._offers if is_leader else (self._own_offer(),),
                self._snapshot().policy,
                max_hold=self._max_hold,
                release_only=not is_leader,
            )
            _add(held, result.held)
            _add(released, result.released)
            self._job_signals.emit_ended(result.ended)
            more = result.more
        for signal, groups in ((Signal.JOBS_WITHOUT_NODE, held), (Signal.JOBS_PLACED, released)):
            for group, count in groups.items():
                data: JsonObject = {"jobs": count, "node": group.node}
                self._signals.emit(signal, plugin=group.plugin, data=data)

    def _own_offer(self) -> NodeOffer:
        snapshot = self._snapshot()
        return NodeOffer(name=node_name(snapshot), plugins=frozenset(plugins_run_here(snapshot)))

    @property
    def _max_hold(self) -> timedelta:
        return self._snapshot().service.dedupe_ttl


def _add(total: dict[JobGroup, int], counts: Mapping[JobGroup, int]) -> None:
    """Add the counts of a batch. Groups are added without `held_since`, which differs between batches."""
    for group, count in counts.items():
        key = JobGroup(plugin=group.plugin, node=group.node)
        if count:
            total[key] = total.get(key, 0) + count
