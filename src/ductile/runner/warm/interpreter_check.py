"""Checks whether an interpreter can be used as a fork server, and which file changes make it out of date.

Part of the fork server and, like it, standard library only.
"""

# pathlib would be one more module in every process:
# ruff: noqa: PTH116, PTH120, PTH208
from __future__ import annotations

import os
import sys
import time
from contextlib import suppress

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

OLDEST = (3, 8)
#: Differs from the signature of every file, so the file counts as changed.
CHANGED = ()
#: File times follow the kernel's ticks and may be behind our clock by this many nanoseconds.
_TICK = 10_000_000


def file_signature(path: str) -> tuple[int, ...] | None:
    """Return what changes when the file does; None if there is no such file."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return (found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)


def files_to_watch(server: str) -> set[str]:
    """Return the imported files that may be edited, and the directories in which packages are installed.

    The standard library changes only with the interpreter, so the executable stands for it.
    """
    library = os.path.dirname(os.__file__) + os.sep
    files = {sys.executable}
    for module in list(sys.modules.values()):
        file = getattr(module, "__file__", None)
        if file and file != server and not (file.startswith(library) and "-packages" not in file):
            files.add(file)
    files.update(package_directories())
    return files


def package_directories() -> list[str]:
    return [directory for directory in sys.path if "-packages" in directory]


class ImportChangeDetector:
    """Finds files that changed during the import: the old or the new version may have been imported."""

    def __init__(self) -> None:
        self.began = time.time_ns()
        self.before = {directory: names_in(directory) for directory in package_directories()}

    def file_signature(self, path: str) -> tuple[int, ...] | None:
        """Return the signature to remember for a file, `CHANGED` if it changed during the import."""
        seen = file_signature(path)
        if path in self.before:
            # Importing itself creates `__pycache__`; that is no change.
            changed = names_in(path) != self.before[path]
        else:
            # By its ctime. A ctime in the future is not from this import: the clock was set back.
            changed = seen is not None and self.began - _TICK <= seen[-1] <= time.time_ns()
        return CHANGED if changed else seen


def names_in(directory: str) -> frozenset[str]:
    try:
        return frozenset(os.listdir(directory)) - {"__pycache__"}
    except OSError:
        return frozenset()


def why_unusable() -> str | None:
    """Return why this interpreter must not be forked, if it must not."""
    if sys.implementation.name != "cpython":
        return "it is not CPython"
    if sys.version_info < OLDEST:
        return "it is older than Python 3.8"
    if hasattr(sys, "_is_gil_enabled") and not sys._is_gil_enabled():  # noqa: SLF001 - there is no other way
        return "it runs without the interpreter lock"
    with suppress(OSError):
        if len(os.listdir("/proc/self/task")) > 1:
            return "a preloaded module has started a thread"
    return None


def find_libc() -> Any:
    """Return the C library with the functions that forked processes call; None without ctypes."""
    try:
        import ctypes  # noqa: PLC0415 - not every Python has it

        libc = ctypes.PyDLL(None)
        libc.prctl, libc.exit  # noqa: B018 - looked up once, before the first fork
    except (ImportError, OSError, AttributeError):
        return None
    return libc
