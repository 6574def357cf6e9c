"""`system restore` and `system backup --verify`: check every hash, then restore everything or nothing."""

from __future__ import annotations

import os
import shlex
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path

from ductile.admin.backup.archive import CHUNK, ArchiveMember, BackupManifest, HashingReader, open_archive
from ductile.admin.backup.create import BESIDE, INSIDE, BackupProgress, StoreFunctions, scratch_beside
from ductile.config.file_io import PRIVATE_DIRECTORY, make_private_directory, sync_directory
from ductile.core.json import JsonObject
from ductile.errors import ConflictError, RefusedError, file_error

_MIB = 1024 * 1024


def verify(path: Path, store_functions: StoreFunctions, progress: BackupProgress) -> JsonObject:
    """Read all of an archive and open its store. Raises `RefusedError` or `StoreError` if it is damaged."""
    try:
        # The disk of the archive has room; the usual place for temporary files is often in memory.
        scratch_directory = tempfile.TemporaryDirectory(prefix=f".{path.name}.", dir=path.parent)
    except OSError:
        scratch_directory = tempfile.TemporaryDirectory(prefix="ductile-verify-")
    with scratch_directory as scratch:
        manifest, store = _unpack(path, Path(scratch), progress, only_store=True)
        version = None if store is None else store_functions.inspect(store)
    return {
        "path": str(path),
        "sound": True,
        "created_at": manifest.created_at,
        "ductile": manifest.version,
        "directory": manifest.directory,
        "scopes": list(manifest.parts),
        "files": len(manifest.members),
        "bytes": manifest.size,
        "schema_version": version,
        "secrets": manifest.secrets,
        "left_out": list(manifest.left_out),
    }


def restore(
    path: Path,
    requested_directory: Path | None,
    store_functions: StoreFunctions,
    progress: BackupProgress,
    *,
    known_directories: Sequence[Path] = (),
    dry_run: bool = False,
) -> JsonObject:
    """Put all files into a directory. Raises `ConflictError` if it is not empty, or its disk too small.

    Without `requested_directory`, it is the one that the archive names. That has to be below one of
    `known_directories`, because an archive from elsewhere could name any directory. Raises `RefusedError`.
    """
    with open_archive(path) as (manifest, _members):
        target = (
            _target(manifest, path, known_directories)
            if requested_directory is None
            else requested_directory.absolute()
        )
    _refuse_unusable(target, manifest.size)
    if dry_run:
        verify(path, store_functions, progress)
        return _to_json(target, manifest, dry_run=True)
    try:
        target.parent.mkdir(mode=PRIVATE_DIRECTORY, parents=True, exist_ok=True)
    except OSError as error:
        raise file_error(f"cannot write to {target.parent}", error) from error
    with scratch_beside(target) as scratch:
        manifest, store = _unpack(path, scratch, progress)
        if store is not None:
            store_functions.inspect(store)
            store_functions.assign_new_id(store)
        for directory, _directories, _files in os.walk(scratch, topdown=False):
            sync_directory(Path(directory))
        try:
            # Replaces an empty directory, and fails for one that is not empty.
            scratch.rename(target)
        except OSError as error:
            raise file_error(f"cannot put it at {target}", error) from error
        sync_directory(target.parent)
    return _to_json(target, manifest, dry_run=False)


def _target(manifest: BackupManifest, path: Path, known_directories: Sequence[Path]) -> Path:
    """Return the directory of the backed up configuration, or the one that holds it and the files beside it.

    Raises `RefusedError` if it is not below one of `known_directories`.
    """
    target = Path(manifest.directory)
    for _ in Path(manifest.prefix or "").parts:
        target = target.parent
    resolved = Path(os.path.realpath(target))
    if any(resolved.is_relative_to(Path(os.path.realpath(directory))) for directory in known_directories):
        return target
    command = f"ductile system restore {shlex.quote(str(path))} --to"
    raise RefusedError(
        f"the backup names {target} as its place, which is not in the directory of the present configuration",
        hint=f"Say where to put it: `{command} {shlex.quote(str(target))}`, or `{command} restored`.",
    )


def _refuse_unusable(target: Path, size: int) -> None:
    """Raise `ConflictError` if the target is not an empty directory, or its disk has too little room."""
    if os.path.lexists(target) and (target.is_symlink() or not target.is_dir()):
        raise ConflictError(f"{target} is not a directory", hint="Name another place with --to.")
    if target.is_dir() and any(target.iterdir()):
        raise ConflictError(
            f"{target} is not empty, and nothing is overwritten",
            hint="Name another place with --to, or move what is there out of the way.",
        )
    existing = next(directory for directory in (target, *target.parents) if directory.is_dir())
    free = shutil.disk_usage(existing).free
    if size > free:
        raise ConflictError(
            f"unpacked it takes {size / _MIB:.1f} MiB, "
            f"and there are {free / _MIB:.1f} MiB free at {existing}",
            hint="Free some space, or name another place with --to.",
        )


def _unpack(
    path: Path, scratch: Path, progress: BackupProgress, *, only_store: bool = False
) -> tuple[BackupManifest, Path | None]:
    """Unpack every member, or only the store, and check all hashes. Returns the path of the store."""
    store: Path | None = None
    with open_archive(path) as (manifest, members):
        done = 0
        for member, stream in members:
            unpacked = scratch / restored_path(member, manifest)
            if member.name == manifest.store:
                store = unpacked
            if member.name == manifest.store or not only_store:
                _unpack_member(stream, unpacked, member, scratch)
            done += member.size
            progress("reading the archive", done, manifest.size)
    return manifest, store


def restored_path(member: ArchiveMember, manifest: BackupManifest) -> str:
    """Return the path of a member below the restored directory.

    The restored directory is that of the configuration. If the configuration reaches files beside it by a
    relative path, it is the directory that holds both, so that the relative path stays valid.
    """
    area, _, path = member.name.partition("/")
    if area == INSIDE:
        return path if manifest.prefix is None else f"{manifest.prefix}/{path}"
    return path if area == BESIDE else member.name


def _unpack_member(stream: HashingReader, path: Path, member: ArchiveMember, scratch: Path) -> None:
    """Write the bytes of a member to a new file, which only its owner can read."""
    try:
        make_private_directory(path.parent)
        mode = int(member.mode, 8) & 0o700
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, mode)
        with os.fdopen(descriptor, "wb") as target:
            shutil.copyfileobj(stream, target, CHUNK)
            target.flush()
            os.fsync(descriptor)
    except OSError as error:
        raise file_error(f"cannot unpack {path.relative_to(scratch)} in {scratch.parent}", error) from error


def _to_json(target: Path, manifest: BackupManifest, *, dry_run: bool) -> JsonObject:
    """Return what was restored, or with `dry_run` what would be."""
    outside: list[JsonObject] = [
        {"from": member.origin, "to": str(target / restored_path(member, manifest))}
        for member in manifest.members
        if member.origin is not None
    ]
    store = next((member for member in manifest.members if member.name == manifest.store), None)
    return {
        "directory": str(target),
        "config": str(target / (manifest.prefix or "") / manifest.config_file)
        if "config" in manifest.parts
        else None,
        "restored": not dry_run,
        "dry_run": dry_run,
        "files": len(manifest.members),
        "bytes": manifest.size,
        "scopes": list(manifest.parts),
        "outside": [*outside],
        "store": None if store is None else str(target / restored_path(store, manifest)),
        "server": manifest.server,
        "left_out": list(manifest.left_out),
        "created_at": manifest.created_at,
        "ductile": manifest.version,
    }
