"""The warm runner: forks Python plugins from prepared interpreters where it can, and spawns everything else.

A launch may be forked if the first line of its entrypoint and its environment allow it; in any doubt it is
spawned. There is one server for each interpreter and set of modules. It is started with the first launch that
needs it, replaced when it is lost or the modules it has imported have changed, and stopped when it has been
idle for a while.
"""

from __future__ import annotations

import asyncio
import os
import re
import stat
from functools import lru_cache
from operator import attrgetter

from ductile.runner.port import (
    OWNER_VARIABLE,
    STORE_VARIABLE,
    CouldNotStart,
    ForkServerLost,
    GracePeriods,
    Launch,
    StartedBy,
)
from ductile.runner.process.spawn import SpawnRunner, shebang
from ductile.runner.process.supervisor import PipeEnds, SupervisedProcess, open_pipes, write_request
from ductile.runner.warm.client import (
    ForkedHandle,
    ForkRefusedError,
    ForkServerClient,
    NotSentError,
    ServerLostError,
    UnusableInterpreter,
    start_server,
)
from ductile.struct import Value, hide_in_repr

#: Variables that change how an interpreter starts or what it loads. A fork cannot reproduce their effects.
_STARTUP_VARIABLES = ("PYTHON", "LD_", "DYLD_", "MALLOC_", "GLIBC_TUNABLES", "__PYVENV_LAUNCHER__")
#: The metadata of a file that change with its content or mode.
_METADATA = attrgetter("st_dev", "st_ino", "st_mode", "st_size", "st_mtime_ns", "st_ctime_ns")
_INTERPRETER = re.compile(r"python(3(\.\d+)?)?")
#: The environment of a server: variables that the interpreter reads, and those that recovery finds it by.
#: None of them is secret.
_SERVER_VARIABLES = ("PATH", "HOME", "LANG", "LANGUAGE", STORE_VARIABLE, OWNER_VARIABLE)


class Interpreter(Value):
    path: str
    #: The word in the first line, which need not be the path of the file.
    argv0: str


@hide_in_repr("environment")
class ServerKey(Value):
    """Launches with the same key can be forked from the same server."""

    interpreter: str
    preload: tuple[str, ...]
    environment: tuple[tuple[str, str], ...]


class WarmPlan(Value):
    """A launch that can be forked from the server of `key`."""

    key: ServerKey
    argv0: str


class ColdStart(Value):
    """A launch that is spawned, with the reason."""

    reason: str


def plan_warm_start(launch: Launch) -> WarmPlan | ColdStart:
    """Return the server from which a launch can be forked, or why it is spawned instead."""
    if not hasattr(os, "pidfd_open") or not hasattr(os, "memfd_create"):
        return ColdStart(reason="warm start needs Linux")
    if launch.warm is None:
        return ColdStart(reason="warm start is off for this plugin")
    if launch.arguments:
        return ColdStart(reason="a fork server passes no arguments")
    # The first line is examined early, because it decides for most plugins that start cold.
    try:
        status = os.stat(launch.entrypoint)  # noqa: PTH116 - hot path
    except OSError:
        return ColdStart(reason="the entrypoint cannot be run")
    first_line = _read_first_line(launch.entrypoint, _METADATA(status))
    if isinstance(first_line, ColdStart):
        return first_line
    interpreter = find_interpreter(first_line, launch.environment.get("PATH"))
    if isinstance(interpreter, ColdStart):
        return interpreter
    if startup_variables := sorted(
        name for name in launch.environment if name.startswith(_STARTUP_VARIABLES)
    ):
        return ColdStart(reason=f"{startup_variables[0]} is set, which changes how an interpreter starts")
    if any("\0" in word for pair in launch.environment.items() for word in pair):
        return ColdStart(reason="its environment is not possible")
    if not os.access(f"{launch.directory}/", os.X_OK):  # the slash: it has to be a directory
        return ColdStart(reason="its working directory cannot be entered")
    key = ServerKey(
        interpreter=interpreter.path,
        preload=tuple(sorted(set(launch.warm.preload))),
        environment=tuple(
            (name, value)
            for name, value in sorted(launch.environment.items())
            if name in _SERVER_VARIABLES or name.startswith("LC_")
        ),
    )
    return WarmPlan(key=key, argv0=interpreter.argv0)


