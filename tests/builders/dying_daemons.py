"""A real daemon that is killed at a step, after some lines of its log, or by the test."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path
from typing import BinaryIO

from builders.processes import Process, start_with_output

_DAEMON = Path(__file__).parents[1] / "crash" / "dying_daemon.py"


def start_daemon(
    directory: Path, dies_at: str = "never", times: int = 1, *, kill_after: int | None = None
) -> DaemonProcess:
    """Start a daemon that kills itself at the n-th time of a signal, if one is named.

    With `kill_after` it is killed after so many lines of its log.
    """
    process, output = start_with_output(
        [_DAEMON, str(directory), dies_at, str(times)],
        directory=directory,
        environment={"PATH": os.environ["PATH"], "HOME": str(directory), "LANG": "C.UTF-8"},
    )
    return DaemonProcess(process, output, kill_after=kill_after)


class DaemonProcess:
    """A daemon whose log is read by a thread."""

    def __init__(self, process: Process, output: BinaryIO, *, kill_after: int | None = None) -> None:
        self.process = process
        self._output = output
        self._kill_after = kill_after
        self._ready_or_over = threading.Event()
        self._is_ready = False
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        for number, line in enumerate(self._output, start=1):
            if number == self._kill_after:
                self.process.kill()
            if b'"service.ready"' in line:
                self._is_ready = True
                self._ready_or_over.set()
        self._ready_or_over.set()

    def wait_until_ready(self) -> bool:
        """Wait until the daemon is ready; return False if it died before."""
        self._ready_or_over.wait()
        return self._is_ready

    def end(self, *, by_itself: bool = False) -> None:
        """Kill the daemon, or with `by_itself` check that it has ended with status 1."""
        self.process.kill()
        assert self.process.wait() == (1 if by_itself else -signal.SIGKILL)
        self._reader.join()
        self._output.close()
