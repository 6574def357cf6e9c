"""The SQLite adapter of the store's port: each verb handed to the writer or to a reader."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from pathlib import Path
from random import Random
from typing import Any, NamedTuple, TypeVar

import apsw

from ductile.core.admission import Caps
from ductile.core.ids import make_id
from ductile.core.jobs import Job, NewJob, Reason
from ductile.core.json_values import JsonObject
from ductile.core.lineage import NewContext
from ductile.core.outcomes import Outcome
from ductile.core.pipelines import Graph
from ductile.core.rules import Rules
from ductile.core.run_values import NewRun
from ductile.errors import StoreBusyError, StoreError, StoreFailedError, StoreFullError
from ductile.store.invariants import Invariant
from ductile.store.sqlite.connection import (
    SearchIndexError,
    damaged,
    log_path,
    open_reader,
    open_writer,
    release_log,
    translated,
)
from ductile.store.sqlite.log_damage import LogDamage, find_log_damage, keep_log
from ductile.store.sqlite.migrate import migrate, refuse_other_version
from ductile.store.sqlite.places import load_compiled
from ductile.store.sqlite.readers import Readers
from ductile.store.sqlite.rescue import Rescue, rescue_store
from ductile.store.sqlite.session import SqliteSession
from ductile.store.sqlite.vitals import find_damage, read_vitals
from ductile.store.sqlite.writer import Lane, Writer
from ductile.store.values.deliveries import (
    Delivery,
    DeliveryReport,
    DeliveryRoom,
    DeliveryStatus,
    TakenDeliveries,
)
from ductile.store.values.reading import (
    Account,
    BreakerRow,
    BreakerTransitionRow,
    FactRow,
    JobFilter,
    LedgerRow,
    LogFilter,
    LogRow,
    Page,
    PluginDepth,
    PluginState,
    QueueCounts,
    RunRecord,
    Tally,
    TransitionRow,
)
from ductile.store.values.schedules import Firing, FiringReport, Occurrence, ScheduleEntry
from ductile.store.values.settling import (
    Cancelling,
    Claim,
    InitAnswer,
    InitKey,
    InitRecord,
    Moved,
    NewInit,
    Overdue,
    Released,
    RetryAnswer,
    SettleAnswer,
    StoredEvent,
)
from ductile.store.values.submitting import Enqueued, Submission
from ductile.store.values.upkeep import (
    ConfigOrigin,
    ConfigRecord,
    PluginVersion,
    PluginWork,
    Pruned,
    Retention,
    StoreVitals,
    Troubles,
)
from ductile.store.verbs import (
    accounts,
    breakers,
    checking,
    claim,
    deliveries,
    ending,
    enqueue,
    holds,
    inits,
    pending,
    reading,
    retry,
    schedules,
    settle,
    upkeep,
)

Answer = TypeVar("Answer")

#: Bytes. A file up to this size is looked through whenever a daemon starts: it takes a fraction of a second.
CHECKED_AT_START = 256 * 1024 * 1024
#: And one up to this size after an unclean end. A larger one would keep a daemon from being ready in time.
CHECKED_AFTER_CRASH = 4 * 1024 * 1024 * 1024


class KeptLog(NamedTuple):
    path: Path
    #: Transactions that could not be read.
    lost: int


class SqliteStore:
    """`ductile.store.port.Store` on one SQLite file. Make one with `open_sqlite_store`."""

    def __init__(self, connection: apsw.Connection, writer: Writer, readers: Readers, store_id: str) -> None:
        self._connection = connection
        self._writer = writer
        self._readers = readers
        self._store_id = store_id
        self._write = writer.submit
        self._read = readers.read
        self._indexing: set[asyncio.Task[None]] = set()
        #: A damaged write-ahead log that was kept when the store was opened, and how much was in it.
        self.kept_log: KeptLog | None = None
        self._is_closed = False
        #: Where the store was saved to when it was closed, if its files had been removed; or why it was not.
        self.rescue: Rescue | OSError | apsw.Error | None = None

    @property
    def store_id(self) -> str:
        return self._store_id

    def watch_failure(self, failed: Callable[[StoreFailedError], None]) -> None:
        self._writer.watch_failure(failed)

    async def check_files(self) -> None:
        self._writer.check()

    async def is_full(self) -> bool:
        if not self._writer.is_full:
            return False
        with suppress(StoreFullError, StoreBusyError):
            await self._write(Lane.ENQUEUE, upkeep.fill_a_little)
            await self._write(Lane.ENQUEUE, upkeep.remove_filling)
        return self._writer.is_full

    async def close(self) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        for task in self._indexing:
            task.cancel()
        await asyncio.gather(*self._indexing, return_exceptions=True)
        await self._writer.close()
        with suppress(StoreFailedError):
            self._writer.check()  # an idle daemon may not have noticed yet that its files were removed
        self._readers.close()
        if self._writer.has_failed:
            # The files stay as they are: copying the log into a file that is not to be trusted, and
            # removing it, would leave nothing to recover from.
            self._connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
            await asyncio.to_thread(self._rescue_if_lost)
        self._connection.close()

    def _rescue_if_lost(self) -> None:
        if self._writer.files.is_lost:
            try:
                self.rescue = rescue_store(self._connection, self._writer.files)
            except (OSError, apsw.Error) as error:
                self.rescue = error

    # -- jobs

    def enqueue(
        self, submission: Submission, told: Callable[[tuple[Enqueued, ...]], None] | None = None
    ) -> Awaitable[tuple[Enqueued, ...]]:
        return self._write(Lane.ENQUEUE, lambda session: enqueue.enqueue(session, submission), told=told)

    def claim(
        self,
        *,
        owner: str,
        caps: Caps,
        limit: int,
        lease: timedelta,
        told: Callable[[tuple[Claim, ...]], None] | None = None,
    ) -> asyncio.Future[tuple[Claim, ...]]:
        return self._write(
            Lane.CLAIM,
            lambda session: claim.claim(session, owner=owner, caps=caps, limit=limit, lease=lease),
            told=told,
        )

    def claim_these(
        self,
        job_ids: Sequence[str],
        *,
        owner: str,
        lease: timedelta,
        told: Callable[[tuple[Claim, ...]], None] | None = None,
    ) -> asyncio.Future[tuple[Claim, ...]]:
        return self._write(
            Lane.CLAIM,
            lambda session: claim.claim_these(session, job_ids, owner=owner, lease=lease),
            told=told,
        )

    def start_now(
        self,
        job: NewJob,
        *,
        owner: str,
        lease: timedelta,
        limit: int | None,
        told: Callable[[tuple[Claim, ...]], None] | None = None,
    ) -> asyncio.Future[tuple[Claim, ...]]:
        # Not in the lane of submissions: it does not wait behind a flood of them.
        return self._write(
            Lane.SETTLE,
            lambda session: claim.start_now(session, job, owner=owner, lease=lease, limit=limit),
            told=told,
        )

    def note_working(self, job_id: str, execution: int) -> Awaitable[None]:
        # In the lane of settling: the end of a quick job must not overtake the news that it works.
        return self._write(Lane.SETTLE, lambda session: claim.note_working(session, job_id, execution))

    async def settle(self, claimed: Job, outcome: Outcome, rules: Rules) -> SettleAnswer:
        evidence = outcome.evidence
        return await self._write(
            Lane.SETTLE,
            lambda session: settle.settle_execution(session, claimed, outcome, rules),
            size=len(evidence.stdout or "") + len(evidence.stderr or ""),
        )

    async def cancel(self, job_id: str, rules: Rules) -> Cancelling:
        return await self._write(Lane.SETTLE, lambda session: ending.cancel(session, job_id, rules))

    async def cancel_overdue(self, rules: Rules) -> Overdue:
        return await self._write(Lane.SETTLE, lambda session: ending.cancel_overdue(session, rules))

    async def retry(self, job_id: str, rules: Rules, *, ended_at: datetime | None = None) -> RetryAnswer:
        # In the lane of cancels: the two are carried out in the order in which they were requested.
        return await self._write(
            Lane.SETTLE, lambda session: retry.retry(session, job_id, rules, ended_at=ended_at)
        )

    async def try_retry(self, job_id: str) -> RetryAnswer:
        return await self._read(lambda session: retry.try_retry(session, job_id))

    async def rerun(self, run_id: str, step_path: str, run: NewRun, rules: Rules) -> Enqueued | RetryAnswer:
        return await self._write(
            Lane.ENQUEUE, lambda session: retry.rerun(session, run_id, step_path, run, rules)
        )

    async def try_rerun(self, run_id: str, step_path: str, graph: Graph) -> RetryAnswer:
        return await self._read(lambda session: retry.try_rerun(session, run_id, step_path, graph))

    async def release_due(self) -> Released:
        return await self._write(Lane.CLAIM, holds.release_due)

    async def clamp_waits(self) -> int:
        return await self._write(Lane.CLAIM, holds.clamp_waits)

    async def recover(self, rules: Rules) -> Moved:
        return await self._write(Lane.SETTLE, lambda session: ending.recover(session, rules))

    async def end_queued(
        self, reason: Reason, rules: Rules, *, plugins: Sequence[str] | None = None, keep: bool = False
    ) -> Moved:
        return await self._write(
            Lane.MAINTENANCE,
            lambda session: ending.end_queued(session, reason, rules, plugins=plugins, keep=keep),
        )

    async def begin_init(self, key: InitKey, job: NewJob) -> InitAnswer:
        return await self._write(Lane.ENQUEUE, lambda session: inits.begin_init(session, key, job))

    async def inits(self) -> tuple[InitRecord, ...]:
        return await self._read(inits.inits)

    # -- reading jobs

    async def job(self, job_id: str) -> Job | None:
        return await self._read(lambda session: reading.job(session, job_id))

    async def latest_with_key(self, plugin: str, command: str, dedupe_key: str) -> Job | None:
        return await self._read(lambda session: reading.latest_with_key(session, plugin, command, dedupe_key))

    async def blocking_job(self, job_id: str) -> Job | None:
        return await self._read(lambda session: reading.blocking_job(session, job_id))

    async def jobs(self, where: JobFilter, *, limit: int, cursor: str | None = None) -> Page[Job]:
        return await self._search(lambda session: reading.jobs(session, where, limit=limit, cursor=cursor))

    async def job_ids(self, beginning: str, *, limit: int) -> tuple[str, ...]:
        return await self._read(lambda session: reading.job_ids(session, beginning, limit=limit))

    async def job_ids_ending(self, ending: str, *, limit: int) -> tuple[str, ...]:
        return await self._read(lambda session: reading.job_ids_ending(session, ending, limit=limit))

    async def tree(self, job_id: str, *, limit: int) -> tuple[Job, ...]:
        return await self._read(lambda session: reading.tree(session, job_id, limit=limit))

    async def transitions(self, job_id: str) -> tuple[TransitionRow, ...]:
        return await self._read(lambda session: reading.transitions(session, job_id))

    async def executions(self, job_id: str) -> tuple[LogRow, ...]:
        return await self._read(lambda session: reading.executions(session, job_id))

    async def log(self, where: LogFilter, *, limit: int, cursor: str | None = None) -> Page[LogRow]:
        return await self._search(lambda session: reading.log(session, where, limit=limit, cursor=cursor))

    async def event(self, event_id: str) -> StoredEvent | None:
        return await self._read(lambda session: reading.event(session, event_id))

    async def context(self, context_id: str) -> NewContext | None:
        return await self._read(lambda session: reading.context(session, context_id))

    async def run(self, run_id: str) -> RunRecord | None:
        return await self._read(lambda session: accounts.run(session, run_id))

    async def account(self, job_id: str) -> Account | None:
        return await self._read(lambda session: accounts.account(session, job_id))

    async def counts(self) -> QueueCounts:
        return await self._read(reading.counts)

    async def depths(self) -> tuple[PluginDepth, ...]:
        return await self._read(reading.depths)

    async def tallies(self, *, since: datetime, latest: int) -> tuple[Tally, ...]:
        return await self._read(lambda session: reading.tallies(session, since=since, latest=latest))

    async def pending_work(
        self, plugins: Sequence[str], *, after_writes: bool = False
    ) -> tuple[PluginWork, ...]:
        if after_writes:  # the lowest lane: everything that was submitted before is written before
            return await self._write(Lane.MAINTENANCE, lambda session: pending.pending_work(session, plugins))
        return await self._read(lambda session: pending.pending_work(session, plugins))

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

    async def fire(self, firing: Firing) -> FiringReport:
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

    def watch_outbox(self, grew: Callable[[], None]) -> None:
        self._writer.watch_outbox(grew)

    async def take_deliveries(self, room: DeliveryRoom, *, retry_at: datetime) -> TakenDeliveries:
        return await self._write(
            Lane.CLAIM, lambda session: deliveries.take(session, room, retry_at=retry_at)
        )

    async def report_delivery(self, report: DeliveryReport) -> None:
        await self._write(Lane.SETTLE, lambda session: deliveries.report(session, report))

    async def resend(self, delivery_id: str) -> bool:
        return await self._write(Lane.ENQUEUE, lambda session: deliveries.resend(session, delivery_id))

    async def delivery(self, delivery_id: str) -> Delivery | None:
        return await self._read(lambda session: reading.delivery(session, delivery_id))

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

    async def record_config(
        self,
        config_hash: str,
        origin: ConfigOrigin,
        content: JsonObject,
        inits: Sequence[NewInit] = (),
        plugins: Mapping[str, PluginVersion] | None = None,
    ) -> tuple[InitAnswer, ...]:
        return await self._write(
            Lane.CONFIGURE,
            lambda session: upkeep.record_config(session, config_hash, origin, content, inits, plugins),
        )

    async def config_history(self, *, limit: int) -> tuple[ConfigRecord, ...]:
        return await self._read(lambda session: reading.config_history(session, limit=limit))

    async def make_searchable(self) -> int:
        return await self._search_or_rebuild(self._index_more)

    async def prune(self, retention: Retention) -> Pruned:
        return await self._search_or_rebuild(
            lambda: self._write(Lane.MAINTENANCE, lambda session: upkeep.prune(session, retention))
        )

    async def _index_more(self) -> int:
        try:
            return await self._write(Lane.MAINTENANCE, upkeep.make_searchable)
        except StoreError as error:
            if error.code != StoreError.code:
                raise
            # Rows of the index that contradict each other break a constraint; nothing else here can.
            raise SearchIndexError(f"the index for searching the log is damaged: {error}") from error

    async def _search(self, verb: Callable[[SqliteSession], Answer]) -> Answer:
        return await self._search_or_rebuild(lambda: self._read(verb))

    async def _search_or_rebuild(self, ask: Callable[[], Awaitable[Answer]]) -> Answer:
        """Ask what needs the full-text index. A damaged one is built again, and this answer is an error."""
        try:
            return await ask()
        except SearchIndexError:
            await self._rebuild_search_index()
            raise

    async def _rebuild_search_index(self) -> None:
        """Empty the index, then fill it again in the background. Nothing but the search is affected."""
        await self._write(Lane.MAINTENANCE, upkeep.empty_search_index)
        task = asyncio.create_task(self._index_everything(), name="search index")
        self._indexing.add(task)
        task.add_done_callback(self._indexing.discard)

    async def _index_everything(self) -> None:
        with suppress(StoreError):  # the next sweep goes on where this one stopped
            while await self._index_more():
                pass

    async def prunable(self, retention: Retention) -> Mapping[str, int]:
        return await self._read(lambda session: upkeep.count_prunable(session, retention))

    # -- looking at the store itself

    async def violations(self, invariant: Invariant, *, limit: int) -> tuple[str, ...]:
        return await self._read(lambda session: checking.violations(session, invariant, limit=limit))

    async def vitals(self) -> StoreVitals:
        vitals = await self._readers.read_afresh(lambda session: read_vitals(session, self._readers.path))
        if vitals.search_damage:
            await self._rebuild_search_index()
        return vitals

    async def troubles(self, *, since: datetime) -> Troubles:
        return await self._read(lambda session: checking.troubles(session, since))


class SqliteStoreToRead(SqliteStore):
    """The same file while another process writes it. What would write is refused: that one has to do it."""

    def __init__(self, readers: Readers, store_id: str) -> None:
        self._readers = readers
        self._store_id = store_id
        self._write = _refuse_to_write
        self._read = readers.read
        self._indexing = set()

    async def close(self) -> None:
        self._readers.close()

    def watch_outbox(self, grew: Callable[[], None]) -> None:
        _refuse_to_write(grew)

    def watch_failure(self, failed: Callable[[StoreFailedError], None]) -> None:
        _refuse_to_write(failed)

    async def check_files(self) -> None:
        """Nothing to check: the process that writes watches its files."""

    async def is_full(self) -> bool:
        """Nothing is written here."""
        return False

    async def _rebuild_search_index(self) -> None:
        """The process that writes does it, as soon as it finds the damage."""


def _refuse_to_write(*_given: object, **_named: object) -> Any:
    raise StoreBusyError("another process writes to the store", hint="Try again when it has ended.")


def open_sqlite_store_to_read(path: Path, *, clock: Callable[[], datetime]) -> SqliteStoreToRead:
    """Look into a store that another process has open, and has brought up to date."""
    queries = load_compiled("ductile.store.sqlite.queries")
    connection = open_reader(path)
    try:
        refuse_other_version(connection, path)
        with translated(path):
            session = SqliteSession(connection, queries, Random(0), clock())
            found = session.one("get_meta", key="store_id")
    finally:
        connection.close()
    return SqliteStoreToRead(Readers(path, queries, clock), str(found[0]) if found else "")


def open_sqlite_store(
    path: Path, *, clock: Callable[[], datetime], dice: Random, thorough: bool = False
) -> SqliteStore:
    """Open the store, creating or upgrading the file as needed; a clear error if that cannot be.

    The file is looked through for damage first if the last process ended without closing it, and if this
    is to be `thorough`. A damaged file is refused and left as it is.
    """
    queries = load_compiled("ductile.store.sqlite.queries")
    log = log_path(path)
    crashed = _size(log) > 0
    log_damage = find_log_damage(log) if crashed else None
    connection = open_writer(path)
    try:
        with translated(path):
            session = SqliteSession(connection, queries, dice, clock())
            is_search_damaged = False
            if _size(path) <= (CHECKED_AFTER_CRASH if crashed else CHECKED_AT_START if thorough else 0):
                is_search_damaged = _refuse_damage(session, path)
            # Before anything is written: that goes into the log, over what is to be kept.
            kept = None if log_damage is None else _keep_log(log, log_damage)
            if is_search_damaged:
                upkeep.empty_search_index(session)
        release_log(connection)
        migrate(connection, path)
        with translated(path):
            session.never_before((session.one("latest_instant") or (None,))[0] or "")
            store_id = _store_id(session)
    except BaseException:
        connection.close()
        raise
    writer = Writer(connection, session, clock, path)
    store = SqliteStore(connection, writer, Readers(path, queries, clock), store_id)
    store.kept_log = kept
    return store


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _refuse_damage(session: SqliteSession, path: Path) -> bool:
    """Raise `StoreFailedError` if the file is damaged. True if only the search index is."""
    damage = find_damage(session)
    if damage.file:
        raise damaged(path, f"{path} is damaged: {damage.file[0]}")
    return bool(damage.search)


def _keep_log(log: Path, damage: LogDamage) -> KeptLog:
    return KeptLog(path=keep_log(log, damage), lost=damage.transactions)


def _store_id(session: SqliteSession) -> str:
    """Made once, when the store is, and kept for good; two who open it first agree on one."""
    session.run("keep_meta", key="store_id", value=make_id(session.now, session.dice))
    found = session.one("get_meta", key="store_id")
    return str(found[0]) if found else ""
