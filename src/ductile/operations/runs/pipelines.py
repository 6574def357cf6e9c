"""Pipelines as people see them: which there are, what they are made of, how they look, how a run gets on."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from enum import StrEnum

from ductile.config.secrets import redact
from ductile.config.snapshot import Snapshot
from ductile.core.durations import format_duration
from ductile.core.events.routing import Pipeline
from ductile.core.expressions.redacted_quote import MASK
from ductile.core.jobs.model import TERMINAL, SubmittedBy
from ductile.core.json import JsonObject, JsonValue
from ductile.core.runs.graph import RUN_PLUGIN, Graph, UseNode
from ductile.core.runs.graph_codec import graph_to_json
from ductile.core.runs.mermaid import to_mermaid
from ductile.core.runs.svg import to_svg
from ductile.core.runs.tree import TreeStep, build_tree, iter_steps, summarise_condition
from ductile.operations import parameters as read
from ductile.operations.context import OperationContext
from ductile.operations.jobs.documents import instant, shown_job
from ductile.operations.jobs.log import follow_seconds, wait_for_change
from ductile.operations.jobs.lookup import find_job, resolve_job
from ductile.operations.runs.start import known_pipeline, publish_event, start_pipeline
from ductile.operations.submission import Source
from ductile.store.model.records import LARGEST_PAGE, JobFilter


class Drawing(StrEnum):
    MERMAID = "mermaid"
    SVG = "svg"


_CLI = Source(submitted_by=SubmittedBy.CLI)


async def run_from_cli(context: OperationContext, given: JsonObject) -> JsonObject:
    """Start a run. Whoever asks here waits for the job, not for the answer: no slot is taken."""
    return (await start_pipeline(context, _CLI, given | {"async": True})).body


async def send_from_cli(context: OperationContext, given: JsonObject) -> JsonObject:
    return await publish_event(context, _CLI, given)


async def list_pipelines(context: OperationContext, _given: JsonObject) -> JsonObject:
    """Every pipeline of the configuration, with its latest run."""
    snapshot = context.snapshot()
    listed: list[JsonValue] = []
    for pipeline in snapshot.rules.pipelines.by_name.values():
        where = JobFilter(plugin=RUN_PLUGIN, command=pipeline.name)
        latest = (await context.store.jobs(where, limit=1)).rows
        last: JsonValue = None
        if latest:
            last = {
                "job_id": latest[0].id,
                "status": latest[0].status,
                "reason": latest[0].reason,
                "created_at": instant(latest[0].created_at),
            }
        listed.append({**_summary(snapshot, pipeline), "last_run": last})
    return {"pipelines": listed}


def describe_pipeline(snapshot: Snapshot, name: str) -> JsonObject:
    """One pipeline with its compiled graph and, for people, the same steps nested as they are written."""
    pipeline = known_pipeline(snapshot, name)
    settings = snapshot.pipelines[name]
    is_secret = snapshot.rules.is_secret
    condition = None if pipeline.condition is None else summarise_condition(pipeline.condition, is_secret)
    return {
        **_summary(snapshot, pipeline),
        "if": condition,
        "timeout": format_duration(settings.timeout),
        "return_on_timeout": settings.return_on_timeout,
        "on_timeout": settings.on_timeout,
        "notify_on_complete": pipeline.notify_on_complete,
        "tree": [_branch(item) for item in build_tree(pipeline.graph, is_secret)],
        "graph": {**_shown_graph(pipeline.graph, is_secret), "fingerprint": pipeline.graph.fingerprint},
    }


def draw_pipeline(snapshot: Snapshot, name: str, drawing: Drawing) -> str:
    pipeline = known_pipeline(snapshot, name)
    items = build_tree(pipeline.graph, snapshot.rules.is_secret)
    trigger = trigger_of(pipeline) or name
    match drawing:
        case Drawing.MERMAID:
            return to_mermaid(items, trigger)
        case Drawing.SVG:
            return to_svg(items, name, trigger)


async def follow_run(context: OperationContext, given: JsonObject) -> JsonObject:
    """How a run gets on: answers when more of its steps have ended than the caller knows of.

    Or when the run itself has, the time is up, or the daemon stops; `stopping` tells the last. Only the
    latest steps are looked at: of a run with hundreds of them nobody reads every one as it ends.
    """
    engine = context.require_engine()
    run = await resolve_job(context, read.text(given, "job_id"))
    known = read.number(given, "known", 0, least=0, most=1 << 31)
    deadline = asyncio.get_running_loop().time() + follow_seconds(given)
    with engine.ledger_changes() as changed:
        while True:
            changed.clear()
            # The run first: whatever ended before it is then seen.
            over = (await find_job(context, run.id)).status in TERMINAL
            latest = (await context.store.jobs(JobFilter(run_id=run.id), limit=LARGEST_PAGE)).rows
            ended = [job for job in latest[::-1] if job.status in TERMINAL]
            stopping = engine.stopping
            left = deadline - asyncio.get_running_loop().time()
            if over or stopping or len(ended) > known or left <= 0:
                return {"ended": [shown_job(job) for job in ended], "over": over, "stopping": stopping}
            await wait_for_change(changed, left)


def trigger_of(pipeline: Pipeline) -> str | None:
    """What starts it, in words; None if it is only called by name or by other pipelines."""
    by = f" of {pipeline.from_plugin}" if pipeline.from_plugin else ""
    if pipeline.on is not None:
        return f"on {pipeline.on}{by}"
    return None if pipeline.on_hook is None else f"on-hook {pipeline.on_hook}{by}"


def _summary(snapshot: Snapshot, pipeline: Pipeline) -> JsonObject:
    items = build_tree(pipeline.graph, snapshot.rules.is_secret)
    return {
        "name": pipeline.name,
        "on": pipeline.on,
        "on_hook": pipeline.on_hook,
        "from_plugin": pipeline.from_plugin,
        "trigger": trigger_of(pipeline),
        "execution_mode": snapshot.pipelines[pipeline.name].execution_mode,
        "steps": sum(isinstance(item.node, UseNode) for item in iter_steps(items)),
    }


def _branch(item: TreeStep) -> JsonValue:
    parts: list[JsonValue] = [
        {"kind": group.kind, "name": group.name, "steps": [_branch(inner) for inner in group.steps]}
        for group in item.groups
    ]
    return {
        "path": item.node.path,
        "id": item.id,
        "does": item.node.label.title,
        "if": item.condition,
        "inside": parts,
    }


def _shown_graph(graph: Graph, is_secret: Callable[[str], bool]) -> JsonObject:
    """The compiled graph with nothing secret in it: what `with` builds and conditions compare may be."""
    shown = graph_to_json(graph)
    nodes = shown["nodes"]
    masked: list[JsonValue] = [
        _shown_node(node, is_secret) for node in (nodes if isinstance(nodes, list) else ())
    ]
    return {**shown, "nodes": masked}


def _shown_node(node: JsonValue, is_secret: Callable[[str], bool]) -> JsonValue:
    if not isinstance(node, dict):
        return node
    shown = dict(node)
    if "with" in shown:
        shown["with"] = redact(shown["with"])
    if "if" in shown:
        shown["if"] = _masked_condition(shown["if"], is_secret)
    return shown


def _masked_condition(value: JsonValue, is_secret: Callable[[str], bool]) -> JsonValue:
    """Of a comparison with something secret: not what it is compared with."""
    if isinstance(value, list):
        return [_masked_condition(inner, is_secret) for inner in value]
    if not isinstance(value, dict):
        return value
    path = value.get("path")
    if not isinstance(path, str):
        return {key: _masked_condition(inner, is_secret) for key, inner in value.items()}
    return {**value, "value": MASK} if any(is_secret(key) for key in path.split(".")) else value
