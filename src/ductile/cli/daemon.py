"""How a command asks: the running daemon over its socket, or else the store itself.

Answering from a running daemon has to be quick, so nothing is imported here that only the other way needs.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from ductile.config.locate import locate_config
from ductile.control.client import START_IT, converse, not_running, reach
from ductile.control.identity import is_daemon_of
from ductile.control.patience import FrozenDaemonError
from ductile.control.place import (
    link_path,
    linked_socket,
    may_be_strangers,
    socket_path,
    strangers_directory,
)
from ductile.errors import DuctileError, StoreBusyError

if TYPE_CHECKING:
    import socket
    from collections.abc import Mapping

    from ductile.cli.answers import Call
    from ductile.core.json_values import JsonObject, JsonValue

#: An answer, decoded. What is in it is up to the operation.
Said: TypeAlias = dict[str, Any]

#: A daemon that says nothing for so long is not well, and whoever asked should know.
PATIENCE = 60.0
RUN_IT_HERE = "Start it with `ductile system start`, or leave out --no-wait, and it is run here."


def ask(
    call: Call, operation: str, given: Mapping[str, JsonValue], *, patience: float | None = PATIENCE
) -> Said:
    """What the daemon answers; where none runs, the same answer from the store, under its lock."""
    connection = find_daemon(call)
    if connection is not None:
        return converse(connection, operation, present(given), timeout=patience)
    return _ask_store(call, operation, given)


def _ask_store(call: Call, operation: str, given: Mapping[str, JsonValue]) -> Said:
    import asyncio  # noqa: PLC0415 - see the module's docstring

    from ductile.app import ask_without_daemon  # noqa: PLC0415

    return asyncio.run(ask_without_daemon(call.config, call.environ, operation, present(given)))


def ask_if_there(call: Call, operation: str, given: Mapping[str, JsonValue]) -> Said | None:
    """The same for what is only said by the way: None if there is nobody to ask, and no store yet."""
    try:
        connection = find_daemon(call)
        if connection is not None:
            return converse(connection, operation, present(given), timeout=PATIENCE)
        return _ask_store(call, operation, given) if _has_store(call) else None
    except DuctileError:
        return None


def _has_store(call: Call) -> bool:
    from ductile.operations.configuration import open_configuration, state_file  # noqa: PLC0415 - as above

    return state_file(open_configuration(call.config, call.environ).snapshot).exists()


def ask_daemon(
    call: Call,
    operation: str,
    given: Mapping[str, JsonValue],
    *,
    timeout: float | None = PATIENCE,
    advice: str = START_IT,
) -> Said:
    """What the daemon answers; an error if none runs, with this advice. Without a timeout it is waited for,
    for ever.
    """
    connection = find_daemon(call)
    if connection is None:
        raise _nobody(call, advice)
    return converse(connection, operation, present(given), timeout=timeout)


def find_daemon(call: Call) -> socket.socket | None:
    """A connection to the daemon of the configuration that is meant, if one listens."""
    config_file = locate_config(call.config, call.environ)
    linked = linked_socket(config_file)
    if (
        linked is not None
        and not may_be_strangers(linked, link_path(config_file))
        and _is_daemon_of(linked, config_file, call)
        and (connection := reach(linked)) is not None
    ):
        return connection
    directory = state_directory(call)
    socket = socket_path(directory, call.environ)
    if may_be_strangers(socket, directory):
        raise strangers_directory(socket.parent)
    return reach(socket)


def _is_daemon_of(linked: Path, config_file: Path, call: Call) -> bool:
    """One that is stopped cannot say whose it is. It is ours if it listens where ours does."""
    try:
        return is_daemon_of(linked, config_file)
    except FrozenDaemonError:
        if linked == socket_path(state_directory(call), call.environ):
            raise
        return False


def state_directory(call: Call) -> Path:
    from ductile.operations.configuration import open_configuration, state_file  # noqa: PLC0415 - as above

    return state_file(open_configuration(call.config, call.environ).snapshot).parent


def _nobody(call: Call, advice: str) -> DuctileError:
    from ductile.engine.lock import Keeper, holder_of  # noqa: PLC0415 - as above

    holder = holder_of(state_directory(call))
    if holder is None or holder.keeper is not Keeper.DAEMON:
        return not_running(advice)
    return StoreBusyError(
        f"process {holder.pid} uses the store and does not answer",
        hint="The daemon may just be starting or stopping: try again.",
        details={"pid": holder.pid},
    )


def present(given: Mapping[str, JsonValue]) -> JsonObject:
    """Without what was not given, so that the daemon's defaults hold."""
    return {name: value for name, value in given.items() if value is not None and value is not False}
