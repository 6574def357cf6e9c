"""Reads, hashes and writes configuration files: regular files only, and never a half-written one."""

from __future__ import annotations

import errno
import fcntl
import os
import re
import stat
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from ductile.errors import IntegrityError

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


#: Beside `config.yaml`: copies of sealed files, the list of seals, and a change that is being written.
HISTORY_DIRECTORY = ".ductile"


def journal_path(directory: Path) -> Path:
    """Return the file that exists while several files of a configuration are being replaced."""
    return directory / HISTORY_DIRECTORY / "change.json"


@contextmanager
def lock_config_directory(directory: Path, *, resume: bool = False) -> Iterator[None]:
    """Keep other processes from changing the files of a configuration; waits for one that does.

    Two commands at once would each write a seal without the other's entry. Raises IntegrityError if a command
    was killed while it replaced several files, unless the caller is the one that resumes it.
    """
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        if not resume and journal_path(directory).exists():
            raise IntegrityError(
                f"a change of several files in {directory} was interrupted: "
                "some of them are old and some are new",
                hint="finish it with `ductile config rollback --finish`, or take it back with "
                "`ductile config rollback --undo`",
            )
        yield
    finally:
        os.close(descriptor)


def refuse_interrupted_change(directory: Path) -> None:
    """Raise IntegrityError if a change of several files was interrupted; waits for one under way."""
    if journal_path(directory).exists():
        with lock_config_directory(directory):
            pass


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


def read_overlaid(path: Path, overlay: Mapping[Path, bytes | None]) -> bytes:
    """Return the contents that a file has, or would have: those of the overlay, where None removes it."""
    if path not in overlay:
        return read_regular_file(path)
    if (data := overlay[path]) is None:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
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
    missing = [parent for parent in (directory, *directory.parents) if not parent.exists()]
    for parent in reversed(missing):
        with suppress(FileExistsError):  # another process was first
            parent.mkdir(mode=PRIVATE_DIRECTORY)


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
                status = path.stat()
                # The owner first: changing it may clear bits of the mode. If it cannot be changed, the caller
                # gets the error: the file must not silently get another owner.
                if (status.st_uid, status.st_gid) != (os.geteuid(), os.getegid()):
                    os.fchown(descriptor, status.st_uid, status.st_gid)
                os.fchmod(descriptor, status.st_mode & 0o7777)
            file.write(data)
            file.flush()
            os.fsync(descriptor)
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    sync_directory(path.parent)


def publish_file(scratch: Path, target: Path) -> None:
    """Give a finished file its name. Raises `FileExistsError` if a file of that name was created meanwhile.

    The scratch file may still be there afterwards, as another name of the same file.
    """
    try:
        os.link(scratch, target)
    except FileExistsError:
        raise
    except OSError:  # a filesystem without links: reserve the name first
        os.close(os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, PRIVATE_FILE))
        scratch.replace(target)


def sync_directory(directory: Path) -> None:
    """Make new names in it survive a power cut, where the filesystem can."""
    with suppress(OSError):
        descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
