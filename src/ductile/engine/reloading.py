"""What a reload may change, and what it may not (SPEC 10). Pure: two snapshots in, a verdict out."""

from __future__ import annotations

from dataclasses import dataclass

from ductile.config.snapshot import PluginInstance, Snapshot


@dataclass(frozen=True, slots=True, kw_only=True)
class ReloadPlan:
    """What follows from switching to another snapshot."""

    added: tuple[str, ...]
    changed: tuple[str, ...]
    removed: tuple[str, ...]
    #: Settings that only a restart can change; if there are any, the reload is refused.
    fixed: tuple[str, ...]


def plan_reload(old: Snapshot, new: Snapshot) -> ReloadPlan:
    before, after = _usable(old), _usable(new)
    return ReloadPlan(
        added=tuple(sorted(after.keys() - before.keys())),
        changed=tuple(sorted(name for name in after.keys() & before.keys() if after[name] != before[name])),
        removed=tuple(sorted(before.keys() - after.keys())),
        fixed=tuple(_changed_for_good(old, new)),
    )


def _usable(snapshot: Snapshot) -> dict[str, PluginInstance]:
    return {name: plugin for name, plugin in snapshot.plugins.items() if plugin.enabled}


def _changed_for_good(old: Snapshot, new: Snapshot) -> list[str]:
    """Where the store is and where we listen: changing those while running would drop something."""
    fixed = []
    if old.state != new.state:
        fixed.append("state")
    if (old.api.enabled, old.api.listen) != (new.api.enabled, new.api.listen):
        fixed.append("api.listen")
    if old.webhooks_listen != new.webhooks_listen:
        fixed.append("webhooks.listen")
    return fixed
