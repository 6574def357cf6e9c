"""What the last daemon left behind, before anything new is started.

Its plugins may still run and its jobs are still marked as running. Both are put in order here, in sweeps;
a stop is honoured between them, and what was not reached stays as it is for the next start.
"""

from __future__ import annotations

from collections.abc import Callable

from ductile.core.jobs.model import TERMINAL, JobStatus
from ductile.core.json import JsonObject
from ductile.core.policy import Policy
from ductile.engine.ownership.orphan_processes import OrphanProcess, kill_orphan_processes
from ductile.engine.waiters import Waiters
from ductile.errors import ConflictError
from ductile.store.model.records import JobFilter
from ductile.store.model.submission import JobStateChange
from ductile.store.port import Store
from ductile.telemetry.signals import Signal, SignalBus

#: How long processes that were sent SIGKILL may take to be gone, in seconds.
KILL_TIMEOUT_SECONDS = 10.0
_PAGE = 200


class Recovery:
    def __init__(
        self, store: Store, signals: SignalBus, waiters: Waiters, unwanted: Callable[[], bool]
    ) -> None:
        """`unwanted` says that the daemon is to stop."""
        self._store = store
        self._signals = signals
        self._waiters = waiters
        self._unwanted = unwanted

    async def run(self, rules: Policy) -> None:
        """End what outlived the last daemon, then put its jobs back. Raises if something cannot be ended."""
        if self._unwanted():
            return
        await self._end_survivors()
        more = True
        while more and not self._unwanted():
            moved = await self._store.recover(rules)
            for job in moved.jobs:
                self._tell(job)
            more = moved.more

    async def _end_survivors(self) -> None:
        sweep = await kill_orphan_processes(
            self._store.store_id, await self._running(), patience=KILL_TIMEOUT_SECONDS
        )
        for survivor in sweep.ended:
            self._emit(Signal.SURVIVOR_ENDED, survivor)
        for survivor in sweep.alive:
            self._emit(Signal.SURVIVOR_ALIVE, survivor)
        if sweep.alive:
            # Their jobs would run twice at the same time. Nothing is touched, so nothing is lost.
            pids = [survivor.pid for survivor in sweep.alive]
            raise ConflictError(
                f"processes of an earlier daemon do not end: {', '.join(map(str, pids))}",
                hint=f"See what they wait for: ps -o pid,stat,wchan,args -p {','.join(map(str, pids))}. "
                "Start Ductile again when they are gone.",
                details={"pids": pids},
            )

    async def _running(self) -> dict[str, str | None]:
        """The jobs that are about to be put back, each with the process that had claimed it."""
        found: dict[str, str | None] = {}
        cursor: str | None = None
        while True:
            page = await self._store.jobs(JobFilter(status=JobStatus.RUNNING), limit=_PAGE, cursor=cursor)
            found.update((job.id, job.owner) for job in page.rows)
            if (cursor := page.next_cursor) is None:
                return found

    def _emit(self, signal: Signal, survivor: OrphanProcess) -> None:
        self._signals.emit(signal, job_id=survivor.job_id, data={"pid": survivor.pid})

    def _tell(self, job: JobStateChange) -> None:
        data: JsonObject = {"status": job.status, "reason": job.reason, "attempt": job.attempt}
        self._signals.emit(Signal.JOB_RECOVERED, plugin=job.plugin, job_id=job.id, data=data)
        if job.status in TERMINAL:
            self._waiters.ended(job.id)
