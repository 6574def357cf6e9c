"""The plain runner: one new program for each request.

The process is made in a helper thread with `Popen`, which uses vfork as long as no `preexec_fn` is
given; the thread, and not the event loop, waits until the new process has a processor to exec on.
Everything after that happens on the loop.
"""

from __future__ import annotations

import asyncio
import subprocess
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from signal import Signals

from ductile.runner.leader import Leader, lead, signal_group
from ductile.runner.limits import can_limit, put_limits
from ductile.runner.pipes import PipeEnds, open_pipes
from ductile.runner.port import CouldNotStart, Patience, Run, RunnerLost, StartedBy
from ductile.runner.start_faults import could_not_start
from ductile.runner.supervision import Supervised

_HELPERS = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class _Spawned:
    leader: Leader
    ours: tuple[int, int, int]


class SpawnRunner:
    """Implements `ductile.runner.port.Runner`."""

    def __init__(self, patience: Patience | None = None) -> None:
        self._patience = patience or Patience()
        self._helpers = ThreadPoolExecutor(_HELPERS, thread_name_prefix="spawn")
        self._making: set[asyncio.Future[_Spawned | CouldNotStart]] = set()
        self._alive: set[Supervised] = set()

    async def start(self, run: Run) -> Supervised | CouldNotStart | RunnerLost:
        if not can_limit(run.limits):
            words = "this system cannot put limits on a process; remove `limits`"
            return CouldNotStart(error=f"{run.entrypoint} could not be started: {words}", permanent=True)
        loop = asyncio.get_running_loop()
        making = loop.run_in_executor(self._helpers, _spawn, run, loop)
        self._making.add(making)
        making.add_done_callback(self._making.discard)
        try:
            made = await asyncio.shield(making)
        except asyncio.CancelledError:
            # Nobody waits for it any more, but it may come to be: then it has to be ended.
            making.add_done_callback(lambda done: self._discard(done, run))
            raise
        if isinstance(made, CouldNotStart):
            return made
        return self._supervise(made, run)

    async def close(self) -> None:
        """End everything that still runs or is about to, at once, and wait for it."""
        if self._making:
            await asyncio.wait(self._making)
        while self._alive:
            for process in tuple(self._alive):
                process.stop(at_once=True)
            await next(iter(self._alive)).wait()
        self._helpers.shutdown(wait=False)

    def _supervise(self, spawned: _Spawned, run: Run) -> Supervised:
        process = Supervised(
            leader=spawned.leader,
            ours=spawned.ours,
            run=run,
            patience=self._patience,
            started_by=StartedBy.SPAWN,
            on_end=self._alive.discard,
        )
        self._alive.add(process)
        return process

    def _discard(self, done: asyncio.Future[_Spawned | CouldNotStart], run: Run) -> None:
        if not done.cancelled() and done.exception() is None and isinstance(made := done.result(), _Spawned):
            self._supervise(made, run).stop(at_once=True)


def _spawn(run: Run, loop: asyncio.AbstractEventLoop) -> _Spawned | CouldNotStart:
    """Runs in a helper thread."""
    try:
        pipes = open_pipes()
    except OSError as error:
        return could_not_start(error, run.entrypoint, run.directory)
    try:
        popen = _popen(run, pipes)
    except (OSError, ValueError) as error:
        pipes.close()
        return could_not_start(error, run.entrypoint, run.directory)
    try:
        put_limits(popen.pid, run.limits)
        leader = lead(popen, loop)
    except (OSError, ValueError) as error:
        # It runs, but we could not watch or limit it. It has not been given its request.
        signal_group(popen.pid, Signals.SIGKILL)
        popen.wait()
        pipes.close()
        return could_not_start(error, run.entrypoint, run.directory)
    pipes.close_theirs()
    return _Spawned(leader=leader, ours=pipes.ours)


def _popen(run: Run, pipes: PipeEnds) -> subprocess.Popen[bytes]:
    stdin, stdout, stderr = pipes.theirs
    return subprocess.Popen(
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
