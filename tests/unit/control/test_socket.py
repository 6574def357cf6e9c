"""The local door between the command line and the daemon: where it is, what goes through it."""

from __future__ import annotations

import asyncio
import os
import socket
import stat
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from ductile.control.client import call_daemon, connect, exchange
from ductile.control.server import ControlServer
from ductile.control.server import _peer_uid as user_at
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
from ductile.telemetry.signals import Signal, SignalBus, SignalEvent

Operation = Callable[[JsonObject], Awaitable[JsonObject]]


def raising(error: Exception) -> Operation:
    async def operation(_given: JsonObject) -> JsonObject:
        raise error

    return operation


async def echo(given: JsonObject) -> JsonObject:
    return {"given": given}


async def answer_of(
    path: Path, operation: Operation, given: JsonObject, signals: SignalBus | None = None
) -> JsonObject:
    """Ask a real server that offers this one operation."""
    server = ControlServer(path, {"it": operation}, signals or SignalBus())
    await server.start()
    try:
        return await asyncio.to_thread(call_daemon, path, "it", given, timeout=10)
    finally:
        await server.stop()


async def test_an_answer_is_what_the_operation_said(tmp_path: Path) -> None:
    """Unchanged, however large."""
    given: JsonObject = {"text": "ä\n" * 100_000, "number": 2**60}
    assert await answer_of(tmp_path / "s", echo, given) == {"given": given}


async def test_an_error_arrives_as_the_same_error(tmp_path: Path) -> None:
    """Hence with the same exit status."""
    sent = ConflictError("not now", hint="later", details={"status": "running"})
    with pytest.raises(ConflictError) as caught:
        await answer_of(tmp_path / "s", raising(sent), {})
    assert (caught.value.message, caught.value.hint, caught.value.details) == (
        "not now",
        "later",
        {"status": "running"},
    )


async def test_a_fault_of_ours_is_told_to_both_sides_and_shows_nothing(tmp_path: Path) -> None:
    """One can always tell what happened. The log says where; nobody sees what it held."""
    told: list[SignalEvent] = []
    signals = SignalBus()
    signals.subscribe(told.append)
    with pytest.raises(DuctileError) as caught:
        await answer_of(tmp_path / "s", raising(ValueError("canary")), {}, signals)
    (happening,) = told
    assert (happening.signal, happening.data["fault"]) == (Signal.CONTROL_FAULT, "ValueError")
    assert "test_socket.py" in str(happening.data["at"])
    assert "canary" not in f"{happening} {caught.value.message} {caught.value.details}"


@pytest.mark.parametrize("kind", [ConfigError, IntegrityError])
async def test_the_problems_of_a_configuration_arrive(kind: type[ConfigError], tmp_path: Path) -> None:
    """A refused reload tells every problem with its place."""
    problem = Problem(message="no", file="config.yaml", line=3, key="service.name", found="1")
    with pytest.raises(kind) as caught:
        await answer_of(tmp_path / "s", raising(kind("bad", problems=(problem,))), {})
    assert caught.value.problems == (problem,)
    assert caught.value.details == {}


async def test_a_fault_of_the_daemon_is_told_without_what_it_held(tmp_path: Path) -> None:
    """An exception's own text may hold a secret."""
    with pytest.raises(DuctileError, match=r"unexpected fault in the daemon \(ValueError\)"):
        await answer_of(tmp_path / "s", raising(ValueError("canary")), {})


async def test_an_unknown_operation_is_refused(tmp_path: Path) -> None:
    server = ControlServer(tmp_path / "s", {}, SignalBus())
    await server.start()
    try:
        with pytest.raises(UsageError, match="has no operation it"):
            await asyncio.to_thread(call_daemon, tmp_path / "s", "it", {})
    finally:
        await server.stop()


def test_nobody_there(tmp_path: Path) -> None:
    """Exit 69."""
    assert connect(tmp_path / "s") is None
    with pytest.raises(DaemonNotRunningError):
        call_daemon(tmp_path / "s", "it", {})


