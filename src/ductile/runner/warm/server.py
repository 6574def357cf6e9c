"""The fork server: a program of its own, run by the interpreter that a plugin's first line names.

It imports the modules that plugins declare, then forks one process for each request. It needs the standard
library of CPython 3.8 or newer and the modules beside it, never runs code of a plugin itself, and ends, with
everything it has forked, when the daemon closes the socket.

A forked process returns from `serve` and runs the plugin from the bottom of this file, as the interpreter
would have run it (see `bootstrap`). In any doubt it executes a new interpreter instead: when the plugin's
directory hides an imported module, or when an imported file has changed.
"""

# pathlib would be one more module in every process:
# ruff: noqa: PTH120, PTH123, PTH208
from __future__ import annotations

import sys

#: The names in `__main__` before the first line of a script, in this version of Python.
MAIN_NAMES = {name: value for name, value in globals().items() if name.startswith("__")}
#: Modules that every program finds imported. Files in a plugin's directory cannot hide these.
ALWAYS_LOADED = frozenset(name.partition(".")[0] for name in sys.modules)

import array  # noqa: E402 - the lines above must see the interpreter as it starts
import gc  # noqa: E402
import importlib  # noqa: E402
import json  # noqa: E402
import marshal  # noqa: E402
import os  # noqa: E402
import resource  # noqa: E402
import select  # noqa: E402
import signal  # noqa: E402
import socket  # noqa: E402
import warnings  # noqa: E402
from contextlib import suppress  # noqa: E402

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import CodeType
    from typing import Any, NoReturn

    from ductile.runner.warm import bootstrap, preload
else:
    import bootstrap
    import preload

    # Plugins must not find our files: neither this directory nor the modules that came from it.
    sys.path_importer_cache.pop(sys.path.pop(0), None)
    del sys.modules["bootstrap"], sys.modules["preload"]

#: Standard input, output and error of the new process, and a file that holds its environment.
DESCRIPTORS = 4
MAX_MESSAGE = 1024 * 1024
PR_SET_PDEATHSIG = 1


class ForkRequest:
    """One request, in the process that was forked for it.

    The environment holds secrets. Only this process reads it: if the server read it, it would stay in the
    memory of every process forked later.
    """

    def __init__(self, message: dict[str, Any], descriptors: Sequence[int]) -> None:
        *self.descriptors, environment = descriptors
        self.path: str = message["path"]
        self.argv0: str = message["argv0"]
        self.directory: str = message["directory"]
        self.environment: dict[str, str] = read_environment(environment)
        self.limits: list[tuple[int, int, int]] = message["limits"]


def read_environment(descriptor: int) -> dict[str, str]:
    size = os.fstat(descriptor).st_size
    environment: dict[str, str] = json.loads(os.pread(descriptor, size, 0).decode("ascii"))
    os.close(descriptor)
    return environment


