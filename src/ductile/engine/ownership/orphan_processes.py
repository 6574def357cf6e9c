"""Plugin processes that outlived their daemon: found by their environment, ended before recovery.

A daemon that was killed leaves its plugins running in sessions of their own. Starting their jobs again
beside them would run a job twice at the same time, so they are ended first, and their end is waited for.
What belongs to a job that has ended is none of our business: a plugin may have started it on purpose.

A copy of a store has the id of its original, and the same jobs. So a process is ours only if it was started
by the very process that this store recorded as the owner of the job, and only once that process is dead.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Iterator, Mapping
from pathlib import Path

from ductile.engine.ownership.process_identity import PROC, has_ended, pids_in
from ductile.struct import Value

STORE_VARIABLE = "DUCTILE_STORE_ID"
JOB_VARIABLE = "DUCTILE_JOB_ID"
OWNER_VARIABLE = "DUCTILE_DAEMON"


class OrphanProcess(Value):
    pid: int
    job_id: str | None


class CleanupResult(Value):
    """What became of the survivors. As long as one is alive its job must not be started again."""

    ended: tuple[OrphanProcess, ...]
    alive: tuple[OrphanProcess, ...] = ()


def find_orphan_processes(
    store_id: str, owners: Mapping[str, str | None], *, proc: Path = PROC
) -> tuple[OrphanProcess, ...]:
    """Processes of our user that a dead owner started for this store and one of these jobs.

    `owners` tells which process had claimed each job. A process that was started warm shows the environment
    of its server, which knows store and owner, and no job: it may be any of theirs. Whoever started us, or
    is in our session, is never among them, whatever it says: this daemon may have been started by a plugin.
    """
    found = []
    ours = frozenset(_ancestors(proc))
    dead: dict[str, bool] = {}
    for pid in pids_in(proc):
        variables = _environment(proc / str(pid) / "environ")
        if variables.get(STORE_VARIABLE) != store_id:
            continue
        job_id = variables.get(JOB_VARIABLE)
        owner = variables.get(OWNER_VARIABLE) or _earlier_owner(owners, job_id)
        if owner is None:
            continue
        recorded = owner in owners.values() if job_id is None else owners.get(job_id) == owner
        if not recorded or pid in ours or _in_our_session(pid):
            continue
        if owner not in dead:
            dead[owner] = has_ended(owner, proc=proc)
        if dead[owner]:
            found.append(OrphanProcess(pid=pid, job_id=job_id))
    return tuple(found)


def _earlier_owner(owners: Mapping[str, str | None], job_id: str | None) -> str | None:
    """The owner of a process without the variable: an earlier version set none, and recorded `host:pid`."""
    candidates = owners.values() if job_id is None else (owners.get(job_id),)
    return next((owner for owner in candidates if owner is not None and owner.count(":") == 1), None)


def _ancestors(proc: Path) -> Iterator[int]:
    """This process, its parent, and so on."""
    pid = os.getpid()
    with contextlib.suppress(OSError):
        while pid:
            yield pid
            # The name of the program, in brackets, may hold anything.
            pid = int((proc / str(pid) / "stat").read_bytes().rpartition(b")")[2].split()[1])


def _in_our_session(pid: int) -> bool:
    try:
        return os.getsid(pid) == os.getsid(0)
    except OSError:  # it ended by itself
        return True


def _environment(path: Path) -> dict[str, str]:
    try:
        raw = path.read_bytes()
    except OSError:  # gone meanwhile, or somebody else's
        return {}
    pairs = (part.partition("=") for part in raw.decode(errors="replace").split("\0"))
    return {name: value for name, found, value in pairs if found}


async def kill_orphan_processes(
    store_id: str, owners: Mapping[str, str | None], *, patience: float, proc: Path = PROC
) -> CleanupResult:
    """Kill every survivor with its group, and wait until each is gone, but no longer than `patience` seconds.

    What they forked meanwhile is found too, by looking again.
    """
    ended: dict[int, OrphanProcess] = {}
    end = asyncio.get_running_loop().time() + patience
    while survivors := await asyncio.to_thread(find_orphan_processes, store_id, owners, proc=proc):
        left = end - asyncio.get_running_loop().time()
        if left <= 0:
            return CleanupResult(ended=_without(ended, survivors), alive=survivors)
        await asyncio.gather(*(_end(survivor.pid, left) for survivor in survivors))
        ended |= {survivor.pid: survivor for survivor in survivors}
    return CleanupResult(ended=tuple(ended.values()))


def _without(ended: dict[int, OrphanProcess], alive: tuple[OrphanProcess, ...]) -> tuple[OrphanProcess, ...]:
    left = {survivor.pid for survivor in alive}
    return tuple(survivor for pid, survivor in ended.items() if pid not in left)


async def _end(pid: int, patience: float) -> None:
    try:
        descriptor = os.pidfd_open(pid)
    except OSError:  # it ended by itself
        return
    try:
        _kill(pid, descriptor)
        await _gone(descriptor, patience)
    finally:
        os.close(descriptor)


def _kill(pid: int, descriptor: int) -> None:
    # The descriptor names the process, not the number: if it ended meanwhile, nobody else is hit by it.
    with contextlib.suppress(ProcessLookupError, PermissionError):
        group = os.getpgid(pid)
        signal.pidfd_send_signal(descriptor, signal.SIGKILL)
        if group == pid:
            os.killpg(group, signal.SIGKILL)


async def _gone(descriptor: int, patience: float) -> None:
    """Until the process has ended; one that the kernel cannot end now is not waited for any longer."""
    loop, ended = asyncio.get_running_loop(), asyncio.Event()
    loop.add_reader(descriptor, ended.set)
    try:
        async with asyncio.timeout(patience):
            await ended.wait()
    except TimeoutError:
        return
    finally:
        loop.remove_reader(descriptor)
