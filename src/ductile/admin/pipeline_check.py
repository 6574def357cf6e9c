"""Checking pipelines before they run: what the configuration shows, and what a payload would do.

A dry run asks the same function that begins a real run, so it cannot promise anything else. It stops where
the first steps would run: what comes after them depends on what they answer.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from random import Random

from ductile.config.secrets import redact
from ductile.config.snapshot import Snapshot
from ductile.core.events.dispatch import EventProducer, start_refusal
from ductile.core.events.model import NewEvent
from ductile.core.events.routing import Pipeline
from ductile.core.expressions.conditions import ConditionError, evaluate_condition, explain_condition
from ductile.core.ids import make_id
from ductile.core.jobs.model import NewJob, SubmittedBy
from ductile.core.json import JsonObject, JsonValue
from ductile.core.runs.advance import build_eval_context
from ductile.core.runs.graph import RUN_PLUGIN, Node, UseNode
from ductile.core.runs.progress import start_first_steps
from ductile.core.runs.state import NewRun, NewStep, RunInfo
from ductile.operations.runs.start import known_pipeline
from ductile.struct import Value


class PipelineCheck(Value):
    """What is known of one pipeline without running it."""

    name: str
    steps: int
    #: Steps that would end at once because their plugin cannot run: the step, and why.
    faults: tuple[tuple[str, str], ...]


def check_pipelines(snapshot: Snapshot, name: str | None = None) -> tuple[PipelineCheck, ...]:
    """Of a configuration that could be loaded: whether each step could be run as things are."""
    table = snapshot.rules.pipelines.by_name
    chosen = table.values() if name is None else (known_pipeline(snapshot, name),)
    return tuple(
        PipelineCheck(
            name=pipeline.name,
            steps=sum(isinstance(node, UseNode) for node in pipeline.graph.nodes.values()),
            faults=tuple(_faults(pipeline, snapshot)),
        )
        for pipeline in chosen
    )


def _faults(pipeline: Pipeline, snapshot: Snapshot) -> Iterator[tuple[str, str]]:
    for node in pipeline.graph.nodes.values():
        plugin = snapshot.plugins.get(node.plugin) if isinstance(node, UseNode) else None
        if plugin is None:
            continue
        if not plugin.enabled:
            yield node.path, f"the plugin {plugin.name} is disabled"
        elif plugin.refused is not None:
            yield node.path, f"the plugin {plugin.name} cannot run: {plugin.refused.reason}"


def dry_run_payload(
    snapshot: Snapshot, name: str, payload: JsonObject, *, now: datetime, rng: Random
) -> JsonObject:
    """What a run with this payload would begin with: steps that run, are bypassed, or cannot be made."""
    pipeline = known_pipeline(snapshot, name)
    event = NewEvent(
        id=make_id(now, rng), type=pipeline.on or "cli.trigger", source=SubmittedBy.CLI, payload=payload
    )
    why = start_refusal(pipeline, event, EventProducer(submitted_by=SubmittedBy.CLI), snapshot.rules)
    if why is not None:
        told = why.get("explanation") or why.get("error")
        return {"pipeline": name, "starts": False, "because": told, "steps": []}
    return {
        "pipeline": name,
        "starts": True,
        "because": None,
        "steps": _begun(pipeline, event, snapshot, now, rng),
    }


def _begun(
    pipeline: Pipeline, event: NewEvent, snapshot: Snapshot, now: datetime, rng: Random
) -> list[JsonValue]:
    job = NewJob(
        id=make_id(now, rng),
        plugin=RUN_PLUGIN,
        command=pipeline.name,
        submitted_by=SubmittedBy.CLI,
        max_attempts=1,
    )
    facts = RunInfo(id=job.id, graph=pipeline.graph, hops=0, trace_id=None)
    run = NewRun(job=job, graph=pipeline.graph, event=event)
    progress = start_first_steps(run, facts, {}, snapshot.rules, now, rng)
    told: dict[str, JsonObject] = {}
    for entry in progress.ledger:
        bypass = {"outcome": "bypassed", "because": entry.data.get("explanation")}
        fault = {"outcome": "not_made", "because": entry.data.get("error")}
        told[str(entry.data["step"])] = fault if "error" in entry.data else bypass
    for step in progress.steps:
        told[step.job.step_path or ""] = _step(step, event, facts, snapshot)
    passed = [path for path, outcome in told.items() if outcome["outcome"] == "bypassed"]
    shown: list[JsonValue] = []
    for node in sorted(pipeline.graph.nodes.values(), key=lambda node: node.position):
        if node.path in told:
            shown.append({"step": node.path, **told[node.path]})
        elif isinstance(node, UseNode) and not any(node.path.startswith(f"{path}/") for path in passed):
            shown.append({"step": node.path, "outcome": "later", "because": None})
    return shown


def _step(step: NewStep, event: NewEvent, facts: RunInfo, snapshot: Snapshot) -> JsonObject:
    target: JsonObject = {"plugin": step.job.plugin, "command": step.job.command}
    if step.fault is not None:
        return {"outcome": "not_made", "because": step.fault.error, **target}
    because = [
        f"{node.path}: {told}" if node.path != step.job.step_path else told
        for node in _on_the_way(step.job.step_path or "", facts)
        if (told := _why(node, event, facts, snapshot)) is not None
    ]
    payload = event.payload if step.job.payload is None else step.job.payload
    return {"outcome": "runs", "because": "; ".join(because) or None, **target, "payload": redact(payload)}


def _on_the_way(path: str, facts: RunInfo) -> list[Node]:
    """The step and what it lies in, from the outside in."""
    words = path.split("/")
    paths = ["/".join(words[:number]) for number in range(1, len(words) + 1)]
    return [facts.graph.nodes[each] for each in paths if each in facts.graph.nodes]


def _why(node: Node, event: NewEvent, facts: RunInfo, snapshot: Snapshot) -> str | None:
    """Of a condition that let the line pass: the comparisons that decided."""
    if node.condition is None:
        return None
    config = snapshot.rules.plugin(node.plugin).config if isinstance(node, UseNode) else {}
    try:
        verdict = evaluate_condition(
            node.condition, build_eval_context(event, {}, facts, config), is_secret=snapshot.rules.is_secret
        )
    except ConditionError:
        return None
    # A step behind a split saw what the branches made, and not this payload.
    return explain_condition(verdict) if verdict.holds else None
