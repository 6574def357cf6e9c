"""The cluster's port: membership of the nodes that share a store. A store for one daemon has none.

Heartbeats are judged by the database's clock, never by a node's. A node that is silent for `DEAD_AFTER` is
dead: its claims are refused, and other nodes recover its jobs. A node that has not renewed for `FENCE_AFTER`
by its own clock stops its processes, so none of them runs when another node takes over.
"""

from __future__ import annotations

from abc import abstractmethod
from datetime import timedelta
from typing import Protocol

from ductile.store.model.nodes import Heartbeat, Node, NodeInfo

HEARTBEAT_INTERVAL = timedelta(seconds=5)
FENCE_AFTER = timedelta(seconds=10)
DEAD_AFTER = timedelta(seconds=15)


class Cluster(Protocol):
    """The nodes that share a store. Its methods raise `ductile.errors.StoreError`s, as verbs do."""

    @abstractmethod
    async def join(self, node: NodeInfo) -> Node | None:
        """Add a node. If a live node has its name, returns that node and changes nothing.

        A node that was ended joins again once none of its jobs is running.
        """

    @abstractmethod
    async def renew(self, node: NodeInfo) -> Heartbeat | None:
        """Store a heartbeat. Returns None if the node was ended, because it was silent for too long."""

    @abstractmethod
    async def end_silent_nodes(self) -> tuple[str, ...]:
        """End the nodes that are silent for `DEAD_AFTER`. Returns their names."""

    @abstractmethod
    async def end_node(self, owner: str) -> None:
        """End a node that stops, or whose process is known to be dead."""

    @abstractmethod
    async def nodes(self) -> tuple[Node, ...]:
        """Return the live nodes, the leader first."""

    @abstractmethod
    async def listen(self) -> None:
        """Publish the changes of other nodes to the store's notifier until cancelled.

        After an interruption it publishes the changes that make every subscriber read the store again.
        """