class ForkServer:
    """Imports modules, then forks a process for each request of the daemon."""

    def __init__(self, control: socket.socket) -> None:
        self.control = control
        self.pid = os.getpid()
        self.running: set[int] = set()
        #: Processes that have exited and are not reaped, so that their pids stay reserved.
        self.exited: set[int] = set()
        self.wake_read, self.wake_write = os.pipe()
        os.set_blocking(self.wake_read, False)
        os.set_blocking(self.wake_write, False)
        # Through these, forked processes send the server the code that they have compiled before they run it.
        self.from_child, self.to_server = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.from_child.setblocking(False)
        self.to_server.setblocking(False)
        #: Compiled plugins by path, with the source that was compiled.
        self.code: dict[str, tuple[bytes, CodeType]] = {}
        #: Files that make this server out of date when they change.
        self.watched: dict[str, tuple[int, ...] | None] = {}
        self.preloaded: frozenset[str] = frozenset()
        #: Imported modules that a file beside a plugin would shadow.
        self.shadowable: frozenset[str] = frozenset()
        #: Objects with finalisers that preloaded modules have created.
        self.finalisable: list[Any] = []
        self.rng_tracker = preload.RngTracker()
        self.libc: Any = None

    # In the server

    def import_modules(self, modules: Sequence[str]) -> bool:
        """Import the modules and report to the daemon. Returns whether this interpreter can be forked."""
        missing = {}
        changes = preload.ImportChangeDetector()
        if modules:
            self.rng_tracker.start()
        for name in modules:
            try:
                importlib.import_module(name)
            except BaseException as error:  # noqa: BLE001 - a plugin that needs it reports the failure itself
                missing[name] = type(error).__name__
        self.rng_tracker.stop()
        self.libc = preload.find_libc()
        self.preloaded = frozenset(sys.modules)
        self.shadowable = frozenset(name.partition(".")[0] for name in self.preloaded) - ALWAYS_LOADED
        self.watched = {path: changes.file_signature(path) for path in preload.files_to_watch(__file__)}
        unusable = preload.unusable_reason()
        if unusable is not None:
            self.send({"event": "unusable", "reason": unusable})
            return False
        gc.collect()
        own_objects = [self.control, self.from_child, self.to_server]
        for stream in (sys.stdin, sys.stdout, sys.stderr):
            own_objects.extend(bootstrap.layers(stream))
        self.finalisable = bootstrap.find_finalisable(gc.get_objects(), own_objects)
        gc.freeze()
        gc.disable()
        self.send({"event": "ready", "executable": sys.executable, "missing": missing})
        return True

    def serve(self) -> ForkRequest | None:
        """Serve requests. Returns a request in each forked process, and None in the server at its end."""
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(self.wake_write, warn_on_full_buffer=False)
        poller = select.poll()
        for source in (self.control.fileno(), self.wake_read, self.from_child.fileno()):
            poller.register(source, select.POLLIN)
        while True:
            ready = {descriptor for descriptor, _ in poller.poll()}
            if self.from_child.fileno() in ready:
                self.receive_from_child()
            if self.wake_read in ready:
                self.report_exits()
            if self.control.fileno() in ready:
                message, descriptors = self.receive()
                if message is None:
                    self.kill_all()
                    return None
                if message["do"] == "reap":
                    self.reap(message["pid"])
                elif self.fork(message, descriptors):
                    return ForkRequest(message, descriptors)

    def receive(self) -> tuple[dict[str, Any] | None, Sequence[int]]:
        """Return a message of the daemon with its descriptors; None when the daemon has closed the socket."""
        space = socket.CMSG_SPACE(DESCRIPTORS * array.array("i").itemsize)
        data, ancillary, _, _ = self.control.recvmsg(MAX_MESSAGE, space, socket.MSG_CMSG_CLOEXEC)
        if not data:
            return None, ()
        descriptors = array.array("i")
        for level, kind, content in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                descriptors.frombytes(content[: len(content) - len(content) % descriptors.itemsize])
        return json.loads(data.decode("ascii")), tuple(descriptors)

    def send(self, message: dict[str, Any]) -> None:
        with suppress(OSError):  # if the daemon is gone, the next poll shows it
            self.control.send(json.dumps(message).encode("ascii"))

    def fork(self, message: dict[str, Any], descriptors: Sequence[int]) -> bool:
        """Fork one process. Returns True in the forked process."""
        pid = -1
        with suppress(OSError):
            if len(descriptors) == DESCRIPTORS:  # fewer arrive when this process can open no more
                pid = os.fork()
        if pid == 0:
            return True
        for descriptor in descriptors:
            os.close(descriptor)
        if pid > 0:
            self.running.add(pid)
            self.send({"event": "started", "id": message["id"], "pid": pid})
        else:
            self.send({"event": "refused", "id": message["id"]})
        return False

    def report_exits(self) -> None:
        """Report processes that have exited, without reaping them."""
        with suppress(BlockingIOError):
            while os.read(self.wake_read, 512):
                pass
        for pid in sorted(self.running):
            ended = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            if ended is not None:
                self.running.discard(pid)
                self.exited.add(pid)
                exited = ended.si_code == os.CLD_EXITED
                self.send({"event": "exited", "pid": pid, "exited": exited, "number": ended.si_status})

    def reap(self, pid: int) -> None:
        if pid in self.exited:
            self.exited.discard(pid)
            os.waitpid(pid, 0)

    def kill_all(self) -> None:
        for pid in self.running | self.exited:
            with suppress(OSError):
                os.kill(pid, signal.SIGKILL)
            with suppress(OSError):
                os.killpg(pid, signal.SIGKILL)

    def receive_from_child(self) -> None:
        """Store the code that a forked process has compiled, or report that this server is out of date."""
        try:
            data = self.from_child.recv(MAX_MESSAGE)
        except BlockingIOError:
            return
        if data == b"stale":
            self.send({"event": "stale"})
            return
        path, source, code = marshal.loads(data)  # noqa: S302 - written by `load` of this program
        self.code[path] = (source, code)

    # In the forked process

    def prepare_process(self, request: ForkRequest) -> None:
        """Bring this process into the state of a new interpreter before the plugin's first line."""
        os.setsid()
        if self.libc is not None:
            # /proc shows the server's environment for this process, so recovery cannot find it by its own.
            # Instead the kernel kills it when the server dies.
            self.libc.prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
        if os.getppid() != self.pid:
            os._exit(1)  # the server died before the call above
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        self.control.close()
        self.from_child.close()
        os.close(self.wake_read)
        os.close(self.wake_write)
        for target, descriptor in enumerate(request.descriptors):
            os.dup2(descriptor, target)
            os.close(descriptor)
        os.chdir(request.directory)
        for name, soft, hard in request.limits:
            resource.setrlimit(name, (soft, hard))
        try:
            cold = self.needs_cold_start(request.path)
            if not cold:
                bootstrap.replace_environment(request.environment)
                bootstrap.prepare_interpreter(request.argv0, request.path)
                self.rng_tracker.reseed()
        except Exception:  # noqa: BLE001 - the plugin is not at fault: it is started cold
            cold = True
        if cold:
            start_cold(request)

    def needs_cold_start(self, path: str) -> bool:
        """Return whether an import is out of date, or a file beside the plugin would shadow one."""
        if any(preload.file_signature(file) != signature for file, signature in self.watched.items()):
            self.send_to_server(b"stale")
            return True
        neighbours = os.listdir(os.path.dirname(os.path.realpath(path)))
        return any(name.partition(".")[0] in self.shadowable for name in neighbours)

    def load(self, request: ForkRequest) -> CodeType:
        """Return the plugin's code, from the cache if the file still has the same content."""
        try:
            with open(request.path, "rb") as file:
                source = file.read()
            cached = self.code.get(request.path)
            if cached is not None and cached[0] == source:
                return cached[1]
            code = compile_strictly(source, request.path)
        except Exception:  # noqa: BLE001 - the interpreter itself reports a faulty script best
            start_cold(request)
        self.send_to_server(marshal.dumps((request.path, source, code)))
        return code

    def send_to_server(self, data: bytes) -> None:
        with suppress(OSError):  # too large, or the server is busy: the next process compiles again
            self.to_server.send(data)


