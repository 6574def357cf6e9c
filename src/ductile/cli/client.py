"""How a command reaches an operation: through the running daemon's socket, or else in the store itself.

Help imports this module and needs none of what its functions import. A request to a running daemon has to be
quick: it imports neither asyncio nor the configuration.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    import socket
    from collections.abc import Mapping
    from pathlib import Path

    from ductile.cli.invocation import Invocation
    from ductile.core.json import JsonObject, JsonValue
    from ductile.errors import DuctileError

#: The response of an operation, decoded from JSON.
Document: TypeAlias = dict[str, Any]

#: Seconds to wait for an answer of the daemon.
DAEMON_TIMEOUT = 60.0


def request(
    call: Invocation,
    operation: str | None = None,
    fields: Mapping[str, JsonValue] | None = None,
    *,
    timeout: float | None = DAEMON_TIMEOUT,
) -> Document:
    """Run an operation in the daemon; if none runs, in the store, under its lock.

    Without `operation` and `fields` they are those of the command, as they were given on the command line.
    """
    connection = connect_to_daemon(call)
    if connection is not None:
        return exchange(call, connection, operation, fields, timeout=timeout)
    return _request_store(call, operation or call.action.operation, _fields(call, fields))


def request_daemon(
    call: Invocation,
    operation: str | None = None,
    fields: Mapping[str, JsonValue] | None = None,
    *,
    timeout: float | None = DAEMON_TIMEOUT,
    advice: str | None = None,
) -> Document:
    """Run an operation in the daemon. DaemonNotRunningError, with this advice, if none runs.

    A `timeout` of None waits without a limit.
    """
    connection = connect_to_daemon(call)
    if connection is None:
        raise _no_daemon_error(call, advice)
    return exchange(call, connection, operation, fields, timeout=timeout)


def request_if_available(call: Invocation, operation: str, fields: JsonObject) -> Document | None:
    """Run an operation for additional information: None without a daemon and a store, or on an error."""
    from ductile.errors import DuctileError

    try:
        connection = connect_to_daemon(call)
        if connection is not None:
            return exchange(call, connection, operation, fields)
        return _request_store(call, operation, fields) if _state_file(call).exists() else None
    except DuctileError:
        return None


def exchange(
    call: Invocation,
    connection: socket.socket,
    operation: str | None = None,
    fields: Mapping[str, JsonValue] | None = None,
    *,
    timeout: float | None = DAEMON_TIMEOUT,
) -> Document:
    """Send one request over a connection of `connect_to_daemon`, and return the response."""
    from ductile.control import client

    name = operation or call.action.operation
    return client.exchange(connection, name, _fields(call, fields), timeout=timeout)


def _request_store(call: Invocation, operation: str, fields: JsonObject) -> Document:
    import asyncio

    from ductile.offline import call_offline

    return asyncio.run(call_offline(call.config, call.environ, operation, fields))


def _fields(call: Invocation, fields: Mapping[str, JsonValue] | None) -> JsonObject:
    """Without what is not set, so that the operation's defaults hold."""
    given = call.request_fields() if fields is None else fields
    return {name: value for name, value in given.items() if value is not None and value is not False}


def connect_to_daemon(call: Invocation) -> socket.socket | None:
    """A connection to the daemon of this configuration; None if none listens."""
    from ductile.config.find_config import find_config
    from ductile.control.client import connect
    from ductile.control.socket_files import (
        foreign_directory_error,
        link_path,
        linked_socket,
        may_be_foreign,
        socket_path,
    )

    config_file = find_config(call.config, call.environ)
    linked = linked_socket(config_file)
    if (
        linked is not None
        and not may_be_foreign(linked, link_path(config_file))
        and _is_daemon_of(linked, config_file, call)
        and (connection := connect(linked)) is not None
    ):
        return connection
    directory = state_directory(call)
    path = socket_path(directory, call.environ)
    if may_be_foreign(path, directory):
        raise foreign_directory_error(path.parent)
    return connect(path)


def _is_daemon_of(linked: Path, config_file: Path, call: Invocation) -> bool:
    """Whether the daemon behind a socket runs this configuration. A daemon that
    is stopped by SIGSTOP cannot answer; it is ours if it listens on the socket of this configuration's store.
    """
    from ductile.control.client import FrozenDaemonError, is_daemon_of
    from ductile.control.socket_files import socket_path

    try:
        return is_daemon_of(linked, config_file)
    except FrozenDaemonError:
        if linked == socket_path(state_directory(call), call.environ):
            raise
        return False


def state_directory(call: Invocation) -> Path:
    return _state_file(call).parent


def _state_file(call: Invocation) -> Path:
    from ductile.admin.config import open_configuration, state_file

    return state_file(open_configuration(call.config, call.environ).snapshot)


def _no_daemon_error(call: Invocation, advice: str | None) -> DuctileError:
    from ductile.control.client import START_HINT, not_running_error
    from ductile.engine.store_lock import LockPurpose, find_holder
    from ductile.errors import StoreBusyError

    holder = find_holder(state_directory(call))
    if holder is None or holder.purpose is not LockPurpose.DAEMON:
        return not_running_error(advice or START_HINT)
    return StoreBusyError(
        f"process {holder.pid} uses the store and does not answer",
        hint="The daemon may just be starting or stopping: try again.",
        details={"pid": holder.pid},
    )
