"""The control socket carries operations from the command line to the daemon."""

from __future__ import annotations

import asyncio
import os
import socket
import stat
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from ductile.control.client import call_daemon, call_on_connection, connect
from ductile.control.server import ControlServer, peer_uid
from ductile.control.socket_files import (
    link_path,
    linked_socket,
    make_socket_directory,
    may_be_foreign,
    remove_link,
    remove_socket_directory,
    socket_path,
    write_link,
)
from ductile.core.json import JsonObject
from ductile.errors import (
    ConfigError,
    ConflictError,
    DaemonNotRunningError,
    DeniedError,
    DuctileError,
    IntegrityError,
    Problem,
    StoreBusyError,
    UsageError,
)
from ductile.operations.table import WAITING_OPERATIONS
from ductile.telemetry.signals import Signal, SignalBus, SignalEvent

Operation = Callable[[JsonObject], Awaitable[JsonObject]]


def failing_operation(error: Exception) -> Operation:
    async def operation(_given: JsonObject) -> JsonObject:
        raise error

    return operation


async def echo(request: JsonObject) -> JsonObject:
    return {"given": request}


async def call_through_socket(
    path: Path,
    operation: Operation,
    request: JsonObject,
    signals: SignalBus | None = None,
    peer_uid: Callable[[socket.socket], int] = peer_uid,
) -> JsonObject:
    """Call the operation through a real server."""
    server = ControlServer(path, {"it": operation}, signals or SignalBus(), peer_uid=peer_uid)
    await server.start()
    try:
        return await asyncio.to_thread(call_daemon, path, "it", request, timeout=60)
    finally:
        await server.stop()


async def test_the_response_is_the_result_of_the_operation(tmp_path: Path) -> None:
    """The response arrives unchanged, whatever its size."""
    request: JsonObject = {"text": "ä\n" * 100_000, "number": 2**60}
    assert await call_through_socket(tmp_path / "s", echo, request) == {"given": request}


async def test_an_error_arrives_as_the_same_error(tmp_path: Path) -> None:
    """The exit status depends on the error."""
    error = ConflictError("not now", hint="later", details={"status": "running"})
    with pytest.raises(ConflictError) as excinfo:
        await call_through_socket(tmp_path / "s", failing_operation(error), {})
    assert (excinfo.value.message, excinfo.value.hint, excinfo.value.details) == (
        "not now",
        "later",
        {"status": "running"},
    )


async def test_an_unexpected_error_is_reported_to_both_sides_without_its_text(tmp_path: Path) -> None:
    """The log names the type of the error and its place. The text may contain a secret and appears
    nowhere.
    """
    emitted: list[SignalEvent] = []
    signals = SignalBus()
    signals.subscribe(emitted.append)
    with pytest.raises(DuctileError) as excinfo:
        await call_through_socket(tmp_path / "s", failing_operation(ValueError("canary")), {}, signals)
    (event,) = emitted
    assert (event.signal, event.data["fault"]) == (Signal.CONTROL_FAULT, "ValueError")
    assert "test_control_socket.py" in str(event.data["at"])
    assert "canary" not in f"{event} {excinfo.value.message} {excinfo.value.details}"


@pytest.mark.parametrize("kind", [ConfigError, IntegrityError])
async def test_the_problems_of_a_configuration_arrive(kind: type[ConfigError], tmp_path: Path) -> None:
    """A refused reload reports every problem with its location."""
    problem = Problem(message="no", file="config.yaml", line=3, key="service.name", found="1")
    with pytest.raises(kind) as excinfo:
        await call_through_socket(tmp_path / "s", failing_operation(kind("bad", problems=(problem,))), {})
    assert excinfo.value.problems == (problem,)
    assert excinfo.value.details == {}


async def test_an_unexpected_error_names_its_type_only(tmp_path: Path) -> None:
    """The text of an exception may contain a secret."""
    with pytest.raises(DuctileError, match=r"unexpected error in the daemon \(ValueError\)"):
        await call_through_socket(tmp_path / "s", failing_operation(ValueError("canary")), {})


