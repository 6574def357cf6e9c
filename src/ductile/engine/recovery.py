"""Recovery: kill the processes that a dead daemon left here, then requeue or end its running jobs.

Recovery runs at the start, and when another node has ended. A killed daemon leaves its plugins running, each
in a session of its own. Requeuing their jobs while they still run would run a job twice at the same time.
Processes of jobs that have ended are left alone: a plugin may have started a background process on purpose.
"""

from __future__ import annotations

from collections.abc import Callable

from ductile.core.jobs.model import JobStatus
from ductile.core.json import JsonObject
from ductile.core.policy import Policy
from ductile.errors import ConflictError
from ductile.runner.orphans import kill_orphan_processes
from ductile.store.model.records import JobFilter
from ductile.store.port import Store
from ductile.telemetry.signals import Signal, SignalBus

#: How long killed processes may take to exit.
KILL_TIMEOUT_SECONDS = 10.0
_PAGE = 200


async def recover(
    store: Store, policy: Policy, signals: SignalBus, *, is_stopping: Callable[[], bool]
) -> None:
    """Recover in batches, until done or stopped; the next start continues.

    Raises `ConflictError`, and changes no job, if an orphan process cannot be killed.
    """
    if is_stopping():
        return
    cluster = store.cluster
    # A node that ends from here on may leave processes that this search misses: the next recovery finds them.
    live_owners = () if cluster is None else tuple(node.info.owner for node in await cluster.nodes())
    await kill_orphans(store, signals)
    more = True
    while more and not is_stopping():
        batch = await store.recover(policy, on_node=cluster is not None, live_owners=live_owners)
        for job in batch.jobs:
            data: JsonObject = {"status": job.status, "reason": job.reason, "attempt": job.attempt}
            signals.emit(Signal.JOB_RECOVERED, plugin=job.plugin, job_id=job.id, data=data)
        more = batch.more


async def kill_orphans(store: Store, signals: SignalBus) -> None:
    """Kill the processes of running jobs that dead daemons left on this machine, and wait for their end.

    Raises `ConflictError` if a process does not end.
    """
    owners: dict[str, str | None] = {}
    running, cursor, more = JobFilter(status=JobStatus.RUNNING), None, True
    while more:
        page = await store.list_jobs(running, limit=_PAGE, cursor=cursor)
        owners.update((job.id, job.owner) for job in page.rows)
        cursor = page.next_cursor
        more = cursor is not None
    result = await kill_orphan_processes(store.store_id, owners, timeout_seconds=KILL_TIMEOUT_SECONDS)
    for signal, orphans in ((Signal.ORPHAN_ENDED, result.ended), (Signal.ORPHAN_ALIVE, result.alive)):
        for orphan in orphans:
            signals.emit(signal, job_id=orphan.job_id, data={"pid": orphan.pid})
    if result.alive:
        # Starting would run their jobs twice at the same time.
        pids = [orphan.pid for orphan in result.alive]
        raise ConflictError(
            f"processes of an earlier daemon do not end: {', '.join(map(str, pids))}",
            hint=f"See what they wait for: ps -o pid,stat,wchan,args -p {','.join(map(str, pids))}. "
            "Start Ductile again when they are gone.",
            details={"pids": pids},
        )
