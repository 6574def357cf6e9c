"""The directory of an added plugin: written beside its place and renamed, so that it is whole or not there.

Names with a dot at the beginning are not searched for plugins: `.NAME.new` is being written, `.NAME.old` is
kept until the new files are in force. All functions are called while the configuration's directory is locked,
so other files of these names were left by a command that was killed.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import stat
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from ductile.config.file_io import make_private_directory, sync_directory
from ductile.errors import file_error
from ductile.plugins.source_record import RECORD_FILE

if TYPE_CHECKING:
    from ductile.admin.plugin_install.tree import SourceTree
    from ductile.plugins.source_record import SourceRecord

_AT_FDCWD = -100
_RENAME_EXCHANGE = 2


def stage_plugin(root: Path, name: str, tree: SourceTree, record: SourceRecord) -> Path:
    """Write the files to `.NAME.new` in a root, which is made if it is missing. Returns that directory.

    Users that can read the root can read the files; only their owner can change them.
    """
    staged = _staged_path(root, name)
    try:
        make_private_directory(root)
        shared = root.stat().st_mode & 0o055
        _remove(staged)
        staged.mkdir(mode=stat.S_IRWXU)
        directories = {staged}
        contents = {path: (file.data, file.executable) for path, file in tree.files.items()}
        contents[RECORD_FILE] = (record.encode(), False)
        for relative, (data, executable) in contents.items():
            path = staged / relative
            for parent in [directory for directory in path.parents if directory.is_relative_to(staged)]:
                directories.add(parent)
            path.parent.mkdir(mode=stat.S_IRWXU, parents=True, exist_ok=True)
            mode = (0o700 | shared) if executable else (0o600 | shared & 0o044)
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
            with os.fdopen(descriptor, "wb") as stream:
                os.fchmod(descriptor, mode)
                stream.write(data)
                stream.flush()
                os.fsync(descriptor)
        for directory in sorted(directories, reverse=True):
            directory.chmod(stat.S_IRWXU | shared)
            sync_directory(directory)
        sync_directory(root)
    except OSError as error:
        raise file_error(f"cannot write {error.filename or staged}", error) from error
    return staged


def put_in_place(root: Path, name: str) -> None:
    """Give the staged files the name of the plugin. Present files become `.NAME.old` in the same step."""
    staged, directory, old = _staged_path(root, name), root / name, _kept_path(root, name)
    try:
        if not os.path.lexists(directory):
            staged.rename(directory)
        else:
            _remove(old)
            if _exchange(staged, directory):
                staged.rename(old)
            else:  # two steps, which `finish_interrupted` completes after a kill
                directory.rename(old)
                staged.rename(directory)
        sync_directory(root)
    except OSError as error:
        raise file_error(f"cannot write {directory}", error) from error


def restore_previous(root: Path, name: str) -> None:
    """Put back the files that the last `put_in_place` has replaced, if there are any."""
    if _kept_path(root, name).is_dir():
        _remove(_staged_path(root, name))
        _kept_path(root, name).rename(_staged_path(root, name))
        put_in_place(root, name)
        _remove(_kept_path(root, name))


def remove_plugin(root: Path, name: str) -> None:
    """Remove the plugin. It is renamed first, so that no part of it is found under its name."""
    try:
        _remove(_kept_path(root, name))
        (root / name).rename(_kept_path(root, name))
        sync_directory(root)
    except OSError as error:
        raise file_error(f"cannot remove {root / name}", error) from error
    discard_leftovers(root, name)


def finish_interrupted(root: Path, name: str) -> None:
    """Repair a plugin after a command was killed: files that had been moved away are put back."""
    with suppress(OSError):
        if (
            _kept_path(root, name).is_dir()
            and _staged_path(root, name).is_dir()
            and not os.path.lexists(root / name)
        ):
            _kept_path(root, name).rename(root / name)
    discard_leftovers(root, name)


def discard_leftovers(root: Path, name: str) -> None:
    """Remove earlier files that are still kept, and staged files that were not put in place."""
    for leftover in (_staged_path(root, name), _kept_path(root, name)):
        _remove(leftover)


def _staged_path(root: Path, name: str) -> Path:
    return root / f".{name}.new"


def _kept_path(root: Path, name: str) -> Path:
    return root / f".{name}.old"


def _remove(directory: Path) -> None:
    shutil.rmtree(directory, ignore_errors=True)


def _exchange(first: Path, second: Path) -> bool:
    """Exchange two names at once. Returns False where the system cannot do that."""
    rename = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if rename is None:
        return False
    status: int = rename(_AT_FDCWD, os.fsencode(first), _AT_FDCWD, os.fsencode(second), _RENAME_EXCHANGE)
    return status == 0
