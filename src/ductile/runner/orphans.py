"""Identifies processes; finds and kills orphans, the processes that a dead daemon has left behind.

A copied store has the id and the jobs of its original. So a process counts as an orphan of this store only
if it was started by the very process that the store recorded as the job's owner, and that owner is dead. The
owner is recorded by its identity, `prefix:pid:start time`: the kernel reuses pids.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from ductile.runner.port import JOB_VARIABLE, OWNER_VARIABLE, STORE_VARIABLE
from ductile.struct import Value

PROC = Path("/proc")
#: States of a process that has exited: zombie or dead.
_EXITED = (b"Z", b"X", b"x")
#: PF_EXITING: the kernel is tearing the process down. It releases its locks before it becomes a zombie.
_EXITING_FLAG = 0x4


def make_identity(prefix: str) -> str:
    """Return the identity of this process. `prefix` is for readers only; nothing compares it."""
    pid = os.getpid()
    return f"{prefix}:{pid}:{_start_time_if_alive(PROC / str(pid)) or 0}"


def has_ended(identity: str, *, proc: Path = PROC) -> bool:
    """Return whether no live process has this identity. A string that is not an identity counts as ended."""
    match identity.rsplit(":", 2):
        case [_, pid, start_time] if pid.isdigit() and start_time.isdigit():
            return not any(
                _start_time_if_alive(proc / str(local_pid)) == int(start_time)
                and _pid_in_own_namespace(proc / str(local_pid), local_pid) == int(pid)
                for local_pid in list_pids(proc)
            )
    return True


def list_pids(proc: Path) -> list[int]:
    """Return the pids of all processes; none if this system has no /proc."""
    try:
        return [int(entry.name) for entry in proc.iterdir() if entry.name.isdigit()]
    except OSError:
        return []


def _read_stat(directory: Path) -> list[bytes]:
    """Return the fields of `stat` after the program's name, which is in parentheses and may contain `)`."""
    try:
        return (directory / "stat").read_bytes().rpartition(b")")[2].split()
    except OSError:  # The process is gone, or this system has no /proc.
        return []


def _start_time_if_alive(directory: Path) -> int | None:
    """Return when a live process was started, in clock ticks since boot; None for a dead one."""
    fields = _read_stat(directory)
    if not fields or fields[0] in _EXITED or int(fields[6]) & _EXITING_FLAG:
        return None
    return int(fields[19])


def _pid_in_own_namespace(directory: Path, pid: int) -> int:
    """Return the pid as the process itself sees it; in a container it differs from ours."""
    with suppress(OSError):
        for line in (directory / "status").read_bytes().splitlines():
            if line.startswith(b"NSpid:"):
                return int(line.split()[-1])
    return pid


class OrphanProcess(Value):
    pid: int
    #: None for a process that a fork server started: its environment is the server's, which names no job.
    job_id: str | None


class CleanupResult(Value):
    """The killed orphans, and those that are still alive. Jobs of live orphans must not be started."""

    ended: tuple[OrphanProcess, ...]
    alive: tuple[OrphanProcess, ...] = ()


def find_orphan_processes(
    store_id: str, owners: Mapping[str, str | None], *, proc: Path = PROC
) -> tuple[OrphanProcess, ...]:
    """Return the processes of our user that a dead owner started for one of these jobs of this store.

    `owners` maps each running job to the identity of the process that claimed it. Our own ancestors and the
    members of our session are never included: a plugin may have started this daemon.
    """
    orphans = []
    ancestors = _own_ancestors(proc)
    owner_ended: dict[str, bool] = {}
    for pid in list_pids(proc):
        variables = _read_environment(proc / str(pid) / "environ")
        if variables.get(STORE_VARIABLE) != store_id:
            continue
        job_id = variables.get(JOB_VARIABLE)
        owner = variables.get(OWNER_VARIABLE)
        if not owner:
            # Earlier versions set no owner variable and recorded the owner as `host:pid`.
            candidates = owners.values() if job_id is None else (owners.get(job_id),)
            owner = next((name for name in candidates if name is not None and name.count(":") == 1), None)
        if owner is None:
            continue
        is_recorded = owner in owners.values() if job_id is None else owners.get(job_id) == owner
        if not is_recorded or pid in ancestors or _is_in_our_session(pid):
            continue
        if owner not in owner_ended:
            owner_ended[owner] = has_ended(owner, proc=proc)
        if owner_ended[owner]:
            orphans.append(OrphanProcess(pid=pid, job_id=job_id))
    return tuple(orphans)


def _own_ancestors(proc: Path) -> set[int]:
    """Return the pids of this process, its parent, and so on up to init."""
    pid, pids = os.getpid(), set[int]()
    while pid:
        pids.add(pid)
        fields = _read_stat(proc / str(pid))
        pid = int(fields[1]) if fields else 0
    return pids


def _is_in_our_session(pid: int) -> bool:
    """Return whether the process is in the session of this one. True for a process that has exited."""
    try:
        return os.getsid(pid) == os.getsid(0)
    except OSError:
        return True


def _read_environment(path: Path) -> dict[str, str]:
    """Return the environment with which a process was started; empty if it cannot be read."""
    try:
        raw = path.read_bytes()
    except OSError:  # The process has exited, or belongs to another user.
        return {}
    pairs = (part.partition("=") for part in raw.decode(errors="replace").split("\0"))
    return {name: value for name, separator, value in pairs if separator}


async def kill_orphan_processes(
    store_id: str, owners: Mapping[str, str | None], *, timeout_seconds: float, proc: Path = PROC
) -> CleanupResult:
    """Kill every orphan with its process group and wait until all are gone, up to `timeout_seconds`.

    Repeats the search, because an orphan may have forked between the search and its death.
    """
    killed: dict[int, OrphanProcess] = {}
    loop = asyncio.get_running_loop()
    deadline = loop.time() + timeout_seconds
    while orphans := await asyncio.to_thread(find_orphan_processes, store_id, owners, proc=proc):
        seconds_left = deadline - loop.time()
        if seconds_left <= 0:
            for orphan in orphans:
                killed.pop(orphan.pid, None)
            return CleanupResult(ended=tuple(killed.values()), alive=orphans)
        await asyncio.gather(*(_kill(orphan.pid, seconds_left) for orphan in orphans))
        killed |= {orphan.pid: orphan for orphan in orphans}
    return CleanupResult(ended=tuple(killed.values()))


async def _kill(pid: int, timeout_seconds: float) -> None:
    """Kill the process, and its group if it leads one; return when it has exited or the time is over."""
    try:
        pidfd = os.pidfd_open(pid)
    except OSError:  # The process has exited.
        return
    loop, exited = asyncio.get_running_loop(), asyncio.Event()
    try:
        # The pidfd names the process and not its number, so a reused pid is never signalled.
        with suppress(ProcessLookupError, PermissionError):
            group = os.getpgid(pid)
            signal.pidfd_send_signal(pidfd, signal.SIGKILL)
            if group == pid:
                os.killpg(group, signal.SIGKILL)
        loop.add_reader(pidfd, exited.set)
        # A process in uninterruptible sleep does not exit; the caller reports it as alive.
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_seconds):
                await exited.wait()
    finally:
        loop.remove_reader(pidfd)
        os.close(pidfd)
