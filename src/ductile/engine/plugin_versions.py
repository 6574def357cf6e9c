"""The plugins of a configuration as they are recorded with it, so that two runs can be compared later."""

from __future__ import annotations

from ductile.config.snapshot import Snapshot
from ductile.store.values.upkeep import PluginVersion


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
