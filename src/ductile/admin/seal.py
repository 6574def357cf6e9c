"""`config lock` and `plugin lock`: renew the seal, the hashes of files and plugins in `.checksums`."""

from __future__ import annotations

from contextlib import suppress
from enum import StrEnum
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from ductile.admin.config import open_configuration
from ductile.config.file_io import lock_config_directory
from ductile.config.find_config import CHECKSUMS_FILE
from ductile.config.load import SealMode
from ductile.config.seal import (
    Checksums,
    Tier,
    read_checksums,
    relative_name,
    write_checksums,
)
from ductile.core.suggest import did_you_mean
from ductile.errors import ConflictError, IntegrityError, NotFoundError, RefusedError, file_error
from ductile.plugins.catalogue import find_entry
from ductile.struct import Value, replace

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from ductile.admin.config import OpenedConfiguration


class SealChange(StrEnum):
    """The effect of sealing on an entry."""

    NEW = "new"
    CHANGED = "changed"
    SAME = "same"
    GONE = "gone"


class SealEntry(Value):
    """A file, or a plugin, which has no tier."""

    name: str
    change: SealChange
    tier: Tier | None = None
    is_plugin: bool = False


class SealResult(Value):
    path: Path
    entries: tuple[SealEntry, ...]
    written: bool


def seal_configuration(
    config_path: str | Path | None,
    environ: Mapping[str, str],
    names: Sequence[str] = (),
    *,
    dry_run: bool = False,
) -> SealResult:
    """Seal every loaded file, scope file and plugin in use as they are now, or only the named ones.

    Entries that are not named stay as they are, so other unsealed changes stay unsealed. Raises NotFoundError
    for a name that is neither a file nor a plugin of the configuration.
    """
    opened = open_configuration(config_path, environ, seal=SealMode.IGNORE)
    new_seal = opened.snapshot.checksums
    old_seal = None
    with suppress(IntegrityError):  # a seal that cannot be read is replaced
        old_seal = read_checksums(opened.loaded.directory)
    old_seal = old_seal or Checksums()
    named = _sealed_names(opened, names)
    if names:
        new_seal = replace(
            old_seal.with_files(*(file for name, file in new_seal.files.items() if name in named)),
            plugins=MappingProxyType(
                {
                    **old_seal.plugins,
                    **{key: value for key, value in new_seal.plugins.items() if key in named},
                }
            ),
            strict=old_seal.strict or new_seal.strict,
        )
    files = (
        SealEntry(name=name, change=change, tier=(new_seal.files.get(name) or old_seal.files[name]).tier)
        for name, change in _changes(old_seal.files, new_seal.files)
    )
    entries = [*files, *_plugin_entries(old_seal, new_seal)]
    if names:
        entries = [entry for entry in entries if entry.name in named]
    return _write(opened, new_seal, entries, dry_run=dry_run)


def _sealed_names(opened: OpenedConfiguration, names: Sequence[str]) -> frozenset[str]:
    """Return the names in the seal of files and plugins that were named on the command line."""
    directory, sealed = opened.loaded.directory, opened.snapshot.checksums
    sealed_names = set()
    for name in names:
        candidates = (name, relative_name(directory, Path(name).absolute()), name.removeprefix("./"))
        sealed_name = next(
            (
                candidate
                for candidate in candidates
                if candidate in sealed.files or candidate in sealed.plugins
            ),
            None,
        )
        instance = opened.snapshot.plugins.get(name)
        if sealed_name is None and instance is not None:
            sealed_name = instance.uses if instance.uses in sealed.plugins else None
        if sealed_name is None:
            all_names = (*sealed.files, *sealed.plugins)
            hint = did_you_mean(name, all_names) or f"there are {', '.join(all_names)}"
            raise NotFoundError(f"{name} is not a file or plugin of this configuration", hint=hint)
        sealed_names.add(sealed_name)
    return frozenset(sealed_names)


def seal_plugins(
    config_path: str | None, environ: Mapping[str, str], plugin: str | None = None, *, dry_run: bool = False
) -> SealResult:
    """Seal the configured plugins, or one of them, as they are now; the hashes of files are not changed.

    Raises ConflictError without a seal, RefusedError for a plugin that cannot be sealed.
    """
    opened = open_configuration(config_path, environ, seal=SealMode.IGNORE)
    old_seal = read_checksums(opened.loaded.directory)
    if old_seal is None:
        raise ConflictError("the configuration was never sealed", hint="look at it, then run `ductile apply`")
    if plugin is None:
        new_seal = replace(old_seal, plugins=opened.snapshot.checksums.plugins)
        return _write(opened, new_seal, [*_plugin_entries(old_seal, new_seal)], dry_run=dry_run)
    entry = find_entry(opened.snapshot, plugin, opened.discovery)
    if entry.fingerprint is None:
        raise RefusedError(f"{plugin} cannot be sealed: {entry.reason}", hint=entry.hint)
    if entry.shipped:
        raise RefusedError(
            f"{plugin} is part of Ductile, which is not sealed",
            hint="to have it sealed, copy it, and `lib` beside it, into a plugin root of your own",
        )
    if not entry.sealed:
        raise RefusedError(
            f"{plugin} runs a program that is found by PATH, which is not sealed",
            hint=f"to have it sealed, write its path in plugins.{plugin}.run",
        )
    if not entry.configured:
        raise RefusedError(
            f"{plugin} is not configured, so there is nothing to seal", hint="name it under `plugins`"
        )
    new_seal = replace(
        old_seal, plugins=MappingProxyType({**old_seal.plugins, entry.uses: entry.fingerprint})
    )
    entries = [
        plugin_entry
        for plugin_entry in _plugin_entries(old_seal, new_seal)
        if plugin_entry.name == entry.uses
    ]
    return _write(opened, new_seal, entries, dry_run=dry_run)


def _plugin_entries(old_seal: Checksums, new_seal: Checksums) -> Iterator[SealEntry]:
    for name, change in _changes(old_seal.plugins, new_seal.plugins):
        yield SealEntry(name=name, change=change, is_plugin=True)


def _changes(old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[tuple[str, SealChange]]:
    """Yield the change of each name of the new seal, then of the names that are no longer in it."""
    for name, value in new.items():
        change = SealChange.SAME if old.get(name) == value else SealChange.CHANGED
        yield name, change if name in old else SealChange.NEW
    yield from ((name, SealChange.GONE) for name in old if name not in new)


def _write(
    opened: OpenedConfiguration, new_seal: Checksums, entries: list[SealEntry], *, dry_run: bool
) -> SealResult:
    path = opened.loaded.directory / CHECKSUMS_FILE
    if not dry_run:
        try:
            with lock_config_directory(path.parent):
                write_checksums(path.parent, new_seal)
        except OSError as error:
            raise file_error(f"cannot write {path}", error) from error
    return SealResult(path=path, entries=tuple(entries), written=not dry_run)
