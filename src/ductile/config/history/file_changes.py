"""Replaces several files of a configuration and seals the result as one step, also across a crash.

Before the first file is replaced, a journal in `.ductile/change.json` names every file with its old and its
new hash, and copies of both contents are kept. While it exists, the configuration is not loaded and no other
command writes; `finish_change` or `undo_change` completes it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType

from ductile.config.file_io import (
    hash_bytes,
    journal_path,
    lock_config_directory,
    make_private_directory,
    read_regular_file,
    sync_directory,
    write_atomically,
)
from ductile.config.find_config import CHECKSUMS_FILE
from ductile.config.history.file_copies import (
    FileDifference,
    compare_contents,
    compare_with_copy,
    keep_copy,
    read_copy,
)
from ductile.config.history.seal_log import UNSEALED, configuration_id, record_seal
from ductile.config.seal import (
    Checksums,
    decode_checksums,
    encode_checksums,
    is_copied,
    read_checksums,
    write_checksums,
)
from ductile.errors import ConflictError, IntegrityError, NotFoundError
from ductile.struct import Value, field, hide_in_repr

_PLAN_DIGITS = 16


class FileReplacement(Value):
    """A file by its name in the seal, with the hashes before and after; None where it does not exist."""

    name: str
    before: str | None
    after: str | None


@hide_in_repr("contents")
class PlannedChange(Value):
    """New contents of files, None for one to remove, and the seal of the result. Nothing is written yet."""

    directory: Path
    checksums: Checksums
    #: The hash of the seal that the change was planned on; None if there was none.
    sealed_before: str | None
    contents: Mapping[str, bytes | None] = field(default_factory=dict)
    #: The hashes that the files to be replaced had when the change was planned.
    before: Mapping[str, str | None] = field(default_factory=dict)

    def plan_id(self, *, active: str | None, config: str) -> str:
        """Return the id of the plan: a hash over what is in force, on disk and sealed now, and the result.

        `active` and `config` are fingerprints of the configuration in force, if there is one, and of the new
        one. If any of it changes, the plan has another id.
        """
        base = [active, self.sealed_before, dict(self.before)]
        content = json.dumps([base, config, encode_checksums(self.checksums).decode()], sort_keys=True)
        return hash_bytes(content.encode()).rpartition(":")[2][:_PLAN_DIGITS]


class SealDifference(Value):
    """The differences of a configuration from the sealed one."""

    files: tuple[FileDifference, ...]
    #: Plugins whose files are not as sealed, by name: `added`, `removed` or `changed`.
    plugins: Mapping[str, str]
    #: Whether the seal has to be written.
    must_seal: bool
    #: The hashes of the present seal.
    sealed: Mapping[str, str] = field(default_factory=dict)

    def other_unsealed_names(self, change: PlannedChange) -> tuple[str, ...]:
        """Return the files and plugins with other unsealed changes, which this change would seal too."""
        names = [
            file.name
            for file in self.files
            if file.name not in change.contents or change.before[file.name] != self.sealed.get(file.name)
        ]
        return (*names, *(f"plugin {name}" for name in self.plugins))


class _Journal(Value):
    command: str
    author: str | None
    replacements: tuple[FileReplacement, ...]
    seal_before: str | None
    seal_after: str


def present_hash(directory: Path, name: str) -> str | None:
    """Return the hash of a file on disk, None if there is none. Raises OSError."""
    try:
        return hash_bytes(read_regular_file(directory / name))
    except FileNotFoundError:
        return None


def seal_hash(directory: Path) -> str | None:
    return present_hash(directory, CHECKSUMS_FILE)


def plan_change(
    directory: Path, checksums: Checksums, contents: Mapping[str, bytes | None] = MappingProxyType({})
) -> PlannedChange:
    """Plan to write these contents and this seal, on the files as they are now. Raises OSError."""
    return PlannedChange(
        directory=directory,
        checksums=checksums,
        sealed_before=seal_hash(directory),
        contents=contents,
        before={name: present_hash(directory, name) for name in contents},
    )


def compare_with_seal(change: PlannedChange) -> SealDifference:
    """Compare a planned change with the present seal. A seal that cannot be read counts as none."""
    directory, new_seal, old_seal = change.directory, change.checksums, None
    with suppress(IntegrityError):
        old_seal = read_checksums(directory)
    sealed = old_seal or Checksums()
    names = [name for name, file in new_seal.files.items() if sealed.files.get(name) != file]
    names += [name for name in sealed.files if name not in new_seal.files]
    hashes = {name: file.hash for name, file in sealed.files.items()}
    removed = {name: None for name in names if name not in new_seal.files}
    differences = tuple(
        compare_with_copy(directory, name, hashes.get(name), {**removed, **change.contents}) for name in names
    )
    differences += tuple(
        compare_contents(name, read_regular_file(directory / name), None)
        for name, data in change.contents.items()
        if data is None and name not in sealed.files
    )
    plugins = {
        name: "added" if name not in sealed.plugins else "changed" if name in new_seal.plugins else "removed"
        for name in sorted({*new_seal.plugins, *sealed.plugins})
        if new_seal.plugins.get(name) != sealed.plugins.get(name)
    }
    return SealDifference(
        files=differences,
        plugins=plugins,
        must_seal=old_seal is None or bool(names or plugins) or new_seal.strict != sealed.strict,
        sealed=hashes,
    )


def write_change(change: PlannedChange, *, command: str, author: str | None = None) -> str | None:
    """Replace the files and write the seal: only what was checked and shown is authorised.

    Returns the id of the replaced files if they had changes that were never sealed: these are kept.
    Raises ConflictError if a file or the seal was changed meanwhile, OSError if one cannot be written.
    """
    directory = change.directory
    with lock_config_directory(directory):
        _refuse_changed(change)
        if not change.contents:
            write_checksums(directory, change.checksums, command=command, author=author)
            return None
        replacements = tuple(
            FileReplacement(
                name=name, before=change.before[name], after=None if data is None else hash_bytes(data)
            )
            for name, data in change.contents.items()
        )
        unsealed_id = _keep_contents(change)
        journal = _Journal(
            command=command,
            author=author,
            replacements=replacements,
            seal_before=_read_seal(directory),
            seal_after=encode_checksums(change.checksums).decode(),
        )
        _write_journal(directory, journal)
        _complete(directory, journal)
        return unsealed_id


def finish_change(directory: Path) -> tuple[FileReplacement, ...]:
    """Complete an interrupted change and return the files that it replaces.

    Raises NotFoundError if there is none, ConflictError if a file has neither its old nor its new content.
    """
    with lock_config_directory(directory, resume=True):
        journal = _read_journal(directory)
        _complete(directory, journal)
        return journal.replacements


def undo_change(directory: Path) -> tuple[FileReplacement, ...]:
    """Take back an interrupted change and return the files that it restores. Raises as `finish_change`."""
    with lock_config_directory(directory, resume=True):
        journal = _read_journal(directory)
        reversed_changes = tuple(
            FileReplacement(name=replacement.name, before=replacement.after, after=replacement.before)
            for replacement in journal.replacements
        )
        _replace_files(directory, reversed_changes)
        if journal.seal_before is None:
            (directory / CHECKSUMS_FILE).unlink(missing_ok=True)
        else:
            write_atomically(directory / CHECKSUMS_FILE, journal.seal_before.encode())
        _remove_journal(directory)
        return reversed_changes


def _refuse_changed(change: PlannedChange) -> None:
    """Raise ConflictError if a file or the seal is not as it was when the change was planned."""
    directory = change.directory
    expected = {name: file.hash for name, file in change.checksums.files.items()} | dict(change.before)
    present = ((name, present_hash(directory, name)) for name in expected)
    changed = next((name for name, content_hash in present if content_hash != expected[name]), None)
    if changed is None and seal_hash(directory) != change.sealed_before:
        changed = CHECKSUMS_FILE
    if changed is not None:
        message = f"{changed} was changed meanwhile; nothing was written, sealed or reloaded"
        raise ConflictError(message, hint="Look at it again with --dry-run, then repeat the command.")


def _keep_contents(change: PlannedChange) -> str | None:
    """Keep copies of the old and the new contents.

    If the present files have changes that were never sealed, records them too and returns their id, so that
    nothing is lost.
    """
    directory = change.directory
    for name, data in change.contents.items():
        if change.before[name] is not None:
            keep_copy(directory, read_regular_file(directory / name))
        if data is not None:
            keep_copy(directory, data)
    text = _read_seal(directory)
    sealed = {} if text is None else {name: file.hash for name, file in decode_checksums(text).files.items()}
    # A file that is removed may have no entry in the seal.
    names = dict.fromkeys((*sealed, *change.contents))
    hashes = {name: present_hash(directory, name) for name in names}
    present = {name: content_hash for name, content_hash in hashes.items() if content_hash is not None}
    if any(sealed.get(name) != present[name] for name in present if is_copied(name)):
        for name in present:
            if is_copied(name):
                keep_copy(directory, read_regular_file(directory / name))
        if sealed:
            record_seal(directory, sealed)
        record_seal(directory, present, command=UNSEALED)
        return configuration_id(present)
    return None


def _complete(directory: Path, journal: _Journal) -> None:
    """Replace the files of a journal, write the seal, and remove the journal."""
    _replace_files(directory, journal.replacements)
    checksums = decode_checksums(journal.seal_after)
    write_checksums(directory, checksums, command=journal.command, author=journal.author)
    _remove_journal(directory)


def _replace_files(directory: Path, replacements: tuple[FileReplacement, ...]) -> None:
    """Give each file its new content, unless it has it already. Checks all before it changes one."""
    writes: list[tuple[str, bytes | None]] = []
    for replacement in replacements:
        present = present_hash(directory, replacement.name)
        if present == replacement.after:
            continue
        if present != replacement.before:
            raise ConflictError(
                f"{replacement.name} was changed after the change of several files was interrupted",
                hint=f"Restore {replacement.name}, then repeat the command.",
            )
        content = None
        if replacement.after is not None and (content := read_copy(directory, replacement.after)) is None:
            raise IntegrityError(
                f"the copy of {replacement.name} is missing or damaged",
                hint=f"Restore {replacement.name} from a backup, then try again.",
            )
        writes.append((replacement.name, content))
    for name, data in writes:
        if data is None:
            (directory / name).unlink(missing_ok=True)
            sync_directory((directory / name).parent)
        else:
            write_atomically(directory / name, data)


def _read_seal(directory: Path) -> str | None:
    try:
        return read_regular_file(directory / CHECKSUMS_FILE).decode()
    except FileNotFoundError:
        return None


def _write_journal(directory: Path, journal: _Journal) -> None:
    content = {
        "command": journal.command,
        "author": journal.author,
        "files": [
            [replacement.name, replacement.before, replacement.after] for replacement in journal.replacements
        ],
        "seal_before": journal.seal_before,
        "seal_after": journal.seal_after,
    }
    make_private_directory(journal_path(directory).parent)
    write_atomically(journal_path(directory), json.dumps(content).encode())


def _read_journal(directory: Path) -> _Journal:
    path = journal_path(directory)
    try:
        content = json.loads(read_regular_file(path))
        return _Journal(
            command=content["command"],
            author=content["author"],
            replacements=tuple(
                FileReplacement(name=name, before=before, after=after)
                for name, before, after in content["files"]
            ),
            seal_before=content["seal_before"],
            seal_after=content["seal_after"],
        )
    except FileNotFoundError:
        raise NotFoundError("no change was interrupted: there is nothing to finish or to undo") from None
    except (ValueError, KeyError, TypeError) as error:
        message = f"the journal {path} is damaged"
        raise IntegrityError(message, hint="Restore the files from a backup, then remove it.") from error


def _remove_journal(directory: Path) -> None:
    journal_path(directory).unlink(missing_ok=True)
    sync_directory(journal_path(directory).parent)
