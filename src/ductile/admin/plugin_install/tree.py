"""The files of a source in memory, within limits: nothing of an archive is written before it is checked.

Only regular files and directories are read. A plugin with a symbolic link, hard link or device is refused.
"""

from __future__ import annotations

import gzip
import os
import stat
import tarfile
import zipfile
import zlib
from pathlib import Path, PurePath, PurePosixPath
from typing import TYPE_CHECKING, BinaryIO

from ductile.admin.backup.archive import HeaderLimiter, is_regular_file
from ductile.errors import NotFoundError, RefusedError, UsageError, file_error
from ductile.plugins.discovery import SHARED_DIRECTORIES
from ductile.protocol.manifest.model import MANIFEST_FILE
from ductile.protocol.manifest.read import declared_name
from ductile.protocol.yaml import parse_yaml
from ductile.struct import Value, replace

if TYPE_CHECKING:
    from collections.abc import Mapping

_MIB = 1024 * 1024
MAX_FILES = 5000
MAX_BYTES = 128 * _MIB
#: Directories that are never part of a plugin.
_EXCLUDED = frozenset((".git", "__pycache__"))
#: Other methods may need gigabytes of memory to unpack a small file.
_ZIP_METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
#: How deep below a source its plugins may be.
_MAX_DEPTH = 4


class SourceFile(Value):
    data: bytes
    executable: bool


class SourceTree(Value):
    """Files by their relative path.

    `special_files` maps the path of any other entry to its kind, such as `a symbolic link`.
    """

    files: Mapping[str, SourceFile]
    special_files: Mapping[str, str]

    def without(self, name: str) -> SourceTree:
        return replace(self, files={path: file for path, file in self.files.items() if path != name})

    def below(self, directory: str) -> SourceTree:
        """Return the part below a directory; `.` stands for the whole tree."""
        if directory == ".":
            return self
        start = f"{directory}/"
        return SourceTree(
            files={
                name.removeprefix(start): file for name, file in self.files.items() if name.startswith(start)
            },
            special_files={
                name.removeprefix(start): kind
                for name, kind in self.special_files.items()
                if name.startswith(start)
            },
        )


class _Collector:
    """Collects the files of a source.

    Raises `RefusedError` for a name that leads out of the source, and above the limits.
    """

    def __init__(self, source: str) -> None:
        self.source = source
        self.files: dict[str, SourceFile] = {}
        self.special_files: dict[str, str] = {}
        self._size = 0
        self._count = 0

    def relative_name(self, member: str) -> str | None:
        """Return the relative path of a member; None for a member that is left out."""
        path = PurePosixPath(member)
        if path.is_absolute() or ".." in path.parts or "\0" in member or "\\" in member:
            raise RefusedError(f"{self.source} holds {member[:100]!r}, which leads out of it")
        return (
            None
            if not _EXCLUDED.isdisjoint(path.parts) or path == PurePosixPath()
            else self.path_as_text(path)
        )

    def path_as_text(self, path: PurePath) -> str:
        """Return a path as text. Raises `RefusedError` if it is not UTF-8, which a record could not hold."""
        name = path.as_posix()
        try:
            name.encode()
        except UnicodeEncodeError:
            raise RefusedError(f"{self.source} holds {name[:100]!r}, a name that is not UTF-8") from None
        return name

    def count(self, size: int = 0) -> None:
        """Count a file before it is read. Raises `RefusedError` if there are too many, or too large ones."""
        self._count += 1
        self._size += size
        if self._count > MAX_FILES or self._size > MAX_BYTES:
            raise RefusedError(
                f"{self.source} holds more than {MAX_FILES} files or {MAX_BYTES // _MIB} MiB",
                hint="name the directory of the plugin itself; for a repository, with #path=DIRECTORY",
            )

    def add(self, name: str, data: bytes, *, executable: bool) -> None:
        if name in self.files or name in self.special_files:
            raise RefusedError(f"{self.source} holds {name[:100]} twice")
        self.files[name] = SourceFile(data=data, executable=executable)

    def build_tree(self) -> SourceTree:
        for name in (*self.files, *self.special_files):
            if any(str(parent) in self.files for parent in PurePosixPath(name).parents):
                raise RefusedError(
                    f"{self.source} holds a file and a directory of the same name: {name[:100]}"
                )
        return SourceTree(files=self.files, special_files=self.special_files)


def read_directory(directory: Path, *, ignore: frozenset[str] = frozenset()) -> SourceTree:
    """Read a directory without following links. `ignore` are names of files in it that are left out."""

    def raise_error(error: OSError) -> None:
        raise error

    collector = _Collector(str(directory))
    try:
        for parent, directories, files in os.walk(directory, onerror=raise_error):
            links = [name for name in directories if (Path(parent) / name).is_symlink()]
            directories[:] = sorted(name for name in directories if name not in (*_EXCLUDED, *links))
            for path in (Path(parent) / name for name in sorted((*files, *links))):
                relative = collector.path_as_text(path.relative_to(directory))
                status = path.lstat()
                if relative in ignore:
                    continue
                if stat.S_ISREG(status.st_mode):
                    collector.count(status.st_size)
                    data = path.read_bytes()
                    collector.add(relative, data, executable=bool(status.st_mode & stat.S_IXUSR))
                else:
                    collector.count()
                    is_link = stat.S_ISLNK(status.st_mode)
                    collector.special_files[relative] = "a symbolic link" if is_link else "not a file"
    except OSError as error:
        raise file_error(f"cannot read {error.filename or directory}", error) from error
    return collector.build_tree()


