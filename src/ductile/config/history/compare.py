"""Compares two sets of files by their hashes: what differs, key by key and line by line, without secrets."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from ductile.config.differences import ChangeKind
from ductile.config.edit.change import masked_diff
from ductile.config.file_io import hash_bytes, read_regular_file
from ductile.config.history.file_changes import present_hash
from ductile.config.history.file_copies import ENVIRONMENT_NOTE, FileDifference, compare_contents, read_copy
from ductile.config.read.interpolate import without_defaults
from ductile.config.seal import is_copied
from ductile.config.secrets import mask_urls
from ductile.errors import ConfigError

_NOT_KEPT = "an earlier content of it is not kept, so the changed keys are not known"


def hashes_on_disk(directory: Path, names: Mapping[str, str]) -> dict[str, str]:
    """Return the present hashes of files, without those that do not exist. Raises OSError."""
    present = {name: present_hash(directory, name) for name in names}
    return {name: content_hash for name, content_hash in present.items() if content_hash is not None}


def compare_file_sets(
    directory: Path, before: Mapping[str, str], after: Mapping[str, str]
) -> tuple[FileDifference, ...]:
    """Compare two sets of files, each as hashes by name. Contents are the kept ones, or those on disk."""
    differences = []
    for name in sorted({*before, *after}):
        old_hash, new_hash = before.get(name), after.get(name)
        if old_hash == new_hash:
            continue
        old = None if old_hash is None else _find_content(directory, name, old_hash)
        new = None if new_hash is None else _find_content(directory, name, new_hash)
        if (old_hash is None or old is not None) and (new_hash is None or new is not None):
            differences.append(compare_contents(name, old, new))
            continue
        change = ChangeKind.CHANGED
        if old_hash is None or new_hash is None:
            change = ChangeKind.ADDED if old_hash is None else ChangeKind.REMOVED
        note = _NOT_KEPT if is_copied(name) else ENVIRONMENT_NOTE
        differences.append(FileDifference(name=name, change=change, note=note))
    return tuple(differences)


def changed_lines(directory: Path, name: str, before: str | None, after: str | None) -> str | None:
    """Return a unified diff of two contents of a file, secrets masked.

    None if a content is not kept, or for an environment file, of which no line is ever shown.
    """
    if not is_copied(name):
        return None
    old, new = _find_content(directory, name, before), _find_content(directory, name, after)
    if old is None or new is None:
        return None
    try:
        return mask_urls(without_defaults(masked_diff(Path(name), old, new)))
    except (ConfigError, ValueError):  # it cannot be parsed, so secrets in it cannot be found
        return None


def _find_content(directory: Path, name: str, content_hash: str | None) -> bytes | None:
    """Return the content with a hash; empty for no file, None if it is neither kept nor on disk."""
    if content_hash is None:
        return b""
    if (kept := read_copy(directory, content_hash)) is not None:
        return kept
    try:
        data = read_regular_file(directory / name)
    except OSError:
        return None
    return data if hash_bytes(data) == content_hash else None
