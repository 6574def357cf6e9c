"""`system backup`: configuration, store and plugins in one archive, consistent while the daemon runs."""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from enum import StrEnum
from pathlib import Path
from typing import Protocol

from ductile import __version__
from ductile.admin.backup.archive import ArchiveMember, BackupManifest, hash_stream, write_archive
from ductile.admin.config import OpenedConfiguration, state_file
from ductile.config.file_io import sync_directory
from ductile.config.find_config import resolve_path
from ductile.config.seal import CHECKSUMS_FILE, relative_name
from ductile.core.json import JsonObject
from ductile.core.timestamps import format_timestamp
from ductile.errors import ConflictError, NotFoundError, StoreFailedError, UsageError, file_error
from ductile.struct import Value, replace

INSIDE = "inside"
#: For files outside of the configuration's directory.
OUTSIDE = "outside"
#: For files outside of the configuration's directory that the configuration reaches by a relative path.
BESIDE = "beside"
_OWNER = 0o700
#: Directories that are left out.
_LEFT_OUT = frozenset({"__pycache__"})


class BackupPart(StrEnum):
    CONFIG = "config"
    STATE = "state"
    PLUGINS = "plugins"


class StoreFiles(Value):
    """Functions on the files of a store, whichever database it is."""

    #: Copies a store: source, target, and a callback with the pages done and all pages.
    copy: Callable[[Path, Path, Callable[[int, int], None]], None]
    #: Returns the schema version of a copy; `StoreError` if the copy is damaged.
    inspect: Callable[[Path], int]
    #: Assigns a new store id to a copy.
    assign_new_id: Callable[[Path], None]
    #: Raises `StoreError` if only a part of a store's files is there.
    refuse_incomplete: Callable[[Path], None] = lambda _path: None


class BackupProgress(Protocol):
    """Called with the present step, and the amount that is done of all."""

    def __call__(self, what: str, done: int, of: int) -> None: ...


class BackupRequest(Value):
    target: Path
    parts: frozenset[BackupPart]
    secrets: bool
    now: datetime
    dry_run: bool = False
    #: A daemon writes to the store, or did when it ended: the file must be there.
    store_in_use: bool = False


class _Source(Value):
    """A file to back up, and its name in the archive."""

    name: str
    path: Path
    scope: BackupPart
    origin: str | None = None


def parse_parts(text: str | None) -> frozenset[BackupPart]:
    """The parts of a list with commas; all of them without one. UsageError for an unknown part."""
    if text is None:
        return frozenset(BackupPart)
    try:
        found = frozenset(BackupPart(part.strip()) for part in text.split(",") if part.strip())
    except ValueError:
        found = frozenset()
    if not found:
        raise UsageError(f"--scope {text}: there is no such part", hint=f"some of {', '.join(BackupPart)}")
    return found


def back_up(
    opened: OpenedConfiguration, wanted: BackupRequest, files: StoreFiles, progress: BackupProgress
) -> JsonObject:
    """Write the archive, whole or not at all, and return its contents.

    ConflictError if the target exists or a file changes meanwhile; StoreError for a missing or damaged store.
    """
    target = _target(opened, wanted)
    sources, left_out, secrets = _collect(opened, wanted)
    directory, base = _normalize(opened.loaded.directory), _base(opened, wanted)
    with _scratch_beside(target, dry_run=wanted.dry_run) as scratch:
        store = _store_source(opened, wanted, files)
        if store is not None and scratch is not None:
            copied = scratch / "state"
            files.copy(store.path, copied, lambda done, of: progress("copying the store", done, of))
            sources.append(replace(store, path=copied))
        elif store is not None:
            sources.append(store)
        manifest = BackupManifest(
            version=__version__,
            created_at=format_timestamp(wanted.now),
            directory=str(opened.loaded.directory),
            config_file=opened.loaded.path.name,
            scopes=tuple(part.value for part in BackupPart if part in wanted.parts),
            secrets=wanted.secrets and BackupPart.CONFIG in wanted.parts,
            members=tuple(_member(source) for source in sources),
            store=None if store is None else store.name,
            left_out=tuple(str(path) for path in left_out),
            prefix=None if base is None else directory.relative_to(base).as_posix(),
        )
        if scratch is not None:
            paths = {source.name: source.path for source in sources}
            _write(target, scratch / "archive", manifest, paths, progress)
    scopes = [member.scope for member in manifest.members]
    return {
        "path": str(target),
        "written": not wanted.dry_run,
        "dry_run": wanted.dry_run,
        "scopes": list(manifest.scopes),
        "files": {scope: scopes.count(scope) for scope in manifest.scopes},
        "bytes": manifest.size,
        "store": manifest.store,
        "secrets": manifest.secrets,
        "left_out": list(manifest.left_out),
        "secrets_left_out": [str(path) for path in secrets],
        "created_at": manifest.created_at,
    }


def _target(opened: OpenedConfiguration, wanted: BackupRequest) -> Path:
    target = wanted.target
    if target.is_dir():
        name = re.sub(r"[^A-Za-z0-9_-]+", "-", opened.snapshot.service.name)
        target = target / f"{name}-{wanted.now:%Y%m%dT%H%M%SZ}.tar.gz"
    if os.path.lexists(target):
        raise _exists_error(target)
    if not target.parent.is_dir():
        raise NotFoundError(f"there is no directory {target.parent}", hint="Make it first.")
    return target


def _exists_error(target: Path) -> ConflictError:
    return ConflictError(f"{target} already exists, and is not overwritten", hint="Name another file.")


# ---------------------------------------------------------------------------------------------- files


