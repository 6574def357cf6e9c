"""`pipeline check`: finds steps that cannot run, and shows which steps a payload would start.

The dry run of a payload uses the function that starts real runs. It ends at the first steps: later steps
depend on the responses of those.
"""

from __future__ import annotations

from datetime import datetime
from random import Random

from ductile.config.secrets import redact
from ductile.config.snapshot import Snapshot
from ductile.core.events.model import NewEvent
from ductile.core.events.routing import EventProducer, start_refusal
from ductile.core.expressions.conditions import ConditionError, evaluate_condition, explain_condition
from ductile.core.ids import make_id
from ductile.core.jobs.model import NewJob, SubmittedBy
from ductile.core.json import JsonObject, JsonValue
from ductile.core.runs.advance import build_eval_context
from ductile.core.runs.graph import RUN_PLUGIN, UseNode
from ductile.core.runs.progress import start_first_steps
from ductile.core.runs.state import NewRun, NewStep, RunInfo
from ductile.operations.runs.start import known_pipeline
from ductile.struct import Value


class PipelineCheck(Value):
    name: str
    steps: int
    #: Steps whose plugin cannot run: the path of the step, and the reason.
    faults: tuple[tuple[str, str], ...]


def check_pipelines(snapshot: Snapshot, name: str | None = None) -> tuple[PipelineCheck, ...]:
    """Return whether each step of the pipelines, or of one, could run now. Raises NotFoundError."""
    table = snapshot.policy.pipelines.by_name
    pipelines = table.values() if name is None else (known_pipeline(snapshot, name),)
    checks = []
    for pipeline in pipelines:
        steps = [node for node in pipeline.graph.nodes.values() if isinstance(node, UseNode)]
        faults = []
        for step in steps:
            plugin = snapshot.plugins.get(step.plugin)
            if plugin is not None and not plugin.enabled:
                faults.append((step.path, f"the plugin {plugin.name} is disabled"))
            elif plugin is not None and plugin.refused is not None:
                faults.append((step.path, f"the plugin {plugin.name} cannot run: {plugin.refused.reason}"))
        checks.append(PipelineCheck(name=pipeline.name, steps=len(steps), faults=tuple(faults)))
    return tuple(checks)


def dry_run_payload(
    snapshot: Snapshot, name: str, payload: JsonObject, *, now: datetime, rng: Random
) -> JsonObject:
    """Return the first steps of a run with this payload: those that run, are bypassed, or cannot be made."""
    pipeline = known_pipeline(snapshot, name)
    event = NewEvent(
        id=make_id(now, rng), type=pipeline.on or "cli.trigger", source=SubmittedBy.CLI, payload=payload
    )
    refusal = start_refusal(pipeline, event, EventProducer(submitted_by=SubmittedBy.CLI), snapshot.policy)
    if refusal is not None:
        reason = refusal.get("explanation") or refusal.get("error")
        return {"pipeline": name, "starts": False, "because": reason, "steps": []}
    job = NewJob(
        id=make_id(now, rng),
        plugin=RUN_PLUGIN,
        command=pipeline.name,
        submitted_by=SubmittedBy.CLI,
        max_attempts=1,
    )
    run = NewRun(job=job, graph=pipeline.graph, event=event)
    info = run.info()
    progress = start_first_steps(run, info, {}, snapshot.policy, now, rng)
    outcomes: dict[str, JsonObject] = {}
    for entry in progress.ledger:
        bypassed = "error" not in entry.data
        outcomes[str(entry.data["step"])] = {
            "outcome": "bypassed" if bypassed else "not_made",
            "because": entry.data.get("explanation" if bypassed else "error"),
        }
    for step in progress.steps:
        outcomes[step.job.step_path or ""] = _step_outcome(step, event, info, snapshot)
    skipped = [path for path, outcome in outcomes.items() if outcome["outcome"] == "bypassed"]
    steps: list[JsonValue] = []
    for node in sorted(pipeline.graph.nodes.values(), key=lambda node: node.position):
        if node.path in outcomes:
            steps.append({"step": node.path, **outcomes[node.path]})
        elif isinstance(node, UseNode) and not any(node.path.startswith(f"{path}/") for path in skipped):
            steps.append({"step": node.path, "outcome": "later", "because": None})
    return {"pipeline": name, "starts": True, "because": None, "steps": steps}


def _step_outcome(step: NewStep, event: NewEvent, info: RunInfo, snapshot: Snapshot) -> JsonObject:
    """Return the payload of a first step and why it runs, or why it cannot be made."""
    target: JsonObject = {"plugin": step.job.plugin, "command": step.job.command}
    if step.fault is not None:
        return {"outcome": "not_made", "because": step.fault.error, **target}
    names = (step.job.step_path or "").split("/")
    paths = ["/".join(names[:count]) for count in range(1, len(names) + 1)]
    # The step, after the nodes that contain it.
    nodes = [info.graph.nodes[path] for path in paths if path in info.graph.nodes]
    because = []
    for node in nodes:
        if node.condition is None:
            continue
        config = snapshot.policy.plugin(node.plugin).config if isinstance(node, UseNode) else {}
        values = build_eval_context(event, {}, info, config)
        try:
            verdict = evaluate_condition(node.condition, values, is_secret=snapshot.policy.is_secret)
        except ConditionError:
            continue
        # The condition of a step after a split saw the results of the branches and not this payload.
        if verdict.is_true:
            reason = explain_condition(verdict)
            because.append(reason if node.path == step.job.step_path else f"{node.path}: {reason}")
    payload = event.payload if step.job.payload is None else step.job.payload
    return {"outcome": "runs", "because": "; ".join(because) or None, **target, "payload": redact(payload)}
