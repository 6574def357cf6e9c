"""What happens to nodes and their server in a storm: kills, stops, cuts and restarts, several at a time."""

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
from builders.storm_nodes import Life, StormGround, StormNode

#: How often each kind of fault is among sixteen. The first are of a node, which has only one at a time.
OF_A_NODE = (
    *("kill", "kill", "kill", "terminate", "stop", "pause"),
    *("cut", "cut for long", "freeze network"),
)
OF_OTHERS = (
    *("crash server", "restart server", "cut commit", "cut commit", "end connections"),
    *("kill plugins", "kill plugins"),
)
#: As long as a service manager waits for a daemon that it has asked to end.
STOP_SECONDS = 3
#: For so many faults a node is spared.
SPARED_FOR = 15
#: The backends of all nodes.
OUR_BACKENDS = "SELECT pid FROM pg_stat_activity WHERE application_name LIKE 'ductile %'"


@dataclass(slots=True)
class Storm:
    ground: StormGround
    rng: Random
    #: What ends a fault of a node, and when.
    releases: list[tuple[float, str, Callable[[], None]]] = field(default_factory=list)
    #: The node that has no faults of its own for now, so that it can lead and take over the jobs of others.
    spared: str = ""
    kills: list[tuple[float, Life]] = field(default_factory=list)
    story: list[str] = field(default_factory=list)
    #: Daemons that have ended by themselves although they were ready.
    ended: list[str] = field(default_factory=list)

    def rage(self, faults: int) -> None:
        """Bring about so many faults, and end them all."""
        kinds: list[str] = []
        while len(kinds) < faults:
            kinds += self.rng.sample(all_kinds := [*OF_A_NODE, *OF_OTHERS], len(all_kinds))
        for number, kind in enumerate(kinds[:faults]):
            if number % SPARED_FOR == 0:
                self.spared = self.rng.choice(self.ground.nodes).name
            self._wait_until(time.monotonic() + self.rng.uniform(0.2, 1.5))
            self._bring_about(
                kind, self._target() if kind in OF_A_NODE else self.rng.choice(self.ground.nodes)
            )
        while self.releases:
            self._wait_until(min(at for at, _, _ in self.releases))

    def _target(self) -> StormNode:
        """Wait for a node without a fault, and not the one that is spared."""
        while not (free := [node for node in self._free_nodes() if node.name != self.spared]):
            self._wait_until(min(at for at, _, _ in self.releases))
        return self.rng.choice(free)

    def _free_nodes(self) -> list[StormNode]:
        busy = {name for _, name, _ in self.releases}
        return [node for node in self.ground.nodes if node.name not in busy]

    def _wait_until(self, instant: float) -> None:
        """End the faults whose time is over until then, and start nodes that have ended."""
        over = threading.Event()
        while self.releases and (first := min(self.releases, key=lambda each: each[0]))[0] <= instant:
            over.wait(max(first[0] - time.monotonic(), 0))
            self.releases.remove(first)
            first[2]()
            self._tell(f"over: {first[1]}")
        over.wait(max(instant - time.monotonic(), 0))
        for node in self._free_nodes():
            if node.has_ended():
                if node.life.was_ready and not node.life.was_ended:
                    self.ended.append(f"{node.name}: {node.life.lines[-10:]}")
                node.start()

    def _tell(self, what: str) -> None:
        self.story.append(f"{time.monotonic():.2f} {what}")

    def _bring_about(self, kind: str, node: StormNode) -> None:
        self._tell(kind if kind in OF_OTHERS else f"{kind}: {node.name}")
        if kind in ("kill", "terminate"):
            self._end(kind, node)
        elif kind in OF_A_NODE:
            self._hold(kind, node)
        else:
            self._disturb(kind, node)

    def _end(self, kind: str, node: StormNode) -> None:
        if kind == "kill":
            self.kills.append((time.monotonic(), node.life))
            node.end(signal.SIGKILL)
            self._later(node, self.rng.choice([0, 0, 1, 3, 17]), node.start)
        else:
            node.end(signal.SIGTERM)
            self._later(node, STOP_SECONDS, node.start_again)

    def _hold(self, kind: str, node: StormNode) -> None:
        """Shorter or longer than the lease."""
        seconds = {
            "stop": (11, 20),
            "pause": (0.5, 5),
            "cut": (0, 4),
            "cut for long": (16, 20),
            "freeze network": self.rng.choice([(1, 4), (8, 18)]),
        }
        if kind in ("stop", "pause"):
            node.stop()
            self._later(node, self.rng.uniform(*seconds[kind]), node.go_on)
            return
        if kind == "freeze network":
            node.proxy.flows.clear()
        else:
            node.proxy.is_down = True
            node.proxy.cut_all()
        self._later(node, self.rng.uniform(*seconds[kind]), node.mend_network)

    def _disturb(self, kind: str, node: StormNode) -> None:
        match kind:
            case "crash server":
                self.ground.server.restart("immediate")
            case "restart server":
                self.ground.server.restart("fast")
            case "cut commit":
                node.proxy.cut_at = self.rng.choice(list(CutAt))
            case "end connections":
                self._end_connections()
            case "kill plugins":
                self._kill_plugins()

    def _later(self, node: StormNode, seconds: float, end: Callable[[], None]) -> None:
        self.releases.append((time.monotonic() + seconds, node.name, end))

    def _end_connections(self) -> None:
        with psycopg.connect(self.ground.server.url, autocommit=True) as connection:
            pids = sorted(pid for (pid,) in connection.execute(OUR_BACKENDS).fetchall())
            for pid in self.rng.sample(pids, min(len(pids), self.rng.randrange(1, 8))):
                connection.execute("SELECT pg_terminate_backend(%s)", (pid,))

    def _kill_plugins(self) -> None:
        """Kill those that have started and not ended. A number that was used again is not one of ours."""
        lines = self.ground.executions()[-60:]
        ended = {line["pid"] for line in lines if line["what"] == "end"}
        for line in lines:
            if line["what"] == "start" and line["pid"] not in ended:
                with suppress(OSError):
                    process = os.pidfd_open(line["pid"])
                    environment = Path(f"/proc/{line['pid']}/environ").read_bytes()
                    if line["owner"].encode() in environment:
                        signal.pidfd_send_signal(process, signal.SIGKILL)
                    os.close(process)
