"""The plain runner: one new program for each request.

The process is made in a helper thread; the thread, and not the event loop, waits until the new process
has a processor to exec on. On the loop itself that was measured at up to 200 ms of standstill on a busy
machine, against 35. The thread also writes what its pipe takes of the request, which is all of most.
Everything after that happens on the loop. When there is much to do it hears of most processes only when they
have ended, and is woken once for each of them and not twice; otherwise it gets ready while they run.
"""

from __future__ import annotations

import asyncio
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress

from ductile.runner import limited
from ductile.runner.exits import Exits
from ductile.runner.helpers import Helpers
from ductile.runner.leader import Leader, PidfdLeader, lead, signal_group
from ductile.runner.limits import can_limit, limits_to_set
from ductile.runner.pipes import PipeEnds, hand_over, open_pipes
from ductile.runner.port import NO_LIMITS, CouldNotStart, Patience, Run, RunnerLost, StartedBy
from ductile.runner.start_faults import UnderLimitsError, could_not_start
from ductile.runner.supervision import Moments, Supervised
from ductile.value import Value

try:
    from ductile.runner.posix_spawn import can_spawn, spawn
except ModuleNotFoundError as missing:
    if missing.name not in ("ctypes", "_ctypes"):
        raise
    # This Python was built without it.

    def can_spawn(descriptors: Sequence[int]) -> bool:  # noqa: ARG001 - as its namesake
        return False


_HELPERS = 2
#: So many processes at once, and the loop has something better to do than to get ready for another one.
_BUSY = 3
#: More bytes than a number of <errno.h> has.
_NUMBER = 16


class _Spawned(Value):
    leader: Leader
    started_at: float
    ours: tuple[int, int, int]
    #: What did not fit into the pipe of the request.
    rest: memoryview

    def will_be_told(self, exits: Exits | None) -> bool:
        """In the helper thread: whether the end of the process is still to come, and will wake the loop."""
        leader = self.leader
        return exits is not None and isinstance(leader, PidfdLeader) and not exits.is_early(leader.pidfd)


class SpawnRunner:
    """Implements `ductile.runner.port.Runner`."""

    def __init__(self, patience: Patience | None = None) -> None:
        _hear_of_ends()
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
        try:
            exits = self._open_exits(loop)
        except OSError as error:
            return could_not_start(error, run.entrypoint, run.directory)
        made = await self._helpers.do(
            lambda: _spawn(run, loop, exits),
            abandoned=lambda left: self._discard(left, run),
            is_told=lambda made: self._is_busy() and isinstance(made, _Spawned) and made.will_be_told(exits),
        )
        return made if isinstance(made, CouldNotStart) else self._supervise(made, run)

    def _open_exits(self, loop: asyncio.AbstractEventLoop) -> Exits | None:
        if self._exits is None and hasattr(select, "epoll"):
            self._exits = Exits(loop, self._helpers.collect)
        return self._exits

    def _is_busy(self) -> bool:
        return len(self._alive) + self._helpers.under_way >= _BUSY

    async def close(self) -> None:
        """End everything that still runs or is about to, at once, and wait for it."""
        while True:  # again: somebody may have come meanwhile
            await self._helpers.close()
            await asyncio.sleep(0)  # whoever has just been handed a process takes it now
            if not self._alive and not self._helpers.under_way:
                break
            for process in tuple(self._alive):
                process.stop(at_once=True)
                await process.wait()
        if self._exits is not None:
            self._exits.close()
            self._exits = None  # whoever comes all the same gets a new one

    def _supervise(self, spawned: _Spawned, run: Run) -> Supervised:
        return Supervised(
            leader=spawned.leader,
            started_at=spawned.started_at,
            ours=spawned.ours,
            run=run,
            rest=spawned.rest,
            patience=self._patience,
            moments=self._moments,
            started_by=StartedBy.SPAWN,
            among=self._alive,
        )

    def _discard(self, made: _Spawned | CouldNotStart, run: Run) -> None:
        """Nobody waits for it any more, and it came to be all the same: it has to be ended."""
        if isinstance(made, _Spawned):
            self._supervise(made, run).stop(at_once=True)


def _hear_of_ends() -> None:
    """Whoever ignores SIGCHLD never hears how a child has ended, and a program inherits that from its own."""
    if signal.getsignal(signal.SIGCHLD) is signal.SIG_IGN:
        with suppress(ValueError):  # not in the main thread, the only one that may
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)


def _spawn(run: Run, loop: asyncio.AbstractEventLoop, exits: Exits | None) -> _Spawned | CouldNotStart:
    """Runs in a helper thread."""
    try:
        pipes = open_pipes()
    except OSError as error:
        return could_not_start(error, run.entrypoint, run.directory)
    try:
        leader = _start(run, pipes, loop, exits)
    except (OSError, ValueError) as error:
        pipes.close()
        return could_not_start(error, run.entrypoint, run.directory)
    started_at = time.monotonic()  # as the loop counts: it may hear of it later
    pipes.close_theirs()
    rest = hand_over(pipes.ours[0], run.request)
    return _Spawned(leader=leader, started_at=started_at, ours=pipes.ours, rest=rest)


def _start(run: Run, pipes: PipeEnds, loop: asyncio.AbstractEventLoop, exits: Exits | None) -> Leader:
    pid = _begin([run.entrypoint], run, pipes.theirs) if run.limits == NO_LIMITS else _limited(run, pipes)
    try:
        return lead(pid, loop, exits)
    except (OSError, ValueError):
        # It runs, but we could not watch it. It has not been given its request.
        signal_group(pid, signal.Signals.SIGKILL)
        os.waitpid(pid, 0)
        raise


def _limited(run: Run, pipes: PipeEnds) -> int:
    """Start it through `limited`, and wait until that has become the program or says why it could not."""
    hearing, telling = os.pipe()
    descriptors = (*pipes.theirs, telling)
    try:
        told = str(len(pipes.theirs) if can_spawn(descriptors) else telling)
        limits = ",".join(f"{name}:{soft}:{hard}" for name, soft, hard in limits_to_set(run.limits))
        command = [sys.executable, "-I", "-S", limited.__file__, told, limits, run.entrypoint]
        try:
            pid = _begin(command, run, descriptors)
        finally:
            os.close(telling)
        if fault := os.read(hearing, _NUMBER):
            os.waitpid(pid, 0)
            raise UnderLimitsError(int(fault), os.strerror(int(fault)))
    finally:
        os.close(hearing)
    return pid


def _begin(command: Sequence[str], run: Run, descriptors: Sequence[int]) -> int:
    if can_spawn(descriptors):
        return spawn(command, run.environment, run.directory, descriptors)
    stdin, stdout, stderr, *more = descriptors
    popen = subprocess.Popen(
        command,
        stdin=stdin,
        stdout=stdout,
        stderr=stderr,
        cwd=run.directory,
        env=run.environment,
        start_new_session=True,
        close_fds=True,
        pass_fds=more,
        restore_signals=True,
    )
    popen.returncode = 0  # the leader waits for it, and Popen must not
    return popen.pid
