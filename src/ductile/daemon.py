"""The composition root: the one place where adapters meet ports, and the only one with a real clock.

`serve` is the daemon. The others give a command the store while no daemon runs.
"""

from __future__ import annotations

import asyncio
import gc
import os
import resource
import signal
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from ductile.admin.config import open_configuration, state_file
from ductile.config.find_config import find_config
from ductile.config.snapshot import Snapshot
from ductile.control.client import CONFIG_PATH_OPERATION, config_path_operation
from ductile.control.server import ControlServer
from ductile.control.socket_files import (
    make_socket_directory,
    remove_link,
    remove_socket_directory,
    socket_path,
    write_link,
)
from ductile.core.json import JsonObject
from ductile.engine.clock import SystemClock
from ductile.engine.config_record import init_of, plugin_versions
from ductile.engine.engine import Engine, EngineDeps
from ductile.engine.executor import Executor, ProcessDefaults, ResultNotStoredError
from ductile.engine.notifications import JobNotifications, SettlementCallbacks
from ductile.engine.offline_runner import OfflineRunner
from ductile.engine.ownership.process_identity import make_identity
from ductile.engine.ownership.store_lock import LockPurpose, StoreLock, holder_of
from ductile.engine.waiters import Waiters
from ductile.errors import (
    ConfigError,
    ConflictError,
    DeniedError,
    StoreBusyError,
    StoreError,
    StoreFullError,
    file_error,
)
from ductile.listeners import Listeners
from ductile.operations import table
from ductile.operations.context import OperationContext
from ductile.operations.jobs.documents import shown_job
from ductile.random_source import BufferedSystemRandom
from ductile.runner.warm.pool import WarmRunner
from ductile.store.model.jobs import NewInit
from ductile.store.model.maintenance import ConfigOrigin
from ductile.store.sqlite.connection import refuse_log_without_database
from ductile.store.sqlite.rescue import Rescue
from ductile.store.sqlite.store import open_sqlite_store, open_sqlite_store_read_only
from ductile.struct import Value
from ductile.telemetry.change_notifier import ChangeNotifier
from ductile.telemetry.logs import LogWriter
from ductile.telemetry.signals import Signal, SignalBus, Subscriber
from ductile.telemetry.systemd import SYSTEMD_SIGNALS, SystemdNotifier

if TYPE_CHECKING:
    from ductile.admin.backup.backup import StoreFiles

#: So many new objects, and the collector looks for those that hold each other.
_GC_THRESHOLD = 10_000
_STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)
#: How often a result is offered to a full store where somebody waits for it: a second apart, then it is said.
_SETTLE_ATTEMPTS = 2


def _now() -> datetime:
    return datetime.now(UTC)


async def serve(
    named: str | None, environ: Mapping[str, str], *, subscribers: tuple[Subscriber, ...] = ()
) -> None:
    """Run the daemon until it is told to stop. Whatever it could not deal with is raised at the end."""
    _disable_core_dumps()
    snapshot, config_file = _open(named, environ)
    path = state_file(snapshot)
    lock = _lock_store(path)
    log = LogWriter(sys.stdout.buffer, _now)
    signals = SignalBus()
    signals.subscribe(log)
    for subscriber in subscribers:
        signals.subscribe(subscriber)
    systemd = SystemdNotifier(environ)
    signals.subscribe(systemd, SYSTEMD_SIGNALS)
    alive = asyncio.create_task(systemd.keep_alive(), name="watchdog")
    _apply_log_settings(log, snapshot)
    signals.emit(Signal.SERVICE_STARTING, data={"store": str(path)})

    store = open_sqlite_store(path, clock=_now, rng=BufferedSystemRandom(), thorough=True)
    if store.damaged_wal is not None:
        kept = store.damaged_wal
        signals.emit(Signal.STORE_LOG_DAMAGED, data={"kept": str(kept.path), "transactions_lost": kept.lost})
    runner = WarmRunner()
    news = ChangeNotifier()
    signals.subscribe(news)
    listeners = Listeners(signals, news)
    equipment = EngineDeps(
        store=store,
        runner=runner,
        clock=SystemClock(),
        rng=BufferedSystemRandom(),
        signals=signals,
        environ=environ,
        load=lambda: open_configuration(named, environ).snapshot,
        listening=listeners,
        renew_lock=lock.renew,
    )
    engine = Engine(equipment, snapshot)
    # As the configuration in force says, not one that was refused.
    signals.subscribe(lambda _: _apply_log_settings(log, engine.snapshot()), (Signal.CONFIG_LOADED,))
    try:
        lock.hold_database(path)
        await _serve_with(engine, equipment, listeners, news, path.parent, config_file)
    finally:
        await runner.close()
        await store.close()
        _emit_rescue(store.rescue, signals)
        alive.cancel()
        lock.release()
        signals.emit(Signal.SERVICE_STOPPED)
        log.close()


