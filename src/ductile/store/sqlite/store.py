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

from ductile.core.events.model import NewContext
from ductile.core.ids import make_id
from ductile.core.jobs.admission import Caps
from ductile.core.jobs.model import Job, JobReason, NewJob
from ductile.core.jobs.outcomes import Outcome
from ductile.core.json import JsonObject
from ductile.core.policy import Policy
from ductile.core.runs.graph import Graph
from ductile.core.runs.state import NewRun
from ductile.errors import StoreBusyError, StoreError, StoreFailedError, StoreFullError
from ductile.store.invariants import Invariant
from ductile.store.model.deliveries import (
    Delivery,
    DeliveryCapacity,
    DeliveryReport,
    DeliveryStatus,
    TakenDeliveries,
)
from ductile.store.model.jobs import (
    CancelResult,
    ClaimedJob,
    InitKey,
    InitRecord,
    InitResult,
    NewInit,
    OverdueRuns,
    ReleaseResult,
    RetryResult,
    SettleResult,
    StoredEvent,
    SweepResult,
)
from ductile.store.model.maintenance import (
    ConfigOrigin,
    ConfigRecord,
    PluginVersion,
    PluginWork,
    PruneResult,
    RecentFailures,
    Retention,
    StoreStats,
)
from ductile.store.model.records import (
    BreakerRow,
    BreakerTransitionRow,
    ExecutionStats,
    FactRow,
    JobDetails,
    JobFilter,
    LedgerRow,
    LogFilter,
    LogRow,
    Page,
    PluginDepth,
    PluginState,
    QueueCounts,
    RunRecord,
    TransitionRow,
)
from ductile.store.model.schedules import FireResult, Firing, Occurrence, ScheduleEntry
from ductile.store.model.submission import EnqueueResult, Submission
from ductile.store.sqlite.connection import (
    SearchIndexError,
    checkpoint_on_close,
    damaged,
    open_reader,
    open_writer,
    translated,
    wal_path,
)
from ductile.store.sqlite.migrate import migrate, refuse_other_version
from ductile.store.sqlite.read_pool import ReadPool
from ductile.store.sqlite.rescue import Rescue, rescue_store
from ductile.store.sqlite.session import SqliteSession
from ductile.store.sqlite.statements import load_statements
from ductile.store.sqlite.stats import find_damage, read_stats
from ductile.store.sqlite.wal_damage import WalDamage, copy_damaged_wal, find_wal_damage
from ductile.store.sqlite.writer import Priority, Writer
from ductile.store.verbs import (
    accounts,
    breakers,
    claim,
    deliveries,
    enqueue,
    holds,
    inits,
    integrity_check,
    maintenance,
    pending,
    reading,
    retry,
    schedules,
    settle,
)
from ductile.store.verbs import cancel as ending

Answer = TypeVar("Answer")

#: Bytes. A file up to this size is looked through whenever a daemon starts: it takes a fraction of a second.
CHECKED_AT_START = 256 * 1024 * 1024
#: And one up to this size after an unclean end. A larger one would keep a daemon from being ready in time.
CHECKED_AFTER_CRASH = 4 * 1024 * 1024 * 1024


class DamagedWal(NamedTuple):
    path: Path
    #: Transactions that could not be read.
    lost: int


