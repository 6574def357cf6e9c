"""The leader of a plugin's process group: how its end is noticed, and when it is reaped.

Until it is reaped the kernel keeps its process id, and so the id of its group: as long as that is so
the group can be signalled without ever hitting a stranger. Hence notice first, clear, then reap.
"""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Protocol

from ductile.runner.port import ExitStatus
from ductile.runner.process.exit_watcher import ExitWatcher

#: Told that the leader has ended, or that it cannot be known any more whether it has.
OnExit = Callable[[], None]


class ProcessHandle(Protocol):
    @property
    def pid(self) -> int: ...

    def watch(self, on_exit: OnExit) -> None:
        """Have `on_exit` called once, on the loop, when the leader has ended: perhaps here and now."""

    def has_exited(self) -> bool:
        """Whether it has ended, noticed or not."""

    def signal_group(self, number: signal.Signals) -> None:
        """Signal everybody in the group. Harmless when nobody is left."""

    def reap(self) -> ExitStatus | None:
        """Let go of the process id: nothing may be signalled after this. How it ended, if that is known."""


class ReadWatcher(Protocol):
    """Who tells that a descriptor can be read: the loop itself, or `ExitWatcher`."""

    def add_reader(self, fd: int, callback: Callable[[], None], /) -> None: ...

    def remove_reader(self, fd: int, /) -> object: ...


class PidfdHandle:
    """A child of ours on Linux: a pidfd tells its end."""

    __slots__ = ("_on_exit", "_pid", "_watch", "pidfd")

    def __init__(self, pid: int, pidfd: int, watch: ReadWatcher) -> None:
        self._pid = pid
        self.pidfd = pidfd
        self._watch = watch
        #: Set while the pidfd is watched.
        self._on_exit: OnExit | None = None

    @property
    def pid(self) -> int:
        return self._pid

    def watch(self, on_exit: OnExit) -> None:
        # A pidfd can be read once the process has ended, and stays so: an end before this is not missed.
        self._on_exit = on_exit
        self._watch.add_reader(self.pidfd, self._ended)

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
        os.close(self.pidfd)
        return status

    def _ended(self) -> None:
        on_exit = self._stop_watching()
        if on_exit is not None:
            on_exit()

    def _stop_watching(self) -> OnExit | None:
        on_exit, self._on_exit = self._on_exit, None
        if on_exit is not None:
            self._watch.remove_reader(self.pidfd)
        return on_exit

    def _wait(self, flags: int) -> ExitStatus | None:
        found = os.waitid(os.P_PIDFD, self.pidfd, os.WEXITED | flags)
        if found is None:
            return None
        return read_status(exited=found.si_code == os.CLD_EXITED, number=found.si_status)


class ThreadHandle:
    """The same where there is no pidfd (macOS): a thread waits.

    Waiting reaps there, so the group is signalled for a moment after its number was let go. The number
    would have to come round again within that moment to matter.
    """

    __slots__ = ("_loop", "_pid", "_status")

    def __init__(self, pid: int, loop: asyncio.AbstractEventLoop) -> None:
        self._pid = pid
        self._loop = loop
        self._status: ExitStatus | None = None

    @property
    def pid(self) -> int:
        return self._pid

    def watch(self, on_exit: OnExit) -> None:
        def wait() -> None:
            code = os.waitstatus_to_exitcode(os.waitpid(self._pid, 0)[1])
            self._status = read_status(exited=code >= 0, number=abs(code))
            with suppress(RuntimeError):  # the loop was closed meanwhile: nobody is left to tell
                self._loop.call_soon_threadsafe(on_exit)

        threading.Thread(target=wait, name=f"wait-{self.pid}", daemon=True).start()

    def has_exited(self) -> bool:
        return self._status is not None

    def signal_group(self, number: signal.Signals) -> None:
        signal_group(self.pid, number)

    def reap(self) -> ExitStatus | None:
        return self._status  # the thread has reaped it


def open_handle(pid: int, loop: asyncio.AbstractEventLoop, exits: ExitWatcher | None = None) -> ProcessHandle:
    """The leader is a child of ours that nobody else waits for. `exits` tells its end, or else the loop."""
    if not hasattr(os, "pidfd_open"):
        return ThreadHandle(pid, loop)
    pidfd = os.pidfd_open(pid)
    if exits is None:
        return PidfdHandle(pid, pidfd, loop)
    try:
        exits.arm(pidfd)
    except (OSError, ValueError):
        os.close(pidfd)
        raise
    return PidfdHandle(pid, pidfd, exits)


def signal_group(pid: int, number: signal.Signals) -> None:
    try:
        os.killpg(pid, number)
    except ProcessLookupError:
        # A process that was forked for us a moment ago has not made its own group yet.
        with suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)
    except PermissionError:
        # Everybody left in it runs as somebody else (a set-user-id program): not ours to end.
        return


def read_status(*, exited: bool, number: int) -> ExitStatus:
    return ExitStatus(exit_code=number) if exited else ExitStatus(signal=number)
