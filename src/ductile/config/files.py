"""Writing a file so that a reader sees the old one or the new one, whole, whatever happens."""

from __future__ import annotations

import os
import tempfile
from contextlib import suppress
from pathlib import Path

PRIVATE_FILE = 0o600
PRIVATE_DIRECTORY = 0o700


def write_atomically(path: Path, data: bytes) -> None:
    """Replace a file, keeping the owner and mode it had; a new one is for its owner only.

    What goes wrong is told of the file itself: nobody knows the name of the temporary one.
    """
    try:
        _replace(path, data)
    except OSError as error:
        error.filename, error.filename2 = str(path), None
        raise


def _replace(path: Path, data: bytes) -> None:
    path.parent.mkdir(mode=PRIVATE_DIRECTORY, parents=True, exist_ok=True)
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    temporary = Path(name)
    try:
        with os.fdopen(descriptor, "wb") as file:
            _copy_owner_and_mode(path, descriptor)
            file.write(data)
            file.flush()
            os.fsync(descriptor)
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    _sync_directory(path.parent)


def _copy_owner_and_mode(path: Path, descriptor: int) -> None:
    os.fchmod(descriptor, PRIVATE_FILE)
    with suppress(FileNotFoundError):
        known = path.stat()
        # The owner first: changing it may clear bits of the mode. Where we may not change it, the
        # file would silently get another owner, so the error is left to reach the caller.
        if (known.st_uid, known.st_gid) != (os.geteuid(), os.getegid()):
            os.fchown(descriptor, known.st_uid, known.st_gid)
        os.fchmod(descriptor, known.st_mode & 0o7777)


def _sync_directory(directory: Path) -> None:
    """Make the new name survive a power cut."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
