"""Compiles pipelines into the graphs that runs follow, with the steps of called pipelines in place. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

import msgspec

from ductile.config.compile.plugins import compile_retry, compile_state_webhook
from ductile.config.file_io import hash_bytes
from ductile.config.names import parse_target
from ductile.config.schema.model import Config
from ductile.config.schema.pipelines import ConditionSettings, PipelineSettings, StepSettings
from ductile.config.snapshot import PluginInstance
from ductile.config.validate.report import ValidationReport
from ductile.core.events.model import Pipeline
from ductile.core.expressions.baggage import compile_baggage
from ductile.core.expressions.conditions import AllOf, AnyOf, Condition, Not, PathComparison
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
    graph_to_json,
)
from ductile.struct import replace

#: How deep steps may nest, called pipelines included. Written steps cannot nest deeper either.
_MAX_DEPTH = 100


class _TooLargeError(Exception):
    """A pipeline exceeds a bound with its called pipelines in place; the message says which."""


def compile_pipelines(
    config: Config, plugins: Mapping[str, PluginInstance], report: ValidationReport
) -> tuple[Pipeline, ...]:
    """Return all pipelines, in the order of the configuration."""
    by_name = {pipeline.name: pipeline for pipeline in config.pipelines}
    compiled: list[Pipeline] = []
    for index, pipeline in enumerate(config.pipelines):
        try:
            graph = compile_graph(pipeline, by_name, plugins)
        except _TooLargeError as error:
            message = f"with its calls put in place the pipeline {error}"
            hint = "let one pipeline start the other by an event instead of calling it"
            report.error(("pipelines", index, "steps"), message, hint=hint)
            continue
        compiled.append(
            Pipeline(
                name=pipeline.name,
                graph=graph,
                on=pipeline.on,
                on_hook=pipeline.on_hook,
                from_plugin=pipeline.from_plugin,
                condition=compile_condition(pipeline.condition),
                notify_on_complete=pipeline.notify_on_complete,
                state_webhook=compile_state_webhook(pipeline),
            )
        )
    return tuple(compiled)


def compile_condition(settings: ConditionSettings | None) -> Condition | None:
    return None if settings is None else _condition(settings)


def _condition(settings: ConditionSettings) -> Condition:
    if settings.all_of is not None:
        return AllOf(tuple(_condition(part) for part in settings.all_of))
    if settings.any_of is not None:
        return AnyOf(tuple(_condition(part) for part in settings.any_of))
    if settings.negated is not None:
        return Not(_condition(settings.negated))
    if settings.path is None or settings.op is None:
        raise ValueError("a condition without path and op passed validation")
    value = True if settings.value is msgspec.UNSET else settings.value
    return PathComparison(path=settings.path, op=settings.op, value=value)


def compile_graph(
    settings: PipelineSettings,
    pipelines: Mapping[str, PipelineSettings],
    plugins: Mapping[str, PluginInstance],
) -> Graph:
    """Return the graph of a pipeline; `pipelines` are all by their names, for its calls."""
    compiler = _Compiler(pipelines, plugins)
    first = compiler.add_steps(settings.steps, prefix="", after=None)
    graph = Graph.of(settings.name, first, compiler.nodes)
    content = json.dumps(graph_to_json(graph), sort_keys=True)
    return replace(graph, fingerprint=hash_bytes(content.encode()))


class _Compiler:
    """Turns the steps of one pipeline into nodes, each with the path of the next one."""

    def __init__(
        self, pipelines: Mapping[str, PipelineSettings], plugins: Mapping[str, PluginInstance]
    ) -> None:
        self._pipelines = pipelines
        self._plugins = plugins
        self.nodes: dict[str, Node] = {}

    def add_steps(self, steps: Sequence[StepSettings], *, prefix: str, after: str | None) -> str:
        """Add steps that run one after the other, then `after`. Returns the path of the first."""
        paths = [_step_path(step, number, prefix) for number, step in enumerate(steps, start=1)]
        for step, path, following in zip(steps, paths, [*paths[1:], after], strict=True):
            self._add_step(step, path, following)
        return paths[0]

    def _add_step(self, step: StepSettings, path: str, following: str | None) -> None:
        """Add a step and the steps inside it. Raises _TooLargeError."""
        position = len(self.nodes)
        if position >= MAX_GRAPH_STEPS:
            raise _TooLargeError(f"has more than {MAX_GRAPH_STEPS} steps")
        if path.count("/") > _MAX_DEPTH:
            raise _TooLargeError(f"has steps more than {_MAX_DEPTH} levels deep")
        condition = compile_condition(step.condition)
        baggage = () if step.baggage is None else compile_baggage(step.baggage)
        # Added first, because the steps inside it follow in written order.
        self.nodes[path] = placeholder = BlockNode(
            path=path,
            position=position,
            next=following,
            condition=condition,
            baggage=baggage,
            first="",
            call=None,
        )
        if step.uses is not None:
            self.nodes[path] = self._use_node(step, placeholder)
        elif step.split is not None:
            branches: list[SplitBranch] = []
            for number, branch in enumerate(step.split, start=1):
                branch_path = _step_path(branch, number, f"{path}/")
                self._add_step(branch, branch_path, None)
                branches.append(SplitBranch(id=branch.id or str(number), first=branch_path))
            self.nodes[path] = SplitNode(
                path=path,
                position=position,
                next=following,
                condition=condition,
                baggage=baggage,
                branches=tuple(branches),
                join=step.join,
            )
        elif step.call is not None:
            called = self._pipelines[step.call]
            first = self.add_steps(called.steps, prefix=f"{path}/", after=following)
            if (inner := compile_condition(called.condition)) is not None:
                # The step's `if` and the pipeline's must hold.
                condition = inner if condition is None else AllOf((condition, inner))
            self.nodes[path] = replace(placeholder, first=first, call=step.call, condition=condition)
        else:
            first = self.add_steps(step.steps or (), prefix=f"{path}/", after=following)
            self.nodes[path] = replace(placeholder, first=first)

    def _use_node(self, step: StepSettings, placeholder: BlockNode) -> UseNode:
        """Return the node of a step that runs a plugin, in place of the placeholder for it."""
        plugin, command = parse_target(step.uses or "")
        handlers = {}
        for event_type, steps in step.on_events.items():
            if steps:
                escaped = event_type.replace("~", "~0").replace("/", "~1")  # keeps paths unique
                handlers[event_type] = self.add_steps(
                    steps, prefix=f"{placeholder.path}/{escaped}/", after=placeholder.next
                )
        payload = None if step.payload is None else step.payload.reveal()
        retry = None
        if step.retry is not None:
            policy = compile_retry(step.retry, default=self._plugins[plugin].retry)
            retry = StepRetry(
                max_attempts=policy.max_attempts,
                backoff_base=policy.backoff_base.total_seconds(),
                backoff_max=policy.backoff_max.total_seconds(),
            )
        return UseNode(
            path=placeholder.path,
            position=placeholder.position,
            next=placeholder.next,
            condition=placeholder.condition,
            plugin=plugin,
            command=command,
            payload=None if payload is None else StepPayload(payload),
            baggage=placeholder.baggage,
            retry=retry,
            timeout=None if step.timeout is None else step.timeout.total_seconds(),
            on_events=handlers,
        )


def _step_path(step: StepSettings, number: int, prefix: str) -> str:
    """Return the path by the step's id or, without one, its number; an id is never a number."""
    return f"{prefix}{step.id or number}"
