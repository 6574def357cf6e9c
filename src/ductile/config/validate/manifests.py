"""Rules that depend on manifests: commands, keys of a plugin's `config`, parallelism."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ductile.config.names import parse_target
from ductile.config.validate.pipelines import steps_of
from ductile.config.validate.plugins import schedules_of
from ductile.core.suggest import did_you_mean

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from ductile.config.schema.model import Config
    from ductile.config.schema.plugins import PluginSettings
    from ductile.config.snapshot import Discovery, InstalledPlugin, PluginInstance
    from ductile.config.validate.report import ValidationReport
    from ductile.protocol.yaml_tree import KeyPath

#: Keys of a plugin's `config` that Ductile reads itself (`compile.plugins.plugin_rules`).
_OWN_KEYS = frozenset(("model",))


def validate_against_manifests(
    config: Config, plugins: Mapping[str, PluginInstance], discovery: Discovery, report: ValidationReport
) -> None:
    for name, settings in config.plugins.items():
        if (installed := plugins[name].installed) is not None:
            _check_commands(name, settings, installed, report)
        if (found := discovery.installed.get(plugins[name].uses)) is not None:
            _check_config_keys(name, settings, found, report)
        if installed and not installed.manifest.concurrency_safe and (settings.parallelism or 1) > 1:
            message = (
                f"{name} says that it is not safe to run in parallel; `parallelism` is applied all the same"
            )
            report.warn(("plugins", name, "parallelism"), message)
    for path, plugin, command in _targets(config):
        target = plugins[plugin].installed
        if target is not None and command not in target.manifest.commands:
            report.error(
                path,
                f"{plugin} has no command {command}",
                expected=f"one of {', '.join(target.manifest.commands)}",
                found=report.quote(path),
                hint=did_you_mean(command, target.manifest.commands),
            )


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


def _check_config_keys(
    name: str, settings: PluginSettings, found: InstalledPlugin, report: ValidationReport
) -> None:
    """Warn of a key that the manifest does not name: it is passed on, but may be misspelt.

    A manifest without any names says nothing about the keys that its plugin reads.
    """
    declared = (*found.manifest.required_config, *found.manifest.optional_config)
    for key in settings.config.names() if declared else ():
        if key not in declared and key not in _OWN_KEYS:
            hint = did_you_mean(key, declared) or f"it names {', '.join(declared)}"
            path = ("plugins", name, "config", key)
            report.warn(path, f"{found.name} does not name the key {key}", hint=hint)


def _targets(config: Config) -> Iterator[tuple[KeyPath, str, str]]:
    """Yield every key that names a plugin's command."""
    for index, route in enumerate(config.routes):
        yield ("routes", index, "to"), *parse_target(route.to)
    for index, pipeline in enumerate(config.pipelines):
        for path, step in steps_of(pipeline, ("pipelines", index)):
            if step.uses is not None:
                yield (*path, "uses"), *parse_target(step.uses)
    for index, endpoint in enumerate(config.webhooks.endpoints):
        if endpoint.plugin is not None:
            yield ("webhooks", "endpoints", index, "plugin"), endpoint.plugin, endpoint.command or "handle"