def read_archive(path: Path) -> SourceTree:
    """Read a .tar.gz, .tgz or .zip. Raises `RefusedError` if it is damaged or hostile."""
    try:
        with path.open("rb") as stream:
            if path.name.endswith(".zip"):
                return _read_zip(stream, path)
            with gzip.open(stream) as unpacked:
                return read_tar(unpacked, str(path))
    except FileNotFoundError:
        raise NotFoundError(f"there is no file {path}") from None
    except (
        OSError,
        EOFError,
        ValueError,
        RuntimeError,
        tarfile.TarError,
        zlib.error,
        zipfile.BadZipFile,
    ) as error:
        raise RefusedError(f"{path} cannot be read: {error}", hint="it may be damaged") from error


def read_tar(stream: gzip.GzipFile | BinaryIO, source: str) -> SourceTree:
    """Read an unpacked tar. `source` names it in errors."""
    collector, headers = _Collector(source), HeaderLimiter(stream)
    with tarfile.open(fileobj=headers, mode="r:") as archive:
        while (info := headers.next_header(archive)) is not None:
            collector.count(0 if info.isdir() else info.size)
            name = collector.relative_name(info.name)
            if info.isdir() or name is None:
                continue
            content = archive.extractfile(info) if is_regular_file(info) else None
            if content is None:
                collector.special_files[name] = "a symbolic link" if info.issym() else "not a plain file"
            else:
                collector.add(name, content.read(), executable=bool(info.mode & stat.S_IXUSR))
    return collector.build_tree()


def _read_zip(stream: BinaryIO, path: Path) -> SourceTree:
    collector = _Collector(str(path))
    with zipfile.ZipFile(stream) as archive:
        for info in archive.infolist():
            collector.count(info.file_size)
            name, mode = collector.relative_name(info.filename), info.external_attr >> 16
            if info.is_dir() or name is None:
                continue
            if info.compress_type not in _ZIP_METHODS:
                raise RefusedError(f"{path} is compressed in an uncommon way", hint="pack it with `zip`")
            if stat.S_IFMT(mode) not in (0, stat.S_IFREG):
                collector.special_files[name] = (
                    "a symbolic link" if stat.S_ISLNK(mode) else "not a plain file"
                )
                continue
            with archive.open(info) as content:
                # The declared size was counted; a member that unpacks to more is not read further.
                data = content.read(info.file_size + 1)
            if len(data) != info.file_size:
                raise RefusedError(f"{path} holds {name[:100]} with a wrong size")
            # Not every program that writes archives stores the modes of files.
            is_program = data.startswith((b"#!", b"\x7fELF"))
            collector.add(name, data, executable=is_program or bool(mode & stat.S_IXUSR))
    return collector.build_tree()


def plugin_directories(tree: SourceTree) -> dict[str, str]:
    """Return the plugins of a tree: their names, and their directories in it (`.` for the tree itself)."""
    directories: dict[str, str] = {}
    for name in sorted(tree.files, key=lambda path: (path.count("/"), path)):
        path = PurePosixPath(name)
        hidden = any(part in SHARED_DIRECTORIES or part.startswith(".") for part in path.parts[:-1])
        if path.name != MANIFEST_FILE or len(path.parts) > _MAX_DEPTH or hidden:
            continue
        directory = str(path.parent)
        if any(directory.startswith(f"{parent}/") or parent == "." for parent in directories.values()):
            continue  # a file of another plugin
        node = parse_yaml(tree.files[name].data, file=name)
        directories.setdefault(declared_name(node) or path.parent.name, directory)
    return directories


def choose_plugin(tree: SourceTree, name: str | None, source: str) -> SourceTree:
    """Return the files of one plugin. Raises `UsageError` if there are several and no name is given.

    Raises `NotFoundError` if there is none of that name, `RefusedError` if it holds links.
    """
    directories = plugin_directories(tree)
    names = ", ".join(sorted(directories))
    if not directories:
        raise RefusedError(
            f"{source} holds no plugin: no {MANIFEST_FILE} was found", hint="name its directory"
        )
    if name is not None and name not in directories:
        raise NotFoundError(f"{source} holds no plugin {name}", hint=f"it holds {names}")
    if name is None and len(directories) > 1:
        raise UsageError(
            f"{source} holds {len(directories)} plugins: {names}", hint="choose one with --plugin NAME"
        )
    chosen = tree.below(directories[name or next(iter(directories))])
    for path, kind in chosen.special_files.items():
        raise RefusedError(
            f"{path} in the plugin is {kind}; only regular files are added",
            hint="replace it by what it points to" if "link" in kind else None,
        )
    return chosen


def shared_code_beside(tree: SourceTree, plugin: str | None) -> str | None:
    """Return the directory of shared code beside a plugin, which is not added with it; None without one."""
    directories = plugin_directories(tree)
    directory = directories.get(plugin or next(iter(directories), ""), ".")
    if directory == ".":
        return None
    parent = str(PurePosixPath(directory).parent)
    start = "" if parent == "." else f"{parent}/"
    shared = (f"{start}{directory_name}" for directory_name in ("lib", "_lib"))
    return next(
        (candidate for candidate in shared if any(name.startswith(f"{candidate}/") for name in tree.files)),
        None,
    )
