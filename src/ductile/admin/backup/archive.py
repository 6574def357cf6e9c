"""The format of a backup: a compressed tar whose first member, `manifest.json`, lists the others.

An archive is not trusted: names have to stay below the directory that is restored, a member has to be a plain
file that the manifest lists, and its bytes have to match the hash there. Memory is bounded: by limits on the
headers before a file and on the manifest.
"""

from __future__ import annotations

import gzip
import io
import json
import tarfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import IO, BinaryIO

from ductile.errors import ConflictError, RefusedError
from ductile.struct import Value, convert, field, to_builtins

MANIFEST = "manifest.json"
FORMAT = 1
CHUNK = 1024 * 1024
_MAX_MANIFEST = 64 * 1024 * 1024
#: Bytes of all headers before one file, such as a long name.
_MAX_HEADER = 1024 * 1024
#: Characters of a name, and names of a list, that a message shows.
_MAX_SHOWN = 100
_MAX_LISTED = 3


class ArchiveMember(Value):
    """A file of the backup. `origin` is its path if that is outside of the configuration's directory."""

    name: str
    part: str = field(name="scope")
    size: int
    hash: str
    #: In octal digits.
    mode: str
    origin: str | None = None


class BackupManifest(Value):
    version: str = field(name="ductile")
    created_at: str
    #: The directory of the configuration.
    directory: str
    config_file: str
    parts: tuple[str, ...] = field(name="scopes")
    secrets: bool
    members: tuple[ArchiveMember, ...] = field(name="files")
    #: The name of the member that is the store, if there is one.
    store: str | None
    left_out: tuple[str, ...]
    #: The database server that the store was on; its copy is an SQLite file.
    server: str | None = None
    #: The path of the configuration's directory below the directory that is restored, if they differ.
    prefix: str | None = None
    format: int = FORMAT

    @property
    def size(self) -> int:
        """The bytes of all files, unpacked."""
        return sum(member.size for member in self.members)


class HashingReader:
    """Reads a stream and hashes its bytes."""

    def __init__(self, stream: IO[bytes]) -> None:
        from blake3 import blake3  # noqa: PLC0415 - only backups need it

        self._stream = stream
        self._digest = blake3()
        self._size = 0

    def read(self, size: int = -1) -> bytes:
        piece = self._stream.read(size)
        self._digest.update(piece)
        self._size += len(piece)
        return piece

    def result(self) -> tuple[int, str]:
        """Return size and hash of the whole stream. Reads what has not been read yet."""
        while self.read(CHUNK):
            pass
        return self._size, f"blake3:{self._digest.hexdigest()}"


# ------------------------------------------------------------------------------------------ writing


def write_archive(
    target: IO[bytes], manifest: BackupManifest, sources: dict[str, Path], on_written: Callable[[int], None]
) -> None:
    """Write the manifest and every member.

    Raises `ConflictError` for a file that was changed after it was hashed, `RefusedError` for too many files.
    """
    with tarfile.open(fileobj=target, mode="w:gz", format=tarfile.PAX_FORMAT) as archive:
        text = json.dumps(to_builtins(manifest), indent=2, ensure_ascii=False).encode()
        if len(text) > _MAX_MANIFEST:
            raise RefusedError(
                f"there are {len(manifest.members)} files, too many for one backup",
                hint="Move other files than plugins out of plugin_roots, or back up without plugins: "
                "--scope config,state",
            )
        archive.addfile(_tar_info(MANIFEST, len(text), 0o600), io.BytesIO(text))
        for member in manifest.members:
            _add_member(archive, member, sources[member.name])
            on_written(member.size)


def _add_member(archive: tarfile.TarFile, member: ArchiveMember, source: Path) -> None:
    """Add a file. Raises `ConflictError` if its bytes do not match the manifest."""
    with source.open("rb") as stream:
        reader = HashingReader(stream)
        try:
            archive.addfile(_tar_info(member.name, member.size, int(member.mode, 8)), reader)
        except OSError as error:
            if error.errno is not None:  # tarfile raises one without a number for a file that is too short
                raise
        if reader.result() != (member.size, member.hash):  # also finds bytes at the end of a file that grew
            raise ConflictError(
                f"{source} was changed while it was being backed up", hint="Nothing was written. Try again."
            )


def _tar_info(name: str, size: int, mode: int) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.size, info.mode = size, mode
    return info


# ------------------------------------------------------------------------------------------ reading