def compile_strictly(source: bytes, path: str) -> CodeType:
    """Return the compiled source. Raises on a warning, because the interpreter must print it at every run."""
    # The interpreter reads a file more strictly than `compile`: comments have to be UTF-8 too. A script in
    # another encoding is started cold.
    source.decode()
    with warnings.catch_warnings():
        warnings.simplefilter("error", SyntaxWarning)
        return compile(source, path, "exec", dont_inherit=True)


def start_cold(request: ForkRequest) -> NoReturn:
    """Execute a new interpreter in this process: same process id, pipes, session and environment."""
    os.execve(sys.executable, [request.argv0, request.path], request.environment)  # noqa: S606 - no shell is meant


if __name__ == "__main__":
    server = ForkServer(socket.socket(fileno=int(sys.argv[1])))
    server.control.setblocking(True)
    os.set_inheritable(server.control.fileno(), False)
    request = server.serve() if server.import_modules(sys.argv[2:]) else None
    if request is not None:
        server.prepare_process(request)
        code = server.load(request)
        server.to_server.close()
        main = bootstrap.make_main(MAIN_NAMES, request.path)
        gc.enable()
        status = bootstrap.run_script(code, main)
        del main
        bootstrap.end_process(status, server.preloaded, server.finalisable, server.libc)
