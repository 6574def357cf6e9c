"""Where the socket is. Imported by every command that talks to the daemon, so it imports next to nothing.

The daemon listens beside its store. Which store that is takes the whole configuration to tell, and what is
on disk by now may be another configuration, or a broken one. So a running daemon also leaves a link to its
socket beside the configuration it was started with: a command that follows it reaches the daemon at once.
That it is the right one, and the link not copied together with the configuration, `identity` finds out.
"""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from ductile.errors import DeniedError

SOCKET_FILE = "ductile.sock"
#: The system's limit for the path of a unix socket is 108 bytes with its end, on some systems 104.
_LONGEST = 100


def socket_path(state_directory: Path, environ: Mapping[str, str]) -> Path:
    """Beside the store; where that path is too long for a socket, in the user's runtime directory."""
    path = state_directory / SOCKET_FILE
    if len(str(path).encode()) <= _LONGEST:
        return path
    name = hashlib.sha256(str(path).encode()).hexdigest()[:16]
    base = environ.get("XDG_RUNTIME_DIR") or environ.get("TMPDIR") or "/tmp"  # noqa: S108 - the directory is 0700
    return Path(base) / f"ductile-{name}" / SOCKET_FILE


def make_socket_directory(socket: Path, state_directory: Path) -> None:
    """Where the socket can be put. Elsewhere than beside the store, anybody may have been there before us."""
    directory = socket.parent
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    if directory == state_directory:
        return
    found = directory.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o077:
        raise foreign_directory_error(directory)


def remove_socket_directory(socket: Path, state_directory: Path) -> None:
    """If it was made for the socket alone."""
    if socket.parent != state_directory:
        with suppress(OSError):
            socket.parent.rmdir()


def may_be_foreign(socket: Path, found_by: Path) -> bool:
    """Whether somebody may have put it there who runs neither the daemon nor this command.

    `found_by` is the store's directory or the link: its owner's daemon is the one that root may ask for.
    """
    owner = _owner(socket.parent)
    return owner is not None and owner not in (0, os.geteuid(), _owner(found_by))


def _owner(path: Path) -> int | None:
    try:
        return path.lstat().st_uid
    except OSError:
        return None


def foreign_directory_error(directory: Path) -> DeniedError:
    return DeniedError(
        f"{directory} belongs to another user, or is open to others: somebody may be posing as the daemon",
        hint="Remove it, or set XDG_RUNTIME_DIR to a directory of your own.",
    )


def link_path(config_file: Path) -> Path:
    return config_file.parent / f".{config_file.name}.sock"


def write_link(config_file: Path, socket: Path) -> None:
    """A configuration that cannot be written to has no link; commands then ask it where the store is."""
    link = link_path(config_file)
    with suppress(OSError):
        link.unlink(missing_ok=True)
        link.symlink_to(socket.absolute())


def remove_link(config_file: Path, socket: Path) -> None:
    """Only our own: another daemon may have been started with the same file since."""
    if linked_socket(config_file) == socket.absolute():
        with suppress(OSError):
            link_path(config_file).unlink()


def linked_socket(config_file: Path) -> Path | None:
    try:
        return link_path(config_file).readlink()
    except OSError:
        return None
