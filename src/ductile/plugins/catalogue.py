"""The catalogue of plugins: those that the configuration names, under their own names, and those on disk."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path

from ductile.config.snapshot import Discovery, InstalledPlugin, PluginInstance, RefusedPlugin, Snapshot
from ductile.core.scripts import Script
from ductile.core.suggest import did_you_mean
from ductile.errors import NotFoundError
from ductile.plugins.discovery import load_shipped
from ductile.plugins.shipped import shipped_names
from ductile.protocol.manifest.model import Manifest
from ductile.struct import Value, replace


class PluginStanding(StrEnum):
    """Says if a plugin can run. An `available` plugin is installed, and not named in the configuration."""

    ACTIVE = "active"
    DISABLED = "disabled"
    REFUSED = "refused"
    AVAILABLE = "available"


class PluginEntry(Value):
    """A plugin of the catalogue. `code`, `reason` and `hint` are set if it is refused."""

    name: str
    uses: str
    standing: PluginStanding
    configured: bool
    directory: Path | None = None
    manifest: Manifest | None = None
    fingerprint: str | None = None
    #: Whether `config lock` seals it.
    sealed: bool = True
    #: Whether it is part of Ductile.
    shipped: bool = False
    script: Script | None = None
    instance: PluginInstance | None = None
    #: The configured names under which it is used, besides its own.
    instances: tuple[str, ...] = ()
    code: str | None = None
    reason: str | None = None
    hint: str | None = None


def standing_of(plugin: PluginInstance) -> PluginStanding:
    if not plugin.enabled:
        return PluginStanding.DISABLED
    return PluginStanding.REFUSED if plugin.refused else PluginStanding.ACTIVE


def list_entries(snapshot: Snapshot, discovery: Discovery | None = None) -> tuple[PluginEntry, ...]:
    """Return every plugin: those of the configuration, then others that are installed.

    With the result of a discovery, the plugins that it refused are included.
    """
    configured = [_configured_entry(instance, discovery) for instance in snapshot.plugins.values()]
    others: list[InstalledPlugin | RefusedPlugin] = [*snapshot.available.values()]
    if discovery is not None:
        used = {instance.uses for instance in snapshot.plugins.values() if not instance.is_script}
        others += [plugin for name, plugin in discovery.refused.items() if name not in used]
    return (*configured, *map(unconfigured_entry, sorted(others, key=lambda plugin: plugin.name)))


def find_entry(snapshot: Snapshot, name: str, discovery: Discovery | None = None) -> PluginEntry:
    """Return the plugin of a configured name, or of its own name if it is configured under others only.

    Raises NotFoundError.
    """
    entries = list_entries(snapshot, discovery)
    used_by = [entry for entry in entries if entry.configured and entry.uses == name and entry.name != name]
    instances = tuple(entry.name for entry in used_by)
    for entry in (*entries, *map(unconfigured_entry, load_shipped([name]))):
        if entry.name == name:
            return replace(entry, instances=instances)
    if used_by:
        best = next((entry for entry in used_by if entry.standing is PluginStanding.ACTIVE), used_by[0])
        return replace(best, name=name, uses=name, instance=None, instances=instances)
    known = [*dict.fromkeys((*(entry.name for entry in entries), *shipped_names()))]
    hint = did_you_mean(name, known) or (f"there are {', '.join(known)}" if known else "no plugin was found")
    raise NotFoundError(f"there is no plugin {name!r}", hint=hint)


def unconfigured_entry(plugin: InstalledPlugin | RefusedPlugin) -> PluginEntry:
    """Return the entry of a plugin on disk that the configuration does not name."""
    entry = PluginEntry(
        name=plugin.name,
        uses=plugin.name,
        standing=PluginStanding.AVAILABLE,
        configured=False,
        directory=plugin.directory,
        shipped=plugin.shipped,
    )
    if isinstance(plugin, InstalledPlugin):
        return replace(entry, manifest=plugin.manifest, fingerprint=plugin.fingerprint, sealed=plugin.sealed)
    return replace(
        entry,
        standing=PluginStanding.REFUSED,
        code=plugin.code,
        reason=plugin.reason,
        hint=plugin.hint,
    )


def _configured_entry(instance: PluginInstance, discovery: Discovery | None) -> PluginEntry:
    """Return the entry of a plugin that the configuration names."""
    plugin = instance.installed if discovery is None else discovery.find(instance)
    installed = plugin if isinstance(plugin, InstalledPlugin) else None
    refusal = instance.refused
    return PluginEntry(
        name=instance.name,
        uses=instance.uses,
        standing=standing_of(instance),
        configured=True,
        directory=plugin.directory if plugin else None,
        manifest=installed.manifest if installed else None,
        fingerprint=installed.fingerprint if installed else None,
        sealed=installed is None or installed.sealed,
        shipped=plugin is not None and plugin.shipped,
        script=installed.script if installed else None,
        instance=instance,
        code=refusal.code if refusal else None,
        reason=refusal.reason if refusal else None,
        hint=refusal.hint if refusal else None,
    )
