"""The compiled configuration: one immutable value that the rest of the program reads.

Everything is resolved here that a file may leave open: defaults, paths, aliases, secrets by
reference. A snapshot never changes; a reload makes another one.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Literal, TypeAlias

from ductile.config.installed import InstalledPlugin
from ductile.config.schema.model import ApiSettings, ServiceSettings, StateWebhookSettings, WebhookPreset
from ductile.config.schema.pipelines import PipelineSettings
from ductile.config.schema.plugins import LimitSettings
from ductile.config.secrets import Secret, SecretMap
from ductile.core.events.routing import EventRoute
from ductile.core.jobs.breaker import BreakerPolicy
from ductile.core.jobs.retry import RetryPolicy
from ductile.core.json import JsonValue
from ductile.core.policy import Policy
from ductile.core.schedules.rule import ScheduleRule
from ductile.core.webhooks.signatures import SignatureScheme
from ductile.errors import Problem
from ductile.struct import Value, hide_in_repr

#: How long a command may run where nobody says otherwise.
COMMAND_TIMEOUTS: Mapping[str, timedelta] = {
    "poll": timedelta(seconds=60),
    "handle": timedelta(seconds=120),
    "health": timedelta(seconds=10),
    "init": timedelta(seconds=30),
}
OTHER_TIMEOUT = timedelta(seconds=60)


class Schedule(Value):
    """What is run, and by which rule the core decides when."""

    id: str
    command: str
    rule: ScheduleRule
    payload: SecretMap[JsonValue] | None = None


class PluginRefusal(Value):
    """Why a configured plugin cannot run; jobs for it fail with `plugin_unavailable`."""

    code: str
    reason: str
    hint: str | None = None


class PluginInstance(Value):
    """A plugin under its configured name. `installed` is None exactly when it was not found good."""

    name: str
    uses: str
    enabled: bool
    installed: InstalledPlugin | None
    refused: PluginRefusal | None
    config: SecretMap[JsonValue]
    config_hash: str
    env: SecretMap[str]
    schedules: tuple[Schedule, ...]
    parallelism: int
    max_outstanding_polls: int
    timeouts: Mapping[str, timedelta]
    timeout: timedelta | None
    retry: RetryPolicy
    breaker: BreakerPolicy
    limits: LimitSettings
    validate_input: bool
    notify_on_complete: bool
    warm: bool | Literal["auto"]
    preload: tuple[str, ...]

    @property
    def runnable(self) -> bool:
        return self.enabled and self.refused is None

    def timeout_for(self, command: str) -> timedelta:
        """The longest a command may run: its own setting, else the plugin's, else the usual one."""
        if command in self.timeouts:
            return self.timeouts[command]
        return self.timeout or COMMAND_TIMEOUTS.get(command, OTHER_TIMEOUT)


class SqliteLocation(Value):
    path: Path


class PostgresLocation(Value):
    url: Secret


StateLocation: TypeAlias = SqliteLocation | PostgresLocation


@hide_in_repr("digest")
class AccessToken(Value):
    """A token that opens the API. The scopes are as written; what they imply is decided at the door.

    Of the secret there is the digest only: whoever comes is known by it, and nothing else asks for more.
    """

    name: str
    digest: bytes
    scopes: tuple[str, ...]


class PluginTarget(Value):
    plugin: str
    command: str


class PipelineTarget(Value):
    pipeline: str


class EventTarget(Value):
    event_type: str


WebhookTarget: TypeAlias = PluginTarget | PipelineTarget | EventTarget


class WebhookEndpoint(Value):
    name: str
    path: str
    target: WebhookTarget
    secret: Secret
    max_body_size: int
    preset: WebhookPreset | None
    scheme: SignatureScheme


@hide_in_repr("shown")
class Snapshot(Value):
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
    #: Without `auth`, which holds secrets in the clear: who may come is in `tokens`.
    api: ApiSettings
    tokens: tuple[AccessToken, ...]
    secrets: Mapping[str, Secret]
    #: Whether there is a `webhooks` section: then there is a listener, with endpoints or without.
    webhooks_enabled: bool
    webhooks_listen: str
    webhooks: tuple[WebhookEndpoint, ...]
    state_webhooks: StateWebhookSettings
    state_webhook_secret: Secret | None
    artifact_roots: tuple[Path, ...]
    rules: Policy
    fingerprint: str
    warnings: tuple[Problem, ...]
    #: The merged configuration as it was written, without secrets: what may be stored and shown.
    shown: JsonValue

    @property
    def refused(self) -> tuple[PluginInstance, ...]:
        """Plugins that are wanted and cannot run: `config check` fails over them, the daemon starts."""
        return tuple(plugin for plugin in self.plugins.values() if plugin.enabled and plugin.refused)
