"""One fork server as the daemon sees it: its socket, and the processes it has forked for us."""

from __future__ import annotations

import asyncio
import json
import os
import select
import signal
import socket
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from ductile.runner.port import ExitStatus, Launch
from ductile.runner.process.handle import OnExit, ProcessHandle, read_status, signal_group
from ductile.runner.process.rlimits import limits_to_set

_MAX_MESSAGE = 64 * 1024
#: A larger environment is left to a plain start, where the kernel says what is possible.
_MAX_ENVIRONMENT = 128 * 1024


class NotSentError(Exception):
    """The request for a process never reached the server: somebody else may start it."""


class ForkRefusedError(Exception):
    """The server has the request and could not fork. There is no process."""


class ServerLostError(Exception):
    """The server was lost after it had the request. There may have been a process."""


class ForkedHandle:
    """The leader of a group whose parent is the server. Implements `ductile.runner.process.handle.Leader`."""

    __slots__ = ("_link", "_lost", "_on_exit", "_pid", "_pidfd", "_status")

    def __init__(self, pid: int, link: ForkServerClient) -> None:
        self._pid = pid
        self._link = link
        self._pidfd: int | None = None
        with suppress(OSError):  # out of descriptors; then the server's word has to do
            self._pidfd = os.pidfd_open(pid)
        self._on_exit: OnExit | None = None
        self._status: ExitStatus | None = None
        self._lost = False

    @property
    def pid(self) -> int:
        return self._pid

    def watch(self, on_exit: OnExit) -> None:
        self._on_exit = on_exit
        if self._status is not None or self._lost:
            # It ended, or its server did, before anybody watched.
            asyncio.get_running_loop().call_soon(on_exit)

    def has_exited(self) -> bool:
        if self._pidfd is None:
            return self._status is not None
        poller = select.poll()
        poller.register(self._pidfd, select.POLLIN)
        return bool(poller.poll(0))

    def signal_group(self, number: signal.Signals) -> None:
        signal_group(self._pid, number)

    def reap(self) -> ExitStatus | None:
        if self._pidfd is not None:
            os.close(self._pidfd)
        self._link.reap(self._pid)
        return self._status

    def ended(self, status: ExitStatus) -> None:
        self._status = status
        if self._on_exit is not None:
            self._on_exit()

    def lost(self) -> None:
        """The server is gone. This comes at once, so the number cannot be anybody else's yet."""
        self.signal_group(signal.Signals.SIGKILL)
        self._lost = True
        if self._on_exit is not None and self._status is None:
            self._on_exit()


class ForkServerClient:
    """Talks to a server that said it is ready. `on_change` is called when it becomes idle or unusable."""

    def __init__(
        self, *, control: socket.socket, leader: ProcessHandle, on_change: Callable[[ForkServerClient], None]
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._control = control
        self._leader = leader
        self._on_change = on_change
        self._starting: dict[int, asyncio.Future[ForkedHandle]] = {}
        self._running: dict[int, ForkedHandle] = {}
        self._unsent: deque[bytes] = deque()
        self._numbers = 0
        self._usable = True
        self._connected = True
        self._ended: asyncio.Future[None] = self._loop.create_future()
        self._loop.add_reader(control, self._read)
        leader.watch(self._server_ended)

    @property
    def pid(self) -> int:
        return self._leader.pid

    @property
    def usable(self) -> bool:
        """Whether new processes may be asked for."""
        return self._usable

    @property
    def gone(self) -> bool:
        """Whether the server's process has ended and been reaped."""
        return self._ended.done()

    @property
    def idle(self) -> bool:
        return not self._starting and not self._running

    def fork(self, run: Launch, argv0: str, theirs: tuple[int, int, int]) -> asyncio.Future[ForkedHandle]:
        """Ask for a process. Raises `NotSentError` as long as it is certain that none will be."""
        self._numbers += 1
        message = _fork_message(self._numbers, run, argv0)
        environment = json.dumps(dict(run.environment)).encode("ascii")
        if not self._usable or self._unsent or len(environment) > _MAX_ENVIRONMENT:
            raise NotSentError
        try:
            with _in_memory(environment) as file:
                socket.send_fds(self._control, [message], (*theirs, file))
        except OSError as error:
            raise NotSentError from error
        answer: asyncio.Future[ForkedHandle] = self._loop.create_future()
        self._starting[self._numbers] = answer
        return answer

    def reap(self, pid: int) -> None:
        del self._running[pid]
        self._send({"do": "reap", "pid": pid})
        self._changed()

    def retire(self) -> None:
        """No more processes from this one; it ends when the last of them has ended."""
        self._usable = False
        self._changed()

    def kill(self) -> None:
        """For a server that does not answer. What it had is lost."""
        self._usable = False
        self._leader.signal_group(signal.Signals.SIGKILL)

    async def close(self, within: float) -> None:
        """End it, and everything it has forked, and wait until it is gone."""
        self._usable = False
        self._disconnect()
        _, waiting = await asyncio.wait((self._ended,), timeout=within)
        if waiting:
            self.kill()
            await asyncio.wait(waiting)

    def _changed(self) -> None:
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
            self._unsent.clear()  # it is gone; reading says so too
        self._loop.remove_writer(self._control)

    def _read(self) -> None:
        try:
            data = self._control.recv(_MAX_MESSAGE)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if data:
            self._told(json.loads(data))
        else:
            self._disconnect()

    def _told(self, message: dict[str, Any]) -> None:
        match message["told"]:
            case "started":
                self._started(message["id"], message["pid"])
            case "refused":
                self._starting.pop(message["id"]).set_exception(ForkRefusedError())
            case "ended":
                status = read_status(exited=message["exited"], number=message["number"])
                self._process_ended(message["pid"], status)
            case "stale":
                self.retire()

    def _started(self, number: int, pid: int) -> None:
        leader = ForkedHandle(pid, self)
        self._running[pid] = leader
        self._starting.pop(number).set_result(leader)

    def _process_ended(self, pid: int, status: ExitStatus) -> None:
        leader = self._running.get(pid)
        if leader is None:
            # It was given up while the server did not answer.
            self._send({"do": "reap", "pid": pid})
        else:
            leader.ended(status)

    def _disconnect(self) -> None:
        """The socket is closed, by us or by the end of the server: then whatever it had is lost."""
        if not self._connected:
            return
        self._connected = False
        self._usable = False
        self._loop.remove_writer(self._control)
        self._loop.remove_reader(self._control)
        self._control.close()
        for answer in self._starting.values():
            answer.set_exception(ServerLostError("the fork server was lost while it started the process"))
        self._starting.clear()
        for leader in tuple(self._running.values()):
            leader.lost()
        self._on_change(self)

    def _server_ended(self) -> None:
        self._leader.reap()
        self._ended.set_result(None)
        self._on_change(self)


def _fork_message(number: int, run: Launch, argv0: str) -> bytes:
    message = {
        "do": "fork",
        "id": number,
        "path": run.entrypoint,
        "argv0": argv0,
        "directory": run.directory,
        "limits": limits_to_set(run.limits),
    }
    return json.dumps(message).encode("ascii")


@contextmanager
def _in_memory(content: bytes) -> Iterator[int]:
    """A file that is nowhere else: the server passes it on to the new process and does not read it."""
    descriptor = os.memfd_create("environment")
    try:
        left = memoryview(content)
        while left:
            left = left[os.write(descriptor, left) :]
        yield descriptor
    finally:
        os.close(descriptor)
