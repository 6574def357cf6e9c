"""Which queued job may start next, and why another may not yet.

The store keeps the heads: for each plugin with ready jobs, the one that has waited longest. Jobs that
may not start at all carry a `Hold` and are no heads, so a decision looks at plugins, never at rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

from ductile.core.jobs.model import Hold
from ductile.struct import Value, field


class Caps(Value):
    """How many jobs may run at once: in all, and of each plugin."""

    workers: int
    plugins: Mapping[str, int] = field(default_factory=dict)

    def of(self, plugin: str) -> int:
        """A plugin without a cap of its own is bounded by the pool alone."""
        return self.plugins.get(plugin, self.workers)


def choose_next_plugin(heads: Mapping[str, int], running: Mapping[str, int], caps: Caps) -> str | None:
    """The plugin whose head starts next: the lowest sequence number among those below their cap."""
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
    """Why a queued job must wait, or None if it is ready.

    At most one job of a dedupe key is ready or running, and at most one suspect of a crash; the
    others wait and are released one by one, oldest first.
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
