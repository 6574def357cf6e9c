"""Plugin processes that outlived their daemon: found by their environment, ended before recovery (ENGINE 3).

A daemon that was killed leaves its plugins running in sessions of their own. Starting their jobs again
beside them would run a job twice at the same time, so they are ended first, and their end is waited for.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_PROC = Path("/proc")
STORE_VARIABLE = "DUCTILE_STORE_ID"
JOB_VARIABLE = "DUCTILE_JOB_ID"


@dataclass(frozen=True, slots=True, kw_only=True)
class Survivor:
    pid: int
    job_id: str | None


def find_survivors(store_id: str, *, proc: Path = _PROC) -> tuple[Survivor, ...]:
    """Processes of our user whose environment says that they belong to this store.

    One that was started warm shows the environment of its server, which knows the store and no job.
    """
    found = []
    for pid in _pids(proc):
        variables = _environment(proc / str(pid) / "environ")
        if variables.get(STORE_VARIABLE) == store_id:
            found.append(Survivor(pid=pid, job_id=variables.get(JOB_VARIABLE)))
    return tuple(found)


def _pids(proc: Path) -> Iterator[int]:
    own = os.getpid()
    with contextlib.suppress(OSError):
        yield from (
            int(entry.name) for entry in proc.iterdir() if entry.name.isdigit() and int(entry.name) != own
        )


def _environment(path: Path) -> dict[str, str]:
    try:
        raw = path.read_bytes()
    except OSError:  # gone meanwhile, or somebody else's
        return {}
    pairs = (part.partition("=") for part in raw.decode(errors="replace").split("\0"))
    return {name: value for name, found, value in pairs if found}


async def end_survivors(store_id: str) -> tuple[Survivor, ...]:
    """Kill every survivor with its group, and wait until each is gone. What they forked is found too."""
    ended: list[Survivor] = []
    while survivors := await asyncio.to_thread(find_survivors, store_id):
        await asyncio.to_thread(_kill_all, survivors)
        ended += survivors
    return tuple(ended)


def _kill_all(survivors: tuple[Survivor, ...]) -> None:
    for survivor in survivors:
        try:
            descriptor = os.pidfd_open(survivor.pid)
        except OSError:  # it ended by itself
            continue
        try:
            _kill(survivor.pid, descriptor)
        finally:
            os.close(descriptor)


def _kill(pid: int, descriptor: int) -> None:
    # The descriptor names the process, not the number: if it ended meanwhile, nobody else is hit by it.
    with contextlib.suppress(ProcessLookupError):
        group = os.getpgid(pid)
        signal.pidfd_send_signal(descriptor, signal.SIGKILL)
        if group == pid:
            os.killpg(group, signal.SIGKILL)
    select.select([descriptor], [], [])
