"""How a command asks: the running daemon over its socket, or else the store itself.

Answering from a running daemon has to be quick, so nothing is imported here that only the other way needs.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from ductile.config.find_config import find_config
from ductile.control.client import (
    START_HINT,
    FrozenDaemonError,
    connect,
    exchange,
    is_daemon_of,
    not_running_error,
)
from ductile.control.socket_files import (
    foreign_directory_error,
    link_path,
    linked_socket,
    may_be_foreign,
    socket_path,
)
from ductile.errors import DuctileError, StoreBusyError

if TYPE_CHECKING:
    import socket
    from collections.abc import Mapping

    from ductile.cli.invocation import Invocation
    from ductile.core.json import JsonObject, JsonValue

#: An answer, decoded. What is in it is up to the operation.
Document: TypeAlias = dict[str, Any]

#: A daemon that says nothing for so long is not well, and whoever asked should know.
DAEMON_TIMEOUT = 60.0
RUN_IT_HERE = "Start it with `ductile system start`, or leave out --no-wait, and it is run here."


def request(
    call: Invocation,
    operation: str,
    given: Mapping[str, JsonValue],
    *,
    patience: float | None = DAEMON_TIMEOUT,
) -> Document:
    """What the daemon answers; where none runs, the same answer from the store, under its lock."""
    connection = connect_to_daemon(call)
    if connection is not None:
        return exchange(connection, operation, drop_unset(given), timeout=patience)
    return _request_store(call, operation, given)


def _request_store(call: Invocation, operation: str, given: Mapping[str, JsonValue]) -> Document:
    import asyncio  # noqa: PLC0415 - see the module's docstring

    from ductile.offline import call_offline  # noqa: PLC0415

    return asyncio.run(call_offline(call.config, call.environ, operation, drop_unset(given)))


def request_if_available(call: Invocation, operation: str, given: Mapping[str, JsonValue]) -> Document | None:
    """The same for what is only said by the way: None if there is nobody to ask, and no store yet."""
    try:
        connection = connect_to_daemon(call)
        if connection is not None:
            return exchange(connection, operation, drop_unset(given), timeout=DAEMON_TIMEOUT)
        return _request_store(call, operation, given) if _has_store(call) else None
    except DuctileError:
        return None


def _has_store(call: Invocation) -> bool:
    from ductile.admin.config import open_configuration, state_file  # noqa: PLC0415 - as above

    return state_file(open_configuration(call.config, call.environ).snapshot).exists()


def request_daemon(
    call: Invocation,
    operation: str,
    given: Mapping[str, JsonValue],
    *,
    timeout: float | None = DAEMON_TIMEOUT,
    advice: str = START_HINT,
) -> Document:
    """What the daemon answers; an error if none runs, with this advice. Without a timeout it is waited for,
    for ever.
    """
    connection = connect_to_daemon(call)
    if connection is None:
        raise _no_daemon_error(call, advice)
    return exchange(connection, operation, drop_unset(given), timeout=timeout)


def connect_to_daemon(call: Invocation) -> socket.socket | None:
    """A connection to the daemon of the configuration that is meant, if one listens."""
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
    socket = socket_path(directory, call.environ)
    if may_be_foreign(socket, directory):
        raise foreign_directory_error(socket.parent)
    return connect(socket)


def _is_daemon_of(linked: Path, config_file: Path, call: Invocation) -> bool:
    """One that is stopped cannot say whose it is. It is ours if it listens where ours does."""
    try:
        return is_daemon_of(linked, config_file)
    except FrozenDaemonError:
        if linked == socket_path(state_directory(call), call.environ):
            raise
        return False


def state_directory(call: Invocation) -> Path:
    from ductile.admin.config import open_configuration, state_file  # noqa: PLC0415 - as above

    return state_file(open_configuration(call.config, call.environ).snapshot).parent


def _no_daemon_error(call: Invocation, advice: str) -> DuctileError:
    from ductile.engine.ownership.store_lock import LockPurpose, find_holder  # noqa: PLC0415 - as above

    holder = find_holder(state_directory(call))
    if holder is None or holder.purpose is not LockPurpose.DAEMON:
        return not_running_error(advice)
    return StoreBusyError(
        f"process {holder.pid} uses the store and does not answer",
        hint="The daemon may just be starting or stopping: try again.",
        details={"pid": holder.pid},
    )


def drop_unset(given: Mapping[str, JsonValue]) -> JsonObject:
    """Without what was not given, so that the daemon's defaults hold."""
    return {name: value for name, value in given.items() if value is not None and value is not False}
