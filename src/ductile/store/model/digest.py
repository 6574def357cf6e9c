"""The rows that `system digest` reads: jobs, schedules and configurations since an instant."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

from ductile.core.jobs.model import Hold
from ductile.core.jobs.statistics import BadEnding
from ductile.store.model.deliveries import LostDeliveries
from ductile.store.model.maintenance import ConfigOrigin, PluginVersion
from ductile.store.model.records import ExecutionStatistics
from ductile.struct import Value


class SkippedRuns(Value):
    """Occurrences of a schedule in a row that were skipped for one reason."""

    plugin: str
    schedule_id: str
    reason: str | None
    first_at: datetime
    last_at: datetime
    count: int


class WaitingGroup(Value):
    """Queued jobs of a plugin with the same hold."""

    plugin: str
    hold: Hold | None
    jobs: int
    oldest_id: str
    oldest_at: datetime


class ConfigLoad(Value):
    """One time that a configuration was loaded. `plugins` is None if they were not recorded."""

    hash: str
    origin: ConfigOrigin
    loaded_at: datetime
    plugins: Mapping[str, PluginVersion] | None


class DigestRows(Value):
    """All rows of a digest, read at one instant."""

    executions: ExecutionStatistics
    endings: tuple[BadEnding, ...]
    #: Whether `endings` has all of them, and not only the latest.
    endings_complete: bool
    skipped: tuple[SkippedRuns, ...]
    waiting: tuple[WaitingGroup, ...]
    waiting_complete: bool
    lost: tuple[LostDeliveries, ...]
    #: Newest first, with the last one before the instant.
    loads: tuple[ConfigLoad, ...]
