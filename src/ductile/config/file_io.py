"""Reads, hashes and writes configuration files: regular files only, and never a half-written one."""

from __future__ import annotations

import errno
import fcntl
import os
import re
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

PRIVATE_FILE = 0o600
PRIVATE_DIRECTORY = 0o700
#: Far more than a hand-written file has.
MAX_FILE_SIZE = 16 * 1024 * 1024
_SPECIAL = {
    stat.S_IFCHR: "it is a device",
    stat.S_IFBLK: "it is a device",
    stat.S_IFIFO: "it is a named pipe",
    stat.S_IFSOCK: "it is a socket",
}


def hash_bytes(data: bytes) -> str:
    from blake3 import blake3  # noqa: PLC0415 - only loading or sealing a configuration pays for the import

    return f"blake3:{blake3(data).hexdigest()}"


@contextmanager
def lock_config_directory(directory: Path) -> Iterator[None]:
    """Keep other processes from changing the files of a configuration; waits for one that does.

    Two commands at once would each write a seal without the other's entry.
    """
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def read_regular_file(path: Path) -> bytes:
    """Return the contents of a regular file. Raises OSError for anything else: a device may never end.

    Other files are not even opened: opening a device can have effects.
    """
    _refuse_special(path, path.stat().st_mode)
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
    with os.fdopen(descriptor, "rb") as file:
        _refuse_special(path, os.fstat(descriptor).st_mode)  # the file may have been replaced
        data = file.read(MAX_FILE_SIZE + 1)
    if len(data) > MAX_FILE_SIZE:
        raise OSError(errno.EFBIG, f"it is larger than {MAX_FILE_SIZE >> 20} MiB", str(path))
    return data


def _refuse_special(path: Path, mode: int) -> None:
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if (kind := _SPECIAL.get(stat.S_IFMT(mode))) is not None:
        raise OSError(errno.EINVAL, f"{kind}, not a file", str(path))


def find_symlinks(path: Path, directory: Path) -> list[Path]:
    """Return the symbolic links among a directory, a path, and the directories between them."""
    steps = [path]
    if path.is_relative_to(directory):
        between = (parent for parent in reversed(path.parents) if parent.is_relative_to(directory))
        steps = [directory, *between, path]
    return [step for step in dict.fromkeys(steps) if step.is_symlink()]


def make_private_directory(directory: Path) -> None:
    """Make a directory and its missing parents, each for its owner only.

    `mkdir(parents=True)` would leave the mode of the parents to the umask.
    """
    missing = [each for each in (directory, *directory.parents) if not each.exists()]
    for each in reversed(missing):
        with suppress(FileExistsError):  # another process was first
            each.mkdir(mode=PRIVATE_DIRECTORY)


def write_atomically(path: Path, data: bytes) -> None:
    """Replace a file, keeping its owner and mode; a new one is for its owner only. Raises OSError.

    The error names the file, not the temporary one. Callers hold `lock_config_directory`, so an existing
    temporary file was left by a killed command.
    """
    leftover = re.compile(rf"\.{re.escape(path.name)}\.[a-z0-9_]{{8}}\.tmp")
    try:
        with suppress(OSError):  # a leftover does no harm, and a missing directory has none
            for sibling in path.parent.iterdir():
                if leftover.fullmatch(sibling.name):
                    sibling.unlink(missing_ok=True)
        _replace(path, data)
    except OSError as error:
        error.filename, error.filename2 = str(path), None
        raise


def _replace(path: Path, data: bytes) -> None:
    path.parent.mkdir(mode=PRIVATE_DIRECTORY, parents=True, exist_ok=True)
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".tmp")
    temporary = Path(name)
    try:
        with os.fdopen(descriptor, "wb") as file:
            os.fchmod(descriptor, PRIVATE_FILE)
            with suppress(FileNotFoundError):
                known = path.stat()
                # The owner first: changing it may clear bits of the mode. If it cannot be changed, the caller
                # gets the error: the file must not silently get another owner.
                if (known.st_uid, known.st_gid) != (os.geteuid(), os.getegid()):
                    os.fchown(descriptor, known.st_uid, known.st_gid)
                os.fchmod(descriptor, known.st_mode & 0o7777)
            file.write(data)
            file.flush()
            os.fsync(descriptor)
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    sync_directory(path.parent)


def sync_directory(directory: Path) -> None:
    """Make new names in it survive a power cut, where the filesystem can."""
    with suppress(OSError):
        descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
