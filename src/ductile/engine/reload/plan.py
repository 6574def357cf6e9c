"""Plan a reload: what changes, and whether it is allowed. Pure.

A reload and its dry run use the same plan, so that they cannot differ.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Self

from ductile.config.snapshot import PluginInstance, Snapshot
from ductile.errors import ConflictError, Problem
from ductile.struct import Value, replace


class RemovedPluginWork(Value):
    """Work that needed a plugin which is no longer configured or enabled."""

    plugin: str
    #: Queued jobs that ended, or would end, as dead (`plugin_removed`).
    jobs: int
    #: Pipeline runs that still use it.
    runs: int


class ReloadResult(Value):
    """What a reload changed, or what one would change."""

    #: The fingerprint of the new configuration.
    config: str
    #: Names of plugins.
    added: tuple[str, ...]
    changed: tuple[str, ...]
    removed: tuple[str, ...]
    #: Sections of the configuration, besides `plugins`, that differ.
    settings: tuple[str, ...]
    ends: tuple[RemovedPluginWork, ...]
    warnings: tuple[Problem, ...]

    def with_work(self, jobs: Mapping[str, int], runs: Mapping[str, int]) -> Self:
        """Add the jobs and runs that need a removed plugin, counted by its name."""
        work = (
            RemovedPluginWork(plugin=name, jobs=jobs.get(name, 0), runs=runs.get(name, 0))
            for name in sorted({*self.removed, *jobs})
        )
        return replace(self, ends=tuple(each for each in work if each.jobs or each.runs))


def plan_reload(old: Snapshot, new: Snapshot) -> ReloadResult:
    """Return what a reload changes, without the work that it ends.

    Raises `ConflictError` if settings differ that only a restart can change.
    """
    if fixed := _fixed_settings(old, new):
        raise ConflictError(
            f"a reload cannot change {' and '.join(fixed)}",
            hint="Restart the daemon: ductile system stop, then ductile system start.",
            details={"settings": fixed},
        )
    before, after = _enabled_plugins(old), _enabled_plugins(new)
    sections_before, sections_after = _sections(old), _sections(new)
    refused = tuple(
        Problem(
            message=f"{name} cannot run any more, and its jobs will fail: {plugin.refused.reason}",
            key=f"plugins.{name}",
            hint=plugin.refused.hint,
        )
        for name, plugin in after.items()
        if plugin.refused is not None and name in before and before[name].refused is None
    )
    return ReloadResult(
        config=new.fingerprint,
        added=tuple(sorted(after.keys() - before.keys())),
        changed=tuple(sorted(name for name in after.keys() & before.keys() if after[name] != before[name])),
        removed=tuple(sorted(before.keys() - after.keys())),
        settings=tuple(name for name in sections_after if sections_after[name] != sections_before[name]),
        ends=(),
        warnings=(*refused, *new.warnings),
    )


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


def _enabled_plugins(snapshot: Snapshot) -> dict[str, PluginInstance]:
    return {name: plugin for name, plugin in snapshot.plugins.items() if plugin.enabled}


def _fixed_settings(old: Snapshot, new: Snapshot) -> list[str]:
    """Return the changed settings that a reload cannot apply: the store, and addresses of open listeners."""
    fixed = []
    if old.state != new.state:
        fixed.append("state")
    if old.api.enabled and new.api.enabled and old.api.listen != new.api.listen:
        fixed.append("api.listen")
    stays = old.webhooks_enabled and new.webhooks_enabled
    if stays and old.webhooks_listen != new.webhooks_listen:
        fixed.append("webhooks.listen")
    return fixed
