"""Graphs as JSON, and back: how a run's graph outlives reloads and restarts."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from ductile.core.expressions.baggage import BaggageClaim
from ductile.core.expressions.conditions import Condition, condition_from_json, condition_to_json
from ductile.core.expressions.templates import compile_template
from ductile.core.jobs.retry import RetryPolicy
from ductile.core.json import JsonObject
from ductile.core.runs.graph import (
    BlockNode,
    Graph,
    JoinPolicy,
    Node,
    SplitBranch,
    SplitNode,
    StepPayload,
    UseNode,
)


def graph_to_json(graph: Graph) -> JsonObject:
    """Everything but the fingerprint, which is made from this."""
    return {
        "pipeline": graph.pipeline,
        "first": graph.first,
        "nodes": [_node_to_json(node) for node in graph.nodes.values()],
    }


def graph_from_json(stored: JsonObject, fingerprint: str) -> Graph:
    """What `graph_to_json` wrote. It was judged before it was stored, so nothing is judged again."""
    given: Any = stored
    nodes = [_node_from_json(node) for node in given["nodes"]]
    return Graph(
        pipeline=given["pipeline"],
        first=given["first"],
        nodes={node.path: node for node in nodes},
        fingerprint=fingerprint,
    )


def _node_to_json(node: Node) -> JsonObject:
    shown: JsonObject = {"path": node.path, "position": node.position, "next": node.next}
    if node.condition is not None:
        shown["if"] = condition_to_json(node.condition)
    match node:
        case UseNode():
            return shown | _use_to_json(node)
        case BlockNode():
            return shown | {"first": node.first, "call": node.call}
        case SplitNode():
            branches = {branch.id: branch.first for branch in node.branches}
            return shown | {
                "branches": [[name, first] for name, first in branches.items()],
                "join": node.join,
            }


def _use_to_json(node: UseNode) -> JsonObject:
    shown: JsonObject = {"plugin": node.plugin, "command": node.command}
    if node.payload is not None:
        shown["with"] = node.payload.written
    if node.baggage:
        shown["baggage"] = [[list(one.target), one.source, one.spread] for one in node.baggage]
    if node.retry is not None:
        shown["retry"] = {
            "max_attempts": node.retry.max_attempts,
            "backoff_base": node.retry.backoff_base.total_seconds(),
            "backoff_max": node.retry.backoff_max.total_seconds(),
        }
    if node.timeout is not None:
        shown["timeout"] = node.timeout.total_seconds()
    if node.on_events:
        shown["on_events"] = dict(node.on_events)
    return shown


def _node_from_json(stored: Any) -> Node:
    path, position, following = stored["path"], stored["position"], stored["next"]
    condition: Condition | None = condition_from_json(stored["if"]) if "if" in stored else None
    if "branches" in stored:
        return SplitNode(
            path=path,
            position=position,
            next=following,
            condition=condition,
            branches=tuple(SplitBranch(id=name, first=first) for name, first in stored["branches"]),
            join=JoinPolicy(stored["join"]),
        )
    if "plugin" not in stored:
        return BlockNode(
            path=path,
            position=position,
            next=following,
            condition=condition,
            first=stored["first"],
            call=stored["call"],
        )
    return UseNode(
        path=path,
        position=position,
        next=following,
        condition=condition,
        plugin=stored["plugin"],
        command=stored["command"],
        payload=_with_from_json(stored),
        baggage=tuple(
            BaggageClaim(target=tuple(target), source=source, spread=spread)
            for target, source, spread in stored.get("baggage", ())
        ),
        retry=_retry_from_json(stored.get("retry")),
        timeout=timedelta(seconds=stored["timeout"]) if "timeout" in stored else None,
        on_events=stored.get("on_events", {}),
    )


def _with_from_json(stored: Any) -> StepPayload | None:
    if "with" not in stored:
        return None
    return StepPayload(written=stored["with"], template=compile_template(stored["with"]))


def _retry_from_json(stored: Any) -> RetryPolicy | None:
    if stored is None:
        return None
    return RetryPolicy(
        max_attempts=stored["max_attempts"],
        backoff_base=timedelta(seconds=stored["backoff_base"]),
        backoff_max=timedelta(seconds=stored["backoff_max"]),
    )
