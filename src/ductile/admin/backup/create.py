"""`system backup`: configuration, store and plugins in one archive, consistent while the daemon runs."""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from datetime import datetime
from enum import StrEnum
from pathlib import Path

from ductile import __version__
from ductile.admin.backup.archive import ArchiveMember, BackupManifest, HashingReader, write_archive
from ductile.admin.config import OpenedConfiguration
from ductile.admin.store_rows import sqlite_file
from ductile.config.file_io import publish_file, sync_directory
from ductile.config.find_config import CHECKSUMS_FILE, resolve_path
from ductile.config.schema.plugins import PluginSettings
from ductile.config.seal import relative_name
from ductile.config.snapshot import PostgresLocation, SqliteLocation, StateLocation
from ductile.core.json import JsonObject
from ductile.core.scripts import read_command
from ductile.core.timestamps import format_timestamp
from ductile.errors import ConflictError, NotFoundError, StoreFailedError, UsageError, file_error
from ductile.struct import Value

#: The directory in the archive for files in the configuration's directory.
INSIDE = "inside"
#: The same for files elsewhere.
OUTSIDE = "outside"
#: The same for files elsewhere that the configuration names by a relative path.
BESIDE = "beside"
#: Names of directories that are left out of a backup.
_EXCLUDED = frozenset({"__pycache__"})


class BackupPart(StrEnum):
    """The parts of a backup, which `--scope` selects."""

    CONFIG = "config"
    STATE = "state"
    PLUGINS = "plugins"


#: Called with the present step, the amount that is done, and the whole amount.
BackupProgress = Callable[[str, int, int], None]


class StoreFunctions(Value):
    """Functions on stores and their copies, which are SQLite files whichever database a store is in."""

    #: Copies a store, as it is at one instant, into a new file.
    copy: Callable[[StateLocation, Path, BackupProgress], None]
    #: Returns the schema version of a copy; `StoreError` if the copy is damaged.
    inspect: Callable[[Path], int]
    #: Assigns a new store id to a copy.
    assign_new_id: Callable[[Path], None]
    #: Raises `StoreError` if only a part of a store's files is there.
    refuse_incomplete: Callable[[Path], None]


class BackupRequest(Value):
    target: Path
    parts: frozenset[BackupPart]
    include_secrets: bool
    now: datetime
    dry_run: bool = False
    #: A daemon writes to the store, or did when it ended: the file must be there.
    store_in_use: bool = False


def parse_parts(text: str | None) -> frozenset[BackupPart]:
    """Return the parts in a list with commas; all for None. Raises `UsageError` for an unknown part."""
    if text is None:
        return frozenset(BackupPart)
    try:
        parts = frozenset(BackupPart(part.strip()) for part in text.split(",") if part.strip())
    except ValueError:
        parts = frozenset()
    if not parts:
        raise UsageError(f"--scope {text}: there is no such part", hint=f"some of {', '.join(BackupPart)}")
    return parts


def back_up(
    opened: OpenedConfiguration,
    request: BackupRequest,
    store_functions: StoreFunctions,
    progress: BackupProgress,
) -> JsonObject:
    """Write the archive, whole or not at all, and return its contents.

    Raises `ConflictError` if the target exists or a file changes meanwhile, `StoreError` for a missing or
    damaged store.
    """
    target = _target(opened, request)
    directory, base = _normalize(opened.loaded.directory), _base_directory(opened, request)
    parts, left_out, secrets = _collect(opened, request)
    store = _find_store(opened, request, store_functions)
    server = opened.snapshot.state.name if isinstance(opened.snapshot.state, PostgresLocation) else None
    # There is no file of a store on a server until it is copied.
    if store is not None and not (request.dry_run and server):
        parts[store] = BackupPart.STATE
    names = {path: _archive_name(path, directory, base) for path in parts}
    sources = {name: path for path, name in names.items()}
    beside: AbstractContextManager[Path | None]
    beside = nullcontext() if request.dry_run else scratch_beside(target)
    with beside as scratch:
        if store is not None and scratch is not None:
            sources[names[store]] = scratch / "state"
            store_functions.copy(opened.snapshot.state, scratch / "state", progress)
        manifest = BackupManifest(
            version=__version__,
            created_at=format_timestamp(request.now),
            directory=str(opened.loaded.directory),
            config_file=opened.loaded.path.name,
            parts=tuple(part.value for part in BackupPart if part in request.parts),
            secrets=request.include_secrets and BackupPart.CONFIG in request.parts,
            members=tuple(_member(path, name, sources[name], parts[path]) for path, name in names.items()),
            store=None if store is None else _archive_name(store, directory, base),
            server=None if store is None else server,
            left_out=tuple(str(path) for path in left_out),
            prefix=None if base is None else directory.relative_to(base).as_posix(),
        )
        if scratch is not None:
            _write(target, scratch / "archive", manifest, sources, progress)
    parts_of_members = [member.part for member in manifest.members]
    return {
        "path": str(target),
        "written": not request.dry_run,
        "dry_run": request.dry_run,
        "scopes": list(manifest.parts),
        "files": {part: parts_of_members.count(part) for part in manifest.parts},
        "bytes": manifest.size,
        "store": manifest.store,
        "secrets": manifest.secrets,
        "left_out": list(manifest.left_out),
        "secrets_left_out": [str(path) for path in secrets],
        "created_at": manifest.created_at,
    }


