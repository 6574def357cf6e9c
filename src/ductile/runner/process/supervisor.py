"""One plugin process from its start to its end: deadline, pipes, process group.

Everything here runs on the event loop and nothing blocks. A process goes through these states:

1. running: the exit of the leader is watched. Most plugins exit within milliseconds and their output fits
   into the pipes, so the pipes are first read at exit. A process that runs longer than `QUICK_EXIT_SECONDS`
   gets its deadline armed and its pipes watched.
2. being stopped (deadline, output cap, `stop`): SIGTERM to the group, and SIGKILL after the grace period.
3. leader exited: other members of the group, or holders of its pipes, get a short grace period; then SIGKILL
   to the group.
4. finished: the pipes are closed, the leader is reaped, the waiters get the result.

The leader is reaped last, because its pid reserves the id of the group (see `handle`).
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterable
from datetime import timedelta
from enum import Enum, auto
from functools import partial
from signal import Signals

from ductile.runner.port import (
    MAX_STDERR,
    MAX_STDOUT,
    UNKNOWN_STATUS,
    DeadlinePassed,
    Exited,
    ExitStatus,
    ForkServerLost,
    GracePeriods,
    Launch,
    OutputLimitExceeded,
    OutputStream,
    ProcessOutput,
    ProcessResult,
    StartedBy,
    StoppedOnRequest,
)
from ductile.runner.process.handle import GroupMembers, ProcessHandle
from ductile.struct import Value

#: The default capacity of a pipe.
_CHUNK = 64 * 1024
#: After this time the pipes are read; a process that fills one earlier blocks until then.
QUICK_EXIT_SECONDS = 0.02


class PipeEnds(Value):
    """The daemon's and the plugin's ends of stdin, stdout and stderr.

    Those of the daemon do not block. A process inherits an end only if it is passed on explicitly.
    """

    daemon_ends: tuple[int, int, int]
    plugin_ends: tuple[int, int, int]

    def close_plugin_ends(self) -> None:
        _close(self.plugin_ends)

    def close(self) -> None:
        _close((*self.daemon_ends, *self.plugin_ends))


def open_pipes() -> PipeEnds:
    """Open three pipes. Raises OSError if there are not enough descriptors; then none is left open."""
    opened: list[int] = []
    try:
        for _ in range(3):
            opened += os.pipe()
    except OSError:
        _close(opened)
        raise
    stdin, into_stdin, from_stdout, stdout, from_stderr, stderr = opened
    daemon_ends = (into_stdin, from_stdout, from_stderr)
    for descriptor in daemon_ends:
        os.set_blocking(descriptor, False)
    return PipeEnds(daemon_ends=daemon_ends, plugin_ends=(stdin, stdout, stderr))


def _close(descriptors: Iterable[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)


def write_request(descriptor: int, request: bytes | memoryview) -> memoryview:
    """Write as much as the pipe takes now, and close it if that was all. Returns the unsent part."""
    unsent = memoryview(request)
    try:
        while unsent:
            unsent = unsent[os.write(descriptor, unsent) :]
    except BlockingIOError:
        return unsent
    except OSError:
        # EPIPE: a plugin may close stdin without reading its request.
        unsent = unsent[:0]
    os.close(descriptor)
    return unsent


class RequestWriter:
    """Writes the unsent part of a request whenever the plugin has read some of it."""

    def __init__(self, descriptor: int, unsent: memoryview, loop: asyncio.AbstractEventLoop) -> None:
        """`descriptor` is closed already if `unsent` is empty."""
        self._descriptor: int | None = None
        self._unsent = unsent
        self._loop = loop
        if unsent:
            self._watch(descriptor)

    def close(self) -> None:
        descriptor = self._stop_watching()
        if descriptor is not None:
            os.close(descriptor)

    def _write(self) -> None:
        # The loop must forget the descriptor before it is closed, since its number may be reused at once.
        descriptor = self._stop_watching()
        if descriptor is None:
            return
        self._unsent = write_request(descriptor, self._unsent)
        if self._unsent:
            self._watch(descriptor)

    def _watch(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._loop.add_writer(descriptor, self._write)

    def _stop_watching(self) -> int | None:
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            self._loop.remove_writer(descriptor)
        return descriptor


class BoundedReader:
    """Keeps the first `cap` bytes of a pipe.

    While it watches the pipe, it reads and discards bytes beyond the cap, so that the process does not block.
    """

    def __init__(
        self,
        descriptor: int,
        *,
        cap: int,
        loop: asyncio.AbstractEventLoop,
        on_end: Callable[[], None],
        on_truncated: Callable[[], None] | None = None,
        on_data: Callable[[bytes], None] | None = None,
    ) -> None:
        """`on_end` is called at the end of a watched pipe, `on_truncated` at a byte beyond the cap,
        `on_data` with everything that is read.
        """
        self._descriptor: int | None = descriptor
        self._cap = cap
        self._loop = loop
        self._on_end = on_end
        self._on_truncated = on_truncated
        self._on_data = on_data
        self._chunks: list[bytes] = []
        self._size = 0
        self._watched = False
        self.truncated = False

    @property
    def ended(self) -> bool:
        return self._descriptor is None

    @property
    def content(self) -> bytes:
        return b"".join(self._chunks)

    def watch(self) -> None:
        """Read whenever the pipe has data, from now on."""
        if self._descriptor is not None and not self._watched:
            self._watched = True
            self._loop.add_reader(self._descriptor, self._on_readable)

    def close(self) -> None:
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is None:
            return
        if self._watched:
            self._loop.remove_reader(descriptor)
        os.close(descriptor)

    def read_available(self) -> None:
        """Read the bytes that are in the pipe now, up to the cap."""
        while self._size < self._cap and self._read():
            pass

    def _on_readable(self) -> None:
        self._read()
        if self._descriptor is None:
            self._on_end()

    def _read(self) -> bool:
        """Read once, and close the pipe at its end. Returns whether there was data."""
        if self._descriptor is None:
            return False
        try:
            chunk = os.read(self._descriptor, _CHUNK)
        except BlockingIOError:
            return False
        if not chunk:
            self.close()
            return False
        if self._on_data is not None:
            self._on_data(chunk)
        room = self._cap - self._size
        if room > 0:
            self._chunks.append(chunk[:room])
            self._size += min(len(chunk), room)
        if len(chunk) > room and not self.truncated:
            self.truncated = True
            if self._on_truncated is not None:
                self._on_truncated()
        return True


class _TerminationCause(Enum):
    """The reason why the runner ended the process. The first one counts."""

    DEADLINE = auto()
    OUTPUT = auto()
    STOP = auto()


def _output_callback(launch: Launch, stream: OutputStream) -> Callable[[bytes], None] | None:
    """Return the callback for the output of a stream; None if it is not read while the process runs."""
    if launch.on_output is None or stream not in launch.live_streams:
        return None
    return partial(launch.on_output, stream)


class SupervisedProcess:
    """A running plugin. Implements `ductile.runner.port.Process`."""

    def __init__(
        self,
        *,
        handle: ProcessHandle,
        started_at: float,
        pipes: tuple[int, int, int],
        launch: Launch,
        unsent: memoryview,
        grace: GracePeriods,
        started_by: StartedBy,
        active: set[SupervisedProcess],
    ) -> None:
        """Watch the process. It is a member of `active` until it has finished.

        `pipes` are the daemon's ends of stdin, stdout and stderr. `unsent` is the part of the request that
        did not fit into stdin; if it is empty, stdin is closed already.
        """
        loop = asyncio.get_running_loop()
        stdin, stdout, stderr = pipes
        self._loop = loop
        self._handle = handle
        self.pid = handle.pid
        self._timeout = launch.timeout
        self._grace = grace
        self.started_by = started_by
        self._active = active
        self._started_at = started_at
        self._duration = 0.0
        self._cause: _TerminationCause | None = None
        self._leader_exited = False
        #: Whether other processes outlived the leader, or held its pipes: the second grace period has begun.
        self._leftovers = False
        #: Set when the leader has exited.
        self._members: GroupMembers | None = None
        self._result: ProcessResult | None = None
        self._waiters: list[asyncio.Future[ProcessResult]] = []
        self._writer = RequestWriter(stdin, unsent, loop)
        self._stdout = BoundedReader(
            stdout,
            cap=MAX_STDOUT,
            loop=loop,
            on_end=self._finish_if_ended,
            # The attempt has failed already; otherwise the process would run until its deadline.
            on_truncated=lambda: self._terminate(_TerminationCause.OUTPUT),
            on_data=_output_callback(launch, OutputStream.STDOUT),
        )
        self._stderr = BoundedReader(
            stderr,
            cap=MAX_STDERR,
            loop=loop,
            on_end=self._finish_if_ended,
            on_data=_output_callback(launch, OutputStream.STDERR),
        )
        self._timer: asyncio.TimerHandle | None = None
        active.add(self)
        if launch.timeout.total_seconds() < QUICK_EXIT_SECONDS:
            self._set_timer(self._time_left(), self._on_deadline)
        else:
            self._set_timer(QUICK_EXIT_SECONDS, self._on_long_run)
        handle.watch(self._on_leader_exit)

    @property
    def age(self) -> float:
        return self._loop.time() - self._started_at

    async def wait(self) -> ProcessResult:
        if self._result is not None:
            return self._result
        waiter: asyncio.Future[ProcessResult] = self._loop.create_future()
        self._waiters.append(waiter)
        return await waiter

    def stop(self, *, at_once: bool = False) -> None:
        if at_once and not self._leader_exited:
            self._cause = self._cause or _TerminationCause.STOP
            self._kill()
        else:
            self._terminate(_TerminationCause.STOP)

    def _on_long_run(self) -> None:
        """Arm the deadline and watch the pipes: the process did not exit within `QUICK_EXIT_SECONDS`."""
        self._set_timer(self._time_left(), self._on_deadline)
        self._watch_pipes()

    def _time_left(self) -> float:
        return max(0.0, self._started_at + self._timeout.total_seconds() - self._loop.time())

    def _watch_pipes(self) -> None:
        self._stdout.watch()
        self._stderr.watch()

    def _on_deadline(self) -> None:
        # A process that exited in time counts as such, even if its exit event comes late.
        if self._handle.has_exited():
            self._set_timer(self._grace.after_terminate, self._poll_exit)
        else:
            self._terminate(_TerminationCause.DEADLINE)

    def _terminate(self, cause: _TerminationCause) -> None:
        if self._cause is not None:
            return
        if self._leader_exited:
            # The process has ended by itself. Output beyond the cap is a failure even so.
            self._cause = cause if cause is _TerminationCause.OUTPUT else None
            return
        self._cause = cause
        self._watch_pipes()
        self._handle.signal_group(Signals.SIGTERM)
        self._set_timer(self._grace.after_terminate, self._kill)

    def _kill(self) -> None:
        self._handle.signal_group(Signals.SIGKILL)
        self._set_timer(self._grace.after_terminate, self._poll_exit)

    def _poll_exit(self) -> None:
        """Check for the exit of a killed process that has not been reported.

        Either the report was lost (a fork server that hangs) or the kernel is still tearing the process down.
        """
        if self._handle.has_exited():
            self._on_leader_exit()
        else:
            self._set_timer(self._grace.after_terminate, self._poll_exit)

    def _on_leader_exit(self) -> None:
        if self._leader_exited:
            return
        self._leader_exited = True
        self._duration = self._loop.time() - self._started_at
        self._writer.close()
        self._stdout.read_available()
        self._stderr.read_available()
        self._members = GroupMembers(self.pid, self._loop, self._finish_if_ended)
        if self._pipes_ended and not self._members.any_alive():
            self._clear_group()
        else:
            self._watch_pipes()
            self._set_timer(self._grace.for_group_members, self._clear_group)

    def _finish_if_ended(self) -> None:
        """Finish before the grace period is over if all pipes and all members of the group have ended."""
        if self._leader_exited and self._pipes_ended and not self._any_member_alive and self._result is None:
            self._clear_group()

    def _clear_group(self) -> None:
        """Kill the remaining members of the group.

        A process that has left the group and holds a pipe gets one more grace period, then it is ignored.
        """
        if not self._leftovers:
            self._handle.signal_group(Signals.SIGKILL)
        if self._pipes_ended:
            self._leftovers = self._leftovers or self._any_member_alive
            self._finish()
        elif self._leftovers:
            self._stdout.read_available()
            self._stderr.read_available()
            self._finish()
        else:
            self._leftovers = True
            self._set_timer(self._grace.for_group_members, self._clear_group)

    @property
    def _any_member_alive(self) -> bool:
        return self._members is not None and self._members.any_alive()

    @property
    def _pipes_ended(self) -> bool:
        return self._stdout.ended and self._stderr.ended

    def _set_timer(self, seconds: float, callback: Callable[[], None]) -> None:
        """Replace the timer: each state waits for one moment only."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_later(seconds, callback)

    def _finish(self) -> None:
        if self._result is not None:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._writer.close()
        self._stdout.close()
        self._stderr.close()
        if self._members is not None:
            self._members.close()
        self._result = self._make_result(self._handle.reap())
        for waiter in self._waiters:
            if not waiter.done():  # cancelled with its caller
                waiter.set_result(self._result)
        self._active.discard(self)

    def _make_result(self, status: ExitStatus | None) -> ProcessResult:
        output = ProcessOutput(
            status=status or UNKNOWN_STATUS,
            stdout=self._stdout.content,
            stderr=self._stderr.content,
            stderr_truncated=self._stderr.truncated,
            leftovers=self._leftovers,
            duration=timedelta(seconds=self._duration),
        )
        if status is None and self._cause is not _TerminationCause.DEADLINE:
            error = "the exit status of the process was lost with the process that had started it"
            return ForkServerLost(error=error, output=output)
        match self._cause:
            case None:
                return Exited(output=output)
            case _TerminationCause.DEADLINE:
                return DeadlinePassed(output=output, timeout=self._timeout)
            case _TerminationCause.OUTPUT:
                return OutputLimitExceeded(output=output)
            case _TerminationCause.STOP:
                return StoppedOnRequest(output=output)
