"""Copies of sealed files, by the hash of their content: to show what changed, and to restore it.

They are in `.ductile/files` beside `config.yaml`. A copy can hold a secret as the file itself can, so the
directory is for its owner only and a copy is never shown without redaction.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType

from ductile.config.differences import (
    ChangeKind,
    ComparableConfig,
    SettingDifference,
    comparable_file,
    compare_configs,
    describe_lines,
)
from ductile.config.file_io import (
    HISTORY_DIRECTORY,
    hash_bytes,
    make_private_directory,
    read_regular_file,
    write_atomically,
)
from ductile.struct import Value

_FILES = "files"
#: Files of which a copy is kept. Not environment files: they hold secrets, which must not outlive them.
COPIED_SUFFIXES = (".yaml", ".yml", ".json")
ENVIRONMENT_NOTE = "the content of environment files is not kept, so the changed variables are not known"


def copy_path(directory: Path, content_hash: str) -> Path:
    return directory / HISTORY_DIRECTORY / _FILES / content_hash.rpartition(":")[2]


def keep_copy(directory: Path, data: bytes) -> None:
    """Write a copy of a content, unless there is an intact one. Raises OSError."""
    content_hash = hash_bytes(data)
    path = copy_path(directory, content_hash)
    make_private_directory(path.parent)
    if read_copy(directory, content_hash) is None:
        write_atomically(path, data)


def read_copy(directory: Path, content_hash: str) -> bytes | None:
    """Return the content with this hash, None if no intact copy is kept."""
    with suppress(OSError):
        data = read_regular_file(copy_path(directory, content_hash))
        if hash_bytes(data) == content_hash:
            return data
    return None


def remove_copies(directory: Path, needed: Collection[str]) -> None:
    """Remove the copies of all hashes but the needed ones."""
    needed_names = {content_hash.rpartition(":")[2] for content_hash in needed}
    with suppress(OSError):
        for path in (directory / HISTORY_DIRECTORY / _FILES).iterdir():
            if path.name not in needed_names:
                path.unlink(missing_ok=True)


class FileDifference(Value):
    """A file whose content differs. `note` says why there are no settings to show."""

    name: str
    change: ChangeKind
    settings: tuple[SettingDifference, ...] = ()
    note: str | None = None

    def describe(self, *, limit: int) -> list[str]:
        return [self.note] if self.note else describe_lines(self.settings, limit=limit)


def compare_contents(name: str, before: bytes | None, after: bytes | None) -> FileDifference:
    """Compare two contents of a file; None where it did not exist."""
    change = ChangeKind.CHANGED
    if before is None or after is None:
        change = ChangeKind.ADDED if before is None else ChangeKind.REMOVED
    empty = ComparableConfig(redacted={}, digests={})
    old = empty if before is None else comparable_file(before, name)
    new = empty if after is None else comparable_file(after, name)
    if old is None or new is None:
        return FileDifference(name=name, change=change, note="it cannot be compared key by key")
    settings = compare_configs(old, new)
    note = None if settings or change is not ChangeKind.CHANGED else "only comments or formatting"
    return FileDifference(name=name, change=change, settings=settings, note=note)


def compare_with_copy(
    directory: Path,
    name: str,
    sealed_hash: str | None,
    contents: Mapping[str, bytes | None] = MappingProxyType({}),
) -> FileDifference:
    """Compare a file with the copy that was kept when it was sealed; `sealed_hash` is None if it never was.

    The present content is that in `contents`, else the one on disk.
    """
    sealed = None
    if sealed_hash is not None and (sealed := read_copy(directory, sealed_hash)) is None:
        note = ENVIRONMENT_NOTE
        if name.endswith(COPIED_SUFFIXES):
            note = "its sealed content is not kept, so the changed keys are not known"
        return FileDifference(name=name, change=ChangeKind.CHANGED, note=note)
    try:
        present = contents[name] if name in contents else read_regular_file(directory / name)
    except FileNotFoundError:
        present = None
    except OSError as error:
        note = f"it cannot be read: {error.strerror}"
        return FileDifference(name=name, change=ChangeKind.CHANGED, note=note)
    return compare_contents(name, sealed, present)