def _target(opened: OpenedConfiguration, request: BackupRequest) -> Path:
    """Return the path of the archive. In a directory the archive gets a name with the time.

    Raises `ConflictError` if it exists, `NotFoundError` if its directory does not.
    """
    target = request.target
    if target.is_dir():
        name = re.sub(r"[^A-Za-z0-9_-]+", "-", opened.snapshot.service.name)
        target = target / f"{name}-{request.now:%Y%m%dT%H%M%SZ}.tar.gz"
    if os.path.lexists(target):
        raise _exists_error(target)
    if not target.parent.is_dir():
        raise NotFoundError(f"there is no directory {target.parent}", hint="Make it first.")
    return target


def _exists_error(target: Path) -> ConflictError:
    return ConflictError(f"{target} already exists, and is not overwritten", hint="Name another file.")


# ---------------------------------------------------------------------------------------------- files


def _collect(
    opened: OpenedConfiguration, request: BackupRequest
) -> tuple[dict[Path, BackupPart], list[Path], list[Path]]:
    """Return the files to back up except the store, the files that are left out, and those with secrets."""
    directory = _normalize(opened.loaded.directory)
    parts: dict[Path, BackupPart] = {}
    left_out: list[Path] = []
    if BackupPart.CONFIG in request.parts:
        names = [file.name for file in opened.loaded.files]
        names += [CHECKSUMS_FILE] if (directory / CHECKSUMS_FILE).is_file() else []
        parts |= {_normalize(directory / name): BackupPart.CONFIG for name in names}
    if BackupPart.PLUGINS in request.parts:
        store = sqlite_file(opened.snapshot.state)
        for path in _plugin_files(opened, left_out):
            if path.parent != store.parent or not path.name.startswith(store.name):
                parts.setdefault(path, BackupPart.PLUGINS)
    secrets: list[Path] = []
    if not request.include_secrets:
        included = opened.loaded.model.environment_vars.include
        env_files = {_normalize(resolve_path(name, opened.loaded.directory)) for name in included}
        secrets = [path for path in parts if path in env_files]
        for path in secrets:
            del parts[path]
    return parts, [*left_out, *secrets], secrets


def _plugin_files(opened: OpenedConfiguration, left_out: list[Path]) -> Iterator[Path]:
    """Yield all files in the plugin roots, and scripts in the directory of the configuration.

    Links to directories and entries that are not files are added to `left_out`, and so are scripts elsewhere,
    which may be programs of the system.
    """
    for root in opened.loaded.plugin_roots:
        for parent, directories, names in os.walk(_normalize(root)):
            links = [name for name in sorted(directories) if (Path(parent) / name).is_symlink()]
            left_out += [Path(parent) / name for name in links]
            directories[:] = sorted(name for name in directories if name not in _EXCLUDED)
            for path in (Path(parent) / name for name in sorted(names)):
                if path.is_file():
                    yield path
                else:
                    left_out.append(path)
    directory = _normalize(opened.loaded.directory)
    scripts = [settings for settings in opened.loaded.model.plugins.values() if settings.run is not None]
    for file in filter(None, (_script_file(settings, directory) for settings in scripts)):
        if file.is_relative_to(directory):
            yield file
        elif file not in left_out:
            left_out.append(file)


