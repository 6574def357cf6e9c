"""Handles of plugin processes: report their exit, signal their group, reap them.

A plugin's process leads a process group of its own. Until the leader is reaped the kernel keeps its process
id, which is also the id of the group, so the group can be signalled without hitting an unrelated process.
Hence the order: notice the exit, clear the group, then reap.
"""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Protocol

from ductile.runner.port import ExitStatus

#: Called once, on the loop, when the process has exited or its exit can no longer be observed.
OnExit = Callable[[], None]
#: Above this number of candidate pids, scanning /proc is faster than probing each.
_MAX_PROBED_PIDS = 50
#: Members that are watched at a time: each costs a descriptor, and a plugin may leave thousands behind.
MAX_WATCHED = 16


class ProcessHandle(Protocol):
    """A process that leads its group and has not been reaped."""

    @property
    def pid(self) -> int: ...

    def watch(self, on_exit: OnExit) -> None:
        """Call `on_exit` when the process has exited, also if it has exited before this call."""

    def has_exited(self) -> bool:
        """Return whether the process has exited, even if `on_exit` was not called yet."""

    def signal_group(self, number: signal.Signals) -> None:
        """Signal the whole group. Does nothing if it is empty."""

    def reap(self) -> ExitStatus | None:
        """Release the process id; nothing may be signalled after this. Returns the status, if it is known."""


class PidfdHandle:
    """A child process on Linux: its pidfd becomes readable when it exits, and stays readable."""

    def __init__(self, pid: int, pidfd: int, loop: asyncio.AbstractEventLoop) -> None:
        self.pid = pid
        self._pidfd = pidfd
        self._loop = loop
        #: Set while the pidfd is watched.
        self._on_exit: OnExit | None = None

    def watch(self, on_exit: OnExit) -> None:
        self._on_exit = on_exit
        self._loop.add_reader(self._pidfd, self._report_exit)

    def has_exited(self) -> bool:
        try:
            return self._wait(os.WNOWAIT | os.WNOHANG) is not None
        except ChildProcessError:
            return True

    def signal_group(self, number: signal.Signals) -> None:
        signal_group(self.pid, number)

    def reap(self) -> ExitStatus | None:
        self._stop_watching()
        status: ExitStatus | None = None
        with suppress(ChildProcessError):
            status = self._wait(0)
        os.close(self._pidfd)
        return status

    def _report_exit(self) -> None:
        on_exit = self._stop_watching()
        if on_exit is not None:
            on_exit()

    def _stop_watching(self) -> OnExit | None:
        on_exit, self._on_exit = self._on_exit, None
        if on_exit is not None:
            self._loop.remove_reader(self._pidfd)
        return on_exit

    def _wait(self, flags: int) -> ExitStatus | None:
        ended = os.waitid(os.P_PIDFD, self._pidfd, os.WEXITED | flags)
        if ended is None:
            return None
        return make_exit_status(exited=ended.si_code == os.CLD_EXITED, number=ended.si_status)


class ThreadHandle:
    """A child process on a system without pidfds (macOS): a thread waits for it.

    Waiting reaps the process there, so the group is signalled for a moment after its id was released. That
    matters only if the kernel reuses the id within that moment.
    """

    def __init__(self, pid: int, loop: asyncio.AbstractEventLoop) -> None:
        self.pid = pid
        self._loop = loop
        self._status: ExitStatus | None = None

    def watch(self, on_exit: OnExit) -> None:
        def wait() -> None:
            code = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
            self._status = make_exit_status(exited=code >= 0, number=abs(code))
            with suppress(RuntimeError):  # the loop was closed meanwhile
                self._loop.call_soon_threadsafe(on_exit)

        threading.Thread(target=wait, name=f"wait-{self.pid}", daemon=True).start()

    def has_exited(self) -> bool:
        return self._status is not None

    def signal_group(self, number: signal.Signals) -> None:
        signal_group(self.pid, number)

    def reap(self) -> ExitStatus | None:
        return self._status  # the thread has reaped it


def open_handle(pid: int, loop: asyncio.AbstractEventLoop) -> ProcessHandle:
    """Return the handle of a child process that nothing else waits for."""
    if not hasattr(os, "pidfd_open"):
        return ThreadHandle(pid, loop)
    return PidfdHandle(pid, os.pidfd_open(pid), loop)


def signal_group(pid: int, number: signal.Signals) -> None:
    """Signal the group that a process leads. Does nothing if it is empty."""
    try:
        os.killpg(pid, number)
    except ProcessLookupError:
        # A process that was forked a moment ago may not lead its own group yet.
        with suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)
    except PermissionError:
        # Only processes of other users are left (set-user-id programs): they cannot be signalled.
        return


def make_exit_status(*, exited: bool, number: int) -> ExitStatus:
    """Return the status of a process that exited with `number`, or that the signal `number` killed."""
    return ExitStatus(exit_code=number) if exited else ExitStatus(signal=number)


class GroupMembers:
    """Watches the other members of a group after its leader has exited. Calls `on_end` when all have exited.

    The kernel cannot list a group. All members were started after the leader, so their pids are among the few
    that the kernel has assigned since. The group's own id is reserved as long as the leader is not reaped.
    """

    def __init__(self, leader: int, loop: asyncio.AbstractEventLoop, on_end: Callable[[], None]) -> None:
        self._leader = leader
        self._loop = loop
        self._on_end = on_end
        self._watched: set[int] = set()
        #: Pids that were watched: /proc shows them until they are reaped.
        self._seen: set[int] = set()
        self._watch_members()

    def any_alive(self) -> bool:
        return bool(self._watched)

    def close(self) -> None:
        while self._watched:
            self._stop_watching(next(iter(self._watched)))

    def _watch_members(self) -> None:
        members = [pid for pid in find_members(self._leader) if pid not in self._seen]
        for pid in members[:MAX_WATCHED]:
            self._seen.add(pid)
            with suppress(OSError):  # it has exited meanwhile, or is a thread of another process
                pidfd = os.pidfd_open(pid)
                self._watched.add(pidfd)
                self._loop.add_reader(pidfd, self._on_member_exit, pidfd)

    def _on_member_exit(self, pidfd: int) -> None:
        self._stop_watching(pidfd)
        if not self._watched:
            self._watch_members()  # members beyond MAX_WATCHED, or forked meanwhile
        if not self._watched:
            self._on_end()

    def _stop_watching(self, pidfd: int) -> None:
        self._watched.discard(pidfd)
        self._loop.remove_reader(pidfd)
        os.close(pidfd)


def find_members(leader: int) -> list[int]:
    """Return the pids in the group except the leader's. Returns none on systems without /proc."""
    candidates: Iterable[int]
    try:
        with open("/proc/loadavg", "rb") as file:  # noqa: PTH123 - hot path
            newest = int(file.read().split()[-1])
        if leader <= newest <= leader + _MAX_PROBED_PIDS:
            candidates = range(leader + 1, newest + 1)
        else:  # Too many pids were assigned since, or the numbers have wrapped around.
            candidates = [int(name) for name in os.listdir("/proc") if name.isdigit()]  # noqa: PTH208 - hot path
    except OSError:
        return []
    return [pid for pid in candidates if pid != leader and _group_of(pid) == leader]


def _group_of(pid: int) -> int | None:
    """Return the group of a process; None if it has exited."""
    try:
        return os.getpgid(pid)
    except OSError:
        return None
