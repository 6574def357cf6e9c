"""Operations without a daemon: open the store for a command, and run one job in this process."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import ExitStack, asynccontextmanager, contextmanager
from datetime import timedelta
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING

from ductile.admin.config import open_configuration
from ductile.config.find_config import find_config
from ductile.config.load import SealMode
from ductile.config.snapshot import PostgresLocation, Snapshot, SqliteLocation, StateLocation
from ductile.core.jobs.model import TERMINAL, JobStatus
from ductile.core.json import JsonObject
from ductile.core.runs.graph import RUN_PLUGIN
from ductile.engine.clock import SystemClock
from ductile.engine.dispatcher import LEASE
from ductile.engine.executor import Executor, ResultNotStoredError
from ductile.engine.job_signals import JobSignals
from ductile.engine.live_output import LiveOutput, OutputPiece
from ductile.engine.reload.reloader import init_of, record_config
from ductile.engine.store_lock import LockPurpose, find_holder, lock_store
from ductile.errors import (
    ConfigError,
    ConflictError,
    DaemonNotRunningError,
    DeniedError,
    StoreBusyError,
    StoreError,
    StoreFullError,
)
from ductile.operations import table
from ductile.operations.context import OperationContext
from ductile.operations.jobs.documents import listed_job
from ductile.random_source import BufferedSystemRandom
from ductile.runner.orphans import make_identity
from ductile.runner.warm.pool import WarmRunner
from ductile.store.model.jobs import Accepted, InitStatus, Settled
from ductile.store.model.maintenance import ConfigOrigin
from ductile.store.open_store import open_store
from ductile.store.sqlite.connection import refuse_wal_without_database
from ductile.store.sqlite.store import open_sqlite_store_read_only
from ductile.struct import Value, to_builtins
from ductile.telemetry.signals import SignalBus

if TYPE_CHECKING:
    from ductile.admin.backup.create import StoreFunctions
    from ductile.operations.diagnose.findings import DoctorReport


_STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)
#: Attempts to store a result in a store that is full or locked, one second apart.
_SETTLE_ATTEMPTS = 2
_CLOCK = SystemClock()
_RUN_NEEDS_DAEMON = "no daemon is running here, and only a daemon runs jobs of a store on PostgreSQL"
_START_DAEMON = "Start it with `ductile system start`, then run this again."


@asynccontextmanager
async def open_offline(
    config_path: str | None,
    environ: Mapping[str, str],
    purpose: LockPurpose = LockPurpose.COMMAND,
    *,
    seal: SealMode = SealMode.VERIFY,
) -> AsyncIterator[OperationContext]:
    """Open the store under its lock, without scheduler and listeners.

    Raises `StoreBusyError` if another process holds the store. On a server, which several processes use, no
    lock is taken, and `DaemonNotRunningError` is raised for the purpose of running jobs.
    """
    snapshot = open_configuration(config_path, environ, seal=seal).snapshot
    location = snapshot.state
    if isinstance(location, PostgresLocation):
        if purpose is LockPurpose.RUN:
            raise DaemonNotRunningError(_RUN_NEEDS_DAEMON, hint=_START_DAEMON)
        async with _open_on_server(snapshot) as context:
            yield context
        return
    try:
        lock = lock_store(location, purpose)
    except ConflictError as conflict:
        holder, message, hint = find_holder(location.directory), conflict.message, conflict.hint
        if holder is None or holder.purpose is LockPurpose.DAEMON:
            message = f"{message}, and does not answer"
            hint = "The daemon may just be starting or stopping: try again."
        raise StoreBusyError(message, hint=hint, details=conflict.details) from conflict
    try:
        store = open_store(location, clock=_CLOCK.now, rng=BufferedSystemRandom())
        try:
            lock.hold_database()
            yield OperationContext(
                store=store,
                snapshot=lambda: snapshot,
                now=_CLOCK.now,
                rng=BufferedSystemRandom(),
                environ=environ,
                offline_runner_pid=os.getpid() if purpose is LockPurpose.RUN else None,
            )
        finally:
            await store.close()
    finally:
        lock.release()


@asynccontextmanager
async def open_read_only(
    config_path: str | None, environ: Mapping[str, str], *, seal: SealMode = SealMode.VERIFY
) -> AsyncIterator[OperationContext]:
    """Open the store for reading, also while another process runs a job without a daemon.

    Raises `StoreBusyError` if a daemon holds the store: it is starting or stopping, and about to change it.
    """
    snapshot = open_configuration(config_path, environ, seal=seal).snapshot
    location = snapshot.state
    if isinstance(location, PostgresLocation):
        async with _open_on_server(snapshot) as context:
            yield context
        return
    holder = find_holder(location.directory)
    if holder is None or holder.purpose is not LockPurpose.RUN or not location.path.exists():
        async with open_offline(config_path, environ, seal=seal) as context:
            yield context
        return
    store = open_sqlite_store_read_only(location.path, clock=_CLOCK.now)
    try:
        yield OperationContext(
            store=store,
            snapshot=lambda: snapshot,
            now=_CLOCK.now,
            rng=BufferedSystemRandom(),
            offline_runner_pid=holder.pid,
        )
    finally:
        await store.close()


@asynccontextmanager
async def _open_on_server(snapshot: Snapshot) -> AsyncIterator[OperationContext]:
    """Open a store on PostgreSQL, beside the daemons that use it."""
    store = open_store(snapshot.state, clock=_CLOCK.now, rng=BufferedSystemRandom())
    try:
        yield OperationContext(
            store=store, snapshot=lambda: snapshot, now=_CLOCK.now, rng=BufferedSystemRandom()
        )
    finally:
        await store.close()


async def call_offline(
    config_path: str | None,
    environ: Mapping[str, str],
    operation: str,
    fields: JsonObject,
    *,
    seal: SealMode = SealMode.VERIFY,
) -> JsonObject:
    """Call an operation on the store of a daemon that does not run."""
    open_store_for = open_read_only if table.OPERATIONS[operation].read_only else open_offline
    async with open_store_for(config_path, environ, seal=seal) as context:
        return await table.OPERATIONS[operation].run_to_json(context, fields)


async def diagnose_offline(config_path: str | None, environ: Mapping[str, str]) -> DoctorReport:
    """Return the report of `system.doctor` without a daemon, even without a configuration or a store."""
    from ductile.operations.diagnose import doctor  # noqa: PLC0415 - a command loads it on demand
    from ductile.operations.diagnose.findings import DoctorCheck  # noqa: PLC0415 - as above

    config: Path | None = None
    try:
        config = find_config(config_path, environ)
        snapshot = open_configuration(config, environ).snapshot
    except ConfigError as error:
        return doctor.doctor_without_config(error, None if config is None else config.parent)
    location = snapshot.state
    on_server = isinstance(location, PostgresLocation)
    try:
        if isinstance(location, SqliteLocation):
            refuse_wal_without_database(location.path)
            if not location.path.exists():
                return doctor.doctor_without_store(
                    snapshot, doctor.daemon_not_running(), doctor.store_not_created(location.path)
                )
        async with open_read_only(config_path, environ) as context:
            return await doctor.doctor(context, doctor.RunDoctor())
    except StoreBusyError as busy:
        check = DoctorCheck.STORE if on_server else DoctorCheck.DAEMON
        daemon_findings = (doctor.daemon_not_running(),) if on_server else ()
        return doctor.doctor_without_store(snapshot, *daemon_findings, check.raised(busy))
    except (StoreError, DeniedError, ConfigError) as error:
        failed = DoctorCheck.STORE.raised(error)
        return doctor.doctor_without_store(snapshot, doctor.daemon_not_running(), failed)


def store_files() -> StoreFunctions:
    """Return the functions that copy and inspect a store, for `backup` and `restore`."""
    from ductile.admin.backup.create import BackupProgress, StoreFunctions  # noqa: PLC0415 - only for backups
    from ductile.admin.store_rows import copy_to_file  # noqa: PLC0415
    from ductile.store.sqlite.backup import copy_store, inspect_copy, renew_id  # noqa: PLC0415

    def copy(location: StateLocation, target: Path, progress: BackupProgress) -> None:
        if isinstance(location, PostgresLocation):
            copy_to_file(location, target, _CLOCK.now(), progress)
        else:
            copy_store(location.path, target, lambda done, of: progress("copying the store", done, of))

    return StoreFunctions(
        copy=copy,
        inspect=inspect_copy,
        assign_new_id=renew_id,
        refuse_incomplete=refuse_wal_without_database,
    )


class OfflineStopCause(StrEnum):
    """The cause for which a job in this process was stopped before its end."""

    SIGNAL = "signal"
    TIMEOUT = "timeout"


class OfflineRunResult(Value):
    """A job that was run in this process."""

    #: The document that `job.show` returns.
    job: JsonObject
    #: The response of the operation that submitted the job.
    submitted: JsonObject
    stopped: OfflineStopCause | None


async def run_offline(
    config_path: str | None,
    environ: Mapping[str, str],
    operation: str,
    fields: JsonObject,
    *,
    time_limit: timedelta | None = None,
    on_ended: Callable[[JsonObject], None] = lambda _job: None,
    on_output: Callable[[OutputPiece], None] | None = None,
    on_submitted: Callable[[str], None] = lambda _job_id: None,
) -> OfflineRunResult:
    """Submit one job with `operation` and run it in this process, with every job that follows from it.

    `on_ended` is called with the document of the job, or of each step of the run, when that has ended, and
    `on_output` with the output of jobs while they run. After `time_limit`, or at the first stop signal,
    running processes are ended and their jobs go back to the queue.
    """
    async with open_offline(config_path, environ, LockPurpose.RUN) as context:
        runner = WarmRunner()
        live_output = LiveOutput(_CLOCK.now)
        if on_output is not None:
            live_output.subscribe(on_output)
        executor = Executor(
            context.store,
            runner,
            context.snapshot,
            _CLOCK,
            JobSignals(SignalBus()),
            environ,
            live_output=live_output,
            settle_attempts=_SETTLE_ATTEMPTS,
        )
        try:
            submitted = await table.OPERATIONS[operation].run_to_json(context, fields)
            job_id = str(submitted["job_id"])
            on_submitted(job_id)
            with _naming_job_in_errors(job_id):
                # The configuration is recorded, so that the job can be traced to it.
                await record_config(context.store, context.snapshot(), ConfigOrigin.RUN)
                with _stoppable(executor, time_limit) as stop_causes:
                    await OfflineRunner(context, executor, on_ended).run(job_id)
        finally:
            await runner.close()
        return OfflineRunResult(
            job=await table.OPERATIONS["job.show"].run_to_json(context, {"job_id": job_id}),
            submitted=submitted,
            stopped=stop_causes[0] if stop_causes else None,
        )


@contextmanager
def _naming_job_in_errors(job_id: str) -> Iterator[None]:
    """Within the context, add the id of the stored job to errors of a full or locked store."""
    try:
        yield
    except ResultNotStoredError as not_stored:
        cause = not_stored.__cause__
        if not isinstance(cause, StoreError):
            raise
        raise type(cause)(
            f"{cause.message}: the result of job {not_stored.job_id} could not be kept",
            hint="Once that is fixed, `ductile system start` runs the job again, and "
            f"`ductile job cancel {job_id}` ends it.",
            details={"job_id": job_id},
        ) from not_stored
    except (StoreFullError, StoreBusyError) as error:
        error.details["job_id"] = job_id
        error.hint = f"Job {job_id} is on the queue: `ductile system start` runs it, once that is fixed."
        raise


@contextmanager
def _stoppable(executor: Executor, time_limit: timedelta | None) -> Iterator[list[OfflineStopCause]]:
    """Within the context, stop signals and the timeout end processes: gracefully at first, then at once.

    Yields the list of causes, in the order in which they occur.
    """
    loop = asyncio.get_running_loop()
    causes: list[OfflineStopCause] = []

    def stop(cause: OfflineStopCause) -> None:
        executor.stop_all(at_once=bool(causes))
        causes.append(cause)

    with ExitStack() as at_exit:
        for stop_signal in _STOP_SIGNALS:
            loop.add_signal_handler(stop_signal, stop, OfflineStopCause.SIGNAL)
            at_exit.callback(loop.remove_signal_handler, stop_signal)
        if time_limit is not None:
            timer = loop.call_later(time_limit.total_seconds(), stop, OfflineStopCause.TIMEOUT)
            at_exit.callback(timer.cancel)
        yield causes


class OfflineRunner:
    """Claims and runs a job and those that follow from it, one after the other.

    Before the first job of a plugin, the plugin's init runs if it has not run for this version.
    """

    def __init__(
        self, context: OperationContext, executor: Executor, on_ended: Callable[[JsonObject], None]
    ) -> None:
        self._context = context
        self._store = context.store
        self._executor = executor
        self._on_ended = on_ended
        self._owner = make_identity("cli")
        #: Ids of jobs that are not claimed yet.
        self._waiting: list[str] = []
        #: Plugins whose init was run here, or was not pending.
        self._initialised: set[str] = set()

    async def run(self, job_id: str) -> None:
        """Run the job and every ready job below it. Retries are left to the daemon."""
        self._waiting = [job_id]
        submitted = await self._store.get_job(job_id)
        if submitted is not None and submitted.plugin == RUN_PLUGIN:
            # A pipeline run has no process of its own: its first steps are run instead.
            record = await self._store.get_run(job_id)
            steps = () if record is None else record.steps
            self._waiting = [step.id for step in steps if step.status is JobStatus.QUEUED]
        while self._waiting:
            batch, self._waiting = self._waiting, []
            # Each job is claimed just before it runs: a crash would leave others claimed, as if they had run.
            for next_id in batch:
                await self._initialise(next_id)
                await self._run_one(next_id)
                job = await self._store.get_job(next_id)
                if job is not None and job.status in TERMINAL and job_id in (job.id, job.run_id):
                    self._on_ended(to_builtins(listed_job(self._context, job)))

    async def _initialise(self, job_id: str) -> None:
        """Run the plugin's init if it is pending. A failed init does not prevent the job."""
        job = await self._store.get_job(job_id)
        if job is None or job.plugin in self._initialised:
            return
        self._initialised.add(job.plugin)
        plugin = self._context.snapshot().plugins.get(job.plugin)
        init = None if plugin is None else init_of(plugin, now=self._context.now(), rng=self._context.rng)
        if init is None:
            return
        result = await self._store.begin_init(init.key, init.job)
        if result.status is InitStatus.PENDING and result.job_id is not None:
            await self._run_one(result.job_id)

    async def _run_one(self, job_id: str) -> None:
        """Claim and run one job. The jobs that follow from it are run later."""
        for claim in await self._store.claim_by_id([job_id], owner=self._owner, lease=LEASE):
            result = await self._executor.execute(claim)
            if isinstance(result, Settled):
                self._waiting += [
                    submitted.job_id for submitted in result.started if isinstance(submitted, Accepted)
                ]
