"""Identify a process across pid reuse, and tell whether it is still alive.

An identity is `prefix:pid:start time`. It is stored with every job the process claims and set in the
environment of every process it starts for a job. The pid alone is not enough: the kernel reuses pids.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

PROC = Path("/proc")
#: States of a process that has exited: zombie or dead.
_EXITED = (b"Z", b"X", b"x")
#: PF_EXITING: the kernel is tearing the process down. It releases its locks before it becomes a zombie.
_EXITING_FLAG = 0x4


def make_identity(prefix: str) -> str:
    """Return the identity of this process. `prefix` is for readers only; nothing compares it."""
    pid = os.getpid()
    stat = _read_stat(PROC / str(pid))
    return f"{prefix}:{pid}:{0 if stat is None else stat[1]}"


def has_ended(identity: str, *, proc: Path = PROC) -> bool:
    """Whether no live process has this identity. A string that is not an identity counts as ended."""
    match identity.rsplit(":", 2):
        case [_, pid, started] if pid.isdigit() and started.isdigit():
            wanted = int(pid), int(started)
            return not any(_is_alive(proc / str(each), each, wanted) for each in list_pids(proc))
    return True


def list_pids(proc: Path) -> list[int]:
    try:
        return [int(entry.name) for entry in proc.iterdir() if entry.name.isdigit()]
    except OSError:
        return []


def _is_alive(directory: Path, pid: int, wanted: tuple[int, int]) -> bool:
    stat = _read_stat(directory)
    return stat == (True, wanted[1]) and _pid_in_own_namespace(directory, pid) == wanted[0]


def _read_stat(directory: Path) -> tuple[bool, int] | None:
    """Return whether the process is alive, and its start time in clock ticks since boot."""
    try:
        # The second field is the program's name in parentheses, which may contain anything.
        fields = (directory / "stat").read_bytes().rpartition(b")")[2].split()
    except OSError:  # The process is gone, or this system has no /proc.
        return None
    alive = fields[0] not in _EXITED and not int(fields[6]) & _EXITING_FLAG
    return alive, int(fields[19])


def _pid_in_own_namespace(directory: Path, pid: int) -> int:
    """Return the pid as the process itself sees it; in a container it differs from ours."""
    with suppress(OSError):
        for line in (directory / "status").read_bytes().splitlines():
            if line.startswith(b"NSpid:"):
                return int(line.split()[-1])
    return pid
