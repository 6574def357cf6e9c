"""Limits of a process, put on it from outside right after it was started.

Limits belong to a process, not to a thread, and setting them between fork and exec would need a
`preexec_fn`, which costs fifty times the spawn. So the new process runs for some microseconds without
them; it has not been given its request by then, so it has nothing to work on yet.
"""

from __future__ import annotations

import resource
from contextlib import suppress

from ductile.runner.port import NO_LIMITS, Limits

#: Between the soft limit, at which SIGXCPU comes, and the hard one, at which SIGKILL does.
_CPU_SECONDS_TO_STOP = 1
#: More than this is no number to the kernel, and as good as no limit.
_LARGEST = 2**63 - 1


def resource_limits(limits: Limits) -> list[tuple[int, int, int]]:
    """The kernel's names for them: (resource, soft, hard)."""
    wanted = []
    if limits.memory is not None:
        wanted.append((resource.RLIMIT_AS, limits.memory, limits.memory))
    if limits.cpu_seconds is not None:
        hard = limits.cpu_seconds + _CPU_SECONDS_TO_STOP
        wanted.append((resource.RLIMIT_CPU, limits.cpu_seconds, hard))
    if limits.open_files is not None:
        wanted.append((resource.RLIMIT_NOFILE, limits.open_files, limits.open_files))
    if limits.processes is not None:
        wanted.append((resource.RLIMIT_NPROC, limits.processes, limits.processes))
    return wanted


def within_hard_limit(name: int, soft: int, hard: int) -> tuple[int, int]:
    """A limit that we may set: never above the hard one that we have ourselves."""
    ceiling = resource.getrlimit(name)[1]
    if ceiling == resource.RLIM_INFINITY:
        ceiling = _LARGEST
    return min(soft, ceiling), min(hard, ceiling)


def can_limit(limits: Limits) -> bool:
    """Whether this system can put limits on a process from outside. Linux can."""
    return limits == NO_LIMITS or hasattr(resource, "prlimit")


def put_limits(pid: int, limits: Limits) -> None:
    for name, soft, hard in resource_limits(limits):
        with suppress(ProcessLookupError):
            resource.prlimit(pid, name, within_hard_limit(name, soft, hard))
