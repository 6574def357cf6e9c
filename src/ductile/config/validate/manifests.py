"""Rules that depend on manifests: errors for commands, warnings for config keys and events.

A warning is given only where enough is known. A plugin whose manifest declares no events may emit any.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from ductile.config.names import EXTERNAL_SOURCES, parse_target
from ductile.config.schema.model import Config
from ductile.config.schema.pipelines import PipelineSettings
from ductile.config.schema.plugins import PluginSettings
from ductile.config.snapshot import Discovery, InstalledPlugin, PluginInstance
from ductile.config.validate.pipelines import steps_of
from ductile.config.validate.report import ValidationReport
from ductile.config.validate.rules import schedules_of
from ductile.core.events.model import Pipeline
from ductile.core.runs.graph import UseNode
from ductile.core.suggest import did_you_mean
from ductile.protocol.yaml_tree import KeyPath

#: Keys of a plugin's `config` that Ductile reads itself (`compile.plugins.plugin_policy`).
_BUILTIN_KEYS = frozenset(("model",))
#: Event types with this prefix are emitted by Ductile itself.
_BUILTIN_PREFIX = "ductile."


def validate_against_manifests(
    config: Config, plugins: Mapping[str, PluginInstance], discovery: Discovery, report: ValidationReport
) -> None:
    for name, settings in config.plugins.items():
        if (installed := plugins[name].installed) is not None:
            _check_commands(name, settings, installed, report)
        if settings.run is None and (available := discovery.installed.get(plugins[name].uses)) is not None:
            _warn_about_config_keys(name, settings, available, report)
        if installed and not installed.manifest.concurrency_safe and (settings.parallelism or 1) > 1:
            message = (
                f"the manifest of {name} declares it unsafe in parallel; `parallelism` is applied anyway"
            )
            report.warn(("plugins", name, "parallelism"), message)
    for path, plugin, command in _command_references(config):
        target = plugins[plugin].installed
        if target is not None and command not in (commands := target.manifest.commands):
            message, expected = f"{plugin} has no command {command}", f"one of {', '.join(commands)}"
            hint = did_you_mean(command, commands)
            report.error(path, message, expected=expected, found=report.quote(path), hint=hint)


def _check_commands(
    name: str, settings: PluginSettings, installed: InstalledPlugin, report: ValidationReport
) -> None:
    commands = installed.manifest.commands
    for path, schedule in schedules_of(name, settings):
        if schedule.command not in commands:
            message = f"{installed.name} has no command {report.quote((*path, 'command'))}"
            if schedule.command == "poll":
                message = f"{installed.name} has no command poll, which a schedule runs if it names none"
            hint = did_you_mean(schedule.command, commands)
            expected = f"one of {', '.join(commands)}"
            report.error((*path, "command"), message, expected=expected, hint=hint)
    for command in settings.timeouts:
        if command not in commands:
            report.warn(("plugins", name, "timeouts", command), f"{installed.name} has no command {command}")


def _warn_about_config_keys(
    name: str, settings: PluginSettings, plugin: InstalledPlugin, report: ValidationReport
) -> None:
    """Warn of a key that the manifest does not name: it is passed on, but may be misspelt.

    A manifest without any names says nothing about the keys that its plugin reads.
    """
    declared = (*plugin.manifest.required_config, *plugin.manifest.optional_config)
    for key in settings.config.names() if declared else ():
        if key not in declared and key not in _BUILTIN_KEYS:
            hint = did_you_mean(key, declared) or f"it names {', '.join(declared)}"
            path = ("plugins", name, "config", key)
            report.warn(path, f"{plugin.name} does not name the key {key}", hint=hint)


def _command_references(config: Config) -> Iterator[tuple[KeyPath, str, str]]:
    """Yield every key that refers to a command, with the plugin and the command."""
    for index, route in enumerate(config.routes):
        yield ("routes", index, "to"), *parse_target(route.to)
    for index, pipeline in enumerate(config.pipelines):
        for path, step in steps_of(pipeline, ("pipelines", index)):
            if step.uses is not None:
                yield (*path, "uses"), *parse_target(step.uses)
    receiver = config.service.on_failure
    if receiver is not None and all(pipeline.name != receiver for pipeline in config.pipelines):
        yield ("service", "on_failure"), *parse_target(receiver)
    for index, endpoint in enumerate(config.webhooks.endpoints):
        if endpoint.plugin is not None:
            yield ("webhooks", "endpoints", index, "plugin"), endpoint.plugin, endpoint.command or "handle"


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


def _warn_if_nothing_emits(
    pipeline: PipelineSettings,
    path: KeyPath,
    config: Config,
    plugins: Mapping[str, PluginInstance],
    report: ValidationReport,
) -> None:
    source = pipeline.from_plugin
    if pipeline.on is None or pipeline.on.startswith(_BUILTIN_PREFIX) or source in EXTERNAL_SOURCES:
        return
    emitters = plugins if source is None else {name: plugins[name] for name in (source,) if name in plugins}
    emitted: set[str] = set()
    for plugin in emitters.values():
        commands = plugin.installed.manifest.commands.values() if plugin.installed else ()
        if not any(command.declares_events for command in commands):
            return
        emitted |= {event.type for command in commands for event in command.emits}
    if source is None:
        emitted |= {route.event_type for route in config.routes}
        emitted |= {endpoint.event for endpoint in config.webhooks.endpoints if endpoint.event is not None}
        # `POST /trigger/{plugin}/{command}` starts it too.
        plugin_name, _, command = pipeline.on.partition(".")
        installed = plugins[plugin_name].installed if plugin_name in plugins else None
        if installed is not None and command in installed.manifest.commands:
            return
    # A manifest may declare a group of types: `github.*`.
    prefixes = tuple(event_type.removesuffix("*") for event_type in emitted if event_type.endswith("*"))
    if pipeline.on in emitted or pipeline.on.startswith(prefixes):
        return
    emits = "nothing that is configured emits"
    if source is not None:
        emits = f"{source}, by its manifest, does not emit"
    hint = "if it is sent with `ductile event send` or POST /event, say so with `from_plugin: cli` or `api`"
    report.warn(path, f"{emits} {report.quote(path)}", hint=did_you_mean(pipeline.on, emitted) or hint)


def _warn_if_it_starts_itself(
    pipeline: Pipeline, path: KeyPath, plugins: Mapping[str, PluginInstance], report: ValidationReport
) -> None:
    """Warn of a step that emits the event of its own pipeline, unless a condition may end the chain."""
    if pipeline.on is None or pipeline.condition is not None:
        return
    nodes = pipeline.graph.nodes
    for node in nodes.values():
        if not isinstance(node, UseNode) or pipeline.from_plugin not in (None, node.plugin):
            continue
        installed = plugins[node.plugin].installed if node.plugin in plugins else None
        command = installed.manifest.commands.get(node.command) if installed else None
        emits = command is not None and any(event.type == pipeline.on for event in command.emits)
        parts = node.path.split("/")
        containing = {"/".join(parts[:length]) for length in range(1, len(parts) + 1)}
        conditional = any(other.condition is not None for other in nodes.values() if other.path in containing)
        if emits and not conditional:
            message = (
                f"the step {node.path} emits {report.quote(path)}, on which this pipeline starts: "
                "each run starts the next, until `service.max_hops` ends it"
            )
            hint = "limit its events with `from_plugin` or `if`"
            report.warn(path, message, hint=hint)
            return
