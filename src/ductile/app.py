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

from ductile.config.locate import locate_config
from ductile.config.snapshot import Snapshot
from ductile.control.identity import WHOSE, naming
from ductile.control.place import leave_link, make_directory, remove_directory, remove_link, socket_path
from ductile.control.server import ControlServer
from ductile.core.json_values import JsonObject
from ductile.dice import Dice
from ductile.engine.alone import TreeRunner
from ductile.engine.clock import SystemClock
from ductile.engine.engine import Engine, Equipment
from ductile.engine.execution import Executor, ResultGivenUpError, Surroundings
from ductile.engine.identity import make_identity
from ductile.engine.inits import init_of
from ductile.engine.lock import Keeper, StoreLock, holder_of
from ductile.engine.plugin_versions import plugin_versions
from ductile.engine.reporting import Followers, Reporter
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
from ductile.operations import registry
from ductile.operations.configuration import open_configuration, state_file
from ductile.operations.desk import Desk
from ductile.operations.shown import shown_job
from ductile.runner.warm.pool import WarmRunner
from ductile.serving import Listeners
from ductile.store.sqlite.connection import refuse_log_without_database
from ductile.store.sqlite.rescue import Rescue
from ductile.store.sqlite.store import open_sqlite_store, open_sqlite_store_to_read
from ductile.store.values.settling import NewInit
from ductile.store.values.upkeep import ConfigOrigin
from ductile.telemetry.logs import LogWriter
from ductile.telemetry.news import News
from ductile.telemetry.signals import Signal, Signals, Subscriber
from ductile.telemetry.systemd import SYSTEMD_SIGNALS, SystemdNotifier
from ductile.value import Value

if TYPE_CHECKING:
    from ductile.operations.backup import StoreFiles

#: So many new objects, and the collector looks for those that hold each other.
_COLLECTED_AFTER = 10_000
_STOPPING = (signal.SIGTERM, signal.SIGINT)
#: How often a result is offered to a full store where somebody waits for it: a second apart, then it is said.
_OFFERS = 2


def _now() -> datetime:
    return datetime.now(UTC)


async def serve(
    named: str | None, environ: Mapping[str, str], *, subscribers: tuple[Subscriber, ...] = ()
) -> None:
    """Run the daemon until it is told to stop. Whatever it could not deal with is raised at the end."""
    _leave_no_core()
    snapshot, config_file = _open(named, environ)
    path = state_file(snapshot)
    lock = _lock(path)
    log = LogWriter(sys.stdout.buffer, _now)
    signals = Signals()
    signals.subscribe(log)
    for subscriber in subscribers:
        signals.subscribe(subscriber)
    systemd = SystemdNotifier(environ)
    signals.subscribe(systemd, SYSTEMD_SIGNALS)
    alive = asyncio.create_task(systemd.keep_alive(), name="watchdog")
    _follow(log, snapshot)
    signals.emit(Signal.SERVICE_STARTING, data={"store": str(path)})

    store = open_sqlite_store(path, clock=_now, dice=Dice(), thorough=True)
    if store.kept_log is not None:
        kept = store.kept_log
        signals.emit(Signal.STORE_LOG_DAMAGED, data={"kept": str(kept.path), "transactions_lost": kept.lost})
    runner = WarmRunner()
    news = News()
    signals.subscribe(news)
    listeners = Listeners(signals, news)
    equipment = Equipment(
        store=store,
        runner=runner,
        clock=SystemClock(),
        dice=Dice(),
        signals=signals,
        environ=environ,
        load=lambda: open_configuration(named, environ).snapshot,
        listening=listeners,
        renew_lock=lock.renew,
    )
    engine = Engine(equipment, snapshot)
    # As the configuration in force says, not one that was refused.
    signals.subscribe(lambda _: _follow(log, engine.snapshot()), (Signal.CONFIG_LOADED,))
    try:
        lock.hold_database(path)
        await _serve_with(engine, equipment, listeners, news, path.parent, config_file)
    finally:
        await runner.close()
        await store.close()
        _tell_rescue(store.rescue, signals)
        alive.cancel()
        lock.release()
        signals.emit(Signal.SERVICE_STOPPED)
        log.close()


def _tell_rescue(rescue: Rescue | Exception | None, signals: Signals) -> None:
    """How it went to save a store whose files had been removed, if they had."""
    if isinstance(rescue, Rescue):
        data: JsonObject = {"store": str(rescue.path), "put_back": rescue.put_back}
        signals.emit(Signal.STORE_RESCUED, data=data)
    elif rescue is not None:
        signals.emit(Signal.STORE_FAILED, f"what was in the removed store could not be saved: {rescue}")