def _script_file(settings: PluginSettings, directory: Path) -> Path | None:
    """Return the file that a script runs; None if there is no such file.

    It is the program, if that is named by a path; else the first word that names a file in the directory of
    the configuration, as in `python3 report.py`.
    """
    run = settings.run or ""
    cwd = directory if settings.cwd is None else resolve_path(settings.cwd, directory)
    names: tuple[str, ...]
    program = read_command(run).program
    if program is not None and "/" in program:
        names, base = (program,), Path("/")
    else:
        names, base = tuple(run.split() if isinstance(run, str) else run), directory
    paths = (_normalize(parent / name) for name in names for parent in (cwd, directory))
    return next((path for path in paths if path.is_relative_to(base) and path.is_file()), None)


def _base_directory(opened: OpenedConfiguration, request: BackupRequest) -> Path | None:
    """Return the directory that holds the configuration's directory and its relative plugin roots.

    Returns None if that is the configuration's directory itself.
    """
    directory = _normalize(opened.loaded.directory)
    if BackupPart.PLUGINS not in request.parts:
        return None
    model = opened.loaded.model
    names = [*model.plugin_roots, *([model.plugins_dir] if model.plugins_dir else [])]
    roots = [_normalize(directory / name) for name in names if not Path(name).expanduser().is_absolute()]
    base = Path(os.path.commonpath((directory, *roots)))
    return None if base == directory else base


def _normalize(path: Path) -> Path:
    """Return the path without `.` and `..`, so that a file has one name."""
    return Path(os.path.normpath(path))


def _find_store(
    opened: OpenedConfiguration, request: BackupRequest, store_functions: StoreFunctions
) -> Path | None:
    """Return the store to back up; None if it is not requested, or not there yet.

    Raises `StoreError` if it is gone or incomplete.
    """
    if BackupPart.STATE not in request.parts:
        return None
    state = opened.snapshot.state
    path = _normalize(sqlite_file(state))
    if not isinstance(state, SqliteLocation):
        return path
    store_functions.refuse_incomplete(path)
    if path.is_file():
        return path
    if request.store_in_use:
        raise StoreFailedError(
            f"there is no store at {path}, and a daemon has used one there",
            hint="It was removed or moved. Put it back; `--scope config,plugins` backs up the rest.",
        )
    return None


def _archive_name(path: Path, directory: Path, base: Path | None) -> str:
    """Return the name of a file in the archive: below `inside/`, `beside/` or `outside/`."""
    name = relative_name(directory, path)
    if not Path(name).is_absolute():
        return f"{INSIDE}/{name}"
    if base is not None and path.is_relative_to(base):
        return f"{BESIDE}/{path.relative_to(base).as_posix()}"
    return f"{OUTSIDE}{name}"


def _member(path: Path, name: str, source: Path, part: BackupPart) -> ArchiveMember:
    """Return the entry of the manifest for a file; `source` is the file, or the copy of the store."""
    try:
        with source.open("rb") as stream:
            mode = os.fstat(stream.fileno()).st_mode
            size, digest = HashingReader(stream).result()
    except OSError as error:
        raise file_error(f"cannot read {source}", error) from error
    mode = 0o600 if part is BackupPart.STATE else mode & 0o700 | 0o600
    origin = str(path) if name.startswith(f"{OUTSIDE}/") else None
    return ArchiveMember(name=name, part=part, size=size, hash=digest, mode=f"{mode:04o}", origin=origin)


# ---------------------------------------------------------------------------------------------- write


@contextmanager
def scratch_beside(target: Path) -> Iterator[Path]:
    """Make a private directory on the disk of the target. It is removed at the end, unless it was renamed."""
    try:
        scratch = tempfile.TemporaryDirectory(prefix=f".{target.name}.", dir=target.parent)
    except OSError as error:
        raise file_error(f"cannot write to {target.parent}", error) from error
    with scratch as name:
        yield Path(name)


def _write(
    target: Path, scratch: Path, manifest: BackupManifest, paths: dict[str, Path], progress: BackupProgress
) -> None:
    """Write the archive to `scratch`, and give it the name `target` when it is on disk.

    Raises `ConflictError` if a file of that name exists by now.
    """
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
        publish_file(scratch, target)
    except FileExistsError:
        raise _exists_error(target) from None
    except OSError as error:
        raise file_error(f"cannot write {target}", error) from error
    sync_directory(target.parent)
