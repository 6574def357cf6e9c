"""Random pipelines as settings. Their plugins are `steady` and `weak`; the payload of the run has `n`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hypothesis import strategies as st

EVENT_TYPES = ("a", "b")
IN_MEMORY = "/dev/shm" if Path("/dev/shm").is_dir() else None  # noqa: S108 - tests create a directory of their own in it

CONDITIONS: tuple[dict[str, Any], ...] = (
    {"path": "payload.n", "op": "lt", "value": 4},
    {"path": "payload.n", "op": "exists"},
    {"not": {"path": "payload.branches", "op": "exists"}},
    {"path": "event.type", "op": "eq", "value": "a"},
    {"not": {"path": "event.type", "op": "eq", "value": "ductile.split.joined"}},
    {"path": "context.kept", "op": "exists"},
    {"path": "run.payload.n", "op": "lt", "value": 4},
    {
        "all": [
            {"path": "payload.n", "op": "lt", "value": 6},
            {"path": "context.kept", "op": "lt", "value": 5},
        ]
    },
)


CLAIMED = ("payload.n", "payload.result", "payload.branches", "run.payload.n")


@st.composite
def written_steps(
    draw: st.DrawFn, depth: int, calls: tuple[str, ...], ids: list[int]
) -> list[dict[str, Any]]:
    count = draw(st.integers(1, 3))
    return [draw(written_step(depth, calls, ids)) for _ in range(count)]


@st.composite
def written_step(draw: st.DrawFn, depth: int, calls: tuple[str, ...], ids: list[int]) -> dict[str, Any]:
    kinds = ["uses", "uses", "uses"]
    kinds += ["split", "split", "steps"] if depth > 0 else []
    kinds += ["call"] if calls else []
    step: dict[str, Any] = {}
    if draw(st.booleans()):
        ids.append(len(ids))
        step["id"] = f"s{ids[-1]}"
    if draw(st.integers(0, 3)) == 0:
        step["if"] = draw(st.sampled_from(CONDITIONS))
    match draw(st.sampled_from(kinds)):
        case "uses":
            step |= draw(written_use(depth, calls, ids))
        case "split":
            count = draw(st.integers(1, 3))
            step["split"] = [draw(written_step(depth - 1, calls, ids)) for _ in range(count)]
            if draw(st.booleans()):
                step["join"] = "always"
        case "steps":
            step["steps"] = draw(written_steps(depth - 1, calls, ids))
        case "call":
            step["call"] = draw(st.sampled_from(calls))
    if "uses" not in step and draw(st.integers(0, 3)) == 0:
        step["baggage"] = {"kept": draw(st.sampled_from(CLAIMED))}
    return step


@st.composite
def written_use(draw: st.DrawFn, depth: int, calls: tuple[str, ...], ids: list[int]) -> dict[str, Any]:
    step: dict[str, Any] = {"uses": draw(st.sampled_from(["steady"] * 9 + ["weak"]))}
    extra = draw(st.integers(0, 7))
    if extra == 0:
        step["with"] = {"n": "{payload.n}"}
    if extra == 1:
        step["with"] = {"all": "{payload}", "kept": "{context.kept}"}
    if extra in (2, 3):
        step["baggage"] = {"kept": draw(st.sampled_from(CLAIMED))}
    if extra == 5:
        step["with"] = {"first": "{run.payload}", "n": "{run.payload.n}", "of": "{run.pipeline}"}
    if extra == 4 and depth > 0:
        step["on_events"] = {draw(st.sampled_from(EVENT_TYPES)): draw(written_steps(depth - 1, calls, ids))}
    return step


@st.composite
def written_pipelines(draw: st.DrawFn) -> list[dict[str, Any]]:
    inner = {"name": "inner", "steps": draw(written_steps(1, (), []))}
    if draw(st.booleans()):
        inner["if"] = draw(st.sampled_from(CONDITIONS))
    outer = {"name": "flow", "on": "go", "steps": draw(written_steps(3, ("inner",), []))}
    # No event starts this pipeline. Because it claims `kept`, all pipelines may refer to it.
    claims = {"uses": "steady", "baggage": {"kept": "payload.n"}}
    return [inner, outer, {"name": "keeper", "steps": [claims, {"call": "inner"}]}]
