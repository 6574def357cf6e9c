"""Membership: make this daemon a node among those that share its store. Without a shared store, do nothing.

A node renews its lease with every heartbeat. A node that has not renewed it for `FENCE_AFTER`, by a clock
that also counts while the machine sleeps, fences itself: it claims and starts nothing and kills its
processes, before any other node may take over their jobs. When the server answers again, the node claims
again; the jobs whose processes it killed go back to the queue, unless another node has recovered them.

The oldest live node is the leader. It ends nodes that are silent for too long, recovers their jobs, plans
the schedules and removes expired data. It ends others only if it has held its own lease for as long as they
may be silent: after an outage of the server all heartbeats are old. The same holds after its clock was set
forward.
"""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from ductile.config.file_io import hash_bytes
from ductile.config.snapshot import Snapshot
from ductile.engine.clock import STORE_UNAVAILABLE, start_services
from ductile.errors import ConflictError
from ductile.runner.orphans import has_ended
from ductile.store.cluster import DEAD_AFTER, FENCE_AFTER, HEARTBEAT_INTERVAL, Cluster
from ductile.store.model.nodes import Heartbeat, Node, NodeInfo
from ductile.telemetry.signals import Signal, SignalBus

#: How often the lease is checked, and how soon a failed heartbeat is repeated.
_WATCH_SECONDS = 1.0
#: How far two clocks may drift apart between two heartbeats.
_CLOCK_SLACK_SECONDS = 1.0
#: How long after the instant at which a node counts as dead a heartbeat is sent.
_MARGIN_SECONDS = 0.1
_BOOTTIME = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def seconds_since_boot() -> float:
    """Return elapsed time that does not stand still while the machine sleeps."""
    return time.clock_gettime(_BOOTTIME)


