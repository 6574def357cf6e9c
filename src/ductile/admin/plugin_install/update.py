"""`ductile plugin update`: new files for an added plugin. The old ones are kept until they are in force."""

from __future__ import annotations

from difflib import SequenceMatcher
from pathlib import Path
from typing import TYPE_CHECKING

from ductile.admin.config import open_configuration
from ductile.admin.plugin_install.candidate import Candidate, file_hashes, find_candidate, read_source
from ductile.admin.plugin_install.files import (
    discard_leftovers,
    finish_interrupted,
    put_in_place,
    restore_previous,
    stage_plugin,
)
from ductile.admin.plugin_install.sealing import lock_configuration, seal_fingerprint, seal_pending
from ductile.admin.plugin_install.source import GitSource, with_revision
from ductile.admin.plugin_install.tree import SourceTree, read_directory
from ductile.config.load import SealMode
from ductile.errors import ConflictError, RefusedError, UsageError
from ductile.plugins.catalogue import find_entry
from ductile.plugins.source_record import RECORD_FILE, SourceRecord, read_record
from ductile.struct import Value

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from ductile.admin.config import OpenedConfiguration
    from ductile.protocol.manifest.model import Manifest

#: Lines above which a file's changed lines are not counted: comparing takes quadratic time.
_MAX_LINES = 5000


class AddedPlugin(Value):
    """A plugin that `plugin add` has installed."""

    name: str
    plugin_directory: Path
    record: SourceRecord
    manifest: Manifest | None
    config_directory: Path
    #: Files that were changed, removed or added since.
    changed_files: tuple[str, ...]

    def refuse_changes(self, *, discard: bool) -> None:
        """Raise `ConflictError` if its files were changed here, unless the changes may be lost."""
        if self.changed_files and not discard:
            raise ConflictError(
                f"files of {self.name} were changed since it was added: {', '.join(self.changed_files)}",
                hint="keep a copy if you need them; --discard-changes gives them up",
            )


class FileChange(Value):
    """A file that differs; lines are None if they cannot be compared."""

    name: str
    change: str
    added_lines: int | None = None
    removed_lines: int | None = None


class UpdatePlan(Value):
    plugin: AddedPlugin
    candidate: Candidate
    files: tuple[FileChange, ...]
    #: The changes for users of the plugin, one sentence each.
    interface_changes: tuple[str, ...]
    #: Required keys that a configured instance lacks, such as `weather: url`.
    missing_config: tuple[str, ...]


def find_added(opened: OpenedConfiguration, name: str) -> AddedPlugin:
    """Return an added plugin by its own name or a configured one. Raises `RefusedError` for other plugins."""
    entry = find_entry(opened.snapshot, name, opened.discovery)
    if entry.shipped:
        raise RefusedError(f"{name} is part of Ductile", hint="it is updated and removed with Ductile")
    if entry.script is not None or entry.directory is None:
        raise RefusedError(f"{name} has no files of a plugin", hint="see `ductile plugin show`")
    record = read_record(entry.directory)
    if record is None:
        raise RefusedError(
            f"{entry.uses} was not added by `ductile plugin add`",
            hint=f"change the files in {entry.directory} yourself, then run `ductile apply`",
        )
    present = file_hashes(_read_plugin_files(entry.directory))
    names = sorted({*present, *record.files})
    return AddedPlugin(
        name=entry.uses,
        plugin_directory=entry.directory,
        record=record,
        manifest=entry.manifest,
        config_directory=opened.loaded.directory,
        changed_files=tuple(file for file in names if present.get(file) != record.files.get(file)),
    )


def _read_plugin_files(directory: Path) -> SourceTree:
    return read_directory(directory, ignore=frozenset((RECORD_FILE,)))


