"""A checked configuration and what discovery found, compiled into a `Snapshot`. Pure.

What only manifests can tell is checked here: commands, and the seal over plugins. A plugin that is
missing or refused is not an error; the snapshot carries the reason.
"""

from __future__ import annotations

import json
from types import MappingProxyType
from typing import TYPE_CHECKING

from ductile.config.compile.effective_defaults import effective_timezone, effective_workers
from ductile.config.compile.pipelines import compile_pipelines
from ductile.config.compile.plugins import compile_plugin, plugin_rules
from ductile.config.compile.webhooks import compile_endpoint
from ductile.config.find_config import resolve_path
from ductile.config.key_paths import did_you_mean
from ductile.config.load import LoadedConfig, SealCheck, check_operational_changes
from ductile.config.names import api_token_name, parse_target
from ductile.config.schema.model import ApiAuthSettings
from ductile.config.seal import find_plugin_violations, hash_bytes
from ductile.config.secrets import looks_secret
from ductile.config.snapshot import (
    AccessToken,
    PluginInstance,
    PostgresLocation,
    Snapshot,
    SqliteLocation,
    StateLocation,
)
from ductile.config.validate.events import warn_about_events
from ductile.config.validate.pipelines import steps_of
from ductile.config.validate.report import ValidationReport
from ductile.core.events.routing import EventRoute, EventRouteTable, Pipeline, PipelineTable
from ductile.core.policy import Policy
from ductile.errors import ConfigError, Problem
from ductile.protocol.yaml import MapNode
from ductile.struct import replace

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from ductile.config.installed import Discovery
    from ductile.config.key_paths import KeyPath
    from ductile.config.schema.model import Config

DEFAULT_STATE_PATH = "./data/state.db"


def compile_snapshot(loaded: LoadedConfig, discovery: Discovery) -> Snapshot:
    """The snapshot; ConfigError if a command does not exist, IntegrityError if strict mode says so."""
    config = loaded.model
    report = ValidationReport(root=loaded.tree)
    timezone = effective_timezone(loaded)
    max_workers = effective_workers(loaded)
    plugins = {
        name: compile_plugin(
            name, settings, discovery, max_workers=max_workers, timezone=timezone, report=report
        )
        for name, settings in config.plugins.items()
    }
    _check_targets(config, plugins, report)
    compiled = compile_pipelines(config, plugins, report)
    if report.errors:
        raise ConfigError("the configuration does not fit its plugins", problems=tuple(report.errors))
    warn_about_events(config, plugins, compiled, report)
    routes = tuple(_routes(config))
    secrets = {token.name: token.key for token in config.tokens if token.scopes_file is None}
    used = {plugin.uses for plugin in plugins.values()}
    return Snapshot(
        directory=loaded.directory,
        service=config.service,
        timezone=timezone,
        max_workers=max_workers,
        state=_state(loaded),
        plugin_roots=loaded.plugin_roots,
        plugins=MappingProxyType(plugins),
        available=MappingProxyType(
            {name: found for name, found in discovery.installed.items() if name not in used}
        ),
        routes=routes,
        pipelines=MappingProxyType({pipeline.name: pipeline for pipeline in config.pipelines}),
        api=replace(config.api, auth=ApiAuthSettings()),
        tokens=tuple(_tokens(loaded)),
        secrets=MappingProxyType(secrets),
        webhooks_enabled=isinstance(loaded.tree.get("webhooks"), MapNode),
        webhooks_listen=config.webhooks.listen,
        webhooks=tuple(compile_endpoint(endpoint, secrets) for endpoint in config.webhooks.endpoints),
        state_webhooks=config.state_webhooks,
        state_webhook_secret=secrets.get(config.state_webhooks.secret_ref or ""),
        artifact_roots=tuple(resolve_path(root, loaded.directory) for root in config.artifacts.roots),
        rules=_rules(config, plugins, routes, compiled, max_workers),
        fingerprint=_fingerprint(loaded, plugins),
        warnings=(*loaded.warnings, *discovery.warnings, *report.warnings, *_judge_plugins(loaded, plugins)),
        shown=loaded.shown(),
    )


