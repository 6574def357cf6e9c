"""The daemon's side of a fork server: starts it, requests processes from it, and holds their handles."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import select
import signal
import socket
import subprocess
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ductile.runner.port import ExitStatus, Launch
from ductile.runner.process.handle import OnExit, ProcessHandle, make_exit_status, open_handle, signal_group
from ductile.runner.process.spawn import TRANSIENT_ERRNOS, limits_to_set
from ductile.struct import Value

if TYPE_CHECKING:
    from ductile.runner.warm.pool import ServerKey

SERVER_PROGRAM = str(Path(__file__).with_name("server.py"))
_MAX_MESSAGE = 64 * 1024
#: A larger environment is left to a plain spawn, where the kernel decides.
_MAX_ENVIRONMENT = 128 * 1024


class UnusableInterpreter(Value):
    """An interpreter, or the modules to preload, cannot be used for warm starts."""

    reason: str
    #: The machine was short of a resource; the next attempt may succeed.
    transient: bool = False


class NotSentError(Exception):
    """The server did not receive the request: the process may be started in another way."""


class ForkRefusedError(Exception):
    """The server received the request and could not fork. There is no process."""


class ServerLostError(Exception):
    """The server was lost after it received the request. There may have been a process."""


class ForkedHandle:
    """A process whose parent is a fork server. Implements `ductile.runner.process.handle.ProcessHandle`."""

    def __init__(self, pid: int, client: ForkServerClient) -> None:
        self.pid = pid
        self._client = client
        self._pidfd: int | None = None
        with suppress(OSError):  # out of descriptors; `has_exited` then relies on the server
            self._pidfd = os.pidfd_open(pid)
        self._on_exit: OnExit | None = None
        self._status: ExitStatus | None = None
        self._lost = False

    def watch(self, on_exit: OnExit) -> None:
        self._on_exit = on_exit
        if self._status is not None or self._lost:
            asyncio.get_running_loop().call_soon(on_exit)

    def has_exited(self) -> bool:
        if self._pidfd is None:
            return self._status is not None
        poller = select.poll()
        poller.register(self._pidfd, select.POLLIN)
        return bool(poller.poll(0))

    def signal_group(self, number: signal.Signals) -> None:
        signal_group(self.pid, number)

    def reap(self) -> ExitStatus | None:
        if self._pidfd is not None:
            os.close(self._pidfd)
        self._client.reap(self.pid)
        return self._status

    def mark_exited(self, status: ExitStatus) -> None:
        """Store the status that the server has reported, and call `on_exit`."""
        self._status = status
        if self._on_exit is not None:
            self._on_exit()

    def mark_lost(self) -> None:
        """Kill the process of a server that is gone. Called at once, before the kernel can reuse the pid."""
        self.signal_group(signal.Signals.SIGKILL)
        self._lost = True
        if self._on_exit is not None and self._status is None:
            self._on_exit()


class ForkServerClient:
    """The connection to a server that is ready. `on_change` is called when it becomes idle or unusable."""

    def __init__(
        self, *, control: socket.socket, handle: ProcessHandle, on_change: Callable[[ForkServerClient], None]
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._control = control
        self._handle = handle
        self._on_change = on_change
        #: Fork requests without an answer, by id.
        self._starting: dict[int, asyncio.Future[ForkedHandle]] = {}
        self._running: dict[int, ForkedHandle] = {}
        self._unsent: deque[bytes] = deque()
        self._last_id = 0
        self._usable = True
        self._connected = True
        self._ended: asyncio.Future[None] = self._loop.create_future()
        self._loop.add_reader(control, self._on_readable)
        handle.watch(self._on_server_exit)

    @property
    def pid(self) -> int:
        return self._handle.pid

    @property
    def usable(self) -> bool:
        """Return whether new processes may be requested."""
        return self._usable

    @property
    def gone(self) -> bool:
        """Return whether the server has exited and been reaped."""
        return self._ended.done()

    @property
    def idle(self) -> bool:
        return not self._starting and not self._running

    def fork(
        self, launch: Launch, argv0: str, descriptors: tuple[int, int, int]
    ) -> asyncio.Future[ForkedHandle]:
        """Request a process with these descriptors as stdin, stdout and stderr.

        Raises `NotSentError` if the server certainly did not receive the request. The future raises
        `ForkRefusedError` or `ServerLostError`.
        """
        self._last_id += 1
        message = json.dumps(
            {
                "do": "fork",
                "id": self._last_id,
                "path": launch.entrypoint,
                "argv0": argv0,
                "directory": launch.directory,
                "limits": limits_to_set(launch.limits),
            }
        ).encode("ascii")
        environment = json.dumps(dict(launch.environment)).encode("ascii")
        if not self._usable or self._unsent or len(environment) > _MAX_ENVIRONMENT:
            raise NotSentError
        try:
            with _memory_file(environment) as file:
                socket.send_fds(self._control, [message], (*descriptors, file))
        except OSError as error:
            raise NotSentError from error
        started: asyncio.Future[ForkedHandle] = self._loop.create_future()
        self._starting[self._last_id] = started
        return started

    def reap(self, pid: int) -> None:
        """Let the server reap a process that it has reported as exited."""
        del self._running[pid]
        self._send({"do": "reap", "pid": pid})
        self._report_change()

    def retire(self) -> None:
        """Request no more processes; the server ends when the last of its processes has ended."""
        self._usable = False
        self._report_change()

    def kill(self) -> None:
        """Kill a server that does not respond. Its processes are lost."""
        self._usable = False
        self._handle.signal_group(signal.Signals.SIGKILL)

    async def close(self, timeout_seconds: float) -> None:
        """End the server and everything it has forked, and wait until it is gone."""
        self._usable = False
        self._disconnect()
        _, waiting = await asyncio.wait((self._ended,), timeout=timeout_seconds)
        if waiting:
            self.kill()
            await asyncio.wait(waiting)

    def _report_change(self) -> None:
        """Call `on_change`. Ends an unusable server when its last process has ended."""
        if self.idle and not self._usable:
            self._disconnect()
        self._on_change(self)

    def _send(self, message: dict[str, Any]) -> None:
        if self._connected:
            self._unsent.append(json.dumps(message).encode("ascii"))
            self._flush()

    def _flush(self) -> None:
        try:
            while self._unsent:
                self._control.send(self._unsent[0])
                self._unsent.popleft()
        except BlockingIOError:
            self._loop.add_writer(self._control, self._flush)
            return
        except OSError:
            self._unsent.clear()  # the server is gone; `_on_readable` notices it too
        self._loop.remove_writer(self._control)

    def _on_readable(self) -> None:
        try:
            data = self._control.recv(_MAX_MESSAGE)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._disconnect()
            return
        message = json.loads(data)
        match message["event"]:
            case "started":
                started = ForkedHandle(message["pid"], self)
                self._running[started.pid] = started
                self._starting.pop(message["id"]).set_result(started)
            case "refused":
                self._starting.pop(message["id"]).set_exception(ForkRefusedError())
            case "exited":
                handle = self._running.get(message["pid"])
                if handle is None:
                    # The supervisor gave it up while the server did not respond.
                    self._send({"do": "reap", "pid": message["pid"]})
                else:
                    handle.mark_exited(make_exit_status(exited=message["exited"], number=message["number"]))
            case "stale":
                self.retire()

    def _disconnect(self) -> None:
        """Close the socket, which ends a server that still runs. Its processes are lost."""
        if not self._connected:
            return
        self._connected = False
        self._usable = False
        self._loop.remove_writer(self._control)
        self._loop.remove_reader(self._control)
        self._control.close()
        for started in self._starting.values():
            started.set_exception(ServerLostError("the fork server was lost while it started the process"))
        self._starting.clear()
        for handle in tuple(self._running.values()):
            handle.mark_lost()
        self._on_change(self)

    def _on_server_exit(self) -> None:
        self._handle.reap()
        self._ended.set_result(None)
        self._on_change(self)


@contextmanager
def _memory_file(content: bytes) -> Iterator[int]:
    """Within the context, the content is in a file in memory; yields its descriptor.

    A server passes the descriptor of an environment to the new process without reading it.
    """
    descriptor = os.memfd_create("environment")
    try:
        unwritten = memoryview(content)
        while unwritten:
            unwritten = unwritten[os.write(descriptor, unwritten) :]
        yield descriptor
    finally:
        os.close(descriptor)


async def start_server(
    key: ServerKey, *, timeout_seconds: float, on_change: Callable[[ForkServerClient], None]
) -> ForkServerClient | UnusableInterpreter:
    """Start a server and wait until it is ready. A failure does not raise: it is an `UnusableInterpreter`."""
    try:
        daemon_socket, server_socket = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    except OSError as error:
        return _not_started(key, error)
    daemon_socket.setblocking(False)
    try:
        popen = await asyncio.to_thread(_start_program, key, server_socket)
    except OSError as error:
        daemon_socket.close()
        return _not_started(key, error)
    except RuntimeError:  # no thread can be started
        daemon_socket.close()
        return _not_started(key, OSError(errno.EAGAIN, "no thread can be started"))
    finally:
        server_socket.close()
    unusable = await _wait_until_ready(daemon_socket, key, timeout_seconds)
    if unusable is None:
        try:
            handle = open_handle(popen.pid, asyncio.get_running_loop())
        except OSError as error:
            unusable = _not_started(key, error)
        else:
            popen.returncode = 0  # the handle waits for the process; Popen must not
            return ForkServerClient(control=daemon_socket, handle=handle, on_change=on_change)
    daemon_socket.close()
    os.killpg(popen.pid, signal.Signals.SIGKILL)
    await asyncio.to_thread(popen.wait)
    return unusable


def _not_started(key: ServerKey, error: OSError) -> UnusableInterpreter:
    """Return the result for a server whose process could not be started."""
    reason = f"{key.interpreter} could not be started: {error.strerror}"
    return UnusableInterpreter(reason=reason, transient=error.errno in TRANSIENT_ERRNOS)


def _start_program(key: ServerKey, control: socket.socket) -> subprocess.Popen[bytes]:
    """Start the interpreter of a key with the program of the fork server.

    The descriptor is read here, in the thread. If the thread starts only after `control` was closed, the
    descriptor is invalid, so no process is started.
    """
    return subprocess.Popen(
        [key.interpreter, SERVER_PROGRAM, str(control.fileno()), *key.preload],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        pass_fds=(control.fileno(),),
        env=dict(key.environment),
        cwd="/",
        start_new_session=True,
    )


async def _wait_until_ready(
    control: socket.socket, key: ServerKey, timeout_seconds: float
) -> UnusableInterpreter | None:
    """Wait for the first message of the server. Returns None if it is ready."""
    try:
        async with asyncio.timeout(timeout_seconds):
            data = await asyncio.get_running_loop().sock_recv(control, _MAX_MESSAGE)
    except TimeoutError:
        return UnusableInterpreter(reason=f"{key.interpreter} was not ready within {timeout_seconds:g} s")
    except OSError:
        data = b""
    if not data:
        return UnusableInterpreter(reason=f"{key.interpreter} could not run the fork server")
    message = json.loads(data)
    if message["event"] == "unusable":
        return UnusableInterpreter(reason=f"{key.interpreter}: {message['reason']}")
    if not _is_same_file(message["executable"], key.interpreter):
        # The shim of a version manager may choose another interpreter each time, or set variables.
        return UnusableInterpreter(reason=f"{key.interpreter} is a wrapper of {message['executable']}")
    return None


def _is_same_file(path: str, other_path: str) -> bool:
    """Return whether both paths lead to one file; False if one of them cannot be read."""
    try:
        return Path(path).samefile(other_path)
    except OSError:
        return False
