"""The fork server: a program of its own, run by the interpreter that a plugin's first line names.

It imports what plugins declare, then forks one process for each request. It needs nothing but the
standard library of CPython 3.8 or newer and its neighbours in this directory, never runs a line of a plugin
itself, and ends, with everything it has forked, when the daemon closes the socket.

A forked process leaves the server's loop, comes back up to the bottom of this file and runs the plugin
from there, as the interpreter would have run it (`scripted` knows how). In any doubt it replaces itself
by a plain start of the interpreter: when the plugin's directory hides a module that is imported here,
or when an imported file has changed.
"""

# pathlib would be one more module in every process:
# ruff: noqa: PTH120, PTH123, PTH208
from __future__ import annotations

import sys

#: What a script's `__main__` holds before its first line runs, in this version of Python.
MAIN_NAMES = {name: value for name, value in globals().items() if name.startswith("__")}
#: What any program finds imported. Files in a plugin's directory cannot hide these.
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

    from ductile.runner.warm import chance, fitness, scripted
else:
    import chance
    import fitness
    import scripted

    # Nothing of ours is to be found by plugins: neither this directory nor what came from it.
    sys.path_importer_cache.pop(sys.path.pop(0), None)
    del sys.modules["chance"], sys.modules["fitness"], sys.modules["scripted"]

#: Standard input, output and error of the new process, and a file that holds its environment.
DESCRIPTORS = 4
MAX_MESSAGE = 1024 * 1024
PR_SET_PDEATHSIG = 1


