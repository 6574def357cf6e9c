"""Decide which queued job starts next, and why another has to wait.

The store keeps the heads: for each plugin with ready jobs, the oldest one. A job that may not start has a
`Hold` and is not a head, so the decision depends on the number of plugins, not of jobs.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

from ductile.core.jobs.model import Hold
from ductile.struct import Value, field


class Caps(Value):
    """Limits of concurrent jobs: in total, and per plugin."""

    workers: int
    plugins: Mapping[str, int] = field(default_factory=dict)

    def of(self, plugin: str) -> int:
        """Return the cap of a plugin: without its own, the number of workers."""
        return self.plugins.get(plugin, self.workers)


def choose_next_plugin(heads: Mapping[str, int], running: Mapping[str, int], caps: Caps) -> str | None:
    """Return the plugin whose head starts next: the oldest among those below their cap."""
    if sum(running.values()) >= caps.workers:
        return None
    return min(
        (plugin for plugin in heads if running.get(plugin, 0) < caps.of(plugin)),
        key=lambda plugin: heads[plugin],
        default=None,
    )


def decide_hold(
    *,
    now: datetime,
    retry_at: datetime | None = None,
    predecessor_live: bool = False,
    key_taken: bool = False,
    suspect: bool = False,
    other_suspect_active: bool = False,
) -> Hold | None:
    """Return why a queued job has to wait; None if it is ready.

    At most one job of a dedupe key and at most one suspect of a crash is ready or running. The others wait
    and are released one by one, oldest first.
    """
    if retry_at is not None and retry_at > now:
        return Hold.RETRY
    if predecessor_live:
        return Hold.PREDECESSOR
    if key_taken:
        return Hold.KEY
    if suspect and other_suspect_active:
        return Hold.SUSPECT
    return None
