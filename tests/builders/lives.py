"""Lives of a real daemon: started as a process that dies at a step or at an instant, and ended by a kill."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path
from typing import BinaryIO

from builders.processes import Process, start_with_output

_DAEMON = Path(__file__).parents[1] / "crash" / "dying_daemon.py"


def a_life(directory: Path, dies_at: str = "never", times: int = 1, *, kill_after: int | None = None) -> Life:
    """Start a daemon on a configuration; it dies at the n-th time of a signal, if one is named."""
    process, output = start_with_output(
        [_DAEMON, str(directory), dies_at, str(times)],
        directory=directory,
        environment={"PATH": os.environ["PATH"], "HOME": str(directory), "LANG": "C.UTF-8"},
    )
    return Life(process, output, kill_after=kill_after)


class Life:
    """A daemon whose log is read all the time, as a service manager does."""

    def __init__(self, process: Process, output: BinaryIO, *, kill_after: int | None = None) -> None:
        """`kill_after` so many lines of its log: an instant that the daemon knows nothing of."""
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
        """False if it died before."""
        self._ready_or_over.wait()
        return self._is_ready

    def end(self, *, by_itself: bool = False) -> None:
        """Kill it; or, if it has ended by itself, expect that it said so by its status."""
        self.process.kill()
        assert self.process.wait() == (1 if by_itself else -signal.SIGKILL)
        self._reader.join()
        self._output.close()
