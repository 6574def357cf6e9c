"""Plugins by the files of a configuration: list, show and check them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from ductile.admin.config import open_configuration
from ductile.config.load import SealMode
from ductile.core.suggest import did_you_mean
from ductile.errors import NotFoundError, Problem
from ductile.plugins.catalogue import (
    PluginEntry,
    PluginStanding,
    find_entry,
    list_entries,
    unconfigured_entry,
)
from ductile.plugins.discovery import load_directory
from ductile.plugins.shipped import shipped_names
from ductile.protocol.manifest.model import MANIFEST_FILE
from ductile.runner.process.spawn import shebang
from ductile.struct import Value

if TYPE_CHECKING:
    from collections.abc import Mapping


class PluginCheck(Value):
    """The checked plugins, and warnings that refuse none of them."""

    plugins: tuple[PluginEntry, ...]
    warnings: tuple[Problem, ...] = ()

    @property
    def refused(self) -> tuple[PluginEntry, ...]:
        return tuple(entry for entry in self.plugins if entry.standing is PluginStanding.REFUSED)


def list_plugins(config_path: str | None, environ: Mapping[str, str]) -> tuple[PluginEntry, ...]:
    opened = open_configuration(config_path, environ, seal=SealMode.IGNORE)
    return list_entries(opened.snapshot, opened.discovery)


def unused_shipped(entries: tuple[PluginEntry, ...]) -> tuple[str, ...]:
    """Return the names of shipped plugins that are not among these."""
    listed = {name for entry in entries for name in (entry.name, entry.uses)}
    return tuple(name for name in shipped_names() if name not in listed)


def show_plugin(config_path: str | None, environ: Mapping[str, str], plugin: str) -> PluginEntry:
    opened = open_configuration(config_path, environ, seal=SealMode.IGNORE)
    return find_entry(opened.snapshot, plugin, opened.discovery)


def find_name_to_switch(
    config_path: str | None, environ: Mapping[str, str], plugin: str, *, must_be_configured: bool
) -> str:
    """Return the name of a plugin to enable or disable: a configured one, or else an installed one.

    Raises NotFoundError; with `must_be_configured` also for a plugin that is only installed.
    """
    opened = open_configuration(config_path, environ, seal=SealMode.IGNORE)
    entry = find_entry(opened.snapshot, plugin, opened.discovery)
    if entry.instances and plugin not in opened.snapshot.plugins:
        raise NotFoundError(
            f"the plugin {plugin} is configured under other names only: {', '.join(entry.instances)}",
            hint="Name one of those.",
        )
    if entry.configured or not must_be_configured:
        return plugin
    entries = list_entries(opened.snapshot, opened.discovery)
    raise NotFoundError(
        f"the plugin {plugin} is installed but not configured: there is nothing to disable",
        hint=did_you_mean(plugin, [entry.name for entry in entries if entry.configured]),
    )


def check_plugins(
    config_path: str | None, environ: Mapping[str, str], target: str | None = None
) -> PluginCheck:
    """Check all plugins, one by its name, or the plugin in a directory anywhere."""
    if target is not None and is_plugin_directory(target):
        entry = unconfigured_entry(load_directory(Path(target)))
        return PluginCheck(plugins=(entry,), warnings=_missing_interpreters((entry,)))
    opened = open_configuration(config_path, environ, seal=SealMode.IGNORE)
    entries = list_entries(opened.snapshot, opened.discovery)
    if target is not None:
        entry = find_entry(opened.snapshot, target, opened.discovery)
        return PluginCheck(plugins=(entry,), warnings=_missing_interpreters((entry,)))
    return PluginCheck(
        plugins=entries, warnings=(*opened.discovery.warnings, *_missing_interpreters(entries))
    )


def _missing_interpreters(entries: tuple[PluginEntry, ...]) -> tuple[Problem, ...]:
    """Return a warning for each entrypoint whose first line names a program that does not exist here."""
    warnings = []
    for entry in entries:
        if entry.manifest is None or entry.directory is None:
            continue
        entrypoint = entry.directory / entry.manifest.entrypoint
        interpreter = ((shebang(str(entrypoint)) or "").split() or [""])[0]
        if interpreter.startswith("/") and not Path(interpreter).exists():
            message = f"its first line names {interpreter}, which does not exist here"
            warnings.append(Problem(message=message, file=str(entrypoint), line=1))
    return tuple(dict.fromkeys(warnings))


def is_plugin_directory(target: str) -> bool:
    """Return whether `target` is a directory and not a name.

    Raises NotFoundError for a directory without a plugin.
    """
    if (Path(target) / MANIFEST_FILE).exists():
        return True
    if "/" in target and Path(target).is_file():
        hint = "A script is named as it is under `plugins`; see `ductile plugin list`."
        raise NotFoundError(f"{target} is a file, not the directory of a plugin", hint=hint)
    if "/" in target and not Path(target).is_dir():
        raise NotFoundError(f"there is no directory {target}", hint="name the directory of a plugin")
    if "/" in target:
        raise NotFoundError(f"{target} has no {MANIFEST_FILE}", hint="name the directory of a plugin")
    return False