def _emit_rescue(rescue: Rescue | Exception | None, signals: SignalBus) -> None:
    """How it went to save a store whose files had been removed, if they had."""
    if isinstance(rescue, Rescue):
        data: JsonObject = {"store": str(rescue.path), "put_back": rescue.put_back}
        signals.emit(Signal.STORE_RESCUED, data=data)
    elif rescue is not None:
        signals.emit(Signal.STORE_FAILED, f"what was in the removed store could not be saved: {rescue}")


def _disable_core_dumps() -> None:
    """A dump of this process would hold every secret of the configuration.

    Plugins inherit this. The hard limit stays, so that one of them can ask for dumps of its own.
    """
    _soft, hard = resource.getrlimit(resource.RLIMIT_CORE)
    resource.setrlimit(resource.RLIMIT_CORE, (0, hard))


def _open(named: str | None, environ: Mapping[str, str]) -> tuple[Snapshot, Path]:
    """The configuration and its file. What was read to get it has every secret in it, and does not stay."""
    opened = open_configuration(named, environ)
    return opened.snapshot, opened.loaded.path


async def _serve_with(
    engine: Engine,
    equipment: EngineDeps,
    listeners: Listeners,
    news: ChangeNotifier,
    state_directory: Path,
    config_file: Path,
) -> None:
    socket = socket_path(state_directory, equipment.environ)
    context = OperationContext(
        store=equipment.store,
        snapshot=engine.snapshot,
        now=equipment.clock.now,
        rng=equipment.rng,
        engine=engine,
        load=equipment.load,
        news=news,
    )
    operations = {**table.bind_operations(context), CONFIG_PATH_OPERATION: config_path_operation(config_file)}
    control = ControlServer(socket, operations, equipment.signals)
    loop = asyncio.get_running_loop()
    for number in _STOP_SIGNALS:
        loop.add_signal_handler(number, engine.stop)
    reloads: set[asyncio.Task[object]] = set()
    loop.add_signal_handler(signal.SIGHUP, _reload_in_background(engine, reloads))
    make_socket_directory(socket, state_directory)
    await control.start()
    write_link(config_file, socket)
    try:
        async with listeners.serving(context):
            await engine.run(partial(_emit_ready, equipment.signals))
    finally:
        remove_link(config_file, socket)
        await control.stop()
        remove_socket_directory(socket, state_directory)


def _emit_ready(signals: SignalBus) -> None:
    tune_garbage_collector()
    signals.emit(Signal.SERVICE_READY)


def tune_garbage_collector() -> None:
    """What has been loaded stays for good: the collector need not look at it with every round.

    Nor has it to come that often: what a request or a job leaves behind goes by itself, but for errors.
    """
    gc.freeze()
    gc.set_threshold(_GC_THRESHOLD)


def _reload_in_background(engine: Engine, kept: set[asyncio.Task[object]]) -> Callable[[], None]:
    """What SIGHUP does. A reload that is refused was told of by its signal."""

    async def reload() -> None:
        # What was wrong is told as config.refused, whatever it was; a signal has nobody to answer to.
        with suppress(Exception):
            await engine.reload()

    def start() -> None:
        task: asyncio.Task[object] = asyncio.create_task(reload())
        kept.add(task)
        task.add_done_callback(kept.discard)

    return start


def _apply_log_settings(log: LogWriter, snapshot: Snapshot) -> None:
    service = snapshot.service
    log.configure(level=str(service.log_level), text=_logs_as_text(snapshot))


def _logs_as_text(snapshot: Snapshot) -> bool:
    """As it is set. Where it is not, for people at a terminal and for programs elsewhere."""
    section = snapshot.shown.get("service") if isinstance(snapshot.shown, dict) else None
    if isinstance(section, dict) and section.get("log_format") is not None:
        return str(snapshot.service.log_format) == "text"
    return sys.stdout.isatty()


