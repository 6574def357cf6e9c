"""Compare two configurations: the changes of plugins, schedules, routes, pipelines and access. Pure."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from datetime import datetime

from ductile.config.differences import ChangeKind
from ductile.config.snapshot import PluginInstance, Snapshot
from ductile.engine.schedules.entries import ScheduleKey, active_schedules, key_of
from ductile.store.model.schedules import ScheduleEntry
from ductile.struct import Value


class NameChanges(Value):
    """The names that only the new or only the old configuration has, and those whose definition differs."""

    added: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()


class ScheduleChange(Value):
    """A schedule that is new, gone, or has another rule or next run."""

    plugin: str
    id: str
    change: ChangeKind
    next_run_before: datetime | None
    next_run: datetime | None


class Effects(Value):
    plugins: NameChanges
    pipelines: NameChanges
    #: Each as `source event_type -> plugin.command`.
    routes: NameChanges
    webhooks: NameChanges
    tokens: NameChanges
    schedules: tuple[ScheduleChange, ...] = ()
    #: Sections of the configuration, besides `plugins`, that differ.
    settings: tuple[str, ...] = ()


def compare_names(before: Mapping[str, object], after: Mapping[str, object]) -> NameChanges:
    """Compare two sets of named things. The names are sorted."""
    return NameChanges(
        added=tuple(sorted(after.keys() - before.keys())),
        removed=tuple(sorted(before.keys() - after.keys())),
        changed=tuple(sorted(name for name in after.keys() & before.keys() if after[name] != before[name])),
    )


def compare_snapshots(old: Snapshot, new: Snapshot) -> Effects:
    """Return the changes, without those of schedules, whose next runs are in the store."""
    before, after = _sections(old), _sections(new)
    return Effects(
        plugins=compare_names(enabled_plugins(old), enabled_plugins(new)),
        pipelines=compare_names(old.pipelines, new.pipelines),
        routes=compare_names(_routes(old), _routes(new)),
        webhooks=compare_names(
            {webhook.path: webhook for webhook in old.webhooks},
            {webhook.path: webhook for webhook in new.webhooks},
        ),
        tokens=compare_names(_tokens(old), _tokens(new)),
        settings=tuple(name for name in after if after[name] != before[name]),
    )


def compare_schedules(
    old: Snapshot, new: Snapshot, before: Sequence[ScheduleEntry], after: Sequence[ScheduleEntry]
) -> tuple[ScheduleChange, ...]:
    """Compare the schedules of two configurations; `before` and `after` are their stored entries."""
    old_schedules, new_schedules = active_schedules(old), active_schedules(new)
    stored = {key_of(entry): entry for entry in before}
    planned = {key_of(entry): entry for entry in after}
    changes = []
    for key in sorted(old_schedules.keys() | new_schedules.keys()):
        next_run_before = _next_run(stored, key, old_schedules)
        next_run = _next_run(planned, key, new_schedules)
        if (entry := stored.get(key)) is not None and entry.paused_at is not None:
            next_run = None  # A paused schedule stays paused.
        if key not in old_schedules or key not in new_schedules:
            change = ChangeKind.REMOVED if key in old_schedules else ChangeKind.ADDED
        elif next_run_before != next_run or old_schedules[key].schedule != new_schedules[key].schedule:
            change = ChangeKind.CHANGED
        else:
            continue
        plugin, schedule_id = key
        changes.append(
            ScheduleChange(
                plugin=plugin,
                id=schedule_id,
                change=change,
                next_run_before=next_run_before,
                next_run=next_run,
            )
        )
    return tuple(changes)


def _next_run(
    entries: Mapping[ScheduleKey, ScheduleEntry], key: ScheduleKey, active: Mapping[ScheduleKey, object]
) -> datetime | None:
    entry = entries.get(key) if key in active else None
    return None if entry is None or entry.paused_at is not None else entry.next_at


def enabled_plugins(snapshot: Snapshot) -> dict[str, PluginInstance]:
    return {name: plugin for name, plugin in snapshot.plugins.items() if plugin.enabled}


def _routes(snapshot: Snapshot) -> dict[str, int]:
    """Return how often each route is configured, by its text."""
    counts: dict[str, int] = {}
    for route in snapshot.routes:
        text = f"{route.source} {route.event_type} -> {route.target}"
        counts[text] = counts.get(text, 0) + 1
    return counts


def _tokens(snapshot: Snapshot) -> dict[str, Hashable]:
    """Return the tokens and the digests of secrets by name; of a token in rotation, both entries."""
    parts: dict[str, tuple[Hashable, ...]] = {}
    for token in snapshot.tokens:
        parts[token.name] = (*parts.get(token.name, ()), token)
    return {**{name: secret.digest() for name, secret in snapshot.secrets.items()}, **parts}


def _sections(snapshot: Snapshot) -> dict[str, object]:
    """Return the compiled content of each section that a reload may change, in the order of the reference."""
    return {
        "service": (snapshot.service, snapshot.timezone, snapshot.max_workers),
        "plugin_roots": snapshot.plugin_roots,
        "routes": snapshot.routes,
        "pipelines": snapshot.pipelines,
        "api": snapshot.api,
        "webhooks": (snapshot.webhooks, snapshot.webhooks_enabled),
        "tokens": (snapshot.tokens, snapshot.secrets),
        "state_webhooks": (snapshot.state_webhooks, snapshot.state_webhook_secret),
        "artifacts": snapshot.artifact_roots,
    }
