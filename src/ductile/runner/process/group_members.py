"""Who else is in the group of a plugin's process, when that has ended.

The kernel has no such question to ask. Everybody in the group was started after its leader, so that their
numbers are among the few that were given out since; and while the leader is not reaped its number, which is
also the group's, is nobody else's.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterable
from contextlib import suppress

#: With more numbers than these it is quicker to see who lives at all.
_MAX_PROBED_PIDS = 50
#: Each that is watched costs a descriptor, and a plugin may leave thousands behind.
MAX_WATCHED = 16


def others_in_group(leader: int) -> list[int]:
    """Nobody where there is no /proc to look at."""
    try:
        return [pid for pid in _started_after(leader) if pid != leader and _is_in_group(pid, leader)]
    except OSError:
        return []


def _started_after(pid: int) -> Iterable[int]:
    """These and perhaps others."""
    with open("/proc/loadavg", "rb") as file:  # noqa: PTH123 - hot path
        last = int(file.read().split()[-1])
    if pid <= last <= pid + _MAX_PROBED_PIDS:
        return range(pid + 1, last + 1)
    # Many, or they have begun anew at the lowest.
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]  # noqa: PTH208 - hot path


def _is_in_group(pid: int, leader: int) -> bool:
    try:
        return os.getpgid(pid) == leader
    except OSError:
        return False


class GroupMembers:
    """Watches those that are there, some at a time; `on_end` is called when the last of them has ended."""

    def __init__(self, leader: int, loop: asyncio.AbstractEventLoop, on_end: Callable[[], None]) -> None:
        self._leader = leader
        self._loop = loop
        self._on_end = on_end
        self._watched: set[int] = set()
        #: Those that were watched: until somebody reaps them they are found again.
        self._seen: set[int] = set()
        self._look()

    def _look(self) -> None:
        others = [pid for pid in others_in_group(self._leader) if pid not in self._seen]
        for pid in others[:MAX_WATCHED]:
            self._seen.add(pid)
            with suppress(OSError):  # it has ended meanwhile, or is a thread of another one
                descriptor = os.pidfd_open(pid)
                self._watched.add(descriptor)
                self._loop.add_reader(descriptor, self._ended, descriptor)

    def __bool__(self) -> bool:
        return bool(self._watched)

    def close(self) -> None:
        while self._watched:
            self._forget(next(iter(self._watched)))

    def _ended(self, descriptor: int) -> None:
        self._forget(descriptor)
        if not self._watched:
            self._look()  # there may be others, who were too many or have been forked since
        if not self._watched:
            self._on_end()

    def _forget(self, descriptor: int) -> None:
        self._watched.discard(descriptor)
        self._loop.remove_reader(descriptor)
        os.close(descriptor)