def _rules(
    config: Config,
    plugins: Mapping[str, PluginInstance],
    routes: tuple[EventRoute, ...],
    pipelines: tuple[Pipeline, ...],
    max_workers: int,
) -> Policy:
    return Policy(
        plugins=MappingProxyType({name: plugin_rules(plugin) for name, plugin in plugins.items()}),
        routes=EventRouteTable.of(routes),
        pipelines=PipelineTable.of(pipelines),
        dedupe_ttl=config.service.dedupe_ttl,
        max_hops=config.service.max_hops,
        max_workers=max_workers,
        is_secret=looks_secret,
    )


def _check_targets(config: Config, plugins: Mapping[str, PluginInstance], report: ValidationReport) -> None:
    for path, plugin, command in _targets(config):
        installed = plugins[plugin].installed
        if installed is not None and command not in installed.manifest.commands:
            expected = f"one of {', '.join(installed.manifest.commands)}"
            report.error(
                path,
                f"{plugin} has no command {command}",
                expected=expected,
                found=report.quote(path),
                hint=did_you_mean(command, installed.manifest.commands),
            )


def _targets(config: Config) -> Iterator[tuple[KeyPath, str, str]]:
    """Every place that names a plugin's command."""
    for index, route in enumerate(config.routes):
        yield ("routes", index, "to"), *parse_target(route.to)
    for index, pipeline in enumerate(config.pipelines):
        for path, step in steps_of(pipeline, ("pipelines", index)):
            if step.uses is not None:
                yield (*path, "uses"), *parse_target(step.uses)
    for index, endpoint in enumerate(config.webhooks.endpoints):
        if endpoint.plugin is not None:
            yield ("webhooks", "endpoints", index, "plugin"), endpoint.plugin, endpoint.command or "handle"


def _state(loaded: LoadedConfig) -> StateLocation:
    state = loaded.model.state
    if state.url is not None:
        return PostgresLocation(url=state.url)
    return SqliteLocation(path=resolve_path(state.path or DEFAULT_STATE_PATH, loaded.directory))


def _routes(config: Config) -> Iterator[EventRoute]:
    for route in config.routes:
        plugin, command = parse_target(route.to)
        yield EventRoute(source=route.source, event_type=route.event_type, plugin=plugin, command=command)


def _tokens(loaded: LoadedConfig) -> Iterator[AccessToken]:
    """Everything that opens the API. What has no scopes never does."""
    for token in loaded.model.api.auth.tokens:
        if token.scopes:
            yield AccessToken(name=api_token_name(token), digest=token.token.digest(), scopes=token.scopes)
    granted = {file.token: file.scopes for file in loaded.scope_files}
    for entry in loaded.model.tokens:
        if granted.get(entry.name):
            yield AccessToken(name=entry.name, digest=entry.key.digest(), scopes=granted[entry.name])


def _fingerprint(loaded: LoadedConfig, plugins: Mapping[str, PluginInstance]) -> str:
    """Changes whenever a loaded file, a plugin or a plugin's effective configuration does."""
    content = {
        "files": {file.name: file.hash for file in loaded.files},
        "plugins": {
            name: [plugin.config_hash, plugin.installed.fingerprint if plugin.installed else None]
            for name, plugin in plugins.items()
        },
    }
    return hash_bytes(json.dumps(content, sort_keys=True).encode())


def _judge_plugins(loaded: LoadedConfig, plugins: Mapping[str, PluginInstance]) -> tuple[Problem, ...]:
    """What the seal says about the plugins in use; a configuration that was never sealed was told of."""
    if loaded.seal is SealCheck.IGNORE or (loaded.checksums is None and not loaded.strict):
        return ()
    present = {found.uses: found.installed.fingerprint for found in plugins.values() if found.installed}
    faults = find_plugin_violations(present, loaded.checksums)
    return check_operational_changes(faults, loaded.directory, strict=loaded.strict)
