"""Record a configuration in the store: its content, the versions of its plugins, and the inits it needs.

An init is a job of the plugin's `init` command. It runs once for each version of a plugin and its
configuration; the store knows which ones have run.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from random import Random

from ductile.config.snapshot import PluginInstance, Snapshot
from ductile.core.ids import make_id, make_trace_id
from ductile.core.jobs.model import NewJob, SubmittedBy
from ductile.store.model.jobs import InitKey, InitResult, NewInit
from ductile.store.model.maintenance import ConfigOrigin, PluginVersion
from ductile.store.port import Store

_INIT = "init"


def init_of(plugin: PluginInstance, *, now: datetime, rng: Random) -> NewInit | None:
    """Return the init of a plugin; None if the plugin cannot run or has no `init` command."""
    installed = plugin.installed
    if not plugin.runnable or installed is None or _INIT not in installed.manifest.commands:
        return None
    job = NewJob(
        id=make_id(now, rng),
        plugin=plugin.name,
        command=_INIT,
        submitted_by=SubmittedBy.CORE,
        max_attempts=1,
        trace_id=make_trace_id(rng),
    )
    key = InitKey(plugin=plugin.name, fingerprint=installed.fingerprint, config_hash=plugin.config_hash)
    return NewInit(key=key, job=job)


async def record_config(
    store: Store, snapshot: Snapshot, origin: ConfigOrigin, inits: Sequence[NewInit] = ()
) -> Sequence[InitResult]:
    """Store the configuration and its inits in one transaction. Returns a result for each init."""
    versions = {
        name: PluginVersion(
            version=None if plugin.installed is None else plugin.installed.version,
            fingerprint=None if plugin.installed is None else plugin.installed.fingerprint,
            config=plugin.config_hash,
        )
        for name, plugin in snapshot.plugins.items()
    }
    redacted = snapshot.redacted if isinstance(snapshot.redacted, dict) else {}
    return await store.record_config(snapshot.fingerprint, origin, redacted, tuple(inits), versions)
