"""A graph is unchanged by the store, in this version of the format and the one before."""

from __future__ import annotations

import json
from typing import Any

import pytest

from builders.pipelines import claiming, graph_of, policy_of, split, uses
from ductile.core.runs.graph import Graph, graph_from_json, graph_to_json

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
    "baggage of other steps": [
        {"id": "n", "baggage": {"a": "payload.x"}, "steps": [uses()]},
        split("s", uses(), baggage={"from": "payload", "namespace": "all"}),
    ],
    "the payload of the run": [
        uses(with_={"first": "{run.payload.x}"}, if_={"path": "run.id", "op": "exists"}),
        uses(baggage={"kept": "run.payload"}),
    ],
    "nesting": [{"id": "n", "steps": [split("s", uses(), {"steps": [uses()]}, join="always")]}, uses("z")],
    **{
        f"condition {number}": [uses("a", if_=condition), split("s", uses(), if_=condition)]
        for number, condition in enumerate(CONDITIONS)
    },
}


def round_trip(graph: Graph) -> Graph:
    return graph_from_json(json.loads(json.dumps(graph_to_json(graph))), graph.fingerprint)


@pytest.mark.parametrize("name", GRAPHS)
def test_a_graph_comes_back_as_it_went_in(name: str) -> None:
    graph = graph_of(*GRAPHS[name])
    restored = round_trip(graph)
    assert restored == graph
    assert list(restored.nodes) == list(graph.nodes)
    assert graph_to_json(restored) == graph_to_json(graph)


def test_a_call_comes_back_with_the_name_of_what_it_calls() -> None:
    policy = policy_of(
        {"name": "inner", "if": LOW, "steps": [uses("x")]},
        {"name": "flow", "steps": [{"id": "c", "call": "inner", "if": CONDITIONS[2]}]},
    )
    graph = policy.pipelines.by_name["flow"].graph
    assert round_trip(graph) == graph


#: A graph as Ductile stored it before the format had a version.
VERSION_1: dict[str, Any] = {
    "pipeline": "flow",
    "first": "a",
    "nodes": [
        {
            "path": "a",
            "position": 0,
            "next": "s",
            "if": {
                "all": [
                    {"path": "event.type", "op": "in", "value": ["a", None, 1.5]},
                    {"not": {"path": "context.x", "op": "regex", "value": "a+"}},
                ]
            },
            "plugin": "q",
            "command": "handle",
            "with": {"text": "{payload.x} and {{x}}", "n": 1152921504606846976},
            "baggage": [[["order", "id"], "payload.id", False]],
            "retry": {"max_attempts": 3, "backoff_base": 1.5, "backoff_max": 3600.0},
            "timeout": 2.5,
            "on_events": {"x.y": "a/x.y/h"},
        },
        {"path": "a/x.y/h", "position": 1, "next": "s", "plugin": "p", "command": "handle"},
        {
            "path": "s",
            "position": 2,
            "next": "c",
            "if": {"any": [{"path": "payload.x", "op": "exists", "value": True}]},
            "branches": [["l", "s/l"], ["m", "s/m"]],
            "join": "always",
        },
        {
            "path": "s/l",
            "position": 3,
            "next": None,
            "plugin": "p",
            "command": "handle",
            "baggage": [[["a", "b"], "payload.obj", True]],
        },
        {"path": "s/m", "position": 4, "next": None, "first": "s/m/n", "call": None},
        {"path": "s/m/n", "position": 5, "next": None, "plugin": "p", "command": "handle"},
        {
            "path": "c",
            "position": 6,
            "next": None,
            "if": {"path": "payload.n", "op": "lt", "value": 4},
            "first": "c/x",
            "call": "inner",
        },
        {"path": "c/x", "position": 7, "next": None, "plugin": "p", "command": "handle"},
    ],
}


def test_a_graph_of_version_1_is_read() -> None:
    policy = policy_of(
        {"name": "inner", "if": LOW, "steps": [uses("x")]},
        claiming("x"),
        {
            "name": "flow",
            "on": "go",
            "steps": [
                uses(
                    "a",
                    "q",
                    if_={
                        "all": [
                            {"path": "event.type", "op": "in", "value": ["a", None, 1.5]},
                            {"not": {"path": "context.x", "op": "regex", "value": "a+"}},
                        ]
                    },
                    with_={"text": "{payload.x} and {{x}}", "n": 2**60},
                    baggage={"order.id": "payload.id"},
                    retry={"max_attempts": 3, "backoff_base": "1500ms", "backoff_max": "1h"},
                    timeout="2500ms",
                    on_events={"x.y": [uses("h")]},
                ),
                split(
                    "s",
                    uses("l", baggage={"from": "payload.obj", "namespace": "a.b"}),
                    {"id": "m", "steps": [uses("n")]},
                    join="always",
                    if_={"any": [{"path": "payload.x", "op": "exists"}]},
                ),
                {"id": "c", "call": "inner"},
            ],
        },
    )
    graph = policy.pipelines.by_name["flow"].graph
    assert graph_from_json(VERSION_1, graph.fingerprint) == graph


def test_version_2_has_every_field_of_version_1() -> None:
    """The graph is also part of the response of `pipeline show`: fields are added there, none removed."""
    stored = graph_to_json(graph_from_json(VERSION_1, ""))
    assert stored["version"] == 2
    assert without_kinds(stored) == VERSION_1


def without_kinds(value: Any) -> Any:
    if isinstance(value, list):
        return [without_kinds(inner) for inner in value]
    if isinstance(value, dict):
        return {key: without_kinds(inner) for key, inner in value.items() if key not in ("kind", "version")}
    return value


@pytest.mark.parametrize(
    "condition",
    [
        {},
        {"path": "payload.x"},
        {"path": "payload.x", "op": "like"},
        {"path": "payload.x", "op": "eq", "value": 1, "more": 1},
        {"all": {}},
        {"any": [1]},
        {"not": []},
        {"all": [], "any": []},
    ],
)
def test_a_condition_that_cannot_be_read_is_refused(condition: dict[str, Any]) -> None:
    (node, *_) = VERSION_1["nodes"]
    with pytest.raises(ValueError, match="nodes"):
        graph_from_json({**VERSION_1, "nodes": [{**node, "if": condition}]}, "")


def test_a_version_of_the_future_is_refused() -> None:
    with pytest.raises(ValueError, match="version 4"):
        graph_from_json({**VERSION_1, "version": 4}, "")


@pytest.mark.parametrize(
    ("steps", "version"),
    [
        ([uses(with_={"a": "{payload.x}"}, baggage={"kept": "payload.x"})], 2),
        ([uses(with_={"a": "{run.payload.x}"})], 3),
        ([uses(baggage={"kept": "run.id"})], 3),
        ([uses(if_={"any": [LOW, {"not": {"path": "run.pipeline", "op": "eq", "value": "x"}}]})], 3),
        ([{"steps": [uses()], "baggage": {"kept": "payload.x"}}], 3),
        ([split("s", uses(), baggage={"kept": "payload.x"})], 3),
    ],
)
def test_a_graph_is_written_in_the_oldest_version_that_can_express_it(steps: Any, version: int) -> None:
    """The fingerprint of a pipeline without new keys therefore survives an upgrade."""
    assert graph_to_json(graph_of(*steps))["version"] == version
