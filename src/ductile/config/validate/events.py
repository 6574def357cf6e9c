"""Doubts about events and context that need the manifests: warnings, since a manifest need not tell all.

A warning is given only where enough is known. A plugin whose manifest declares no events may emit any.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ductile.config.key_paths import did_you_mean
from ductile.config.names import EXTERNAL_SOURCES
from ductile.config.validate.pipelines import steps_of
from ductile.core.expressions.baggage import RESERVED_PREFIX, compile_baggage
from ductile.core.expressions.paths import Root
from ductile.core.expressions.templates import references_in
from ductile.core.runs.graph import UseNode

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from ductile.config.key_paths import KeyPath
    from ductile.config.schema.model import Config
    from ductile.config.schema.pipelines import PipelineSettings, StepSettings
    from ductile.config.snapshot import PluginInstance
    from ductile.config.validate.report import ValidationReport
    from ductile.core.events.routing import Pipeline
    from ductile.core.json import JsonValue

#: Of types that begin with it the core itself is the emitter.
_OWN = "ductile."
_ANY_OF_KIND = "*"
_CONTEXT = f"{Root.CONTEXT}."


def warn_about_events(
    config: Config,
    plugins: Mapping[str, PluginInstance],
    pipelines: tuple[Pipeline, ...],
    report: ValidationReport,
) -> None:
    compiled = {pipeline.name: pipeline for pipeline in pipelines}
    for index, pipeline in enumerate(config.pipelines):
        path: KeyPath = ("pipelines", index, "on")
        _warn_if_nothing_emits(pipeline, path, config, plugins, report)
        if pipeline.name in compiled:
            _warn_if_it_starts_itself(compiled[pipeline.name], path, plugins, report)
    _warn_about_context(config, report)


def _warn_if_nothing_emits(
    pipeline: PipelineSettings,
    path: KeyPath,
    config: Config,
    plugins: Mapping[str, PluginInstance],
    report: ValidationReport,
) -> None:
    if pipeline.on is None or pipeline.on.startswith(_OWN) or pipeline.from_plugin in EXTERNAL_SOURCES:
        return
    source = pipeline.from_plugin
    asked = plugins if source is None else {name: plugins[name] for name in (source,) if name in plugins}
    declared = [_declared(plugin) for plugin in asked.values()]
    if any(types is None for types in declared):
        return
    known = {each for types in declared for each in types or ()}
    if source is None:
        known |= {route.event_type for route in config.routes}
        known |= {endpoint.event for endpoint in config.webhooks.endpoints if endpoint.event is not None}
    if any(_matches(each, pipeline.on) for each in known) or _can_be_triggered(pipeline, plugins):
        return
    who = "nothing that is configured" if source is None else f"{source}, by its manifest,"
    verb = "emits" if source is None else "does not emit"
    sent = "if it is sent with `ductile event send` or POST /event, say so with `from_plugin: cli` or `api`"
    report.warn(path, f"{who} {verb} {report.quote(path)}", hint=did_you_mean(pipeline.on, known) or sent)


def _can_be_triggered(pipeline: PipelineSettings, plugins: Mapping[str, PluginInstance]) -> bool:
    """Whether `POST /trigger/{plugin}/{command}` starts it."""
    plugin, _, command = (pipeline.on or "").partition(".")
    installed = plugins[plugin].installed if plugin in plugins else None
    named = installed is not None and command in installed.manifest.commands
    return named and pipeline.from_plugin is None


def _declared(plugin: PluginInstance) -> frozenset[str] | None:
    """The event types that a plugin says it emits; None if it does not say."""
    if plugin.installed is None:
        return None
    commands = plugin.installed.manifest.commands.values()
    if not any(command.declares_events for command in commands):
        return None
    return frozenset(event.type for command in commands for event in command.emits)


def _matches(declared: str, event_type: str) -> bool:
    """Manifests may declare a whole kind: `github.*`."""
    if declared.endswith(_ANY_OF_KIND):
        return event_type.startswith(declared.removesuffix(_ANY_OF_KIND))
    return declared == event_type


def _warn_if_it_starts_itself(
    pipeline: Pipeline, path: KeyPath, plugins: Mapping[str, PluginInstance], report: ValidationReport
) -> None:
    """A condition on the way may end it, so only what always happens is told."""
    if pipeline.on is None or pipeline.condition is not None:
        return
    for node in pipeline.graph.nodes.values():
        if not isinstance(node, UseNode) or pipeline.from_plugin not in (None, node.plugin):
            continue
        installed = plugins[node.plugin].installed if node.plugin in plugins else None
        command = installed.manifest.commands.get(node.command) if installed else None
        emits = command is not None and any(event.type == pipeline.on for event in command.emits)
        if emits and not _is_conditional(node.path, pipeline):
            message = (
                f"the step {node.path} emits {report.quote(path)}, on which this pipeline starts: "
                "each run starts the next, until `service.max_hops` ends it"
            )
            hint = "choose with `from_plugin` whose events start it, or with `if` which"
            report.warn(path, message, hint=hint)
            return


def _is_conditional(path: str, pipeline: Pipeline) -> bool:
    parts = path.split("/")
    around = ("/".join(parts[:length]) for length in range(1, len(parts) + 1))
    nodes = pipeline.graph.nodes
    return any(nodes[each].condition is not None for each in around if each in nodes)


def _warn_about_context(config: Config, report: ValidationReport) -> None:
    """What is claimed in one pipeline is there in those that its events start, so all claims count."""
    steps = [
        each
        for index, pipeline in enumerate(config.pipelines)
        for each in steps_of(pipeline, ("pipelines", index))
    ]
    claimed = [claim.target for _, step in steps for claim in compile_baggage(step.baggage or {})]
    for step_path, step in steps:
        for path, reference in _context_references(step, step_path):
            keys = tuple(reference.removeprefix(_CONTEXT).split("."))
            if keys[0].startswith(RESERVED_PREFIX) or any(_overlap(keys, target) for target in claimed):
                continue
            names = [".".join((Root.CONTEXT, *target)) for target in claimed]
            report.warn(
                path,
                f"no step claims {reference}, so this step fails",
                hint=did_you_mean(reference, names) or "claim it with `baggage` in an earlier step",
            )


def _overlap(keys: tuple[str, ...], target: tuple[str, ...]) -> bool:
    """Whether one lies within the other."""
    length = min(len(keys), len(target))
    return keys[:length] == target[:length]


def _context_references(step: StepSettings, path: KeyPath) -> Iterator[tuple[KeyPath, str]]:
    if step.payload is not None:
        for where, text in _texts(step.payload.reveal(), (*path, "with")):
            yield from ((where, name) for name in references_in(text) if name.startswith(_CONTEXT))
    for name, source in (step.baggage or {}).items():
        if isinstance(source, str) and source.startswith(_CONTEXT):
            yield (*path, "baggage", name), source


def _texts(value: JsonValue, path: KeyPath) -> Iterator[tuple[KeyPath, str]]:
    match value:
        case str():
            yield path, value
        case dict():
            for key, inner in value.items():
                yield from _texts(inner, (*path, key))
        case list():
            for index, inner in enumerate(value):
                yield from _texts(inner, (*path, index))
        case _:
            return
