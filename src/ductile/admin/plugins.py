"""Which plugins there are, what becomes of them, and why.

One list of everything: what the configuration names (under its own name, so aliases too), and what was found
on disk beside it.
"""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING

from ductile.admin.config import open_configuration
from ductile.config.load import SealCheck
from ductile.config.snapshot import InstalledPlugin
from ductile.core.suggest import did_you_mean
from ductile.errors import NotFoundError, Problem
from ductile.plugins.discovery import load_plugin
from ductile.plugins.trust import TrustPolicy
from ductile.protocol.manifest.model import MANIFEST_FILE
from ductile.runner.process.spawn_errors import shebang
from ductile.struct import Value, replace

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ductile.admin.config import OpenedConfiguration
    from ductile.config.snapshot import PluginInstance, RefusedPlugin
    from ductile.protocol.manifest.model import Manifest


class Standing(StrEnum):
    """What a plugin may do. `available` is installed but not named in the configuration."""

    ACTIVE = "active"
    DISABLED = "disabled"
    REFUSED = "refused"
    AVAILABLE = "available"


class PluginEntry(Value):
    """One line of the list; for a refused one `code`, `reason` and `hint` tell why."""

    name: str
    uses: str
    standing: Standing
    configured: bool
    directory: Path | None = None
    manifest: Manifest | None = None
    fingerprint: str | None = None
    instance: PluginInstance | None = None
    #: The configured names under which it is used, besides its own.
    instances: tuple[str, ...] = ()
    code: str | None = None
    reason: str | None = None
    hint: str | None = None


class PluginCheck(Value):
    plugins: tuple[PluginEntry, ...]
    warnings: tuple[Problem, ...] = ()

    @property
    def refused(self) -> tuple[PluginEntry, ...]:
        return tuple(view for view in self.plugins if view.standing is Standing.REFUSED)


def list_plugins(named: str | None, environ: Mapping[str, str]) -> tuple[PluginEntry, ...]:
    return _views(open_configuration(named, environ, seal=SealCheck.IGNORE))


def show_plugin(named: str | None, environ: Mapping[str, str], plugin: str) -> PluginEntry:
    return find_plugin(open_configuration(named, environ, seal=SealCheck.IGNORE), plugin)


def configured_or_available(
    named: str | None, environ: Mapping[str, str], plugin: str, *, configured: bool
) -> str:
    """The name, if it can be switched: that of a configured plugin, or else of an installed one.

    NotFoundError for a name that is neither, or for an installed one where only a configured will do.
    """
    opened = open_configuration(named, environ, seal=SealCheck.IGNORE)
    view = find_plugin(opened, plugin)
    if view.instances and plugin not in opened.snapshot.plugins:
        raise NotFoundError(
            f"the plugin {plugin} is configured under other names only: {', '.join(view.instances)}",
            hint="Name one of those.",
        )
    if view.configured or not configured:
        return plugin
    views = _views(opened)
    raise NotFoundError(
        f"the plugin {plugin} is installed but not configured: there is nothing to disable",
        hint=did_you_mean(plugin, [view.name for view in views if view.configured]),
    )


def check_plugins(named: str | None, environ: Mapping[str, str], target: str | None = None) -> PluginCheck:
    """All plugins, one by its name, or a directory that may lie anywhere: a plugin under development."""
    if target is not None and is_plugin_directory(target):
        found = (_of_found(load_directory(Path(target))),)
        return PluginCheck(plugins=found, warnings=_without_interpreter(found))
    opened = open_configuration(named, environ, seal=SealCheck.IGNORE)
    views = _views(opened)
    if target is not None:
        view = find_plugin(opened, target)
        return PluginCheck(plugins=(view,), warnings=_without_interpreter((view,)))
    return PluginCheck(plugins=views, warnings=(*opened.discovery.warnings, *_without_interpreter(views)))


