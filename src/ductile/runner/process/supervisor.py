"""One process from its start to its end: the deadline, the group, the pipes.

Everything here runs on the event loop and nothing waits. The order at the end is what matters: the
leader is seen to be gone, then its group is cleared, then its pipes are let go, then it is reaped.

Most plugins end at once, and what they print fits into their pipes. So at first only the leader is
watched, and its pipes are read when it has ended; if it goes on, they are watched as well.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from datetime import timedelta
from enum import Enum, auto
from signal import Signals

from ductile.runner.port import (
    MAX_STDERR,
    MAX_STDOUT,
    UNKNOWN_STATUS,
    DeadlinePassed,
    Ending,
    Exited,
    ExitStatus,
    GracePeriods,
    Launch,
    OutputLimitExceeded,
    ProcessOutput,
    RunnerLost,
    StartedBy,
    StoppedOnRequest,
)
from ductile.runner.process.group_members import GroupMembers
from ductile.runner.process.handle import ProcessHandle
from ductile.runner.process.pipes import CappedReader, RequestWriter

#: Seconds. The pipes of who has not ended by then are watched; whoever fills one earlier waits so long.
_QUICK_EXIT_SECONDS = 0.02


class _StopCause(Enum):
    """Why we ended it, when it was us. The first cause stays."""

    DEADLINE = auto()
    OUTPUT = auto()
    STOP = auto()


class SharedTimer:
    """One timer for all who wait for the same while, since most have ended before it is over."""

    def __init__(self) -> None:
        self._waiting: deque[tuple[float, Callable[[], None]]] = deque()
        self._armed = False

    def after_one(self, loop: asyncio.AbstractEventLoop, then: Callable[[], None]) -> None:
        self._waiting.append((loop.time() + _QUICK_EXIT_SECONDS, then))
        if not self._armed:
            self._armed = True
            loop.call_later(_QUICK_EXIT_SECONDS, self._pass, loop)

    def _pass(self, loop: asyncio.AbstractEventLoop) -> None:
        now = loop.time()
        self._armed = False
        while self._waiting and self._waiting[0][0] <= now:
            loop.call_soon(self._waiting.popleft()[1])
        if self._waiting:
            self._armed = True
            loop.call_at(self._waiting[0][0], self._pass, loop)


class SupervisedProcess:
    """A running plugin. Implements `ductile.runner.port.Process`."""

    def __init__(
        self,
        *,
        leader: ProcessHandle,
        started_at: float,
        ours: tuple[int, int, int],
        run: Launch,
        rest: memoryview,
        patience: GracePeriods,
        moments: SharedTimer,
        started_by: StartedBy,
        among: set[SupervisedProcess],
    ) -> None:
        """`rest` is what is still to be written of the request; if that is nothing, its pipe is closed.

        It is in `among` until it has ended, which it may have by now.
        """
        loop = asyncio.get_running_loop()
        into_stdin, from_stdout, from_stderr = ours
        self._loop = loop
        self._leader = leader
        self._timeout = run.timeout
        self._patience = patience
        self._started_by = started_by
        self._among = among
        self._started_at = started_at
        self._duration = 0.0
        self._cause: _StopCause | None = None
        self._exited = False
        self._leftovers = False
        #: Known when the leader has ended.
        self._company: GroupMembers | None = None
        self._ending: Ending | None = None
        self._waiters: list[asyncio.Future[Ending]] = []
        self._writer = RequestWriter(into_stdin, rest, loop)
        self._stdout = CappedReader(
            from_stdout, cap=MAX_STDOUT, loop=loop, on_end=self._somebody_ended, on_cut=self._printed_too_much
        )
        self._stderr = CappedReader(from_stderr, cap=MAX_STDERR, loop=loop, on_end=self._somebody_ended)
        #: None at first, while a moment goes by, unless there is less time than that.
        self._timer: asyncio.TimerHandle | None = None
        among.add(self)
        leader.watch(self._leader_ended)
        if self._exited:
            return
        if run.timeout.total_seconds() < _QUICK_EXIT_SECONDS:
            self._wait_for(self._time_left(), self._deadline)
        else:
            moments.after_one(loop, self._goes_on)

    @property
    def pid(self) -> int:
        return self._leader.pid

    @property
    def started_by(self) -> StartedBy:
        return self._started_by

    @property
    def age(self) -> float:
        return self._loop.time() - self._started_at

    async def wait(self) -> Ending:
        if self._ending is not None:
            return self._ending
        waiter: asyncio.Future[Ending] = self._loop.create_future()
        self._waiters.append(waiter)
        return await waiter

    def stop(self, *, at_once: bool = False) -> None:
        if at_once and not self._exited:
            self._cause = self._cause or _StopCause.STOP
            self._kill()
        else:
            self._end(_StopCause.STOP)

    def _goes_on(self) -> None:
        if self._exited or self._timer is not None:
            return  # it has ended, or is being ended
        self._wait_for(self._time_left(), self._deadline)
        self._watch_pipes()

    def _time_left(self) -> float:
        return max(0.0, self._started_at + self._timeout.total_seconds() - self._loop.time())

    def _watch_pipes(self) -> None:
        self._stdout.watch()
        self._stderr.watch()

    def _deadline(self) -> None:
        # A process that has exited in time is judged by its answer, even if we are late to notice.
        if self._leader.has_exited():
            self._wait_for(self._patience.after_terminate, self._miss_word)
        else:
            self._end(_StopCause.DEADLINE)

    def _printed_too_much(self) -> None:
        # The attempt has failed already; going on would only fill pipes until the deadline.
        self._end(_StopCause.OUTPUT)

    def _end(self, cause: _StopCause) -> None:
        if self._cause is not None:
            return
        if self._exited:
            # Too late to end it; but output beyond the cap is a failure whenever it is read.
            self._cause = cause if cause is _StopCause.OUTPUT else None
            return
        self._cause = cause
        self._watch_pipes()
        self._leader.signal_group(Signals.SIGTERM)
        self._wait_for(self._patience.after_terminate, self._kill)

    def _kill(self) -> None:
        self._leader.signal_group(Signals.SIGKILL)
        self._wait_for(self._patience.after_terminate, self._miss_word)

    def _miss_word(self) -> None:
        """It should be gone by now. If it is, whoever was to tell us hangs; if not, the kernel is at it."""
        if self._leader.has_exited():
            self._leader_ended()
        else:
            self._wait_for(self._patience.after_terminate, self._miss_word)

    def _leader_ended(self) -> None:
        if self._exited:
            return
        self._exited = True
        self._duration = self._loop.time() - self._started_at
        self._writer.close()
        self._stdout.take_rest()
        self._stderr.take_rest()
        self._company = GroupMembers(self._leader.pid, self._loop, self._somebody_ended)
        if self._pipes_ended and not self._company:
            self._clear_group()
        else:
            self._watch_pipes()
            self._wait_for(self._patience.for_leftovers, self._clear_group)

    def _somebody_ended(self) -> None:
        """A pipe, or the last of the group: whoever is left gets no longer than is needed."""
        if self._exited and self._pipes_ended and not self._company and self._ending is None:
            self._clear_group()

    def _clear_group(self) -> None:
        """End what is left of the group. Who left the group and still holds a pipe is not waited for."""
        if not self._leftovers:
            self._leader.signal_group(Signals.SIGKILL)
        if self._pipes_ended:
            self._leftovers = self._leftovers or bool(self._company)
            self._finish()
        elif self._leftovers:
            self._stdout.take_rest()
            self._stderr.take_rest()
            self._finish()
        else:
            self._leftovers = True
            self._wait_for(self._patience.for_leftovers, self._clear_group)

    @property
    def _pipes_ended(self) -> bool:
        return self._stdout.ended and self._stderr.ended

    def _wait_for(self, seconds: float, then: Callable[[], None]) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_later(seconds, then)

    def _finish(self) -> None:
        if self._ending is not None:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._writer.close()
        self._stdout.close()
        self._stderr.close()
        if self._company is not None:
            self._company.close()
        self._ending = self._describe(self._leader.reap())
        for waiter in self._waiters:
            if not waiter.done():  # whoever waited was cancelled
                waiter.set_result(self._ending)
        self._among.discard(self)

    def _describe(self, status: ExitStatus | None) -> Ending:
        remains = ProcessOutput(
            status=status or UNKNOWN_STATUS,
            stdout=self._stdout.content,
            stderr=self._stderr.content,
            stdout_cut=self._stdout.cut,
            stderr_cut=self._stderr.cut,
            leftovers=self._leftovers,
            duration=timedelta(seconds=self._duration),
        )
        if status is None and self._cause is not _StopCause.DEADLINE:
            error = "what had started the process was lost before it reported how the process ended"
            return RunnerLost(error=error, remains=remains)
        match self._cause:
            case None:
                return Exited(remains=remains)
            case _StopCause.DEADLINE:
                return DeadlinePassed(remains=remains, timeout=self._timeout)
            case _StopCause.OUTPUT:
                return OutputLimitExceeded(remains=remains)
            case _StopCause.STOP:
                return StoppedOnRequest(remains=remains)
