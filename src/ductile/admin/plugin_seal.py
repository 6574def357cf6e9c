"""`plugin lock`: renew what the seal says of plugins; what it says of files stays as it is."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING

from ductile.admin.config import SealChange, SealEntry, SealResult, open_configuration
from ductile.admin.plugins import find_plugin
from ductile.config.file_io import lock_config_directory
from ductile.config.load import SealCheck
from ductile.config.seal import CHECKSUMS_FILE, read_checksums, write_checksums
from ductile.errors import ConflictError, RefusedError, file_error
from ductile.struct import replace

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ductile.admin.config import OpenedConfiguration


def lock_plugins(
    named: str | None, environ: Mapping[str, str], plugin: str | None = None, *, dry_run: bool = False
) -> SealResult:
    """Authorise the plugins that are configured, or one of them, as they are now."""
    opened = open_configuration(named, environ, seal=SealCheck.IGNORE)
    directory = opened.loaded.directory
    sealed = read_checksums(directory)
    if sealed is None:
        raise ConflictError(
            "the configuration was never sealed", hint="look at it, then run `ductile config lock`"
        )
    now = _fingerprints(opened) if plugin is None else _fingerprint(opened, plugin)
    gone = {} if plugin is not None else {name for name in sealed.plugins if name not in now}
    kept = {name: value for name, value in sealed.plugins.items() if name not in gone}
    if not dry_run:
        try:
            with lock_config_directory(directory):
                write_checksums(directory, replace(sealed, plugins=MappingProxyType({**kept, **now})))
        except OSError as error:
            raise file_error(f"cannot write {directory / CHECKSUMS_FILE}", error) from error
    entries = [
        SealEntry(name=name, change=_change(sealed.plugins.get(name), value), plugin=True)
        for name, value in now.items()
    ]
    entries += [SealEntry(name=name, change=SealChange.GONE, plugin=True) for name in sorted(gone)]
    return SealResult(path=directory / CHECKSUMS_FILE, entries=tuple(entries), written=not dry_run)


def _fingerprints(opened: OpenedConfiguration) -> dict[str, str]:
    used = sorted({plugin.uses for plugin in opened.snapshot.plugins.values()})
    installed = opened.discovery.installed
    return {name: installed[name].fingerprint for name in used if name in installed}


def _fingerprint(opened: OpenedConfiguration, plugin: str) -> dict[str, str]:
    """Of one plugin, by its own name or that of an instance of it."""
    view = find_plugin(opened, plugin)
    if view.fingerprint is None:
        raise RefusedError(f"{plugin} cannot be sealed: {view.reason}", hint=view.hint)
    if not view.configured:
        raise RefusedError(
            f"{plugin} is not configured, so there is nothing to seal", hint="name it under `plugins`"
        )
    return {view.uses: view.fingerprint}


def _change(before: str | None, now: str) -> SealChange:
    if before is None:
        return SealChange.NEW
    return SealChange.SAME if before == now else SealChange.CHANGED
