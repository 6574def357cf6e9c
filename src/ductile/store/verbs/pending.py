"""Accepted work that still needs a plugin: what a drain waits for, and what a removal would end."""

from __future__ import annotations

from collections.abc import Sequence

from ductile.core.jobs.model import JobStatus
from ductile.store.model.maintenance import PluginWork
from ductile.store.rows import to_json
from ductile.store.session import Session
from ductile.store.verbs.runs import graph_of


def pending_work(session: Session, plugins: Sequence[str]) -> tuple[PluginWork, ...]:
    """What is queued, running or still to come for these plugins, of those that have something."""
    jobs: dict[tuple[str, str], int] = {
        (plugin, status): count
        for plugin, status, count in session.all("live_jobs_of_plugins", plugins=to_json(list(plugins)))
    }
    runs = dict.fromkeys(plugins, 0)
    for fingerprint, count in session.all("live_runs_by_graph"):
        for plugin in graph_of(session, fingerprint).plugins & runs.keys():
            runs[plugin] += count
    found = (
        PluginWork(
            plugin=plugin,
            queued=jobs.get((plugin, JobStatus.QUEUED), 0),
            running=jobs.get((plugin, JobStatus.RUNNING), 0),
            runs=runs[plugin],
        )
        for plugin in plugins
    )
    return tuple(work for work in found if work.queued or work.running or work.runs)