def _leave_no_core() -> None:
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
    equipment: Equipment,
    listeners: Listeners,
    news: News,
    state_directory: Path,
    config_file: Path,
) -> None:
    socket = socket_path(state_directory, equipment.environ)
    desk = Desk(
        store=equipment.store,
        snapshot=engine.snapshot,
        now=equipment.clock.now,
        dice=equipment.dice,
        engine=engine,
        load=equipment.load,
        news=news,
    )
    operations = {**registry.at(desk), WHOSE: naming(config_file)}
    control = ControlServer(socket, operations, equipment.signals)
    loop = asyncio.get_running_loop()
    for number in _STOPPING:
        loop.add_signal_handler(number, engine.stop)
    reloads: set[asyncio.Task[object]] = set()
    loop.add_signal_handler(signal.SIGHUP, _reload_in_background(engine, reloads))
    make_directory(socket, state_directory)
    await control.start()
    leave_link(config_file, socket)
    try:
        async with listeners.serving(desk):
            await engine.run(partial(_tell_ready, equipment.signals))
    finally:
        remove_link(config_file, socket)
        await control.stop()
        remove_directory(socket, state_directory)


def _tell_ready(signals: Signals) -> None:
    collect_seldom()
    signals.emit(Signal.SERVICE_READY)


def collect_seldom() -> None:
    """What has been loaded stays for good: the collector need not look at it with every round.

    Nor has it to come that often: what a request or a job leaves behind goes by itself, but for errors.
    """
    gc.freeze()
    gc.set_threshold(_COLLECTED_AFTER)


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


def _follow(log: LogWriter, snapshot: Snapshot) -> None:
    service = snapshot.service
    log.configure(level=str(service.log_level), text=_in_text(snapshot))


def _in_text(snapshot: Snapshot) -> bool:
    """As it is set. Where it is not, for people at a terminal and for programs elsewhere."""
    section = snapshot.shown.get("service") if isinstance(snapshot.shown, dict) else None
    if isinstance(section, dict) and section.get("log_format") is not None:
        return str(snapshot.service.log_format) == "text"
    return sys.stdout.isatty()


@asynccontextmanager
async def without_daemon(
    named: str | None, environ: Mapping[str, str], keeper: Keeper = Keeper.COMMAND
) -> AsyncIterator[Desk]:
    """The store while no daemon runs: under its lock, without scheduler and listeners.

    Raises `StoreBusyError` if somebody holds it.
    """
    snapshot = open_configuration(named, environ).snapshot
    path = state_file(snapshot)
    lock = _lock_for_a_moment(path, keeper)
    try:
        store = open_sqlite_store(path, clock=_now, dice=Dice())
        runner = os.getpid() if keeper is Keeper.RUN else None
        try:
            lock.hold_database(path)
            yield Desk(store=store, snapshot=lambda: snapshot, now=_now, dice=Dice(), runner_pid=runner)
        finally:
            await store.close()
    finally:
        lock.release()


@asynccontextmanager
async def to_look_at(named: str | None, environ: Mapping[str, str]) -> AsyncIterator[Desk]:
    """The store for whoever only reads: also beside a job that is run without a daemon.

    A daemon is asked instead; one that holds the lock and does not answer is starting or stopping, and what
    the store says then is not what it will say in a moment.
    """
    snapshot = open_configuration(named, environ).snapshot
    path = state_file(snapshot)
    holder = holder_of(path.parent)
    if holder is None or holder.keeper is not Keeper.RUN or not path.exists():
        async with without_daemon(named, environ) as desk:
            yield desk
        return
    store = open_sqlite_store_to_read(path, clock=_now)
    try:
        yield Desk(store=store, snapshot=lambda: snapshot, now=_now, dice=Dice(), runner_pid=holder.pid)
    finally:
        await store.close()


def _lock(path: Path, keeper: Keeper = Keeper.DAEMON) -> StoreLock:
    try:
        return StoreLock(path.parent, keeper, database=path)
    except OSError as error:
        hint = "Look at its permissions, or set state.path to another place."
        raise file_error(f"the store's directory {path.parent} cannot be used", error, hint=hint) from error


def _lock_for_a_moment(path: Path, keeper: Keeper) -> StoreLock:
    try:
        return _lock(path, keeper)
    except ConflictError as held:
        holder = holder_of(path.parent)
        if holder is not None and holder.keeper is not Keeper.DAEMON:
            raise StoreBusyError(held.message, hint=held.hint, details=held.details) from held
        raise StoreBusyError(
            f"{held.message}, and does not answer",
            hint="The daemon may just be starting or stopping: try again.",
            details=held.details,
        ) from held


async def ask_without_daemon(
    named: str | None, environ: Mapping[str, str], operation: str, given: JsonObject
) -> JsonObject:
    """An operation on the store of a daemon that does not run."""
    opened = to_look_at if operation in registry.LOOKING else without_daemon
    async with opened(named, environ) as desk:
        return await registry.OPERATIONS[operation](desk, given)


