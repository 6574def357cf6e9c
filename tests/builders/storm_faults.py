"""The faults of a storm: kills, stops, cuts and restarts of nodes and their server, several at a time."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import psycopg

from builders.cut_connections import CutAt
from builders.storm_nodes import DaemonProcess, StormCluster, StormNode

#: The kinds of faults, some several times. Those of a node come one at a time.
OF_A_NODE = (
    *("kill", "kill", "kill", "terminate", "stop", "pause"),
    *("cut", "cut for long", "freeze network"),
)
OF_OTHERS = (
    *("crash server", "restart server", "cut commit", "cut commit", "end connections"),
    *("kill plugins", "kill plugins"),
)
#: Seconds until a daemon that was asked to end is killed.
STOP_SECONDS = 3
#: Number of faults during which a node is spared.
SPARED_FOR = 15
#: The backends of all nodes.
OUR_BACKENDS = "SELECT pid FROM pg_stat_activity WHERE application_name LIKE 'ductile %'"


@dataclass(slots=True)
class Storm:
    cluster: StormCluster
    rng: Random
    #: When a fault of a node ends, the name of the node, and the function that ends it.
    releases: list[tuple[float, str, Callable[[], None]]] = field(default_factory=list)
    #: The node without faults for now, so that it can lead and take over jobs.
    spared: str = ""
    kills: list[tuple[float, DaemonProcess]] = field(default_factory=list)
    log: list[str] = field(default_factory=list)
    #: Daemons that were ready and have ended by themselves.
    ended: list[str] = field(default_factory=list)

    def run(self, faults: int) -> None:
        """Inject so many faults, and end them all."""
        kinds: list[str] = []
        while len(kinds) < faults:
            kinds += self.rng.sample(all_kinds := [*OF_A_NODE, *OF_OTHERS], len(all_kinds))
        for number, kind in enumerate(kinds[:faults]):
            if number % SPARED_FOR == 0:
                self.spared = self.rng.choice(self.cluster.nodes).name
            self._wait_until(time.monotonic() + self.rng.uniform(0.2, 1.5))
            self._inject(kind, self._target() if kind in OF_A_NODE else self.rng.choice(self.cluster.nodes))
        while self.releases:
            self._wait_until(min(at for at, _, _ in self.releases))

    def _target(self) -> StormNode:
        """Wait for a node without a fault that is not spared, and return it."""
        while not (free := [node for node in self._free_nodes() if node.name != self.spared]):
            self._wait_until(min(at for at, _, _ in self.releases))
        return self.rng.choice(free)

    def _free_nodes(self) -> list[StormNode]:
        busy = {name for _, name, _ in self.releases}
        return [node for node in self.cluster.nodes if node.name not in busy]

    def _wait_until(self, instant: float) -> None:
        """Wait until this instant. End the faults that are over by then, and start ended nodes."""
        timer = threading.Event()
        while self.releases and (first := min(self.releases, key=lambda release: release[0]))[0] <= instant:
            timer.wait(max(first[0] - time.monotonic(), 0))
            self.releases.remove(first)
            first[2]()
            self._record(f"over: {first[1]}")
        timer.wait(max(instant - time.monotonic(), 0))
        for node in self._free_nodes():
            if node.has_ended():
                if node.daemon.was_ready and not node.daemon.was_ended:
                    self.ended.append(f"{node.name}: {node.daemon.lines[-10:]}")
                node.start()

    def _record(self, text: str) -> None:
        self.log.append(f"{time.monotonic():.2f} {text}")

    def _inject(self, kind: str, node: StormNode) -> None:
        self._record(kind if kind in OF_OTHERS else f"{kind}: {node.name}")
        if kind in ("kill", "terminate"):
            self._end(kind, node)
        elif kind in OF_A_NODE:
            self._stop_or_cut_off(kind, node)
        else:
            self._disturb(kind, node)

    def _end(self, kind: str, node: StormNode) -> None:
        if kind == "kill":
            self.kills.append((time.monotonic(), node.daemon))
            node.end(signal.SIGKILL)
            self._schedule_end(node, self.rng.choice([0, 0, 1, 3, 17]), node.start)
        else:
            node.end(signal.SIGTERM)
            self._schedule_end(node, STOP_SECONDS, node.start_again)

    def _stop_or_cut_off(self, kind: str, node: StormNode) -> None:
        """Stop or cut off a node, for a shorter or a longer time than its lease."""
        seconds = {
            "stop": (11, 20),
            "pause": (0.5, 5),
            "cut": (0, 4),
            "cut for long": (16, 20),
            "freeze network": self.rng.choice([(1, 4), (8, 18)]),
        }
        if kind in ("stop", "pause"):
            node.stop()
            self._schedule_end(node, self.rng.uniform(*seconds[kind]), node.resume)
            return
        if kind == "freeze network":
            node.proxy.flows.clear()
        else:
            node.proxy.is_down = True
            node.proxy.cut_all()
        self._schedule_end(node, self.rng.uniform(*seconds[kind]), node.restore_network)

    def _disturb(self, kind: str, node: StormNode) -> None:
        match kind:
            case "crash server":
                self.cluster.server.restart("immediate")
            case "restart server":
                self.cluster.server.restart("fast")
            case "cut commit":
                node.proxy.cut_at = self.rng.choice(list(CutAt))
            case "end connections":
                self._end_connections()
            case "kill plugins":
                self._kill_plugins()

    def _schedule_end(self, node: StormNode, seconds: float, end: Callable[[], None]) -> None:
        self.releases.append((time.monotonic() + seconds, node.name, end))

    def _end_connections(self) -> None:
        with psycopg.connect(self.cluster.server.url, autocommit=True) as connection:
            pids = sorted(pid for (pid,) in connection.execute(OUR_BACKENDS).fetchall())
            for pid in self.rng.sample(pids, min(len(pids), self.rng.randrange(1, 8))):
                connection.execute("SELECT pg_terminate_backend(%s)", (pid,))

    def _kill_plugins(self) -> None:
        """Kill the plugins that run. A process id that was reused is not that of a plugin."""
        lines = self.cluster.executions()[-60:]
        ended = {line["pid"] for line in lines if line["kind"] == "end"}
        for line in lines:
            if line["kind"] == "start" and line["pid"] not in ended:
                with suppress(OSError):
                    process = os.pidfd_open(line["pid"])
                    environment = Path(f"/proc/{line['pid']}/environ").read_bytes()
                    if line["owner"].encode() in environment:
                        signal.pidfd_send_signal(process, signal.SIGKILL)
                    os.close(process)
