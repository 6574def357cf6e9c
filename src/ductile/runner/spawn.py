"""The plain runner: one new program for each request.

`Popen` uses vfork as long as no `preexec_fn` is given. It is called on the event loop: Python holds its
global lock until the new process has begun its program, so in a thread it would stop the loop for just
as long, and the way to a thread and back costs more than all that is done there. `posix_spawn` was
measured as well: it took longer until the program ran.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
from signal import Signals

from ductile.runner.leader import Leader, lead, signal_group
from ductile.runner.limits import can_limit, put_limits
from ductile.runner.pipes import PipeEnds, open_pipes
from ductile.runner.port import CouldNotStart, Patience, Run, RunnerLost, StartedBy
from ductile.runner.start_faults import could_not_start
from ductile.runner.supervision import Supervised


class SpawnRunner:
    """Implements `ductile.runner.port.Runner`."""

    def __init__(self, patience: Patience | None = None) -> None:
        self._patience = patience or Patience()
        self._alive: set[Supervised] = set()

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


def _spawn(run: Run, pipes: PipeEnds) -> Leader:
    pid = _popen(run, pipes)
    try:
        put_limits(pid, run.limits)
        return lead(pid, asyncio.get_running_loop())
    except (OSError, ValueError):
        # It runs, but we could not watch or limit it. It has not been given its request.
        signal_group(pid, Signals.SIGKILL)
        os.waitpid(pid, 0)
        raise


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
