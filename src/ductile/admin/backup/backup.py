"""`system backup`: configuration, store and plugins in one archive, consistent while the daemon runs."""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Callable, Iterator, Sequence
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

#: Where what lay outside of the configuration's directory is put.
OUTSIDE = "outside"
#: Where what the configuration reaches by a relative path outside of its directory is put.
BESIDE = "beside"
_PRIVATE = 0o700
#: Made anew whenever it is needed, and different on every machine.
_NOT_KEPT = frozenset({"__pycache__"})


class BackupPart(StrEnum):
    CONFIG = "config"
    STATE = "state"
    PLUGINS = "plugins"


class StoreFiles(Value):
    """Copies of a store, made and looked at; which database it is, is not ours to know."""

    #: From where, to where, and who is told how far it is.
    copy: Callable[[Path, Path, Callable[[int, int], None]], None]
    #: The schema version of a sound copy; raises `StoreError` if it is not sound.
    inspect: Callable[[Path], int]
    #: Makes a sound copy a store of its own, which is not taken for its original.
    renew: Callable[[Path], None]
    #: Raises `StoreError` if a file of a store lies there without its others.
    refuse_incomplete: Callable[[Path], None] = lambda _path: None


class BackupProgress(Protocol):
    """Told how far something is: what is being done, how much of how much."""

    def __call__(self, what: str, done: int, of: int) -> None: ...


class BackupRequest(Value):
    target: Path
    scopes: frozenset[BackupPart]
    secrets: bool
    now: datetime
    dry_run: bool = False
    #: A daemon writes to the store, or did when it ended: the file must be there.
    store_in_use: bool = False


class _Source(Value):
    """A file to back up, under the name it gets."""

    name: str
    path: Path
    scope: BackupPart
    origin: str | None = None


def parse_parts(text: str | None) -> frozenset[BackupPart]:
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
    """Write the archive, whole or not at all; what is in it."""
    target = _target(opened, wanted)
    sources, left_out, secrets = _collect(opened, wanted)
    base = _base(opened, wanted)
    with _beside(target, dry_run=wanted.dry_run) as scratch:
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
            scopes=tuple(scope.value for scope in BackupPart if scope in wanted.scopes),
            secrets=wanted.secrets and BackupPart.CONFIG in wanted.scopes,
            members=tuple(_member(source) for source in sources),
            store=None if store is None else store.name,
            left_out=tuple(left_out),
            prefix=None if base is None else _tidy(opened.loaded.directory).relative_to(base).as_posix(),
        )
        if scratch is not None:
            _write(target, scratch / "archive", manifest, sources, progress)
    return _shown(target, manifest, secrets, dry_run=wanted.dry_run)


def _target(opened: OpenedConfiguration, wanted: BackupRequest) -> Path:
    target = wanted.target
    if target.is_dir():
        name = re.sub(r"[^A-Za-z0-9_-]+", "-", opened.snapshot.service.name)
        target = target / f"{name}-{wanted.now:%Y%m%dT%H%M%SZ}.tar.gz"
    if os.path.lexists(target):
        raise _taken(target)
    if not target.parent.is_dir():
        raise NotFoundError(f"there is no directory {target.parent}", hint="Make it first.")
    return target


def _taken(target: Path) -> ConflictError:
    return ConflictError(f"{target} already exists, and is not overwritten", hint="Name another file.")


# ------------------------------------------------------------------------------- what goes into it


def _collect(
    opened: OpenedConfiguration, wanted: BackupRequest
) -> tuple[list[_Source], list[str], list[str]]:
    """Files as they lie on the disk, without the store; what is left out, and what of that holds secrets."""
    directory, base = _tidy(opened.loaded.directory), _base(opened, wanted)
    kept_back = frozenset() if wanted.secrets else _environment_files(opened)
    found: dict[Path, BackupPart] = {}
    left_out: list[Path] = []
    if BackupPart.CONFIG in wanted.scopes:
        found |= dict.fromkeys(_config_files(opened), BackupPart.CONFIG)
    if BackupPart.PLUGINS in wanted.scopes:
        store = state_file(opened.snapshot)
        for root in opened.loaded.plugin_roots:
            for path in _files_below(root, left_out):
                if path.parent != store.parent or not path.name.startswith(store.name):
                    found.setdefault(path, BackupPart.PLUGINS)
    secrets = [path for path in found if path in kept_back]
    left_out += secrets
    sources = [
        _source(directory, base, path, scope) for path, scope in found.items() if path not in kept_back
    ]
    return sources, [str(path) for path in left_out], [str(path) for path in secrets]


def _base(opened: OpenedConfiguration, wanted: BackupRequest) -> Path | None:
    """The directory that holds the configuration's and its relative plugin roots, if some lie outside."""
    directory = _tidy(opened.loaded.directory)
    if BackupPart.PLUGINS not in wanted.scopes:
        return None
    model = opened.loaded.model
    named = [*model.plugin_roots, *([model.plugins_dir] if model.plugins_dir else [])]
    roots = [_tidy(directory / name) for name in named if not Path(name).expanduser().is_absolute()]
    base = Path(os.path.commonpath((directory, *roots)))
    return None if base == directory else base


