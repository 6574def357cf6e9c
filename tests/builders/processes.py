"""Starts `ductile` in a process of its own: forked from a server that has imported it, or as a shell does.

A forked command has its own arguments, working directory, environment, streams and exit status. Tests of the
start and the end of an interpreter use a new one.
"""

from __future__ import annotations

import atexit
import json
import os
import select
import signal
import socket
import struct
import subprocess
import sys
import threading
import weakref
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import BinaryIO, Protocol

_SERVER = Path(__file__).parent / "fork_server.py"
#: Prefixes of variables that an interpreter reads when it starts. A forked command cannot have others.
_READ_AT_START = ("PYTHON", "LC_", "LANG", "LD_", "MALLOC")
_LANG = "C.UTF-8"


class Process(Protocol):
    """The part of `subprocess.Popen` that tests use."""

    pid: int

    def poll(self) -> int | None: ...
    def wait(self, timeout: float | None = None) -> int: ...
    def send_signal(self, sig: int, /) -> None: ...
    def terminate(self) -> None: ...
    def kill(self) -> None: ...


def start_command(
    words: Sequence[str | Path],
    *,
    directory: Path,
    environment: Mapping[str, str],
    streams: tuple[int, int, int],
    fresh: bool = False,
) -> Process:
    """Start a script of Python with these standard streams, which stay open in this process.

    With `fresh` the script runs in a new interpreter.
    """
    if fresh or not _can_fork(environment):
        return subprocess.Popen(
            [sys.executable, *words],
            cwd=directory,
            env=environment,
            stdin=streams[0],
            stdout=streams[1],
            stderr=streams[2],
        )
    command = {
        "words": list(map(str, words)),
        "directory": str(directory),
        "environment": dict(environment),
    }
    return _ForkedProcess(command, streams)


def start_with_output(
    words: Sequence[str | Path], *, directory: Path, environment: Mapping[str, str], fresh: bool = False
) -> tuple[Process, BinaryIO]:
    """Start a script without input. Return its process and its output, which the caller has to close."""
    reading, writing = os.pipe()
    with Path(os.devnull).open() as nothing, os.fdopen(writing, "wb") as output:
        process = start_command(
            words,
            directory=directory,
            environment=environment,
            streams=(nothing.fileno(), output.fileno(), 2),
            fresh=fresh,
        )
    return process, os.fdopen(reading, "rb")


def run_command(
    words: Sequence[str | Path],
    *,
    directory: Path,
    environment: Mapping[str, str],
    typed: str,
    seconds: float,
) -> tuple[int, str, str]:
    """Run a command with `typed` on its input. Return its exit status, output and errors."""
    with ExitStack() as stack:
        stdin, to_stdin = _a_pipe(stack)
        output, to_output = _a_pipe(stack)
        errors, to_errors = _a_pipe(stack)
        streams = (stdin.fileno(), to_output.fileno(), to_errors.fileno())
        process = start_command(words, directory=directory, environment=environment, streams=streams)
        for end in (stdin, to_output, to_errors):
            end.close()
        with ThreadPoolExecutor(2) as threads, _ended_after(process, seconds):
            written = threads.submit(_write_to, to_stdin, typed.encode())
            printed_errors = threads.submit(errors.read)
            printed = output.read()
            written.result()
            return process.wait(seconds), printed.decode(), printed_errors.result().decode()


def _a_pipe(stack: ExitStack) -> tuple[BinaryIO, BinaryIO]:
    """Return the reading and the writing end of a pipe; the stack closes them."""
    reading, writing = os.pipe()
    return stack.enter_context(os.fdopen(reading, "rb")), stack.enter_context(os.fdopen(writing, "wb"))


def _write_to(pipe: BinaryIO, content: bytes) -> None:
    with suppress(BrokenPipeError), pipe:
        pipe.write(content)


@contextmanager
def _ended_after(process: Process, seconds: float) -> Iterator[None]:
    """Kill a command that takes longer than this; the test fails then."""
    late = threading.Event()

    def end() -> None:
        late.set()
        process.kill()

    timer = threading.Timer(seconds, end)
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()
    assert not late.is_set(), f"a command took longer than {seconds} s"


def _can_fork(environment: Mapping[str, str]) -> bool:
    others = (name for name in environment if name != "LANG" or environment[name] != _LANG)
    return "LANG" in environment and not any(name.startswith(_READ_AT_START) for name in others)


@cache
def _server() -> socket.socket:
    """Start the server; it ends with this process."""
    own_end, server_end = socket.socketpair()
    environment = {"PATH": os.environ["PATH"], "LANG": _LANG}
    with server_end:
        subprocess.run(
            [sys.executable, "-P", str(_SERVER), str(server_end.fileno())],
            env=environment,
            cwd="/",
            stdin=subprocess.DEVNULL,
            pass_fds=[server_end.fileno()],
            check=True,
        )
    atexit.register(own_end.close)
    return own_end


_starting = threading.Lock()
_LENGTH = struct.Struct("!I")
_NUMBER = struct.Struct("!i")


class _ForkedProcess:
    def __init__(self, command: Mapping[str, object], streams: tuple[int, int, int]) -> None:
        own_end, server_end = socket.socketpair()
        with _starting, server_end:
            socket.send_fds(_server(), [b"+"], [server_end.fileno()])
        content = json.dumps(command).encode()
        socket.send_fds(own_end, [_LENGTH.pack(len(content))], list(streams))
        own_end.sendall(content)
        self._connection = own_end.detach()
        weakref.finalize(self, os.close, self._connection)
        self._reading = threading.Lock()
        self._status: int | None = None
        self.pid = self._read_number()

    def poll(self) -> int | None:
        try:
            return self.wait(0)
        except subprocess.TimeoutExpired:
            return None

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the exit status. Several threads may wait; one of them reads it from the connection."""
        poll = select.poll()
        poll.register(self._connection, select.POLLIN)
        if not poll.poll(None if timeout is None else timeout * 1000):
            raise subprocess.TimeoutExpired("ductile", timeout or 0)
        with self._reading:
            if self._status is None:
                self._status = self._read_number()
            return self._status

    def send_signal(self, sig: int, /) -> None:
        if self.poll() is None:
            with suppress(ProcessLookupError):  # it ends at this moment
                os.kill(self.pid, sig)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def _read_number(self) -> int:
        content = b""
        while len(content) < _NUMBER.size:
            part = os.read(self._connection, _NUMBER.size - len(content))
            assert part, "the fork server has died"
            content += part
        number: int = _NUMBER.unpack(content)[0]
        return number