class SqliteStore:
    """`ductile.store.port.Store` on one SQLite file. Make one with `open_sqlite_store`."""

    def __init__(self, connection: apsw.Connection, writer: Writer, readers: ReadPool, store_id: str) -> None:
        self._connection = connection
        self._writer = writer
        self._readers = readers
        self._store_id = store_id
        self._write = writer.submit
        self._read = readers.read
        self._indexing: set[asyncio.Task[None]] = set()
        #: A damaged write-ahead log that was kept when the store was opened, and how much was in it.
        self.damaged_wal: DamagedWal | None = None
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
            await self._write(Priority.ENQUEUE, maintenance.fill_a_little)
            await self._write(Priority.ENQUEUE, maintenance.remove_filling)
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
        self, submission: Submission, told: Callable[[tuple[EnqueueResult, ...]], None] | None = None
    ) -> Awaitable[tuple[EnqueueResult, ...]]:
        return self._write(Priority.ENQUEUE, lambda session: enqueue.enqueue(session, submission), told=told)

    def claim(
        self,
        *,
        owner: str,
        caps: Caps,
        limit: int,
        lease: timedelta,
        told: Callable[[tuple[ClaimedJob, ...]], None] | None = None,
    ) -> asyncio.Future[tuple[ClaimedJob, ...]]:
        return self._write(
            Priority.CLAIM,
            lambda session: claim.claim(session, owner=owner, caps=caps, limit=limit, lease=lease),
            told=told,
        )

    def claim_by_id(
        self,
        job_ids: Sequence[str],
        *,
        owner: str,
        lease: timedelta,
        told: Callable[[tuple[ClaimedJob, ...]], None] | None = None,
    ) -> asyncio.Future[tuple[ClaimedJob, ...]]:
        return self._write(
            Priority.CLAIM,
            lambda session: claim.claim_by_id(session, job_ids, owner=owner, lease=lease),
            told=told,
        )

    def enqueue_and_claim(
        self,
        job: NewJob,
        *,
        owner: str,
        lease: timedelta,
        limit: int | None,
        told: Callable[[tuple[ClaimedJob, ...]], None] | None = None,
    ) -> asyncio.Future[tuple[ClaimedJob, ...]]:
        # Not in the lane of submissions: it does not wait behind a flood of them.
        return self._write(
            Priority.SETTLE,
            lambda session: claim.enqueue_and_claim(session, job, owner=owner, lease=lease, limit=limit),
            told=told,
        )

    def mark_working(self, job_id: str, execution: int) -> Awaitable[None]:
        # In the lane of settling: the end of a quick job must not overtake the news that it works.
        return self._write(Priority.SETTLE, lambda session: claim.mark_working(session, job_id, execution))

    async def settle(self, claimed: Job, outcome: Outcome, rules: Policy) -> SettleResult:
        evidence = outcome.evidence
        return await self._write(
            Priority.SETTLE,
            lambda session: settle.settle_execution(session, claimed, outcome, rules),
            size=len(evidence.stdout or "") + len(evidence.stderr or ""),
        )

    async def cancel(self, job_id: str, rules: Policy) -> CancelResult:
        return await self._write(Priority.SETTLE, lambda session: ending.cancel(session, job_id, rules))

    async def cancel_overdue(self, rules: Policy) -> OverdueRuns:
        return await self._write(Priority.SETTLE, lambda session: ending.cancel_overdue(session, rules))

    async def retry(self, job_id: str, rules: Policy, *, ended_at: datetime | None = None) -> RetryResult:
        # In the lane of cancels: the two are carried out in the order in which they were requested.
        return await self._write(
            Priority.SETTLE, lambda session: retry.retry(session, job_id, rules, ended_at=ended_at)
        )

    async def check_retry(self, job_id: str) -> RetryResult:
        return await self._read(lambda session: retry.check_retry(session, job_id))

    async def rerun(
        self, run_id: str, step_path: str, run: NewRun, rules: Policy
    ) -> EnqueueResult | RetryResult:
        return await self._write(
            Priority.ENQUEUE, lambda session: retry.rerun(session, run_id, step_path, run, rules)
        )

    async def check_rerun(self, run_id: str, step_path: str, graph: Graph) -> RetryResult:
        return await self._read(lambda session: retry.check_rerun(session, run_id, step_path, graph))

    async def release_due(self) -> ReleaseResult:
        return await self._write(Priority.CLAIM, holds.release_due)

    async def clamp_waits(self) -> int:
        return await self._write(Priority.CLAIM, holds.clamp_waits)

    async def recover(self, rules: Policy) -> SweepResult:
        return await self._write(Priority.SETTLE, lambda session: ending.recover(session, rules))

    async def end_queued(
        self, reason: JobReason, rules: Policy, *, plugins: Sequence[str] | None = None, keep: bool = False
    ) -> SweepResult:
        return await self._write(
            Priority.MAINTENANCE,
            lambda session: ending.end_queued(session, reason, rules, plugins=plugins, keep=keep),
        )

    async def begin_init(self, key: InitKey, job: NewJob) -> InitResult:
        return await self._write(Priority.ENQUEUE, lambda session: inits.begin_init(session, key, job))

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

    async def account(self, job_id: str) -> JobDetails | None:
        return await self._read(lambda session: accounts.account(session, job_id))

    async def counts(self) -> QueueCounts:
        return await self._read(reading.counts)

    async def queue_depths(self) -> tuple[PluginDepth, ...]:
        return await self._read(reading.queue_depths)

    async def execution_stats(self, *, since: datetime, latest: int) -> tuple[ExecutionStats, ...]:
        return await self._read(lambda session: reading.execution_stats(session, since=since, latest=latest))

    async def pending_work(
        self, plugins: Sequence[str], *, after_writes: bool = False
    ) -> tuple[PluginWork, ...]:
        if after_writes:  # the lowest lane: everything that was submitted before is written before
            return await self._write(
                Priority.MAINTENANCE, lambda session: pending.pending_work(session, plugins)
            )
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
            Priority.SETTLE, lambda session: breakers.reset_breakers(session, plugin, command)
        )

    # -- schedules

    async def put_schedules(self, entries: Sequence[ScheduleEntry]) -> None:
        await self._write(Priority.ENQUEUE, lambda session: schedules.put_schedules(session, entries))

    async def schedules(self) -> tuple[ScheduleEntry, ...]:
        return await self._read(reading.schedules)

    async def fire(self, firing: Firing) -> FireResult:
        return await self._write(Priority.ENQUEUE, lambda session: schedules.fire(session, firing))

    async def pause_schedule(self, plugin: str, schedule_id: str, *, paused: bool) -> bool:
        return await self._write(
            Priority.ENQUEUE, lambda session: schedules.pause(session, plugin, schedule_id, paused=paused)
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

    async def take_deliveries(self, room: DeliveryCapacity, *, retry_at: datetime) -> TakenDeliveries:
        return await self._write(
            Priority.CLAIM, lambda session: deliveries.take(session, room, retry_at=retry_at)
        )

    async def report_delivery(self, report: DeliveryReport) -> None:
        await self._write(Priority.SETTLE, lambda session: deliveries.report(session, report))

    async def resend(self, delivery_id: str) -> bool:
        return await self._write(Priority.ENQUEUE, lambda session: deliveries.resend(session, delivery_id))

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
    ) -> tuple[InitResult, ...]:
        return await self._write(
            Priority.CONFIGURE,
            lambda session: maintenance.record_config(session, config_hash, origin, content, inits, plugins),
        )

    async def config_history(self, *, limit: int) -> tuple[ConfigRecord, ...]:
        return await self._read(lambda session: reading.config_history(session, limit=limit))

    async def index_log(self) -> int:
        return await self._search_or_rebuild(self._index_more)

    async def prune(self, retention: Retention) -> PruneResult:
        return await self._search_or_rebuild(
            lambda: self._write(Priority.MAINTENANCE, lambda session: maintenance.prune(session, retention))
        )

    async def _index_more(self) -> int:
        try:
            return await self._write(Priority.MAINTENANCE, maintenance.index_log)
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
        await self._write(Priority.MAINTENANCE, maintenance.empty_search_index)
        task = asyncio.create_task(self._index_everything(), name="search index")
        self._indexing.add(task)
        task.add_done_callback(self._indexing.discard)

    async def _index_everything(self) -> None:
        with suppress(StoreError):  # the next sweep goes on where this one stopped
            while await self._index_more():
                pass

    async def count_prunable(self, retention: Retention) -> Mapping[str, int]:
        return await self._read(lambda session: maintenance.count_prunable(session, retention))

    # -- looking at the store itself

    async def violations(self, invariant: Invariant, *, limit: int) -> tuple[str, ...]:
        return await self._read(lambda session: integrity_check.violations(session, invariant, limit=limit))

    async def stats(self) -> StoreStats:
        stats = await self._readers.read_fresh(lambda session: read_stats(session, self._readers.path))
        if stats.search_damage:
            await self._rebuild_search_index()
        return stats

    async def recent_failures(self, *, since: datetime) -> RecentFailures:
        return await self._read(lambda session: integrity_check.recent_failures(session, since))