def _config_files(opened: OpenedConfiguration) -> list[Path]:
    directory = opened.loaded.directory
    names = [file.name for file in opened.loaded.files]
    sealed = [CHECKSUMS_FILE] if (directory / CHECKSUMS_FILE).is_file() else []
    return [_tidy(directory / name) for name in (*names, *sealed)]


def _environment_files(opened: OpenedConfiguration) -> frozenset[Path]:
    named = opened.loaded.model.environment_vars.include
    return frozenset(_tidy(resolve_path(name, opened.loaded.directory)) for name in named)


def _tidy(path: Path) -> Path:
    """Without `.` and `..`, so that a file is known under one name."""
    return Path(os.path.normpath(path))


def _files_below(root: Path, left_out: list[Path]) -> Iterator[Path]:
    """Plain files; links to directories, and what is no file at all, are named as left out."""
    for place, directories, names in os.walk(_tidy(root)):
        here = Path(place)
        left_out += [here / name for name in sorted(directories) if (here / name).is_symlink()]
        directories[:] = sorted(name for name in directories if name not in _NOT_KEPT)
        for path in (here / name for name in sorted(names)):
            if path.is_file():
                yield path
            else:
                left_out.append(path)


def _store_source(opened: OpenedConfiguration, wanted: BackupRequest, files: StoreFiles) -> _Source | None:
    if BackupPart.STATE not in wanted.scopes:
        return None
    path = _tidy(state_file(opened.snapshot))
    files.refuse_incomplete(path)
    if path.is_file():
        return _source(_tidy(opened.loaded.directory), _base(opened, wanted), path, BackupPart.STATE)
    if wanted.store_in_use:
        raise StoreFailedError(
            f"there is no store at {path}, and a daemon has used one there",
            hint="It was removed or moved. Put it back; `--scope config,plugins` backs up the rest.",
        )
    return None


def _source(directory: Path, base: Path | None, path: Path, scope: BackupPart) -> _Source:
    name = relative_name(directory, path)
    if not Path(name).is_absolute():
        return _Source(name=f"inside/{name}", path=path, scope=scope)
    if base is not None and path.is_relative_to(base):
        return _Source(name=f"{BESIDE}/{path.relative_to(base).as_posix()}", path=path, scope=scope)
    return _Source(name=f"{OUTSIDE}{name}", path=path, scope=scope, origin=str(path))


def _member(source: _Source) -> ArchiveMember:
    try:
        with source.path.open("rb") as stream:
            mode = os.fstat(stream.fileno()).st_mode & _PRIVATE
            size, digest = hash_stream(stream)
    except OSError as error:
        raise file_error(f"cannot read {source.path}", error) from error
    mode = 0o600 if source.scope is BackupPart.STATE else mode | 0o600
    return ArchiveMember(
        name=source.name, scope=source.scope, size=size, hash=digest, mode=mode, origin=source.origin
    )


# ------------------------------------------------------------------------------------- writing it


@contextmanager
def _beside(target: Path, *, dry_run: bool) -> Iterator[Path | None]:
    """A private directory on the disk of the target, gone at the end; None where nothing is written."""
    if dry_run:
        yield None
        return
    try:
        made = tempfile.TemporaryDirectory(prefix=f".{target.name}.", dir=target.parent)
    except OSError as error:
        raise file_error(f"cannot write to {target.parent}", error) from error
    with made:
        yield Path(made.name)


def _write(
    target: Path,
    scratch: Path,
    manifest: BackupManifest,
    sources: Sequence[_Source],
    progress: BackupProgress,
) -> None:
    total = manifest.size
    done = 0

    def progressed(size: int) -> None:
        nonlocal done
        done += size
        progress("writing the archive", done, total)

    try:
        descriptor = os.open(scratch, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "wb") as stream:
            write_archive(stream, manifest, {source.name: source.path for source in sources}, progressed)
            stream.flush()
            os.fsync(stream.fileno())
        _publish(scratch, target)
    except FileExistsError:
        raise _taken(target) from None
    except OSError as error:
        raise file_error(f"cannot write {target}", error) from error
    sync_directory(target.parent)


def _publish(scratch: Path, target: Path) -> None:
    """Under its name, at once. Should somebody have made a file of that name meanwhile, it stays theirs."""
    try:
        os.link(scratch, target)
    except FileExistsError:
        raise
    except OSError:  # a filesystem without links: the name is taken first
        os.close(os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
        scratch.replace(target)


def _shown(target: Path, manifest: BackupManifest, secrets: list[str], *, dry_run: bool) -> JsonObject:
    counts: JsonObject = {
        scope: sum(member.scope == scope for member in manifest.members) for scope in manifest.scopes
    }
    return {
        "path": str(target),
        "written": not dry_run,
        "dry_run": dry_run,
        "scopes": list(manifest.scopes),
        "files": counts,
        "bytes": manifest.size,
        "store": manifest.store,
        "secrets": manifest.secrets,
        "left_out": list(manifest.left_out),
        "secrets_left_out": [*secrets],
        "created_at": manifest.created_at,
    }
