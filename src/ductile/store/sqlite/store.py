"""The SQLite adapter of the store's port: each verb handed to the writer or to a reader."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from random import Random

import apsw

from ductile.core.admission import Caps
from ductile.core.ids import make_id
from ductile.core.jobs import Job, NewJob, Reason
from ductile.core.json_values import JsonObject
from ductile.core.outcomes import Outcome
from ductile.core.rules import Rules
from ductile.store.sqlite.connection import open_writer, translated
from ductile.store.sqlite.migrate import migrate
from ductile.store.sqlite.readers import Readers
from ductile.store.sqlite.session import SqliteSession, load_compiled
from ductile.store.sqlite.writer import Lane, Writer
from ductile.store.values import (
    BreakerRow,
    BreakerTransitionRow,
    CancelAnswer,
    Claim,
    ConfigOrigin,
    ConfigRecord,
    Delivery,
    DeliveryReport,
    DeliveryStatus,
    Enqueued,
    FactRow,
    Firing,
    FiringAnswer,
    InitAnswer,
    InitKey,
    JobFilter,
    LedgerRow,
    LogFilter,
    LogRow,
    Moved,
    NewContext,
    Occurrence,
    Page,
    PluginState,
    Pruned,
    QueueCounts,
    Released,
    Retention,
    RetryAnswer,
    ScheduleEntry,
    SettleAnswer,
    StoredEvent,
    Submission,
    TransitionRow,
)
from ductile.store.verbs import (
    breakers,
    claim,
    deliveries,
    holds,
    inits,
    reading,
    schedules,
    settle,
    submit,
    upkeep,
)


class SqliteStore:
    """`ductile.store.port.Store` on one SQLite file. Make one with `open_sqlite_store`."""

    def __init__(self, connection: apsw.Connection, writer: Writer, readers: Readers, store_id: str) -> None:
        self._connection = connection
        self._writer = writer
        self._readers = readers
        self._store_id = store_id
        self._write = writer.submit
        self._read = readers.read

    @property
    def store_id(self) -> str:
        return self._store_id

    async def close(self) -> None:
        await self._writer.close()
        self._readers.close()
        self._connection.close()

    # -- jobs

    async def enqueue(self, submission: Submission) -> tuple[Enqueued, ...]:
        return await self._write(Lane.ENQUEUE, lambda session: submit.enqueue(session, submission))

    async def claim(self, *, owner: str, caps: Caps, limit: int, lease: timedelta) -> tuple[Claim, ...]:
        return await self._write(
            Lane.CLAIM,
            lambda session: claim.claim(session, owner=owner, caps=caps, limit=limit, lease=lease),
        )

    async def claim_these(self, job_ids: Sequence[str], *, owner: str, lease: timedelta) -> tuple[Claim, ...]:
        return await self._write(
            Lane.CLAIM, lambda session: claim.claim_these(session, job_ids, owner=owner, lease=lease)
        )

    async def note_working(self, job_id: str, execution: int) -> None:
        await self._write(Lane.CLAIM, lambda session: claim.note_working(session, job_id, execution))

    async def settle(self, job_id: str, execution: int, outcome: Outcome, rules: Rules) -> SettleAnswer:
        evidence = outcome.evidence
        return await self._write(
            Lane.SETTLE,
            lambda session: settle.settle_execution(session, job_id, execution, outcome, rules),
            size=len(evidence.stdout or "") + len(evidence.stderr or ""),
        )

    async def cancel(self, job_id: str, rules: Rules) -> CancelAnswer:
        return await self._write(Lane.SETTLE, lambda session: settle.cancel(session, job_id, rules))

    async def retry(self, job_id: str) -> RetryAnswer:
        return await self._write(Lane.ENQUEUE, lambda session: settle.retry(session, job_id))

    async def release_due(self) -> Released:
        return await self._write(Lane.CLAIM, holds.release_due)

    async def clamp_waits(self) -> int:
        return await self._write(Lane.CLAIM, holds.clamp_waits)

    async def recover(self, rules: Rules) -> Moved:
        return await self._write(Lane.SETTLE, lambda session: settle.recover(session, rules))

    async def end_queued(
        self, reason: Reason, rules: Rules, *, plugins: Sequence[str] | None = None, keep: bool = False
    ) -> Moved:
        return await self._write(
            Lane.MAINTENANCE,
            lambda session: settle.end_queued(session, reason, rules, plugins=plugins, keep=keep),
        )

    async def begin_init(self, key: InitKey, job: NewJob) -> InitAnswer:
        return await self._write(Lane.ENQUEUE, lambda session: inits.begin_init(session, key, job))

    # -- reading jobs

    async def job(self, job_id: str) -> Job | None:
        return await self._read(lambda session: reading.job(session, job_id))

    async def jobs(self, where: JobFilter, *, limit: int, cursor: str | None = None) -> Page[Job]:
        return await self._read(lambda session: reading.jobs(session, where, limit=limit, cursor=cursor))

    async def tree(self, job_id: str) -> tuple[Job, ...]:
        return await self._read(lambda session: reading.tree(session, job_id))

    async def transitions(self, job_id: str) -> tuple[TransitionRow, ...]:
        return await self._read(lambda session: reading.transitions(session, job_id))

    async def executions(self, job_id: str) -> tuple[LogRow, ...]:
        return await self._read(lambda session: reading.executions(session, job_id))

    async def log(self, where: LogFilter, *, limit: int, cursor: str | None = None) -> Page[LogRow]:
        return await self._read(lambda session: reading.log(session, where, limit=limit, cursor=cursor))

    async def event(self, event_id: str) -> StoredEvent | None:
        return await self._read(lambda session: reading.event(session, event_id))

    async def context(self, context_id: str) -> NewContext | None:
        return await self._read(lambda session: reading.context(session, context_id))

    async def counts(self) -> QueueCounts:
        return await self._read(reading.counts)

    async def outstanding(self, plugin: str, command: str) -> int:
        return await self._read(lambda session: reading.outstanding(session, plugin, command))

    # -- plugins

    async def plugin_state(self, plugin: str) -> PluginState | None:
        return await self._read(lambda session: reading.plugin_state(session, plugin))

    async def facts(self, plugin: str, *, limit: int, cursor: str | None = None) -> Page[FactRow]:
        return await self._read(lambda session: reading.facts(session, plugin, limit=limit, cursor=cursor))

    async def breakers(self) -> tuple[BreakerRow, ...]:
        return await self._read(reading.breakers)

    async def breaker_history(self, plugin: str, *, limit: int) -> tuple[BreakerTransitionRow, ...]:
        return await self._read(lambda session: reading.breaker_history(session, plugin, limit=limit))

    async def reset_breaker(self, plugin: str, command: str | None = None) -> int:
        return await self._write(
            Lane.SETTLE, lambda session: breakers.reset_breakers(session, plugin, command)
        )

    # -- schedules

    async def put_schedules(self, entries: Sequence[ScheduleEntry]) -> None:
        await self._write(Lane.ENQUEUE, lambda session: schedules.put_schedules(session, entries))

    async def schedules(self) -> tuple[ScheduleEntry, ...]:
        return await self._read(reading.schedules)

    async def fire(self, firing: Firing) -> FiringAnswer:
        return await self._write(Lane.ENQUEUE, lambda session: schedules.fire(session, firing))

    async def pause_schedule(self, plugin: str, schedule_id: str, *, paused: bool) -> bool:
        return await self._write(
            Lane.ENQUEUE, lambda session: schedules.pause(session, plugin, schedule_id, paused=paused)
        )

    async def occurrences(
        self, plugin: str, schedule_id: str, *, limit: int, cursor: str | None = None
    ) -> Page[Occurrence]:
        return await self._read(
            lambda session: reading.occurrences(session, plugin, schedule_id, limit=limit, cursor=cursor)
        )

    # -- deliveries

    async def take_deliveries(self, *, limit: int, retry_at: datetime) -> tuple[Delivery, ...]:
        return await self._write(
            Lane.CLAIM, lambda session: deliveries.take(session, limit=limit, retry_at=retry_at)
        )

    async def report_delivery(self, report: DeliveryReport) -> None:
        await self._write(Lane.SETTLE, lambda session: deliveries.report(session, report))

    async def resend(self, delivery_id: str) -> bool:
        return await self._write(Lane.ENQUEUE, lambda session: deliveries.resend(session, delivery_id))

    async def deliveries(
        self,
        *,
        job_id: str | None = None,
        status: DeliveryStatus | None = None,
        limit: int,
        cursor: str | None = None,
    ) -> Page[Delivery]:
        return await self._read(
            lambda session: reading.deliveries(
                session, job_id=job_id, status=status, limit=limit, cursor=cursor
            )
        )

    # -- ledger, configuration, upkeep

    async def ledger(self, *, after: int, limit: int) -> tuple[LedgerRow, ...]:
        return await self._read(lambda session: reading.ledger(session, after=after, limit=limit))

    async def ledger_range(self) -> tuple[int, int]:
        return await self._read(reading.ledger_range)

    async def record_config(self, config_hash: str, origin: ConfigOrigin, content: JsonObject) -> None:
        await self._write(
            Lane.ENQUEUE, lambda session: upkeep.record_config(session, config_hash, origin, content)
        )

    async def config_history(self, *, limit: int) -> tuple[ConfigRecord, ...]:
        return await self._read(lambda session: reading.config_history(session, limit=limit))

    async def make_searchable(self) -> int:
        return await self._write(Lane.MAINTENANCE, upkeep.make_searchable)

    async def prune(self, retention: Retention) -> Pruned:
        return await self._write(Lane.MAINTENANCE, lambda session: upkeep.prune(session, retention))


def open_sqlite_store(path: Path, *, clock: Callable[[], datetime], dice: Random) -> SqliteStore:
    """Open the store, creating or upgrading the file as needed; a clear error if that cannot be."""
    queries = load_compiled("ductile.store.sqlite.queries")
    connection = open_writer(path)
    try:
        migrate(connection, path)
        with translated(path):
            session = SqliteSession(connection, queries, dice, clock())
            session.never_before((session.one("latest_instant") or (None,))[0] or "")
            store_id = _store_id(session)
    except BaseException:
        connection.close()
        raise
    writer = Writer(connection, session, clock, path)
    return SqliteStore(connection, writer, Readers(path, queries, clock), store_id)


def _store_id(session: SqliteSession) -> str:
    """Made once, when the store is, and kept for good; two who open it first agree on one."""
    session.run("keep_meta", key="store_id", value=make_id(session.now, session.dice))
    found = session.one("get_meta", key="store_id")
    return str(found[0]) if found else ""
