"""Compiles a valid configuration and the discovered plugins into a `Snapshot`. Pure.

A missing or refused plugin is not an error; the snapshot carries the reason.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

from ductile.config.compile.pipelines import compile_pipelines
from ductile.config.compile.plugins import compile_plugin, plugin_policy
from ductile.config.file_io import hash_bytes
from ductile.config.find_config import resolve_path
from ductile.config.load import LoadedConfig, SealMode
from ductile.config.names import parse_target
from ductile.config.redaction import digest_hidden_values
from ductile.config.schema.model import (
    ApiAuthSettings,
    ServiceSettings,
    StateSettings,
    TokenLimitSettings,
    WebhookEndpointSettings,
    WebhookPreset,
)
from ductile.config.seal import Tier, build_checksums, check_changes, find_plugin_violations
from ductile.config.secrets import Secret, looks_secret
from ductile.config.snapshot import (
    AccessToken,
    Discovery,
    InstalledPlugin,
    PipelineTarget,
    PluginInstance,
    PluginTarget,
    PostgresLocation,
    PublishTarget,
    Snapshot,
    SqliteLocation,
    StateLocation,
    WebhookEndpoint,
    WebhookTarget,
)
from ductile.config.validate.manifests import validate_against_manifests, warn_about_events
from ductile.config.validate.report import ValidationReport
from ductile.core.events.model import EventRoute, EventRouteTable, Pipeline, PipelineTable
from ductile.core.policy import FailureReceiver, Policy
from ductile.core.runs.graph import RUN_PLUGIN
from ductile.core.token_limits import JobLimits, TokenLimits, target_of
from ductile.core.webhooks.signatures import (
    GITHUB,
    SLACK,
    STANDARD,
    STRIPE,
    URL_TOKEN,
    SignatureScheme,
)
from ductile.errors import ConfigError, Problem
from ductile.protocol.yaml_tree import MapNode
from ductile.struct import replace

DEFAULT_STATE_PATH = "./data/state.db"
DEFAULT_STATE_DIRECTORY = "./data"
_PRESETS = {
    WebhookPreset.GITHUB: GITHUB,
    # GitLab signs as Standard Webhooks defines; its older secret token is not a signature.
    WebhookPreset.GITLAB: STANDARD,
    WebhookPreset.STRIPE: STRIPE,
    WebhookPreset.SLACK: SLACK,
    WebhookPreset.STANDARD_WEBHOOKS: STANDARD,
    WebhookPreset.URL_TOKEN: URL_TOKEN,
}


def compile_snapshot(loaded: LoadedConfig, discovery: Discovery) -> Snapshot:
    """Return the snapshot. Raises ConfigError for a misfit with a manifest, IntegrityError in strict mode."""
    config = loaded.model
    report = ValidationReport(root=loaded.tree)
    timezone, max_workers = loaded.timezone, loaded.max_workers
    plugins = {
        name: compile_plugin(name, settings, discovery, max_workers=max_workers, timezone=timezone)
        for name, settings in config.plugins.items()
    }
    validate_against_manifests(config, plugins, discovery, report)
    pipelines = compile_pipelines(config, plugins, report)
    if report.errors:
        raise ConfigError("the configuration does not fit its plugins", problems=tuple(report.errors))
    warn_about_events(config, plugins, pipelines, report)
    report.warnings += _check_plugin_seals(loaded, plugins)
    routes = tuple(
        EventRoute(source=route.source, event_type=route.event_type, plugin=plugin, command=command)
        for route, (plugin, command) in ((route, parse_target(route.to)) for route in config.routes)
    )
    secrets = {token.name: token.key for token in config.tokens if token.scopes_file is None}
    used_names = {plugin.uses for plugin in plugins.values() if not plugin.is_script}
    return Snapshot(
        directory=loaded.directory,
        service=config.service,
        timezone=timezone,
        max_workers=max_workers,
        state=_locate_state(config.state, loaded.directory),
        plugin_roots=loaded.plugin_roots,
        plugins=MappingProxyType(plugins),
        available=MappingProxyType(
            {name: plugin for name, plugin in discovery.installed.items() if name not in used_names}
        ),
        routes=routes,
        pipelines=MappingProxyType({pipeline.name: pipeline for pipeline in config.pipelines}),
        api=replace(config.api, auth=ApiAuthSettings()),
        tokens=_compile_tokens(loaded),
        secrets=MappingProxyType(secrets),
        webhooks_enabled=isinstance(loaded.tree.get("webhooks"), MapNode),
        webhooks_listen=config.webhooks.listen,
        webhooks=tuple(compile_endpoint(endpoint, secrets) for endpoint in config.webhooks.endpoints),
        state_webhooks=config.state_webhooks,
        state_webhook_secret=secrets.get(config.state_webhooks.secret_ref or ""),
        artifact_roots=tuple(resolve_path(root, loaded.directory) for root in config.artifacts.roots),
        policy=_compile_policy(config.service, plugins, routes, pipelines),
        fingerprint=_fingerprint(loaded, plugins),
        warnings=(*loaded.warnings, *discovery.warnings, *report.warnings),
        redacted=loaded.redacted(),
        hidden_digests=digest_hidden_values(loaded.tree),
        checksums=build_checksums(
            loaded.files, _sealed_plugins(plugins, discovery), strict=config.service.strict_mode
        ),
    )


def _check_plugin_seals(loaded: LoadedConfig, plugins: Mapping[str, PluginInstance]) -> tuple[Problem, ...]:
    """Return warnings of plugins that are not as sealed. Raises IntegrityError in strict mode."""
    # A configuration that was never sealed has a warning already.
    if loaded.seal is not SealMode.VERIFY or (loaded.checksums is None and not loaded.strict):
        return ()
    sealed = {} if loaded.checksums is None else loaded.checksums.plugins
    present = {}
    for instance in plugins.values():
        if (plugin := instance.installed) is None:
            continue
        # The fingerprint of a shipped plugin changes with the program. It is compared only if the operator
        # sealed a plugin of their own under this name, which the shipped one replaces. A shipped plugin has
        # an entry itself if `plugin_roots` named its directory for an earlier version of Ductile.
        replaces_sealed = plugin.name in sealed and plugin.root not in loaded.plugin_roots
        if replaces_sealed if plugin.shipped else plugin.sealed:
            present[plugin.name] = plugin.fingerprint
    violations = find_plugin_violations(present, loaded.checksums)
    return check_changes(violations, loaded.directory, Tier.OPERATIONAL, refuse=loaded.strict)


def _compile_tokens(loaded: LoadedConfig) -> tuple[AccessToken, ...]:
    """Return the access tokens. Entries without scopes are secrets, which the API does not accept."""
    config = loaded.model
    tokens = [
        AccessToken(
            name=token.effective_name,
            digest=token.token.digest(),
            scopes=token.scopes,
            limits=_token_limits(token.limits),
        )
        for token in config.api.auth.tokens
        if token.scopes
    ]
    granted = {file.token: file.scopes for file in loaded.scope_files}
    for entry in config.tokens:
        if not (scopes := granted.get(entry.name)):
            continue
        token = AccessToken(
            name=entry.name, digest=entry.key.digest(), scopes=scopes, limits=_token_limits(entry.limits)
        )
        tokens.append(token)
        if entry.previous_key is not None:  # the key before a rotation counts until it expires
            digest = entry.previous_key.digest()
            tokens.append(replace(token, digest=digest, expires_at=entry.previous_expires_at))
    return tuple(tokens)


def _locate_state(state: StateSettings, directory: Path) -> StateLocation:
    if state.url is not None:
        local = resolve_path(state.directory or DEFAULT_STATE_DIRECTORY, directory)
        return PostgresLocation(url=state.url, directory=local)
    return SqliteLocation(path=resolve_path(state.path or DEFAULT_STATE_PATH, directory))


def _sealed_plugins(plugins: Mapping[str, PluginInstance], discovery: Discovery) -> dict[str, str]:
    """Return the fingerprints of the plugins that a seal covers, also of those that lack a setting."""
    pairs = ((plugin.uses, discovery.find(plugin)) for plugin in plugins.values())
    return {
        name: plugin.fingerprint
        for name, plugin in sorted(pairs, key=lambda pair: pair[0])
        if isinstance(plugin, InstalledPlugin) and plugin.sealed
    }


def _compile_policy(
    service: ServiceSettings,
    plugins: Mapping[str, PluginInstance],
    routes: Sequence[EventRoute],
    pipelines: Sequence[Pipeline],
) -> Policy:
    """Return the part of the configuration that decisions in the core need."""
    name, receiver = service.on_failure, None
    if any(pipeline.name == name for pipeline in pipelines):
        receiver = FailureReceiver(pipeline=name)
    elif name is not None:
        plugin, command = parse_target(name)
        receiver = FailureReceiver(plugin=plugin, command=command, accepts_jobs=plugins[plugin].enabled)
    return Policy(
        plugins=MappingProxyType({name: plugin_policy(plugin) for name, plugin in plugins.items()}),
        routes=EventRouteTable.of(routes),
        pipelines=PipelineTable.of(pipelines),
        dedupe_ttl=service.dedupe_ttl,
        max_hops=service.max_hops,
        on_failure=receiver,
        is_secret=looks_secret,
    )


def _token_limits(settings: TokenLimitSettings | None) -> TokenLimits | None:
    if settings is None:
        return None
    targets = {target_of(name, ""): limits for name, limits in settings.plugins.items()}
    targets |= {target_of(RUN_PLUGIN, name): limits for name, limits in settings.pipelines.items()}
    return TokenLimits(
        jobs_per_hour=settings.jobs_per_hour,
        jobs_per_day=settings.jobs_per_day,
        running=settings.running,
        cost_per_day=settings.cost_per_day,
        targets={
            target: JobLimits(
                jobs_per_hour=limits.jobs_per_hour, jobs_per_day=limits.jobs_per_day, running=limits.running
            )
            for target, limits in targets.items()
        },
    )


def _fingerprint(loaded: LoadedConfig, plugins: Mapping[str, PluginInstance]) -> str:
    """Return a hash over the loaded files, the plugins and their effective configurations."""
    content = {
        "files": {file.name: file.hash for file in loaded.files},
        "plugins": {
            name: [plugin.config_hash, plugin.installed.fingerprint if plugin.installed else None]
            for name, plugin in plugins.items()
        },
    }
    return hash_bytes(json.dumps(content, sort_keys=True).encode())


def compile_endpoint(endpoint: WebhookEndpointSettings, secrets: Mapping[str, Secret]) -> WebhookEndpoint:
    target: WebhookTarget = PublishTarget(event_type=endpoint.event or "")
    if endpoint.plugin is not None:
        target = PluginTarget(plugin=endpoint.plugin, command=endpoint.command or "handle")
    elif endpoint.pipeline is not None:
        target = PipelineTarget(pipeline=endpoint.pipeline)
    return WebhookEndpoint(
        name=endpoint.effective_name,
        path=endpoint.path,
        target=target,
        secret=endpoint.secret or secrets[endpoint.secret_ref or ""],
        max_body_size=endpoint.max_body_size,
        preset=endpoint.preset,
        scheme=signature_scheme(endpoint),
    )


def signature_scheme(endpoint: WebhookEndpointSettings) -> SignatureScheme:
    """Return the preset's scheme, or GitHub's without a preset, with the headers that the endpoint names."""
    preset = GITHUB if endpoint.preset is None else _PRESETS[endpoint.preset]
    delivery = endpoint.delivery_header
    if delivery is None and endpoint.preset is not None:
        delivery = preset.delivery_header
    return SignatureScheme(
        form=preset.form,
        header=(endpoint.signature_header or preset.header).lower(),
        delivery_header=None if delivery is None else delivery.lower(),
        delivery_field=preset.delivery_field,
        identified_by_content=endpoint.preset is not None and preset.identified_by_content,
    )
