"""Which auth scope an operation needs. Surfaces check it before they call the operation."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeAlias

from ductile.config.snapshot import Snapshot
from ductile.core.auth_scopes import AccessLevel, AccessResource, auth_scope
from ductile.operations.plugins import catalogue
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
    need=lambda snapshot, path: catalogue.needed_to_see(snapshot, path["plugin"]),
)
COMMAND = Access(
    shown="plugin or {plugin}, :ro for read commands, :rw for write",
    need=lambda snapshot, path: catalogue.needed_for(snapshot, path["plugin"], path["command"]),
)
TRIGGER = Access(
    shown="plugin:rw if a pipeline answers, else as for the plugin",
    need=lambda snapshot, path: catalogue.needed_for_trigger(snapshot, path["plugin"], path["command"]),
)
