"""Starting a fork server and hearing whether it is fit."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
from collections.abc import Callable
from pathlib import Path
from signal import Signals

from ductile.runner.process.handle import open_handle
from ductile.runner.process.spawn_errors import TRANSIENT_ERRNOS
from ductile.runner.warm.client import ForkServerClient
from ductile.runner.warm.policy import ServerKey
from ductile.struct import Value

SERVER_PROGRAM = str(Path(__file__).with_name("server.py"))
_MAX_MESSAGE = 64 * 1024


class UnusableInterpreter(Value):
    """This interpreter, or what it was to import, cannot be used warm."""

    reason: str
    #: Nothing is wrong with it: the machine was short of something just now.
    passing: bool = False


async def launch(
    key: ServerKey, *, within: float, on_change: Callable[[ForkServerClient], None]
) -> ForkServerClient | UnusableInterpreter:
    """Start a server for the key. Returns `UnusableInterpreter`, and raises nothing, if that fails."""
    try:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    except OSError as error:
        return _not_started(key, error)
    ours.setblocking(False)
    try:
        popen = await asyncio.to_thread(_popen, key, theirs)
    except OSError as error:
        ours.close()
        return _not_started(key, error)
    finally:
        theirs.close()
    unfit = await _hear(ours, key, within)
    if unfit is None:
        try:
            leader = open_handle(popen.pid, asyncio.get_running_loop())
        except OSError as error:
            unfit = _not_started(key, error)
        else:
            popen.returncode = 0  # the leader waits for it from here on, and Popen must not
            return ForkServerClient(control=ours, leader=leader, on_change=on_change)
    ours.close()
    await asyncio.to_thread(_end, popen)
    return unfit


def _not_started(key: ServerKey, error: OSError) -> UnusableInterpreter:
    words = f"{key.interpreter} could not be started: {error.strerror}"
    return UnusableInterpreter(reason=words, passing=error.errno in TRANSIENT_ERRNOS)


def _popen(key: ServerKey, theirs: socket.socket) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [key.interpreter, SERVER_PROGRAM, str(theirs.fileno()), *key.preload],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        pass_fds=(theirs.fileno(),),
        env=dict(key.environment),
        cwd="/",
        start_new_session=True,
    )


def _end(popen: subprocess.Popen[bytes]) -> None:
    os.killpg(popen.pid, Signals.SIGKILL)
    popen.wait()


async def _hear(ours: socket.socket, key: ServerKey, within: float) -> UnusableInterpreter | None:
    """Wait for the server's first word; None when it is ready."""
    try:
        async with asyncio.timeout(within):
            data = await asyncio.get_running_loop().sock_recv(ours, _MAX_MESSAGE)
    except TimeoutError:
        return UnusableInterpreter(reason=f"{key.interpreter} was not ready within {within:g} s")
    except OSError:
        data = b""
    if not data:
        return UnusableInterpreter(reason=f"{key.interpreter} could not run the fork server")
    message = json.loads(data)
    if message["told"] == "unfit":
        return UnusableInterpreter(reason=f"{key.interpreter}: {message['reason']}")
    if not _same_file(message["executable"], key.interpreter):
        # A version manager's shim, which decides anew each time, or sets variables on the way.
        return UnusableInterpreter(reason=f"{key.interpreter} is a wrapper of {message['executable']}")
    return None


def _same_file(one: str, other: str) -> bool:
    try:
        return Path(one).samefile(other)
    except OSError:
        return False
