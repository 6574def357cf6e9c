"""The runner that starts Python plugins warm where it can, and spawns everything else.

One server for each interpreter and set of modules, started when it is first wanted, replaced when it is
lost or what it has imported was changed, stopped when nobody has wanted it for a while.
"""

from __future__ import annotations

import asyncio

from ductile.runner.port import CouldNotStart, GracePeriods, Launch, RunnerLost, StartedBy
from ductile.runner.process.pipes import PipeEnds, open_pipes, write_request
from ductile.runner.process.spawn import SpawnRunner
from ductile.runner.process.supervisor import SharedTimer, SupervisedProcess
from ductile.runner.warm.client import (
    ForkedHandle,
    ForkRefusedError,
    ForkServerClient,
    NotSentError,
    ServerLostError,
)
from ductile.runner.warm.launch import UnusableInterpreter, launch
from ductile.runner.warm.policy import ColdStart, ServerKey, WarmPlan, plan_warm_start
from ductile.struct import Value


class WarmTimes(Value):
    """In seconds."""

    #: A server that has not got ready by then counts as unfit, one that has not forked as lost.
    to_start: float = 10.0
    #: An unfit one is tried again after this: somebody may have repaired it.
    until_retried: float = 300.0
    #: A server without work is stopped after this.
    until_idle_stop: float = 300.0


class WarmRunner:
    """Implements `ductile.runner.port.Runner`."""

    def __init__(self, patience: GracePeriods | None = None, times: WarmTimes | None = None) -> None:
        self._patience = patience or GracePeriods()
        self._times = times or WarmTimes()
        self._plain = SpawnRunner(self._patience)
        self._servers: dict[ServerKey, asyncio.Task[ForkServerClient | UnusableInterpreter]] = {}
        self._links: set[ForkServerClient] = set()
        self._idle_timers: dict[ForkServerClient, asyncio.TimerHandle] = {}
        self._asked: set[asyncio.Future[ForkedHandle]] = set()
        self._moments = SharedTimer()
        self._alive: set[SupervisedProcess] = set()

    async def start(self, run: Launch) -> SupervisedProcess | CouldNotStart | RunnerLost:
        plan = plan_warm_start(run)
        if isinstance(plan, WarmPlan):
            server = await self._server_for(plan.key)
            if isinstance(server, ForkServerClient):
                started = await self._fork(server, run, plan)
                if started is not None:
                    return started
        return await self._plain.start(run)

    async def why_cold(self, run: Launch) -> str | None:
        """Why this run would be spawned plainly; None when it would start warm."""
        plan = plan_warm_start(run)
        if isinstance(plan, ColdStart):
            return plan.reason
        server = await self._server_for(plan.key)
        return server.reason if isinstance(server, UnusableInterpreter) else None

    async def close(self) -> None:
        """End everything that still runs or is about to, at once, then the servers."""
        if self._asked:
            await asyncio.wait(self._asked)
        while self._alive:
            for process in tuple(self._alive):
                process.stop(at_once=True)
            await next(iter(self._alive)).wait()
        await self._plain.close()
        for starting in self._servers.values():
            await asyncio.wait((starting,))
        for link in tuple(self._links):
            await link.close(self._patience.after_terminate)

    @property
    def server_pids(self) -> frozenset[int]:
        """The servers that new processes may come from."""
        return frozenset(link.pid for link in self._links if link.usable)

    async def _server_for(self, key: ServerKey) -> ForkServerClient | UnusableInterpreter:
        task = self._servers.get(key)
        if task is None or (task.done() and not _still_good(task)):
            task = asyncio.get_running_loop().create_task(self._launch(key))
            self._servers[key] = task
        return await asyncio.shield(task)

    async def _launch(self, key: ServerKey) -> ForkServerClient | UnusableInterpreter:
        server = await launch(key, within=self._times.to_start, on_change=self._link_changed)
        if isinstance(server, ForkServerClient):
            self._links.add(server)
            self._link_changed(server)
        else:
            pause = 0 if server.passing else self._times.until_retried
            asyncio.get_running_loop().call_later(pause, self._servers.pop, key, None)
        return server

    async def _fork(
        self, server: ForkServerClient, run: Launch, plan: WarmPlan
    ) -> SupervisedProcess | RunnerLost | None:
        """A process, or None when there is certainly none and a plain spawn may be tried."""
        try:
            pipes = open_pipes()
        except OSError:
            return None
        try:
            asked = server.fork(run, plan.argv0, pipes.theirs)
        except NotSentError:
            pipes.close()
            return None
        self._stop_idle_timer(server)
        self._asked.add(asked)
        asked.add_done_callback(self._asked.discard)
        hung = asyncio.get_running_loop().call_later(self._times.to_start, server.kill)
        asked.add_done_callback(lambda _: hung.cancel())
        try:
            leader = await asyncio.shield(asked)
        except asyncio.CancelledError:
            asked.add_done_callback(lambda done: self._discard(done, run, pipes))
            raise
        except ForkRefusedError:
            pipes.close()
            return None
        except ServerLostError as error:
            pipes.close()
            return RunnerLost(error=str(error))
        return self._supervise(leader, run, pipes)

    def _supervise(self, leader: ForkedHandle, run: Launch, pipes: PipeEnds) -> SupervisedProcess:
        pipes.close_theirs()
        return SupervisedProcess(
            leader=leader,
            started_at=asyncio.get_running_loop().time(),
            ours=pipes.ours,
            run=run,
            rest=write_request(pipes.ours[0], run.request),
            patience=self._patience,
            moments=self._moments,
            started_by=StartedBy.WARM,
            among=self._alive,
        )

    def _discard(self, done: asyncio.Future[ForkedHandle], run: Launch, pipes: PipeEnds) -> None:
        """The caller was cancelled while the process was made: end it."""
        if done.exception() is None:
            self._supervise(done.result(), run, pipes).stop(at_once=True)
        else:
            pipes.close()

    def _link_changed(self, link: ForkServerClient) -> None:
        self._stop_idle_timer(link)
        if link.gone:
            self._links.discard(link)
        elif link.idle and link.usable:
            loop = asyncio.get_running_loop()
            self._idle_timers[link] = loop.call_later(self._times.until_idle_stop, link.retire)

    def _stop_idle_timer(self, link: ForkServerClient) -> None:
        timer = self._idle_timers.pop(link, None)
        if timer is not None:
            timer.cancel()


def _still_good(task: asyncio.Task[ForkServerClient | UnusableInterpreter]) -> bool:
    if task.cancelled() or task.exception() is not None:
        return False
    found = task.result()
    return isinstance(found, UnusableInterpreter) or found.usable
