"""Configurations, retention, and the state of the store itself."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from enum import StrEnum

from ductile.core.json import JsonObject, JsonValue
from ductile.struct import Value, field


class ConfigOrigin(StrEnum):
    START = "start"
    RELOAD = "reload"
    RUN = "run"


class PluginVersion(Value):
    """A plugin as a configuration used it. `config` is the hash of its settings, secrets included."""

    version: str | None
    fingerprint: str | None
    config: str


class ConfigRecord(Value):
    seq: int
    hash: str
    origin: ConfigOrigin
    content: JsonObject
    loaded_at: datetime
    #: None where they were not recorded.
    plugins: Mapping[str, PluginVersion] | None = None


def versions_to_json(plugins: Mapping[str, PluginVersion]) -> JsonObject:
    return {
        name: {"version": plugin.version, "fingerprint": plugin.fingerprint, "config": plugin.config}
        for name, plugin in plugins.items()
    }


def versions_from_json(stored: JsonObject | None) -> Mapping[str, PluginVersion] | None:
    if stored is None:
        return None
    return {
        name: PluginVersion(
            version=_text(entry.get("version")),
            fingerprint=_text(entry.get("fingerprint")),
            config=str(entry.get("config")),
        )
        for name, entry in stored.items()
        if isinstance(entry, dict)
    }


def _text(value: JsonValue) -> str | None:
    return value if isinstance(value, str) else None


class Retention(Value):
    """How long what is kept."""

    succeeded_jobs: timedelta = timedelta(hours=24)
    job_log: timedelta = timedelta(days=30)
    breaker_transitions: timedelta = timedelta(days=90)
    occurrences: timedelta = timedelta(days=30)
    deliveries: timedelta = timedelta(days=7)
    ledger: timedelta = timedelta(days=7)
    ledger_rows: int = 1_000_000
    #: Facts are kept for good unless a time is set.
    facts: timedelta | None = None


class PruneResult(Value):
    rows: Mapping[str, int] = field(default_factory=dict)
    more: bool = False


class PluginWork(Value):
    """Accepted work that still needs a plugin."""

    plugin: str
    #: Queued jobs, whatever they wait for.
    queued: int = 0
    running: int = 0
    #: Pipeline runs that have not ended and have a step that runs the plugin.
    runs: int = 0


class StoreStats(Value):
    """The store as a thing on a disk."""

    place: str
    size: int
    #: What was written and not yet moved to its place.
    log_size: int
    schema_version: int
    #: The newest one that this program knows.
    newest_schema: int
    filesystem: str | None
    #: What the database itself finds wrong with its files.
    damage: tuple[str, ...]
    #: What it finds wrong with the index for searching the log, which can be built again.
    search_damage: tuple[str, ...] = ()
    #: Damaged write-ahead logs that were kept when the store was opened.
    kept_logs: tuple[str, ...] = ()


class FailureGroup(Value):
    """Jobs of one command that failed for good."""

    plugin: str
    command: str
    jobs: int
    latest_job_id: str


class FailingReceiver(Value):
    """A receiver of state webhooks that refuses or does not answer."""

    receiver: str
    #: Tried in vain, and to be tried again.
    waiting: int
    dropped: int
    last_error: str | None


class RecentFailures(Value):
    """What has gone wrong of late."""

    #: When the newest entry of the ledger was written.
    newest_at: datetime | None
    endings: tuple[FailureGroup, ...]
    #: Jobs that ended because their plugin was removed or disabled.
    removed: tuple[FailureGroup, ...]
    receivers: tuple[FailingReceiver, ...]
