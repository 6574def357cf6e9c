"""Membership: when a node checks the others again, and how it takes over the name of a dead daemon."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ductile.engine.membership import Membership, machine_id, seconds_until_next_heartbeat
from ductile.store.cluster import DEAD_AFTER, HEARTBEAT_INTERVAL
from ductile.store.model.nodes import Heartbeat, Node, NodeInfo
from ductile.telemetry.signals import SignalBus

USUAL = HEARTBEAT_INTERVAL.total_seconds()
LIMIT = DEAD_AFTER.total_seconds()


def a_heartbeat(
    *, is_leader: bool = True, longest_silence: float = 0.0, server_seconds: float = 0.0
) -> Heartbeat:
    return Heartbeat(
        is_leader=is_leader,
        longest_silence=longest_silence,
        has_orphans=False,
        cancelled=(),
        server_seconds=server_seconds,
    )


@given(is_leader=st.booleans(), silence=st.floats(0, 100), lease_age=st.floats(0, 100))
@example(is_leader=False, silence=14.0, lease_age=100.0)
@example(is_leader=True, silence=14.0, lease_age=3.0)
def test_a_node_looks_again_when_a_silent_one_would_be_dead(
    *, is_leader: bool, silence: float, lease_age: float
) -> None:
    """This holds for every node, because the silent one may be the leader. There is always a pause."""
    pause = seconds_until_next_heartbeat(
        a_heartbeat(is_leader=is_leader, longest_silence=silence), lease_held_for=lease_age
    )
    assert 0 < pause <= USUAL
    may_end_at = max(LIMIT - silence, LIMIT - lease_age if is_leader else 0)
    if may_end_at > 0:
        assert pause == USUAL or may_end_at < pause < may_end_at + 1
        assert pause == USUAL or may_end_at < USUAL
    else:
        assert pause == USUAL, "the leader has ended it, or does so"


def a_node(owner: str) -> NodeInfo:
    return NodeInfo(
        owner=owner,
        name="one",
        host="host",
        machine=machine_id(),
        version="1",
        config="c",
        workers=1,
        plugins=(),
    )


class FakeCluster:
    """A cluster with one dead node that has our name."""

    def __init__(self) -> None:
        self.steps: list[str] = []
        self._dead = Node(
            info=a_node("host:999999999:1"),
            started_at=datetime(2026, 1, 1, tzinfo=UTC),
            heartbeat_at=datetime(2026, 1, 1, tzinfo=UTC),
            silent_seconds=1.0,
            is_leader=True,
            running=1,
        )

    async def join(self, node: NodeInfo) -> Node | None:  # noqa: ARG002 - as the port has it
        return None if f"ended {self._dead.info.owner}" in self.steps else self._dead

    async def renew(self, node: NodeInfo) -> Heartbeat:  # noqa: ARG002 - as the port has it
        return a_heartbeat()

    async def end_silent_nodes(self) -> tuple[str, ...]:
        self.steps.append("silent")
        return ()

    async def end_node(self, owner: str) -> None:
        self.steps.append(f"ended {owner}")

    async def nodes(self) -> tuple[Node, ...]:
        return ()

    async def listen(self) -> None:
        """No change is announced."""


async def do_nothing() -> None:
    """There is nothing to recover or to wait for."""


def a_membership(cluster: FakeCluster, **overrides: Any) -> Membership:
    return Membership(
        cluster,
        lambda: a_node("host:1:1"),
        SignalBus(),
        **{
            "recover": do_nothing,
            "kill_orphans": do_nothing,
            "kill_all": lambda: None,
            "wait_for_executions": do_nothing,
            "stop_jobs": lambda _: None,
            "on_change": lambda: None,
            "on_heartbeat": lambda _: None,
            "on_failure": lambda _: None,
            **overrides,
        },
    )


async def test_what_a_dead_daemon_left_is_killed_before_its_jobs_may_run_elsewhere() -> None:
    cluster = FakeCluster()

    async def kill_orphans() -> None:
        cluster.steps.append("killed its processes")

    async with a_membership(cluster, kill_orphans=kill_orphans).joined():
        assert cluster.steps == ["killed its processes", "ended host:999999999:1"]


@pytest.mark.parametrize(("jump", "ended"), [(0.0, ["silent"]), (20.0, []), (-20.0, ["silent"])])
async def test_nodes_that_only_look_silent_are_not_ended(jump: float, ended: list[str]) -> None:
    """The clock of the server was set forward, so other nodes have time to renew their leases."""
    now = 1000.0
    cluster = FakeCluster()
    membership = a_membership(cluster, elapsed=lambda: now)
    membership._on_renewed(a_heartbeat(server_seconds=5_000.0), now)
    now += 100
    for _ in range(10):  # the lease of the node never lapses
        membership._on_renewed(a_heartbeat(server_seconds=5_000.0 + now - 1000), now)
        now += USUAL
    heartbeat = a_heartbeat(longest_silence=LIMIT + 1, server_seconds=5_000.0 + now - 1000 + jump)
    membership._on_renewed(heartbeat, now)
    await membership._end_silent_nodes(cluster, heartbeat)
    assert cluster.steps == ended