class ForkRequest:
    """One request, in the process that was forked for it.

    The environment holds secrets. Only this process reads it: what the server had read would be found in
    the memory of every process that it forks later.
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
    def __init__(self, control: socket.socket) -> None:
        self.control = control
        self.pid = os.getpid()
        self.alive: set[int] = set()
        self.ended: set[int] = set()
        self.wake_read, self.wake_write = os.pipe()
        os.set_blocking(self.wake_read, False)
        os.set_blocking(self.wake_write, False)
        # Forked processes tell the server here, before they run the plugin, what they had to compile.
        self.news, self.news_of_child = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.news.setblocking(False)
        self.news_of_child.setblocking(False)
        #: path -> the bytes that were compiled, and the result
        self.code: dict[str, tuple[bytes, CodeType]] = {}
        self.watched: dict[str, tuple[int, ...] | None] = {}
        self.known: frozenset[str] = frozenset()
        self.hidable: frozenset[str] = frozenset()
        #: What preloaded modules have made and has something to do when it is destroyed.
        self.older: list[Any] = []
        self.chance = chance.Chance()
        self.libc: Any = None

    # In the server

    def prepare(self, modules: Sequence[str]) -> bool:
        """Import, look around, and say whether this interpreter is fit to be forked."""
        missing = {}
        meanwhile = fitness.Meanwhile()
        if modules:
            self.chance.watch()
        for name in modules:
            try:
                importlib.import_module(name)
            except BaseException as error:  # noqa: BLE001 - a plugin that needs it will fail in its own words
                missing[name] = type(error).__name__
        self.chance.stop_watching()
        self.libc = fitness.find_libc()
        self.known = frozenset(sys.modules)
        self.hidable = frozenset(name.partition(".")[0] for name in self.known) - ALWAYS_LOADED
        self.watched = {path: meanwhile.stamp(path) for path in fitness.files_to_watch(__file__)}
        unfit = fitness.why_unfit()
        if unfit is not None:
            self.send({"told": "unfit", "reason": unfit})
            return False
        gc.collect()
        ours = [self.control, self.news, self.news_of_child]
        for stream in (sys.stdin, sys.stdout, sys.stderr):
            ours.extend(scripted.layers(stream))
        self.older = scripted.find_last_words(gc.get_objects(), ours)
        gc.freeze()
        gc.disable()
        self.send({"told": "ready", "executable": sys.executable, "missing": missing})
        return True

    def serve(self) -> ForkRequest | None:
        """Returns a job in each forked process, and None in the server when it is time to end."""
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(self.wake_write, warn_on_full_buffer=False)
        poller = select.poll()
        for source in (self.control.fileno(), self.wake_read, self.news.fileno()):
            poller.register(source, select.POLLIN)
        while True:
            ready = {descriptor for descriptor, _ in poller.poll()}
            if self.news.fileno() in ready:
                self.learn()
            if self.wake_read in ready:
                self.report_ends()
            if self.control.fileno() in ready:
                message, descriptors = self.receive()
                if message is None:
                    self.end_everything()
                    return None
                if message["do"] == "reap":
                    self.reap(message["pid"])
                elif self.fork(message, descriptors):
                    return ForkRequest(message, descriptors)

    def receive(self) -> tuple[dict[str, Any] | None, Sequence[int]]:
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
        with suppress(OSError):  # when the daemon is gone the next poll says so
            self.control.send(json.dumps(message).encode("ascii"))

    def fork(self, message: dict[str, Any], descriptors: Sequence[int]) -> bool:
        """Fork one process; true in the forked one."""
        pid = -1
        with suppress(OSError):
            if len(descriptors) == DESCRIPTORS:  # fewer have arrived when this process can hold no more
                pid = os.fork()
        if pid == 0:
            return True
        for descriptor in descriptors:
            os.close(descriptor)
        if pid > 0:
            self.alive.add(pid)
            self.send({"told": "started", "id": message["id"], "pid": pid})
        else:
            self.send({"told": "refused", "id": message["id"]})
        return False

    def report_ends(self) -> None:
        """Tell who has ended, and leave it unreaped: its process id must stay taken."""
        with suppress(BlockingIOError):
            while os.read(self.wake_read, 512):
                pass
        for pid in sorted(self.alive):
            found = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            if found is not None:
                self.alive.discard(pid)
                self.ended.add(pid)
                exited = found.si_code == os.CLD_EXITED
                self.send({"told": "ended", "pid": pid, "exited": exited, "number": found.si_status})

    def reap(self, pid: int) -> None:
        if pid in self.ended:
            self.ended.discard(pid)
            os.waitpid(pid, 0)

    def end_everything(self) -> None:
        for pid in self.alive | self.ended:
            with suppress(OSError):
                os.kill(pid, signal.SIGKILL)
            with suppress(OSError):
                os.killpg(pid, signal.SIGKILL)

    def learn(self) -> None:
        """Keep what a forked process had compiled, for the next one."""
        try:
            data = self.news.recv(MAX_MESSAGE)
        except BlockingIOError:
            return
        if data == b"stale":
            self.send({"told": "stale"})
            return
        path, source, code = marshal.loads(data)  # noqa: S302 - made by this very program, see `load`
        self.code[path] = (source, code)

    # In the forked process

    def enter(self, job: ForkRequest) -> None:
        """Become what a freshly started interpreter would be, up to the plugin's first line."""
        os.setsid()
        if self.libc is not None:
            # /proc shows the server's environment for this process, so that recovery cannot find it by
            # its own; instead the kernel ends it when the server dies.
            self.libc.prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
        if os.getppid() != self.pid:
            os._exit(1)  # it died before the line above
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        self.control.close()
        self.news.close()
        os.close(self.wake_read)
        os.close(self.wake_write)
        for target, descriptor in enumerate(job.descriptors):
            os.dup2(descriptor, target)
            os.close(descriptor)
        os.chdir(job.directory)
        for name, soft, hard in job.limits:
            resource.setrlimit(name, (soft, hard))
        try:
            # From here on a new interpreter can do what we cannot.
            plainly = self.must_start_plainly(job.path)
            if not plainly:
                scripted.replace_environment(job.environment)
                scripted.prepare_interpreter(job.argv0, job.path)
                self.chance.renew()
        except Exception:  # noqa: BLE001 - whatever it is, it is not the plugin's fault
            plainly = True
        if plainly:
            start_plainly(job)

    def must_start_plainly(self, path: str) -> bool:
        if any(fitness.stamp(file) != seen for file, seen in self.watched.items()):
            self.tell_server(b"stale")
            return True
        beside = os.listdir(os.path.dirname(os.path.realpath(path)))
        return any(name.partition(".")[0] in self.hidable for name in beside)

    def load(self, job: ForkRequest) -> CodeType:
        """The plugin's code, from memory if the file still holds the same bytes."""
        try:
            with open(job.path, "rb") as file:
                source = file.read()
            known = self.code.get(job.path)
            if known is not None and known[0] == source:
                return known[1]
            code = compile_quietly(source, job.path)
        except Exception:  # noqa: BLE001 - the interpreter knows best how to tell what is wrong with a script
            start_plainly(job)
        self.tell_server(marshal.dumps((job.path, source, code)))
        return code

    def tell_server(self, data: bytes) -> None:
        with suppress(OSError):  # too large, or the server is busy: then the next process compiles again
            self.news_of_child.send(data)


def compile_quietly(source: bytes, path: str) -> CodeType:
    """Compile, or fail if there is something to say about the script: that must be said at every run."""
    # The interpreter reads a file more strictly than `compile`: comments, too, have to be UTF-8. Who names
    # another encoding is started plainly.
    source.decode()
    with warnings.catch_warnings():
        warnings.simplefilter("error", SyntaxWarning)
        return compile(source, path, "exec", dont_inherit=True)


def start_plainly(job: ForkRequest) -> NoReturn:
    """A new interpreter in this process: same process id, pipes, session and environment."""
    os.execve(sys.executable, [job.argv0, job.path], job.environment)  # noqa: S606 - no shell is meant


if __name__ == "__main__":
    server = ForkServer(socket.socket(fileno=int(sys.argv[1])))
    server.control.setblocking(True)
    os.set_inheritable(server.control.fileno(), False)
    job = server.serve() if server.prepare(sys.argv[2:]) else None
    if job is not None:
        server.enter(job)
        code = server.load(job)
        server.news_of_child.close()
        main = scripted.make_main(MAIN_NAMES, job.path)
        gc.enable()
        ending = scripted.run_script(code, main)
        del main
        scripted.end(ending, server.known, server.older, server.libc)
