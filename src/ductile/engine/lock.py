"""One daemon for each store: a lock that the kernel lets go of when its holder dies (SPEC 4.8)."""

from __future__ import annotations

import fcntl
import os
import time
from pathlib import Path

from ductile.errors import ConflictError

LOCK_FILE = "ductile.lock"
_LOOKS = 5
_BETWEEN_LOOKS = 0.02


class StoreLock:
    """Held from the making of this object until `release`, or until the process ends, however that is."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.path = directory / LOCK_FILE
        self._descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        if not self._take():
            os.close(self._descriptor)
            raise held(self.path)
        os.ftruncate(self._descriptor, 0)
        os.pwrite(self._descriptor, f"{os.getpid()}\n".encode(), 0)

    def _take(self) -> bool:
        """Somebody who only looks who holds the lock takes it for a moment, so one refusal is no answer."""
        for _ in range(_LOOKS):
            try:
                fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                time.sleep(_BETWEEN_LOOKS)
            else:
                return True
        return False

    def release(self) -> None:
        # The file stays: removing it would let a third process lock a name that a second still holds.
        os.ftruncate(self._descriptor, 0)
        os.close(self._descriptor)


def held(path: Path) -> ConflictError:
    holder = holder_of(path.parent)
    who = f"process {holder}" if holder else "another process"
    return ConflictError(
        f"{who} uses this store already ({path})",
        hint="Talk to that daemon with `ductile status`, or stop it with `ductile system stop`.",
        details={"pid": holder},
    )


def holder_of(directory: Path) -> int | None:
    """The process that wrote itself into the lock file, if the lock is held."""
    path = directory / LOCK_FILE
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        text = os.pread(descriptor, 32, 0).decode(errors="replace").strip()
        return int(text) if text.isdigit() else None
    finally:
        os.close(descriptor)
    return None
