"""The spawn runner: one new process for each launch, or the reason why it could not be started.

A thread of a small pool spawns the process, so that the thread and not the event loop waits until the new
process has executed its program: on the loop this was measured at up to 200 ms of standstill on a busy
machine. The thread also writes as much of the request as the pipe takes, which is usually all of it.
Supervision begins on the loop, when the thread has handed over the process.
"""

from __future__ import annotations

import asyncio
import errno
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TypeAlias

from ductile.runner.port import (
    NO_LIMITS,
    CouldNotStart,
    ForkServerLost,
    GracePeriods,
    Launch,
    ResourceLimits,
    StartedBy,
)
from ductile.runner.process import rlimit_exec
from ductile.runner.process.handle import open_handle, signal_group
from ductile.runner.process.supervisor import PipeEnds, SupervisedProcess, open_pipes, write_request

try:
    from ductile.runner.process.posix_spawn import can_spawn, spawn
except ModuleNotFoundError as missing:
    if missing.name not in ("ctypes", "_ctypes"):
        raise

    def can_spawn(descriptors: Sequence[int]) -> bool:  # noqa: ARG001 - the signature of the real one
        return False  # this Python was built without ctypes


_THREADS = 2
#: More bytes than an errno has digits.
_ERRNO_BYTES = 16
#: Between the soft limit (SIGXCPU) and the hard one (SIGKILL).
_CPU_SECONDS_TO_STOP = 1
#: The kernel accepts no larger limit.
_MAX_LIMIT = 2**63 - 1

#: The plugin is not at fault: the machine is short of a resource, or the file is being written.
TRANSIENT_ERRNOS = frozenset(
    {errno.EAGAIN, errno.ENOMEM, errno.ENOSPC, errno.EMFILE, errno.ENFILE, errno.ETXTBSY, errno.EINTR}
)
#: A resource of the daemon or the machine is exhausted.
_RESOURCE_ERRNOS = frozenset({errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE})
_LONGEST_SHEBANG = 256
#: A call, made on the loop, that begins the supervision of a process that was spawned and got its request.
_BeginSupervision: TypeAlias = partial[SupervisedProcess]


