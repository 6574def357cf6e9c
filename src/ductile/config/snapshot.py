"""The compiled configuration: one immutable value that the rest of the program reads.

Defaults, paths, aliases and secrets by reference are resolved. A snapshot never changes; a reload makes
another one. `ductile.plugins.discovery`, above this package, produces the `Discovery`.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from pathlib import Path
from types import MappingProxyType
from typing import Literal, TypeAlias

from ductile.config.differences import ComparableConfig
from ductile.config.schema.model import ApiSettings, ServiceSettings, StateWebhookSettings, WebhookPreset
from ductile.config.schema.pipelines import PipelineSettings
from ductile.config.schema.plugins import LimitSettings
from ductile.config.seal import Checksums
from ductile.config.secrets import Secret, SecretMap
from ductile.core.events.model import EventRoute
from ductile.core.jobs.failures import BreakerPolicy, RetryPolicy
from ductile.core.jobs.model import StateSubscription
from ductile.core.json import JsonValue
from ductile.core.policy import Policy
from ductile.core.schedules.rule import ScheduleRule
from ductile.core.scripts import Script
from ductile.core.token_limits import TokenLimits
from ductile.core.webhooks.signatures import SignatureScheme
from ductile.errors import Problem
from ductile.protocol.manifest.model import Manifest
from ductile.struct import Value, field, hide_in_repr

#: The default timeout of a command.
COMMAND_TIMEOUTS: Mapping[str, timedelta] = {
    "poll": timedelta(seconds=60),
    "handle": timedelta(seconds=120),
    "health": timedelta(seconds=10),
    "init": timedelta(seconds=30),
}
OTHER_TIMEOUT = timedelta(seconds=60)


class InstalledPlugin(Value):
    """A plugin that may run: its manifest is valid and its files passed the trust checks.

    `directory` and `entrypoint` are absolute; `fingerprint` covers the bytes of manifest and entrypoint.
    """

    name: str
    version: str
    root: Path
    directory: Path
    entrypoint: Path
    manifest: Manifest
    fingerprint: str
    #: For a script of the configuration, which has no files of a plugin; its manifest is made for it.
    script: Script | None = None
    #: The file of a script's program; None if it is found by PATH.
    program: Path | None = None
    #: Whether the plugin is part of Ductile.
    shipped: bool = False

    @property
    def sealed(self) -> bool:
        """Return whether the fingerprint is part of the seal.

        That of a shipped plugin is not, because it changes with the program; nor is that of a program that is
        found by PATH.
        """
        return not self.shipped and (self.script is None or self.program is not None)


class RefusedPlugin(Value):
    """A plugin that was found and must not run; `reason` is for people, `code` for programs."""

    name: str
    directory: Path
    code: str
    reason: str
    hint: str | None = None
    shipped: bool = False


class Discovery(Value):
    """The plugins on disk, by their own names."""

    installed: Mapping[str, InstalledPlugin] = field(default_factory=lambda: MappingProxyType({}))
    refused: Mapping[str, RefusedPlugin] = field(default_factory=lambda: MappingProxyType({}))
    #: The scripts of the configuration by their configured name; `ductile.plugins.scripts` adds them.
    scripts: Mapping[str, InstalledPlugin | RefusedPlugin] = field(
        default_factory=lambda: MappingProxyType({})
    )
    #: The names of all shipped plugins; those in use are among the installed or refused ones.
    shipped_names: tuple[str, ...] = ()
    warnings: tuple[Problem, ...] = ()

    def find(self, plugin: PluginInstance) -> InstalledPlugin | RefusedPlugin | None:
        """Return the plugin or script of a configured name, installed or refused; None if there is none."""
        if plugin.is_script:
            return self.scripts.get(plugin.name)
        return self.installed.get(plugin.uses) or self.refused.get(plugin.uses)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of all plugins on disk, also of the refused and the shipped ones."""
        return tuple(dict.fromkeys((*self.installed, *self.refused, *self.shipped_names)))


class Schedule(Value):
    """A command, and the rule by which the core decides when it runs."""

    id: str
    command: str
    rule: ScheduleRule
    payload: SecretMap[JsonValue] | None = None


class PluginRefusal(Value):
    """The reason why a configured plugin cannot run. Its jobs fail with `plugin_unavailable`."""

    code: str
    reason: str
    hint: str | None = None


