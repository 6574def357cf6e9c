"""The daemon: builds every part from the configuration, connects them, and serves until stopped.

It creates the clock and the source of random numbers, which other parts get as arguments. `ductile.offline`
does the same for a command.
"""

from __future__ import annotations

import asyncio
import gc
import resource
import signal
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from ductile.admin.config import open_configuration
from ductile.config.load import SealMode
from ductile.config.snapshot import Snapshot
from ductile.control.client import CONFIG_PATH_OPERATION
from ductile.control.server import ControlServer, config_path_operation
from ductile.control.socket_files import (
    make_socket_directory,
    remove_link,
    remove_socket_directory,
    socket_path,
    write_link,
)
from ductile.core.json import JsonObject
from ductile.engine.clock import SystemClock
from ductile.engine.deps import EngineDeps
from ductile.engine.engine import Engine
from ductile.engine.store_lock import lock_store
from ductile.listeners import Listeners
from ductile.operations import table
from ductile.operations.config.plan_drafts import PlanDrafts
from ductile.operations.context import OperationContext
from ductile.operations.tokens.sign_in_links import SignInLinks
from ductile.operations.webhooks.refusals import WebhookRefusals
from ductile.random_source import BufferedSystemRandom
from ductile.runner.warm.pool import WarmRunner
from ductile.store.open_store import open_store
from ductile.store.sqlite.file_identities import Rescue
from ductile.store.sqlite.store import SqliteStore
from ductile.telemetry.logs import LogFormat, LogWriter
from ductile.telemetry.signals import Signal, SignalBus, Subscriber
from ductile.telemetry.systemd import SYSTEMD_SIGNALS, SystemdNotifier

#: Allocations between two runs of the cyclic garbage collector.
_GC_THRESHOLD = 10_000
_STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)


async def serve(
    config_path: str | None, environ: Mapping[str, str], *, subscribers: tuple[Subscriber, ...] = ()
) -> None:
    """Run the daemon until it is stopped. Raises the error that ended it, if there was one."""
    _disable_core_dumps()
    snapshot, config_file = _load_config(config_path, environ)
    location = snapshot.state
    lock = lock_store(location)
    clock = SystemClock()
    colour = not environ.get("NO_COLOR") and environ.get("TERM") != "dumb"
    log = LogWriter(sys.stdout.buffer, clock.now, colour=colour)
    signals = SignalBus()
    signals.subscribe(log)
    for subscriber in subscribers:
        signals.subscribe(subscriber)
    systemd = SystemdNotifier(environ)
    signals.subscribe(systemd, SYSTEMD_SIGNALS)
    watchdog = asyncio.create_task(systemd.keep_alive(), name="watchdog")
    _apply_log_settings(log, snapshot)
    signals.emit(Signal.SERVICE_STARTING, data={"store": location.name})

    store = open_store(location, clock=clock.now, rng=BufferedSystemRandom(), check_integrity=True)
    if isinstance(store, SqliteStore) and (damaged := store.damaged_wal) is not None:
        data: JsonObject = {"kept": str(damaged.path), "transactions_lost": damaged.lost}
        signals.emit(Signal.STORE_LOG_DAMAGED, data=data)
    runner = WarmRunner()
    listeners = Listeners(signals)
    deps = EngineDeps(
        store=store,
        runner=runner,
        clock=clock,
        rng=BufferedSystemRandom(),
        signals=signals,
        environ=environ,
        load=lambda: open_configuration(config_path, environ).snapshot,
        listeners=listeners,
        load_unsealed=lambda overlay: (
            open_configuration(config_path, environ, seal=SealMode.IGNORE, overlay=overlay).snapshot
        ),
        renew_lock=lock.renew,
    )
    engine = Engine(deps, snapshot)
    # The configuration is asked from the engine: after a refused reload the active one is still the old one.
    signals.subscribe(lambda _: _apply_log_settings(log, engine.snapshot()), (Signal.CONFIG_LOADED,))
    try:
        lock.hold_database()  # again: `open_store` may have created the database
        await _serve_with(engine, deps, listeners, location.directory, config_file)
    finally:
        await runner.close()
        await store.close()
        if isinstance(store, SqliteStore):
            _emit_rescue(store.rescue, signals)
        watchdog.cancel()
        lock.release()
        signals.emit(Signal.SERVICE_STOPPED)
        log.close()