class SpawnRunner:
    """Implements `ductile.runner.port.Runner`."""

    def __init__(self, grace: GracePeriods | None = None) -> None:
        # SIGCHLD=SIG_IGN is inherited from a parent and makes exit statuses unavailable.
        if signal.getsignal(signal.SIGCHLD) is signal.SIG_IGN:
            with suppress(ValueError):  # only the main thread may set signal handlers
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        self._grace = grace or GracePeriods()
        self._threads: ThreadPoolExecutor | None = None
        #: Results of starts whose process was not handed over to the loop yet.
        self._in_flight: set[asyncio.Future[SupervisedProcess | CouldNotStart]] = set()
        self._handed_over = asyncio.Event()
        #: Processes that have not ended.
        self.active: set[SupervisedProcess] = set()

    async def start(self, launch: Launch) -> SupervisedProcess | CouldNotStart | ForkServerLost:
        if launch.limits != NO_LIMITS and sys.platform != "linux":
            reason = "this system cannot put limits on a process; remove `limits`"
            return CouldNotStart(error=f"{launch.entrypoint} could not be started: {reason}", permanent=True)
        loop = asyncio.get_running_loop()
        waiter: asyncio.Future[SupervisedProcess | CouldNotStart] = loop.create_future()
        if self._threads is None:
            self._threads = ThreadPoolExecutor(_THREADS, "spawn")
        try:
            self._threads.submit(self._spawn_in_thread, launch, loop, waiter)
        except RuntimeError:
            # No thread can be started. The pool keeps the call, and a later thread finds it cancelled.
            waiter.cancel()
            return failed_start(OSError(errno.EAGAIN, "no thread can be started"), launch)
        self._in_flight.add(waiter)
        try:
            return await waiter
        except asyncio.CancelledError:
            # If the waiter is not done, `_hand_over` will find it cancelled. Otherwise the process was handed
            # over in the same iteration of the loop in which the caller was cancelled.
            if waiter.done() and not waiter.cancelled() and waiter.exception() is None:
                _discard(waiter.result())
            raise

    def _spawn_in_thread(
        self,
        launch: Launch,
        loop: asyncio.AbstractEventLoop,
        waiter: asyncio.Future[SupervisedProcess | CouldNotStart],
    ) -> None:
        spawned: _BeginSupervision | CouldNotStart | Exception | None = None
        try:
            if not waiter.cancelled():
                spawned = self._spawn(launch, loop)
        except Exception as error:  # noqa: BLE001 - it is raised in the caller
            spawned = error
        loop.call_soon_threadsafe(self._hand_over, spawned, waiter)

    def _spawn(self, launch: Launch, loop: asyncio.AbstractEventLoop) -> _BeginSupervision | CouldNotStart:
        """Spawn a process and write its request, in a thread of the pool."""
        try:
            pipes = open_pipes()
        except OSError as error:
            return failed_start(error, launch)
        # Read before the process exists, because a short process may end before this thread continues.
        started_at = time.monotonic()  # the clock of the loop
        try:
            if launch.limits == NO_LIMITS:
                pid = _execute([launch.entrypoint, *launch.arguments], launch, pipes.plugin_ends)
            else:
                pid = _execute_limited(launch, pipes)
            try:
                handle = open_handle(pid, loop)
            except (OSError, ValueError):
                # The process runs but cannot be watched. It has not received its request.
                signal_group(pid, signal.Signals.SIGKILL)
                os.waitpid(pid, 0)
                raise
        except (OSError, ValueError) as error:
            pipes.close()
            return failed_start(error, launch)
        pipes.close_plugin_ends()
        unsent = write_request(pipes.daemon_ends[0], launch.request)
        return partial(
            SupervisedProcess,
            handle=handle,
            started_at=started_at,
            pipes=pipes.daemon_ends,
            launch=launch,
            unsent=unsent,
            grace=self._grace,
            started_by=StartedBy.SPAWN,
            active=self.active,
        )

    def _hand_over(
        self,
        spawned: _BeginSupervision | CouldNotStart | Exception | None,
        waiter: asyncio.Future[SupervisedProcess | CouldNotStart],
    ) -> None:
        """Begin supervision, on the loop. A process whose caller was cancelled is killed."""
        self._in_flight.discard(waiter)
        self._handed_over.set()
        started: SupervisedProcess | CouldNotStart | Exception | None
        try:
            started = spawned() if isinstance(spawned, partial) else spawned
        except Exception as error:  # noqa: BLE001 - raised in the caller, which would otherwise wait for ever
            started = error
        if waiter.cancelled():
            _discard(started)
        elif isinstance(started, Exception):
            waiter.set_exception(started)
        elif started is not None:
            waiter.set_result(started)

    async def close(self) -> None:
        """Kill every process that runs or is being spawned, also new ones, and wait until all have ended."""
        while self._in_flight or self.active:
            for process in tuple(self.active):
                process.stop(at_once=True)
            if self.active:
                await next(iter(self.active)).wait()
            else:
                self._handed_over.clear()
                await self._handed_over.wait()
        if self._threads is not None:
            self._threads.shutdown(wait=False)
            self._threads = None


def _discard(started: SupervisedProcess | CouldNotStart | Exception | None) -> None:
    """Kill a process whose caller was cancelled."""
    if isinstance(started, SupervisedProcess):
        started.stop(at_once=True)


def _execute_limited(launch: Launch, pipes: PipeEnds) -> int:
    """Start the program by way of `rlimit_exec`, and wait until it is executed or the reason is reported."""
    error_read, error_write = os.pipe()
    descriptors = (*pipes.plugin_ends, error_write)
    try:
        error_fd = str(len(pipes.plugin_ends) if can_spawn(descriptors) else error_write)
        limits = ",".join(f"{name}:{soft}:{hard}" for name, soft, hard in limits_to_set(launch.limits))
        command = [sys.executable, "-I", "-S", rlimit_exec.__file__, error_fd, limits, launch.entrypoint]
        command += launch.arguments
        try:
            pid = _execute(command, launch, descriptors)
        finally:
            os.close(error_write)
        if number := os.read(error_read, _ERRNO_BYTES):
            os.waitpid(pid, 0)
            raise ExecRefusedByLimitsError(int(number), os.strerror(int(number)))
    finally:
        os.close(error_read)
    return pid


