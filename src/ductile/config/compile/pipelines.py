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
    written = {pipeline.name: pipeline for pipeline in config.pipelines}
    compiled: list[Pipeline] = []
    for index, pipeline in enumerate(config.pipelines):
        try:
            graph = compile_graph(pipeline, written, plugins)
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


def compile_condition(written: ConditionSettings | None) -> Condition | None:
    return None if written is None else _condition(written)


def _condition(written: ConditionSettings) -> Condition:
    if written.all_of is not None:
        return AllOf(tuple(_condition(part) for part in written.all_of))
    if written.any_of is not None:
        return AnyOf(tuple(_condition(part) for part in written.any_of))
    if written.negated is not None:
        return Not(_condition(written.negated))
    if written.path is None or written.op is None:
        raise ValueError("a condition is checked before it is compiled")
    value = True if written.value is msgspec.UNSET else written.value
    return PathComparison(path=written.path, op=written.op, value=value)


def compile_graph(
    settings: PipelineSettings, written: Mapping[str, PipelineSettings], plugins: Mapping[str, PluginInstance]
) -> Graph:
    compiler = _Compiler(written, plugins)
    first = compiler.sequence(settings.steps, prefix="", after=None)
    graph = Graph.of(settings.name, first, compiler.nodes)
    content = json.dumps(graph_to_json(graph), sort_keys=True)
    return replace(graph, fingerprint=hash_bytes(content.encode()))


class _Compiler:
    """Turns the steps of one pipeline into nodes, each with the path of the next one."""

    def __init__(
        self, written: Mapping[str, PipelineSettings], plugins: Mapping[str, PluginInstance]
    ) -> None:
        self._written = written
        self._plugins = plugins
        self.nodes: dict[str, Node] = {}

    def sequence(self, steps: Sequence[StepSettings], *, prefix: str, after: str | None) -> str:
        """Add steps that run one after the other, then `after`. Returns the path of the first."""
        paths = [_path(step, number, prefix) for number, step in enumerate(steps, start=1)]
        for step, path, following in zip(steps, paths, [*paths[1:], after], strict=True):
            self._step(step, path, following)
        return paths[0]

    def _step(self, step: StepSettings, path: str, following: str | None) -> None:
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
            self.nodes[path] = self._use(step, placeholder)
        elif step.split is not None:
            self.nodes[path] = self._split(step, placeholder)
        elif step.call is not None:
            called = self._written[step.call]
            first = self.sequence(called.steps, prefix=f"{path}/", after=following)
            both = inner = compile_condition(called.condition)
            if condition is not None and inner is not None:  # the step's `if` and the pipeline's must hold
                both = AllOf((condition, inner))
            self.nodes[path] = replace(placeholder, first=first, call=step.call, condition=both or condition)
        else:
            first = self.sequence(step.steps or (), prefix=f"{path}/", after=following)
            self.nodes[path] = replace(placeholder, first=first)

    def _use(self, step: StepSettings, at: BlockNode) -> UseNode:
        plugin, command = parse_target(step.uses or "")
        handlers = {}
        for event_type, steps in step.on_events.items():
            if steps:
                escaped = event_type.replace("~", "~0").replace("/", "~1")  # keeps paths unique
                handlers[event_type] = self.sequence(steps, prefix=f"{at.path}/{escaped}/", after=at.next)
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
            path=at.path,
            position=at.position,
            next=at.next,
            condition=at.condition,
            plugin=plugin,
            command=command,
            payload=None if payload is None else StepPayload(payload),
            baggage=at.baggage,
            retry=retry,
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
            baggage=at.baggage,
            branches=tuple(branches),
            join=step.join,
        )


def _path(step: StepSettings, number: int, prefix: str) -> str:
    """Return the path by the step's id or, without one, its number; an id is never a number."""
    return f"{prefix}{step.id or number}"
