"""Limits of a process, as the kernel has them. `limited` puts them on, and the fork server for its own."""

from __future__ import annotations

import resource
import sys

from ductile.runner.port import NO_LIMITS, ResourceLimits

#: Between the soft limit, at which SIGXCPU comes, and the hard one, at which SIGKILL does.
_CPU_SECONDS_TO_STOP = 1
#: More than this is no number to the kernel, and as good as no limit.
_LARGEST = 2**63 - 1


def resource_limits(limits: ResourceLimits) -> list[tuple[int, int, int]]:
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


def can_limit(limits: ResourceLimits) -> bool:
    """Whether this system can put limits on a process. Linux can."""
    return limits == NO_LIMITS or sys.platform == "linux"


def limits_to_set(limits: ResourceLimits) -> list[tuple[int, int, int]]:
    """Those that we may set on a process of ours: (resource, soft, hard)."""
    return [(name, *within_hard_limit(name, soft, hard)) for name, soft, hard in resource_limits(limits)]
