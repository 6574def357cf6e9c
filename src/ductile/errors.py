"""All errors that Ductile reports to its users, as one exception tree.

    DuctileError
    ├── UsageError              the command line or the request is invalid
    ├── ConfigError             the configuration cannot be used; carries every problem found
    │   └── IntegrityError      a sealed file was changed or never sealed
    ├── NotFoundError           no such plugin, job, key, ...
    ├── ConflictError           the object is not in a state that allows this
    ├── GoneError               the object existed, and retention has removed it
    ├── RefusedError            the request is well-formed, but not acceptable
    ├── DeniedError             the caller, or this program, may not do this
    ├── UnauthorizedError       the caller is not authenticated
    ├── MisdirectedError        the request was meant for another host
    ├── MethodNotAllowedError   the path exists, but not with this method
    ├── TooSlowError            the request did not arrive in time
    ├── TooLargeError           the request's body is larger than the limit
    ├── HeadersTooLargeError    the request's headers are larger than the limit
    ├── TooManyError            too many attempts: wait
    ├── LimitReachedError       the caller's token has used up one of its limits
    ├── TooBusyError            no capacity now: try again
    ├── DaemonNotRunningError   there is no daemon to talk to
    └── StoreError              the job store cannot be used
        ├── StoreBusyError      full queue or a lock held: try again
        │   └── ContendedError  another transaction was first: the verb is tried again
        ├── StoreFullError      the disk is full: nothing was lost, free some space
        ├── StoreSchemaError    written by a newer Ductile, or by another program
        └── StoreFailedError    corrupt, or an I/O error: nothing more is written

Faults of a *plugin* are not exceptions but data: an `Outcome` (`ductile.core.jobs.model`).

Each class has a stable code, which one table maps to the HTTP status and the exit status. The message names
the fault, the hint names a remedy.
"""

from __future__ import annotations

import errno
from dataclasses import dataclass, field
from enum import IntEnum
from typing import ClassVar


class Exit(IntEnum):
    """Exit statuses of the command line, with the numbers of sysexits.h where it has one."""

    OK = 0
    FAILURE = 1
    USAGE = 2
    NOT_RUNNING = 69
    TRY_AGAIN = 75
    DENIED = 77
    CONFIG = 78
    #: The status that shells report for a process that SIGINT ended.
    INTERRUPTED = 130


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One fault in a file: its position, the written and the expected value."""

    message: str
    file: str | None = None
    line: int | None = None
    column: int | None = None
    key: str | None = None
    expected: str | None = None
    found: str | None = None
    hint: str | None = None

    @property
    def location(self) -> str:
        """The position as `file:line:column`, as far as known, in the form that editors recognise."""
        parts = [part for part in (self.file, self.line, self.column) if part is not None]
        return ":".join(str(part) for part in parts)


@dataclass(eq=False)
class DuctileError(Exception):
    """The root of all errors: a message, a stable code, and a hint that names a remedy."""

    message: str
    hint: str | None = None
    details: dict[str, object] = field(default_factory=dict)

    code: ClassVar[str] = "internal_error"

    def __str__(self) -> str:
        return self.message

    @property
    def exit_status(self) -> Exit:
        return STATUSES[self.code][1]

    @property
    def http_status(self) -> int:
        return STATUSES[self.code][0]


class UsageError(DuctileError):
    code = "usage"


@dataclass(eq=False)
class ConfigError(DuctileError):
    """The configuration cannot be used. Contains all problems, not only the first."""

    problems: tuple[Problem, ...] = ()

    code: ClassVar[str] = "config_invalid"


class IntegrityError(ConfigError):
    code = "integrity_violation"


class NotFoundError(DuctileError):
    code = "not_found"


class ConflictError(DuctileError):
    code = "conflict"


class GoneError(DuctileError):
    code = "gone"


class RefusedError(DuctileError):
    code = "refused"


class DeniedError(DuctileError):
    code = "denied"


class UnauthorizedError(DuctileError):
    code = "unauthorized"


class MisdirectedError(DuctileError):
    code = "misdirected"


class MethodNotAllowedError(DuctileError):
    code = "method_not_allowed"


class TooSlowError(DuctileError):
    code = "too_slow"


class TooLargeError(DuctileError):
    code = "too_large"


class HeadersTooLargeError(DuctileError):
    code = "headers_too_large"


class TooManyError(DuctileError):
    code = "too_many"


class LimitReachedError(DuctileError):
    code = "limit_reached"


class TooBusyError(DuctileError):
    code = "too_busy"


class DaemonNotRunningError(DuctileError):
    code = "daemon_not_running"


class StoreError(DuctileError):
    code = "store_error"


class StoreBusyError(StoreError):
    code = "store_busy"


class ContendedError(StoreBusyError):
    """A lost race: another transaction changed the row first. The verb is tried again."""


class StoreFullError(StoreError):
    code = "store_full"


class StoreSchemaError(StoreError):
    code = "store_schema"


class StoreFailedError(StoreError):
    code = "store_failed"


#: code -> (HTTP status, exit status). `docs/reference/errors.md` is tested against it.
STATUSES: dict[str, tuple[int, Exit]] = {
    "internal_error": (500, Exit.FAILURE),
    "usage": (400, Exit.USAGE),
    "config_invalid": (422, Exit.CONFIG),
    "integrity_violation": (422, Exit.CONFIG),
    "not_found": (404, Exit.FAILURE),
    "conflict": (409, Exit.FAILURE),
    "gone": (410, Exit.FAILURE),
    "refused": (422, Exit.FAILURE),
    "denied": (403, Exit.DENIED),
    "unauthorized": (401, Exit.DENIED),
    "misdirected": (421, Exit.DENIED),
    "method_not_allowed": (405, Exit.USAGE),
    "too_slow": (408, Exit.TRY_AGAIN),
    "too_large": (413, Exit.FAILURE),
    "headers_too_large": (431, Exit.FAILURE),
    "too_many": (429, Exit.TRY_AGAIN),
    "limit_reached": (429, Exit.TRY_AGAIN),
    "too_busy": (503, Exit.TRY_AGAIN),
    "daemon_not_running": (503, Exit.NOT_RUNNING),
    "store_error": (503, Exit.FAILURE),
    "store_busy": (503, Exit.TRY_AGAIN),
    "store_full": (503, Exit.TRY_AGAIN),
    "store_schema": (503, Exit.CONFIG),
    "store_failed": (503, Exit.FAILURE),
}


_DISK_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})


def is_disk_full(error: OSError) -> bool:
    """Return whether the error means that no space is left, or the user's quota is used up."""
    return error.errno in _DISK_FULL


def file_error(failure: str, error: OSError, *, hint: str | None = None) -> DuctileError:
    """Return the error for a failed file operation: StoreFullError if the disk is full, else DeniedError.

    `failure` names the operation and the file, such as `cannot write demo/.env`: the system's own error can
    name a temporary file, or none.
    """
    if is_disk_full(error):
        return StoreFullError(f"{failure}: the disk is full", hint="Free some space, then try again.")
    return DeniedError(f"{failure}: {error.strerror}", hint=hint)
