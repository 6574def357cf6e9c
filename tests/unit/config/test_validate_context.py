"""A reference to context is refused if and only if no step before it can have claimed the value."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from builders.configs import a_config, loaded, problems_of
from builders.pipelines import split, uses

READS = uses("reads", with_={"a": "{context.x}"})
CLAIMS = uses("claims", "q", baggage={"x": "payload.x"})
HAS_X = {"path": "context.x", "op": "exists"}


def a_flow(*steps: dict[str, Any], **keys: Any) -> dict[str, Any]:
    return {"name": "flow", **keys, "steps": list(steps)}


def write_config(directory: Path, *pipelines: dict[str, Any], **config: Any) -> Path:
    plugins: dict[str, Any] = {name: {} for name in "pqr"}
    return a_config(directory, json.dumps({"plugins": plugins, "pipelines": list(pipelines), **config}))


CALLER = {"name": "caller", "steps": [CLAIMS, {"call": "flow"}]}
OTHER = {"name": "other", "steps": [CLAIMS]}

NEVER: dict[str, tuple[list[dict[str, Any]], dict[str, Any]]] = {
    "nothing claims it": ([a_flow(READS)], {}),
    "its own claim comes after its `with`": ([a_flow({**CLAIMS, **READS})], {}),
    "a later step": ([a_flow(READS, CLAIMS)], {}),
    "another branch": ([a_flow(split("s", CLAIMS, READS))], {}),
    "a branch before the join": ([a_flow(split("s", CLAIMS), READS)], {}),
    "a pipeline that is not called": ([a_flow(READS), OTHER], {}),
    "after the call": ([a_flow(READS), {"name": "caller", "steps": [{"call": "flow"}, CLAIMS]}], {}),
    "the other plugin claims it": ([a_flow(READS, on="go", from_plugin="p"), OTHER], {}),
    "events from outside carry nothing": ([a_flow(READS, on="go", from_plugin="api"), OTHER], {}),
    "a hook after a run without": (
        [{**OTHER, "notify_on_complete": True}, a_flow(READS, **{"on-hook": "job.failed"})],
        {},
    ),
    "a route from elsewhere": (
        [a_flow(READS, on="go", from_plugin="r"), OTHER],
        {"routes": [{"from": "p", "event_type": "e", "to": "r"}]},
    ),
    "a condition": ([a_flow(uses(if_={"any": [{"not": HAS_X}]}), CLAIMS)], {}),
    "the condition of a pipeline": ([a_flow(uses(), **{"if": HAS_X})], {}),
    "a source of baggage": ([a_flow(uses(baggage={"y": "context.x"}), CLAIMS)], {}),
    "a claim beside it": (
        [a_flow(uses(baggage={"x.y": "payload.x"}), uses(with_={"a": "{context.x.z}"}))],
        {},
    ),
    "a name that only plugins see": ([a_flow(uses(with_={"a": "{context.ductile_step_id}"}))], {}),
}
POSSIBLE: dict[str, tuple[list[dict[str, Any]], dict[str, Any]]] = {
    "an earlier step": ([a_flow(CLAIMS, READS)], {}),
    "an earlier step that may be bypassed": (
        [a_flow({**CLAIMS, "if": {"path": "payload.x", "op": "exists"}}, READS)],
        {},
    ),
    "inside a block": ([a_flow({"steps": [CLAIMS]}, READS)], {}),
    "the block around it": ([a_flow({"steps": [READS], "baggage": {"x": "payload.x"}})], {}),
    "the split around it": ([a_flow(split("s", READS, baggage={"x": "payload.x"}))], {}),
    "the split before it": ([a_flow(split("s", uses(), baggage={"x": "payload.x"}), READS)], {}),
    "before the split": ([a_flow(CLAIMS, split("s", uses()), READS)], {}),
    "a called pipeline": ([a_flow({"call": "other"}, READS), OTHER], {}),
    "the caller": ([a_flow(READS), CALLER], {}),
    "the call itself": (
        [a_flow(READS), {"name": "caller", "steps": [{"call": "flow", "baggage": {"x": "payload.x"}}]}],
        {},
    ),
    "the caller of the caller": (
        [
            a_flow(READS),
            {"name": "mid", "steps": [{"call": "flow"}]},
            {"name": "top", "steps": [CLAIMS, {"call": "mid"}]},
        ],
        {},
    ),
    "a step for an event": ([a_flow(uses(on_events={"e": [CLAIMS]}), READS)], {}),
    "an event of a step that claims it": ([a_flow(READS, on="go"), OTHER], {}),
    "an event of that plugin": ([a_flow(READS, on="go", from_plugin="q"), OTHER], {}),
    "an event of a later step": (
        [a_flow(READS, on="go", from_plugin="p"), {"name": "other", "steps": [CLAIMS, uses()]}],
        {},
    ),
    "an event of a route's job": (
        [a_flow(READS, on="go", from_plugin="r"), OTHER],
        {"routes": [{"from": "q", "event_type": "e", "to": "r"}]},
    ),
    "an event that a started pipeline emits": (
        [
            a_flow(READS, on="go", from_plugin="r"),
            {"name": "mid", "on": "e", "steps": [uses(None, "r")]},
            OTHER,
        ],
        {},
    ),
    "a hook of a run that inherited it": (
        [
            a_flow(READS, **{"on-hook": "job.failed"}),
            {"name": "mid", "on": "e", "notify_on_complete": True, "steps": [uses()]},
            OTHER,
        ],
        {},
    ),
    "part of what is claimed": ([a_flow(CLAIMS, uses(with_={"a": "{context.x.y.0}"}))], {}),
    "an object around what is claimed": (
        [a_flow(uses(baggage={"x.y": "payload.x"}), READS)],
        {},
    ),
    "names of Ductile": (
        [a_flow(uses(with_={"a": "{context.ductile_pipeline}", "b": "{context.ductile_trace_id}"}))],
        {},
    ),
}


@pytest.mark.parametrize("name", NEVER)
def test_what_can_never_exist_is_refused(tmp_path: Path, name: str) -> None:
    pipelines, config = NEVER[name]
    (problem,) = problems_of(write_config(tmp_path, *pipelines, **config))
    assert "context." in problem.message
    assert problem.line is not None
    assert problem.hint is not None


@pytest.mark.parametrize("name", POSSIBLE)
def test_what_can_exist_is_accepted(tmp_path: Path, name: str) -> None:
    pipelines, config = POSSIBLE[name]
    assert loaded(write_config(tmp_path, *pipelines, **config)).model.pipelines


def test_the_message_names_the_place_and_the_similar_name(tmp_path: Path) -> None:
    flow = a_flow(uses(baggage={"order.id": "payload.id"}), uses(with_={"a": ["{context.ordr.id}"]}))
    (problem,) = problems_of(write_config(tmp_path, flow))
    assert problem.key == "pipelines[0].steps[1].with.a[0]"
    assert problem.hint == "did you mean context.order.id?"


def test_calls_that_double_at_each_level_are_followed_once(tmp_path: Path) -> None:
    """Forty levels of two calls each have about 10^12 steps."""
    levels = [
        {"name": f"l{number}", "steps": [{"call": f"l{number + 1}"}, {"call": f"l{number + 1}"}]}
        for number in range(40)
    ]
    pipelines = [*levels, {"name": "l40", "steps": [READS]}]
    (problem,) = problems_of(write_config(tmp_path, *pipelines))
    assert "no step claims context.x" in problem.message
