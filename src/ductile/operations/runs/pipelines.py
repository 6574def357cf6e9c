"""Pipelines: list, show, draw; and the progress of a run."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from enum import StrEnum
from typing import Annotated, Any

from msgspec import Meta

from ductile.config.schema.pipelines import OnTimeout, ReturnOnTimeout
from ductile.config.secrets import redact
from ductile.config.snapshot import Snapshot
from ductile.core.durations import format_duration
from ductile.core.events.model import Pipeline
from ductile.core.expressions.conditions import MASK
from ductile.core.jobs.model import TERMINAL, JobReason, JobStatus
from ductile.core.json import JsonValue
from ductile.core.runs.graph import RUN_PLUGIN, UseNode, graph_to_json
from ductile.engine.live_output import NOTHING_READ
from ductile.operations.context import OperationContext
from ductile.operations.jobs.documents import ListedJob, LiveOutputText, listed_job, live_output_text
from ductile.operations.jobs.log import FollowTimeout, follow
from ductile.operations.jobs.lookup import find_job, resolve_run
from ductile.operations.request import NoFields
from ductile.operations.response import Id, Response, Timestamp, from_record
from ductile.operations.runs.drawings import (
    TreeStep,
    build_tree,
    summarise_condition,
    to_mermaid,
    to_svg,
)
from ductile.operations.runs.start import known_pipeline
from ductile.protocol.manifest.model import ExecutionMode
from ductile.store.model.records import LARGEST_PAGE, JobFilter
from ductile.struct import Value, about, asdict, field


class PipelineSummary(Value):
    name: str
    on: str | None
    on_hook: str | None
    from_plugin: str | None
    trigger: Annotated[str | None, about("What starts it, in words.")]
    execution_mode: ExecutionMode
    steps: int


class LatestRun(Value):
    job_id: Id
    status: JobStatus
    reason: JobReason
    created_at: Timestamp


class ListedPipeline(PipelineSummary):
    last_run: LatestRun | None


class PipelineList(Response):
    pipelines: list[ListedPipeline]


async def list_pipelines(context: OperationContext, _request: NoFields) -> PipelineList:
    """Return every pipeline of the configuration, with its latest run."""
    snapshot, visible = context.snapshot(), context.for_started_jobs()
    listed = []
    for pipeline in snapshot.policy.pipelines.by_name.values():
        job_filter = JobFilter(plugin=RUN_PLUGIN, command=pipeline.name)
        last = None
        for job in (await visible.store.list_jobs(job_filter, limit=1)).rows:
            last = from_record(LatestRun, job, job_id=job.id)
        listed.append(ListedPipeline(**asdict(_summary(snapshot, pipeline)), last_run=last))
    return PipelineList(pipelines=listed)


class PipelineGroup(Value):
    kind: str
    name: str | None
    steps: list[PipelineStep]


class PipelineStep(Value):
    path: str
    id: str | None
    does: str
    condition: str | None = field(name="if")
    inside: list[PipelineGroup]


class PipelineDetail(PipelineSummary, Response):
    condition: str | None = field(name="if")
    timeout: str
    return_on_timeout: ReturnOnTimeout
    on_timeout: OnTimeout
    notify_on_complete: bool
    tree: list[PipelineStep]
    graph: dict[str, Any]


class ShowPipeline(Value):
    pipeline: Annotated[str, about("Name of the pipeline.")]


async def show_pipeline(context: OperationContext, request: ShowPipeline) -> PipelineDetail:
    """Return one pipeline of the configuration in force. Raises `NotFoundError`."""
    return describe_pipeline(context.snapshot(), request.pipeline)


def describe_pipeline(snapshot: Snapshot, name: str) -> PipelineDetail:
    """Return a pipeline with its compiled graph and, for people, the same steps nested as they are written.

    Secrets in the graph are masked. Raises `NotFoundError`.
    """
    pipeline = known_pipeline(snapshot, name)
    settings = snapshot.pipelines[name]
    is_secret = snapshot.policy.is_secret
    graph = graph_to_json(pipeline.graph)
    nodes = graph["nodes"]
    for node in nodes if isinstance(nodes, list) else ():
        if isinstance(node, dict) and "with" in node:
            node["with"] = redact(node["with"])
        if isinstance(node, dict) and "if" in node:
            node["if"] = _redacted_condition(node["if"], is_secret)
    return PipelineDetail(
        **asdict(_summary(snapshot, pipeline)),
        condition=None if pipeline.condition is None else summarise_condition(pipeline.condition, is_secret),
        timeout=format_duration(settings.timeout),
        return_on_timeout=settings.return_on_timeout,
        on_timeout=settings.on_timeout,
        notify_on_complete=pipeline.notify_on_complete,
        tree=[_pipeline_step(step) for step in build_tree(pipeline.graph, is_secret)],
        graph={**graph, "fingerprint": pipeline.graph.fingerprint},
    )


class Drawing(StrEnum):
    MERMAID = "mermaid"
    SVG = "svg"


class DrawPipeline(ShowPipeline):
    format: Annotated[Drawing, about("How it is drawn.")] = Drawing.MERMAID


class PipelineDrawing(Response):
    pipeline: str
    format: Drawing
    drawing: Annotated[str, about("Mermaid text, or an SVG document.")]


async def graph_of_pipeline(context: OperationContext, request: DrawPipeline) -> PipelineDrawing:
    """Return a drawing of a pipeline of the configuration in force. Raises `NotFoundError`."""
    drawn = draw_pipeline(context.snapshot(), request.pipeline, request.format)
    return PipelineDrawing(pipeline=request.pipeline, format=request.format, drawing=drawn)


def draw_pipeline(snapshot: Snapshot, name: str, drawing: Drawing) -> str:
    """Return the text of a drawing. Raises `NotFoundError` for an unknown pipeline."""
    pipeline = known_pipeline(snapshot, name)
    steps = build_tree(pipeline.graph, snapshot.policy.is_secret)
    trigger = trigger_of(pipeline) or name
    match drawing:
        case Drawing.MERMAID:
            return to_mermaid(steps, trigger)
        case Drawing.SVG:
            return to_svg(steps, name, trigger)


class FollowRun(Value):
    job_id: Annotated[str, about("The run.")]
    known: Annotated[int, Meta(ge=0, le=1 << 31, description="Ended steps that the caller knows of.")] = 0
    timeout: FollowTimeout = None
    live: Annotated[bool, about("Also what running steps print.")] = False
    position: Annotated[int | None, about("Output after this position.")] = None


class RunProgressReport(Response):
    ended: list[ListedJob]
    live_output: list[LiveOutputText]
    position: int
    over: Annotated[bool, about("Whether the run has ended.")]
    stopping: Annotated[bool, about("Whether the daemon stops.")]


async def follow_run(context: OperationContext, request: FollowRun) -> RunProgressReport:
    """Return the ended steps of a run. Waits until there are more than the caller knows of.

    Returns also when the run has ended, the time is up, or the daemon stops. Reads the latest steps only.
    """
    run = await resolve_run(context, request.job_id)
    live = context.require_engine().live_output

    async def read_new(must_respond: bool, stopping: bool) -> RunProgressReport | None:
        # Read before its steps: if the run has ended, all steps that are read then have ended too.
        over = (await find_job(context, run.id)).status in TERMINAL
        latest = (await context.store.list_jobs(JobFilter(run_id=run.id), limit=LARGEST_PAGE)).rows
        ended = [job for job in latest[::-1] if job.status in TERMINAL]
        # Read last: the output of a step is complete when its end is stored.
        read = live.read(run.id, request.position) if request.live else NOTHING_READ
        if not (over or must_respond or read.pieces or len(ended) > request.known):
            return None
        return RunProgressReport(
            ended=[listed_job(context, job) for job in ended],
            live_output=[live_output_text(piece) for piece in read.pieces],
            position=read.position,
            over=over,
            stopping=stopping,
        )

    def output_changes(changed: asyncio.Event) -> AbstractContextManager[None]:
        return live.following(run.id, changed) if request.live else nullcontext()

    return await follow(context, request.timeout, read_new, output_changes)


def trigger_of(pipeline: Pipeline) -> str | None:
    """Return the trigger of the pipeline in words, such as `on NAME`; None if it is only called by name."""
    by = f" of {pipeline.from_plugin}" if pipeline.from_plugin else ""
    if pipeline.on is not None:
        return f"on {pipeline.on}{by}"
    return None if pipeline.on_hook is None else f"on-hook {pipeline.on_hook}{by}"


def _summary(snapshot: Snapshot, pipeline: Pipeline) -> PipelineSummary:
    """Return the fields that a listed pipeline and its details have in common."""
    return from_record(
        PipelineSummary,
        pipeline,
        trigger=trigger_of(pipeline),
        execution_mode=snapshot.pipelines[pipeline.name].execution_mode,
        steps=sum(isinstance(node, UseNode) for node in pipeline.graph.nodes.values()),
    )


def _pipeline_step(step: TreeStep) -> PipelineStep:
    """Return a step with the steps inside it."""
    return PipelineStep(
        path=step.node.path,
        id=step.id,
        does=step.node.label.title,
        condition=step.condition,
        inside=[
            PipelineGroup(
                kind=group.kind, name=group.name, steps=[_pipeline_step(inner) for inner in group.steps]
            )
            for group in step.groups
        ],
    )


def _redacted_condition(value: JsonValue, is_secret: Callable[[str], bool]) -> JsonValue:
    """Return the condition with a mask in place of the values that are compared with secret fields."""
    if isinstance(value, list):
        return [_redacted_condition(inner, is_secret) for inner in value]
    if not isinstance(value, dict):
        return value
    path = value.get("path")
    if not isinstance(path, str):
        return {key: _redacted_condition(inner, is_secret) for key, inner in value.items()}
    return {**value, "value": MASK} if any(is_secret(key) for key in path.split(".")) else value
