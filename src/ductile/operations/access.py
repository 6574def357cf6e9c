"""Which auth scope an operation needs. Surfaces check it before they call the operation."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeAlias

from ductile.config.snapshot import Snapshot
from ductile.core.auth_scopes import AccessLevel, AccessResource, auth_scope
from ductile.protocol.manifest.model import Command, CommandType
from ductile.struct import Value

#: Returns the scopes of which one is needed, given the configuration and the path's parameters.
ScopesNeeded: TypeAlias = Callable[[Snapshot, Mapping[str, str]], tuple[str, ...]]


class Access(Value):
    """`need` is None where no token is needed."""

    #: As the reference shows it.
    shown: str
    need: ScopesNeeded | None = None
    #: Needs no token where discovery is open; elsewhere any token is enough.
    discovery: bool = False


def requires_scope(resource: AccessResource, level: AccessLevel) -> Access:
    needed = (auth_scope(resource, level),)
    return Access(shown=needed[0], need=lambda _snapshot, _path: needed)


def right_of(command: Command) -> AccessLevel:
    """A command that changes nothing outside needs the right to read only."""
    return AccessLevel.READ if command.type is CommandType.READ else AccessLevel.WRITE


def needed_for(snapshot: Snapshot, plugin: str, command: str) -> tuple[str, ...]:
    """The scopes of which one is needed to run a command. An unknown one needs the least: it is a 404."""
    instance = snapshot.plugins.get(plugin)
    if instance is None:
        return (auth_scope(AccessResource.PLUGIN, AccessLevel.READ),)
    declared = instance.installed.manifest.commands.get(command) if instance.installed else None
    right = AccessLevel.READ if declared is None else right_of(declared)
    return (auth_scope(AccessResource.PLUGIN, right), auth_scope(plugin, right))


def needed_to_see(snapshot: Snapshot, plugin: str) -> tuple[str, ...]:
    """The scopes of which one is needed to read what a plugin takes: also that to call it."""
    general = auth_scope(AccessResource.PLUGIN, AccessLevel.READ)
    return (general, auth_scope(plugin, AccessLevel.READ)) if plugin in snapshot.plugins else (general,)


def needed_for_trigger(snapshot: Snapshot, plugin: str, command: str) -> tuple[str, ...]:
    """As for the plugin, unless a pipeline is triggered: that may do anything its steps do."""
    if pipelines_on(snapshot, f"{plugin}.{command}"):
        return (auth_scope(AccessResource.PLUGIN, AccessLevel.WRITE),)
    return needed_for(snapshot, plugin, command)


def pipelines_on(snapshot: Snapshot, event_type: str) -> tuple[str, ...]:
    return tuple(name for name, pipeline in snapshot.pipelines.items() if pipeline.on == event_type)


OPEN = Access(shown="none")
DISCOVERY = Access(shown="none while open, else any token", need=lambda _snapshot, _path: (), discovery=True)
JOBS_RO, JOBS_RW = (
    requires_scope(AccessResource.JOBS, AccessLevel.READ),
    requires_scope(AccessResource.JOBS, AccessLevel.WRITE),
)
EVENTS_RO, EVENTS_RW = (
    requires_scope(AccessResource.EVENTS, AccessLevel.READ),
    requires_scope(AccessResource.EVENTS, AccessLevel.WRITE),
)
SYSTEM_RO, SYSTEM_RW = (
    requires_scope(AccessResource.SYSTEM, AccessLevel.READ),
    requires_scope(AccessResource.SYSTEM, AccessLevel.WRITE),
)
PLUGIN_RO, PLUGIN_RW = (
    requires_scope(AccessResource.PLUGIN, AccessLevel.READ),
    requires_scope(AccessResource.PLUGIN, AccessLevel.WRITE),
)
ONE_PLUGIN = Access(
    shown="plugin:ro or {plugin}:ro",
    need=lambda snapshot, path: needed_to_see(snapshot, path["plugin"]),
)
COMMAND = Access(
    shown="plugin or {plugin}, :ro for read commands, :rw for write",
    need=lambda snapshot, path: needed_for(snapshot, path["plugin"], path["command"]),
)
TRIGGER = Access(
    shown="plugin:rw if a pipeline answers, else as for the plugin",
    need=lambda snapshot, path: needed_for_trigger(snapshot, path["plugin"], path["command"]),
)
