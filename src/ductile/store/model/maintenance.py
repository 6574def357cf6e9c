"""Recorded configurations, retention, and the state of the store itself."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from enum import StrEnum

from ductile.core.json import JsonObject
from ductile.struct import Value, field


class ConfigOrigin(StrEnum):
    START = "start"
    RELOAD = "reload"
    RUN = "run"


class PluginVersion(Value):
    """A plugin under a configuration. `config` is the hash of its settings, secrets included."""

    version: str | None
    fingerprint: str | None
    config: str


class ConfigRecord(Value):
    seq: int
    hash: str
    origin: ConfigOrigin
    content: JsonObject
    loaded_at: datetime
    #: None if they were not recorded.
    plugins: Mapping[str, PluginVersion] | None = None


class Retention(Value):
    """How long rows are kept, by kind."""

    succeeded_jobs: timedelta = timedelta(hours=24)
    job_log: timedelta = timedelta(days=30)
    breaker_transitions: timedelta = timedelta(days=90)
    occurrences: timedelta = timedelta(days=30)
    deliveries: timedelta = timedelta(days=7)
    ledger: timedelta = timedelta(days=7)
    ledger_rows: int = 1_000_000
    #: None: facts are kept for ever.
    facts: timedelta | None = None


class PruneResult(Value):
    rows: Mapping[str, int] = field(default_factory=dict)
    more: bool = False


class PluginWork(Value):
    """Accepted work that still needs a plugin."""

    plugin: str
    #: Queued jobs, ready or held.
    queued: int = 0
    running: int = 0
    #: Live pipeline runs with a step of the plugin.
    runs: int = 0


class StoreStats(Value):
    """The store's files."""

    path: str
    size: int
    #: Size of the write-ahead log.
    wal_size: int
    schema_version: int
    #: The newest version that this program knows.
    newest_schema: int
    filesystem: str | None
    #: Damage that the database finds in its files.
    damage: tuple[str, ...]
    #: Damage of the full-text index, which can be rebuilt.
    search_damage: tuple[str, ...] = ()
    #: Copies of damaged write-ahead logs, made when the store was opened.
    damaged_wals: tuple[str, ...] = ()


class FailureGroup(Value):
    """Jobs of one command that failed for good."""

    plugin: str
    command: str
    jobs: int
    latest_job_id: str


class FailingReceiver(Value):
    """A receiver of state webhooks that rejects them or does not respond."""

    receiver: str
    #: Deliveries that failed and will be tried again.
    waiting: int
    dropped: int
    last_error: str | None


class RecentFailures(Value):
    """Failures since an instant."""

    #: When the newest entry of the ledger was written.
    newest_at: datetime | None
    endings: tuple[FailureGroup, ...]
    #: Jobs that ended because their plugin was removed or disabled.
    removed: tuple[FailureGroup, ...]
    receivers: tuple[FailingReceiver, ...]