class PluginInstance(Value):
    """A plugin under its configured name. Exactly one of `installed` and `refused` is None."""

    name: str
    uses: str
    is_script: bool
    enabled: bool
    installed: InstalledPlugin | None
    refused: PluginRefusal | None
    config: SecretMap[JsonValue]
    config_hash: str
    env: SecretMap[str]
    schedules: tuple[Schedule, ...]
    parallelism: int
    #: Jobs that may run at the same time on all nodes together; None: as many as there are workers.
    parallelism_limit: int | None
    max_outstanding_polls: int
    timeouts: Mapping[str, timedelta]
    timeout: timedelta | None
    retry: RetryPolicy
    breaker: BreakerPolicy
    limits: LimitSettings
    validate_input: bool
    notify_on_complete: bool
    #: Gets the states of its jobs that are not steps of a run.
    state_webhook: StateSubscription | None
    warm: bool | Literal["auto"]
    preload: tuple[str, ...]

    @property
    def runnable(self) -> bool:
        return self.enabled and self.refused is None

    def timeout_for(self, command: str) -> timedelta:
        """Return the timeout of a command: its own setting, else the plugin's, else the default."""
        if command in self.timeouts:
            return self.timeouts[command]
        return self.timeout or COMMAND_TIMEOUTS.get(command, OTHER_TIMEOUT)


class SqliteLocation(Value):
    path: Path

    @property
    def directory(self) -> Path:
        """The directory of the control socket, the lock and the files of plugins."""
        return self.path.parent

    @property
    def name(self) -> str:
        """The store as messages name it."""
        return str(self.path)


class PostgresLocation(Value):
    url: Secret
    #: The directory of the control socket, the lock and the files of plugins, on this machine.
    directory: Path = Path("data")

    @property
    def name(self) -> str:
        return describe_server(self.url.reveal())


StateLocation: TypeAlias = SqliteLocation | PostgresLocation


def describe_server(url: str) -> str:
    """Return the server and the database of a valid URL, without user, password and parameters."""
    authority, slash, database = url.partition("://")[2].partition("?")[0].partition("/")
    return f"postgresql://{authority.rpartition('@')[2]}{slash}{database}"


@hide_in_repr("digest")
class AccessToken(Value):
    """A token that the API accepts, with its scopes as written. Only the digest of the token is kept."""

    name: str
    digest: bytes
    scopes: tuple[str, ...]
    #: When the secret expires, if `token rotate` has replaced it; None for a current secret.
    expires_at: datetime | None = None
    #: None if the token is not limited.
    limits: TokenLimits | None = None


class PluginTarget(Value):
    plugin: str
    command: str


class PipelineTarget(Value):
    pipeline: str


class PublishTarget(Value):
    event_type: str


WebhookTarget: TypeAlias = PluginTarget | PipelineTarget | PublishTarget


class WebhookEndpoint(Value):
    """An address that receives webhooks, with its secret and the form of its signatures."""

    name: str
    path: str
    target: WebhookTarget
    secret: Secret
    max_body_size: int
    preset: WebhookPreset | None
    scheme: SignatureScheme


@hide_in_repr("redacted", "hidden_digests")
class Snapshot(Value):
    """A compiled configuration. `available` are installed plugins that it does not use."""

    directory: Path
    service: ServiceSettings
    timezone: str
    max_workers: int
    state: StateLocation
    plugin_roots: tuple[Path, ...]
    plugins: Mapping[str, PluginInstance]
    available: Mapping[str, InstalledPlugin]
    routes: tuple[EventRoute, ...]
    pipelines: Mapping[str, PipelineSettings]
    #: Without `auth`, which holds secrets in the clear; `tokens` has the digests.
    api: ApiSettings
    tokens: tuple[AccessToken, ...]
    secrets: Mapping[str, Secret]
    #: Whether there is a `webhooks` section: the listener then starts, even without endpoints.
    webhooks_enabled: bool
    webhooks_listen: str
    webhooks: tuple[WebhookEndpoint, ...]
    state_webhooks: StateWebhookSettings
    state_webhook_secret: Secret | None
    artifact_roots: tuple[Path, ...]
    policy: Policy
    fingerprint: str
    warnings: tuple[Problem, ...]
    #: The merged configuration as written, without secrets, to be stored and shown.
    redacted: JsonValue
    #: A digest for each value that `redacted` does not show, to notice that it changed; never stored.
    hidden_digests: JsonValue = None
    #: The seal that this configuration would have: its files, the plugins in use, strict mode.
    checksums: Checksums = Checksums()

    @property
    def comparable(self) -> ComparableConfig:
        return ComparableConfig(redacted=self.redacted, digests=self.hidden_digests)

    @property
    def refused(self) -> tuple[PluginInstance, ...]:
        """Enabled plugins that cannot run: `config check` fails, the daemon starts without them."""
        return tuple(plugin for plugin in self.plugins.values() if plugin.enabled and plugin.refused)
