"""`config lock` and `plugin lock`: renew the seal, the hashes of files and plugins in `.checksums`."""

from __future__ import annotations

from contextlib import suppress
from enum import StrEnum
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from ductile.admin.config import open_configuration
from ductile.config.file_io import lock_config_directory
from ductile.config.find_config import CHECKSUMS_FILE
from ductile.config.load import SealMode
from ductile.config.seal import (
    Checksums,
    Tier,
    build_checksums,
    read_checksums,
    write_checksums,
)
from ductile.config.snapshot import InstalledPlugin
from ductile.errors import ConflictError, IntegrityError, RefusedError, file_error
from ductile.plugins.catalogue import find_entry
from ductile.struct import Value, replace

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from ductile.admin.config import OpenedConfiguration


class SealChange(StrEnum):
    """How sealing changes an entry."""

    NEW = "new"
    CHANGED = "changed"
    SAME = "same"
    GONE = "gone"


class SealEntry(Value):
    """A file, or a plugin, which has no tier."""

    name: str
    change: SealChange
    tier: Tier | None = None
    plugin: bool = False


class SealResult(Value):
    path: Path
    entries: tuple[SealEntry, ...]
    written: bool


def seal_configuration(
    config_path: str | Path | None, environ: Mapping[str, str], *, dry_run: bool = False
) -> SealResult:
    """Seal every loaded file, scope file and plugin in use, as they are now."""
    opened = open_configuration(config_path, environ, seal=SealMode.IGNORE)
    before = None
    with suppress(IntegrityError):  # a seal that cannot be read is replaced
        before = read_checksums(opened.loaded.directory)
    strict = opened.loaded.model.service.strict_mode
    now = build_checksums(opened.loaded.files, _used_fingerprints(opened), strict=strict)
    before = before or Checksums()
    files = (
        SealEntry(name=name, change=change, tier=(now.files.get(name) or before.files[name]).tier)
        for name, change in _changes(before.files, now.files)
    )
    return _write(opened, now, [*files, *_plugin_entries(before, now)], dry_run=dry_run)


def seal_plugins(
    config_path: str | None, environ: Mapping[str, str], plugin: str | None = None, *, dry_run: bool = False
) -> SealResult:
    """Seal the configured plugins, or one of them, as they are now; the hashes of files are not changed.

    ConflictError without a seal; RefusedError for a plugin that cannot be sealed.
    """
    opened = open_configuration(config_path, environ, seal=SealMode.IGNORE)
    before = read_checksums(opened.loaded.directory)
    if before is None:
        raise ConflictError(
            "the configuration was never sealed", hint="look at it, then run `ductile config lock`"
        )
    if plugin is None:
        now = replace(before, plugins=MappingProxyType(_used_fingerprints(opened)))
        return _write(opened, now, [*_plugin_entries(before, now)], dry_run=dry_run)
    entry = find_entry(opened.snapshot, plugin, opened.discovery)
    if entry.fingerprint is None:
        raise RefusedError(f"{plugin} cannot be sealed: {entry.reason}", hint=entry.hint)
    if not entry.sealed:
        raise RefusedError(
            f"{plugin} runs a program that is found by PATH, which is not sealed",
            hint=f"to have it sealed, write its path in plugins.{plugin}.run",
        )
    if not entry.configured:
        raise RefusedError(
            f"{plugin} is not configured, so there is nothing to seal", hint="name it under `plugins`"
        )
    now = replace(before, plugins=MappingProxyType({**before.plugins, entry.uses: entry.fingerprint}))
    entries = [each for each in _plugin_entries(before, now) if each.name == entry.uses]
    return _write(opened, now, entries, dry_run=dry_run)


def _used_fingerprints(opened: OpenedConfiguration) -> dict[str, str]:
    """The fingerprints of configured plugins; a plugin that cannot run has none."""
    found = ((plugin.uses, opened.discovery.found(plugin)) for plugin in opened.snapshot.plugins.values())
    return {
        name: plugin.fingerprint
        for name, plugin in sorted(found, key=lambda pair: pair[0])
        if isinstance(plugin, InstalledPlugin) and plugin.sealed
    }


def _plugin_entries(before: Checksums, now: Checksums) -> Iterator[SealEntry]:
    for name, change in _changes(before.plugins, now.plugins):
        yield SealEntry(name=name, change=change, plugin=True)


def _changes(before: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[tuple[str, SealChange]]:
    """The sealed names first, then those that are gone."""
    for name, value in now.items():
        change = SealChange.SAME if before.get(name) == value else SealChange.CHANGED
        yield name, change if name in before else SealChange.NEW
    yield from ((name, SealChange.GONE) for name in before if name not in now)


def _write(
    opened: OpenedConfiguration, now: Checksums, entries: list[SealEntry], *, dry_run: bool
) -> SealResult:
    path = opened.loaded.directory / CHECKSUMS_FILE
    if not dry_run:
        try:
            with lock_config_directory(path.parent):
                write_checksums(path.parent, now)
        except OSError as error:
            raise file_error(f"cannot write {path}", error) from error
    return SealResult(path=path, entries=tuple(entries), written=not dry_run)