@lru_cache(maxsize=256)
def _read_first_line(entrypoint: str, _metadata: tuple[int, ...]) -> str | ColdStart:
    """Return the text after `#!` in the first line of the entrypoint.

    Cached as long as the metadata stay the same: a stat costs a tenth of reading.
    """
    if not _is_executable_file(entrypoint):
        return ColdStart(reason="the entrypoint cannot be run")
    return shebang(entrypoint) or ""


def find_interpreter(first_line: str, search_path: str | None) -> Interpreter | ColdStart:
    """Return the Python that a first line names by its path or through `env`, without options."""
    interpreter = _parse_first_line(first_line)
    if not isinstance(interpreter, str):
        return interpreter
    for directory in (search_path or "").split(os.pathsep):
        candidate = f"{directory}/{interpreter}"
        if directory.startswith("/") and _is_executable_file(candidate):
            return Interpreter(path=candidate, argv0=interpreter)
    return ColdStart(reason=f"no {interpreter} was found on PATH")


@lru_cache(maxsize=256)
def _parse_first_line(first_line: str) -> Interpreter | str | ColdStart:
    """Return the interpreter that the line names by its path, or the name to search on PATH."""
    if "\r" in first_line:
        return ColdStart(reason="its first line ends with a Windows line break")
    match first_line.split():
        case [path] if path.startswith("/") and _INTERPRETER.fullmatch(os.path.basename(path)):  # noqa: PTH119
            return Interpreter(path=path, argv0=path)
        case [env, name] if env.startswith("/") and env.endswith("/env") and _INTERPRETER.fullmatch(name):
            return name
        case []:
            return ColdStart(reason="it has no first line that names an interpreter")
    return ColdStart(reason="its first line names no Python, or one with options")


def _is_executable_file(path: str) -> bool:
    try:
        return stat.S_ISREG(os.stat(path).st_mode) and os.access(path, os.X_OK)  # noqa: PTH116 - hot path
    except OSError:
        return False


class WarmTimeouts(Value):
    """The seconds that the runner waits for fork servers."""

    #: After this, a server that is not ready counts as unusable, and one that has not forked as lost.
    start: float = 10.0
    #: An unusable interpreter is tried again after this: it may have been repaired.
    retry: float = 300.0
    #: An idle server is stopped after this.
    idle: float = 300.0


