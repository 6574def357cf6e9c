"""The nodes that share the store: for `system status`, the doctor, and jobs that wait for a node."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

from ductile.core.jobs.placement import NodeOffer
from ductile.engine.membership import node_name
from ductile.operations.context import OperationContext
from ductile.operations.diagnose.findings import DoctorCheck, DoctorFinding
from ductile.operations.response import Timestamp, from_record, timestamp
from ductile.store.cluster import HEARTBEAT_INTERVAL
from ductile.store.model.nodes import Node
from ductile.struct import Value, about

#: A node that has missed a heartbeat is shown as silent.
_SILENT_SECONDS = 2 * HEARTBEAT_INTERVAL.total_seconds()


class NodeStatus(Value):
    """A daemon that shares the store."""

    name: str
    host: str
    alive: Annotated[bool, about("Whether its latest heartbeat is at most 10 seconds old.")]
    leader: Annotated[bool, about("Whether it plans the schedules and removes expired data.")]
    started_at: Timestamp
    heartbeat_seconds: Annotated[float, about("How long ago its latest heartbeat was.")]
    version: str
    config: Annotated[str, about("The fingerprint of its configuration.")]
    workers: int
    busy: Annotated[int, about("Its running jobs.")]
    plugins: Annotated[tuple[str, ...], about("Those whose jobs it runs.")]


def own_node(context: OperationContext) -> str | None:
    """Return the name of this node; None if the store is for one daemon."""
    return None if context.store.cluster is None else node_name(context.snapshot())


async def list_nodes(context: OperationContext) -> tuple[Node, ...]:
    """Return the live nodes, the leader first; none if the store is for one daemon."""
    cluster = context.store.cluster
    return () if cluster is None else await cluster.nodes()


def node_offer(node: Node) -> NodeOffer:
    return NodeOffer(name=node.info.name, plugins=frozenset(node.info.plugins))


def node_status(node: Node) -> NodeStatus:
    info = node.info
    return NodeStatus(
        name=info.name,
        host=info.host,
        alive=_is_alive(node),
        leader=node.is_leader,
        started_at=timestamp(node.started_at),
        heartbeat_seconds=round(node.silent_seconds, 1),
        version=info.version,
        config=info.config,
        workers=info.workers,
        busy=node.running,
        plugins=info.plugins,
    )


class WaitingForNode(Value):
    """Queued jobs that no live node may run."""

    plugin: str
    node: Annotated[str | None, about("The node that alone may run them; null: any that has their plugin.")]
    jobs: int
    held_since: Annotated[Timestamp, about("Since when the first of them waits.")]


async def waiting_for_node(context: OperationContext) -> tuple[WaitingForNode, ...]:
    """Return the jobs that no live node may run, by plugin; none if the store is for one daemon."""
    if context.store.cluster is None:
        return ()
    return tuple(from_record(WaitingForNode, row) for row in await context.store.jobs_without_node())


def waiting_findings(waiting: tuple[WaitingForNode, ...]) -> Iterator[DoctorFinding]:
    """Yield findings for queued jobs that no live node may run."""
    for group in waiting:
        jobs = "1 job waits" if group.jobs == 1 else f"{group.jobs} jobs wait"
        message = f"{jobs} for a node that runs {group.plugin}; none is alive"
        missing = "a node that runs it"
        if group.node is not None:
            message = f"{jobs} for the node {group.node}, which is not alive"
            missing = f"the node {group.node}"
        fix = f"Start {missing}. To see which nodes live: ductile system status"
        yield DoctorCheck.NODES.warn(message, fix=fix)


def node_findings(nodes: tuple[Node, ...]) -> Iterator[DoctorFinding]:
    """Yield findings for nodes that are silent or differ from the leader; none if there are no nodes."""
    if not nodes:
        return
    for node in nodes:
        if not _is_alive(node):
            message = f"the node {node.info.name} is silent for {node.silent_seconds:.0f} s"
            fix = f"See whether {node.info.host} runs and reaches the database: ductile system status"
            yield DoctorCheck.NODES.warn(message, where=node.info.host, fix=fix)
    leader, *others = nodes
    different = [node.info.name for node in others if node.info.config != leader.info.config]
    if different:
        message = (
            f"the configuration of {_join_names(different)} is not that of {leader.info.name}, which leads"
        )
        fix = "Give every node the same files, then on each: ductile system reload"
        yield DoctorCheck.NODES.warn(message, fix=fix)
    older = [node.info.name for node in others if node.info.version != leader.info.version]
    if older:
        message = f"{_join_names(older)} and {leader.info.name} are different versions"
        yield DoctorCheck.NODES.warn(message, fix="Upgrade every node, one after the other.")
    yield DoctorCheck.NODES.ok(
        f"{len(nodes)} {'node shares' if len(nodes) == 1 else 'nodes share'} the store"
    )


def _is_alive(node: Node) -> bool:
    return node.silent_seconds <= _SILENT_SECONDS


def _join_names(names: list[str]) -> str:
    return " and ".join(names)