def test_a_daemon_that_does_not_answer_or_goes_away(tmp_path: Path) -> None:
    """Exit 75 for the first, 69 for the second; never a wait without end."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "s"))
        listener.listen()
        connection = connect(tmp_path / "s")
        assert connection is not None
        with pytest.raises(StoreBusyError):
            exchange(connection, "it", {}, timeout=0.01)
        connection = connect(tmp_path / "s")
        assert connection is not None
        for _ in range(2):
            listener.accept()[0].close()
        with pytest.raises(DaemonNotRunningError):
            exchange(connection, "it", {}, timeout=10)


def test_the_link_leads_to_the_daemon_that_left_it(tmp_path: Path) -> None:
    """Found beside its configuration; another daemon's link is not taken away."""
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
    """The daemon starts all the same."""
    config = tmp_path / "nowhere" / "config.yaml"
    write_link(config, tmp_path / "s")
    assert linked_socket(config) is None


def test_the_path_of_a_socket_is_never_too_long(tmp_path: Path) -> None:
    """A short fallback in the runtime directory, the same for everybody who asks."""
    near, far = Path("/var/lib/ductile"), Path("/" + "very-long/" * 20)
    assert socket_path(near, {}) == near / "ductile.sock"
    short = socket_path(far, {"XDG_RUNTIME_DIR": "/run/user/7"})
    assert short.is_relative_to("/run/user/7")
    assert len(str(short)) < 100
    assert short == socket_path(far, {"XDG_RUNTIME_DIR": "/run/user/7"})


async def test_the_socket_is_for_its_owner_alone(tmp_path: Path) -> None:
    """Whatever the umask says."""
    mask = os.umask(0)
    try:
        server = ControlServer(tmp_path / "s", {}, SignalBus())
        await server.start()
        assert stat.S_IMODE((tmp_path / "s").stat().st_mode) == 0o600
        await server.stop()
    finally:
        os.umask(mask)


async def test_another_user_is_refused_although_they_could_connect(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel is asked who it is."""
    asked: list[int] = []

    def stranger(connection: socket.socket) -> int:
        asked.append(user_at(connection))
        return os.getuid() + 1

    monkeypatch.setattr("ductile.control.server._user_at", stranger)
    with pytest.raises(DeniedError):
        await answer_of(tmp_path / "s", echo, {})
    assert asked == [os.getuid()]


def test_a_directory_of_the_sockets_own_is_for_its_owner_alone(tmp_path: Path) -> None:
    """In a place for all, anybody may have made it before us, to pose as the daemon."""
    state, socket = tmp_path / "state", tmp_path / "ductile-1" / "ductile.sock"
    make_socket_directory(socket, state)
    assert stat.S_IMODE(socket.parent.stat().st_mode) == 0o700
    make_socket_directory(socket, state)
    socket.parent.chmod(0o755)
    with pytest.raises(DeniedError, match="posing"):
        make_socket_directory(socket, state)
    socket.parent.chmod(0o700)
    linked = tmp_path / "ductile-2" / "ductile.sock"
    linked.parent.symlink_to(socket.parent)
    with pytest.raises(DeniedError, match="posing"):
        make_socket_directory(linked, state)
    make_socket_directory(linked, linked.parent)  # beside the store it is where the operator has put it
    remove_socket_directory(linked, linked.parent)
    remove_socket_directory(socket, state)
    assert [each.name for each in tmp_path.iterdir()] == ["ductile-2"]


def test_a_strangers_socket_is_not_spoken_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor by root, unless its owner also owns what led there."""
    socket, link, daemon = tmp_path / "there" / "ductile.sock", tmp_path / "link", 4711
    owners = {socket.parent: daemon, link: os.geteuid()}
    monkeypatch.setattr("ductile.control.socket_files._owner", owners.get)
    assert may_be_foreign(socket, link)
    owners[link] = daemon
    assert not may_be_foreign(socket, link)
    owners |= {socket.parent: 0, link: os.geteuid()}
    assert not may_be_foreign(socket, link)
    assert not may_be_foreign(tmp_path / "nowhere" / "ductile.sock", link)
