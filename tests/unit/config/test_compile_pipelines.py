"""Compiles pipelines into the graphs that runs follow."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from builders.pipelines import graph_of, policy_of, split, uses
from ductile.core.events.model import Hook
from ductile.core.expressions.conditions import AllOf, PathComparison
from ductile.core.jobs.failures import RetryPolicy
from ductile.core.runs.graph import BlockNode, JoinPolicy, SplitNode, UseNode
from ductile.errors import ConfigError

LOW = {"path": "payload.n", "op": "lt", "value": 4}
HIGH = {"path": "payload.n", "op": "gt", "value": 1}


def next_paths(*steps: dict[str, Any]) -> dict[str, str | None]:
    """Return the next path of each node."""
    return {path: node.next for path, node in graph_of(*steps).nodes.items()}


def test_steps_follow_one_another() -> None:
    assert next_paths(uses("a"), uses("b"), uses("c")) == {"a": "b", "b": "c", "c": None}


def test_a_step_without_an_id_is_named_by_its_number() -> None:
    steps = ({"steps": [uses(), uses("named")]}, uses())
    assert next_paths(*steps) == {"1": "2", "1/1": "1/named", "1/named": "2", "2": None}


def test_a_nested_sequence_continues_after_its_step() -> None:
    assert next_paths({"id": "n", "steps": [uses("a"), {"id": "m", "steps": [uses("b")]}]}, uses("z")) == {
        "n": "z",
        "n/a": "n/m",
        "n/m": "z",
        "n/m/b": "z",
        "z": None,
    }


def test_a_branch_has_no_next_and_the_split_continues() -> None:
    graph = graph_of(split("s", uses("x"), {"steps": [uses("y")]}, join="always"), uses("z"))
    node = graph.nodes["s"]
    assert isinstance(node, SplitNode)
    assert [(branch.id, branch.first) for branch in node.branches] == [("x", "s/x"), ("2", "s/2")]
    assert (node.next, node.join) == ("z", JoinPolicy.ALWAYS)
    assert {path: graph.nodes[path].next for path in ("s/x", "s/2", "s/2/y")} == {
        "s/x": None,
        "s/2": None,
        "s/2/y": None,
    }


def test_handlers_of_events_come_before_the_next_step() -> None:
    graph = graph_of(uses("a", on_events={"e": [uses("h"), uses()], "f": [uses("g")]}), uses("b"))
    node = graph.nodes["a"]
    assert isinstance(node, UseNode)
    assert node.on_events == {"e": "a/e/h", "f": "a/f/g"}
    assert {path: node.next for path, node in graph.nodes.items()} == {
        "a": "b",
        "a/e/h": "a/e/2",
        "a/e/2": "b",
        "a/f/g": "b",
        "b": None,
    }


def test_a_handler_without_steps_is_left_out() -> None:
    """Such events go straight to the next step, like those of unlisted types."""
    node = graph_of(uses("a", on_events={"e": []}), uses("b")).nodes["a"]
    assert isinstance(node, UseNode)
    assert node.on_events == {}


def test_an_event_type_with_a_slash_does_not_collide_with_a_path() -> None:
    """A step is identified by its path, so no two steps may share one."""
    handlers = {"e": [{"steps": [uses(plugin="q")]}], "e/1": [uses(plugin="r")], "e~11": [uses()]}
    graph = graph_of(uses("a", on_events=handlers))
    assert len(graph.nodes) == 5
    node = graph.nodes["a"]
    assert isinstance(node, UseNode)
    plugins = []
    for path in node.on_events.values():
        first = graph.nodes[path]
        inner = graph.nodes[first.first] if isinstance(first, BlockNode) else first
        assert isinstance(inner, UseNode)
        plugins.append(inner.plugin)
    assert plugins == ["q", "r", "p"]


def test_a_called_pipeline_is_inlined() -> None:
    """Paths are `call-id/step-id`; a pipeline called twice has its steps twice."""
    inner = {"name": "inner", "if": HIGH, "steps": [uses("x"), uses("y")]}
    steps = [{"id": "c", "call": "inner", "if": LOW}, {"call": "inner"}, uses("z")]
    graph = policy_of(inner, {"name": "flow", "steps": steps}).pipelines.by_name["flow"].graph
    assert {path: node.next for path, node in graph.nodes.items()} == {
        "c": "2",
        "c/x": "c/y",
        "c/y": "2",
        "2": "z",
        "2/x": "2/y",
        "2/y": "z",
        "z": None,
    }
    first, second = graph.nodes["c"], graph.nodes["2"]
    assert isinstance(first, BlockNode)
    assert first.call == "inner"
    assert isinstance(first.condition, AllOf)
    assert isinstance(second.condition, PathComparison)


def test_positions_follow_the_written_order() -> None:
    graph = graph_of(
        split("s", uses("x", on_events={"e": [uses("h")]}), uses("y")),
        {"id": "n", "steps": [uses("a")]},
        uses("z"),
    )
    ordered = sorted(graph.nodes, key=lambda path: graph.nodes[path].position)
    assert ordered == ["s", "s/x", "s/x/e/h", "s/y", "n", "n/a", "z"] == list(graph.nodes)


def test_a_step_inherits_the_open_retry_settings_of_its_plugin() -> None:
    node = graph_of(uses("a", retry={"max_attempts": 7}, timeout="5s")).step("a")
    assert node is not None
    assert node.retry is not None
    assert node.retry.policy == RetryPolicy(
        max_attempts=7, backoff_base=timedelta(seconds=1), backoff_max=timedelta(seconds=1)
    )
    assert node.timeout == 5.0
    plain = graph_of(uses("a")).step("a")
    assert plain is not None
    assert (plain.retry, plain.timeout) == (None, None)


def test_the_fingerprint_identifies_the_graph() -> None:
    """A run finds its graph by the fingerprint."""
    original = graph_of(uses("a"), uses("b"))
    assert graph_of(uses("a"), uses("b")).fingerprint == original.fingerprint
    changed = [
        graph_of(uses("a"), uses("c")),
        graph_of(uses("a"), uses("b", plugin="q")),
        graph_of(uses("a"), uses("b", with_={"x": 1})),
        graph_of(uses("a"), uses("b", if_=LOW)),
        graph_of(uses("a"), uses("b", timeout="1s")),
        graph_of(uses("a"), uses("b", baggage={"k": "payload.n"})),
        graph_of(uses("a", on_events={"e": [uses("h")]}), uses("b")),
    ]
    assert len({graph.fingerprint for graph in [original, *changed]}) == 8


def test_the_triggers_of_a_pipeline() -> None:
    policy = policy_of(
        {"name": "first", "on": "found", "steps": [uses()]},
        {"name": "second", "on": "found", "from_plugin": "q", "steps": [uses()]},
        {"name": "hooked", "on-hook": "job.failed", "steps": [uses()], "notify_on_complete": True},
        {"name": "neither", "steps": [uses()]},
    )
    table = policy.pipelines
    assert [pipeline.name for pipeline in table.started_by("found", "q")] == ["first", "second"]
    assert [pipeline.name for pipeline in table.started_by("found", "p")] == ["first"]
    assert table.started_by("lost", "p") == ()
    assert [pipeline.name for pipeline in table.started_by_hook(Hook.FAILED, "any")] == ["hooked"]
    assert table.started_by_hook(Hook.COMPLETED, "any") == ()
    assert table.by_name["hooked"].notify_on_complete


def test_a_pipeline_that_nests_too_deep_is_refused() -> None:
    """Each pipeline calls the one before it; the stack must not overflow."""
    calls = [{"name": f"p{number}", "steps": [{"call": f"p{number - 1}"}]} for number in range(1, 400)]
    with pytest.raises(ConfigError) as excinfo:
        policy_of({"name": "p0", "steps": [uses()]}, *calls)
    first = excinfo.value.problems[0]
    assert (first.key, "100 levels deep" in first.message) == ("pipelines[101].steps", True)


def test_a_pipeline_with_too_many_steps_is_refused() -> None:
    """Each pipeline calls the one before it ten times, which makes thousands of steps."""
    calls = [{"name": f"p{number}", "steps": [{"call": f"p{number - 1}"}] * 10} for number in (1, 2, 3)]
    pipelines: list[dict[str, Any]] = [{"name": "p0", "steps": [uses()] * 10}, *calls]
    with pytest.raises(ConfigError) as excinfo:
        policy_of(*pipelines)
    assert [problem.key for problem in excinfo.value.problems] == ["pipelines[2].steps", "pipelines[3].steps"]