def _without_interpreter(views: tuple[PluginEntry, ...]) -> tuple[Problem, ...]:
    """Entrypoints whose first line names a program that is not on this machine: they cannot be started."""
    found = []
    for view in views:
        if view.manifest is None or view.directory is None:
            continue
        entrypoint = view.directory / view.manifest.entrypoint
        interpreter = ((shebang(str(entrypoint)) or "").split() or [""])[0]
        if interpreter.startswith("/") and not Path(interpreter).exists():
            message = f"its first line names {interpreter}, which does not exist here"
            found.append(Problem(message=message, file=str(entrypoint), line=1))
    return tuple(dict.fromkeys(found))


def is_plugin_directory(target: str) -> bool:
    """Whether a directory is meant and not a name; it is an error if it is no plugin's."""
    if (Path(target) / MANIFEST_FILE).exists():
        return True
    if "/" in target and not Path(target).is_dir():
        raise NotFoundError(f"there is no directory {target}", hint="name the directory of a plugin")
    if "/" in target:
        raise NotFoundError(f"{target} has no {MANIFEST_FILE}", hint="name the directory of a plugin")
    return False


def load_directory(directory: Path) -> InstalledPlugin | RefusedPlugin:
    """The plugin in one directory, which need not lie under a plugin root."""
    place = directory.absolute()
    return load_plugin(place, root=place.parent, policy=TrustPolicy(roots=(place.parent,)))


def find_plugin(opened: OpenedConfiguration, name: str) -> PluginEntry:
    """By its configured name, or by its own if it is used under other names only."""
    views = _views(opened)
    used_by = tuple(view for view in views if view.configured and view.uses == name and view.name != name)
    for view in views:
        if view.name == name:
            return replace(view, instances=tuple(each.name for each in used_by))
    if used_by:
        return _of_used(name, used_by)
    known = tuple(view.name for view in views)
    hint = did_you_mean(name, known) or (f"there are {', '.join(known)}" if known else "no plugin was found")
    raise NotFoundError(f"there is no plugin {name!r}", hint=hint)


def _of_used(name: str, used_by: tuple[PluginEntry, ...]) -> PluginEntry:
    """A plugin that is not under `plugins` by its own name: it stands as the best of its instances does."""
    best = next((view for view in used_by if view.standing is Standing.ACTIVE), used_by[0])
    return replace(best, name=name, uses=name, instance=None, instances=tuple(each.name for each in used_by))


def _views(opened: OpenedConfiguration) -> tuple[PluginEntry, ...]:
    snapshot = opened.snapshot
    configured = [_of_instance(instance, opened) for instance in snapshot.plugins.values()]
    available = [_of_found(plugin) for plugin in snapshot.available.values()]
    used = {instance.uses for instance in snapshot.plugins.values()}
    refused = [_of_found(plugin) for name, plugin in opened.discovery.refused.items() if name not in used]
    return (*configured, *sorted((*available, *refused), key=lambda view: view.name))


def _of_instance(instance: PluginInstance, opened: OpenedConfiguration) -> PluginEntry:
    found = opened.discovery.installed.get(instance.uses)
    refused = opened.discovery.refused.get(instance.uses)
    place = found or refused
    why = instance.refused
    return PluginEntry(
        name=instance.name,
        uses=instance.uses,
        standing=_standing(instance),
        configured=True,
        directory=place.directory if place else None,
        manifest=found.manifest if found else None,
        fingerprint=found.fingerprint if found else None,
        instance=instance,
        code=why.code if why else None,
        reason=why.reason if why else None,
        hint=why.hint if why else None,
    )


def _standing(instance: PluginInstance) -> Standing:
    if not instance.enabled:
        return Standing.DISABLED
    return Standing.REFUSED if instance.refused else Standing.ACTIVE


def _of_found(found: InstalledPlugin | RefusedPlugin) -> PluginEntry:
    if isinstance(found, InstalledPlugin):
        return PluginEntry(
            name=found.name,
            uses=found.name,
            standing=Standing.AVAILABLE,
            configured=False,
            directory=found.directory,
            manifest=found.manifest,
            fingerprint=found.fingerprint,
        )
    return PluginEntry(
        name=found.name,
        uses=found.name,
        standing=Standing.REFUSED,
        configured=False,
        directory=found.directory,
        code=found.code,
        reason=found.reason,
        hint=found.hint,
    )