class WarmRunner:
    """Forks what it can and spawns the rest. Implements `ductile.runner.port.Runner`."""

    def __init__(self, grace: GracePeriods | None = None, timeouts: WarmTimeouts | None = None) -> None:
        self._grace = grace or GracePeriods()
        self._timeouts = timeouts or WarmTimeouts()
        self._spawn_runner = SpawnRunner(self._grace)
        #: The latest attempt to start the server of each key.
        self._starts: dict[ServerKey, asyncio.Task[ForkServerClient | UnusableInterpreter]] = {}
        self._servers: set[ForkServerClient] = set()
        self._idle_timers: dict[ForkServerClient, asyncio.TimerHandle] = {}
        self._forking: set[asyncio.Future[ForkedHandle]] = set()
        self._active: set[SupervisedProcess] = set()

    async def start(self, launch: Launch) -> SupervisedProcess | CouldNotStart | ForkServerLost:
        plan = plan_warm_start(launch)
        if isinstance(plan, WarmPlan):
            server = await self._server_for(plan.key)
            if isinstance(server, ForkServerClient):
                started = await self._fork(server, launch, plan)
                if started is not None:
                    return started
        return await self._spawn_runner.start(launch)

    async def close(self) -> None:
        """Kill every process that runs or is being started, then stop the servers."""
        if self._forking:
            await asyncio.wait(self._forking)
        while self._active:
            for process in tuple(self._active):
                process.stop(at_once=True)
            await next(iter(self._active)).wait()
        await self._spawn_runner.close()
        for start in self._starts.values():
            await asyncio.wait((start,))
        for server in tuple(self._servers):
            await server.close(self._grace.after_terminate)

    @property
    def server_pids(self) -> frozenset[int]:
        """The pids of the servers that new processes may be forked from."""
        return frozenset(server.pid for server in self._servers if server.usable)

    async def _server_for(self, key: ServerKey) -> ForkServerClient | UnusableInterpreter:
        """Return the server of a key; it is started if there is none, or the last one is no longer usable."""
        start = self._starts.get(key)
        if start is not None and start.done():
            server = None if start.cancelled() or start.exception() is not None else start.result()
            if server is None or (isinstance(server, ForkServerClient) and not server.usable):
                start = None
        if start is None:
            start = self._starts[key] = asyncio.get_running_loop().create_task(self._start_server(key))
        return await asyncio.shield(start)

    async def _start_server(self, key: ServerKey) -> ForkServerClient | UnusableInterpreter:
        server = await start_server(key, timeout_seconds=self._timeouts.start, on_change=self._server_changed)
        if isinstance(server, ForkServerClient):
            self._servers.add(server)
            self._server_changed(server)
        else:
            pause = 0 if server.transient else self._timeouts.retry
            asyncio.get_running_loop().call_later(pause, self._starts.pop, key, None)
        return server

    async def _fork(
        self, server: ForkServerClient, launch: Launch, plan: WarmPlan
    ) -> SupervisedProcess | ForkServerLost | None:
        """Return a process, or None if there certainly is none and the launch may be spawned instead."""
        try:
            pipes = open_pipes()
        except OSError:
            return None
        try:
            forking = server.fork(launch, plan.argv0, pipes.plugin_ends)
        except NotSentError:
            pipes.close()
            return None
        self._stop_idle_timer(server)
        self._forking.add(forking)
        forking.add_done_callback(self._forking.discard)
        kill_timer = asyncio.get_running_loop().call_later(self._timeouts.start, server.kill)
        forking.add_done_callback(lambda _: kill_timer.cancel())
        try:
            handle = await asyncio.shield(forking)
        except asyncio.CancelledError:
            forking.add_done_callback(lambda done: self._discard(done, launch, pipes))
            raise
        except ForkRefusedError:
            pipes.close()
            return None
        except ServerLostError as error:
            pipes.close()
            return ForkServerLost(error=str(error))
        return self._supervise(handle, launch, pipes)

    def _supervise(self, handle: ForkedHandle, launch: Launch, pipes: PipeEnds) -> SupervisedProcess:
        pipes.close_plugin_ends()
        return SupervisedProcess(
            handle=handle,
            started_at=asyncio.get_running_loop().time(),
            pipes=pipes.daemon_ends,
            launch=launch,
            unsent=write_request(pipes.daemon_ends[0], launch.request),
            grace=self._grace,
            started_by=StartedBy.WARM,
            active=self._active,
        )

    def _discard(self, done: asyncio.Future[ForkedHandle], launch: Launch, pipes: PipeEnds) -> None:
        """Kill a process whose caller was cancelled while it was forked."""
        if done.exception() is None:
            self._supervise(done.result(), launch, pipes).stop(at_once=True)
        else:
            pipes.close()

    def _server_changed(self, server: ForkServerClient) -> None:
        """Forget a server that has ended, and start the idle time of one without processes."""
        self._stop_idle_timer(server)
        if server.gone:
            self._servers.discard(server)
        elif server.idle and server.usable:
            loop = asyncio.get_running_loop()
            self._idle_timers[server] = loop.call_later(self._timeouts.idle, server.retire)

    def _stop_idle_timer(self, server: ForkServerClient) -> None:
        timer = self._idle_timers.pop(server, None)
        if timer is not None:
            timer.cancel()