def _disable_core_dumps() -> None:
    """Forbid core dumps of this process: they would contain every secret of the configuration.

    Plugins inherit the soft limit. The hard limit stays, so that a plugin can raise its own.
    """
    _soft, hard = resource.getrlimit(resource.RLIMIT_CORE)
    resource.setrlimit(resource.RLIMIT_CORE, (0, hard))


def _load_config(config_path: str | None, environ: Mapping[str, str]) -> tuple[Snapshot, Path]:
    """Return the compiled configuration and its file.

    This is a function of its own, because the parsed configuration contains every secret and is freed on
    return.
    """
    opened = open_configuration(config_path, environ)
    return opened.snapshot, opened.loaded.path


def _apply_log_settings(log: LogWriter, snapshot: Snapshot) -> None:
    """Set level and format of the log. The default format is short text on a terminal and JSON elsewhere."""
    section = snapshot.redacted.get("service") if isinstance(snapshot.redacted, dict) else None
    style = LogFormat.TERMINAL if sys.stdout.isatty() else LogFormat.JSON
    if isinstance(section, dict) and section.get("log_format") is not None:
        style = LogFormat.TEXT if str(snapshot.service.log_format) == "text" else LogFormat.JSON
    log.configure(level=str(snapshot.service.log_level), log_format=style)


async def _serve_with(
    engine: Engine, deps: EngineDeps, listeners: Listeners, state_directory: Path, config_file: Path
) -> None:
    """Run the engine with the control socket and the HTTP listeners open."""
    socket = socket_path(state_directory, deps.environ)
    context = OperationContext(
        store=deps.store,
        snapshot=engine.snapshot,
        now=deps.clock.now,
        rng=deps.rng,
        engine=engine,
        load_from_disk=deps.load,
        config_file=config_file,
        environ=deps.environ,
        sign_in_links=SignInLinks(time.monotonic),
        plan_drafts=PlanDrafts(),
        webhook_refusals=WebhookRefusals(),
    )
    operations = {**table.bind_operations(context), CONFIG_PATH_OPERATION: config_path_operation(config_file)}
    control = ControlServer(socket, operations, deps.signals, waiting=table.WAITING_OPERATIONS)
    loop = asyncio.get_running_loop()
    for stop_signal in _STOP_SIGNALS:
        loop.add_signal_handler(stop_signal, engine.stop)
    loop.add_signal_handler(signal.SIGHUP, engine.reloader.reload_in_background)

    def ready() -> None:
        tune_garbage_collector()
        deps.signals.emit(Signal.SERVICE_READY)

    make_socket_directory(socket, state_directory)
    await control.start()
    write_link(config_file, socket)
    try:
        async with listeners.serving(context):
            await engine.run(ready)
    finally:
        remove_link(config_file, socket)
        await control.stop()
        remove_socket_directory(socket, state_directory)


def tune_garbage_collector() -> None:
    """Exempt all present objects from collection, and collect seldom.

    Requests and jobs free their objects by reference counting; only tracebacks form cycles.
    """
    gc.freeze()
    gc.set_threshold(_GC_THRESHOLD)


def _emit_rescue(rescue: Rescue | Exception | None, signals: SignalBus) -> None:
    """Report the attempt to save a store whose files had been removed, if there was one."""
    if isinstance(rescue, Rescue):
        data: JsonObject = {"store": str(rescue.path), "put_back": rescue.in_place}
        signals.emit(Signal.STORE_RESCUED, data=data)
    elif rescue is not None:
        signals.emit(Signal.STORE_FAILED, f"the content of the removed store could not be saved: {rescue}")
