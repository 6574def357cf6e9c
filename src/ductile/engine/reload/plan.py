"""What a reload may change, and what it may not. Pure: snapshots in, a verdict out.

The engine reloads by it and a dry run tells by it, so that the two cannot differ.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import Protocol

from ductile.config.snapshot import PluginInstance, Snapshot
from ductile.core.policy import Policy
from ductile.engine.results import ReloadResult, RemovedPluginWork
from ductile.errors import ConflictError, Problem
from ductile.struct import Value, replace


class ListenerSwitch(Protocol):
    """The listeners, as far as a reload concerns them."""

    def switched_to(self, snapshot: Snapshot) -> AbstractAsyncContextManager[None]:
        """A context in which the snapshot is put in force. Entering it raises if a listener that is needed
        cannot be opened; leaving it opens and closes listeners, unless the snapshot was not put in force.
        """
        ...

    async def check(self, snapshot: Snapshot) -> None:
        """Raise what entering `switched_to` would raise."""
        ...


class NoListeners:
    """For an engine that nobody reaches by a network."""

    def switched_to(self, _snapshot: Snapshot) -> AbstractAsyncContextManager[None]:
        return nullcontext()

    async def check(self, _snapshot: Snapshot) -> None:
        return None


class ReloadPlan(Value):
    """What follows from switching to another snapshot."""

    new: Snapshot
    added: tuple[str, ...]
    changed: tuple[str, ...]
    removed: tuple[str, ...]
    #: The sections of the configuration, besides `plugins`, that differ.
    settings: tuple[str, ...]
    #: Plugins that could run until now and are refused by the new snapshot, each with the reason.
    refused: tuple[Problem, ...] = ()

    def result(self, jobs: Mapping[str, int], runs: Mapping[str, int]) -> ReloadResult:
        """`jobs` and `runs` count those that need a removed plugin, by its name."""
        return ReloadResult(
            config=self.new.fingerprint,
            added=self.added,
            changed=self.changed,
            removed=self.removed,
            settings=self.settings,
            ends=tuple(
                RemovedPluginWork(plugin=name, jobs=jobs.get(name, 0), runs=runs.get(name, 0))
                for name in sorted({*self.removed, *jobs})
                if jobs.get(name) or runs.get(name)
            ),
            warnings=(*self.refused, *self.new.warnings),
        )


def plan_reload(old: Snapshot, new: Snapshot) -> ReloadPlan:
    """Raises `ConflictError`, naming them, if settings differ that only a restart can change."""
    if fixed := _changed_for_good(old, new):
        raise ConflictError(
            f"a reload cannot change {' and '.join(fixed)}",
            hint="Restart the daemon: ductile system stop, then ductile system start.",
            details={"settings": fixed},
        )
    before, after = _usable(old), _usable(new)
    return ReloadPlan(
        new=new,
        added=tuple(sorted(after.keys() - before.keys())),
        changed=tuple(sorted(name for name in after.keys() & before.keys() if after[name] != before[name])),
        removed=tuple(sorted(before.keys() - after.keys())),
        settings=_changed_sections(old, new),
        refused=tuple(
            Problem(
                message=f"{name} cannot run any more, and its jobs will fail: {plugin.refused.reason}",
                key=f"plugins.{name}",
                hint=plugin.refused.hint,
            )
            for name, plugin in after.items()
            if plugin.refused is not None and name in before and before[name].refused is None
        ),
    )


def _changed_sections(old: Snapshot, new: Snapshot) -> tuple[str, ...]:
    """Their names and nothing of what is in them, which may be secret."""
    before, after = _sections(old), _sections(new)
    return tuple(name for name in after if after[name] != before[name])


def _sections(snapshot: Snapshot) -> dict[str, object]:
    """What follows from each section that a reload may change, in the order of the reference."""
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


def _usable(snapshot: Snapshot) -> dict[str, PluginInstance]:
    return {name: plugin for name, plugin in snapshot.plugins.items() if plugin.enabled}


def _changed_for_good(old: Snapshot, new: Snapshot) -> list[str]:
    """Where the store is and where we listen: changing those while running would drop something.

    A listener that was not open, or is not to be any more, has no address to keep.
    """
    fixed = []
    if old.state != new.state:
        fixed.append("state")
    if old.api.enabled and new.api.enabled and old.api.listen != new.api.listen:
        fixed.append("api.listen")
    stays = old.webhooks_enabled and new.webhooks_enabled
    if stays and old.webhooks_listen != new.webhooks_listen:
        fixed.append("webhooks.listen")
    return fixed


def rules_at_end(begun: Snapshot, in_force: Snapshot, plugin: str) -> Policy:
    """What the end of a job is decided by: the configuration that it began with, but for its schedules.

    When a schedule runs next is for the one in force to say: its interval may have been edited meanwhile.
    """
    if begun is in_force:
        return begun.rules
    own = replace(begun.rules.plugin(plugin), schedules=in_force.rules.plugin(plugin).schedules)
    return replace(begun.rules, plugins={**begun.rules.plugins, plugin: own})
