"""The runner that forks Python plugins from prepared interpreters where it can, and spawns everything else.

There is one server for each interpreter and set of modules. It is started with the first launch that needs
it, replaced when it is lost or the modules it has imported have changed, and stopped when it has been idle
for a while.
"""

from __future__ import annotations

import asyncio

from ductile.runner.port import CouldNotStart, GracePeriods, Launch, RunnerLost, StartedBy
from ductile.runner.process.spawn import SpawnRunner
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
from ductile.runner.warm.policy import ColdStart, ServerKey, WarmPlan, plan_warm_start
from ductile.struct import Value


class WarmTimes(Value):
    """In seconds."""

    #: A server that is not ready after this counts as unusable, one that has not forked as lost.
    to_start: float = 10.0
    #: An unusable interpreter is tried again after this: it may have been repaired.
    until_retried: float = 300.0
    #: An idle server is stopped after this.
    until_idle_stop: float = 300.0


class WarmRunner:
    """Implements `ductile.runner.port.Runner`."""

    def __init__(self, grace: GracePeriods | None = None, times: WarmTimes | None = None) -> None:
        self._grace = grace or GracePeriods()
        self._times = times or WarmTimes()
        self._cold = SpawnRunner(self._grace)
        #: The latest attempt to start the server of each key.
        self._starts: dict[ServerKey, asyncio.Task[ForkServerClient | UnusableInterpreter]] = {}
        self._servers: set[ForkServerClient] = set()
        self._idle_timers: dict[ForkServerClient, asyncio.TimerHandle] = {}
        self._forking: set[asyncio.Future[ForkedHandle]] = set()
        self._active: set[SupervisedProcess] = set()

    async def start(self, launch: Launch) -> SupervisedProcess | CouldNotStart | RunnerLost:
        plan = plan_warm_start(launch)
        if isinstance(plan, WarmPlan):
            server = await self._server_for(plan.key)
            if isinstance(server, ForkServerClient):
                started = await self._fork(server, launch, plan)
                if started is not None:
                    return started
        return await self._cold.start(launch)

    async def why_cold(self, launch: Launch) -> str | None:
        """Return why this launch would be spawned; None if it would be forked."""
        plan = plan_warm_start(launch)
        if isinstance(plan, ColdStart):
            return plan.reason
        server = await self._server_for(plan.key)
        return server.reason if isinstance(server, UnusableInterpreter) else None

    async def close(self) -> None:
        """Kill everything that runs or is being started, then stop the servers."""
        if self._forking:
            await asyncio.wait(self._forking)
        while self._active:
            for process in tuple(self._active):
                process.stop(at_once=True)
            await next(iter(self._active)).wait()
        await self._cold.close()
        for start in self._starts.values():
            await asyncio.wait((start,))
        for server in tuple(self._servers):
            await server.close(self._grace.after_terminate)

    @property
    def server_pids(self) -> frozenset[int]:
        """The pids of the servers that new processes may be forked from."""
        return frozenset(server.pid for server in self._servers if server.usable)

    async def _server_for(self, key: ServerKey) -> ForkServerClient | UnusableInterpreter:
        start = self._starts.get(key)
        if start is None or (start.done() and not _is_current(start)):
            start = self._starts[key] = asyncio.get_running_loop().create_task(self._start_server(key))
        return await asyncio.shield(start)

    async def _start_server(self, key: ServerKey) -> ForkServerClient | UnusableInterpreter:
        server = await start_server(key, within=self._times.to_start, on_change=self._server_changed)
        if isinstance(server, ForkServerClient):
            self._servers.add(server)
            self._server_changed(server)
        else:
            pause = 0 if server.transient else self._times.until_retried
            asyncio.get_running_loop().call_later(pause, self._starts.pop, key, None)
        return server

    async def _fork(
        self, server: ForkServerClient, launch: Launch, plan: WarmPlan
    ) -> SupervisedProcess | RunnerLost | None:
        """Return a process, or None if there certainly is none and the launch may be spawned instead."""
        try:
            pipes = open_pipes()
        except OSError:
            return None
        try:
            forking = server.fork(launch, plan.argv0, pipes.theirs)
        except NotSentError:
            pipes.close()
            return None
        self._stop_idle_timer(server)
        self._forking.add(forking)
        forking.add_done_callback(self._forking.discard)
        hung = asyncio.get_running_loop().call_later(self._times.to_start, server.kill)
        forking.add_done_callback(lambda _: hung.cancel())
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
            return RunnerLost(error=str(error))
        return self._supervise(handle, launch, pipes)

    def _supervise(self, handle: ForkedHandle, launch: Launch, pipes: PipeEnds) -> SupervisedProcess:
        pipes.close_theirs()
        return SupervisedProcess(
            handle=handle,
            started_at=asyncio.get_running_loop().time(),
            pipes=pipes.ours,
            launch=launch,
            unsent=write_request(pipes.ours[0], launch.request),
            grace=self._grace,
            started_by=StartedBy.WARM,
            active=self._active,
        )

    def _discard(self, done: asyncio.Future[ForkedHandle], launch: Launch, pipes: PipeEnds) -> None:
        """The caller was cancelled while the process was being forked: kill it."""
        if done.exception() is None:
            self._supervise(done.result(), launch, pipes).stop(at_once=True)
        else:
            pipes.close()

    def _server_changed(self, server: ForkServerClient) -> None:
        self._stop_idle_timer(server)
        if server.gone:
            self._servers.discard(server)
        elif server.idle and server.usable:
            loop = asyncio.get_running_loop()
            self._idle_timers[server] = loop.call_later(self._times.until_idle_stop, server.retire)

    def _stop_idle_timer(self, server: ForkServerClient) -> None:
        timer = self._idle_timers.pop(server, None)
        if timer is not None:
            timer.cancel()


def _is_current(start: asyncio.Task[ForkServerClient | UnusableInterpreter]) -> bool:
    """Return whether the result of a finished start is still valid."""
    if start.cancelled() or start.exception() is not None:
        return False
    result = start.result()
    return isinstance(result, UnusableInterpreter) or result.usable
