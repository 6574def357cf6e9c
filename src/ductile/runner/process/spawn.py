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
from ductile.runner.port import NO_LIMITS, CouldNotStart, GracePeriods, Launch, RunnerLost, StartedBy
from ductile.runner.process.exit_watcher import ExitWatcher
from ductile.runner.process.handle import PidfdHandle, ProcessHandle, open_handle, signal_group
from ductile.runner.process.pipes import PipeEnds, open_pipes, write_request
from ductile.runner.process.rlimits import can_limit, limits_to_set
from ductile.runner.process.spawn_errors import UnderLimitsError, could_not_start
from ductile.runner.process.spawn_threads import SpawnThreads
from ductile.runner.process.supervisor import SharedTimer, SupervisedProcess
from ductile.struct import Value

try:
    from ductile.runner.process.posix_spawn import can_spawn, spawn
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
    leader: ProcessHandle
    started_at: float
    ours: tuple[int, int, int]
    #: What did not fit into the pipe of the request.
    rest: memoryview

    def will_be_told(self, exits: ExitWatcher | None) -> bool:
        """In the helper thread: whether the end of the process is still to come, and will wake the loop."""
        leader = self.leader
        return exits is not None and isinstance(leader, PidfdHandle) and not exits.is_early(leader.pidfd)


class SpawnRunner:
    """Implements `ductile.runner.port.Runner`."""

    def __init__(self, patience: GracePeriods | None = None) -> None:
        _hear_of_ends()
        self._patience = patience or GracePeriods()
        self._helpers = SpawnThreads(_HELPERS, "spawn")
        self._exits: ExitWatcher | None = None
        self._moments = SharedTimer()
        self._alive: set[SupervisedProcess] = set()

    async def start(self, run: Launch) -> SupervisedProcess | CouldNotStart | RunnerLost:
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
            will_be_collected=lambda made: (
                self._is_busy() and isinstance(made, _Spawned) and made.will_be_told(exits)
            ),
        )
        return made if isinstance(made, CouldNotStart) else self._supervise(made, run)

    def _open_exits(self, loop: asyncio.AbstractEventLoop) -> ExitWatcher | None:
        if self._exits is None and hasattr(select, "epoll"):
            self._exits = ExitWatcher(loop, self._helpers.collect)
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

    def _supervise(self, spawned: _Spawned, run: Launch) -> SupervisedProcess:
        return SupervisedProcess(
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

    def _discard(self, made: _Spawned | CouldNotStart, run: Launch) -> None:
        """Nobody waits for it any more, and it came to be all the same: it has to be ended."""
        if isinstance(made, _Spawned):
            self._supervise(made, run).stop(at_once=True)


def _hear_of_ends() -> None:
    """Whoever ignores SIGCHLD never hears how a child has ended, and a program inherits that from its own."""
    if signal.getsignal(signal.SIGCHLD) is signal.SIG_IGN:
        with suppress(ValueError):  # not in the main thread, the only one that may
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)


def _spawn(
    run: Launch, loop: asyncio.AbstractEventLoop, exits: ExitWatcher | None
) -> _Spawned | CouldNotStart:
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
    rest = write_request(pipes.ours[0], run.request)
    return _Spawned(leader=leader, started_at=started_at, ours=pipes.ours, rest=rest)


def _start(
    run: Launch, pipes: PipeEnds, loop: asyncio.AbstractEventLoop, exits: ExitWatcher | None
) -> ProcessHandle:
    pid = _begin([run.entrypoint], run, pipes.theirs) if run.limits == NO_LIMITS else _limited(run, pipes)
    try:
        return open_handle(pid, loop, exits)
    except (OSError, ValueError):
        # It runs, but we could not watch it. It has not been given its request.
        signal_group(pid, signal.Signals.SIGKILL)
        os.waitpid(pid, 0)
        raise


def _limited(run: Launch, pipes: PipeEnds) -> int:
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


def _begin(command: Sequence[str], run: Launch, descriptors: Sequence[int]) -> int:
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
