"""Whether an interpreter can be forked from, and what would make a fork of it out of date.

Belongs to `server` and, like it, is standard library only.
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
#: No file looks like this: one that is remembered so has changed.
CHANGED = ()
#: Nanoseconds that the clock of a file system may be behind ours: it goes by the kernel's ticks.
_TICK = 10_000_000


def stamp(path: str) -> tuple[int, ...] | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return (found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)


def files_to_watch(server: str) -> set[str]:
    """Files that were imported and may be edited, and the places where new packages appear.

    The standard library changes only with the interpreter, whose own file stands for it.
    """
    library = os.path.dirname(os.__file__) + os.sep
    files = {sys.executable}
    for module in list(sys.modules.values()):
        file = getattr(module, "__file__", None)
        if file and file != server and not (file.startswith(library) and "-packages" not in file):
            files.add(file)
    files.update(places_of_packages())
    return files


def places_of_packages() -> list[str]:
    return [place for place in sys.path if "-packages" in place]


class Meanwhile:
    """What is changed while it is being imported: nobody knows whether we have read it before or after."""

    def __init__(self) -> None:
        self.began = time.time_ns()
        self.before = {place: names_in(place) for place in places_of_packages()}

    def stamp(self, path: str) -> tuple[int, ...] | None:
        """What to remember of a file that was imported."""
        seen = stamp(path)
        if path in self.before:
            # Importing itself makes a place for what was compiled, and that is no change.
            changed = names_in(path) != self.before[path]
        else:
            # By when the kernel says so. A time to come is not from now: the clock was set back.
            changed = seen is not None and self.began - _TICK <= seen[-1] <= time.time_ns()
        return CHANGED if changed else seen


def names_in(place: str) -> frozenset[str]:
    try:
        return frozenset(os.listdir(place)) - {"__pycache__"}
    except OSError:
        return frozenset()


def why_unfit() -> str | None:
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
    try:
        import ctypes  # noqa: PLC0415 - not every Python has it

        libc = ctypes.PyDLL(None)
        libc.prctl, libc.exit  # noqa: B018 - looked up once, before anybody is forked
    except (ImportError, OSError, AttributeError):
        return None
    return libc
