"""Pipelines as they are written, compiled into the graphs that runs follow: calls put in place. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from ductile.config.compile.conditions import compile_condition
from ductile.config.names import parse_target
from ductile.config.seal import hash_bytes
from ductile.core.events.routing import Pipeline
from ductile.core.expressions.baggage import compile_baggage
from ductile.core.expressions.conditions import AllOf, Condition
from ductile.core.jobs.retry import RetryPolicy
from ductile.core.runs.graph import (
    MAX_GRAPH_STEPS,
    BlockNode,
    Graph,
    Node,
    SplitBranch,
    SplitNode,
    StepPayload,
    StepRetry,
    UseNode,
)
from ductile.core.runs.graph_codec import graph_to_json
from ductile.struct import replace

if TYPE_CHECKING:
    from ductile.config.schema.model import Config
    from ductile.config.schema.pipelines import PipelineSettings, StepSettings
    from ductile.config.schema.plugins import RetrySettings
    from ductile.config.snapshot import PluginInstance
    from ductile.config.validate.report import ValidationReport


#: As deep as steps may lie in one another, calls put in place; what is written nests no deeper either.
_DEEPEST = 100


class _TooLargeError(Exception):
    """A pipeline that grows beyond all bounds when its calls are put in place; it says which."""


def compile_pipelines(
    config: Config, plugins: Mapping[str, PluginInstance], report: ValidationReport
) -> tuple[Pipeline, ...]:
    """All pipelines, in the order of the configuration."""
    written = {pipeline.name: pipeline for pipeline in config.pipelines}
    compiled: list[Pipeline] = []
    for index, pipeline in enumerate(config.pipelines):
        try:
            compiled.append(_compile_pipeline(pipeline, written, plugins))
        except _TooLargeError as error:
            report.error(
                ("pipelines", index, "steps"),
                f"with its calls put in place the pipeline {error}",
                hint="let one pipeline start the other by an event instead of calling it",
            )
    return tuple(compiled)


def _compile_pipeline(
    settings: PipelineSettings, written: Mapping[str, PipelineSettings], plugins: Mapping[str, PluginInstance]
) -> Pipeline:
    return Pipeline(
        name=settings.name,
        graph=compile_graph(settings, written, plugins),
        on=settings.on,
        on_hook=settings.on_hook,
        from_plugin=settings.from_plugin,
        condition=None if settings.condition is None else compile_condition(settings.condition),
        notify_on_complete=settings.notify_on_complete,
    )


def compile_graph(
    settings: PipelineSettings, written: Mapping[str, PipelineSettings], plugins: Mapping[str, PluginInstance]
) -> Graph:
    compiler = _Compiler(written, plugins)
    first = compiler.sequence(settings.steps, prefix="", after=None)
    graph = Graph(pipeline=settings.name, first=first, nodes=compiler.nodes, fingerprint="")
    content = json.dumps(graph_to_json(graph), sort_keys=True)
    return replace(graph, fingerprint=hash_bytes(content.encode()))


class _Compiler:
    """Lays the steps of one pipeline out as nodes, each knowing the path of the one that follows."""

    def __init__(
        self, written: Mapping[str, PipelineSettings], plugins: Mapping[str, PluginInstance]
    ) -> None:
        self._written = written
        self._plugins = plugins
        self.nodes: dict[str, Node] = {}

    def sequence(self, steps: Sequence[StepSettings], *, prefix: str, after: str | None) -> str:
        """Steps one after the other, then `after`; the path of the first."""
        paths = [_path(step, number, prefix) for number, step in enumerate(steps, start=1)]
        for step, path, following in zip(steps, paths, [*paths[1:], after], strict=True):
            self._step(step, path, following)
        return paths[0]

    def _step(self, step: StepSettings, path: str, following: str | None) -> None:
        position = len(self.nodes)
        if position >= MAX_GRAPH_STEPS:
            raise _TooLargeError(f"has more than {MAX_GRAPH_STEPS} steps")
        if path.count("/") > _DEEPEST:
            raise _TooLargeError(f"has steps more than {_DEEPEST} levels deep")
        condition = None if step.condition is None else compile_condition(step.condition)
        # Taken now: the steps inside come after it, in the order in which they are written.
        self.nodes[path] = placeholder = BlockNode(
            path=path, position=position, next=following, condition=condition, first="", call=None
        )
        if step.uses is not None:
            self.nodes[path] = self._use(step, placeholder)
        elif step.split is not None:
            self.nodes[path] = self._split(step, placeholder)
        elif step.call is not None:
            called = self._written[step.call]
            first = self.sequence(called.steps, prefix=f"{path}/", after=following)
            both = _both(condition, called)
            self.nodes[path] = replace(placeholder, first=first, call=step.call, condition=both)
        else:
            first = self.sequence(step.steps or (), prefix=f"{path}/", after=following)
            self.nodes[path] = replace(placeholder, first=first)

    def _use(self, step: StepSettings, at: BlockNode) -> UseNode:
        plugin, command = parse_target(step.uses or "")
        handlers = {
            event_type: self.sequence(steps, prefix=f"{at.path}/{_escaped(event_type)}/", after=at.next)
            for event_type, steps in step.on_events.items()
            if steps
        }
        payload = None if step.payload is None else step.payload.reveal()
        return UseNode(
            path=at.path,
            position=at.position,
            next=at.next,
            condition=at.condition,
            plugin=plugin,
            command=command,
            payload=None if payload is None else StepPayload(payload),
            baggage=() if step.baggage is None else compile_baggage(step.baggage),
            retry=None if step.retry is None else _retry(step.retry, self._plugins[plugin].retry),
            timeout=None if step.timeout is None else step.timeout.total_seconds(),
            on_events=handlers,
        )

    def _split(self, step: StepSettings, at: BlockNode) -> SplitNode:
        branches: list[SplitBranch] = []
        for number, branch in enumerate(step.split or (), start=1):
            path = _path(branch, number, f"{at.path}/")
            self._step(branch, path, None)
            branches.append(SplitBranch(id=branch.id or str(number), first=path))
        return SplitNode(
            path=at.path,
            position=at.position,
            next=at.next,
            condition=at.condition,
            branches=tuple(branches),
            join=step.join,
        )


def _path(step: StepSettings, number: int, prefix: str) -> str:
    """A step is known by its id or, without one, by its number; an id never is a number."""
    return f"{prefix}{step.id or number}"


def _escaped(event_type: str) -> str:
    """An event's type as one part of a path, whatever is in it: no two steps have the same path."""
    return event_type.replace("~", "~0").replace("/", "~1")


def _both(condition: Condition | None, called: PipelineSettings) -> Condition | None:
    """A called pipeline runs if the step's `if` and its own hold."""
    own = None if called.condition is None else compile_condition(called.condition)
    if condition is None or own is None:
        return condition or own
    return AllOf((condition, own))


def _retry(settings: RetrySettings, plugin: RetryPolicy) -> StepRetry:
    """What the step leaves open is as the plugin has it."""
    return StepRetry(
        max_attempts=settings.max_attempts or plugin.max_attempts,
        backoff_base=(settings.backoff_base or plugin.backoff_base).total_seconds(),
        backoff_max=(settings.backoff_max or plugin.backoff_max).total_seconds(),
    )