def _collect(
    opened: OpenedConfiguration, wanted: BackupRequest
) -> tuple[list[_Source], list[Path], list[Path]]:
    """The files without the store, the files that are left out, and those of them that hold secrets."""
    directory, base = _normalize(opened.loaded.directory), _base(opened, wanted)
    found: dict[Path, BackupPart] = {}
    left_out: list[Path] = []
    if BackupPart.CONFIG in wanted.parts:
        names = [file.name for file in opened.loaded.files]
        names += [CHECKSUMS_FILE] if (directory / CHECKSUMS_FILE).is_file() else []
        found |= {_normalize(directory / name): BackupPart.CONFIG for name in names}
    if BackupPart.PLUGINS in wanted.parts:
        store = state_file(opened.snapshot)
        for root in opened.loaded.plugin_roots:
            for path in _files_below(root, left_out):
                if path.parent != store.parent or not path.name.startswith(store.name):
                    found.setdefault(path, BackupPart.PLUGINS)
    secrets: list[Path] = []
    if not wanted.secrets:
        included = opened.loaded.model.environment_vars.include
        env_files = {_normalize(resolve_path(name, opened.loaded.directory)) for name in included}
        secrets = [path for path in found if path in env_files]
    sources = [_source(directory, base, path, part) for path, part in found.items() if path not in secrets]
    return sources, [*left_out, *secrets], secrets


def _base(opened: OpenedConfiguration, wanted: BackupRequest) -> Path | None:
    """The directory that holds the configuration's directory and its relative plugin roots; None if that is
    the configuration's directory.
    """
    directory = _normalize(opened.loaded.directory)
    if BackupPart.PLUGINS not in wanted.parts:
        return None
    model = opened.loaded.model
    named = [*model.plugin_roots, *([model.plugins_dir] if model.plugins_dir else [])]
    roots = [_normalize(directory / name) for name in named if not Path(name).expanduser().is_absolute()]
    base = Path(os.path.commonpath((directory, *roots)))
    return None if base == directory else base


def _normalize(path: Path) -> Path:
    """The path without `.` and `..`, so that a file has one name."""
    return Path(os.path.normpath(path))


def _files_below(root: Path, left_out: list[Path]) -> Iterator[Path]:
    """Regular files; links to directories and other things that are not files are added to `left_out`."""
    for directory, directories, names in os.walk(_normalize(root)):
        here = Path(directory)
        left_out += [here / name for name in sorted(directories) if (here / name).is_symlink()]
        directories[:] = sorted(name for name in directories if name not in _LEFT_OUT)
        for path in (here / name for name in sorted(names)):
            if path.is_file():
                yield path
            else:
                left_out.append(path)


def _store_source(opened: OpenedConfiguration, wanted: BackupRequest, files: StoreFiles) -> _Source | None:
    if BackupPart.STATE not in wanted.parts:
        return None
    path = _normalize(state_file(opened.snapshot))
    files.refuse_incomplete(path)
    if path.is_file():
        return _source(_normalize(opened.loaded.directory), _base(opened, wanted), path, BackupPart.STATE)
    if wanted.store_in_use:
        raise StoreFailedError(
            f"there is no store at {path}, and a daemon has used one there",
            hint="It was removed or moved. Put it back; `--scope config,plugins` backs up the rest.",
        )
    return None


def _source(directory: Path, base: Path | None, path: Path, part: BackupPart) -> _Source:
    name = relative_name(directory, path)
    if not Path(name).is_absolute():
        return _Source(name=f"{INSIDE}/{name}", path=path, scope=part)
    if base is not None and path.is_relative_to(base):
        return _Source(name=f"{BESIDE}/{path.relative_to(base).as_posix()}", path=path, scope=part)
    return _Source(name=f"{OUTSIDE}{name}", path=path, scope=part, origin=str(path))


def _member(source: _Source) -> ArchiveMember:
    try:
        with source.path.open("rb") as stream:
            mode = os.fstat(stream.fileno()).st_mode & _OWNER
            size, digest = hash_stream(stream)
    except OSError as error:
        raise file_error(f"cannot read {source.path}", error) from error
    mode = 0o600 if source.scope is BackupPart.STATE else mode | 0o600
    return ArchiveMember(
        name=source.name, scope=source.scope, size=size, hash=digest, mode=f"{mode:04o}", origin=source.origin
    )


# ---------------------------------------------------------------------------------------------- write


@contextmanager
def _scratch_beside(target: Path, *, dry_run: bool) -> Iterator[Path | None]:
    """A private directory on the disk of the target, removed at the end; None for a dry run."""
    if dry_run:
        yield None
        return
    try:
        scratch = tempfile.TemporaryDirectory(prefix=f".{target.name}.", dir=target.parent)
    except OSError as error:
        raise file_error(f"cannot write to {target.parent}", error) from error
    with scratch:
        yield Path(scratch.name)


def _write(
    target: Path, scratch: Path, manifest: BackupManifest, paths: dict[str, Path], progress: BackupProgress
) -> None:
    done = 0

    def on_written(size: int) -> None:
        nonlocal done
        done += size
        progress("writing the archive", done, manifest.size)

    try:
        descriptor = os.open(scratch, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "wb") as stream:
            write_archive(stream, manifest, paths, on_written)
            stream.flush()
            os.fsync(stream.fileno())
        _publish(scratch, target)
    except FileExistsError:
        raise _exists_error(target) from None
    except OSError as error:
        raise file_error(f"cannot write {target}", error) from error
    sync_directory(target.parent)


def _publish(scratch: Path, target: Path) -> None:
    """Give the finished archive its name. FileExistsError if a file of that name was created meanwhile."""
    try:
        os.link(scratch, target)
    except FileExistsError:
        raise
    except OSError:  # a filesystem without links: reserve the name first
        os.close(os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
        scratch.replace(target)
