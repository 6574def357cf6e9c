"""The plain runner: one new program for each request.

The process is made in a helper thread; the thread, and not the event loop, waits until the new process
has a processor to exec on. On the loop itself that was measured at up to 200 ms of standstill on a busy
machine, against 35. The thread also writes what its pipe takes of the request, which is all of most.
Everything after that happens on the loop.
"""

from __future__ import annotations

import asyncio
import os
import select
import subprocess
from contextlib import suppress
from signal import Signals

from ductile.runner.exits import Exits
from ductile.runner.helpers import Helpers
from ductile.runner.leader import Leader, Watch, lead, signal_group
from ductile.runner.limits import can_limit, put_limits
from ductile.runner.pipes import PipeEnds, hand_over, open_pipes
from ductile.runner.port import CouldNotStart, Patience, Run, RunnerLost, StartedBy
from ductile.runner.start_faults import could_not_start
from ductile.runner.supervision import Moments, Supervised
from ductile.value import Value

try:
    from ductile.runner.posix_spawn import can_spawn, spawn
except ModuleNotFoundError as missing:
    if missing.name not in ("ctypes", "_ctypes"):
        raise
    # This Python was built without it.

    def can_spawn(stdio: tuple[int, int, int]) -> bool:  # noqa: ARG001 - as its namesake
        return False


_HELPERS = 2


class _Spawned(Value):
    leader: Leader
    ours: tuple[int, int, int]
    #: What did not fit into the pipe of the request.
    rest: memoryview


class SpawnRunner:
    """Implements `ductile.runner.port.Runner`."""

    def __init__(self, patience: Patience | None = None) -> None:
        self._patience = patience or Patience()
        self._helpers = Helpers(_HELPERS, "spawn")
        self._exits: Exits | None = None
        self._moments = Moments()
        self._alive: set[Supervised] = set()

    async def start(self, run: Run) -> Supervised | CouldNotStart | RunnerLost:
        if not can_limit(run.limits):
            words = "this system cannot put limits on a process; remove `limits`"
            return CouldNotStart(error=f"{run.entrypoint} could not be started: {words}", permanent=True)
        loop = asyncio.get_running_loop()
        watch = self._watch(loop)
        made = await self._helpers.do(
            lambda: _spawn(run, loop, watch), abandoned=lambda left: self._discard(left, run)
        )
        return made if isinstance(made, CouldNotStart) else self._supervise(made, run)

    def _watch(self, loop: asyncio.AbstractEventLoop) -> Watch:
        """Who tells of ends: the loop itself, where there is no epoll or no descriptor left for one."""
        if self._exits is None and hasattr(select, "epoll"):
            with suppress(OSError):
                self._exits = Exits(loop)
        return self._exits or loop

    async def close(self) -> None:
        """End everything that still runs or is about to, at once, and wait for it."""
        await self._helpers.close()
        while self._alive:
            for process in tuple(self._alive):
                process.stop(at_once=True)
            await next(iter(self._alive)).wait()
        if self._exits is not None:
            self._exits.close()
            self._exits = None  # whoever comes all the same gets a new one

    def _supervise(self, spawned: _Spawned, run: Run) -> Supervised:
        process = Supervised(
            leader=spawned.leader,
            ours=spawned.ours,
            run=run,
            rest=spawned.rest,
            patience=self._patience,
            moments=self._moments,
            started_by=StartedBy.SPAWN,
            on_end=self._alive.discard,
        )
        self._alive.add(process)
        return process

    def _discard(self, made: _Spawned | CouldNotStart, run: Run) -> None:
        """Nobody waits for it any more, and it came to be all the same: it has to be ended."""
        if isinstance(made, _Spawned):
            self._supervise(made, run).stop(at_once=True)


def _spawn(run: Run, loop: asyncio.AbstractEventLoop, watch: Watch) -> _Spawned | CouldNotStart:
    """Runs in a helper thread."""
    try:
        pipes = open_pipes()
    except OSError as error:
        return could_not_start(error, run.entrypoint, run.directory)
    try:
        leader = _start(run, pipes, loop, watch)
    except (OSError, ValueError) as error:
        pipes.close()
        return could_not_start(error, run.entrypoint, run.directory)
    pipes.close_theirs()
    return _Spawned(leader=leader, ours=pipes.ours, rest=hand_over(pipes.ours[0], run.request))


def _start(run: Run, pipes: PipeEnds, loop: asyncio.AbstractEventLoop, watch: Watch) -> Leader:
    pid = (_spawn_plainly if can_spawn(pipes.theirs) else _popen)(run, pipes)
    try:
        put_limits(pid, run.limits)
        return lead(pid, loop, watch)
    except (OSError, ValueError):
        # It runs, but we could not watch or limit it. It has not been given its request.
        signal_group(pid, Signals.SIGKILL)
        os.waitpid(pid, 0)
        raise


def _spawn_plainly(run: Run, pipes: PipeEnds) -> int:
    return spawn(run.entrypoint, run.environment, run.directory, pipes.theirs)


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