def _execute(command: Sequence[str], launch: Launch, descriptors: Sequence[int]) -> int:
    """Start the command in a session of its own. Returns its pid."""
    if can_spawn(descriptors):
        return spawn(command, launch.environment, launch.directory, descriptors)
    stdin, stdout, stderr, *others = descriptors
    popen = subprocess.Popen(
        command,
        stdin=stdin,
        stdout=stdout,
        stderr=stderr,
        cwd=launch.directory,
        env=launch.environment,
        start_new_session=True,
        close_fds=True,
        pass_fds=others,
        restore_signals=True,
    )
    popen.returncode = 0  # the handle waits for the process; Popen must not
    return popen.pid


def limits_to_set(limits: ResourceLimits) -> list[tuple[int, int, int]]:
    """Return the limits as (resource, soft, hard), lowered to our own hard limits."""
    cpu = limits.cpu_seconds
    requested = (
        (resource.RLIMIT_AS, limits.memory, limits.memory),
        (resource.RLIMIT_CPU, cpu, None if cpu is None else cpu + _CPU_SECONDS_TO_STOP),
        (resource.RLIMIT_NOFILE, limits.open_files, limits.open_files),
        (resource.RLIMIT_NPROC, limits.processes, limits.processes),
    )
    lowered = []
    for name, soft, hard in requested:
        if soft is not None and hard is not None:
            own_hard = resource.getrlimit(name)[1]
            ceiling = _MAX_LIMIT if own_hard == resource.RLIM_INFINITY else own_hard
            lowered.append((name, min(soft, ceiling), min(hard, ceiling)))
    return lowered


class ExecRefusedByLimitsError(OSError):
    """The kernel refused to execute a program after the plugin's own limits were set."""


def failed_start(error: OSError | ValueError, launch: Launch) -> CouldNotStart:
    """Return the result of a launch whose process could not be started because of this error."""
    if not isinstance(error, OSError):
        # A NUL byte, or `=` in a name. The value is not quoted, since it may be secret.
        reason = "its environment or its arguments hold a name or value that no process can have"
        return CouldNotStart(error=f"{launch.entrypoint} could not be started: {reason}", permanent=True)
    reason = _explain_error(error, launch.entrypoint, launch.directory)
    return CouldNotStart(
        error=f"{launch.entrypoint} could not be started: {reason}",
        permanent=error.errno not in TRANSIENT_ERRNOS,
        resources_exhausted=error.errno in _RESOURCE_ERRNOS
        and not isinstance(error, ExecRefusedByLimitsError),
    )


def _explain_error(error: OSError, entrypoint: str, directory: str) -> str:
    """Return the likely cause of the error, and a remedy if there is one."""
    if not Path(directory).is_dir():
        return f"the working directory {directory} does not exist"
    match error.errno:
        case errno.ENOENT if "\r" in (shebang(entrypoint) or ""):
            return "its first line ends with a Windows line break; save it with Unix line breaks"
        case errno.ENOENT if Path(entrypoint).exists():
            return f"its first line names {shebang(entrypoint) or 'an interpreter'}, which does not exist"
        case errno.ENOENT:
            return "there is no such file"
        case errno.EACCES if not os.access(entrypoint, os.X_OK):
            return "it is not executable; use chmod +x"
        case errno.EACCES:
            return (
                "permission was denied, by its directory, its file system or the program its first line names"
            )
        case errno.ENOEXEC:
            return "it is neither a program for this machine nor a script that begins with #!"
        case errno.E2BIG:
            return "its environment and arguments are larger than the system allows"
    return error.strerror or str(error)


def shebang(entrypoint: str) -> str | None:
    """Return the text after `#!` in the first line, as the kernel reads it; None for a file without one."""
    try:
        with Path(entrypoint).open("rb") as file:
            first = file.readline(_LONGEST_SHEBANG)
    except OSError:
        return None
    if not first.startswith(b"#!"):
        return None
    return os.fsdecode(first[2:].strip(b" \t\n"))
