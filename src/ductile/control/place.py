"""Where the socket is. Imported by every command that talks to the daemon, so it imports next to nothing."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
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