class ReadOnlySqliteStore(SqliteStore):
    """The same file while another process writes it. What would write is refused: that one has to do it."""

    def __init__(self, readers: ReadPool, store_id: str) -> None:
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


def open_sqlite_store_read_only(path: Path, *, clock: Callable[[], datetime]) -> ReadOnlySqliteStore:
    """Look into a store that another process has open, and has brought up to date."""
    queries = load_statements("ductile.store.sqlite.queries")
    connection = open_reader(path)
    try:
        refuse_other_version(connection, path)
        with translated(path):
            session = SqliteSession(connection, queries, Random(0), clock())
            found = session.one("get_meta", key="store_id")
    finally:
        connection.close()
    return ReadOnlySqliteStore(ReadPool(path, queries, clock), str(found[0]) if found else "")


def open_sqlite_store(
    path: Path, *, clock: Callable[[], datetime], rng: Random, thorough: bool = False
) -> SqliteStore:
    """Open the store, creating or upgrading the file as needed; a clear error if that cannot be.

    The file is looked through for damage first if the last process ended without closing it, and if this
    is to be `thorough`. A damaged file is refused and left as it is.
    """
    queries = load_statements("ductile.store.sqlite.queries")
    log = wal_path(path)
    crashed = _size(log) > 0
    log_damage = find_wal_damage(log) if crashed else None
    connection = open_writer(path)
    try:
        with translated(path):
            session = SqliteSession(connection, queries, rng, clock())
            is_search_damaged = False
            if _size(path) <= (CHECKED_AFTER_CRASH if crashed else CHECKED_AT_START if thorough else 0):
                is_search_damaged = _refuse_damage(session, path)
            # Before anything is written: that goes into the log, over what is to be kept.
            kept = None if log_damage is None else _keep_log(log, log_damage)
            if is_search_damaged:
                maintenance.empty_search_index(session)
        checkpoint_on_close(connection)
        migrate(connection, path)
        with translated(path):
            session.set_floor((session.one("latest_instant") or (None,))[0] or "")
            store_id = _store_id(session)
    except BaseException:
        connection.close()
        raise
    writer = Writer(connection, session, clock, path)
    store = SqliteStore(connection, writer, ReadPool(path, queries, clock), store_id)
    store.damaged_wal = kept
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


def _keep_log(log: Path, damage: WalDamage) -> DamagedWal:
    return DamagedWal(path=copy_damaged_wal(log, damage), lost=damage.transactions)


def _store_id(session: SqliteSession) -> str:
    """Made once, when the store is, and kept for good; two who open it first agree on one."""
    session.run("keep_meta", key="store_id", value=make_id(session.now, session.rng))
    found = session.one("get_meta", key="store_id")
    return str(found[0]) if found else ""