def plan_update(
    config_path: str | None,
    environ: Mapping[str, str],
    name: str,
    source: str | None,
    *,
    revision: str | None,
    discard_changes: bool,
    now: str,
) -> UpdatePlan:
    """Get the new files and compare them. Raises `ConflictError` if the installed ones were changed here."""
    opened = open_configuration(config_path, environ, seal=SealMode.IGNORE)
    plugin = find_added(opened, name)
    new_source = read_source(source or plugin.record.source, base=Path.cwd())
    if revision is not None:
        if not isinstance(new_source, GitSource):
            raise UsageError(
                f"--to names a tag or commit, and {plugin.name} is not from a repository",
                hint=f"it is from {plugin.record.source}; name another SOURCE",
            )
        new_source = with_revision(new_source, revision)
    candidate = find_candidate(new_source, plugin.name, environ, now=now)
    if candidate.tree is None or candidate.name != plugin.name:
        raise ConflictError(f"{candidate.source} holds {candidate.name}, not {plugin.name}")
    plugin.refuse_changes(discard=discard_changes)
    missing = []
    for instance in opened.snapshot.plugins.values():
        if instance.uses == candidate.name and not instance.is_script:
            required = candidate.manifest.required_config
            if keys := [key for key in required if key not in instance.config.names()]:
                missing.append(f"{instance.name}: {', '.join(keys)}")
    return UpdatePlan(
        plugin=plugin,
        candidate=candidate,
        files=tuple(_compare_files(_read_plugin_files(plugin.plugin_directory), candidate.tree)),
        interface_changes=tuple(_compare_manifests(plugin.manifest, candidate.manifest)),
        missing_config=tuple(missing),
    )


def begin_update(plan: UpdatePlan, config_path: str | None, environ: Mapping[str, str]) -> None:
    """Put the new files in place. Raises `ConfigError` if the configuration does not fit them; then the old
    files are put back.
    """
    plugin, candidate = plan.plugin, plan.candidate
    assert candidate.tree is not None and candidate.record is not None  # noqa: S101, PT018 - planned so
    root, name = plugin.plugin_directory.parent, plugin.plugin_directory.name
    with lock_configuration(plugin.config_directory):
        finish_interrupted(root, name)
        stage_plugin(root, name, candidate.tree, candidate.record)
        seal_pending(plugin.config_directory, plugin.name, candidate.fingerprint)
        put_in_place(root, name)
    try:
        open_configuration(config_path, environ, seal=SealMode.IGNORE)
    except BaseException:
        undo_update(plan)
        raise


def undo_update(plan: UpdatePlan) -> None:
    """Put the old files back, with their seal."""
    plugin = plan.plugin
    with lock_configuration(plugin.config_directory):
        restore_previous(plugin.plugin_directory.parent, plugin.plugin_directory.name)
        seal_pending(plugin.config_directory, plugin.name, None)


def finish_update(plan: UpdatePlan) -> None:
    """Make the new files the only valid ones, and remove the old."""
    plugin = plan.plugin
    with lock_configuration(plugin.config_directory):
        seal_fingerprint(plugin.config_directory, plugin.name, plan.candidate.fingerprint)
        discard_leftovers(plugin.plugin_directory.parent, plugin.plugin_directory.name)


def _compare_files(before: SourceTree, after: SourceTree) -> Iterator[FileChange]:
    """Yield the files that differ, with the numbers of changed lines."""
    for name in sorted({*before.files, *after.files}):
        old, new = before.files.get(name), after.files.get(name)
        if old == new:
            continue
        kind = "added" if old is None else "removed" if new is None else "changed"
        old_data, new_data = old.data if old else b"", new.data if new else b""
        old_lines, new_lines = old_data.splitlines(), new_data.splitlines()
        added = removed = None
        if b"\0" not in old_data + new_data and max(len(old_lines), len(new_lines)) <= _MAX_LINES:
            blocks = SequenceMatcher(None, old_lines, new_lines).get_matching_blocks()
            same = sum(block.size for block in blocks)
            added, removed = len(new_lines) - same, len(old_lines) - same
        yield FileChange(name=name, change=kind, added_lines=added, removed_lines=removed)


def _compare_manifests(before: Manifest | None, after: Manifest) -> Iterator[str]:
    """Yield a sentence for each change of version, commands and configuration keys."""
    if before is None:
        return
    if before.version != after.version:
        yield f"version {before.version or '(none)'} becomes {after.version or '(none)'}"
    for name in sorted({*before.commands, *after.commands}):
        old, new = before.commands.get(name), after.commands.get(name)
        if new is None:
            yield f"command {name} is gone"
        elif old is None:
            yield f"command {name} is new ({new.type})"
        elif old.type != new.type:
            yield f"command {name} was {old.type} and is {new.type}"
    for kind in ("required", "optional"):
        old_keys, new_keys = getattr(before, f"{kind}_config"), getattr(after, f"{kind}_config")
        yield from (f"config key {key} is now {kind}" for key in new_keys if key not in old_keys)
        yield from (f"config key {key} is no longer {kind}" for key in old_keys if key not in new_keys)
