"""Reading what happened since an instant, within bounds whatever the size of the store."""

from __future__ import annotations

from datetime import datetime

import msgspec

from ductile.core.jobs.model import Hold, JobReason, JobStatus
from ductile.core.jobs.statistics import BadEnding
from ductile.core.timestamps import format_timestamp, parse_timestamp
from ductile.store.model.digest import ConfigLoad, DigestRows, SkippedRuns, WaitingGroup
from ductile.store.model.maintenance import ConfigOrigin, PluginVersion
from ductile.store.rows import row_reader
from ductile.store.session import Session
from ductile.store.verbs.jobs import execution_statistics
from ductile.store.verbs.outbox import lost_deliveries

#: Rows of each kind that are read, the latest.
MAX_ENDINGS = 5_000
_MAX_SKIPS = 1_000
_MAX_WAITING = 10_000
_MAX_RECEIVERS = 20
_MAX_LOADS = 100

_read_ending = row_reader(BadEnding, reason=JobReason, completed_at=parse_timestamp)
_read_skip = row_reader(SkippedRuns, first_at=parse_timestamp, last_at=parse_timestamp)
_read_waiting = row_reader(WaitingGroup, hold=Hold, oldest_at=parse_timestamp)
_read_load = row_reader(
    ConfigLoad,
    origin=ConfigOrigin,
    loaded_at=parse_timestamp,
    plugins=msgspec.json.Decoder(dict[str, PluginVersion]).decode,
)


def read_digest(session: Session, *, since: datetime, latest: int) -> DigestRows:
    """Return what happened since an instant; of executions, the latest `latest`."""
    from_at = format_timestamp(since)
    endings = [
        _read_ending(row)
        for status in (JobStatus.FAILED, JobStatus.DEAD)
        for row in session.fetch_all("bad_endings", status=status, since=from_at, limit=MAX_ENDINGS + 1)
    ]
    endings.sort(key=lambda ending: ending.completed_at, reverse=True)
    waiting = tuple(map(_read_waiting, session.fetch_all("waiting_groups", limit=_MAX_WAITING)))
    loads = list(map(_read_load, session.fetch_all("config_loads", limit=_MAX_LOADS)))
    before = next((number for number, load in enumerate(loads) if load.loaded_at < since), len(loads))
    return DigestRows(
        executions=execution_statistics(session, since=since, latest=latest),
        endings=tuple(endings[:MAX_ENDINGS]),
        endings_complete=len(endings) <= MAX_ENDINGS,
        skipped=tuple(map(_read_skip, session.fetch_all("skipped_since", since=from_at, limit=_MAX_SKIPS))),
        waiting=waiting,
        waiting_complete=sum(group.jobs for group in waiting) < _MAX_WAITING,
        lost=lost_deliveries(session, since=since, limit=_MAX_RECEIVERS),
        loads=tuple(loads[: before + 1]),
    )
