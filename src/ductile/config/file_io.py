"""Reading and writing configuration files: only regular files are read, and none is ever half written."""

from __future__ import annotations

import errno
import fcntl
import os
import re
import stat
import tempfile
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

PRIVATE_FILE = 0o600
PRIVATE_DIRECTORY = 0o700
_TEMPORARY_SUFFIX = ".tmp"
#: Far more than anybody writes by hand.
MAX_FILE_SIZE = 16 * 1024 * 1024
_KINDS = {
    stat.S_IFCHR: "it is a device",
    stat.S_IFBLK: "it is a device",
    stat.S_IFIFO: "it is a named pipe",
    stat.S_IFSOCK: "it is a socket",
}


@contextmanager
def lock_config_directory(directory: Path) -> Iterator[None]:
    """Change the files of a configuration while no other process does.

    Two commands at once would each write a seal without the other's entry. Waits for the other one to finish.
    """
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def read_regular_file(path: Path) -> bytes:
    """The contents of a regular file. Raises OSError for anything else: a device may never come to an end.

    What is not a regular file is not even opened: to open a device can have effects.
    """
    _refuse_special(path, path.stat().st_mode)
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
    with os.fdopen(descriptor, "rb") as file:
        _refuse_special(path, os.fstat(descriptor).st_mode)  # it may be another one by now
        data = file.read(MAX_FILE_SIZE + 1)
    if len(data) > MAX_FILE_SIZE:
        raise OSError(errno.EFBIG, f"it is larger than {MAX_FILE_SIZE >> 20} MiB", str(path))
    return data


def _refuse_special(path: Path, mode: int) -> None:
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if (kind := _KINDS.get(stat.S_IFMT(mode))) is not None:
        raise OSError(errno.EINVAL, f"{kind}, not a file", str(path))


def make_private_directory(directory: Path) -> None:
    """Make a directory and those above it that are missing, each for its owner only.

    `parents` of `mkdir` would leave those above to the umask.
    """
    missing = [each for each in (directory, *directory.parents) if not each.exists()]
    for each in reversed(missing):
        with suppress(FileExistsError):  # another process was first
            each.mkdir(mode=PRIVATE_DIRECTORY)


def write_atomically(path: Path, data: bytes) -> None:
    """Replace a file, keeping the owner and mode it had; a new one is for its owner only.

    What goes wrong is told of the file itself: nobody knows the name of the temporary one. Callers are inside
    `exclusive_change`, so a temporary file that is there already is one that a killed command has left.
    """
    try:
        _remove_leftovers(path)
        _replace(path, data)
    except OSError as error:
        error.filename, error.filename2 = str(path), None
        raise


def _replace(path: Path, data: bytes) -> None:
    path.parent.mkdir(mode=PRIVATE_DIRECTORY, parents=True, exist_ok=True)
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=_TEMPORARY_SUFFIX)
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
    sync_directory(path.parent)


def _remove_leftovers(path: Path) -> None:
    own = re.compile(rf"\.{re.escape(path.name)}\.[a-z0-9_]{{8}}{re.escape(_TEMPORARY_SUFFIX)}")
    with suppress(OSError):  # a leftover does no harm, and a directory that is not there yet has none
        for sibling in path.parent.iterdir():
            if own.fullmatch(sibling.name):
                sibling.unlink(missing_ok=True)


def _copy_owner_and_mode(path: Path, descriptor: int) -> None:
    os.fchmod(descriptor, PRIVATE_FILE)
    with suppress(FileNotFoundError):
        known = path.stat()
        # The owner first: changing it may clear bits of the mode. Where we may not change it, the
        # file would silently get another owner, so the error is left to reach the caller.
        if (known.st_uid, known.st_gid) != (os.geteuid(), os.getegid()):
            os.fchown(descriptor, known.st_uid, known.st_gid)
        os.fchmod(descriptor, known.st_mode & 0o7777)


def sync_directory(directory: Path) -> None:
    """Make new names in it survive a power cut, where the filesystem can."""
    with suppress(OSError):
        descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
