"""Connections to the server, and the translation of its errors. The URL is a secret: no message has it."""

from __future__ import annotations

import logging
import re
import time
from typing import Any, TypeVar

import psycopg
from psycopg import errors
from psycopg.abc import PQGen
from psycopg.conninfo import conninfo_to_dict
from psycopg.waiting import Ready

from ductile.errors import (
    RefusedError,
    StoreBusyError,
    StoreError,
    StoreFailedError,
    StoreFullError,
    StoreSchemaError,
)

R = TypeVar("R")

#: How long connecting may take before the server counts as unreachable.
CONNECT_TIMEOUT_SECONDS = 10
OLDEST_SERVER = 140000
#: How long the server may take to answer a statement that reads, and one that writes.
READ_ANSWER_SECONDS = 60.0
WRITE_ANSWER_SECONDS = 15.0
#: Messages of a server that refuses a connection for good: waiting does not help. Each has its hint.
_REJECTIONS = (
    ("password authentication failed", "Check the password in state.url, PGPASSWORD or the password file."),
    ("no password supplied", "Put the password into state.url, PGPASSWORD or the password file."),
    ("no pg_hba.conf entry", "Allow the connection in pg_hba.conf of the server, or check sslmode."),
    ('role ".*" does not exist', "Create the user on the server, or name another one in state.url."),
    ('database ".*" does not exist', "Create the database (createdb), or name another one in state.url."),
)
#: Keepalives find a cut network within half a minute: without them a connection waits for hours.
CONNECT_OPTIONS: dict[str, Any] = {
    "connect_timeout": CONNECT_TIMEOUT_SECONDS,
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 30_000,
}
#: Classes of SQLSTATE for transient faults: of the connection, lost races, resources, locks, the operator,
#: and the server's own system.
_CONNECTION_EXCEPTION = "08"
_TRANSIENT = (_CONNECTION_EXCEPTION, "40", "53", "55", "57", "58")
#: Codes of a server that has closed the connection: it stops, or a limit for idle connections was reached.
_ENDED_BY_SERVER = frozenset({"57P01", "57P02", "57P03", "57P05", "25P03"})
# The driver logs warnings; without a handler they would be printed between the lines of our log.
logging.getLogger("psycopg").addHandler(logging.NullHandler())


AsyncConnection = psycopg.AsyncConnection[tuple[Any, ...]]


class Connection(psycopg.Connection[tuple[Any, ...]]):
    """A connection that gives up on a server that does not answer.

    The network reports no error: a server that hangs, or a proxy before it, still acknowledges packets.
    """

    answer_seconds = READ_ANSWER_SECONDS

    def wait(self, gen: PQGen[R], *args: Any, **kwargs: Any) -> R:
        try:
            return super().wait(_with_deadline(gen, time.monotonic() + self.answer_seconds), *args, **kwargs)
        except _NoAnswerError:
            self.close()  # the next statement on it fails at once
            raise


class _NoAnswerError(psycopg.OperationalError):
    """The server has not answered in time."""


def _with_deadline(gen: PQGen[R], deadline: float) -> PQGen[R]:
    """Consume a generator of the driver; raise when it waits for the server beyond the deadline."""
    try:
        awaited = next(gen)
        while True:
            ready = yield awaited
            # The driver resumes its generators a few times a second, also if there is nothing to read.
            if ready == Ready.NONE and time.monotonic() > deadline:
                raise _NoAnswerError("it does not answer")
            awaited = gen.send(ready)
    except StopIteration as end:
        value: R = end.value
        return value


async def connect_async(url: str, *, application_name: str, **options: Any) -> AsyncConnection:
    """Open a connection for the event loop that begins no transaction by itself."""
    return await psycopg.AsyncConnection.connect(
        url, autocommit=True, application_name=application_name, **{**CONNECT_OPTIONS, **options}
    )


def connect(url: str, *, application_name: str, answer_seconds: float = READ_ANSWER_SECONDS) -> Connection:
    """Open a connection that begins no transaction by itself.

    Raises `psycopg.Error`, or `StoreError` if the URL or the server cannot be used.
    """
    refuse_unreadable_url(url)
    connection = Connection.connect(
        url, autocommit=True, application_name=application_name, **CONNECT_OPTIONS
    )
    connection.answer_seconds = answer_seconds
    if connection.info.server_version < OLDEST_SERVER:
        version = connection.info.server_version // 10000
        connection.close()
        raise StoreSchemaError(
            f"the PostgreSQL server has version {version}; Ductile needs 14 or later",
            hint="Upgrade the server, or name another one in state.url.",
        )
    return connection


def refuse_unreadable_url(url: str) -> None:
    """Raise `StoreFailedError` for a URL that libpq cannot read: its own message has parts of the URL."""
    try:
        conninfo_to_dict(url)
    except psycopg.Error:
        raise StoreFailedError(
            "the URL of the PostgreSQL server cannot be read",
            hint="It is postgresql://USER:PASSWORD@HOST:PORT/DATABASE; in a user name or a password, write "
            "special characters as %XX.",
        ) from None


def is_connection_lost(error: BaseException) -> bool:
    """Return whether the error is about the connection, not about a statement."""
    if not isinstance(error, psycopg.Error):
        return False
    if error.sqlstate is None:
        return isinstance(error, psycopg.OperationalError | psycopg.InterfaceError)
    return error.sqlstate.startswith(_CONNECTION_EXCEPTION) or error.sqlstate in _ENDED_BY_SERVER


def translate_at_start(error: psycopg.Error) -> BaseException:
    """Return our error as `translate` does; `StoreFailedError` if the server refuses to connect for good."""
    text = _first_line(error)
    if error.sqlstate is None:
        for pattern, hint in _REJECTIONS:
            if re.search(pattern, text):
                return StoreFailedError(f"the PostgreSQL server refuses the connection: {text}", hint=hint)
    translated = translate(error)
    if isinstance(translated, StoreBusyError):
        translated.hint = "Check that the server runs, and that state.url is right. Then try again."
    return translated


def translate(error: BaseException) -> BaseException:
    """Return our error for one of the server or the driver; others are returned as they are."""
    match error:
        case errors.DiskFull():
            return StoreFullError(
                "the PostgreSQL server has no room left",
                hint="Free some space on the server, then try again. Nothing that was accepted is lost.",
            )
        case errors.InsufficientPrivilege():
            return StoreFailedError(
                f"the PostgreSQL user may not do this: {_first_line(error)}",
                hint="The user of state.url must own the schema of the store.",
            )
        case errors.ReadOnlySqlTransaction():
            return StoreBusyError(
                "the PostgreSQL server is read-only: it is a standby, or fails over",
                hint="Ductile tries again by itself. Name the primary in state.url if this stays so.",
            )
        case errors.DataError() | UnicodeEncodeError():
            return RefusedError(f"this text cannot be in any store: {_first_line(error)}")
        case _ if is_connection_lost(error):
            return StoreBusyError(
                f"the PostgreSQL server cannot be reached: {_first_line(error)}",
                hint="Ductile connects again by itself. Check that the server runs and state.url is right.",
            )
        case psycopg.Error(sqlstate=str(state)) if state.startswith(_TRANSIENT):
            return StoreBusyError(
                f"the PostgreSQL server is busy: {_first_line(error)}", hint="Ductile tries again by itself."
            )
        case psycopg.Error():
            return StoreError(f"the store refused the operation: {_first_line(error)}")
        case _:
            return error


def _first_line(error: BaseException) -> str:
    return str(error).strip().partition("\n")[0].removeprefix("connection failed: ")
