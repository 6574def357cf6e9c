"""The leader of a plugin's process group: how its end is noticed, and when it is reaped.

Until it is reaped the kernel keeps its process id, and so the id of its group: as long as that is so
the group can be signalled without ever hitting a stranger. Hence notice first, clear, then reap.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Protocol

from ductile.runner.port import UNKNOWN_STATUS, ExitStatus

#: Told how the leader ended; None when that cannot be known any more.
OnExit = Callable[[ExitStatus | None], None]


class Leader(Protocol):
    @property
    def pid(self) -> int: ...

    def watch(self, on_exit: OnExit) -> None:
        """Have `on_exit` called once, on the loop, when the leader has ended."""

    def has_exited(self) -> bool:
        """Whether it has ended, noticed or not."""

    def signal_group(self, number: signal.Signals) -> None:
        """Signal everybody in the group. Harmless when nobody is left."""

    def reap(self) -> None:
        """Let go of the process id. Nothing may be signalled after this."""


class PidfdLeader:
    """A child of ours on Linux: a pidfd tells its end, `waitid` reads the status and leaves it there."""

    __slots__ = ("_loop", "_on_exit", "_pidfd", "_popen")

    def __init__(self, popen: subprocess.Popen[bytes], pidfd: int, loop: asyncio.AbstractEventLoop) -> None:
        self._popen = popen
        self._pidfd = pidfd
        self._loop = loop
        self._on_exit: OnExit | None = None

    @property
    def pid(self) -> int:
        return self._popen.pid

    def watch(self, on_exit: OnExit) -> None:
        self._on_exit = on_exit
        self._loop.add_reader(self._pidfd, self._ended)

    def has_exited(self) -> bool:
        try:
            return self._wait(os.WNOWAIT | os.WNOHANG) is not None
        except ChildProcessError:
            return True

    def signal_group(self, number: signal.Signals) -> None:
        signal_group(self.pid, number)

    def reap(self) -> None:
        status = UNKNOWN_STATUS
        with suppress(ChildProcessError):
            status = self._wait(0) or UNKNOWN_STATUS
        os.close(self._pidfd)
        # Popen must not wait for it again: the number may be somebody else's by then.
        self._popen.returncode = _return_code(status)

    def _ended(self) -> None:
        self._loop.remove_reader(self._pidfd)
        status: ExitStatus | None = None
        with suppress(ChildProcessError):
            status = self._wait(os.WNOWAIT)
        if self._on_exit is not None:
            self._on_exit(status)

    def _wait(self, flags: int) -> ExitStatus | None:
        found = os.waitid(os.P_PIDFD, self._pidfd, os.WEXITED | flags)
        if found is None:
            return None
        return read_status(exited=found.si_code == os.CLD_EXITED, number=found.si_status)


class WaitedLeader:
    """The same where there is no pidfd (macOS): a thread waits.

    Waiting reaps there, so the group is signalled for a moment after its number was let go. The number
    would have to come round again within that moment to matter.
    """

    __slots__ = ("_loop", "_popen")

    def __init__(self, popen: subprocess.Popen[bytes], loop: asyncio.AbstractEventLoop) -> None:
        self._popen = popen
        self._loop = loop

    @property
    def pid(self) -> int:
        return self._popen.pid

    def watch(self, on_exit: OnExit) -> None:
        def wait() -> None:
            code = self._popen.wait()
            status = read_status(exited=code >= 0, number=abs(code))
            with suppress(RuntimeError):  # the loop was closed meanwhile: nobody is left to tell
                self._loop.call_soon_threadsafe(on_exit, status)

        threading.Thread(target=wait, name=f"wait-{self.pid}", daemon=True).start()

    def has_exited(self) -> bool:
        return self._popen.returncode is not None

    def signal_group(self, number: signal.Signals) -> None:
        signal_group(self.pid, number)

    def reap(self) -> None:
        """The thread has done it."""


def lead(popen: subprocess.Popen[bytes], loop: asyncio.AbstractEventLoop) -> Leader:
    if hasattr(os, "pidfd_open"):
        return PidfdLeader(popen, os.pidfd_open(popen.pid), loop)
    return WaitedLeader(popen, loop)


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


def _return_code(status: ExitStatus) -> int:
    if status.exit_code is not None:
        return status.exit_code
    return -(status.signal or 0)
