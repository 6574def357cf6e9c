"""Which process runs jobs, and whether it still lives.

The identity is recorded with every job that the process claims, and handed to every process that it starts
for one. It is the process id with the instant the process began: a number alone is given out again.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

PROC = Path("/proc")
#: A process that has ended, apart from what its parent has still to ask for.
_ENDED = (b"Z", b"X", b"x")
#: The kernel has begun to take the process apart: its locks go before the process does.
_EXITING = 0x4


def make_identity(prefix: str) -> str:
    """The identity of this process. `prefix` tells people what it is, and is not looked at."""
    pid = os.getpid()
    found = _read_stat(PROC / str(pid))
    began = 0 if found is None else found[1]
    return f"{prefix}:{pid}:{began}"


def has_ended(identity: str, *, proc: Path = PROC) -> bool:
    """Whether no process of this identity lives. What is no identity counts as ended."""
    match identity.rsplit(":", 2):
        case [_, pid, began] if pid.isdigit() and began.isdigit():
            return (int(pid), int(began)) not in set(_living(proc))
    return True


def pids_in(proc: Path) -> Iterator[int]:
    with suppress(OSError):
        yield from (int(entry.name) for entry in proc.iterdir() if entry.name.isdigit())


def _living(proc: Path) -> Iterator[tuple[int, int]]:
    """Each process by the number that it knows itself by, which in a container is not ours, and its begin."""
    for pid in pids_in(proc):
        directory = proc / str(pid)
        found = _read_stat(directory)
        if found is not None and found[0]:
            yield _own_number(directory, pid), found[1]


def _read_stat(directory: Path) -> tuple[bool, int] | None:
    """Whether the process lives, and when it began, in ticks since the machine was started."""
    try:
        # The name of the program, in brackets, may hold anything.
        fields = (directory / "stat").read_bytes().rpartition(b")")[2].split()
    except OSError:  # it is gone, or this system has no such files
        return None
    lives = fields[0] not in _ENDED and not int(fields[6]) & _EXITING
    return lives, int(fields[19])


def _own_number(directory: Path, pid: int) -> int:
    with suppress(OSError):
        for line in (directory / "status").read_bytes().splitlines():
            if line.startswith(b"NSpid:"):
                return int(line.split()[-1])
    return pid