def machine_id() -> str:
    """Return the id of the boot and of the pid namespace in which processes of this daemon are visible."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{boot}/{os.readlink('/proc/self/ns/pid')}"  # noqa: PTH115 - the target is not a path
    except OSError:  # A system without /proc: nothing is known about other processes.
        return ""


#: Settings that may differ between nodes, by section.
_OWN_SETTINGS = {
    "service": ("node", "run_only", "max_workers", "log_level", "log_format"),
    "api": ("listen",),
    "webhooks": ("listen",),
}


def shared_fingerprint(snapshot: Snapshot) -> str:
    """Return a hash of the settings and plugins that should be the same on every node."""
    settings = dict(snapshot.redacted) if isinstance(snapshot.redacted, dict) else {}
    settings.pop("state", None)
    for name, own_settings in _OWN_SETTINGS.items():
        if isinstance(section := settings.get(name), dict):
            settings[name] = {key: value for key, value in section.items() if key not in own_settings}
    plugins = {
        name: [plugin.config_hash, plugin.installed.fingerprint if plugin.installed else None]
        for name, plugin in snapshot.plugins.items()
    }
    return hash_bytes(json.dumps([settings, plugins], sort_keys=True, default=str).encode())


def node_name(snapshot: Snapshot) -> str:
    """Return the name of this node: `service.node`, or that of the host."""
    return snapshot.service.node or os.uname().nodename


def seconds_until_next_heartbeat(heartbeat: Heartbeat, *, lease_held_for: float) -> float:
    """Return in how many seconds to send the next heartbeat: fewer if a node could be ended as dead earlier.

    Every node does this, because the silent node may be the leader itself.
    """
    interval, limit = HEARTBEAT_INTERVAL.total_seconds(), DEAD_AFTER.total_seconds()
    until_dead = limit - heartbeat.longest_silence
    if heartbeat.is_leader:
        until_dead = max(until_dead, limit - lease_held_for)
    # A node that is dead already is left to the leader, which may have ended it a moment ago.
    return min(interval, until_dead + _MARGIN_SECONDS) if until_dead > 0 else interval


class Membership:
    def __init__(
        self,
        cluster: Cluster | None,
        describe: Callable[[], NodeInfo],
        signals: SignalBus,
        *,
        recover: Callable[[], Awaitable[None]],
        kill_orphans: Callable[[], Awaitable[None]],
        kill_all: Callable[[], None],
        wait_for_executions: Callable[[], Awaitable[object]],
        stop_jobs: Callable[[tuple[str, ...]], None],
        on_change: Callable[[], None],
        on_heartbeat: Callable[[Heartbeat], None],
        on_failure: Callable[[BaseException], None],
        elapsed: Callable[[], float] = seconds_since_boot,
    ) -> None:
        """`recover` recovers the jobs of ended nodes; `kill_orphans` kills the processes that dead daemons
        left on this machine; `stop_jobs` begins to stop cancelled jobs that run here, and does not wait for
        the store. `on_change` is called when the lease is back, or the leader has changed; `on_heartbeat`
        with the store's response to each heartbeat.
        """
        self._cluster = cluster
        self._describe = describe
        self._signals = signals
        self._recover = recover
        self._kill_orphans = kill_orphans
        self._kill_all = kill_all
        self._wait_for_executions = wait_for_executions
        self._stop_jobs = stop_jobs
        self._on_change = on_change
        self._on_heartbeat = on_heartbeat
        self._on_failure = on_failure
        self._elapsed = elapsed
        #: When the last successful heartbeat was sent, and since when the lease is held without a gap.
        self._renewed_at = float("-inf")
        self._lease_held_since = float("-inf")
        #: The most by which the server's clock may have been ahead of `elapsed` at the last heartbeat.
        self._server_ahead = float("inf")
        self._fenced = False
        self._is_leader = cluster is None
        self._recovery_requested = asyncio.Event()
        self._heartbeat_requested = asyncio.Event()

    def holds_lease(self) -> bool:
        """Return whether jobs may be started. It is checked again right before each start."""
        return self._cluster is None or self._elapsed() < self._renewed_at + FENCE_AFTER.total_seconds()

    def is_leader(self) -> bool:
        return self._is_leader and self.holds_lease()

    def renew_soon(self) -> None:
        """Send a heartbeat now: the plugins or settings that this node describes in it have changed."""
        self._heartbeat_requested.set()

    @asynccontextmanager
    async def joined(self) -> AsyncIterator[None]:
        """Be a node while the context is open. Raises `ConflictError` if a live node has the same name."""
        cluster = self._cluster
        if cluster is None:
            yield
            return
        await self._join(cluster)
        services = start_services(
            {
                "heartbeats": self._send_heartbeats(cluster),
                "lease": self._watch_lease(),
                "recovery": self._recover_forever(),
                "notifications": cluster.listen(),
            },
            on_failure=self._on_failure,
        )
        try:
            yield
        finally:
            for service in services.values():
                service.cancel()
            await asyncio.gather(*services.values(), return_exceptions=True)
            # Without this, the leader ends the node when it has been silent for long enough.
            with suppress(*STORE_UNAVAILABLE):
                await cluster.end_node(self._describe().owner)

    # -- joining

    async def _join(self, cluster: Cluster) -> None:
        """Join as soon as no live node has the name of this one.

        A node that crashed counts as dead when its process is known to have ended, or when it was silent for
        long enough while this one waited.
        """
        first_seen: Node | None = None
        began = self._elapsed()
        while True:
            info, sent_at = self._describe(), self._elapsed()
            other = await cluster.join(info)
            if other is None:
                heartbeat = await cluster.renew(info)
                if heartbeat is not None:
                    self._on_renewed(heartbeat, sent_at)
                    return
                # This node was ended, and the store has running jobs of it: they are recovered first.
                await self._recover()
            elif first_seen is not None and other.heartbeat_at != first_seen.heartbeat_at:
                raise ConflictError(
                    f"a node named {other.info.name} is running already, on {other.info.host}",
                    hint="Give each node a name of its own: set service.node, or stop the other one.",
                    details={"node": other.info.name, "host": other.info.host},
                )
            elif other.info.machine == info.machine != "" and has_ended(other.info.owner):
                # It ran on this machine, where its process would be visible. Its orphans are killed before
                # any node may run their jobs: nodes on other machines cannot kill them.
                await self._kill_orphans()
                await cluster.end_node(other.info.owner)
            elif self._elapsed() - began > DEAD_AFTER.total_seconds():
                await cluster.end_node(other.info.owner)
            else:
                first_seen = first_seen or other
                await asyncio.sleep(_WATCH_SECONDS)

    # -- heartbeats

    async def _send_heartbeats(self, cluster: Cluster) -> None:
        while True:
            sent_at = self._elapsed()
            pause = _WATCH_SECONDS
            with suppress(*STORE_UNAVAILABLE):
                heartbeat = await cluster.renew(self._describe())
                if heartbeat is None:
                    # Another node has ended this one: its jobs are recovered before it may claim again.
                    self._renewed_at = float("-inf")
                    self._fence()
                    await self._wait_for_executions()
                    await self._recover()
                    await self._join(cluster)
                    continue
                self._on_renewed(heartbeat, sent_at)
                await self._end_silent_nodes(cluster, heartbeat)
                if heartbeat.cancelled:
                    self._stop_jobs(heartbeat.cancelled)
                pause = seconds_until_next_heartbeat(
                    heartbeat, lease_held_for=self._elapsed() - self._lease_held_since
                )
            with suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self._heartbeat_requested.wait()
                self._heartbeat_requested.clear()

    def _on_renewed(self, heartbeat: Heartbeat, sent_at: float) -> None:
        had_lease = self.holds_lease() and not self._fenced
        self._renewed_at = sent_at
        if not had_lease or self._was_server_clock_set_forward(heartbeat, sent_at):
            self._lease_held_since = sent_at
        if self._fenced:
            self._fenced = False
            self._signals.emit(Signal.NODE_RENEWED)
        if heartbeat.is_leader != self._is_leader:
            self._is_leader = heartbeat.is_leader
            if self._is_leader:
                self._signals.emit(Signal.NODE_LEADING)
            self._on_change()
        elif not had_lease:
            self._on_change()
        if heartbeat.has_orphans and self._is_leader:
            self._recovery_requested.set()
        self._on_heartbeat(heartbeat)

    def _was_server_clock_set_forward(self, heartbeat: Heartbeat, sent_at: float) -> bool:
        """Return whether live nodes may look silent because the server's clock was set forward."""
        least_ahead = heartbeat.server_seconds - self._elapsed()
        was_set = least_ahead > self._server_ahead + _CLOCK_SLACK_SECONDS
        self._server_ahead = heartbeat.server_seconds - sent_at
        return was_set

    async def _end_silent_nodes(self, cluster: Cluster, heartbeat: Heartbeat) -> None:
        """As the leader, end nodes that are silent for too long and request the recovery of their jobs.

        The leader waits until it has held its own lease for as long: after an outage of the server all
        heartbeats are old.
        """
        limit = DEAD_AFTER.total_seconds()
        if not self._is_leader or heartbeat.longest_silence < limit:
            return
        if self._elapsed() - self._lease_held_since < limit:
            return
        for name in await cluster.end_silent_nodes():
            self._signals.emit(Signal.NODE_LOST, data={"node": name})
            self._recovery_requested.set()

    # -- the lease

    async def _watch_lease(self) -> None:
        while True:
            if not self.holds_lease():
                self._fence()
            await asyncio.sleep(_WATCH_SECONDS)

    def _fence(self) -> None:
        if not self._fenced:
            self._fenced = True
            self._is_leader = False
            self._signals.emit(Signal.NODE_FENCED)
            self._kill_all()

    # -- recovery

    async def _recover_forever(self) -> None:
        while True:
            await self._recovery_requested.wait()
            self._recovery_requested.clear()
            try:
                await self._recover()
            except (ConflictError, *STORE_UNAVAILABLE):
                # The next heartbeat finds the jobs again. A process that does not end was reported.
                continue