@asynccontextmanager
async def open_offline(
    named: str | None, environ: Mapping[str, str], keeper: LockPurpose = LockPurpose.COMMAND
) -> AsyncIterator[OperationContext]:
    """The store while no daemon runs: under its lock, without scheduler and listeners.

    Raises `StoreBusyError` if somebody holds it.
    """
    snapshot = open_configuration(named, environ).snapshot
    path = state_file(snapshot)
    lock = _lock_store_offline(path, keeper)
    try:
        store = open_sqlite_store(path, clock=_now, rng=BufferedSystemRandom())
        runner = os.getpid() if keeper is LockPurpose.RUN else None
        try:
            lock.hold_database(path)
            yield OperationContext(
                store=store,
                snapshot=lambda: snapshot,
                now=_now,
                rng=BufferedSystemRandom(),
                runner_pid=runner,
            )
        finally:
            await store.close()
    finally:
        lock.release()


@asynccontextmanager
async def open_read_only(named: str | None, environ: Mapping[str, str]) -> AsyncIterator[OperationContext]:
    """The store for whoever only reads: also beside a job that is run without a daemon.

    A daemon is asked instead; one that holds the lock and does not answer is starting or stopping, and what
    the store says then is not what it will say in a moment.
    """
    snapshot = open_configuration(named, environ).snapshot
    path = state_file(snapshot)
    holder = holder_of(path.parent)
    if holder is None or holder.keeper is not LockPurpose.RUN or not path.exists():
        async with open_offline(named, environ) as context:
            yield context
        return
    store = open_sqlite_store_read_only(path, clock=_now)
    try:
        yield OperationContext(
            store=store,
            snapshot=lambda: snapshot,
            now=_now,
            rng=BufferedSystemRandom(),
            runner_pid=holder.pid,
        )
    finally:
        await store.close()


def _lock_store(path: Path, keeper: LockPurpose = LockPurpose.DAEMON) -> StoreLock:
    try:
        return StoreLock(path.parent, keeper, database=path)
    except OSError as error:
        hint = "Look at its permissions, or set state.path to another place."
        raise file_error(f"the store's directory {path.parent} cannot be used", error, hint=hint) from error


def _lock_store_offline(path: Path, keeper: LockPurpose) -> StoreLock:
    try:
        return _lock_store(path, keeper)
    except ConflictError as held:
        holder = holder_of(path.parent)
        if holder is not None and holder.keeper is not LockPurpose.DAEMON:
            raise StoreBusyError(held.message, hint=held.hint, details=held.details) from held
        raise StoreBusyError(
            f"{held.message}, and does not answer",
            hint="The daemon may just be starting or stopping: try again.",
            details=held.details,
        ) from held


async def call_offline(
    named: str | None, environ: Mapping[str, str], operation: str, given: JsonObject
) -> JsonObject:
    """An operation on the store of a daemon that does not run."""
    opened = open_read_only if operation in table.READ_ONLY else open_offline
    async with opened(named, environ) as context:
        return await table.OPERATIONS[operation](context, given)


async def diagnose_offline(named: str | None, environ: Mapping[str, str], given: JsonObject) -> JsonObject:
    """What `system.doctor` finds where no daemon answers, however little there is to be looked at."""
    from ductile.operations.diagnose import doctor  # noqa: PLC0415 - only where somebody asks for it

    config: Path | None = None
    try:
        config = find_config(named, environ)
        snapshot = open_configuration(config, environ).snapshot
        path = state_file(snapshot)
    except ConfigError as error:
        return doctor.doctor_without_config(error, None if config is None else config.parent)
    try:
        refuse_log_without_database(path)
        if not path.exists():
            return doctor.doctor_without_store(
                snapshot, doctor.daemon_not_running(), doctor.store_not_created(path)
            )
        async with open_read_only(named, environ) as context:
            return await doctor.doctor(context, given)
    except StoreBusyError as busy:
        return doctor.doctor_without_store(snapshot, doctor.from_error(doctor.DoctorCheck.DAEMON, busy))
    except (StoreError, DeniedError) as error:
        failed = doctor.from_error(doctor.DoctorCheck.STORE, error)
        return doctor.doctor_without_store(snapshot, doctor.daemon_not_running(), failed)


def store_files() -> StoreFiles:
    """How a store is copied and looked at, beside whoever uses it."""
    from ductile.admin.backup.backup import StoreFiles  # noqa: PLC0415 - only for backups
    from ductile.store.sqlite.backup import copy_store, inspect_copy, renew_id  # noqa: PLC0415

    return StoreFiles(
        copy=copy_store,
        inspect=inspect_copy,
        renew=renew_id,
        refuse_incomplete=refuse_log_without_database,
    )


