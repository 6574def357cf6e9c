"""Where the control socket is: beside the store, with a link to it beside the configuration.

The path of the store is in the configuration, which may have changed or be invalid by now. So a running
daemon leaves a link to its socket beside the configuration it was started with, and commands follow it.
`client.is_daemon_of` detects a link that was copied with its directory.

Every command that talks to the daemon imports this module, so it imports next to nothing.
"""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

from ductile.errors import DeniedError

SOCKET_FILE = "ductile.sock"
#: The path of a unix socket may have 107 bytes on Linux and 103 on some other systems.
_MAX_PATH_BYTES = 100


def socket_path(state_directory: Path, environ: Mapping[str, str]) -> Path:
    """Return the socket's path: beside the store, or in the runtime directory if that path is too long."""
    path = state_directory / SOCKET_FILE
    if len(str(path).encode()) <= _MAX_PATH_BYTES:
        return path
    name = hashlib.sha256(str(path).encode()).hexdigest()[:16]
    base = environ.get("XDG_RUNTIME_DIR") or environ.get("TMPDIR") or "/tmp"  # noqa: S108 - the directory is 0700
    return Path(base) / f"ductile-{name}" / SOCKET_FILE


def make_socket_directory(socket: Path, state_directory: Path) -> None:
    """Create the socket's directory. Raises `DeniedError` if another user could have created it.

    Only a directory outside the state directory is checked: the runtime directory may be world-writable.
    """
    directory = socket.parent
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    if directory == state_directory:
        return
    entry = directory.lstat()
    if not stat.S_ISDIR(entry.st_mode) or entry.st_uid != os.geteuid() or entry.st_mode & 0o077:
        raise foreign_directory_error(directory)


def remove_socket_directory(socket: Path, state_directory: Path) -> None:
    """Remove the socket's directory, unless it is the state directory."""
    if socket.parent != state_directory:
        with suppress(OSError):
            socket.parent.rmdir()


def file_owner(path: Path) -> int | None:
    try:
        return path.lstat().st_uid
    except OSError:
        return None


def may_be_foreign(
    socket: Path, owner_path: Path, *, file_owner: Callable[[Path], int | None] = file_owner
) -> bool:
    """Return whether a user other than root, ourselves and the daemon's owner may have created the socket.

    `owner_path` is the directory of the store or the link to the socket. It belongs to the daemon's owner.
    Root may call any user's daemon.
    """
    owner = file_owner(socket.parent)
    return owner is not None and owner not in (0, os.geteuid(), file_owner(owner_path))


def foreign_directory_error(directory: Path) -> DeniedError:
    return DeniedError(
        f"{directory} belongs to another user, or is open to others: another process may pose as the daemon",
        hint="Remove it, or set XDG_RUNTIME_DIR to a directory of your own.",
    )


def link_path(config_file: Path) -> Path:
    return config_file.parent / f".{config_file.name}.sock"


def write_link(config_file: Path, socket: Path) -> None:
    """Link to the socket. In a read-only directory there is no link; commands then load the configuration."""
    link = link_path(config_file)
    with suppress(OSError):
        link.unlink(missing_ok=True)
        link.symlink_to(socket.absolute())


def remove_link(config_file: Path, socket: Path) -> None:
    """Remove the link if it leads to our socket; a newer daemon may have replaced it."""
    if linked_socket(config_file) == socket.absolute():
        with suppress(OSError):
            link_path(config_file).unlink()


def linked_socket(config_file: Path) -> Path | None:
    try:
        return link_path(config_file).readlink()
    except OSError:
        return None
