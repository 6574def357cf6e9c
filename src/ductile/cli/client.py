"""Runs operations for commands: over the socket of the running daemon, in the store if none runs, or over
HTTP with --url.

Help imports this module and needs none of what its functions import. A request to a running daemon has to be
quick: it imports neither asyncio nor the configuration.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    import socket
    from collections.abc import Iterator, Mapping

    from ductile.cli.invocation import Invocation
    from ductile.cli.remote import RemoteDaemon
    from ductile.config.snapshot import StateLocation
    from ductile.core.json import JsonObject, JsonValue

#: The response of an operation, decoded from JSON.
Document: TypeAlias = dict[str, Any]

#: A connection to the daemon of this machine, or to one on another machine.
Connection: TypeAlias = "socket.socket | RemoteDaemon"

#: Seconds to wait for a response of the daemon.
DAEMON_TIMEOUT = 60.0
#: The longest that one request for new rows waits. The request after it fails if the daemon has died.
FOLLOW_TIMEOUT = "60s"


def request(
    invocation: Invocation,
    operation: str | None = None,
    fields: Mapping[str, JsonValue] | None = None,
    *,
    timeout: float | None = DAEMON_TIMEOUT,
) -> Document:
    """Run an operation in the daemon; if none runs, in the store, under its lock.

    The defaults are the operation of the command, and the fields that the command line sets.
    """
    connection = connect_to_daemon(invocation)
    if connection is not None:
        return send_request(invocation, connection, operation, fields, timeout=timeout)
    return _request_store(invocation, operation or invocation.action.operation, _fields(invocation, fields))


def request_daemon(
    invocation: Invocation,
    operation: str | None = None,
    fields: Mapping[str, JsonValue] | None = None,
    *,
    timeout: float | None = DAEMON_TIMEOUT,
    advice: str | None = None,
) -> Document:
    """Run an operation in the daemon. A `timeout` of None waits without a limit.

    Raises DaemonNotRunningError, with `advice` as its hint, if no daemon runs; StoreBusyError if a daemon has
    locked the store and does not listen.
    """
    connection = connect_to_daemon(invocation)
    if connection is not None:
        return send_request(invocation, connection, operation, fields, timeout=timeout)
    from ductile.control.client import START_HINT, not_running_error
    from ductile.engine.store_lock import LockPurpose, find_holder
    from ductile.errors import StoreBusyError

    holder = find_holder(_state_location(invocation).directory)
    if holder is None or holder.purpose is not LockPurpose.DAEMON:
        raise not_running_error(advice or START_HINT)
    raise StoreBusyError(
        f"process {holder.pid} uses the store and does not answer",
        hint="The daemon may just be starting or stopping: try again.",
        details={"pid": holder.pid},
    )


def follow(
    invocation: Invocation,
    operation: str,
    fields: Mapping[str, JsonValue],
    *,
    rows_field: str,
    after: int,
    live: bool = False,
) -> Iterator[Document]:
    """Yield responses of the daemon with new rows (their `seq` is above `after`) until the daemon stops.

    `rows_field` is the field of the responses that has the rows.
    With `live`, the responses also have the output of running jobs.
    """
    from ductile.errors import DaemonNotRunningError, StoreBusyError

    position, has_answered = 0 if live else None, False
    while True:
        values: dict[str, JsonValue] = {**fields, "after": after, "timeout": FOLLOW_TIMEOUT}
        if position is not None:
            values |= {"live": True, "position": position or None}
        try:
            update = request_daemon(invocation, operation, values, timeout=None)
        except (DaemonNotRunningError, StoreBusyError) as error:
            # The daemon stopped between two requests, or has closed its store and is about to stop.
            has_stopped = isinstance(error, DaemonNotRunningError) or "store is clos" in error.message
            if not (has_answered and has_stopped):
                raise
            return
        has_answered = True
        yield update
        if position is not None:
            position = update.get("position", 0)  # absent in responses of an older daemon
        after = max((row["seq"] for row in update[rows_field]), default=after)
        if update["stopping"]:
            return


def request_if_available(invocation: Invocation, operation: str, fields: JsonObject) -> Document | None:
    """Return additional information from an operation; None without a daemon and a store, or on an error."""
    from ductile.errors import DuctileError

    try:
        connection = connect_to_daemon(invocation)
        if connection is not None:
            return send_request(invocation, connection, operation, fields)
        path = getattr(_state_location(invocation), "path", None)
        return _request_store(invocation, operation, fields) if path is None or path.exists() else None
    except DuctileError:
        return None


def send_request(
    invocation: Invocation,
    connection: Connection,
    operation: str | None = None,
    fields: Mapping[str, JsonValue] | None = None,
    *,
    timeout: float | None = DAEMON_TIMEOUT,
) -> Document:
    """Send one request over a connection of `connect_to_daemon`, and return the response."""
    name = operation or invocation.action.operation
    values = _fields(invocation, fields)
    import socket

    if not isinstance(connection, socket.socket):
        return connection.call(name, values, timeout=timeout)
    from ductile.control import client

    return client.call_on_connection(connection, name, values, timeout=timeout)


def _request_store(invocation: Invocation, operation: str, fields: JsonObject, **options: Any) -> Document:
    import asyncio

    from ductile.offline import call_offline

    return asyncio.run(call_offline(invocation.config, invocation.environ, operation, fields, **options))


def request_ignoring_seal(invocation: Invocation, operation: str, fields: JsonObject) -> Document:
    """Run an operation that only reads as `request` does. Without a daemon, the seal is not verified."""
    connection = connect_to_daemon(invocation)
    if connection is not None:
        return send_request(invocation, connection, operation, fields)
    from ductile.config.load import SealMode

    return _request_store(invocation, operation, _fields(invocation, fields), seal=SealMode.IGNORE)


def _fields(invocation: Invocation, fields: Mapping[str, JsonValue] | None) -> JsonObject:
    """Return the fields that are set. For the others, the operation has defaults."""
    values = invocation.request_fields() if fields is None else fields
    return {name: value for name, value in values.items() if value is not None and value is not False}


def connect_to_daemon(invocation: Invocation) -> Connection | None:
    """Return a connection to the daemon of this configuration, or to that of --url; None if none listens.

    A daemon of --url is not connected to before the request.
    """
    if invocation.remote is not None:
        return invocation.remote
    from ductile.config.find_config import find_config
    from ductile.control.client import SuspendedDaemonError, connect, is_daemon_of
    from ductile.control.socket_files import (
        foreign_directory_error,
        link_path,
        linked_socket,
        may_be_foreign,
        socket_path,
    )

    config_file = find_config(invocation.config, invocation.environ)
    linked = linked_socket(config_file)
    if linked is not None and not may_be_foreign(linked, link_path(config_file)):
        try:
            is_ours = is_daemon_of(linked, config_file)
        except SuspendedDaemonError:
            # A suspended daemon does not answer. It is ours if its socket is that of this configured store.
            if linked == socket_path(_state_location(invocation).directory, invocation.environ):
                raise
            is_ours = False
        if is_ours and (connection := connect(linked)) is not None:
            return connection
    directory = _state_location(invocation).directory
    path = socket_path(directory, invocation.environ)
    if may_be_foreign(path, directory):
        raise foreign_directory_error(path.parent)
    return connect(path)


def _state_location(invocation: Invocation) -> StateLocation:
    """Return where the store is. The seal is not verified: processes that start jobs do that."""
    from ductile.admin.config import open_configuration
    from ductile.config.load import SealMode

    opened = open_configuration(invocation.config, invocation.environ, seal=SealMode.IGNORE)
    return opened.snapshot.state
