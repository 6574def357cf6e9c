"""The model of the configuration: every section, key, type, default and description.

The JSON Schema and the reference are generated from the descriptions. A default that depends on the machine
or on another key is None here; `ductile.config.compile` and `edit` compute it.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from enum import StrEnum
from functools import cache
from typing import Annotated

import msgspec

from ductile.config.schema.fields import (
    Duration,
    Instant,
    ListenAddress,
    SecretText,
    Section,
    SettingKey,
    Size,
    setting,
    settings_under,
)
from ductile.config.schema.pipelines import PipelineSettings
from ductile.config.schema.plugins import PluginSettings

_ONE_MEGABYTE = 1_000_000
_NAME_DIGITS = 8


class LogLevel(StrEnum):
    DEBUG = "debug"
    INFO = "info"
    WARN = "warn"
    ERROR = "error"

    @classmethod
    def _missing_(cls, value: object) -> LogLevel | None:
        """Accept any case, and `warning`."""
        lowered = str(value).lower()
        canonical = "warn" if lowered == "warning" else lowered
        return next((level for level in cls if level.value == canonical), None)


class LogFormat(StrEnum):
    JSON = "json"
    TEXT = "text"


class WebhookPreset(StrEnum):
    GITHUB = "github"
    GITLAB = "gitlab"
    STRIPE = "stripe"
    SLACK = "slack"
    STANDARD_WEBHOOKS = "standard-webhooks"
    URL_TOKEN = "url-token"  # noqa: S105 - a name


class ServiceSettings(Section, frozen=True, kw_only=True):
    name: Annotated[str, setting("Name of this service in logs and responses.")] = "ductile"
    node: Annotated[
        str | None,
        setting(
            "Name of this daemon among those that share a PostgreSQL store. No two that run may have the "
            "same.",
            default="the host's name",
        ),
    ] = None
    run_only: Annotated[
        tuple[str, ...] | None,
        setting(
            "The plugins whose jobs this node runs, if it shares its store with others: for a node that has "
            "something the others lack, or the other way round.",
            default="all that are enabled",
        ),
    ] = None
    tick_interval: Annotated[
        Duration,
        setting(
            "Interval at which the scheduler checks the clock and expired data is removed. Jobs start when "
            "they are due, not at the next tick.",
            at_least=1,
        ),
    ] = timedelta(seconds=60)
    log_level: Annotated[LogLevel, setting("The lowest level that is logged.")] = LogLevel.INFO
    log_format: Annotated[
        LogFormat,
        setting("JSON for machines, or text for people.", default="`json`, and short text at a terminal"),
    ] = LogFormat.JSON
    timezone: Annotated[
        str | None,
        setting("IANA time zone of every schedule that names none.", default="the system's time zone"),
    ] = None
    dedupe_ttl: Annotated[
        Duration,
        setting(
            "How long a succeeded job keeps others with its dedupe key from running. With several nodes also "
            "how long a job waits for a node that may run it, so no shorter than a restart."
        ),
    ] = timedelta(hours=24)
    job_log_retention: Annotated[
        Duration, setting("How long the log of jobs, and failed and dead jobs, are kept.")
    ] = timedelta(days=30)
    job_queue_retention: Annotated[
        Duration, setting("How long succeeded jobs stay in the queue. No shorter than `dedupe_ttl`.")
    ] = timedelta(hours=24)
    facts_retention: Annotated[Duration | None, setting("How long facts are kept.", default="for ever")] = (
        None
    )
    max_workers: Annotated[
        int | None,
        setting(
            "Jobs that run at the same time on this node.",
            default="one less than the processors, at least 1",
            at_least=1,
        ),
    ] = None
    max_hops: Annotated[
        int, setting("How many routes and pipelines one event may trigger in a row.", at_least=1)
    ] = 20
    strict_mode: Annotated[
        bool, setting("Refuse unsealed files and secrets in the clear, which otherwise are warnings.")
    ] = False
    allow_symlinks: Annotated[
        bool, setting("Follow symbolic links in the paths of configuration and plugins, with a warning.")
    ] = False
    shutdown_grace: Annotated[
        Duration, setting("How long running jobs may take to finish when the service stops.")
    ] = timedelta(seconds=30)
    on_failure: Annotated[
        str | None,
        setting(
            "Receives a notice of jobs and runs that fail for good, several in one: `plugin` for its "
            "`handle` command, `plugin.command`, or the name of a pipeline."
        ),
    ] = None
    plugin_env_passthrough: Annotated[
        tuple[str, ...], setting("Further variables of the service's environment that plugins get.")
    ] = ()


class StateSettings(Section, frozen=True, kw_only=True):
    path: Annotated[
        str | None, setting("The SQLite file of the embedded store.", default="`./data/state.db`")
    ] = None
    url: Annotated[
        SecretText | None,
        setting("A PostgreSQL database instead: `postgresql://user:${PASSWORD}@host/database`."),
    ] = None
    directory: Annotated[
        str | None,
        setting(
            "With `url`: where this machine keeps its socket, lock and plugin files.", default="`./data`"
        ),
    ] = None


class RouteSettings(Section, frozen=True, kw_only=True):
    source: Annotated[
        str, setting("The event's source: the plugin that emits it, or `api`, `cli` or `webhook`.")
    ] = msgspec.field(name="from")
    event_type: Annotated[str, setting("The event's type; it has to match exactly.")]
    to: Annotated[str, setting("Target: `plugin` for its `handle` command, or `plugin.command`.")]


class JobLimitSettings(Section, frozen=True, kw_only=True):
    jobs_per_hour: Annotated[
        int | None, setting("Jobs that the token may start in an hour (UTC).", at_least=0)
    ] = None
    jobs_per_day: Annotated[
        int | None, setting("Jobs that the token may start in a day (UTC).", at_least=0)
    ] = None
    running: Annotated[
        int | None, setting("Jobs of the token that may be queued or running at once.", at_least=0)
    ] = None


class TokenLimitSettings(JobLimitSettings, frozen=True, kw_only=True):
    cost_per_day: Annotated[
        float | None,
        setting("What plugins may report as `cost` in a day (UTC); after that the token starts nothing."),
    ] = None
    plugins: Annotated[
        dict[str, JobLimitSettings], setting("Further limits for the jobs of single plugins.")
    ] = msgspec.field(default_factory=dict)
    pipelines: Annotated[
        dict[str, JobLimitSettings], setting("Further limits for the runs of single pipelines.")
    ] = msgspec.field(default_factory=dict)


class ApiTokenSettings(Section, frozen=True, kw_only=True):
    name: Annotated[
        str | None,
        setting("Name of the token in logs.", default="`api-token-` and the first digits of its digest"),
    ] = None
    token: Annotated[SecretText, setting("The token itself, as a reference such as `${ADMIN_TOKEN}`.")]
    scopes: Annotated[tuple[str, ...], setting("What the token permits.")] = ()
    limits: Annotated[TokenLimitSettings | None, setting("How much the token may start.")] = None

    @property
    def effective_name(self) -> str:
        """The `name`, or one made from the token's digest.

        The position in the list would not be stable: idempotency keys are remembered by this name, and it
        must not change when other tokens are added or removed.
        """
        return self.name or f"api-token-{self.token.digest().hex()[:_NAME_DIGITS]}"


class ApiAuthSettings(Section, frozen=True, kw_only=True):
    tokens: Annotated[tuple[ApiTokenSettings, ...], setting("Bearer tokens that the API accepts.")] = ()


class ApiSettings(Section, frozen=True, kw_only=True):
    enabled: Annotated[bool, setting("Whether the HTTP API listens.")] = False
    listen: Annotated[ListenAddress, setting("Where it listens.")] = "localhost:8080"
    auth: Annotated[ApiAuthSettings, setting("Authentication of callers.")] = ApiAuthSettings()
    ui: Annotated[bool, setting("Whether the dashboard is served at `/ui`.")] = True
    max_concurrent_sync: Annotated[
        int, setting("Callers that may wait for a run at the same time.", at_least=1)
    ] = 10
    max_sync_timeout: Annotated[Duration, setting("Longest time a caller waits.", at_least=1)] = timedelta(
        minutes=5
    )
    max_body_size: Annotated[Size, setting("Largest request body.", at_least=1)] = _ONE_MEGABYTE
    open_discovery: Annotated[
        bool,
        setting(
            "Show the catalogue without a token, also where `listen` or `Host` is not a loopback address."
        ),
    ] = False


class WebhookEndpointSettings(Section, frozen=True, kw_only=True):
    name: Annotated[
        str | None,
        setting("Used in the event's type, `webhook.NAME`; unique.", default="the last part of `path`"),
    ] = None
    path: Annotated[str, setting("Path of the endpoint, such as `/hook/github`; unique.")]
    plugin: Annotated[str | None, setting("Run this plugin.")] = None
    pipeline: Annotated[str | None, setting("Run this pipeline.")] = None
    event: Annotated[str | None, setting("Publish an event of this type.")] = None
    command: Annotated[str | None, setting("The plugin's command.", default="`handle`")] = None
    secret_ref: Annotated[str | None, setting("The entry of `tokens` that signs the requests.")] = None
    secret: Annotated[SecretText | None, setting("The signing secret itself, as a reference.")] = None
    signature_header: Annotated[
        str | None,
        setting("The header with the signature.", default="`X-Hub-Signature-256`, or the preset's"),
    ] = None
    max_body_size: Annotated[Size, setting("Largest request body.", at_least=1)] = _ONE_MEGABYTE
    delivery_header: Annotated[
        str | None, setting("The header with the delivery's id; a redelivery is then not run twice.")
    ] = None
    preset: Annotated[
        WebhookPreset | None,
        setting(
            "Header, format and replay window of a well-known sender; `url-token` for one that cannot sign."
        ),
    ] = None

    @property
    def effective_name(self) -> str:
        return self.name or self.path.rstrip("/").rpartition("/")[2]


class WebhookSettings(Section, frozen=True, kw_only=True):
    listen: Annotated[ListenAddress, setting("Where the listener for webhooks is.")] = "127.0.0.1:8081"
    endpoints: Annotated[tuple[WebhookEndpointSettings, ...], setting("The endpoints, by path.")] = ()


class TokenSettings(Section, frozen=True, kw_only=True):
    name: Annotated[str, setting("Name of the entry, unique; `secret_ref` refers to it.")]
    key: Annotated[SecretText, setting("The secret itself, as a reference such as `${GITHUB_KEY}`.")]
    scopes_file: Annotated[
        str | None, setting("JSON file with the scopes. Without one the entry is a secret, not a token.")
    ] = None
    scopes_hash: Annotated[str | None, setting("`blake3:` and the hash that the scopes file must have.")] = (
        None
    )
    previous_key: Annotated[
        SecretText | None,
        setting("The secret before a rotation, valid until `previous_expires_at`; `token rotate` sets both."),
    ] = None
    previous_expires_at: Annotated[
        Instant | None, setting("Until when `previous_key` is accepted as well.")
    ] = None
    limits: Annotated[TokenLimitSettings | None, setting("How much the token may start.")] = None


class StateWebhookSettings(Section, frozen=True, kw_only=True):
    secret_ref: Annotated[str | None, setting("The entry of `tokens` that signs the requests.")] = None
    signature_header: Annotated[str, setting("The header with the signature.")] = "X-Foreman-Signature"
    allow: Annotated[tuple[str, ...], setting("Hosts that may be called.", default="any public address")] = ()
    max_attempts: Annotated[int, setting("How often a delivery is tried.", at_least=1)] = 8
    backoff_base: Annotated[
        Duration, setting("Wait after the first failure; it doubles with each further one.", at_least=1)
    ] = timedelta(seconds=1)
    timeout: Annotated[Duration, setting("How long the receiver may take to answer.", at_least=1)] = (
        timedelta(seconds=15)
    )


class ArtifactSettings(Section, frozen=True, kw_only=True):
    roots: Annotated[tuple[str, ...], setting("Directories whose files may be served as artifacts.")] = ()


class EnvironmentSettings(Section, frozen=True, kw_only=True):
    include: Annotated[
        tuple[str, ...], setting("Files of `NAME=value` lines; the real environment wins over them.")
    ] = ()


class Config(Section, frozen=True, kw_only=True):
    include: Annotated[
        tuple[str, ...],
        setting("Further files or directories to load, relative to the file that includes them."),
    ] = ()
    environment_vars: Annotated[
        EnvironmentSettings, setting("Files of variables, besides the environment.")
    ] = EnvironmentSettings()
    service: Annotated[ServiceSettings, setting("The service as a whole.")] = ServiceSettings()
    state: Annotated[StateSettings, setting("Where jobs and their history are stored.")] = StateSettings()
    plugin_roots: Annotated[
        tuple[str, ...],
        setting(
            "Directories that are searched for plugins; the shipped ones are found anyway.",
            default="`[./plugins]`",
        ),
    ] = ()
    plugins_dir: Annotated[str | None, setting("Older name for a single entry of `plugin_roots`.")] = None
    plugins: Annotated[Mapping[str, PluginSettings], setting("The active plugins, by name.")] = {}
    routes: Annotated[tuple[RouteSettings, ...], setting("Which events go to which plugins.")] = ()
    pipelines: Annotated[tuple[PipelineSettings, ...], setting("Work in several steps.")] = ()
    api: Annotated[ApiSettings, setting("The HTTP API.")] = ApiSettings()
    webhooks: Annotated[WebhookSettings, setting("Signed calls from other services.")] = WebhookSettings()
    tokens: Annotated[tuple[TokenSettings, ...], setting("Secrets and API tokens.")] = ()
    state_webhooks: Annotated[
        StateWebhookSettings, setting("Calls to other services when a job changes its state.")
    ] = StateWebhookSettings()
    artifacts: Annotated[ArtifactSettings, setting("Files that jobs produce.")] = ArtifactSettings()


@cache
def settings_by_path() -> Mapping[tuple[str, ...], SettingKey]:
    """Return every setting by its path; `*` stands for a name and `[]` for a position."""
    return dict(settings_under(Config))