@pytest.mark.parametrize("error", [OSError("canary"), TimeoutError("canary"), ConnectionResetError("canary")])
async def test_an_error_of_the_system_in_an_operation_is_no_disconnect(
    error: OSError, tmp_path: Path
) -> None:
    """The client is connected, and gets a response; the daemon has not stopped."""
    emitted: list[SignalEvent] = []
    signals = SignalBus()
    signals.subscribe(emitted.append)
    with pytest.raises(DuctileError, match=rf"unexpected error in the daemon \({type(error).__name__}\)"):
        await call_through_socket(tmp_path / "s", failing_operation(error), {}, signals)
    assert [event.signal for event in emitted] == [Signal.CONTROL_FAULT]


async def test_an_unknown_operation_is_refused(tmp_path: Path) -> None:
    server = ControlServer(tmp_path / "s", {}, SignalBus())
    await server.start()
    try:
        with pytest.raises(UsageError, match="has no operation it"):
            await asyncio.to_thread(call_daemon, tmp_path / "s", "it", {})
    finally:
        await server.stop()


@pytest.mark.parametrize(
    "name", ["job.wait", "log.follow", "ledger.follow", "pipeline.follow", "plugin.drain", "system.reload"]
)
async def test_an_operation_that_waits_is_cancelled_when_its_client_disconnects(
    name: str, tmp_path: Path
) -> None:
    assert await is_cancelled_on_disconnect(tmp_path / "s", name)


async def test_an_operation_that_changes_something_is_completed_without_its_client(tmp_path: Path) -> None:
    assert not await is_cancelled_on_disconnect(tmp_path / "s", "pipeline.run")


async def is_cancelled_on_disconnect(path: Path, name: str) -> bool:
    """Return whether the operation is cancelled when its client disconnects."""
    has_begun, may_end = asyncio.Event(), asyncio.Event()
    cancelled: asyncio.Future[bool] = asyncio.get_running_loop().create_future()

    async def operation(_given: JsonObject) -> JsonObject:
        has_begun.set()
        try:
            await may_end.wait()
        except asyncio.CancelledError:
            cancelled.set_result(True)
            raise
        cancelled.set_result(False)
        return {}

    server = ControlServer(path, {name: operation}, SignalBus(), waiting=WAITING_OPERATIONS)
    await server.start()
    try:
        _reader, writer = await asyncio.open_unix_connection(str(path))
        writer.write(b'{"operation": "%s", "given": {}}\n' % name.encode())
        await has_begun.wait()
        writer.close()
        await writer.wait_closed()
        if name not in WAITING_OPERATIONS:
            # The server has answered a later client, so it knows of the disconnect.
            with pytest.raises(UsageError):
                await asyncio.to_thread(call_daemon, path, "unknown", {}, timeout=60)
            may_end.set()
        async with asyncio.timeout(60):
            return await cancelled
    finally:
        await server.stop()


def test_no_daemon_listens(tmp_path: Path) -> None:
    """The exit status is 69."""
    assert connect(tmp_path / "s") is None
    with pytest.raises(DaemonNotRunningError):
        call_daemon(tmp_path / "s", "it", {})


