"""For any pipelines, a reference to context that is refused never finds a value in a run."""

from __future__ import annotations

import json
import re
import tempfile
from pathlib import Path
from typing import Any

from hypothesis import assume, event, given, settings
from hypothesis import strategies as st

from builders.configs import a_config, loaded
from builders.pipeline_meaning import Behaviour, Interpreter, UndecidedError
from ductile.errors import ConfigError

PLUGINS = ("p", "q")
EVENT_TYPES = ("a", "b")
READS = {"with": {"kept": "{context.kept}"}}
CLAIMS = {"baggage": {"kept": "payload.n"}}


@st.composite
def steps(draw: st.DrawFn, depth: int, calls: tuple[str, ...], ids: list[int]) -> list[dict[str, Any]]:
    return [draw(step(depth, calls, ids)) for _ in range(draw(st.integers(1, 3)))]


@st.composite
def step(draw: st.DrawFn, depth: int, calls: tuple[str, ...], ids: list[int]) -> dict[str, Any]:
    ids.append(len(ids))
    step_settings: dict[str, Any] = {"id": f"s{len(ids)}"}
    kinds = [
        "uses",
        "uses",
        "uses",
        *(["split", "steps", "on_events"] if depth else []),
        *(["call"] if calls else []),
    ]
    kind = draw(st.sampled_from(kinds))
    match kind:
        case "uses" | "on_events":
            step_settings |= {
                "uses": draw(st.sampled_from(PLUGINS)),
                **draw(st.sampled_from([READS, CLAIMS, {}])),
            }
            if kind == "on_events":
                step_settings["on_events"] = {
                    draw(st.sampled_from(EVENT_TYPES)): draw(steps(depth - 1, calls, ids))
                }
        case "split":
            step_settings["split"] = [
                draw(step(depth - 1, calls, ids)) for _ in range(draw(st.integers(1, 3)))
            ]
        case "steps":
            step_settings["steps"] = draw(steps(depth - 1, calls, ids))
        case "call":
            step_settings["call"] = draw(st.sampled_from(calls))
    if "uses" not in step_settings and draw(st.booleans()):
        step_settings |= CLAIMS
    return step_settings


@st.composite
def pipelines(draw: st.DrawFn) -> list[dict[str, Any]]:
    ids: list[int] = []
    inner = {"name": "inner", "steps": draw(steps(1, (), ids))}
    return [inner, {"name": "flow", "steps": draw(steps(2, ("inner",), ids))}]


def refused_steps(pipeline_list: list[dict[str, Any]]) -> set[str]:
    """Return the ids of the steps whose reference is refused."""
    config = json.dumps({"plugins": {name: {} for name in PLUGINS}, "pipelines": pipeline_list})
    with tempfile.TemporaryDirectory() as directory:
        try:
            loaded(a_config(Path(directory), config))
        except ConfigError as error:
            return {_step_at(str(problem.key), pipeline_list) for problem in error.problems}
    return set()


def _step_at(key: str, pipeline_list: list[dict[str, Any]]) -> str:
    node: Any = {"pipelines": pipeline_list}
    for name, index in re.findall(r"(\w+)|\[(\d+)\]", key.removesuffix(".with.kept")):
        node = node[int(index)] if index else node[name]
    return str(node["id"])


def behave(_plugin: str, path: str, payload: str) -> Behaviour:
    events = tuple((kind, {"n": 1}) for kind in EVENT_TYPES)
    return Behaviour(stdout="{}", result=path, events=events if len(payload) % 2 else ())


@settings(max_examples=150, deadline=None)
@given(pipeline_list=pipelines())
def test_a_refused_reference_never_has_a_value(pipeline_list: list[dict[str, Any]]) -> None:
    refused = refused_steps(pipeline_list)
    event("refused" if refused else "accepted")
    by_name = {pipeline["name"]: pipeline for pipeline in pipeline_list}
    for name in by_name:  # each pipeline can be started by name
        try:
            executed = Interpreter(by_name, behave, most_jobs=500).run(name, "go", {"n": 1}).executions
        except UndecidedError:
            assume(False)
        step_ids = {path.rpartition("/")[2] for path, _, _ in executed}
        assert not refused & step_ids
