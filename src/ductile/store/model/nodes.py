"""Nodes: the daemons that share one store."""

from __future__ import annotations

from datetime import datetime

from ductile.core.jobs.placement import JobGroup, NodeOffer
from ductile.struct import Value


class NodeInfo(Value):
    """The description that a node stores of itself when it joins, and with every heartbeat."""

    #: The identity of its process: owner of the jobs that it runs.
    owner: str
    name: str
    host: str
    #: Where processes of this node can be seen: one boot of one machine, and one namespace of process ids.
    machine: str
    version: str
    #: The fingerprint of its configuration.
    config: str
    workers: int
    #: The plugins whose jobs it claims.
    plugins: tuple[str, ...]


class Node(Value):
    """A node in the store."""

    info: NodeInfo
    started_at: datetime
    heartbeat_at: datetime
    #: How long ago its heartbeat was, in seconds by the database's clock.
    silent_seconds: float
    #: Whether it plans the schedules and removes expired data.
    is_leader: bool
    #: The jobs that it runs.
    running: int


class Heartbeat(Value):
    """The result of a heartbeat: the state of the cluster, and requests to this node."""

    is_leader: bool
    #: For how many seconds the most silent of the other nodes has been silent; 0 without others.
    longest_silence: float
    #: Whether jobs run whose node has ended.
    has_orphans: bool
    #: Running jobs of this node whose cancellation was requested.
    cancelled: tuple[str, ...]
    #: The server's clock, in seconds since the epoch.
    server_seconds: float
    #: The nodes that have not ended, and the groups of queued jobs that they may or may not run.
    offers: tuple[NodeOffer, ...] = ()
    groups: tuple[JobGroup, ...] = ()
