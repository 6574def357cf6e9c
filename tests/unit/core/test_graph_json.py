"""A graph comes back from the store as it went in."""

from __future__ import annotations

import json
from typing import Any

import pytest

from builders.pipelines import graph_of, rules_of, split, uses
from ductile.core.runs.graph import Graph
from ductile.core.runs.graph_codec import graph_from_json, graph_to_json

LOW = {"path": "payload.n", "op": "lt", "value": 4}
CONDITIONS = [
    {"all": [LOW, {"path": "event.type", "op": "in", "value": ["a", None, 1.5]}]},
    {"any": [LOW, {"not": {"path": "context.x", "op": "regex", "value": "a+"}}]},
    {"path": "payload.x", "op": "exists"},
]

GRAPHS: dict[str, list[dict[str, Any]]] = {
    "a step": [uses()],
    "all that a step can have": [
        uses(
            "a",
            "q",
            with_={"text": "{payload.x} and {{x}}", "deep": [{"n": "{context.y}"}], "n": 2**60},
            baggage={"order.id": "payload.id"},
            retry={"max_attempts": 3, "backoff_base": "1500ms", "backoff_max": "1h"},
            timeout="2500ms",
            on_events={"x.y": [uses("h")], "z/w": [uses("g")]},
        )
    ],
    "spread baggage": [uses(baggage={"from": "payload.obj", "namespace": "a.b"})],
    "nesting": [{"id": "n", "steps": [split("s", uses(), {"steps": [uses()]}, join="always")]}, uses("z")],
    **{
        f"condition {number}": [uses("a", if_=condition), split("s", uses(), if_=condition)]
        for number, condition in enumerate(CONDITIONS)
    },
}


def through_the_store(graph: Graph) -> Graph:
    return graph_from_json(json.loads(json.dumps(graph_to_json(graph))), graph.fingerprint)


@pytest.mark.parametrize("name", GRAPHS)
def test_a_graph_comes_back_as_it_went_in(name: str) -> None:
    graph = graph_of(*GRAPHS[name])
    back = through_the_store(graph)
    assert back == graph
    assert list(back.nodes) == list(graph.nodes)
    assert graph_to_json(back) == graph_to_json(graph)


def test_a_call_comes_back_with_the_name_of_what_it_calls() -> None:
    rules = rules_of(
        {"name": "inner", "if": LOW, "steps": [uses("x")]},
        {"name": "flow", "steps": [{"id": "c", "call": "inner", "if": CONDITIONS[2]}]},
    )
    graph = rules.pipelines.by_name["flow"].graph
    assert through_the_store(graph) == graph