class StopCause(StrEnum):
    """What ended a run before it was over."""

    SIGNAL = "signal"
    TIMEOUT = "timeout"


class OfflineRunResult(Value):
    """What came of a job that was run in this process."""

    #: What `job.show` says of it.
    job: JsonObject
    #: Nothing was run: another job had succeeded under the same key.
    deduplicated: bool
    stopped: StopCause | None


async def run_offline(
    named: str | None,
    environ: Mapping[str, str],
    operation: str,
    given: JsonObject,
    *,
    patience: timedelta | None = None,
    ended: Callable[[JsonObject], None] = lambda _job: None,
) -> OfflineRunResult:
    """Submit one job and run it here, with everything it leads to.

    `operation` submits it. `ended` is told of each job that has ended, as lists show jobs.
    When `patience` ends, or at the first signal, what runs is ended and goes back to the queue.
    """
    async with open_offline(named, environ, LockPurpose.RUN) as context:
        tree = OfflineRunner(
            context.store, make_identity("cli"), _init_lookup(context), lambda job: ended(shown_job(job))
        )
        followers = SettlementCallbacks(
            retry_expected=lambda _due: None,
            schedule_moved=lambda: None,
            job_ended=lambda: None,
            settled=tree.follow,
        )
        signals = SignalBus()
        runner = WarmRunner()
        executor = Executor(
            context.store,
            runner,
            context.snapshot,
            SystemClock(),
            JobNotifications(signals, Waiters(), followers),
            ProcessDefaults(environ=environ, directory=str(Path.cwd())),
            offers=_SETTLE_ATTEMPTS,
        )
        try:
            submitted = await table.OPERATIONS[operation](context, given)
            job_id = str(submitted["job_id"])
            with _naming_job_in_errors(job_id):
                await _record_config(context)
                with _stoppable(executor, patience) as stopped:
                    await tree.run(executor, job_id)
        finally:
            await runner.close()
        return OfflineRunResult(
            job=await table.OPERATIONS["job.show"](context, {"job_id": job_id}),
            deduplicated=bool(submitted["deduplicated"]),
            stopped=stopped[0] if stopped else None,
        )


@contextmanager
def _naming_job_in_errors(job_id: str) -> Iterator[None]:
    """A store that cannot take any more is told of with the job that is in it by then."""
    try:
        yield
    except ResultNotStoredError as given_up:
        said = given_up.__cause__
        if not isinstance(said, StoreError):
            raise
        raise type(said)(
            f"{said.message}: the result of job {given_up.job_id} could not be kept",
            hint="Once that is fixed, `ductile system start` runs the job again, and "
            f"`ductile job cancel {job_id}` ends it.",
            details={"job_id": job_id},
        ) from given_up
    except (StoreFullError, StoreBusyError) as error:
        error.details["job_id"] = job_id
        error.hint = f"Job {job_id} is on the queue: `ductile system start` runs it, once that is fixed."
        raise


def _init_lookup(context: OperationContext) -> Callable[[str], NewInit | None]:
    def find(name: str) -> NewInit | None:
        plugin = context.snapshot().plugins.get(name)
        return None if plugin is None else init_of(plugin, now=context.now(), rng=context.rng)

    return find


async def _record_config(context: OperationContext) -> None:
    """By which configuration a job was run has to be found out later, daemon or not."""
    snapshot = context.snapshot()
    shown = snapshot.shown if isinstance(snapshot.shown, dict) else {}
    await context.store.record_config(
        snapshot.fingerprint, ConfigOrigin.RUN, shown, (), plugin_versions(snapshot)
    )


@contextmanager
def _stoppable(executor: Executor, patience: timedelta | None) -> Iterator[list[StopCause]]:
    """Meanwhile a signal ends what runs, as it does for the daemon: first in good order, then at once.

    What asked for the end is told, in order.
    """
    loop = asyncio.get_running_loop()
    asked: list[StopCause] = []

    def stop(by: StopCause) -> None:
        executor.stop_all(at_once=bool(asked))
        asked.append(by)

    for number in _STOP_SIGNALS:
        loop.add_signal_handler(number, stop, StopCause.SIGNAL)
    timer = None if patience is None else loop.call_later(patience.total_seconds(), stop, StopCause.TIMEOUT)
    try:
        yield asked
    finally:
        if timer is not None:
            timer.cancel()
        for number in _STOP_SIGNALS:
            loop.remove_signal_handler(number)
