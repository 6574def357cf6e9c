"""Resource limits as the kernel takes them. `rlimit_exec` and the fork server set them."""

from __future__ import annotations

import resource
import sys

from ductile.runner.port import NO_LIMITS, ResourceLimits

#: Between the soft limit (SIGXCPU) and the hard one (SIGKILL).
_CPU_SECONDS_TO_STOP = 1
#: The kernel accepts no larger number.
_LARGEST = 2**63 - 1


def resource_limits(limits: ResourceLimits) -> list[tuple[int, int, int]]:
    """Return the limits as (resource, soft, hard)."""
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
    """Return the limit, lowered to our own hard limit if it is above."""
    ceiling = resource.getrlimit(name)[1]
    if ceiling == resource.RLIM_INFINITY:
        ceiling = _LARGEST
    return min(soft, ceiling), min(hard, ceiling)


def can_limit(limits: ResourceLimits) -> bool:
    """Return whether this system supports the limits. Linux does."""
    return limits == NO_LIMITS or sys.platform == "linux"


def limits_to_set(limits: ResourceLimits) -> list[tuple[int, int, int]]:
    """Return the limits to set on a process, within our own hard limits: (resource, soft, hard)."""
    return [(name, *within_hard_limit(name, soft, hard)) for name, soft, hard in resource_limits(limits)]
