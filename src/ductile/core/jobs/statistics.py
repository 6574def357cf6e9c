"""Statistics of executions: percentiles of run time and wait by plugin, failures by command and reason."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import NamedTuple

from ductile.core.jobs.model import JobReason
from ductile.core.jobs.settlement import LogStatus
from ductile.struct import Value

#: Executions with one of these statuses count as failures.
FAILURES = frozenset({LogStatus.FAILED, LogStatus.TIMED_OUT})


class Percentiles(Value):
    """The values that 50, 95 and 99 of a hundred samples do not exceed. Each of them has occurred."""

    p50: timedelta
    p95: timedelta
    p99: timedelta


class ExecutionSample(NamedTuple):
    """The part of an execution that statistics need. There may be tens of thousands."""

    plugin: str
    status: LogStatus
    #: From 1; a larger one is a retry.
    attempt: int
    #: None if its end was not observed.
    run_time: timedelta | None
    #: From the submission to the first start; None for later executions.
    wait: timedelta | None
    stderr_bytes: int


class PluginStatistics(Value):
    """Executions of one plugin. Times are None where no execution has them."""

    plugin: str
    executions: int
    by_status: Mapping[LogStatus, int]
    #: Failed or timed out.
    failures: int
    timeouts: int
    retries: int
    run_time: Percentiles | None
    wait: Percentiles | None
    mean: timedelta | None
    longest: timedelta | None
    stderr_bytes: int


def percentile(ordered: Sequence[timedelta], percent: int) -> timedelta:
    """Return the smallest value that at least `percent` of a hundred values do not exceed (nearest rank).

    `ordered` has the values in ascending order and is not empty.
    """
    return ordered[max(1, math.ceil(len(ordered) * percent / 100)) - 1]


def percentiles(values: Iterable[timedelta]) -> Percentiles | None:
    """Return the percentiles; None without values."""
    if not (ordered := sorted(values)):
        return None
    return Percentiles(p50=percentile(ordered, 50), p95=percentile(ordered, 95), p99=percentile(ordered, 99))


def summarise(samples: Iterable[ExecutionSample]) -> tuple[PluginStatistics, ...]:
    """Return the statistics of every plugin that has a sample, by name."""
    by_plugin: dict[str, list[ExecutionSample]] = {}
    for sample in samples:
        by_plugin.setdefault(sample.plugin, []).append(sample)
    statistics = []
    for plugin, executions in sorted(by_plugin.items()):
        counts = Counter(execution.status for execution in executions)
        run_times = [execution.run_time for execution in executions if execution.run_time is not None]
        waits = [execution.wait for execution in executions if execution.wait is not None]
        statistics.append(
            PluginStatistics(
                plugin=plugin,
                executions=len(executions),
                by_status={status: counts[status] for status in LogStatus if status in counts},
                failures=sum(counts[status] for status in FAILURES),
                timeouts=counts[LogStatus.TIMED_OUT],
                retries=sum(execution.attempt > 1 for execution in executions),
                run_time=percentiles(run_times),
                wait=percentiles(waits),
                mean=sum(run_times, timedelta()) / len(run_times) if run_times else None,
                longest=max(run_times, default=None),
                stderr_bytes=sum(execution.stderr_bytes for execution in executions),
            )
        )
    return tuple(statistics)


# ------------------------------------------------------------------------------------------- failures


class BadEnding(Value):
    """A job that ended as failed or dead."""

    job_id: str
    plugin: str
    command: str
    reason: JobReason
    completed_at: datetime
    error: str | None


class EndingGroup(Value):
    """Jobs of one command that ended for the same reason. `latest` is an example."""

    plugin: str
    command: str
    reason: JobReason
    jobs: int
    first_at: datetime
    last_at: datetime
    latest: BadEnding


def group_endings(endings: Iterable[BadEnding]) -> tuple[EndingGroup, ...]:
    """Return the endings by plugin, command and reason: the largest group first, of equal ones the latest."""
    grouped: dict[tuple[str, str, JobReason], list[BadEnding]] = {}
    for ending in endings:
        grouped.setdefault((ending.plugin, ending.command, ending.reason), []).append(ending)
    groups = []
    for (plugin, command, reason), members in grouped.items():
        members.sort(key=lambda ending: (ending.completed_at, ending.job_id))
        groups.append(
            EndingGroup(
                plugin=plugin,
                command=command,
                reason=reason,
                jobs=len(members),
                first_at=members[0].completed_at,
                last_at=members[-1].completed_at,
                latest=members[-1],
            )
        )
    groups.sort(key=lambda group: (group.plugin, group.command, group.reason))
    groups.sort(key=lambda group: (group.jobs, group.last_at), reverse=True)
    return tuple(groups)


def fit_lists(sizes: Mapping[str, Sequence[int]], room: int) -> dict[str, int]:
    """Return how many items of each list to retain, so that the sizes of all of them fit into `room`.

    Items are left out from the ends of the lists, always from the list that takes the most room.
    """
    counts = {name: len(items) for name, items in sizes.items()}
    totals = {name: sum(items) for name, items in sizes.items()}
    while sum(totals.values()) > room and any(counts.values()):
        largest = max((name for name in counts if counts[name]), key=lambda name: totals[name])
        counts[largest] -= 1
        totals[largest] -= sizes[largest][counts[largest]]
    return counts