def test_a_daemon_that_does_not_answer_or_disconnects(tmp_path: Path) -> None:
    """The exit status is 75 for a timeout and 69 for a disconnect; the client never waits for ever."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "s"))
        listener.listen()
        connection = connect(tmp_path / "s")
        assert connection is not None
        with pytest.raises(StoreBusyError):
            call_on_connection(connection, "it", {}, timeout=0.01)
        connection = connect(tmp_path / "s")
        assert connection is not None
        for _ in range(2):
            listener.accept()[0].close()
        with pytest.raises(DaemonNotRunningError):
            call_on_connection(connection, "it", {}, timeout=60)


def test_the_link_leads_to_the_daemon_that_wrote_it(tmp_path: Path) -> None:
    """The link is beside the configuration; the link of another daemon is not removed."""
    config = tmp_path / "config.yaml"
    assert linked_socket(config) is None
    write_link(config, tmp_path / "one.sock")
    write_link(config, tmp_path / "two.sock")
    assert linked_socket(config) == tmp_path / "two.sock"
    remove_link(config, tmp_path / "one.sock")
    assert linked_socket(config) == tmp_path / "two.sock"
    remove_link(config, tmp_path / "two.sock")
    assert not link_path(config).is_symlink()


def test_a_directory_that_cannot_be_written_to_has_no_link(tmp_path: Path) -> None:
    """The daemon starts without a link."""
    config = tmp_path / "nowhere" / "config.yaml"
    write_link(config, tmp_path / "s")
    assert linked_socket(config) is None


def test_the_path_of_a_socket_is_never_too_long(tmp_path: Path) -> None:
    """Daemon and command use the same short path in the runtime directory."""
    near, far = Path("/var/lib/ductile"), Path("/" + "very-long/" * 20)
    assert socket_path(near, {}) == near / "ductile.sock"
    short = socket_path(far, {"XDG_RUNTIME_DIR": "/run/user/7"})
    assert short.is_relative_to("/run/user/7")
    assert len(str(short)) < 100
    assert short == socket_path(far, {"XDG_RUNTIME_DIR": "/run/user/7"})


async def test_the_socket_is_for_its_owner_alone(tmp_path: Path) -> None:
    """The umask does not matter."""
    mask = os.umask(0)
    try:
        server = ControlServer(tmp_path / "s", {}, SignalBus())
        await server.start()
        assert stat.S_IMODE((tmp_path / "s").stat().st_mode) == 0o600
        await server.stop()
    finally:
        os.umask(mask)


async def test_another_user_is_refused_although_they_could_connect(tmp_path: Path) -> None:
    """The kernel reports the user of the peer."""
    uids: list[int] = []

    def other_user(connection: socket.socket) -> int:
        uids.append(peer_uid(connection))
        return os.getuid() + 1

    with pytest.raises(DeniedError):
        await call_through_socket(tmp_path / "s", echo, {}, peer_uid=other_user)
    assert uids == [os.getuid()]


def test_a_directory_of_the_sockets_own_is_for_its_owner_alone(tmp_path: Path) -> None:
    """In a world-writable directory, another user may have created the directory first to pose as the
    daemon.
    """
    state, socket = tmp_path / "state", tmp_path / "ductile-1" / "ductile.sock"
    make_socket_directory(socket, state)
    assert stat.S_IMODE(socket.parent.stat().st_mode) == 0o700
    make_socket_directory(socket, state)
    socket.parent.chmod(0o755)
    with pytest.raises(DeniedError, match="may pose as the daemon"):
        make_socket_directory(socket, state)
    socket.parent.chmod(0o700)
    linked = tmp_path / "ductile-2" / "ductile.sock"
    linked.parent.symlink_to(socket.parent)
    with pytest.raises(DeniedError, match="may pose as the daemon"):
        make_socket_directory(linked, state)
    make_socket_directory(linked, linked.parent)  # the state directory is the operator's choice
    remove_socket_directory(linked, linked.parent)
    remove_socket_directory(socket, state)
    assert [path.name for path in tmp_path.iterdir()] == ["ductile-2"]


def test_a_socket_of_another_user_is_not_used(tmp_path: Path) -> None:
    """Root does not use it either, unless its owner also owns the link or the directory of the store."""
    socket, link, daemon = tmp_path / "there" / "ductile.sock", tmp_path / "link", 4711
    owners = {socket.parent: daemon, link: os.geteuid()}
    assert may_be_foreign(socket, link, file_owner=owners.get)
    owners[link] = daemon
    assert not may_be_foreign(socket, link, file_owner=owners.get)
    owners |= {socket.parent: 0, link: os.geteuid()}
    assert not may_be_foreign(socket, link, file_owner=owners.get)
    assert not may_be_foreign(tmp_path / "nowhere" / "ductile.sock", link, file_owner=owners.get)
