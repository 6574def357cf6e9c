"""A process that has imported `ductile` and forks itself for each script: most of a command is imports.

Started by `builders.processes` with the number of a socket. Each message on it brings a connection; the
command is read from there, and its process id and exit status are written to it. The server ends with the
socket.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import json
import os
import pkgutil
import runpy
import signal
import socket
import struct
import sys
import threading
import time
from pathlib import Path
from typing import NoReturn, TextIO

#: Libraries that are imported when they are first needed, which for a daemon with an API is at once.
_LIBRARIES = ("aiohttp", "jsonschema_rs", "prometheus_client", "ruamel.yaml", "uvicorn")
#: Few commands need the large libraries of these; the last one is a program, not a module.
_LEFT_OUT = ("ductile.mcp", "ductile.store.postgres", "ductile.watch", "ductile.runner.warm.server")
_STANDARD_STREAMS = 3
_STDERR = 2
_LENGTH = struct.Struct("!I")
_NUMBER = struct.Struct("!i")


def import_ductile() -> None:
    # Only the server needs these modules, and they take seconds to import.
    import ductile  # noqa: PLC0415
    from ductile.config.schema.model import settings_by_path  # noqa: PLC0415
    from ductile.store.named_sql import load_queries  # noqa: PLC0415

    for module in pkgutil.walk_packages(ductile.__path__, "ductile."):
        if not module.name.startswith(_LEFT_OUT):
            importlib.import_module(module.name)
    for name in _LIBRARIES:
        importlib.import_module(name)
    load_queries("ductile.store.sqlite")
    settings_by_path()  # three quarters of the time of a command that reads a configuration
    gc.collect()
    gc.freeze()  # a collection in a command would write to pages that are shared


def wait_for_command(requests: socket.socket) -> bool:
    """Fork for each connection. Return True in the process of a command, and False at the end."""
    while True:
        byte, descriptors, *_ = socket.recv_fds(requests, 1, 1)
        if not byte:
            return False
        connection = socket.socket(fileno=descriptors[0])
        if os.fork() == 0:
            requests.close()
            if _fork_command(connection):
                return True
        connection.close()


def _fork_command(connection: socket.socket) -> bool:
    """Return True in the process of the command. The other process reports the exit status and ends."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    size, streams, *_ = socket.recv_fds(connection, _LENGTH.size, _STANDARD_STREAMS)
    content = b""
    while len(content) < _LENGTH.unpack(size)[0]:
        content += connection.recv(65536)
    pid = os.fork()
    if pid == 0:
        connection.close()
        _become_command(json.loads(content), streams)
        return True
    for descriptor in streams:
        os.close(descriptor)
    connection.sendall(_NUMBER.pack(pid))
    _, status = os.waitpid(pid, 0)
    connection.sendall(_NUMBER.pack(os.waitstatus_to_exitcode(status)))
    os._exit(0)


def _become_command(command: dict[str, object], streams: list[int]) -> None:
    """Take over streams, directory, environment and arguments, as after the start of an interpreter."""
    for number, descriptor in enumerate(streams):
        os.dup2(descriptor, number)
    for descriptor in streams:
        os.close(descriptor)
    # The streams of the interpreter belong to other descriptors.
    sys.stdin = os.fdopen(0, encoding=sys.stdin.encoding, errors=sys.stdin.errors, closefd=False)
    sys.stdout = _output(1, sys.stdout)
    sys.stderr = _output(2, sys.stderr)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.chdir(str(command["directory"]))
    environment = command["environment"]
    words = command["words"]
    assert isinstance(environment, dict)
    assert isinstance(words, list)
    os.environ.clear()
    os.environ.update(environment)
    time.tzset()
    sys.argv = words
    sys.path.insert(0, str(Path(words[0]).parent))


def _output(number: int, like: TextIO) -> TextIO:
    """Return an output stream like those that an interpreter makes at its start."""
    buffering = 1 if number == _STDERR or os.isatty(number) else -1
    return os.fdopen(number, "w", buffering, encoding=like.encoding, errors=like.errors, closefd=False)


def run_script() -> NoReturn:
    """Run the script that `sys.argv` names, and end."""
    status = 0
    try:
        runpy.run_path(sys.argv[0], run_name="__main__")
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
    # An interpreter would also free every object, which takes as long as a command.
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the tests
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the processes that wait for commands are not waited for
    if os.fork():
        os._exit(0)  # the server is not a child of the tests, which check that they leave none behind
    import_ductile()
    if wait_for_command(socket.socket(fileno=int(sys.argv[1]))):
        run_script()
