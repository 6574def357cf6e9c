"""The inits that a configuration asks for: one for each plugin that declares the command.

Whether one has to run is the store's to say, which knows what was initialised before.
"""

from __future__ import annotations

from datetime import datetime
from random import Random

from ductile.config.snapshot import PluginInstance, Snapshot
from ductile.core.ids import make_id, make_trace_id
from ductile.core.jobs.model import NewJob, SubmittedBy
from ductile.store.model.jobs import InitKey, NewInit
from ductile.store.model.maintenance import PluginVersion

_COMMAND = "init"


def inits_of(snapshot: Snapshot, *, now: datetime, rng: Random) -> tuple[NewInit, ...]:
    found = (init_of(plugin, now=now, rng=rng) for plugin in snapshot.plugins.values())
    return tuple(init for init in found if init is not None)


def init_of(plugin: PluginInstance, *, now: datetime, rng: Random) -> NewInit | None:
    """For this version of the plugin and its configuration; None if it cannot run, or has no init."""
    installed = plugin.installed
    if not plugin.runnable or installed is None or _COMMAND not in installed.manifest.commands:
        return None
    job = NewJob(
        id=make_id(now, rng),
        plugin=plugin.name,
        command=_COMMAND,
        submitted_by=SubmittedBy.CORE,
        max_attempts=1,
        trace_id=make_trace_id(rng),
    )
    key = InitKey(plugin=plugin.name, fingerprint=installed.fingerprint, config_hash=plugin.config_hash)
    return NewInit(key=key, job=job)


def plugin_versions(snapshot: Snapshot) -> dict[str, PluginVersion]:
    """Of every configured plugin by its configured name; without version where it was not found good."""
    return {
        name: PluginVersion(
            version=None if plugin.installed is None else plugin.installed.version,
            fingerprint=None if plugin.installed is None else plugin.installed.fingerprint,
            config=plugin.config_hash,
        )
        for name, plugin in snapshot.plugins.items()
    }
