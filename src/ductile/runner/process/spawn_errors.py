"""Why a process could not be started, as text, and whether a retry can help."""

from __future__ import annotations

import errno
import os
from pathlib import Path

from ductile.runner.port import CouldNotStart

#: The plugin is not at fault: the machine is short of a resource, or the file is being written.
TRANSIENT_ERRNOS = frozenset(
    {errno.EAGAIN, errno.ENOMEM, errno.ENOSPC, errno.EMFILE, errno.ENFILE, errno.ETXTBSY, errno.EINTR}
)
#: A resource of the daemon or the machine is exhausted.
_RESOURCE_ERRNOS = frozenset({errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE})
_LONGEST_SHEBANG = 256


class ExecRefusedByLimitsError(OSError):
    """The kernel refused to execute a program after the plugin's own limits were set."""


def could_not_start(error: OSError | ValueError, entrypoint: str, directory: str) -> CouldNotStart:
    if not isinstance(error, OSError):
        # A NUL byte, or `=` in a name. The value is not quoted, since it may be secret.
        words = "its environment holds a name or value that no process can have"
        return CouldNotStart(error=f"{entrypoint} could not be started: {words}", permanent=True)
    words = _explain(error, entrypoint, directory)
    return CouldNotStart(
        error=f"{entrypoint} could not be started: {words}",
        permanent=error.errno not in TRANSIENT_ERRNOS,
        resources_exhausted=error.errno in _RESOURCE_ERRNOS
        and not isinstance(error, ExecRefusedByLimitsError),
    )


def _explain(error: OSError, entrypoint: str, directory: str) -> str:
    if not Path(directory).is_dir():
        return f"the working directory {directory} does not exist"
    match error.errno:
        case errno.ENOENT if "\r" in (shebang(entrypoint) or ""):
            return "its first line ends with a Windows line break; save it with Unix line breaks"
        case errno.ENOENT if Path(entrypoint).exists():
            return f"its first line names {shebang(entrypoint) or 'an interpreter'}, which does not exist"
        case errno.ENOENT:
            return "there is no such file"
        case errno.EACCES if not os.access(entrypoint, os.X_OK):
            return "it is not executable; use chmod +x"
        case errno.EACCES:
            return (
                "permission was denied, by its directory, its file system or the program its first line names"
            )
        case errno.ENOEXEC:
            return "it is neither a program for this machine nor a script that begins with #!"
        case errno.E2BIG:
            return "its environment is larger than the system allows"
    return error.strerror or str(error)


def shebang(entrypoint: str) -> str | None:
    """Return the text after `#!` in the first line, as the kernel reads it; None for a file without one."""
    try:
        with Path(entrypoint).open("rb") as file:
            first = file.readline(_LONGEST_SHEBANG)
    except OSError:
        return None
    if not first.startswith(b"#!"):
        return None
    return os.fsdecode(first[2:].strip(b" \t\n"))