@contextmanager
def open_archive(
    path: Path,
) -> Iterator[tuple[BackupManifest, Iterator[tuple[ArchiveMember, HashingReader]]]]:
    """Open an archive for reading: its manifest, and its members in their order with their bytes.

    Raises `RefusedError` for an archive that is not whole. The hash of a member is checked when the iterator
    continues after it, so its bytes must not be used before the iterator has ended.
    """
    try:
        with gzip.open(path) as unpacked:
            stream = HeaderLimiter(unpacked)
            with tarfile.open(fileobj=stream, mode="r:") as archive:
                manifest = _read_manifest(archive, stream, path)
                yield manifest, _members(archive, stream, manifest, path)
    except FileNotFoundError as error:
        raise RefusedError(f"there is no file {path}") from error
    except (OSError, EOFError, tarfile.TarError, zlib.error) as error:
        raise _broken(path, f"it cannot be read: {error}") from error
    except RecursionError as error:  # tarfile recurses for headers of headers
        raise _broken(path, "its headers are not those that Ductile writes") from error


class HeaderLimiter(io.RawIOBase):
    """The unpacked bytes of an archive, with a limit on the bytes before the next file begins.

    `tarfile` takes the length of a header from the header, and holds all of it in memory.
    """

    def __init__(self, stream: gzip.GzipFile | BinaryIO) -> None:
        self._stream = stream
        #: Bytes left for headers; None while the bytes of a file are read.
        self.header_bytes_left: int | None = _MAX_HEADER

    def next_header(self, archive: tarfile.TarFile) -> tarfile.TarInfo | None:
        """Return the next member of the archive, which reads from this stream; None at its end."""
        self.header_bytes_left = _MAX_HEADER
        member = archive.next()
        self.header_bytes_left = None
        return member

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        if self.header_bytes_left is not None:
            if not 0 <= size <= self.header_bytes_left:
                raise tarfile.ReadError(f"a header is larger than {_MAX_HEADER >> 20} MiB")
            self.header_bytes_left -= size
        return self._stream.read(size)

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        return self._stream.seek(offset, whence)

    def tell(self) -> int:
        return self._stream.tell()


def _read_manifest(archive: tarfile.TarFile, headers: HeaderLimiter, path: Path) -> BackupManifest:
    """Return the manifest. Raises `RefusedError` if a name in it leads out of the restored directory."""
    first = archive.next()
    if first is None or first.name != MANIFEST or not is_regular_file(first):
        raise _broken(path, "it does not begin with a manifest")
    if first.size > _MAX_MANIFEST:
        raise _broken(path, f"its manifest is larger than {_MAX_MANIFEST >> 20} MiB")
    headers.header_bytes_left = None
    stream = archive.extractfile(first)
    try:
        content = json.loads(stream.read() if stream is not None else b"")
        if content["format"] != FORMAT:
            raise _broken(path, f"its format is {_short(content['format'])}, and this Ductile knows {FORMAT}")
        manifest = convert(content, BackupManifest)
        _check_members(manifest)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise _broken(path, "its manifest was not written by Ductile") from error
    return manifest


def _check_members(manifest: BackupManifest) -> None:
    """Raise `ValueError` for a name that leads out of the restored directory, or a mode that is no number."""
    for name in (*(member.name for member in manifest.members), manifest.prefix or "."):
        path = PurePosixPath(name)
        if path.is_absolute() or ".." in path.parts or "\0" in name or str(path) != name:
            raise ValueError(name)
    for member in manifest.members:
        int(member.mode, 8)


def is_regular_file(info: tarfile.TarInfo) -> bool:
    """Return whether a member is a regular file without holes: a sparse file can be of any size."""
    return info.type in (tarfile.REGTYPE, tarfile.AREGTYPE) and not info.issparse()


def _short(text: object) -> str:
    """Return a text of the archive, shortened for a message."""
    whole = str(text)
    return whole if len(whole) <= _MAX_SHOWN else f"{whole[:_MAX_SHOWN]}…"


def _members(
    archive: tarfile.TarFile, headers: HeaderLimiter, manifest: BackupManifest, path: Path
) -> Iterator[tuple[ArchiveMember, HashingReader]]:
    """Yield the members with their bytes, in the order of the archive.

    Raises `RefusedError` for a member that does not match the manifest.
    """
    expected = {member.name: member for member in manifest.members}
    while True:
        info = headers.next_header(archive)
        if info is None:
            break
        member = expected.pop(info.name, None)
        stream = archive.extractfile(info) if is_regular_file(info) else None
        if member is None or stream is None:
            raise _broken(path, f"it holds {_short(info.name)}, which its manifest does not list")
        mismatch = f"{_short(member.name)} is not what was backed up"
        if info.size != member.size:  # checked before any of it is read: it may be very large
            raise _broken(path, mismatch)
        reader = HashingReader(stream)
        yield member, reader
        if reader.result() != (member.size, member.hash):
            raise _broken(path, mismatch)
    if expected:
        missing = ", ".join(_short(name) for name in sorted(expected)[:_MAX_LISTED])
        more = f" and {len(expected) - _MAX_LISTED} more" if len(expected) > _MAX_LISTED else ""
        raise _broken(path, f"it lacks {missing}{more}")


def _broken(path: Path, reason: str) -> RefusedError:
    return RefusedError(f"{path} is not a whole backup: {reason}", hint="Use another archive.")
