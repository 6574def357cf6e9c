"""Whatever the pipelines: a reference to context that is refused never finds a value in a run."""

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
    made: dict[str, Any] = {"id": f"s{len(ids)}"}
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
            made |= {"uses": draw(st.sampled_from(PLUGINS)), **draw(st.sampled_from([READS, CLAIMS, {}]))}
            if kind == "on_events":
                made["on_events"] = {draw(st.sampled_from(EVENT_TYPES)): draw(steps(depth - 1, calls, ids))}
        case "split":
            made["split"] = [draw(step(depth - 1, calls, ids)) for _ in range(draw(st.integers(1, 3)))]
        case "steps":
            made["steps"] = draw(steps(depth - 1, calls, ids))
        case "call":
            made["call"] = draw(st.sampled_from(calls))
    if "uses" not in made and draw(st.booleans()):
        made |= CLAIMS
    return made


@st.composite
def pipelines(draw: st.DrawFn) -> list[dict[str, Any]]:
    ids: list[int] = []
    inner = {"name": "inner", "steps": draw(steps(1, (), ids))}
    return [inner, {"name": "flow", "steps": draw(steps(2, ("inner",), ids))}]


def refused_steps(written: list[dict[str, Any]]) -> set[str]:
    """The ids of the steps whose reference is refused."""
    config = json.dumps({"plugins": {name: {} for name in PLUGINS}, "pipelines": written})
    with tempfile.TemporaryDirectory() as directory:
        try:
            loaded(a_config(Path(directory), config))
        except ConfigError as error:
            return {_step_at(str(problem.key), written) for problem in error.problems}
    return set()


def _step_at(key: str, written: list[dict[str, Any]]) -> str:
    at: Any = {"pipelines": written}
    for name, index in re.findall(r"(\w+)|\[(\d+)\]", key.removesuffix(".with.kept")):
        at = at[int(index)] if index else at[name]
    return str(at["id"])


def behave(_plugin: str, path: str, payload: str) -> Behaviour:
    events = tuple((kind, {"n": 1}) for kind in EVENT_TYPES)
    return Behaviour(stdout="{}", result=path, events=events if len(payload) % 2 else ())


@settings(max_examples=150, deadline=None)
@given(written=pipelines())
def test_a_refused_reference_never_has_a_value(written: list[dict[str, Any]]) -> None:
    refused = refused_steps(written)
    event("refused" if refused else "accepted")
    by_name = {pipeline["name"]: pipeline for pipeline in written}
    for name in by_name:  # each of them can be started by name
        try:
            ran = Interpreter(by_name, behave, most_jobs=500).run(name, "go", {"n": 1}).executions
        except UndecidedError:
            assume(False)
        found = {path.rpartition("/")[2] for path, _, _ in ran}
        assert not refused & found