async def diagnose_without_daemon(
    named: str | None, environ: Mapping[str, str], given: JsonObject
) -> JsonObject:
    """What `system.doctor` finds where no daemon answers, however little there is to be looked at."""
    from ductile.operations import doctor  # noqa: PLC0415 - only where somebody asks for it

    config: Path | None = None
    try:
        config = locate_config(named, environ)
        snapshot = open_configuration(config, environ).snapshot
        path = state_file(snapshot)
    except ConfigError as error:
        return doctor.doctor_without_config(error, None if config is None else config.parent)
    try:
        refuse_log_without_database(path)
        if not path.exists():
            return doctor.doctor_without_store(snapshot, doctor.not_running(), doctor.no_store(path))
        async with to_look_at(named, environ) as desk:
            return await doctor.doctor(desk, given)
    except StoreBusyError as busy:
        return doctor.doctor_without_store(snapshot, doctor.of_error(doctor.Check.DAEMON, busy))
    except (StoreError, DeniedError) as error:
        failed = doctor.of_error(doctor.Check.STORE, error)
        return doctor.doctor_without_store(snapshot, doctor.not_running(), failed)


def store_files() -> StoreFiles:
    """How a store is copied and looked at, beside whoever uses it."""
    from ductile.operations.backup import StoreFiles  # noqa: PLC0415 - only for backups
    from ductile.store.sqlite.copying import copy_store, inspect_copy, renew_id  # noqa: PLC0415

    return StoreFiles(
        copy=copy_store,
        inspect=inspect_copy,
        renew=renew_id,
        refuse_incomplete=refuse_log_without_database,
    )


class Stopped(StrEnum):
    """What ended a run before it was over."""

    SIGNAL = "signal"
    TIMEOUT = "timeout"


class RunHere(Value):
    """What came of a job that was run in this process."""

    #: What `job.show` says of it.
    job: JsonObject
    #: Nothing was run: another job had succeeded under the same key.
    deduplicated: bool
    stopped: Stopped | None


async def run_without_daemon(
    named: str | None,
    environ: Mapping[str, str],
    operation: str,
    given: JsonObject,
    *,
    patience: timedelta | None = None,
    ended: Callable[[JsonObject], None] = lambda _job: None,
) -> RunHere:
    """Submit one job and run it here, with everything it leads to.

    `operation` submits it. `ended` is told of each job that has ended, as lists show jobs.
    When `patience` ends, or at the first signal, what runs is ended and goes back to the queue.
    """
    async with without_daemon(named, environ, Keeper.RUN) as desk:
        tree = TreeRunner(
            desk.store, make_identity("cli"), _inits_at(desk), lambda job: ended(shown_job(job))
        )
        followers = Followers(
            retry_expected=lambda _due: None,
            schedule_moved=lambda: None,
            job_ended=lambda: None,
            settled=tree.follow,
        )
        signals = Signals()
        runner = WarmRunner()
        executor = Executor(
            desk.store,
            runner,
            desk.snapshot,
            SystemClock(),
            Reporter(signals, Waiters(), followers),
            Surroundings(environ=environ, directory=str(Path.cwd())),
            offers=_OFFERS,
        )
        try:
            submitted = await registry.OPERATIONS[operation](desk, given)
            job_id = str(submitted["job_id"])
            with _known_as(job_id):
                await _record_config(desk)
                with _stoppable(executor, patience) as stopped:
                    await tree.run(executor, job_id)
        finally:
            await runner.close()
        return RunHere(
            job=await registry.OPERATIONS["job.show"](desk, {"job_id": job_id}),
            deduplicated=bool(submitted["deduplicated"]),
            stopped=stopped[0] if stopped else None,
        )


@contextmanager
def _known_as(job_id: str) -> Iterator[None]:
    """A store that cannot take any more is told of with the job that is in it by then."""
    try:
        yield
    except ResultGivenUpError as given_up:
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


def _inits_at(desk: Desk) -> Callable[[str], NewInit | None]:
    def find(name: str) -> NewInit | None:
        plugin = desk.snapshot().plugins.get(name)
        return None if plugin is None else init_of(plugin, now=desk.now(), dice=desk.dice)

    return find


async def _record_config(desk: Desk) -> None:
    """By which configuration a job was run has to be found out later, daemon or not (SPEC 10)."""
    snapshot = desk.snapshot()
    shown = snapshot.shown if isinstance(snapshot.shown, dict) else {}
    await desk.store.record_config(
        snapshot.fingerprint, ConfigOrigin.RUN, shown, (), plugin_versions(snapshot)
    )


@contextmanager
def _stoppable(executor: Executor, patience: timedelta | None) -> Iterator[list[Stopped]]:
    """Meanwhile a signal ends what runs, as it does for the daemon: first in good order, then at once.

    What asked for the end is told, in order.
    """
    loop = asyncio.get_running_loop()
    asked: list[Stopped] = []

    def stop(by: Stopped) -> None:
        executor.stop_all(at_once=bool(asked))
        asked.append(by)

    for number in _STOPPING:
        loop.add_signal_handler(number, stop, Stopped.SIGNAL)
    timer = None if patience is None else loop.call_later(patience.total_seconds(), stop, Stopped.TIMEOUT)
    try:
        yield asked
    finally:
        if timer is not None:
            timer.cancel()
        for number in _STOPPING:
            loop.remove_signal_handler(number)
