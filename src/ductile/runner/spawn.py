"""The plain runner: one new program for each request.

The process is made on the event loop. Python holds its global lock until the new process has begun its
program, so a helper thread would stop the loop for as long and cost the way there and back on top.

`posix_spawn` takes half of what `Popen` does and cannot change the directory; so it starts what runs
where we run, as all plugins of a daemon do, and `Popen`, by vfork as well, starts the rest.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from contextlib import suppress
from signal import Signals

from ductile.runner.leader import Leader, lead, signal_group
from ductile.runner.limits import can_limit, put_limits
from ductile.runner.pipes import PipeEnds, open_pipes
from ductile.runner.port import CouldNotStart, Patience, Run, RunnerLost, StartedBy
from ductile.runner.start_faults import could_not_start
from ductile.runner.supervision import Supervised

_STDERR = 2
#: Python ignores them; a program expects that they end it.
_DEFAULT_SIGNALS = (Signals.SIGPIPE, Signals.SIGXFSZ)


class SpawnRunner:
    """Implements `ductile.runner.port.Runner`."""

    def __init__(self, patience: Patience | None = None) -> None:
        self._patience = patience or Patience()
        self._alive: set[Supervised] = set()
        keep_descriptors_private()

    async def start(self, run: Run) -> Supervised | CouldNotStart | RunnerLost:
        if not can_limit(run.limits):
            words = "this system cannot put limits on a process; remove `limits`"
            return CouldNotStart(error=f"{run.entrypoint} could not be started: {words}", permanent=True)
        try:
            pipes = open_pipes()
        except OSError as error:
            return could_not_start(error, run.entrypoint, run.directory)
        try:
            leader = _spawn(run, pipes)
        except (OSError, ValueError) as error:
            pipes.close()
            return could_not_start(error, run.entrypoint, run.directory)
        pipes.close_theirs()
        process = Supervised(
            leader=leader,
            ours=pipes.ours,
            run=run,
            patience=self._patience,
            started_by=StartedBy.SPAWN,
            on_end=self._alive.discard,
        )
        self._alive.add(process)
        return process

    async def close(self) -> None:
        """End everything that still runs, at once, and wait for it."""
        while self._alive:
            for process in tuple(self._alive):
                process.stop(at_once=True)
            await next(iter(self._alive)).wait()


def keep_descriptors_private() -> None:
    """What we were started with besides the usual three is not for plugins; what Python opens never is."""
    with suppress(OSError):
        for name in os.listdir("/dev/fd"):  # noqa: PTH208 - names only
            with suppress(OSError):  # the listing's own is closed by now
                if int(name) > _STDERR:
                    os.set_inheritable(int(name), False)


def _spawn(run: Run, pipes: PipeEnds) -> Leader:
    pid = _posix_spawn(run, pipes) if _suits_posix_spawn(run, pipes) else _popen(run, pipes)
    try:
        put_limits(pid, run.limits)
        return lead(pid, asyncio.get_running_loop())
    except (OSError, ValueError):
        # It runs, but we could not watch or limit it. It has not been given its request.
        signal_group(pid, Signals.SIGKILL)
        os.waitpid(pid, 0)
        raise


def _suits_posix_spawn(run: Run, pipes: PipeEnds) -> bool:
    # A daemon that was started without the usual three gets pipes in their places, which need more care.
    usual = min(pipes.theirs) > _STDERR
    return usual and sys.platform == "linux" and run.directory == os.getcwd()  # noqa: PTH109 - hot path


def _posix_spawn(run: Run, pipes: PipeEnds) -> int:
    stdin, stdout, stderr = pipes.theirs
    return os.posix_spawn(
        run.entrypoint,
        [run.entrypoint],
        run.environment,
        file_actions=[
            (os.POSIX_SPAWN_DUP2, stdin, 0),
            (os.POSIX_SPAWN_DUP2, stdout, 1),
            (os.POSIX_SPAWN_DUP2, stderr, 2),
        ],
        setsid=True,
        setsigdef=_DEFAULT_SIGNALS,
    )


def _popen(run: Run, pipes: PipeEnds) -> int:
    stdin, stdout, stderr = pipes.theirs
    popen = subprocess.Popen(
        [run.entrypoint],
        stdin=stdin,
        stdout=stdout,
        stderr=stderr,
        cwd=run.directory,
        env=run.environment,
        start_new_session=True,
        close_fds=True,
        restore_signals=True,
    )
    popen.returncode = 0  # the leader waits for it, and Popen must not
    return popen.pid
