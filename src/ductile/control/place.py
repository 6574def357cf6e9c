"""Where the socket is. Imported by every command that talks to the daemon, so it imports next to nothing.

The daemon listens beside its store. Which store that is takes the whole configuration to tell, and what is
on disk by now may be another configuration, or a broken one. So a running daemon also leaves a link to its
socket beside the configuration it was started with: a command that follows it reaches the daemon at once.
That it is the right one, and the link not copied together with the configuration, `identity` finds out.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

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


def link_path(config_file: Path) -> Path:
    return config_file.parent / f".{config_file.name}.sock"


def leave_link(config_file: Path, socket: Path) -> None:
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
