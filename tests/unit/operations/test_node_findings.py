"""Findings of the doctor about nodes, with advice that can be typed."""

from __future__ import annotations

import pytest

from builders.jobs import START
from ductile.cli.command_table import NOUNS
from ductile.operations.system.nodes import WaitingForNode, node_findings, waiting_findings
from ductile.store.model.nodes import Node, NodeInfo


def a_node(name: str, *, silent_seconds: float = 1, **info: str) -> Node:
    fields = {"host": "host", "machine": "m", "version": "1", "config": "c", **info}
    return Node(
        info=NodeInfo(owner=name, name=name, workers=1, plugins=(), **fields),
        started_at=START,
        heartbeat_at=START,
        silent_seconds=silent_seconds,
        is_leader=name == "one",
        running=0,
    )


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (a_node("two", silent_seconds=12), "the node two is silent for 12 s"),
        (a_node("two", config="d"), "the configuration of two is not that of one, which leads"),
        (a_node("two", version="2"), "two and one are different versions"),
    ],
)
def test_a_node_that_differs_from_the_leader_is_a_warning(other: Node, message: str) -> None:
    first, *_ = node_findings((a_node("one"), other))
    assert (first.level, first.message) == ("warn", message)


@pytest.mark.parametrize("node", [None, "two"])
def test_jobs_that_wait_for_a_node_are_a_warning(node: str | None) -> None:
    waiting = WaitingForNode(plugin="gpu", node=node, jobs=2, held_since="2026-02-08T10:00:00.000000Z")
    (finding,) = waiting_findings((waiting,))
    assert finding.level == "warn"
    assert finding.message == (
        "2 jobs wait for a node that runs gpu; none is alive"
        if node is None
        else "2 jobs wait for the node two, which is not alive"
    )
    assert str(finding.fix).startswith("Start the node two." if node else "Start a node that runs it.")


def test_advice_ends_with_a_command_that_exists() -> None:
    nodes = (a_node("one"), a_node("two", silent_seconds=12, config="d"))
    waiting = WaitingForNode(plugin="gpu", node=None, jobs=2, held_since="2026-02-08T10:00:00.000000Z")
    fixes = [finding.fix for finding in (*node_findings(nodes), *waiting_findings((waiting,))) if finding.fix]
    nouns = {noun.name: noun for noun in NOUNS}
    assert len(fixes) == 3
    for fix in fixes:
        noun, action = fix.rpartition("ductile ")[2].split()
        assert nouns[noun].action(action) is not None, fix
